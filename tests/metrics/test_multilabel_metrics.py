"""Metrics of several labels next to scikit-learn's, and thresholds that are found by trying all."""
import numpy as np
import pytest
from sklearn import metrics as sklearn

from plm_jax.errors import UserError
from plm_jax.metrics import multilabel


def drawn(seed, examples=40, labels=5, share=0.3, levels=0):
  """Draws indicators and scores; `levels`: number of distinct scores, 0: all are distinct."""
  draw = np.random.default_rng(seed)
  truth, scores = draw.random((examples, labels)) < share, draw.random((examples, labels))
  if levels:
    scores = (np.floor(scores * levels) + 1) / (levels + 1)
  return truth, scores


CASES = {
    'random': drawn(0), 'ties': drawn(1, levels=3), 'one example': drawn(2, examples=1),
    'one label': drawn(3, labels=1),
    'no label at all': (np.zeros((6, 3), bool), drawn(4, 6, 3)[1]),
    'all labels': (np.ones((6, 3), bool), drawn(5, 6, 3)[1]),
    'a label that is absent': (drawn(6)[0] * (np.arange(5) > 0), drawn(6)[1]),
    'all scores equal': drawn(7, levels=1)}


@pytest.mark.filterwarnings('ignore:No positive class', 'ignore:invalid value')
@pytest.mark.parametrize('case', CASES)
@pytest.mark.parametrize('threshold', [0.0, 0.5, 1.0])
def test_metrics_are_scikit_learns(case, threshold):
  truth, scores = CASES[case]
  found = multilabel.all_metrics(truth, scores > threshold, scores)
  expected = {f'{average}_f1': sklearn.f1_score(
      truth.astype(int) if truth.shape[1] > 1 else truth[:, 0].astype(int)[:, None],
      scores > threshold, average=average,
      zero_division=0) for average in ('micro', 'macro', 'weighted', 'samples') if truth.shape[1]
      > 1}
  expected['subset_accuracy'] = (truth == (scores > threshold)).all(1).mean()
  expected['average_precision'] = np.mean([
      sklearn.average_precision_score(*column) if column[0].any() else 0
      for column in zip(truth.T, scores.T, strict=True)])
  assert {name: found[name] / 100 for name in expected} == pytest.approx(expected, abs=1e-12)
  assert tuple(found) == multilabel.MULTILABEL_METRICS


def test_metrics_by_hand():
  truth, said = [[1, 0, 1], [0, 0, 0], [0, 1, 0]], [[1, 1, 0], [0, 0, 0], [0, 1, 0]]
  assert multilabel.f1_metrics(truth, said) == pytest.approx({
      'micro_f1': 200 / 3, 'macro_f1': 500 / 9, 'weighted_f1': 500 / 9, 'samples_f1': 50,
      'subset_accuracy': 200 / 3})
  scores = multilabel.per_label_scores(truth, said, ['a', 'b', 'c'])
  assert scores['b'] == pytest.approx((50, 100, 200 / 3, 1)) and scores['c'] == (0, 0, 0, 1)


@pytest.mark.parametrize('case', CASES)
def test_no_other_threshold_is_better(case):
  truth, scores = CASES[case]
  for tuning, name in (('one', 'micro_f1'), ('each', 'macro_f1')):
    thresholds = multilabel.tune_thresholds(truth, scores, tuning)
    assert len(thresholds) == (1 if tuning == 'one' else truth.shape[1])
    best = multilabel.f1_metrics(truth, scores > np.array(thresholds))[name]
    tried = [multilabel.f1_metrics(truth, scores > other)[name]
             for other in [*np.unique(scores), -1.0]]
    assert best >= max(tried) - 1e-9
  # Rounding to single precision changes no decision.
  assert ((scores.astype(np.float32) > np.array(thresholds, np.float32))
          == (scores > np.array(thresholds))).all()


def test_a_label_that_no_example_has_keeps_its_threshold():
  assert multilabel.tune_thresholds([[0, 1], [0, 0]], [[0.9, 0.8], [0.1, 0.2]],
                                    'each') == (0.5, 0.5)


@pytest.mark.parametrize('sides', [([], []), ([[1]], [[1, 0]]), ([1, 0], [1, 0])])
def test_other_shapes_are_refused(sides):
  for measure in (multilabel.f1_metrics, multilabel.average_precision):
    with pytest.raises(UserError, match='indicators of as many examples and labels'):
      measure(*sides)
