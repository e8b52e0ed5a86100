"""Implement `python -m plm_jax compare`: metrics, options, curves and outputs of several runs."""
from collections.abc import Mapping, Sequence
import math
import shutil
import statistics
import sys
from typing import Any, Literal
from xml.etree.ElementTree import Element

import tyro

from plm_jax import storage
from plm_jax.api import models
from plm_jax.cli import plots
from plm_jax.cli.options import command
from plm_jax.cli.plots import Curve
from plm_jax.config import serialization
from plm_jax.config.run import RunConfig
from plm_jax.errors import ConfigError, UserError
from plm_jax.report import html
from plm_jax.report.history import History, history
from plm_jax.report.html import el
from plm_jax.report.metric_display import (
  OTHER_RANK,
  axis_top,
  describe_metric,
  format_number,
  format_value,
  lower_title,
  objective_title,
)

COLORS = (36, 33, 35, 32, 34, 31, 37, 90)
"""SGR codes of the terminal colors of runs"""
MARKS = 'abcdefgh'
CONTINUATION_TOKENS = 16
"""number of tokens that a decoder generates for a prompt"""
ComparisonTable = Mapping[str, Sequence[str]]
"""name of a line -> its value for each run"""
HeldoutCurves = dict[str, dict[int, list[tuple[int, float]]]]
"""metric -> number of the run -> points"""


@command()
def compare_command(
    runs: tyro.conf.Positional[tuple[str, ...]], prompts: tuple[str, ...] = (),
    by: Literal['step', 'tokens'] = 'step', page: str = '') -> None:
  """Compares runs: metrics, options that differ, held-out curves, and outputs for prompts.

  Args:
    runs: two to eight run folders, local or gs://
    prompts: prompts for all models: sentences with [MASK], or beginnings of texts
    by: x-axis of the curves: training steps, or tokens
    page: also write the comparison, with all curves, to this HTML file
  """
  if not 2 <= len(runs) <= len(MARKS):
    raise ConfigError(f'compare needs 2 to {len(MARKS)} runs, got {len(runs)}')
  found = [history(run) for run in runs]
  names = run_names([one.folder for one in found])
  tables = {'Metrics': last_metrics(found), 'Options that differ': differing_options(found)}
  if prompts:
    tables['Outputs'] = answer_prompts(runs, prompts)
  for title, table in tables.items():
    if table:
      print('\n'.join([*format_table(title, names, table), '']))
  curves = heldout_curves(found, by)
  print_curves(names, curves)
  if page:
    storage.write(page, render_page(names, tables, curves, by))
    print(f'page: {page}')


def print_curves(names: Sequence[str], curves: HeldoutCurves) -> None:
  """Print the curves of the first three losses and accuracies."""
  width, coloured = shutil.get_terminal_size((100, 40)).columns, sys.stdout.isatty()
  metrics = {name: describe_metric(name, curves) for name in curves if '/' not in name}
  shown = [(name, metric) for name, metric in metrics.items() if metric.rank <= 2]
  for name, metric in shown[:3]:
    lines = [Curve(names[at], points, MARKS[at], COLORS[at])
             for at, points in curves[name].items()]
    title = f'Held-out {lower_title(metric.title)}'
    for line in plots.plot(title, lines, metric, (width, 12), coloured):
      print(line)
    print()


def run_names(folders: Sequence[str]) -> list[str]:
  """Return the last part of each folder, or the whole folder where that is not unique."""
  last = [folder.rstrip('/').rpartition('/')[2] for folder in folders]
  pairs = zip(last, folders, strict=True)
  return [name if last.count(name) == 1 else folder for name, folder in pairs]


def metric_order(found: Sequence[History]) -> list[str]:
  """Return the names of all metrics: losses first, then accuracies, then others."""
  names = dict.fromkeys(name for one in found for name in one.curves)
  return sorted(names, key=lambda name: (describe_metric(name, names).rank, name))


def last_metrics(found: Sequence[History]) -> dict[str, list[str]]:
  """Return steps, tokens, last held-out metrics and speed of each run."""
  read = [one.tokens(one.step) for one in found]
  speeds = [[value for _, value in one.points('tokens_per_second', 'train')] for one in found]
  table = {'steps': [f'{one.step:,}' for one in found],
           'tokens read': [f'{tokens:,}' if tokens else '' for tokens in read]}
  names = metric_order(found)
  for name in names:
    values = [one.last(name) for one in found]
    if all(value is None for value in values):
      continue
    metric = describe_metric(name, names)
    title = metric.title
    if name.endswith('_baseline'):
      title = f'{objective_title(name.removesuffix("_baseline"))} majority-class baseline'
    table[f'held-out {lower_title(title)}'] = [
        '' if value is None else format_value(value, metric, 4) for value in values]
  if any(speeds):
    table['tokens per second, median'] = [
        format_number(statistics.median(some)) if some else '' for some in speeds]
  return table


def differing_options(found: Sequence[History]) -> dict[str, list[str]]:
  """Return the options that differ between runs, by name."""
  each = [option_texts(one.config) if one.config else {} for one in found]
  table = {}
  for name in dict.fromkeys(name for some in each for name in some):
    values = [some.get(name, '') for some in each]
    if len(set(values)) > 1 and name not in ('name', 'output', 'scale'):
      table[name] = values
  return table


def option_texts(config: RunConfig) -> dict[str, str]:
  """Return the options of a run with their values as texts."""
  values = serialization.flatten(serialization.to_json(config))
  return {name.replace('_', '-'): ' '.join(map(str, value)) if isinstance(value, list)
          else str(value) for name, value in values.items()}


def answer_prompts(runs: Sequence[str], prompts: Sequence[str]) -> dict[str, list[str]]:
  """Return the output of every run for each prompt: filled masks, or a continuation."""
  table: dict[str, list[str]] = {prompt: [] for prompt in prompts}
  for run in runs:
    try:
      trained: Any = models.load(run)
    except UserError as error:
      trained = error
    for prompt in prompts:
      table[prompt].append(answer_prompt(trained, prompt))
  return table


def answer_prompt(trained: Any, prompt: str) -> str:
  """Return the output of a model for a prompt, or the error, also that of loading the model."""
  try:
    if isinstance(trained, UserError):
      raise trained
    if 'fill_mask' not in trained.capabilities:
      return models.generate(trained, prompt, max_new=CONTINUATION_TOKENS)[0][0].text
    masks = []
    for candidates in models.fill_mask(trained, prompt, top=3)[0]:
      masks.append(', '.join(
          token if math.isnan(share) else f'{token} {share:.0%}' for token, share in candidates))
    return ' / '.join(masks)
  except UserError as error:
    return f'({error})'


def heldout_curves(found: Sequence[History], by: str) -> HeldoutCurves:
  """Return the held-out curves over steps or tokens, losses first."""
  curves: HeldoutCurves = {}
  for name in metric_order(found):
    if name.endswith('_baseline'):
      continue
    some = {}
    for at, one in enumerate(found):
      points = one.points(name)
      if by == 'tokens':
        points = [(one.tokens(step), value) for step, value in points]
      if points:
        some[at] = points
    if some:
      curves[name] = some
  return curves


def format_table(title: str, names: Sequence[str], table: ComparisonTable) -> list[str]:
  """Return the lines of a table with one column per run; below each other if it is too wide."""
  first = max(map(len, (title, *table)))
  widths = [max(map(len, column)) for column in zip(names, *table.values(), strict=True)]
  if first + sum(widths) + 2 * len(widths) > 160:
    lines = [title]
    for name, row in table.items():
      lines.append(f'  {name}')
      lines += [f'    {run}: {value}' for run, value in zip(names, row, strict=True)]
    return lines
  lines = []
  for head, row in [(title, names), *table.items()]:
    cells = [f'  {value:>{size}}' for value, size in zip(row, widths, strict=True)]
    lines.append(f'{head:{first}}' + ''.join(cells))
  return lines


def render_page(
    names: Sequence[str], tables: Mapping[str, ComparisonTable], curves: HeldoutCurves, by: str
) -> str:
  """Return the HTML page of the comparison."""
  parts = []
  for title, table in tables.items():
    if table:
      parts.append(el('section', el('h2', title), html_table(names, table)))
  if curves:
    charts = el('div', *(run_figure(names, curves, name, by) for name in curves), class_='charts')
    parts.append(el('section', el('h2', 'Held-out metrics'), charts))
  title = ' · '.join(names)
  return html.render_document(title, 'plm_jax · comparison of runs', parts, CSS)


def html_table(names: Sequence[str], table: ComparisonTable) -> Element:
  """Return a table of the page."""
  found = html.value_table(names, table, 'compared')
  for at, column in enumerate(found[0][1:]):
    column.set('class', f'run-{at}')
  return found


def run_figure(names: Sequence[str], curves: HeldoutCurves, name: str, by: str) -> Element:
  """Draw the curves of one metric, one line per run."""
  metric = describe_metric(name, curves)
  lines = {f'run-{at}': points for at, points in curves[name].items()}
  called = {f'run-{at}': run for at, run in enumerate(names)}
  values = [value for points in lines.values() for _, value in points]
  unit = '' if metric.rank == OTHER_RANK else metric.unit
  chart = html.draw_chart(lines, axis_top(sorted(values)), (), metric, called, by)
  return html.chart_figure(metric.title, unit, {line: called[line] for line in lines}, chart)


RUN_COLORS = (
    '#1d5fbf', '#b3621b', '#7a3fb0', '#23783a', '#b02a5b', '#0f7f86', '#6b6f2a', '#666b73')
CSS = """
.compared th:first-child { width: 260px; } .compared td { white-space: pre-wrap; }
"""
for _at, _color in enumerate(RUN_COLORS):
  CSS += (f'.run-{_at}.line {{ stroke: {_color}; }}\n'
          f'.legend .run-{_at} {{ border-color: {_color}; }}\n'
          f'circle.run-{_at}, .value.run-{_at} {{ fill: {_color}; }}\n'
          f'th.run-{_at} {{ border-bottom: 3px solid {_color}; color: var(--ink); '
          'font-weight: 600; }\n')
