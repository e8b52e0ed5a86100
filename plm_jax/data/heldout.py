"""Which documents are trained on and which are held out: by their text alone, whoever reads them and in whatever order.

So copies of a document stay together.
"""
from typing import NamedTuple

from plm_jax.data import encode, records


class Bounds(NamedTuple):
  """Two documents whose split does not depend on their hashes, so that neither split is empty; -1: not known yet."""

  lowest: int = -1  # hash of the document that is held out
  highest: int = -1  # hash of the document that is trained on


def settle(bounds: Bounds, unit: encode.Encoded, least: int) -> Bounds:
  """Settles the bounds: the highest and the lowest hash of the first unit of the source that has documents, of at least
  `least` sentences, to choose from."""
  if bounds.lowest >= 0:
    return bounds
  hashes = {text_hash for text_hash, size in zip(unit.hashes, unit.sentences, strict=True) if size >= least}
  highest = bounds.highest if bounds.highest >= 0 else max(hashes, default=-1)
  return Bounds(min(hashes - {highest}, default=-1), highest)


def choose_split(text_hash: int, share: float, bounds: Bounds) -> records.Split:
  """Chooses the split of a document by its hash; neither is empty when there are two documents to share out."""
  if not share or text_hash == bounds.highest:
    return 'train'
  return 'heldout' if text_hash == bounds.lowest or text_hash < share * 2**64 else 'train'
