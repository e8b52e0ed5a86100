"""SentencePiece tokenizers: unigram or BPE models over raw text (Kudo and Richardson 2018)."""
from collections.abc import Iterable, Sequence
import dataclasses
import functools
import itertools
import math
import operator
import re
import string
from typing import Any, Literal

from etils import epath
import numpy as np
import sentencepiece
from tokenizers import normalizers

from plm_jax import storage, unicode_words
from plm_jax.errors import parse_errors_as
from plm_jax.tokenizers.byte_bpe import learn_merges
from plm_jax.tokenizers.contract import (
    CONFIG_FILE,
    FIM_NAMES,
    GLM_TOKENS,
    MAX_EXTRA_TOKENS,
    Tokenizer,
    TokenizerError,
    Vocab,
    config_bytes,
    read_config,
    read_option,
    reject_surrogates,
)
from plm_jax.tokenizers.sentencepiece_proto import check_charsmap, load_protobuf

Layout = Literal[
    'bert', 'albert', 'deberta', 'xlnet', 'glm', 'llama', 't5', 'mbart', 'mbart50', 'xlm-r']
DEFAULT_SENTINELS = 100  # of a T5 whose files do not state the number


@dataclasses.dataclass(frozen=True)
class AlbertNormalization:
  """Text normalization of ALBERT and XLNet before SentencePiece: `preprocess_text` of their code.

  TeX's quotation marks become ", and characters are decomposed (NFKD).
  """

  lowercase: bool = False
  strip_accents: bool = True

  @property
  def removes_accents(self) -> bool:
    """Whether letters lose their accents."""
    return self.strip_accents

  def build_normalizer(self) -> normalizers.Normalizer:
    """Build the library's normalizer: quotation marks, then NFKD, then accents and case."""
    steps: list[normalizers.Normalizer] = [
        normalizers.Replace('``', '"'), normalizers.Replace("''", '"'), normalizers.NFKD()]
    if self.strip_accents:
      steps.append(normalizers.StripAccents())
    if self.lowercase:
      steps.append(normalizers.Lowercase())
    return normalizers.Sequence(steps)


class SentencePiece(Tokenizer):
  """Tokenizer of a SentencePiece model, unigram or BPE."""

  kind = 'sentencepiece'
  keeps_leading_space = False

  def __init__(
      self, model: bytes, text: AlbertNormalization | None = None, sentinels: int = 100):
    """Build the tokenizer.

    Args:
      model: the serialized SentencePiece model.
      text: text normalization before the model; None: none.
      sentinels: number of T5's sentinels, which are appended to a model that has none.

    Raises:
      TokenizerError: another kind of model, or a damaged one.
    """
    from google.protobuf.message import DecodeError  # takes time, and other tokenizers do without
    self.model = model
    self.text = text
    self._normalizer = text and text.build_normalizer()
    self._processor = sentencepiece.SentencePieceProcessor()
    try:
      proto = self._proto()
      for spec in (proto.normalizer_spec, proto.denormalizer_spec):
        if spec.precompiled_charsmap:
          check_charsmap(spec.precompiled_charsmap)
      self._processor.LoadFromSerializedProto(model)
    except (RuntimeError, DecodeError) as error:
      reason = ' '.join(str(error).split())
      raise TokenizerError(f'not a SentencePiece model: {reason}') from error
    size = self._processor.vocab_size()
    if not size:
      raise TokenizerError('not a SentencePiece model: it has no pieces.')
    self.pieces: list[str] = [self._processor.id_to_piece(i) for i in range(size)]
    # Tokens after those of the model, as released.
    if self.layout == 'deberta' and '[MASK]' not in self.pieces:
      self.pieces.append('[MASK]')
    if self.layout == 't5' and not any(map(SENTINEL_TOKEN.search, self.pieces)):
      self.pieces += [f'<extra_id_{number}>' for number in reversed(range(sentinels))]
    self.vocab = self._make_vocab()
    self.starts_word = np.array([
        i >= size or self._starts_word(i) for i in range(len(self.pieces))])

  @classmethod
  def load(cls, file: epath.PathLike) -> 'SentencePiece':
    """Load a serialized model, with the normalization in the `tokenizer_config.json` next to it.

    Without one, a released ALBERT is lower-cased.

    Raises:
      TokenizerError: the files are damaged.
    """
    file = epath.Path(file)
    with parse_errors_as(file, 'a SentencePiece model', TokenizerError):
      content = read_config(file.parent)
      model = storage.read_bytes(file, error=TokenizerError)
      sentinels = read_option(content, 'extra_ids', DEFAULT_SENTINELS, most=MAX_EXTRA_TOKENS)
      tokenizer = cls(model, sentinels=sentinels)
      if 'keep_accents' in content or tokenizer.layout in ('albert', 'xlnet'):
        # Files of released ALBERTs do not state that text is lower-cased: their class does it.
        lowercase = read_option(content, 'do_lower_case', tokenizer.layout == 'albert')
        strip_accents = not read_option(content, 'keep_accents', False)
        tokenizer = cls(tokenizer.model, AlbertNormalization(lowercase, strip_accents))
      return tokenizer

  @property
  def layout(self) -> Layout:
    """The family whose special tokens the vocabulary has."""
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
    if '[gMASK]' in self.pieces[:16]:
      return 'glm'
    return 'bert'

  @reject_surrogates
  def encode(self, text: str, specials: bool = False) -> list[int]:
    """Encode a text; with `specials`, names such as '[MASK]' become special tokens."""
    if not specials:
      return self._processor.encode(self._normalize(text))
    ids = []
    for i, part in enumerate(self._special_pattern.split(text)):  # text, special, text, ...
      if i % 2:
        ids.append(self._special_ids[part])
      else:
        ids += self._processor.encode(self._normalize(part))
    return ids

  @reject_surrogates
  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    """Encode each text, on one thread: `prepare` runs one process per core."""
    return self._processor.encode([self._normalize(text) for text in texts], num_threads=1)

  def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    ids = self.encode_batch(texts)
    lengths = np.array([len(text_ids) for text_ids in ids], np.int64)
    return np.fromiter(itertools.chain.from_iterable(ids), np.uint32, lengths.sum()), lengths

  @reject_surrogates
  def encode_with_offsets(
      self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Encode like `encode_flat`, with the character offset of each id in its text [T].

    Offsets count the characters before normalization.
    """
    ids, lengths, offsets = [], [], [np.zeros(0, np.int64)]
    for text in texts:
      encoded = self._processor.encode(self._normalize(text), return_type='proto')
      ids += [piece.id for piece in encoded.pieces]
      lengths.append(len(encoded.pieces))
      begins = [piece.begin for piece in encoded.pieces]
      offsets.append(self._byte_characters(text)[begins])
    return np.array(ids, np.uint32), np.array(lengths, np.int64), np.concatenate(offsets)

  def decode(self, ids: Iterable[int]) -> str:
    """Decode ids into text; control tokens and those after the model's become nothing."""
    return self._processor.decode([int(i) for i in ids if i < self._processor.vocab_size()])

  @property
  def token_bytes(self) -> list[bytes]:
    """UTF-8 text of each token [V], with the space of '▁'; b'' for special tokens."""
    return [b'' if self.is_special(i) else parse_token(token)
            for i, token in enumerate(self.pieces)]

  @functools.cached_property
  def sentinels(self) -> range:
    """Ids of T5's sentinels, the first sentinel first; empty without sentinels."""
    first = last = self.vocab.sentinel
    while last >= 0 and SENTINEL_TOKEN.search(self.pieces[last]):
      last -= 1
    return range(first, last, -1)

  def is_special(self, i: int) -> bool:
    """Return whether a token stands for no text: control tokens, the unknown token, sentinels."""
    return (i >= self._processor.vocab_size() or self._processor.is_control(i)
            or self._processor.is_unknown(i) or i in self.vocab.specials or i in self.sentinels)

  def split_words(self, text: str) -> list[str]:
    """Split a text into its words after spaces, normalized, without the punctuation after them."""
    return WORD.findall(self._processor.normalize(self._normalize(text)))

  def extend(self, words: Sequence[str]) -> 'SentencePiece':
    """Return a tokenizer with more words as tokens.

    In a unigram model, the score of a new token is a little higher than the best segmentation of
    its text, and not below all others, so the score of unknown characters stays. The segmentation
    of a text without new tokens in it is then the best as before. In a BPE model, new tokens are
    merged after all others; parts of new words are tokens, too.
    """
    proto = self._proto()
    trainer, known = proto.trainer_spec, {piece.piece for piece in proto.pieces}
    scores = {piece.piece: piece.score for piece in proto.pieces if piece.type == piece.NORMAL}
    lowest = min(scores.values())
    tokens = {self._processor.normalize(self._normalize(word)): None for word in words}
    added: dict[str, float] = {}
    if trainer.model_type == trainer.UNIGRAM:
      for token in sorted(tokens.keys() - known, key=lambda token: (len(token), token)):
        best = [0.0] + [-math.inf] * len(token)  # scores of the best segmentations of its prefixes
        for start, end in itertools.combinations(range(len(best)), 2):
          best[end] = max(best[end], best[start] + scores.get(token[start:end], -math.inf))
        added[token] = scores[token] = max(best[-1] + SCORE_MARGIN, lowest)
    elif trainer.model_type == trainer.BPE:
      order = sorted(scores, key=lambda token: -scores[token])
      ranks: dict[Any, int] = {token: n for n, token in enumerate(order)}
      parts = [[self.pieces[i] for i in ids] for ids in self.encode_batch(words)
               if not any(map(self._processor.is_byte, ids))]
      merges = learn_merges(parts, ranks, operator.add)
      added = {left + right: lowest - 1 - n for n, (left, right) in enumerate(merges)}
    else:
      raise self._cannot_extend()
    for token in sorted(added, key=added.__getitem__, reverse=True):
      proto.pieces.add(piece=token, score=added[token])
    trainer.vocab_size = len(proto.pieces)
    return SentencePiece(proto.SerializeToString(), self.text, len(self.sentinels))

  def add_special_tokens(self, names: Sequence[str]) -> 'SentencePiece':
    """Return a tokenizer with special tokens at the end of the model.

    Raises:
      TokenizerError: the tokenizer has tokens after those of the model, whose ids would change.
    """
    if self.vocab.size != self._processor.vocab_size():
      raise TokenizerError('special tokens cannot be added to a SentencePiece model with tokens '
                           f'of its own after the model, such as {self.pieces[-1]}')
    proto = self._proto()
    for name in names:
      proto.pieces.add(piece=name, score=0, type=proto.SentencePiece.CONTROL)
    proto.trainer_spec.vocab_size = len(proto.pieces)
    return SentencePiece(proto.SerializeToString(), self.text)

  def unigram_model(self) -> tuple[list[str], list[float], bytes]:
    """Return the model's tokens, scores and precompiled character map, for other libraries.

    Raises:
      TokenizerError: the model is not a unigram model.
    """
    proto = self._proto()
    trainer = proto.trainer_spec
    if trainer.model_type != trainer.UNIGRAM or trainer.byte_fallback:
      raise TokenizerError('only unigram models of SentencePiece without bytes can be written for '
                           'other libraries')
    tokens = [piece.piece for piece in proto.pieces]
    scores = [piece.score for piece in proto.pieces]
    return tokens, scores, proto.normalizer_spec.precompiled_charsmap

  def merges(self) -> list[tuple[str, str]]:
    """Return the pairs that BPE merges, best first, for other libraries.

    Raises:
      TokenizerError: the model is not BPE with byte fallback on unnormalized text (LLaMA's).
    """
    proto = self._proto()
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    if (trainer.model_type != trainer.BPE or not trainer.byte_fallback
        or normalizer.precompiled_charsmap or normalizer.remove_extra_whitespaces
        or not normalizer.add_dummy_prefix):
      raise TokenizerError('only BPE models of SentencePiece with bytes, a space in front, and '
                           'text that is otherwise left as it is can be written for other '
                           'libraries')
    scores = {piece.piece: piece.score for piece in proto.pieces if piece.type == piece.NORMAL}
    ids = {token: i for i, token in enumerate(self.pieces)}
    pairs = []
    for token in scores:
      for cut in range(1, len(token)):
        left, right = token[:cut], token[cut:]
        if left in scores and right in scores:
          pairs.append((left, right))
    return sorted(pairs, key=lambda pair: (-scores[''.join(pair)], ids[pair[0]], ids[pair[1]]))

  def _proto(self) -> Any:
    return load_protobuf().ModelProto.FromString(self.model)

  def _make_vocab(self) -> Vocab:
    ids = {token: i for i, token in enumerate(self.pieces)}

    def find(*names: str) -> int:
      return next((ids[name] for name in names if name in ids), -1)

    blanks = {role: ids[name] for name, role in (GLM_TOKENS | FIM_NAMES).items() if name in ids}
    sentinels = len([token for token in self.pieces if SENTINEL_TOKEN.match(token)])
    return Vocab(
        size=len(ids), pad=find('<pad>', '[PAD]'), unk=self._processor.unk_id(),
        cls=find('[CLS]', '<cls>'), sep=find('[SEP]', '<sep>'), mask=find('[MASK]', '<mask>'),
        bos=self._processor.bos_id(), eos=self._processor.eos_id(),
        # mT5 has sentinels in the model, with a space in front.
        sentinel=find('<extra_id_0>', '▁<extra_id_0>'),
        sentinels=sentinels or DEFAULT_SENTINELS, **blanks)

  def _files(self) -> dict[str, bytes]:
    config: dict[str, Any] = {'kind': self.kind}
    for role in ('pad', 'unk', 'cls', 'sep', 'mask', 'bos', 'eos'):
      if (i := getattr(self.vocab, role)) >= 0:
        config[f'{role}_token'] = self.pieces[i]
    if self.layout == 'glm':
      config['additional_special_tokens'] = list(GLM_TOKENS)
    if self.sentinels:
      config['additional_special_tokens'] = [self.pieces[i] for i in self.sentinels]
    if len(self.sentinels) not in (0, DEFAULT_SENTINELS):
      config['extra_ids'] = len(self.sentinels)
    if self.text:  # by the names that transformers has for it
      config['do_lower_case'] = self.text.lowercase
      config['keep_accents'] = not self.text.strip_accents
    names = {'deberta': 'spm.model', 'llama': 'tokenizer.model'}
    name = names.get(self.layout, 'spiece.model')
    return {name: self.model, CONFIG_FILE: config_bytes(config)}

  def _normalize(self, text: str) -> str:
    return self._normalizer.normalize_str(text) if self._normalizer else text

  def _byte_characters(self, text: str) -> np.ndarray:
    """Return the character of `text` that each byte that SentencePiece sees comes from.

    One entry per byte, and one for the end.
    """
    parts = NORMALIZED_UNITS.findall(text)
    sizes = [len(self._normalize(part).encode()) for part in parts]
    starts = np.cumsum([0] + list(map(len, parts)))
    return np.append(np.repeat(starts[:-1], sizes), starts[-1])

  def _starts_word(self, i: int) -> bool:
    """Return whether a token starts a word.

    '▁' tokens, special tokens, punctuation, and tokens that begin with a letter of a script without
    spaces do. The last two because text without spaces would otherwise be one word. ALBERT has its
    own rule, `starts_albert_word`.
    """
    token = self.pieces[i]
    if self._processor.is_byte(i):
      return False
    if (self._processor.is_control(i) or self._processor.is_unknown(i)
        or i in self.vocab.specials):
      return True
    if self.layout == 'albert':
      return starts_albert_word(token)
    return token.startswith('▁') or unicode_words.starts_word(token)

  @functools.cached_property
  def _special_pattern(self) -> re.Pattern:
    return re.compile('(' + '|'.join(re.escape(name) for name in self._special_ids) + ')')

  @functools.cached_property
  def _special_ids(self) -> dict[str, int]:
    """Ids of special tokens by their spelling in text."""
    return {token.removeprefix('▁'): i
            for i, token in enumerate(self.pieces) if self.is_special(i)}


def parse_token(token: str) -> bytes:
  r"""Return the text of a token in UTF-8, or its byte.

  >>> parse_token('▁the'), parse_token('<0x0A>')
  (b' the', b'\n')
  """
  if BYTE_TOKEN.fullmatch(token):
    return bytes.fromhex(token[3:5])
  return token.replace('▁', ' ').encode()


def starts_albert_word(token: str) -> bool:
  """Return whether `token` starts a word of ALBERT's n-grams.

  google-research/albert, create_pretraining_data.py, _is_start_piece_sp, whose punctuation lacks '
  = and >. Any token with other characters than English letters and punctuation starts a word.
  """
  return (token.startswith(('▁', '<')) or token in ALBERT_PUNCTUATION
          or not ALBERT_INNER_CHARACTERS.issuperset(token.lower()))


NORMALIZED_UNITS = re.compile("``|''|.", re.DOTALL)  # what `AlbertNormalization` normalizes as one
BYTE_TOKEN = re.compile('<0x[0-9A-F]{2}>')
SENTINEL_TOKEN = re.compile(r'^▁?<extra_id_\d+>$')
WORD = re.compile('(?<=▁)' + unicode_words.letters_pattern(without=''))
SCORE_MARGIN = 0.1  # of a new token above its best segmentation, much more than rounding errors
ALBERT_PUNCTUATION = frozenset('!"#$%&()*+,-./:;?@[\\]^_`{|}~')
ALBERT_INNER_CHARACTERS = ALBERT_PUNCTUATION | frozenset(string.ascii_lowercase)
