"""Position schemes that act inside attention. A scheme is a value with two hooks."""
import dataclasses
from typing import Any

import jax.numpy as jnp

from plm_jax.checked import Checked, within
from plm_jax.layers.common import CommonConfig
from plm_jax.layers.dense import Dense, named
from plm_jax.layers.distances import by_key


@dataclasses.dataclass(frozen=True)
class NoPosition(Checked):
  """Nothing inside attention; the base of all schemes. Absolute positions live in the embedding."""

  def context(self, scope, cfg: CommonConfig, q_positions, k_positions):
    """Runs once a stack, in the stack's scope -> a tree that every layer gets as `context`.

    q_positions [B, Q], k_positions [B, K]: keys in a cache come first, as they were when `interact` gave them.
    """
    del scope, cfg, q_positions, k_positions
    return {}

  def of_layer(self, context, banded: bool):
    """Returns what of the context is for a layer; banded: it is one that sees a band of neighbours alone."""
    del banded
    return context

  def of_decoder(self) -> 'NoPosition':
    """Returns the scheme in a stack whose tokens see only what comes before."""
    return self

  def interact(self, scope, cfg: CommonConfig, q, k, context, query, key) -> tuple[Any, Any, Any]:
    """Turns q [B, Q, H, A] and k [B, K, G, A], without a cache's, into (q, k, bias [B|1, H, Q, S + K] or `Distances` or
    None); runs in every layer's scope, which is that of the attention: its `cfg` and the `scale` of logits are there.

    `query` and `key` are the layer's own projections, for schemes that project their tables with them.
    """
    del scope, cfg, context, query, key
    return q, k, None


@dataclasses.dataclass(frozen=True)
class Alibi(NoPosition):
  """Logits fall in a line with the distance to a key, in each head by another slope (Press et al. 2022, section 3).

  Of a bidirectional model to either side (Portes et al. 2023, section 2.1). Slopes are 2^(-8 h / H) where the number of
  heads is a power of two; else those of the next smaller one, and every other one of the next larger (released code).
  Keys of another text in the row are nothing that a query sees, so that distances are those of places in the row.
  """

  def context(self, scope, cfg, q_positions, k_positions):
    """Returns bias [B|1, H, Q, K]."""
    del scope
    if q_positions.shape == k_positions.shape:  # no cache, in which places may be empty
      q_positions = k_positions = jnp.arange(q_positions.shape[1])[None]
    distance = jnp.abs(k_positions[:, None, :] - q_positions[:, :, None]).astype(jnp.float32)
    return {'bias': -jnp.array(slopes(cfg.heads), jnp.float32)[:, None, None] * distance[:, None]}

  def interact(self, scope, cfg, q, k, context, query, key):
    """Returns q and k as they are, and the bias."""
    del scope, cfg, query, key
    return q, k, context['bias']


def slopes(heads: int) -> list[float]:
  """Returns what a head's logits fall by with each token of distance, one number a head."""
  whole = 1 << (heads.bit_length() - 1)
  first = [2 ** (-8 * (number + 1) / whole) for number in range(whole)]
  return first + (slopes(2 * whole)[::2][:heads - whole] if whole < heads else [])


@dataclasses.dataclass(frozen=True)
class TransformerXL(NoPosition):
  """Distances, projected in every layer (Dai et al. 2019, section 3.3), and segments (Yang et al. 2019, section 2.5).

  A logit is ((q + w) k + (q + r) R[distance] + (q + s) S[same segment or not]) times the scale. The last term is there
  where the context has `types`: (of the queries [B, Q], of the keys [B, K]), of which only equality matters.

  Keys lie one after another, and the queries are the last of them; where the context has `places` [B, M], M more
  queries follow, which stand at those places among the first. `backward` [B] in the context is True for rows whose
  text runs backwards, so that distances have the other sign. Released code drops entries of the table of distances,
  other ones for every row; here it is one table for all rows, and whole.
  """

  limits = within(clamp='[-1, inf)')

  clamp: int = -1
  """tokens: longer distances count as this one; -1: as they are"""
  untied: bool = True
  """each layer has biases w, r and s of its own"""

  def context(self, scope, cfg, q_positions, k_positions):
    """Returns table [K + Q, D], sines and cosines of the distances from a query to a key, K .. -Q + 1; and tied
    biases."""
    queries, keys = q_positions.shape[1], k_positions.shape[1]
    distances = jnp.arange(keys, -queries, -1.0)
    if self.clamp > 0:
      distances = jnp.clip(distances, -self.clamp, self.clamp)
    angles = distances[:, None] / 10_000 ** (jnp.arange(0, cfg.width, 2) / cfg.width)
    context = {'table': jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)}
    return context if self.untied else context | self.biases(scope, cfg)

  def interact(self, scope, cfg, q, k, context, query, key):
    """Returns q with the bias of content, k, and the bias of distances and types, [B, H, Q, K]."""
    biases = self.biases(scope, cfg) if self.untied else context
    def biased(name):
      return q + biases[name].astype(q.dtype)

    def product(letters, x, y):
      return jnp.einsum(letters, x, y, preferred_element_type=jnp.float32) * scope.scale

    project = Dense(
        (cfg.heads, cfg.head_dim), ('width', 'heads', None), False, cfg.compute, cfg.init.plain, name='relative')
    table = context['table']
    if (backward := context.get('backward')) is None:
      by_distance = product('bqha,rha->bhqr', biased('position_bias'), project(table))
    else:
      # The sine of the opposite distance is the opposite, the cosine is the same.
      opposite = table * jnp.where(jnp.arange(cfg.width) < cfg.width // 2, -1, 1)
      ahead, back = project(jnp.stack([table, opposite]))
      chosen = jnp.where(backward[:, None, None, None], back, ahead)
      by_distance = product('bqha,brha->bhqr', biased('position_bias'), chosen)
    bias = by_key(by_distance, k.shape[1], context.get('places'))

    if (types := context.get('types')) is not None:
      of_queries, of_keys = types
      embedding = scope.param('types', named(cfg.init.plain, (None, 'heads', None)), (2, cfg.heads, cfg.head_dim))
      same, other = product('bqha,sha->sbhq', biased('type_bias'), embedding.astype(q.dtype))
      bias += jnp.where((of_queries[:, :, None] == of_keys[:, None, :])[:, None], same[..., None], other[..., None])
    return biased('content_bias'), k, bias

  def biases(self, scope, cfg):
    """Makes w, r and s, [H, A] each."""
    return {name: scope.param(name, named(cfg.init.plain, ('heads', None)), (cfg.heads, cfg.head_dim))
            for name in ('content_bias', 'position_bias', 'type_bias')}
