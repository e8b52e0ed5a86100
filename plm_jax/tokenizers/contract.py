"""What the rest of the house may ask of a tokenizer."""
from collections.abc import Iterable, Sequence
import dataclasses
import hashlib
from typing import Protocol

from etils import epath
import numpy as np

from plm_jax.errors import Expected

CONFIG = 'tokenizer_config.json'
# GLM's special tokens beside [MASK], in the order in which released vocabularies have them behind all others.
BLANKS = {'<|startofpiece|>': 'sop', '<|endofpiece|>': 'eop', '[gMASK]': 'gmask', '[sMASK]': 'smask'}


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
    """Ids of `text`. The literal text '[MASK]' is ordinary text, unless `specials`: then it is the special token."""
    ...

  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    """`encode` of each, faster."""
    ...

  def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """`encode` of N texts as arrays: all ids in a row [T] uint32, and how many each text has [N]. Fastest."""
    ...

  def encode_places(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`encode_flat`, slower, and of each id the character of its text at which it begins [T]."""
    ...

  def decode(self, ids: Iterable[int]) -> str: ...

  @property
  def sizes(self) -> np.ndarray:
    """Bytes of UTF-8 that each piece stands for [V], a space that goes with it among them; a special one counts as the
    line break that it stands in for."""
    ...

  @property
  def hash(self) -> str:
    """sha256 hex over the saved files."""
    ...

  def save(self, folder: epath.PathLike) -> None: ...


def save_files(files: dict[str, bytes], folder: epath.PathLike) -> None:
  folder = epath.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  for name, content in files.items():
    draft = folder / f'{name}.tmp'
    draft.write_bytes(content)
    draft.replace(folder / name)


def hash_files(files: dict[str, bytes]) -> str:
  digest = hashlib.sha256()
  for name, content in sorted(files.items()):
    digest.update(f'{name} {len(content)}\n'.encode() + content)
  return digest.hexdigest()
