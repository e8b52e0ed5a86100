"""Length bucketing: pad rows to few different lengths, because XLA compiles for each length."""
from collections.abc import Iterator, Sequence
import itertools

MANY_BATCHES = 40
"""Number of batches above which texts are padded to more lengths on a CPU."""
SEVERAL_BATCHES = 4
"""Number of batches above which short texts are padded to lengths below 16 on a CPU."""


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


def row_steps() -> int:
  """Return how many batch sizes per doubling are worth their compilation.

  Compiling takes a second for a CPU, and much longer for a TPU.
  """
  import jax
  return 2 if jax.default_backend() == 'cpu' else 1


def bucket_rows(number: int, largest: int, steps: int = 1) -> int:
  """Return the rows per batch for `number` rows in as few batches as possible.

  The batches are of one size, so that the last one has little padding. The size is a power of two,
  so that few programs are compiled.

  Args:
    number: number of rows.
    largest: maximum rows per batch.
    steps: sizes per doubling; 2: the sizes are 1, 2, 3, 4, 6, 8, 12, 16, ...
  """
  batches = -(-number // largest)
  return min(largest, round_up(-(-number // batches), steps))


def bucket_length(length: int, longest: int, steps: int = 2, shortest: int = 16) -> int:
  """Return the smallest of 16, 24, 32, 48, 64, 96, ... that holds `length`.

  Args:
    length: number of tokens.
    longest: upper limit; 0: none.
    steps: lengths per doubling; they are multiples of half of `shortest`.
    shortest: lower limit.
  """
  size = max(shortest, round_up(length, steps, shortest // 2))
  return min(size, longest) if longest else size


def round_up(number: int, steps: int, unit: int = 1) -> int:
  """Round a number up to one of `steps` numbers per doubling, all of them multiples of `unit`."""
  unit = max(unit, next_power_of_two(number) // (2 * steps))
  return -(-number // unit) * unit


def round_down(number: int, steps: int) -> int:
  """Round a number down to one of `steps` numbers per doubling."""
  unit = max(1, next_power_of_two(number + 1) // (2 * steps))
  return number // unit * unit


def split_by_length(
    sizes: Sequence[int], longest: int, room: int, devices: int = 1, steps: int = 1,
    token_pairs: int = 0,
) -> Iterator[tuple[int, int, list[int]]]:
  """Split rows into batches of similar length, longest first.

  The rows are sorted by length, and each batch takes as many as it has room for. Only the last one
  has fewer, and a smaller size (`bucket_rows`). So there is little padding, and all other batches
  of one length have one shape, which is compiled once.

  Args:
    sizes: tokens of each row.
    longest: maximum length of the model; 0: none.
    room: tokens per device and batch, including padding.
    devices: number of devices that share a batch.
    steps: batch sizes per doubling.
    token_pairs: maximum rows times length squared per device and batch; 0: no limit.

  Yields:
    (length, rows of the batch, numbers of its rows; in the last batch there may be fewer).
  """
  import jax
  order = sorted(range(len(sizes)), key=lambda number: -sizes[number])
  # In many batches, more lengths are worth their compilation.
  length_steps = 2 * row_steps() if sum(sizes) > MANY_BATCHES * room else 2
  # Sentences of ten tokens are common; a call of few texts is not worth more programs.
  shortest = 8 if jax.default_backend() == 'cpu' and sum(sizes) > SEVERAL_BATCHES * room else 16
  while order:
    length = bucket_length(sizes[order[0]], longest, length_steps, shortest)
    largest = min(room // length, token_pairs // length ** 2) if token_pairs else room // length
    rows = devices * round_down(max(1, largest), steps)
    if len(order) < rows:
      rows = devices * bucket_rows(-(-len(order) // devices), rows // devices, steps)
    yield length, rows, order[:rows]
    order = order[rows:]


def next_power_of_two(number: int) -> int:
  """Return the smallest power of two that is at least `number`."""
  return 1 << (number - 1).bit_length()
