"""Literal values of libraries: scikit-learn 1.9.1, scipy 1.17.1, seqeval 1.2.2; of the scripts of
SQuAD 1.1 and 2.0 (in huggingface/evaluate) and of CMRC 2018, with the word tokenizer of NLTK
3.10.4."""
import math

import numpy as np
import pytest
from sklearn import metrics as sklearn

from plm_jax.errors import UserError
from plm_jax.metrics import tasks

TRUTH, SAID = [0, 0, 1, 1, 1, 2, 2, 0, 1, 1], [0, 1, 1, 1, 0, 2, 1, 0, 1, 2]
TWO, SAID_TWO = [0, 1, 1, 0, 1, 0, 0, 1, 1, 1], [0, 1, 0, 0, 1, 1, 0, 1, 0, 1]
VALUES, SAID_VALUES = [0.5, 1.0, 1.0, 4.75, 5.0, 2.2], [0.7, 0.4, 0.4, 5.5, 4.9, 4.9]


@pytest.mark.parametrize(('name', 'truth', 'said', 'value'), [
    ('accuracy', TRUTH, SAID, 60.0),
    ('macro_f1', TRUTH, SAID, 58.88888888888889),
    ('matthews', TRUTH, SAID, 35.483870967741936),
    ('f1', TWO, SAID_TWO, 72.72727272727273),
    ('matthews', TWO, SAID_TWO, 40.8248290463863),
    ('pearson', VALUES, SAID_VALUES, 87.60818991456196),
    ('spearman', VALUES, SAID_VALUES, 71.64977208318385),
])
def test_measures_of_labels_are_the_libraries(name, truth, said, value):
  assert tasks.METRICS[name](truth, said) == pytest.approx(value, abs=1e-10)


@pytest.mark.parametrize('name', tasks.METRICS)
def test_constant_predictions_give_no_nan(name):
  numbers = [tasks.METRICS[name](*sides) for sides in (
      ([1, 1, 1], [1, 1, 1]), ([0, 0, 0], [0, 0, 0]), ([0, 1, 1], [0, 0, 0]),
      ([2, 2, 2], [0, 1, 2]), ([1], [0]))]
  expected = {'accuracy': [100, 100, 100 / 3, 100 / 3, 0], 'f1': [100, 0, 0, 0, 0],
              'macro_f1': [100, 100, 25, 50 / 3, 0]}
  assert numbers == pytest.approx(expected.get(name, [0] * 5))


def test_values_that_are_not_finite_have_no_correlation():
  for value in (math.nan, math.inf):
    assert tasks.pearson([1.0, 2.0, 3.0], [1.0, value, 2.0]) == 0
  assert tasks.spearman([1.0, 2.0, 3.0], [1.0, math.nan, 2.0]) == 0
  assert tasks.pearson([1.0, 2.0, 3.0], [1e-200, 2e-200, 3e-200]) == pytest.approx(100)
  assert tasks.pearson([1.0, 2.0, 3.0], [3e200, 2e200, 1e200]) == pytest.approx(-100)


@pytest.mark.parametrize('sides', [([], []), ([1], [1, 2]), ([[1]], [[1]])])
def test_nothing_to_compare_is_refused(sides):
  for measure in tasks.METRICS.values():
    with pytest.raises(UserError, match='as many predictions as there are labels'):
      measure(*sides)


def test_confusion_and_scores_of_each_class():
  assert tasks.confusion_matrix(TRUTH, SAID, 3).tolist() == [[2, 1, 0], [1, 3, 1], [0, 1, 1]]
  found = tasks.per_class_scores(TRUTH, SAID, ['a', 'b', 'c', 'never'])
  assert found['a'] == pytest.approx((200 / 3, 200 / 3, 200 / 3, 3))
  assert found['b'] == pytest.approx((60, 60, 60, 5))
  assert found['never'] == (0, 0, 0, 0)
  with pytest.raises(UserError, match='below 2'):
    tasks.confusion_matrix(TRUTH, SAID, 2)


def test_chunks_of_mixed_schemes_equal_seqeval():
  true = [['B-PER', 'I-PER', 'O', 'I-LOC'], ['I-PER', 'I-PER', 'B-PER', 'O'],
          ['O', 'I-ORG', 'I-LOC', 'I-LOC']]
  said = [['B-PER', 'I-PER', 'O', 'B-LOC'], ['I-PER', 'B-PER', 'I-PER', 'O'],
          ['I-ORG', 'I-ORG', 'I-LOC', 'O']]
  found = tasks.chunk_f1(true, said)
  assert found.total == pytest.approx((100 / 3, 100 / 3, 100 / 3, 6))
  assert list(found.types) == ['LOC', 'ORG', 'PER']
  assert found.types['LOC'] == (50, 50, 50, 2)
  assert found.types['ORG'] == (0, 0, 0, 1)
  assert found.types['PER'] == pytest.approx((100 / 3, 100 / 3, 100 / 3, 3))
  ended = tasks.chunk_f1([['B-A', 'E-A', 'I-A', 'S-B']], [['B-A', 'I-A', 'I-A', 'I-B']])
  assert ended.total == pytest.approx((50, 100 / 3, 40, 3))
  assert tasks.chunk_f1([['S-A', 'I-A']], [['S-A', 'I-A']]).total.support == 2


def test_chunks_do_not_cross_sentences_nor_need_any():
  assert tasks.chunk_f1([['I-A'], ['I-A']], [['I-A'], ['I-A']]).total == (100, 100, 100, 2)
  assert tasks.chunk_f1([['O', 'O'], []], [['O', 'O'], []]) == ((0, 0, 0, 0), {})
  for sides in (([['O']], [['O', 'O']]), ([], []), ([['O']], [['PER']])):
    with pytest.raises(UserError, match='tags'):
      tasks.chunk_f1(*sides)


def test_answer_metrics_equal_the_script_of_squad_1():
  golds = [['the Broncos', 'Denver Broncos', 'Broncos'], ['in 1990', '1990'], ['The'],
           ['gold-plated cup'], ['x']]
  said = ['Denver Broncos!', 'late in 1990', 'a', 'the cup, gold plated', '']
  # 'The' and 'a' are equal, without a word in common.
  assert tasks.answer_metrics(golds, said) == pytest.approx({'f1': 44.0, 'exact': 40.0})
  with pytest.raises(UserError, match='2 questions, 1 of which have none'):
    tasks.answer_metrics([['x'], []], ['x', ''])


def test_answer_metrics_equal_the_script_of_squad_2():
  golds = [['Denver Broncos'], [], ['in 1990', '1990'], [], ['cup'], ['The'], []]
  said = ['Broncos', 'x', '1990', 'y', 'a gold cup', 'z', 'the']
  nulls = [-3.0, -2.0, -2.5, 1.5, 2.0, -4.0, 0.5]
  found = tasks.squad2_metrics(golds, said, nulls, threshold=1.0)
  assert found == pytest.approx({
      'f1': 52.38095238095237, 'HasAns_f1': 41.666666666666664, 'NoAns_f1': 66.66666666666667,
      'exact': 42.857142857142854, 'HasAns_exact': 25.0, 'NoAns_exact': 66.66666666666667,
      'best_f1': 66.66666666666666, 'best_f1_thresh': -2.5,
      'best_exact': 57.142857142857146, 'best_exact_thresh': -2.5})
  assert next(iter(found)) == 'f1'
  worse = tasks.squad2_metrics([[], ['x']], ['y', 'z'], [-1.0, 1.0])
  assert (worse['best_f1'], worse['best_f1_thresh']) == (50, 0)  # no answer is worth giving
  assert 'NoAns_f1' not in tasks.squad2_metrics([['x']], ['x'], [0.0])


def test_chinese_answer_metrics_equal_the_script_of_cmrc():
  golds = [['1990年12月', '90年'], ['《红楼梦》'], ['光荣公司(KOEI Inc.)'], ['约12.5%'], ['……']]
  said = ['1990年', '红楼梦。', '日本KOEI公司', '12.5%', '《》']
  scores = tasks.answer_scores(golds, said, 'cmrc', 0.0)
  assert scores['f1'].tolist() == pytest.approx([2 / 3, 1, 0.2857142857142857, 0.8, 0])
  assert scores['exact'].tolist() == [0, 1, 0, 0, 0]
  assert tasks.split_cmrc_segments('光荣公司(KOEI Inc.), "12.5%"，1-2年。') == [
      '光', '荣', '公', '司', '(', 'koei', 'inc.', ')', ',', '``', '12.5', '%', '"', '12', '年']
  assert tasks.split_cmrc_segments("It's 1,000, 'tis U.S.") == ['it', "'s", '1,000', ',', "'",
                                                                'tis', 'u.s', '.']


def test_random_labels_agree_with_counts_made_by_hand():
  draw = np.random.default_rng(0)
  for _ in range(50):
    truth, said = draw.integers(0, 2, (2, int(draw.integers(2, 30))))
    right, wrong = sum((truth == 1) & (said == 1)), sum((truth == 0) & (said == 1))
    missed, none = sum((truth == 1) & (said == 0)), sum((truth == 0) & (said == 0))
    spread = math.sqrt((right + wrong) * (right + missed) * (none + wrong) * (none + missed))
    assert tasks.matthews(truth, said) == pytest.approx(
        100 * (right * none - wrong * missed) / spread if spread else 0)
    assert tasks.f1(truth, said) == pytest.approx(200 * right / max(2 * right + wrong + missed, 1))


@pytest.mark.parametrize('classes', [2, 3])
def test_metrics_of_labels_equal_scikit_learn(classes):
  draw = np.random.default_rng(classes)
  truth, said = draw.integers(0, classes, 60), draw.integers(0, classes, 60)
  wanted = {'accuracy': sklearn.accuracy_score(truth, said),
            'matthews': sklearn.matthews_corrcoef(truth, said),
            'macro_f1': sklearn.f1_score(truth, said, average='macro')}
  if classes == 2:
    wanted['f1'] = sklearn.f1_score(truth, said)
  for name, value in wanted.items():
    assert tasks.METRICS[name](truth, said) == pytest.approx(100 * value)
