"""ByT5's tokenizer (Xue et al. 2022, section 3.1): a text is its bytes of UTF-8, and nothing is learnt."""
from collections.abc import Iterable, Sequence
import json
import re

from etils import epath
import numpy as np

from plm_jax.errors import understood
from plm_jax.tokenizers.contract import (
    CONFIG,
    MOST,
    TokenizerError,
    Vocab,
    brief,
    hash_files,
    option,
    read_json,
    save_files,
    text_can_be_encoded,
)
from plm_jax.tokenizers.memo import lists

SPECIALS = {'pad': '<pad>', 'eos': '</s>', 'unk': '<unk>'}  # ids 0, 1 and 2, the last one never used
CLASS = 'ByT5Tokenizer'  # of transformers
EXTRA = re.compile(r'<extra_id_\d+>')


class Bytes:
  """Byte b has the id 3 + b; behind the bytes are tokens <extra_id_0>, <extra_id_1>, ..., as transformers has them.

  The sentinels of pre-training are the last bytes, from 0xFF downwards, of which no text has the first: the paper found
  no need for ids of their own. What is called <extra_id_0> no released model has seen.
  """

  kind = 'bytes'
  spaced = True

  def __init__(self, extra: int = 125):
    """extra: tokens behind the bytes, of which 125 make the model's table one of 384 rows."""
    self.extra = extra
    first = len(SPECIALS)
    self.vocab = Vocab(first + 256 + extra, pad=0, eos=1, unk=2, sentinel=first + 255)
    self.pieces = [
        *SPECIALS.values(), *(chr(b) if 32 < b < 127 else f'<0x{b:02X}>' for b in range(256)),
        *(f'<extra_id_{number}>' for number in range(extra))]
    # Spaces and signs of ASCII, as everywhere; which bytes of other characters are letters they do not say.
    begins = [b < 128 and not chr(b).isalnum() for b in range(256)]
    self.starts_word = np.array([True] * first + begins + [True] * extra)
    named = [*SPECIALS.values(), *self.pieces[first + 256:]]
    self._ids = {name: self.pieces.index(name) for name in named}
    plain, bare = ('|'.join(map(re.escape, names)) for names in (named[:first], named[first:] or ['(?!)']))
    # The first three take the spaces around them along, as in transformers.
    self._special = re.compile(rf'\s*({plain})\s*|({bare})')

  @classmethod
  def load(cls, file: epath.PathLike) -> 'Bytes':
    """Loads a `tokenizer_config.json` that names transformers' class, as all there is. Raises TokenizerError."""
    file = epath.Path(file)
    with understood(file, f"the configuration of transformers' {CLASS}", TokenizerError):
      content = read_json(file)
      if not names_byt5(file):
        raise TokenizerError(f'{file} is of the class {brief(content.get("tokenizer_class"))}, which has a vocabulary: '
                             'name that.')
      names = [token['content'] for token in (content.get('added_tokens_decoder') or {}).values()]
      names += map(str, content.get('additional_special_tokens') or ())
      listed = set(filter(EXTRA.fullmatch, names))
      # transformers writes 0 beside the tokens themselves.
      extra = len(listed) or option(content, 'extra_ids', 125, most=MOST)
      if listed - {f'<extra_id_{number}>' for number in range(extra)}:
        raise TokenizerError(f'{file}: expected <extra_id_0> to <extra_id_{extra - 1}>, got '
                             f'{brief(sorted(listed)[:3])}, ...')
      return cls(extra)

  def encode(self, text: str, specials: bool = False) -> list[int]:
    """Returns the ids of `text`; with `specials`, '</s>' and its like in it are the special tokens, '<extra_id_0>'
    among them."""
    if not specials:
      return self.encode_flat([text])[0].tolist()
    ids, end = [], 0
    for found in self._special.finditer(text):
      ids += [*self.encode(text[end:found.start()]), self._ids[found[1] or found[2]]]
      end = found.end()
    return ids + self.encode(text[end:])

  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    """Encodes each text, without special tokens."""
    return lists(*self.encode_flat(texts))

  @text_can_be_encoded
  def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Encodes N texts: all ids in a row [T] uint32, one a byte, and how many each text has [N]."""
    encoded = [text.encode() for text in texts]
    ids = np.frombuffer(b''.join(encoded), np.uint8).astype(np.uint32) + len(SPECIALS)
    return ids, np.array([len(some) for some in encoded], np.int64)

  def encode_places(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Encodes like `encode_flat`, and says of each byte which character of its text it belongs to [T]."""
    ids, lengths = self.encode_flat(texts)
    starts = (ids - len(SPECIALS)) & 0xC0 != 0x80  # of characters
    places = [np.cumsum(some) - 1 for some in np.split(starts, np.cumsum(lengths)[:-1])]
    return ids, lengths, np.concatenate([np.zeros(0, np.int64), *places])

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of `ids`; tokens that are no bytes decode to nothing, and so do bytes that are no character."""
    numbers = [int(i) - len(SPECIALS) for i in ids]
    return bytes(b for b in numbers if 0 <= b < 256).decode(errors='ignore')

  @property
  def sizes(self) -> np.ndarray:
    """Bytes that each piece stands for [V]: 1, and of <extra_id_0> and its like the length of its name."""
    return np.array([1 if i < len(SPECIALS) + 256 else len(piece) for i, piece in enumerate(self.pieces)])

  @property
  def hash(self) -> str:
    """sha256 hex over the saved file."""
    return hash_files(self._files())

  def save(self, folder: epath.PathLike) -> None:
    """Writes a `tokenizer_config.json` that transformers understands too: there is no vocabulary."""
    save_files(self._files(), folder)

  def _files(self) -> dict[str, bytes]:
    config = {'kind': self.kind, 'tokenizer_class': CLASS, 'extra_ids': self.extra, **{
        f'{role}_token': name for role, name in SPECIALS.items()}}
    return {CONFIG: (json.dumps(config, indent=1) + '\n').encode()}


def names_byt5(file: epath.Path) -> bool:
  """Tells whether there is a file and it names transformers' class of bytes."""
  return file.exists() and read_json(file).get('tokenizer_class') == CLASS
