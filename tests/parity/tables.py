"""Positions, activations and who sees whom, as tables of functions in transformers."""
from typing import Any

import jax.numpy as jnp
import numpy as np

from parity.shared import Unsupported
from plm_jax.architectures.decoder import make_windows
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.disentangled import log_buckets
from plm_jax.layers.masks import attention_mask
from plm_jax.layers.mlp import Activation, activation
from plm_jax.layers.positions import TransformerXL
from plm_jax.layers.relative_logits import shift_logits
from plm_jax.layers.rope import Rope, rotate
from plm_jax.layers.t5_relative_bias import Buckets

# Other names and older approximations of the same function are compared all the same.
ACTIVATIONS: dict[str, Activation] = {
    'gelu': 'gelu', 'gelu_new': 'gelu_tanh', 'gelu_fast': 'gelu_tanh',
    'gelu_pytorch_tanh': 'gelu_tanh', 'silu': 'silu', 'relu': 'relu'}


def run(case) -> dict[str, Any]:
  """All tables of values that plm_jax computes. Masked: the inputs (x, q_in), and quick_gelu,
  which is not implemented."""
  got = {}
  for name, want in case.outputs.items():
    kind, _, rest = name.partition('/')
    numbers = parse(rest.split('/')[0])
    if kind == 'deberta_bucket':
      longest = int(numbers['max'])
      got[name] = log_buckets(np.arange(1 - longest, longest), int(numbers['b']), longest)
    elif kind == 't5_bucket':
      got[name] = t5_buckets(rest)
    elif kind == 'xlnet_pos':
      got[name] = distances(numbers, want.shape[-1])
    elif kind == 'xlnet_rel_shift_bnij':
      got[name] = shift_logits(jnp.arange(64.0).reshape(2, 1, 4, 8), 4)
    elif kind == 'rope' and not name.endswith('q_in'):
      got[name] = rotary(numbers, rest.split('/')[1],
                         case.outputs[f'{name.rpartition("/")[0]}/q_in'])
    elif kind == 'activation' and rest in ACTIVATIONS:
      got[name] = activation(ACTIVATIONS[rest])(jnp.asarray(case.outputs['activation/x']))
    elif kind == 'banded_causal':
      got[name] = banded(len(want), int(numbers['w']))
    elif name.endswith('q_in') or name in ('activation/x', 'activation/quick_gelu'):
      got[name] = np.ma.masked_all_like(want)
    else:
      got[name] = Unsupported(f'table {name}')
  return got


def parse(text: str) -> dict[str, float]:
  """'q6_k10_clamp4' -> {'q': 6, 'k': 10, 'clamp': 4}."""
  parts = [(part.rstrip('-.0123456789'), part) for part in text.split('_')]
  return {name: float(part.removeprefix(name)) for name, part in parts if part != name}


def t5_buckets(rest: str) -> np.ndarray:
  """'n32_max128_bi': of distances from -300 to 300, key minus query, in both directions or (uni)
  one."""
  numbers = parse(rest)
  buckets = Buckets(int(numbers['n']), int(numbers['max']), rest.endswith('_bi'))
  return np.asarray(buckets.bucket(jnp.arange(-300, 301)))


def distances(numbers, width: int) -> np.ndarray:
  """Theirs is for all rows of the batch, and for texts that run backwards the second half has the
  other sign."""
  queries, keys = (jnp.zeros((1, int(numbers[name]))) for name in ('q', 'k'))
  context = TransformerXL(int(numbers['clamp'])).context(None, BlockConfig(width=width, heads=1),
                                                         queries, keys)
  table = np.asarray(context['table'])
  back = table * np.where(np.arange(width) < width // 2, -1, 1)
  return np.stack([table, back if numbers['bidata'] else table], 1)


def banded(length: int, window: int) -> np.ndarray:
  """The mask that the decoder gives a layer with this window."""
  place, ones = jnp.arange(length)[None], jnp.ones((1, length), int)
  mask = attention_mask(ones, ones, place, place)
  layer_window, = make_windows((window,))
  return np.asarray(mask if layer_window is None else layer_window.restrict(mask, length))[0, 0]


def rotary(numbers, output: str, q) -> np.ndarray:
  """q [1, H, L, A]."""
  place = jnp.arange(q.shape[2])[None]
  block = BlockConfig(width=q.shape[3], heads=1)
  context = Rope(numbers['theta']).context(None, block, place, place)
  if output == 'q_rot':
    return np.asarray(rotate(jnp.asarray(q.transpose(0, 2, 1, 3)), **context)).transpose(0, 2, 1, 3)
  half = context[output][:, :, 0]
  return np.concatenate([half, half], -1)
