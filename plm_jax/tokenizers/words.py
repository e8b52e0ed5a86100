"""Whole words, for models that read their characters: a list of words by frequency, as allenai/bilm-tf has it."""
import collections
from collections.abc import Iterable, Sequence
import json
import re

from etils import epath
import numpy as np

from plm_jax import storage
from plm_jax.errors import understood
from plm_jax.layers import spelling
from plm_jax.tokenizers.contract import (
    CONFIG,
    TokenizerError,
    Vocab,
    hash_files,
    option,
    read_config,
    save_files,
    text_can_be_encoded,
)
from plm_jax.tokenizers.memo import lists

SPECIALS = ('<S>', '</S>', '<UNK>')  # ids 0, 1 and 2: the begin of a sentence, its end, any word that is not listed
BEGIN, END, UNKNOWN = range(3)
END_OF_LIST = '!!!MAXTERMID'  # of released lists, which is no word
SPACED = re.compile(r'\S+')
SIGNED = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")


class Words:
  """A text is a sentence: an id for each of its words, and one for its end.

  Words stand between spaces, or with `signs` each sign of punctuation is a word too. They keep their case. Ids go by
  frequency, so that a softmax over the first V of them knows the most frequent words.
  """

  spaced = False

  def __init__(self, words: Sequence[str], signs: bool = False):
    """words: those of SPECIALS first. Raises TokenizerError for a list that begins otherwise, or says a word twice."""
    if tuple(words[:3]) != SPECIALS:
      raise TokenizerError(f'a list of words begins with {", ".join(SPECIALS)}, a line each')
    self.pieces, self.signs = list(words), signs
    self.kind = 'words_and_signs' if signs else 'words'
    self._ids = {word: number for number, word in enumerate(self.pieces)}
    if len(self._ids) < len(self.pieces):
      twice = next(word for number, word in enumerate(self.pieces) if self._ids[word] != number)
      raise TokenizerError(f'a list of words has {twice!r} twice')
    self.vocab = Vocab(len(self.pieces), bos=BEGIN, eos=END, unk=UNKNOWN)
    self.starts_word = np.ones(len(self.pieces), bool)
    self._words = SIGNED if signs else SPACED

  @classmethod
  def load(cls, file: epath.PathLike) -> 'Words':
    """Loads a list of words, one a line. Raises TokenizerError."""
    file = epath.Path(file)
    with understood(file, 'a list of words', TokenizerError):
      lines = storage.read_text(file, error=TokenizerError).removesuffix('\n').split('\n')
      signs = option(read_config(file.parent), 'signs', False)
      return cls([line.strip() for line in lines if line.strip() != END_OF_LIST], signs)

  @text_can_be_encoded
  def encode(self, text: str, specials: bool = False) -> list[int]:
    """Returns the ids of the words of a sentence and of its end; of a text without words none. The names of special
    words are theirs with and without `specials`."""
    del specials
    get = self._ids.get
    ids = [get(word, UNKNOWN) for word in self.split(text)]
    return [*ids, END] if ids else []

  def numbered(self, words: Sequence[str]) -> list[int]:
    """Returns the id of each word as it is, or of the word in lower case, or that of unknown ones."""
    get = self._ids.get
    return [get(word, get(word.lower(), UNKNOWN)) for word in words]

  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    """Encodes each text as `encode` does."""
    return lists(*self.encode_flat(texts))

  @text_can_be_encoded
  def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Encodes N texts: all ids in a row [T] uint32, and how many each text has [N]."""
    every = [self.encode(text) for text in texts]
    flat = [i for ids in every for i in ids]
    return np.array(flat, np.uint32), np.array([len(ids) for ids in every], np.int64)

  @text_can_be_encoded
  def encode_places(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Encodes like `encode_flat`, and says of each id the character of its text at which it begins [T]; the end of a
    sentence is at that of its last word."""
    places = []
    for text in texts:
      spans = [found.span() for found in self._words.finditer(text)]
      places += [start for start, _ in spans] + [stop - 1 for _, stop in spans[-1:]]
    return *self.encode_flat(texts), np.array(places, np.int64)

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the words of `ids` with spaces between them; sentences end with a line break."""
    words = ' '.join('\n' if i == END else self.pieces[int(i)] for i in ids)
    return words.replace(' \n ', '\n').removesuffix(' \n')

  def split(self, text: str) -> list[str]:
    """Returns the words of a text."""
    return self._words.findall(text)

  def characters(self, ids: np.ndarray, longest: int = spelling.LONGEST) -> np.ndarray:
    """Spells words by their ids [...] -> ids of characters [..., longest] (`layers.spelling`)."""
    kinds, which = np.unique(ids, return_inverse=True)
    rows = spelling.spelled([self.pieces[number] for number in kinds], longest)
    for number, sign in ((BEGIN, spelling.SENTENCE_BEGIN), (END, spelling.SENTENCE_END)):
      rows[kinds == number] = spelling.mark(sign, longest)
    return rows[which].reshape(*np.shape(ids), longest)

  @property
  def sizes(self) -> np.ndarray:
    """Bytes of UTF-8 that each word stands for [V], the space before it among them; 1 for a special one."""
    return np.array([1] * len(SPECIALS) + [len(word.encode()) + 1 for word in self.pieces[len(SPECIALS):]])

  @property
  def hash(self) -> str:
    """sha256 hex over the saved files."""
    return hash_files(self._files())

  def save(self, folder: epath.PathLike) -> None:
    """Writes `vocab.txt`, which bilm-tf reads too, and a `tokenizer_config.json`."""
    save_files(self._files(), folder)

  def _files(self) -> dict[str, bytes]:
    config = {'kind': self.kind, 'signs': self.signs}
    return {'vocab.txt': ''.join(f'{word}\n' for word in self.pieces).encode(),
            CONFIG: (json.dumps(config, indent=1) + '\n').encode()}


def is_words(file: epath.PathLike) -> bool:
  """Tells whether a `vocab.txt` is a list of words: by its first line."""
  with storage.open_text(file) as content:
    return content.readline(64).decode('utf-8', 'replace').strip() == SPECIALS[0]


def train_words(texts: Iterable[str], size: int, signs: bool = False) -> Words:
  """Lists the most frequent words of texts, `size` with the special ones; of like ones the first by its characters.
  Raises TokenizerError for texts without words."""
  counts: collections.Counter[str] = collections.Counter()
  for text in texts:
    counts.update((SIGNED if signs else SPACED).findall(text))
  for word in SPECIALS:
    counts.pop(word, None)
  if not counts:
    raise TokenizerError('there is no word to make a list of: the text is empty')
  ranked = sorted(counts, key=lambda word: (-counts[word], word))
  return Words([*SPECIALS, *ranked[:max(0, size - len(SPECIALS))]], signs)
