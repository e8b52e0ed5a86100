"""Byte tokenizer of ByT5 (Xue et al. 2022, section 3.1): tokens are UTF-8 bytes."""
from collections.abc import Iterable, Sequence
import re

from etils import epath
import numpy as np

from plm_jax.errors import parse_errors_as
from plm_jax.tokenizers.contract import (
    CONFIG_FILE,
    FIM_TOKENS,
    MAX_EXTRA_TOKENS,
    Tokenizer,
    TokenizerError,
    Vocab,
    abbreviate,
    config_bytes,
    read_json,
    read_option,
    reject_surrogates,
)

SPECIALS = {'pad': '<pad>', 'eos': '</s>', 'unk': '<unk>'}  # ids 0, 1 and 2; <unk> is never used
HF_CLASS = 'ByT5Tokenizer'  # of transformers
EXTRA_ID = re.compile(r'<extra_id_\d+>')


class ByteTokenizer(Tokenizer):
  """Tokenizer of UTF-8 bytes: byte b has the id 3 + b, and <extra_id_0>, <extra_id_1>, ... follow.

  The sentinels of pre-training are the last bytes, from 0xFF downwards, the first of which no text
  has: the paper found no need for ids of their own. No released model has seen <extra_id_0>, so the
  first of them mark the hole of a decoder that fills in the middle.
  """

  kind = 'bytes'
  keeps_leading_space = True

  def __init__(self, extra: int = 125):
    """Build the tokenizer; extra: tokens after the bytes, 125 for a table of 384 rows."""
    self.extra = extra
    first = len(SPECIALS)
    roles = FIM_TOKENS.values() if extra >= len(FIM_TOKENS) else ()
    holes = {role: first + 256 + n for n, role in enumerate(roles)}
    self.vocab = Vocab(first + 256 + extra, pad=0, eos=1, unk=2, sentinel=first + 255, **holes)
    byte_tokens = [chr(b) if 32 < b < 127 else f'<0x{b:02X}>' for b in range(256)]
    extra_tokens = [f'<extra_id_{number}>' for number in range(extra)]
    special_tokens = list(SPECIALS.values())
    self.pieces = special_tokens + byte_tokens + extra_tokens
    # ASCII spaces and punctuation start words, as in other tokenizers. Bytes of other characters do
    # not tell which characters are letters.
    self.starts_word = np.ones(len(self.pieces), bool)
    word_starts = [b < 128 and not chr(b).isalnum() for b in range(256)]
    self.starts_word[first:first + 256] = word_starts
    self._ids = {name: self.pieces.index(name) for name in special_tokens + extra_tokens}
    # The first three absorb the spaces around them, as in transformers.
    stripped = '|'.join(map(re.escape, special_tokens))
    plain = '|'.join(map(re.escape, extra_tokens)) or '(?!)'  # which matches nothing
    self._special_pattern = re.compile(rf'\s*({stripped})\s*|({plain})')

  @classmethod
  def load(cls, file: epath.PathLike) -> 'ByteTokenizer':
    """Load a `tokenizer_config.json` that names transformers' class. Raises TokenizerError."""
    file = epath.Path(file)
    with parse_errors_as(file, f"the configuration of transformers' {HF_CLASS}", TokenizerError):
      content = read_json(file)
      if content.get('tokenizer_class') != HF_CLASS:
        raise TokenizerError(
            f'{file} is of the class {abbreviate(content.get("tokenizer_class"))}, which has a '
            'vocabulary: name that.')
      added = content.get('added_tokens_decoder') or {}
      names = [token['content'] for token in added.values()]
      names += map(str, content.get('additional_special_tokens') or ())
      extra_tokens = set(filter(EXTRA_ID.fullmatch, names))
      if others := sorted(set(names) - extra_tokens - set(SPECIALS.values())):
        raise TokenizerError(
            f'{file} adds the tokens {abbreviate(others[:5])} to the bytes, which is not '
            'implemented')
      # transformers writes extra_ids=0 next to the tokens themselves.
      extra = len(extra_tokens) or read_option(content, 'extra_ids', 125, most=MAX_EXTRA_TOKENS)
      if extra_tokens - {f'<extra_id_{number}>' for number in range(extra)}:
        raise TokenizerError(
            f'{file}: expected <extra_id_0> to <extra_id_{extra - 1}>, got '
            f'{abbreviate(sorted(extra_tokens)[:3])}, ...')
      return cls(extra)

  def encode(self, text: str, specials: bool = False) -> list[int]:
    """Encode a text; with `specials`, names such as '</s>' become special tokens."""
    if not specials:
      return self.encode_flat([text])[0].tolist()
    ids, end = [], 0
    for match in self._special_pattern.finditer(text):
      ids += self.encode(text[end:match.start()])
      ids.append(self._ids[match[1] or match[2]])
      end = match.end()
    return ids + self.encode(text[end:])

  @reject_surrogates
  def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    encoded = [text.encode() for text in texts]
    ids = np.frombuffer(b''.join(encoded), np.uint8).astype(np.uint32) + len(SPECIALS)
    return ids, np.array([len(content) for content in encoded], np.int64)

  def encode_with_offsets(
      self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Encode like `encode_flat`, with the offset of the character of each byte in its text [T]."""
    ids, lengths = self.encode_flat(texts)
    starts = (ids - len(SPECIALS)) & 0xC0 != 0x80  # first bytes of characters
    parts = np.split(starts, np.cumsum(lengths)[:-1])
    return ids, lengths, np.concatenate([np.cumsum(part) - 1 for part in parts])

  def decode(self, ids: Iterable[int]) -> str:
    """Decode ids into text; other tokens than bytes, and incomplete characters, become nothing."""
    numbers = [int(i) - len(SPECIALS) for i in ids]
    return bytes(b for b in numbers if 0 <= b < 256).decode(errors='ignore')

  @property
  def token_bytes(self) -> list[bytes]:
    return [b''] * len(SPECIALS) + [bytes([b]) for b in range(256)] + [b''] * self.extra

  def _files(self) -> dict[str, bytes]:
    config = {'kind': self.kind, 'tokenizer_class': HF_CLASS, 'extra_ids': self.extra}
    config |= {f'{role}_token': name for role, name in SPECIALS.items()}
    return {CONFIG_FILE: config_bytes(config)}
