"""Write report.html: results, samples and learning curves of a run, as one file without scripts.

The file needs no network and no server.
"""
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import dataclasses
import itertools
import json
import math
import pathlib
from typing import Any
from xml.etree import ElementTree

from etils import epath

from plm_jax import storage
from plm_jax.inference.samples import FillMaskSample, GenerationSample
from plm_jax.objectives import metric_names
from plm_jax.report.history import Curves, LengthChange, Point, finite_points, read_curves
from plm_jax.report.metric_display import (
  CURVE_NAMES,
  OTHER_RANK,
  Metric,
  axis_top,
  describe_metric,
  format_number,
  format_value,
  objective_title,
  ticks,
)

WIDTH, HEIGHT = 560, 250
"""size of a chart in CSS pixels"""
LEFT, RIGHT, TOP, BOTTOM = 76, 86, 24, 40
"""margins of a chart in CSS pixels"""
SHOWN_BLANKS = 8
"""largest number of sentences of held-out text with a mask that are shown"""
Element = ElementTree.Element


@dataclasses.dataclass(frozen=True)
class Summary:
  """Contents of a report other than its curves, in the order of the page."""

  title: str
  headline: Mapping[str, str]
  """main results"""
  blanks: Sequence[FillMaskSample] = ()
  samples: Sequence[GenerationSample] = ()
  config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  """configuration as JSON values"""
  environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
  notes: Sequence[str] = ()
  """warnings and hints"""
  sections: Sequence[Element] = ()
  """sections of this kind of run"""
  next_steps: Mapping[str, str] = dataclasses.field(default_factory=dict)
  """commands that use the model, by what they do"""


def write_report(folder: epath.PathLike, summary: Summary) -> epath.Path:
  """Write folder/report.html, atomically, from a summary and folder/metrics.jsonl."""
  path = storage.resolve_path(folder) / 'report.html'
  curves, phases, foreign = read_curves(path.parent / 'metrics.jsonl')
  if foreign:
    plural = 's' if foreign > 1 else ''
    note = (f'{foreign} line{plural} of metrics.jsonl, torn or of something else, left out of the '
            'curves')
    summary = dataclasses.replace(summary, notes=[*summary.notes, note])
  text = render_report(summary, curves, phases)
  storage.write(path, text.encode('utf-8', 'replace'))  # a prompt may hold half a surrogate pair
  return path


def render_report(summary: Summary, curves: Curves, phases: Sequence[LengthChange]) -> str:
  """Return the HTML document of a run."""
  parts: list[Element] = []
  # Results, the machine and the date, then notes and curves.
  if summary.headline:
    rows = [el('div', el('dt', name), el('dd', value)) for name, value in summary.headline.items()]
    parts.append(el('dl', *rows, class_='headline'))
  known = summary.environment
  place = [known[name] for name in ('Devices', 'Finished') if name in known]
  if place:
    parts.append(el('p', 'Trained on ', ', finished '.join(place), class_='lead place'))
  if summary.notes:
    parts.append(el('ul', *(el('li', note) for note in summary.notes), class_='notes'))
  parts.append(curve_section(curves, phases))

  # Outputs of the model, what to do next, and settings.
  if summary.blanks:
    parts.append(blank_section(summary.blanks))
  if summary.samples:
    parts.append(sample_section(summary.samples))
  parts += summary.sections
  if summary.next_steps:
    rows = [el('tr', el('th', purpose, scope='row'), el('td', el('code', command)))
            for purpose, command in summary.next_steps.items()]
    parts.append(el('section', el('h2', 'Next steps'), el('table', *rows)))
  if summary.environment:
    parts.append(el('section', el('h2', 'Environment'), json_table(summary.environment)))
  if summary.config:
    title = el('summary', el('h2', 'Configuration'))
    parts.append(el('details', title, json_table(summary.config)))
  parts.append(el('footer', 'Written by plm_jax. The values of the curves are in '
                  'metrics.jsonl, in the same folder.'))
  return render_document(summary.title, 'plm_jax · training run', parts)


def render_document(title: str, kind: str, content: Iterable[Element | None], css: str = '') -> str:
  """Return an HTML document without scripts.

  Args:
    title: the title.
    kind: a line above the title.
    content: elements of the page; None is left out.
    css: style sheet of the content, in addition to that of all pages.
  """
  # A browser enforces that opening the page loads nothing.
  policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
  head = el(
      'head', el('meta', charset='utf-8'), el('title', title),
      el('meta', http_equiv='Content-Security-Policy', content=policy),
      el('meta', name='viewport', content='width=device-width, initial-scale=1'),
      el('style', read_css('pages') + css))
  main = el('main', el('p', kind, class_='overline'), el('h1', title), *content)
  page = el('html', head, el('body', main), lang='en')
  return '<!DOCTYPE html>\n' + ElementTree.tostring(page, 'unicode', method='html') + '\n'


def read_css(name: str) -> str:
  """Read a style sheet of this folder: 'pages' for all pages, 'inputs' for model inputs."""
  return pathlib.Path(__file__).with_name(f'{name}.css').read_text('utf-8')


# Samples.


def blank_section(cards: Sequence[FillMaskSample]) -> Element:
  """Return the section of masked tokens: a card per mask, and the accuracy of the top-1 tokens."""
  section = el('section', el('h2', 'Fill in the blank'))
  known = [blank for blank in cards if blank.truth is not None]
  if known:
    is_hit = lambda blank: blank.truth in [token for token, _ in blank.candidates[:1]]
    section.append(el('p', f'The first guess is the hidden word in {sum(map(is_hit, known))} of '
                      f'{len(known)} sentences of held-out text. They are shown first.',
                      class_='lead'))
    own = [blank for blank in cards if blank.truth is None]
    cards = own + sorted(known, key=is_hit, reverse=True)[:SHOWN_BLANKS]
  section.append(el('div', *map(blank_card, cards), class_='cards'))
  return section


def blank_card(blank: FillMaskSample) -> Element:
  """Return a card: a sentence with a mask, the most likely tokens, and the original token."""
  first, *rest = blank.prompt.split('[MASK]')
  sentence = el('p', first, class_='prompt')
  for text in rest:
    extend(sentence, el('mark', '\N{NO-BREAK SPACE}' * 9, title='[MASK]', aria_label='blank'), text)
  rows = el('ol')
  for token, probability in blank.candidates:
    is_truth = token == blank.truth
    row = el('li', el('span', token or '␣', class_='piece', title=token),
             el('span', el('span', style=f'width:{100 * probability:.2f}%'), class_='bar'),
             el('span', f'{probability:.1%}', class_='share'),
             el('span', '✓' if is_truth else '', class_='check'))
    if is_truth:
      row.set('class', 'truth')
      row.set('title', 'the hidden word')
    rows.append(row)
  card = el('article', sentence, rows)
  tokens = [token for token, _ in blank.candidates]
  if blank.truth is not None and blank.truth not in tokens:
    card.append(el('p', 'Hidden word: ', el('b', blank.truth), ', not among these',
                   class_='missed'))
  return card


def sample_section(cards: Sequence[GenerationSample]) -> Element:
  """Return the section of generated texts, with the original continuations."""
  div = el('div', class_='cards')
  for sample in cards:
    card = el('article', el('p', sample.prompt, el('mark', sample.text), class_='prompt drawn'))
    if sample.truth:
      card.append(el('p', 'As written: ', el('b', sample.truth), class_='missed'))
    div.append(card)
  lead = el('p', 'Highlighted text was generated by the model.', class_='lead')
  return el('section', el('h2', 'Generated text'), lead, div)


# Metrics.


def heldout_headline(names: Iterable[str], heldout: Mapping[str, float]) -> dict[str, str]:
  """Return the held-out accuracies of objectives, their majority-class baselines, and losses.

  Args:
    names: the objectives; regularizers are left out.
    heldout: held-out metrics by name.
  """
  found = {}
  for name in names:
    if name in metric_names.REGULARIZERS or name not in heldout:
      continue
    title = metric_names.term_name(name)
    if f'{name}_accuracy' in heldout:
      accuracy, baseline = heldout[f'{name}_accuracy'], heldout.get(f'{name}_baseline', 0.0)
      found[f'Held-out {title} accuracy'] = f'{accuracy:.1%}'
      if baseline:
        found[f'{objective_title(name)} majority-class baseline'] = f'{baseline:.1%}'
      if 0 < baseline < 0.5:  # of two classes, one has at least half
        found[f'{objective_title(name)} accuracy / baseline'] = f'{accuracy / baseline:.1f}'
    found[f'Held-out {title} loss'] = f'{heldout[name]:.3f}'
  return found


# Charts.


def curve_section(curves: Curves, phases: Sequence[LengthChange]) -> Element:
  """Return the section of learning curves, a chart per metric: losses first, unknown ones last."""
  metrics = {key: describe_metric(key, curves) for key in curves}
  known, other = el('div', class_='charts'), el('div', class_='charts')
  for key in sorted(curves, key=lambda key: (metrics[key].rank, key)):
    # A baseline is a line in the chart of its accuracy. Skip counts that stay 0.
    accuracy = key.replace('_baseline', '_accuracy')
    if '/' in key or (key.endswith('_baseline') and accuracy in metrics):
      continue
    values = [value for points in curves[key].values() for _, value in points]
    if key in ('skipped', 'streak') and not any(values):
      continue
    group = other if metrics[key].rank == OTHER_RANK else known
    group.append(metric_figure(curves, phases, key, metrics[key]))
  section = el('section', el('h2', 'Curves'), known)
  if len(other):
    section.append(el('h3', 'Other'))
  section.append(other)
  if not len(known) and not len(other):
    text = 'There is nothing to draw: metrics.jsonl has no values yet.'
    section.append(el('p', text, class_='lead'))
  return section


def metric_figure(
    curves: Curves, phases: Sequence[LengthChange], key: str, metric: Metric) -> Element:
  """Return the chart of one metric, with its title and legend."""
  lines: dict[str, Sequence[Point]] = {}
  lost = 0
  for split in sorted(curves[key], key=lambda split: (split != 'train', split)):
    points = finite_points(curves[key][split])
    lost += len(curves[key][split]) - len(points)
    if points:
      lines[split] = downsample(points)
  units = [metric.unit] if metric.unit else []
  if lost:
    units.append(f'{lost} not finite, not drawn')
  baseline = None
  if '_accuracy' in key:
    baseline = curves.get(key.replace('_accuracy', '_baseline'), {}).get('heldout')
  if lines and baseline and math.isfinite(baseline[-1][1]):
    last = max(points[-1][0] for points in lines.values())
    lines['baseline'] = [(0, baseline[-1][1]), (last, baseline[-1][1])]
  values = sorted(value for _, value in itertools.chain.from_iterable(lines.values())) or [0.0]
  top = axis_top(values)
  if top < values[-1]:
    units.append(f'up to {format_value(values[-1], metric)} beyond the axis')
  chart = draw_chart(lines, top, phases, metric) if lines else None
  names = {split: CURVE_NAMES.get(split, split) for split in lines}
  return chart_figure(metric.title, ', '.join(units), names, chart)


def chart_figure(
    title: str, unit: str | None, names: Mapping[str, str], chart: Element | None) -> Element:
  """Return a chart with its title, its unit and a legend. names: class of each line -> name."""
  entries = [el('span', el('i', class_=line), name) for line, name in names.items()]
  shown = None if unit is None else el('span', unit, class_='unit')
  caption = el('figcaption', el('b', title), shown, el('span', *entries, class_='legend'))
  return el('figure', caption, chart)


def draw_chart(
    lines: Mapping[str, Sequence[Point]], top: float, phases: Sequence[LengthChange],
    metric: Metric, names: Mapping[str, str] = CURVE_NAMES, axis: str = 'step') -> Element:
  """Draw points over steps as SVG.

  Args:
    lines: points of each split, at least one.
    top: values above may be drawn at the upper edge.
    phases: changes of the sequence length, drawn as vertical lines.
    metric: how values are displayed.
    names: names of the lines in tooltips.
    axis: name of the horizontal axis.
  """
  drawn = list(itertools.chain.from_iterable(lines.values()))
  steps, values = zip(*drawn, strict=True)
  begin, end = min(0, *steps), max(1, *steps)
  # The axis of a loss does not start at 0, which no loss gets near; nor that of a high accuracy.
  from_zero = metric.rank not in (0, 1, OTHER_RANK) and not (metric.percent and min(values) > 0.5)
  lowest = min(0, *values) if from_zero else min(values)
  y_ticks = ticks(lowest, top)
  low, high = y_ticks[0], y_ticks[-1]
  right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
  x = lambda step: round(LEFT + (right - LEFT) * (step - begin) / (end - begin), 1)
  y = lambda value: round(
      bottom - (bottom - TOP) * (min(value, high) - low) / (high - low), 1)

  # Axes.
  svg = el('svg', viewBox=f'0 0 {WIDTH} {HEIGHT}', role='img', aria_label=metric.title)
  for tick in y_ticks:
    svg.append(el('path', d=f'M{LEFT} {y(tick)}H{right}', class_='grid'))
    text = format_value(tick, metric, 6)
    svg.append(el('text', text, x=LEFT - 8, y=y(tick) + 4, class_='tick left'))
  svg.append(el('path', d=f'M{LEFT} {bottom}H{right}', class_='axis'))
  for tick in ticks(begin, end):
    if begin <= tick <= end and tick == int(tick):
      svg.append(el('text', format_number(tick, 6), x=x(tick), y=bottom + 18, class_='tick'))
  svg.append(el('text', axis, x=(LEFT + right) / 2, y=HEIGHT - 5, class_='tick'))

  # Changes of the sequence length.
  free = 0.0
  for step, old, new in phases:
    if not begin <= step <= end:
      continue
    svg.append(el('path', d=f'M{x(step)} {TOP - 8}V{bottom}', class_='phase'))
    place = min(max(x(step), LEFT + 50), right - 50)
    if place >= free:  # a label that would overlap another is left out
      svg.append(el('text', f'{old} → {new} tokens', x=place, y=TOP - 12, class_='tick'))
      free = place + 110

  # Curves, with their last values as labels.
  labels = []
  for split, points in lines.items():
    path = 'L'.join(f'{x(step)} {y(value)}' for step, value in points)
    svg.append(el('path', d=f'M{path}', class_=f'{split} line'))
    heldout = split == 'heldout'
    for step, value in points if heldout and len(points) <= 60 else points[-1:]:
      svg.append(el('circle', cx=x(step), cy=y(value), r=3 if heldout else 2, class_=split))
    labels.append((y(points[-1][1]), format_value(points[-1][1], metric, 4), split))
  above = math.inf
  for place, label, kind in sorted(labels, reverse=True):
    above = min(place, above - 14)  # a label's height, so that labels do not overlap
    place = round(above + 4, 1)
    svg.append(el('text', label, x=right + 8, y=place, class_=f'value {kind}'))
  named = {names.get(split, split): points for split, points in lines.items()}
  svg.extend(hover_strips(named, metric, x, right, axis))
  return svg


def hover_strips(
    lines: Mapping[str, Sequence[Point]], metric: Metric, x: Callable[[float], float], right: float,
    axis: str) -> Iterator[Element]:
  """Yield invisible strips over a chart, whose tooltips show the values at their step."""
  # About 100 strips per curve: one of less than four pixels cannot be hit. The last point has one.
  steps = set()
  for points in lines.values():
    every = 1 + (len(points) - 1) // 100
    steps |= {step for step, _ in points[::-1][::every]}
  ordered = sorted(steps)
  middles = [(x(a) + x(b)) / 2 for a, b in itertools.pairwise(ordered)]
  edges = [LEFT, *middles, right]
  values = {split: dict(points) for split, points in lines.items()}
  for step, (left, end) in zip(ordered, itertools.pairwise(edges), strict=True):
    rows = [f'{axis} {step:,}']
    for split, known in values.items():
      if step in known:
        rows.append(f'{split}: {format_value(known[step], metric, 4)}')
    yield el('rect', el('title', '\n'.join(rows)), x=round(left, 1), y=TOP,
             width=round(end - left, 1), height=HEIGHT - TOP - BOTTOM, class_='strip')


def downsample(points: Sequence[Point], most: int = 400) -> list[Point]:
  """Return at most `most` points: the first, the last, and the extremes of equal stretches."""
  if len(points) <= most:
    return list(points)
  stretches, inner = (most - 2) // 2, len(points) - 2
  kept = [points[0]]
  for i in range(stretches):
    stretch = points[1 + i * inner // stretches:1 + (i + 1) * inner // stretches]
    lowest = min(stretch, key=lambda point: point[1])
    highest = max(stretch, key=lambda point: point[1])
    kept += sorted({lowest, highest})
  kept.append(points[-1])
  return kept


# HTML elements.


def value_table(
    columns: Iterable[str], rows: Mapping[str, Iterable[str]], class_: str = 'counts') -> Element:
  """Return a table whose first column has the names of the rows."""
  head = el('tr', el('th', ''), *(el('th', name, scope='col') for name in columns))
  lines = [el('tr', el('th', name, scope='row'), *(el('td', cell) for cell in cells))
           for name, cells in rows.items()]
  return el('table', head, *lines, class_=class_)


def json_table(rows: Mapping[str, Any]) -> Element:
  """Return a table of JSON values by name; dicts and lists of dicts become nested tables."""
  table = el('table')
  for name, value in rows.items():
    if name == 'is':  # the class of a configuration, with its module
      name, value = 'kind', value.rpartition(':')[2]
    if isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
      value = dict(enumerate(value, 1))
    if isinstance(value, Mapping):
      value = json_table(value)
    elif not isinstance(value, str):
      value = json.dumps(value, ensure_ascii=False)
    table.append(el('tr', el('th', str(name), scope='row'), el('td', value)))
  return table


def el(tag: str, *children: Element | str | None, **attributes: Any) -> Element:
  """Return an HTML element.

  Args:
    tag: its tag.
    *children: elements and texts; None is left out.
    **attributes: attributes; class_ is class, aria_label is aria-label.
  """
  names = {key: key.rstrip('_').replace('_', '-') for key in attributes}
  node = ElementTree.Element(tag, {names[key]: str(value) for key, value in attributes.items()})
  extend(node, *children)
  return node


def extend(node: Element, *children: Element | str | None) -> None:
  """Append elements and texts to an element; None is left out."""
  for child in children:
    if isinstance(child, str) and len(node):
      node[-1].tail = (node[-1].tail or '') + child
    elif isinstance(child, str):
      node.text = (node.text or '') + child
    elif child is not None:
      node.append(child)
