"""Hyperparameter sweeps: a fine-tuning run for every combination of values, and a table of them.

    --sweep learning-rate=1e-5,2e-5,3e-5 --sweep batch=16,32 --seeds=3

Each combination has a folder in the run's folder. `sweep.json` there keeps the results of finished
runs, so that the same command continues an interrupted sweep.
"""
from collections.abc import Callable, Mapping, Sequence
import itertools
import json
import math
import statistics
from typing import NamedTuple

import jax

from plm_jax import storage
from plm_jax.cli import compare, options, work_identity
from plm_jax.config import serialization
from plm_jax.config.run import FinetuneRun
from plm_jax.errors import ConfigError
from plm_jax.report import html
from plm_jax.report.html import el
from plm_jax.storage.digests import digest_json

NAMES = {
    'learning-rate': 'optim.peak', 'lr': 'optim.peak', 'batch': 'train.phases.0.batch',
    'batch-size': 'train.phases.0.batch', 'epochs': 'data.epochs', 'warmup': 'data.warmup',
    'length': 'train.phases.0.length', 'weight-decay': 'optim.weight-decay',
    'dropout': 'model.block.dropout', 'layer-decay': 'optim.layer-decay'}
"""short names of options"""
PROGRAM_OPTIONS = ('seed', 'seeds', 'output', 'dev', 'mode', 'sweep')
"""options that a sweep cannot vary"""
MAX_RUNS = 1000
FILE, PAGE = 'sweep.json', 'sweep.html'


class Setting(NamedTuple):
  """An option with the values to try."""

  name: str
  """as the user writes it"""
  option: str
  values: tuple[str, ...]


class Combination(NamedTuple):
  """One value for each option."""

  name: str
  """such as 'learning-rate=1e-5 batch=16', which is the name of its folder, too"""
  args: tuple[str, ...]
  """arguments of the command line"""


class SweepResult(NamedTuple):
  """The metric of the seeds of a combination."""

  name: str
  values: dict[int, float]
  """by seed"""

  @property
  def mean(self) -> float:
    """Mean over the seeds."""
    return statistics.mean(self.values.values())

  @property
  def deviation(self) -> float:
    """Standard deviation over the seeds; NaN of a single one."""
    return statistics.stdev(self.values.values()) if len(self.values) > 1 else math.nan


def pop_settings(args: Sequence[str]) -> tuple[list[Setting], list[str]]:
  """Remove all `--sweep NAME=VALUE,VALUE` from the arguments -> (settings, other arguments).

  Raises:
    ConfigError: an argument has no values, or names an option that cannot be varied.
  """
  texts, others = options.pop_values('--sweep', args)
  settings = [parse_setting(text) for text in texts]
  varied = [setting.option for setting in settings]
  if len({*varied}) < len(varied):
    raise ConfigError(f'--sweep names an option twice: {", ".join(varied)}')
  return settings, others


def parse_setting(text: str) -> Setting:
  """Parse NAME=VALUE,VALUE. Raises ConfigError."""
  name, _, values = text.partition('=')
  name = name.removeprefix('--')
  parts = [part.strip() for part in values.split(',')]
  if not name or not all(parts):
    raise ConfigError('--sweep takes an option and its values, such as learning-rate=1e-5,2e-5, '
                      f'got {text!r:.80}')
  if len({*parts}) < len(parts):
    raise ConfigError(f'--sweep {text}: a value occurs twice')
  if name in PROGRAM_OPTIONS:
    raise ConfigError(f'--sweep cannot vary --{name}; --seeds repeats each combination')
  return Setting(name, NAMES.get(name, name), tuple(parts))


def combine(settings: Sequence[Setting]) -> list[Combination]:
  """Return all combinations, the last option varying fastest. Raises ConfigError for too many."""
  choices = [setting.values for setting in settings]
  count = math.prod(map(len, choices))
  if count > MAX_RUNS:
    raise ConfigError(f'--sweep has {count:,} combinations, more than {MAX_RUNS:,}')
  found = []
  for values in itertools.product(*choices):
    pairs = list(zip(settings, values, strict=True))
    name = ' '.join(f'{setting.name}={value}' for setting, value in pairs)
    args = tuple(f'--{setting.option}={value}' for setting, value in pairs)
    found.append(Combination(name, args))
  return found


class SweepLog:
  """The results of finished runs, in sweep.json."""

  def __init__(self, folder: str):
    """Read the results of an interrupted sweep. Raises UserError for a damaged file."""
    self.path = storage.resolve_path(folder) / FILE
    self.results: dict[str, dict[str, float]] = {}
    if self.path.exists():
      self.results = storage.read_json(self.path)

  def find(self, config: FinetuneRun) -> dict[str, float] | None:
    """Return the metrics of a finished run of the same configuration on the same data.

    None: there is none.
    """
    return self.results.get(run_digest(config))

  def add(self, config: FinetuneRun, metrics: Mapping[str, float]) -> None:
    """Keep the metrics of a run."""
    self.results[run_digest(config)] = dict(metrics)
    if jax.process_index() == 0:
      storage.write(self.path, json.dumps(self.results, indent=1) + '\n')


def run_digest(config: FinetuneRun) -> str:
  """Return a digest of a run's configuration and of the content of its data, by which its result is
  found again."""
  content = work_identity.digest_content((*config.data.train, *config.data.dev))
  return digest_json([serialization.to_json(config), content])[:16]


def rank_results(
    results: Sequence[SweepResult], higher_is_better: bool) -> list[SweepResult]:
  """Sort combinations by their means, the best first."""
  return sorted(results, key=lambda one: -one.mean if higher_is_better else one.mean)


def format_table(
    metric: str, ranked: Sequence[SweepResult], format_value: Callable[[float], str]) -> list[str]:
  """Return the lines of the table of combinations, the best first."""
  rows = {one.name: cells(one, format_value) for one in ranked}
  return compare.format_table('combination', header(metric), rows)


def header(metric: str) -> tuple[str, ...]:
  """Return the titles of the columns."""
  return f'mean {metric}', 'deviation', 'range', 'seeds'


def cells(one: SweepResult, format_value: Callable[[float], str]) -> tuple[str, ...]:
  """Return the cells of a combination."""
  deviation = '' if math.isnan(one.deviation) else format_value(one.deviation)
  values = list(one.values.values())
  spread = f'{format_value(min(values))} to {format_value(max(values))}'
  return format_value(one.mean), deviation, spread, str(len(values))


def write_page(
    folder: str, metric: str, ranked: Sequence[SweepResult], format_value: Callable[[float], str]
) -> str:
  """Write the table as an HTML page, and return its path."""
  rows = {}
  for one in ranked:
    seeds = ', '.join(f'{seed}: {format_value(value)}' for seed, value in one.values.items())
    rows[one.name] = [*cells(one, format_value), seeds]
  table = html.value_table((*header(metric), 'by seed'), rows, 'compared')
  section = el('section', el('h2', f'Combinations by {metric}, the best first'), table)
  path = storage.resolve_path(folder) / PAGE
  storage.write(path, html.render_document(folder, 'plm_jax · sweep', [section], ''))
  return str(path)
