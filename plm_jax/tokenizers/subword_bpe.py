"""BPE of words as in subword-nmt and fastBPE: PhoBERT, BERTweet, FlauBERT and XLM.

A text is first split into words, as its class in transformers does it:

    Phobert   at spaces; the texts are split into Vietnamese words before, whose syllables are
              joined by `_`, by VnCoreNLP for the released models
    Bertweet  at spaces; with the option `normalization`, after the normalization of tweets
    Flaubert  by Moses for French; with the option `do_lowercase`, in lower case
    XLM       by Moses for English; with the option `do_lowercase_and_remove_accent`, in lower case
              without accents

Moses is the library sacremoses. Tweets are normalized by transformers and emoji 0.6.
"""
from collections.abc import Callable, Iterable, Iterator, Sequence
import dataclasses
import functools
import json
import re
import types
from typing import Any
import unicodedata

from etils import epath
import numpy as np
import tokenizers
from tokenizers import models

from plm_jax import storage
from plm_jax.errors import parse_errors_as
from plm_jax.tokenizers.contract import (
    CONFIG_FILE,
    Tokenizer,
    TokenizerError,
    Vocab,
    abbreviate,
    check_contiguous_ids,
    config_bytes,
    read_config,
    read_json,
    read_option,
    reject_surrogates,
)
from plm_jax.tokenizers.long_text import WordCache
from plm_jax.tokenizers.word_bpe import SUFFIX, UNKNOWN_TOKEN

CODES_FILE, MERGES_FILE = 'bpe.codes', 'merges.txt'
JOINER = '@@'
FIRST_PIECES, MASK_PIECE = ('<s>', '<pad>', '</s>', UNKNOWN_TOKEN), '<mask>'
ROLES = {'bos': '<s>', 'cls': '<s>', 'pad': '<pad>', 'eos': '</s>', 'sep': '</s>',
         'unk': UNKNOWN_TOKEN, 'mask': MASK_PIECE}
"""special tokens of PhoBERT and BERTweet, as RoBERTa's"""
FLAUBERT_ROLES = {'bos': '<s>', 'cls': '<s>', 'pad': '<pad>', 'sep': '</s>', 'unk': UNKNOWN_TOKEN,
                  'mask': '<special1>'}
MOSES_ROLES = {'Flaubert': FLAUBERT_ROLES, 'XLM': {**FLAUBERT_ROLES, 'cls': '</s>'}}
"""special tokens of FlauBERT, whose texts begin with <s>, and of XLM, whose begin with </s>"""
OPTIONS = {
    'Phobert': '', 'Bertweet': 'normalization', 'Flaubert': 'do_lowercase',
    'XLM': 'do_lowercase_and_remove_accent'}
"""class of transformers -> its option for preparing text"""
LANGUAGES = {'Flaubert': 'fr', 'XLM': 'en'}
"""classes whose words are those of Moses -> the language"""
SPACED_WORDS = re.compile(r'\S+\n?')
ALL_OF_IT = re.compile('(?s).+')
# replace-unicode-punctuation.perl of Moses.
PUNCTUATION = str.maketrans(
    '，、”“∶：？《》）！（；１」「０３２５６９７８４～’━〈〉【】％',
    ',,""::?"")!(;1""032569784~\'-<>[]%', '')
FULL_STOPS = re.compile(r'[。．]\s*')

SplitFunction = Callable[[str], list[str]]


@dataclasses.dataclass(frozen=True)
class Words:
  """How a text is split into words."""

  style: str
  """class of transformers, a key of OPTIONS"""
  option: bool = False
  """value of the class's option"""

  def build(self) -> SplitFunction:
    """Build the function that splits a text. Raises TokenizerError without its libraries."""
    if self.style in LANGUAGES:
      return self._build_moses(LANGUAGES[self.style])
    if self.style == 'Bertweet' and self.option:
      normalize = build_tweet_normalizer()
      return lambda text: SPACED_WORDS.findall(normalize(text))
    return SPACED_WORDS.findall

  def _build_moses(self, language: str) -> SplitFunction:
    try:
      import sacremoses  # pyright: ignore[reportMissingImports]
    except ImportError as error:
      raise TokenizerError(f'the tokenizer of {self.style} splits text by Moses, which needs the '
                           'extra: pip install "plm_jax[moses]"') from error
    normalizer = sacremoses.MosesPunctNormalizer(lang=language)
    moses = sacremoses.MosesTokenizer(lang=language)

    def split(text: str) -> list[str]:
      if self.style == 'Flaubert':
        text = unicodedata.normalize('NFC', text.replace('``', '"').replace("''", '"'))
        text = text.lower() if self.option else text
      text = FULL_STOPS.sub('. ', text.translate(PUNCTUATION)).replace('…', '...')
      text = normalizer.normalize(text)
      text = ''.join(x for x in text if not unicodedata.category(x).startswith('C'))
      words = moses.tokenize(text, return_str=False, escape=False)
      if self.style == 'XLM' and self.option:
        plain = unicodedata.normalize('NFD', ' '.join(words).lower())
        plain = ''.join(x for x in plain if unicodedata.category(x) != 'Mn')
        words = plain.lower().split(' ')
      return [word for word in words if word]
    return split


def build_tweet_normalizer() -> Callable[[str], str]:
  """Build BERTweet's normalization of tweets: users, links, emojis and contractions.

  Raises TokenizerError without its libraries.
  """
  try:
    import emoji  # pyright: ignore[reportMissingImports]
    from transformers.models.bertweet import (  # pyright: ignore[reportMissingImports]
      tokenization_bertweet,
    )
  except ImportError as error:
    raise TokenizerError(
        f'{CONFIG_FILE}: normalization is true, which needs transformers and emoji: pip install '
        'transformers emoji==0.6.0. Or set it to false, for tweets that are normalized') from error
  theirs = tokenization_bertweet.BertweetTokenizer
  parts: Any = types.SimpleNamespace(
      demojizer=emoji.demojize, tweetPreprocessor=tokenization_bertweet.TweetTokenizer(),
      special_puncts={'’': "'", '…': '...'})
  parts.normalizeToken = functools.partial(theirs.normalizeToken, parts)
  return functools.partial(theirs.normalizeTweet, parts)


class SubwordBPE(Tokenizer):
  """BPE of words: the characters of a word, merged pair by pair, the last one marked as the end.

  Symbols that are not in the vocabulary are unknown, also if they result from a merge.
  """

  kind = 'subword_bpe'
  keeps_leading_space = False

  def __init__(self, pieces: Sequence[str], merges: Sequence[tuple[str, str]], words: Words):
    """Build the tokenizer.

    Args:
      pieces: tokens, in the order of their ids.
      merges: pairs of symbols in the order in which they are merged; the last symbol of a word ends
        in `</w>`.
      words: how a text is split.

    Raises:
      TokenizerError: a token is there twice, <unk> is missing, or libraries are missing.
    """
    self.pieces, self.merges, self.words = list(pieces), list(merges), words
    ids = {piece: number for number, piece in enumerate(self.pieces)}
    if len(ids) < len(self.pieces) or UNKNOWN_TOKEN not in ids:
      repeated = [piece for number, piece in enumerate(self.pieces) if ids[piece] != number]
      problem = f'{abbreviate(repeated[0])} twice' if repeated else f'no {UNKNOWN_TOKEN}'
      raise TokenizerError(f'the vocabulary has {problem}')
    self.joined = words.style not in LANGUAGES  # tokens within a word end in `@@`
    roles = MOSES_ROLES.get(words.style, ROLES)
    self.vocab = Vocab(len(ids), **{role: ids[name] for role, name in roles.items() if name in ids})
    special = re.compile(r'<(special\d+|s|/s|pad|unk|mask)>')
    self.special_tokens = [piece for piece in self.pieces if special.fullmatch(piece)]
    # The library has every symbol that merges make; many of these are no tokens.
    symbols = dict.fromkeys([UNKNOWN_TOKEN, *map(self._symbol, self.pieces)])
    for merge in self.merges:
      symbols.update(dict.fromkeys([*merge, ''.join(merge)]))
    unknown = ids[UNKNOWN_TOKEN]
    self._id_of = np.array([ids.get(self._piece(symbol), unknown) for symbol in symbols])
    self._library = tokenizers.Tokenizer(models.BPE(
        {symbol: number for number, symbol in enumerate(symbols)}, self.merges,
        unk_token=UNKNOWN_TOKEN, end_of_word_suffix=SUFFIX))
    self._split = words.build()
    self._cache = WordCache(self._encode_words, ALL_OF_IT)

  def _symbol(self, piece: str) -> str:
    """Return the symbol of BPE that a token stands for."""
    if not self.joined:
      return piece
    return piece.removesuffix(JOINER) if piece.endswith(JOINER) else piece + SUFFIX

  def _piece(self, symbol: str) -> str:
    """Return the token of a symbol of BPE."""
    if not self.joined:
      return symbol
    return symbol.removesuffix(SUFFIX) if symbol.endswith(SUFFIX) else symbol + JOINER

  @classmethod
  def load(cls, file: epath.PathLike, style: str) -> 'SubwordBPE':
    """Load a `vocab.txt` and its `bpe.codes`, or a `vocab.json` and its `merges.txt`.

    style: class of transformers, a key of OPTIONS. Raises TokenizerError.
    """
    file = epath.Path(file)
    with parse_errors_as(file, 'the vocabulary of a BPE', TokenizerError):
      option = OPTIONS[style]
      config = read_config(file.parent)
      words = Words(style, bool(option) and read_option(config, option, style == 'XLM'))
      if style in LANGUAGES:
        ids = read_json(file)
        check_contiguous_ids(ids)
        pieces = sorted(ids, key=ids.__getitem__)
        return cls(pieces, list(read_merges(file.parent / MERGES_FILE, 2)), words)
      pieces = list(FIRST_PIECES)
      for number, line in enumerate(read_lines(file), 1):
        word, space, _ = line.strip().rpartition(' ')
        if not space:
          raise TokenizerError(f'{file.name}, line {number}: expected a token and its count, got '
                               f'{abbreviate(line)}')
        pieces.append(word)
      if MASK_PIECE not in pieces:
        pieces.append(MASK_PIECE)
      return cls(pieces, list(read_merges(file.parent / CODES_FILE, 3)), words)

  @reject_surrogates
  def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    return self._cache.lookup_texts([self._split(text) for text in texts])

  @reject_surrogates
  def encode_with_offsets(
      self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Encode like `encode_flat`, with the character offset of each id in its text [T].

    A word that the normalization of text changed has the offset of the end of the word before it.
    """
    lines = [self._split(text) for text in texts]
    ids, lengths = self._cache.lookup_texts(lines)
    offsets: list[int] = []
    for text, words in zip(texts, lines, strict=True):
      encodings = self._library.encode_batch(words, add_special_tokens=False)
      for start, encoding in zip(find_words(words, text), encodings, strict=True):
        offsets += [min(start + first, len(text) - 1) for first, _ in encoding.offsets]
    return ids, lengths, np.array(offsets, np.int64)

  def _encode_words(self, words: list[str]) -> list[list[int]]:
    """Encode words for the cache."""
    encodings = self._library.encode_batch_fast(words, add_special_tokens=False)
    return [self._id_of[encoding.ids].tolist() for encoding in encodings]

  def decode(self, ids: Iterable[int]) -> str:
    """Decode ids into text, with spaces between words."""
    tokens = [self.pieces[int(i)] for i in ids]
    if self.joined:
      return ' '.join(tokens).replace(f'{JOINER} ', '').strip()
    return ''.join(tokens).replace(SUFFIX, ' ').strip()

  @property
  def token_bytes(self) -> list[bytes]:
    """UTF-8 text of each token [V], with the space after a word; b'' for special tokens."""
    special = set(self.special_tokens)
    return [b'' if piece in special else self._symbol(piece).replace(SUFFIX, ' ').encode()
            for piece in self.pieces]

  def _files(self) -> dict[str, bytes]:
    config: dict[str, Any] = {
        'kind': self.kind, 'tokenizer_class': f'{self.words.style}Tokenizer'}
    if option := OPTIONS[self.words.style]:
      config[option] = self.words.option
    files = {CONFIG_FILE: config_bytes(config)}
    if self.joined:
      rows = [f'{piece} 1\n' for piece in self.pieces[len(FIRST_PIECES):]]
      lines = [f'{left} {right} 1\n' for left, right in self.merges]
      return {**files, 'vocab.txt': ''.join(rows).encode(), CODES_FILE: ''.join(lines).encode()}
    ids = {piece: number for number, piece in enumerate(self.pieces)}
    lines = [f'{left} {right}\n' for left, right in self.merges]
    return {**files, 'vocab.json': json.dumps(ids, ensure_ascii=False).encode(),
            MERGES_FILE: ''.join(lines).encode()}

  def __reduce__(self):
    return type(self), (self.pieces, self.merges, self.words)


def read_lines(file: epath.Path) -> list[str]:
  """Read the lines of a file of a tokenizer."""
  return storage.read_text(file, error=TokenizerError).removesuffix('\n').split('\n')


def read_merges(file: epath.Path, columns: int) -> Iterator[tuple[str, str]]:
  """Read pairs of symbols, one per line, which may be followed by their count.

  columns: columns of the file in transformers. Raises TokenizerError for other lines.
  """
  if not file.exists():
    raise TokenizerError(f'{file.parent} has a BPE vocabulary without {file.name}')
  for number, line in enumerate(read_lines(file), 1):
    fields = line.split()
    if len(fields) not in (2, 3) or len(fields) < columns:
      raise TokenizerError(f'{file.name}, line {number}: expected two symbols and their count, got '
                           f'{abbreviate(line)}')
    yield fields[0], fields[1]


def find_words(words: Sequence[str], text: str) -> Iterator[int]:
  """Yield the character offset of each word in a text, in order.

  A word that is not in the text has the offset of the end of the word before it.
  """
  end, lower = 0, text.lower()
  forms = (text, lower) if len(lower) == len(text) else (text,)
  for word in words:
    found = (form.find(word, end) for form in forms)
    start = next((place for place in found if place >= 0), -1)
    yield max(start, end)
    end = start + len(word) if start >= 0 else end
