"""Parameters that a run takes from a checkpoint."""
import numpy as np
import pytest

from plm_jax.checkpoints.restore import find_run_checkpoints
from plm_jax.errors import write_plain
from plm_jax.layers.rope import Rope
from plm_jax.loading.loaded_model import find_tokenizer
from plm_jax.models import bert, gpt2, neobert
from plm_jax.tokenizers import TokenizerError, train_wordpiece
from plm_jax.training.warm_start import changed_model_options, extend_tables, has_more_ids
from plm_jax.validation import with_paths


def tree(rows, width=2, classes=3):
  return {'embeddings': {'tokens': np.arange(rows * width, dtype=np.float32).reshape(rows, width)},
          'dense': np.zeros((width, classes))}


def test_additional_ids_get_new_embeddings():
  own, theirs = tree(5), tree(3)
  theirs['embeddings']['tokens'] = theirs['embeddings']['tokens'] + 100
  assert has_more_ids(own, theirs)
  np.testing.assert_array_equal(
      extend_tables(own, theirs)['embeddings']['tokens'],
      [[100, 101], [102, 103], [104, 105], [6, 7], [8, 9]])


def test_only_a_larger_vocabulary_counts_as_more_ids():
  assert not has_more_ids(tree(3), tree(3))
  assert not has_more_ids(tree(3), tree(5))
  assert not has_more_ids(tree(5, width=4), tree(3))
  assert not has_more_ids(tree(5, classes=2), tree(3))


def test_the_newest_checkpoint_is_used_without_a_best_one(tmp_path):
  (tmp_path / 'best').mkdir()
  assert find_run_checkpoints(tmp_path).name == 'checkpoints'
  (tmp_path / 'best' / '12').mkdir()
  assert find_run_checkpoints(tmp_path).name == 'best'


def test_different_options_without_parameters_are_listed():
  """Parameters of BERT fit a model with another activation; dropout and the like change no
  output."""
  before = bert.base()
  free = with_paths(before, {
      'block.dropout': 0.3, 'block.attention.dropout': 0.0, 'block.mlp.dropout': 0.1,
      'block.dtype': 'bfloat16',
      'block.init.std': 0.5, 'stack.remat': 'full', 'stack.scan': False, 'max_length': 128,
      'pooler': False})
  assert changed_model_options(before, before) == changed_model_options(before, free) == []
  other = with_paths(before, {'block.mlp.activation': 'relu', 'block.norm.eps': 1e-5, 'padding': 1})
  assert [*map(write_plain, changed_model_options(before, other))] == [
      'model.block.norm.eps: 1e-12 -> 1e-05', 'model.block.mlp.activation: gelu -> relu',
      'model.padding: -1 -> 1']
  rotary = neobert.base()
  slow = with_paths(rotary, {'block.attention.position': Rope(160_000.0)})
  changed = changed_model_options(rotary, slow) + changed_model_options(before, gpt2.small())
  assert [*map(write_plain, changed)] == [
      'model.block.attention.position.theta: 10000.0 -> 160000.0',
      'model: EncoderConfig -> DecoderConfig']


def test_a_damaged_tokenizer_is_no_missing_one(tmp_path):
  """A run that starts from a model never trains a new tokenizer in place of one that cannot be
  read."""
  assert find_tokenizer(tmp_path) is None
  train_wordpiece(['the cat sat on the mat'] * 20, 60).save(tmp_path / 'tokenizer')
  assert find_tokenizer(tmp_path).vocab.size > 5
  (tmp_path / 'tokenizer' / 'vocab.txt').write_text('the\nthe\n')
  with pytest.raises(TokenizerError):
    find_tokenizer(tmp_path)
