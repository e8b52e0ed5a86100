"""Errors and predictions in the report of a fine-tuning run, read back from the document."""
import re

import tuned

from plm_jax.finetuning.predict import predict
from plm_jax.report import error_analysis
from plm_jax.report import html as report
from plm_jax.sources.row_readers import Answer, Example


def document(kind, examples):
  """The text of the sections, tags but for <mark> and <td> left out, spaces made one."""
  trained = tuned.trained(kind)
  sections = error_analysis.error_sections(
      trained.task, error_analysis.labeled_pairs(examples, predict(trained, examples)))
  html = report.render_report(report.Summary('run', {}, sections=sections), {}, ())
  assert '<script' not in html and "default-src 'none'" in html
  body = html[html.index('<body>'):html.index('<footer>')]
  return ' '.join(re.sub(r'<(?!/?mark>|td)[^>]*>', ' ', body).split())


def test_classes_have_a_table_and_confident_mistakes_come_first():
  examples = [Example(('fine',), 1, where='x:1'), Example(('dull',), 0, where='x:2'),
              Example(('a <b>film</b>',), 1, where='x:3'),
              Example(('a dull film',), 1, where='x:4'),
              Example(('fine',), None, where='x:5')]
  found = document('classification', examples)
  assert re.search(
      r'Confusion matrix .* bad good bad <td[^>]*>1 <td[^>]*>0 good <td[^>]*>2 <td[^>]*>1', found)
  assert re.search(
      r'precision recall F1 examples bad <td>33\.33 <td>100\.00 <td>50\.00 <td>1 good <td>100\.00',
      found)
  assert found.index('x:4') < found.index('x:3')
  assert re.search(r'a dull film Predicted bad \(9\d\.\d%\) , is good x:4', found)
  assert 'a &lt;b&gt;film&lt;/b&gt;' in found
  assert 'There are none.' in document('classification', examples[:2])


def test_true_and_predicted_tags_are_marked():
  found = document('tagging', [
      Example(('Angela', 'came', 'to', 'film'), (1, 0, 0, 3), where='x:1'),
      Example(('Berlin',), (3,), where='x:7')])
  assert 'Is: <mark>Angela PER </mark> came to <mark>film LOC </mark>' in found
  assert 'Predicted: <mark>Angela PER </mark> came to film' in found
  assert 'x:7' not in found
  assert ('LOC <td>100.00 <td>50.00 <td>66.67 <td>2 PER <td>100.00 <td>100.00 <td>100.00 '
          '<td>1') in found


def test_answers_are_shown_in_their_contexts():
  context = 'a film. ' * 30 + 'angela merkel came to berlin.'
  found = document('answers', [
      Example(('who?', context), answers=(Answer('berlin', 262),), where='x:1', key='q7'),
      Example(('who?', context), answers=(Answer('Angela Merkel', 240),), where='x:2')])
  assert re.search(r'who\? Is: ….{98}angela merkel came to <mark>berlin</mark>\. Predicted: …',
                   found)
  assert '<mark>angela merkel</mark> came to berlin. Predicted with ' in found
  assert 'q7' in found and 'x:2' not in found


def test_choices_and_numbers():
  found = document('choice', [Example(('a film', 'who?'), 0, ('dull', 'fine'), where='x:1')])
  assert re.search(r'a film who\? Predicted fine \(8\d\.\d%\) , is dull x:1', found)
  found = document('regression', [Example(('a',), 0.1, where='x:1'),
                                  Example(('fine',), -9.0, where='x:2')])
  assert re.search(r'Largest errors fine Predicted \d\.\d\d , is -9\.00 x:2 a Predicted', found)
