"""Labeled examples: the texts and the label of a row."""
from collections.abc import Sequence
import dataclasses
from typing import Any, NamedTuple, TypeGuard

from plm_jax.sources.labeled_files import is_valid_text


class Answer(NamedTuple):
  """A gold answer of extractive QA."""

  text: str
  start: int
  """its first character in the context; -1: its first occurrence"""


@dataclasses.dataclass(frozen=True)
class Example:
  """A labeled or unlabeled example of a task."""

  texts: tuple[str, ...]
  """inputs: one text or two; the words of a sentence (tagging); question and context (answers);
  context and question, which may be '' (choice); related texts, then negatives (embedding); the
  query (rerank)"""
  label: int | float | tuple[int, ...] | None = None
  """index of the class or choice; indices of classes (multilabel); value (regression); class of
  each word (tagging); relevance of each document (rerank); None: unknown, and always for answers"""
  choices: tuple[str, ...] = ()
  """the choices (multiple choice); the documents (rerank)"""
  answers: tuple[Answer, ...] | None = None
  """gold answers; (): the context has none; None: unknown"""
  where: str = ''
  """'file:line', for messages"""
  key: str = ''
  """id of the example in prediction files"""
  document: int = 0
  """index of the document of a tagged sentence"""
  scores: tuple[float, ...] | None = None
  """a teacher's score of each document (rerank), if it is given in addition to the relevance"""


def input_parts(given: Any) -> tuple[Any, ...]:
  """Return the parts of an input: a text alone, or the items of a list; () for anything else."""
  if isinstance(given, str):
    return (given,)
  if isinstance(given, Sequence):
    return tuple(given)
  return ()


def are_texts(parts: Sequence[Any]) -> TypeGuard[tuple[str, ...]]:
  """Tell whether these are one or more texts, none of them empty."""
  return bool(parts) and all(is_valid_text(part) and part.strip() for part in parts)
