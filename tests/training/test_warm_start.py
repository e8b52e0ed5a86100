"""What a run takes over from what it starts from."""
import numpy as np

from plm_jax.checkpoints.restore import find_run_checkpoints
from plm_jax.training.warm_start import extend_tables, has_more_ids


def tree(rows, width=2, classes=3):
  return {'embeddings': {'tokens': np.arange(rows * width, dtype=np.float32).reshape(rows, width)},
          'dense': np.zeros((width, classes))}


def test_more_ids_alone_are_made_up_by_fresh_rows():
  own, theirs = tree(5), tree(3)
  theirs['embeddings']['tokens'] = theirs['embeddings']['tokens'] + 100
  assert has_more_ids(own, theirs)
  np.testing.assert_array_equal(
      extend_tables(own, theirs)['embeddings']['tokens'], [[100, 101], [102, 103], [104, 105], [6, 7], [8, 9]])


def test_fewer_ids_or_another_width_are_another_model():
  assert not has_more_ids(tree(3), tree(3))
  assert not has_more_ids(tree(3), tree(5))
  assert not has_more_ids(tree(5, width=4), tree(3))
  assert not has_more_ids(tree(5, classes=2), tree(3))


def test_a_run_without_a_best_checkpoint_has_its_newest(tmp_path):
  (tmp_path / 'best').mkdir()
  assert find_run_checkpoints(tmp_path).name == 'checkpoints'
  (tmp_path / 'best' / '12').mkdir()
  assert find_run_checkpoints(tmp_path).name == 'best'
