"""Predictions of a fine-tuned model, with the names of its labels. `predict --probabilities` writes
all classes in tables and all tags in JSON Lines, and is refused where there are none."""
import dataclasses
import json

import numpy as np
import pytest
import tuned

import plm_jax
from plm_jax.cli import commands
from plm_jax.errors import ConfigError
from plm_jax.finetuning.predict import predict
from plm_jax.metrics.tag_schemes import find_chunks
from plm_jax.sources.lines import SourceError
from plm_jax.sources.row_readers import Answer, Example
from plm_jax.tasks import sources, tagging_format
from plm_jax.tasks.choice_format import CHOICE
from plm_jax.tasks.example_formats import CLASSIFICATION
from plm_jax.tasks.outputs import Entity, StreamingMetrics, bracket_entities
from plm_jax.tasks.tagging_format import TAGGING
from plm_jax.unicode_words import split_words


def test_predictions_are_class_names_or_numbers():
  model = tuned.trained('classification')
  found = plm_jax.predict(model, ['a fine film', 'a dull film', ('a film', 'fine')])
  assert [one.label for one in found] == ['good', 'bad', 'good']
  assert all(one.probability == max(one.probabilities.values()) > 0.9 for one in found)
  assert list(found[0].probabilities) == ['bad', 'good']
  assert plm_jax.predict(model, 'a fine film')[0].label == 'good'
  packed = plm_jax.predict(model, ['a fine film', 'a dull film', ('a film', 'fine')], batch=2,
                           pack=True)
  np.testing.assert_allclose([one.probability for one in packed],
                             [one.probability for one in found], rtol=1e-5)
  up, down = plm_jax.predict(tuned.trained('regression'), ['a fine film', 'a dull film'])
  assert up.value > 0 > down.value


def test_tags_are_predicted_with_offsets_of_entities():
  model = tuned.trained('tagging')
  text = 'Angela Merkel came  to Berlin.'
  found, = plm_jax.tag(model, text)
  assert found.words == ['Angela', 'Merkel', 'came', 'to', 'Berlin', '.']
  assert found.tags == ['B-PER', 'I-PER', 'O', 'O', 'B-LOC', 'O']
  assert [entity[:4] for entity in found.entities] == [('Angela Merkel', 'PER', 0, 13),
                                                       ('Berlin', 'LOC', 23, 29)]
  assert found.entities[0].probability == min(found.probabilities[:2])
  assert bracket_entities(text, found.entities) == '[Angela Merkel PER] came  to [Berlin LOC].'
  given, = plm_jax.tag(model, [['came', 'to', 'Berlin']])
  assert [entity[:4] for entity in given.entities] == [('Berlin', 'LOC', 8, 14)]
  assert plm_jax.predict(model, text) == [found]


def test_answers_have_offsets_in_contexts_of_any_length():
  model = tuned.trained('answers')
  context = 'a film. ' * 12 + 'Angela  Merkel came. ' + 'a film. ' * 9
  found = plm_jax.answer(model, 'Who came?', context)
  assert (found.text, found.start, found.end) == ('Angela  Merkel', 96, 110)
  assert plm_jax.answer(model, ['Who came?'], context) == [found]
  assert plm_jax.predict(model, [('Who came?', context)]) == [found]


def test_a_choice_is_one_of_those_given():
  chosen, third = plm_jax.predict(tuned.trained('choice'), [
      ('a film', ['dull', 'fine']), ('a film', 'who came?', ['dull', 'a', 'fine'])])
  assert chosen.choice == 'fine'
  assert (chosen.number, third.number, len(third.probabilities)) == (1, 2, 3)
  assert chosen.probability == chosen.probabilities[1] > 0.9


def test_unsupported_predictions_are_one_line_errors():
  classes, names = tuned.trained('classification'), tuned.trained('tagging')
  for call, line in (
      (lambda: plm_jax.tag(classes, 'a'),
       'has learned classification and cannot tag: it can encode, predict, export'),
      (lambda: plm_jax.answer(names, 'who?', 'a'),
       'has learned tagging and cannot answer: it can encode, predict, '
       'tag, export'),
      (lambda: plm_jax.predict(classes, ['a', ' ']),
       "text 2: expected a text, or a pair of texts, none of them empty"),
      (lambda: plm_jax.predict(classes, [('a', 'b', 'c')]),
       'text 1: expected a text, or a pair of texts'),
      (lambda: plm_jax.predict(tuned.trained('choice'), [('a', ['b'])]),
       'text 1: expected a context and a list of'),
      (lambda: plm_jax.predict(tuned.trained('answers'), ['who?']),
       'text 1: expected a question and its context'),
      (lambda: plm_jax.predict(dataclasses.replace(classes, task=None), 'a'),
       r'has a head \(label\) of another library')):
    with pytest.raises(ConfigError, match=line):
      call()


def test_a_checkpoint_of_transformers_has_the_task_of_its_head(tmp_path):
  asks = {'classification': ['a fine film', ('a', 'dull film')], 'regression': ['a fine film'],
          'tagging': ['Angela came to Berlin'], 'answers': [('who came?', 'Angela Merkel came')],
          'choice': [('a film', ['dull', 'fine'])]}
  for kind, texts in asks.items():
    model = tuned.trained(kind)
    plm_jax.export(model, tmp_path / kind)
    loaded = plm_jax.load(tmp_path / kind)
    assert loaded.task.example_kind == kind
    assert loaded.labels == (model.labels or loaded.labels)
    assert loaded.capabilities == model.capabilities
    assert str(plm_jax.predict(loaded, texts)) == str(plm_jax.predict(model, texts))


def test_words_of_running_text():
  assert [word.text
          for word in split_words("The U.S. didn't pay $1,000 to Germany's Rolls-Royce.")] == [
      'The', 'U.S.', 'did', "n't", 'pay', '$', '1,000', 'to', 'Germany', "'s", 'Rolls-Royce', '.']
  assert [word.text for word in split_words('默克尔2015年 (e.g. 10:30) text_a.')] == [
      '默', '克', '尔', '2015', '年', '(', 'e.g.', '10:30', ')', 'text_a', '.']
  text = '“Hi” said O\'Brien — 1.5kg.\nかな'
  assert all(text[word.start:word.end] == word.text for word in split_words(text))
  assert ''.join(word.text for word in split_words(text)) == ''.join(text.split())


def test_chunks_of_tags():
  tags = ['I-PER', 'I-PER', 'B-PER', 'I-LOC', 'O', 'S-X', 'B-Y', 'E-Y', 'I-Y']
  assert list(find_chunks(tags)) == [(0, 1, 'PER'), (2, 2, 'PER'), (3, 3, 'LOC'), (5, 5, 'X'),
                                     (6, 7, 'Y'), (8, 8, 'Y')]
  assert list(find_chunks(['NOUN', 'O'])) == []
  assert bracket_entities('ab', [Entity('a', 'X', 0, 1, 1.0),
                                 Entity('b', 'Y', 1, 2, 1.0)]) == '[a X][b Y]'


def test_a_line_is_an_example():
  found = sources.parse_lines(CHOICE, [(1, 'a\tb\tc')], 'f')
  assert next(found).example == Example(('a', ''), choices=('b', 'c'), where='f:1')
  found = sources.parse_lines(CLASSIFICATION, [(1, 'a'), (2, 'a\tb'), (3, '')], 'f')
  assert [next(found).example.texts, next(found).example.texts] == [('a',), ('a', 'b')]
  with pytest.raises(SourceError,
                     match='f:3: expected a text, or a pair of texts, none of them empty, got '):
    next(found)


def test_sources_are_read_in_chunks_with_labels(tmp_path):
  file = tmp_path / 'x.tsv'
  file.write_text('text\tlabel\n' + ''.join(f'row {n}\t{"good" if n % 2 else "bad"}\n'
                                            for n in range(7)))
  chunks = list(sources.read_chunks('classification', str(file), labels=('bad', 'good'), size=3))
  assert [len(chunk) for chunk in chunks] == [3, 3, 1]
  assert [example.label for chunk in chunks for example in chunk] == [0, 1, 0, 1, 0, 1, 0]
  file.write_text('text\tlabel\na\tgood\nb\tugly\nc\t\n')
  report = sources.ReadReport()
  kept, = sources.read_chunks('classification', str(file), labels=('bad', 'good'), report=report)
  assert [example.label for example in kept] == [1, None, None]
  assert report.unknown_labels == 1 and report.skipped == {}
  assert report.unknown_label.endswith(
      "x.tsv:3: the label 'ugly' is none of those that are learned: bad, good")
  words = tmp_path / 'x.conll'
  words.write_text('Ann I-PER\ncame O\n')
  (sentence,), = sources.read_chunks('tagging', str(words), labels=('O', 'B-PER', 'I-PER'))
  assert sentence.label == (1, 0)
  file.write_text('text\tlabel\n')
  with pytest.raises(SourceError, match='has no examples'):
    list(sources.read_chunks('classification', str(file)))


def test_streaming_metrics_equal_metrics_of_all_examples():
  model = tuned.trained('classification')
  examples = [Example((text,), label)
              for text, label in (('fine', 1), ('dull', 1), ('a dull film', 0), ('a', None))]
  scores = StreamingMetrics(model.task)
  for part in (examples[:2], examples[2:]):
    scores.add(part, predict(model, part))
  assert (scores.num_predictions, scores.num_labeled) == (4, 3)
  assert scores.compute()['accuracy'] == pytest.approx(200 / 3)
  model = tuned.trained('answers')
  scores = StreamingMetrics(model.task)
  question = Example(('who?', 'angela merkel came'), answers=(Answer('angela merkel', 0),))
  scores.add([question], predict(model, [question]))
  assert scores.compute() == {'f1': 100.0, 'exact': 100.0}


def test_phrases_without_spaces_are_named_once(caplog):
  """Thai and similar scripts: a phrase is one word, which is reported once; words and Chinese
  characters are not."""
  tagging_format.warn_unsegmented.cache_clear()
  for text in ('บ้าน สวย', '我们喜欢学习汉语和画山水画', 'हिन्दी भाषा'):
    TAGGING.parse_input(text, 'here')
  assert not caplog.messages
  with pytest.raises(ConfigError, match='none of them empty'):
    TAGGING.parse_input('\u200b \ufeff', 'here')
  for _ in range(2):
    assert len(TAGGING.parse_input('พ่อทำงานตั้งแต่เช้า', 'here').starts) == 1
  assert caplog.messages == [
      'a text has phrases without a space (Thai), and each is tagged as one word: give text with '
      'spaces between '
      'words, or lists of words']


@pytest.fixture
def predicted(tmp_path, monkeypatch, capsys):
  """Predict a line with a trained model of a task; return the content of the output, or the
  error."""
  def run(kind, output, *args, line='a fine berlin'):
    if not (tmp_path / kind).exists():
      plm_jax.export(tuned.trained(kind), tmp_path / kind)
    (tmp_path / 'x.txt').write_text(line + '\n')
    monkeypatch.setattr('sys.argv', [
        'plm_jax', 'predict', str(tmp_path / kind), str(tmp_path / 'x.txt'),
        f'--output={tmp_path / output}', *args])
    try:
      commands.main()
    except SystemExit as error:
      if error.code:
        return f'{error.code} {capsys.readouterr().err}'
    return (tmp_path / output).read_text()
  return run


def test_tables_have_a_column_per_class(predicted):
  head, row = (line.split('\t') for line in predicted('classification', 'y.tsv',
                                                      '--probabilities').splitlines())
  assert head == ['label', 'probability', 'truth', 'text', 'p(bad)', 'p(good)']
  assert row[0] == 'good' and float(row[4]) + float(row[5]) == pytest.approx(1, abs=1e-5) and row[
      5] == row[1]
  head, row = (line.split('\t') for line in predicted('multilabel', 'y.tsv',
                                                      '--probabilities').splitlines())
  assert head[-3:] == ['p(bad)', 'p(good)', 'p(place)'] and float(row[-1]) > float(row[-3])
  assert 'p(bad)' not in predicted('classification', 'y.tsv')


def test_json_has_all_tags_on_request(predicted):
  plain = json.loads(predicted('tagging', 'y.jsonl', line='angela O\ncame O\nto O\nberlin B-LOC\n'))
  found = json.loads(predicted('tagging', 'y.jsonl', '--probabilities',
                               line='angela O\ncame O\nto O\nberlin B-LOC\n'))
  shares = found.pop('all_probabilities')
  assert found == plain and len(shares) == 4
  for word, tag, probability in zip(shares, found['tags'], found['probabilities'], strict=True):
    assert [*word] == ['O', 'B-PER', 'I-PER', 'B-LOC',
                       'I-LOC'] and sum(word.values()) == pytest.approx(1)
    assert max(word, key=word.__getitem__) == tag and word[tag] == probability


@pytest.mark.parametrize(('kind', 'output', 'message'), [
    ('regression', 'y.tsv', 'is for classes, labels and tags, and the model predicts regression'),
    ('tagging', 'y.conll', 'of tags are written to .jsonl, got --output=')])
def test_without_probabilities_or_a_place_for_them(predicted, kind, output, message):
  assert message in predicted(kind, output, '--probabilities')
