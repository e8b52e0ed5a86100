"""Learned biases by distance, in buckets that widen with it: T5's positions."""
import dataclasses
import math

import jax.numpy as jnp

from plm_jax.checked import within
from plm_jax.layers.dense import named
from plm_jax.layers.positions import NoPosition


@dataclasses.dataclass(frozen=True)
class Buckets(NoPosition):
  """A number for each head and bucket of distances, added to attention logits (Raffel et al. 2020, section 2.1).

  The layers of a stack share them. Half of the buckets are for single distances, half for ranges that grow
  logarithmically up to `furthest`; all beyond share the last one.
  """

  limits = within(buckets='[2, inf)', furthest='[1, inf)')

  buckets: int = 32
  """R, for both directions together"""
  furthest: int = 128
  """tokens from which on distances are one"""
  bidirectional: bool = True
  """half of the buckets are for keys behind the query; else these are all at distance 0 (decoders)"""

  def of_decoder(self):
    """Returns the scheme whose buckets are all for what comes before."""
    return dataclasses.replace(self, bidirectional=False)

  def context(self, scope, cfg, q_positions, k_positions):
    """Looks up the bias of every distance in a table of the stack's own: bias [B|1, H, Q, K]."""
    init = cfg.init.matrix(cfg.width, cfg.width)
    table = scope.param('buckets', named(init, (None, 'heads')), (self.buckets, cfg.heads))
    place = self.bucket(k_positions[:, None, :] - q_positions[:, :, None])
    return {'bias': jnp.moveaxis(table[place], -1, 1)}

  def interact(self, scope, cfg, q, k, context, query, key):
    """Returns q and k as they are, and the bias."""
    del scope, cfg, query, key
    return q, k, context['bias']

  def bucket(self, distance):
    """Returns the bucket of distance [...], key minus query in tokens -> [...]."""
    number, offset = self.buckets, jnp.zeros_like(distance)
    if self.bidirectional:
      number //= 2
      offset = number * (distance > 0)
      distance = jnp.abs(distance)
    else:
      distance = jnp.maximum(-distance, 0)
    exact = number // 2
    # In float32 and rounded towards zero, as released: at 16, 32, 64 and 128 other roundings give other buckets.
    ratio = jnp.log(jnp.maximum(distance, 1).astype(jnp.float32) / exact) / math.log(self.furthest / exact)
    far = jnp.minimum(exact + (ratio * (number - exact)).astype(jnp.int32), number - 1)
    return offset + jnp.where(distance < exact, distance, far)
