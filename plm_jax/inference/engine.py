"""The loop: all that it knows of a model is how it starts and how it goes on.

Two programs are compiled for a shape of prompts [B, P] (P is a power of two: `bucket`) and a configuration:
`initial_state` reads the prompts and chooses the first token, `advance` goes on for as many tokens as it is told to, in
one loop on the device. The cache has its full size from the beginning.
"""
import functools
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.checked import shortened
from plm_jax.errors import ConfigError
from plm_jax.inference import search as searching
from plm_jax.inference.search import GenerationConfig, Ids, Search


class Steps(Protocol):
  """A model, to the engine: a hashable value with three pure functions. A cache is whatever tree they agree on."""

  def start(self, params, batch, slots: int) -> tuple[jax.Array, Any]:
    """Reads the prompts. batch: tokens and segments [B, P] (0 padding, in front), and what else the model reads ->
    (logits [B, V] of the token behind, cache for `slots` tokens in all)."""
    ...

  def next(self, params, tokens, cache) -> tuple[jax.Array, Any]:
    """Reads tokens [B], the ones that were chosen -> (logits [B, V] of those behind, cache)."""
    ...

  def pick(self, cache, rows) -> Any:
    """Returns a cache of rows [R], which may come several times or not at all. Where there are as many as before, each
    takes the place of one that has the same prompt."""
    ...


class State(NamedTuple):
  """Between two calls of `advance`."""

  search: Search
  cache: Any


def run(steps: Steps, params, batch, config: GenerationConfig, ids: Ids, seed: int = 0) -> dict[str, jax.Array]:
  """Prompts -> `search.result`, all in one go. See `Steps.start` for the batch."""
  state = initial_state(steps, config, ids, params, batch, seed_of(seed))
  return searching.result(config, advance(steps, config, ids, params, state, config.max_new).search)


def seed_of(seed: int) -> np.uint32:
  """Returns a seed as `initial_state` takes it. Raises ConfigError for one that keys are not made of."""
  if not 0 <= seed < 1 << 32:
    raise ConfigError(f'a seed is from 0 to {(1 << 32) - 1}, got {shortened(seed)}')
  return np.uint32(seed)


def bucket(length: int, longest: int = 0) -> int:
  """Returns the power of two, 16 at least, that holds `length` tokens, but no more than `longest` (0: any)."""
  size = max(16, 1 << (length - 1).bit_length())
  return min(size, longest) if longest else size


@functools.partial(jax.jit, static_argnames=('steps', 'config', 'ids'))
def initial_state(steps: Steps, config: GenerationConfig, ids: Ids, params, batch, seed) -> State:
  """Reads the prompts, once each whatever becomes of them, and chooses the first token.

  What is drawn depends on the seed and the row's number, not on the other rows.
  """
  tokens = batch['tokens']
  key = jax.random.key(seed)
  keys = jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(len(tokens) * config.rows))
  logits, cache = steps.start(params, batch, tokens.shape[1] + config.max_new)
  state = State(searching.initial_search(config, tokens, batch['segments'] > 0, keys), cache)
  if config.rows > 1:
    rows = jnp.repeat(jnp.arange(len(tokens)), config.rows)
    logits, state = logits[rows], state._replace(cache=steps.pick(cache, rows))
  return chosen(steps, config, ids, state, logits)


@functools.partial(jax.jit, static_argnames=('steps', 'config', 'ids'), donate_argnames='state')
def advance(steps: Steps, config: GenerationConfig, ids: Ids, params, state: State, until) -> State:
  """Goes on to `until` new tokens, a scalar, or to where all rows have ended. `state` is used up."""
  def more(state):
    return (state.search['count'] < until) & state.search['going'].any()
  def step(state):
    logits, cache = steps.next(params, state.search['last'], state.cache)
    return chosen(steps, config, ids, State(state.search, cache), logits)
  return jax.lax.while_loop(more, step, state)


def chosen(steps: Steps, config: GenerationConfig, ids: Ids, state: State, logits) -> State:
  """Chooses a token for each row, and moves the cache to the rows that beams go on from."""
  search, origin = searching.choose(config, ids, state.search, logits)
  return State(search, state.cache if origin is None else steps.pick(state.cache, origin))
