"""SentencePiece under fairseq's ids: the tokenizers of mBART (Liu et al. 2020, section 2), which has a token for each
language, and of XLM-R (Conneau et al. 2020, section 3), which has none."""
from collections.abc import Iterable, Sequence
import functools
import json
import re
from typing import Literal, get_args

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

Kind = Literal['mbart', 'mbart50', 'xlm-r']

FILE = 'sentencepiece.bpe.model'  # as released
# In the order of their ids (fairseq's and transformers' one).
LANGUAGES = (
    'ar_AR', 'cs_CZ', 'de_DE', 'en_XX', 'es_XX', 'et_EE', 'fi_FI', 'fr_XX', 'gu_IN', 'hi_IN', 'it_IT', 'ja_XX', 'kk_KZ',
    'ko_KR', 'lt_LT', 'lv_LV', 'my_MM', 'ne_NP', 'nl_XX', 'ro_RO', 'ru_RU', 'si_LK', 'tr_TR', 'vi_VN', 'zh_CN')
# And those that mBART-50 has behind them (Tang et al. 2020, arXiv:2008.00401).
FIFTY = (
    *LANGUAGES, 'af_ZA', 'az_AZ', 'bn_IN', 'fa_IR', 'he_IL', 'hr_HR', 'id_ID', 'ka_GE', 'km_KH', 'mk_MK', 'ml_IN',
    'mn_MN', 'mr_IN', 'pl_PL', 'ps_AF', 'pt_XX', 'sv_SE', 'sw_KE', 'ta_IN', 'te_IN', 'th_TH', 'tl_XX', 'uk_UA', 'ur_PK',
    'xh_ZA', 'gl_ES', 'sl_SI')
KINDS: dict[Kind, tuple[str, ...]] = {'mbart': LANGUAGES, 'mbart50': FIFTY, 'xlm-r': ()}
# Of transformers, whose class for mBART-50 puts the language in front, as its translators have it: that is not known.
CLASSES: dict[str, Kind] = {'MBartTokenizer': 'mbart', 'XLMRobertaTokenizer': 'xlm-r'}
FIRST, MASK = ('<s>', '<pad>', '</s>', '<unk>'), '<mask>'


class LanguagePieces:
  """Ids: <s> 0, <pad> 1, </s> 2, <unk> 3, the model's pieces, the languages, <mask>.

  A text that is read ends with </s> and its language; what is written begins with its language. XLM-R has no languages,
  and RoBERTa's <s> and </s> around texts.
  """

  kind = 'sentencepiece-languages'
  spaced = False

  def __init__(self, model: bytes, source: str = 'en_XX', target: str = '', layout: Kind = 'mbart'):
    """model: serialised, with <unk>, <s> and </s> in front; source, target: the language of texts that are read, and of
    those that are written, the same where not given; layout: whose languages there are. Raises TokenizerError for
    others."""
    names = KINDS[layout]
    self.model, self.layout, self.names = model, layout, names
    self.source, self.target = (source, target or source) if names else ('', '')
    self._plain = SentencePiece(model)
    front, size = self._plain.pieces[:3], len(self._plain.pieces)
    if front != ['<unk>', '<s>', '</s>']:
      raise TokenizerError(f'expected a SentencePiece model that begins with <unk>, <s> and </s>, got {brief(front)}')
    if unknown := {self.source, self.target} - {'', *names}:
      raise TokenizerError(f'{brief(sorted(unknown))[1:-1]} is no language of mBART, which has {", ".join(names)}')
    # fairseq has its own four in front, and those of the model but for these three behind them.
    self._ours = np.array([3, 0, 2, *range(4, size + 1)], np.uint32)
    self._theirs = {int(ours): theirs for theirs, ours in enumerate(self._ours)}
    self.pieces = [*FIRST, *self._plain.pieces[3:], *names, MASK]
    self._ids = {piece: self.pieces.index(piece, size * (piece not in FIRST)) for piece in (*FIRST, *names, MASK)}
    own = dict(source=self._ids[self.source], target=self._ids[self.target], language=self._ids[names[0]]
               ) if names else dict(cls=0, sep=2)
    self.vocab = Vocab(len(self.pieces), bos=0, pad=1, eos=2, unk=3, mask=self._ids[MASK], **own)
    self.starts_word = np.concatenate([np.ones(4, bool), self._plain.starts_word[3:], np.ones(len(names) + 1, bool)])

  @classmethod
  def load(cls, file: epath.PathLike) -> 'LanguagePieces':
    """Loads a `sentencepiece.bpe.model`, with languages from the `tokenizer_config.json` beside it; English where it
    names none. Raises TokenizerError for another family's."""
    file = epath.Path(file)
    with understood(file, 'a SentencePiece model of mBART or XLM-R', TokenizerError):
      content, layout = read_config(file.parent), layout_of(file)
      if layout is None:
        raise TokenizerError(f'{file} is of the class {brief(content.get("tokenizer_class"))}, whose ids are others; '
                             f'known are {", ".join(CLASSES)}')
      return cls(storage.read_bytes(file, error=TokenizerError), option(content, 'src_lang', '') or 'en_XX',
                 option(content, 'tgt_lang', ''), layout)

  def encode(self, text: str, specials: bool = False) -> list[int]:
    """Returns the ids of `text`; with `specials`, '<mask>', 'en_XX' and their like in it are the special tokens."""
    if not specials:
      return self.encode_flat([text])[0].tolist()
    ids = []
    for i, part in enumerate(self._specials.split(text)):  # text, special, text, ...
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
    return np.concatenate([np.ones(4, int), self._plain.sizes[3:], np.ones(len(self.names) + 1, int)])

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
    return self.pieces, [0.0] * 4 + scores[3:] + [0.0] * (len(self.names) + 1), charsmap

  @functools.cached_property
  def _specials(self) -> re.Pattern:
    return re.compile(f'({"|".join(self._ids)})')

  def _files(self) -> dict[str, bytes]:
    named = next((name for name, layout in CLASSES.items() if layout == self.layout), 'PreTrainedTokenizerFast')
    languages = {'src_lang': self.source, 'tgt_lang': self.target} if self.source else {}
    layout = {} if self.layout == 'mbart' else {'layout': self.layout}
    config = {
        'kind': self.kind, **layout, 'tokenizer_class': named, **languages,
        **{f'{role}_token': self.pieces[getattr(self.vocab, role)] for role in ('pad', 'unk', 'mask', 'bos', 'eos')}}
    return {FILE: self.model, CONFIG: (json.dumps(config, indent=1) + '\n').encode()}


def layout_of(file: epath.Path) -> Kind | None:
  """Tells whose ids a model has, as the files beside it say; mBART's where they say nothing. None: another family's."""
  content = read_config(file.parent)
  if content.get('kind') == LanguagePieces.kind:
    layout = option(content, 'layout', 'mbart')
    return next((name for name in get_args(Kind) if name == layout), None)
  if 'tokenizer_class' in content:
    return CLASSES.get(str(content['tokenizer_class']).removesuffix('Fast'))
  if (file.parent / 'model.pt').exists():
    return 'xlm-r'  # fairseq's folder: that of mBART has a model of another name
  # XLM-R's released folders name the family in the model's configuration alone.
  beside = file.parent / 'config.json'
  family = storage.read_json(beside, error=TokenizerError).get('model_type') if beside.exists() else None
  return 'xlm-r' if family == 'xlm-roberta' else 'mbart'


def train_languages(
    texts: Iterable[str], size: int, source: str = 'en_XX', target: str = '', layout: Kind = 'mbart') -> LanguagePieces:
  """Trains a vocabulary of exactly `size` pieces, special ones included, of 250,027 as released; mBART-50's has
  250,054, and XLM-R's 250,002. Raises TokenizerError as `train_sentencepiece` does."""
  plain = train_sentencepiece(texts, size - len(KINDS[layout]) - 2, layout='mbart')
  return LanguagePieces(plain.model, source, target, layout)
