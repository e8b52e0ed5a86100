"""Draw the model inputs of `inspect` in a terminal and as an HTML page."""
from collections.abc import Iterator, Mapping, Sequence
import unicodedata
from xml.etree.ElementTree import Element

import numpy as np

from plm_jax.objectives.batch_view import BatchRow, Lane
from plm_jax.report import html
from plm_jax.report.html import el

COLORS: Mapping[str, str] = {
    'special': '2', 'mask': '30;43', 'same': '30;42', 'other': '97;41', 'next': ''}
"""SGR codes of a terminal"""
LEGEND = {'mask': 'masked', 'same': 'predicted, unchanged',
          'other': 'predicted, replaced by another token', 'special': 'special token'}
NAME_WIDTH = 17
"""width of the names of lanes in characters"""
CELL_PIXELS = 7
"""largest size of a square in the picture of an attention mask"""
NO_BREAK_SPACE = '\N{NO-BREAK SPACE}'


def terminal_lines(rows: Sequence[BatchRow], width: int, coloured: bool) -> Iterator[str]:
  """Yield the lines of rows for a terminal of `width` characters."""
  if coloured:
    legend = [color_text(f' {name} ', COLORS[kind]) for kind, name in LEGEND.items()]
    yield 'colors: ' + ', '.join(legend)
  for row in rows:
    yield ''
    yield row.title
    for name, value in row.facts.items():
      yield f'  {name:{NAME_WIDTH - 2}}{value}'
    for lane in row.lanes:
      yield from fold_lane(lane, width, coloured)


def fold_lane(lane: Lane, width: int, coloured: bool) -> Iterator[str]:
  """Yield a lane as blocks of lines: tokens, and below each its label and its numbers."""
  has_targets = any(column.target for column in lane.columns)
  names = [lane.title, 'labels', *lane.names] if has_targets else [lane.title, *lane.names]
  cells = [[column.piece, column.target, *column.numbers] if has_targets
           else [column.piece, *column.numbers] for column in lane.columns]
  sizes = [max(map(display_width, some)) + 1 for some in cells]
  room, begin = max(20, width - NAME_WIDTH), 0
  while begin < len(sizes):
    # As many tokens as fit the width, at least one.
    fit = int(np.searchsorted(np.cumsum(sizes[begin:]), room, 'right'))
    block = range(begin, begin + max(1, fit))
    for number, name in enumerate(names):
      line = ''
      for at in block:
        cell = cells[at][number]
        padding = ' ' * (sizes[at] - display_width(cell))
        if coloured and number == 0:
          cell = color_text(cell, COLORS.get(lane.columns[at].kind, ''))
        line += cell + padding
      if begin == 0 or any(cells[at][number] for at in block):
        shown = name if begin == 0 or number else ''
        yield f'  {shown:{NAME_WIDTH - 2}}{line}'.rstrip()
    begin = block.stop
  if lane.padding:
    yield f'  {"":{NAME_WIDTH - 2}}and {lane.padding} of padding'


def color_text(text: str, code: str | int) -> str:
  """Color a text for a terminal; an empty or zero SGR code leaves it as it is."""
  return f'\x1b[{code}m{text}\x1b[0m' if code and text else text


def display_width(text: str) -> int:
  """Count the terminal cells of a text: two per Chinese character, none per combining one.

  >>> [display_width(text) for text in ('中', 'e\u0301', 'ที่', 'क\u094d\u200dष')]
  [2, 1, 1, 2]
  """
  cells = 0
  for c in text:
    if unicodedata.category(c) not in ('Mn', 'Me', 'Cf'):
      cells += 1
      if unicodedata.east_asian_width(c) in ('W', 'F'):
        cells += 1
  return cells


def render_page(title: str, about: Sequence[str], rows: Sequence[BatchRow]) -> str:
  """Return the HTML page of rows, below lines about them."""
  legend = [el('span', name, class_=f'token {kind}') for kind, name in LEGEND.items()]
  parts = [el('p', line, class_='lead') for line in about] + [el('p', *legend, class_='lead')]
  for row in rows:
    facts = [el('p', f'{name}: ', el('b', value), class_='missed')
             for name, value in row.facts.items()]
    section = el('section', el('h2', row.title), *facts)
    for lane in row.lanes:
      html.extend(section, el('h3', lane.title), lane_cells(lane))
    if row.attention_mask is not None:
      lead = el('p', 'One line per query token, one column per key token that it attends to.',
                class_='lead')
      html.extend(section, el('h3', 'Attention mask'), lead,
                  draw_attention_mask(row.attention_mask))
    parts.append(section)
  return html.render_document(title, 'plm_jax · model inputs', parts, html.read_css('inputs'))


def lane_cells(lane: Lane) -> Element:
  """Return the tokens of a lane, each above its label and its numbers."""
  has_targets = any(column.target for column in lane.columns)
  head = el('span', el('span', NO_BREAK_SPACE, class_='token'), class_='column names')
  if has_targets:
    head.append(el('span', 'labels', class_='target'))
  head.extend(el('span', name, class_='number') for name in lane.names)
  div = el('div', class_='lane')
  if len(head) > 1:
    div.append(head)
  for column in lane.columns:
    token = el('span', column.piece, class_=f'token {column.kind}'.strip())
    cell = el('span', token, class_='column')
    if has_targets:
      cell.append(el('span', column.target or NO_BREAK_SPACE, class_='target'))
    for name, value in zip(lane.names, column.numbers, strict=True):
      cell.append(el('span', value or NO_BREAK_SPACE, class_='number', title=name))
    div.append(cell)
  if lane.padding:
    div.append(el('span', f'and {lane.padding} of padding', class_='unit'))
  return div


def draw_attention_mask(mask: np.ndarray) -> Element:
  """Draw an attention mask, bool [length, length], one square per pair of tokens."""
  size = len(mask)
  cell = max(2, min(CELL_PIXELS, 640 // size))
  svg = el('svg', viewBox=f'0 0 {size * cell} {size * cell}', role='img',
           aria_label='Attention mask', style=f'width:{size * cell}px;max-width:100%',
           class_='sight')
  svg.append(el('rect', width=size * cell, height=size * cell, class_='blind'))
  for line, row in enumerate(mask):
    # Neighboring squares are one rectangle.
    edges = np.flatnonzero(np.diff(np.concatenate([[0], row.astype(np.int8), [0]])))
    for start, stop in edges.reshape(-1, 2).tolist():
      svg.append(el('rect', x=start * cell, y=line * cell, width=(stop - start) * cell,
                    height=cell, class_='seen'))
  return svg
