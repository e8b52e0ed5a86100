"""How reports display metrics: titles, units and order, numbers in few digits, and axes."""
from collections.abc import Container, Sequence
import dataclasses
import math

from plm_jax.objectives import metric_names


@dataclasses.dataclass(frozen=True)
class Metric:
  """How a metric is displayed."""

  rank: int
  """order of the charts"""
  title: str
  unit: str = ''
  percent: bool = False


OTHER_RANK = 8
"""rank of other metrics; losses have 0 and 1, accuracies 2"""
CURVE_NAMES = {'heldout': 'held-out', 'baseline': 'majority class'}
METRICS = {
    'loss': Metric(0, 'Loss', 'nats, all objectives together'),
    'learning_rate': Metric(3, 'Learning rate'),
    'grad_norm': Metric(4, 'Gradient norm', 'over all parameters'),
    'tokens_per_second': Metric(5, 'Tokens per second', 'all devices together'),
    'waiting': Metric(6, 'Waiting for data', 'share of the time of a step', percent=True),
    'mfu': Metric(6, 'Model FLOP utilization', 'of the devices’ peak', percent=True),
    'bits_per_byte': Metric(3, 'Bits per byte', 'of text, whatever the tokenizer'),
    'replaced': Metric(3, 'Replaced tokens', 'share of all', percent=True),
    'even': Metric(1, 'Smoothing', 'nats per prediction, against the uniform distribution'),
    'z': Metric(1, 'Softmax denominator', 'square of its logarithm'),
    'cosine': Metric(1, 'Hidden states', '1 - cosine with the teacher’s'),
    'length': Metric(9, 'Length', 'tokens per sequence'),
    'streak': Metric(7, 'Skipped steps in a row'),
    'skipped': Metric(7, 'Skipped steps', 'since the start: loss or gradient not finite'),
}


def objective_title(name: str) -> str:
  """Return the title of an objective: 'rtd' is 'Replaced-token'."""
  title = metric_names.term_name(name)
  return title[:1].upper() + title[1:]


def lower_title(title: str) -> str:
  """Return a title as it is written inside a sentence.

  >>> lower_title('Learning rate'), lower_title('MLM loss')
  ('learning rate', 'MLM loss')
  """
  return title if title[:2].isupper() else title[:1].lower() + title[1:]


def describe_metric(key: str, keys: Container[str]) -> Metric:
  """Return how a metric is displayed; X and X_accuracy are loss and accuracy of the objective X."""
  whole, slash, corpus = key.partition('/')
  if slash:
    metric = describe_metric(whole, keys)
    return dataclasses.replace(metric, title=f'{metric.title}, {corpus}')
  if key in METRICS:
    return METRICS[key]
  title = objective_title(key.removesuffix('_accuracy'))
  if key.endswith('_accuracy'):
    return Metric(2, f'{title} accuracy', percent=True)
  if key in metric_names.TERM_NAMES or f'{key}_accuracy' in keys:
    return Metric(1, f'{title} loss', 'nats per prediction')
  return Metric(OTHER_RANK, title, percent=key.endswith('_baseline'))


def axis_top(values: Sequence[float]) -> float:
  """Return the top of the axis for sorted values: the highest one, without a few spikes."""
  top, most = values[-1], values[int(0.97 * (len(values) - 1))]
  return 2 * most if 0 < 4 * most < top else top


def ticks(low: float, high: float, count: int = 5) -> list[float]:
  """Return about `count` round numbers at equal distances, which include low and high.

  The distance is 1, 2 or 5 times a power of ten.
  """
  if high - low <= 1e-9 * abs(high):
    margin = abs(low) / 10
    low, high = (low - margin, low + margin) if low else (0, 1)
  power = 10.0 ** math.floor(math.log10((high - low) / count))
  step = next(
      power * m for m in (1, 2, 5, 10) if power * m * count * 1.0001 >= high - low)
  first = math.floor(low / step + 1e-6)  # 0.3 / 0.1 is not quite 3
  last = math.ceil(high / step - 1e-6)
  digits = 1 - math.floor(math.log10(step))
  return [round(i * step, digits) + 0.0 for i in range(first, last + 1)]


def format_value(value: float, metric: Metric, digits: int = 3) -> str:
  """Format a value in at most `digits` digits, with a percent sign if the metric has one."""
  if metric.percent:
    return f'{format_number(100 * value, min(digits, 3))}%'
  return format_number(value, digits)


def format_number(value: float, digits: int = 3) -> str:
  """Format a number in few characters: 0.25, 12.3k, 1.5M, 2×10⁻⁵."""
  value = float(f'{value:.{digits}g}')
  if 0 < abs(value) < 1e-3 or abs(value) >= 1e15:
    # At most three digits: with its power it is the longest of labels.
    mantissa, _, exponent = f'{float(f"{value:.3g}"):e}'.partition('e')
    superscripts = str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹')
    text = f'{float(mantissa):g}×10{str(int(exponent)).translate(superscripts)}'
    return text.replace('-', '−')
  size, letter = 1.0, ''
  for limit, name in ((1e3, 'k'), (1e6, 'M'), (1e9, 'G')):
    if abs(value) >= limit:
      size, letter = limit, name
  return f'{value / size:.6g}{letter}'.replace('-', '−')
