"""The log of a run: the progress bar, and lines of metrics for metrics.jsonl and other writers."""
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import contextlib
import sys
import textwrap
import time
from typing import Any

from etils import epath
import jax
import numpy as np
from tqdm import tqdm

from plm_jax.config import serialization
from plm_jax.config.run import Phase, RunConfig, phase_objective
from plm_jax.objectives import metric_names
from plm_jax.optim.optimizers import make_schedule
from plm_jax.progress import is_terminal
from plm_jax.training import run_metrics
from plm_jax.training.writers import WeightsAndBiases

BAR = '{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} {elapsed}{postfix}'
"""format of the progress bar, without tqdm's own rate, in which the compilation of the first step
counts"""
LINE_WIDTH = 80
"""columns that a line of progress fits"""
BAR_WIDTH = 8
"""columns of the bar itself that are reserved in such a line"""


class TrainingLog:
  """Log of a run: progress bar, metrics.jsonl and writers (`run_metrics.MetricsWriter`), on
  process 0."""

  def __init__(self, config: RunConfig, folder: epath.Path, start: int, mesh,
               on_failure: Callable[[], None] = lambda: None):
    self.config, self.mesh = config, mesh
    self.rate = jax.jit(  # as one program: its operations would be compiled one by one
        make_schedule(config.optim, config.train.steps, config.train.steps_and_tokens))
    self.leads, self.writer = jax.process_index() == 0, None
    if self.leads:
      loggers = []
      if config.train.wandb:
        values = serialization.to_json(config)
        loggers.append(WeightsAndBiases(config.train.wandb, config.title, folder, values))
      self.writer = run_metrics.MetricsWriter(
          folder, start, *loggers, on_failure=on_failure)
    self.draws = self.leads and is_terminal()  # else one line per log_every
    self.bar = tqdm(
        total=config.train.steps, initial=start, disable=not self.draws, dynamic_ncols=True,
        bar_format=BAR, postfix='compiling the first step', mininterval=0.5)
    if self.leads and not self.draws:
      print('compiling the first step', file=sys.stderr, flush=True)
    self.all_tokens = run_metrics.count_tokens_read(
        config.train.steps_and_tokens, config.train.steps)
    self.pending: list[Any] = []
    self.tokens, self.flops, self.since = 0, 0.0, time.time()
    self.length, self.waited = 0, 0.0
    self.heldout: tuple[str, str] | None = None  # name and text of the first held-out metric
    self.latest: dict[str, Any] = {}  # training metrics that were shown last
    self.seen: set[tuple[int, int, float | None]] = set()  # shapes of batches
    self.done, self.began, self.announced = start, time.time(), 0
    self.timed, self.left = 0, ''  # steps since `since`, and the time left at their pace

  def time_batches(self, batches: Iterable[Any]) -> Iterator[Any]:
    """Yield batches, and add up how long the loop waits for them."""
    batches = iter(batches)
    while True:
      began = time.time()
      batch = next(batches, None)
      self.waited += time.time() - began
      if batch is None:
        return
      yield batch

  def add(self, phase: Phase, numbers) -> None:
    """Keep the metrics of a step, still on the devices, for the next line.

    A phase's first step compiles, and does not count for speed.
    """
    if jax.default_backend() == 'cpu':
      # Collectives of several programs in flight can starve each other of the CPU's few threads.
      jax.block_until_ready(numbers)
    compiled = (phase.batch, phase.length, phase.mask_rate) not in self.seen
    if compiled:
      jax.block_until_ready(numbers)
      self.since, self.tokens, self.flops, self.length = time.time(), 0, 0.0, phase.length
      self.waited, self.timed = 0.0, 0
      self.seen.add((phase.batch, phase.length, phase.mask_rate))
    else:
      objective = phase_objective(self.config, phase)
      flops = objective.step_flops(self.config.model, phase.length)
      self.tokens += phase.batch * phase.length
      self.flops += phase.batch * flops
      self.timed += 1
    self.pending.append(numbers)
    self.bar.update()
    self.done += 1
    if self.announced < 2 and self.done % self.config.train.log_every and self.leads:
      self.announce(numbers, compiled)

  def announce(self, numbers, compiled: bool) -> None:
    """Show the first step at once, and the time left after the first one that did not compile."""
    if self.announced and compiled:
      return
    step = jax.device_get(numbers)
    values = run_metrics.combine_metrics([step]) | {'skipped': int(step['skipped'])}
    if compiled:
      values['first'] = time.time() - self.began
    else:
      seconds = max(time.time() - self.since, 1e-9)
      values['tokens_per_second'] = self.tokens / seconds
      self.left = self.estimate_left(self.done, seconds)
    self.show(self.done, values)
    self.announced += 1 if compiled else 2

  def flush(self, done: int) -> int:
    """Write the means since the last call; returns how many steps in a row were skipped up to
    now."""
    steps = jax.device_get(self.pending)  # all at once: each read waits for the devices
    last = steps[-1]
    good = [numbers for numbers in steps if np.isfinite(numbers['loss'])] or steps[-1:]
    values: dict[str, Any] = run_metrics.combine_metrics(good)
    seconds = max(time.time() - self.since, 1e-9)
    # The optimizer counts the updates it made: of the last step, those before it that were not
    # skipped.
    updates = done - 1 - int(last['skipped']) + (int(last['streak']) > 0)
    values |= {
        'learning_rate': float(self.rate(updates)), 'length': self.length,
        'skipped': int(last['skipped']), 'streak': int(last['streak'])}
    if self.tokens:
      values['tokens_per_second'] = self.tokens / seconds
      # With an accelerator a part of it is time in which the devices are busy with the steps
      # before.
      values['waiting'] = min(1.0, self.waited / seconds)
      if peak := run_metrics.peak_flops(self.mesh.devices.flat[0]):
        values['mfu'] = self.flops / seconds / (peak * self.mesh.size)
      self.left = self.estimate_left(done, seconds)
    self.show(done, values)
    if self.writer:
      self.writer.write(done, 'train', values)
    self.pending, self.since, self.tokens, self.flops = [], time.time(), 0, 0.0
    self.waited, self.timed = 0.0, 0
    return values['streak']

  def estimate_left(self, done: int, seconds: float) -> str:
    """Estimate the time of the remaining steps, given the seconds of the timed ones.

    Planned tokens count, as the batches of labeled examples may be shorter.
    """
    pace = self.config.train.steps_and_tokens
    read = run_metrics.count_tokens_read(pace, done)
    timed = read - run_metrics.count_tokens_read(pace, done - self.timed)
    return tqdm.format_interval(round((self.all_tokens - read) * seconds / max(timed, 1)))

  def show(self, done: int, values: Mapping[str, Any]) -> None:
    """Show training metrics: in the bar of a terminal, or as a line of a log."""
    self.latest = dict(values)
    rate = values.get('tokens_per_second')
    parts = [self.format_loss(values)]
    if rate and self.left:
      parts.append(f'{self.left} left')
    if 'first' in values:
      parts.append(f'compiled and done in {tqdm.format_interval(round(values["first"]))}')
    if values['skipped']:
      parts.append(f'{values["skipped"]:,} skipped')
    if rate:
      parts.append(f'{rate:,.0f} tokens/s')
    if 'mfu' in values:
      parts.append(f'MFU {values["mfu"]:.1%}')
    if 'waiting' in values:
      parts.append(f'waiting for data {values["waiting"]:.0%}')
    if self.draws:
      total = f'{self.config.train.steps}'
      used = len(f'100%|| {total}/{total} 00:00:00, ') + BAR_WIDTH
      self.bar.set_postfix_str(join_within(parts, LINE_WIDTH - used))
    elif self.leads:
      steps = self.config.train.steps
      start = f'step {done:,} of {steps:,} ({done / steps:.0%}): '
      line = start + join_within(parts, LINE_WIDTH - len(start))
      print(line, file=sys.stderr, flush=True)

  def format_loss(self, values: Mapping[str, Any]) -> str:
    """Format the training loss, next to the held-out loss of the same objective if there is one."""
    if self.heldout is None:
      name = next(iter(self.config.training_objective.terms), '')
      text = ''
    else:
      name, text = self.heldout
    if name in values and name != 'loss':
      called = metric_names.term_name(name)
      loss = f'{called} loss {values[name]:.3f}'
      return f'{loss} (held-out {text})' if text else loss
    loss = f'loss {values["loss"]:.3f}'
    return f'{loss}, held-out {metric_names.display_name(name)} {text}' if text else loss

  @contextlib.contextmanager
  def pause_clock(self):
    """Exclude the time of what is done meanwhile, such as an evaluation, from that of the steps."""
    jax.block_until_ready(self.pending[-1:])
    began = time.time()
    yield
    self.since += time.time() - began

  def log_heldout(self, done: int, values: dict[str, float]) -> None:
    """Write the held-out metrics after `done` steps."""
    if self.writer and values:
      self.writer.write(done, 'heldout', values)
    format_metric = self.config.training_objective.reporting.format_metric
    for name in list(values)[:1]:
      self.heldout = name, format_metric(name, values[name])
    if not self.leads or not values:  # a run without held-out data has no metrics
      return
    start = f'step {done:,}  held-out '
    line = metric_names.format_line(values, format_metric)
    self.bar.write(textwrap.fill(
        start + line, LINE_WIDTH, subsequent_indent=' ' * len(start), break_long_words=False,
        break_on_hyphens=False))
    if self.draws and self.latest:
      self.show(done, self.latest)  # with the new held-out loss

  def close(self) -> None:
    """Close the progress bar and the writers."""
    self.bar.close()
    if self.writer:
      self.writer.close()


def join_within(parts: Sequence[str], width: int) -> str:
  """Join the first of some parts that fit the width, with commas; the very first always counts.

  >>> join_within(['loss 2.0', '0:10 left', '1,000 tokens/s', 'MFU 40%'], 40)
  'loss 2.0, 0:10 left, 1,000 tokens/s'
  """
  line = parts[0]
  for part in parts[1:]:
    if len(line) + 2 + len(part) > width:
      break
    line += f', {part}'
  return line
