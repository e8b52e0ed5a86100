"""Simple baselines: by hand where they can be counted, and by what they have to learn."""
import math
import random

import numpy as np
import pytest

from plm_jax.sources.examples import Example
from plm_jax.tasks import baselines
from plm_jax.tasks.extractive_qa import AnswerTask
from plm_jax.tasks.multiple_choice import ChoiceTask
from plm_jax.tasks.sentence_embedding import EmbeddingTask
from plm_jax.tasks.sequence_classification import SequenceTask
from plm_jax.tasks.token_classification import TaggingTask

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
