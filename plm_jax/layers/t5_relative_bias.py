"""T5's relative position bias: a learned bias per head and bucket of distances."""
import dataclasses
import math

import jax.numpy as jnp

from plm_jax.layers.dense import with_logical_axes
from plm_jax.layers.positions import NoPosition
from plm_jax.validation import intervals


@dataclasses.dataclass(frozen=True)
class Buckets(NoPosition):
  """T5's relative position bias (Raffel et al. 2020, section 2.1).

  A number per head and bucket of distances is added to the attention logits. Half of the buckets
  hold one distance each, the other half hold ranges that grow logarithmically up to `furthest`. All
  longer distances share the last bucket.
  """

  limits = intervals(buckets='[2, inf)', furthest='[1, inf)')

  buckets: int = 32
  """Number of buckets, for both directions together."""
  furthest: int = 128
  """Distance, in tokens, from which all distances share one bucket."""
  bidirectional: bool = True
  """Half of the buckets are for keys after the query; False: all are for keys at or before it
  (decoders)."""
  shared: bool = True
  """The layers of a stack share one table of biases; False: each layer has its own (umT5)."""

  def conflict(self, option):
    least = 4 if self.bidirectional else 2
    if self.buckets < least:
      return f'{option("buckets")} is {least} or more, got {self.buckets}'
    exact = self.buckets // least
    if self.furthest <= exact:
      return (f'{option("buckets")} {self.buckets} hold distances from {exact} tokens on in '
              f'ranges, so that {option("furthest")} must be {exact + 1} or more, got '
              f'{self.furthest}')
    return None

  def decoder_scheme(self):
    """Return the scheme of a decoder, whose buckets are all for preceding tokens."""
    return dataclasses.replace(self, bidirectional=False)

  def context(self, scope, cfg, q_positions, k_positions):
    """Compute the bucket of every distance [batch or 1, queries, keys], or its bias (`look_up`)."""
    bucket = self.bucket(k_positions[:, None, :] - q_positions[:, :, None])
    if self.shared:
      return {'bias': self.look_up(scope, cfg, bucket)}
    return {'bucket': bucket}

  def interact(self, scope, cfg, q, k, context, query, key):
    del query, key
    if self.shared:
      return q, k, context['bias']
    return q, k, self.look_up(scope, cfg, context['bucket'])

  def look_up(self, scope, cfg, bucket):
    """Look up the bias [batch or 1, heads, queries, keys] in the table that `scope` has."""
    init = cfg.init.matrix_initializer(cfg.width, cfg.width)
    shape = self.buckets, cfg.heads
    table = scope.param('buckets', with_logical_axes(init, (None, 'heads')), shape)
    return jnp.moveaxis(table[bucket], -1, 1)

  def bucket(self, distance):
    """Return the buckets of distances [...], which are key minus query in tokens."""
    number, offset = self.buckets, jnp.zeros_like(distance)
    if self.bidirectional:
      number //= 2
      offset = number * (distance > 0)
      distance = jnp.abs(distance)
    else:
      distance = jnp.maximum(-distance, 0)
    exact = number // 2
    # In float32 and rounded towards zero, as released: at 16, 32, 64 and 128 other roundings give
    # other buckets.
    ratio = jnp.log(jnp.maximum(distance, 1).astype(jnp.float32) / exact)
    ratio /= math.log(self.furthest / exact)
    far = jnp.minimum(exact + (ratio * (number - exact)).astype(jnp.int32), number - 1)
    return offset + jnp.where(distance < exact, distance, far)
