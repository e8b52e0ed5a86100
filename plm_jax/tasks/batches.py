"""How features become batches: which of them, in which order, in which rows.

A batch is a pure function of (seed, step). An epoch asks each feature, or each group of them, once, in an order of its
own; its last batch has what is left. Rows are as long as the longest of the batch needs, in a few lengths, so that few
programs are compiled.

Packed rows hold several examples, a segment each, which do not see each other: the same losses in fewer rows. Which
examples are in a batch is the same, packed or not.
"""
from collections.abc import Iterator
import dataclasses
import functools
from typing import Any, NamedTuple

import numpy as np

from plm_jax.data.cutting import ranges
from plm_jax.inference.batches import bucket
from plm_jax.tasks.examples import Features, Ragged

NEIGHBOURS = 64
"""batches whose examples are sorted by length together"""
SHORTEST = 8
"""tokens of an example in a packed row, on average, where a row has the most slots"""


class Placed(NamedTuple):
  """Where the features of a batch lie: number, row, slot and first place of each [n]."""

  number: np.ndarray
  row: np.ndarray
  slot: np.ndarray
  first: np.ndarray


@dataclasses.dataclass(frozen=True)
class Shape:
  """How rows are laid out."""

  batch: int
  """examples, or groups, in a batch"""
  length: int
  """tokens of the longest row"""
  multiple: int = 1
  """rows come in multiples of this: devices, times micro-steps"""
  pad: int = 0
  """id of padding"""
  pack: bool = False
  """several examples share a row"""


@dataclasses.dataclass(frozen=True, eq=False)
class Batches:
  """The batches of features, epoch after epoch."""

  features: Features
  shape: Shape
  seed: int = 0
  by_length: bool = False
  """examples of like length come together: less padding, an order that is less random"""

  @property
  def units(self) -> int:
    """What is asked one by one: features, or groups of them."""
    return len(self.features) // self.features.group

  @property
  def steps(self) -> int:
    """Batches in an epoch."""
    return -(-self.units // self.shape.batch)

  def order(self, epoch: int) -> np.ndarray:
    """Returns the units of each batch of an epoch [steps, batch], -1 where the last has no more."""
    return order(self.units, self.shape.batch, self.seed, epoch, self.sizes if self.by_length else None)

  @functools.cached_property
  def sizes(self) -> np.ndarray:
    """Tokens of each unit, of a group the longest of its rows."""
    return self.features.tokens.lengths.reshape(-1, self.features.group).max(1)

  def batch(self, step: int) -> tuple[dict[str, np.ndarray], Placed]:
    """Makes the batch of a step of the run."""
    epoch, number = divmod(step, self.steps)
    units = self.kept(epoch)[number]
    return self.of_epoch(units[units >= 0], epoch)

  def of_epoch(self, units: np.ndarray, epoch: int) -> tuple[dict[str, np.ndarray], Placed]:
    """Makes the batch of units as they are in an epoch: the same in all."""
    del epoch
    return self.read(units)

  @functools.lru_cache(maxsize=2)  # noqa: B019  as long as the run
  def kept(self, epoch: int) -> np.ndarray:
    """Keeps the orders of two epochs."""
    return self.order(epoch)

  def once(self) -> Iterator[tuple[dict[str, np.ndarray], Placed]]:
    """Yields every unit once, those of like length together."""
    units = np.argsort(self.sizes, kind='stable')
    for start in range(0, len(units), self.shape.batch):
      yield self.read(units[start:start + self.shape.batch])

  def read(self, units: np.ndarray) -> tuple[dict[str, np.ndarray], Placed]:
    """Lays out units [n] as a batch of numpy arrays: see `contract.Task`."""
    features, shape = self.features, self.shape
    group = features.group
    numbers = (np.asarray(units)[:, None] * group + np.arange(group)).ravel()
    sizes = features.tokens.lengths[numbers]
    if shape.pack:
      placed, rows, slots = packed(numbers, sizes, shape)
      length = shape.length
    else:
      rows, slots = -(-shape.batch // shape.multiple) * shape.multiple * group, 1
      zero = np.zeros(len(numbers), np.int64)
      placed = Placed(numbers, np.arange(len(numbers)), zero, zero)
      length = bucket(int(sizes.max(initial=1)), shape.length)
    places = ranges(placed.row * length + placed.first, placed.row * length + placed.first + sizes)[1]
    def laid(of: Ragged, empty: int = 0) -> np.ndarray:
      out = np.full((rows * length, *of.flat.shape[1:]), empty, of.flat.dtype)
      out[places] = of.flat[ranges(of.offsets[numbers], of.offsets[numbers + 1])[1]]
      return out.reshape(rows, length, *of.flat.shape[1:])
    segments = np.zeros(rows * length, np.int32)
    segments[places] = np.repeat(placed.slot + 1, sizes).astype(np.int32)
    batch = {'tokens': laid(features.tokens, shape.pad), 'segments': segments.reshape(rows, length),
             **{name: laid(of) for name, of in features.aligned.items()}}
    def in_slots(values: np.ndarray) -> np.ndarray:
      out = np.zeros((rows, slots, *values.shape[1:]), values.dtype)
      out[placed.row, placed.slot] = values
      return out
    for name, values in features.values.items():
      moved = placed.first.astype(values.dtype) if name in PLACES else 0
      batch['extract' if name == 'stand' else name] = in_slots(values[numbers] + moved)
    batch['weight'] = batch.get('weight', in_slots(np.ones(len(numbers), np.float32)))
    if group > 1:
      batch = {name: x.reshape(rows // group, group, *x.shape[1:]) for name, x in batch.items()}
      # Of the answer to a group each of its rows tells.
      batch = {name: x if name in GROUPED else x[:, 0] for name, x in batch.items()}
    return batch, placed


PLACES = ('stand', 'start', 'end')  # values that are places in a row
GROUPED = ('tokens', 'segments', 'types', 'extract')  # arrays that each row of a group has of its own


def order(units: int, batch: int, seed: int, epoch: int, sizes: np.ndarray | None = None) -> np.ndarray:
  """Shuffles units for an epoch -> [steps, batch], -1 where there are no more.

  sizes [units]: units of like size stand in one batch, of those that are neighbours in the shuffled order; batches
  are shuffled then.
  """
  draw = np.random.default_rng((seed, epoch))
  found, steps = draw.permutation(units), -(-units // batch)
  if sizes is not None:
    span = NEIGHBOURS * batch
    found = np.concatenate([some[np.argsort(sizes[some], kind='stable')]
                            for some in np.split(found, range(span, units, span))])
  found = np.concatenate([found, np.full(steps * batch - units, -1)]).reshape(steps, batch)
  if sizes is not None:
    full = units // batch
    found[:full] = found[draw.permutation(full)]
  return found


def packed(numbers: np.ndarray, sizes: np.ndarray, shape: Shape) -> tuple[Placed, int, int]:
  """Puts features of so many tokens into rows, the longest first, each into the first row that has room -> where each
  lies, rows, slots of a row. Rows come in few numbers, so that few programs are compiled."""
  slots = max(1, shape.length // SHORTEST)
  filled: list[int] = []
  counts: list[int] = []
  row, slot, first = np.zeros((3, len(numbers)), np.int64)
  for at in np.argsort(-sizes, kind='stable'):
    size = int(sizes[at])
    free = next((n for n, used in enumerate(filled) if used + size <= shape.length and counts[n] < slots), None)
    if free is None:
      free = len(filled)
      filled.append(0)
      counts.append(0)
    row[at], slot[at], first[at] = free, counts[free], filled[free]
    filled[free] += size
    counts[free] += 1
  return Placed(numbers, row, slot, first), few(-(-len(filled) // shape.multiple)) * shape.multiple, slots


def few(number: int) -> int:
  """Finds the smallest of 1, 2, 3, 4, 6, 8, 12, 16, ... that is no less than `number`."""
  power = 1 << (max(1, number) - 1).bit_length()
  return power * 3 // 4 if power > 2 and number <= power * 3 // 4 else power


def gathered(outputs: Any, placed: Placed, sizes: np.ndarray, per: str) -> list[np.ndarray]:
  """Takes what a head gave for each feature out of a batch's outputs.

  per: slot, of [B, E, ...]; token, of [B, L, ...], `sizes` tokens each; row, of [B, C, ...] of groups of C features,
  each what is its own.
  """
  if per == 'slot':
    return list(outputs[placed.row, placed.slot])
  if per == 'row':
    return list(outputs.reshape(-1, *outputs.shape[2:])[placed.row])
  return [outputs[row, first:first + size] for row, first, size in zip(placed.row, placed.first, sizes, strict=True)]
