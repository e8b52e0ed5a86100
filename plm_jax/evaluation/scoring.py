"""Log-likelihoods of continuations by a language model.

    model = load_model('runs/gpt2_small')  # with a mesh for both, if the model is large
    scorer = make_scorer(model)
    scorer.score([('The capital of France is', ' Paris'), ('The capital of France is', ' Rome')])

Context and continuation are tokenized together, as the model would read them, and divided where the
tokens of the context end. A token across the boundary belongs to the continuation. White space at
the end of a context belongs to the continuation too, because a token includes the space before its
word.
"""
from collections.abc import Callable, Iterator, Sequence
import contextlib
import dataclasses
import functools
import itertools
import math
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np

from plm_jax import progress
from plm_jax.checkpoints.checkpoint import CheckpointError
from plm_jax.data.bucketing import (
  bucket_rows,
  group_by_length,
  next_power_of_two,
  round_up,
  row_steps,
)
from plm_jax.errors import ConfigError, check_finite
from plm_jax.inference import prompts
from plm_jax.inference.encoder_steps import causal_ranks
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.sharding import AXIS_RULES, MeshConfig, batch_sharding, make_mesh
from plm_jax.tokenizers import Tokenizer
from plm_jax.tokenizers.contract import boundary_ids


class Span(NamedTuple):
  """Token ids, of which ids[first:] are predicted, each from all before it; first is at least 1."""

  ids: Sequence[int]
  first: int

  @property
  def predicted(self) -> int:
    """Number of predicted tokens."""
    return len(self.ids) - self.first


class ContinuationScore(NamedTuple):
  """The score of a continuation."""

  logprob: float
  """log-likelihood in nats, summed over its tokens"""
  greedy: bool
  """whether each token is the most likely one, so that greedy decoding gives the continuation"""
  tokens: int
  """number of predicted tokens"""
  truncated: int
  """number of tokens of the context that were truncated on the left"""


@dataclasses.dataclass(frozen=True, eq=False)
class Scorer:
  """Computes log-likelihoods of continuations with a language model.

  Sequences of similar length are read together, in at most two compiled shapes per power of two.
  """

  logits: Callable[[Any, dict[str, jax.Array]], jax.Array]
  """(params, batch with tokens and segments [batch, length] (segment 0: padding) and positions
  [batch, M]) -> logits [batch, M, vocab] of the next tokens"""
  params: Any
  tokenizer: Tokenizer
  length: int
  """maximum sequence length of the model; 0: no limit"""
  start: bool = True
  """put the begin-of-text token before each text, as in training; otherwise only before an empty
  context, as lm-evaluation-harness and transformers do for GPT-2"""
  starts_every_row: bool = False
  """also put that token before each part of a text that is read alone, as in training; see
  `LoadedModel.starts_every_row`"""
  mesh: Mesh | None = None
  """the devices of the parameters, which share the batch; None: one device"""
  tokens: int = 4096
  """maximum number of tokens per call, padding included, for each group of devices that shares
  sequences (tensor parallelism)"""
  numbers: int = 1 << 26
  """maximum number of logits per device and call, which limits memory"""

  @property
  def devices(self) -> int:
    """Number of device groups that have their own sequences."""
    if not self.mesh:
      return 1
    return math.prod(self.mesh.shape[axis] for axis in AXIS_RULES['batch'])

  def score(
      self, pairs: Sequence[tuple[str, str]], barred: Sequence[str] = (),
  ) -> list[ContinuationScore]:
    """Score (context, continuation) pairs.

    Args:
      pairs: a context may be empty; one that is too long is truncated at its beginning.
      barred: texts with which greedy decoding may not begin, as they would follow a context. Only
        those of one token count.

    Raises:
      ConfigError: a continuation has no tokens.
    """
    barred_ids = [ids[0] for ids in self.tokenizer.encode_batch(barred) if len(ids) == 1]
    return self.score_whole_spans(self.encode(pairs), barred_ids)

  def score_whole_spans(
      self, spans: Sequence[Span], barred: Sequence[int] = ()) -> list[ContinuationScore]:
    """Score spans of any length: a context that is too long is truncated at its beginning.

    barred: as for `predict`.
    """
    rows = [self.rows(*span) for span in spans]
    found = iter(self.predict(list(itertools.chain.from_iterable(rows)), barred))
    scores = []
    for span, parts in zip(spans, rows, strict=True):
      results = [next(found) for _ in parts]
      logprob = sum(x for x, _ in results)
      greedy = all(hit for _, hit in results)
      scores.append(ContinuationScore(logprob, greedy, span.predicted, span.first - parts[0].first))
    return scores

  def predict(
      self, spans: Sequence[Span], barred: Sequence[int] = (),
  ) -> list[tuple[float, bool]]:
    """Compute (log-likelihood in nats, whether greedy decoding gives it) of each span.

    Spans that differ only in their last token, such as one-token answers to a question, share a
    row.
    barred: ids that greedy decoding may not choose as the first token.
    """
    results: list[Any] = [None] * len(spans)
    for number, logprobs, hits in self.score_spans(spans, barred):
      results[number] = float(logprobs.sum()), bool(hits.all())
    return results

  def score_spans(
      self, spans: Sequence[Span], barred: Sequence[int] = (),
  ) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield the scores of the predicted tokens of each span, in any order of the spans.

    Yields:
      (index of the span, log probability of each token, float64, whether it is the most likely).
    """
    # Spans with the same input share a row.
    shared: dict[tuple[bytes, int], list[int]] = {}
    for number, (ids, first) in enumerate(spans):
      key = np.array(ids[:-1], np.int32).tobytes(), first
      shared.setdefault(key, []).append(number)
    rows = list(shared.values())
    sizes = [len(spans[numbers[0]].ids) - 1 for numbers in rows]
    buckets = group_by_length(sizes, self.length, self.tokens * self.devices)
    barred_ids = jax.device_put(np.array(barred, np.int32))
    with progress.progress_bar('rows', len(rows)) as done:
      for length, row_numbers in sorted(buckets.items()):
        groups = [rows[number] for number in row_numbers]
        for some, logprobs, hits in self.calls(spans, groups, length, barred_ids):
          for row, numbers in enumerate(some):
            for column, number in enumerate(numbers):
              size = spans[number].predicted
              logprob = np.asarray(logprobs[row, :size, column], np.float64)
              yield number, check_finite(logprob), hits[row, :size, column]
          done.update(len(some))

  def calls(
      self, spans: Sequence[Span], groups: list[list[int]], length: int, barred: jax.Array,
  ) -> Iterator[tuple[Any, Any, Any]]:
    """Score groups of spans, one row per group, in batches of one shape.

    Yields:
      (groups, log probabilities and greedy hits [batch, predicted tokens, spans of a group]).
    """
    # Shape of a call: batch, M predicted tokens, T alternatives per row.
    vocab = self.tokenizer.vocab
    predicted = max(spans[numbers[0]].predicted for numbers in groups)
    most = min(length, round_up(predicted, row_steps()))  # M
    alternatives = next_power_of_two(max(map(len, groups)))  # T
    by_memory = self.numbers // (most * vocab.size)
    largest = max(1, min(self.tokens // length, by_memory))
    batch = self.devices * bucket_rows(-(-len(groups) // self.devices), largest, row_steps())
    sharding = batch_sharding(self.mesh) if self.mesh else None
    for begin in range(0, len(groups), batch):
      some = groups[begin:begin + batch]
      tokens = np.full((batch, length), max(vocab.pad, 0), np.int32)
      segments, positions = np.zeros_like(tokens), np.zeros((batch, most), np.int32)
      targets = np.zeros((batch, most, alternatives), np.int32)
      for row, numbers in enumerate(some):
        ids, first = spans[numbers[0]]
        read = len(ids) - 1  # the last token is not read
        tokens[row, :read], segments[row, :read] = ids[:-1], 1
        positions[row, :len(ids) - first] = range(first - 1, read)
        for column, number in enumerate(numbers):
          targets[row, :len(ids) - first, column] = spans[number].ids[first:]
      inputs = dict(tokens=tokens, segments=segments, positions=positions), targets
      batched = jax.device_put(inputs, sharding)
      with jax.set_mesh(self.mesh) if self.mesh else contextlib.nullcontext():
        logprobs, hits = compute_target_scores(self.logits, self.params, *batched, barred)
      logprobs, hits = jax.device_get((logprobs, hits))
      yield some, logprobs, hits

  def encode(self, pairs: Sequence[tuple[str, str]]) -> list[Span]:
    """Encode (context, continuation) pairs as spans that predict the continuation."""
    contexts = [context.rstrip() for context, _ in pairs]
    wholes = [context + continuation for context, continuation in pairs]
    distinct = list(dict.fromkeys(contexts + wholes))
    prompts.check_prompts(distinct, 'give pairs of a context and a continuation')
    encoded = dict(zip(distinct, self.tokenizer.encode_batch(distinct), strict=True))
    spans = []
    for context, whole in zip(contexts, wholes, strict=True):
      # The continuation begins at the first token that differs from the context's own.
      own, ids = encoded[context], encoded[whole]
      first = 0
      while first < min(len(own), len(ids)) and own[first] == ids[first]:
        first += 1
      if first == len(ids):
        continuation = whole[len(context):]
        raise ConfigError(f'nothing to score: {continuation!r} after {context[-40:]!r} adds no '
                          'token')
      begin = self.start_ids(first)
      spans.append(Span([*begin, *ids], first + len(begin)))
    return spans

  def start_ids(self, first: int) -> list[int]:
    """Return the begin-of-text token in a list, or []; `first` tokens of the text are given.

    Raises:
      ConfigError: the token is needed, and the tokenizer has none.
    """
    if first and not self.start:
      return []
    try:
      return [boundary_ids(self.tokenizer.vocab)[0]]
    except ValueError as error:
      raise ConfigError(f'{error}: give each text a context, and leave its start out') from error

  def rows(self, ids: Sequence[int], first: int) -> list[Span]:
    """Cut a span into spans that fit the model.

    One span, with as much of the context as fits; or several with at least half a row of context
    each, if the predicted tokens alone are too many.
    """
    room = self.length + 1 if self.length else len(ids)  # the last token is not read
    fits = len(ids) - first < room
    begin = max(0, len(ids) - room if fits else first - room // 2)
    rest = list(ids[begin:])
    if begin:
      rest[:1] = self.row_start or rest[:1]
    if fits:
      return [Span(rest, first - begin)]
    return strided_spans(rest, first - begin, room, max(1, room // 2), self.row_start)

  @property
  def row_start(self) -> list[int]:
    """Token before a part of a text that begins inside it, in a list, or []."""
    return self.start_ids(0) if self.start and self.starts_every_row else []


@functools.partial(jax.jit, static_argnums=0)
def compute_target_scores(
    logits_of: Callable[[Any, Any], jax.Array], params: Any, batch: Any, targets, barred):
  """Score the tokens `targets` [batch, M, T].

  Args:
    logits_of: see `Scorer.logits`; equal values share their compiled programs.
    params: the parameters.
    batch: the inputs, see `Scorer.logits`.
    targets: T alternative tokens for each predicted position.
    barred: ids that are ignored as the most likely first token.

  Returns:
    (log probabilities, whether each is the most likely token), both [batch, M, T].
  """
  logits = logits_of(params, batch).astype(jnp.float32)
  chosen = jnp.take_along_axis(logits, targets, -1)
  # Not argmax, which the compiler does not vectorize on every device.
  first_best = logits[:, 0].at[:, barred].set(-jnp.inf).max(-1)
  best = logits.max(-1, keepdims=True).at[:, 0, 0].set(first_best)
  is_barred = jnp.isin(targets, barred).at[:, 1:].set(False)
  return chosen - jax.nn.logsumexp(logits, -1, keepdims=True), (chosen >= best) & ~is_barred


@dataclasses.dataclass(frozen=True)
class NextTokenLogits:
  """The logits of a model that predicts next tokens, as a hashable value (see `Scorer.logits`)."""

  model: Any
  """configuration of the backbone"""
  name: str
  """name of the head"""
  head: nn.Module

  def __call__(self, params: Any, batch: Any) -> jax.Array:
    if self.model.kind == 'encoder':  # causal attention, as a decoder has it anyway
      batch = batch | {'ranks': causal_ranks(*batch['tokens'].shape)}
    model = ModelWithHeads(self.model.backbone(), {self.name: self.head})
    outputs: Any = model.apply({'params': params}, batch)
    return outputs[self.name]


def make_scorer(trained: LoadedModel, start: bool = True, mesh: Mesh | None = None) -> Scorer:
  """Make the scorer of a model.

  Args:
    trained: a model that predicts next tokens.
    start: see `Scorer.start`.
    mesh: the devices of the parameters, if the model was loaded on a mesh. None: each device of
      this process gets a copy.

  Raises:
    CheckpointError: the model has no language modeling head or no tokenizer.
  """
  name = trained.lm_head_name
  if not name or not trained.tokenizer:
    lacking = 'tokenizer' if name else 'language model head'
    advice = ''
    if not name and 'mlm' in trained.heads:
      advice = ('. It is a masked language model, such as BERT: `minimal-pairs`, or '
                'plm_jax.likelihood in Python, scores texts with masks')
    raise CheckpointError(f'the model has no {lacking}: texts cannot be scored without it{advice}')
  if trained.model.kind == 'encoder-decoder':
    raise CheckpointError('an encoder-decoder reads a text and writes another: it does not '
                          'continue texts')
  if trained.model.kind == 'infilling':
    raise CheckpointError('a GLM fills blanks and does not continue texts: '
                          'plm_jax.inference.glm_infill scores what it is given')
  parts = 'backbone', f'heads_{name}'
  params = trained.device_params(*parts) if mesh else replicate_params(trained, *parts)
  model = NextTokenLogits(trained.model, name, trained.heads[name])
  return Scorer(
      model, params, trained.tokenizer, trained.model.max_length, start, trained.starts_every_row,
      mesh or local_mesh())


def local_mesh() -> Mesh:
  """Make the mesh on which each device of this process has its own model copy and sequences."""
  return make_mesh(MeshConfig(), jax.local_devices())


def replicate_params(trained: LoadedModel, *parts: str) -> dict[str, Any]:
  """Return parts of the parameters, replicated on all devices of this process."""
  def copy(params: Any) -> dict[str, Any]:
    some = {part: params[part] for part in parts if part in params}
    return jax.device_put(some, NamedSharding(local_mesh(), PartitionSpec()))
  return trained.derive_once(('replicated', *parts), copy)


def strided_spans(ids: Sequence[int], first: int, length: int, stride: int,
                  start: Sequence[int] = ()) -> list[Span]:
  """Cut windows of `length` tokens, one every `stride` tokens, that predict ids[first:] once.

  Each window predicts the tokens that no window before it has predicted. `start` is put before the
  windows after the first, and counts.
  """
  spans, done = [], first
  for begin in range(0, len(ids), stride):
    before = start if begin else ()
    end = min(begin + length - len(before), len(ids))
    if end > done:
      spans.append(Span([*before, *ids[begin:end]], done - begin + len(before)))
      done = end
    if end == len(ids):
      break
  return spans
