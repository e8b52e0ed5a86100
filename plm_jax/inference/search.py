"""Decoding strategies: greedy search, sampling and beam search.

The state of a search is a pytree: `initial_search` makes it, `choose` adds one token per sequence,
and `result` reads the generated tokens.
"""
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from plm_jax.errors import check_finite
from plm_jax.inference import sampling as of
from plm_jax.loading.generation_config import GenerationConfig

EMPTY_SCORE = -1e9
"""score of a sequence that does not exist"""


class OutputVocab(NamedTuple):
  """Token ids that matter to a search."""

  size: int
  """ids that may be generated; the embedding table may have more rows"""
  end_ids: tuple[int, ...]
  """ids that end a text; (): texts have the maximum length"""
  pad: int
  """id of the padding after an end"""
  suppressed_ids: tuple[int, ...] = ()
  """ids that are never generated"""


SearchState = dict[str, Any]


def init_search(config: GenerationConfig, tokens, real, keys) -> SearchState:
  """Make the initial state of a search.

  Args:
    config: the generation options.
    tokens: the prompts [prompts, prompt length].
    real: bool of the same shape, False at padding.
    keys: random keys [prompts * config.rows] for sampling.

  Returns:
    A dictionary with `tokens` [rows, prompt length + max_new], where rows = prompts * config.rows
    and the rows of a prompt are adjacent; `seen`, bool of that shape, True at real tokens; `count`,
    the number of generated tokens; `going`, bool [rows], or [prompts] for beam search: False
    where the search has ended; and `finite`, whether all logits so far were finite.
  """
  prompts = len(tokens)
  def expand(x):
    return jnp.repeat(jnp.pad(x, ((0, 0), (0, config.max_new))), config.rows, 0)
  search = {'tokens': expand(tokens), 'seen': expand(real), 'count': jnp.zeros((), jnp.int32),
            'last': tokens[:, -1], 'finite': jnp.array(True)}
  if config.beams == 1:
    going = jnp.ones(prompts * config.rows, bool)
    return search | {'going': going, 'lengths': going * config.max_new, 'keys': keys}
  # All beams start from the same prompt: only the first one counts.
  first_beam = jnp.where(jnp.arange(config.beams) == 0, 0.0, EMPTY_SCORE)
  shape = (prompts, config.beams)
  best = {
      'tokens': jnp.zeros((*shape, config.max_new), jnp.int32),
      'scores': jnp.full(shape, EMPTY_SCORE), 'lengths': jnp.zeros(shape, jnp.int32),
      'ended': jnp.zeros(shape, bool)}
  return search | {
      'going': jnp.ones(prompts, bool), 'scores': jnp.tile(first_beam, (prompts, 1)), 'best': best}


def choose_tokens(
    config: GenerationConfig, ids: OutputVocab, search: SearchState, logits,
) -> tuple[SearchState, Any]:
  """Choose the next token of each row from float32 logits [rows, vocab].

  Returns:
    The new state, and for beam search the row that each row continues, [rows]; else None.
  """
  search = search | {'finite': search['finite'] & jnp.isfinite(logits).all()}
  if config.beams > 1:
    return advance_beams(config, ids, search, jax.nn.log_softmax(suppress_unused_ids(ids, logits)))
  logits = apply_constraints(config, ids, search, suppress_unused_ids(ids, logits))
  if config.temperature:
    logits = filter_logits(config, logits / config.temperature)
    keys = jax.vmap(jax.random.fold_in, (0, None))(search['keys'], search['count'])
    token = jax.vmap(jax.random.categorical)(keys, logits)
  else:
    token = jnp.argmax(logits, -1)
  count, going = search['count'] + 1, search['going']
  ended = going & is_end(token, ids)
  written = append_tokens(config, search, jnp.where(going, token, ids.pad).astype(jnp.int32))
  lengths = jnp.where(ended, count, search['lengths'])
  going = going & ~ended & (count < config.max_new)
  return search | written | {'lengths': lengths, 'going': going}, None


def collect_result(config: GenerationConfig, search: SearchState) -> dict[str, jax.Array]:
  """Read the generated sequences of a search, best first.

  Returns:
    `tokens` [prompts, number, max_new]; `lengths` [prompts, number], end included; and for beam
    search `scores` [prompts, number]. Tokens beyond a length are undefined.

  Raises:
    NotFiniteError: the logits of a step were not finite.
  """
  check_logits(search['finite'])
  return gather_result(config, search)


def check_logits(finite: jax.Array) -> None:
  """Check that the logits from which tokens were chosen were finite. Raises NotFiniteError."""
  check_finite(0.0 if finite else math.nan)


@functools.partial(jax.jit, static_argnums=0)
def gather_result(config: GenerationConfig, search: SearchState) -> dict[str, jax.Array]:
  """Gather the arrays of `collect_result`."""
  if config.beams > 1:
    names = ('tokens', 'lengths', 'scores')
    return {name: search['best'][name][:, :config.number] for name in names}
  tokens = search['tokens'][:, -config.max_new:]
  lengths = jnp.minimum(search['lengths'], search['count'])
  return {'tokens': tokens.reshape(-1, config.number, config.max_new),
          'lengths': lengths.reshape(-1, config.number)}


def suppress_unused_ids(ids: OutputVocab, logits):
  """Suppress the ids that are never generated."""
  logits = of.mask_unused_ids(logits, ids.size)
  if ids.suppressed_ids:
    return of.suppress_tokens(logits, ids.suppressed_ids, True)
  return logits


def apply_constraints(config: GenerationConfig, ids: OutputVocab, search: SearchState, logits):
  """Apply repetition penalty, n-gram blocking, minimum length and forced tokens.

  logits: logits or log probabilities [rows, vocab].
  """
  tokens, seen, count = search['tokens'], search['seen'], search['count']
  if config.repetition_penalty != 1:
    logits = of.penalize_repetition(logits, tokens, seen, config.repetition_penalty)
  if config.no_repeat_ngram:
    length = tokens.shape[1] - config.max_new + count
    logits = of.block_repeated_ngrams(logits, tokens, seen, length, config.no_repeat_ngram)
  if config.min_new and ids.end_ids:
    logits = of.suppress_tokens(logits, ids.end_ids, count < config.min_new)
  if config.forced_first >= 0:
    logits = of.force_token(logits, config.forced_first, count == 0)
  if config.forced_last >= 0:
    logits = of.force_token(logits, config.forced_last, count == config.max_new - 1)
  return logits


def filter_logits(config: GenerationConfig, logits):
  """Restrict sampling to the tokens that top-k, top-p and min-p keep."""
  if config.top_k:
    logits = of.keep_top_k(logits, config.top_k)
  if config.top_p < 1:
    logits = of.keep_top_p(logits, config.top_p)
  if config.min_p:
    return of.keep_min_p(logits, config.min_p)
  return logits


def advance_beams(
    config: GenerationConfig, ids: OutputVocab, search: SearchState, logprobs,
) -> tuple[SearchState, Any]:
  """Take one step of beam search, as transformers does.

  The best sequences that have ended are kept apart, and `beams` others continue. The step examines
  twice as many continuations as there are beams (more with several end ids), so that enough of them
  have not ended. Only the best `beams` of them may end.

  Returns:
    The new state, and the row that each row continues, [rows].
  """
  beams, count, best, going = config.beams, search['count'] + 1, search['best'], search['going']
  logprobs = apply_constraints(config, ids, search, logprobs)
  prompts, vocab = len(going), logprobs.shape[-1]

  # The best continuations of all beams of a prompt: [prompts, beams, vocab] -> [prompts, examined].
  scores = logprobs.reshape(prompts, beams, vocab) + search['scores'][:, :, None]
  examined = min(max(2, 1 + len(ids.end_ids)) * beams, beams * vocab)
  scores, picked = jax.lax.top_k(scores.reshape(prompts, -1), examined)
  beam, token = picked // vocab, (picked % vocab).astype(jnp.int32)
  ended = is_end(token, ids) | (count == config.max_new)

  # Merge the continuations that end with the best ended sequences: [prompts, beams, ...].
  added = search['tokens'][:, -config.max_new:].reshape(prompts, beams, -1)
  may_end = ended & (jnp.arange(token.shape[1]) < beams) & going[:, None]
  candidates = {
      'tokens': gather_beams(added, beam).at[:, :, count - 1].set(token),
      'lengths': jnp.full_like(token, count), 'ended': may_end,
      'scores': jnp.where(may_end, scores / count ** config.length_penalty, EMPTY_SCORE)}
  merged = {name: jnp.concatenate([best[name], x], 1) for name, x in candidates.items()}
  order = jax.lax.top_k(merged['scores'], beams)[1]
  best = {name: gather_beams(x, order) for name, x in merged.items()}

  # Continue the best sequences that have not ended: [prompts, beams], then rows [prompts * beams].
  scores, order = jax.lax.top_k(jnp.where(ended, scores + EMPTY_SCORE, scores), beams)
  beam, token = gather_beams(beam, order), gather_beams(token, order)
  origin = (beam + beams * jnp.arange(prompts)[:, None]).reshape(-1)
  moved = {name: search[name][origin] for name in ('tokens', 'seen')}

  # Stop where no running sequence can reach the ended ones.
  # The sum of log probabilities only falls, so that the longest text may have the best score.
  counts_all = config.early_stopping == 'never' and config.length_penalty > 0
  length = config.max_new if counts_all else count
  worst = jnp.where(best['ended'], best['scores'].min(1, keepdims=True), EMPTY_SCORE)
  going &= (scores[:, :1] / length ** config.length_penalty > worst).any(1)
  if config.early_stopping == 'full':
    going &= ~best['ended'].all(1)
  written = append_tokens(config, search | moved, token.reshape(-1))
  state = {'scores': scores, 'best': best, 'going': going & (count < config.max_new)}
  return search | written | state, origin


def append_tokens(config: GenerationConfig, search: SearchState, token) -> SearchState:
  """Append `token` [rows] to the rows, and return the changed entries of the state."""
  place = search['tokens'].shape[1] - config.max_new + search['count']
  return {'tokens': search['tokens'].at[:, place].set(token),
          'seen': search['seen'].at[:, place].set(True),
          'last': token, 'count': search['count'] + 1}


def is_end(token, ids: OutputVocab):
  """Return True for each token id [...] that ends a text."""
  if not ids.end_ids:
    return jnp.zeros(token.shape, bool)
  return jnp.isin(token, jnp.array(ids.end_ids, token.dtype))


def gather_beams(x, order):
  """Gather the items `order` [prompts, J] of x [prompts, K, ...] -> [prompts, J, ...]."""
  return jax.vmap(lambda x, order: x[order])(x, order)
