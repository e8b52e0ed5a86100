"""Text as ids of words in memory-mapped files, the training data of word vectors.

`Vocabulary` has the words with their counts, from which come the subsampling of frequent words, the
noise distribution and the Huffman tree.
"""
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import dataclasses
import functools
import itertools
import pathlib
import re
import shutil
from typing import Literal

from etils import epath
import google_crc32c
import numpy as np

from plm_jax import storage, unicode_words
from plm_jax.errors import UserError, name_field
from plm_jax.preparation import tokenizer_fit, word_segmentation
from plm_jax.sources import text_sources
from plm_jax.sources.lines import SourceError
from plm_jax.storage.digests import compute_digest
from plm_jax.storage.lock import Lock
from plm_jax.validation import ValidatedConfig, intervals

Subsampling = Literal['released', 'paper']


class VocabularyError(UserError):
  """Text without enough words to learn from."""


@dataclasses.dataclass(frozen=True)
class Vocabulary:
  """Words by decreasing frequency; equally frequent words are in the order of their code points.

  That is GloVe's order. word2vec.c, fastText and gensim do not define the order of equally frequent
  words.
  """

  words: tuple[str, ...]
  counts: np.ndarray  # int64 [V]

  @classmethod
  def from_counts(cls, counted: Mapping[str, int], least: int, most: int = 0) -> 'Vocabulary':
    """Build a vocabulary from word counts.

    Args:
      counted: word -> count.
      least: minimum count of a word.
      most: maximum vocabulary size, of the most frequent words; 0: no limit.

    Raises:
      VocabularyError: fewer than two words are left, so there is nothing to learn.
    """
    frequent = [word for word, count in counted.items() if count >= least]
    frequent.sort(key=lambda word: (-counted[word], word))
    if most:
      frequent = frequent[:most]
    if not counted:
      raise VocabularyError('the corpus is empty: there are no words in it')
    if len(frequent) < 2:
      raise VocabularyError(
          f'of {len(counted):,} different words, {len(frequent)} occur {least} times or more '
          f'({name_field("data.least")}): word vectors need at least two')
    return cls(tuple(frequent), np.array([counted[word] for word in frequent], np.int64))

  @functools.cached_property
  def index(self) -> dict[str, int]:
    """Ids of words."""
    return {word: number for number, word in enumerate(self.words)}

  @property
  def total(self) -> int:
    """Number of words in the text that are in the vocabulary."""
    return int(self.counts.sum())

  def __len__(self) -> int:
    return len(self.words)

  def to_text(self) -> str:
    """Return lines `word count`, as word2vec's -save-vocab and GloVe's vocab_count write them."""
    return ''.join(
        f'{word} {count}\n' for word, count in zip(self.words, self.counts, strict=True))


def read_vocabulary(path: epath.PathLike) -> Vocabulary:
  """Read lines `word count`. Raises VocabularyError that names the line."""
  words, counts = [], []
  lines = storage.read_text(path, error=VocabularyError).split('\n')[:-1]
  for number, line in enumerate(lines, 1):
    word, _, count = line.rpartition(' ')
    if not word or not (count.isascii() and count.isdecimal()):
      raise VocabularyError(f'{path}:{number}: expected a word and its count, got {line[:60]!r}')
    words.append(word)
    counts.append(int(count))
  return Vocabulary(tuple(words), np.array(counts, np.int64))


def keep_probability(
    counts: np.ndarray, threshold: float, form: Subsampling = 'released') -> np.ndarray:
  """Return the probability [V] that subsampling keeps an occurrence of a word.

  With f a word's share of the text and t the threshold, `released` is sqrt(t / f) + t / f, as in
  word2vec.c and fastText's dictionary.cc, and `paper` is sqrt(t / f) (Mikolov et al. 2013, section
  2.3, which states the complement).

  Args:
    counts: of words [V].
    threshold: share of the text above which occurrences are dropped; 0 keeps all.
    form: which formula.
  """
  if not threshold:
    return np.ones(len(counts))
  ratio = threshold * counts.sum() / np.maximum(counts, 1)
  probability = np.sqrt(ratio)
  if form == 'released':
    probability += ratio
  return np.minimum(1.0, probability)


def noise_distribution(counts: np.ndarray, power: float = 0.75) -> np.ndarray:
  """Return the distribution [V] of negative samples, counts ** power (Mikolov et al. 2013)."""
  weights = counts.astype(np.float64) ** power
  return weights / weights.sum()


def sample_ids(
    cumulated: np.ndarray, random: np.random.Generator, shape: Iterable[int]) -> np.ndarray:
  """Sample word ids, int32, from a distribution given by its cumulative sum [V]."""
  points = random.random(tuple(shape)) * cumulated[-1]
  return np.searchsorted(cumulated, points, 'right').astype(np.int32)


@dataclasses.dataclass(frozen=True)
class HuffmanPaths:
  """Paths from the root of a hierarchical softmax to each word.

  A word is predicted by a path of binary decisions (Morin and Bengio 2005), a frequent one by a
  short path (Mikolov et al. 2013, section 2.1). Inner nodes have word2vec.c's numbers, with the
  root last.
  """

  nodes: np.ndarray  # int32 [V, P], 0 after the end of a path
  codes: np.ndarray  # int8 [V, P]: 0 or 1, the branch that is taken; -1 after the end


def huffman_paths(counts: np.ndarray) -> HuffmanPaths:
  """Build the Huffman tree of counts [V], which decrease, by word2vec.c's CreateBinaryTree.

  It takes the smaller head of two queues, the words from the rarest on and the inner nodes; of
  equal ones the node.
  """
  size = len(counts)
  weight = list(map(int, counts)) + [1 << 62] * (size - 1)
  parent, code = np.zeros(2 * size - 1, np.int64), np.zeros(2 * size - 1, np.int8)
  word, node = size - 1, size
  for made in range(size, 2 * size - 1):
    pair = []
    for _ in range(2):
      if word >= 0 and weight[word] < weight[node]:
        pair.append(word)
        word -= 1
      else:
        pair.append(node)
        node += 1
    weight[made] = weight[pair[0]] + weight[pair[1]]
    parent[pair], code[pair[1]] = made, 1
  depth = np.zeros(2 * size - 1, np.int64)
  for at in range(2 * size - 3, -1, -1):
    depth[at] = depth[parent[at]] + 1
  longest = int(depth[:size].max())
  nodes = np.zeros((size, longest), np.int32)
  codes = np.full((size, longest), -1, np.int8)
  at = np.arange(size)
  for place in range(longest, 0, -1):  # towards the root, all words of this depth or deeper at once
    here = depth[at] == place
    codes[here, place - 1] = code[at[here]]
    nodes[here, place - 1] = parent[at[here]] - size
    at = np.where(here, parent[at], at)
  return HuffmanPaths(nodes, codes)


LETTER_RUN = unicode_words.letters_pattern(underscore=True)
WORD = re.compile(
    rf"{LETTER_RUN}(?:['’]{LETTER_RUN})*|[{unicode_words.IDEOGRAPH}][{unicode_words.MARK}]*")

CHECKSUM_IDS = 1 << 22  # ids that a checksum reads at once


@dataclasses.dataclass(frozen=True)
class WordsConfig(ValidatedConfig):
  """How text becomes words."""

  limits = intervals(least='[1, inf)', longest='[2, 1000000]', heldout='[0, 0.5]')

  path: tuple[str, ...] = ('embedded',)
  """Corpora: text files, globs, folders, tfds:NAME, embedded."""
  split: Literal['letters', 'spaces', 'jieba'] = 'letters'
  """How text is split into words. letters: sequences of letters and digits with their combining
  marks, without punctuation; each Chinese or Japanese character is a word. spaces: at spaces, for
  pre-tokenized text, as in the original code; jieba: as letters, with Chinese words from jieba."""
  lower: bool = True
  """Lowercase the words."""
  least: int = 5
  """Minimum count of a word in the vocabulary."""
  most: int = 0
  """Maximum vocabulary size: the most frequent words are kept. 0: no limit."""
  longest: int = 1000
  """Maximum length of a sentence in words; a longer paragraph continues in the next one
  (word2vec.c's MAX_SENTENCE_LENGTH)."""
  heldout: float = 0.001
  """Share of the sentences that are held out for evaluation."""
  heldout_path: tuple[str, ...] = ()
  """Held-out text for evaluation (validation set), in any form of a corpus: all of it, and nothing
  else. Default: a share of the sentences."""

  def conflict(self, option):
    if self.heldout_path and self.heldout not in (0, WordsConfig.heldout):
      return (f'{option("heldout_path")} names the held-out text, so no share of the sentences is '
              f'held out: leave out {option("heldout")}')
    return None


@dataclasses.dataclass(frozen=True)
class Sentences:
  """Concatenated sentences as ids of words.

  A sentence is a paragraph of the text without words that are not in the vocabulary: the originals
  remove those before they sample windows.
  """

  ids: np.ndarray  # int32 [N]
  starts: np.ndarray  # int64 [sentences + 1]

  @property
  def lengths(self) -> np.ndarray:
    """Number of words of each sentence."""
    return np.diff(self.starts)

  def select(self, first: int, last: int) -> 'Sentences':
    """Return the sentences from `first` up to `last`, exclusive."""
    begin, end = self.starts[first], self.starts[last]
    return Sentences(np.asarray(self.ids[begin:end]), self.starts[first:last + 1] - begin)


@dataclasses.dataclass(frozen=True)
class WordCorpus:
  """A vocabulary with training and held-out sentences."""

  vocabulary: Vocabulary
  train: Sentences
  heldout: Sentences

  @property
  def digest(self) -> str:
    """Checksum of all sentences."""
    value = 0
    for part in (self.train.starts, self.train.ids, self.heldout.starts, self.heldout.ids):
      for first in range(0, len(part), CHECKSUM_IDS):
        content = np.ascontiguousarray(part[first:first + CHECKSUM_IDS]).tobytes()
        value = google_crc32c.extend(value, content)
    return f'{value:08x}'


def make_splitter(config: WordsConfig) -> Callable[[str], list[str]]:
  """Make the function that splits a paragraph into words.

  Raises:
    SourceError: jieba is not installed.
  """
  split: Callable[[str], list[str]] = str.split if config.split == 'spaces' else WORD.findall
  if config.split == 'jieba':
    segment = word_segmentation.make_jieba_segmenter()
    split = lambda text: [word for word in segment(text)[1] if word[0].isalnum()]
  if not config.lower:
    return split
  return lambda text: split(text.lower())


def iterate_sentences(
    config: WordsConfig, texts: Sequence[str], seen: tokenizer_fit.TextSample | None = None
) -> Iterator[list[str]]:
  """Yield the sentences of texts, of at most `longest` words each.

  Args:
    config: how text becomes words.
    texts: corpora.
    seen: keeps a sample of the paragraphs; None: no sample.

  Raises:
    SourceError: a corpus cannot be read.
  """
  split = make_splitter(config)
  for source in texts:
    for document in text_sources.read_documents(source):
      paragraphs = seen.watch(document.paragraphs) if seen else document.paragraphs
      for paragraph in paragraphs:
        words = split(paragraph)
        for start in range(0, len(words), config.longest):
          yield words[start:start + config.longest]


def split_sentences(config: WordsConfig, seen: tokenizer_fit.TextSample | None = None
                    ) -> Iterator[tuple[bool, list[str]]]:
  """Yield (whether it is held out, sentence) of all corpora, then of the held-out text.

  config, seen: as in `iterate_sentences`; of the held-out text there is no sample.
  """
  interval = round(1 / config.heldout) if config.heldout and not config.heldout_path else 0
  for number, words in enumerate(iterate_sentences(config, config.path, seen)):
    yield interval > 0 and number % interval == 0, words
  for words in iterate_sentences(config, config.heldout_path):
    yield True, words


def prepare_corpus(config: WordsConfig) -> WordCorpus:
  """Open the corpus of a configuration; it is made first unless it is in the cache.

  Two passes over the text: one counts words, one writes ids. Memory holds the different words, not
  the text.

  Raises:
    SourceError: the text cannot be read.
    VocabularyError: fewer than two words are frequent enough.
  """
  folder = storage.cache_folder() / 'words' / corpus_fingerprint(config)
  if not (folder / 'vocabulary.txt').exists():
    with Lock(folder.with_name(f'{folder.name}.making'), 'a run', wait=True):
      if not (folder / 'vocabulary.txt').exists():
        write_corpus(config, folder)
  return open_corpus(folder)


def corpus_fingerprint(config: WordsConfig) -> str:
  """Return a name that changes with the text and with the configuration."""
  parts = [repr(config)]
  parts += [text_sources.fingerprint(path) for path in (*config.path, *config.heldout_path)]
  if config.split == 'letters':
    parts.append('words with marks')  # other rules than those of corpora made by earlier versions
  return compute_digest('\n'.join(parts))[:32]


def write_corpus(config: WordsConfig, folder: pathlib.Path) -> None:
  """Write the files of a corpus; the vocabulary last, which marks the corpus as complete.

  Raises:
    SourceError: the words of the text are not separated, or the held-out text has none of them.
  """
  counted: Counter[str] = Counter()
  seen = tokenizer_fit.TextSample()
  for is_heldout, words in split_sentences(config, seen):
    if not is_heldout:
      counted.update(words)
  check_spaces(config, seen.texts)
  vocabulary = Vocabulary.from_counts(counted, config.least, config.most)
  shutil.rmtree(folder, ignore_errors=True)
  folder.mkdir(parents=True)
  index = vocabulary.index
  lengths: tuple[list[int], list[int]] = [], []  # of training and of held-out sentences
  with open(folder / 'train.ids', 'wb') as train, open(folder / 'heldout.ids', 'wb') as heldout:
    for is_heldout, words in split_sentences(config):
      ids = np.array([index[word] for word in words if word in index], np.int32)
      (train, heldout)[is_heldout].write(ids.tobytes())
      lengths[is_heldout].append(len(ids))
  if config.heldout_path and not any(lengths[True]):
    raise SourceError(f'{", ".join(config.heldout_path)} has no words of the vocabulary: nothing '
                      'to evaluate on')
  for name, sizes in zip(('train', 'heldout'), lengths, strict=True):
    np.save(folder / f'{name}.starts.npy', np.cumsum([0] + sizes, dtype=np.int64))
  storage.write(folder / 'vocabulary.txt', vocabulary.to_text())


def check_spaces(config: WordsConfig, texts: Sequence[str]) -> None:
  """Check that `split` finds the words of a sample of the text.

  Raises:
    SourceError: many letters are in phrases without spaces, which `split` takes for words.
  """
  if config.split == 'jieba':
    return
  scripts, advice = unicode_words.DICTIONARY_SCRIPTS, ''
  if config.split == 'spaces':
    scripts = unicode_words.UNSPACED_SCRIPTS
    advice = (f'; {name_field("data.split")}=letters takes Chinese and Japanese characters for '
              'words, jieba finds Chinese words')
  share, script = tokenizer_fit.measure_long_runs(texts, scripts)
  if share > tokenizer_fit.MANY_SHARE:
    raise SourceError(f'{share:.0%} of the letters are in phrases without a space ({script}), '
                      f'whose words cannot be told: give text with spaces between words{advice}')


def open_corpus(folder: pathlib.Path) -> WordCorpus:
  """Map the files of a corpus to memory."""
  def open_part(name: str) -> Sentences:
    path = folder / f'{name}.ids'
    ids = np.memmap(path, np.int32, 'r') if path.stat().st_size else np.zeros(0, np.int32)
    return Sentences(ids, np.load(folder / f'{name}.starts.npy'))

  vocabulary = read_vocabulary(folder / 'vocabulary.txt')
  return WordCorpus(vocabulary, open_part('train'), open_part('heldout'))


def corpus_from_words(text: Sequence[Sequence[str]], least: int = 1) -> WordCorpus:
  """Make a corpus of sentences that are in memory, without held-out ones.

  Raises:
    VocabularyError: fewer than two words occur `least` times.
  """
  counted = Counter(itertools.chain.from_iterable(text))
  vocabulary = Vocabulary.from_counts(counted, least)
  index = vocabulary.index
  ids, starts = [], [0]
  for words in text:
    ids += [index[word] for word in words if word in index]
    starts.append(len(ids))
  train = Sentences(np.array(ids, np.int32), np.array(starts, np.int64))
  return WordCorpus(vocabulary, train, Sentences(np.zeros(0, np.int32), np.zeros(1, np.int64)))
