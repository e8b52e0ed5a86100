"""The run of a model of words: the same command goes on from its newest checkpoint, to the same bits.

It shares configuration, lock, checkpoints and log with `plm_jax.training`, and not its loop (`training.train.fit`):
that one differentiates every parameter and hands optax a gradient as large as they are, while here a step may touch a
few hundred rows of a table of millions; and of such steps there are a hundred thousand a minute, so one call of the
compiled program makes a hundred of them, where `fit` makes one and looks at its loss. One process, one device: the
originals' own speed comes from cores that write into one memory.
"""
import contextlib
import dataclasses
import functools
import hashlib
import math
import time
from typing import Any, Literal

from etils import epath
import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from plm_jax import checked, config_file, storage
from plm_jax.checked import Checked, within
from plm_jax.config import Scale
from plm_jax.errors import ConfigError
from plm_jax.pods import hosts
from plm_jax.storage.lock import Lock
from plm_jax.training.checkpoint import CheckpointError, Checkpoints, restore_params
from plm_jax.training.metrics import Writer
from plm_jax.training.train import TrainingError, interrupts
from plm_jax.vectors import corpus as corpora
from plm_jax.vectors import vocabulary
from plm_jax.vectors.contract import Batches, Learner, State
from plm_jax.vectors.corpus import Corpus, WordsConfig
from plm_jax.vectors.glove import GloVe
from plm_jax.vectors.ranking import Ranking
from plm_jax.vectors.vocabulary import Vocabulary
from plm_jax.vectors.word2vec import Word2Vec
from plm_jax.vectors.words import WordVectors

FREE = {'output', 'train.log_every', 'train.eval_every', 'train.save_every', 'train.keep'}
LEAST = 1e-4  # of the learning rate that is left at the end (word2vec.c)


@dataclasses.dataclass(frozen=True)
class VectorTrainConfig(Checked):
  """The loop."""

  limits = within(epochs='[1, inf)', rate='(0, 100]', log_every='[1, inf)', eval_every='[1, inf)',
                  save_every='[1, inf)', keep='[1, inf)')

  epochs: int = 5
  """times that the text is read"""
  rate: float = 0.025
  """learning rate at the beginning"""
  decay: Literal['linear', 'constant'] = 'linear'
  """how the rate goes on: to a ten-thousandth at the end, or as it is"""
  log_every: int = 10
  """calls of the compiled step between lines of metrics"""
  eval_every: int = 200
  """calls between evaluations on held-out sentences"""
  save_every: int = 500
  """calls between checkpoints"""
  keep: int = 1
  """checkpoints to keep"""


@dataclasses.dataclass(frozen=True)
class VectorRun(Checked):
  """A run that learns word vectors. Give the same command again and it goes on from its newest checkpoint."""

  limits = within(seed='[0, 4294967295]')

  name: str
  """of the run"""
  scale: Scale = 'paper'
  """paper: as published; laptop: minutes on two cores; test: seconds. Other options change the values it sets"""
  output: str = ''
  """folder of the run: checkpoints, metrics, report. Empty: runs/NAME, and -SCALE below paper"""
  seed: int = 0
  """of initial vectors, windows, noise and what is left out"""
  model: Word2Vec | GloVe | Ranking = Word2Vec()
  data: WordsConfig = WordsConfig()
  train: VectorTrainConfig = VectorTrainConfig()

  @property
  def folder(self) -> str:
    """Where the run lies: `output`, or runs/NAME, with the scale behind it unless that is the paper's."""
    if self.output:
      return str(storage.path_of(self.output))
    return f'runs/{self.name}' + (f'-{self.scale}' if self.scale != 'paper' else '')


@dataclasses.dataclass(frozen=True)
class Result:
  """What a run leaves behind, besides the files in its folder."""

  step: int
  vectors: WordVectors
  finished: bool  # False: stopped by a signal, to be continued
  seconds: float
  heldout: dict[str, float]
  per_second: float  # words, or pairs of words, that were learned from in a second


def train(run: VectorRun, corpus: Corpus | None = None, lock: Lock | None = None) -> Result:
  """Trains, or goes on with, the run in run.folder.

  corpus: what it learns from; None: what run.data says. Raises SourceError, VocabularyError, LockError or
  CheckpointError before anything is changed, TrainingError where the loss is not finite.
  """
  if lock is None:
    with hosts.owned(run.folder) as lock:
      return train(run, corpus, lock)
  checked.check(run)
  started, folder = time.time(), storage.path_of(run.folder)
  corpus = corpus or corpora.prepared(run.data)
  learner = run.model.learner(corpus, run.seed)
  last = run.train.epochs * learner.calls
  words = hashlib.sha256(corpus.vocabulary.text().encode()).hexdigest()
  init = jax.jit(lambda: run.model.init(jax.random.key(run.seed), corpus.vocabulary))
  with contextlib.closing(Checkpoints(folder / 'checkpoints', run.train.keep)) as checkpoints, \
      interrupts() as interrupted:
    if (start := checkpoints.latest()) is not None:
      checkpoints.check(start)
      same_run(run, checkpoints.meta(start), words, start)
      shapes = jax.eval_shape(init)
      device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
      state = checkpoints.restore(start, shapes, jax.tree.map(lambda _: device, shapes))
    else:
      state = init()
    checkpoints.check_space(state)
    meta = {'config': config_file.to_json(run), 'vocabulary': words}
    storage.write(folder / 'vocabulary.txt', corpus.vocabulary.text())
    storage.write(folder / 'config.json', config_file.dump(run))
    log = Log(run, folder, start or 0, last)
    update, heldout, stopped = updater(learner), {}, False
    for step in range(start or 0, last):
      batches = learner.batches(*divmod(step, learner.calls))
      rates = np.array([rate(run.train, done / last) for done in (step, step + 1)], np.float32)
      state = update(state, learner.fixed, batches.arrays, batches.count, rates)
      done = step + 1
      log.add(state, batches)
      stopped = done < last and interrupted()
      if done % run.train.log_every == 0 or done == last or stopped:
        log.flush(done, float(rates[1]), state)
        lock.check()
        checkpoints.check_saved()
      if (done % run.train.eval_every == 0 or done == last) and not stopped:
        heldout = log.evaluated(done, measured(learner, state))
      if done % run.train.save_every == 0 or done == last or stopped:
        checkpoints.save(done, state, meta)
      if stopped:
        break
    checkpoints.wait()
    log.close()
    done = int(checkpoints.latest() or 0)
    heldout = heldout or measured(learner, state)
    vectors = run.model.vectors(jax.device_get(state['params']), corpus.vocabulary)
    return Result(done, vectors, not stopped, time.time() - started, heldout, log.per_second)


def same_run(run: VectorRun, meta: dict[str, Any], words: str, step: int) -> None:
  """Raises CheckpointError unless this configuration and vocabulary can go on from the checkpoint of `step`."""
  old = config_file.from_json(meta['config'], f'the checkpoint of step {step} in {run.folder}')
  changed = checked.differences(old, run, FREE)
  if meta.get('vocabulary') != words:
    changed.append('the words of the text and their counts')
  if changed:
    raise CheckpointError(
        f'{run.folder} holds checkpoints of a run with another configuration, so this one cannot go on from them. Give '
        'the old values, or --output another folder. Changed:\n  ' + '\n  '.join(changed))


def rate(config: VectorTrainConfig, done: float) -> float:
  """Returns the learning rate after a share of the run."""
  return config.rate * max(1 - done, LEAST) if config.decay == 'linear' else config.rate


def updater(learner: Learner) -> Any:
  """Compiles a call: state, fixed tables, batches, how many, rates at the beginning and the end -> the state after
  them. The state that goes in is given up: its tables are changed in place."""
  @functools.partial(jax.jit, donate_argnums=0)
  def update(state: State, fixed, arrays, count, rates) -> State:
    def one(number: Any, state: State) -> State:
      batch = {name: jax.lax.dynamic_index_in_dim(array, number, keepdims=False) for name, array in arrays.items()}
      return learner.step(state, fixed, batch, rates[0] + (rates[1] - rates[0]) * number / count)
    return jax.lax.fori_loop(0, count, one, state)
  return update


def measured(learner: Learner, state: State) -> dict[str, float]:
  """Measures the loss of what was held out, for a prediction; {} where nothing was."""
  batches = learner.heldout()
  @jax.jit
  def total(state, fixed, arrays, count):
    def one(number, sums):
      batch = {name: jax.lax.dynamic_index_in_dim(array, number, keepdims=False) for name, array in arrays.items()}
      return jax.tree.map(jnp.add, sums, learner.loss(state, fixed, batch))
    return jax.lax.fori_loop(0, count, one, (jnp.zeros(()), jnp.zeros(())))
  if not batches.count:
    return {}
  loss, number = total(state, learner.fixed, batches.arrays, batches.count)
  return {'loss': float(loss) / max(float(number), 1.0)} if float(number) else {}


class Log:
  """Progress bar and metrics of a run."""

  def __init__(self, run: VectorRun, folder, start: int, last: int):
    self.writer = Writer(folder, start)
    self.bar = tqdm(total=last, initial=start, unit='call', dynamic_ncols=True, mininterval=1)
    self.examples, self.since, self.first = 0, time.time(), True
    self.total, self.seconds = 0, 0.0

  @property
  def per_second(self) -> float:
    """Returns the examples of a second, over the run; the first call, which is compiled, does not count."""
    return self.total / self.seconds if self.seconds else 0.0

  def add(self, state: State, batches: Batches) -> None:
    """Counts a call, which goes on while the next one is drawn."""
    if self.first:
      jax.block_until_ready(state)
      self.first, self.since = False, time.time()
    else:
      self.examples += batches.examples
    self.bar.update()

  def flush(self, done: int, rate: float, state: State) -> None:
    """Writes a line. Raises TrainingError where there are numbers in the tables that are not finite."""
    good = jax.tree.map(lambda table: bool(jnp.isfinite(table.sum())), state['params'])
    if not all(good.values()):
      raise TrainingError(
          f'the vectors are not finite any more after call {done}: a smaller --train.rate helps most often, or smaller '
          'batches (--model.blocks, --model.words), where there are few different words')
    seconds = time.time() - self.since
    values = {'learning_rate': rate}
    if self.examples:
      self.total, self.seconds = self.total + self.examples, self.seconds + seconds
      values['words_per_second'] = self.examples / seconds
      self.bar.set_postfix({'words/s': f'{values["words_per_second"]:,.0f}'})
    self.writer.write(done, 'train', values)
    self.examples, self.since = 0, time.time()

  def evaluated(self, done: int, values: dict[str, float]) -> dict[str, float]:
    """Writes held-out figures and returns them; their time does not count for speed."""
    if values:
      self.writer.write(done, 'heldout', values)
      self.bar.write(f'call {done:,}  held-out loss {values["loss"]:.4f}')
    if values and not math.isfinite(values['loss']):
      raise TrainingError(f'the held-out loss is not finite after call {done}')
    self.since = time.time()
    return values

  def close(self) -> None:
    """Ends the progress bar and the writers."""
    self.bar.close()
    self.writer.close()


def restored(folder: epath.PathLike) -> tuple[VectorRun, Vocabulary, dict[str, np.ndarray]]:
  """Reads a run: its configuration, its words, the tables of its newest checkpoint. Raises CheckpointError, and
  ConfigError for a run of something else."""
  path = storage.path_of(folder)
  run = config_file.from_json(storage.read_json(path / 'config.json'), str(path / 'config.json'))
  if not isinstance(run, VectorRun):
    raise ConfigError(f'{folder} is no run of word vectors: plm_jax.load reads other models')
  words = vocabulary.read(path / 'vocabulary.txt')
  shapes = jax.eval_shape(lambda: run.model.init(jax.random.key(0), words))['params']
  params = restore_params(path / 'checkpoints', shapes)
  return run, words, {name: np.asarray(table) for name, table in params.items()}
