"""SentencePiece with fairseq's ids, the tokenizers of mBART and XLM-R.

Liu et al. 2020, section 2; Conneau et al. 2020, section 3. mBART has a token for each language,
XLM-R has none.
"""
from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

from etils import epath
import numpy as np

from plm_jax import storage
from plm_jax.errors import parse_errors_as
from plm_jax.tokenizers.contract import (
    CONFIG_FILE,
    Tokenizer,
    TokenizerError,
    Vocab,
    abbreviate,
    config_bytes,
    read_config,
    read_option,
)
from plm_jax.tokenizers.sentence_piece import SentencePiece
from plm_jax.tokenizers.sentencepiece_training import COVERAGE, train_sentencepiece

FairseqLayout = Literal['mbart', 'mbart50', 'xlm-r']

MODEL_FILE = 'sentencepiece.bpe.model'  # as released
# Language tokens of mBART, in the order of their ids in fairseq and transformers.
MBART_LANGUAGES = (
    'ar_AR', 'cs_CZ', 'de_DE', 'en_XX', 'es_XX', 'et_EE', 'fi_FI', 'fr_XX', 'gu_IN', 'hi_IN',
    'it_IT', 'ja_XX', 'kk_KZ', 'ko_KR', 'lt_LT', 'lv_LV', 'my_MM', 'ne_NP', 'nl_XX', 'ro_RO',
    'ru_RU', 'si_LK', 'tr_TR', 'vi_VN', 'zh_CN')
# mBART-50 has more languages after them (Tang et al. 2020, arXiv:2008.00401).
MBART50_LANGUAGES = MBART_LANGUAGES + (
    'af_ZA', 'az_AZ', 'bn_IN', 'fa_IR', 'he_IL', 'hr_HR', 'id_ID', 'ka_GE',
    'km_KH', 'mk_MK', 'ml_IN', 'mn_MN', 'mr_IN', 'pl_PL', 'ps_AF', 'pt_XX', 'sv_SE', 'sw_KE',
    'ta_IN', 'te_IN', 'th_TH', 'tl_XX', 'uk_UA', 'ur_PK', 'xh_ZA', 'gl_ES', 'sl_SI')
LANGUAGES_BY_LAYOUT: dict[FairseqLayout, tuple[str, ...]] = {
    'mbart': MBART_LANGUAGES, 'mbart50': MBART50_LANGUAGES, 'xlm-r': ()}
# Tokenizer classes of transformers. Its class for mBART-50 is not supported: it puts the language
# before the text, as the translation models have it.
LAYOUT_BY_CLASS: dict[str, FairseqLayout] = {
    'MBartTokenizer': 'mbart', 'XLMRobertaTokenizer': 'xlm-r'}
FIRST_TOKENS, MASK_TOKEN = ('<s>', '<pad>', '</s>', '<unk>'), '<mask>'


class FairseqSentencePiece(Tokenizer):
  """SentencePiece with fairseq's ids: <s> 0, <pad> 1, </s> 2, <unk> 3, tokens, languages, <mask>.

  With mBART's languages, an encoder input ends with </s> and its language, and a decoder output
  begins with its language. XLM-R has no languages, and RoBERTa's <s> and </s> around texts.
  """

  kind = 'sentencepiece-languages'
  layout: FairseqLayout
  keeps_leading_space = False

  def __init__(
      self, model: bytes, source: str = 'en_XX', target: str = '', layout: FairseqLayout = 'mbart'):
    """Build the tokenizer.

    Args:
      model: the serialized SentencePiece model, which begins with <unk>, <s> and </s>.
      source: language of encoder inputs.
      target: language of decoder outputs; '': that of `source`.
      layout: the family, which determines the languages.

    Raises:
      TokenizerError: another kind of model, or an unknown language.
    """
    languages = LANGUAGES_BY_LAYOUT[layout]
    self.model, self.layout, self.languages = model, layout, languages
    self.source, self.target = (source, target or source) if languages else ('', '')
    self._plain = SentencePiece(model)
    front, size = self._plain.pieces[:3], len(self._plain.pieces)
    if front != ['<unk>', '<s>', '</s>']:
      raise TokenizerError('expected a SentencePiece model that begins with <unk>, <s> and </s>, '
                           f'got {abbreviate(front)}')
    if unknown := {self.source, self.target} - set(languages) - {''}:
      raise TokenizerError(f'{abbreviate(sorted(unknown))[1:-1]} is no language of mBART, which '
                           f'has {", ".join(languages)}')
    # fairseq has its own four tokens first; the model's tokens except for its first three follow.
    self._own_ids = np.arange(1, size + 1, dtype=np.uint32)
    self._own_ids[:3] = 3, 0, 2  # <unk>, <s>, </s>
    self._model_ids = {int(own_id): i for i, own_id in enumerate(self._own_ids)}
    added = list(languages) + [MASK_TOKEN]
    self.pieces = list(FIRST_TOKENS) + self._plain.pieces[3:] + added
    self._special_ids = {token: self.pieces.index(token) for token in FIRST_TOKENS}
    # The model may have tokens with these names, too: they are plain text.
    self._special_ids |= {token: self.pieces.index(token, size) for token in added}
    if languages:
      roles = {'source': self._special_ids[self.source], 'target': self._special_ids[self.target],
               'language': self._special_ids[languages[0]]}
    else:
      roles = {'cls': 0, 'sep': 2}
    self.vocab = Vocab(
        len(self.pieces), bos=0, pad=1, eos=2, unk=3, mask=self._special_ids[MASK_TOKEN], **roles)
    self.starts_word = np.concatenate([
        np.ones(4, bool), self._plain.starts_word[3:], np.ones(len(languages) + 1, bool)])

  @classmethod
  def load(cls, file: epath.PathLike) -> 'FairseqSentencePiece':
    """Load a `sentencepiece.bpe.model`, with the languages in `tokenizer_config.json`.

    English where the configuration names none. Raises TokenizerError for another family's files.
    """
    file = epath.Path(file)
    with parse_errors_as(file, 'a SentencePiece model of mBART or XLM-R', TokenizerError):
      content, layout = read_config(file.parent), read_layout(file)
      if layout is None:
        raise TokenizerError(
            f'{file} is of the class {abbreviate(content.get("tokenizer_class"))}, whose ids are '
            f'others; known are {", ".join(LAYOUT_BY_CLASS)}')
      model = storage.read_bytes(file, error=TokenizerError)
      source = read_option(content, 'src_lang', '') or 'en_XX'
      return cls(model, source, read_option(content, 'tgt_lang', ''), layout)

  def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Encode N texts into flat arrays: fairseq's ids [T] uint32, ids per text [N]."""
    ids, lengths = self._plain.encode_flat(texts)
    return self._own_ids[ids], lengths

  def encode_with_offsets(
      self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Encode like `encode_flat`, with the character offset of each id in its text [T]."""
    ids, lengths, offsets = self._plain.encode_with_offsets(texts)
    return self._own_ids[ids], lengths, offsets

  def decode(self, ids: Iterable[int]) -> str:
    """Decode ids into text; special tokens become nothing."""
    return self._plain.decode(self._model_ids[int(i)] for i in ids if int(i) in self._model_ids)

  @property
  def token_bytes(self) -> list[bytes]:
    return [b''] * 4 + self._plain.token_bytes[3:] + [b''] * (len(self.languages) + 1)

  def split_words(self, text: str) -> list[str]:
    return self._plain.split_words(text)

  def extend(self, words: Sequence[str]) -> 'FairseqSentencePiece':
    """Return `SentencePiece.extend`; languages and the mask come after the new tokens."""
    return FairseqSentencePiece(
        self._plain.extend(words).model, self.source or 'en_XX', self.target, self.layout)

  @property
  def specials(self) -> tuple[int, ...]:
    """Ids of special tokens, including the languages."""
    return tuple(sorted(self._special_ids.values()))

  def unigram_model(self) -> tuple[list[str], list[float], bytes]:
    """Return `SentencePiece.unigram_model`, by the ids here."""
    _, scores, charsmap = self._plain.unigram_model()
    added = len(self.languages) + 1
    return self.pieces, [0.0] * 4 + scores[3:] + [0.0] * added, charsmap

  def _files(self) -> dict[str, bytes]:
    config: dict[str, Any] = {'kind': self.kind}
    if self.layout != 'mbart':
      config['layout'] = self.layout
    class_names = {layout: name for name, layout in LAYOUT_BY_CLASS.items()}
    config['tokenizer_class'] = class_names.get(self.layout, 'PreTrainedTokenizerFast')
    if self.source:
      config |= {'src_lang': self.source, 'tgt_lang': self.target}
    for role in ('pad', 'unk', 'mask', 'bos', 'eos'):
      config[f'{role}_token'] = self.pieces[getattr(self.vocab, role)]
    return {MODEL_FILE: self.model, CONFIG_FILE: config_bytes(config)}


def read_layout(file: epath.Path) -> FairseqLayout | None:
  """Return the family of a model from the files next to it.

  mBART where they do not state one; None for another family.
  """
  content = read_config(file.parent)
  if content.get('kind') == FairseqSentencePiece.kind:
    layout = read_option(content, 'layout', 'mbart')
    return next((name for name in get_args(FairseqLayout) if name == layout), None)
  if 'tokenizer_class' in content:
    return LAYOUT_BY_CLASS.get(str(content['tokenizer_class']).removesuffix('Fast'))
  if (file.parent / 'model.pt').exists():
    return 'xlm-r'  # fairseq's folder; in mBART's the SentencePiece model has another name
  # Released folders of XLM-R name the family only in the model's configuration.
  model_config = file.parent / 'config.json'
  if not model_config.exists():
    return 'mbart'
  family = storage.read_json(model_config, error=TokenizerError).get('model_type')
  return 'xlm-r' if family == 'xlm-roberta' else 'mbart'


def train_fairseq_sentencepiece(
    texts: Iterable[str], size: int, source: str = 'en_XX', target: str = '',
    layout: FairseqLayout = 'mbart', coverage: float = COVERAGE) -> FairseqSentencePiece:
  """Train a vocabulary of `size` tokens, including special ones.

  Released are 250,027 tokens of mBART, 250,054 of mBART-50 and 250,002 of XLM-R. A smaller
  vocabulary and TokenizerError as in `train_sentencepiece`.
  """
  added = len(LANGUAGES_BY_LAYOUT[layout]) + 2
  plain = train_sentencepiece(texts, size, coverage=coverage, layout='mbart', added=added)
  return FairseqSentencePiece(plain.model, source, target, layout)
