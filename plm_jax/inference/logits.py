"""What is done to logits before a token is chosen: small pure functions over [R, V], for R rows.

`tokens` [R, T] is what a row holds, prompt and all; `seen` [R, T] is True where that is text, neither padding nor still
to come. What may not follow becomes -inf.
"""
import jax
import jax.numpy as jnp


def only_pieces(logits, size: int):
  """Bars rows of the table beyond the tokenizer's last piece: they are no answers."""
  return jnp.where(jnp.arange(logits.shape[-1]) < size, logits, -jnp.inf)


def penalise(logits, tokens, seen, penalty: float):
  """Makes tokens of the text less likely: positive logits divided by `penalty`, others multiplied (Keskar et al. 2019,
  section 4.1; of negative logits the paper does not speak)."""
  met = mark(logits, tokens, seen)
  return jnp.where(met, jnp.where(logits > 0, logits / penalty, logits * penalty), logits)


def block_ngrams(logits, tokens, seen, length, n: int):
  """Bars what would make a sequence of `n` tokens come twice (Paulus et al. 2018, section 2.5); the row ends at
  `length`, a scalar."""
  size = n - 1
  places = tokens.shape[1] - size
  if places < 1:
    return logits
  last = jax.lax.dynamic_slice_in_dim(tokens, length - size, size, axis=1)
  whole = jax.lax.dynamic_slice_in_dim(seen, length - size, size, axis=1).all(1)
  # [R, T - n + 1]: do the tokens from here on equal the last ones, and has what follows them been said?
  same = seen[:, size:] & (whole & (length >= size))[:, None]
  for k in range(size):
    same &= (tokens[:, k:k + places] == last[:, k:k + 1]) & seen[:, k:k + places]
  return jnp.where(mark(logits, tokens[:, size:], same), -jnp.inf, logits)


def forbid(logits, ids: tuple[int, ...], when):
  """Bars the tokens of `ids` where `when`, a scalar."""
  return logits.at[:, jnp.array(ids, jnp.int32)].set(jnp.where(when, -jnp.inf, logits[:, jnp.array(ids, jnp.int32)]))


def force(logits, token: int, when):
  """Bars all but `token` where `when`, a scalar: its logit becomes 0, a certainty's."""
  return jnp.where(when, jnp.where(jnp.arange(logits.shape[-1]) == token, 0.0, -jnp.inf), logits)


def top_k(logits, k: int):
  """Keeps the `k` likeliest (Fan et al. 2018, section 5.4), and what is exactly as likely as the last of them."""
  least = jax.lax.top_k(logits, min(k, logits.shape[-1]))[0][:, -1:]
  return jnp.where(logits >= least, logits, -jnp.inf)


def top_p(logits, p: float):
  """Keeps the likeliest that together just reach probability `p` (Holtzman et al. 2020, section 3.1); equals stay
  together.

  A token stays if those likelier than it have less than `p`. The least probability for which that holds is found by
  bisection over the bits of float32, in 31 sums: on a CPU a sort of the vocabulary takes many times as long.
  """
  probs = jax.nn.softmax(logits)
  bits = jax.lax.bitcast_convert_type(probs, jnp.int32)  # of numbers that are not negative: in the same order

  def halve(_, bounds):
    low, high = bounds
    middle = low + (high - low) // 2
    enough = (jnp.where(bits > middle, probs, 0).sum(-1, keepdims=True)) < p
    return jnp.where(enough, low, middle + 1), jnp.where(enough, middle, high)

  most = jnp.max(bits, -1, keepdims=True)
  least, _ = jax.lax.fori_loop(0, 31, halve, (jnp.zeros_like(most), most))
  return jnp.where(bits >= least, logits, -jnp.inf)


def min_p(logits, p: float):
  """Keeps those with at least `p` times the probability of the likeliest (Nguyen et al. 2024, section 3)."""
  return jnp.where(logits >= logits.max(-1, keepdims=True) + jnp.log(p), logits, -jnp.inf)


def mark(logits, tokens, where):
  """Returns bool [R, V], True for `tokens` [R, T] of the row at which `where` [R, T]."""
  rows = jnp.arange(len(tokens))[:, None]
  return jnp.zeros(logits.shape, bool).at[rows, tokens].max(where)
