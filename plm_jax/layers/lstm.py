"""LSTMs with a projected hidden state (Sak et al. 2014), several streams at a time."""
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.layers.dense import with_logical_axes
from plm_jax.layers.init import make_initializer
from plm_jax.sharding import gather_parameter


class LSTMState(NamedTuple):
  """State of LSTMs of several streams."""

  hidden: jax.Array
  """[batch, streams, projection] float32."""
  cell: jax.Array
  """[batch, streams, cells] float32."""


class ProjectedLSTM(nn.Module):
  """LSTM with projection and clipping, one per stream (Peters et al. 2018, released code).

  Gates are input, forget, candidate, output. The cell is clipped; the output is projected and
  clipped, too. All that depends on x alone is one product before the recurrence, which is one scan
  over the length for all streams. The forget gate's bias is initialized with 1, which TensorFlow
  adds to its parameter.
  """

  width: int  # P, size of the projection
  cells: int  # F
  cell_clip: float | None = 3.0
  proj_clip: float | None = 3.0
  dtype: jnp.dtype = jnp.dtype('float32')

  @nn.compact
  def __call__(self, x, state: LSTMState, valid):
    """Run the LSTMs over their streams.

    Args:
      x: [batch, streams, length, inputs], each stream in its reading order.
      state: the state to begin with.
      valid: [batch, streams, length] bool; False after the end of a row, where the state is kept
        and the output is 0.

    Returns:
      (outputs [batch, streams, length, projection], state after the last word).
    """
    streams, inputs, sizes = x.shape[1], x.shape[-1], (4, self.cells)

    def make_kernel(name, init, shape, axes):
      axes = (None, *axes)
      init = with_logical_axes(init, axes)
      kernel = self.param(name, init, (streams, *shape), jnp.float32)
      return gather_parameter(kernel.astype(self.dtype), *axes)

    # Parameters. glorot_uniform is that of the one matrix that TensorFlow has for both inputs.
    init = make_initializer('uniform', (2 / (inputs + self.width + 4 * self.cells)) ** 0.5)
    out_init = make_initializer('uniform', (2 / (self.cells + self.width)) ** 0.5)
    read = make_kernel('input', init, (inputs, *sizes), ('width', None, 'mlp'))
    recurrent = make_kernel('recurrent', init, (self.width, *sizes), ('width', None, 'mlp'))
    project = make_kernel('project', out_init, (self.cells, self.width), ('mlp', 'width'))
    # 1 for the forget gate, 0 for the others.
    bias_init = with_logical_axes(
        lambda key, shape, dtype: jnp.zeros(shape, dtype).at[:, 1].set(1), (None, None, 'mlp'))
    bias = self.param('bias', bias_init, (streams, *sizes), jnp.float32)

    # All that depends on the input alone.
    gates = jnp.einsum('bsld,sdgf->lbsgf', x.astype(self.dtype), read,
                       preferred_element_type=jnp.float32) + bias

    # The recurrence.
    def step(state: LSTMState, inputs):
      gates, valid = inputs
      gates += jnp.einsum('bsp,spgf->bsgf', state.hidden.astype(self.dtype), recurrent,
                          preferred_element_type=jnp.float32)
      write, forget, candidate, output = jnp.moveaxis(gates, 2, 0)
      cell = nn.sigmoid(forget) * state.cell + nn.sigmoid(write) * jnp.tanh(candidate)
      cell = clip(cell, self.cell_clip)
      exposed = (nn.sigmoid(output) * jnp.tanh(cell)).astype(self.dtype)
      hidden = jnp.einsum('bsf,sfp->bsp', exposed, project, preferred_element_type=jnp.float32)
      hidden, valid = clip(hidden, self.proj_clip), valid[..., None]
      state = LSTMState(
          jnp.where(valid, hidden, state.hidden), jnp.where(valid, cell, state.cell))
      return state, jnp.where(valid, hidden, 0)

    state, outputs = jax.lax.scan(step, state, (gates, jnp.moveaxis(valid, 2, 0)))
    return jnp.moveaxis(outputs, 0, 2), state


def clip(x, limit: float | None):
  """Clip x at -limit and limit; None: return x."""
  return x if limit is None else jnp.clip(x, -limit, limit)


def reverse_sequences(x, lengths):
  """Reverse the first `lengths` [batch] entries of each row of x [batch, length, ...]."""
  at = jnp.arange(x.shape[1])
  place = jnp.where(at < lengths[:, None], lengths[:, None] - 1 - at, at)
  trailing = (1,) * (x.ndim - 2)
  return jnp.take_along_axis(x, place.reshape(place.shape + trailing), 1)
