"""Training loop of word vectors; the same command resumes from its newest checkpoint, bit for bit.

It shares configuration, lock, checkpoints and log with `plm_jax.training`, but not its loop. That
one differentiates all parameters and passes optax a gradient of their size, while a step here may
touch a few hundred rows of a table of millions. And there are a hundred thousand such steps per
minute, so one call of the compiled program makes a hundred of them, where the other loop makes one
and reads its loss. One
process, one device: the originals are fast because all cores write into one memory.
"""
from collections.abc import Callable
import contextlib
import dataclasses
import functools
import math
import sys
import time
from typing import Any, Literal

from etils import epath
import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from plm_jax import storage, validation
from plm_jax.checkpoints.checkpoint import CheckpointError, Checkpoints
from plm_jax.checkpoints.restore import restore_params
from plm_jax.config import serialization
from plm_jax.config.run import Scale
from plm_jax.distributed import hosts
from plm_jax.errors import ConfigError, name_field
from plm_jax.progress import is_terminal
from plm_jax.storage.digests import compute_digest
from plm_jax.storage.lock import Lock
from plm_jax.training.interrupts import catch_interrupts
from plm_jax.training.run_metrics import MetricsWriter
from plm_jax.training.train import TrainingError
from plm_jax.validation import ValidatedConfig, intervals
from plm_jax.word_vectors import word_corpus
from plm_jax.word_vectors.contract import TableState, WordBatches, WordLearner
from plm_jax.word_vectors.glove import GloVe
from plm_jax.word_vectors.ranking import Ranking
from plm_jax.word_vectors.vectors import WordVectors
from plm_jax.word_vectors.word2vec import Word2Vec
from plm_jax.word_vectors.word_corpus import Vocabulary, WordCorpus, WordsConfig

FREE_TO_CHANGE = {'output', 'data.path', 'data.heldout_path', 'train.log_every', 'train.eval_every',
                  'train.save_every', 'train.keep', 'train.changed_data'}
MIN_RATE_SHARE = 1e-4  # of the learning rate that is left at the end (word2vec.c)


@dataclasses.dataclass(frozen=True)
class VectorTrainConfig(ValidatedConfig):
  """Training options of word vectors."""

  limits = intervals(
      epochs='[1, inf)', rate='(0, 100]', log_every='[1, inf)', eval_every='[1, inf)',
      save_every='[1, inf)', keep='[1, inf)')

  epochs: int = 5
  """Number of epochs."""
  rate: float = 0.025
  """Learning rate at the beginning."""
  decay: Literal['linear', 'constant'] = 'linear'
  """Learning-rate schedule. linear: decays to a ten-thousandth at the end; constant: none."""
  log_every: int = 10
  """Calls of the compiled step between lines of metrics."""
  eval_every: int = 200
  """Calls between evaluations on held-out sentences."""
  save_every: int = 500
  """Calls between checkpoints."""
  keep: int = 1
  """Number of checkpoints to keep."""
  changed_data: Literal['refuse', 'accept'] = 'refuse'
  """Whether a run may resume on text that has the same words and counts as the text of its
  checkpoint, but different sentences."""


@dataclasses.dataclass(frozen=True)
class VectorRun(ValidatedConfig):
  """A run that trains word vectors. The same command resumes from its newest checkpoint."""

  limits = intervals(seed='[0, 4294967295]')

  name: str
  """Name of the run."""
  scale: Scale = 'paper'
  """Scale of the run. paper: as published; laptop: minutes on two cores; test: seconds. Other
  options override the values that the scale sets."""
  output: str = ''
  """Run folder for checkpoints, metrics and report; runs/NAME by default, with -SCALE appended for
  scales other than paper."""
  seed: int = 0
  """Random seed for initial vectors, windows, noise words and subsampling."""
  model: Word2Vec | GloVe | Ranking = Word2Vec()
  data: WordsConfig = WordsConfig()
  train: VectorTrainConfig = VectorTrainConfig()

  @property
  def folder(self) -> str:
    """Folder of the run: `output`, or runs/NAME, with the scale after it unless that is `paper`."""
    if self.output:
      return str(storage.resolve_path(self.output))
    suffix = f'-{self.scale}' if self.scale != 'paper' else ''
    return f'runs/{self.name}{suffix}'


@dataclasses.dataclass(frozen=True)
class VectorResult:
  """The result of a run, besides the files in its folder."""

  step: int
  vectors: WordVectors
  finished: bool  # False: stopped by a signal, to be resumed
  seconds: float
  heldout: dict[str, float]
  per_second: float  # words, or pairs of words, that were trained on per second


def train(
    run: VectorRun, corpus: WordCorpus | None = None, lock: Lock | None = None) -> VectorResult:
  """Train word vectors, or resume the run in run.folder.

  Args:
    run: the configuration.
    corpus: training data; None: that of run.data.
    lock: of the run's folder; None: it is taken here.

  Raises:
    SourceError, VocabularyError, LockError, CheckpointError: before anything is changed.
    TrainingError: the loss is not finite.
  """
  if lock is None:
    with hosts.locked(run.folder) as lock:
      return train(run, corpus, lock)
  validation.check(run)
  started, folder = time.time(), storage.resolve_path(run.folder)
  corpus = corpus or word_corpus.prepare_corpus(run.data)
  learner = run.model.make_learner(corpus, run.seed)
  last = run.train.epochs * learner.calls_per_epoch
  words = compute_digest(corpus.vocabulary.to_text())
  init = jax.jit(lambda: run.model.init(jax.random.key(run.seed), corpus.vocabulary))
  with contextlib.ExitStack() as stack:
    checkpoints = stack.enter_context(
        contextlib.closing(Checkpoints(folder / 'checkpoints', run.train.keep)))
    interrupted = stack.enter_context(catch_interrupts())

    # Resume or initialize.
    if (start := checkpoints.latest()) is not None:
      checkpoints.verify(start)
      check_same_run(run, checkpoints.meta(start), words, corpus.digest, start)
      shapes = jax.eval_shape(init)
      device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
      state = checkpoints.restore(start, shapes, jax.tree.map(lambda _: device, shapes))
    else:
      state = init()
    checkpoints.check_space(state)
    meta = {'config': serialization.to_json(run), 'vocabulary': words, 'text': corpus.digest}
    storage.write(folder / 'vocabulary.txt', corpus.vocabulary.to_text())
    storage.write(folder / 'config.json', serialization.dump(run))
    log = VectorLog(run, folder, start or 0, last, interrupted.send)
    update, heldout, stopped = make_update(learner), {}, False

    for step in range(start or 0, last):
      # Train.
      epoch, call = divmod(step, learner.calls_per_epoch)
      batches = learner.sample_batches(epoch, call)
      rates = np.array(
          [learning_rate(run.train, done / last) for done in (step, step + 1)], np.float32)
      state = update(state, learner.constants, batches.arrays, batches.count, rates)
      done = step + 1
      log.add(state, batches)
      stopped = done < last and interrupted()

      # Log, evaluate, save.
      if done % run.train.log_every == 0 or done == last or stopped:
        log.flush(done, float(rates[1]), state)
        lock.check()
        checkpoints.check_saved()
      if (done % run.train.eval_every == 0 or done == last) and not stopped:
        heldout = log.add_evaluation(done, heldout_loss(learner, state))
      if done % run.train.save_every == 0 or done == last or stopped:
        checkpoints.save(done, state, meta)
      if stopped:
        break

    checkpoints.wait()
    log.close()
    done = int(checkpoints.latest() or 0)
    heldout = heldout or heldout_loss(learner, state)
    vectors = run.model.make_vectors(jax.device_get(state['params']), corpus.vocabulary)
    return VectorResult(
        done, vectors, not stopped, time.time() - started, heldout, log.per_second)


def check_same_run(
    run: VectorRun, meta: dict[str, Any], words: str, text: str, step: int) -> None:
  """Check that a run can resume from a checkpoint.

  Args:
    run: the configuration.
    meta: of the checkpoint.
    words: digest of the vocabulary.
    text: digest of the text.
    step: of the checkpoint.

  Raises:
    CheckpointError: configuration, vocabulary or text have changed.
  """
  old = serialization.from_json(meta['config'], f'the checkpoint of step {step} in {run.folder}')
  changed = validation.differences(old, run, FREE_TO_CHANGE)
  if meta['vocabulary'] != words:
    changed.append('the words of the text and their counts')
  elif run.train.changed_data == 'refuse' and meta['text'] != text:
    changed.append(
        f'the sentences of the text ({name_field("train.changed_data")}=accept continues on the '
        'new ones)')
  if changed:
    raise CheckpointError(
        f'{run.folder} contains checkpoints of a run with another configuration, so this run '
        'cannot resume from them. Restore the old values, or choose another folder with '
        f'{name_field("output")}. Changed:\n  ' + '\n  '.join(changed))


def learning_rate(config: VectorTrainConfig, done: float) -> float:
  """Return the learning rate after a share of the run."""
  return config.rate * (max(1 - done, MIN_RATE_SHARE) if config.decay == 'linear' else 1)


def make_update(learner: WordLearner) -> Any:
  """Compile the function that trains on many small batches.

  Returns:
    update(state, constant tables, arrays of batches, their number, learning rates at the beginning
    and the end) -> the new state. The old state is donated: its tables are changed in place.
  """
  @functools.partial(jax.jit, donate_argnums=0)
  def update(state: TableState, constants, arrays, count, rates) -> TableState:
    def train_batch(number: Any, state: TableState) -> TableState:
      batch = take_batch(arrays, number)
      rate = rates[0] + (rates[1] - rates[0]) * number / count
      return learner.step(state, constants, batch, rate)

    return jax.lax.fori_loop(0, count, train_batch, state)
  return update


def heldout_loss(learner: WordLearner, state: TableState) -> dict[str, float]:
  """Compute the loss per prediction on the held-out text; {} where there is none."""
  batches = learner.heldout_batches()

  @jax.jit
  def sum_losses(state, constants, arrays, count):
    def add_batch(number, sums):
      loss = learner.loss(state, constants, take_batch(arrays, number))
      return jax.tree.map(jnp.add, sums, loss)

    return jax.lax.fori_loop(0, count, add_batch, (jnp.zeros(()), jnp.zeros(())))

  if not batches.count:
    return {}
  loss, number = sum_losses(state, learner.constants, batches.arrays, batches.count)
  if float(number):
    return {'loss': float(loss) / max(float(number), 1.0)}
  return {}


def take_batch(arrays: dict[str, jax.Array], number: Any) -> dict[str, jax.Array]:
  """Return one small batch of the arrays of many."""
  return {name: jax.lax.dynamic_index_in_dim(array, number, keepdims=False)
          for name, array in arrays.items()}


class VectorLog:
  """Progress bar and metrics of a run."""

  def __init__(self, run: VectorRun, folder, start: int, last: int,
               on_failure: Callable[[], None]):
    self.writer, self.last = MetricsWriter(folder, start, on_failure=on_failure), last
    self.draws = is_terminal()  # else one line per flush
    self.bar = tqdm(total=last, initial=start, unit='call', dynamic_ncols=True, mininterval=1,
                    disable=not self.draws)
    self.examples, self.since, self.first = 0, time.time(), True
    self.total, self.seconds = 0, 0.0

  @property
  def per_second(self) -> float:
    """Examples per second over the run; the first call, which is compiled, does not count."""
    return self.total / self.seconds if self.seconds else 0.0

  def add(self, state: TableState, batches: WordBatches) -> None:
    """Count a call, which continues while the next one is sampled."""
    if self.first:
      jax.block_until_ready(state)
      self.first, self.since = False, time.time()
    else:
      self.examples += batches.examples
    self.bar.update()

  def flush(self, done: int, rate: float, state: TableState) -> None:
    """Write a line of metrics. Raises TrainingError where a table is not finite."""
    finite = jax.tree.map(lambda table: bool(jnp.isfinite(table.sum())), state['params'])
    if not all(finite.values()):
      raise TrainingError(
          f'the vectors are not finite any more after call {done}: a smaller '
          f'{name_field("train.rate")} helps most often, or smaller batches '
          f'({name_field("model.blocks")}, {name_field("model.words")}), where there are few '
          'different words')
    seconds = time.time() - self.since
    values = {'learning_rate': rate}
    if self.examples:
      self.total, self.seconds = self.total + self.examples, self.seconds + seconds
      values['words_per_second'] = self.examples / seconds
      speed = f'{values["words_per_second"]:,.0f} words/s'
      if self.draws:
        self.bar.set_postfix_str(speed)
      else:
        print(f'call {done:,} of {self.last:,}: {speed}', file=sys.stderr, flush=True)
    self.writer.write(done, 'train', values)
    self.examples, self.since = 0, time.time()

  def add_evaluation(self, done: int, values: dict[str, float]) -> dict[str, float]:
    """Write held-out metrics and return them; their time does not count for speed."""
    if values:
      self.writer.write(done, 'heldout', values)
      self.bar.write(f'call {done:,}  held-out loss {values["loss"]:.4f}')
      if not math.isfinite(values['loss']):
        raise TrainingError(f'the held-out loss is not finite after call {done}')
    self.since = time.time()
    return values

  def close(self) -> None:
    """Close the progress bar and the writers."""
    self.bar.close()
    self.writer.close()


def load_run(folder: epath.PathLike) -> tuple[VectorRun, Vocabulary, dict[str, np.ndarray]]:
  """Load a run: its configuration, vocabulary, and the tables of its newest checkpoint.

  Raises:
    CheckpointError: there is no usable checkpoint.
    ConfigError: the run is of another kind.
  """
  path = storage.resolve_path(folder)
  config = path / 'config.json'
  run = serialization.from_json(storage.read_json(config), str(config))
  if not isinstance(run, VectorRun):
    raise ConfigError(f'{folder} is no run of word vectors: plm_jax.load reads other models')
  words = word_corpus.read_vocabulary(path / 'vocabulary.txt')
  shapes = jax.eval_shape(lambda: run.model.init(jax.random.key(0), words))['params']
  params = restore_params(path / 'checkpoints', shapes)
  return run, words, {name: np.asarray(table) for name, table in params.items()}
