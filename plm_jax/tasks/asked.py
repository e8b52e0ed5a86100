"""What people ask a model that has learned a task: texts as examples of it."""
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeGuard

from plm_jax.checked import shortened
from plm_jax.data.lines import SourceError
from plm_jax.data.rows import is_text
from plm_jax.errors import ConfigError
from plm_jax.tasks import words
from plm_jax.tasks.examples import Example
from plm_jax.tasks.reading import Kind

EXPECTED = {
    'classification': 'a text, or a pair of texts', 'regression': 'a text, or a pair of texts',
    'tagging': 'a text, or a list of its words', 'answers': 'a question and its context',
    'choice': 'a context and a list of choices, between them a question if there is one',
    'embedding': 'two texts'}
"""of each kind of task what an example is given as"""


class Asked(NamedTuple):
  """An example, and of tagging the text that was divided into its words."""

  example: Example
  text: str = ''
  """'': the words were given"""
  starts: tuple[int, ...] = ()
  """character of the text at which each word begins"""


def asked(kind: Kind, given: Any, where: str) -> Asked:
  """Makes an example of a text, or of several in a tuple or list. Raises ConfigError, which says `where`."""
  if isinstance(given, Example):
    return Asked(given)
  if kind == 'tagging' and is_text(given) and given.strip():
    found = words.split(given)
    return Asked(Example(tuple(word.text for word in found), where=where), given, tuple(word.start for word in found))
  parts: tuple[Any, ...] = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Sequence) else ()
  if kind == 'tagging' and not isinstance(given, str) and texts(parts):
    return Asked(Example(parts, where=where))
  if kind == 'choice' and 2 <= len(parts) <= 3 and texts(parts[:-1]):
    choices = parts[-1]
    if isinstance(choices, Sequence) and not isinstance(choices, str) and len(choices) > 1 and texts(choices):
      question = parts[1] if len(parts) == 3 else ''
      return Asked(Example((parts[0], question), choices=tuple(choices), where=where))
  counts = {'classification': (1, 2), 'regression': (1, 2), 'answers': (2,), 'embedding': (2,)}.get(kind, ())
  if len(parts) not in counts or not texts(parts):
    raise ConfigError(f'{where}: expected {EXPECTED[kind]}, none of them empty, got {shortened(given)}')
  return Asked(Example(parts, where=where))


def texts(parts: Sequence[Any]) -> TypeGuard[tuple[str, ...]]:
  """Tells whether these are texts, one or more, and none is empty."""
  return bool(parts) and all(is_text(part) and part.strip() for part in parts)


def lines(kind: Kind, found: Iterable[tuple[int, str]], name: str) -> Iterator[Asked]:
  """Yields an example of each line: a text, or texts apart by tabs, of a choice the context and then the choices.

  Raises SourceError, with the line, for what is no example.
  """
  for number, line in found:
    fields = line.split('\t')
    given: Any = (fields[0], fields[1:]) if kind == 'choice' else line if len(fields) == 1 or kind == 'tagging' else (
        tuple(fields))
    try:
      yield asked(kind, given, f'{name}:{number}')
    except ConfigError as error:
      raise SourceError(f'{error}; a line is a text, several stand apart by tabs') from error
