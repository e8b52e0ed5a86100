import dataclasses

from flax.linen import unbox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax import conversion
from plm_jax.layers.dense import count_parameters
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.models import palm
from plm_jax.models.layouts import RopePairs
from plm_jax.objectives.clm import CausalLM


def parameters(config):
  ids = jax.ShapeDtypeStruct((1, 8), jnp.int32)
  model = ModelWithHeads(config.backbone(), CausalLM().heads(config))
  return unbox(jax.eval_shape(model.init, jax.random.key(0),
                              dict(tokens=ids, segments=ids))['params'])


@pytest.mark.parametrize(('config', 'published'), [
    (palm.palm_8b(), 8.63), (palm.palm_62b(), 62.50), (palm.palm_540b(), 540.35)],
    ids=['8b', '62b', '540b'])
def test_parameters(config, published):
  """Table 1, in billions; and written out."""
  b = config.block
  layer = 12 * b.width ** 2 + 2 * b.width * b.heads * 256 + 2 * b.width * 256 + b.width
  expected = config.stack.layers * layer + 256_000 * b.width + b.width
  found = count_parameters(parameters(config))
  assert found == expected and abs(found / 1e9 - published) < 0.01


def test_there_are_no_biases():
  names = tiny.flat(parameters(palm.palm_8b()))
  assert not [name for name in names if name.endswith('bias')]
  assert not [name for name in names if name.startswith('heads_')]


def test_there_and_back_as_command_r(tmp_path):
  """transformers' Cohere with heads of another size than width / heads, and one key head."""
  config = palm.make_config(2, 32, 4)
  block = dataclasses.replace(config.block, head_size=16)
  config = dataclasses.replace(config, vocab=96, max_length=64, block=block)
  params = jax.tree.map(np.asarray, tiny.random_params(parameters(config)))
  conversion.save(tmp_path / 'out', config, params, like='cohere')
  found = conversion.load(tmp_path / 'out')
  assert found.config == config and set(found.heads) == {'lm'}
  tiny.assert_same(found.params, params)


def test_pairs_are_neighbours_there():
  theirs = RopePairs().export_array(np.arange(8)[None, None])
  assert theirs.tolist() == [[0], [4], [1], [5], [2], [6], [3], [7]]
