"""Names of metrics for people.

'mlm_accuracy' is the MLM accuracy, 'mlm/de' the MLM loss on the corpus `de`.
"""
from collections.abc import Callable, Container, Iterable, Mapping

TERM_NAMES = {
    'mlm': 'MLM', 'nsp': 'NSP', 'sop': 'SOP', 'rtd': 'replaced-token',
    'sbo': 'span-boundary', 'plm': 'permuted-token', 'clm': 'next-token', 'blank': 'blank-filling',
    'seq2seq': 'target-token', 'soft': 'soft-target', 'cosine': 'hidden-state', 'even': 'smoothing',
    'mntp': 'hidden-token', 'z': 'z', 'mntp_z': 'hidden-token z', 'clm_z': 'next-token z',
    'diffusion': 'masked-diffusion', 'mpnet': 'masked-permuted', 'retro': 'reconstruction',
    'condenser': 'condensed-token', 'contrast': 'contrastive', 'bag': 'bag-of-words',
    'tsdae': 'reconstruction'}
REGULARIZERS = frozenset({'z', 'mntp_z', 'clm_z', 'even', 'query_sparsity', 'document_sparsity'})
"""Terms that only regularize training: the z-loss (squared log of the softmax denominator), label
smoothing, and the regularizers of sparse vectors."""
SUFFIX_NAMES = {'_accuracy': 'accuracy', '_baseline': 'majority-class baseline'}


def term_name(name: str) -> str:
  """Return the name of a loss term: 'mlm' is 'MLM'."""
  return TERM_NAMES.get(name, name.replace('_', ' '))


def split_metric(metric: str, metrics: Container[str] = ()) -> tuple[str, str]:
  """Split a metric's name into its loss term and its kind; ('', '') where it is of no term.

  Args:
    metric: 'mlm', 'mlm_accuracy' or 'mlm_baseline'.
    metrics: all metrics that there are. X is the loss of a term where there is X_accuracy.
  """
  for suffix, kind in SUFFIX_NAMES.items():
    if metric.endswith(suffix):
      return metric.removesuffix(suffix), kind
  if metric in TERM_NAMES or f'{metric}_accuracy' in metrics:
    return metric, 'loss'
  return '', ''


def display_name(metric: str, metrics: Container[str] = ()) -> str:
  """Return the name of a metric: 'mlm' is 'MLM loss', 'bits_per_byte' 'bits per byte'."""
  metric, _, corpus = metric.partition('/')
  term, kind = split_metric(metric, metrics)
  name = f'{term_name(term)} {kind}' if kind else term_name(metric)
  return f'{name}, {corpus}' if corpus else name


def split_by_corpus(
    values: Mapping[str, float]) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
  """Split metrics into those of all text, and those of each corpus.

  >>> split_by_corpus({'mlm': 2.5, 'mlm/de': 2.0, 'mlm/sw': 3.0})
  ({'mlm': 2.5}, {'de': {'mlm': 2.0}, 'sw': {'mlm': 3.0}})
  """
  whole, corpora = {}, {}
  for name, value in values.items():
    metric, _, corpus = name.partition('/')
    if corpus:
      corpora.setdefault(corpus, {})[metric] = value
    else:
      whole[metric] = value
  return whole, corpora


def format_line(values: Mapping[str, float], written: Callable[[str, float], str]) -> str:
  """Format metrics in one line, those of a loss term together, without regularizers.

  >>> values = {'mlm': 2.5, 'nsp': 0.5, 'mlm_accuracy': 0.5, 'mlm_baseline': 0.125}
  >>> format_line(values, lambda _, value: f'{value}')
  'MLM loss 2.5, accuracy 0.5 (baseline 0.125); NSP loss 0.5'
  >>> format_line({'mlm': 2.5, 'mlm/de': 2.0, 'mlm/sw': 3.0}, lambda _, value: f'{value}')
  'MLM loss 2.5; by corpus: de 2.0, sw 3.0'

  Args:
    values: metrics by name.
    written: (metric, value) -> the value for people.
  """
  groups: dict[str, list[str]] = {}
  whole, corpora = split_by_corpus(values)
  for metric in whole:
    if metric not in REGULARIZERS:
      groups.setdefault(split_metric(metric, whole)[0] or metric, []).append(metric)
  parts = [format_group(group, whole, written) for group in groups.values()]
  firsts = []
  for corpus, some in corpora.items():
    first = next(iter(some))
    firsts.append(f'{corpus} {written(first, some[first])}')
  if firsts:
    parts.append(f'by corpus: {", ".join(firsts)}')
  return '; '.join(parts)


def format_group(metrics: Iterable[str], values: Mapping[str, float],
                 written: Callable[[str, float], str]) -> str:
  """Format the metrics of one loss term."""
  text = ''
  for metric in metrics:
    kind, value = split_metric(metric, values)[1], written(metric, values[metric])
    if not text:
      text = f'{display_name(metric, values)} {value}'
    elif metric.endswith('_baseline'):
      text += f' (baseline {value})'
    else:
      text += f', {kind} {value}'
  return text
