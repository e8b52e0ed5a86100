"""The data pipeline: the windows of each batch, data mixtures, and reading batches ahead.

A batch is a pure function of (seed, step). No iterator has state, and seeking to a step is
arithmetic. A host that reads only its own rows gets exactly those rows of the global batch, however
many hosts share it.

Reading order. The W windows of a corpus are read in blocks of K neighbors, because a disk or a
bucket reads neighbors at the price of one. A row of the batch reads one block during K steps, one
window per step, then continues with another block. The blocks come in a pseudo-random order that is
new in every epoch, and are dealt out to the rows like cards. The windows inside a block are
shuffled, too. With B rows, the t-th window of row b is

    g      = (t // K) * B + b                  the g-th block that is dealt out
    epoch  = g // (W // K)
    block  = permutation(g % (W // K))         keyed by (seed, corpus, epoch)
    offset = permutation(t % K)                keyed by (seed, corpus, epoch, block)
    window = (block * K + offset + shift) % W  shift keyed by (seed, corpus, epoch)

Phases. Position p of the order is time t = p // B of row b = p % B, and a batch of n rows takes the
next n positions. Training phases that divide the text into windows in the same way share one order:
each phase starts at the position where the previous one stopped. In that case B
(`order_batch_size`) is the largest of their batch sizes. With a single batch size, row b of the
batch of step t is row b at time t. A phase with another data mixture starts at its own position 0,
and in row b at the window of each corpus where the phases before have stopped: t is then the sum of
the windows of this corpus that row b had in each mixture.

K = 1 is a perfect shuffle: every window is read once per epoch. For K > 1 an epoch leaves out the
W % K windows that fill no block; the shift changes which ones in every epoch. K is at most W // 4B,
so that all rows find several blocks per epoch of a small corpus, too, and at most W // 4096: during
K steps the windows of all batches are from B blocks, which would be much of a small corpus.

Data mixtures are in `mixtures`.
"""
import atexit
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
import contextlib
import copy
import dataclasses
import functools
import itertools
import math
import os
import weakref

from etils import epath
import numpy as np

from plm_jax.data.mixtures import MixtureSchedule, MixtureShares
from plm_jax.data.records import RecordsError
from plm_jax.data.window_rules import WindowRule
from plm_jax.data.windows import Batch, Windows
from plm_jax.storage.digests import HASH_FACTOR, mix_bits

REVERSED_FIELDS = 'tokens', 'segments', 'index'  # that are also read from the end of the text
READ_BYTES = 64 << 20  # of decoded windows, at most, per read of the stream (but at least one step)
READ_STEPS = 16  # at least, as far as READ_BYTES allows: each read takes a millisecond by itself
READERS = 2  # concurrent reads: one more than is in use hides the latency
LAST_STEP = int(np.iinfo(np.int64).max)  # of a stream without an end
MIN_BLOCKS = 1 << 12  # per epoch, unless windows are in the order of the text
FEISTEL_ROUNDS = 6  # pairs of an addition to the left and to the right half


def open_pipeline(
    folders: Sequence[epath.PathLike],
    rule: WindowRule | Sequence[WindowRule] = WindowRule('document', 128), batch: int = 256,
    seed: int = 0, block: int = 64, shares: MixtureShares = MixtureShares(),
    vocab_hash: str | None = None, order_batch_size: int = 0, epoch: int = 0) -> 'Pipeline':
  """Open the training splits of the records in `folders` as one data mixture.

  Args:
    folders: folders of token records, one per corpus.
    rule: how text is divided into windows; or one rule per folder.
    batch: batch size, in rows.
    seed: of the reading order.
    block: K in windows, see the head of this module.
    shares: of the corpora in the mixture.
    vocab_hash: hash of the tokenizer that the records must have; None: that of the first folder.
    order_batch_size: see `Pipeline`.
    epoch: see `Pipeline`.

  Raises:
    RecordsError: records cannot be read, or have another tokenizer.
  """
  if not folders:
    raise ValueError('a pipeline needs at least one folder of records')
  rules = [rule] * len(folders) if isinstance(rule, WindowRule) else rule
  corpora = [
      Windows(folder, 'train', rule.length, rule.assembly, rule.target_tokens, rule.separators)
      for folder, rule in zip(folders, rules, strict=True)]
  if vocab_hash is not None:
    expected, owner = vocab_hash, 'this run'
  else:
    expected, owner = corpora[0].meta.tokenizer, folders[0]
  for corpus in corpora:
    if corpus.meta.tokenizer != expected:
      raise RecordsError(
          f'the records in {corpus.folder} were made with the tokenizer {corpus.meta.tokenizer}, '
          f'but that of {owner} is {expected}. Use the tokenizer in {corpus.folder / "tokenizer"}, '
          'or prepare the records again.')
  weights = shares.compute_weights(corpora)
  return Pipeline(corpora, weights, batch, seed, block, order_batch_size=order_batch_size,
                  epoch=epoch)


class Pipeline:
  """Batches of windows from one corpus or a data mixture: `batch` reads one, `stream` many."""

  def __init__(
      self, corpora: Sequence[Windows], weights: Sequence[float] | None = None, batch: int = 256,
      seed: int = 0, block: int = 64, ordered: bool = False, order_batch_size: int = 0,
      epoch: int = 0):
    """Make the reading order of the corpora.

    Args:
      corpora: windows of each corpus.
      weights: of the corpora in the mixture; None: in proportion to their numbers of windows.
      batch: batch size, in rows.
      seed: of the reading order.
      block: K in windows, see the head of this module.
      ordered: keep the windows of a block in the order of the text, one per step. Every batch then
        has the window of the same block in the opposite order, too, as `behind_NAME`, for models
        that read in both directions.
      order_batch_size: B, the number of rows that blocks are dealt to; 0: the batch size.
      epoch: number of the first epoch, which changes the masks and not the order.
    """
    if batch < 1 or block < 1:
      raise ValueError(f'batch and block are at least 1, not {batch} and {block}')
    self.corpora = tuple(corpora)
    self.size, self.order_batch_size = batch, order_batch_size or batch
    self.start, self.epoch = 0, epoch
    # Windows of each corpus that each row has had in other mixtures, [corpora, B].
    self.earlier = np.zeros((len(corpora), self.order_batch_size), np.int64)
    self.length, self.ordered = corpora[0].length, ordered
    sizes, rows = list(map(len, corpora)), self.order_batch_size
    self.schedule = MixtureSchedule.from_weights(sizes if weights is None else weights, len(sizes))
    blocks = [choose_block_size(size, rows, block, ordered) for size in sizes]
    self.orders = tuple(ReadingOrder(size, rows, length, seed, number, ordered)
                        for number, (size, length) in enumerate(zip(sizes, blocks, strict=True)))

  def with_batch_size(self, batch: int, start: int) -> 'Pipeline':
    """Return a pipeline with the same order and another batch size, from position `start`."""
    other = copy.copy(self)
    other.size, other.start = batch, start
    return other

  def with_mixture(self, schedule: MixtureSchedule, earlier: np.ndarray) -> 'Pipeline':
    """Return a pipeline with the same orders of the corpora in another data mixture.

    Args:
      schedule: of the mixture.
      earlier: windows of each corpus that each row has had in other mixtures, [corpora, B].
    """
    other = copy.copy(self)
    other.schedule, other.earlier = schedule, earlier
    return other

  def count_windows(self, steps: int) -> np.ndarray:
    """Count the windows of each corpus that each row has in the first steps, [corpora, B]."""
    corpus, row = np.arange(len(self.corpora))[:, None], np.arange(self.order_batch_size)

    def count(position: int) -> np.ndarray:
      time, full = divmod(position, self.order_batch_size)
      return self.schedule.count(corpus, time + (row < full) + row)

    return count(self.start + steps * self.size) - count(self.start)

  def batch(self, step: int, rows: slice | None = None) -> Batch:
    """Read `rows` (None: all) of the batch of `step` -> arrays as in `windows`, [rows, ...]."""
    return {name: array[0] for name, array in self.read(step, step + 1, rows).items()}

  def read(self, start: int, stop: int, rows: slice | None = None) -> Batch:
    """Read the batches of the steps from start to stop (exclusive) -> [steps, rows, ...]."""
    steps, own = np.arange(start, stop), np.arange(self.size)[rows or slice(None)]
    positions = self.start + steps[:, None] * self.size + own
    component, time, row = self.locate(positions.ravel())
    result: Batch = {}
    for number in np.unique(component):
      mine = component == number
      part = self._read_corpus(number, time[mine], row[mine])
      if mine.all():
        result = part
        break
      for name, array in part.items():
        if name not in result:
          result[name] = np.empty((len(row), *array.shape[1:]), np.int32)
        result[name][mine] = array
    shape = len(steps), len(own)
    return {name: array.reshape(*shape, *array.shape[1:]) for name, array in result.items()}

  def _read_corpus(self, number: int, time: np.ndarray, row: np.ndarray) -> Batch:
    """Read the windows of one corpus at time [N] of row [N]."""
    corpus, order = self.corpora[number], self.orders[number]
    index, epoch = order(time, row)
    part = corpus.read(index, self.epoch + epoch, corpus=number)
    if self.ordered:
      place = time % order.block
      opposite = time - place + order.block - 1 - place
      part |= read_reversed(corpus, order(opposite, row)[0])
    return part

  def locate(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the corpus, time t and row b, [N] each, of positions [N] of the reading order."""
    step, row = np.divmod(position, self.order_batch_size)
    component, time = self.schedule(step, row)
    return component, time + self.earlier[component, row], row

  def stream(self, start_step: int = 0, stop_step: int | None = None, rows: slice | None = None
             ) -> Iterator[Batch]:
    """Yield `batch(step, rows)` for each step from `start_step`, prefetched.

    Several steps are read together, because the windows of a block are neighbors on disk. Reading
    uses tf.data where TensorFlow is installed, otherwise threads: the batches are the same. Errors
    of reading are raised here unchanged.

    Args:
      start_step: first step.
      stop_step: end of the steps (exclusive); None: no end.
      rows: rows of this host; None: all.
    """
    row_bytes = 4 * (4 * self.length + 4)
    count = len(range(self.size)[rows or slice(None)])
    # Read together the steps during which the current blocks are in use, or READ_STEPS.
    largest = max(order.block for order in self.orders)
    block_steps = max(READ_STEPS, largest * self.order_batch_size // self.size)
    steps = max(1, min(block_steps, READ_BYTES // (row_bytes * max(1, count))))

    end = LAST_STEP if stop_step is None else stop_step

    def read(number: int) -> Batch:
      return self.read(max(start_step, number * steps), min((number + 1) * steps, end), rows)

    if end <= start_step:
      return
    last = -(-end // steps)
    tf = import_tensorflow()
    if tf is None:
      groups = prefetch_with_threads(read, start_step // steps, last)
    else:
      arrays = 8 + self.ordered * len(REVERSED_FIELDS)
      groups = prefetch_with_tf_data(tf, arrays, read, start_step // steps, last)
    _open_streams.add(groups)
    for group in groups:
      for step in range(len(group['index'])):
        yield {name: array[step] for name, array in group.items()}


def choose_block_size(windows: int, rows: int, block: int, ordered: bool = False) -> int:
  """Return K for a corpus of so many windows, see the head of this module.

  >>> [choose_block_size(windows, 16, 64) for windows in (1000, 20_000, 1_000_000)]
  [1, 4, 64]
  """
  blocks = 4 * rows if ordered else max(4 * rows, MIN_BLOCKS)
  return max(1, min(block, windows // blocks))


def read_reversed(corpus: Windows, index: np.ndarray) -> Batch:
  """Read windows number `index` [B] for the backward direction, as `behind_NAME` of each field."""
  part = corpus.read(index)
  return {f'behind_{name}': part[name] for name in REVERSED_FIELDS}


def heldout_batches(
    windows: Windows, batch: int, rows: slice | None = None, batches: int | None = None,
    corpus: int = 0, ordered: bool = False) -> Iterator[Batch]:
  """Yield every held-out window once, in batches of one shape.

  Row b has the b-th stretch of the text, one window per batch. So the rows of a batch are from
  different documents, which objectives on pairs of documents need. Empty rows (0 except for the
  corpus) fill the last batches.

  Args:
    windows: of the held-out split.
    batch: batch size, in rows.
    rows: rows of this host; None: all.
    batches: number of batches, at most; None: all.
    corpus: number of the corpus in the mixture, stored in the batch.
    ordered: also give each row the windows from the end of its stretch, see `Pipeline`.
  """
  total = -(-len(windows) // batch)
  stop = total if batches is None else min(total, batches)
  for number in range(stop):
    first = (np.arange(batch) * total)[rows or slice(None)]
    parts = read_padded(windows.read, first + number, len(windows))
    if ordered:
      read = functools.partial(read_reversed, windows)
      parts |= read_padded(read, first + total - 1 - number, len(windows))
    yield parts | {'corpus': np.full(len(first), corpus, np.int32)}


def read_padded(read: Callable[[np.ndarray], Batch], index: np.ndarray, total: int) -> Batch:
  """Read windows number `index` [B]; rows of zeros at the end replace those not below `total`."""
  padded = {}
  for name, array in read(index[index < total]).items():
    zeros = np.zeros((len(index) - len(array), *array.shape[1:]), array.dtype)
    padded[name] = np.concatenate([array, zeros])
  return padded


@dataclasses.dataclass(frozen=True)
class ReadingOrder:
  """The shuffled reading order of one corpus, see the head of this module."""

  windows: int  # W
  batch: int  # B
  block: int  # K
  seed: int
  corpus: int
  ordered: bool  # windows inside a block are not shuffled

  def __call__(self, time: np.ndarray, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the number and the epoch, [N] each, of the time[n]-th window of row[n]."""
    blocks = self.windows // self.block
    epoch, dealt = np.divmod(time // self.block * self.batch + row, blocks)
    key = hash_pair(hash_pair(hash_pair(0, self.seed), self.corpus), epoch)
    block = permute(dealt, blocks, key)
    offset = time % self.block
    if not self.ordered and self.block > 1:
      offset = permute(offset, self.block, hash_pair(key, block))
    shift = (hash_pair(key, self.windows) % np.uint64(self.windows)).astype(np.int64)
    return (block * self.block + offset + shift) % self.windows, epoch


def permute(x: np.ndarray, n: int, key: np.ndarray) -> np.ndarray:
  """Permute x [N] in [0, n) -> [N] in [0, n): a bijection for each key [N], without a table.

  A generalized Feistel network on [0, a * b) with a * b just above n, and cycle walking (Black and
  Rogaway 2002, "Ciphers with arbitrary finite domains"). It mixes well and is not cryptographic.
  """
  a = math.isqrt(n - 1) + 1
  b = -(-n // a)
  keys = [hash_pair(key, number) for number in range(2 * FEISTEL_ROUNDS)]

  def shuffle(x, keys):
    right, left = np.divmod(x, np.uint64(a))
    for even, odd in zip(keys[::2], keys[1::2], strict=True):
      left = (left + hash_pair(even, right) % np.uint64(a)) % np.uint64(a)
      right = (right + hash_pair(odd, left) % np.uint64(b)) % np.uint64(b)
    return right * np.uint64(a) + left

  result = shuffle(x.astype(np.uint64), keys)
  while len(outside := np.flatnonzero(result >= n)):
    result[outside] = shuffle(result[outside], [part[outside] for part in keys])
  return result.astype(np.int64)


def hash_pair(key: np.ndarray | int, value: np.ndarray | int) -> np.ndarray:
  """Hash key and value to 64 bits, elementwise."""
  with np.errstate(over='ignore'):
    x = np.asarray(key, np.uint64) * HASH_FACTOR + np.asarray(value).astype(np.uint64)
    return mix_bits(x + HASH_FACTOR)


def prefetch_with_threads(read: Callable[[int], Batch], first: int, last: int) -> Iterator[Batch]:
  """Yield read(first), read(first + 1), ... up to `last`, read ahead by threads."""
  numbers = iter(range(first, last))
  pool = ThreadPoolExecutor(READERS)
  try:
    waiting = [pool.submit(read, number) for number in itertools.islice(numbers, READERS + 1)]
    while waiting:
      yield waiting.pop(0).result()
      waiting += [pool.submit(read, number) for number in itertools.islice(numbers, 1)]
  finally:
    pool.shutdown(wait=False, cancel_futures=True)


def prefetch_with_tf_data(
    tf, count: int, read: Callable[[int], Batch], first: int, last: int) -> Iterator[Batch]:
  """Yield the same as `prefetch_with_threads`, by tf.data in threads of its own.

  The arrays, `count` per batch, are read-only.
  """
  failures, names = [], []

  def load(number):
    try:
      batch = read(int(number))
    except Exception as error:  # tf.data would convert it to text
      failures.append(error)
      raise
    names[:] = batch
    return list(batch.values())

  numbers = tf.data.Dataset.range(first, last)
  groups = numbers.map(lambda number: tf.numpy_function(load, [number], [tf.int32] * count),
                       num_parallel_calls=READERS, deterministic=True)
  try:
    for arrays in groups.prefetch(1).as_numpy_iterator():
      yield dict(zip(names, arrays, strict=True))
  except tf.errors.OpError as error:
    if failures:
      raise failures[0] from None
    raise error from None


_open_streams: weakref.WeakSet = weakref.WeakSet()


@atexit.register
def close_streams() -> None:
  """Close all streams while the interpreter still runs: later their threads would deadlock."""
  for groups in list(_open_streams):
    with contextlib.suppress(ValueError):  # another thread is inside
      groups.close()


@contextlib.contextmanager
def without_keras() -> Iterator[None]:
  """Keep `import tensorflow` from importing Keras 3, which takes 3 of 7 seconds.

  TensorFlow imports the Keras that this variable selects; where that one is not installed, it
  waits until `tf.keras` is used.
  """
  name = 'TF_USE_LEGACY_KERAS'
  before = os.environ.get(name)
  os.environ[name] = '1'
  try:
    yield
  finally:
    if before is None:
      del os.environ[name]
    else:
      os.environ[name] = before


def import_tensorflow():
  """Import TensorFlow without GPUs, which are for JAX; None where it is not installed."""
  try:
    with without_keras():
      import tensorflow as tf
  except ImportError:
    return None
  with contextlib.suppress(RuntimeError):  # already in use by the caller: keep their setting
    tf.config.set_visible_devices([], 'GPU')
  return tf
