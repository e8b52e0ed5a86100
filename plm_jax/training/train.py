"""The training loop. It knows no model and no objective by name."""
from collections.abc import Callable, Iterable, Iterator, Sequence
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
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from plm_jax import config as config_lib
from plm_jax import config_file, sharding, storage
from plm_jax.config import Experiment, Phase, Run
from plm_jax.errors import Expected
from plm_jax.objectives import figures
from plm_jax.pods import hosts
from plm_jax.storage.lock import Lock
from plm_jax.tokenizers import Tokenizer
from plm_jax.training import metrics
from plm_jax.training.best import Best
from plm_jax.training.checkpoint import CheckpointError, Checkpoints, of_run, restore_params
from plm_jax.training.feed import Feed, TextFeed
from plm_jax.training.learner import make_learner
from plm_jax.training.optim import schedule
from plm_jax.training.step import AveragedState, jitted_step, sharded_init
from plm_jax.training.warm_start import start
from plm_jax.training.writers import ScalarWriter, WeightsAndBiases

logger = logging.getLogger(__name__)
# Without tqdm's own rate, in which the first step, which compiles, would count for long.
BAR = '{l_bar}{bar}| {n_fmt}/{total_fmt} {unit}s [{elapsed}{postfix}]'


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
  best: int | None = None  # step whose parameters and figures these are, where the best of the run are asked for


def train(config: Experiment, records: Sequence[epath.Path], tokenizer: Tokenizer, lock: Lock | None = None) -> Result:
  """Trains, or goes on with, the run in config.folder, on text.

  records: folders of token records, one a corpus, all made with `tokenizer`. lock: of the folder, which nobody else may
  train in; None: it is taken here. Raises what `fit` does, and RecordsError.
  """
  return fit(config, lambda mesh: TextFeed(config, records, tokenizer, mesh), tokenizer, lock)


def fit(config: Run, open_feed: Callable[[Any], Feed], tokenizer: Tokenizer, lock: Lock | None = None) -> Result:
  """Trains, or goes on with, the run in config.folder, on what `open_feed(mesh)` gives.

  Raises ConfigError, LockError or CheckpointError before anything is changed, TrainingError when the loss stays not
  finite, and CheckpointError for a save that failed.
  """
  if lock is None:
    with hosts.owned(config.folder) as lock:
      return fit(config, open_feed, tokenizer, lock)
  started, mesh = time.time(), sharding.make_mesh(config.mesh)
  learner = make_learner(config, tokenizer.vocab)
  feed = open_feed(mesh)
  folder = storage.path_of(config.folder)
  with jax.set_mesh(mesh), contextlib.closing(Checkpoints(folder / 'checkpoints', config.train.keep)) as checkpoints, \
      contextlib.closing(Best(config, folder)) as best, interrupts() as interrupted, contextlib.ExitStack() as left:
    _, shapes, layout = initial = sharded_init(learner, feed.first(), mesh)
    state = begun(config, learner, feed, tokenizer, checkpoints, initial)
    checkpoints.check_space(state)
    meta = described(config, tokenizer, folder)
    ended = int(state.step) >= config.train.steps or best.hopeless(int(state.step))
    if not ended:
      feed.begin(learner, state.params, mesh)
    update = jitted_step(learner, layout)
    evaluate = feed.evaluator(learner, mesh)
    log = left.enter_context(contextlib.closing(Log(config, folder, int(state.step), mesh)))
    heldout, stopped = {}, False
    for step, phase, windows in [] if ended else log.timed(feed.stream(int(state.step), mesh)):
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
          raise not_finite(config, feed, done, streak)
      if (done % config.train.eval_every == 0 or last) and not stopped:
        with log.aside():
          heldout = evaluate(state.params, phase)
        log.evaluated(done, heldout)
        best.offer(done, heldout, state.params, meta)
        ended = last or best.hopeless(done)
      if done % config.train.save_every == 0 or ended or stopped:
        checkpoints.save(done, state, meta)
      if stopped or ended:
        break
    checkpoints.wait()
    if not heldout and not stopped and best.step is None:  # the run had finished before
      heldout = evaluate(state.params, config.train.phases[-1])
    if not stopped and best.step is not None:
      state, heldout = state.replace(params=best.restore(shapes.params, layout.params)), best.values
    return Result(int(state.step), state.params, not stopped, time.time() - started, heldout, feed.epochs, best.step)


def begun(config: Run, learner, feed: Feed, tokenizer: Tokenizer, checkpoints: Checkpoints, initial):
  """Returns the state that a run goes on from: that of its newest checkpoint, else a fresh one, warm or from scratch.
  initial: what `sharded_init` gives."""
  make_state, shapes, layout = initial
  if (step := resumed_step(config, checkpoints)) is not None:
    same_run(config, checkpoints.meta(step), tokenizer, step)
    return checkpoints.restore(step, shapes, layout)
  state = make_state()
  state = state.replace(params=start(config, learner, tokenizer, feed.fresh(state.params), layout.params))
  # The mean begins as what is trained, in memory of its own: both are updated in place.
  return state.replace(trained=jax.tree.map(jnp.copy, state.params)) if isinstance(state, AveragedState) else state


def described(config: Run, tokenizer: Tokenizer, folder: epath.Path) -> dict[str, Any]:
  """Writes what the run is into its folder, by process 0 -> what each checkpoint tells of it."""
  with hosts.together('files of the run'):
    if jax.process_index() == 0:
      tokenizer.save(folder / 'tokenizer')
      storage.write(folder / 'config.json', config_file.dump(config))
  return {'config': config_file.to_json(config), 'tokenizer': tokenizer.hash}


def evaluate_run(config: Experiment, records: Sequence[epath.Path], tokenizer: Tokenizer) -> dict[str, float]:
  """Measures held-out losses of the run in config.folder, with rows of its last phase: see `measure`."""
  last = dataclasses.replace(config, train=dataclasses.replace(config.train, phases=config.train.phases[-1:]))
  return measure(config, lambda mesh: TextFeed(last, records, tokenizer, mesh), tokenizer)


def measure(config: Run, open_feed: Callable[[Any], Feed], tokenizer: Tokenizer) -> dict[str, float]:
  """Measures what was held out by the newest checkpoint of the run in config.folder, or its best where that is kept."""
  mesh, learner = sharding.make_mesh(config.mesh), make_learner(config, tokenizer.vocab)
  with jax.set_mesh(mesh):
    feed = open_feed(mesh)
    _, shapes, layout = sharded_init(learner, feed.first(), mesh)
    params = restore_params(of_run(config.folder), shapes.params, layout.params)
    return feed.evaluator(learner, mesh)(params, config.train.phases[-1])


def resumed_step(config: Run, checkpoints: Checkpoints) -> int | None:
  """Returns the step of the checkpoint to go on from, whose files are as they were written; None: there is none."""
  if config.train.resume == 'whole':
    checkpoints.put_damaged_aside(logger.warning)
  if (step := checkpoints.latest()) is not None:
    checkpoints.check(step)
  return step


def same_run(config: Run, meta: dict[str, Any], tokenizer: Tokenizer, step: int) -> None:
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


def not_finite(config: Run, feed: Feed, done: int, streak: int) -> TrainingError:
  """Says where it happened, which text was in the batch, and what to try."""
  step = done - streak
  return TrainingError(
      f'the loss or its gradient was not finite in {streak} steps in a row, from step {step} on; each was '
      f'skipped, and the last good parameters are in the checkpoint of step {done}. The batch of step {step} holds '
      f'{feed.contents(step)}. What helps most often: a smaller --optim.peak, a longer '
      '--optim.warmup, --optim.clip 1, --model.block.dtype float32, or another --seed. Each makes another run, which '
      'needs another --output; with '
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
  """Progress bar, and what `metrics.Writer` writes; only process 0 does."""

  def __init__(self, config: Run, folder: epath.Path, start: int, mesh):
    self.config, self.mesh = config, mesh
    self.rate = schedule(config.optim, config.train.steps, config.train.pace)
    self.writer = metrics.Writer(folder, start, *sent(config, folder)) if jax.process_index() == 0 else None
    self.bar = tqdm(total=config.train.steps, initial=start, unit='step', disable=jax.process_index() > 0,
                    dynamic_ncols=True, bar_format=BAR, postfix='compiling the first step',
                    mininterval=0.5 if sys.stderr.isatty() else 10)  # a file keeps every bar that is drawn
    self.whole = metrics.tokens_read(config.train.pace, config.train.steps)
    self.pending: list[Any] = []
    self.tokens, self.flops, self.since = 0, 0.0, time.time()
    self.length, self.waited = 0, 0.0
    self.heldout: dict[str, str] = {}  # the first of the held-out figures, once there are some
    self.seen: set[tuple[int, int]] = set()  # shapes of batches

  def timed(self, batches: Iterable[Any]) -> Iterator[Any]:
    """Yields batches, and adds up how long they are waited for."""
    batches = iter(batches)
    while True:
      began = time.time()
      batch = next(batches, None)
      self.waited += time.time() - began
      if batch is None:
        return
      yield batch

  def add(self, phase: Phase, numbers) -> None:
    """Keeps the numbers of a step, still on the devices, for the next line; a phase's first step does not count for
    speed."""
    if jax.default_backend() == 'cpu':
      # Collectives of several programs in flight can starve each other of the CPU's few threads.
      jax.block_until_ready(numbers)
    if (phase.batch, phase.length) not in self.seen:
      # The first step of a shape compiles: not a part of the speed.
      jax.block_until_ready(numbers)
      self.since, self.tokens, self.flops, self.length = time.time(), 0, 0.0, phase.length
      self.waited = 0.0
      self.seen.add((phase.batch, phase.length))
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
      # With an accelerator a part of it is time in which the devices are busy with the steps before.
      values['waiting'] = min(1.0, self.waited / seconds)
      if peak := metrics.peak_flops(self.mesh.devices.flat[0]):
        values['mfu'] = self.flops / seconds / (peak * self.mesh.size)
    rate = values.get('tokens_per_second')
    left = self.whole - metrics.tokens_read(self.config.train.pace, done)
    shown = {'left': tqdm.format_interval(round(left / rate))} if rate else {}
    shown |= {'loss': f'{values["loss"]:.3f}', **self.heldout}
    shown |= {'tokens/s': f'{rate:,.0f}'} if rate else {}
    shown |= {'MFU': f'{values["mfu"]:.1%}'} if 'mfu' in values else {}
    shown |= {'waiting': f'{values["waiting"]:.0%}'} if 'waiting' in values else {}
    shown |= {'skipped': values['skipped']} if values['skipped'] else {}
    self.bar.set_postfix(shown)
    if self.writer:
      self.writer.write(done, 'train', values)
    self.pending, self.since, self.tokens, self.flops, self.waited = [], time.time(), 0, 0.0, 0.0
    return values['streak']

  @contextlib.contextmanager
  def aside(self):
    """Takes what is done meanwhile out of the time of the steps."""
    jax.block_until_ready(self.pending[-1:])
    began = time.time()
    yield
    self.since += time.time() - began

  def evaluated(self, done: int, values: dict[str, float]) -> None:
    """Writes held-out values after `done` steps."""
    if self.writer:
      self.writer.write(done, 'heldout', values)
    shown = self.config.objective.shown
    kinds = [(figures.parted(name, values)[1] or figures.question(name), name) for name in list(values)[:1]]
    self.heldout = {f'held-out {kind}': shown(name, values[name]) for kind, name in kinds}
    if not self.bar.disable:
      self.bar.write(f'step {done:,}  held-out {figures.line(values, shown)}')

  def close(self) -> None:
    """Ends the progress bar and the writers."""
    self.bar.close()
    if self.writer:
      self.writer.close()


def sent(config: Run, folder: epath.Path) -> list[ScalarWriter]:
  """Makes the writers that send figures away."""
  if not config.train.wandb:
    return []
  return [WeightsAndBiases(config.train.wandb, config.name, folder, config_file.to_json(config))]
