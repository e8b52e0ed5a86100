"""The training loop: resume, step, log, evaluate and save. It knows no model and no objective by
name."""
from collections.abc import Callable, Mapping, Sequence
import contextlib
import dataclasses
import itertools
import logging
import shlex
import time
from typing import Any

from etils import epath
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax import sharding, storage
from plm_jax.checkpoints.checkpoint import CheckpointError, Checkpoints
from plm_jax.checkpoints.restore import NAMED_FOLDER, find_run_checkpoints, restore_params
from plm_jax.config import serialization
from plm_jax.config.resume import resume_obstacles
from plm_jax.config.run import Phase, PretrainRun, RunConfig
from plm_jax.distributed import hosts
from plm_jax.errors import UserError, name_field
from plm_jax.storage.lock import Lock
from plm_jax.tokenizers import Tokenizer
from plm_jax.training.compile_ahead import CompileAhead, Programs
from plm_jax.training.evaluate import BestCheckpoint, find_verified_step
from plm_jax.training.feed import Feed, TextFeed
from plm_jax.training.interrupts import catch_interrupts, mark_saving
from plm_jax.training.learner import make_learner, make_updates
from plm_jax.training.step import Learner, TrainState, make_sharded_init
from plm_jax.training.training_log import TrainingLog
from plm_jax.training.warm_start import initialize_params, take_over_moments

logger = logging.getLogger(__name__)
DIFFERENT_DATA = (
    'Copy the same text and tokenizer to all machines and prepare it with the same version, or '
    'give data in a folder that all machines see')


class TrainingError(UserError):
  """A run that cannot usefully continue."""


@dataclasses.dataclass(frozen=True)
class TrainingResult:
  """Result of a run, next to the files in its folder."""

  step: int
  params: Any
  finished: bool  # False: stopped by a signal, to be resumed
  seconds: float  # of this process
  heldout: dict[str, float]  # metrics of the last evaluation
  epochs: float = 0.0  # mean number of times the text was read
  best: int | None = None  # step of these parameters and metrics, where the best are kept
  earlier: float = 0.0  # seconds of processes before, up to their last checkpoints

  @property
  def wall_times(self) -> dict[str, str]:
    """Rows of a summary: the time of all processes, and that of this one if there were others."""
    whole = {'Wall time': f'{(self.earlier + self.seconds) / 60:.1f} min'}
    own = {'Wall time since it resumed': f'{self.seconds / 60:.1f} min'}
    return whole | own if self.earlier else whole


def train(config: RunConfig, open_feed: Callable[[Any], Feed], tokenizer: Tokenizer,
          lock: Lock | None = None, ahead: CompileAhead | None = None) -> TrainingResult:
  """Train, or resume, the run in config.folder: the training loop.

  Args:
    config: the run.
    open_feed: function from the mesh to the run's batches.
    tokenizer: that of the batches.
    lock: lock of the folder, in which nobody else may train; None: it is locked here.
    ahead: compiles the programs of the run; None: they are compiled here.

  Raises:
    ConfigError, LockError, CheckpointError: before anything is changed.
    TrainingError: the loss stays not finite.
    CheckpointError: a save failed.
  """
  if lock is None:
    with hosts.locked(config.folder) as lock:
      return train(config, open_feed, tokenizer, lock, ahead)
  started, mesh = time.time(), sharding.make_mesh(config.mesh)
  programs = ahead.finish(tokenizer.vocab) if ahead else None
  learner, feed = open_run(config, open_feed, tokenizer, mesh, programs)
  folder = storage.resolve_path(config.folder)
  with contextlib.ExitStack() as stack:
    stack.enter_context(jax.set_mesh(mesh))
    checkpoints = stack.enter_context(
        contextlib.closing(Checkpoints(folder / 'checkpoints', config.train.keep)))
    best = stack.enter_context(contextlib.closing(BestCheckpoint(config, folder)))
    interrupted = stack.enter_context(catch_interrupts())
    programs = programs or make_programs(config, learner, feed, mesh)
    _, make_state, shapes, layout, _ = programs

    # Resume from the newest checkpoint, or start warm or from scratch.
    resumed, fresh_parts = read_resumed_meta(config, tokenizer, feed, checkpoints), []
    if resumed:
      state = TrainState(**checkpoints.restore(resumed['step'], shapes.parts, layout.parts))
    else:
      state = make_state()
      params = feed.prepare_params(state.params)
      params, fresh_parts = initialize_params(
          config, learner, tokenizer, params, layout.params, feed.token_vectors)
      state = state.replace(
          params=params, opt_state=take_over_moments(config, state.opt_state, layout.opt_state))
      if state.trained is not None:
        # The EMA begins as what is trained, in memory of its own: both are updated in place.
        state = state.replace(trained=jax.tree.map(jnp.copy, params))
    first_step, earlier = int(state.step), resumed.get('seconds', 0.0)
    with hosts.barrier('room for a checkpoint'):
      checkpoints.check_space(state)
    meta = write_run_files(config, tokenizer, folder, feed)
    evaluate = feed.make_evaluator(learner, mesh)
    log = stack.enter_context(contextlib.closing(
        TrainingLog(config, folder, first_step, mesh, interrupted.send)))
    heldout, stopped = {}, False
    # It was stopped between a step and its evaluation, or begins with a model that does the task.
    if (resumed.get('unevaluated')
        or (not resumed and feed.evaluates_start and not fresh_parts)):
      heldout = evaluate(state.params, phase_at(config, first_step))
      log.log_heldout(first_step, heldout)
      best.update(first_step, heldout, state.params, meta)
    ended = first_step >= config.train.steps or best.should_stop(first_step)
    batches = iter(())
    if not ended:
      feed.on_start(learner, state.params, mesh)
      batches = log.time_batches(feed.stream(first_step, mesh))

    for step, phase, windows in batches:
      # Step.
      state, metrics = programs.update(phase)(state, windows)
      done = step + 1
      log.add(phase, metrics)
      last = done == config.train.steps
      stopped = not last and (interrupted() or checkpoints.reached_preemption(done))

      # Log.
      if done % config.train.log_every == 0 or last or stopped:
        streak = log.flush(done)
        with hosts.barrier(f'what was written by step {done}'):  # what stops one process stops all
          lock.check()
          checkpoints.check_saved()
        if streak >= config.train.max_nonfinite_steps:
          checkpoints.save(done, state.parts, meta)
          checkpoints.wait()
          raise make_not_finite_error(config, feed, done, streak)

      # Evaluate on held-out data, and stop early where it no longer improves.
      due = done % config.train.eval_every == 0 or last
      if due and not stopped:
        with log.pause_clock():
          heldout = evaluate(state.params, phase)
        log.log_heldout(done, heldout)
        best.update(done, heldout, state.params, meta)
        ended = last or best.should_stop(done)

      # Save.
      if stopped:
        stack.enter_context(mark_saving())
      if done % config.train.save_every == 0 or ended or stopped:
        checkpoints.save(done, state.parts, {
            **meta, 'unevaluated': due and stopped, 'seconds': earlier + time.time() - started})
      for name in feed.named_steps.get(done, ()):
        with contextlib.closing(Checkpoints(folder / NAMED_FOLDER / name, keep=1)) as named:
          named.save(done, {'params': state.params}, meta)  # unless it is there
      if stopped or ended:
        break
    checkpoints.wait()

    # The result: the best parameters where they are kept, else the last ones.
    if not heldout and not stopped and best.step is None:  # the run had finished before
      heldout = evaluate(state.params, config.train.phases[-1])
    if not stopped and best.step is not None:
      state = state.replace(params=best.restore(shapes.params, layout.params))
      heldout = best.values
    return TrainingResult(
        int(state.step), state.params, not stopped, time.time() - started, heldout,
        feed.epochs(int(state.step)), best.step, earlier)


def open_run(config: RunConfig, open_feed: Callable[[Any], Feed], tokenizer: Tokenizer,
             mesh, programs: Programs | None = None) -> tuple[Learner, Feed]:
  """Make the learner, if no programs were compiled with one, and open the feed.

  Raises:
    HostsError: processes have different data; raised on all of them.
  """
  with hosts.barrier('model and data'):
    learner = programs.learner if programs else make_learner(config, tokenizer.vocab)
    feed = open_feed(mesh)
    digests = {'the tokenizer': tokenizer.hash, **feed.record()['digests']}
  short = {name: digest[:16] for name, digest in digests.items()}
  hosts.check_agreement('data', short, DIFFERENT_DATA)
  return learner, feed


def make_programs(config: RunConfig, learner: Learner, feed: Feed, mesh) -> Programs:
  """Make the programs of a run, which JAX compiles when they are first called."""
  make_state, shapes, layout = make_sharded_init(learner, feed.first_window(), mesh)
  return Programs(learner, make_state, shapes, layout, make_updates(config, learner, layout))


def read_resumed_meta(config: RunConfig, tokenizer: Tokenizer, feed: Feed,
                      checkpoints: Checkpoints) -> dict[str, Any]:
  """Read what the checkpoint to resume from records of its run, and let the feed resume.

  Returns:
    the record; {} for a fresh run.

  Raises:
    CheckpointError: this run cannot resume from the checkpoint.
  """
  step = find_verified_step(config, checkpoints)
  if step is None:
    return {}
  meta = checkpoints.meta(step)
  with hosts.barrier('the checkpoint to continue from'):
    check_same_run(config, meta, tokenizer, step)
    check_same_data(config, meta, feed.record()['digests'], step)
  feed.resume(meta['data'])
  return meta


def phase_at(config: RunConfig, done: int) -> Phase:
  """Return the phase of the last of `done` steps; of 0 steps, the first phase."""
  ends = np.cumsum([phase.steps for phase in config.train.phases])
  return config.train.phases[int(np.searchsorted(ends, done))]


def write_run_files(
    config: RunConfig, tokenizer: Tokenizer, folder: epath.Path, feed: Feed) -> dict[str, Any]:
  """Write config.json and the tokenizer into the run's folder; process 0 does.

  Returns:
    what each checkpoint records of the run.
  """
  with hosts.barrier('files of the run'):
    if jax.process_index() == 0:
      tokenizer.save(folder / 'tokenizer')
      storage.write(folder / 'config.json', serialization.dump(config))
  return {'config': serialization.to_json(config), 'tokenizer': tokenizer.hash,
          'data': feed.record()}


def evaluate_run(
    config: PretrainRun, records: Sequence[epath.Path], tokenizer: Tokenizer) -> dict[str, float]:
  """Evaluate held-out losses of the run in config.folder, with sequences of its last phase.

  See `evaluate_checkpoint`.
  """
  phases = config.train.phases[-1:]
  last = dataclasses.replace(config, train=dataclasses.replace(config.train, phases=phases))
  def open_feed(mesh):
    return TextFeed(last, records, tokenizer, mesh)
  return evaluate_checkpoint(config, open_feed, tokenizer)


def evaluate_checkpoint(config: RunConfig, open_feed: Callable[[Any], Feed],
                        tokenizer: Tokenizer) -> dict[str, float]:
  """Evaluate the best checkpoint of the run in config.folder, where it is kept, else the newest."""
  mesh = sharding.make_mesh(config.mesh)
  learner, feed = open_run(config, open_feed, tokenizer, mesh)
  with jax.set_mesh(mesh):
    _, shapes, layout = make_sharded_init(learner, feed.first_window(), mesh)
    folder = find_run_checkpoints(config.folder, job=True)
    params = restore_params(folder, shapes.params, layout.params, job=True)
    return feed.make_evaluator(learner, mesh)(params, config.train.phases[-1])


def check_same_run(
    config: RunConfig, meta: dict[str, Any], tokenizer: Tokenizer, step: int) -> None:
  """Check that this configuration and tokenizer can resume from the checkpoint of `step`.

  Raises:
    CheckpointError: they cannot.
  """
  old = serialization.from_json(
      meta['config'], f'the checkpoint of step {step} in {config.folder}')
  changed = resume_obstacles(old, config, step)
  if meta['tokenizer'] != tokenizer.hash:
    changed.append(f'tokenizer: {meta["tokenizer"][:12]} -> {tokenizer.hash[:12]}')
  if changed:
    raise CheckpointError(
        f'{config.folder} contains checkpoints of a run with another configuration, so this run '
        'cannot resume from them. Restore the old values, or choose another folder with '
        f'{name_field("output")}; {name_field("warm_start")}={config.folder} starts from its '
        'parameters. Changed:\n  '
        + '\n  '.join(changed))


def check_same_data(
    config: RunConfig, meta: Mapping[str, Any], new: Mapping[str, str], step: int) -> None:
  """Check that the training data is that of the checkpoint of `step`.

  Args:
    config: the run, which may accept other data (`train.changed_data`).
    meta: what the checkpoint records.
    new: digests of the data, by name.
    step: that of the checkpoint.

  Raises:
    CheckpointError: the data differs.
  """
  # In the order of the corpora: a file may have been moved, and be known by another name.
  lines = []
  pairs = itertools.zip_longest(
      meta['data']['digests'].items(), new.items(), fillvalue=('none', 'none'))
  for (old_name, old), (name, digest) in pairs:
    if old != digest:
      title = name if old_name in (name, 'none') else old_name
      lines.append(f'{title}: {old[:12]} -> {digest[:12]}')
  if not lines:
    return
  if config.train.changed_data == 'refuse':
    raise CheckpointError(
        f'the data of {config.folder} is not what the checkpoint of step {step:,} was trained on. '
        f'Restore the data, choose another folder with {name_field("output")} '
        f'({name_field("warm_start")}={config.folder} starts from its parameters), or continue on '
        f'the new data with {name_field("train.changed_data")}=accept. Digests of the content:\n  '
        + '\n  '.join(lines))
  if jax.process_index() == 0:
    logger.warning('from step %d on, the run continues on other data: %s', step, '; '.join(lines))


def make_not_finite_error(config: RunConfig, feed: Feed, done: int, streak: int) -> TrainingError:
  """Make the error of a loss that stays not finite: where it happened, on what, and what to try."""
  step = done - streak
  return TrainingError(
      f'the loss or its gradient was not finite in {streak} steps in a row, from step {step} on; '
      f'each was skipped, and the last good parameters are in the checkpoint of step {done}. The '
      f'batch of step {step} holds {feed.describe_batch(step)}. What helps most often: a smaller '
      f'{name_field("optim.peak")}, a longer {name_field("optim.warmup")}, '
      f'{name_field("optim.clip")} 1, {name_field("model.block.dtype")} float32, or another '
      f'{name_field("seed")}. Each makes another run, which needs another {name_field("output")}; '
      f'with {name_field("warm_start")}={shlex.quote(config.folder)} it begins with those '
      'parameters.')
