"""BPE within words (Sennrich et al. 2016), as in GPT, run by the `tokenizers` library.

Text becomes lower case without accents, and words and punctuation are separated, as in BERT. GPT's
own code used ftfy and spaCy; this is how transformers replaces them. The last token of a word ends
in `</w>`.
"""
from collections.abc import Iterable, Sequence
import functools
import json
import re
from typing import Any

from etils import epath
import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from plm_jax.errors import name_field, parse_errors_as
from plm_jax.tokenizers import long_text
from plm_jax.tokenizers.byte_bpe import bpe_files, check_merges, parse_merges, read_merges_file
from plm_jax.tokenizers.contract import (
    TokenizerError,
    Vocab,
    check_contiguous_ids,
    read_json,
    reject_surrogates,
)
from plm_jax.tokenizers.long_text import LibraryTokenizer, WordCache
from plm_jax.tokenizers.wordpiece import ASCII_PARTS, CHINESE, CHINESE_WORDS, BertNormalization

UNKNOWN_TOKEN, SUFFIX = '<unk>', '</w>'
WORD_END = re.compile(f'.{SUFFIX}$')
# The tokens of GPT's fine-tuning tasks, which its code appends to the vocabulary; trained ones have
# them.
SPECIALS = {'bos': '_start_', 'sep': '_delimiter_', 'cls': '_classify_'}
NORMALIZATION = BertNormalization()


class WordBPE(LibraryTokenizer):
  """BPE within words (GPT): characters of a word, merged pair by pair."""

  kind = 'word_bpe'
  keeps_leading_space = False
  text = NORMALIZATION

  def __init__(self, ids: dict[str, int], merges: Sequence[tuple[str, ...]]):
    """Build the tokenizer.

    Args:
      ids: ids of the tokens.
      merges: pairs of tokens in the order in which they are merged.

    Raises:
      TokenizerError: ids have gaps, or <unk> or parts of a merge are missing.
    """
    self.ids, self.merges = ids, [tuple(merge) for merge in merges]
    check_vocabulary(ids, self.merges)
    roles = {role: ids[name] for role, name in SPECIALS.items() if name in ids}
    self.vocab = Vocab(len(ids), unk=ids[UNKNOWN_TOKEN], **roles)
    self.pieces = sorted(ids, key=ids.__getitem__)
    # A token tells whether it ends a word, not whether it starts one: each counts as a word.
    self._plain = assemble(ids, self.merges)
    self._cache = WordCache(self._encode_words, ASCII_PARTS)

  @classmethod
  def load(cls, file: epath.PathLike) -> 'WordBPE':
    """Load a `vocab.json` and the `merges.txt` next to it. Raises TokenizerError."""
    file = epath.Path(file)
    with parse_errors_as(file, 'the vocabulary of a BPE', TokenizerError):
      content = read_json(file)
      return cls(content, read_merges_file(file, content))

  @reject_surrogates
  def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Encode N texts into flat arrays: ids [T] uint32, ids per text [N].

    No token crosses a space or touches a Chinese character, so words are encoded once and cached.
    """
    return self._cache.lookup_texts([self._split_words(text) for text in texts])

  def decode(self, ids: Iterable[int]) -> str:
    """Decode ids into text, with spaces between words and punctuation."""
    return ''.join(self.pieces[int(i)] for i in ids).replace(SUFFIX, ' ').strip()

  @property
  def token_bytes(self) -> list[bytes]:
    """UTF-8 text of each token [V], with the space after a word; b'' for special tokens."""
    specials = set(self.vocab.specials)
    return [b'' if i in specials else token.replace(SUFFIX, ' ').encode()
            for i, token in enumerate(self.pieces)]

  def assemble(self) -> tokenizers.Tokenizer:
    """Build the library's tokenizer, including special tokens."""
    tokenizer = assemble(self.ids, self.merges)
    tokenizer.add_special_tokens([
        tokenizers.AddedToken(self.pieces[i], normalized=False, special=True)
        for i in self.vocab.specials])
    return tokenizer

  def _files(self) -> dict[str, bytes]:
    config = {
        'kind': self.kind, 'tokenizer_class': 'OpenAIGPTTokenizer', 'unk_token': UNKNOWN_TOKEN}
    config |= {f'{role}_token': name for role, name in SPECIALS.items() if name in self.ids}
    return bpe_files(self.ids, self.merges, config)

  def _split_words(self, text: str) -> list[str]:
    """Split a text into words, and words that are too long into parts.

    Only the space itself separates words here: normalization deletes some of the other white space
    that Python knows.
    """
    words = CHINESE_WORDS.findall(text) if CHINESE.search(text) else text.split(' ')
    return self._split_long(text, words)

  @functools.cached_property
  def _with_specials(self) -> tokenizers.Tokenizer:
    return self.assemble()

  @property
  def _arguments(self):
    return self.ids, self.merges


def train_word_bpe(texts: Iterable[str], size: int, min_count: int = 2) -> WordBPE:
  """Train a vocabulary of BPE within words. The same texts give the same vocabulary.

  Args:
    texts: the training texts.
    size: vocabulary size at most, 40,478 as released: <unk>, the tokens of GPT's tasks, characters,
      merges. It is smaller when no pair of tokens occurs `min_count` times any more.
    min_count: occurrences that a pair needs to be merged.

  Raises:
    TokenizerError: there is no text, or `size` does not hold its characters.
  """
  texts = long_text.drop_overlong_words(texts, long_text.NON_CHINESE_LETTER)
  lines = [line for line in texts if line.strip()]
  if not lines:
    raise TokenizerError(f'cannot train a BPE vocabulary: {long_text.no_words_message()}')

  special_tokens = [UNKNOWN_TOKEN] + list(SPECIALS.values())

  def fit(size: int, before: list[str]) -> dict[str, Any]:
    tokenizer = assemble({UNKNOWN_TOKEN: 0}, [])
    trainer = trainers.BpeTrainer(
        vocab_size=size, min_frequency=min_count, end_of_word_suffix=SUFFIX,
        special_tokens=special_tokens + before, show_progress=False)
    tokenizer.train_from_iterator(lines, trainer)
    return json.loads(tokenizer.to_str())['model']

  # The library numbers characters that end a word in the order of a hash map, and breaks ties
  # between pairs by these numbers: a first fit without merges finds them, the second has them
  # numbered before.
  alphabet = sorted(fit(0, [])['vocab'].keys() - set(special_tokens))
  needed = len(alphabet) + len(special_tokens)
  if needed > size:
    raise TokenizerError(
        f'a BPE vocabulary of {size} is too small: special tokens and the characters of this text '
        f'take {needed} already. Give {name_field("vocab")}={needed} or more')
  model = fit(size, alphabet)
  return WordBPE(model['vocab'], parse_merges(model['merges']))


def assemble(ids: dict[str, int], merges: Sequence[Any]) -> tokenizers.Tokenizer:
  """Build the library's tokenizer, with BERT's normalization and splitting into words."""
  tokenizer = tokenizers.Tokenizer(models.BPE(
      ids, list(merges), unk_token=UNKNOWN_TOKEN, end_of_word_suffix=SUFFIX))
  tokenizer.normalizer = NORMALIZATION.build_normalizer()
  tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  tokenizer.decoder = decoders.BPEDecoder(suffix=SUFFIX)
  return tokenizer


def check_vocabulary(ids: dict[str, int], merges: Sequence[tuple[str, ...]]) -> None:
  """Raise TokenizerError without <unk>, for ids with gaps, and for wrong merges."""
  if UNKNOWN_TOKEN not in ids:
    raise TokenizerError(f'expected a token {UNKNOWN_TOKEN}.')
  check_contiguous_ids(ids)
  check_merges(ids, merges)
