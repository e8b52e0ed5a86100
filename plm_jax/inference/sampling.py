"""Logits processors: repetition penalty, top-k, top-p, min-p and forced or suppressed tokens.

All are pure functions over logits [rows, vocab], for sequences `tokens` [rows, length] with the
prompt in front. `seen` [rows, length] is True at real tokens, False at padding and at positions
that are not yet generated. A token that may not follow gets the logit -inf.
"""
import jax
import jax.numpy as jnp


def mask_unused_ids(logits, size: int):
  """Suppress ids from `size` on, which pad the embedding table beyond the vocabulary."""
  return jnp.where(jnp.arange(logits.shape[-1]) < size, logits, -jnp.inf)


def penalize_repetition(logits, tokens, seen, penalty: float):
  """Apply the repetition penalty to tokens of the sequence (Keskar et al. 2019, section 4.1).

  Positive logits are divided by `penalty`. Negative logits, which the paper does not discuss, are
  multiplied by it.
  """
  penalized = jnp.where(logits > 0, logits / penalty, logits * penalty)
  return jnp.where(mark_tokens(logits, tokens, seen), penalized, logits)


def block_repeated_ngrams(logits, tokens, seen, length, n: int):
  """Suppress tokens that would repeat an n-gram of the sequence (Paulus et al. 2018, section 2.5).

  length: scalar, the number of positions in use. n: size of the n-gram.
  """
  size = n - 1
  places = tokens.shape[1] - size
  if places < 1:
    return logits
  last = jax.lax.dynamic_slice_in_dim(tokens, length - size, size, axis=1)
  whole = jax.lax.dynamic_slice_in_dim(seen, length - size, size, axis=1).all(1)
  # [rows, length - n + 1]: the tokens from here on equal the last n - 1, and a real token follows.
  same = seen[:, size:] & (whole & (length >= size))[:, None]
  for k in range(size):
    same &= (tokens[:, k:k + places] == last[:, k:k + 1]) & seen[:, k:k + places]
  return jnp.where(mark_tokens(logits, tokens[:, size:], same), -jnp.inf, logits)


def suppress_tokens(logits, ids: tuple[int, ...], when):
  """Suppress the tokens `ids` if `when`, a scalar, is True."""
  columns = jnp.array(ids, jnp.int32)
  return logits.at[:, columns].set(jnp.where(when, -jnp.inf, logits[:, columns]))


def force_token(logits, token: int, when):
  """Suppress all tokens but `token` if `when`, a scalar, is True; its logit becomes 0 (certain)."""
  certain = jnp.where(jnp.arange(logits.shape[-1]) == token, 0.0, -jnp.inf)
  return jnp.where(when, certain, logits)


def keep_top_k(logits, k: int):
  """Keep the `k` most likely tokens and ties of the last (top-k: Fan et al. 2018, section 5.4)."""
  least = jax.lax.top_k(logits, min(k, logits.shape[-1]))[0][:, -1:]
  return jnp.where(logits >= least, logits, -jnp.inf)


def keep_top_p(logits, p: float):
  """Keep the most likely tokens that together reach probability `p` (nucleus sampling).

  See Holtzman et al. 2020, section 3.1. Ties are kept together. A token stays if the more likely
  tokens have a total probability below `p`. The smallest such probability is found by bisection
  over the bits of float32, in 31 sums: on a CPU, sorting the vocabulary takes many times as long.
  """
  probs = jax.nn.softmax(logits)
  # Bits of non-negative floats, read as integers, have the order of the floats.
  bits = jax.lax.bitcast_convert_type(probs, jnp.int32)

  def halve(_, bounds):
    low, high = bounds
    middle = low + (high - low) // 2
    below = jnp.where(bits > middle, probs, 0).sum(-1, keepdims=True) < p
    return jnp.where(below, low, middle + 1), jnp.where(below, middle, high)

  most = jnp.max(bits, -1, keepdims=True)
  least, _ = jax.lax.fori_loop(0, 31, halve, (jnp.zeros_like(most), most))
  return jnp.where(bits >= least, logits, -jnp.inf)


def keep_min_p(logits, p: float):
  """Keep tokens with at least `p` times the highest probability (Nguyen et al. 2024, section 3)."""
  return jnp.where(logits >= logits.max(-1, keepdims=True) + jnp.log(p), logits, -jnp.inf)


def mark_tokens(logits, tokens, where):
  """Return bool [rows, vocab], True for those `tokens` [rows, length] where `where` is True."""
  rows = jnp.arange(len(tokens))[:, None]
  return jnp.zeros(logits.shape, bool).at[rows, tokens].max(where)
