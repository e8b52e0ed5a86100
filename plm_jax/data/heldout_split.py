"""The held-out split: documents are assigned to it by a hash of their text alone.

So the split does not depend on the order of reading, and copies of a document stay together.
"""
from typing import NamedTuple

from plm_jax.data import encode, records


class SplitBounds(NamedTuple):
  """Two documents with a fixed split, so that neither split is empty; -1: not known yet."""

  lowest: int = -1  # hash of the document that is held out
  highest: int = -1  # hash of the document that is trained on


def update_bounds(bounds: SplitBounds, unit: encode.EncodedUnit, min_sentences: int) -> SplitBounds:
  """Fix the bounds: the highest and the lowest hash of the first unit with enough documents.

  Only documents of at least `min_sentences` sentences count.
  """
  if bounds.lowest >= 0:
    return bounds
  hashes = set()
  for text_hash, size in zip(unit.hashes, unit.sentences, strict=True):
    if size >= min_sentences:
      hashes.add(text_hash)
  highest = bounds.highest if bounds.highest >= 0 else max(hashes, default=-1)
  return SplitBounds(min(hashes - {highest}, default=-1), highest)


def choose_split(text_hash: int, share: float, bounds: SplitBounds) -> records.Split:
  """Return the split of a document by its hash. share: of documents to hold out, from 0 to 1."""
  if not share or text_hash == bounds.highest:
    return 'train'
  if text_hash == bounds.lowest or text_hash < share * 2**64:
    return 'heldout'
  return 'train'
