"""python -m plm_jax compare: runs beside each other, their figures, options, curves, and what they say."""
from collections.abc import Mapping, Sequence
import shutil
import statistics
import sys
from typing import Any, Literal
from xml.etree.ElementTree import Element

import tyro

from plm_jax import api, config_file, storage
from plm_jax.cli import plots, report
from plm_jax.cli.curves import Curves, History, finite, history
from plm_jax.cli.options import command
from plm_jax.cli.plots import Curve
from plm_jax.cli.report import OTHER, describe, el, number, question, show
from plm_jax.errors import ConfigError, Expected
from plm_jax.storage import reachable

COLOURS = (36, 33, 35, 32, 34, 31, 37, 90)  # of a terminal, SGR codes
MARKS = 'abcdefgh'
WRITTEN = 16  # tokens that a decoder goes on with
Table = Mapping[str, Sequence[str]]
"""name of a line -> what it says of each run"""


@command()
def compare_command(
    runs: tyro.conf.Positional[tuple[str, ...]], prompts: tuple[str, ...] = (), by: Literal['step', 'tokens'] = 'step',
    page: str = '') -> None:
  """Lays runs beside each other: figures, options that differ, curves of what was held out, and what they say.

  Args:
    runs: folders of two runs to eight, on a disk or in a bucket
    prompts: sentences with a [MASK], or beginnings of texts, which every model is asked
    by: what curves are drawn over: steps, or the tokens that were read up to them
    page: .html file for the same, with all curves
  """
  if not 2 <= len(runs) <= len(MARKS):
    raise ConfigError(f'two runs to {len(MARKS)} are laid beside each other, got {len(runs)}')
  reachable.check_reachable({page: 'write'})
  found = [history(run) for run in runs]
  names = named([one.folder for one in found])
  tables = {'Figures': figures(found), 'Options that differ': options(found)}
  if prompts:
    tables['What they say'] = answers(runs, prompts)
  for title, table in tables.items():
    if table:
      print('\n'.join([*written(title, names, table), '']))
  width, coloured = shutil.get_terminal_size((100, 40)).columns, sys.stdout.isatty()
  curves = together(found, by)
  for name in [name for name in curves if describe(name, curves).rank <= 2 and '/' not in name][:3]:
    metric = describe(name, curves)
    lines = [Curve(names[at], points, MARKS[at], COLOURS[at]) for at, points in curves[name].items()]
    print('\n'.join([*plots.plot(f'Held-out {metric.title.lower()}', lines, metric, (width, 12), coloured), '']))
  if page:
    storage.write(page, drawn(names, tables, curves, by))
    print(f'page: {page}')


def named(folders: Sequence[str]) -> list[str]:
  """Names runs by the last part of their folders, or by all of it where two would be alike."""
  last = [folder.rstrip('/').rpartition('/')[2] for folder in folders]
  return [name if last.count(name) == 1 else folder for name, folder in zip(last, folders, strict=True)]


def figures(found: Sequence[History]) -> dict[str, list[str]]:
  """Returns what each run has come to: the last held-out figures, how far it is, how fast it was."""
  told = {'steps': [f'{one.step:,}' for one in found],
          'tokens read': [f'{one.tokens(one.step):,}' if one.tokens(one.step) else '' for one in found]}
  curves = {name: {} for one in found for name in one.curves}
  heldout = [name for name in curves if any(one.last(name) is not None for one in found)]
  for name in sorted(heldout, key=lambda name: (describe(name, curves).rank, name)):
    metric, values = describe(name, curves), [one.last(name) for one in found]
    asked = question(name.removesuffix('_baseline'))
    called = f'{asked} majority baseline' if name.endswith('_baseline') else metric.title
    told[f'held-out {called[0].lower()}{called[1:]}'] = [
        '' if value is None else show(value, metric, 4) for value in values]
  speeds = [[value for _, value in finite(one.curves.get('tokens_per_second', {}).get('train', ()))] for one in found]
  if any(speeds):
    told['tokens a second, median'] = [number(statistics.median(some)) if some else '' for some in speeds]
  return told


def options(found: Sequence[History]) -> dict[str, list[str]]:
  """Returns the options that are not the same in all runs, by their names."""
  each = [flat(config_file.to_json(one.config)) if one.config else {} for one in found]
  names = dict.fromkeys(name for some in each for name in some)
  values = {name: [some.get(name, '') for some in each] for name in names}
  return {name: row for name, row in values.items() if len({*row}) > 1 and name not in ('name', 'output', 'scale')}


def flat(value: Any, path: str = '') -> dict[str, str]:
  """Writes the values of a configuration by the names that the command line has for them."""
  inner = value.items() if isinstance(value, Mapping) else (
      enumerate(value) if isinstance(value, list) and any(isinstance(one, Mapping) for one in value) else None)
  if inner is None:
    return {path: ' '.join(map(str, value)) if isinstance(value, list) else str(value)}
  return {name: text for key, one in inner
          for name, text in flat(one, f'{path}.{key}'.lstrip('.').replace('_', '-')).items()}


def answers(runs: Sequence[str], prompts: Sequence[str]) -> dict[str, list[str]]:
  """Asks every run each prompt: what it fills into a [MASK], or how it goes on."""
  told: dict[str, list[str]] = {prompt: [] for prompt in prompts}
  for run in runs:
    try:
      trained: Any = api.load(run)
    except Expected as error:
      trained = error
    for prompt in prompts:
      told[prompt].append(answer(trained, prompt))
  return told


def answer(trained: Any, prompt: str) -> str:
  """Asks a model a prompt; what it cannot answer says why."""
  try:
    if isinstance(trained, Expected):
      raise trained
    if 'fill_mask' in trained.can:
      filled = api.fill_mask(trained, prompt, top=3)[0]
      return ' / '.join(', '.join(
          f'{piece} {probability:.0%}' if probability == probability else piece for piece, probability in some)
          for some in filled)
    return api.generate(trained, prompt, max_new=WRITTEN)[0][0].text
  except Expected as error:
    return f'({error})'


def together(found: Sequence[History], by: str) -> dict[str, dict[int, list[tuple[int, float]]]]:
  """Returns the held-out curves by the number of the run, those of losses first, over steps or tokens."""
  curves: Curves = {name: {} for one in found for name in one.curves}
  told: dict[str, dict[int, list[tuple[int, float]]]] = {}
  for name in sorted(curves, key=lambda name: (describe(name, curves).rank, name)):
    some = {}
    for at, one in enumerate(found):
      points = finite(one.curves.get(name, {}).get('heldout', ()))
      if points:
        some[at] = [(one.tokens(step), value) for step, value in points] if by == 'tokens' else points
    if some and not name.endswith('_baseline'):
      told[name] = some
  return told


def written(title: str, names: Sequence[str], table: Table) -> list[str]:
  """Writes a table: a line for each figure, a column for each run; below each other what is too long for that."""
  first = max(map(len, (title, *table)))
  widths = [max(map(len, (name, *(row[at] for row in table.values())))) for at, name in enumerate(names)]
  if first + sum(widths) + 2 * len(widths) > 160:
    return [title, *(line for name, row in table.items() for line in (
        f'  {name}', *(f'    {run}: {value}' for run, value in zip(names, row, strict=True))))]
  return [f'{title:{first}}' + ''.join(f'  {name:>{size}}' for name, size in zip(names, widths, strict=True)), *(
      f'{name:{first}}' + ''.join(f'  {value:>{size}}' for value, size in zip(row, widths, strict=True))
      for name, row in table.items())]


def drawn(names: Sequence[str], tables: Mapping[str, Table], curves: Mapping[str, Mapping[int, Any]], by: str) -> str:
  """Writes the page."""
  sections = [el('section', el('h2', title), cells(names, table)) for title, table in tables.items() if table]
  charts = [figure(names, curves, name, by) for name in curves]
  return report.document(' · '.join(names), 'plm_jax · runs beside each other', [
      *sections, el('section', el('h2', 'What was held out'), el('div', *charts, class_='charts')) if charts else None],
      CSS)


def cells(names: Sequence[str], table: Table) -> Element:
  """Makes a table of the page."""
  return el('table', el('tr', el('th', ''), *(el('th', name, scope='col', class_=f'run-{at}')
                                              for at, name in enumerate(names))),
            *(el('tr', el('th', name, scope='row'), *(el('td', value) for value in row))
              for name, row in table.items()), class_='beside')


def figure(names: Sequence[str], curves: Mapping[str, Mapping[int, Any]], name: str, by: str) -> Element:
  """Draws the curves of one figure."""
  metric = describe(name, curves)
  lines = {f'run-{at}': points for at, points in curves[name].items()}
  called = {f'run-{at}': run for at, run in enumerate(names)}
  top = report.usual(sorted(value for points in lines.values() for _, value in points))
  legend = (el('span', el('i', class_=line), called[line]) for line in lines)
  unit = '' if metric.rank == OTHER else metric.unit
  return el('figure', el('figcaption', el('b', metric.title), el('span', unit, class_='unit'),
                         el('span', *legend, class_='legend')), report.chart(lines, top, (), metric, called, by))


PAINTS = ('#1d5fbf', '#b3621b', '#7a3fb0', '#23783a', '#b02a5b', '#0f7f86', '#6b6f2a', '#666b73')
CSS = ''.join(f'.run-{at}.line {{ stroke: {paint}; }} .legend .run-{at} {{ border-color: {paint}; }} '
              f'circle.run-{at}, .value.run-{at} {{ fill: {paint}; }} th.run-{at} {{ border-bottom: 3px solid {paint}; '
              f'color: var(--ink); font-weight: 600; }}\n' for at, paint in enumerate(PAINTS)) + """
.beside th:first-child { width: 260px; } .beside td { white-space: pre-wrap; }
"""
