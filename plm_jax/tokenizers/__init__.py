"""Tokenizers: one contract; WordPiece, SentencePiece, two kinds of BPE, plain bytes and whole words behind it; `load`,
which tells them apart."""
from etils import epath

from plm_jax import storage
from plm_jax.errors import understood
from plm_jax.tokenizers.byte_bpe import ByteBPE, is_tokenizer_json, train_byte_bpe
from plm_jax.tokenizers.contract import CONFIG, Tokenizer, TokenizerError, Vocab, read_json
from plm_jax.tokenizers.languages import FILE, LanguagePieces, train_languages
from plm_jax.tokenizers.raw_bytes import Bytes, names_byt5
from plm_jax.tokenizers.sentence_piece import Layout, PlainText, SentencePiece, train_sentencepiece
from plm_jax.tokenizers.word_bpe import ENDS_WORD, WordBPE, train_word_bpe
from plm_jax.tokenizers.wordpiece import BertText, WordPiece, train_wordpiece
from plm_jax.tokenizers.words import Words, is_words, train_words

__all__ = [
    'BertText', 'ByteBPE', 'Bytes', 'LanguagePieces', 'Layout', 'PlainText', 'SentencePiece', 'Tokenizer',
    'TokenizerError', 'Vocab', 'WordBPE', 'WordPiece', 'Words', 'load', 'train_byte_bpe', 'train_languages',
    'train_sentencepiece', 'train_word_bpe', 'train_wordpiece', 'train_words'
]


def load(path: epath.PathLike, text: BertText | None = None) -> Tokenizer:
  """Loads the tokenizer at `path`: a `vocab.txt`, a `vocab.json` with its `merges.txt`, a `*.model`, the
  `tokenizer.json` of a BPE, the `tokenizer_config.json` of bytes, which is all they have, a folder that holds one of
  them, or one with a folder `tokenizer`.

  `text` overrides the normalisation of a WordPiece vocabulary. Without it, the `tokenizer_config.json` beside the
  vocabulary decides, and failing that the vocabulary itself: no upper-case letter in any piece means lower-case.
  Raises TokenizerError when nothing is there or what is there is damaged.
  """
  path = storage.path_of(path)
  with storage.explained(path, 'read', TokenizerError):
    if path.is_dir():
      file = find(path)
    elif path.exists():
      file = path
    else:
      raise TokenizerError(f'no tokenizer at {path}: expected {KINDS}, or a folder with one.')
  with understood(file, KINDS, TokenizerError):
    return load_file(file, text)


def load_file(file: epath.Path, text: BertText | None) -> Tokenizer:
  """Loads the tokenizer whose vocabulary is `file`, as its name and its contents tell which it is."""
  if file.suffix == '.model':
    if file.name == FILE:
      return LanguagePieces.load(file)
    return SentencePiece.load(file)
  if file.name == CONFIG:
    return Bytes.load(file)
  if file.suffix == '.json':
    content = read_json(file)
    ids = content['model'].get('vocab', {}) if is_tokenizer_json(content) else content
    # Where bytes are the alphabet each has a piece, the space too; a piece like the suffix may be there as well.
    return (WordBPE if 'Ġ' not in ids and any(map(ENDS_WORD.search, ids)) else ByteBPE).load(file)
  return Words.load(file) if is_words(file) else WordPiece.load(file, text)


def find(folder: epath.Path) -> epath.Path:
  """Finds the vocabulary file of a folder. Raises TokenizerError where there is none, or several SentencePiece
  models."""
  for place in (folder, folder / 'tokenizer'):
    if not place.is_dir():
      continue
    for name in ('vocab.txt', 'vocab.json'):
      if (place / name).exists():
        return place / name
    models = sorted(place.glob('*.model'))
    if len(models) > 1:
      raise TokenizerError(f'{place} holds several SentencePiece models: {[m.name for m in models]}. Name one of them.')
    if models:
      return models[0]
    if (place / 'tokenizer.json').exists():
      return place / 'tokenizer.json'
    if names_byt5(place / CONFIG):
      return place / CONFIG
  raise TokenizerError(f'no tokenizer in {folder}: expected {KINDS}.')


KINDS = 'a vocab.txt (WordPiece, or words), a vocab.json with merges.txt (BPE) or a *.model (SentencePiece)'
