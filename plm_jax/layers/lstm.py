"""LSTMs whose hidden state is a projection of their cells (Sak et al. 2014), one for each direction of reading."""
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.layers.dense import named
from plm_jax.layers.init import drawn
from plm_jax.sharding import gathered


class LSTMState(NamedTuple):
  """What an LSTM goes on from: hidden [B, S, P], cell [B, S, F], float32."""

  hidden: jax.Array
  cell: jax.Array


class ProjectedLSTM(nn.Module):
  """x [B, S, L, D] of S streams, each with parameters of its own, in the order in which they are read
  -> ([B, S, L, P], state behind the last word).

  Gates are input, forget, candidate, output. The cell is clipped, then what is read off it is projected and clipped
  too (Peters et al. 2018, released code). All that depends on x alone is one product before the recurrence, which is
  one scan over L for all streams. The forget gate's bias begins with 1, which TensorFlow adds beside its parameter.
  """

  width: int  # P
  cells: int  # F
  cell_clip: float | None = 3.0
  proj_clip: float | None = 3.0
  dtype: jnp.dtype = jnp.dtype('float32')

  @nn.compact
  def __call__(self, x, state: LSTMState, valid):
    """valid [B, S, L]: False behind the end of a row, where the state stays and the output is 0."""
    streams, inputs, sizes = x.shape[1], x.shape[-1], (4, self.cells)
    # glorot_uniform of the one matrix that TensorFlow has for both.
    init = drawn('uniform', (2 / (inputs + self.width + 4 * self.cells)) ** 0.5)
    out = drawn('uniform', (2 / (self.cells + self.width)) ** 0.5)
    def kernel(name, init, shape, axes):
      axes = (None, *axes)
      return gathered(self.param(name, named(init, axes), (streams, *shape), jnp.float32).astype(self.dtype), *axes)
    read = kernel('input', init, (inputs, *sizes), ('width', None, 'mlp'))
    recurrent = kernel('recurrent', init, (self.width, *sizes), ('width', None, 'mlp'))
    project = kernel('project', out, (self.cells, self.width), ('mlp', 'width'))
    bias = self.param('bias', named(remembering, (None, None, 'mlp')), (streams, *sizes), jnp.float32)
    gates = jnp.einsum('bsld,sdgf->lbsgf', x.astype(self.dtype), read, preferred_element_type=jnp.float32) + bias

    def step(state: LSTMState, now):
      gates, valid = now
      gates += jnp.einsum('bsp,spgf->bsgf', state.hidden.astype(self.dtype), recurrent,
                          preferred_element_type=jnp.float32)
      into, forget, candidate, output = jnp.moveaxis(gates, 2, 0)
      cell = nn.sigmoid(forget) * state.cell + nn.sigmoid(into) * jnp.tanh(candidate)
      cell = clipped(cell, self.cell_clip)
      hidden = jnp.einsum('bsf,sfp->bsp', (nn.sigmoid(output) * jnp.tanh(cell)).astype(self.dtype), project,
                          preferred_element_type=jnp.float32)
      hidden, valid = clipped(hidden, self.proj_clip), valid[..., None]
      state = LSTMState(jnp.where(valid, hidden, state.hidden), jnp.where(valid, cell, state.cell))
      return state, jnp.where(valid, hidden, 0)

    state, outputs = jax.lax.scan(step, state, (gates, jnp.moveaxis(valid, 2, 0)))
    return jnp.moveaxis(outputs, 0, 2), state


def clipped(x, limit: float | None):
  """Returns x cut at -limit and limit; None: as it is."""
  return x if limit is None else jnp.clip(x, -limit, limit)


def remembering(key, shape, dtype=jnp.float32):
  """Initializes biases [S, 4, F]: of the forget gate 1, of the others 0."""
  del key
  return jnp.zeros(shape, dtype).at[:, 1].set(1)


def turned(x, lengths):
  """Turns the first `lengths` [B] entries of each row of x [B, T, ...] round; those behind stay."""
  at = jnp.arange(x.shape[1])
  place = jnp.where(at < lengths[:, None], lengths[:, None] - 1 - at, at)
  return jnp.take_along_axis(x, place.reshape(*place.shape, *[1] * (x.ndim - 2)), 1)
