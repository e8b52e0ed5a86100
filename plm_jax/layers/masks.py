"""Who sees whom: two small integers a token.

    bidirectional   rank 0 everywhere
    causal          rank = position
    prefix LM, GLM  rank 0 in the prefix, then 1, 2, ... in the order of generation
    XLNet           the place in the factorization order, -1 where nothing is predicted; the query stream is strict
    packing         segments 1, 2, ...; 0 is padding, which nothing sees
"""
import jax.numpy as jnp


def visible(q_segments, k_segments, q_ranks=None, k_ranks=None, *, strict=False):
  """Compares [B, Q] and [B, K] ints -> bool [B, 1, Q, K], True where the query may attend to the key.

  Same segment, and a rank no larger than the query's own (smaller, if strict). Ranks None: all of a segment.
  """
  mask = (q_segments[:, :, None] == k_segments[:, None, :]) & (k_segments[:, None, :] > 0)
  if q_ranks is not None and k_ranks is not None:
    before = jnp.less if strict else jnp.less_equal
    mask &= before(k_ranks[:, None, :], q_ranks[:, :, None])
  return mask[:, None]


def of_batch(batch, packed: bool, causal: bool = False):
  """Returns the mask of an encoder's rows [B, 1, 1|L, L]: batch['visible'] [B, L, L] where it is given, else by
  `segments`, and `ranks` where there are some.

  packed: rows may hold several segments. causal: a token sees what comes before it, and itself.
  """
  if 'visible' in batch:
    return batch['visible'][:, None]
  segments = batch['segments']
  if 'ranks' in batch:
    return visible(segments, segments, batch['ranks'], batch['ranks'])
  if causal:
    ranks = jnp.broadcast_to(jnp.arange(segments.shape[1]), segments.shape)
    return visible(segments, segments, ranks, ranks)
  return visible(segments, segments) if packed else not_padding(segments)


def not_padding(k_segments):
  """Returns bool [B, 1, 1, K]: `visible` of rows [B, K] that hold one segment and no ranks, without the [Q, K]
  array."""
  return (k_segments > 0)[:, None, None]
