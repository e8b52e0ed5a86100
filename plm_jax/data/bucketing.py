"""Length bucketing: pad rows to few different lengths, because XLA compiles for each length."""
from collections.abc import Iterator, Sequence
import itertools


def group_by_length(sizes: Sequence[int], longest: int, room: int) -> dict[int, list[int]]:
  """Group rows by the length that they are padded to.

  Args:
    sizes: tokens of each row.
    longest: maximum length of the model; 0: none.
    room: tokens per call, including padding. Rows that do not fill a call are padded to the next
      length instead, which costs less than another compilation.

  Returns:
    {length: numbers of the rows}, with lengths of `bucket_length`.
  """
  groups: dict[int, list[int]] = {}
  for number, size in enumerate(sizes):
    groups.setdefault(bucket_length(size, longest), []).append(number)
  for length, larger in itertools.pairwise(sorted(groups)):
    if len(groups[length]) * length < room:
      groups[larger] += groups.pop(length)
  return groups


def bucket_length(length: int, longest: int) -> int:
  """Return the smallest of 16, 24, 32, 48, 64, 96, ... that holds `length`.

  longest: upper limit; 0: none.
  """
  size = max(16, next_power_of_two(length))
  if size > 16 and length <= size * 3 // 4:
    size = size * 3 // 4
  return min(size, longest) if longest else size


def split_by_length(
    sizes: Sequence[int], longest: int, room: int) -> Iterator[tuple[int, int, list[int]]]:
  """Split rows into batches of similar length, shortest first.

  All batches of one length have the same number of rows, a power of two, so that few programs are
  compiled.

  Args:
    sizes: tokens of each row.
    longest: maximum length of the model; 0: none.
    room: tokens per batch, including padding, as in `group_by_length`.

  Yields:
    (length, rows of the batch, numbers of its rows; in the last batch of a length fewer).
  """
  for length, numbers in sorted(group_by_length(sizes, longest, room).items()):
    largest = next_power_of_two(max(1, room // length) + 1) // 2
    rows = min(largest, next_power_of_two(len(numbers)))
    for first in range(0, len(numbers), rows):
      yield length, rows, numbers[first:first + rows]


def next_power_of_two(number: int) -> int:
  """Return the smallest power of two that is at least `number`."""
  return 1 << (number - 1).bit_length()
