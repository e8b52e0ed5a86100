"""report.html: what a run came to, in one file that needs no network, no script and no server."""
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
import dataclasses
import itertools
import json
import math
from typing import Any
from xml.etree import ElementTree

from etils import epath

from plm_jax import storage
from plm_jax.cli.curves import Curves, Phase, Point, read_curves
from plm_jax.inference.samples import Blank, Sample
from plm_jax.objectives import figures as figure_names

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 250, 76, 86, 24, 40  # of a chart, in CSS pixels; the last four: margins


@dataclasses.dataclass(frozen=True)
class Summary:
  """What the report tells besides the curves; shown in this order."""

  title: str
  headline: Mapping[str, str]  # what a reader wants first
  blanks: Sequence[Blank] = ()
  samples: Sequence[Sample] = ()
  config: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # JSON values
  environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
  notes: Sequence[str] = ()  # warnings
  sections: Sequence[ElementTree.Element] = ()  # what a kind of run shows besides


@dataclasses.dataclass(frozen=True)
class Metric:
  """How a metric is shown."""

  rank: int  # place among the charts
  title: str
  unit: str = ''
  percent: bool = False


OTHER = 8  # the rank of what has no place of its own; losses have 0 and 1, accuracies 2
NAMES = {'heldout': 'held-out', 'baseline': 'most frequent'}  # of curves
METRICS = {
    'loss': Metric(0, 'Loss', 'nats, all objectives together'),
    'learning_rate': Metric(3, 'Learning rate'),
    'grad_norm': Metric(4, 'Gradient norm', 'over all parameters'),
    'tokens_per_second': Metric(5, 'Tokens a second', 'all devices together'),
    'waiting': Metric(6, 'Waiting for data', 'share of the time of a step', percent=True),
    'mfu': Metric(6, 'Model FLOP utilization', 'of the devices’ peak', percent=True),
    'bits_per_byte': Metric(3, 'Bits per byte', 'of text, whatever the tokenizer'),
    'replaced': Metric(3, 'Replaced tokens', 'share of all', percent=True),
    'even': Metric(1, 'Smoothing', 'nats a prediction, against all tokens alike'),
    'z': Metric(1, 'Softmax denominator', 'square of its logarithm'),
    'cosine': Metric(1, 'Hidden states', '1 - cosine with the teacher’s'),
    'length': Metric(9, 'Length', 'tokens in a row'),
    'streak': Metric(7, 'Skipped steps in a row'),
    'skipped': Metric(7, 'Skipped steps', 'since the start: loss or gradient not finite'),
}


def write_report(folder: epath.PathLike, summary: Summary) -> epath.Path:
  """Writes folder/report.html from the summary and folder/metrics.jsonl; whoever opens it sees the old or the new."""
  path = storage.path_of(folder) / 'report.html'
  curves, phases, foreign = read_curves(path.parent / 'metrics.jsonl')
  if foreign:
    said = f'{foreign} line{"s" * (foreign > 1)} of metrics.jsonl, torn or of something else, left out of the curves'
    summary = dataclasses.replace(summary, notes=[*summary.notes, said])
  text = render(summary, curves, phases)
  storage.write(path, text.encode('utf-8', 'replace'))  # a prompt may hold half of a surrogate pair
  return path


def render(summary: Summary, curves: Curves, phases: Sequence[Phase]) -> str:
  """Writes the HTML document of a run."""
  headline = (el('div', el('dt', name), el('dd', value)) for name, value in summary.headline.items())
  return document(summary.title, 'plm_jax · training run', [
      el('ul', *(el('li', note) for note in summary.notes), class_='notes') if summary.notes else None,
      el('dl', *headline, class_='headline') if summary.headline else None,
      blanks(summary.blanks) if summary.blanks else None, samples(summary.samples) if summary.samples else None,
      *summary.sections, charts(curves, phases),
      el('section', el('h2', 'Environment'), table(summary.environment)) if summary.environment else None,
      el('details', el('summary', el('h2', 'Configuration')), table(summary.config)) if summary.config else None,
      el('footer', 'Written by plm_jax. The numbers behind the curves are in metrics.jsonl, beside this file.')])


def document(title: str, kind: str, content: Iterable[ElementTree.Element | None], css: str = '') -> str:
  """Writes an HTML document, without scripts: what it shows opens as long as the file does.

  kind: what stands above the title; css: what its content needs besides that of all pages.
  """
  head = el(
      'head', el('meta', charset='utf-8'), el('title', title),
      # The promise that opening a report fetches nothing, kept by the browser.
      el('meta', http_equiv='Content-Security-Policy',
         content="default-src 'none'; style-src 'unsafe-inline'; img-src data:"),
      el('meta', name='viewport', content='width=device-width, initial-scale=1'), el('style', CSS + css))
  body = el('body', el('main', el('p', kind, class_='overline'), el('h1', title), *content))
  return '<!DOCTYPE html>\n' + ElementTree.tostring(el('html', head, body, lang='en'), 'unicode', method='html') + '\n'


def blanks(cards: Sequence[Blank]) -> ElementTree.Element:
  """Makes the section of blanks, a card each, with how often the first guess is the hidden word."""
  asked = [blank for blank in cards if blank.truth is not None]
  right = sum(bool(blank.candidates) and blank.candidates[0][0] == blank.truth for blank in asked)
  told = f'The first guess is the hidden word in {right} of the {len(asked)} sentences where it is known.'
  return el('section', el('h2', 'Fill in the blank'), el('p', told, class_='lead') if asked else None,
            el('div', *map(card, cards), class_='cards'))


def card(blank: Blank) -> ElementTree.Element:
  """Makes a card: a sentence with its blank, the likeliest pieces with their probabilities, and the hidden word."""
  before, *after = blank.prompt.split('[MASK]')
  sentence = (part for text in after for part in (
      el('mark', '\N{NO-BREAK SPACE}' * 9, title='[MASK]', aria_label='blank'), text))
  rows = [el('li', el('span', piece or '␣', class_='piece', title=piece),
             el('span', el('span', style=f'width:{100 * probability:.2f}%'), class_='bar'),
             el('span', f'{probability:.1%}', class_='share'),
             el('span', '✓' if piece == blank.truth else '', class_='check'),
             **({'class_': 'truth', 'title': 'the hidden word'} if piece == blank.truth else {}))
          for piece, probability in blank.candidates]
  missed = blank.truth is not None and blank.truth not in [piece for piece, _ in blank.candidates]
  return el('article', el('p', before, *sentence, class_='prompt'), el('ol', *rows),
            el('p', 'Hidden word: ', el('b', blank.truth), ', not among these', class_='missed') if missed else None)


def samples(cards: Sequence[Sample]) -> ElementTree.Element:
  """Makes the section of texts that the model went on with, beside what stood there."""
  return el('section', el('h2', 'How texts go on'), el('p', 'What is marked was drawn from the model.', class_='lead'),
            el('div', *(el('article', el('p', sample.prompt, el('mark', sample.text), class_='prompt drawn'),
                           el('p', 'As written: ', el('b', sample.truth), class_='missed') if sample.truth else None)
                        for sample in cards), class_='cards'))


def charts(curves: Curves, phases: Sequence[Phase]) -> ElementTree.Element:
  """Makes the section of curves, one chart a metric: losses first, what is not known here last."""
  metrics = {key: describe(key, curves) for key in curves}
  shown = [key for key, splits in curves.items()
           # A baseline is a line in the chart of its accuracy; counts of skipped steps that stay 0 tell nothing.
           if not (key.endswith('_baseline') and key.replace('_baseline', '_accuracy') in metrics) and '/' not in key
           and (key not in ('skipped', 'streak') or any(value for points in splits.values() for _, value in points))]
  shown.sort(key=lambda key: (metrics[key].rank, key))
  known, other = (el('div', *(figure(curves, phases, key, metrics[key]) for key in shown
                              if (metrics[key].rank == OTHER) is wanted), class_='charts') for wanted in (False, True))
  return el('section', el('h2', 'Curves'), known, el('h3', 'Other') if len(other) else None, other,
            None if shown else el('p', 'There is nothing to draw: metrics.jsonl has no values yet.', class_='lead'))


def figures(names: Iterable[str], heldout: Mapping[str, float]) -> dict[str, str]:
  """Returns held-out losses of the questions `names`, and their accuracies beside that of always the most frequent
  answer."""
  told = {}
  for name in names:
    asked = question(name)
    told[f'Held-out {asked[0].lower()}{asked[1:]} loss'] = f'{heldout[name]:.3f}'
    if f'{name}_accuracy' not in heldout:
      continue
    accuracy, baseline = heldout[f'{name}_accuracy'], heldout.get(f'{name}_baseline', 0.0)
    told[f'Held-out {asked[0].lower()}{asked[1:]} accuracy'] = f'{accuracy:.1%}'
    if baseline:
      told[f'{asked} majority baseline'] = f'{baseline:.1%}'
    if 0 < baseline < 0.5:  # of two answers, one has more
      told[f'{asked}, times the baseline'] = f'{accuracy / baseline:.1f}'
  return told


def question(name: str) -> str:
  """Names a question for people: 'mlm' is 'Masked-token'."""
  named = figure_names.question(name)
  return named[:1].upper() + named[1:]


def describe(key: str, keys: Container[str]) -> Metric:
  """Returns how `key` is shown; X and X_accuracy are the loss and accuracy of the question X."""
  if '/' in key:
    metric = describe(key.partition('/')[0], keys)
    return dataclasses.replace(metric, title=f'{metric.title}, {key.partition("/")[2]}')
  name = question(key.removesuffix('_accuracy'))
  if key in METRICS:
    return METRICS[key]
  if key.endswith('_accuracy'):
    return Metric(2, f'{name} accuracy', percent=True)
  if key in figure_names.QUESTIONS or f'{key}_accuracy' in keys:
    return Metric(1, f'{name} loss', 'nats a prediction')
  return Metric(OTHER, name, percent=key.endswith('_baseline'))


def figure(curves: Curves, phases: Sequence[Phase], key: str, metric: Metric) -> ElementTree.Element:
  """Draws the chart of one metric, with its title and legend."""
  finite = {split: [point for point in curves[key][split] if math.isfinite(point[1])]
            for split in sorted(curves[key], key=lambda split: (split != 'train', split))}
  lines = {split: downsample(points) for split, points in finite.items() if points}
  lost = sum(map(len, curves[key].values())) - sum(map(len, finite.values()))
  unit = [metric.unit] * bool(metric.unit) + [f'{lost} not finite, not drawn'] * bool(lost)
  baseline = curves.get(key.replace('_accuracy', '_baseline'), {}).get('heldout') if '_accuracy' in key else None
  if lines and baseline and math.isfinite(baseline[-1][1]):
    lines['baseline'] = [(step, baseline[-1][1]) for step in (0, max(points[-1][0] for points in lines.values()))]
  values = sorted(value for points in lines.values() for _, value in points) or [0.0]
  top = usual(values)
  if top < values[-1]:
    unit.append(f'up to {show(values[-1], metric)} beyond the axis')
  legend = (el('span', el('i', class_=split), NAMES.get(split, split)) for split in lines)
  return el('figure', el('figcaption', el('b', metric.title), el('span', ', '.join(unit), class_='unit'),
                         el('span', *legend, class_='legend')), chart(lines, top, phases, metric) if lines else None)


def usual(values: Sequence[float]) -> float:
  """Returns the highest of sorted values, without a few spikes that would flatten the rest of a curve."""
  top, most = values[-1], values[int(0.97 * (len(values) - 1))]
  return 2 * most if 0 < 4 * most < top else top


def chart(lines: Mapping[str, Sequence[Point]], top: float, phases: Sequence[Phase], metric: Metric,
          names: Mapping[str, str] = NAMES, axis: str = 'step'):
  """Draws points by step -> the SVG. lines: split -> points, none empty; top: values above may be drawn at the upper
  edge; names: of lines, for people."""
  steps, values = zip(*itertools.chain(*lines.values()), strict=True)
  begin, end = min(0, *steps), max(1, *steps)
  # A loss never gets near 0: most of its axis would be empty.
  low, *_, high = y_ticks = ticks(min(values) if metric.rank in (0, 1, OTHER) else min(0, *values), top)
  right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
  x = lambda step: round(LEFT + (right - LEFT) * (step - begin) / (end - begin), 1)
  y = lambda value: round(bottom - (bottom - TOP) * (min(value, high) - low) / (high - low), 1)

  svg = el('svg', viewBox=f'0 0 {WIDTH} {HEIGHT}', role='img', aria_label=metric.title)
  for tick in y_ticks:
    svg.append(el('path', d=f'M{LEFT} {y(tick)}H{right}', class_='grid'))
    svg.append(el('text', show(tick, metric, 6), x=LEFT - 8, y=y(tick) + 4, class_='tick left'))
  svg.append(el('path', d=f'M{LEFT} {bottom}H{right}', class_='axis'))
  for tick in ticks(begin, end):
    if begin <= tick <= end and tick == int(tick):
      svg.append(el('text', number(tick, 6), x=x(tick), y=bottom + 18, class_='tick'))
  svg.append(el('text', axis, x=(LEFT + right) / 2, y=HEIGHT - 5, class_='tick'))
  free = 0.0
  for step, old, new in (phase for phase in phases if begin <= phase[0] <= end):
    svg.append(el('path', d=f'M{x(step)} {TOP - 8}V{bottom}', class_='phase'))
    if (place := min(max(x(step), LEFT + 50), right - 50)) >= free:
      svg.append(el('text', f'{old} → {new} tokens', x=place, y=TOP - 12, class_='tick'))
      free = place + 110  # a label that would overlap this one is left out; its line stays
  labels = []
  for split, points in lines.items():
    path = 'L'.join(f'{x(step)} {y(value)}' for step, value in points)
    svg.append(el('path', d=f'M{path}', class_=f'{split} line'))
    for step, value in points if split == 'heldout' and len(points) <= 60 else points[-1:]:
      svg.append(el('circle', cx=x(step), cy=y(value), r=3 if split == 'heldout' else 2, class_=split))
    labels.append((y(points[-1][1]), show(points[-1][1], metric, 4), split))
  above = math.inf
  for place, label, kind in sorted(labels, reverse=True):
    above = min(place, above - 14)  # a label's height, so that no two overlap
    svg.append(el('text', label, x=right + 8, y=round(above + 4, 1), class_=f'value {kind}'))
  svg.extend(hovers({names.get(split, split): points for split, points in lines.items()}, metric, x, right, axis))
  return svg


def hovers(lines: Mapping[str, Sequence[Point]], metric: Metric, x: Callable[[float], float], right: float, axis: str):
  """Draws invisible strips over the chart, each telling the values at its step."""
  # At most about 100 a curve: a strip narrower than four pixels cannot be hit. The last point always has one.
  steps = sorted({step for points in lines.values() for step, _ in points[::-1][::1 + (len(points) - 1) // 100]})
  edges = [LEFT, *((x(a) + x(b)) / 2 for a, b in itertools.pairwise(steps)), right]
  values = {split: dict(points) for split, points in lines.items()}
  for step, (left, end) in zip(steps, itertools.pairwise(edges), strict=True):
    told = '\n'.join(f'{k}: {show(v[step], metric, 4)}' for k, v in values.items() if step in v)
    yield el('rect', el('title', f'{axis} {step:,}\n{told}'), x=round(left, 1), y=TOP, width=round(end - left, 1),
             height=HEIGHT - TOP - BOTTOM, class_='strip')


def downsample(points: Sequence[Point], most: int = 400) -> list[Point]:
  """Returns at most `most` of the points: the first, the last, and the lowest and highest of equal stretches
  between."""
  if len(points) <= most:
    return list(points)
  stretches, inner = (most - 2) // 2, len(points) - 2
  kept = [points[0]]
  for i in range(stretches):
    stretch = points[1 + i * inner // stretches:1 + (i + 1) * inner // stretches]
    kept += sorted({min(stretch, key=lambda p: p[1]), max(stretch, key=lambda p: p[1])})
  return [*kept, points[-1]]


def ticks(low: float, high: float, count: int = 5) -> list[float]:
  """Returns about `count` round numbers, equally apart (1, 2 or 5 times a power of ten), from at most low to at least
  high."""
  if high - low <= 1e-9 * abs(high):
    low, high = (low - abs(low) / 10, low + abs(low) / 10) if low else (0, 1)
  power = 10.0 ** math.floor(math.log10((high - low) / count))
  step = next(power * m for m in (1, 2, 5, 10) if power * m * count * 1.0001 >= high - low)
  first, last = math.floor(low / step + 1e-6), math.ceil(high / step - 1e-6)  # 0.3 / 0.1 is not quite 3
  return [round(i * step, 1 - math.floor(math.log10(step))) + 0.0 for i in range(first, last + 1)]


def show(value: float, metric: Metric, digits: int = 3) -> str:
  """Writes a value with its unit's percent sign, in `digits` digits or fewer."""
  return f'{number(100 * value, min(digits, 3))}%' if metric.percent else number(value, digits)


def number(value: float, digits: int = 3) -> str:
  """Writes a number in few characters: 0.25, 12.3k, 1.5M, 2×10⁻⁵."""
  value = float(f'{value:.{digits}g}')
  if 0 < abs(value) < 1e-3 or abs(value) >= 1e15:
    # Three digits at most: with its power it is the longest of labels.
    mantissa, _, exponent = f'{float(f"{value:.3g}"):e}'.partition('e')
    written = f'{float(mantissa):g}×10{str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))}'
  else:
    size, letter = next((p for p in ((1e9, 'G'), (1e6, 'M'), (1e3, 'k')) if abs(value) >= p[0]), (1, ''))
    written = f'{value / size:.6g}{letter}'
  return written.replace('-', '−')


def table(rows: Mapping[str, Any]) -> ElementTree.Element:
  """Makes a table of JSON values by name; dicts, and lists of dicts, as tables within the table."""
  def cell(value):
    if isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
      value = dict(enumerate(value, 1))
    if isinstance(value, Mapping):
      return table(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
  return el('table', *(el('tr', el('th', str(name), scope='row'), el('td', cell(rows[name]))) for name in rows))


def el(tag: str, *children: ElementTree.Element | str | None, **attributes: Any) -> ElementTree.Element:
  """Makes an element; class_ stands for class, aria_label for aria-label; None among the children is left out."""
  node = ElementTree.Element(tag, {key.rstrip('_').replace('_', '-'): str(value) for key, value in attributes.items()})
  for child in children:
    if isinstance(child, str) and len(node):
      node[-1].tail = (node[-1].tail or '') + child
    elif isinstance(child, str):
      node.text = (node.text or '') + child
    elif child is not None:
      node.append(child)
  return node


CSS = """
:root { color-scheme: light dark; --paper: #faf9f7; --card: #fff; --ink: #1c1e22; --soft: #666b73; --rule: #e3e1dc;
  --blue: #1d5fbf; --pale: #93b1db; --amber: #b3621b; --green: #23783a; --mark: #fdf1c7; --bar: #a9c3e8; }
@media screen and (prefers-color-scheme: dark) { :root { --paper: #131519; --card: #1b1e23; --ink: #e7e5e0;
  --soft: #9ca1aa; --rule: #2f343b; --blue: #82b1ff; --pale: #52719f; --amber: #e2a065; --green: #7ccb8d;
  --mark: #4a4020; --bar: #44608c; } } * { box-sizing: border-box; overflow-wrap: anywhere; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, 'Segoe UI',
  'Helvetica Neue', 'Noto Sans', 'PingFang SC', 'Microsoft YaHei', 'Noto Sans CJK SC', sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 48px 32px 32px; } dl div:first-child dd { color: var(--blue); }
h1 { font-size: 34px; line-height: 1.2; letter-spacing: -.02em; margin: 2px 0 24px; }
h2 { font-size: 21px; margin: 56px 0 4px; } h3 { font-size: 15px; margin: 28px 0 4px; }
.overline, .lead, .unit, .share, .missed, .legend, dt, th, footer { color: var(--soft); } .missed { margin: 8px 0 0; }
.overline, .unit, .share, .missed, .legend, dt, td, footer { font-size: 13px; } .overline, .lead { margin: 0; }
.notes { margin: 0 0 28px; padding: 10px 16px 10px 34px; border-left: 3px solid var(--amber); background: var(--card); }
.headline { display: grid; grid-template-columns: repeat(auto-fill, minmax(200px, 1fr)); gap: 20px 32px; margin: 0; }
dl div { border-top: 2px solid var(--rule); padding-top: 10px; } dl div:first-child { border-color: var(--blue); }
dd { margin: 0; font-size: 25px; font-weight: 600; letter-spacing: -.01em; } .cards, .charts { margin-top: 14px; }
.cards, .charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 480px), 1fr)); gap: 16px; }
article, figure { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; margin: 0; min-width: 0;
  padding: 16px 20px; break-inside: avoid; } figure { padding: 14px 12px 8px 16px; }
.prompt { font: 19px/1.55 Georgia, 'Noto Serif', 'Songti SC', 'Noto Serif CJK SC', serif; margin: 0 0 12px; }
mark { background: var(--mark); border-bottom: 2px solid var(--amber); border-radius: 3px 3px 0 0; }
.drawn { font-size: 16px; white-space: pre-wrap; } .drawn mark { border: 0; color: inherit; }
.missed { white-space: pre-wrap; }
ol { list-style: none; margin: 0; padding: 0; line-height: 1.75; font-variant-numeric: tabular-nums; }
ol li { display: grid; grid-template-columns: 8.5em 1fr 3.6em 1em; gap: 10px; align-items: center; }
.piece { overflow-wrap: anywhere; } .share { text-align: right; }
.bar { display: flex; height: 8px; background: var(--paper); border-radius: 4px; overflow: hidden; }
.bar span { min-width: 2px; background: var(--bar); } .truth .bar span { background: var(--green); }
.truth .piece, .check { color: var(--green); font-weight: 600; } .legend { margin-left: auto; }
figcaption { display: flex; flex-wrap: wrap; align-items: baseline; gap: 0 8px; margin-bottom: 4px; }
.legend span { margin-left: 14px; } .legend .train { border-top: 1.5px solid var(--pale); }
i { display: inline-block; width: 18px; margin-right: 6px; vertical-align: 3px; border-top: 3px solid var(--blue); }
.legend .baseline { border-top: 2px dashed var(--amber); } svg { display: block; width: 100%; font-size: 11.5px; }
path { fill: none; stroke-linejoin: round; } .grid { stroke: var(--rule); } .axis, .phase { stroke: var(--soft); }
.phase { stroke-dasharray: 2 3; } circle { fill: var(--blue); } circle.train { fill: var(--pale); }
.line { stroke: var(--blue); stroke-width: 2.2; } .line.train { stroke: var(--pale); stroke-width: 1.2; }
.line.baseline { stroke: var(--amber); stroke-width: 1.5; stroke-dasharray: 6 4; } circle.baseline { fill: none; }
.tick { fill: var(--soft); text-anchor: middle; } .tick.left { text-anchor: end; }
.value { font-weight: 600; fill: var(--blue); } .value.train { fill: var(--soft); font-weight: 400; }
.value.baseline { fill: var(--amber); } .strip { fill: transparent; } .strip:hover { fill: #8884; }
table { border-collapse: collapse; width: 100%; margin-top: 8px; } td table { margin: 0; }
th, td { text-align: left; vertical-align: top; padding: 4px 12px 4px 0; border-bottom: 1px solid var(--rule); }
tr:last-child > * { border-bottom: 0; } th { font-weight: 400; font-size: 14px; width: 180px; } td th { width: 110px; }
.counts { width: auto; } .counts th, .counts td { text-align: right; width: auto; padding: 4px 12px; }
.counts th:first-child { text-align: left; } small { color: var(--amber); font-size: 11px; }
td, .prompt, .missed, dd, li { overflow-wrap: anywhere; }
td { font-family: ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace; }
summary { cursor: pointer; margin-top: 40px; } summary h2 { display: inline; } @page { margin: 14mm; }
footer { margin-top: 48px; padding-top: 12px; border-top: 1px solid var(--rule); }
@media (max-width: 600px) { main { padding: 28px 14px; } figure { padding: 12px 4px 6px 8px; } th { width: 110px; }
  svg { font-size: 14px; overflow: visible; } .headline { grid-template-columns: 1fr 1fr; gap: 14px 20px; }
  dd { font-size: 21px; } }
@media print { main { padding: 0; } body { background: none; } h2, h3 { break-after: avoid; }
  details::details-content { content-visibility: visible; } .cards, .charts { grid-template-columns: 1fr 1fr; }
  * { print-color-adjust: exact; } }
"""
