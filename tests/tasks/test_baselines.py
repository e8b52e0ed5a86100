"""Simple baselines: by hand where they can be counted, and by what they have to learn; next to a
run's scores, with suggestions if a baseline is better."""
import json
import math
import random

import labelled
import numpy as np
import pytest

from plm_jax import recipes
from plm_jax.cli import finetune
from plm_jax.cli.flags import write_flags
from plm_jax.config import serialization
from plm_jax.errors import name_field
from plm_jax.finetuning.setup import resolve_run
from plm_jax.recipes.finetune import InitialModel
from plm_jax.report.baselines import (
  compare_with_baselines,
  describe_collapse,
  drop_given,
  drops_capitals,
  is_constant,
  suggest_baseline,
  suggest_improvements,
)
from plm_jax.sources.row_readers import Example
from plm_jax.tasks import baselines
from plm_jax.tasks.extractive_qa import AnswerTask
from plm_jax.tasks.multilabel import MultiLabelPrediction
from plm_jax.tasks.multiple_choice import ChoiceTask
from plm_jax.tasks.outputs import Choice, Relevance, Value
from plm_jax.tasks.sentence_embedding import EmbeddingTask
from plm_jax.tasks.sequence_classification import ClassPrediction, SequenceTask
from plm_jax.tasks.token_classification import TaggingTask, TagPrediction
from plm_jax.tokenizers import train_wordpiece
from plm_jax.tokenizers.wordpiece import BertNormalization
from plm_jax.training.train import TrainingResult
from plm_jax.validation import with_paths

CLASSES = SequenceTask(labels=('bad', 'good'))


def measured(task, train, dev) -> baselines.Baseline:
  found = baselines.simple_baseline(task, train, dev)
  assert found
  return found


def reviews(count, good, bad, seed):
  draw = random.Random(seed)
  return [Example((' '.join([*draw.choices('abcdefgh', k=4), (bad, good)[n % 2]]),), n % 2)
          for n in range(count)]


def test_the_majority_class_is_that_of_the_training_examples():
  train = [Example(('x',), label) for label in (1, 1, 0)]
  dev = [Example(('y',), label) for label in (1, 0, 0, 0)]
  assert baselines.majority_baseline(CLASSES, train, dev) == {'accuracy': 25.0}
  tagging = TaggingTask(labels=('O', 'B-PER'), metric='accuracy')
  words = [Example(('a', 'b', 'c'), (0, 0, 1))]
  assert baselines.majority_baseline(tagging, words, words) == {'accuracy': pytest.approx(200 / 3)}
  choices = [Example(('a', ''), label, choices=('b', 'c')) for label in (1, 1, 0)]
  assert baselines.majority_baseline(ChoiceTask(), choices,
                                     choices) == {'accuracy': pytest.approx(200 / 3)}
  assert baselines.majority_baseline(SequenceTask(regression=True, measures=('pearson',)), train,
                                     train) == {}


@pytest.mark.parametrize(('good', 'bad'), [('fine', 'poor'), ('很好', '很差'), ('अच्छी', 'अच्छा')])
def test_logistic_regression_learns_a_word_of_any_script(good, bad):
  found = measured(CLASSES, reviews(60, good, bad, 0), reviews(20, good, bad, 1))
  assert found == ('TF-IDF with logistic regression', {'accuracy': 100.0})


def test_of_two_texts_what_they_share_is_learned():
  draw = random.Random(0)
  def pairs(count):
    texts = [' '.join(draw.choices([f'w{n}' for n in range(200)], k=6)) for _ in range(count)]
    return [Example((text, text if n % 2 else draw.choice(texts)), n % 2)
            for n, text in enumerate(texts)]
  assert measured(CLASSES, pairs(300), pairs(100)).scores['accuracy'] > 90
  task = SequenceTask(regression=True, measures=('spearman', 'pearson'))
  scored = [Example((f'a{n} b{n} c{n} d{n}',
                     ' '.join([f'a{n}', f'b{n}', f'c{n}', f'd{n}'][:n % 5] + ['x'])), n % 5)
            for n in range(100)]
  assert measured(task, scored[:60], scored[60:]).scores['spearman'] > 95
  assert baselines.simple_baseline(EmbeddingTask(), [], scored[60:]) is None
  assert measured(EmbeddingTask(), scored[:60], scored[60:]).scores['spearman'] > 95


def test_bm25_is_that_of_its_formula():
  """Two documents of two and four words, whose mean is three; a query of one word that both
  have."""
  texts = ['red fox', 'red red dog cat']
  order = baselines.rank_bm25(['red', 'cat', 'fox red'], texts, 2)
  idf = math.log(1 + (2 - 2 + 0.5) / (2 + 0.5))
  first = idf * 1 * 1.9 / (1 + 0.9 * (1 - 0.4 + 0.4 * 2 / 3))
  second = idf * 2 * 1.9 / (2 + 0.9 * (1 - 0.4 + 0.4 * 4 / 3))
  assert second > first
  np.testing.assert_array_equal(order, [[1, 0], [1, 0], [0, 1]])
  dev = [Example((query, text)) for query, text in (('fox', texts[0]), ('red', texts[1]),
                                                    ('red', texts[0]),
                                                   ('cat', texts[0]))]
  found = measured(EmbeddingTask(measured_by='retrieval'), dev, dev)
  assert found.name == 'BM25' and found.scores['mrr'] == pytest.approx(100 * 2.5 / 3)
  assert tuple(found.scores) == EmbeddingTask(measured_by='retrieval').metric_names


def test_a_linear_tagger_learns_by_form_and_by_the_tag_before():
  draw, tags = random.Random(0), ('O', 'B-PER', 'I-PER')
  def sentences(count):
    made = []
    for _ in range(count):
      before, after = (draw.choices(('the', 'dog', 'saw', 'it'), k=draw.randint(0, 3))
                       for _ in range(2))
      name = [draw.choice('ABCDEFG') + ''.join(draw.choices('abcde', k=3)) for _ in range(2)]
      made.append(Example((*before, *name, *after), (*[0] * len(before), 1, 2, *[0] * len(after))))
    return made
  found = measured(TaggingTask(labels=tags), sentences(200), [*sentences(40), Example((), ())])
  assert found.name == 'a linear tagger' and found.scores['f1'] > 95


def test_choices_by_their_words():
  examples = [Example((f'the cat{n} sat', 'who sat?'), n % 2,
                      choices=(f'dog{n}', f'cat{n}')[::1 if n % 2 else -1])
              for n in range(10)]
  found = measured(ChoiceTask(), examples, examples)
  assert found.scores == {'accuracy': 100.0}


def test_there_is_none_where_nothing_can_be_learned(monkeypatch):
  one = [Example(('a',), 0), Example(('b',), 0)]
  assert baselines.simple_baseline(CLASSES, one, one) is None
  assert baselines.simple_baseline(TaggingTask(labels=('O',)), [Example(('a',), (0,))],
                                   [Example(('a',), (0,))]) is None
  assert baselines.simple_baseline(AnswerTask(), [Example(('a', 'b'))],
                                   [Example(('a', 'b'))]) is None
  blank = [Example(('',), 0), Example(('...',), 1)]
  assert measured(CLASSES, blank, blank).scores['accuracy'] >= 0
  monkeypatch.setattr(baselines, 'MAX_DEV_EXAMPLES', 1)
  assert baselines.simple_baseline(CLASSES, blank, blank) is None


def test_large_sets_are_sampled(monkeypatch):
  """A sample, as the first examples may all have one class."""
  monkeypatch.setattr(baselines, 'MAX_TRAIN_EXAMPLES', 60)
  train = sorted(reviews(600, 'fine', 'poor', 0), key=lambda example: str(example.label))
  found = measured(CLASSES, train, reviews(20, 'fine', 'poor', 1))
  assert found == ('TF-IDF with logistic regression of 60 examples', {'accuracy': 100.0})


TOKENIZER = labelled.tokenizer()


def ready_of(folder, kind='classification', **changes):
  """A run of four steps at the scale laptop, whose examples have been read."""
  run = folder / 'run'
  run.mkdir(exist_ok=True)
  (run / 'metrics.jsonl').touch()
  config = labelled.run(folder, kind, 4, output=str(run), **changes)
  return resolve_run(with_paths(config, {'scale': 'laptop'}), TOKENIZER)


def result(best=2, **heldout):
  return TrainingResult(4, {}, True, 1.0, heldout, 1.0, best)


def test_a_better_model_is_shown_next_to_the_baselines(tmp_path):
  rows, notes = compare_with_baselines(ready_of(tmp_path), result(accuracy=100.0))
  assert rows == {'Baseline, the majority class': '50.00% accuracy',
                  'Baseline, TF-IDF with logistic regression': '100.00% accuracy'}
  assert notes == []


def test_a_model_below_a_baseline_gets_suggestions(tmp_path):
  """Texts of more than 8 tokens are truncated, the last evaluation was the best, and training
  started from scratch."""
  ready = ready_of(tmp_path, train__phases=labelled.phases(4, 8))
  rows, notes = compare_with_baselines(ready, result(best=4, accuracy=60.0))
  assert len(rows) == 2
  notes = [*map(write_flags, notes)]
  assert notes[0] == (
      'TF-IDF with logistic regression reaches 40.0 accuracy more than the model, 100.0. What may '
                      'help:')
  assert '- it was trained from scratch: begin with a pre-trained model, --init=FOLDER' in notes
  assert any('of the training examples lose an end. --train.phases.0.length=16 reads more' in note
             for note in notes)
  assert '- the last evaluation was the best one: train for longer, --data.epochs=2' in notes
  assert notes[-1] == '- it is small, 2 layers of width 32: a larger pre-trained model knows more'
  assert not any('last evaluation' in note for note in suggest_improvements(ready, result(best=2)))


def test_a_short_pretraining_and_a_low_rate_are_named(tmp_path):
  before = recipes.find_recipe('bert_base')('laptop')
  (tmp_path / 'before').mkdir()
  (tmp_path / 'before' / 'config.json').write_text(serialization.dump(before))
  ready = ready_of(tmp_path, start=InitialModel('', 'bert',
                                                with_paths(before.model, {'vocab': 80})),
                                                optim__peak=2e-5)
  ready = ready._replace(config=with_paths(ready.config, {'warm_start': str(tmp_path / 'before')}))
  told = [*suggest_improvements(ready, result())]
  assert told[0].startswith('its pre-training was short, 2,000 steps')
  assert ('the learning rate is low for a model of width 128: '
          f'{name_field("optim.peak")}=5e-04') in told
  told = [*suggest_improvements(
      ready._replace(config=with_paths(ready.config, {'optim.peak': 5e-4})), result())]
  assert not any('rate' in reason for reason in told)


def test_two_texts_are_compared_by_vectors(tmp_path):
  """The suggested command reads the same files: its options match the highest score."""
  rows = [{'sentence1': 'a film', 'sentence2': f'the film {n}', 'score': n % 5 + 0.5}
          for n in range(20)]
  file = tmp_path / 'pairs.jsonl'
  file.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  ready = ready_of(tmp_path, 'regression', data__train=(str(file),), data__dev=(str(file),))
  option = '--task=embedding --loss=cosine --objective.vector-loss.full=4.5'
  hints = [write_flags(hint) for hint in suggest_improvements(ready, result())]
  assert f'a small model compares two texts better by their vectors: {option}' in hints
  config, _ = finetune.parse('', [*option.split(), '--scale=test', f'--train={file}',
                                  f'--dev={file}'], '')
  assert resolve_run(config, TOKENIZER).config.train.best == 'spearman'


def two_classes(*probabilities):
  """Examples of both classes, and predictions with these probabilities of the second one."""
  examples = [Example(('x',), number % 2) for number in range(len(probabilities))]
  return examples, [ClassPrediction(int(p > 0.5), np.array([1 - p, p])) for p in probabilities]


def test_constant_outputs_are_named():
  """To a thousandth, whatever is predicted; not where all examples have the same class."""
  task = SequenceTask(labels=('bad', 'good'))
  hints = describe_collapse(task, *two_classes(0.4999, 0.5001, 0.5))
  assert hints[0].startswith(
      'the outputs are constant: for all 3 development examples they are the same to 0.001')
  assert any('--tuning.top=0' in write_flags(hint) for hint in hints)
  others = describe_collapse(task, *two_classes(0.5, 0.5), given={'tuning.top'})
  assert len(others) == len(hints) - 1 and not any('tuning.top' in hint for hint in others)
  assert describe_collapse(task, *two_classes(0.6, 0.9))[
      0] == 'good is always predicted. What may help:'
  assert describe_collapse(task, *two_classes(0.2, 0.9)) == []
  examples, predictions = two_classes(0.5, 0.5, 0.5)
  assert describe_collapse(task, examples[::2], predictions[::2]) == []


@pytest.mark.parametrize(('predictions', 'expected'), [
    ([Value(2.5), Value(2.5004)], True),
    ([Value(2.5), Value(2.6)], False),
    ([Relevance([0.3, 0.3]), Relevance([0.3, 0.3, 0.3])], True),
    ([Relevance([0.3, 0.4]), Relevance([0.3, 0.4])], False),
    ([Choice('a', 0, 0.25, [0.25] * 4), Choice('b', 1, 0.5, [0.5] * 2)], True),
    ([Choice('a', 0, 0.6, [0.6, 0.4]), Choice('b', 1, 0.5, [0.5] * 2)], False),
    ([MultiLabelPrediction((), np.array([0.1, 0.3]))] * 3, True),
    ([TagPrediction([0, 0], [0.6, 0.6], np.array([[0.6, 0.4]] * 2)),
      TagPrediction([0], [0.6], np.array([[0.6, 0.4]]))],
     True),
    ([TagPrediction([0, 1], [0.6, 0.7], np.array([[0.6, 0.4], [0.3, 0.7]]))], False)])
def test_outputs_of_every_kind_may_be_constant(predictions, expected):
  assert is_constant([Example(('x',), None)] * len(predictions), predictions) is expected


def test_values_are_constant_next_to_the_spread_of_the_true_ones():
  predictions = [Value(value) for value in (0.0012, 0.0018)]
  assert not is_constant([Example(('x',), label) for label in (0.001, 0.002)], predictions)
  assert is_constant([Example(('x',), label) for label in (10.0, 20.0)], predictions)


def test_hints_do_not_name_options_that_are_given(tmp_path):
  ready = ready_of(tmp_path)
  _, notes = compare_with_baselines(ready, result(best=4, accuracy=60.0))
  assert any('--data.epochs' in write_flags(note) for note in notes)
  given = {'data.epochs', 'output'}
  _, notes = compare_with_baselines(ready, result(best=4, accuracy=60.0), given)
  assert drop_given(['`encode --output=OUT.npy`'], given)
  assert not drop_given([f'{name_field("output")}=OUT'], given)
  assert notes and not any('data.epochs' in note for note in notes)


def test_a_better_baseline_is_recommended_with_its_command(tmp_path):
  config = with_paths(ready_of(tmp_path).config, {'warm_start': 'models/x'})
  head, fit = suggest_baseline(config, 'logistic regression on the frozen vectors')
  assert write_flags(head).endswith('--tuning.top=0') and 'encode models/x TEXTS' in fit
  assert 'models/x' in next(suggest_baseline(config, 'the initial model'))
  assert list(suggest_baseline(config, 'the majority class')) == []


def test_the_initial_model_is_a_baseline_if_it_has_the_head(tmp_path):
  ready = ready_of(tmp_path)
  line = {'step': 0, 'split': 'heldout', 'accuracy': 70.0}
  (tmp_path / 'run' / 'metrics.jsonl').write_text(json.dumps(line) + '\n')
  rows, notes = compare_with_baselines(ready, result(best=0, accuracy=100.0))
  assert rows['Baseline, the initial model'] == '70.00% accuracy'
  assert notes == ['training did not improve the initial model, which is the result']
  assert json.loads((tmp_path / 'run' / 'baselines.json').read_text())['accuracy'][
      'the initial model'] == 70.0


@pytest.mark.parametrize(('lowercase', 'expected'), [(True, True), (False, False)])
def test_a_tagger_needs_capital_letters(lowercase, expected):
  text = ['Paris is in France paris Paris paris'] * 20
  assert drops_capitals(train_wordpiece(text, 60, BertNormalization(lowercase))) is expected


def test_no_baseline_is_computed_if_disabled(tmp_path, monkeypatch):
  monkeypatch.setattr(baselines, 'simple_baseline', lambda *args: pytest.fail('computed'))
  ready = ready_of(tmp_path, data__baseline=False)
  assert compare_with_baselines(ready, result(accuracy=0.0)) == ({}, [])
  tried = resolve_run(labelled.run(tmp_path), TOKENIZER)
  assert tried.config.scale == 'test' and compare_with_baselines(tried, result(accuracy=0.0)) == (
      {}, [])
