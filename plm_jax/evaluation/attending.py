"""Where the heads of a model look: how much of their attention goes to which places, and how it is spread.

Many heads have a role that numbers show (Clark et al. 2019, section 3): they look at the token before or behind, at
themselves, at [CLS] or [SEP], or broadly at all. Heads that look at [SEP] mostly do nothing (section 3.2).
"""
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from plm_jax.inference import words
from plm_jax.inference.loading import Trained

PLACES = 'itself', 'previous', 'next', 'special'
"""what is looked at: a token looks at itself, at its neighbours, at tokens that are of no word"""
NAMED = 0.4
"""share of the attention from which on a head is called by where it goes"""


class Head(NamedTuple):
  """What a head does, on average over the tokens of words."""

  layer: int
  """1: the first"""
  head: int
  """1: the first"""
  shares: tuple[float, ...]
  """of its attention, by `PLACES`, of 1"""
  spread: float
  """entropy of its attention, as a share of that of looking at all that it sees alike: 0 one place, 1 all"""
  distance: float
  """tokens away from what it looks at, on average, special tokens left out"""

  @property
  def role(self) -> str:
    """The place that most of its attention goes to; 'broad' where it is spread over nearly all; else ''."""
    most = max(range(len(PLACES)), key=lambda place: self.shares[place])
    return PLACES[most] if self.shares[most] >= NAMED else 'broad' if self.spread >= 0.9 else ''


class Map(NamedTuple):
  """A sentence, and who looks where in it."""

  pieces: list[str]
  attention: np.ndarray
  """[K, H, tokens, tokens], of 1 a row"""


def look(trained: Trained, sentences: Sequence[Sequence[str]], maps: int = 4) -> tuple[list[Head], list[Map]]:
  """Measures every head on sentences, and keeps the maps of the first ones. Raises what `inference.words.attention`
  does."""
  total, tokens, kept = None, 0, {}
  assert trained.tokenizer
  for row, found in words.attention(trained, sentences):
    shares = measured(found, row.starts[0], row.starts[-1])
    total = shares if total is None else total + shares
    tokens += int(row.starts[-1] - row.starts[0])
    if row.sentence < maps and row.words.start == 0:
      kept[row.sentence] = Map([trained.tokenizer.pieces[i] if i < len(trained.tokenizer.pieces) else f'<{i}>'
                                for i in row.tokens], found)
  if total is None:
    return [], []
  mean = total / tokens
  heads = [Head(layer + 1, head + 1, tuple(mean[:len(PLACES), layer, head].tolist()), *mean[len(PLACES):, layer, head])
           for layer in range(mean.shape[1]) for head in range(mean.shape[2])]
  return heads, [kept[number] for number in sorted(kept)]


def measured(attention: np.ndarray, begin: int, end: int) -> np.ndarray:
  """Sums over the tokens from `begin` to `end` of a row: shares by `PLACES`, spread, distance [6, K, H].

  attention: [K, H, tokens, tokens]; what is before `begin` and from `end` on is special.
  """
  size = attention.shape[-1]
  looked = attention[:, :, begin:end]
  away = np.arange(size)[None] - np.arange(begin, end)[:, None]
  special = np.ones(size, bool)
  special[begin:end] = False
  seen = (looked > 0).sum(-1)
  entropy = -(looked * np.log(np.maximum(looked, 1e-30))).sum(-1)
  inside = looked[..., begin:end]
  far = (inside * np.abs(away[:, begin:end])).sum(-1) / np.maximum(inside.sum(-1), 1e-9)
  return np.stack([np.sum(some, -1) for some in (
      looked[..., away == 0].reshape(looked.shape[:3]), (looked * ((away == -1) & ~special)).sum(-1),
      (looked * ((away == 1) & ~special)).sum(-1), looked[..., special].sum(-1),
      entropy / np.log(np.maximum(seen, 2)), far)])
