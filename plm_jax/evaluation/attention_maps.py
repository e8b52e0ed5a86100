"""Attention maps: statistics of where each attention head looks.

Many heads have a role that numbers show (Clark et al. 2019, section 3): they attend to the previous
or next token, to the token itself, to [CLS] or [SEP], or broadly to all tokens. Heads that attend
to [SEP] mostly do nothing (section 3.2).
"""
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from plm_jax.inference import token_features
from plm_jax.loading.loaded_model import LoadedModel

ATTENTION_TARGETS = 'itself', 'previous', 'next', 'special'
"""targets of attention: the token itself, its neighbors, and special tokens"""
ROLE_SHARE = 0.4
"""minimum share of the attention on a target that gives a head its role"""


class HeadStatistics(NamedTuple):
  """What an attention head does, on average over the tokens of words."""

  layer: int
  """1: the first"""
  head: int
  """1: the first"""
  shares: tuple[float, ...]
  """share of the attention on each of `PLACES`, from 0 to 1"""
  spread: float
  """entropy of the attention relative to uniform attention: 0: one token, 1: all tokens alike"""
  distance: float
  """mean distance to the attended token, in tokens, without special tokens"""

  @property
  def role(self) -> str:
    """The target with most of the attention; 'broad' for nearly uniform attention; else ''."""
    most = max(range(len(ATTENTION_TARGETS)), key=lambda place: self.shares[place])
    if self.shares[most] >= ROLE_SHARE:
      return ATTENTION_TARGETS[most]
    return 'broad' if self.spread >= 0.9 else ''


class AttentionMap(NamedTuple):
  """The attention of all heads on one sentence."""

  pieces: list[str]
  """its tokens"""
  attention: np.ndarray
  """attention probabilities [layers, heads, queries, keys]"""


def analyze_heads(
    trained: LoadedModel, sentences: Sequence[Sequence[str]], maps: int = 4,
) -> tuple[list[HeadStatistics], list[AttentionMap]]:
  """Compute the statistics of all heads on sentences, and keep the attention of the first `maps`.

  Raises:
    CheckpointError, ConfigError: as for `inference.token_features.iterate_attention`.
  """
  total, tokens, kept = None, 0, {}
  assert trained.tokenizer
  for row, found in token_features.iterate_attention(trained, sentences):
    sums = sum_statistics(found, row.starts[0], row.starts[-1])
    total = sums if total is None else total + sums
    tokens += int(row.starts[-1] - row.starts[0])
    if row.sentence < maps and row.words.start == 0:
      pieces = trained.tokenizer.pieces
      names = [pieces[token] if token < len(pieces) else f'<{token}>' for token in row.tokens]
      kept[row.sentence] = AttentionMap(names, found)
  if total is None:
    return [], []
  mean = total / tokens
  heads = []
  for layer in range(mean.shape[1]):
    for head in range(mean.shape[2]):
      *shares, spread, distance = mean[:, layer, head]
      shares = tuple(float(share) for share in shares)
      heads.append(HeadStatistics(layer + 1, head + 1, shares, spread, distance))
  return heads, [kept[number] for number in sorted(kept)]


def sum_statistics(attention: np.ndarray, begin: int, end: int) -> np.ndarray:
  """Sum the statistics of heads over the tokens `begin` to `end` of one row.

  Args:
    attention: attention probabilities [layers, heads, queries, keys].
    begin: first token of a word; tokens before it are special.
    end: end of the words; tokens from here on are special.

  Returns:
    Shares by `PLACES`, spread and distance [6, layers, heads].
  """
  size = attention.shape[-1]
  looked = attention[:, :, begin:end]
  away = np.arange(size)[None] - np.arange(begin, end)[:, None]
  special = np.ones(size, bool)
  special[begin:end] = False
  visible = (looked > 0).sum(-1)
  entropy = -(looked * np.log(np.maximum(looked, 1e-30))).sum(-1)
  inside = looked[..., begin:end]
  distance = (inside * np.abs(away[:, begin:end])).sum(-1) / np.maximum(inside.sum(-1), 1e-9)
  per_token = [
      looked[..., away == 0].reshape(looked.shape[:3]),
      (looked * ((away == -1) & ~special)).sum(-1),
      (looked * ((away == 1) & ~special)).sum(-1),
      looked[..., special].sum(-1),
      entropy / np.log(np.maximum(visible, 2)),
      distance]
  return np.stack([np.sum(values, -1) for values in per_token])
