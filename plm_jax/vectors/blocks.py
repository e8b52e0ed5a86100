"""From sentences to blocks of words: what word2vec's loops do word by word, done for many at once, on the host.

A block has T words that are predicted (or predict) and W more on either side, W the window: every word stands in the
middle of exactly one block, with all its neighbours, and no pair is lost at an edge.
"""
import dataclasses

import numpy as np

from plm_jax.vectors.corpus import Sentences


@dataclasses.dataclass(frozen=True)
class Shape:
  """Of what a small batch holds."""

  blocks: int
  words: int  # in the middle of a block
  window: int
  drawn: bool = True  # the window of each word; otherwise all are whole

  @property
  def wide(self) -> int:
    """Counts the words of a block with those on either side."""
    return self.words + 2 * self.window

  @property
  def size(self) -> int:
    """Counts the words in the middle of all blocks."""
    return self.blocks * self.words


@dataclasses.dataclass(frozen=True)
class Blocks:
  """Blocks of a part of a text: `count` small batches of them, and room for as many as the part may need."""

  ids: np.ndarray  # int32 [S, B, T + 2 W]
  left: np.ndarray  # uint8 [S, B, T], neighbours on the left of each word in the middle
  right: np.ndarray  # uint8 [S, B, T]
  count: int


def cut(sentences: Sentences, shape: Shape, keep: np.ndarray, random: np.random.Generator, room: int) -> Blocks:
  """Subsamples sentences, draws a window for each word, and cuts blocks.

  keep [V]: probability that an occurrence stays, before windows are drawn, so that what goes away brings others near
  (word2vec.c, fastText). A window is drawn uniformly from 1 to W for each word (word2vec.c's `b`), and ends with the
  sentence. room: small batches that there is room for.
  """
  ids = sentences.ids
  number = np.repeat(np.arange(len(sentences.starts) - 1), sentences.lengths)
  kept = random.random(len(ids), np.float32) < keep.astype(np.float32)[ids]
  ids, number = ids[kept], number[kept]
  place = np.arange(len(ids))
  first = np.searchsorted(number, np.arange(len(sentences.starts)))  # of each sentence, and the end
  reach = random.integers(1 if shape.drawn else shape.window, shape.window + 1, len(ids))
  left = np.minimum(reach, place - first[number])
  right = np.minimum(reach, first[number + 1] - 1 - place)
  count = -(-len(ids) // shape.size)
  padded = np.zeros(room * shape.size + 2 * shape.window, np.int32)
  padded[shape.window:shape.window + len(ids)] = ids
  middles = np.zeros((2, room * shape.size), np.uint8)
  middles[0, :len(ids)], middles[1, :len(ids)] = left, right
  wide = np.lib.stride_tricks.sliding_window_view(padded, shape.wide)[::shape.words]
  grid = room, shape.blocks
  return Blocks(np.ascontiguousarray(wide).reshape(*grid, shape.wide), middles[0].reshape(*grid, shape.words),
                middles[1].reshape(*grid, shape.words), count)
