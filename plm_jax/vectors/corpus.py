"""Text as ids of words, once, in files that are mapped to memory: what every model of words learns from."""
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
import dataclasses
import hashlib
import pathlib
import re
import shutil
from typing import Literal

import numpy as np

from plm_jax import storage
from plm_jax.checked import Checked, within
from plm_jax.data import segment, sources
from plm_jax.storage.lock import Lock
from plm_jax.vectors import vocabulary
from plm_jax.vectors.vocabulary import Vocabulary

WORD = re.compile(r"\w+(?:['’]\w+)*")


@dataclasses.dataclass(frozen=True)
class WordsConfig(Checked):
  """From text to words."""

  limits = within(least='[1, inf)', longest='[2, 1000000]', heldout='[0, 0.5]')

  path: tuple[str, ...] = ('embedded',)
  """corpora: text files, globs, folders, tfds:NAME, embedded"""
  split: Literal['letters', 'spaces', 'jieba'] = 'letters'
  """letters: runs of letters and digits, without punctuation; spaces: what stands between spaces, as the originals
  read text that was split before; jieba: Chinese words of letters by its dictionary"""
  lower: bool = True
  """in lower case"""
  least: int = 5
  """times that a word of the vocabulary comes, at least"""
  most: int = 0
  """words of the vocabulary at most, the most frequent; 0: all"""
  longest: int = 1000
  """words of a sentence; a longer paragraph goes on in the next (word2vec.c's MAX_SENTENCE_LENGTH)"""
  heldout: float = 0.001
  """share of the sentences that is only measured on"""


@dataclasses.dataclass(frozen=True)
class Sentences:
  """Ids of words, one sentence behind the other; a sentence is a paragraph of the text, without words that are not in
  the vocabulary: the originals take those out before they draw windows."""

  ids: np.ndarray  # int32 [N]
  starts: np.ndarray  # int64 [sentences + 1]

  @property
  def lengths(self) -> np.ndarray:
    """Counts the words of each sentence."""
    return np.diff(self.starts)

  def part(self, first: int, last: int) -> 'Sentences':
    """Returns sentences first .. last."""
    begin, end = self.starts[first], self.starts[last]
    return Sentences(np.asarray(self.ids[begin:end]), self.starts[first:last + 1] - begin)


@dataclasses.dataclass(frozen=True)
class Corpus:
  """What a model of words learns from."""

  vocabulary: Vocabulary
  train: Sentences
  heldout: Sentences


def splitter(config: WordsConfig) -> Callable[[str], list[str]]:
  """Makes the function that splits a paragraph into words. Raises SourceError where jieba is not installed."""
  if config.split == 'spaces':
    split: Callable[[str], list[str]] = str.split
  elif config.split == 'letters':
    split = WORD.findall
  else:
    cut = segment.with_jieba()
    split = lambda text: [word for word in cut(text)[1] if word[0].isalnum()]
  return (lambda text: split(text.lower())) if config.lower else split


def sentences(config: WordsConfig) -> Iterator[list[str]]:
  """Yields the sentences of all corpora, `longest` words each at most. Raises SourceError for what cannot be read."""
  split = splitter(config)
  for source in config.path:
    for document in sources.documents(source):
      for paragraph in document.paragraphs:
        words = split(paragraph)
        for start in range(0, len(words), config.longest):
          yield words[start:start + config.longest]


def prepared(config: WordsConfig) -> Corpus:
  """Reads the corpus of a configuration, which is made first where it is not in the cache.

  Two passes over the text: one counts words, one writes ids. Memory holds the different words, and no text. Raises
  SourceError, and VocabularyError for text with fewer than two words that come often enough.
  """
  folder = storage.cache_folder() / 'words' / fingerprint(config)
  if not (folder / 'vocabulary.txt').exists():
    with Lock(folder.with_name(f'{folder.name}.making'), 'a run', wait=True):
      if not (folder / 'vocabulary.txt').exists():
        write(config, folder)
  return opened(folder)


def fingerprint(config: WordsConfig) -> str:
  """Returns a name that changes with the text and with what is made of it."""
  said = [repr(config), *(sources.fingerprint(path) for path in config.path)]
  return hashlib.sha256('\n'.join(said).encode()).hexdigest()[:32]


def write(config: WordsConfig, folder: pathlib.Path) -> None:
  """Writes the files of a corpus; the vocabulary last, by which it is known to be whole."""
  counted: Counter[str] = Counter()
  every = every_nth(config)
  for number, words in enumerate(sentences(config)):
    if not every or number % every:
      counted.update(words)
  found = Vocabulary.of(counted, config.least, config.most)
  shutil.rmtree(folder, ignore_errors=True)
  folder.mkdir(parents=True)
  index = found.index
  with open(folder / 'train.ids', 'wb') as train, open(folder / 'heldout.ids', 'wb') as heldout:
    lengths: tuple[list[int], list[int]] = [], []
    for number, words in enumerate(sentences(config)):
      ids = np.array([index[word] for word in words if word in index], np.int32)
      held = bool(every) and number % every == 0
      (heldout if held else train).write(ids.tobytes())
      lengths[held].append(len(ids))
  for name, counts in zip(('train', 'heldout'), lengths, strict=True):
    np.save(folder / f'{name}.starts.npy', np.cumsum([0, *counts], dtype=np.int64))
  storage.write(folder / 'vocabulary.txt', found.text())


def every_nth(config: WordsConfig) -> int:
  """Tells how many sentences there are to one that is held out; 0: none is."""
  return round(1 / config.heldout) if config.heldout else 0


def opened(folder: pathlib.Path) -> Corpus:
  """Maps the files of a corpus to memory."""
  def part(name: str) -> Sentences:
    path = folder / f'{name}.ids'
    ids = np.memmap(path, np.int32, 'r') if path.stat().st_size else np.zeros(0, np.int32)
    return Sentences(ids, np.load(folder / f'{name}.starts.npy'))
  return Corpus(vocabulary.read(folder / 'vocabulary.txt'), part('train'), part('heldout'))


def of_words(text: Sequence[Sequence[str]], least: int = 1) -> Corpus:
  """Makes a corpus of sentences that are in memory, of which nothing is held out. Raises VocabularyError."""
  found = Vocabulary.of(Counter(word for words in text for word in words), least)
  ids = [[found.index[word] for word in words if word in found.index] for words in text]
  starts = np.cumsum([0, *map(len, ids)], dtype=np.int64)
  nothing = Sentences(np.zeros(0, np.int32), np.zeros(1, np.int64))
  return Corpus(found, Sentences(np.array([one for words in ids for one in words], np.int32), starts), nothing)
