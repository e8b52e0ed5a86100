"""What the rest of the house may ask of a tokenizer."""
from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import functools
import hashlib
import re
from typing import Any, Protocol

from etils import epath
import numpy as np

from plm_jax import storage
from plm_jax.errors import Expected

CONFIG = 'tokenizer_config.json'
# GLM's special tokens beside [MASK], in the order in which released vocabularies have them behind all others.
BLANKS = {'<|startofpiece|>': 'sop', '<|endofpiece|>': 'eop', '[gMASK]': 'gmask', '[sMASK]': 'smask'}


HALF = re.compile('[\ud800-\udfff]')
MOST = 10_000  # tokens beside a vocabulary that a configuration can ask for; T5 has 100, ByT5 125


class TokenizerError(Expected):
  """A tokenizer that is missing, damaged, or cannot be trained as asked."""


@dataclasses.dataclass(frozen=True)
class Vocab:
  """Size and special ids, -1 where absent. Hashable: objectives take it as a static value."""

  size: int
  pad: int = -1
  unk: int = -1
  cls: int = -1
  sep: int = -1
  mask: int = -1
  bos: int = -1
  eos: int = -1
  sop: int = -1  # begins what fills a blank
  eop: int = -1  # ends it
  gmask: int = -1  # a blank for the rest of a text
  smask: int = -1  # a blank for a sentence
  source: int = -1  # stands behind a text that is read, the name of its language (mBART)
  target: int = -1  # begins what is written, the name of its language
  sentinel: int = -1  # stands for the first of several blanks; those of the others have the ids below it (T5)
  sentinels: int = 100  # how many of them there are, where there is one
  language: int = -1  # the first of `languages.LANGUAGES`; the others follow (mBART)

  @property
  def specials(self) -> tuple[int, ...]:
    """The special ids that exist, ascending."""
    roles = {f.name for f in dataclasses.fields(self)} - {'size', 'sentinels'}
    return tuple(sorted({getattr(self, role) for role in roles} - {-1}))


class Tokenizer(Protocol):
  """Text to ids and back. Special tokens are never added; the windows and objectives place them."""

  kind: str
  vocab: Vocab
  pieces: list[str]  # [V] for display
  starts_word: np.ndarray  # bool [V], True where a piece starts a word
  spaced: bool  # whether a space in front of a text is a part of it, and so of the ids of its first word

  def encode(self, text: str, specials: bool = False) -> list[int]:
    """Returns the ids of `text`. The literal text '[MASK]' is ordinary text, unless `specials`: then it is the special
    token."""
    ...

  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    """Encodes each text as `encode` does without `specials`, faster."""
    ...

  def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Encodes N texts as arrays: all ids in a row [T] uint32, and how many each text has [N]. Fastest."""
    ...

  def encode_places(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Encodes like `encode_flat`, slower, and says of each id the character of its text at which it begins [T]."""
    ...

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of `ids`, as near to what was encoded as the pieces allow."""
    ...

  @property
  def sizes(self) -> np.ndarray:
    """Bytes of UTF-8 that each piece stands for [V], a space that goes with it among them; a special one counts as the
    line break that it stands in for."""
    ...

  @property
  def hash(self) -> str:
    """sha256 hex over the saved files."""
    ...

  def save(self, folder: epath.PathLike) -> None:
    """Writes the files that `load` reads to a folder, with transformers' names. Raises TokenizerError."""
    ...


def save_files(files: dict[str, bytes], folder: epath.PathLike) -> None:
  """Writes files, name -> content, each whole at any moment, whoever else saves the same tokenizer there. Raises
  TokenizerError."""
  for name, content in files.items():
    storage.write(storage.path_of(folder) / name, content, TokenizerError)


def read_json(file: epath.PathLike) -> dict[str, Any]:
  """Reads the object in a JSON file. Raises TokenizerError."""
  return storage.read_json(file, error=TokenizerError)


def read_config(folder: epath.Path) -> dict[str, Any]:
  """Reads the `tokenizer_config.json` of a folder; {} where there is none."""
  file = folder / CONFIG
  return read_json(file) if file.exists() else {}


def option(values: Mapping[str, Any], name: str, default: Any, most: int = 0) -> Any:
  """Returns values[name], which has to be of the type of `default`, and, of a number, at least 0 and at most `most`;
  `default` where it is absent or null. Raises TokenizerError."""
  value = values.get(name)
  if value is None:
    return default
  if type(value) is not type(default) or (most and not 0 <= value <= most):
    wanted = f'a number from 0 to {most:,}' if most else 'true or false' if default in (True, False) else 'a text'
    raise TokenizerError(f'{name} is {brief(value)}, expected {wanted}')
  return value


def check_ids(ids: Mapping[str, Any]) -> None:
  """Raises TokenizerError unless the values are 0, 1, 2, ... in some order."""
  if not all(type(i) is int for i in ids.values()) or sorted(ids.values()) != list(range(len(ids))):
    raise TokenizerError(f'expected ids from 0 to {len(ids) - 1}, one a piece.')


def text_can_be_encoded(method: Callable) -> Callable:
  """Wraps a method whose libraries fail at text that is no Unicode: half of a pair of UTF-16, which Python's strings
  can hold. It raises TokenizerError then."""
  @functools.wraps(method)
  def checked(self, texts, *args, **kwargs):
    try:
      return method(self, texts, *args, **kwargs)
    except (UnicodeEncodeError, TypeError):  # the libraries raise one or the other
      for text in [texts] if isinstance(texts, str) else texts:
        if half := HALF.search(text):
          raise TokenizerError(f'the text holds {half[0]!a} at character {half.start() + 1:,}, which is no character '
                               'but a part of one: it was cut or decoded wrongly') from None
      raise
  return checked


def brief(value: Any) -> str:
  """Writes a value for a message: on one line, in some 100 characters at most."""
  text = repr(value)
  return text if len(text) <= 100 else f'{text[:100]}...'


def hash_files(files: dict[str, bytes]) -> str:
  """Returns sha256 hex over the names, sizes and contents of files, in the order of their names."""
  digest = hashlib.sha256()
  for name, content in sorted(files.items()):
    digest.update(f'{name} {len(content)}\n'.encode() + content)
  return digest.hexdigest()
