"""Tokenizer files that transformers reads and writes."""
from collections.abc import Sequence
import json
import pathlib
from typing import Any

from etils import epath
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from plm_jax.conversion.files import read_json, write_json
from plm_jax.conversion.rules import ConvertError
from plm_jax.conversion.unigram import from_unigram
from plm_jax.errors import understood
from plm_jax.tokenizers import (
    BertText,
    ByteBPE,
    LanguagePieces,
    SentencePiece,
    Tokenizer,
    WordBPE,
    WordPiece,
    languages,
    raw_bytes,
)
from plm_jax.tokenizers import load as load_ours
from plm_jax.tokenizers.byte_bpe import read_added, with_specials
from plm_jax.tokenizers.contract import BLANKS, CONFIG, brief, check_ids, option, read_config
from plm_jax.tokenizers.wordpiece import SPECIALS, assemble

FAST = 'tokenizer.json'
Around = tuple[Sequence[int], Sequence[int], Sequence[int]]


def load(folder: pathlib.Path) -> Tokenizer | None:
  """Loads the tokenizer of a checkpoint's folder, None where there is none.

  Raises ConvertError or TokenizerError for one that would give other ids here than there.
  """
  with understood(folder, "the folder of a checkpoint with its tokenizer's files", ConvertError):
    return found(folder)


def found(folder: pathlib.Path) -> Tokenizer | None:
  """Loads the tokenizer of a folder by the files it has, None where they are none or of another family's ids."""
  pieces = epath.Path(folder) / languages.FILE
  if pieces.exists() and languages.layout_of(pieces) is None:
    return None  # CamemBERT's
  if str(read_config(epath.Path(folder)).get('tokenizer_class')).startswith('MBart50'):
    return None  # of translators, whose texts begin with their language
  # A model is what a tokenizer.json beside it was made from.
  if list(folder.glob('*.model')) or raw_bytes.names_byt5(epath.Path(folder) / CONFIG):
    return load_ours(folder)
  if (folder / FAST).exists():
    return from_fast(folder)
  if (folder / 'vocab.txt').exists() or (folder / 'vocab.json').exists():
    return load_ours(folder)
  return None


def save(folder: pathlib.Path, tokenizer: Tokenizer, max_length: int) -> None:
  """Writes our files, and those that make transformers' AutoTokenizer give the same ids."""
  longest = {'model_max_length': max_length} if max_length else {}
  tokenizer.save(folder)
  content = {}
  if isinstance(tokenizer, (SentencePiece, LanguagePieces)):
    # The class that takes a tokenizer.json as it is; mBART's own leaves characters as they are (transformers 5).
    content = {'tokenizer_class': 'PreTrainedTokenizerFast'}
  if isinstance(tokenizer, SentencePiece) and tokenizer.layout == 'xlnet':
    content = {'tokenizer_class': 'XLNetTokenizer'}
  write_json(folder / CONFIG, {**read_json(folder / CONFIG), **content, **longest})
  write = {WordPiece: write_fast, ByteBPE: write_bytes, WordBPE: write_words, SentencePiece: write_pieces,
           LanguagePieces: write_unigram}.get(type(tokenizer))
  if write and content.get('tokenizer_class') != 'XLNetTokenizer':
    write(folder / FAST, tokenizer)


def surround(folder: pathlib.Path, tokenizer: Tokenizer, around: Around, types: bool = True) -> None:
  """Makes transformers put ids around texts as a task's rows have them, in the files that `save` has written: those
  before the first, between two, behind the last. Without a tokenizer.json nothing changes.

  types: whether the model tells two texts apart.
  """
  if not (folder / FAST).exists() or max(max(ids, default=0) for ids in around) >= len(tokenizer.pieces):
    return
  before, between, behind = ([tokenizer.pieces[i] for i in ids] for ids in around)
  def side(names, text):
    return [f'{name}:{text}' for name in names]
  fast = tokenizers.Tokenizer.from_file(str(folder / FAST))
  fast.post_processor = processors.TemplateProcessing(
      single=[*side(before, 0), '$A:0', *side(behind, 0)],
      pair=[*side(before, 0), '$A:0', *side(between, 0), *side(['$B', *behind], int(types))],
      special_tokens=[(tokenizer.pieces[i], i) for i in sorted({i for ids in around for i in ids})])
  (folder / FAST).write_text(json.dumps(json.loads(fast.to_str()), ensure_ascii=False) + '\n')
  inputs = {} if types else {'model_input_names': ['input_ids', 'attention_mask']}
  write_json(folder / CONFIG, {
      **read_json(folder / CONFIG), 'tokenizer_class': 'PreTrainedTokenizerFast', **inputs})


def from_fast(folder: pathlib.Path) -> Tokenizer:
  """Makes the tokenizer of a `tokenizer.json` of the kind that BertTokenizer writes, whose normalisation may be said in
  the config beside it, of byte-level BPE, or of a unigram model."""
  path = folder / FAST
  with understood(path, 'the tokenizer.json of a WordPiece, BPE or unigram model', ConvertError):
    content = read_json(path)
    kind = (content.get('model') or {}).get('type')
    if kind == 'BPE':
      return load_ours(path)
    return from_unigram(path, content) if kind == 'Unigram' else from_wordpiece(path, content)


def from_wordpiece(path: pathlib.Path, content: dict[str, Any]) -> WordPiece:
  """Makes the tokenizer of a tokenizer.json, whose content it takes. Raises ConvertError for one that BertTokenizer
  would not write."""
  model, normalizer, words = (content.get(key) or {} for key in ('model', 'normalizer', 'pre_tokenizer'))
  expect(path, 'model.type', model.get('type'), 'WordPiece')
  expect(path, 'model.unk_token', model.get('unk_token'), '[UNK]')
  expect(path, 'model.continuing_subword_prefix', model.get('continuing_subword_prefix'), '##')
  expect(path, 'model.max_input_chars_per_word', model.get('max_input_chars_per_word'), 100)
  expect(path, 'normalizer.type', normalizer.get('type'), 'BertNormalizer')
  expect(path, 'normalizer.clean_text', normalizer.get('clean_text'), True)
  expect(path, 'pre_tokenizer.type', words.get('type'), 'BertPreTokenizer')
  ids = model.get('vocab') or {}
  check_ids(ids)
  pieces = sorted(ids, key=ids.__getitem__)
  extra = [name for name in read_added(content) if name not in (*SPECIALS, *BLANKS)]
  expect(path, 'added_tokens besides the special ones', extra, [])
  # transformers makes the normaliser anew from the config beside it, where that says how.
  beside, strip = read_config(epath.Path(path.parent)), normalizer.get('strip_accents')
  strip = beside.get('strip_accents', strip)
  return WordPiece(pieces, BertText(
      option(beside, 'do_lower_case', option(normalizer, 'lowercase', True)),
      None if strip is None else option({'strip_accents': strip}, 'strip_accents', False),
      option(beside, 'tokenize_chinese_chars', option(normalizer, 'handle_chinese_chars', True))))


def write_fast(path: pathlib.Path, tokenizer: WordPiece) -> None:
  """Writes the same tokenizer, with BERT's template for one text and for a pair."""
  fast = assemble({piece: number for number, piece in enumerate(tokenizer.pieces)}, tokenizer.text)
  fast.add_special_tokens([tokenizers.AddedToken(name, normalized=False, special=True) for name in tokenizer.specials])
  vocab = tokenizer.vocab
  fast.post_processor = processors.TemplateProcessing(
      single='[CLS]:0 $A:0 [SEP]:0', pair='[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1',
      special_tokens=[('[CLS]', vocab.cls), ('[SEP]', vocab.sep)])
  path.write_text(json.dumps(json.loads(fast.to_str()), ensure_ascii=False) + '\n')


def write_words(path: pathlib.Path, tokenizer: WordBPE) -> None:
  """Writes the same tokenizer, without a template: GPT has none."""
  path.write_text(json.dumps(json.loads(tokenizer.assemble().to_str()), ensure_ascii=False) + '\n')


def write_bytes(path: pathlib.Path, tokenizer: ByteBPE) -> None:
  """Writes the same tokenizer, with RoBERTa's template, two separators between a pair; GPT-2 has none, and LLaMA 3 a
  start."""
  fast = with_specials(tokenizer.assemble(), tokenizer)
  fast.decoder = decoders.ByteLevel()
  cls, sep = (tokenizer.names.get(role) for role in ('cls', 'sep'))
  if cls and sep:
    fast.post_processor = processors.RobertaProcessing(
        (sep, tokenizer.vocab.sep), (cls, tokenizer.vocab.cls), trim_offsets=True, add_prefix_space=tokenizer.prefix)
  elif tokenizer.split and (start := tokenizer.names.get('bos')):
    fast.post_processor = processors.TemplateProcessing(
        single=f'{start}:0 $A:0', pair=f'{start}:0 $A:0 {start}:1 $B:1',
        special_tokens=[(start, tokenizer.vocab.bos)])
  else:
    fast.post_processor = processors.ByteLevel(trim_offsets=False)
  path.write_text(json.dumps(json.loads(fast.to_str()), ensure_ascii=False) + '\n')


def write_pieces(path: pathlib.Path, tokenizer: SentencePiece) -> None:
  """Writes a tokenizer.json for a model of SentencePiece, LLaMA's or unigram."""
  (write_llama if tokenizer.layout == 'llama' else write_unigram)(path, tokenizer)


def write_unigram(path: pathlib.Path, tokenizer: SentencePiece | LanguagePieces) -> None:
  """Writes the same tokenizer, with BERT's template for one text and for a pair, T5's, mBART's or RoBERTa's; of unigram
  models only."""
  pieces, scores, charsmap = tokenizer.unigram()
  fast = tokenizers.Tokenizer(models.Unigram(list(zip(pieces, scores, strict=True)), tokenizer.vocab.unk, False))
  # The special pieces are no text here, as they are none there.
  steps: list[Any] = [normalizers.Precompiled(charsmap)] if charsmap else []
  steps += [normalizers.Strip(), normalizers.Replace(tokenizers.Regex(' {2,}'), ' ')]
  if isinstance(tokenizer, LanguagePieces):
    before, special = [], tokenizer.specials
    template = naming(tokenizer) if tokenizer.source else doubled(tokenizer)
  else:
    before = [tokenizer.text.normalizer()] if tokenizer.text else []
    special = sorted({*tokenizer.vocab.specials, *tokenizer.sentinels})
    template = ending(tokenizer) if tokenizer.layout == 't5' else bracketing(tokenizer)
  fast.normalizer = normalizers.Sequence([*before, *steps])
  fast.pre_tokenizer, fast.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
  fast.add_special_tokens([
      tokenizers.AddedToken(tokenizer.pieces[i], normalized=False, special=True) for i in special])
  fast.post_processor = template
  path.write_text(json.dumps(json.loads(fast.to_str()), ensure_ascii=False) + '\n')


def ending(tokenizer: SentencePiece) -> processors.TemplateProcessing:
  """Makes the template of an end behind each text."""
  end = tokenizer.pieces[tokenizer.vocab.eos]
  return processors.TemplateProcessing(
      single=f'$A:0 {end}:0', pair=f'$A:0 {end}:0 $B:0 {end}:0', special_tokens=[(end, tokenizer.vocab.eos)])


def naming(tokenizer: LanguagePieces) -> processors.TemplateProcessing:
  """Makes the template of the end and the language behind all."""
  end, language = (tokenizer.pieces[i] for i in (tokenizer.vocab.eos, tokenizer.vocab.source))
  return processors.TemplateProcessing(
      single=f'$A:0 {end}:0 {language}:0', pair=f'$A:0 $B:0 {end}:0 {language}:0',
      special_tokens=[(end, tokenizer.vocab.eos), (language, tokenizer.vocab.source)])


def doubled(tokenizer: LanguagePieces) -> processors.TemplateProcessing:
  """Makes RoBERTa's template: <s> text </s>, and </s> text </s> behind it."""
  return processors.TemplateProcessing(
      single='<s>:0 $A:0 </s>:0', pair='<s>:0 $A:0 </s>:0 </s>:0 $B:0 </s>:0',
      special_tokens=[('<s>', tokenizer.vocab.cls), ('</s>', tokenizer.vocab.sep)])


def bracketing(tokenizer: SentencePiece) -> processors.TemplateProcessing:
  """Makes BERT's template: [CLS] text [SEP], and a second text with its [SEP]."""
  cls, sep = (tokenizer.pieces[i] for i in (tokenizer.vocab.cls, tokenizer.vocab.sep))
  return processors.TemplateProcessing(
      single=f'{cls}:0 $A:0 {sep}:0', pair=f'{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1',
      special_tokens=[(cls, tokenizer.vocab.cls), (sep, tokenizer.vocab.sep)])


def write_llama(path: pathlib.Path, tokenizer: SentencePiece) -> None:
  """Writes the same tokenizer, which begins a text with <s>; of BPE models with bytes only."""
  merges = tokenizer.merges()
  fast = tokenizers.Tokenizer(models.BPE(
      {piece: i for i, piece in enumerate(tokenizer.pieces)}, merges, unk_token=tokenizer.pieces[tokenizer.vocab.unk],
      fuse_unk=True, byte_fallback=True))
  # As in the released files; a Metaspace in their place would take a text's own first space for the one it adds.
  fast.normalizer = normalizers.Sequence([normalizers.Prepend('▁'), normalizers.Replace(' ', '▁')])
  fast.decoder = decoders.Sequence([
      decoders.Replace('▁', ' '), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(' ', 1, 0)])
  special = [tokenizer.pieces[i] for i in tokenizer.vocab.specials]
  fast.add_special_tokens([tokenizers.AddedToken(name, normalized=False, special=True) for name in special])
  start = tokenizer.pieces[tokenizer.vocab.bos]
  fast.post_processor = processors.TemplateProcessing(
      single=f'{start}:0 $A:0', pair=f'{start}:0 $A:0 {start}:1 $B:1', special_tokens=[(start, tokenizer.vocab.bos)])
  path.write_text(json.dumps(json.loads(fast.to_str()), ensure_ascii=False) + '\n')


def expect(path: pathlib.Path, what: str, found: Any, known: Any) -> None:
  """Raises ConvertError unless what a tokenizer.json does is what is known here."""
  if found != known:
    raise ConvertError(f'{path}: {what} is {brief(found)}, known at {str(known)[:50]} only')
