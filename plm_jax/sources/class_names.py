"""Class labels of classification: which label values denote the same class, and class names.

A label is a text, a number or a boolean. Different spellings of a value are one class: 1, 1.0, "1"
and "1.0"; true, "true" and "True"; texts that differ in surrounding spaces or in Unicode
normalization. None, an empty text and NaN are missing labels. Lists and objects (several labels,
probabilities) are refused.
"""
import ast
import collections
from collections.abc import Iterable, Sequence
import contextlib
from decimal import Decimal
import functools
import itertools
import json
import math
import re
from typing import Any, NamedTuple
import unicodedata

from plm_jax.errors import name_field
from plm_jax.sources.document_formats import describe_type
from plm_jax.sources.lines import SourceError

WHOLE_NUMBER = re.compile('[0-9]{1,9}')
# No leading zeros, as in codes: 007.
NUMBER = re.compile(r'[-+]?(0|[1-9][0-9]{0,17})(\.[0-9]{1,18})?')
ARRAY = re.compile(r'(\w+\.)?(array|tensor)\(\s*\[.*\)', re.DOTALL)
NUMBER_LIST = re.compile(r'\[[-+.,eE\d\s]*\]')
BOOLEANS = {'true': True, 'false': False}
INVISIBLE = '\ufeff\u200b'  # byte order mark and zero-width space
MULTI_LABEL_NOTE = f': several labels of one example are for {name_field("task")}=multilabel'
# What programs write for a missing value.
MISSING_VALUES = 'nan', 'NaN', '<NA>', 'N/A', '#N/A', 'null', 'NULL', 'None', '-'


class ClassKey(NamedTuple):
  """Normalized label: equal for all spellings of a class."""

  kind: str
  value: Any


def is_missing(label: Any) -> bool:
  """Tell whether a label is missing: None, an empty text, or NaN."""
  if isinstance(label, str):
    return not format_label(label)
  return label is None or (isinstance(label, float) and math.isnan(label))


def format_label(label: Any) -> str:
  """Format a label as text, without surrounding spaces."""
  text = str(label).strip()
  if text[:1] in INVISIBLE or text[-1:] in INVISIBLE:
    return text.strip(INVISIBLE).strip()
  return text


def class_key(label: Any) -> ClassKey:
  """Normalize a label. Raises ValueError if it is not a single label."""
  if isinstance(label, bool):
    return ClassKey('truth', label)
  if isinstance(label, int) or (isinstance(label, float) and math.isfinite(label)):
    return ClassKey('number', Decimal(str(label)).normalize())
  if not isinstance(label, str):
    note = MULTI_LABEL_NOTE if isinstance(label, list | dict) else ''
    raise ValueError('must be one class: a text, a number or a boolean, got '
                     f'{describe_type(label)}, {label!r:.60}{note}')
  text = format_label(label)
  # Tables hold lists as Python, JSON or numpy write them: "['a', 'b']", '[0 1 0]', 'array([0, 1])'.
  is_array = ARRAY.fullmatch(text) or NUMBER_LIST.fullmatch(text)
  if is_array or parse_collection(text) is not None:
    raise ValueError(
        f'must be one class, got a list or an object as text, {text!r:.60}{MULTI_LABEL_NOTE}')
  if text.lower() in BOOLEANS:
    return ClassKey('truth', BOOLEANS[text.lower()])
  if NUMBER.fullmatch(text):
    return ClassKey('number', Decimal(text).normalize())
  return ClassKey('text', unicodedata.normalize('NFC', text))


def parse_collection(text: str) -> list | dict | set | tuple | None:
  """Parse a list, a set or an object that is written as text; None: it is none.

  Numbers of a list may be separated by spaces, as numpy writes them.
  """
  if text[:1] + text[-1:] not in ('[]', '{}', '()'):
    return None
  if NUMBER_LIST.fullmatch(text):
    text = '[' + ','.join(re.findall(r'[^\s,]+', text[1:-1])) + ']'
  for parse in (json.loads, ast.literal_eval):
    with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
      value = parse(text)
      if isinstance(value, list | dict | set | tuple):
        return value
  return None


class Classes:
  """Class names, and the class index of a label."""

  def __init__(self, names: Sequence[str]):
    self.names = tuple(names)
    self.numbers = {name: number for number, name in enumerate(names)}
    self.keys: dict[ClassKey, int] = {}
    for number, name in enumerate(names):
      with contextlib.suppress(ValueError):  # names of an earlier run that accepted anything
        self.keys.setdefault(class_key(name), number)
    self.numeric = all(re.fullmatch(r'[-+]?[0-9]+(\.[0-9]+)?', name) for name in names)
    self.cache: dict[tuple[type, Any], int] = {}

  def class_id(self, label: Any) -> int:
    """Return the index of a class; -1: it is unknown.

    A label is matched by name, or by index if the names are not numbers. Raises ValueError if it
    is not a single label.
    """
    if not isinstance(label, str | int | float):
      class_key(label)
    number = self.cache.get((type(label), label))
    if number is None:
      number = self.cache[type(label), label] = self.find_class_id(label)
    return number

  def find_class_id(self, label: Any) -> int:
    """Find the index of a class, without the cache; see `class_id`."""
    if (name := format_label(label)) in self.numbers:
      return self.numbers[name]
    key = class_key(label)
    if key in self.keys or self.numeric or key.kind == 'text':
      return self.keys.get(key, -1)
    # Booleans count as 0 and 1 if the classes have other names.
    index = int(key.value)
    return index if key.value == index and 0 <= index < len(self.names) else -1


get_classes = functools.lru_cache(maxsize=8)(Classes)
"""return the classes of a tuple of names, cached"""


def name_classes(labels: Iterable[Any]) -> tuple[tuple[str, ...], list[str]]:
  """Derive class names from labels: numbers in numeric order, others sorted -> (names, notes).

  A class with several spellings is named by the shortest. Labels that are not a single class are
  skipped. Notes are messages for the user. Raises SourceError if both booleans and the numbers 0
  and 1 occur.
  """
  spellings: dict[ClassKey, set[str]] = collections.defaultdict(set)
  distinct = dict.fromkeys(
      (type(label), label) for label in labels if isinstance(label, str | int | float))
  for _, label in distinct:
    if not is_missing(label):
      with contextlib.suppress(ValueError):  # reported later, where the row is known
        spellings[class_key(label)].add(format_label(label))
  kinds = {key.kind for key in spellings}
  numbers = {key.value for key in spellings if key.kind == 'number'}
  if 'truth' in kinds and numbers & {0, 1}:
    raise SourceError('labels are both true or false and 0 or 1: write them in one way')
  # Of several spellings True and False come first, then the shortest.
  spelling_order = lambda name: (name not in ('True', 'False'), len(name), name)
  names = {key: min(some, key=spelling_order) for key, some in spellings.items()}
  order = (lambda key: key.value) if kinds == {'number'} else names.__getitem__
  ordered = sorted(names, key=order)
  notes = []
  for key in ordered:
    others = sorted(spellings[key] - {names[key]})
    if others:
      notes.append(f'the class {names[key]!r} is also written {", ".join(map(repr, others))}')
  notes += note_similar_names(names.values())
  for name in MISSING_VALUES:
    if name in names.values():
      notes.append(f'the label {name!r} is read as a class; leave the field empty if a label is '
                   'missing')
  if len(numbers) > 3 and numbers == set(range(-1, len(numbers) - 1)):
    notes.append("the label '-1' is read as a class; in data sets whose labels are not published "
                 'it stands for a missing one')
  notes += note_joined_names(set(names.values()))
  return tuple(names[key] for key in ordered), notes


def note_similar_names(names: Iterable[str]) -> list[str]:
  """Describe up to five groups of classes that differ only in case or in character form."""
  similar: dict[str, list[str]] = collections.defaultdict(list)
  for name in names:
    folded = unicodedata.normalize('NFKC', name).casefold()
    digits_folded = re.sub(r'\d', lambda digit: str(unicodedata.digit(digit[0])), folded)
    similar[digits_folded].append(name)
  notes = [f'the classes {" and ".join(map(repr, sorted(some)))} differ in case or in the form of '
           'characters alone' for some in similar.values() if len(some) > 1]
  return notes[:5]


def note_joined_names(names: set[str]) -> list[str]:
  """Describe the first class whose name joins the names of others, as several labels would.

  One of its parts is a class by itself, or all of them are in other joined names, too.
  """
  parts_by_name = {}
  for name in sorted(names):  # numbers may be joined by spaces, too
    separators = r'\s+' if re.fullmatch(r'[0-9]+(\s+[0-9]+)+', name) else '[,;|]'
    parts_by_name[name] = [part.strip() for part in re.split(separators, name)]
  distinct = map(set, parts_by_name.values())
  counts = collections.Counter(itertools.chain.from_iterable(distinct))
  for name, parts in parts_by_name.items():
    is_joined = names.intersection(parts) or all(counts[part] > 1 for part in parts)
    if len(parts) > 1 and is_joined:
      return [f'the class {name!r} is made of the names of others{MULTI_LABEL_NOTE}']
  return []
