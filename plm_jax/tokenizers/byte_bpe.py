"""Byte-level BPE (Radford et al. 2019, section 2.2), run by the `tokenizers` library.

GPT-2, RoBERTa, BART, DeBERTa v1, and LLaMA 3, which splits text into words by its own expression.

Every text has ids and is recovered from them unchanged: the alphabet is the 256 bytes. A space
belongs to
the word after it, so the ids of a word depend on whether a space precedes it: the first word of 'A
b' is encoded as at the beginning of a line, that of ' A b' as in the middle of one. `prepare` gives
a sentence the space that preceded it in its paragraph, so records hold the ids of the whole
paragraph, and those of released models for a line.
"""
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
import functools
import itertools
import json
import re
from typing import Any, Literal

from etils import epath
import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from plm_jax import storage, unicode_words
from plm_jax.errors import name_field, parse_errors_as
from plm_jax.tokenizers import long_text
from plm_jax.tokenizers.contract import (
    CONFIG_FILE,
    FIM_NAMES,
    GLM_TOKENS,
    TokenizerError,
    Vocab,
    abbreviate,
    add_encoder_roles,
    check_contiguous_ids,
    config_bytes,
    read_config,
    read_json,
    read_option,
    reject_surrogates,
)
from plm_jax.tokenizers.long_text import LibraryTokenizer, WordCache

# Names of special tokens, most likely first: those of RoBERTa and BART, of DeBERTa, GPT-2's only
# one, those of LLaMA 3 and EuroBERT.
END_OF_TEXT = '<|endoftext|>'
SPECIAL_NAMES = {
    'cls': ('<s>', '[CLS]'),
    'sep': ('</s>', '[SEP]'),
    'pad': ('<pad>', '[PAD]', '<|finetune_right_pad_id|>'),
    'mask': ('<mask>', '[MASK]', '<|mask|>'),
    'unk': ('<unk>', '[UNK]', END_OF_TEXT),
    'bos': ('<s>', '[CLS]', END_OF_TEXT, '<|begin_of_text|>'),
    'eos': ('</s>', '[SEP]', END_OF_TEXT, '<|end_of_text|>'),
    **{role: (name,) for name, role in GLM_TOKENS.items()},
    **{role: tuple(name for name in FIM_NAMES if FIM_NAMES[name] == role)
       for role in FIM_NAMES.values()}}
SPECIAL_PATTERN = re.compile(r'<.*>|\[.*\]|_.*_', re.DOTALL)  # special tokens, which no merge makes
MAX_UNMERGED = 16  # tokens without a merge that a vocabulary of any size may have
# RoBERTa's vocabulary has four special tokens at the beginning and the mask at the end.
FIRST_TOKENS, LAST_TOKEN = ('<s>', '<pad>', '</s>', '<unk>'), '<mask>'


class ByteBPE(LibraryTokenizer):
  """Byte-level BPE: tokens are byte strings, merged pair by pair.

  With `specials`, a mask absorbs the space before it, unless its files state otherwise: ' word' is
  one token, so one token is masked.
  """

  kind = 'byte_bpe'
  keeps_leading_space = True

  def __init__(
      self, ids: dict[str, int], merges: Sequence[tuple[str, ...]], prefix: bool = False,
      split: str = '', ignore_merges: bool = False, mask_lstrip: bool = True):
    """Build the tokenizer.

    Args:
      ids: ids of the tokens, in GPT-2's alphabet of bytes.
      merges: pairs of tokens in the order in which they are merged.
      prefix: put a space before every text (`add_prefix_space`).
      split: expression that finds the words of a text, in the syntax of Oniguruma; '': GPT-2's.
      ignore_merges: a word that is a token becomes this token, whatever the merges make of it.
        LLaMA 3 has both `split` and this.
      mask_lstrip: the mask token absorbs the space before it, as in released models.

    Raises:
      TokenizerError: ids have gaps, bytes or parts of a merge are missing, or the expression is not
        known. Unknown ones are refused because some take unbounded time.
    """
    if split and split not in SPLIT_PATTERNS:
      raise TokenizerError(
          f'words are split in a way that is not known here: {abbreviate(split)}; known are the '
          'expressions of GPT-2, GPT-4, LLaMA 3 and Qwen')
    self.ids, self.merges = ids, [tuple(merge) for merge in merges]
    self.prefix, self.split = prefix, split
    # With a space before every text, a long one can be cut only at spaces.
    self._border = long_text.SPACE_BORDERS if prefix else long_text.BYTE_BPE_BORDERS
    self.ignore_merges, self.mask_lstrip = ignore_merges, mask_lstrip
    check_vocabulary(ids, self.merges)
    self.names = {}
    for role, names in SPECIAL_NAMES.items():
      if name := next((name for name in names if name in ids), ''):
        self.names[role] = name
    if 'sop' in self.names and END_OF_TEXT in ids:
      # GLM has BERT's special tokens, and GPT-2's token at the end of a text.
      self.names |= {'pad': END_OF_TEXT, 'eos': END_OF_TEXT}
    self.names = add_encoder_roles(self.names)
    self.vocab = Vocab(len(ids), **{role: ids[name] for role, name in self.names.items()})
    self._token_bytes = [token_bytes(token) for token in sorted(ids, key=ids.__getitem__)]
    self.pieces = [display_token(content) for content in self._token_bytes]
    word_starts = [i in self.vocab.specials or starts_word(content)
                   for i, content in enumerate(self._token_bytes)]
    self.starts_word = np.array(word_starts)
    self._plain = self.assemble()
    self._cache = WordCache(self._encode_words, ASCII_PARTS)

  @classmethod
  def load(cls, file: epath.PathLike) -> 'ByteBPE':
    """Load a `vocab.json` and the `merges.txt` next to it. Raises TokenizerError."""
    file = epath.Path(file)
    with parse_errors_as(file, 'the vocabulary of a byte-level BPE', TokenizerError):
      config, content = read_config(file.parent), read_json(file)
      merges = read_merges_file(file, content)
      prefix = read_option(config, 'add_prefix_space', False)
      own = [read_option(config, name, default) for name, default in OWN_OPTIONS]
      return cls(content, merges, prefix, *own)

  @reject_surrogates
  def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Encode N texts into flat arrays: ids [T] uint32, ids per text [N].

    No token crosses the beginning of a word with its space, so words are encoded once and cached.
    Texts with another split expression are encoded without the cache.
    """
    if self.split:
      return super().encode_flat(texts)
    if self.prefix:
      texts = [f' {text}' if text and not text.startswith(' ') else text for text in texts]
    return self._cache.lookup_texts(
        [self._split_long(text, WORD_PATTERN.findall(text)) for text in texts])

  def decode(self, ids: Iterable[int]) -> str:
    r"""Decode ids into text; a character with missing bytes becomes '\ufffd'."""
    return b''.join(self._token_bytes[i] for i in ids).decode(errors='replace')

  @property
  def token_bytes(self) -> list[bytes]:
    """Bytes of each token [V], which may be a part of a character; b'' for special tokens."""
    specials = {self.ids[name] for name in self.special_tokens}
    return [b'' if i in specials else content for i, content in enumerate(self._token_bytes)]

  def split_words(self, text: str) -> list[str]:
    """Split a text into words, with the space before them, as encoding does."""
    words = self._words.pre_tokenizer.pre_tokenize_str(text)
    return [token_bytes(word).decode(errors='replace') for word, _ in words]

  def extend(self, words: Sequence[str]) -> 'ByteBPE':
    """Return a tokenizer with more words as tokens, made by merges after those that there are.

    A merge makes a new token, never one of the old ones, so a word changes only where it gets a new
    token. Parts of the new words are tokens, too: a merge joins two tokens.

    Raises:
      TokenizerError: a word is several words to this tokenizer.
    """
    library = self._words
    for word in words:
      if len(library.pre_tokenizer.pre_tokenize_str(word)) != 1:
        raise TokenizerError(f'{abbreviate(word)} is not one word to this tokenizer, so it cannot '
                             'be a token')
    parts = [encoding.tokens for encoding in library.encode_batch(list(words))]
    merges = learn_merges(parts, {}, lambda left, right: (left, right), self.ids)
    ids = dict(self.ids)
    for merge in merges:
      ids.setdefault(''.join(merge), len(ids))
    return ByteBPE(ids, self.merges + merges, *self._arguments[2:])

  @property
  def special_tokens(self) -> list[str]:
    """Names of the special tokens, by id; of LLaMA 3 including the reserved ones."""
    names = set(self.names.values())
    if self.split:
      names.update(filter(RESERVED_TOKEN.fullmatch, self.ids))
    return sorted(names, key=self.ids.__getitem__)

  def assemble(self) -> tokenizers.Tokenizer:
    """Build the library's tokenizer, without special tokens."""
    return assemble(self.ids, self.merges, self.prefix, self.split, self.ignore_merges)

  def _files(self) -> dict[str, bytes]:
    if self.split:
      class_name = 'PreTrainedTokenizerFast'
    else:
      class_name = 'RobertaTokenizer' if 'mask' in self.names else 'GPT2Tokenizer'
    config = {'kind': self.kind, 'tokenizer_class': class_name,
              'add_prefix_space': self.prefix}
    config |= {f'{role}_token': name for role, name in self.names.items()}
    for name, default in OWN_OPTIONS:
      if getattr(self, name) != default:
        config[name] = getattr(self, name)
    return bpe_files(self.ids, self.merges, config)

  def _encode_words(self, words: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in self._words.encode_batch_fast(words)]

  @functools.cached_property
  def _words(self) -> tokenizers.Tokenizer:
    """The library's tokenizer without the space before a text: words have theirs."""
    return assemble(self.ids, self.merges, prefix=False, split=self.split)

  @functools.cached_property
  def _with_specials(self) -> tokenizers.Tokenizer:
    return add_special_tokens(self.assemble(), self)

  @property
  def _arguments(self):
    return (self.ids, self.merges, self.prefix, self.split, self.ignore_merges, self.mask_lstrip)


def train_byte_bpe(
    texts: Iterable[str], size: int, min_count: int = 2,
    layout: Literal['bert', 'gpt2'] = 'bert') -> ByteBPE:
  """Train a byte-level BPE vocabulary. The same texts give the same vocabulary.

  Args:
    texts: the training texts.
    size: vocabulary size at most, including special tokens; 50,265 in RoBERTa, 50,257 in GPT-2. It
      is smaller when no pair of tokens occurs `min_count` times any more.
    min_count: occurrences that a pair needs to be merged.
    layout: 'bert': RoBERTa's special tokens at RoBERTa's ids; 'gpt2': only <|endoftext|>, the last
      id.

  Raises:
    TokenizerError: there is no text, or `size` does not hold the bytes.
  """
  lines = (line for line in long_text.drop_overlong_words(texts) if line.strip())
  first = next(lines, None)
  if first is None:
    raise TokenizerError(
        f'cannot train a byte-level BPE vocabulary: {long_text.no_words_message()}')
  first_tokens, last_token = FIRST_TOKENS, LAST_TOKEN
  if layout != 'bert':
    first_tokens, last_token = (), END_OF_TEXT
  num_specials = len(first_tokens) + 1
  learned = size - num_specials
  if learned < 256:
    raise TokenizerError(
        f'a byte-level BPE vocabulary of {size} is too small: 256 bytes and {num_specials} special '
        f'tokens take {256 + num_specials} already. Give '
        f'{name_field("vocab")}={256 + num_specials} or more')
  tokenizer = assemble({}, [], prefix=False)
  trainer = trainers.BpeTrainer(
      vocab_size=learned, min_frequency=min_count,
      initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
  tokenizer.train_from_iterator(itertools.chain([first], lines), trainer)
  model = json.loads(tokenizer.to_str())['model']
  learned_tokens = sorted(model['vocab'], key=model['vocab'].__getitem__)
  tokens = list(first_tokens) + learned_tokens + [last_token]
  return ByteBPE({token: i for i, token in enumerate(tokens)}, parse_merges(model['merges']))


def learn_merges(
    words: Iterable[Sequence[str]], ranks: dict[Any, int], key: Callable[[str, str], Any],
    blocked: Container[str] = ()) -> list[tuple[str, str]]:
  """Learn merges that make each of several words one token, one word after the other.

  Merges of earlier words come first, so they also apply to later ones. A word needs no other merges
  after those that made it one token.

  Args:
    words: the tokens that each word has now.
    ranks: merges that there are, by `key`; new ones are added.
    key: of a merge, from its two tokens.
    blocked: tokens that no new merge may make; a word for which all merges would is left as it is.

  Returns:
    The new merges.
  """
  merges = []
  for word in words:
    parts = list(word)
    while len(parts) > 1:
      pairs = list(itertools.pairwise(parts))
      known = [n for n, (left, right) in enumerate(pairs) if key(left, right) in ranks]
      if known:
        n = min(known, key=lambda n: ranks[key(*pairs[n])])
      else:
        free = (n for n, pair in enumerate(pairs) if ''.join(pair) not in blocked)
        n = next(free, -1)
        if n < 0:
          break
        ranks[key(*pairs[n])] = len(ranks)
        merges.append(pairs[n])
      parts[n:n + 2] = [''.join(pairs[n])]
  return merges


def assemble(
    ids: dict[str, int], merges: Sequence[Any], prefix: bool, split: str = '',
    ignore_merges: bool = False) -> tokenizers.Tokenizer:
  """Build the library's tokenizer; split: the expression that finds words, '' for GPT-2's."""
  tokenizer = tokenizers.Tokenizer(models.BPE(ids, list(merges), ignore_merges=ignore_merges))
  byte_level = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=not split)
  if split:
    words = pre_tokenizers.Split(tokenizers.Regex(split), 'isolated')
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, byte_level])
  else:
    tokenizer.pre_tokenizer = byte_level
  tokenizer.decoder = decoders.ByteLevel()
  return tokenizer


def add_special_tokens(tokenizer: tokenizers.Tokenizer, of: ByteBPE) -> tokenizers.Tokenizer:
  """Add the special tokens `of` another tokenizer to the library's `tokenizer`, and return it."""
  masks = {of.names.get(role) for role in ('mask', 'gmask', 'smask')} if of.mask_lstrip else set()
  tokenizer.add_special_tokens([
      tokenizers.AddedToken(name, lstrip=name in masks, normalized=False, special=True)
      for name in of.special_tokens])
  return tokenizer


def parse_tokenizer_json(
    content: Mapping[str, Any],
) -> tuple[dict[str, int], list[tuple[str, ...]], bool, str, bool] | None:
  """Return the arguments of ByteBPE from the content of a tokenizer.json.

  None where the file does more with text than ByteBPE does.
  """
  model, words, split = content['model'], content.get('pre_tokenizer') or {}, ''
  steps = words.get('pretokenizers') or [{}]
  if words.get('type') == 'Sequence' and len(steps) == 2 and steps[0].get('type') == 'Split':
    splitter, words = steps
    split = splitter['pattern'].get('Regex', '')
    isolated = splitter.get('behavior') == 'Isolated' and not splitter.get('invert')
    if split not in SPLIT_PATTERNS or not isolated or words.get('use_regex', True):
      return None
  defaults = {'dropout': None, 'continuing_subword_prefix': '', 'end_of_word_suffix': '',
              'byte_fallback': False}
  if any(model.get(name) not in (value, None) for name, value in defaults.items()):
    return None
  if words.get('type') != 'ByteLevel' or words.get('use_regex', True) == bool(split):
    return None
  if content.get('normalizer'):
    return None
  ids = {**model['vocab'], **parse_added_tokens(content)}
  prefix = read_option(words, 'add_prefix_space', False)
  ignore_merges = read_option(model, 'ignore_merges', False)
  return ids, parse_merges(model['merges']), prefix, split, ignore_merges


def parse_added_tokens(content: Mapping[str, Any]) -> dict[str, int]:
  """Return the ids of the added tokens of a tokenizer.json."""
  return {token['content']: token['id'] for token in content.get('added_tokens') or []}


def bpe_files(
    ids: Mapping[str, int], merges: Sequence[tuple[str, ...]], config: Mapping[str, Any]
) -> dict[str, bytes]:
  """Return the contents of a BPE's files: the vocabulary, the merges and the configuration."""
  vocab = dict(sorted(ids.items(), key=lambda item: item[1]))
  lines = ''.join(f'{left} {right}\n' for left, right in merges)
  return {'vocab.json': json.dumps(vocab, ensure_ascii=False).encode(),
          'merges.txt': f'#version: 0.2\n{lines}'.encode(),
          CONFIG_FILE: config_bytes(config, ensure_ascii=False)}


def read_merges_file(file: epath.Path, ids: Mapping[str, int]) -> list[tuple[str, ...]]:
  """Read the merges.txt next to a vocab.json, one merge per line.

  Raises:
    TokenizerError: the file is missing, or so many tokens have no merge that the file must be cut
      off. A few are allowed: names that somebody has written into vocab.json.
  """
  path = file.parent / 'merges.txt'
  if not path.exists():
    raise TokenizerError(f'{file} is a BPE vocabulary without a merges.txt next to it.')
  lines = storage.read_text(path, error=TokenizerError).split('\n')
  # The first line of released files is a version; a merge may begin with '#' too.
  begin = int(lines[0].startswith('#version'))
  merges = [tuple(line.split(' ')) for line in lines[begin:] if line]
  merged = {''.join(merge) for merge in merges}
  unmerged = [
      token for token in ids if len(token.removesuffix('</w>')) > 1 and token not in merged
      and not SPECIAL_PATTERN.fullmatch(token)]
  if len(unmerged) > max(MAX_UNMERGED, len(ids) // 100):
    raise TokenizerError(
        f'{path.name} has no merge for {len(unmerged):,} of the {len(ids):,} tokens of '
        f'{file.name}: {abbreviate(unmerged[:3])}. It is cut off, or belongs to another '
        'vocabulary.')
  return merges


def parse_merges(merges: Sequence[Any]) -> list[tuple[str, ...]]:
  """Return merges as pairs; older files have two tokens in one string."""
  return [tuple(merge.split(' ') if isinstance(merge, str) else merge) for merge in merges]


def check_vocabulary(ids: dict[str, int], merges: Sequence[tuple[str, ...]]) -> None:
  """Raise TokenizerError for ids with gaps, and where a byte or a part of a merge is missing."""
  check_contiguous_ids(ids)
  missing = [character for character in ALPHABET if character not in ids]
  if missing:
    raise TokenizerError(
        f'expected a token for each of the 256 bytes; {len(missing)} are missing: {missing[:5]}.')
  check_merges(ids, merges)


def check_merges(ids: dict[str, int], merges: Sequence[tuple[str, ...]]) -> None:
  """Raise TokenizerError for merges that do not merge two tokens into a third."""
  wrong = [merge for merge in merges
           if len(merge) != 2 or ''.join(merge) not in ids or not set(merge) <= ids.keys()]
  if wrong:
    raise TokenizerError(
        f'{len(wrong)} merges are not of two tokens to a third: {abbreviate(wrong[:3])}.')


def token_bytes(token: str) -> bytes:
  """Return the bytes of a token in GPT-2's alphabet; of any other name its UTF-8 bytes."""
  if set(token) <= ALPHABET.keys():
    return bytes(map(ALPHABET.__getitem__, token))
  return token.encode()


def display_token(content: bytes) -> str:
  """Format a token for display; a space before a word becomes '▁', as in SentencePiece."""
  text = content.decode(errors='backslashreplace')
  return f'▁{text[1:]}' if text.startswith(' ') else text


def starts_word(content: bytes) -> bool:
  """Return whether a token starts a word.

  White space does, and what `unicode_words.starts_word` says of letters and punctuation. Of a
  Chinese or Japanese character whose bytes are in several tokens, the first does. Text without
  spaces would otherwise be one word; SentencePiece is treated alike.
  """
  text = content.decode(errors='ignore')
  if text and content.startswith(text[0].encode()):
    return text[0].isspace() or unicode_words.starts_word(text)
  return 0xE3 <= content[0] <= 0xE9 or content[0] >= 0xF0


def byte_alphabet() -> dict[str, int]:
  """Return GPT-2's alphabet, character -> byte.

  A printable byte is its own character; the others are the characters from U+0100 on.
  """
  printable = []
  for first, last in ('!~', '¡¬', '®ÿ'):
    printable += range(ord(first), ord(last) + 1)
  others = [byte for byte in range(256) if byte not in printable]
  alphabet = {chr(byte): byte for byte in printable}
  return alphabet | {chr(256 + n): byte for n, byte in enumerate(others)}


ALPHABET = byte_alphabet()
# LLaMA 3's special tokens. Most have no meaning and occur in no text.
RESERVED_TOKEN = re.compile(r'<\|[a-z0-9_]+\|>')
# Expressions that split text into words, in the syntax of Oniguruma. They take linear time, and no
# match reaches over a border of `long_text`.
SPLIT_PATTERNS = (
    # GPT-2
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    # LLaMA 3
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    # Qwen
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    # GPT-4
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+")
# Options of our tokenizer_config.json: constructor arguments of ByteBPE with their defaults.
OWN_OPTIONS = (('split', ''), ('ignore_merges', False), ('mask_lstrip', True))
# White space of Unicode, which the library's expression means by \s; Python means a few more.
WHITE_SPACE = '\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000'
WORD_PATTERN = re.compile(
    f' ?[^{WHITE_SPACE}]+|[{WHITE_SPACE}]+(?![^{WHITE_SPACE}])|[{WHITE_SPACE}]+')
ASCII_PARTS = re.compile(
    r"'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+| ?[0-9]+| ?[^ A-Za-z0-9]+| +")
