"""Position schemes inside attention: ALiBi and Transformer-XL's relative positions.

A scheme is a value with two hooks, `context` and `interact`. Rotary positions are in `rope`, T5's
bias is in `t5_relative_bias`, DeBERTa's disentangled attention is in `disentangled`.
"""
import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp

from plm_jax.layers.common import CommonConfig
from plm_jax.layers.dense import Dense, with_logical_axes
from plm_jax.layers.relative_logits import TransformerXLLogits
from plm_jax.validation import ValidatedConfig, intervals


@dataclasses.dataclass(frozen=True)
class NoPosition(ValidatedConfig):
  """No positions inside attention; base class of all schemes.

  Absolute positions are part of the embeddings.
  """

  uses_row_order: ClassVar[bool] = False
  """Distances are those of places in the row, whatever the positions of its tokens."""

  def context(self, scope, cfg: CommonConfig, q_positions, k_positions):
    """Compute, once per stack, what all layers share.

    Args:
      scope: the stack's module, for parameters.
      cfg: the block's sizes.
      q_positions: [batch, queries].
      k_positions: [batch, keys]. Keys in a KV cache come first, as `interact` returned them.

    Returns:
      A tree that every layer gets as `context`.
    """
    del scope, cfg, q_positions, k_positions
    return {}

  def layer_context(self, context, windowed: bool):
    """Select the context of one layer; windowed: the layer attends within a sliding window."""
    del windowed
    return context

  def skip_context(self, context, skip):
    """Return the context of a layer without positions (NoPE) where the bool scalar `skip` is
    True."""
    del skip
    return context

  def decoder_scheme(self) -> 'NoPosition':
    """Return the scheme for a stack whose tokens attend to preceding tokens only."""
    return self

  def interact(
      self, scope, cfg: CommonConfig, q, k, context, query, key) -> tuple[Any, Any, Any]:
    """Apply the positions to queries and keys of one layer.

    Args:
      scope: the layer's attention module, with its `cfg` and the `scale` of logits.
      cfg: the block's sizes.
      q: [batch, queries, heads, head_size].
      k: [batch, keys, key_heads, head_size], without those of a KV cache.
      context: result of `context`.
      query: the layer's query projection, for schemes that project their tables with it.
      key: the layer's key projection.

    Returns:
      (q, k, bias); bias is [batch or 1, heads, queries, cached + keys], or `RelativeLogits`, or
      `TransformerXLLogits`, or None.
    """
    del scope, cfg, context, query, key
    return q, k, None


@dataclasses.dataclass(frozen=True)
class Alibi(NoPosition):
  """ALiBi: logits fall linearly with the distance to a key (Press et al. 2022, section 3).

  Each head has its own slope. In a bidirectional model logits fall to both sides (Portes et al.
  2023, section 2.1). Slopes are 2^(-8 h / H) where the number of heads is a power of two. Otherwise
  they are those of the next smaller power of two, and every other one of the next larger (released
  code). Queries do not attend to other texts of their row, so distances are those in the row.
  """

  uses_row_order = True

  def context(self, scope, cfg, q_positions, k_positions):
    """Compute the bias [batch or 1, heads, queries, keys]."""
    del scope
    if q_positions.shape == k_positions.shape:  # no KV cache, in which slots may be empty
      q_positions = k_positions = jnp.arange(q_positions.shape[1])[None]
    distance = jnp.abs(k_positions[:, None, :] - q_positions[:, :, None]).astype(jnp.float32)
    slopes = jnp.array(alibi_slopes(cfg.heads), jnp.float32)
    return {'bias': -slopes[:, None, None] * distance[:, None]}

  def interact(self, scope, cfg, q, k, context, query, key):
    del scope, cfg, query, key
    return q, k, context['bias']


def alibi_slopes(heads: int) -> list[float]:
  """Compute ALiBi's slope per head: how much a logit falls with each token of distance."""
  power = 1 << (heads.bit_length() - 1)
  slopes = [2 ** (-8 * (number + 1) / power) for number in range(power)]
  if power < heads:
    slopes += alibi_slopes(2 * power)[::2][:heads - power]
  return slopes


@dataclasses.dataclass(frozen=True)
class TransformerXL(NoPosition):
  """Transformer-XL's relative positions, with XLNet's relative segments.

  Dai et al. 2019, section 3.3; Yang et al. 2019, section 2.5. A logit is ((q + w) k + (q + r)
  R[distance] + (q + s) S[same segment or not]) times the scale. The last term needs `types` in the
  context: (types of the queries [batch, queries], types of the keys [batch, keys]), of which only
  equality matters.

  Keys are consecutive, and the queries are the last of them. With `places` [batch, M] in the
  context, M more queries follow, at these positions. `backward` [batch] in the context is True for
  rows whose text is reversed, so that distances have the opposite sign. Released code drops entries
  of the table of distances, other ones per row; here all rows share one complete table.
  """

  uses_row_order = True
  limits = intervals(clamp='[-1, inf)')

  clamp: int = -1
  """Longest distance, in tokens: longer distances count as this one; -1: no limit."""
  untied: bool = True
  """Each layer has biases w, r and s of its own; False: the layers share them."""

  def context(self, scope, cfg, q_positions, k_positions):
    """Compute the sinusoidal table of distances, and tied biases.

    Returns:
      `table` [keys + queries, hidden], for the distances query - key from `keys` to 1 - `queries`;
      the tied biases, if there are any.
    """
    queries, keys = q_positions.shape[1], k_positions.shape[1]
    distances = jnp.arange(keys, -queries, -1.0)
    if self.clamp > 0:
      distances = jnp.clip(distances, -self.clamp, self.clamp)
    angles = distances[:, None] / 10_000 ** (jnp.arange(0, cfg.width, 2) / cfg.width)
    context = {'table': jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)}
    if not self.untied:
      context |= self.biases(scope, cfg)
    return context

  def interact(self, scope, cfg, q, k, context, query, key):
    biases = self.biases(scope, cfg) if self.untied else context

    # Distances.
    project = Dense(
        (cfg.heads, cfg.head_dim), ('width', 'heads', None), False, cfg.compute_dtype,
        cfg.init.table_initializer, name='relative')
    table, backward = context['table'], context.get('backward')
    if backward is not None:
      # The opposite distance has the opposite sine and the same cosine.
      opposite = table * jnp.where(jnp.arange(cfg.width) < cfg.width // 2, -1, 1)
      table = jnp.stack([table, opposite])
    logits = TransformerXLLogits(
        project(table), biases['content_bias'], biases['position_bias'], backward=backward,
        places=context.get('places'))

    # Relative segments.
    types = context.get('types')
    if types is not None:
      q_types, k_types = types
      init = with_logical_axes(cfg.init.table_initializer, (None, 'heads', None))
      embedding = scope.param('types', init, (2, cfg.heads, cfg.head_dim))
      logits = logits._replace(
          type_bias=biases['type_bias'], types=embedding,
          same=q_types[:, :, None] == k_types[:, None, :])
    return q, k, logits

  def biases(self, scope, cfg):
    """Make the biases w, r and s, [heads, head_size] each."""
    init = with_logical_axes(cfg.init.table_initializer, ('heads', None))
    return {name: scope.param(name, init, (cfg.heads, cfg.head_dim))
            for name in ('content_bias', 'position_bias', 'type_bias')}
