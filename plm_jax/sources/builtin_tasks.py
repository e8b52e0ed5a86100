"""Built-in tasks, made from docstrings of installed packages: for tests, and recipes without data.

    embedded:classification    the package of a paragraph
    embedded:multilabel        the package of a paragraph, and whether it has code or numbers
    embedded:tagging           names of code among words; the markup that shows them is removed
    embedded:answers           what a function does, given its neighbors
    embedded:rerank            which function does what a sentence says
    embedded:choice            the next sentence
    embedded:similarity        how close two sentences were, as a score and a class
    embedded:embedding         pairs of consecutive sentences
    embedded:sentences         sentences

The suffix :dev selects the development set, some files of each package. No source file is in both
sets, and no two paragraphs begin alike. The tasks are easy and good for nothing else. Their
examples depend on the packages' versions.
"""
import ast
from collections.abc import Iterator
import functools
import inspect
import itertools
import re
from typing import Any, NamedTuple
import zlib

from plm_jax.sources import builtin_corpus, sentence_splitting
from plm_jax.sources.labeled_files import LabeledRow
from plm_jax.sources.lines import SourceError
from plm_jax.unicode_words import split_words

PACKAGES = ('flax', 'jax', 'numpy', 'optax', 'scipy')  # those that are always installed
MAX_FILES = 32  # per package: seconds of parsing
DEV_EVERY = 5  # every fifth file of a package is in the development set
MAX_PARAGRAPHS = 24  # per file in classification: a long file would dominate the metric
CANDIDATES = 4  # functions of a context, and sentences to choose from
MAX_WORDS = 60  # per text


class Docstring(NamedTuple):
  """The prose of a function or a class."""

  file: str  # within the package
  name: str
  marked_paragraphs: tuple[str, ...]  # names of code between \1 and \2

  @property
  def paragraphs(self) -> list[str]:
    """Paragraphs without marks."""
    return [strip_marks(text) for text in self.marked_paragraphs]

  @property
  def summary(self) -> str:
    """The first sentence."""
    return first_sentence(self.marked_paragraphs[0])


def builtin_rows(source: str) -> Iterator[LabeledRow]:
  """Yield the rows of embedded:KIND or embedded:KIND:dev. Raises SourceError for other names."""
  _, kind, part = (*source.split(':'), '', '')[:3]
  if kind not in MAKERS or part not in ('', 'train', 'dev') or source.count(':') > 2:
    raise SourceError(f'{source!r} is none of embedded:KIND and embedded:KIND:dev, KIND one of '
                      f'{", ".join(MAKERS)}')
  is_dev = part == 'dev'
  docs = [text for text in read_docstrings() if (text.file in dev_files()) == is_dev]
  for number, columns in enumerate(MAKERS[kind](docs)):
    yield LabeledRow(columns, f'{source}:{number}')


def classification(docs: list[Docstring]) -> Iterator[dict[str, Any]]:
  """Yield paragraphs and their package."""
  for row in multilabel(docs):
    yield {'text': row['text'], 'label': row['labels'][0]}


def multilabel(docs: list[Docstring]) -> Iterator[dict[str, Any]]:
  """Yield paragraphs with their package, `code` if they name some, `number` if they have one."""
  for file, texts in itertools.groupby(docs, lambda text: text.file):
    paragraphs = itertools.chain.from_iterable(text.marked_paragraphs for text in texts)
    for paragraph in itertools.islice(paragraphs, MAX_PARAGRAPHS):
      text = strip_marks(paragraph)
      more = {'code': text != paragraph, 'number': re.search(r'\d', text)}
      labels = [file.partition('/')[0]] + [label for label, applies in more.items() if applies]
      yield {'text': text, 'labels': labels}


def tagging(docs: list[Docstring]) -> Iterator[dict[str, Any]]:
  """Yield the words of paragraphs that name some code, and their tags B-NAME, I-NAME and O."""
  files = dict.fromkeys(text.file for text in docs)
  numbers = {file: number for number, file in enumerate(files)}
  for text in docs:
    for paragraph in text.marked_paragraphs:
      words, tags = tag_words(paragraph)
      if len(set(tags)) > 1:
        yield {'words': words, 'tags': tags, 'document': numbers[text.file]}


def tag_words(paragraph: str) -> tuple[list[str], list[str]]:
  """Split a marked paragraph into words, with the tags of names of code."""
  words, tags, tag = [], [], 'O'
  for part in re.split('([\1\2])', paragraph):
    if part == '\1':
      tag = 'B-NAME'
    elif part == '\2':
      tag = 'O'
    else:
      for word in split_words(part):
        words.append(word.text)
        tags.append(tag)
        tag = 'O' if tag == 'O' else 'I-NAME'
  return words, tags


def answers(docs: list[Docstring]) -> Iterator[dict[str, Any]]:
  """Yield a question per function; the context holds the summaries of it and its neighbors."""
  for start in range(0, len(docs), CANDIDATES):
    near = list({text.name: text for text in docs[start:start + CANDIDATES]}.values())
    context = ' '.join(f'{text.name}: {text.summary}' for text in near)
    for text in near:
      place = context.index(f'{text.name}: {text.summary}') + len(text.name) + 2
      yield {'question': f'What does {text.name} do?', 'context': context,
             'answers': [{'text': text.summary, 'answer_start': place}]}


def rerank(docs: list[Docstring]) -> Iterator[dict[str, Any]]:
  """Yield what functions are called, and summaries of each of them and of others in its file."""
  for _, texts in itertools.groupby(docs, lambda text: text.file):
    near = list({text.name: text for text in texts}.values())
    for start in range(0, len(near) - 1, 2 * CANDIDATES):
      some = near[start:start + 2 * CANDIDATES]
      for text in some:
        words = re.findall(r'[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+', text.name)
        query = ' '.join(words or [text.name])
        for other in some:
          yield {'query': query, 'document': other.summary, 'relevance': int(other is text)}


def choice(docs: list[Docstring]) -> Iterator[dict[str, Any]]:
  """Yield a sentence, the next one among others from elsewhere, and the index of the next one."""
  pairs = []
  for text in docs:
    for paragraph in text.paragraphs:
      pair = sentence_splitting.split_sentences(paragraph)[:2]
      if len(pair) == 2:
        pairs.append(pair)
  follow = list(dict.fromkeys(second for _, second in pairs))
  for first, second in pairs:
    draw = zlib.crc32(first.encode())
    step = 1 + draw % max(1, len(follow) // CANDIDATES - 1)
    place = follow.index(second)
    others = [follow[(place + step * n) % len(follow)] for n in range(1, CANDIDATES)]
    label = draw // 8 % CANDIDATES
    choices = others[:label] + [second] + others[label:]
    yield {'context': first, 'choices': choices, 'label': label}


def embedding(docs: list[Docstring]) -> Iterator[dict[str, Any]]:
  """Yield pairs of consecutive sentences of a paragraph."""
  for text in docs:
    for sentences in map(sentence_splitting.split_sentences, text.paragraphs):
      for first, second in itertools.pairwise(sentences):
        yield {'anchor': first, 'positive': second}


def single_sentences(docs: list[Docstring]) -> Iterator[dict[str, Any]]:
  """Yield sentences."""
  for text in docs:
    for sentences in map(sentence_splitting.split_sentences, text.paragraphs):
      yield from ({'text': sentence} for sentence in sentences)


def similarity(docs: list[Docstring]) -> Iterator[dict[str, Any]]:
  """Yield pairs of sentences with a score and a class.

  The first is a summary. The second is the next sentence (score 5), a summary of the same file
  (2.5) or one of another package (0), as far as there are such.
  """
  firsts = [(text.file, text.summary) for text in docs]
  def pick(text, wanted):
    others = [summary for file, summary in firsts if wanted(file) and summary != text.summary]
    draw = zlib.crc32(text.summary.encode())
    return others[draw % len(others)] if others else None
  for number, text in enumerate(docs):
    sentences = sentence_splitting.split_sentences(text.paragraphs[0])
    following = sentences[1] if len(sentences) > 1 else None
    near = pick(text, lambda file, text=text: file == text.file) if number % 2 else None
    package = text.file.partition('/')[0]
    far = pick(text, lambda file, package=package: not file.startswith(package))
    scored = (following, 5.0, 'same'), (near, 2.5, 'near'), (far, 0.0, 'other')
    for second, score, label in scored:
      if second:
        yield {'sentence1': text.summary, 'sentence2': second, 'score': score, 'label': label}


@functools.cache
def read_docstrings() -> tuple[Docstring, ...]:
  """Read the docstrings of some files of each package; no two paragraphs begin alike."""
  files = []
  for name, path in builtin_corpus.list_source_files():
    package = name.partition('/')[0]
    if package in PACKAGES and not name.endswith('__init__.py'):
      files.append((package, zlib.crc32(name.encode()), name, path))
  files.sort()
  seen: set[str] = set()
  docs = []
  for package in PACKAGES:
    taken = 0
    for file_package, _, name, path in files:
      if file_package != package:
        continue
      texts = list(parse_docstrings(name, path.read_bytes(), seen))
      docs += texts
      taken += bool(texts)
      if taken == MAX_FILES:
        break
  return tuple(docs)


@functools.cache
def dev_files() -> frozenset[str]:
  """Return the files of the development set."""
  files = dict.fromkeys(text.file for text in read_docstrings())
  chosen = []
  for _, group in itertools.groupby(files, lambda file: file.partition('/')[0]):
    chosen += list(group)[::DEV_EVERY]
  return frozenset(chosen)


def parse_docstrings(name: str, content: bytes, seen: set[str]) -> Iterator[Docstring]:
  """Yield the docstrings of a source file, without paragraphs whose first sentence is in `seen`.

  Adds the first sentences to `seen`.
  """
  for node in ast.walk(builtin_corpus.parse_quietly(content)):
    if not isinstance(node, ast.FunctionDef | ast.ClassDef):
      continue
    docstring = ast.get_docstring(node, clean=False)
    if not docstring:
      continue
    lines = inspect.cleandoc(docstring).expandtabs().split('\n')
    prose = {}  # first sentence -> the first paragraph that begins with it
    for paragraph in reversed(list(builtin_corpus.join_paragraphs(lines))):
      text = builtin_corpus.strip_markup(CODE_MARKUP.sub('\1\\1\2', paragraph))
      if builtin_corpus.is_prose(strip_marks(text)) and len(text.split()) <= MAX_WORDS:
        prose[first_sentence(text)] = text
    fresh = tuple(text for sentence, text in reversed(prose.items()) if sentence not in seen)
    seen.update(prose)
    if fresh:
      yield Docstring(name, node.name, fresh)


def first_sentence(marked: str) -> str:
  """Return the first sentence of a paragraph, without marks."""
  return sentence_splitting.split_sentences(strip_marks(marked))[0]


def strip_marks(text: str) -> str:
  """Remove the marks of code from a paragraph."""
  return re.sub('[\1\2]', '', text)


CODE_MARKUP = re.compile(r'(?::[\w:+-]+:)?``?[!~]?([^`<>\1\2]+?)``?(?![`_])')
MAKERS = {'classification': classification, 'multilabel': multilabel, 'tagging': tagging,
          'answers': answers, 'rerank': rerank, 'choice': choice, 'similarity': similarity,
          'embedding': embedding, 'sentences': single_sentences}
