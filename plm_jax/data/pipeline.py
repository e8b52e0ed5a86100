"""Which windows a batch holds, and how batches are read ahead.

A batch is a pure function of (seed, step): no iterator has a state, seeking to a step is arithmetic, and a host that
reads only its rows gets exactly those rows of the global batch, however many hosts share it.

Order. The W windows of a corpus are taken in blocks of K neighbours, because a disk or a bucket reads neighbours at the
price of one. A row of the batch reads a block in K of its steps, one window a step, then goes on to another block; the
blocks come in a pseudo-random order that is new in every epoch, dealt out to the rows like cards, and so do the windows
inside a block. With B rows, row b at its t-th window is at

    g      = (t // K) * B + b                  the g-th block that is dealt out
    epoch  = g // (W // K)
    block  = permutation(g % (W // K))         keyed by (seed, corpus, epoch)
    offset = permutation(t % K)                keyed by (seed, corpus, epoch, block)
    window = (block * K + offset + shift) % W  shift keyed by (seed, corpus, epoch)

K = 1 is a perfect shuffle: each window once an epoch. For K > 1 an epoch leaves out the W % K windows that fill no
block; the shift makes them others in every epoch. K is at most W // 4B, so that all rows find several blocks in an
epoch of a small corpus too.

Mixtures. The weights of the components become shares of a cycle of 1024 slots, each component spread evenly over it;
row b at step s has slot (s + b) % 1024. So a row has the shares exactly in any 1024 steps, a batch has them as nearly
as whole rows allow, and t above is how many windows of this component the row has had. Shares are rounded to 1/1024,
and a component of any weight above 0 has at least one slot.

Without weights a component of n windows, or of n examples of a task, is read at the rate min(n, cap) ** (1 / T): in
proportion to its size at the temperature T = 1, up to the cap; all alike at T = inf (Raffel et al. 2020, section
3.5.2). The rate is one of examples: where more of them fill a window, fewer windows are needed.
"""
import atexit
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
import contextlib
import dataclasses
import functools
import itertools
import math
import weakref

from etils import epath
import numpy as np

from plm_jax.data.cutting import Rule
from plm_jax.data.records import RecordsError
from plm_jax.data.windows import Batch, Windows

CYCLE = 1024  # slots of a mixture
BEHIND = 'tokens', 'segments', 'index'  # what is read of windows from the end of a text on
READ_BYTES = 64 << 20  # of decoded windows, at most, that one read of the stream returns (but at least one step)
READERS = 2  # reads in progress at once: one more than is being used hides the latency
ROUNDS = 6  # of the permutation: pairs of an addition to the left and to the right half


@dataclasses.dataclass(frozen=True)
class Shares:
  """How much of a mixture's windows each corpus gets: `weights` as they are, or by the sizes of the corpora.

  A corpus counts as `cap` windows (examples, where it has those) at most, 0: as all it has; sizes are taken to the
  power 1 / `temperature`.
  """

  weights: Sequence[float] | None = None
  cap: int = 0
  temperature: float = 1.0

  def of(self, corpora: Sequence[Windows]) -> Sequence[float]:
    """Returns the share of each corpus, up to a factor that all have."""
    if self.weights is not None:
      return self.weights
    sizes = [corpus.documents if corpus.target_budget else len(corpus) for corpus in corpora]
    return [min(size, self.cap or size) ** (1 / self.temperature) * len(corpus) / size
            for corpus, size in zip(corpora, sizes, strict=True)]


def open_pipeline(
    folders: Sequence[epath.PathLike], rule: Rule | Sequence[Rule] = Rule('document', 128), batch: int = 256,
    seed: int = 0, block: int = 64, shares: Shares = Shares(), vocab_hash: str | None = None) -> 'Pipeline':
  """Opens the training split of the corpora in `folders` as one mixture.

  rule: how text is cut into windows, or how that of each folder is; batch: in rows; block: K in windows, see the head
  of this file. Raises RecordsError for records that cannot be read or whose tokenizer is not the one with the hash
  `vocab_hash` (where given) or not the same in all folders.
  """
  if not folders:
    raise ValueError('a pipeline needs at least one folder of records')
  rules = [rule] * len(folders) if isinstance(rule, Rule) else rule
  corpora = [Windows(folder, 'train', rule.length, rule.assembly, rule.target_budget)
             for folder, rule in zip(folders, rules, strict=True)]
  expected, who = (vocab_hash, 'this run') if vocab_hash is not None else (corpora[0].meta.tokenizer, folders[0])
  for corpus in corpora:
    if corpus.meta.tokenizer != expected:
      raise RecordsError(
          f'the records in {corpus.folder} were made with the tokenizer {corpus.meta.tokenizer}, but that of {who} is '
          f'{expected}. Use the tokenizer in {corpus.folder / "tokenizer"}, or prepare the records again.')
  return Pipeline(corpora, shares.of(corpora), batch, seed, block)


class Pipeline:
  """Batches of windows of one corpus or of several: `batch` for one, `stream` for many."""

  def __init__(
      self, corpora: Sequence[Windows], weights: Sequence[float] | None = None, batch: int = 256, seed: int = 0,
      block: int = 64, ordered: bool = False):
    """`block` is K in windows; `ordered` keeps the windows of a block in the order of the text, one in each step, and
    gives with each that of the same block in the opposite order: `behind_NAME`, for who reads from both sides."""
    if batch < 1 or block < 1:
      raise ValueError(f'batch and block are at least 1, not {batch} and {block}')
    self.corpora = tuple(corpora)
    self.size = batch
    self.length, self.ordered = corpora[0].length, ordered
    self.schedule = Schedule.of(weights if weights is not None else [len(corpus) for corpus in corpora], len(corpora))
    self.orders = tuple(
        Order(len(corpus), batch, max(1, min(block, len(corpus) // (4 * batch))), seed, component, ordered)
        for component, corpus in enumerate(corpora))

  def batch(self, step: int, rows: slice | None = None) -> Batch:
    """Reads `rows` (by default all) of the batch of `step` -> arrays as `windows` specifies them, [rows, ...]."""
    return {name: array[0] for name, array in self.read(step, step + 1, rows).items()}

  def read(self, start: int, stop: int, rows: slice | None = None) -> Batch:
    """Reads the batches of steps start .. stop at once -> [steps, rows, ...]."""
    row = np.arange(self.size)[rows or slice(None)]
    shape = stop - start, len(row)
    row = np.broadcast_to(row, shape).ravel()
    component, time = self.schedule(np.repeat(np.arange(start, stop), shape[1]), row)
    result: Batch = {}
    for number in np.unique(component):
      mine = component == number
      corpus, order = self.corpora[number], self.orders[number]
      part = corpus.read(*order(time[mine], row[mine]), corpus=number)
      if self.ordered:
        part |= behind(corpus, order(time[mine] // order.block * order.block + order.block - 1
                                     - time[mine] % order.block, row[mine])[0])
      if mine.all():
        result = part
        break
      for name, array in part.items():
        result.setdefault(name, np.empty((len(row), *array.shape[1:]), np.int32))[mine] = array
    return {name: array.reshape(*shape, *array.shape[1:]) for name, array in result.items()}

  def stream(self, start_step: int = 0, stop_step: int | None = None, rows: slice | None = None) -> Iterator[Batch]:
    """Yields `batch(step, rows)` for each step from `start_step`, read ahead; without end if `stop_step` is None.

    Several steps are read together, because the windows of a block are neighbours on disk. Through tf.data where
    TensorFlow is installed, through threads where it is not: the batches are the same. An error of reading is raised
    here as it was raised there.
    """
    row_bytes = 4 * (4 * self.length + 4)
    count = len(range(self.size)[rows or slice(None)])
    block = max(order.block for order in self.orders)
    steps = max(1, min(block, READ_BYTES // (row_bytes * max(1, count))))

    def read(number: int) -> Batch:
      start = max(start_step, number * steps)
      stop = (number + 1) * steps
      return self.read(start, stop if stop_step is None else min(stop, stop_step), rows)

    if stop_step is not None and stop_step <= start_step:
      return
    last = None if stop_step is None else -(-stop_step // steps)
    tf = tensorflow()
    ahead = threads_ahead if tf is None else functools.partial(tf_data_ahead, tf, 8 + self.ordered * len(BEHIND))
    groups = ahead(read, start_step // steps, last)
    _reading.add(groups)
    for group in groups:
      for step in range(len(group['index'])):
        yield {name: array[step] for name, array in group.items()}


def behind(corpus: Windows, index: np.ndarray) -> Batch:
  """Reads windows number `index` [B] as those that are read from the end of a text on."""
  part = corpus.read(index)
  return {f'behind_{name}': part[name] for name in BEHIND}


def heldout_batches(windows: Windows, batch: int, rows: slice | None = None, batches: int | None = None,
                    corpus: int = 0, ordered: bool = False) -> Iterator[Batch]:
  """Yields every window once, or the first `batches`, labelled with `corpus`; row b has the b-th stretch of the text,
  one window a batch, and with `ordered` from its end on too, as `Pipeline` has it.

  So the rows of a batch are of different documents, which a question about pairs of them needs. Empty rows (0 but for
  the corpus) make up what is missing, so that shapes are one.
  """
  total = -(-len(windows) // batch)
  for number in range(total if batches is None else min(total, batches)):
    first = (np.arange(batch) * total)[rows or slice(None)]
    parts = padded(windows.read, first + number, len(windows))
    if ordered:
      parts |= padded(functools.partial(behind, windows), first + total - 1 - number, len(windows))
    yield parts | {'corpus': np.full(len(first), corpus, np.int32)}


def padded(read: Callable[[np.ndarray], Batch], index: np.ndarray, total: int) -> Batch:
  """Reads windows number `index` [B], with rows of zeros behind for those that are not below `total`."""
  part = read(index[index < total])
  return {name: np.concatenate([array, np.zeros((len(index) - len(array), *array.shape[1:]), array.dtype)])
          for name, array in part.items()}


@dataclasses.dataclass(frozen=True)
class Schedule:
  """Which component each row reads at each step."""

  slots: np.ndarray  # [CYCLE] component
  before: np.ndarray  # [components, CYCLE + 1] slots of the component before this one

  @classmethod
  def of(cls, weights: Sequence[float], components: int) -> 'Schedule':
    """Shares out a cycle of CYCLE windows by weight, each corpus at equal distances; any with a weight gets one.

    Raises ValueError for weights that are negative, not finite, all 0, or not one a corpus.
    """
    if len(weights) != components or not all(math.isfinite(w) and w >= 0 for w in weights) or not sum(weights) > 0:
      raise ValueError(f'{components} corpora need as many weights, none negative and not all 0, not {list(weights)}')
    if components > CYCLE:
      raise ValueError(f'a mixture has at most {CYCLE} corpora, not {components}')
    share = np.array(weights, float) / sum(weights) * CYCLE
    counts = np.where(share > 0, np.maximum(np.floor(share), 1), 0).astype(int)
    while counts.sum() < CYCLE:  # largest remainders first
      counts[np.argmax(share - counts)] += 1
    while counts.sum() > CYCLE:  # slots for components below 1/1024, from those with the most to spare
      counts[np.argmin(np.where(counts > 1, share - counts, np.inf))] -= 1
    # Component c is wanted at (k + 1/2) / counts[c] of the cycle for each k.
    wanted = np.concatenate([(np.arange(count) + 0.5) / count for count in counts])
    slots = np.repeat(np.arange(components), counts)[np.argsort(wanted, kind='stable')]
    before = np.cumsum(slots == np.arange(components)[:, None], 1)
    return cls(slots, np.concatenate([np.zeros((components, 1), int), before], 1))

  def __call__(self, step: np.ndarray, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """step [N], row [N] -> component [N], windows of this component that the row had before [N]."""
    component = self.slots[(step + row) % CYCLE]

    def count(slot):
      return slot // CYCLE * self.before[component, CYCLE] + self.before[component, slot % CYCLE]

    return component, count(step + row) - count(row)


@dataclasses.dataclass(frozen=True)
class Order:
  """The order of reading a corpus, see the head of this file."""

  windows: int  # W
  batch: int  # B
  block: int  # K
  seed: int
  corpus: int
  ordered: bool

  def __call__(self, time: np.ndarray, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The time[n]-th window of row[n] -> its number [N], its epoch [N]."""
    blocks = self.windows // self.block
    epoch, dealt = np.divmod(time // self.block * self.batch + row, blocks)
    key = mix(mix(mix(0, self.seed), self.corpus), epoch)
    block = permute(dealt, blocks, key)
    offset = time % self.block
    if not self.ordered and self.block > 1:
      offset = permute(offset, self.block, mix(key, block))
    shift = (mix(key, self.windows) % np.uint64(self.windows)).astype(np.int64)
    return (block * self.block + offset + shift) % self.windows, epoch


def permute(x: np.ndarray, n: int, key: np.ndarray) -> np.ndarray:
  """Permutes x [N] in [0, n) -> [N] in [0, n); for each key [N] a bijection, without a table.

  A generalised Feistel network on [0, a * b) with a * b just above n, and cycle walking (Black and Rogaway 2002,
  "Ciphers with arbitrary finite domains"). Good mixing, no cryptography.
  """
  a = math.isqrt(n - 1) + 1
  b = -(-n // a)
  keys = [mix(key, number) for number in range(2 * ROUNDS)]

  def shuffle(x, keys):
    right, left = np.divmod(x, np.uint64(a))
    for even, odd in zip(keys[::2], keys[1::2], strict=True):
      left = (left + mix(even, right) % np.uint64(a)) % np.uint64(a)
      right = (right + mix(odd, left) % np.uint64(b)) % np.uint64(b)
    return right * np.uint64(a) + left

  result = shuffle(x.astype(np.uint64), keys)
  while len(outside := np.flatnonzero(result >= n)):
    result[outside] = shuffle(result[outside], [part[outside] for part in keys])
  return result.astype(np.int64)


def mix(key: np.ndarray | int, value: np.ndarray | int) -> np.ndarray:
  """Hashes key and value to 64 bits, elementwise: the finaliser of splitmix64 (Steele, Lea and Flood 2014)."""
  with np.errstate(over='ignore'):
    x = np.asarray(key, np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.asarray(value).astype(np.uint64)
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def threads_ahead(read: Callable[[int], Batch], first: int, last: int | None) -> Iterator[Batch]:
  """Yields read(first), read(first + 1), ... up to `last`, a few of them in progress."""
  numbers = iter(range(first, last) if last is not None else itertools.count(first))
  pool = ThreadPoolExecutor(READERS)
  try:
    waiting = [pool.submit(read, number) for number in itertools.islice(numbers, READERS + 1)]
    while waiting:
      yield waiting.pop(0).result()
      waiting += [pool.submit(read, number) for number in itertools.islice(numbers, 1)]
  finally:
    pool.shutdown(wait=False, cancel_futures=True)


def tf_data_ahead(tf, count: int, read: Callable[[int], Batch], first: int, last: int | None) -> Iterator[Batch]:
  """Yields the same, of so many arrays, by tf.data, which has the readers in threads of its own; its arrays are
  read-only."""
  failures, names = [], []

  def load(number):
    try:
      batch = read(int(number))
    except Exception as error:  # tf.data would make text of it
      failures.append(error)
      raise
    names[:] = batch
    return list(batch.values())

  numbers = tf.data.Dataset.range(first, last if last is not None else np.iinfo(np.int64).max)
  groups = numbers.map(lambda number: tf.numpy_function(load, [number], [tf.int32] * count),
                       num_parallel_calls=READERS, deterministic=True)
  try:
    for arrays in groups.prefetch(1).as_numpy_iterator():
      yield dict(zip(names, arrays, strict=True))
  except tf.errors.OpError as error:
    raise (failures[0] if failures else error) from None


_reading: weakref.WeakSet = weakref.WeakSet()


@atexit.register
def close_streams() -> None:
  """Ends what is read ahead while the interpreter still runs: its threads would wait for a lock that is gone."""
  for groups in list(_reading):
    with contextlib.suppress(ValueError):  # another thread is inside
      groups.close()


def tensorflow():
  """Imports TensorFlow, kept off the accelerators, which are JAX's; None where it is not installed."""
  try:
    import tensorflow as tf
  except ImportError:
    return None
  with contextlib.suppress(RuntimeError):  # somebody used TensorFlow before: it is theirs to set
    tf.config.set_visible_devices([], 'GPU')
  return tf
