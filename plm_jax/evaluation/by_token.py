"""How hard tokens are to predict, by how often they were met and by where they stand.

A loss is a mean over tokens of which few kinds make up most: by frequency it shows what a model has not learned yet
(rare words), and by place what a longer context gives (a decoder) or whether some places were trained less than
others.
"""
from collections.abc import Callable, Iterable, Sequence
import itertools
from typing import Any, NamedTuple

import numpy as np

from plm_jax.errors import ConfigError
from plm_jax.evaluation import pseudo, scoring
from plm_jax.inference.loading import Trained


class Tokens(NamedTuple):
  """Predicted tokens of texts, one behind the other."""

  ids: np.ndarray
  """[N] int64"""
  nats: np.ndarray
  """loss of each [N] float64"""
  places: np.ndarray
  """tokens that stand before it in its row [N] int64"""


class Bin(NamedTuple):
  """Tokens that are alike in something."""

  name: str
  tokens: int
  nats: float
  """their loss, on average"""
  error: float
  """standard error of that"""


def losses(trained: Trained, texts: Iterable[str]) -> Tokens:
  """Predicts every token of texts: a decoder from what stands before it, an encoder each masked in turn. A text that is
  longer than a row is read as several.

  Raises CheckpointError for a model that gives tokens no probability, ConfigError where there is no token to predict.
  """
  kept = [text for text in texts if text.strip()]
  read = masked if 'mlm' in trained.heads else continued
  found = [(some, places, logprobs) for some, places, logprobs in read(trained, kept) if len(some)]
  if not found:
    raise ConfigError('there is no token to predict: give a text')
  ids, places, logprobs = (np.concatenate(column) for column in zip(*found, strict=True))
  return Tokens(ids.astype(np.int64), -logprobs, places.astype(np.int64))


def masked(trained: Trained, texts: Sequence[str]) -> Iterable[tuple[Any, Any, np.ndarray]]:
  """Yields of rows of an encoder (ids, places, logarithms of probabilities)."""
  scorer = pseudo.of(trained)
  room = (scorer.length or 514) - 2
  rows = [ids[at:at + room] for ids in scorer.tokenizer.encode_batch(texts) for at in range(0, len(ids), room)]
  first = 0 if scorer.cls_last else 1
  return [(row, first + np.arange(len(row)), logprobs)
          for row, logprobs in zip(rows, scorer.by_token(rows), strict=True)]


def continued(trained: Trained, texts: Sequence[str]) -> Iterable[tuple[Any, Any, np.ndarray]]:
  """Yields the same of a decoder; rows do not overlap, so that places are those that they seem."""
  scorer = scoring.of(trained)
  begin = scorer.start_ids(1)
  room = (scorer.length or 1024) + 1 - len(begin)
  spans = [scoring.Span([*begin, *ids[at:at + room]], 1)
           for ids in scorer.tokenizer.encode_batch(texts) for at in range(0, len(ids), room)]
  spans = [span for span in spans if len(span.ids) > 1]
  return [(spans[number].ids[1:], 1 + np.arange(len(logprobs)), logprobs)
          for number, logprobs, _ in scorer.found(spans)]


def counts(trained: Trained, texts: Iterable[str]) -> np.ndarray:
  """Counts how often texts have each token [V]."""
  assert trained.tokenizer
  found = np.zeros(trained.tokenizer.vocab.size, np.int64)
  texts = iter(texts)
  while some := list(itertools.islice(texts, 1024)):
    ids = np.fromiter(itertools.chain.from_iterable(trained.tokenizer.encode_batch(some)), np.int64)
    found += np.bincount(ids, minlength=len(found))
  return found


def by_frequency(tokens: Tokens, met: np.ndarray) -> list[Bin]:
  """Groups tokens by how often they were met [V]: never, 1 to 9, 10 to 99, ..."""
  often = met[tokens.ids]
  digits = np.where(often > 0, np.floor(np.log10(np.maximum(often, 1))).astype(int) + 1, 0)
  def name(digit):
    return f'{10 ** (digit - 1):,} to {10 ** digit - 1:,}' if digit else 'never'
  return grouped(tokens.nats, digits, name)


def by_place(tokens: Tokens) -> list[Bin]:
  """Groups tokens by how many stand before them: 0 or 1, 2 or 3, 4 to 7, ..."""
  doublings = np.floor(np.log2(np.maximum(tokens.places, 1))).astype(int)
  return grouped(tokens.nats, doublings, lambda power: f'{2 ** power if power else 0:,} to {2 ** (power + 1) - 1:,}')


def grouped(nats: np.ndarray, keys: np.ndarray, name: Callable[[int], str]) -> list[Bin]:
  """Averages losses by their keys, in the order of these."""
  found = []
  for key in np.unique(keys).tolist():
    some = nats[keys == key]
    error = float(some.std(ddof=1) / len(some) ** 0.5) if len(some) > 1 else 0.0
    found.append(Bin(name(key), len(some), float(some.mean()), error))
  return found
