"""Rows of a batch (`lanes`) as they are shown: in a terminal, and on a page."""
from collections.abc import Iterator, Mapping, Sequence
import itertools
import unicodedata
from xml.etree.ElementTree import Element

import numpy as np

from plm_jax.cli import report
from plm_jax.cli.lanes import Column, Lane, Row
from plm_jax.cli.report import el

COLOURS: Mapping[str, str] = {
    'special': '2', 'mask': '30;43', 'same': '30;42', 'other': '97;41', 'next': ''}  # of a terminal, SGR codes
LEGEND = {'mask': 'a mask', 'same': 'predicted, and left as it is',
          'other': 'predicted, and another token stands there', 'special': 'special token'}
NAME = 17  # characters of the names of lanes
CELL = 7  # pixels of a square in the picture of who sees whom, at most


def lines(rows: Sequence[Row], width: int, coloured: bool) -> Iterator[str]:
  """Yields the lines of rows for a terminal of so many characters."""
  if coloured:
    yield 'colours: ' + ', '.join(paint(f' {name} ', COLOURS[kind]) for kind, name in LEGEND.items())
  for row in rows:
    yield ''
    yield row.title
    for name, value in row.facts.items():
      yield f'  {name:{NAME - 2}}{value}'
    for lane in row.lanes:
      yield from folded(lane, width, coloured)


def folded(lane: Lane, width: int, coloured: bool) -> Iterator[str]:
  """Yields a lane, as many tokens a line as there is room for, numbers and what is asked below each."""
  asked = any(column.target for column in lane.columns)
  names = [lane.title, *(['to predict'] if asked else []), *lane.names]
  def cells(column: Column) -> list[str]:
    return [column.piece, *([column.target] if asked else []), *column.numbers]
  room, begin = max(20, width - NAME), 0
  sizes = [max(map(wide, cells(column))) + 1 for column in lane.columns]
  while begin < len(sizes):
    filled = [*itertools.accumulate(sizes[begin:])]
    end = begin + max(1, sum(size <= room for size in filled))
    for number, name in enumerate(names):
      written = []
      for column, size in zip(lane.columns[begin:end], sizes[begin:end], strict=True):
        cell = cells(column)[number]
        shown = paint(cell, COLOURS.get(column.kind, '')) if coloured and not number else cell
        written.append(shown + ' ' * (size - wide(cell)))
      if begin == 0 or any(cells(column)[number] for column in lane.columns[begin:end]):
        yield f'  {name if begin == 0 or number else "":{NAME - 2}}{"".join(written)}'.rstrip()
    begin = end
  if lane.padding:
    yield f'  {"":{NAME - 2}}and {lane.padding} of padding'


def paint(text: str, code: str) -> str:
  """Colours a text."""
  return f'\x1b[{code}m{text}\x1b[0m' if code and text else text


def wide(text: str) -> int:
  """Counts the cells of a terminal that a text takes: two for a Chinese character, none for a combining one."""
  return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in 'WF' else 1 for c in text)


def page(title: str, about: Sequence[str], rows: Sequence[Row]) -> str:
  """Writes the HTML page of rows."""
  legend = el('p', *(el('span', name, class_=f'token {kind}') for kind, name in LEGEND.items()), class_='lead')
  sections = []
  for row in rows:
    facts = [el('p', f'{name}: ', el('b', value), class_='missed') for name, value in row.facts.items()]
    lanes = [part for lane in row.lanes for part in (el('h3', lane.title), cells_of(lane))]
    sight = [] if row.sees is None else [
        el('h3', 'Who sees whom'), el('p', 'A line for each token that reads, a column for each that it sees.',
                                      class_='lead'), picture(row.sees)]
    sections.append(el('section', el('h2', row.title), *facts, *lanes, *sight))
  return report.document(title, 'plm_jax · what the model is given', [
      *(el('p', line, class_='lead') for line in about), legend, *sections], CSS)


def cells_of(lane: Lane) -> Element:
  """Makes the tokens of a lane, each above what is asked and its numbers."""
  asked = any(column.target for column in lane.columns)
  found = []
  for column in lane.columns:
    below = [el('span', column.target or '\N{NO-BREAK SPACE}', class_='target')] if asked else []
    below += [el('span', value or '\N{NO-BREAK SPACE}', class_='number', title=name)
              for name, value in zip(lane.names, column.numbers, strict=True)]
    found.append(el('span', el('span', column.piece, class_=f'token {column.kind}'.strip()), *below, class_='column'))
  head = [el('span', '\N{NO-BREAK SPACE}', class_='token')]
  head += [el('span', 'to predict', class_='target')] if asked else []
  head += [el('span', name, class_='number') for name in lane.names]
  end = [el('span', f'and {lane.padding} of padding', class_='unit')] if lane.padding else []
  return el('div', *([el('span', *head, class_='column names')] if len(head) > 1 else []), *found, *end, class_='lane')


def picture(sees: np.ndarray) -> Element:
  """Draws who sees whom, bool [L, L], a square for each pair."""
  size = len(sees)
  cell = max(2, min(CELL, 640 // size))
  svg = el('svg', viewBox=f'0 0 {size * cell} {size * cell}', role='img', aria_label='Who sees whom',
           style=f'width:{size * cell}px;max-width:100%', class_='sight')
  svg.append(el('rect', width=size * cell, height=size * cell, class_='blind'))
  for line, row in enumerate(sees):
    edges = np.flatnonzero(np.diff(np.concatenate([[0], row.astype(np.int8), [0]])))
    for start, stop in edges.reshape(-1, 2).tolist():
      svg.append(el('rect', x=start * cell, y=line * cell, width=(stop - start) * cell, height=cell, class_='seen'))
  return svg


CSS = """
.lane { display: flex; flex-wrap: wrap; gap: 6px 2px; align-items: flex-start; }
.column { display: inline-flex; flex-direction: column; align-items: center; font-size: 13px; line-height: 1.35; }
.column.names { align-items: flex-end; padding-right: 8px; color: var(--soft); }
.token { padding: 0 4px; border-radius: 3px; border: 1px solid transparent; white-space: pre; }
.column > .token { background: var(--card); border-color: var(--rule); }
.names > .token { border: 0; background: none; }
.lead .token { margin-right: 10px; }
.token.special { color: var(--soft); } .token.mask { background: var(--mark); border-color: var(--amber); }
.token.same { border-color: var(--green); color: var(--green); }
.token.other { border-color: var(--amber); color: var(--amber); }
.token.next { border-color: var(--rule); } .target { color: var(--blue); font-weight: 600; }
.names > .target { font-weight: 400; } .number { color: var(--soft); font-size: 11px; }
.sight { display: block; margin-top: 8px; } .blind { fill: var(--card); stroke: var(--rule); }
.seen { fill: var(--bar); }
"""
