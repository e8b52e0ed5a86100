"""WordPiece with BERT's own text normalisation, by the `tokenizers` library."""
from collections import Counter
from collections.abc import Iterable, Sequence
import dataclasses
import functools
import json
import re

from etils import epath
import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from plm_jax import storage
from plm_jax.errors import understood
from plm_jax.tokenizers import parts
from plm_jax.tokenizers.contract import (
    BLANKS,
    CONFIG,
    TokenizerError,
    Vocab,
    brief,
    hash_files,
    option,
    read_config,
    save_files,
    text_can_be_encoded,
)
from plm_jax.tokenizers.memo import Memo, lists

SPECIALS = ('[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]')


@dataclasses.dataclass(frozen=True)
class BertText:
  """BERT's normalisation: `BasicTokenizer` of google-research/bert."""

  lowercase: bool = True
  strip_accents: bool | None = None  # None: as `lowercase`, which is what BERT does
  chinese_chars: bool = True  # each Chinese character is a word of its own

  def normalizer(self) -> normalizers.Normalizer:
    """Builds the library's normalizer, which also drops control characters and sets Chinese ones apart."""
    return normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=self.chinese_chars, strip_accents=self.strip_accents,
        lowercase=self.lowercase)


class WordPiece:
  """Greedy longest match from the left. A word of more than 100 characters is [UNK], as in transformers."""

  kind = 'wordpiece'
  spaced = False

  def __init__(self, pieces: Sequence[str], text: BertText = BertText()):
    """`pieces` [V] in id order. Raises TokenizerError for duplicates or missing special tokens."""
    self.pieces = list(pieces)
    self.text = text
    ids = check(self.pieces)
    self.vocab = Vocab(len(ids), **{name[1:-1].lower(): ids[name] for name in SPECIALS},
                       **{role: ids[name] for name, role in BLANKS.items() if name in ids})
    self.starts_word = np.array([not piece.startswith('##') for piece in self.pieces])
    self._plain = assemble(ids, text)
    self._memo = Memo(self._encode_words, ASCII_PARTS)

  @classmethod
  def load(cls, file: epath.PathLike, text: BertText | None = None) -> 'WordPiece':
    """Loads a `vocab.txt`: one piece a line, the line number is the id. text: its normalisation, guessed without.
    Raises TokenizerError."""
    file = epath.Path(file)
    with understood(file, 'a WordPiece vocabulary', TokenizerError):
      lines = storage.read_text(file, error=TokenizerError).removesuffix('\n').split('\n')
      pieces = [line.removesuffix('\r') for line in lines]
      while pieces and not pieces[-1]:
        pieces.pop()
      return cls(pieces, text or guess_text(file, pieces))

  @text_can_be_encoded
  def encode(self, text: str, specials: bool = False) -> list[int]:
    """Returns the ids of `text`; with `specials`, '[MASK]' and its like in it are the special tokens."""
    library = self._with_specials if specials else self._plain
    return [i for part in parts.parts(shorter(text), parts.SIGNS, whole=True)
            for i in library.encode(part, add_special_tokens=False).ids]

  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    """Encodes each text, without special tokens."""
    return lists(*self.encode_flat(texts))

  @text_can_be_encoded
  def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Encodes N texts: all ids in a row [T] uint32, and how many each text has [N].

    No piece crosses a space or touches a Chinese character, so words are encoded once and remembered.
    """
    words = [self._words(shorter(text)) for text in texts]
    return self._memo.gather_lines(words)

  @text_can_be_encoded
  def encode_places(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Encodes like `encode_flat`, and says of each id the character of its text at which it begins [T]."""
    run = functools.partial(self._plain.encode_batch, add_special_tokens=False)
    return parts.encode(run, texts, parts.SIGNS, whole=True, places=True)

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of `ids`, without the spaces that tokenization put around punctuation and Chinese characters."""
    return unspaced(self._plain.decode([int(i) for i in ids], skip_special_tokens=False))

  @property
  def sizes(self) -> np.ndarray:
    """Bytes of UTF-8 that each piece stands for [V], the space before a word among them; 1 for a special token."""
    return np.array([1 if i in self.vocab.specials else len(piece.encode()) + (-2 if piece.startswith('##') else 1)
                     for i, piece in enumerate(self.pieces)])

  @property
  def hash(self) -> str:
    """sha256 hex over the saved files: the normalisation counts."""
    return hash_files(self._files())

  def save(self, folder: epath.PathLike) -> None:
    """Writes `vocab.txt` and a `tokenizer_config.json` that transformers' BertTokenizer understands too."""
    save_files(self._files(), folder)

  @property
  def specials(self) -> list[str]:
    """Special tokens: BERT's, then those of GLM that it has."""
    return [*SPECIALS, *(name for name, role in BLANKS.items() if getattr(self.vocab, role) >= 0)]

  def _files(self) -> dict[str, bytes]:
    config = {
        'kind': self.kind,
        'tokenizer_class': 'BertTokenizer',
        'do_lower_case': self.text.lowercase,
        'strip_accents': self.text.strip_accents,
        'tokenize_chinese_chars': self.text.chinese_chars,
        **{f'{name[1:-1].lower()}_token': name for name in SPECIALS},
        **({'additional_special_tokens': more} if (more := self.specials[len(SPECIALS):]) else {}),
    }
    vocab = ''.join(f'{piece}\n' for piece in self.pieces)
    return {'vocab.txt': vocab.encode(), CONFIG: (json.dumps(config, indent=1) + '\n').encode()}

  def _words(self, text: str) -> list[str]:
    if text.isascii() or not self.text.chinese_chars or not CHINESE.search(text):
      return text.split(' ')
    return WORDS.findall(text)

  def _encode_words(self, words: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in self._plain.encode_batch_fast(words, add_special_tokens=False)]

  @functools.cached_property
  def _with_specials(self) -> tokenizers.Tokenizer:
    tokenizer = assemble(check(self.pieces), self.text)
    tokenizer.add_special_tokens(self.specials)
    return tokenizer


def train_wordpiece(
    texts: Iterable[str],
    size: int,
    text: BertText = BertText(),
    coverage: float = 0.9999,
    min_count: int = 2,
    blanks: bool = False,
) -> WordPiece:
  """Trains a vocabulary of at most `size` pieces; fewer when no pair of pieces occurs `min_count` times any more.

  `texts` are held in memory. `coverage` is the share of the characters of the text that get pieces: some 150 for
  English, some 6,000 for Chinese. They take at most three quarters of `size`. With `blanks`, GLM's special tokens stand
  behind all others. The same texts give the same vocabulary.
  Raises TokenizerError when there is no text or `size` does not hold the characters.
  """
  texts = list(parts.learnable(texts, parts.NOT_CHINESE))
  more = [*BLANKS] if blanks else []
  size -= len(more)
  normalize = text.normalizer().normalize_str
  counts = Counter()
  for line in texts:
    counts.update(normalize(line))
  for space in [character for character in counts if character.isspace()]:
    del counts[space]
  if not counts:
    raise TokenizerError('cannot train a WordPiece vocabulary: the text is empty.')
  alphabet = frequent(counts, coverage, size * 3 // 4)

  def fit(size: int, first: list[str]) -> list[str]:
    tokenizer = assemble({'[UNK]': 0}, text)
    tokenizer.train_from_iterator(texts, trainers.WordPieceTrainer(
        vocab_size=size, min_frequency=min_count, special_tokens=[*SPECIALS, *first], initial_alphabet=alphabet,
        limit_alphabet=len(alphabet), show_progress=False))
    ids = tokenizer.get_vocab()
    return sorted(ids, key=ids.__getitem__)

  # The library numbers the '##' characters in the order of a hash map, and breaks ties between pairs by these numbers.
  # A first fit without merges finds them; given as special tokens to the second they have their numbers beforehand.
  characters = sorted(set(fit(0, [])) - set(SPECIALS))
  if len(SPECIALS) + len(characters) > size:
    raise TokenizerError(
        f'a WordPiece vocabulary of {size} is too small: {len(SPECIALS)} special tokens and the characters of this '
        f'text take {len(SPECIALS) + len(characters)} already. Ask for more, or for less coverage than {coverage}.')
  return WordPiece([*fit(size, characters), *more], text)


CJK = '\u3400-\u4dbf\u4e00-\u9fff'  # the two large blocks; the others are encoded as parts of longer words
MARKS = '\u3001-\u303f\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65'  # Chinese punctuation, of full width
CHINESE_SPACE = re.compile(f'(?<=[{CJK}]) (?=[{CJK}])|(?<=[{MARKS}]) | (?=[{MARKS}])')
SIGN = '!-/:-@\\[-`{-~\u2010-\u2027\u2030-\u205e'  # what BERT sets apart, of ASCII and of general punctuation
# In a Chinese text: 1964年(28.3%)的, but 在 Windows 上.
SPACE_IN_CHINESE = re.compile(f'(?<=[{SIGN}]) | (?=[{SIGN}])|(?<=[{CJK}]) (?=[\\d\\W])|(?<=[\\d\\W]) (?=[{CJK}])')
CHINESE = re.compile(f'[{CJK}]')
LATIN_WORD = re.compile('[A-Za-z]+')
KANA = re.compile('[\u3041-\u30ff]')
WORDS = re.compile(f'[{CJK}]|[^ {CJK}]+')
ENDLESS = re.compile('[A-Za-z0-9]{102,}')
ASCII_PARTS = re.compile('[A-Za-z0-9]+|[^A-Za-z0-9 ]')  # BERT sets every ASCII sign apart


def assemble(ids: dict[str, int], text: BertText) -> tokenizers.Tokenizer:
  """Builds the library's tokenizer, without special tokens."""
  tokenizer = tokenizers.Tokenizer(models.WordPiece(ids, unk_token='[UNK]', max_input_chars_per_word=100))
  tokenizer.normalizer = text.normalizer()
  tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  tokenizer.decoder = decoders.WordPiece(prefix='##', cleanup=True)
  return tokenizer


def unspaced(text: str) -> str:
  """Drops the spaces that Chinese does not write; of a text that is Chinese in the main, those around any mark
  too. Without them the tokens are the same: around these characters BERT puts spaces itself.

  >>> unspaced('1964 年 ( 28. 3 % ) 的 [MASK] [UNK] ， 在 Windows 上'), unspaced('a word ( 中 )')
  ('1964年(28.3%)的[MASK][UNK]，在 Windows 上', 'a word ( 中 )')
  """
  text = CHINESE_SPACE.sub('', text)
  return SPACE_IN_CHINESE.sub('', text) if is_chinese(text) else text


def is_chinese(text: str) -> bool:
  """Tells whether a text has more Chinese characters than words of other letters, and hardly any kana."""
  characters = len(CHINESE.findall(text))
  return characters > len(LATIN_WORD.findall(text)) and 5 * len(KANA.findall(text)) < characters


def shorter(text: str) -> str:
  """Cuts words of more than 100 letters to 101: each is unknown, whatever the others are, so the ids are the same."""
  return ENDLESS.sub(lambda match: match[0][:101], text) if len(text) > parts.LONGEST else text


def check(pieces: list[str]) -> dict[str, int]:
  """Returns the ids of `pieces`. Raises TokenizerError unless they are distinct and hold the special tokens."""
  missing = [name for name in SPECIALS if name not in pieces]
  if missing:
    raise TokenizerError(
        f'expected a WordPiece vocabulary with the special tokens {", ".join(SPECIALS)}; it lacks {", ".join(missing)} '
        f'among its {len(pieces)} pieces.')
  if len(set(pieces)) < len(pieces):
    twice = [piece for piece, count in Counter(pieces).items() if count > 1]
    raise TokenizerError(
        f'expected a WordPiece vocabulary of distinct pieces; {len(twice)} occur more than once: {brief(twice[:5])}.')
  return {piece: i for i, piece in enumerate(pieces)}


def guess_text(file: epath.Path, pieces: list[str]) -> BertText:
  """Reads the normalisation from the config beside the vocabulary, else tells it from the case of its pieces."""
  lowercase = not any(piece.lower() != piece for piece in pieces if not piece.startswith('['))
  with understood(file.parent / CONFIG, 'the configuration of a tokenizer', TokenizerError):
    content = read_config(file.parent)
    strip = None if content.get('strip_accents') is None else option(content, 'strip_accents', False)
    return BertText(option(content, 'do_lower_case', lowercase), strip, option(content, 'tokenize_chinese_chars', True))


def frequent(counts: Counter, coverage: float, limit: int) -> list[str]:
  """Returns the most frequent characters that make up `coverage` of all, at most `limit` of them."""
  ranked = sorted(counts, key=lambda character: (-counts[character], character))
  shares = np.cumsum([counts[character] for character in ranked]) / counts.total()
  return ranked[:min(limit, int(np.searchsorted(shares, coverage)) + 1)]
