"""Figures of a run by names for people: 'mlm_accuracy' is the masked-token accuracy."""
from collections.abc import Callable, Container, Iterable, Mapping

QUESTIONS = {'mlm': 'masked-token', 'nsp': 'next-sentence', 'sop': 'sentence-order', 'rtd': 'replaced-token',
             'sbo': 'span-boundary', 'plm': 'permuted-token', 'clm': 'next-token', 'blank': 'blank-filling',
             'seq2seq': 'target-token', 'soft': 'soft-target', 'cosine': 'hidden-state', 'even': 'smoothing',
             'mntp': 'hidden-token', 'z': 'softmax-denominator', 'mntp_z': 'hidden-token denominator',
             'clm_z': 'next-token denominator'}
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
  asked, kind = parted(figure, figures)
  return f'{question(asked)} {kind}' if kind else question(figure)


def line(values: Mapping[str, float], written: Callable[[str, float], str]) -> str:
  """Writes figures in a line, those of a question together. written: (figure, value) -> the value for people.

  >>> line({'mlm': 2.5, 'nsp': 0.5, 'mlm_accuracy': 0.5, 'mlm_baseline': 0.125}, lambda _, value: f'{value}')
  'masked-token loss 2.5, accuracy 0.5 (always the most frequent: 0.125); next-sentence loss 0.5'
  """
  groups: dict[str, list[str]] = {}
  for figure in values:
    groups.setdefault(parted(figure, values)[0] or figure, []).append(figure)
  return '; '.join(group(some, values, written) for some in groups.values())


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
