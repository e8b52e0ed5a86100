"""Draw curves in a terminal."""
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from plm_jax.report import batch_drawing
from plm_jax.report.history import Point
from plm_jax.report.metric_display import Metric, axis_top, format_value, ticks

DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""bits of the dots of a braille character, by row and column"""
LABEL_WIDTH = 9
"""characters of the numbers at the left"""


class Curve(NamedTuple):
  """Points by step with finite values."""

  name: str
  points: Sequence[Point]
  mark: str = ''
  """a character for each point; '': fine dots, joined"""
  colour: int = 0
  """SGR code of the terminal color; 0: none"""


def plot(
    title: str, curves: Sequence[Curve], metric: Metric, size: tuple[int, int], coloured: bool
) -> Iterator[str]:
  """Yield the lines of a chart.

  Args:
    title: its title.
    curves: its curves; no line is yielded if all are empty.
    metric: how values are displayed.
    size: width and height in characters, without title and axis.
    coloured: whether the terminal has colors.
  """
  curves = [curve for curve in curves if curve.points]
  if not curves:
    return
  color_text = batch_drawing.color_text if coloured else lambda text, _: text
  columns, height = max(10, size[0] - LABEL_WIDTH - 1), max(3, size[1])
  legend = []
  for curve in curves:
    last = format_value(curve.points[-1][1], metric, 4)
    legend.append(color_text(f'{curve.mark or "⠒"} {curve.name} {last}', curve.colour))
  yield f'{title}   ' + '   '.join(legend)

  # Scale the points of all curves, those with marks last so that they stay visible.
  steps, values = zip(*(point for curve in curves for point in curve.points), strict=True)
  begin, end = min(0, *steps), max(1, *steps)
  edges = ticks(min(values), axis_top(sorted(values)), min(4, height // 2))
  low, high = edges[0], edges[-1]
  cells: dict[tuple[int, int], tuple[str, int]] = {}
  for curve in sorted(curves, key=lambda curve: bool(curve.mark)):
    x = np.array([(step - begin) / (end - begin) for step, _ in curve.points])
    y = np.clip([(high - value) / (high - low) for _, value in curve.points], 0, 1)
    place = place_marks if curve.mark else join_dots
    for cell, character in place(x, y, columns, height).items():
      cells[cell] = (curve.mark or character, curve.colour)

  # Lines, with labels at the left and the first and last step below.
  labels = {round((high - tick) / (high - low) * (height - 1)): format_value(tick, metric)
            for tick in edges}
  for row in range(height):
    line = ''.join(color_text(*cells.get((row, column), (' ', 0))) for column in range(columns))
    edge = '┤' if row in labels else '│'
    yield f'{labels.get(row, ""):>{LABEL_WIDTH}}{edge}{line}'.rstrip()
  first, last = f'{begin:,}', f'{end:,}'
  yield f'{"":{LABEL_WIDTH}}└{"─" * columns}'
  yield f'{"":{LABEL_WIDTH + 1}}{first}{last:>{columns - len(first)}}'


def place_marks(
    x: np.ndarray, y: np.ndarray, columns: int, height: int) -> dict[tuple[int, int], str]:
  """Return the cells (row, column) of points in 0 .. 1."""
  rows = np.rint(y * (height - 1)).astype(int)
  places = np.rint(x * (columns - 1)).astype(int)
  return {(int(row), int(column)): '' for row, column in zip(rows, places, strict=True)}


def join_dots(
    x: np.ndarray, y: np.ndarray, columns: int, height: int) -> dict[tuple[int, int], str]:
  """Join points in 0 .. 1 by dots; return braille characters by (row, column).

  Of several points in one column of dots, their mean is drawn.
  """
  places = np.rint(x * (2 * columns - 1)).astype(int)
  known = np.unique(places)
  means = np.array([y[places == place].mean() for place in known]) * (4 * height - 1)
  every = np.arange(known[0], known[-1] + 1)
  levels = np.rint(np.interp(every, known, means)).astype(int)
  found: dict[tuple[int, int], int] = {}
  before = levels[0]
  for place, level in zip(every.tolist(), levels.tolist(), strict=True):
    # Also the dots between this level and the last one, so that steep curves have no gaps.
    for dot in {level, *range(min(before, level) + 1, max(before, level))}:
      cell = dot // 4, place // 2
      found[cell] = found.get(cell, 0) | DOTS[dot % 4][place % 2]
    before = level
  return {cell: chr(0x2800 + dots) for cell, dots in found.items()}

