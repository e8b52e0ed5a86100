"""Figures of a run by names for people: 'mlm_accuracy' is the masked-token accuracy, 'mlm/de' a loss on one corpus."""
from collections.abc import Callable, Container, Iterable, Mapping

QUESTIONS = {'mlm': 'masked-token', 'nsp': 'next-sentence', 'sop': 'sentence-order', 'rtd': 'replaced-token',
             'sbo': 'span-boundary', 'plm': 'permuted-token', 'clm': 'next-token', 'blank': 'blank-filling',
             'seq2seq': 'target-token', 'soft': 'soft-target', 'cosine': 'hidden-state', 'even': 'smoothing',
             'mntp': 'hidden-token', 'z': 'softmax-denominator', 'mntp_z': 'hidden-token z', 'clm_z': 'next-token z'}
KINDS = {'_accuracy': 'accuracy', '_baseline': 'accuracy of always the most frequent answer'}


def question(name: str) -> str:
  """Names a question: 'mlm' is 'masked-token'."""
  return QUESTIONS.get(name, name.replace('_', ' '))


def parted(figure: str, figures: Container[str] = ()) -> tuple[str, str]:
  """Returns the question that a figure is of, and which figure of it that is; two empty names where it is of none.

  figures: all that there are: X is the loss of a question where there is X_accuracy.
  """
  for ending, kind in KINDS.items():
    if figure.endswith(ending):
      return figure.removesuffix(ending), kind
  return (figure, 'loss') if figure in QUESTIONS or f'{figure}_accuracy' in figures else ('', '')


def called(figure: str, figures: Container[str] = ()) -> str:
  """Names a figure: 'mlm' is 'masked-token loss', 'bits_per_byte' is 'bits per byte'."""
  figure, _, corpus = figure.partition('/')
  asked, kind = parted(figure, figures)
  return (f'{question(asked)} {kind}' if kind else question(figure)) + (f', {corpus}' if corpus else '')


def by_corpus(values: Mapping[str, float]) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
  """Parts figures into those of all text, and those of each corpus.

  >>> by_corpus({'mlm': 2.5, 'mlm/de': 2.0, 'mlm/sw': 3.0})
  ({'mlm': 2.5}, {'de': {'mlm': 2.0}, 'sw': {'mlm': 3.0}})
  """
  whole, corpora = {}, {}
  for name, value in values.items():
    figure, _, corpus = name.partition('/')
    (corpora.setdefault(corpus, {}) if corpus else whole)[figure] = value
  return whole, corpora


def line(values: Mapping[str, float], written: Callable[[str, float], str]) -> str:
  """Writes figures in a line, those of a question together. written: (figure, value) -> the value for people.

  >>> line({'mlm': 2.5, 'nsp': 0.5, 'mlm_accuracy': 0.5, 'mlm_baseline': 0.125}, lambda _, value: f'{value}')
  'masked-token loss 2.5, accuracy 0.5 (always the most frequent: 0.125); next-sentence loss 0.5'
  >>> line({'mlm': 2.5, 'mlm/de': 2.0, 'mlm/sw': 3.0}, lambda _, value: f'{value}')
  'masked-token loss 2.5; by corpus: de 2.0, sw 3.0'
  """
  groups: dict[str, list[str]] = {}
  whole, corpora = by_corpus(values)
  for figure in whole:
    groups.setdefault(parted(figure, whole)[0] or figure, []).append(figure)
  told = [group(some, whole, written) for some in groups.values()]
  if firsts := [f'{corpus} {written(name, some[name])}' for corpus, some in corpora.items() for name in [*some][:1]]:
    told.append(f'by corpus: {", ".join(firsts)}')
  return '; '.join(told)


def group(figures: Iterable[str], values: Mapping[str, float], written: Callable[[str, float], str]) -> str:
  """Writes the figures of a question."""
  told = ''
  for figure in figures:
    kind, value = parted(figure, values)[1], written(figure, values[figure])
    if figure.endswith('_baseline') and told:
      told += f' (always the most frequent: {value})'
    else:
      told += f', {kind} {value}' if told else f'{called(figure, values)} {value}'
  return told
