"""The decoding loop of text generation: prefill the prompts, then decode token by token.

The loop knows a model only by its `Steps`. Two programs are compiled for each shape of prompts
[prompts, length] (length is a power of two, see `padded_length`) and each configuration.
`initial_state` reads the prompts and chooses the first token. `advance` generates tokens up to a
given number, in one loop on the device. The KV cache has its full size from the start.
"""
import functools
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.errors import ConfigError
from plm_jax.inference import search as searching
from plm_jax.inference.search import OutputVocab, SearchState
from plm_jax.loading.generation_config import GenerationConfig
from plm_jax.validation import short_repr


class Steps(Protocol):
  """A model as the decoding loop sees it: a hashable value with three pure functions.

  The cache is any pytree that these functions agree on.
  """

  def prefill(self, params, batch, slots: int) -> tuple[jax.Array, Any]:
    """Prefill: read the prompts.

    Args:
      params: the parameters.
      batch: `tokens` and `segments` [rows, length], where segment 0 is padding in front, and any
        other input of the model.
      slots: number of tokens that the cache holds in all.

    Returns:
      The logits [rows, vocab] of the next token, and the cache.
    """
    ...

  def decode_step(self, params, tokens, cache) -> tuple[jax.Array, Any]:
    """Decode one step: read the chosen tokens [rows] -> (logits [rows, vocab], cache)."""
    ...

  def reorder_cache(self, cache, rows) -> Any:
    """Reorder the cache: return that for `rows`, which may repeat rows and leave out others.

    If the number of rows stays the same, each row is replaced by one with the same prompt.
    """
    ...


class DecodingState(NamedTuple):
  """The state of generation between two calls of `advance`."""

  search: SearchState
  cache: Any


def generate_tokens(
    steps: Steps, params, batch, config: GenerationConfig, ids: OutputVocab, seed: int = 0,
) -> dict[str, jax.Array]:
  """Generate all tokens for the prompts in `batch` (see `Steps.prefill`) -> `search.result`."""
  state = initial_state(steps, config, ids, params, batch, jax.device_put(check_seed(seed)))
  until = jax.device_put(np.int32(config.max_new))
  return searching.collect_result(config, advance(steps, config, ids, params, state, until).search)


def check_seed(seed: int) -> np.uint32:
  """Return a random seed as `initial_state` takes it. Raises ConfigError if it is out of range."""
  if not 0 <= seed < 1 << 32:
    raise ConfigError(f'a seed is from 0 to {(1 << 32) - 1}, got {short_repr(seed)}')
  return np.uint32(seed)


def padded_length(length: int, longest: int = 0) -> int:
  """Return the padded length: a power of two from 16 on, at most `longest` (0: no limit)."""
  size = max(16, 1 << (length - 1).bit_length())
  return min(size, longest) if longest else size


@functools.partial(jax.jit, static_argnames=('steps', 'config', 'ids'))
def initial_state(
    steps: Steps, config: GenerationConfig, ids: OutputVocab, params, batch, seed,
) -> DecodingState:
  """Prefill the prompts, once for all of their sequences, and choose the first token.

  Sampled tokens depend on the seed and the index of the row, not on the other rows.
  """
  tokens = batch['tokens']
  key = jax.random.key(seed)
  row_ids = jnp.arange(len(tokens) * config.rows)
  keys = jax.vmap(lambda row: jax.random.fold_in(key, row))(row_ids)
  logits, cache = steps.prefill(params, batch, tokens.shape[1] + config.max_new)
  search = searching.init_search(config, tokens, batch['segments'] > 0, keys)
  if config.rows > 1:
    rows = jnp.repeat(jnp.arange(len(tokens)), config.rows)
    logits, cache = logits[rows], steps.reorder_cache(cache, rows)
  return extend_state(steps, config, ids, DecodingState(search, cache), logits)


@functools.partial(jax.jit, static_argnames=('steps', 'config', 'ids'), donate_argnames='state')
def advance(
    steps: Steps, config: GenerationConfig, ids: OutputVocab, params, state: DecodingState, until,
) -> DecodingState:
  """Generate up to `until` new tokens (a scalar), or until all rows have ended. Donates `state`."""
  def unfinished(state):
    return (state.search['count'] < until) & state.search['going'].any()
  def step(state):
    logits, cache = steps.decode_step(params, state.search['last'], state.cache)
    return extend_state(steps, config, ids, DecodingState(state.search, cache), logits)
  return jax.lax.while_loop(unfinished, step, state)


def extend_state(
    steps: Steps, config: GenerationConfig, ids: OutputVocab, state: DecodingState, logits,
) -> DecodingState:
  """Choose the next token of each row, and reorder the cache for the beams that continue."""
  search, origin = searching.choose_tokens(config, ids, state.search, logits)
  cache = state.cache if origin is None else steps.reorder_cache(state.cache, origin)
  return DecodingState(search, cache)
