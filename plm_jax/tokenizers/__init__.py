"""Tokenizers: WordPiece, SentencePiece, byte-level BPE, BPE of words, bytes and whole words.

`load` finds the kind of a tokenizer from its files. All derive from `contract.Tokenizer`. Some are
run by the `tokenizers` or `sentencepiece` library, and `huggingface` reads the tokenizer files of
transformers.

May import `layers.char_ids` (for whole words) and the packages below: storage and errors.
"""
from etils import epath

from plm_jax import storage
from plm_jax.errors import parse_errors_as
from plm_jax.storage import hub
from plm_jax.tokenizers import raw_bytes
from plm_jax.tokenizers.byte_bpe import ByteBPE, train_byte_bpe
from plm_jax.tokenizers.contract import (
  CONFIG_FILE,
  MissingTokenizerError,
  Tokenizer,
  TokenizerError,
  Vocab,
  read_json,
)
from plm_jax.tokenizers.fairseq_sentencepiece import (
  MODEL_FILE,
  FairseqSentencePiece,
  train_fairseq_sentencepiece,
)
from plm_jax.tokenizers.huggingface import (
  CLASSES_BY_FILE,
  add_declared_tokens,
  add_special_tokens,
  check_class,
  load_tokenizer_json,
  read_tokenizer_class,
)
from plm_jax.tokenizers.raw_bytes import ByteTokenizer
from plm_jax.tokenizers.sentence_piece import (
  AlbertNormalization,
  Layout,
  SentencePiece,
)
from plm_jax.tokenizers.sentencepiece_training import train_sentencepiece
from plm_jax.tokenizers.subword_bpe import CODES_FILE, LANGUAGES, SubwordBPE
from plm_jax.tokenizers.tokenizer_json import TokenizerJson
from plm_jax.tokenizers.whole_words import WordTokenizer, is_word_list, train_word_tokenizer
from plm_jax.tokenizers.word_bpe import WORD_END, WordBPE, train_word_bpe
from plm_jax.tokenizers.wordpiece import BertNormalization, WordPiece, train_wordpiece

__all__ = [
    'AlbertNormalization', 'BertNormalization', 'ByteBPE', 'ByteTokenizer', 'FairseqSentencePiece',
    'Layout', 'MissingTokenizerError', 'SentencePiece', 'SubwordBPE', 'Tokenizer',
    'TokenizerError', 'TokenizerJson', 'Vocab', 'WordBPE', 'WordPiece', 'WordTokenizer',
    'add_special_tokens', 'load', 'train_byte_bpe', 'train_fairseq_sentencepiece',
    'train_sentencepiece', 'train_word_bpe', 'train_word_tokenizer', 'train_wordpiece'
]

CONFIGURED = {raw_bytes.HF_CLASS: ByteTokenizer.load}
"""`tokenizer_class` of a CONFIG_FILE -> how it is loaded, for tokenizers without another file"""
EXPECTED_FILES = (
    'a vocab.txt (WordPiece, or words; BPE with bpe.codes), a vocab.json with merges.txt (BPE), a '
    '*.model (SentencePiece) or a tokenizer.json')


def load(path: epath.PathLike, text: BertNormalization | None = None) -> Tokenizer:
  """Load the tokenizer at `path`.

  Args:
    path: a `vocab.txt`, a `vocab.json` with its `merges.txt`, a `*.model`, a `tokenizer.json` as
      transformers writes it, or the `tokenizer_config.json` of ByT5, which has no other file. Or a
      folder that holds one of them, or that has a folder `tokenizer`.
    text: overrides the text normalization of a WordPiece vocabulary. None: the
      `tokenizer_config.json` next to it decides; without one, text is lower-cased if no token has
      an upper-case letter.

  Raises:
    TokenizerError: there is no tokenizer, or it is damaged.
  """
  path = hub.find_folder(path, 'tokenizer')
  with storage.io_errors_as(path, 'read', TokenizerError):
    if path.is_dir():
      file = find_vocabulary(path)
    elif path.exists():
      file = path
    else:
      raise MissingTokenizerError(
          f'no tokenizer at {path}: expected {EXPECTED_FILES}, or a folder with one.')
  with parse_errors_as(file, EXPECTED_FILES, TokenizerError):
    return load_file(file, text)


def load_file(file: epath.Path, text: BertNormalization | None) -> Tokenizer:
  """Load the tokenizer with the vocabulary `file`, and the tokens that the files next to it add.

  The name and the content of the file determine its kind.
  """
  if file.name == CONFIG_FILE:
    return CONFIGURED.get(read_tokenizer_class(file.parent), ByteTokenizer.load)(file)
  if file.suffix == '.json':
    content = read_json(file)
    if isinstance(content.get('model'), dict):  # no vocab.json, which may have a token 'model'
      return load_tokenizer_json(file, text)
    check_class(file.parent, 'vocab.json')
    # A byte-level vocabulary has a token for every byte, also for the space, 'Ġ'. It may have
    # tokens that end like those of BPE within words, too.
    is_word_level = 'Ġ' not in content and any(map(WORD_END.search, content))
    style = read_tokenizer_class(file.parent).removesuffix('Tokenizer')
    if style in LANGUAGES:
      base = SubwordBPE.load(file, style)
    else:
      base = (WordBPE if is_word_level else ByteBPE).load(file)
  elif file.suffix == '.model':
    check_class(file.parent, 'SentencePiece')
    base = FairseqSentencePiece.load(file) if file.name == MODEL_FILE else SentencePiece.load(file)
  elif (file.parent / CODES_FILE).exists():
    check_class(file.parent, CODES_FILE)
    style = read_tokenizer_class(file.parent).removesuffix('Tokenizer')
    base = SubwordBPE.load(file, 'Bertweet' if style == 'Bertweet' else 'Phobert')
  elif is_word_list(file):
    return WordTokenizer.load(file)
  else:
    check_class(file.parent, 'vocab.txt')
    base = WordPiece.load(file, text)
  return add_declared_tokens(base, file.parent)


def find_vocabulary(folder: epath.Path) -> epath.Path:
  """Find the vocabulary file of a folder.

  A SentencePiece model is preferred to the tokenizer.json that was made from it, and this to the
  vocabulary files of the same tokenizer, as it has the added tokens.

  Raises:
    TokenizerError: there is none, or several SentencePiece models.
  """
  for place in (folder, folder / 'tokenizer'):
    if not place.is_dir():
      continue
    models = sorted(place.glob('*.model'))
    if len(models) > 1:
      raise TokenizerError(f'{place} holds several SentencePiece models: '
                           f'{[model.name for model in models]}. Name one of them.')
    if models and (place / 'vocab.txt').exists() and not read_tokenizer_class(place):
      raise TokenizerError(f'{place} holds {models[0].name} and vocab.txt, which may number the '
                           'tokens in two ways. Name one of them.')
    if models:
      name = read_tokenizer_class(place).removesuffix('Tokenizer')
      if name not in CLASSES_BY_FILE['vocab.txt']:
        return models[0]
    # The tokenizer.json next to it, of another library's class, gives other ids.
    first = ('vocab.txt',) if (place / CODES_FILE).exists() else ()
    for name in (*first, 'tokenizer.json', 'vocab.txt', 'vocab.json'):
      if (place / name).exists():
        return place / name
    if is_configured(place):
      return place / CONFIG_FILE
  raise MissingTokenizerError(f'no tokenizer in {folder}: expected {EXPECTED_FILES}.')


def is_configured(folder: epath.Path) -> bool:
  """Tell whether the configuration in a folder is a tokenizer without a vocabulary file."""
  return (folder / CONFIG_FILE).exists() and read_tokenizer_class(folder) in CONFIGURED
