"""WordPiece with BERT's text normalization (Devlin et al. 2019)."""
from collections import Counter
from collections.abc import Iterable, Sequence
import dataclasses
import functools
import math
import re

from etils import epath
import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from plm_jax import storage
from plm_jax.errors import add_advice, name_field, parse_errors_as
from plm_jax.tokenizers import long_text
from plm_jax.tokenizers.contract import (
    CONFIG_FILE,
    GLM_TOKENS,
    TokenizerError,
    Vocab,
    abbreviate,
    config_bytes,
    read_config,
    read_option,
    reject_surrogates,
)
from plm_jax.tokenizers.long_text import LibraryTokenizer, WordCache

SPECIALS = ('[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]')
COVERAGE = 0.9999  # share of the characters of a text that get tokens
MAX_WORD_LENGTH = 100  # characters; longer words are [UNK], as in transformers


@dataclasses.dataclass(frozen=True)
class BertNormalization:
  """BERT's text normalization, as in transformers today.

  It is `BasicTokenizer` of google-research/bert except for one thing: private-use characters are
  deleted, like control characters. google-research/bert keeps them, and words with one are [UNK]
  there.
  """

  lowercase: bool = True
  strip_accents: bool | None = None  # None: as `lowercase`, which is what BERT does
  chinese_chars: bool = True  # each Chinese character is a word of its own

  @property
  def removes_accents(self) -> bool:
    """Whether letters lose their accents."""
    return self.lowercase if self.strip_accents is None else self.strip_accents

  def build_normalizer(self) -> normalizers.Normalizer:
    """Build the library's normalizer, which also drops control characters."""
    return normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=self.chinese_chars, strip_accents=self.strip_accents,
        lowercase=self.lowercase)


class WordPiece(LibraryTokenizer):
  """WordPiece: greedy longest match from the left within words.

  A word of more than 100 characters is [UNK], as in transformers.
  """

  kind = 'wordpiece'
  keeps_leading_space = False
  _whole = True

  def __init__(self, pieces: Sequence[str], text: BertNormalization = BertNormalization()):
    """Build the tokenizer.

    Args:
      pieces: the tokens [V] by id.
      text: text normalization.

    Raises:
      TokenizerError: duplicates or missing special tokens.
    """
    self.pieces = list(pieces)
    self.text = text
    ids = check_tokens(self.pieces)
    roles = {name[1:-1].lower(): ids[name] for name in SPECIALS}
    roles |= {role: ids[name] for name, role in GLM_TOKENS.items() if name in ids}
    self.vocab = Vocab(len(ids), **roles)
    self.starts_word = np.array([not token.startswith('##') for token in self.pieces])
    self._plain = assemble(ids, text)
    self._cache = WordCache(self._encode_words, ASCII_PARTS)

  @classmethod
  def load(cls, file: epath.PathLike, text: BertNormalization | None = None) -> 'WordPiece':
    """Load a `vocab.txt`: one token per line, the line number is the id.

    Args:
      file: the vocabulary.
      text: text normalization; None: of the configuration next to it, or guessed.

    Raises:
      TokenizerError: the files are damaged.
    """
    file = epath.Path(file)
    with parse_errors_as(file, 'a WordPiece vocabulary', TokenizerError):
      lines = storage.read_text(file, error=TokenizerError).removesuffix('\n').split('\n')
      tokens = [line.removesuffix('\r') for line in lines]
      while tokens and not tokens[-1]:
        tokens.pop()
      return cls(tokens, text or guess_normalization(file, tokens))

  def encode(self, text: str, specials: bool = False) -> list[int]:
    """Encode a text; with `specials`, names such as '[MASK]' become special tokens."""
    return super().encode(shorten_long_words(text), specials)

  @reject_surrogates
  def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Encode N texts into flat arrays: ids [T] uint32, ids per text [N].

    No token crosses a space or touches a Chinese character, so words are encoded once and cached.
    """
    words = [self._split_words(shorten_long_words(text)) for text in texts]
    return self._cache.lookup_texts(words)

  def decode(self, ids: Iterable[int]) -> str:
    """Decode ids into text, without spaces around Chinese characters and punctuation."""
    text = self._plain.decode([int(i) for i in ids], skip_special_tokens=False)
    return remove_chinese_spaces(text)

  @property
  def token_bytes(self) -> list[bytes]:
    """UTF-8 text of each token [V], with the space before a word; b'' for special tokens."""
    texts = [f' {token}' if starts else token[2:]
             for token, starts in zip(self.pieces, self.starts_word, strict=True)]
    specials = set(self.vocab.specials)
    return [b'' if i in specials else text.encode() for i, text in enumerate(texts)]

  def split_words(self, text: str) -> list[str]:
    """Split a text into words and punctuation, as encoding does."""
    normal = self.text.build_normalizer().normalize_str(text)
    return [word for word, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(normal)]

  def extend(self, words: Sequence[str]) -> 'WordPiece':
    """Return a tokenizer with more words as tokens; only words that begin with them change."""
    return WordPiece([*self.pieces, *words], self.text)

  @property
  def specials(self) -> list[str]:
    """Special tokens: BERT's, then those of GLM that the vocabulary has."""
    glm = [name for name, role in GLM_TOKENS.items() if getattr(self.vocab, role) >= 0]
    return [*SPECIALS, *glm]

  def assemble(self) -> tokenizers.Tokenizer:
    """Build the library's tokenizer, without special tokens."""
    return assemble(check_tokens(self.pieces), self.text)

  def _files(self) -> dict[str, bytes]:
    config = {
        'kind': self.kind,
        'tokenizer_class': 'BertTokenizer',
        'do_lower_case': self.text.lowercase,
        'strip_accents': self.text.strip_accents,
        'tokenize_chinese_chars': self.text.chinese_chars,
    }
    config |= {f'{name[1:-1].lower()}_token': name for name in SPECIALS}
    if glm := self.specials[len(SPECIALS):]:
      config['additional_special_tokens'] = glm
    vocab = ''.join(f'{token}\n' for token in self.pieces)
    return {'vocab.txt': vocab.encode(), CONFIG_FILE: config_bytes(config)}

  def _split_words(self, text: str) -> list[str]:
    if text.isascii() or not self.text.chinese_chars or not CHINESE.search(text):
      return text.split(' ')
    return CHINESE_WORDS.findall(text)

  @property
  def _arguments(self):
    return self.pieces, self.text

  @functools.cached_property
  def _with_specials(self) -> tokenizers.Tokenizer:
    tokenizer = self.assemble()
    tokenizer.add_special_tokens(self.specials)
    return tokenizer


def train_wordpiece(
    texts: Iterable[str],
    size: int,
    text: BertNormalization = BertNormalization(),
    coverage: float = COVERAGE,
    min_count: int = 2,
    blanks: bool = False,
) -> WordPiece:
  """Train a WordPiece vocabulary. The same texts give the same vocabulary; they are held in memory.

  Args:
    texts: the training texts.
    size: vocabulary size at most. It is smaller when no pair of tokens occurs `min_count` times any
      more.
    text: text normalization.
    coverage: share of the characters of the text that get tokens: about 150 characters of English,
      about 6,000 of Chinese. They take at most three quarters of `size`.
    min_count: occurrences that a pair needs to be merged.
    blanks: whether GLM's special tokens are the last ids.

  Raises:
    TokenizerError: there is no text, or `size` does not hold the characters.
  """
  texts = list(long_text.drop_overlong_words(texts, long_text.NON_CHINESE_LETTER))
  glm = list(GLM_TOKENS) if blanks else []
  size -= len(glm)
  normalize = text.build_normalizer().normalize_str
  words = Counter()  # nothing in the normalization of a word depends on the words around it
  for line in texts:
    words.update(line.split(' '))
  counts = Counter()
  for word, number in words.items():
    if number == 1:
      counts.update(normalize(word))
    else:
      for character in normalize(word):
        counts[character] += number
  for space in [character for character in counts if character.isspace()]:
    del counts[space]
  if not counts:
    raise TokenizerError(f'cannot train a WordPiece vocabulary: {long_text.no_words_message()}')
  alphabet = most_frequent(counts, coverage, size * 3 // 4)

  def fit(texts: Iterable[str], size: int, first: list[str], alphabet: list[str]) -> list[str]:
    tokenizer = assemble({'[UNK]': 0}, text)
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, min_frequency=min_count, special_tokens=list(SPECIALS) + first,
        initial_alphabet=alphabet, limit_alphabet=len(alphabet), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    ids = tokenizer.get_vocab()
    return sorted(ids, key=ids.__getitem__)

  # The library numbers the '##' characters in the order of a hash map, and breaks ties between
  # pairs by these numbers. A first fit without merges, to which each word once is enough, finds
  # them; the second gets them as special tokens, so that they have their numbers before.
  characters = sorted(set(fit(words, 0, [], alphabet)) - set(SPECIALS))
  needed = len(SPECIALS) + len(characters)
  if needed > size:
    # A larger vocabulary includes more of the characters: what holds all that are covered is
    # enough.
    covered = most_frequent(counts, coverage, len(counts))
    tokens = set(SPECIALS).union(fit(words, 0, [], covered))
    enough = max(len(tokens), math.ceil(len(covered) * 4 / 3))
    raise TokenizerError(
        f'a WordPiece vocabulary of {size} is too small: {len(SPECIALS)} special tokens and the '
        f'characters of this text take {needed} already. Enough is '
        f'{name_field("vocab")}={enough + len(glm)}, or less '
        f'{add_advice(name_field("coverage"), "coverage")} than {coverage}')
  return WordPiece(fit(texts, size, characters, alphabet) + glm, text)


def expected_vocab(size: int, blanks: bool = False) -> Vocab:
  """Return the vocabulary of a tokenizer that `train_wordpiece` trains on enough text."""
  glm = list(GLM_TOKENS) if blanks else []
  others = map(str, range(size - len(SPECIALS) - len(glm)))
  return WordPiece([*SPECIALS, *others, *glm]).vocab


CJK = '\u3400-\u4dbf\u4e00-\u9fff'  # the two large blocks; the others are encoded in longer words
# Full-width Chinese punctuation.
CHINESE_PUNCTUATION = '\u3001-\u303f\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65'
CHINESE_SPACE = re.compile(
    f'(?<=[{CJK}]) (?=[{CJK}])|(?<=[{CHINESE_PUNCTUATION}]) | (?=[{CHINESE_PUNCTUATION}])')
# What BERT separates, of ASCII and of general punctuation.
PUNCTUATION = '!-/:-@\\[-`{-~\u2010-\u2027\u2030-\u205e'
# In a Chinese text: 1964年(28.3%)的, but 在 Windows 上.
SPACE_IN_CHINESE = re.compile(
    f'(?<=[{PUNCTUATION}]) | (?=[{PUNCTUATION}])|(?<=[{CJK}]) (?=[\\d\\W])|'
    f'(?<=[\\d\\W]) (?=[{CJK}])')
CHINESE = re.compile(f'[{CJK}]')
LATIN_WORD = re.compile('[A-Za-z]+')
KANA = re.compile('[\u3041-\u30ff]')
CHINESE_WORDS = re.compile(f'[{CJK}]|[^ {CJK}]+')
LONG_WORD = re.compile('[A-Za-z0-9]{102,}')
ASCII_PARTS = re.compile('[A-Za-z0-9]+|[^A-Za-z0-9 ]')  # BERT separates each ASCII punctuation mark


def assemble(ids: dict[str, int], text: BertNormalization) -> tokenizers.Tokenizer:
  """Build the library's tokenizer, without special tokens."""
  tokenizer = tokenizers.Tokenizer(models.WordPiece(
      ids, unk_token='[UNK]', max_input_chars_per_word=MAX_WORD_LENGTH))
  tokenizer.normalizer = text.build_normalizer()
  tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  tokenizer.decoder = decoders.WordPiece(prefix='##', cleanup=True)
  return tokenizer


def remove_chinese_spaces(text: str) -> str:
  """Remove the spaces that Chinese does not write.

  In a text that is mostly Chinese, also the spaces around any punctuation. The token ids are the
  same
  without them: BERT puts spaces around these characters itself.

  >>> remove_chinese_spaces('1964 年 ( 28. 3 % ) 的 [MASK] [UNK] ， 在 Windows 上')
  '1964年(28.3%)的[MASK][UNK]，在 Windows 上'
  >>> remove_chinese_spaces('a word ( 中 )')
  'a word ( 中 )'
  """
  text = CHINESE_SPACE.sub('', text)
  return SPACE_IN_CHINESE.sub('', text) if is_chinese(text) else text


def is_chinese(text: str) -> bool:
  """Return whether a text is mostly Chinese.

  It has more Chinese characters than words of Latin letters, and hardly any kana.
  """
  characters = len(CHINESE.findall(text))
  return (characters > len(LATIN_WORD.findall(text))
          and 5 * len(KANA.findall(text)) < characters)


def shorten_long_words(text: str) -> str:
  """Cut words of more than 100 letters to 101.

  The ids are the same: each such word is [UNK], whatever the other letters are.
  """
  if len(text) <= long_text.MAX_PART:
    return text
  return LONG_WORD.sub(lambda match: match[0][:101], text)


def check_tokens(tokens: list[str]) -> dict[str, int]:
  """Return the ids of `tokens`, which are distinct and include the special tokens.

  Raises:
    TokenizerError: they are not, or do not.
  """
  if missing := [name for name in SPECIALS if name not in tokens]:
    raise TokenizerError(
        f'expected a WordPiece vocabulary with the special tokens {", ".join(SPECIALS)}; it lacks '
        f'{", ".join(missing)} among its {len(tokens)} tokens.')
  if len(set(tokens)) < len(tokens):
    repeated = [token for token, count in Counter(tokens).items() if count > 1]
    raise TokenizerError(f'expected a WordPiece vocabulary of distinct tokens; {len(repeated)} '
                         f'occur more than once: {abbreviate(repeated[:5])}.')
  return {token: i for i, token in enumerate(tokens)}


def guess_normalization(file: epath.Path, tokens: list[str]) -> BertNormalization:
  """Return the text normalization of a vocabulary file.

  From the configuration next to it, else from its tokens: their case, and whether any has an accent
  or a mark, which then are kept.
  """
  plain = [token for token in tokens if not token.startswith('[')]
  lowercase = not any(token.lower() != token for token in plain)
  config = file.parent / CONFIG_FILE
  with parse_errors_as(config, 'the configuration of a tokenizer', TokenizerError):
    content = read_config(file.parent)
    strip = content.get('strip_accents')
    if strip is not None:
      strip = read_option(content, 'strip_accents', False)
    elif lowercase and content.get('do_lower_case') is None:
      # Where a token has accents, none were removed from the text that the vocabulary was made of.
      stripped = BertNormalization(strip_accents=True).build_normalizer().normalize_str
      kept = BertNormalization(strip_accents=False).build_normalizer().normalize_str
      others = [token for token in plain if not token.isascii()]
      if any(stripped(token) != kept(token) for token in others):
        strip = False
    lowercase = read_option(content, 'do_lower_case', lowercase)
    return BertNormalization(lowercase, strip, read_option(content, 'tokenize_chinese_chars', True))


def most_frequent(counts: Counter, coverage: float, limit: int) -> list[str]:
  """Return the most frequent characters that make up `coverage` of all, at most `limit` of them."""
  ranked = sorted(counts, key=lambda character: (-counts[character], character))
  shares = np.cumsum([counts[character] for character in ranked]) / counts.total()
  return ranked[:min(limit, int(np.searchsorted(shares, coverage)) + 1)]
