"""Rows of many lengths, brought to few: what is compiled is compiled for each length."""
from collections.abc import Sequence
import itertools


def by_length(sizes: Sequence[int], longest: int, room: int) -> dict[int, list[int]]:
  """Groups rows by the length that they are padded to.

  Args:
    sizes: tokens of each row
    longest: tokens that the model reads; 0: any number
    room: tokens of a call, padding included; rows that do not fill one are padded to the next length instead, which
      costs less than another compilation

  Returns:
    {length: numbers of the rows}, lengths as `bucket` gives them.
  """
  groups: dict[int, list[int]] = {}
  for number, size in enumerate(sizes):
    groups.setdefault(bucket(size, longest), []).append(number)
  for length, larger in itertools.pairwise(sorted(groups)):
    if len(groups[length]) * length < room:
      groups[larger] += groups.pop(length)
  return groups


def bucket(length: int, longest: int) -> int:
  """Finds the smallest of 16, 24, 32, 48, 64, 96, ... that holds `length`; `longest` at most, where there is one."""
  power = max(16, doubled(length))
  size = power * 3 // 4 if power > 16 and length <= power * 3 // 4 else power
  return min(size, longest) if longest else size


def doubled(number: int) -> int:
  """Finds the smallest power of two that is no less than `number`."""
  return 1 << (number - 1).bit_length()
