"""Byte-level BPE (Radford et al. 2019, section 2.2), by the `tokenizers` library: GPT-2, RoBERTa, BART, DeBERTa v1; and
LLaMA 3, whose text is split into words by an expression of its own.

Every text has ids and comes back from them unchanged: the alphabet is the 256 bytes. A space belongs to the word behind
it, so the ids of a word depend on whether one stands before: a text is encoded as it is, the first word of 'A b' as at
the beginning of a line, that of ' A b' as in the middle of one. `prepare` gives a sentence the space that stood before
it in its paragraph, so records hold the ids that the whole paragraph has, and those of released models for a line.
"""
from collections.abc import Iterable, Mapping, Sequence
import functools
import itertools
import json
import re
from typing import Any, Literal

from etils import epath
import numpy as np
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from plm_jax import storage
from plm_jax.errors import understood
from plm_jax.tokenizers import parts
from plm_jax.tokenizers.contract import (
    BLANKS,
    CONFIG,
    TokenizerError,
    Vocab,
    brief,
    check_ids,
    hash_files,
    option,
    read_config,
    read_json,
    save_files,
    text_can_be_encoded,
)
from plm_jax.tokenizers.memo import Memo, lists

# What a special token may be called, likeliest first: RoBERTa's and BART's names, DeBERTa's, GPT-2's only one, those of
# LLaMA 3.
END = '<|endoftext|>'
NAMES = {
    'cls': ('<s>', '[CLS]'), 'sep': ('</s>', '[SEP]'), 'pad': ('<pad>', '[PAD]', '<|finetune_right_pad_id|>'),
    'mask': ('<mask>', '[MASK]'),
    'unk': ('<unk>', '[UNK]', END), 'bos': ('<s>', '[CLS]', END, '<|begin_of_text|>'),
    'eos': ('</s>', '[SEP]', END, '<|end_of_text|>'),
    **{role: (name,) for name, role in BLANKS.items()}}
# The places they have in RoBERTa's vocabulary: four in front, the mask behind all.
FIRST, LAST = ('<s>', '<pad>', '</s>', '<unk>'), '<mask>'


class ByteBPE:
  """Pieces of bytes, merged pair by pair."""

  kind = 'byte_bpe'
  spaced = True

  def __init__(self, ids: dict[str, int], merges: Sequence[tuple[str, ...]], prefix: bool = False, split: str = '',
               ignore_merges: bool = False):
    """ids of the pieces in GPT-2's alphabet of bytes, and merges in order. prefix: a text begins with a space always.

    split: the expression that finds words in text, in the syntax of Oniguruma; none: GPT-2's. ignore_merges: a word
    that is a piece is this piece, whatever the merges make of it (both of LLaMA 3).

    Raises TokenizerError where ids leave gaps, or bytes or parts of a merge are missing, and for an expression that is
    not known: one can be written that takes longer than anybody waits.
    """
    if split not in ('', *SPLITS):
      raise TokenizerError(f'words are split in a way that is not known here: {brief(split)}; known are the '
                           'expressions of GPT-2, GPT-4, LLaMA 3 and Qwen')
    self.ids, self.merges, self.prefix = ids, [tuple(merge) for merge in merges], prefix
    self.split, self.ignore_merges = split, ignore_merges
    check(ids, self.merges)
    self.names = {role: name for role, names in NAMES.items() if (name := next(filter(ids.__contains__, names), ''))}
    if 'sop' in self.names and END in ids:  # GLM's text has GPT-2's end, beside BERT's special tokens
      self.names |= {'pad': END, 'eos': END}
    self.vocab = Vocab(len(ids), **{role: ids[name] for role, name in self.names.items()})
    self._bytes = [to_bytes(piece) for piece in sorted(ids, key=ids.__getitem__)]
    self.pieces = [show(some) for some in self._bytes]
    self.starts_word = np.array([
        i in self.vocab.specials or starts_word(some) for i, some in enumerate(self._bytes)])
    self._plain = self.assemble()
    self._memo = Memo(lambda words: [e.ids for e in self._words.encode_batch_fast(words)], ASCII_PARTS)

  @classmethod
  def load(cls, file: epath.PathLike) -> 'ByteBPE':
    """Loads a `vocab.json` with the `merges.txt` beside it, or a `tokenizer.json`. Raises TokenizerError."""
    file = epath.Path(file)
    with understood(file, 'the vocabulary of a byte-level BPE', TokenizerError):
      config, content = read_config(file.parent), read_json(file)
      if is_tokenizer_json(content):
        return cls(*read_fast(content, config))
      return cls(content, read_lines(file), option(config, 'add_prefix_space', False),
                 *(option(config, name, other) for name, other in OWN))

  @text_can_be_encoded
  def encode(self, text: str, specials: bool = False) -> list[int]:
    """Returns the ids of `text`; with `specials`, '<mask>' and its like in it are the special tokens.

    A mask takes the space before it along, as released: ' word' is one piece, so it is one that is hidden.
    """
    library = self._with_specials if specials else self._plain
    return [i for part in parts.parts(text, self._border) for i in library.encode(part).ids]

  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    """Encodes each text, without special tokens."""
    return lists(*self.encode_flat(texts))

  @text_can_be_encoded
  def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Encodes N texts: all ids in a row [T] uint32, and how many each text has [N].

    No piece reaches over the beginning of a space and a word, so words are encoded once and remembered; where another
    expression finds the words, texts are encoded as they are.
    """
    if self.split:
      return parts.encode(self._plain.encode_batch_fast, texts, self._border)[:2]
    if self.prefix:
      texts = [f' {text}' if text and not text.startswith(' ') else text for text in texts]
    words = [WORDS.findall(text) for text in texts]
    words = [[part for word in some for part in parts.parts(word, self._border)] if len(text) > parts.LONGEST else some
             for text, some in zip(texts, words, strict=True)]
    return self._memo.gather_lines(words)

  @text_can_be_encoded
  def encode_places(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Encodes like `encode_flat`, and says of each id the character of its text at which it begins [T]."""
    return parts.encode(self._plain.encode_batch, texts, self._border, places=True)

  def decode(self, ids: Iterable[int]) -> str:
    r"""Returns the text of `ids`; a character of which bytes are missing becomes '\ufffd'."""
    return b''.join(self._bytes[i] for i in ids).decode(errors='replace')

  @property
  def sizes(self) -> np.ndarray:
    """Bytes of UTF-8 that each piece stands for [V], 1 for a special token."""
    return np.array([1 if i in self.vocab.specials else len(some) for i, some in enumerate(self._bytes)])

  @property
  def hash(self) -> str:
    """sha256 hex over the saved files."""
    return hash_files(self._files())

  def save(self, folder: epath.PathLike) -> None:
    """Writes `vocab.json`, `merges.txt` and a `tokenizer_config.json` that transformers understands too."""
    save_files(self._files(), folder)

  def assemble(self) -> tokenizers.Tokenizer:
    """Builds the library's tokenizer, without special tokens."""
    return assemble(self.ids, self.merges, self.prefix, self.split, self.ignore_merges)

  def _files(self) -> dict[str, bytes]:
    theirs = 'PreTrainedTokenizerFast' if self.split else f'{"Roberta" if "mask" in self.names else "GPT2"}Tokenizer'
    config = {'kind': self.kind, 'tokenizer_class': theirs,
              'add_prefix_space': self.prefix, **{f'{role}_token': name for role, name in self.names.items()},
              **{name: getattr(self, name) for name, other in OWN if getattr(self, name) != other}}
    vocab = dict(sorted(self.ids.items(), key=lambda piece: piece[1]))
    merges = ''.join(f'{left} {right}\n' for left, right in self.merges)
    return {'vocab.json': json.dumps(vocab, ensure_ascii=False).encode(),
            'merges.txt': f'#version: 0.2\n{merges}'.encode(),
            CONFIG: (json.dumps(config, indent=1, ensure_ascii=False) + '\n').encode()}

  @property
  def _border(self) -> re.Pattern:
    """Where a text can be cut; where each gets a space in front, only where it has one."""
    return parts.SPACES if self.prefix else parts.BYTES

  @functools.cached_property
  def _words(self) -> tokenizers.Tokenizer:
    """Without the space before a text: words have theirs."""
    return assemble(self.ids, self.merges, prefix=False)

  @functools.cached_property
  def _with_specials(self) -> tokenizers.Tokenizer:
    return with_specials(self.assemble(), self)

  def __getstate__(self):
    """For worker processes: what is assembled anew there stays here."""
    return self.ids, self.merges, self.prefix, self.split, self.ignore_merges

  def __setstate__(self, state):
    self.__init__(*state)


def train_byte_bpe(
    texts: Iterable[str], size: int, min_count: int = 2, layout: Literal['bert', 'gpt2'] = 'bert') -> ByteBPE:
  """Trains a vocabulary of at most `size` pieces with RoBERTa's special tokens at RoBERTa's places, of 50,265 as
  released; or gpt2: with <|endoftext|> behind all others and no more, of 50,257.

  Fewer when no pair of pieces occurs `min_count` times any more. The same texts give the same vocabulary. Raises
  TokenizerError when there is no text or `size` does not hold the bytes.
  """
  lines = (line for line in parts.learnable(texts) if line.strip())
  first = next(lines, None)
  if first is None:
    raise TokenizerError('cannot train a byte-level BPE vocabulary: the text is empty.')
  before, behind = (FIRST, LAST) if layout == 'bert' else ((), END)
  learnt = size - len(before) - 1
  if learnt < 256:
    raise TokenizerError(f'a byte-level BPE vocabulary of {size} is too small: 256 bytes and '
                         f'{len(before) + 1} special tokens take {257 + len(before)} already.')
  tokenizer = assemble({}, [], prefix=False)
  tokenizer.train_from_iterator(itertools.chain([first], lines), trainers.BpeTrainer(
      vocab_size=learnt, min_frequency=min_count, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
      show_progress=False))
  model = json.loads(tokenizer.to_str())['model']
  pieces = [*before, *sorted(model['vocab'], key=model['vocab'].__getitem__), behind]
  return ByteBPE({piece: i for i, piece in enumerate(pieces)}, read_merges(model['merges']))


def assemble(
    ids: dict[str, int], merges: Sequence[Any], prefix: bool, split: str = '',
    ignore_merges: bool = False) -> tokenizers.Tokenizer:
  """Builds the library's tokenizer; split: the expression that finds words, '' for GPT-2's."""
  tokenizer = tokenizers.Tokenizer(models.BPE(ids, list(merges), ignore_merges=ignore_merges))
  tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=not split)
  if split:
    words = pre_tokenizers.Split(tokenizers.Regex(split), 'isolated')
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, tokenizer.pre_tokenizer])
  return tokenizer


def with_specials(tokenizer: tokenizers.Tokenizer, of: ByteBPE) -> tokenizers.Tokenizer:
  """Adds the special tokens `of` another to `tokenizer`, which then knows them in a text."""
  masks = {of.names.get(role) for role in ('mask', 'gmask', 'smask')}
  reserved = filter(RESERVED.fullmatch, of.ids) if of.split else ()
  tokenizer.add_special_tokens([
      tokenizers.AddedToken(name, lstrip=name in masks, normalized=False, special=True)
      for name in sorted({*of.names.values(), *reserved}, key=of.ids.__getitem__)])
  return tokenizer


def is_tokenizer_json(content: dict[str, Any]) -> bool:
  """Tells whether this is a tokenizer.json and not a vocab.json, which may have a piece of that name."""
  return isinstance(content.get('model'), dict)


def read_fast(
    content: dict[str, Any], config: dict[str, Any]) -> tuple[dict[str, int], list[tuple[str, ...]], bool, str, bool]:
  """Reads a tokenizer.json, and the tokenizer_config.json beside it -> arguments of ByteBPE.

  Raises TokenizerError for one that would give other ids here than there.
  """
  model, words, split = content['model'], content.get('pre_tokenizer') or {}, ''
  steps = words.get('pretokenizers') or [{}]
  if words.get('type') == 'Sequence' and len(steps) == 2 and steps[0].get('type') == 'Split':
    finds, words = steps
    split = finds['pattern'].get('Regex', '')
    isolated = finds.get('behavior') == 'Isolated' and not finds.get('invert')
    if split not in SPLITS or not isolated or words.get('use_regex', True):
      raise TokenizerError(f'words are split in a way that is not known here: {brief(finds)}; known are the '
                           'expressions of GPT-2, GPT-4, LLaMA 3 and Qwen')
  known = {'type': 'BPE', 'dropout': None, 'continuing_subword_prefix': '', 'end_of_word_suffix': '',
           'byte_fallback': False}
  wrong = [f'model.{name} is {brief(model[name])}' for name, value in known.items()
           if model.get(name) not in (value, None)]
  wrong += [f'pre_tokenizer.type is {brief(words.get("type"))}'] * (words.get('type') != 'ByteLevel')
  wrong += ['pre_tokenizer.use_regex is False'] * (not words.get('use_regex', True) and not split)
  wrong += ['there is a normalizer'] * bool(content.get('normalizer'))
  if wrong:
    raise TokenizerError(f'this is no byte-level BPE as known here: {"; ".join(wrong)}.')
  added = read_added(content)
  names = {name for names in NAMES.values() for name in names}
  if extra := [name for name in added if not (name in names or name in model['vocab'] or RESERVED.fullmatch(name))]:
    raise TokenizerError(f'added tokens besides the special ones are not known here: {extra[:5]}.')
  prefix = option(config, 'add_prefix_space', option(words, 'add_prefix_space', False))
  return ({**model['vocab'], **added}, read_merges(model['merges']), prefix, split,
          option(model, 'ignore_merges', False))


def read_added(content: Mapping[str, Any]) -> dict[str, int]:
  """Reads the added tokens of a tokenizer.json, and their ids."""
  return {token['content']: token['id'] for token in content.get('added_tokens') or []}


def read_lines(file: epath.Path) -> list[tuple[str, ...]]:
  """Reads the merges beside a vocab.json, one a line. Raises TokenizerError where there are none."""
  merges = file.parent / 'merges.txt'
  if not merges.exists():
    raise TokenizerError(f'{file} is a BPE vocabulary without the merges.txt beside it.')
  lines = storage.read_text(merges, error=TokenizerError).split('\n')
  # The first line of released files is a version; a merge may begin with '#' too.
  return [tuple(line.split(' ')) for line in lines[lines[0].startswith('#version'):] if line]


def read_merges(merges: Sequence[Any]) -> list[tuple[str, ...]]:
  """Reads merges that are pairs, or, in older files, two pieces in one string."""
  return [tuple(merge.split(' ')) if isinstance(merge, str) else tuple(merge) for merge in merges]


def check(ids: dict[str, int], merges: Sequence[tuple[str, ...]]) -> None:
  """Raises TokenizerError for ids with gaps, and where a byte or a part of a merge is missing."""
  check_ids(ids)
  if missing := [character for character in ALPHABET if character not in ids]:
    raise TokenizerError(f'expected a piece for each of the 256 bytes; {len(missing)} are missing: {missing[:5]}.')
  wrong = [merge for merge in merges if len(merge) != 2 or not {*merge, ''.join(merge)} <= ids.keys()]
  if wrong:
    raise TokenizerError(f'{len(wrong)} merges are not of two pieces to a third: {brief(wrong[:3])}.')


def to_bytes(piece: str) -> bytes:
  """Converts a piece in GPT-2's alphabet to the bytes that it stands for; any other, such as a name in other letters,
  to its own."""
  return bytes(map(ALPHABET.__getitem__, piece)) if set(piece) <= ALPHABET.keys() else piece.encode()


def show(some: bytes) -> str:
  """Writes a piece for display, a space before a word as SentencePiece has it."""
  text = some.decode(errors='backslashreplace')
  return f'▁{text[1:]}' if text.startswith(' ') else text


def starts_word(some: bytes) -> bool:
  """Tells whether a piece starts a word: white space, a sign that is no letter, or a Chinese character; of one whose
  bytes are in several pieces the first.

  The last two as in SentencePiece here: text without spaces would otherwise be one word.
  """
  text = some.decode(errors='ignore')
  if text and some.startswith(text[0].encode()):
    return text[0].isspace() or not any(map(str.isalnum, text)) or bool(CHINESE.match(text))
  return 0xE4 <= some[0] <= 0xE9 or some[0] >= 0xF0


def alphabet() -> dict[str, int]:
  """Returns GPT-2's alphabet, character -> byte: what is printable stands for itself, the others for the characters
  from U+0100 on."""
  plain = {*range(ord('!'), ord('~') + 1), *range(ord('¡'), ord('¬') + 1), *range(ord('®'), ord('ÿ') + 1)}
  moved = [byte for byte in range(256) if byte not in plain]
  return {chr(byte): byte for byte in plain} | {chr(256 + n): byte for n, byte in enumerate(moved)}


ALPHABET = alphabet()
# LLaMA 3's, of which most have no meaning: no text has their ids.
RESERVED = re.compile(r'<\|[a-z0-9_]+\|>')
# What a word is, in the syntax of Oniguruma: linear in time, and nothing in them reaches over a border of `parts`.
SPLITS = (
    # GPT-2
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    # LLaMA 3
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+",
    # Qwen
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+",
    # GPT-4
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|"
    r"\s+(?!\S)|\s+")
# Of our tokenizer_config.json: arguments of ByteBPE with their defaults.
OWN = (('split', ''), ('ignore_merges', False))
CHINESE = re.compile('[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]')
# White space of Unicode, which is what the library's expression means by \s; Python means a few more.
SPACE = '\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000'
WORDS = re.compile(f' ?[^{SPACE}]+|[{SPACE}]+(?![^{SPACE}])|[{SPACE}]+')
ASCII_PARTS = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+| ?[0-9]+| ?[^ A-Za-z0-9]+| +")
