"""Backbones in Flax NNX programs: `nnx.bridge.ToNNX` computes the same as the Linen module."""
import functools
from typing import Any

import backbones
from flax import nnx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.architectures.elmo import ElmoConfig
from plm_jax.layers.char_cnn import CharacterConfig

# One family per architecture, and families with additional parameters.
ARCHITECTURES = ('bert', 't5')
OTHERS = [pytest.param(name, marks=[pytest.mark.slow, *[pytest.mark.release] * (name != 'bart')])
          for name in ('deberta', 'xlnet', 'gpt2', 'elmo', 'albert', 'v3', 'modernbert', 'llama',
                       'glm', 'bart')]


def make_model(name: str) -> Any:
  if name == 'elmo':
    return ElmoConfig(
        characters=CharacterConfig(size=3, filters=((1, 4), (3, 6)), highways=1, longest=9),
        width=5, cells=7)
  return backbones.small(name, 64, 16)


def make_batch(kind: str) -> dict[str, jax.Array]:
  if kind == 'recurrent':
    return {'characters': (jnp.arange(2 * 6 * 9).reshape(2, 6, 9) % 17 + 1).at[1, 4:].set(0)}
  tokens = jnp.arange(16).reshape(2, 8) % 11 + 5
  batch = {'tokens': tokens, 'segments': jnp.ones((2, 8), jnp.int32).at[1, 6:].set(0)}
  if kind == 'encoder-decoder':
    batch |= {'decoder_tokens': tokens[:, :5], 'decoder_segments': jnp.ones((2, 5), jnp.int32)}
  if kind == 'infilling':
    batch['ranks'] = jnp.zeros((2, 8), jnp.int32)
  return batch


def to_nnx(linen, batch, params):
  """Return an NNX module with the parameters of a Linen module."""
  module = nnx.bridge.ToNNX(linen, rngs=nnx.Rngs(0)).lazy_init(batch)
  state = nnx.state(module, nnx.Param)
  nnx.replace_by_pure_dict(state, params)
  nnx.update(module, state)
  return module


def loss_of(output) -> jax.Array:
  return jnp.sum(jnp.sin(output.hidden.astype(jnp.float32)))


@pytest.mark.parametrize('name', [*ARCHITECTURES, *OTHERS])
def test_outputs_and_gradients_equal_linen(name):
  model = make_model(name)
  linen, batch = model.backbone(), make_batch(model.kind)
  params = nn.unbox(jax.jit(linen.init)(jax.random.key(7), batch)['params'])
  module = to_nnx(linen, batch, params)

  @jax.jit
  def differentiate(params):
    def loss(params):
      output = linen.apply({'params': params}, batch)
      return loss_of(output), output.hidden
    return jax.value_and_grad(loss, has_aux=True)(params)

  @nnx.jit
  def differentiate_module(module):
    def loss(module):
      output = module(batch)
      return loss_of(output), output.hidden
    return nnx.value_and_grad(loss, has_aux=True)(module)

  (_, want), want_grads = differentiate(params)
  (_, got), grads = differentiate_module(module)
  np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
  grads = nnx.to_pure_dict(grads)
  assert jax.tree.structure(grads) == jax.tree.structure(want_grads)
  largest = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(want_grads))
  jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6 * largest), grads,
               want_grads)


def test_variables_keep_the_names_of_their_axes():
  model = make_model('bert')
  module = nnx.bridge.ToNNX(model.backbone(), rngs=nnx.Rngs(0)).lazy_init(make_batch('encoder'))
  variables = dict(nnx.to_flat_state(nnx.state(module, nnx.Param)))
  names = {variable.get_metadata('out_sharding', None) for variable in variables.values()}
  assert ('vocab', 'width') in names
