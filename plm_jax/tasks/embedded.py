"""Tasks that every machine has, made of the docstrings of installed packages: for tests, and for recipes without data.

    embedded:classification    which package a paragraph is of
    embedded:tagging           which words are names of the code; the mark-up that said so is gone
    embedded:answers           what a function does, among its neighbours
    embedded:choice            which sentence comes next
    embedded:similarity        how near to each other two sentences stood, as a score and a class
    embedded:embedding         two sentences that stood together
    embedded:sentences         sentences

With :dev behind it, what is kept for measuring, some files of each package: no source file is in both, and no paragraph
begins alike. They are easy, and good for nothing else. Which examples there are depends on the packages' versions.
"""
import ast
from collections.abc import Iterator
import functools
import inspect
import itertools
import re
from typing import Any, NamedTuple
import warnings
import zlib

from plm_jax.data import embedded, sentences
from plm_jax.data.lines import SourceError
from plm_jax.data.rows import Row
from plm_jax.tasks.words import split

PACKAGES = ('flax', 'jax', 'numpy', 'optax', 'scipy')  # those that are always there
FILES = 32  # of a package: seconds of parsing
DEV = 5  # each fifth file of a package is for measuring
PARAGRAPHS = 24  # of a file, where packages are told apart: a long file would be most of what is measured
NEIGHBOURS = 4  # functions of a context, and sentences to choose from
LONGEST = 60  # words of a text


class Docstring(NamedTuple):
  """Prose about a function or a class."""

  file: str  # its name among the package's
  name: str
  marked: tuple[str, ...]  # paragraphs, names of code between \1 and \2

  @property
  def paragraphs(self) -> list[str]:
    """Paragraphs without marks."""
    return [unmarked(text) for text in self.marked]

  @property
  def summary(self) -> str:
    """The first sentence."""
    return first_sentence(self.marked[0])


def rows(source: str) -> Iterator[Row]:
  """Yields the rows of embedded:KIND or embedded:KIND:dev. Raises SourceError for another name."""
  _, kind, part = (*source.split(':'), '', '')[:3]
  if kind not in MAKERS or part not in ('', 'train', 'dev') or source.count(':') > 2:
    raise SourceError(f'{source!r} is none of embedded:KIND and embedded:KIND:dev, KIND one of {", ".join(MAKERS)}')
  found = [text for text in docstrings() if (text.file in measured()) == (part == 'dev')]
  for number, columns in enumerate(MAKERS[kind](found)):
    yield Row(columns, f'{source}:{number}')


def classification(found: list[Docstring]) -> Iterator[dict[str, Any]]:
  """Yields paragraphs and their package."""
  for file, texts in itertools.groupby(found, lambda text: text.file):
    for paragraph in itertools.islice((each for text in texts for each in text.paragraphs), PARAGRAPHS):
      yield {'text': paragraph, 'label': file.partition('/')[0]}


def tagging(found: list[Docstring]) -> Iterator[dict[str, Any]]:
  """Yields the words of paragraphs that name some code, and their tags B-NAME, I-NAME and O."""
  numbers = {file: number for number, file in enumerate(dict.fromkeys(text.file for text in found))}
  for text in found:
    for paragraph in text.marked:
      words, tags, tag = [], [], 'O'
      for part in re.split('([\1\2])', paragraph):
        if part in ('\1', '\2'):
          tag = 'B-NAME' if part == '\1' else 'O'
          continue
        for word in split(part):
          words.append(word.text)
          tags.append(tag)
          tag = 'I-NAME' if tag == 'B-NAME' else tag
      if len(set(tags)) > 1:
        yield {'words': words, 'tags': tags, 'document': numbers[text.file]}


def answers(found: list[Docstring]) -> Iterator[dict[str, Any]]:
  """Yields a question for each function, the summaries of it and its neighbours, and its own as the answer."""
  for start in range(0, len(found), NEIGHBOURS):
    near = list({text.name: text for text in found[start:start + NEIGHBOURS]}.values())
    context = ' '.join(f'{text.name}: {text.summary}' for text in near)
    for text in near:
      place = context.index(f'{text.name}: {text.summary}') + len(text.name) + 2
      yield {'question': f'What does {text.name} do?', 'context': context,
             'answers': [{'text': text.summary, 'answer_start': place}]}


def choice(found: list[Docstring]) -> Iterator[dict[str, Any]]:
  """Yields a sentence, the one behind it among others from elsewhere, and which it is."""
  pairs = [pair for text in found for paragraph in text.paragraphs
           if len(pair := sentences.split(paragraph)[:2]) == 2]
  follow = list(dict.fromkeys(second for _, second in pairs))
  for first, second in pairs:
    draw = zlib.crc32(first.encode())
    step = 1 + draw % max(1, len(follow) // NEIGHBOURS - 1)
    place = follow.index(second)
    others = [follow[(place + step * n) % len(follow)] for n in range(1, NEIGHBOURS)]
    label = draw // 8 % NEIGHBOURS
    yield {'context': first, 'choices': [*others[:label], second, *others[label:]], 'label': label}


def embedding(found: list[Docstring]) -> Iterator[dict[str, Any]]:
  """Yields two sentences of a paragraph, one behind the other."""
  for text in found:
    for paragraph in text.paragraphs:
      for first, second in itertools.pairwise(sentences.split(paragraph)):
        yield {'anchor': first, 'positive': second}


def single(found: list[Docstring]) -> Iterator[dict[str, Any]]:
  """Yields sentences."""
  for text in found:
    for paragraph in text.paragraphs:
      yield from ({'text': sentence} for sentence in sentences.split(paragraph))


def similarity(found: list[Docstring]) -> Iterator[dict[str, Any]]:
  """Yields a first sentence with the one behind it (score 5), one of the same file (2.5) and one of another package
  (0), as far as there are such."""
  firsts = [(text.file, text.summary) for text in found]
  for number, text in enumerate(found):
    draw = zlib.crc32(text.summary.encode())
    def of(wanted, draw=draw, text=text):
      others = [summary for file, summary in firsts if wanted(file) and summary != text.summary]
      return others[draw % len(others)] if others else None
    behind = (sentences.split(text.paragraphs[0])[1:] or [None])[0]
    near = of(lambda file, text=text: file == text.file) if number % 2 else None
    package = text.file.partition('/')[0]
    far = of(lambda file, package=package: not file.startswith(package))
    for second, score, label in ((behind, 5.0, 'same'), (near, 2.5, 'near'), (far, 0.0, 'other')):
      if second:
        yield {'sentence1': text.summary, 'sentence2': second, 'score': score, 'label': label}


@functools.cache
def docstrings() -> tuple[Docstring, ...]:
  """Reads the docstrings of some source files of each package; no two paragraphs begin with the same sentence."""
  files = sorted((package, zlib.crc32(name.encode()), name, path) for name, path in embedded.source_files()
                 if (package := name.partition('/')[0]) in PACKAGES and not name.endswith('__init__.py'))
  seen: set[str] = set()
  found = []
  for package in PACKAGES:
    taken = 0
    for _, _, name, path in (file for file in files if file[0] == package):
      texts = list(of_file(name, path.read_bytes(), seen))
      found += texts
      taken += bool(texts)
      if taken == FILES:
        break
  return tuple(found)


@functools.cache
def measured() -> frozenset[str]:
  """Returns the files that are kept for measuring."""
  files = dict.fromkeys(text.file for text in docstrings())
  packages = itertools.groupby(files, lambda file: file.partition('/')[0])
  return frozenset(file for _, of_package in packages for file in list(of_package)[::DEV])


def of_file(name: str, content: bytes, seen: set[str]) -> Iterator[Docstring]:
  """Yields what a source file says of its functions and classes, without paragraphs whose first sentence was `seen`."""
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')  # invalid escapes in other people's strings
    tree = ast.parse(content)
  for node in ast.walk(tree):
    if isinstance(node, ast.FunctionDef | ast.ClassDef) and (docstring := ast.get_docstring(node, clean=False)):
      lines = inspect.cleandoc(docstring).expandtabs().split('\n')
      texts = [embedded.plain(CODE.sub('\1\\1\2', line)) for line in embedded.paragraphs(lines)]
      prose = {first_sentence(text): text for text in reversed(texts)
               if embedded.is_prose(unmarked(text)) and len(text.split()) <= LONGEST}
      fresh = tuple(text for sentence, text in reversed(prose.items()) if sentence not in seen)
      seen.update(prose)
      if fresh:
        yield Docstring(name, node.name, fresh)


def first_sentence(marked: str) -> str:
  """Returns the first sentence of a paragraph, without marks."""
  return sentences.split(unmarked(marked))[0]


def unmarked(text: str) -> str:
  """Takes the marks out of a paragraph."""
  return re.sub('[\1\2]', '', text)


CODE = re.compile(r'(?::[\w:+-]+:)?``?[!~]?([^`<>\1\2]+?)``?(?![`_])')
MAKERS = {'classification': classification, 'tagging': tagging, 'answers': answers, 'choice': choice,
          'similarity': similarity, 'embedding': embedding, 'sentences': single}
