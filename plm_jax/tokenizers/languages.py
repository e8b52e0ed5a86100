"""mBART's tokenizer (Liu et al. 2020, section 2): SentencePiece under fairseq's ids, and a token for each language."""
from collections.abc import Iterable, Sequence
import json
import re

from etils import epath
import numpy as np

from plm_jax import storage
from plm_jax.errors import understood
from plm_jax.tokenizers.contract import (
    CONFIG,
    TokenizerError,
    Vocab,
    brief,
    hash_files,
    option,
    read_config,
    save_files,
)
from plm_jax.tokenizers.memo import lists
from plm_jax.tokenizers.sentence_piece import SentencePiece, train_sentencepiece

FILE, CLASS = 'sentencepiece.bpe.model', 'MBartTokenizer'  # as released, and of transformers
# In the order of their ids (fairseq's and transformers' one).
LANGUAGES = (
    'ar_AR', 'cs_CZ', 'de_DE', 'en_XX', 'es_XX', 'et_EE', 'fi_FI', 'fr_XX', 'gu_IN', 'hi_IN', 'it_IT', 'ja_XX', 'kk_KZ',
    'ko_KR', 'lt_LT', 'lv_LV', 'my_MM', 'ne_NP', 'nl_XX', 'ro_RO', 'ru_RU', 'si_LK', 'tr_TR', 'vi_VN', 'zh_CN')
FIRST, MASK = ('<s>', '<pad>', '</s>', '<unk>'), '<mask>'
SPECIALS = re.compile(f'({"|".join((*FIRST, *LANGUAGES, MASK))})')


class LanguagePieces:
  """Ids: <s> 0, <pad> 1, </s> 2, <unk> 3, the model's pieces, LANGUAGES, <mask>.

  A text that is read ends with </s> and its language; what is written begins with its language.
  """

  kind = 'sentencepiece-languages'
  spaced = False

  def __init__(self, model: bytes, source: str = 'en_XX', target: str = ''):
    """model: serialised, with <unk>, <s> and </s> in front; source, target: the language of texts that are read, and of
    those that are written, the same where not given. Raises TokenizerError for others."""
    self.model, self.source, self.target = model, source, target or source
    self._plain = SentencePiece(model)
    front, size = self._plain.pieces[:3], len(self._plain.pieces)
    if front != ['<unk>', '<s>', '</s>']:
      raise TokenizerError(f'expected a SentencePiece model that begins with <unk>, <s> and </s>, got {brief(front)}')
    if unknown := {self.source, self.target} - {*LANGUAGES}:
      raise TokenizerError(f'{brief(sorted(unknown))[1:-1]} is no language of mBART, which has {", ".join(LANGUAGES)}')
    # fairseq has its own four in front, and those of the model but for these three behind them.
    self._ours = np.array([3, 0, 2, *range(4, size + 1)], np.uint32)
    self._theirs = {int(ours): theirs for theirs, ours in enumerate(self._ours)}
    self.pieces = [*FIRST, *self._plain.pieces[3:], *LANGUAGES, MASK]
    self._ids = {piece: self.pieces.index(piece, size * (piece not in FIRST)) for piece in (*FIRST, *LANGUAGES, MASK)}
    self.vocab = Vocab(
        len(self.pieces), bos=0, pad=1, eos=2, unk=3, mask=self._ids[MASK], source=self._ids[self.source],
        target=self._ids[self.target], language=self._ids[LANGUAGES[0]])
    self.starts_word = np.concatenate([
        np.ones(4, bool), self._plain.starts_word[3:], np.ones(len(LANGUAGES) + 1, bool)])

  @classmethod
  def load(cls, file: epath.PathLike) -> 'LanguagePieces':
    """Loads a `sentencepiece.bpe.model`, with languages from the `tokenizer_config.json` beside it; English where it
    names none. Raises TokenizerError for another family's."""
    file = epath.Path(file)
    with understood(file, "mBART's SentencePiece model", TokenizerError):
      content = read_config(file.parent)
      if not is_mbart(file):
        raise TokenizerError(f'{file} is of the class {brief(content["tokenizer_class"])}, whose ids are others; known '
                             f'is {CLASS}')
      return cls(storage.read_bytes(file, error=TokenizerError), option(content, 'src_lang', '') or 'en_XX',
                 option(content, 'tgt_lang', ''))

  def encode(self, text: str, specials: bool = False) -> list[int]:
    """Returns the ids of `text`; with `specials`, '<mask>', 'en_XX' and their like in it are the special tokens."""
    if not specials:
      return self.encode_flat([text])[0].tolist()
    ids = []
    for i, part in enumerate(SPECIALS.split(text)):  # text, special, text, ...
      ids += [self._ids[part]] if i % 2 else self.encode(part)
    return ids

  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    """Encodes each text, without special tokens."""
    return lists(*self.encode_flat(texts))

  def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Encodes N texts: all ids in a row [T] uint32, under fairseq's numbers, and how many each text has [N]."""
    ids, lengths = self._plain.encode_flat(texts)
    return self._ours[ids], lengths

  def encode_places(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Encodes like `encode_flat`, and says of each id the character of its text at which it begins [T]."""
    ids, lengths, places = self._plain.encode_places(texts)
    return self._ours[ids], lengths, places

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of `ids`; special tokens decode to nothing."""
    return self._plain.decode(self._theirs[int(i)] for i in ids if int(i) in self._theirs)

  @property
  def sizes(self) -> np.ndarray:
    """Bytes of UTF-8 that each piece stands for [V], 1 for a special token."""
    return np.concatenate([np.ones(4, int), self._plain.sizes[3:], np.ones(len(LANGUAGES) + 1, int)])

  @property
  def specials(self) -> tuple[int, ...]:
    """Ids of special tokens, the languages among them."""
    return tuple(sorted(self._ids.values()))

  @property
  def hash(self) -> str:
    """sha256 hex over the saved files: the languages of source and target count."""
    return hash_files(self._files())

  def save(self, folder: epath.PathLike) -> None:
    """Writes `sentencepiece.bpe.model` and `tokenizer_config.json`."""
    save_files(self._files(), folder)

  def unigram(self) -> tuple[list[str], list[float], bytes]:
    """Returns pieces, scores and map of characters as `SentencePiece.unigram` does, under the ids here."""
    _, scores, charsmap = self._plain.unigram()
    return self.pieces, [0.0] * 4 + scores[3:] + [0.0] * (len(LANGUAGES) + 1), charsmap

  def _files(self) -> dict[str, bytes]:
    config = {
        'kind': self.kind, 'tokenizer_class': CLASS, 'src_lang': self.source, 'tgt_lang': self.target,
        **{f'{role}_token': self.pieces[getattr(self.vocab, role)] for role in ('pad', 'unk', 'mask', 'bos', 'eos')}}
    return {FILE: self.model, CONFIG: (json.dumps(config, indent=1) + '\n').encode()}


def is_mbart(file: epath.Path) -> bool:
  """Tells whether a model is mBART's and not of another family with fairseq's ids, as the file beside it says; without
  one it is."""
  content = read_config(file.parent)
  return content.get('kind') == LanguagePieces.kind or content.get('tokenizer_class', CLASS) in (CLASS, f'{CLASS}Fast')


def train_languages(texts: Iterable[str], size: int, source: str = 'en_XX', target: str = '') -> LanguagePieces:
  """Trains a vocabulary of exactly `size` pieces, special ones included, of 250,027 as released. Raises TokenizerError
  as `train_sentencepiece` does."""
  plain = train_sentencepiece(texts, size - len(LANGUAGES) - 2, layout='mbart')
  return LanguagePieces(plain.model, source, target)
