"""The training loop. It knows no model and no objective by name."""
from collections.abc import Iterator, Sequence
import contextlib
import dataclasses
import logging
import shlex
import signal
import sys
import time
from typing import Any

from etils import epath
import jax
import numpy as np
from tqdm import tqdm

from plm_jax import config as config_lib
from plm_jax import config_file, sharding, storage
from plm_jax.config import Experiment, Phase
from plm_jax.data import counts
from plm_jax.data.pipeline import Pipeline, Shares, heldout_batches, open_pipeline
from plm_jax.data.records import read_meta
from plm_jax.data.windows import Windows
from plm_jax.errors import Expected
from plm_jax.pods import hosts
from plm_jax.storage.lock import Lock
from plm_jax.tokenizers import Tokenizer
from plm_jax.training import metrics
from plm_jax.training.checkpoint import CheckpointError, Checkpoints, restore_params
from plm_jax.training.evaluate import evaluator
from plm_jax.training.learner import make_learner
from plm_jax.training.optim import schedule
from plm_jax.training.step import jitted_step, sharded_init
from plm_jax.training.warm_start import start

logger = logging.getLogger(__name__)


class TrainingError(Expected):
  """A run that cannot usefully go on."""


@dataclasses.dataclass(frozen=True)
class Result:
  """What a run leaves behind, besides the files in its folder."""

  step: int
  params: Any
  finished: bool  # False: stopped by a signal, to be continued
  seconds: float
  heldout: dict[str, float]  # of the last evaluation
  epochs: float = 0.0  # how often the text was read, on average


def train(config: Experiment, records: Sequence[epath.Path], tokenizer: Tokenizer, lock: Lock | None = None) -> Result:
  """Trains, or goes on with, the run in config.folder.

  records: folders of token records, one a corpus, all made with `tokenizer`. lock: of the folder, which nobody else may
  train in; None: it is taken here. Raises ConfigError, RecordsError, LockError or CheckpointError before anything is
  changed, TrainingError when the loss stays not finite, and CheckpointError for a save that failed.
  """
  if lock is None:
    with hosts.owned(config.folder) as lock:
      return train(config, records, tokenizer, lock)
  started = time.time()
  mesh = sharding.make_mesh(config.mesh)
  for phase in config.train.phases:
    sharding.check_batch(phase.batch, config.train.accumulate, mesh)
  learner = make_learner(config, tokenizer.vocab)
  for folder in records:  # those of all phases at once
    counts.complete(folder, read_meta(folder), config.rules)
  pipelines = [
      open_phase(config, records, tokenizer, phase, number) for number, phase in enumerate(config.train.phases)]
  for phase in config.train.phases:
    open_heldout(config, records, phase)  # now, not after days: there may be no held-out text

  folder = storage.path_of(config.folder)
  with jax.set_mesh(mesh), contextlib.closing(Checkpoints(folder / 'checkpoints', config.train.keep)) as checkpoints, \
      interrupts() as interrupted:
    make_state, shapes, layout = sharded_init(learner, pipelines[0].batch(0, slice(1)), mesh)
    # 1. Resume this run. 2. Start: warm, or from scratch.
    if (step := resumed_step(config, checkpoints)) is not None:
      same_run(config, checkpoints.meta(step), tokenizer, step)
      state = checkpoints.restore(step, shapes, layout)
    else:
      state = make_state()
      state = state.replace(params=start(config, learner, tokenizer, state.params, layout.params))
    checkpoints.check_space(state)
    meta = {'config': config_file.to_json(config), 'tokenizer': tokenizer.hash}
    with hosts.together('files of the run'):
      if jax.process_index() == 0:
        tokenizer.save(folder / 'tokenizer')
        storage.write(folder / 'config.json', config_file.dump(config))

    update = jitted_step(learner, layout)
    evaluate = evaluator(learner, tokenizer.sizes)
    log = Log(config, folder, int(state.step), mesh)
    heldout: dict[str, float] = {}
    stopped = False
    for step, phase, windows in batches(config, pipelines, int(state.step), mesh):
      state, numbers = update(state, windows)
      done = step + 1
      log.add(phase, numbers)
      last = done == config.train.steps
      stopped = not last and (interrupted() or checkpoints.preempted(done))
      if done % config.train.log_every == 0 or last or stopped:
        streak = log.flush(done)
        lock.check()
        checkpoints.check_saved()
        if streak >= config.train.patience:
          checkpoints.save(done, state, meta)
          checkpoints.wait()
          raise not_finite(config, pipelines, done, streak)
      if (done % config.train.eval_every == 0 or last) and not stopped:
        heldout = evaluate(state.params, heldout_stream(config, records, phase, mesh))
        log.evaluated(done, heldout)
      if done % config.train.save_every == 0 or last or stopped:
        checkpoints.save(done, state, meta)
      if stopped:
        break
    checkpoints.wait()
    if not heldout and not stopped:  # the run had finished before
      heldout = evaluate(state.params, heldout_stream(config, records, config.train.phases[-1], mesh))
    log.close()
    epochs = sum(phase.steps * phase.batch / sum(map(len, pipeline.corpora))
                 for phase, pipeline in zip(config.train.phases, pipelines, strict=True))
    return Result(int(state.step), state.params, not stopped, time.time() - started, heldout, epochs)


def evaluate_run(config: Experiment, records: Sequence[epath.Path], tokenizer: Tokenizer) -> dict[str, float]:
  """Measures held-out losses of the newest checkpoint of the run in config.folder, with rows of its last phase."""
  mesh, learner, phase = sharding.make_mesh(config.mesh), make_learner(config, tokenizer.vocab), config.train.phases[-1]
  pipeline = open_phase(config, records, tokenizer, phase, 0)
  with jax.set_mesh(mesh):
    _, shapes, layout = sharded_init(learner, pipeline.batch(0, slice(1)), mesh)
    params = restore_params(storage.path_of(config.folder) / 'checkpoints', shapes.params, layout.params)
    return evaluator(learner, tokenizer.sizes)(params, heldout_stream(config, records, phase, mesh))


def open_phase(config, records, tokenizer, phase: Phase, number: int) -> Pipeline:
  """Opens the pipeline of a phase, each of which has an order of its own."""
  data = config.data
  pipeline = open_pipeline(records, config.rule(phase), phase.batch, config.seed + number, data.block,
                           Shares(data.weights or None, data.cap, data.temperature), tokenizer.hash)
  for corpus in pipeline.corpora:
    if corpus.clipped and jax.process_index() == 0:
      logger.warning('%s: %d of %d examples are too long for rows of %d tokens and targets of %d, and lose their ends',
                  corpus.folder, corpus.clipped, corpus.documents, phase.length, corpus.length - phase.length)
  return pipeline


def resumed_step(config: Experiment, checkpoints: Checkpoints) -> int | None:
  """Returns the step of the checkpoint to go on from, whose files are as they were written; None: there is none."""
  if config.train.resume == 'whole':
    checkpoints.put_damaged_aside(logger.warning)
  if (step := checkpoints.latest()) is not None:
    checkpoints.check(step)
  return step


def batches(config: Experiment, pipelines: Sequence[Pipeline], start: int, mesh) -> Iterator[tuple[int, Phase, Any]]:
  """Yields (step, phase, windows on the devices) from step `start` to the end of the run."""
  first = 0
  for phase, pipeline in zip(config.train.phases, pipelines, strict=True):
    rows = sharding.host_rows(phase.batch, mesh)
    begin = max(start, first)
    for step, windows in enumerate(pipeline.stream(begin - first, phase.steps, rows), begin):
      yield step, phase, sharding.to_devices(windows, phase.batch, mesh)
    first += phase.steps


def heldout_stream(config: Experiment, records, phase: Phase, mesh) -> Iterator[Any]:
  """Yields held-out windows on the devices, of every corpus in turn and alike; about train.eval_batches in all."""
  rows, share = sharding.host_rows(phase.batch, mesh), max(1, config.train.eval_batches // len(records))
  for corpus, windows in enumerate(open_heldout(config, records, phase)):
    for batch in heldout_batches(windows, phase.batch, rows, share, corpus):
      yield sharding.to_devices(batch, phase.batch, mesh)


def open_heldout(config: Experiment, records, phase: Phase) -> list[Windows]:
  """Opens the held-out windows of each corpus; of one that has none, where a run is only evaluated on it, all of it."""
  length = config.objective.window(phase.length)
  budget = config.objective.target_budget
  # Text that somebody wants a run evaluated on is not held out from anything.
  whole = [config.mode == 'evaluate' and not read_meta(folder).heldout for folder in records]
  return [Windows(folder, 'train' if all_of_it else 'heldout', length, config.data.assembly, budget)
          for folder, all_of_it in zip(records, whole, strict=True)]


def same_run(config: Experiment, meta: dict[str, Any], tokenizer: Tokenizer, step: int) -> None:
  """Raises CheckpointError unless this configuration and tokenizer can go on from the checkpoint of `step`."""
  old = config_file.from_json(meta['config'], f'the checkpoint of step {step} in {config.folder}')
  changed = config_lib.obstacles(old, config, step)
  if meta['tokenizer'] != tokenizer.hash:
    changed.append(f'tokenizer: {meta["tokenizer"][:12]} -> {tokenizer.hash[:12]}')
  if changed:
    raise CheckpointError(
        f'{config.folder} holds checkpoints of a run with another configuration, so this one cannot go on from them. '
        'Give the old values, or --output another folder, with --warm-start='
        f'{config.folder} to begin with its parameters. Changed:\n  ' + '\n  '.join(changed))


def not_finite(config: Experiment, pipelines: Sequence[Pipeline], done: int, streak: int) -> TrainingError:
  """Says where it happened, which text was in the batch, and what to try."""
  step = done - streak
  firsts = np.cumsum([0, *(phase.steps for phase in config.train.phases)])
  number = int(np.searchsorted(firsts, step, 'right')) - 1
  index = pipelines[number].batch(step - int(firsts[number]))['index']
  return TrainingError(
      f'the loss, its gradient or what the optimizer made of it was not finite in {streak} steps in a row, from step '
      f'{step} on; each was skipped, and the last good parameters are in the checkpoint of step {done}. The batch of '
      f'step {step} holds the windows {np.array2string(index, max_line_width=100, threshold=32)} of the training '
      'split. What helps most often: a smaller --optim.peak, a longer --optim.warmup, --optim.clip 1, '
      '--model.block.dtype float32, or another --seed. Each makes another run, which needs another --output; with '
      f'--warm-start={shlex.quote(config.folder)} it begins with those parameters.')


@contextlib.contextmanager
def interrupts():
  """Makes SIGTERM and the first Ctrl-C ask the loop to save and stop; -> a function that tells whether one came.

  In a job of several processes all must stop at the same step, which Orbax and JAX's preemption service see to.
  """
  came: list[int] = []
  def handler(number, frame):
    if came and number == signal.SIGINT:
      raise KeyboardInterrupt
    came.append(number)
  old = {}
  # Only the main thread may set handlers; elsewhere (a notebook's worker, a test) signals go where they always went.
  with contextlib.suppress(ValueError):
    for number in (signal.SIGTERM, signal.SIGINT) if jax.process_count() == 1 else ():
      old[number] = signal.signal(number, handler)
  try:
    yield lambda: bool(came)
  finally:
    for number, previous in old.items():
      signal.signal(number, previous)


class Log:
  """Progress bar, JSON lines, TensorBoard; only process 0 writes."""

  def __init__(self, config: Experiment, folder: epath.Path, start: int, mesh):
    self.config, self.mesh = config, mesh
    self.rate = schedule(config.optim, config.train.steps, config.train.pace)
    self.writer = metrics.Writer(folder, start) if jax.process_index() == 0 else None
    self.bar = tqdm(total=config.train.steps, initial=start, unit='step', disable=jax.process_index() > 0,
                    dynamic_ncols=True, smoothing=0.1,
                    mininterval=0.5 if sys.stderr.isatty() else 10)  # a file keeps every bar that is drawn
    self.pending: list[Any] = []
    self.tokens, self.flops, self.since = 0, 0.0, time.time()
    self.length = 0
    self.warm = False

  def add(self, phase: Phase, numbers) -> None:
    """Keeps the numbers of a step, still on the devices, for the next line; a phase's first step does not count for
    speed."""
    if jax.default_backend() == 'cpu':
      # Collectives of several programs in flight can starve each other of the CPU's few threads.
      jax.block_until_ready(numbers)
    if phase.length != self.length:
      # The first step of a phase compiles: not a part of the speed.
      jax.block_until_ready(numbers)
      self.since, self.tokens, self.flops, self.length = time.time(), 0, 0.0, phase.length
    else:
      self.tokens += phase.batch * phase.length
      self.flops += phase.batch * self.config.objective.step_flops(self.config.model, phase.length)
    self.pending.append(numbers)
    self.bar.update()

  def flush(self, done: int) -> int:
    """Writes the means since the last call -> how many steps in a row were skipped up to now."""
    steps = jax.device_get(self.pending)  # all at once: each read waits for the devices
    last, good = steps[-1], [numbers for numbers in steps if np.isfinite(numbers['loss'])] or steps[-1:]
    values: dict[str, Any] = metrics.combine(good)
    seconds = max(time.time() - self.since, 1e-9)
    values |= {'learning_rate': float(self.rate(done - 1)), 'length': self.length, 'skipped': int(last['skipped']),
               'streak': int(last['streak'])}
    if self.tokens:
      values['tokens_per_second'] = self.tokens / seconds
      if peak := metrics.peak_flops(self.mesh.devices.flat[0]):
        values['mfu'] = self.flops / seconds / (peak * self.mesh.size)
    shown = {'loss': f'{values["loss"]:.3f}', 'tokens/s': f'{values.get("tokens_per_second", 0):,.0f}'}
    shown |= {'MFU': f'{values["mfu"]:.1%}'} if 'mfu' in values else {}
    shown |= {'skipped': values['skipped']} if values['skipped'] else {}
    self.bar.set_postfix(shown)
    if self.writer:
      self.writer.write(done, 'train', values)
    self.pending, self.since, self.tokens, self.flops = [], time.time(), 0, 0.0
    return values['streak']

  def evaluated(self, done: int, values: dict[str, float]) -> None:
    """Writes held-out values after `done` steps. The time of the evaluation does not count for speed."""
    if self.writer:
      self.writer.write(done, 'heldout', values)
    text = '  '.join(f'{name} {value:.1%}' if name.endswith(('accuracy', 'baseline')) else f'{name} {value:.3f}'
                     for name, value in values.items())
    if not self.bar.disable:
      self.bar.write(f'step {done:,}  held-out: {text}')
    self.since = time.time()

  def close(self) -> None:
    """Ends the progress bar."""
    self.bar.close()
