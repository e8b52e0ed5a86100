"""Implement `python -m plm_jax watch`: show the curves of a run in the terminal while it runs."""
from collections.abc import Iterator, Sequence
import shutil
import signal
import sys
import time

import tyro

from plm_jax import errors, storage
from plm_jax.cli import plots
from plm_jax.cli.options import command
from plm_jax.cli.plots import Curve
from plm_jax.errors import ConfigError
from plm_jax.report.history import History, finite_points, history
from plm_jax.report.metric_display import CURVE_NAMES, describe_metric, format_number

GREY, BLUE = 90, 36
SPLIT_STYLES = {'heldout': ('●', BLUE)}
"""mark and color of a split; others are grey lines"""
MAX_RANK = 2
"""highest rank of metrics that are shown if none are named: losses and accuracies"""
MIN_LINES = 5
"""fewest lines of a chart"""


@command(every='[1, 86400]')
def watch_command(
    run: tyro.conf.Positional[str], figures: tuple[str, ...] = (), every: float = 10,
    once: bool = False) -> None:
  """Shows the curves of a run in the terminal, and updates them until Ctrl-C.

  Args:
    run: run folder, local or gs://
    figures: metrics in metrics.jsonl to draw. Default: losses and accuracies
    every: seconds between updates
    once: draw once and exit; this is the default if the output is not a terminal
  """
  once = once or not sys.stdout.isatty()
  while True:
    found = history(run)
    size = shutil.get_terminal_size((100, 40))
    lines = render_screen(found, figures, size.columns, size.lines, sys.stdout.isatty())
    shown = '\n'.join(lines)
    print(shown if once else f'\x1b[2J\x1b[H{shown}', flush=True)
    if once or is_finished(found):
      return
    try:
      time.sleep(every)
    except KeyboardInterrupt:  # Ctrl-C is how to leave
      if any(number != signal.SIGINT for number in errors.SIGNALS):
        raise
      errors.SIGNALS.clear()
      return


def render_screen(
    found: History, figures: Sequence[str], width: int, height: int, coloured: bool
) -> Iterator[str]:
  """Yield the lines that show a run; raise ConfigError for a metric that it does not have."""
  curves = found.curves
  if unknown := [name for name in figures if name not in curves]:
    known = ', '.join(sorted(curves)) or 'nothing yet'
    raise ConfigError(f'{found.folder} has no {", ".join(unknown)}: it has {known}')
  metrics = {name: describe_metric(name, curves) for name in figures or curves}
  names = list(figures)
  if not names:
    names = [name for name in metrics if metrics[name].rank <= MAX_RANK and '/' not in name]
    names.sort(key=lambda name: (metrics[name].rank, name))
  yield progress_line(found)
  if not names:
    yield 'there is nothing to draw yet'
    return
  each = max(MIN_LINES, (height - 2) // len(names) - 4)
  for name in names:
    yield ''
    metric, lines = metrics[name], []
    for split, points in sorted(curves[name].items(), reverse=True):
      mark, color = SPLIT_STYLES.get(split, ('', GREY))
      lines.append(Curve(CURVE_NAMES.get(split, split), finite_points(points), mark, color))
    unit = f', {metric.unit}' if metric.unit else ''
    yield from plots.plot(f'{metric.title}{unit}', lines, metric, (width, each), coloured)


def progress_line(found: History) -> str:
  """Return the progress and speed of a run, and how long ago it has written metrics."""
  config, step = found.config, found.step
  parts = [f'{found.folder}: step {step:,}']
  if config:
    parts[0] += f' of {config.train.steps:,} ({step / config.train.steps:.0%})'
  rate = found.last('tokens_per_second', 'train')
  if rate:
    parts.append(f'{format_number(rate)} tokens/s')
  if rate and config:
    left = found.tokens(config.train.steps) - found.tokens(step)
    if left > 0:
      parts.append(f'{format_duration(left / rate)} to go')
  for name, called in (('mfu', 'MFU'), ('waiting', 'waiting for data')):
    value = found.last(name, 'train')
    if value is not None:
      parts.append(f'{called} {value:.1%}')
  if not is_finished(found):
    path = storage.resolve_path(found.folder) / 'metrics.jsonl'
    with storage.io_errors_as(path, 'read'):
      age = max(0.0, time.time() - path.stat().mtime)
    parts.append(f'written {format_duration(age)} ago')
  return ', '.join(parts)


def is_finished(found: History) -> bool:
  """Return whether a run has made its last step."""
  return bool(found.config) and found.step >= found.config.train.steps


def format_duration(seconds: float) -> str:
  """Format a time in its two largest units.

  >>> format_duration(59.2), format_duration(3723), format_duration(100_000)
  ('59 s', '1 h 2 min', '1 d 3 h')
  """
  units = (('d', 86400), ('h', 3600), ('min', 60), ('s', 1))
  first = next((n for n, (_, size) in enumerate(units) if seconds >= size), 3)
  parts, left = [], int(seconds)
  for name, size in units[first:first + 2]:
    count, left = divmod(left, size)
    if count or not parts:
      parts.append(f'{count} {name}')
  return ' '.join(parts)
