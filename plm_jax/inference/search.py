"""How tokens are chosen: greedily, by lot, by beams.

A search is a pytree; `initial_search` makes it, `choose` goes a token on, `result` reads it.
"""
import dataclasses
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from plm_jax.checked import Checked, within
from plm_jax.inference import logits as of

NEVER = -1e9  # the score of what is not there


@dataclasses.dataclass(frozen=True)
class GenerationConfig(Checked):
  """How a text is continued."""

  limits = within(
      max_new='[1, 1048576]', top_p='(0, 1]', min_p='[0, 1]', beams='[1, 4096]', length_penalty='[-100, 100]',
      number='[1, 65536]', repetition_penalty='(0, inf)', forced_first='[-1, inf)', forced_last='[-1, inf)')

  max_new: int = 64
  """tokens that are added, at most"""
  min_new: int = 0
  """tokens that are added before the text may end"""
  temperature: float = 0.0
  """logits are divided by it before a token is drawn; 0: the likeliest token is taken (greedy), or beams"""
  top_k: int = 0
  """draw from so many tokens, the likeliest; 0: from all"""
  top_p: float = 1.0
  """draw from the likeliest tokens that together just have this probability; 1: from all"""
  min_p: float = 0.0
  """draw from tokens with at least this share of the likeliest one's probability; 0: from all"""
  beams: int = 1
  """sequences that are followed at once, the best so far; 1: no beam search"""
  length_penalty: float = 1.0
  """a beam's score is the sum of its log probabilities divided by its length, the end included, to this power"""
  early_stopping: Literal['full', 'heuristic', 'never'] = 'heuristic'
  """beams end when as many have ended as are followed; when the best of the others, were it to end now, would be worse
  than all of these; or when it would be even at the length at which it had the best score"""
  number: int = 1
  """sequences for each prompt: as many draws, or the best of the beams"""
  repetition_penalty: float = 1.0
  """makes tokens of the text less likely, the prompt's too; 1: does not"""
  no_repeat_ngram: int = 0
  """no sequence of so many tokens comes twice, the prompt counted; 0: whatever comes"""
  forced_first: int = -1
  """id of the first new token (BART); -1: chosen like the others"""
  forced_last: int = -1
  """id of the token number max_new (BART); -1: chosen like the others"""
  stop: tuple[str, ...] = ()
  """the text ends before the first of these that comes"""
  start: bool = True
  """a prompt begins with the token that begins a text, as rows in training do; transformers puts none before prompts of
  GPT-2 and GPT-Neo, whose rows began anywhere in a text"""

  def conflict(self, option):
    """Says which options do not go together, the first of them."""
    of_draws = [name for name, off in (('top_k', 0), ('top_p', 1), ('min_p', 0)) if getattr(self, name) != off]
    return next((said for bad, said in (
        (self.min_new > self.max_new,
         f'{option("min_new")} is {option("max_new")} at most, got {self.min_new} and {self.max_new}'),
        (0 < self.temperature < 1e-3, f'{option("temperature")} is 0, or 0.001 or more, got {self.temperature}'),
        ('' in self.stop, f'{option("stop")}: a stop sequence is empty'),
        (self.beams > 1 and self.temperature > 0,
         f'beams are not drawn by lot: leave {option("temperature")} or {option("beams")} out'),
        (self.beams > 1 and self.number > self.beams,
         f'{option("number")}: {self.beams} beams do not give {self.number} sequences'),
        (self.beams == 1 and not self.temperature and self.number > 1,
         f'{option("number")}: the likeliest tokens give one sequence, not {self.number}: give {option("temperature")} '
         f'or {option("beams")}'),
        (not self.temperature and of_draws,
         f'{" and ".join(map(option, of_draws))} is for drawing by lot: give {option("temperature")} too'),
    ) if bad), None)

  @property
  def rows(self) -> int:
    """Rows that a prompt becomes."""
    return max(self.beams, self.number)


class Ids(NamedTuple):
  """What the search knows of a vocabulary."""

  size: int  # ids that are answers: the rest of the table is not
  ends: tuple[int, ...]  # each ends a text; none: texts have the greatest length
  pad: int  # stands behind an end


Search = dict[str, Any]


def initial_search(config: GenerationConfig, tokens, real, keys) -> Search:
  """Begins a search. tokens and real [B, P]: prompts, and where they are no padding; keys [B * config.rows], for draws
  -> the search.

  tokens [R, P + max_new] with R = B * config.rows, rows of a prompt together; seen likewise; count, how many tokens
  were added; going [R] or, with beams, [B]: False where nothing changes any more.
  """
  rows = len(tokens)
  put = lambda x: jnp.repeat(jnp.pad(x, ((0, 0), (0, config.max_new))), config.rows, 0)
  search = {'tokens': put(tokens), 'seen': put(real), 'count': jnp.zeros((), jnp.int32), 'last': tokens[:, -1]}
  if config.beams == 1:
    each = jnp.ones(rows * config.rows, bool)
    return search | {'going': each, 'lengths': each * config.max_new, 'keys': keys}
  beams = (rows, config.beams)
  return search | {
      'going': jnp.ones(rows, bool),
      # All beams are the same at first: one of them is enough.
      'scores': jnp.tile(jnp.where(jnp.arange(config.beams) == 0, 0.0, NEVER), (rows, 1)),
      'best': {'tokens': jnp.zeros((*beams, config.max_new), jnp.int32), 'scores': jnp.full(beams, NEVER),
               'lengths': jnp.zeros(beams, jnp.int32), 'ended': jnp.zeros(beams, bool)}}


def choose(config: GenerationConfig, ids: Ids, search: Search, logits) -> tuple[Search, Any]:
  """Chooses one more token a row by logits [R, V], float32 -> the search, and for beams which row each goes on from
  [R]."""
  if config.beams > 1:
    return follow(config, ids, search, jax.nn.log_softmax(of.only_pieces(logits, ids.size)))
  logits = allowed(config, ids, search, of.only_pieces(logits, ids.size))
  if config.temperature:
    logits = likeliest(config, logits / config.temperature)
    keys = jax.vmap(jax.random.fold_in, (0, None))(search['keys'], search['count'])
    token = jax.vmap(jax.random.categorical)(keys, logits)
  else:
    token = jnp.argmax(logits, -1)
  count, going = search['count'] + 1, search['going']
  ended = going & is_end(token, ids)
  search = search | write(config, search, jnp.where(going, token, ids.pad).astype(jnp.int32)) | {
      'lengths': jnp.where(ended, count, search['lengths']), 'going': going & ~ended & (count < config.max_new)}
  return search, None


def result(config: GenerationConfig, search: Search) -> dict[str, jax.Array]:
  """Returns tokens [B, number, max_new] that were added, lengths [B, number] of them, the end included, and for beams
  their scores [B, number]; best first. What stands beyond a length means nothing."""
  if config.beams > 1:
    best = search['best']
    return {name: best[name][:, :config.number] for name in ('tokens', 'lengths', 'scores')}
  tokens = search['tokens'][:, -config.max_new:]
  return {'tokens': tokens.reshape(-1, config.number, config.max_new),
          'lengths': jnp.minimum(search['lengths'], search['count']).reshape(-1, config.number)}


def allowed(config: GenerationConfig, ids: Ids, search: Search, logits):
  """Returns logits, or log probabilities, after what the text so far asks for."""
  tokens, seen, count = search['tokens'], search['seen'], search['count']
  if config.repetition_penalty != 1:
    logits = of.penalise(logits, tokens, seen, config.repetition_penalty)
  if config.no_repeat_ngram:
    length = tokens.shape[1] - config.max_new + count
    logits = of.block_ngrams(logits, tokens, seen, length, config.no_repeat_ngram)
  if config.min_new and ids.ends:
    logits = of.forbid(logits, ids.ends, count < config.min_new)
  if config.forced_first >= 0:
    logits = of.force(logits, config.forced_first, count == 0)
  if config.forced_last >= 0:
    logits = of.force(logits, config.forced_last, count == config.max_new - 1)
  return logits


def likeliest(config: GenerationConfig, logits):
  """Bars the tokens that are not to be drawn."""
  if config.top_k:
    logits = of.top_k(logits, config.top_k)
  if config.top_p < 1:
    logits = of.top_p(logits, config.top_p)
  return of.min_p(logits, config.min_p) if config.min_p else logits


def follow(config: GenerationConfig, ids: Ids, search: Search, logprobs) -> tuple[Search, Any]:
  """Searches with beams as transformers has it: the best that ended are kept aside, as many others are followed.

  Of the continuations of all beams twice as many are looked at as there are beams (more with several ends), so that
  enough of them have not ended; only the best `beams` of them may end.
  """
  beams, count, best, going = config.beams, search['count'] + 1, search['best'], search['going']
  logprobs = allowed(config, ids, search, logprobs)
  rows, vocab = len(going), logprobs.shape[-1]
  scores = (logprobs.reshape(rows, beams, vocab) + search['scores'][:, :, None]).reshape(rows, -1)
  scores, picked = jax.lax.top_k(scores, min(max(2, 1 + len(ids.ends)) * beams, beams * vocab))
  beam, token = picked // vocab, (picked % vocab).astype(jnp.int32)
  ended = is_end(token, ids) | (count == config.max_new)

  added = search['tokens'][:, -config.max_new:].reshape(rows, beams, -1)
  candidates = {
      'tokens': take(added, beam).at[:, :, count - 1].set(token), 'lengths': jnp.full_like(token, count),
      'ended': ended & (jnp.arange(token.shape[1]) < beams) & going[:, None]}
  candidates['scores'] = jnp.where(candidates['ended'], scores / count ** config.length_penalty, NEVER)
  merged = {name: jnp.concatenate([best[name], x], 1) for name, x in candidates.items()}
  order = jax.lax.top_k(merged['scores'], beams)[1]
  best = {name: take(x, order) for name, x in merged.items()}

  scores, order = jax.lax.top_k(jnp.where(ended, scores + NEVER, scores), beams)
  beam, token = take(beam, order), take(token, order)
  origin = (beam + beams * jnp.arange(rows)[:, None]).reshape(-1)
  moved = {name: search[name][origin] for name in ('tokens', 'seen')}
  # By now the sum has no more than this to hope for.
  length = config.max_new if config.early_stopping == 'never' and config.length_penalty > 0 else count
  worst = jnp.where(best['ended'], best['scores'].min(1, keepdims=True), NEVER)
  going &= (scores[:, :1] / length ** config.length_penalty > worst).any(1)
  if config.early_stopping == 'full':
    going &= ~best['ended'].all(1)
  search = search | write(config, {**search, **moved}, token.reshape(-1)) | {
      'scores': scores, 'best': best, 'going': going & (count < config.max_new)}
  return search, origin


def write(config: GenerationConfig, search: Search, token) -> Search:
  """Writes `token` [R] in the next place of each row."""
  place = search['tokens'].shape[1] - config.max_new + search['count']
  return {'tokens': search['tokens'].at[:, place].set(token), 'seen': search['seen'].at[:, place].set(True),
          'last': token, 'count': search['count'] + 1}


def is_end(token, ids: Ids):
  """Tells which tokens [...] end a text."""
  return jnp.isin(token, jnp.array(ids.ends, token.dtype)) if ids.ends else jnp.zeros(token.shape, bool)


def take(x, order):
  """Takes, of x [B, K, ...], the items order [B, J] -> [B, J, ...]."""
  return jax.vmap(lambda x, order: x[order])(x, order)
