"""Whole-word tokenizer of ELMo, whose model reads the characters of words.

Its vocabulary is a list of words by frequency, as in allenai/bilm-tf.
"""
import collections
from collections.abc import Iterable, Sequence
import itertools
import re

from etils import epath
import numpy as np

from plm_jax import storage, unicode_words
from plm_jax.errors import parse_errors_as
from plm_jax.layers import char_ids
from plm_jax.tokenizers.contract import (
    CONFIG_FILE,
    Tokenizer,
    TokenizerError,
    Vocab,
    config_bytes,
    read_config,
    read_option,
    reject_surrogates,
)

SPECIALS = ('<S>', '</S>', '<UNK>')  # ids 0, 1 and 2: start and end of a sentence, unknown words
SENTENCE_BEGIN, SENTENCE_END, UNKNOWN_WORD = range(3)
END_OF_LIST = '!!!MAXTERMID'  # last line of released lists, which is no word
SPACED_WORDS = re.compile(r'\S+')
LETTER_RUN = unicode_words.letters_pattern(underscore=True)
COMBINING_MARKS = f'[{unicode_words.MARK}]*'
WORDS_AND_PUNCTUATION = re.compile(
    rf"[{unicode_words.IDEOGRAPH}]{COMBINING_MARKS}|{LETTER_RUN}(?:['’]{LETTER_RUN})*|"
    rf"[^\w\s{unicode_words.INVISIBLE}]{COMBINING_MARKS}")


class WordTokenizer(Tokenizer):
  """Whole-word tokenizer: a text is a sentence, with one id per word and one for its end.

  Words are separated by spaces; with `signs`, each punctuation mark is also a word. Words keep
  their case. Ids are ordered by frequency, so that a softmax over the first V of them covers the
  most frequent words.
  """

  keeps_leading_space = False

  def __init__(self, words: Sequence[str], signs: bool = False):
    """Build the tokenizer.

    Args:
      words: the vocabulary, beginning with SPECIALS.
      signs: whether punctuation marks are words of their own.

    Raises:
      TokenizerError: the list begins otherwise, or has a word twice.
    """
    if tuple(words[:3]) != SPECIALS:
      raise TokenizerError(f'a list of words begins with {", ".join(SPECIALS)}, one per line')
    self.pieces, self.punctuation = list(words), signs
    self.kind = 'words_and_signs' if signs else 'words'
    self._ids = {word: number for number, word in enumerate(self.pieces)}
    if len(self._ids) < len(self.pieces):
      repeated = next(
          word for number, word in enumerate(self.pieces) if self._ids[word] != number)
      raise TokenizerError(f'a list of words has {repeated!r} twice')
    self.vocab = Vocab(
        len(self.pieces), bos=SENTENCE_BEGIN, eos=SENTENCE_END, unk=UNKNOWN_WORD)
    self._word_pattern = WORDS_AND_PUNCTUATION if signs else SPACED_WORDS

  @classmethod
  def load(cls, file: epath.PathLike) -> 'WordTokenizer':
    """Load a list of words, one per line. Raises TokenizerError."""
    file = epath.Path(file)
    with parse_errors_as(file, 'a list of words', TokenizerError):
      content = storage.read_text(file, error=TokenizerError).removesuffix('\n')
      words = [line.strip() for line in content.split('\n')]
      signs = read_option(read_config(file.parent), 'signs', False)
      return cls([word for word in words if word != END_OF_LIST], signs)

  @reject_surrogates
  def encode(self, text: str, specials: bool = False) -> list[int]:
    """Encode the words of a sentence and its end; a text without words has no ids.

    The names of special words become special words with and without `specials`.
    """
    del specials
    get = self._ids.get
    ids = [get(word, UNKNOWN_WORD) for word in self.split(text)]
    return ids + [SENTENCE_END] if ids else []

  def lookup_ids(self, words: Sequence[str]) -> list[int]:
    """Return the id of each word as written, else in lower case, else the unknown id."""
    get = self._ids.get
    return [get(word, get(word.lower(), UNKNOWN_WORD)) for word in words]

  @reject_surrogates
  def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    encoded = [self.encode(text) for text in texts]
    ids = np.array(list(itertools.chain.from_iterable(encoded)), np.uint32)
    return ids, np.array([*map(len, encoded)], np.int64)

  @reject_surrogates
  def encode_with_offsets(
      self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Encode like `encode_flat`, with the character offset of each id in its text [T].

    The end of a sentence has the offset of its last character.
    """
    offsets = []
    for text in texts:
      end = None
      for match in self._word_pattern.finditer(text):
        offsets.append(match.start())
        end = match.end()
      if end is not None:
        offsets.append(end - 1)
    ids, lengths = self.encode_flat(texts)
    return ids, lengths, np.array(offsets, np.int64)

  def decode(self, ids: Iterable[int]) -> str:
    """Decode ids into words with spaces between them; sentences end with a line break."""
    words = ' '.join('\n' if i == SENTENCE_END else self.pieces[int(i)] for i in ids)
    return words.replace(' \n ', '\n').removesuffix(' \n')

  def split(self, text: str) -> list[str]:
    """Split a text into words."""
    return self._word_pattern.findall(text)

  def characters(self, ids: np.ndarray, longest: int = char_ids.MAX_CHARACTERS) -> np.ndarray:
    """Return the character ids [..., longest] of word ids [...] (`layers.char_ids`)."""
    kinds, inverse = np.unique(ids, return_inverse=True)
    rows = char_ids.encode_words([self.pieces[number] for number in kinds], longest)
    rows[kinds == SENTENCE_BEGIN] = char_ids.encode_boundary(char_ids.SENTENCE_BEGIN, longest)
    rows[kinds == SENTENCE_END] = char_ids.encode_boundary(char_ids.SENTENCE_END, longest)
    return rows[inverse].reshape(np.shape(ids) + (longest,))

  @property
  def token_bytes(self) -> list[bytes]:
    """UTF-8 text of each word [V], with the space before it; b'' for special words."""
    words = [f' {word}'.encode() for word in self.pieces[len(SPECIALS):]]
    return [b''] * len(SPECIALS) + words

  def _files(self) -> dict[str, bytes]:
    config = {'kind': self.kind, 'signs': self.punctuation}
    return {'vocab.txt': ''.join(f'{word}\n' for word in self.pieces).encode(),
            CONFIG_FILE: config_bytes(config)}


def is_word_list(file: epath.PathLike) -> bool:
  """Return whether a `vocab.txt` is a list of words, by its first line."""
  with storage.open_stream(file) as content:
    return content.readline(64).decode('utf-8', 'replace').strip() == SPECIALS[0]


def train_word_tokenizer(texts: Iterable[str], size: int, signs: bool = False) -> WordTokenizer:
  """Build a vocabulary of the most frequent words of texts.

  Args:
    texts: the training texts.
    size: vocabulary size, including the special words. Equally frequent words are in the order of
      their characters.
    signs: whether punctuation marks are words of their own.

  Raises:
    TokenizerError: the texts have no words.
  """
  pattern = WORDS_AND_PUNCTUATION if signs else SPACED_WORDS
  counts = collections.Counter(itertools.chain.from_iterable(map(pattern.findall, texts)))
  for word in SPECIALS:
    counts.pop(word, None)
  if not counts:
    raise TokenizerError('there is no word to make a list of: the text is empty')
  ranked = sorted(counts, key=lambda word: (-counts[word], word))
  ranked = ranked[:max(0, size - len(SPECIALS))]
  return WordTokenizer(list(SPECIALS) + ranked, signs)
