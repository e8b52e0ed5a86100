"""A tokenizer.json is done as it states: the ids are those that the `tokenizers` library gives for
the same file."""
import json
import pickle
import random

import numpy as np
import pytest
import tokenizers as library
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers

from plm_jax import tokenizers
from plm_jax.conversion import ConvertError, tokenizer_files
from plm_jax.tokenizers import ByteBPE, TokenizerError, TokenizerJson, WordPiece, byte_bpe
from plm_jax.tokenizers.contract import Vocab

TEXTS = [*(f'The cat number {i} sat on the mat, and the dogs of street {i * 7} barked.'
           for i in range(60)), *['中文和中国文字。 Größe, été; ёжик ест.'] * 9,
         *['हिन्दी भाषा ภาษาไทย שָׁלוֹם مُحَمَّد 한국어 がギ Việt'] * 9]
WORDS = ' '.join(sorted({*TEXTS})).split()
ODD = [*map(chr, [*range(0x21), 0x7f, 0x85, 0xa0, 0xad, 0x300, 0x301, 0x323, 0x345, 0x11a8, 0x1680,
                  0x180e, 0x2003,
                  0x200b, 0x200c, 0x200d, 0x200e, 0x2028, 0x2029, 0x202e, 0x2060, 0x2581, 0x3000,
                  0x3099, 0xe000,
                  0xfe0f, 0xfeff, 0xfffd, 0xffff, 0x10ffff]),
       '👨\u200d👩\u200d👧', '👍🏽', '🇩🇪', 'e\u0301', 'a\u0323\u0302', '①\u0301', 'ﬁ\u0301', 'ｶﾞ',
       'か\u3099', '한',
       '\u1112\u1161\u11ab', '가\u11a8', 'İ', 'ß', 'ﬃ', '½', 'Ａ１', 'क़', 'น้ำ', 'ש\u05c1', 'ﷺ', '𐀀',
       '豈', '``',
       "''", '...', '٣',
       '[MASK]', '<mask>', '[CLS]', '</s>', '<s>', '<unk>', '<extra_id_0>', '<0x41>', 'en_XX',
       'covid', '[E1]', '▁the']


def adversarial(count: int = 250) -> list[str]:
  draw = random.Random(7)
  shapes = ('{0}{1}{2}', '{0} {1} {2}', '{1}{0}', '{0}{1}', ' {0}  {1}', '{0}\n{1}\t{2}',
            '{1}{3}{0}')
  texts = [draw.choice(shapes).format(draw.choice(WORDS), draw.choice(ODD), draw.choice(WORDS),
                                      draw.choice(ODD))
           for _ in range(count)]
  return ['', ' ', '  ', '\n', ' a', 'a ', ' a  b ', 'a' * 101, '中' * 60, *ODD, *texts]


HARD = adversarial()


def ids_of(file) -> list[list[int]]:
  """Encodes by the library alone."""
  independent = library.Tokenizer.from_file(str(file))
  return [independent.encode(text, add_special_tokens=False).ids for text in HARD]


def differing(tokenizer, ids) -> dict[str, tuple[list[int], list[int]]]:
  found = [tokenizer.encode(text, specials=True) for text in HARD]
  return {text: (some, other) for text, some, other in zip(HARD, found, ids, strict=True) if some
          != other}


def as_transformers(name: str, learned: library.Tokenizer) -> dict[str, str | int | bool]:
  """Gives a tokenizer the steps that a class of transformers 5 makes. Returns what its
  configuration states."""
  def special(*names, **flags):
    learned.add_special_tokens([AddedToken(token, normalized=False, special=True, **flags)
                                for token in names])
  metaspace = pre_tokenizers.Metaspace(prepend_scheme='always')
  split = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace])
  special('<unk>')
  charsmap = tokenizers.train_sentencepiece(TEXTS, 150).unigram_model()[2]
  quotes = [normalizers.Replace('``', '"'), normalizers.Replace("''", '"'), normalizers.NFKD(),
            normalizers.StripAccents()]
  learned.decoder = decoders.Metaspace(prepend_scheme='always')
  learned.pre_tokenizer = split
  if name == 'Albert':
    learned.normalizer = normalizers.Sequence([*quotes, normalizers.Lowercase(),
                                               normalizers.Precompiled(charsmap)])
    special('<pad>', '[CLS]', '[SEP]', '[MASK]')
    return {'cls_token': '[CLS]', 'sep_token': '[SEP]', 'bos_token': '[CLS]',
            'mask_token': '[MASK]',
            'pad_token': '<pad>'}
  if name == 'XLNet':
    learned.normalizer = normalizers.Sequence([*quotes, normalizers.Precompiled(charsmap)])
    special('<s>', '</s>', '<cls>', '<sep>', '<pad>', '<eod>')
    special('<mask>', lstrip=True)
    return {'cls_token': '<cls>', 'sep_token': '<sep>', 'mask_token': '<mask>',
            'pad_token': '<pad>',
            'remove_space': True}
  if name == 'T5':
    learned.normalizer = normalizers.Precompiled(charsmap)
    special('<pad>', '</s>', *(f'<extra_id_{n}>' for n in reversed(range(20))))
    return {'eos_token': '</s>', 'pad_token': '<pad>', 'extra_ids': 20}
  if name == 'DebertaV2':
    learned.normalizer = normalizers.Sequence([
        normalizers.Replace(Regex(r'\s{2,}|[\n\r\t]'), ' '), normalizers.NFC(),
        normalizers.Strip(left=False)])
    learned.pre_tokenizer = pre_tokenizers.Sequence([metaspace])
    special('[PAD]', '[CLS]', '[SEP]', '[MASK]')
    return {'cls_token': '[CLS]', 'sep_token': '[SEP]', 'mask_token': '[MASK]',
            'pad_token': '[PAD]'}
  if name == 'XLMRoberta':
    learned.normalizer = normalizers.Precompiled(charsmap)
    special('<s>', '</s>', '<pad>', '<mask>')
    return {'cls_token': '<s>', 'sep_token': '</s>', 'bos_token': '<s>', 'mask_token': '<mask>',
            'pad_token': '<pad>'}
  learned.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme='first', split=False)
  special('<s>', '</s>')
  return {'bos_token': '<s>', 'eos_token': '</s>'}


def learn(name: str) -> library.Tokenizer:
  """Trains the model of a class."""
  if name == 'Llama':
    learned = library.Tokenizer(models.BPE(fuse_unk=True, byte_fallback=True, unk_token='<unk>'))
    learned.pre_tokenizer = pre_tokenizers.Metaspace()
    names = ['<unk>', '<s>', '</s>', *(f'<0x{n:02X}>' for n in range(256))]
    learned.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=400, special_tokens=names,
                                                           show_progress=False))
    model = json.loads(learned.to_str())['model']
    merges = [tuple(merge) for merge in model['merges']]
    return library.Tokenizer(models.BPE(model['vocab'], merges, fuse_unk=True, byte_fallback=True,
                                        unk_token='<unk>'))
  learned = library.Tokenizer(models.Unigram())
  learned.pre_tokenizer = pre_tokenizers.Metaspace()
  learned.train_from_iterator(TEXTS, trainers.UnigramTrainer(vocab_size=150, unk_token='<unk>',
                                                             show_progress=False,
                                                             special_tokens=['<unk>', '<pad>']))
  model = json.loads(learned.to_str())['model']
  return library.Tokenizer(models.Unigram([tuple(some) for some in model['vocab']], 0, False))


@pytest.mark.parametrize('name', ['Albert', 'XLNet', 'T5', 'DebertaV2', 'XLMRoberta', 'Llama'])
def test_files_of_transformers_have_the_ids_of_the_library(name, tmp_path):
  learned = learn(name)
  config = as_transformers(name, learned)
  learned.add_tokens(['covid', AddedToken('[E1]', single_word=True)])
  learned.save(str(tmp_path / 'tokenizer.json'))
  (tmp_path / 'tokenizer_config.json').write_text(json.dumps(
      {**config, 'tokenizer_class': f'{name}Tokenizer', 'unk_token': '<unk>',
       'backend': 'tokenizers'}))
  for tokenizer in (tokenizers.load(tmp_path), tokenizer_files.load(tmp_path),
                    tokenizers.load(tmp_path / 'tokenizer.json')):
    assert isinstance(tokenizer, TokenizerJson) and tokenizer.kind == 'sentencepiece'
    assert differing(tokenizer, ids_of(tmp_path / 'tokenizer.json')) == {}
  names = {key.removesuffix('_token'): token
           for key, token in config.items() if key.endswith('_token')}
  assert {role: tokenizer.pieces[getattr(tokenizer.vocab, role)] for role in names} == names
  assert tokenizer.pieces[tokenizer.vocab.unk] == '<unk>'
  # Names of special tokens are text by default; other added tokens are always tokens.
  silent = {learned.token_to_id(token) for token in names.values()}
  assert not silent & {i for text in HARD for i in tokenizer.encode(text)}
  assert learned.token_to_id('covid') in tokenizer.encode('the covid')
  if name == 'T5':
    assert (tokenizer.vocab.sentinel,
            tokenizer.vocab.sentinels) == (learned.token_to_id('<extra_id_0>'), 20)
  # It is saved as it is, and its other methods agree.
  tokenizer.save(tmp_path / 'again')
  for other in (tokenizers.load(tmp_path / 'again'), pickle.loads(pickle.dumps(tokenizer))):
    assert (other.hash, other.vocab, other.pieces) == (tokenizer.hash, tokenizer.vocab,
                                                       tokenizer.pieces)
  ids, lengths, places = tokenizer.encode_with_offsets(HARD)
  alone = [tokenizer.encode(text) for text in HARD]
  assert alone == tokenizer.encode_batch(HARD) == [some.tolist()
                                                   for some in np.split(
                                                       ids, np.cumsum(lengths)[:-1])]
  assert len(places) == len(ids) and len(tokenizer.byte_lengths) == len(
      tokenizer.starts_word) == tokenizer.vocab.size
  assert tokenizer.decode(tokenizer.encode('the cat sat')) == 'the cat sat'



QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
        r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def make_small_decoders_tokenizer(name: str) -> tuple[library.Tokenizer, dict[str, str]]:
  """Train a tokenizer with the steps of a released one; return it and its special tokens."""
  bytes_alone = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
  bytes_of_words = pre_tokenizers.ByteLevel(add_prefix_space=False)
  normalizer, splits, names, more = {
      'Qwen3': (normalizers.NFC(), [pre_tokenizers.Split(Regex(QWEN), 'isolated'), bytes_alone],
                ['<|endoftext|>', '<|im_start|>', '<|im_end|>'], ['<think>', '</think>']),
      'GPTNeoX': (normalizers.NFC(), [bytes_of_words], ['<|endoftext|>', '<|padding|>'],
                  [' ' * number for number in range(2, 25)]),
      'SmolLM2': (None, [pre_tokenizers.Digits(individual_digits=True), bytes_of_words],
                  ['<|endoftext|>', '<|im_start|>', '<|im_end|>'], []),
      'Gemma3': (normalizers.Replace(' ', '▁'), [pre_tokenizers.Split(' ', 'merged_with_previous')],
                 ['<pad>', '<eos>', '<bos>', '<unk>', '<mask>'], ['\n\n', '▁▁']),
  }[name]
  gemma = name == 'Gemma3'
  learned = library.Tokenizer(
      models.BPE(fuse_unk=True, byte_fallback=True, unk_token='<unk>') if gemma else models.BPE())
  if normalizer is not None:
    learned.normalizer = normalizer
  learned.pre_tokenizer = (splits[0] if gemma or len(splits) == 1
                           else pre_tokenizers.Sequence(splits))
  learned.decoder = decoders.Sequence([
      decoders.Replace('▁', ' '), decoders.ByteFallback(), decoders.Fuse()
  ]) if gemma else decoders.ByteLevel()
  first = [*names, *(f'<0x{n:02X}>' for n in range(256))] if gemma else names
  learned.train_from_iterator(TEXTS, trainers.BpeTrainer(
      vocab_size=450, special_tokens=first, show_progress=False,
      initial_alphabet=[] if gemma else pre_tokenizers.ByteLevel.alphabet()))
  if gemma:  # bytes are no special tokens of the released file
    model = json.loads(learned.to_str())['model']
    learned.model = models.BPE(
        model['vocab'], [tuple(merge) for merge in model['merges']], fuse_unk=True,
        byte_fallback=True, unk_token='<unk>')
    said = json.loads(learned.to_str())
    said['added_tokens'] = [one for one in said['added_tokens'] if one['content'] in names]
    learned = library.Tokenizer.from_str(json.dumps(said))
  learned.add_tokens([AddedToken(token, normalized=False) for token in more])
  roles = {'bos_token': '<bos>', 'eos_token': '<eos>', 'pad_token': '<pad>', 'unk_token': '<unk>'}
  return learned, roles if gemma else {'eos_token': '<|endoftext|>'}


@pytest.mark.parametrize('name', ['Qwen3', 'GPTNeoX', 'SmolLM2', 'Gemma3'])
def test_tokenizers_of_small_decoders_have_the_ids_of_the_library(name, tmp_path):
  """Normalization, words, digits, added runs of spaces and bytes are those of released files."""
  learned, config = make_small_decoders_tokenizer(name)
  learned.save(str(tmp_path / 'tokenizer.json'))
  (tmp_path / 'tokenizer_config.json').write_text(json.dumps(
      {**config, 'tokenizer_class': 'PreTrainedTokenizerFast'}))
  tokenizer = tokenizers.load(tmp_path)
  assert differing(tokenizer, ids_of(tmp_path / 'tokenizer.json')) == {}
  code = 'def f(x):\n    if x  ==  1234:\n\n\treturn  x\n'
  assert tokenizer.encode(code) == learned.encode(code, add_special_tokens=False).ids
  assert tokenizer.decode(tokenizer.encode(code)) == code
  assert tokenizer.pieces[tokenizer.vocab.eos] == config['eos_token']
  tokenizer.save(tmp_path / 'again')
  assert tokenizers.load(tmp_path / 'again').hash == tokenizer.hash


def test_gemmas_vocabulary_has_the_roles_of_an_encoder_if_it_has_a_mask(tmp_path):
  """As in mmBERT: its ids of special tokens, unchanged spaces, bytes for unknown characters;
  without a mask, a decoder's vocabulary."""
  names = ['<pad>', '<eos>', '<bos>', '<unk>', '<mask>', *(f'<0x{n:02X}>' for n in range(256)), '▁',
           'a', 'b', '▁a']
  theirs = library.Tokenizer(models.BPE(
      {name: i for i, name in enumerate(names)}, [('▁', 'a')], unk_token='<unk>', fuse_unk=True,
      byte_fallback=True))
  theirs.normalizer = normalizers.Replace(' ', '▁')
  theirs.pre_tokenizer = pre_tokenizers.Split(' ', 'merged_with_previous')
  theirs.add_special_tokens(names[:5])
  theirs.save(str(tmp_path / 'tokenizer.json'))
  said = {'bos_token': '<bos>', 'eos_token': '<eos>', 'pad_token': '<pad>', 'unk_token': '<unk>',
          'tokenizer_class': 'GemmaTokenizerFast'}
  (tmp_path / 'tokenizer_config.json').write_text(json.dumps({**said, 'mask_token': '<mask>'}))
  tokenizer = tokenizers.load(tmp_path)
  assert tokenizer.vocab == Vocab(len(names), pad=0, eos=1, sep=1, bos=2, cls=2, unk=3, mask=4)
  assert tokenizer.encode('b a c<mask>', specials=True) == [263, 264, 261, 5 + ord('c'), 4]
  (tmp_path / 'tokenizer_config.json').write_text(json.dumps({**said, 'mask_token': None}))
  assert tokenizers.load(tmp_path).vocab == Vocab(len(names), pad=0, eos=1, bos=2, unk=3)

@pytest.mark.parametrize('layout', ['bert', 'albert', 'deberta', 'xlnet', 't5', 'mbart', 'xlm-r',
                                    'llama'])
def test_exported_tokenizers_have_the_ids_of_the_sentencepiece_model(layout, tmp_path):
  """The library normalizes clusters of characters differently from SentencePiece, so the exported
  file works around it."""
  if layout in ('mbart', 'xlm-r'):
    tokenizer = tokenizers.train_fairseq_sentencepiece(TEXTS, 180, layout=layout)
  else:
    kind = 'bpe' if layout == 'llama' else 'unigram'
    tokenizer = tokenizers.train_sentencepiece(TEXTS, {'t5': 250, 'llama': 400}.get(layout, 150),
                                               kind, layout=layout)
  tokenizer_files.save(tmp_path, tokenizer, 512)
  assert differing(tokenizer, ids_of(tmp_path / 'tokenizer.json')) == {}
  next(tmp_path.glob('*.model')).unlink()
  alone = tokenizer_files.load(tmp_path)
  assert isinstance(alone, TokenizerJson) and alone.pieces == tokenizer.pieces
  assert differing(alone, ids_of(tmp_path / 'tokenizer.json')) == {}
  assert alone.vocab == tokenizer.vocab
  assert (alone.starts_word == tokenizer.starts_word).all()
  assert alone.decode(tokenizer.encode('The cat sat.')) == tokenizer.decode(
      tokenizer.encode('The cat sat.'))


WORDPIECE = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'the', 'cat', 'co', '##vid', 'e', 'a',
             '##1', '[', ']', 'x']
PAIRS = [('t', 'h'), ('th', 'e'), ('Ġ', 'the')]
BYTES = {piece: i for i, piece in enumerate([
    '<s>', '<pad>', '</s>', '<unk>', *byte_bpe.ALPHABET, *map(''.join, PAIRS), '<mask>'])}


def write(folder, **files):
  folder.mkdir(exist_ok=True)
  for name, content in files.items():
    file = folder / (f'{name}.json' if name not in ('vocab_txt', 'merges')
                     else f'{name.removesuffix("_txt")}.txt')
    file.write_text(content if isinstance(content, str) else json.dumps(content))
  return folder


def words_of(tokenizer, text, specials=True):
  return [tokenizer.pieces[i] for i in tokenizer.encode(text, specials)]


def test_added_tokens_of_old_files_by_hand(tmp_path):
  """added_tokens.json next to a vocab.txt: their words are matched in normalized text, special ones
  as written."""
  folder = write(tmp_path / 'bert', vocab_txt='\n'.join(WORDPIECE),
                 added_tokens={'covid': 15, '[E1]': 16},
                 special_tokens_map={'additional_special_tokens': ['[E1]']})
  tokenizer = tokenizers.load(folder)
  assert tokenizer.vocab.size == 17 and tokenizer.kind == 'wordpiece'
  assert words_of(tokenizer, 'COVID [E1] the cat') == ['covid', '[E1]', 'the', 'cat']
  assert words_of(tokenizer, 'covid [E1]', specials=False) == ['covid', '[', 'e', '##1', ']']
  assert tokenizer.vocab.mask == 4 and words_of(tokenizer, 'the[MASK]') == ['the', '[MASK]']
  with pytest.raises(TokenizerError, match=r"'covid' has the id 99, and would have 15"):
    tokenizers.load(write(tmp_path / 'gap', vocab_txt='\n'.join(WORDPIECE),
                          added_tokens={'covid': 99}))
  plain = tokenizers.load(write(tmp_path / 'plain', vocab_txt='\n'.join(WORDPIECE),
                                added_tokens={'[MASK]': 4}))
  assert isinstance(plain, WordPiece)


@pytest.mark.parametrize(('flags', 'text', 'expected'), [
    ({}, 'xcovidx covid', ['x', 'covid', 'x', '▁', 'covid']),
    ({'single_word': True}, 'xcovidx covid', ['x', 'c', 'o', 'v', 'i', 'd', 'x', '▁', 'covid']),
    ({'lstrip': True}, 'x  covid x', ['x', 'covid', '▁', 'x']),
    ({'rstrip': True}, 'x covid  x', ['x', '▁', 'covid', 'x']),
])
def test_flags_of_added_tokens_by_hand(tmp_path, flags, text, expected):
  folder = write(tmp_path, vocab=BYTES, merges='\n'.join(map(' '.join, PAIRS)), tokenizer_config={
      'tokenizer_class': 'RobertaTokenizer',
      'added_tokens_decoder': {str(len(BYTES)): {'content': 'covid', **flags}}})
  assert words_of(tokenizers.load(folder), text) == expected


@pytest.mark.parametrize(('mask', 'expected'), [
    ('<mask>', ['▁the', '<mask>']),  # as released
    ({'content': '<mask>', 'lstrip': True}, ['▁the', '<mask>']),
    ({'content': '<mask>', 'lstrip': False}, ['▁the', '▁', '<mask>']),
])
def test_lstrip_of_the_mask_token_is_read(tmp_path, mask, expected):
  folder = write(tmp_path, vocab=BYTES, merges='\n'.join(map(' '.join, PAIRS)),
                 tokenizer_config={'mask_token': mask})
  tokenizer = tokenizers.load(folder)
  assert isinstance(tokenizer, ByteBPE) and words_of(tokenizer, ' the <mask>') == expected
  tokenizer.save(tmp_path / 'again')
  assert words_of(tokenizers.load(tmp_path / 'again'), ' the <mask>') == expected
  tokenizer_files.save(tmp_path / 'out', tokenizer, 64)
  assert differing(tokenizer, ids_of(tmp_path / 'out' / 'tokenizer.json')) == {}


@pytest.mark.parametrize(('files', 'message'), [
    ({'tokenizer_config': {'tokenizer_class': 'BertJapaneseTokenizer'}},
     'BertJapaneseTokenizer, which is not'),
    ({'config': {'tokenizer_class': 'BertJapaneseTokenizer'}},
     'BertJapaneseTokenizer, which is not'),
    ({'config': {'tokenizer_class': 'PhobertTokenizer'}},
     'PhobertTokenizer, which is not implemented'),
    ({'tokenizer_config': {'tokenizer_class': 'KoBertTokenizer'}},
     'KoBertTokenizer, which is not implemented'),
    ({'tokenizer_config': {'word_tokenizer_type': 'mecab'}},
     "word_tokenizer_type is 'mecab', which is not"),
    ({'tokenizer_config': {'do_basic_tokenize': False}},
     'do_basic_tokenize is False, which is not implemented'),
    ({'tokenizer_config': {'never_split': ['covid']}},
     r"never_split is \['covid'\], which is not implemented"),
])
def test_other_classes_and_options_are_refused_by_name(tmp_path, files, message):
  with pytest.raises(TokenizerError, match=message):
    tokenizers.load(write(tmp_path, vocab_txt='\n'.join(WORDPIECE), **files))
  with pytest.raises((TokenizerError, ConvertError), match=message):
    tokenizer_files.load(tmp_path)


@pytest.mark.parametrize('files', [
    {'tokenizer_config': {'tokenizer_class': 'RoFormerTokenizerFast'}},
    {'config': {'model_type': 'roformer'}}])
def test_roformer_is_read_without_its_tokenizer(tmp_path, files):
  folder = write(tmp_path, vocab_txt='\n'.join(WORDPIECE), **files)
  with pytest.raises(TokenizerError, match='RoFormerTokenizer, which is not implemented'):
    tokenizers.load(folder)
  assert tokenizer_files.load(folder) is None


def test_known_classes_are_read_and_foreign_files_refused(tmp_path):
  for name in ('BertTokenizer', 'BertTokenizerFast', 'DistilBertTokenizer', 'ElectraTokenizerFast',
               'PreTrainedTokenizerFast', 'TokenizersBackend'):
    folder = write(tmp_path / name, vocab_txt='\n'.join(WORDPIECE),
                   tokenizer_config={'tokenizer_class': name})
    assert isinstance(tokenizers.load(folder), WordPiece)
  (folder / 'source.spm').write_text('')
  with pytest.raises(TokenizerError, match=r'a file source\.spm, of the tokenizers of Marian'):
    tokenizers.load(folder)
  folder = write(tmp_path / 'two', vocab_txt='\n'.join(WORDPIECE))
  (folder / 'spiece.model').write_bytes(b'')
  with pytest.raises(TokenizerError, match=r'holds spiece\.model and vocab\.txt'):
    tokenizers.load(folder)
  custom = {'tokenizer_class': 'OurTokenizer',
            'auto_map': {'AutoTokenizer': ['ours.OurTokenizer', None]}}
  with pytest.raises(TokenizerError, match='OurTokenizer, which is not implemented'):
    tokenizers.load(write(tmp_path / 'custom', tokenizer=json.loads(learn('T5').to_str()),
                          tokenizer_config=custom))


def test_ids_with_a_gap_are_refused(tmp_path):
  content = json.loads(learn('T5').to_str())
  token = {'content': 'covid', 'id': 999, 'special': False, 'lstrip': False, 'rstrip': False,
           'single_word': False,
           'normalized': True}
  with pytest.raises(TokenizerError, match="'covid' has the id 999"):
    tokenizers.load(write(tmp_path, tokenizer={**content, 'added_tokens': [token]}))
