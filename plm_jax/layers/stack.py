"""N blocks: scan, rematerialisation and parameter sharing, hidden here once for all."""
from collections.abc import Callable
import dataclasses
from typing import Any, Literal

import flax.linen as nn
import jax

from plm_jax.layers.block import Block, BlockConfig

Remat = Literal['none', 'dots', 'full']


@dataclasses.dataclass(frozen=True)
class StackConfig:
  """How many layers there are, and how they are compiled."""

  layers: int = 12
  """N"""
  unique: int = 0
  """layers with parameters of their own, each repeated layers / unique times in a row (ALBERT: 1); 0: all"""
  scan: bool = True
  """compile one layer and loop over it: compile time does not grow with depth"""
  remat: Remat = 'none'
  """what the backward pass computes again to save memory: nothing, all but matrix products, or everything"""

  def __post_init__(self):
    if self.layers % (self.unique or self.layers):
      raise ValueError(f'layers {self.layers} is not a multiple of unique {self.unique}')


def one_stream(block, x, mask, context, memory=None, memory_mask=None, rows=None):
  """A layer of every family but XLNet."""
  return block(x, mask, context, memory=memory, memory_mask=memory_mask, rows=rows)


class Layers(nn.Module):
  """The layers one after another, parameters under `block` with a leading axis [N] (or `block_n` without scan)."""

  cfg: BlockConfig
  stack: StackConfig
  step: Callable[..., Any] = one_stream

  @nn.compact
  def __call__(self, x, *args):
    unique = self.stack.unique or self.stack.layers
    repeat = self.stack.layers // unique
    cls = Block
    if self.stack.remat != 'none':
      policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable if self.stack.remat == 'dots' else None
      # Under scan the loop already keeps the compiler from undoing the recomputation.
      cls = nn.remat(Block, prevent_cse=not self.stack.scan, policy=policy)
    if not self.stack.scan:
      for n in range(unique):
        block = cls(self.cfg, name=f'block_{n}')
        for _ in range(repeat):
          x = self.step(block, x, *args)
      return x

    def layer(module, x, *args):
      return self.step(cls(module.cfg, name='block'), x, *args), None

    broadcast: Any = nn.broadcast
    if repeat > 1:
      layer = nn.scan(layer, variable_broadcast='params', variable_axes={'intermediates': 0}, in_axes=broadcast,
                      split_rngs={'params': False, 'dropout': True}, length=repeat)
    return nn.scan(lambda m, x, *a: (layer(m, x, *a)[0], None), variable_axes={'params': 0, 'intermediates': 0},
                   in_axes=broadcast, split_rngs={'params': True, 'dropout': True}, length=unique,
                   metadata_params={nn.PARTITION_NAME: None})(self, x, *args)[0]


class Stack(nn.Module):
  """Position context once, then the layers, then the last norm where norms come first."""

  cfg: BlockConfig
  stack: StackConfig
  step: Callable[..., Any] = one_stream

  @nn.compact
  def __call__(self, x, mask, positions, *args):
    """x [B, L, D], mask [B, 1, 1|L, L] or None, positions [B, L] -> [B, L, D]; args go to `step`."""
    context = self.cfg.position.context(self, self.cfg, positions, positions)
    x = Layers(self.cfg, self.stack, self.step, name='layers')(x, mask, context, *args)
    return self.cfg.make_norm('norm')(x) if self.cfg.norm_at == 'pre' else x
