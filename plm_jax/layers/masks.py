"""Attention masks, computed from two small integers per token: segment and rank.

    bidirectional   rank 0 everywhere
    causal          rank = position
    prefix LM, GLM  rank 0 in the prefix, then 1, 2, ... in the order of generation
    XLNet           the place in the factorization order, -1 where nothing is predicted; the query
                    stream is strict
    packing         segments 1, 2, ...; segment 0 is padding, which no token attends to
"""
import jax.numpy as jnp


def attention_mask(q_segments, k_segments, q_ranks=None, k_ranks=None, *, strict=False):
  """Build the attention mask from segments and ranks.

  A query attends to the keys of its own segment whose rank is no larger than its own.

  Args:
    q_segments: [batch, queries] int; 0 is padding.
    k_segments: [batch, keys] int.
    q_ranks: [batch, queries] int; None: queries attend to their whole segment.
    k_ranks: [batch, keys] int.
    strict: only keys of a smaller rank are visible.

  Returns:
    Bool [batch, 1, queries, keys], True where the query attends to the key.
  """
  mask = (q_segments[:, :, None] == k_segments[:, None, :]) & (k_segments[:, None, :] > 0)
  if q_ranks is not None and k_ranks is not None:
    before = jnp.less if strict else jnp.less_equal
    mask &= before(k_ranks[:, None, :], q_ranks[:, :, None])
  return mask[:, None]


def encoder_attention_mask(batch, packed: bool, causal: bool = False):
  """Build the self-attention mask of an encoder's batch.

  Args:
    batch: `visible` [batch, length, length] is used as it is where it is given; otherwise
      `segments` [batch, length], with `ranks` [batch, length] where they are given.
    packed: rows may hold several segments (sequence packing).
    causal: a token attends to itself and the tokens before it.

  Returns:
    Bool [batch, 1, 1 or length, length].
  """
  if 'visible' in batch:
    return batch['visible'][:, None]
  segments = batch['segments']
  if 'ranks' in batch:
    return attention_mask(segments, segments, batch['ranks'], batch['ranks'])
  if causal:
    ranks = jnp.broadcast_to(jnp.arange(segments.shape[1]), segments.shape)
    return attention_mask(segments, segments, ranks, ranks)
  return attention_mask(segments, segments) if packed else padding_mask(segments)


def padding_mask(k_segments):
  """Build the padding mask [batch, 1, 1, keys] of segments [batch, keys].

  It equals `attention_mask` of rows with one segment and no ranks, without the [queries, keys]
  array.
  """
  return (k_segments > 0)[:, None, None]
