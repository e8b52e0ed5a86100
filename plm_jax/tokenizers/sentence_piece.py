"""SentencePiece: unigram or BPE pieces over raw text."""
from collections.abc import Iterable, Sequence
import dataclasses
import functools
import importlib
import io
import itertools
import json
import os
import re
import string
from typing import Any, Literal

from etils import epath
from google.protobuf.message import DecodeError
import numpy as np
import sentencepiece
from tokenizers import normalizers

from plm_jax import storage
from plm_jax.errors import understood
from plm_jax.tokenizers.charsmap import check_maps
from plm_jax.tokenizers.contract import (
    BLANKS,
    CONFIG,
    MOST,
    TokenizerError,
    Vocab,
    hash_files,
    option,
    read_config,
    save_files,
    text_can_be_encoded,
)

Layout = Literal['bert', 'albert', 'deberta', 'xlnet', 'glm', 'llama', 't5', 'mbart', 'mbart50', 'xlm-r']


@dataclasses.dataclass(frozen=True)
class PlainText:
  """What ALBERT and XLNet do to text before SentencePiece sees it: `preprocess_text` of their released code.

  Quotation marks of TeX become ", characters are decomposed (NFKD).
  """

  lowercase: bool = False
  strip_accents: bool = True

  def normalizer(self) -> normalizers.Normalizer:
    """Builds the library's normalizer: quotation marks, then NFKD, then accents and case."""
    return normalizers.Sequence([
        normalizers.Replace('``', '"'), normalizers.Replace("''", '"'), normalizers.NFKD(),
        *[normalizers.StripAccents()] * self.strip_accents, *[normalizers.Lowercase()] * self.lowercase])


class SentencePiece:
  kind = 'sentencepiece'
  spaced = False

  def __init__(self, model: bytes, text: PlainText | None = None, sentinels: int = 100):
    """`model` is the serialised SentencePiece model; text: what is done before it; sentinels: T5's, which come behind a
    model that has none. Raises TokenizerError for another kind of model."""
    self.model = model
    self.text = text
    self._normalizer = text and text.normalizer()
    self._processor = sentencepiece.SentencePieceProcessor()
    try:
      check_maps(self._proto())
      self._processor.LoadFromSerializedProto(model)
    except (RuntimeError, DecodeError) as error:
      raise TokenizerError(f'not a SentencePiece model: {" ".join(str(error).split())}') from error
    size = self._processor.vocab_size()
    if not size:
      raise TokenizerError('not a SentencePiece model: it has no pieces.')
    self.pieces: list[str] = [self._processor.id_to_piece(i) for i in range(size)]
    if self.layout == 'deberta' and '[MASK]' not in self.pieces:
      self.pieces.append('[MASK]')  # behind the model's, as released
    if self.layout == 't5' and not any(map(SENTINEL.search, self.pieces)):
      self.pieces += [f'<extra_id_{number}>' for number in reversed(range(sentinels))]  # behind the model's too
    ids = {piece: i for i, piece in enumerate(self.pieces)}
    first = lambda *names: next((ids[name] for name in names if name in ids), -1)
    self.vocab = Vocab(
        size=len(ids), pad=first('<pad>', '[PAD]'), unk=self._processor.unk_id(),
        cls=first('[CLS]', '<cls>'), sep=first('[SEP]', '<sep>'), mask=first('[MASK]', '<mask>'),
        bos=self._processor.bos_id(), eos=self._processor.eos_id(),
        # mT5 has them in the model, with a space in front.
        sentinel=first('<extra_id_0>', '▁<extra_id_0>'),
        sentinels=len([piece for piece in self.pieces if SENTINEL.match(piece)]) or SENTINELS,
        **{role: first(name) for name, role in BLANKS.items()})
    self.starts_word = np.array([i >= size or self._starts_word(i) for i in range(len(ids))])

  @classmethod
  def load(cls, file: epath.PathLike) -> 'SentencePiece':
    """Loads a serialised model, and what is done before it from the `tokenizer_config.json` beside it; a released
    ALBERT is lower-cased without one. Raises TokenizerError."""
    file = epath.Path(file)
    with understood(file, 'a SentencePiece model', TokenizerError):
      content = read_config(file.parent)
      model = storage.read_bytes(file, error=TokenizerError)
      tokenizer = cls(model, sentinels=option(content, 'extra_ids', SENTINELS, most=MOST))
      if 'keep_accents' in content or tokenizer.layout in ('albert', 'xlnet'):
        # Released ALBERTs are lower-cased and leave it to their class to know.
        text = PlainText(option(content, 'do_lower_case', tokenizer.layout == 'albert'),
                         not option(content, 'keep_accents', False))
        tokenizer = cls(tokenizer.model, text)
      return tokenizer

  @property
  def layout(self) -> Layout:
    """Which family's special pieces it has."""
    if self.pieces[:4] == ['<unk>', '<s>', '</s>', '<0x00>']:
      return 'llama'
    if self.pieces[:3] == ['<pad>', '</s>', '<unk>']:
      return 't5'
    if self.pieces[:4] == ['[PAD]', '[CLS]', '[SEP]', '[UNK]']:
      return 'deberta'
    if self.pieces[:5] == ['<pad>', '<unk>', '[CLS]', '[SEP]', '[MASK]']:
      return 'albert'
    if '<cls>' in self.pieces[:16]:
      return 'xlnet'
    return 'glm' if '[gMASK]' in self.pieces[:16] else 'bert'

  @text_can_be_encoded
  def encode(self, text: str, specials: bool = False) -> list[int]:
    """Returns the ids of `text`; with `specials`, the special pieces in it, such as '[MASK]', are special tokens."""
    if not specials:
      return self._processor.encode(self._plain(text))
    parts = self._special_pieces.split(text)  # text, special, text, ...
    ids = []
    for i, part in enumerate(parts):
      ids += [self._ids[part]] if i % 2 else self._processor.encode(self._plain(part))
    return ids

  @text_can_be_encoded
  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    """Encodes each text, on one thread: `prepare` runs a process a core."""
    return self._processor.encode([self._plain(text) for text in texts], num_threads=1)

  def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Encodes N texts: all ids in a row [T] uint32, and how many each text has [N]."""
    ids = self.encode_batch(texts)
    lengths = np.array([len(some) for some in ids], np.int64)
    return np.fromiter(itertools.chain.from_iterable(ids), np.uint32, lengths.sum()), lengths

  @text_can_be_encoded
  def encode_places(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Encodes like `encode_flat`, and says of each id the character of its text at which it begins [T], before
    normalisation."""
    protos = [self._processor.encode(self._plain(text), return_type='proto').pieces for text in texts]
    lengths = np.array([len(pieces) for pieces in protos], np.int64)
    ids = np.fromiter((piece.id for pieces in protos for piece in pieces), np.uint32, lengths.sum())
    places = [self._origin(text)[[piece.begin for piece in pieces]]
              for text, pieces in zip(texts, protos, strict=True)]
    return ids, lengths, np.concatenate([np.zeros(0, np.int64), *places])

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of `ids`; control pieces decode to nothing, and so do those behind the model's."""
    return self._processor.decode([int(i) for i in ids if i < self._processor.vocab_size()])

  @property
  def sizes(self) -> np.ndarray:
    """Bytes of UTF-8 that each piece stands for [V], the space of '▁' among them; 1 for a special token or a byte."""
    return np.array([1 if i in self.vocab.specials or BYTE.fullmatch(piece) else len(piece.replace('▁', ' ').encode())
                     for i, piece in enumerate(self.pieces)])

  @property
  def hash(self) -> str:
    """sha256 hex over the saved files: what is done before the model counts."""
    return hash_files(self._files())

  def save(self, folder: epath.PathLike) -> None:
    """Writes `spiece.model`, DeBERTa's `spm.model` or LLaMA's `tokenizer.model`, and `tokenizer_config.json`."""
    save_files(self._files(), folder)

  @property
  def sentinels(self) -> range:
    """Ids of T5's, the first one first; none where it has none."""
    last, names = self.vocab.sentinel, self.pieces
    end = next((i for i in range(last, -1, -1) if not SENTINEL.search(names[i])), -1)
    return range(last, end, -1)

  def unigram(self) -> tuple[list[str], list[float], bytes]:
    """Returns the model's pieces, their scores, and its map of characters to normalised ones, for other libraries.

    Raises TokenizerError for a model that is no unigram model.
    """
    proto = self._proto()
    if proto.trainer_spec.model_type != proto.trainer_spec.UNIGRAM or proto.trainer_spec.byte_fallback:
      raise TokenizerError('only unigram models of SentencePiece without bytes can be written for other libraries')
    return [p.piece for p in proto.pieces], [p.score for p in proto.pieces], proto.normalizer_spec.precompiled_charsmap

  def merges(self) -> list[tuple[str, str]]:
    """Returns the pairs that are merged, best first, for other libraries.

    Raises TokenizerError for a model that is not BPE with bytes for the rest, on text as it is (LLaMA's).
    """
    proto = self._proto()
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    if (trainer.model_type != trainer.BPE or not trainer.byte_fallback or normalizer.precompiled_charsmap
        or normalizer.remove_extra_whitespaces or not normalizer.add_dummy_prefix):
      raise TokenizerError('only BPE models of SentencePiece with bytes, a space in front, and text that is otherwise '
                           'left as it is can be written for other libraries')
    plain = {p.piece: p.score for p in proto.pieces if p.type == p.NORMAL}
    number = {piece: i for i, piece in enumerate(self.pieces)}
    pairs = [(piece[:cut], piece[cut:]) for piece in plain for cut in range(1, len(piece))
             if piece[:cut] in plain and piece[cut:] in plain]
    return sorted(pairs, key=lambda pair: (-plain[''.join(pair)], number[pair[0]], number[pair[1]]))

  def _proto(self) -> Any:
    return messages().ModelProto.FromString(self.model)

  def _files(self) -> dict[str, bytes]:
    names = {f'{name}_token': self.pieces[i] for name in ('pad', 'unk', 'cls', 'sep', 'mask', 'bos', 'eos')
             if (i := getattr(self.vocab, name)) >= 0}
    if self.layout == 'glm':
      names['additional_special_tokens'] = [*BLANKS]
    if self.sentinels:
      names['additional_special_tokens'] = [self.pieces[i] for i in self.sentinels]
    if len(self.sentinels) not in (0, SENTINELS):
      names['extra_ids'] = len(self.sentinels)
    if self.text:
      # The names that transformers has for it.
      names |= {'do_lower_case': self.text.lowercase, 'keep_accents': not self.text.strip_accents}
    name = {'deberta': 'spm.model', 'llama': 'tokenizer.model'}.get(self.layout, 'spiece.model')
    return {name: self.model, CONFIG: (json.dumps({'kind': self.kind, **names}, indent=1) + '\n').encode()}

  def _plain(self, text: str) -> str:
    return self._normalizer.normalize_str(text) if self._normalizer else text

  def _origin(self, text: str) -> np.ndarray:
    """Of each byte that SentencePiece sees, and of the end, the number of the character of `text` it comes from."""
    parts = UNITS.findall(text)  # what is normalised as one
    sizes = [len(self._plain(part).encode()) for part in parts]
    starts = np.cumsum([0, *map(len, parts)])
    return np.append(np.repeat(starts[:-1], sizes), starts[-1])

  def _starts_word(self, i: int) -> bool:
    """True for '▁' pieces, special pieces, punctuation, and pieces that begin with a Chinese character.

    The last two because text without spaces would otherwise be one word. ALBERT's are those of `begins_albert_word`.
    """
    piece = self.pieces[i]
    if self._processor.is_byte(i):
      return False
    special = self._processor.is_control(i) or self._processor.is_unknown(i) or i in self.vocab.specials
    if self.layout == 'albert':
      return special or begins_albert_word(piece)
    return special or piece.startswith('▁') or not any(map(str.isalnum, piece)) or bool(CHINESE.match(piece))

  @functools.cached_property
  def _special_pieces(self) -> re.Pattern:
    return re.compile('(' + '|'.join(re.escape(name) for name in self._ids) + ')')

  @functools.cached_property
  def _ids(self) -> dict[str, int]:
    """Special pieces as they stand in text."""
    return {self.pieces[i].removeprefix('▁'): i for i in (*self.vocab.specials, *self.sentinels)}


def messages() -> Any:
  """Imports the messages of SentencePiece's files, when they are needed: they register themselves with protobuf.

  SentencePiece 0.2.3 has them as protobuf 7 made them, and Beam wants protobuf 6, which refuses what is newer than
  itself; but they are a description of fields that any protobuf reads.
  """
  switch = 'TEMPORARILY_DISABLE_PROTOBUF_VERSION_CHECK'
  before = os.environ.get(switch)
  os.environ[switch] = 'true'
  try:
    return importlib.import_module('sentencepiece.sentencepiece_model_pb2')
  finally:
    os.environ.pop(switch)
    if before is not None:
      os.environ[switch] = before


def begins_albert_word(piece: str) -> bool:
  """Tells whether a word of ALBERT's n-grams begins with `piece`: any with more than English letters and signs does.

  google-research/albert, create_pretraining_data.py, _is_start_piece_sp, whose signs lack ' = and >.
  """
  return piece.startswith(('▁', '<')) or piece in ALBERT_SIGNS or not ALBERT_INNER.issuperset(piece.lower())


def train_sentencepiece(
    texts: Iterable[str],
    size: int,
    algorithm: Literal['unigram', 'bpe'] = 'unigram',
    lowercase: bool = False,
    coverage: float = 0.9995,
    layout: Layout = 'bert',
    sentinels: int = 100,
) -> SentencePiece:
  """Trains a model of exactly `size` pieces: special ones, then those learnt.

  `layout` of the special ones: bert: <pad> 0, <unk> 1, <s>, </s>, [CLS], [SEP], [MASK]; the others as released: albert:
  <pad> 0, <unk> 1, [CLS], [SEP], [MASK], and text made plain; xlnet: <unk> 0, <s>, </s>, <cls>, <sep>, <pad> 5, <mask>,
  <eod>, <eop>, and text made plain; deberta: [PAD] 0, [CLS], [SEP], [UNK], and [MASK] behind all; glm, not as released:
  <pad> 0, <unk> 1, <|endoftext|>, [CLS], [SEP], [MASK] and those of its blanks; llama: <unk> 0, <s>, </s>, the 256
  bytes, every digit alone, and text left as it is; t5: <pad> 0, </s>, <unk>, and `sentinels` behind all, from the
  last to the first; mbart, mbart50, xlm-r: <unk> 0, <s>, </s>, for `LanguagePieces`, which has more. `coverage` is
  the share of the characters that get pieces; the others become <unk>, or bytes where the layout has these. The same
  texts give the same model. Raises TokenizerError when the text is empty or too little for `size`.
  """
  lines = (line for line in texts if line.strip())
  plain = PlainText(lowercase) if layout in ('albert', 'xlnet') else None
  if plain:
    lines = map(plain.normalizer().normalize_str, lines)
  first = next(lines, None)
  if first is None:
    raise TokenizerError('cannot train a SentencePiece model: the text is empty.')
  model = io.BytesIO()
  try:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(line for some in ((first,), lines) for line in some),
        model_writer=model,
        vocab_size=size - {'deberta': 1, 't5': sentinels}.get(layout, 0),
        model_type=algorithm,
        character_coverage=coverage,
        **{'normalization_rule_name': 'nmt_nfkc_cf' if lowercase and not plain else 'nmt_nfkc', **LAYOUTS[layout]},
        max_sentence_length=1 << 16,  # bytes; longer lines are left out
        num_threads=THREADS,
        minloglevel=2)
  except RuntimeError as error:
    reason = ' '.join(str(error).split())
    raise TokenizerError(f'cannot train a SentencePiece model of {size} pieces from this text: {reason}') from error
  return SentencePiece(model.getvalue(), plain, sentinels)


LAYOUTS: dict[Layout, dict[str, Any]] = {
    'bert': dict(pad_id=0, unk_id=1, bos_id=2, eos_id=3, pad_piece='<pad>',
                 control_symbols=['[CLS]', '[SEP]', '[MASK]']),
    'albert': dict(pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, pad_piece='<pad>',
                   control_symbols=['[CLS]', '[SEP]', '[MASK]']),
    'deberta': dict(pad_id=0, bos_id=1, eos_id=2, unk_id=3, pad_piece='[PAD]', bos_piece='[CLS]', eos_piece='[SEP]',
                    unk_piece='[UNK]'),
    'xlnet': dict(pad_id=-1, unk_id=0, bos_id=1, eos_id=2,
                  control_symbols=['<cls>', '<sep>', '<pad>', '<mask>', '<eod>'], user_defined_symbols=['<eop>']),
    'glm': dict(pad_id=0, unk_id=1, bos_id=-1, eos_id=2, pad_piece='<pad>', eos_piece='<|endoftext|>',
                control_symbols=['[CLS]', '[SEP]', '[MASK]', *BLANKS]),
    'llama': dict(pad_id=-1, unk_id=0, bos_id=1, eos_id=2, byte_fallback=True, normalization_rule_name='identity',
                  remove_extra_whitespaces=False, split_digits=True, allow_whitespace_only_pieces=True),
    't5': dict(pad_id=0, eos_id=1, unk_id=2, bos_id=-1, pad_piece='<pad>'),
    **{name: dict(pad_id=-1, unk_id=0, bos_id=1, eos_id=2) for name in ('mbart', 'mbart50', 'xlm-r')},
}
SENTINELS = 100  # of a T5 whose files do not say
THREADS = 16  # fixed, whatever the machine: the sums of the training, and so the pieces, depend on it
UNITS = re.compile("``|''|.", re.DOTALL)
BYTE = re.compile('<0x[0-9A-F]{2}>')
SENTINEL = re.compile(r'^▁?<extra_id_\d+>$')
ALBERT_SIGNS = frozenset('!"#$%&()*+,-./:;?@[\\]^_`{|}~')
ALBERT_INNER = ALBERT_SIGNS | frozenset(string.ascii_lowercase)
CHINESE = re.compile('[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]')
