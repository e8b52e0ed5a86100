"""The tokenizer interface: special-token ids (`Vocab`) and the base class `Tokenizer`.

`boundary_ids`, `end_of_text_id` and `delimiters` are the special tokens around the texts of
language models, as in training.
"""
import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import functools
import itertools
import json
import re
from typing import Any

from etils import epath
import numpy as np

from plm_jax import storage
from plm_jax.errors import ConfigError, UserError
from plm_jax.storage.digests import compute_digest

CONFIG_FILE = 'tokenizer_config.json'
# GLM's special tokens other than [MASK], in their order at the end of released vocabularies.
GLM_TOKENS = {
    '<|startofpiece|>': 'sop', '<|endofpiece|>': 'eop', '[gMASK]': 'gmask', '[sMASK]': 'smask'}
# Tokens for filling in the middle that are added to a tokenizer, and other names of the first three
# in released ones: StarCoder's, Code Llama's and DeepSeek's.
FIM_TOKENS = {'<|fim_prefix|>': 'fim_prefix', '<|fim_suffix|>': 'fim_suffix',
              '<|fim_middle|>': 'fim_middle', '<|fim_end|>': 'fim_end'}
FIM_NAMES = {
    **FIM_TOKENS, '<fim_prefix>': 'fim_prefix', '<fim_suffix>': 'fim_suffix',
    '<fim_middle>': 'fim_middle', '▁<PRE>': 'fim_prefix', '▁<SUF>': 'fim_suffix',
    '▁<MID>': 'fim_middle', '▁<EOT>': 'fim_end', '<｜fim▁begin｜>': 'fim_prefix',
    '<｜fim▁hole｜>': 'fim_suffix', '<｜fim▁end｜>': 'fim_middle'}


SURROGATE = re.compile('[\ud800-\udfff]')
MAX_EXTRA_TOKENS = 10_000  # added tokens that a configuration can ask for; T5 has 100, ByT5 125


class TokenizerError(UserError):
  """A tokenizer that is missing, damaged, or cannot be trained as requested."""


class MissingTokenizerError(TokenizerError):
  """There is no tokenizer in the place that was named."""


@dataclasses.dataclass(frozen=True)
class Vocab:
  """The vocabulary size and the ids of special tokens, -1 where absent.

  Hashable, so objectives take it as a static argument of jitted functions.
  """

  size: int
  pad: int = -1
  unk: int = -1
  cls: int = -1
  sep: int = -1
  mask: int = -1
  bos: int = -1
  eos: int = -1
  sop: int = -1  # starts the text that fills a blank (GLM)
  eop: int = -1  # ends the text that fills a blank (GLM)
  gmask: int = -1  # a blank for the rest of a text (GLM)
  smask: int = -1  # a blank for a sentence (GLM)
  source: int = -1  # the language token at the end of an encoder input (mBART)
  target: int = -1  # the language token at the start of a decoder output (mBART)
  sentinel: int = -1  # the first sentinel of span corruption; the next ones have lower ids (T5)
  sentinels: int = 100  # number of sentinels, where `sentinel` exists
  language: int = -1  # the first language token of mBART's list; the others follow it
  fim_prefix: int = -1  # before the text before a hole (fill in the middle)
  fim_suffix: int = -1  # before the text after it
  fim_middle: int = -1  # before the text that fills it
  fim_end: int = -1  # after that

  @property
  def specials(self) -> tuple[int, ...]:
    """The special ids that exist, ascending."""
    roles = {f.name for f in dataclasses.fields(self)} - {'size', 'sentinels'}
    return tuple(sorted({getattr(self, role) for role in roles} - {-1}))

  @property
  def fills_middle(self) -> bool:
    """Whether there are tokens for filling in the middle."""
    return min(self.fim_prefix, self.fim_suffix, self.fim_middle) >= 0


def add_encoder_roles(roles: Mapping[str, Any]) -> dict[str, Any]:
  """Give the start and the end of a text the roles of [CLS] and [SEP], if no others have them.

  So do encoders with a decoder's vocabulary: EuroBERT (LLaMA 3) and mmBERT (Gemma 2). They are
  recognized by their mask token. The end of a text is also their padding, unless they have another.

  Args:
    roles: role of a special token, such as 'eos' -> its name or id.

  Returns:
    The roles, with those that are added.
  """
  if not {'mask', 'bos', 'eos'} <= roles.keys() or {'cls', 'sep'} & roles.keys():
    return dict(roles)
  return {'pad': roles['eos'], **roles, 'cls': roles['bos'], 'sep': roles['eos']}


class Tokenizer(abc.ABC):
  """Text to token ids and back. Special tokens are never added: packing and objectives do that.

  A tokenizer has `vocab` and `pieces`, and defines `encode_with_offsets`, `decode` and `_files`.
  The other members have defaults, which are right where every token is text of its own.
  """

  kind = ''
  vocab: Vocab
  pieces: list[str]
  """tokens [V], for display"""
  keeps_leading_space = True
  """whether a space before a text changes the ids of its first word"""

  @abc.abstractmethod
  def encode_with_offsets(
      self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Encode N texts: ids [T] uint32, ids per text [N], character offset of each id [T]."""

  @abc.abstractmethod
  def decode(self, ids: Iterable[int]) -> str:
    """Decode ids into text, as close to the encoded text as the tokens allow."""

  @abc.abstractmethod
  def _files(self) -> dict[str, bytes]:
    """Return the contents of the saved files by name, which are those of transformers."""

  def encode(self, text: str, specials: bool = False) -> list[int]:
    """Encode one text.

    Args:
      text: any text.
      specials: whether the names of special tokens in it, such as '[MASK]', become those tokens. By
        default they are ordinary text.
    """
    ids = self._special_ids
    if not specials or not ids:
      return self.encode_flat([text])[0].tolist()
    parts = re.split(f'({"|".join(map(re.escape, ids))})', text)
    encoded = [[ids[part]] if part in ids else self.encode(part) for part in parts]
    return list(itertools.chain.from_iterable(encoded))

  @functools.cached_property
  def _special_ids(self) -> dict[str, int]:
    """Ids of special tokens by their spelling in text."""
    return {self.pieces[i]: i for i in self.vocab.specials}

  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    """Encode texts as `encode` does without `specials`, faster."""
    return split_by_length(*self.encode_flat(texts))

  def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Encode N texts into flat arrays, the fastest way: ids [T] uint32, ids per text [N]."""
    ids, lengths, _ = self.encode_with_offsets(texts)
    return ids, lengths

  def split_words(self, text: str) -> list[str]:
    """Split a text into words that `extend` can make tokens of."""
    del text
    raise self._cannot_extend()

  def extend(self, words: Sequence[str]) -> 'Tokenizer':
    """Return a tokenizer with more words as tokens, after the tokens of text that there are.

    Texts without a new token in them have the same tokens as before.

    Raises:
      TokenizerError: the vocabulary of this kind of tokenizer cannot be extended.
    """
    del words
    raise self._cannot_extend()

  def _cannot_extend(self) -> TokenizerError:
    return TokenizerError(
        f'the vocabulary of this tokenizer ({type(self).__name__}, {self.kind}) cannot be '
        'extended: expected WordPiece, byte-level BPE or a SentencePiece model')

  def find_token(self, name: str) -> int:
    """Return the id of a token by its name in the files of transformers, -1 where there is none."""
    return self._ids_by_name.get(name, -1)

  @functools.cached_property
  def _ids_by_name(self) -> Mapping[str, int]:
    return {piece: number for number, piece in enumerate(self.pieces)}

  @functools.cached_property
  def starts_word(self) -> np.ndarray:
    """Whether a token starts a word: bool [V]."""
    return np.ones(len(self.pieces), bool)

  @property
  def token_bytes(self) -> list[bytes]:
    """UTF-8 text of each token [V], with the space that belongs to it; b'' for special tokens."""
    specials = set(self.vocab.specials)
    return [b'' if i in specials else piece.encode() for i, piece in enumerate(self.pieces)]

  @property
  def byte_lengths(self) -> np.ndarray:
    """UTF-8 bytes per token [V], including the space that belongs to it.

    A special token counts as one byte, the line break that it replaces.
    """
    return np.array([len(content) or 1 for content in self.token_bytes])

  @property
  def hash(self) -> str:
    """sha256 of the saved files with their names, as hex: text normalization and options count."""
    return compute_digest(*(
        f'{name} {len(content)}\n'.encode() + content
        for name, content in sorted(self._files().items())))

  def save(self, folder: epath.PathLike) -> None:
    """Write the files that `load` reads to a folder.

    Each file is complete at any moment, also when others save the same tokenizer there.

    Raises:
      TokenizerError: the folder cannot be written.
    """
    for name, content in self._files().items():
      storage.write(storage.resolve_path(folder) / name, content, TokenizerError)


def read_json(file: epath.PathLike) -> dict[str, Any]:
  """Read the object in a JSON file. Raises TokenizerError."""
  return storage.read_json(file, error=TokenizerError)


def read_config(folder: epath.Path) -> dict[str, Any]:
  """Read the `tokenizer_config.json` of a folder; {} where there is none."""
  file = folder / CONFIG_FILE
  return read_json(file) if file.exists() else {}


def config_bytes(config: Mapping[str, Any], ensure_ascii: bool = True) -> bytes:
  """Return the content of a `tokenizer_config.json`."""
  return (json.dumps(config, indent=1, ensure_ascii=ensure_ascii) + '\n').encode()


def read_option(values: Mapping[str, Any], name: str, default: Any, most: int = 0) -> Any:
  """Read a validated option of a tokenizer file.

  Args:
    values: the options of the file.
    name: the option to read.
    default: the value where the option is absent or null; other values need the same type.
    most: the largest number allowed; numbers are at least 0. 0: no limits.

  Returns:
    The value.

  Raises:
    TokenizerError: the value has another type or is out of range.
  """
  value = values.get(name)
  if value is None:
    return default
  if type(value) is type(default) and (not most or 0 <= value <= most):
    return value
  plain = 'true or false' if default in (True, False) else 'a text'
  expected = f'a number from 0 to {most:,}' if most else plain
  raise TokenizerError(f'{name} is {abbreviate(value)}, expected {expected}')


def check_contiguous_ids(ids: Mapping[str, Any]) -> None:
  """Raise TokenizerError unless the ids are 0, 1, 2, ... in some order."""
  if (not all(type(i) is int for i in ids.values())
      or sorted(ids.values()) != list(range(len(ids)))):
    raise TokenizerError(f'expected ids from 0 to {len(ids) - 1}, one per token.')


def reject_surrogates(method: Callable) -> Callable:
  """Wrap an encoding method so that lone UTF-16 surrogates raise TokenizerError.

  Python strings can hold such halves of a pair, and the libraries fail on them.
  """
  @functools.wraps(method)
  def wrapper(self, texts, *args, **kwargs):
    try:
      return method(self, texts, *args, **kwargs)
    except (UnicodeEncodeError, TypeError):  # the libraries raise one or the other
      if isinstance(texts, str):
        texts = [texts]
      for text in texts:
        if half := SURROGATE.search(text):
          raise TokenizerError(
              f'the text holds {half[0]!a} at character {half.start() + 1:,}, which is no '
              'character but a part of one: it was cut or decoded wrongly') from None
      raise
  return wrapper


def abbreviate(value: Any) -> str:
  """Format a value for a message: one line of about 100 characters at most."""
  text = repr(value)
  return text if len(text) <= 100 else f'{text[:100]}...'


def boundary_ids(vocab) -> tuple[int, int]:
  """Return the ids of the start and end tokens of a text.

  Raises:
    ConfigError: the tokenizer has none.
  """
  starts = [token for token in (vocab.bos, vocab.eos, vocab.cls, vocab.sep) if token >= 0]
  ends = [token for token in (vocab.eos, vocab.sep) if token >= 0]
  if not starts or not ends:
    raise ConfigError(
        'a language model needs a token that ends a text (eos or sep); the tokenizer has none')
  return starts[0], ends[0]


def end_of_text_id(vocab) -> int:
  """Return the id of the end token of a text.

  It is padding in BERT's vocabulary, which has no end token, as in released models.
  """
  return vocab.eos if vocab.eos >= 0 else vocab.pad


def delimiters(vocab, written: bool = False) -> tuple[tuple[int, ...], tuple[int, ...], int]:
  """Return the special tokens around a text, and the decoder's start token.

  T5 and Marian, whose vocabularies have sentinels or no start token: the end token after the text;
  the decoder starts with padding.
  mBART, whose vocabulary has languages: the end token and the text's language after the text; the
  decoder starts with the language of the target. Vocabularies of decoders (Gemma, LLaMA), with
  neither [CLS], [SEP] nor a mask: the end token after the text; the decoder starts with the start
  token (T5Gemma). Others as BART: start and end tokens around the text; the decoder starts with the
  end token.

  Args:
    vocab: the tokenizer's `Vocab`.
    written: whether the text is a target; else it is an input.

  Returns:
    (ids before the text, ids after it, id of the decoder's first input).

  Raises:
    ConfigError: the tokenizer has no such tokens.
  """
  first, end = boundary_ids(vocab)
  if vocab.source >= 0:
    return (), (end, vocab.target if written else vocab.source), vocab.target
  starts = vocab.bos >= 0 or vocab.cls >= 0
  if vocab.sentinel >= 0 or (vocab.pad >= 0 and not starts):
    return (), (end,), vocab.pad
  if vocab.bos >= 0 and max(vocab.cls, vocab.sep, vocab.mask) < 0:
    return (), (end,), vocab.bos
  return (first,), (end,), end


def split_by_length(ids: np.ndarray, lengths: np.ndarray) -> list[list[int]]:
  """Split flat ids [T] into the ids of N texts, lengths[n] for text n."""
  if not len(lengths):
    return []
  return [text_ids.tolist() for text_ids in np.split(ids, np.cumsum(lengths)[:-1])]
