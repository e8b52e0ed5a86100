import json

import pytest

from plm_jax.metrics.tasks import METRICS
from plm_jax.tasks.registry import TASKS
from plm_jax.tasks.sources import read_sources

ROWS = {  # as the data sets of these names have them, in TFDS or their own files
    'cola': ({'sentence': 'a', 'label': 1, 'idx': 0}, ('a',), 'acceptable'),
    'sst2': ({'sentence': 'a', 'label': '0'}, ('a',), 'negative'),
    'mrpc': ({'sentence1': 'a', 'sentence2': 'b', 'label': 1}, ('a', 'b'), 'equivalent'),
    'qqp': ({'question1': 'a', 'question2': 'b', 'is_duplicate': '0'}, ('a', 'b'), 'not_duplicate'),
    'mnli': ({'sentence1': 'a', 'sentence2': 'b', 'label1': 'neutral',
              'gold_label': 'contradiction'}, ('a', 'b'),
             'contradiction'),
    'qnli': ({'question': 'a', 'sentence': 'b', 'label': 'not_entailment'}, ('a', 'b'),
             'not_entailment'),
    'rte': ({'premise': 'a', 'hypothesis': 'b', 'label': 0}, ('a', 'b'), 'entailment'),
    'wnli': ({'sentence1': 'a', 'sentence2': 'b', 'label': 0}, ('a', 'b'), 'not_entailment'),
    'boolq': ({'question': 'a', 'passage': 'b', 'answer': True}, ('a', 'b'), 'True'),
    'cb': ({'premise': 'a', 'hypothesis': 'b', 'label': 1}, ('a', 'b'), 'contradiction'),
    'wic': ({'word': 'bed', 'sentence1': 'a', 'sentence2': 'b', 'label': False}, ('bed a', 'b'),
            'False'),
    'sick': ({'sentence_A': 'a', 'sentence_B': 'b', 'entailment_label': 'neutral'}, ('a', 'b'),
             'neutral'),
    'tnews': ({'sentence': 'a', 'label': 116, 'keywords': ''}, ('a',), '116'),
    'ocnli': ({'sentence1': 'a', 'sentence2': 'b', 'label': 'entailment', 'label0': None},
              ('a', 'b'), 'entailment'),
    'bustm': ({'sentence1': 'a', 'sentence2': 'b', 'label': '1'}, ('a', 'b'), '1'),
    'eprstmt': ({'sentence': 'a', 'label': 'Positive'}, ('a',), 'Positive'),
    'chnsenticorp': ({'text_a': 'a', 'label': '1'}, ('a',), 'positive'),
}


def read(name, row, tmp_path):
  path = tmp_path / 'a.jsonl'
  path.write_text(json.dumps(row) + '\n')
  task = TASKS[name]
  return read_sources(task.kind, [str(path)], task.columns, task.labels, 'dev').examples[0]


@pytest.mark.parametrize('name', ROWS)
def test_classes_by_name_and_by_number(name, tmp_path):
  row, texts, label = ROWS[name]
  example = read(name, row, tmp_path)
  assert example.texts == texts
  assert TASKS[name].labels[example.label] == label


def test_other_kinds(tmp_path):
  assert read('stsb', {'score': '3.8', 'sentence1': 'a', 'sentence2': 'b'}, tmp_path).label == 3.8
  assert read('sick_relatedness', {'relatedness': 4.5, 'sentence1': 'a', 'sentence2': 'b'},
              tmp_path).label == 4.5
  assert read('conll2003', {'tokens': ['EU', 'x'], 'ner': [3, 0], 'pos': [22, 1]},
              tmp_path).label == (3, 0)
  assert TASKS['conll2003'].labels[3] == 'B-ORG'
  copa = read('copa', {'premise': 'p', 'question': 'cause', 'choice1': 'a', 'choice2': 'b',
                       'label': 1}, tmp_path)
  assert (copa.texts, copa.choices, copa.label) == (('p', 'What was the cause of this?'),
                                                    ('a', 'b'), 1)
  assert read('piqa', {'goal': 'g', 'sol1': 'a', 'sol2': 'b', 'label': 0},
              tmp_path).texts == ('g', '')


def test_names_are_in_the_order_of_the_published_numbers():
  assert TASKS['mnli'].labels == ('entailment', 'neutral', 'contradiction')
  assert TASKS['cb'].labels == ('entailment', 'contradiction', 'neutral')
  assert TASKS['wnli'].labels == ('not_entailment', 'entailment')
  assert TASKS['tnews'].labels[4:7] == ('104', '106', '107')
  assert TASKS['tnews'].labels[9:11] == ('110', '112')
  assert {name: len(TASKS[name].labels)
          for name in ('tnews', 'thucnews', 'conll2003', 'msra', 'pos')} == {
      'tnews': 15, 'thucnews': 10, 'conll2003': 9, 'msra': 7, 'pos': 17}


def test_the_metrics_of_the_benchmarks():
  assert [TASKS[name].measures[0] for name in ('cola', 'mrpc', 'stsb', 'cb', 'pos', 'conll2003',
                                               'squad_v2')] == [
      'matthews', 'f1', 'pearson', 'accuracy', 'accuracy', 'entities', 'f1']
  for task in TASKS.values():
    if task.kind in ('classification', 'regression', 'choice'):
      assert set(task.measures) <= set(METRICS)


def test_sources_of_training_and_of_measuring():
  mnli = TASKS['mnli']
  assert (mnli.train, mnli.dev) == (
      ('tfds:glue/mnli:train',), ('tfds:glue/mnli:validation_matched',
                                  'tfds:glue/mnli:validation_mismatched'))
  assert TASKS['race'].dev == ('tfds:race/high:dev', 'tfds:race/middle:dev')
  assert TASKS['dream'].train == ()
  assert TASKS['embedded_choice'].dev == ('embedded:choice:dev',)
