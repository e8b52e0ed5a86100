"""Tokenizer files of transformers: load those of a checkpoint, and write those of an export."""
from collections.abc import Mapping, Sequence
import json
import pathlib
from types import MappingProxyType
from typing import Any

from etils import epath
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from plm_jax.conversion.files import read_json, write_json
from plm_jax.conversion.generation import TextFrame
from plm_jax.errors import parse_errors_as
from plm_jax.models.rules import ConvertError
from plm_jax.tokenizers import (
  ByteBPE,
  ByteTokenizer,
  FairseqSentencePiece,
  SentencePiece,
  Tokenizer,
  WordBPE,
  WordPiece,
  fairseq_sentencepiece,
  is_configured,
)
from plm_jax.tokenizers import load as load_ours
from plm_jax.tokenizers.byte_bpe import ALPHABET, add_special_tokens
from plm_jax.tokenizers.contract import CONFIG_FILE, read_config
from plm_jax.tokenizers.huggingface import read_tokenizer_class
from plm_jax.tokenizers.tokenizer_json import NON_ASCII_BORDERS, OUTER_SPACES, uncomposed_pattern
from plm_jax.tokenizers.wordpiece import CHINESE, CHINESE_SPACE, SPACE_IN_CHINESE, assemble

TOKENIZER_JSON = 'tokenizer.json'
INPUT_NAMES = ['input_ids', 'token_type_ids', 'attention_mask']
UNTYPED_INPUT_NAMES = ['input_ids', 'attention_mask']
SEPARATOR = '\x10'
"""a control character, which no grapheme cluster extends over"""
BARRIER = '\ufdef'
"""a noncharacter, over which nothing is composed, and which no map contains"""


def load(folder: pathlib.Path) -> Tokenizer | None:
  """Load the tokenizer of a checkpoint's folder, None where there is none.

  Raises ConvertError or TokenizerError for one that would give other ids here than there.
  """
  about = "the folder of a checkpoint with its tokenizer's files"
  with parse_errors_as(folder, about, ConvertError):
    return load_known_files(folder)


def load_known_files(folder: pathlib.Path) -> Tokenizer | None:
  """Load the tokenizer of a folder by the files that it has.

  None where there are none, or where they give ids of another family.
  """
  pieces = epath.Path(folder) / fairseq_sentencepiece.MODEL_FILE
  if pieces.exists() and fairseq_sentencepiece.read_layout(pieces) is None and not (
      folder / TOKENIZER_JSON).exists():
    return None  # CamemBERT's
  if str(read_config(epath.Path(folder)).get('tokenizer_class')).startswith('MBart50'):
    return None  # of translators, whose texts begin with their language
  if read_tokenizer_class(epath.Path(folder)) == 'RoFormerTokenizer':
    return None  # which splits text into words by rjieba
  names = (TOKENIZER_JSON, 'vocab.txt', 'vocab.json')
  if any((folder / name).exists() for name in names) or list(folder.glob('*.model')):
    return load_ours(folder)
  return load_ours(folder) if is_configured(epath.Path(folder)) else None


def encode_with_special_tokens(folder: epath.PathLike, text: str) -> list[int] | None:
  """Return the ids of a text by a folder's tokenizer.json; None: there is no such file."""
  path = pathlib.Path(folder) / TOKENIZER_JSON
  if not path.exists():
    return None
  fast = tokenizers.Tokenizer.from_file(str(path))
  fast.no_padding()
  fast.no_truncation()
  return fast.encode(text).ids


def save(
    folder: pathlib.Path, tokenizer: Tokenizer, max_length: int, frame: TextFrame | None = None,
    types: bool = True, roles: Mapping[str, int | None] = MappingProxyType({}),
) -> None:
  """Write our files, and those with which transformers' AutoTokenizer gives the same ids.

  Args:
    folder: an existing folder.
    tokenizer: to be written.
    max_length: limit of the model's input in tokens; 0: none.
    frame: special tokens around texts, as the model's sequences have them; None: those that
      transformers' class for the tokenizer adds.
    types: whether the model has segment types that distinguish two texts.
    roles: ids of special tokens, as config.json names them, such as `eos_token_id`.
  """
  tokenizer.save(folder)

  # tokenizer_config.json.
  contents = read_json(folder / CONFIG_FILE)
  if isinstance(tokenizer, (SentencePiece, FairseqSentencePiece)):
    # The class that reads a tokenizer.json as it is; mBART's own leaves characters as they are
    # (transformers 5).
    contents['tokenizer_class'] = 'PreTrainedTokenizerFast'
    contents['model_input_names'] = INPUT_NAMES if types else UNTYPED_INPUT_NAMES
  if isinstance(tokenizer, SentencePiece) and tokenizer.layout == 'xlnet':
    contents |= {'padding_side': 'left', 'pad_token_type_id': 3}
  for role, number in roles.items():
    if number is not None and role in ('pad_token_id', 'bos_token_id', 'eos_token_id'):
      contents[role.removesuffix('_id')] = tokenizer.pieces[number]
  if max_length:
    contents['model_max_length'] = max_length
  write_json(folder / CONFIG_FILE, contents)

  # tokenizer.json.
  writers: dict[type, Any] = {
      WordPiece: write_wordpiece, ByteBPE: write_byte_bpe, WordBPE: write_word_bpe,
      SentencePiece: write_sentencepiece, FairseqSentencePiece: write_unigram}
  write: Any = writers.get(type(tokenizer))
  # transformers has a class for ByT5, whose texts end with </s> and have nothing in front.
  if isinstance(tokenizer, ByteTokenizer) and frame and frame[0]:
    write = write_raw_bytes
  if write:
    write(folder / TOKENIZER_JSON, tokenizer)
  if frame:
    set_text_frame(folder, tokenizer, frame, types)


def set_text_frame(
    folder: pathlib.Path, tokenizer: Tokenizer, frame: TextFrame, types: bool = True,
) -> None:
  """Make transformers put special tokens around texts as the model's sequences have them.

  It changes the files that `save` has written. Without a tokenizer.json nothing changes.

  Args:
    folder: with the files.
    tokenizer: that the files are of.
    frame: ids before the first text, between two, and after the last.
    types: whether the model has segment types that distinguish two texts.
  """
  path = folder / TOKENIZER_JSON
  ids = sorted(set().union(*frame))
  if not path.exists() or max(ids, default=0) >= len(tokenizer.pieces):
    return
  def name_tokens(part, segment):
    # XLNet's <cls>, after all texts, has a type of its own.
    last = 2 if types and part is after else segment
    return [f'{tokenizer.pieces[i]}:{last if i == tokenizer.vocab.cls else segment}' for i in part]
  before, between, after = frame
  second = int(types)
  first_text = [*name_tokens(before, 0), '$A:0']
  single = first_text + name_tokens(after, 0)
  pair = first_text + name_tokens(between, 0) + [f'$B:{second}'] + name_tokens(after, second)
  fast = tokenizers.Tokenizer.from_file(str(path))
  fast.post_processor = processors.TemplateProcessing(
      single=single, pair=pair, special_tokens=[(tokenizer.pieces[i], i) for i in ids])
  write_tokenizer(path, fast)
  write_json(folder / CONFIG_FILE, {
      **read_json(folder / CONFIG_FILE), 'tokenizer_class': 'PreTrainedTokenizerFast',
      'model_input_names': INPUT_NAMES if types else UNTYPED_INPUT_NAMES})


def write_tokenizer(path: pathlib.Path, fast: tokenizers.Tokenizer) -> None:
  """Write a tokenizer.json with characters of all scripts as they are."""
  path.write_text(json.dumps(json.loads(fast.to_str()), ensure_ascii=False) + '\n')


def register_special_tokens(fast: tokenizers.Tokenizer, names: Sequence[str]) -> None:
  """Add special tokens, which are found in texts before they are normalized."""
  fast.add_special_tokens(
      [tokenizers.AddedToken(name, normalized=False, special=True) for name in names])


def write_wordpiece(path: pathlib.Path, tokenizer: WordPiece) -> None:
  """Write a WordPiece tokenizer with BERT's template: [CLS] text [SEP], text [SEP]."""
  ids = {piece: number for number, piece in enumerate(tokenizer.pieces)}
  fast = assemble(ids, tokenizer.text)
  register_special_tokens(fast, tokenizer.specials)
  chinese = sum(bool(CHINESE.search(piece)) for piece in tokenizer.pieces)
  if chinese > len(tokenizer.pieces) / 2:
    # Texts of a Chinese vocabulary are decoded as `wordpiece.remove_chinese_spaces` does it.
    fast.decoder = decoders.Sequence([
        fast.decoder, decoders.Fuse(),
        decoders.Replace(tokenizers.Regex(CHINESE_SPACE.pattern), ''),
        decoders.Replace(tokenizers.Regex(SPACE_IN_CHINESE.pattern), '')])
  vocab = tokenizer.vocab
  fast.post_processor = processors.TemplateProcessing(
      single='[CLS]:0 $A:0 [SEP]:0', pair='[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1',
      special_tokens=[('[CLS]', vocab.cls), ('[SEP]', vocab.sep)])
  write_tokenizer(path, fast)


def write_word_bpe(path: pathlib.Path, tokenizer: WordBPE) -> None:
  """Write GPT's word-level BPE, without a template, because GPT has none."""
  write_tokenizer(path, tokenizer.assemble())


def write_byte_bpe(path: pathlib.Path, tokenizer: ByteBPE) -> None:
  """Write a byte-level BPE tokenizer.

  Its template is RoBERTa's, with two separators between two texts, LLaMA 3's, with a start, or
  none, as GPT-2's.
  """
  fast = add_special_tokens(tokenizer.assemble(), tokenizer)
  vocab = tokenizer.vocab
  cls, sep = tokenizer.names.get('cls'), tokenizer.names.get('sep')
  start = tokenizer.names.get('bos')
  if cls and sep:
    fast.post_processor = processors.RobertaProcessing(
        (sep, vocab.sep), (cls, vocab.cls), trim_offsets=True, add_prefix_space=tokenizer.prefix)
  elif tokenizer.split and start:
    fast.post_processor = processors.TemplateProcessing(
        single=f'{start}:0 $A:0', pair=f'{start}:0 $A:0 {start}:1 $B:1',
        special_tokens=[(start, vocab.bos)])
  else:
    fast.post_processor = processors.ByteLevel(trim_offsets=False)
  write_tokenizer(path, fast)


def write_raw_bytes(path: pathlib.Path, tokenizer: ByteTokenizer) -> None:
  """Write a tokenizer of bytes as byte-level BPE without merges, without a template."""
  first = tokenizer.vocab.unk + 1
  letters = {byte: letter for letter, byte in ALPHABET.items()}
  ids, specials = {}, []
  for i, piece in enumerate(tokenizer.pieces):
    if first <= i < first + 256:
      ids[letters[i - first]] = i
    else:
      ids[piece] = i
      specials.append(piece)
  fast = tokenizers.Tokenizer(models.BPE(ids, []))
  fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
  fast.decoder = decoders.ByteLevel()
  register_special_tokens(fast, specials)
  write_tokenizer(path, fast)


def write_sentencepiece(path: pathlib.Path, tokenizer: SentencePiece) -> None:
  """Write a SentencePiece model: LLaMA's BPE, or a unigram model."""
  if tokenizer.layout == 'llama':
    write_llama(path, tokenizer)
  else:
    write_unigram(path, tokenizer)


def write_unigram(path: pathlib.Path, tokenizer: SentencePiece | FairseqSentencePiece) -> None:
  """Write a unigram model of SentencePiece with BERT's, T5's, mBART's or RoBERTa's template."""
  pieces, scores, charsmap = tokenizer.unigram_model()
  vocab = list(zip(pieces, scores, strict=True))
  fast = tokenizers.Tokenizer(models.Unigram(vocab, tokenizer.vocab.unk, False))
  # Special tokens do not match text here, as they do not in SentencePiece.
  steps = list(sentencepiece_normalizers(charsmap))
  if isinstance(tokenizer, FairseqSentencePiece):
    special = tokenizer.specials
    make_template: Any = mbart_template if tokenizer.source else roberta_template
  else:
    if tokenizer.text:
      steps.insert(0, tokenizer.text.build_normalizer())
    special = [i for i in range(len(tokenizer.pieces)) if tokenizer.is_special(i)]
    make_template = t5_template if tokenizer.layout == 't5' else bert_template
  fast.normalizer = normalizers.Sequence(steps)
  fast.pre_tokenizer, fast.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
  register_special_tokens(fast, [tokenizer.pieces[i] for i in special])
  fast.post_processor = make_template(tokenizer)
  write_tokenizer(path, fast)


def sentencepiece_normalizers(charsmap: bytes) -> Sequence[normalizers.Normalizer]:
  """Make the normalization of SentencePiece: its map of characters, then spaces.

  The library maps grapheme clusters. Of a short one it drops everything after the first character
  that is in the map, and in a long one it maps no sequence. So a control character separates the
  characters, they are mapped one by one, and are composed afterwards where the map composes.

  The map leaves two kinds of sequences uncomposed: a Hangul syllable followed by a consonant, and a
  mark that follows a character which stands for several.

  charsmap: the model's precompiled map; b'': none.
  """
  spaces = [normalizers.Replace(tokenizers.Regex(OUTER_SPACES), ''),
            normalizers.Replace(tokenizers.Regex(' {2,}'), ' ')]
  if not charsmap:
    return spaces
  mapped = normalizers.Precompiled(charsmap)
  mapping = [normalizers.Replace(tokenizers.Regex(NON_ASCII_BORDERS), SEPARATOR), mapped,
             normalizers.Replace(SEPARATOR, '')]
  if mapped.normalize_str('e\u0301') == '\u00e9':  # the map composes
    mapping = [
        normalizers.Replace(tokenizers.Regex(uncomposed_pattern()), BARRIER), *mapping,
        normalizers.NFC(), normalizers.Replace(BARRIER, '')]
  return mapping + spaces


def t5_template(tokenizer: SentencePiece) -> processors.TemplateProcessing:
  """Make T5's template: text </s>, text </s>."""
  end = tokenizer.pieces[tokenizer.vocab.eos]
  return processors.TemplateProcessing(
      single=f'$A:0 {end}:0', pair=f'$A:0 {end}:0 $B:0 {end}:0',
      special_tokens=[(end, tokenizer.vocab.eos)])


def mbart_template(tokenizer: FairseqSentencePiece) -> processors.TemplateProcessing:
  """Make mBART's template: all texts, </s>, language."""
  vocab = tokenizer.vocab
  end, language = tokenizer.pieces[vocab.eos], tokenizer.pieces[vocab.source]
  return processors.TemplateProcessing(
      single=f'$A:0 {end}:0 {language}:0', pair=f'$A:0 $B:0 {end}:0 {language}:0',
      special_tokens=[(end, vocab.eos), (language, vocab.source)])


def roberta_template(tokenizer: FairseqSentencePiece) -> processors.TemplateProcessing:
  """Make RoBERTa's template: <s> text </s>, </s> text </s>."""
  return processors.TemplateProcessing(
      single='<s>:0 $A:0 </s>:0', pair='<s>:0 $A:0 </s>:0 </s>:0 $B:0 </s>:0',
      special_tokens=[('<s>', tokenizer.vocab.cls), ('</s>', tokenizer.vocab.sep)])


def bert_template(tokenizer: SentencePiece) -> processors.TemplateProcessing:
  """Make BERT's template: [CLS] text [SEP], text [SEP]; XLNet has its <cls> after all texts."""
  vocab = tokenizer.vocab
  cls, sep = tokenizer.pieces[vocab.cls], tokenizer.pieces[vocab.sep]
  if tokenizer.layout == 'xlnet':
    single, pair = f'$A:0 {sep}:0 {cls}:2', f'$A:0 {sep}:0 $B:1 {sep}:1 {cls}:2'
  else:
    single, pair = f'{cls}:0 $A:0 {sep}:0', f'{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1'
  return processors.TemplateProcessing(
      single=single, pair=pair, special_tokens=[(cls, vocab.cls), (sep, vocab.sep)])


def write_llama(path: pathlib.Path, tokenizer: SentencePiece) -> None:
  """Write LLaMA's SentencePiece BPE with byte fallback; a text begins with <s>."""
  vocab = tokenizer.vocab
  ids = {piece: i for i, piece in enumerate(tokenizer.pieces)}
  fast = tokenizers.Tokenizer(models.BPE(
      ids, tokenizer.merges(), unk_token=tokenizer.pieces[vocab.unk], fuse_unk=True,
      byte_fallback=True))
  # As in the released files; a Metaspace in their place would take a text's own first space for
  # the one that it adds.
  fast.normalizer = normalizers.Sequence([
      normalizers.Prepend('▁'), normalizers.Replace(' ', '▁')])
  fast.decoder = decoders.Sequence([
      decoders.Replace('▁', ' '), decoders.ByteFallback(), decoders.Fuse(),
      decoders.Strip(' ', 1, 0)])
  register_special_tokens(fast, [tokenizer.pieces[i] for i in vocab.specials])
  start = tokenizer.pieces[vocab.bos]
  fast.post_processor = processors.TemplateProcessing(
      single=f'{start}:0 $A:0', pair=f'{start}:0 $A:0 {start}:1 $B:1',
      special_tokens=[(start, vocab.bos)])
  write_tokenizer(path, fast)
