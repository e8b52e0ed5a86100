"""Curves drawn in a terminal."""
from collections.abc import Iterator, Sequence
import itertools
from typing import NamedTuple

import numpy as np

from plm_jax.cli.curves import Point
from plm_jax.cli.report import Metric, show, ticks, usual

DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a braille character, by row and column
LABEL = 9  # characters of the numbers at the left


class Curve(NamedTuple):
  """Points by step, none of them not finite."""

  name: str
  points: Sequence[Point]
  mark: str = ''
  """a character for each point; '': fine dots, joined"""
  colour: int = 0
  """of a terminal, an SGR code; 0: none"""


def plot(title: str, curves: Sequence[Curve], metric: Metric, size: tuple[int, int], coloured: bool) -> Iterator[str]:
  """Yields the lines of a chart of `size` characters (width, height), its title and its axis not counted."""
  curves = [curve for curve in curves if curve.points]
  if not curves:
    return
  columns, height = max(10, size[0] - LABEL - 1), max(3, size[1])
  legend = '   '.join(paint(f'{curve.mark or "⠒"} {curve.name} {show(curve.points[-1][1], metric, 4)}', curve.colour,
                            coloured) for curve in curves)
  yield f'{title}   {legend}'
  steps, values = zip(*itertools.chain(*(curve.points for curve in curves)), strict=True)
  begin, end = min(0, *steps), max(1, *steps)
  low, *_, high = edges = ticks(min(values), usual(sorted(values)), min(4, height // 2))
  cells: dict[tuple[int, int], tuple[str, int]] = {}
  for curve in sorted(curves, key=lambda curve: bool(curve.mark)):
    x = np.array([(step - begin) / (end - begin) for step, _ in curve.points])
    y = np.clip([(high - value) / (high - low) for _, value in curve.points], 0, 1)
    for cell, character in (marked if curve.mark else dotted)(x, y, columns, height).items():
      cells[cell] = (curve.mark or character, curve.colour)
  labels = {round((high - tick) / (high - low) * (height - 1)): show(tick, metric) for tick in edges}
  for row in range(height):
    line = ''.join(paint(*cells[row, column], coloured) if (row, column) in cells else ' ' for column in range(columns))
    yield f'{labels.get(row, ""):>{LABEL}}{"┤" if row in labels else "│"}{line}'.rstrip()
  first, last = f'{begin:,}', f'{end:,}'
  yield f'{"":{LABEL}}└{"─" * columns}'
  yield f'{"":{LABEL + 1}}{first}{last:>{columns - len(first)}}'


def marked(x: np.ndarray, y: np.ndarray, columns: int, height: int) -> dict[tuple[int, int], str]:
  """Places points of 0 .. 1 -> the cells (row, column) that they fall into."""
  rows, places = np.rint(y * (height - 1)).astype(int), np.rint(x * (columns - 1)).astype(int)
  return {(int(row), int(column)): '' for row, column in zip(rows, places, strict=True)}


def dotted(x: np.ndarray, y: np.ndarray, columns: int, height: int) -> dict[tuple[int, int], str]:
  """Joins points of 0 .. 1 by dots, of several at one place their mean -> braille characters by (row, column)."""
  places = np.rint(x * (2 * columns - 1)).astype(int)
  known = np.unique(places)
  means = np.array([y[places == place].mean() for place in known]) * (4 * height - 1)
  every = np.arange(known[0], known[-1] + 1)
  levels = np.rint(np.interp(every, known, means)).astype(int)
  found: dict[tuple[int, int], int] = {}
  before = levels[0]
  for place, level in zip(every.tolist(), levels.tolist(), strict=True):
    # Up or down to where the last dot was, so that steep curves have no gaps.
    for dot in {level, *range(min(before, level) + 1, max(before, level))}:
      cell = dot // 4, place // 2
      found[cell] = found.get(cell, 0) | DOTS[dot % 4][place % 2]
    before = level
  return {cell: chr(0x2800 + dots) for cell, dots in found.items()}


def paint(text: str, colour: int, coloured: bool) -> str:
  """Colours a text where that is asked for."""
  return f'\x1b[{colour}m{text}\x1b[0m' if coloured and colour else text
