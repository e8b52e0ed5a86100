"""BPE within words (Sennrich et al. 2016), as GPT has it, by the `tokenizers` library.

Text is made lower-case, without accents, and words and signs are set apart, as BERT does: transformers' reading of what
GPT's own code had ftfy and spaCy for. The last piece of a word ends in `</w>`.
"""
from collections.abc import Iterable, Sequence
import json
import re
from typing import Any

from etils import epath
import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from plm_jax.errors import understood
from plm_jax.tokenizers import parts
from plm_jax.tokenizers.byte_bpe import is_tokenizer_json, read_added, read_lines, read_merges
from plm_jax.tokenizers.contract import (
    CONFIG,
    TokenizerError,
    Vocab,
    brief,
    check_ids,
    hash_files,
    read_json,
    save_files,
    text_can_be_encoded,
)
from plm_jax.tokenizers.memo import Memo, lists
from plm_jax.tokenizers.wordpiece import ASCII_PARTS, CHINESE, WORDS, BertText

UNKNOWN, SUFFIX = '<unk>', '</w>'
ENDS_WORD = re.compile(f'.{SUFFIX}$')
# The tokens of GPT's tasks, which its code puts behind the vocabulary when it fine-tunes; a trained one has them.
SPECIALS = {'bos': '_start_', 'sep': '_delimiter_', 'cls': '_classify_'}
TEXT = BertText()


class WordBPE:
  """Pieces of words, merged pair by pair."""

  kind = 'word_bpe'
  spaced = False

  def __init__(self, ids: dict[str, int], merges: Sequence[tuple[str, ...]]):
    """ids of the pieces, and merges in order. Raises TokenizerError where ids leave gaps or parts of a merge miss."""
    self.ids, self.merges = ids, [tuple(merge) for merge in merges]
    check(ids, self.merges)
    self.vocab = Vocab(len(ids), unk=ids[UNKNOWN], **{
        role: ids[name] for role, name in SPECIALS.items() if name in ids})
    self.pieces = sorted(ids, key=ids.__getitem__)
    # A piece tells whether it ends a word, not whether it begins one: each counts as a word.
    self.starts_word = np.ones(len(ids), bool)
    self._plain = assemble(ids, self.merges)
    self._memo = Memo(lambda words: [e.ids for e in self._plain.encode_batch_fast(words)], ASCII_PARTS)

  @classmethod
  def load(cls, file: epath.PathLike) -> 'WordBPE':
    """Loads a `vocab.json` with the `merges.txt` beside it, or a `tokenizer.json`. Raises TokenizerError."""
    file = epath.Path(file)
    with understood(file, 'the vocabulary of a BPE', TokenizerError):
      content = read_json(file)
      if is_tokenizer_json(content):
        return cls({**content['model']['vocab'], **read_added(content)}, read_merges(content['model']['merges']))
      return cls(content, read_lines(file))

  @text_can_be_encoded
  def encode(self, text: str, specials: bool = False) -> list[int]:
    """Returns the ids of `text`; with `specials`, '_start_' and its like in it are the special tokens."""
    library = with_specials(assemble(self.ids, self.merges), self) if specials else self._plain
    return [i for part in parts.parts(text, parts.SIGNS) for i in library.encode(part).ids]

  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    """Encodes each text, without special tokens."""
    return lists(*self.encode_flat(texts))

  @text_can_be_encoded
  def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Encodes N texts: all ids in a row [T] uint32, and how many each text has [N].

    No piece crosses a space or touches a Chinese character, so words are encoded once and remembered.
    """
    words = [WORDS.findall(text) if CHINESE.search(text) else text.split() for text in texts]
    words = [[part for word in some for part in parts.parts(word, parts.SIGNS)] if len(text) > parts.LONGEST else some
             for text, some in zip(texts, words, strict=True)]
    return self._memo.gather_lines(words)

  @text_can_be_encoded
  def encode_places(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Encodes like `encode_flat`, and says of each id the character of its text at which it begins [T]."""
    return parts.encode(self._plain.encode_batch, texts, parts.SIGNS, places=True)

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of `ids`, words and signs apart by spaces."""
    return ''.join(self.pieces[int(i)] for i in ids).replace(SUFFIX, ' ').strip()

  @property
  def sizes(self) -> np.ndarray:
    """Bytes of UTF-8 that each piece stands for [V], the space behind a word among them; 1 for a special token."""
    return np.array([1 if i in self.vocab.specials else len(piece.replace(SUFFIX, ' ').encode())
                     for i, piece in enumerate(self.pieces)])

  @property
  def hash(self) -> str:
    """sha256 hex over the saved files."""
    return hash_files(self._files())

  def save(self, folder: epath.PathLike) -> None:
    """Writes `vocab.json`, `merges.txt` and a `tokenizer_config.json` that transformers understands too."""
    save_files(self._files(), folder)

  def assemble(self) -> tokenizers.Tokenizer:
    """Builds the library's tokenizer, special tokens included."""
    return with_specials(assemble(self.ids, self.merges), self)

  def _files(self) -> dict[str, bytes]:
    config = {'kind': self.kind, 'tokenizer_class': 'OpenAIGPTTokenizer', 'unk_token': UNKNOWN, **{
        f'{role}_token': name for role, name in SPECIALS.items() if name in self.ids}}
    vocab = {piece: i for i, piece in enumerate(self.pieces)}
    merges = ''.join(f'{left} {right}\n' for left, right in self.merges)
    return {'vocab.json': json.dumps(vocab, ensure_ascii=False).encode(),
            'merges.txt': f'#version: 0.2\n{merges}'.encode(),
            CONFIG: (json.dumps(config, indent=1, ensure_ascii=False) + '\n').encode()}

  def __getstate__(self):
    return self.ids, self.merges

  def __setstate__(self, state):
    self.__init__(*state)


def train_word_bpe(texts: Iterable[str], size: int, min_count: int = 2) -> WordBPE:
  """Trains a vocabulary of at most `size` pieces, of 40,478 as released: <unk>, those of GPT's tasks, characters,
  merges.

  Fewer when no pair of pieces occurs `min_count` times any more. The same texts give the same vocabulary. Raises
  TokenizerError when there is no text or `size` does not hold its characters.
  """
  lines = (line for line in parts.learnable(texts, parts.NOT_CHINESE) if line.strip())
  first = next(lines, None)
  if first is None:
    raise TokenizerError('cannot train a BPE vocabulary: the text is empty.')
  lines = [first, *lines]

  def fit(size: int, before: list[str]) -> dict[str, Any]:
    tokenizer = assemble({UNKNOWN: 0}, [])
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(
        vocab_size=size, min_frequency=min_count, special_tokens=[UNKNOWN, *SPECIALS.values(), *before],
        end_of_word_suffix=SUFFIX, show_progress=False))
    return json.loads(tokenizer.to_str())['model']

  # The library numbers characters that end a word in the order of a hash map, and breaks ties between pairs by these
  # numbers: a first fit without merges finds them, the second has them numbered beforehand.
  alphabet = sorted(fit(0, [])['vocab'].keys() - {UNKNOWN, *SPECIALS.values()})
  taken = len(alphabet) + 1 + len(SPECIALS)
  if taken > size:
    raise TokenizerError(f'a BPE vocabulary of {size} is too small: special tokens and the characters of this text '
                         f'take {taken} already.')
  model = fit(size, alphabet)
  return WordBPE(model['vocab'], read_merges(model['merges']))


def assemble(ids: dict[str, int], merges: Sequence[Any]) -> tokenizers.Tokenizer:
  """Builds the library's tokenizer, which makes text lower-case and sets words and signs apart."""
  tokenizer = tokenizers.Tokenizer(models.BPE(ids, list(merges), unk_token=UNKNOWN, end_of_word_suffix=SUFFIX))
  tokenizer.normalizer = TEXT.normalizer()
  tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  tokenizer.decoder = decoders.BPEDecoder(suffix=SUFFIX)
  return tokenizer


def with_specials(tokenizer: tokenizers.Tokenizer, of: WordBPE) -> tokenizers.Tokenizer:
  """Adds the special tokens `of` another to `tokenizer`, which then knows them in a text."""
  tokenizer.add_special_tokens([
      tokenizers.AddedToken(of.pieces[i], normalized=False, special=True) for i in of.vocab.specials])
  return tokenizer


def check(ids: dict[str, int], merges: Sequence[tuple[str, ...]]) -> None:
  """Raises TokenizerError without <unk>, for ids with gaps, and where a part of a merge is missing."""
  if UNKNOWN not in ids:
    raise TokenizerError(f'expected a piece {UNKNOWN}.')
  check_ids(ids)
  wrong = [merge for merge in merges if len(merge) != 2 or not {*merge, ''.join(merge)} <= ids.keys()]
  if wrong:
    raise TokenizerError(f'{len(wrong)} merges are not of two pieces to a third: {brief(wrong[:3])}.')
