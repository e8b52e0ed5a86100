"""python -m plm_jax watch: the curves of a run in the terminal, while it runs, here or elsewhere."""
from collections.abc import Iterator, Sequence
import shutil
import sys
import time

import tyro

from plm_jax import storage
from plm_jax.cli import plots
from plm_jax.cli.curves import History, finite, history
from plm_jax.cli.options import command
from plm_jax.cli.plots import Curve
from plm_jax.cli.report import NAMES, describe, number
from plm_jax.errors import ConfigError

GREY, BLUE = 90, 36
LOOKS = {'heldout': ('●', BLUE)}  # of a split: its mark and its colour
SHOWN = 2  # the highest rank of the charts that are shown where none are named: losses and accuracies
LEAST = 5  # lines of a chart


@command(every='[1, 86400]')
def watch_command(run: tyro.conf.Positional[str], figures: tuple[str, ...] = (), every: float = 10, once: bool = False
                  ) -> None:
  """Shows the curves of a run in the terminal, anew as it goes on; Ctrl-C ends it.

  Args:
    run: folder of a run, on a disk or in a bucket
    figures: names of those in metrics.jsonl that are drawn; none: losses and accuracies
    every: seconds between two looks
    once: look once; so does what is no terminal
  """
  once = once or not sys.stdout.isatty()
  while True:
    found = history(run)
    size = shutil.get_terminal_size((100, 40))
    shown = '\n'.join(screen(found, figures, size.columns, size.lines, sys.stdout.isatty()))
    print(shown if once else f'\x1b[2J\x1b[H{shown}', flush=True)
    if once or finished(found):
      return
    try:
      time.sleep(every)
    except KeyboardInterrupt:
      return


def screen(found: History, figures: Sequence[str], width: int, height: int, coloured: bool) -> Iterator[str]:
  """Yields the lines that show a run. Raises ConfigError for a figure that it does not have."""
  curves = found.curves
  if unknown := [name for name in figures if name not in curves]:
    raise ConfigError(
        f'{found.folder} has no {", ".join(unknown)}: it has {", ".join(sorted(curves)) or "nothing yet"}')
  metrics = {name: describe(name, curves) for name in figures or curves}
  names = list(figures) or sorted((name for name in metrics if metrics[name].rank <= SHOWN and '/' not in name),
                                  key=lambda name: (metrics[name].rank, name))
  yield headline(found)
  if not names:
    yield 'there is nothing to draw yet'
    return
  each = max(LEAST, (height - 2) // len(names) - 4)
  for name in names:
    yield ''
    unit = f', {metrics[name].unit}' if metrics[name].unit else ''
    lines = [Curve(NAMES.get(split, split), finite(points), *LOOKS.get(split, ('', GREY)))
             for split, points in sorted(curves[name].items(), reverse=True)]
    yield from plots.plot(f'{metrics[name].title}{unit}', lines, metrics[name], (width, each), coloured)


def headline(found: History) -> str:
  """Says how far a run is, how fast, and how long ago it has written."""
  config, step = found.config, found.step
  said = [f'{found.folder}: step {step:,}' + (
      f' of {config.train.steps:,} ({step / config.train.steps:.0%})' if config else '')]
  rate = found.last('tokens_per_second', 'train')
  if rate:
    said.append(f'{number(rate)} tokens/s')
    if config and (left := found.tokens(config.train.steps) - found.tokens(step)) > 0:
      said.append(f'{spell(left / rate)} to go')
  for name, called in (('mfu', 'MFU'), ('waiting', 'waiting for data')):
    if (value := found.last(name, 'train')) is not None:
      said.append(f'{called} {value:.1%}')
  if not finished(found):
    path = storage.path_of(found.folder) / 'metrics.jsonl'
    with storage.explained(path, 'read'):
      said.append(f'written {spell(max(0.0, time.time() - path.stat().mtime))} ago')
  return ', '.join(said)


def finished(found: History) -> bool:
  """Tells whether a run has made its last step."""
  return bool(found.config) and found.step >= found.config.train.steps


def spell(seconds: float) -> str:
  """Writes a time in its two largest units.

  >>> spell(59.2), spell(3723), spell(100_000)
  ('59 s', '1 h 2 min', '1 d 3 h')
  """
  units = (('d', 86400), ('h', 3600), ('min', 60), ('s', 1))
  first = next((n for n, (_, size) in enumerate(units) if seconds >= size), 3)
  parts, left = [], int(seconds)
  for name, size in units[first:first + 2]:
    count, left = divmod(left, size)
    parts += [f'{count} {name}'] if count or not parts else []
  return ' '.join(parts)
