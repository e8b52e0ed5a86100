"""Batches of labeled examples: shuffling, length bucketing and sequence packing.

A batch is a pure function of (seed, step). An epoch visits every feature, or every group of them,
once, in its own order; its last batch has the rest. Rows are as long as the longest of the batch
needs, in a few distinct lengths, so that few programs are compiled.

Packed rows hold several examples, one segment each, which do not attend to each other: the same
losses in fewer rows. Packing does not change which examples are in a batch.
"""
from collections.abc import Iterable, Iterator
import dataclasses
import functools
from typing import Any, NamedTuple, TypeVar

import numpy as np

from plm_jax.data.bucketing import bucket_length
from plm_jax.data.window_rules import concat_ranges
from plm_jax.tasks.features import Features, Ragged

T = TypeVar('T')
SORT_WINDOW = 64
"""batches whose examples are sorted by length together"""
MIN_PACKED_TOKENS = 8
"""mean tokens per example of a packed row with the maximum number of slots"""
POSITION_VALUES = ('stand', 'start', 'end')  # values that are positions in a row
PER_ROW_ARRAYS = ('tokens', 'segments', 'types', 'extract', 'guide', 'scored')  # of a group


class Placement(NamedTuple):
  """Where the features of a batch are: feature number, row, slot and first position, each [n]."""

  number: np.ndarray
  row: np.ndarray
  slot: np.ndarray
  first: np.ndarray


@dataclasses.dataclass(frozen=True)
class BatchShape:
  """The layout of the rows of a batch."""

  batch: int
  """examples, or groups, per batch"""
  length: int
  """maximum tokens per row"""
  row_multiple: int = 1
  """the number of rows is a multiple of this: devices times gradient accumulation steps"""
  pad: int = 0
  """id of padding"""
  pack: bool = False
  """whether several examples share a row (sequence packing)"""


@dataclasses.dataclass(frozen=True, eq=False)
class FeatureBatches:
  """The batches of features, epoch after epoch."""

  features: Features
  shape: BatchShape
  seed: int = 0
  by_length: bool = False
  """whether batches hold examples of similar length: less padding, a less random order"""

  @property
  def units(self) -> int:
    """Number of features, or of groups of them."""
    return len(self.features) // self.features.group

  @property
  def steps(self) -> int:
    """Batches per epoch."""
    return -(-self.units // self.shape.batch)

  def order(self, epoch: int) -> np.ndarray:
    """Return the units of each batch of an epoch [steps, batch], -1 where there are no more."""
    sizes = self.sizes if self.by_length else None
    return shuffle_units(self.units, self.shape.batch, self.seed, epoch, sizes)

  @functools.cached_property
  def sizes(self) -> np.ndarray:
    """Tokens of each unit; of a group, its longest row."""
    return self.features.tokens.lengths.reshape(-1, self.features.group).max(1)

  def batch(self, step: int) -> tuple[dict[str, np.ndarray], Placement]:
    """Make the batch of a step of the run."""
    epoch, number = divmod(step, self.steps)
    units = self.cached_order(epoch)[number]
    return self.make_epoch_batch(units[units >= 0], epoch)

  def make_epoch_batch(
      self, units: np.ndarray, epoch: int) -> tuple[dict[str, np.ndarray], Placement]:
    """Make the batch of these units as they are in an epoch; here, equal in all epochs."""
    return self.lay_out(units)

  @functools.lru_cache(maxsize=2)  # noqa: B019  as long as the run
  def cached_order(self, epoch: int) -> np.ndarray:
    """Return the order of an epoch; the last two are cached."""
    return self.order(epoch)

  def iterate_sorted(self) -> Iterator[tuple[dict[str, np.ndarray], Placement]]:
    """Yield batches of every unit once, sorted by length."""
    units = np.argsort(self.sizes, kind='stable')
    for start in range(0, len(units), self.shape.batch):
      yield self.lay_out(units[start:start + self.shape.batch])

  def lay_out(self, units: np.ndarray) -> tuple[dict[str, np.ndarray], Placement]:
    """Lay out units [n] as a batch of numpy arrays; see `contract.Task` for the arrays."""
    features, shape = self.features, self.shape
    group = features.group
    numbers = (np.asarray(units)[:, None] * group + np.arange(group)).ravel()
    sizes = features.tokens.lengths[numbers]

    # Place features in rows and slots.
    if shape.pack:
      placement, rows, slots = pack_rows(numbers, sizes, shape)
      length = shape.length
    else:
      rows, slots = -(-shape.batch // shape.row_multiple) * shape.row_multiple * group, 1
      zeros = np.zeros(len(numbers), np.int64)
      placement = Placement(numbers, np.arange(len(numbers)), zeros, zeros)
      length = bucket_length(int(sizes.max(initial=1)), shape.length)
    starts = placement.row * length + placement.first
    positions = concat_ranges(starts, starts + sizes)[1]

    # Arrays [rows, length].
    def lay_tokens(ragged: Ragged, empty: int = 0) -> np.ndarray:
      entry_shape = ragged.flat.shape[1:]
      out = np.full((rows * length,) + entry_shape, empty, ragged.flat.dtype)
      source = concat_ranges(ragged.offsets[numbers], ragged.offsets[numbers + 1])[1]
      out[positions] = ragged.flat[source]
      return out.reshape((rows, length) + entry_shape)
    segments = np.zeros(rows * length, np.int32)
    segments[positions] = np.repeat(placement.slot + 1, sizes).astype(np.int32)
    batch = {'tokens': lay_tokens(features.tokens, shape.pad),
             'segments': segments.reshape(rows, length)}
    for name, ragged in features.aligned.items():
      batch[name] = lay_tokens(ragged)

    # Arrays [rows, slots].
    def lay_slots(values: np.ndarray) -> np.ndarray:
      out = np.zeros((rows, slots) + values.shape[1:], values.dtype)
      out[placement.row, placement.slot] = values
      return out
    for name, values in features.values.items():
      own = values[numbers]
      if name in POSITION_VALUES:
        own = own + placement.first.astype(values.dtype)
      batch['extract' if name == 'stand' else name] = lay_slots(own)
    if 'weight' not in batch:
      batch['weight'] = lay_slots(np.ones(len(numbers), np.float32))

    # Groups: the labels of a group are stored with each of its rows; the first has them all.
    if group > 1:
      for name, array in batch.items():
        array = array.reshape((rows // group, group) + array.shape[1:])
        batch[name] = array if name in PER_ROW_ARRAYS else array[:, 0]
    return batch, placement


def shuffle_units(
    units: int, batch: int, seed: int, epoch: int, sizes: np.ndarray | None = None) -> np.ndarray:
  """Shuffle units for an epoch -> [steps, batch], -1 where there are no more.

  Args:
    units: number of units.
    batch: units per batch.
    seed: of the run.
    epoch: number of the epoch.
    sizes: [units]; if given, a batch holds units of similar size among those that are close in the
      shuffled order, and batches are shuffled afterwards (length bucketing).
  """
  rng = np.random.default_rng((seed, epoch))
  order, steps = rng.permutation(units), -(-units // batch)
  if sizes is not None:
    span = SORT_WINDOW * batch
    windows = np.split(order, range(span, units, span))
    order = np.concatenate([some[np.argsort(sizes[some], kind='stable')] for some in windows])
  order = np.concatenate([order, np.full(steps * batch - units, -1)]).reshape(steps, batch)
  if sizes is not None:
    full = units // batch
    order[:full] = order[rng.permutation(full)]
  return order


def pack_rows(
    numbers: np.ndarray, sizes: np.ndarray, shape: BatchShape) -> tuple[Placement, int, int]:
  """Pack features into rows, first-fit decreasing -> (placement, rows, slots per row).

  The number of rows takes few values, so that few programs are compiled.

  Args:
    numbers: of the features [n].
    sizes: their tokens [n].
    shape: of the batch.
  """
  slots = max(1, shape.length // MIN_PACKED_TOKENS)
  filled: list[int] = []  # tokens per row
  counts: list[int] = []  # features per row
  row, slot, first = np.zeros((3, len(numbers)), np.int64)
  for at in np.argsort(-sizes, kind='stable'):
    size = int(sizes[at])
    free = 0
    while free < len(filled) and (filled[free] + size > shape.length or counts[free] == slots):
      free += 1
    if free == len(filled):
      filled.append(0)
      counts.append(0)
    row[at], slot[at], first[at] = free, counts[free], filled[free]
    filled[free] += size
    counts[free] += 1
  rows = round_up_rows(-(-len(filled) // shape.row_multiple)) * shape.row_multiple
  return Placement(numbers, row, slot, first), rows, slots


def round_up_rows(number: int) -> int:
  """Return the smallest of 1, 2, 3, 4, 6, 8, 12, 16, ... that is not below `number`."""
  power = 1 << (max(1, number) - 1).bit_length()
  between = power * 3 // 4
  return between if power > 2 and number <= between else power


def delay_items(items: Iterable[T]) -> Iterator[T]:
  """Yield each item after the next one is made: a device computes one while another is fetched."""
  pending: list[T] = []
  for item in items:
    pending.append(item)
    if len(pending) > 1:
      yield pending.pop(0)
  yield from pending


def gather_outputs(
    outputs: Any, placement: Placement, sizes: np.ndarray, per: str) -> list[np.ndarray]:
  """Gather the head's outputs of each feature from the outputs of a batch.

  Args:
    outputs: 'slot': [B, E, ...]; 'token': [B, L, ...]; 'row': [B, C, ...] of groups of C features.
    placement: of the batch.
    sizes: tokens of each feature.
    per: unit of the outputs: slot, token or row.
  """
  if per == 'slot':
    return list(outputs[placement.row, placement.slot])
  if per == 'row':
    return list(outputs.reshape((-1,) + outputs.shape[2:])[placement.row])
  spans = zip(placement.row, placement.first, sizes, strict=True)
  return [outputs[row, first:first + size] for row, first, size in spans]
