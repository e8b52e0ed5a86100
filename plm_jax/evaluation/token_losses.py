"""Token losses by frequency and position: how hard tokens are to predict.

The mean loss is dominated by few frequent tokens. By frequency it shows what a model has not
learned yet (rare words). By position it shows how much a longer context helps a decoder, or whether
some positions were trained less than others.
"""
from collections.abc import Callable, Iterable, Iterator, Sequence
import itertools
from typing import Any, NamedTuple

import numpy as np

from plm_jax.errors import ConfigError
from plm_jax.evaluation import pseudo_likelihood, scoring
from plm_jax.loading.loaded_model import LoadedModel


class TokenLosses(NamedTuple):
  """The predicted tokens of texts, concatenated."""

  ids: np.ndarray
  """[tokens] int64"""
  nats: np.ndarray
  """cross-entropy of each token [tokens] float64"""
  places: np.ndarray
  """number of tokens before it in its row [tokens] int64"""


class LossBin(NamedTuple):
  """A group of tokens with similar frequency or position."""

  name: str
  tokens: int
  """number of tokens"""
  nats: float
  """mean cross-entropy"""
  error: float
  """standard error of the mean"""


def compute_losses(trained: LoadedModel, texts: Iterable[str]) -> TokenLosses:
  """Compute the loss of every token of texts.

  A decoder predicts each token from those before it. An encoder predicts each token masked, one at
  a time. A text that is longer than a row is divided into several.

  Raises:
    CheckpointError: the model gives tokens no probability.
    ConfigError: there is no token to predict.
  """
  kept = [text for text in texts if text.strip()]
  read = score_masked_tokens if 'mlm' in trained.heads else score_causal_tokens
  found = [columns for columns in read(trained, kept) if len(columns[0])]
  if not found:
    raise ConfigError('there is no token to predict: give a text')
  ids, places, logprobs = map(np.concatenate, zip(*found, strict=True))
  return TokenLosses(ids.astype(np.int64), -logprobs, places.astype(np.int64))


def score_masked_tokens(
    trained: LoadedModel, texts: Sequence[str]) -> Iterator[tuple[Any, Any, np.ndarray]]:
  """Yield (ids, positions, log probabilities) of rows, by an encoder."""
  scorer = pseudo_likelihood.make_pseudo_scorer(trained)
  room = (scorer.length or 514) - 2
  rows = cut_rows(scorer.tokenizer.encode_batch(texts), room)
  first = 0 if scorer.cls_last else 1
  for row, logprobs in zip(rows, scorer.token_logprobs(rows), strict=True):
    yield row, first + np.arange(len(row)), logprobs


def score_causal_tokens(
    trained: LoadedModel, texts: Sequence[str]) -> Iterator[tuple[Any, Any, np.ndarray]]:
  """Yield (ids, positions, log probabilities) of rows, by a decoder.

  Rows do not overlap, so the positions are the true context lengths.
  """
  scorer = scoring.make_scorer(trained, mesh=trained.mesh)
  begin = scorer.start_ids(1)
  room = (scorer.length or 1024) + 1 - len(begin)
  rows = cut_rows(scorer.tokenizer.encode_batch(texts), room)
  spans = [scoring.Span(begin + row, 1) for row in rows if len(begin) + len(row) > 1]
  for number, logprobs, _ in scorer.score_spans(spans):
    yield spans[number].ids[1:], 1 + np.arange(len(logprobs)), logprobs


def cut_rows(texts: Iterable[list[int]], room: int) -> list[list[int]]:
  """Cut the ids of texts into rows of at most `room` tokens."""
  return [ids[at:at + room] for ids in texts for at in range(0, len(ids), room)]


def count_tokens(trained: LoadedModel, texts: Iterable[str]) -> np.ndarray:
  """Count how often each token occurs in texts [vocab]."""
  assert trained.tokenizer
  found = np.zeros(trained.tokenizer.vocab.size, np.int64)
  texts = iter(texts)
  while some := list(itertools.islice(texts, 1024)):
    encoded = trained.tokenizer.encode_batch(some)
    ids = np.fromiter(itertools.chain.from_iterable(encoded), np.int64)
    found += np.bincount(ids, minlength=len(found))
  return found


def group_by_frequency(tokens: TokenLosses, met: np.ndarray) -> list[LossBin]:
  """Group losses by the frequency of their token: never, 1 to 9, 10 to 99, ...

  met: number of occurrences of each token [vocab], from `counts`.
  """
  often = met[tokens.ids]
  digits = np.where(often > 0, np.floor(np.log10(np.maximum(often, 1))).astype(int) + 1, 0)
  def name(digit):
    return f'{10 ** (digit - 1):,} to {10 ** digit - 1:,}' if digit else 'never'
  return average_by_key(tokens.nats, digits, name)


def group_by_position(tokens: TokenLosses) -> list[LossBin]:
  """Group losses by position, the number of tokens before: 0 or 1, 2 or 3, 4 to 7, ..."""
  powers = np.floor(np.log2(np.maximum(tokens.places, 1))).astype(int)
  def name(power):
    first = 2 ** power if power else 0
    return f'{first:,} to {2 ** (power + 1) - 1:,}'
  return average_by_key(tokens.nats, powers, name)


def average_by_key(nats: np.ndarray, keys: np.ndarray, name: Callable[[int], str]) -> list[LossBin]:
  """Average losses by key, in the order of the keys. name: makes the name of a key's bin."""
  bins = []
  for key in np.unique(keys).tolist():
    some = nats[keys == key]
    error = float(some.std(ddof=1) / len(some) ** 0.5) if len(some) > 1 else 0.0
    bins.append(LossBin(name(key), len(some), float(some.mean()), error))
  return bins
