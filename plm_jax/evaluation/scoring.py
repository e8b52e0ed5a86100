"""How likely a language model finds a text behind another.

    scorer = scoring.of(loading.load('runs/gpt2_small'))  # or with a mesh for both, where a model is large
    scorer.score([('The capital of France is', ' Paris'), ('The capital of France is', ' Rome')])

Context and continuation are tokenised together, as the model would have read them, and divided where the context's own
tokens end; a token that reaches over the boundary belongs to the continuation. White space at the end of a context
counts as the continuation's, because a piece holds the space before its word.
"""
from collections.abc import Callable, Iterator, Sequence
import contextlib
import dataclasses
import functools
import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np
from tqdm import tqdm

from plm_jax.config import ConfigError
from plm_jax.inference import prompts
from plm_jax.inference.batches import by_length, doubled
from plm_jax.inference.loading import Trained
from plm_jax.inference.rereading import ranks
from plm_jax.layers.heads import WithHeads
from plm_jax.objectives.clm import boundaries
from plm_jax.sharding import TABLE, MeshConfig, batch_sharding, make_mesh
from plm_jax.tokenizers import Tokenizer
from plm_jax.training.checkpoint import CheckpointError


class Span(NamedTuple):
  """ids[first:] are predicted, each from all that stand before it; first is 1 or more."""

  ids: Sequence[int]
  first: int


class Score(NamedTuple):
  """What a continuation got."""

  logprob: float  # nats, of all its tokens together
  greedy: bool  # whether each of them is the likeliest, so that it is what greedy decoding gives
  tokens: int  # how many were predicted
  cut: int  # tokens of the context that had no room, on its left


@dataclasses.dataclass(frozen=True, eq=False)
class Scorer:
  """A model, seen as a giver of probabilities. Rows of like length are read together: at most two compiled shapes for
  each doubling of it."""

  logits: Callable[[Any, dict[str, jax.Array]], jax.Array]
  """params, batch of tokens, segments [B, L] (0 padding) and positions [B, M] -> [B, M, V], of the tokens behind"""
  params: Any
  """what `logits` gets"""
  tokenizer: Tokenizer
  """what makes ids of text"""
  length: int
  """the longest row that the model reads, in tokens; 0: any"""
  start: bool = True
  """a text begins with the token that begins texts in training; without it, as lm-evaluation-harness and transformers
  have it for GPT-2, only what follows an empty context does"""
  mesh: Mesh | None = None
  """the devices that share the rows of a call, and where the parameters are; None: one"""
  tokens: int = 4096
  """read by a device in one call, padding included, at most; by those that share rows (tensor) together"""
  numbers: int = 1 << 26
  """logits of a device in one call, at most: what takes the memory"""

  @property
  def devices(self) -> int:
    """How many have rows of their own."""
    return math.prod(self.mesh.shape[axis] for axis in TABLE['batch']) if self.mesh else 1

  def score(self, pairs: Sequence[tuple[str, str]], barred: Sequence[str] = ()) -> list[Score]:
    """Contexts and continuations -> a score each. A context may be empty; one that is too long loses its beginning.

    barred: what greedy decoding may not begin with, each as it stands behind a context; those that are one token count.
    Raises ConfigError for a continuation without tokens.
    """
    whole = self.encode(pairs)
    rows = [self.rows(*span) for span in whole]
    first_ids = [ids[0] for ids in self.tokenizer.encode_batch(barred) if len(ids) == 1]
    found = iter(self.predict(list(itertools.chain.from_iterable(rows)), first_ids))
    scores = []
    for (ids, first), some in zip(whole, rows, strict=True):
      parts = [next(found) for _ in some]
      scores.append(Score(
          sum(x for x, _ in parts), all(hit for _, hit in parts), len(ids) - first, first - some[0].first))
    return scores

  def predict(self, spans: Sequence[Span], barred: Sequence[int] = ()) -> list[tuple[float, bool]]:
    """Returns of each (logarithm of the probability of its predicted tokens in nats, whether each is the likeliest, of
    all but `barred` for the first).

    Spans that differ in their last token alone, such as answers of one token to a question, share a row.
    """
    answers: list[Any] = [None] * len(spans)
    for number, logprobs, hits in self.found(spans, barred):
      answers[number] = float(logprobs.sum()), bool(hits.all())
    return answers

  def found(self, spans: Sequence[Span], barred: Sequence[int] = ()) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yields of each span, in any order (its number; of each predicted token the logarithm of its probability, float64;
    whether it is the likeliest)."""
    rows: dict[tuple[bytes, int], list[int]] = {}
    for number, (ids, first) in enumerate(spans):
      rows.setdefault((np.array(ids[:-1], np.int32).tobytes(), first), []).append(number)
    shared = [*rows.values()]
    buckets = by_length([len(spans[some[0]].ids) - 1 for some in shared], self.length, self.tokens * self.devices)
    with tqdm(total=len(rows), unit=' rows', disable=None, leave=False) as progress:
      for length, numbers in sorted(buckets.items()):
        groups = [shared[number] for number in numbers]
        for some, logprobs, hits in self.calls(spans, groups, length, np.array(barred, np.int32)):
          for row, alike in enumerate(some):
            for column, number in enumerate(alike):
              size = len(spans[number].ids) - spans[number].first
              yield number, np.asarray(logprobs[row, :size, column], np.float64), hits[row, :size, column]
          progress.update(len(some))

  def calls(self, spans: Sequence[Span], groups: list[list[int]], length: int, barred: np.ndarray,
            ) -> Iterator[tuple[Any, Any, Any]]:
    """Groups of spans, a row each, in calls of one shape -> (groups, logprobs and hits [B, M, T])."""
    vocab = self.tokenizer.vocab
    most = min(length, doubled(max(len(spans[some[0]].ids) - spans[some[0]].first for some in groups)))  # M
    alternatives = doubled(max(map(len, groups)))  # T
    share = doubled(-(-len(groups) // self.devices))
    batch = self.devices * max(1, min(self.tokens // length, self.numbers // (most * vocab.size), share))
    for begin in range(0, len(groups), batch):
      some = groups[begin:begin + batch]
      tokens = np.full((batch, length), max(vocab.pad, 0), np.int32)
      segments, positions = np.zeros_like(tokens), np.zeros((batch, most), np.int32)
      targets = np.zeros((batch, most, alternatives), np.int32)
      for row, numbers in enumerate(some):
        ids, first = spans[numbers[0]]
        read = len(ids) - 1
        tokens[row, :read], segments[row, :read] = ids[:-1], 1
        positions[row, :len(ids) - first] = range(first - 1, read)
        for column, number in enumerate(numbers):
          targets[row, :len(ids) - first, column] = spans[number].ids[first:]
      rows_of_call = dict(tokens=tokens, segments=segments, positions=positions), targets
      batched = jax.device_put(rows_of_call, batch_sharding(self.mesh) if self.mesh else None)
      with jax.set_mesh(self.mesh) if self.mesh else contextlib.nullcontext():
        answers = self._call(self.params, *batched, barred)
      yield some, *jax.device_get(answers)

  def encode(self, pairs: Sequence[tuple[str, str]]) -> list[Span]:
    """Encodes pairs of a context and what follows: ids of both in a row, of which the second are predicted."""
    contexts = [context.rstrip() for context, _ in pairs]
    wholes = [context + continuation for context, continuation in pairs]
    distinct = list(dict.fromkeys([*contexts, *wholes]))
    prompts.check(distinct, 'give pairs of a context and a continuation')
    known = dict(zip(distinct, self.tokenizer.encode_batch(distinct), strict=True))
    spans = []
    for context, whole in zip(contexts, wholes, strict=True):
      own, ids = known[context], known[whole]
      first = next((i for i, (a, b) in enumerate(zip(own, ids, strict=False)) if a != b), min(len(own), len(ids)))
      if first == len(ids):
        raise ConfigError(f'nothing to score: {whole[len(context):]!r} behind {context[-40:]!r} adds no token')
      begin = self.start_ids(first)
      spans.append(Span([*begin, *ids], first + len(begin)))
    return spans

  def start_ids(self, first: int) -> list[int]:
    """Returns what stands before a text of which `first` tokens are given: the start, or nothing.

    Raises ConfigError where there has to be one and the tokenizer has none.
    """
    if first and not self.start:
      return []
    try:
      return [boundaries(self.tokenizer.vocab)[0]]
    except ValueError as error:
      raise ConfigError(f'{error}: give each text a context, and leave its start out') from error

  def rows(self, ids: Sequence[int], first: int) -> list[Span]:
    """Cuts a span of any length into spans that the model can read: one, with as much of the context as has room; or,
    where what is predicted is too long itself, several that each see half a row at least."""
    room = self.length + 1 if self.length else len(ids)  # the last token is not read
    if len(ids) - first < room:
      return [Span(ids[max(0, len(ids) - room):], first - max(0, len(ids) - room))]
    begin = max(0, first - room // 2)
    return strided(ids[begin:], first - begin, room, max(1, room // 2))

  @functools.cached_property
  def _call(self):
    def call(params, batch, targets, barred):
      logits = self.logits(params, batch).astype(jnp.float32)
      chosen = jnp.take_along_axis(logits, targets, -1)
      best = logits.max(-1, keepdims=True).at[:, 0, 0].set(logits[:, 0].at[:, barred].set(-jnp.inf).max(-1))
      # Not argmax, which the compiler does not vectorise on every device.
      return chosen - jax.nn.logsumexp(logits, -1, keepdims=True), (
          (chosen >= best) & ~jnp.isin(targets, barred).at[:, 1:].set(False))
    return jax.jit(call)


def of(trained: Trained, start: bool = True, mesh: Mesh | None = None) -> Scorer:
  """Makes the scorer of a trained model.

  mesh: on whose devices its parameters are, as `loading.load(folder, mesh)` gives them; None: each device of this
  process gets a copy. Raises CheckpointError for a model without a language model head or a tokenizer.
  """
  name = trained.writer
  if not name or not trained.tokenizer:
    lacking = 'tokenizer' if name else 'language model head'
    raise CheckpointError(f'the model has no {lacking}: texts cannot be scored without it')
  if trained.model.kind == 'encoder-decoder':
    raise CheckpointError('an encoder-decoder reads a text and writes another: it does not continue texts')
  if trained.model.kind == 'infilling':
    raise CheckpointError('a GLM fills blanks and does not continue texts: plm_jax.inference.blanks scores what it '
                          'is given')
  model = WithHeads(trained.model.backbone(), {name: trained.heads[name]})

  def logits(params, batch):
    # An encoder is told that a row is read from left to right; a decoder does nothing else.
    own = {'ranks': ranks(*batch['tokens'].shape)} if trained.model.kind == 'encoder' else {}
    outputs: Any = model.apply({'params': params}, batch | own)
    return outputs[name]

  params = {part: trained.params[part] for part in ('backbone', f'heads_{name}') if part in trained.params}
  if mesh is None:
    mesh = make_mesh(MeshConfig(), jax.local_devices())
    params = jax.device_put(params, NamedSharding(mesh, PartitionSpec()))
  return Scorer(logits, params, trained.tokenizer, trained.model.max_length, start, mesh)


def strided(ids: Sequence[int], first: int, length: int, stride: int) -> list[Span]:
  """Cuts windows of `length` tokens, each `stride` behind the one before it, that predict ids[first:] once: each what
  none before it has predicted."""
  spans, done = [], first
  for begin in range(0, len(ids), stride):
    end = min(begin + length, len(ids))
    if end > done:
      spans.append(Span(ids[begin:end], done - begin))
      done = end
    if end == len(ids):
      break
  return spans
