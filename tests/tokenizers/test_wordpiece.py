import hashlib
import json
import os
import subprocess
import sys
import unicodedata

import numpy as np
import pytest

from plm_jax import tokenizers
from plm_jax.tokenizers import BertNormalization, TokenizerError, WordPiece, long_text
from plm_jax.tokenizers.wordpiece import assemble, remove_chinese_spaces

SPECIALS = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']
PIECES = [
    *SPECIALS, 'the', 'hello', 'un', '##aff', '##able', '中', '文', '[', ']', 'mask', ',', '##s',
    'The', 'héllo', 'E'
]
TEXTS = ['the cat sat on the mat.', 'The dogs sat on the cats; cats sat on dogs.', '中文和中国，文字。'] * 3


def words(tokenizer, text, specials=False):
  return [tokenizer.pieces[i] for i in tokenizer.encode(text, specials)]


@pytest.fixture(scope='module')
def trained():
  return tokenizers.train_wordpiece(TEXTS, 80)


@pytest.mark.parametrize(('text', 'expected'), [
    ('HÉLLO the', ['hello', 'the']),  # case and accents
    ('unaffables', ['un', '##aff', '##able', '##s']),
    ('the中文,hello', ['the', '中', '文', ',', 'hello']),  # a word a Chinese character
    ('hel\u0000l\u200bo\tthe', ['hello', 'the']),  # control characters vanish, tabs part words
    ('the\u00a0hello', ['the', 'hello']),
    ('quux hello', ['[UNK]', 'hello']),
    ('##s', ['[UNK]', '[UNK]', '[UNK]']),  # in the text it is two signs and a letter
    ('', []),
])
def test_uncased(text, expected):
  assert words(WordPiece(PIECES), text) == expected


def test_private_use_characters_are_deleted_as_in_transformers():
  """`_is_control` of google-research/bert names the categories Cc and Cf; transformers' normalizer
  takes Co, too."""
  normalize = BertNormalization(lowercase=False).build_normalizer().normalize_str
  odd = [chr(code) for code in (*range(0x21, 0x7f), 0x0, 0x7, 0x1f, 0x7f, 0x9f, 0xad, 0x200b,
                                0xfeff, 0xfffd, 0xe000,
                                0xf8ff, 0xf0000, 0x10fffd, 0x378, 0xffff)]
  deleted = {character for character in odd if normalize(f'a{character}b') == 'ab'}
  google = {character for character in odd if unicodedata.category(character)
            in ('Cc', 'Cf')} | {'\ufffd'}
  private = {character for character in odd if unicodedata.category(character) == 'Co'}
  assert deleted == google | private and len(private) == 4


def test_cased_keeps_case_and_accents():
  tokenizer = WordPiece(PIECES, BertNormalization(lowercase=False))
  assert words(tokenizer, 'The héllo The中E') == ['The', 'héllo', 'The', '中', 'E']
  assert words(WordPiece(PIECES, BertNormalization(lowercase=False, strip_accents=True)),
               'héllo É') == ['hello', 'E']


def test_special_tokens_of_wordpiece_are_text_by_default():
  tokenizer = WordPiece(PIECES)
  assert words(tokenizer, 'hello [MASK]') == ['hello', '[', 'mask', ']']
  assert words(tokenizer, 'hello [MASK]', specials=True) == ['hello', '[MASK]']
  assert not set(tokenizer.encode_batch(['[PAD] [CLS] x [SEP][MASK]'])[0]) & {0, 2, 3, 4}


def test_vocab_and_word_starts():
  tokenizer = WordPiece(PIECES)
  assert tokenizer.vocab == tokenizers.Vocab(20, pad=0, unk=1, cls=2, sep=3, mask=4)
  assert tokenizer.vocab.specials == (0, 1, 2, 3, 4)
  assert hash(tokenizer.vocab) == hash(tokenizers.Vocab(20, 0, 1, 2, 3, 4))
  assert [PIECES[i] for i in np.flatnonzero(~tokenizer.starts_word)] == ['##aff', '##able', '##s']


def test_encode_batch_is_encode(trained):
  texts = [
      'the cat, sat', '中文cats和 on', 'a\u0300 中\u0301文 İstanbul ΑΣ ΑΣ\u2009x', 'x' * 300,
      ' the  the ', '',
      '\u3000中', 'ﬁ \U00020000a', 'cat_sat\x01on the\x7fmat', "don't (sat)", 'a\r\nb'
  ]
  assert trained.encode_batch(texts) == [trained.encode(text) for text in texts]
  assert trained.encode_batch(texts) == [trained.encode(text) for text in texts]  # now from memory


def test_encode_flat(trained):
  ids, lengths = trained.encode_flat(['the cat', '', 'sat'])
  assert ids.tolist() == trained.encode('the cat sat')
  assert lengths.tolist() == [2, 0, 1]
  assert [array.tolist() for array in trained.encode_flat([])] == [[], []]
  assert trained.encode_batch([]) == []


def test_memory_is_bounded(trained, monkeypatch):
  monkeypatch.setattr(long_text, 'MAX_BYTES', 1000)
  tokenizer = WordPiece(trained.pieces)
  for text in ('the cat', 'sat on mat', 'dogs cats the', 'the ' + 'a' * 50) * 3:
    assert tokenizer.encode_batch([text]) == [trained.encode(text)]
    assert tokenizer._cache.bytes < 2000


def test_decode():
  tokenizer = WordPiece(PIECES)
  assert tokenizer.decode(tokenizer.encode('Hello, unaffable 中文 the')) == 'hello, unaffable 中文 the'
  assert tokenizer.decode(np.array([6, 4])) == 'hello [MASK]'
  chinese = WordPiece([*SPECIALS, '你', '好', '，', '。', 'a'])
  assert chinese.decode(chinese.encode('你好，a。好')) == '你好，a。好'


@pytest.mark.parametrize(('split', 'written'), [
    ('1964 年 ( 28. 3 % ) 的 [MASK] 人 ， 在 windows 上', '1964年(28.3%)的[MASK]人，在 windows 上'),
    ('定 义 ─ [UNK] [UNK] 与 “ 流 浪 ” 的', '定义─[UNK][UNK]与“流浪”的'),
    ('the word 中 ( a noun ) is 1 of 2', 'the word 中 ( a noun ) is 1 of 2'),
    ('it is [MASK] [MASK] , 3. 5', 'it is [MASK] [MASK] , 3. 5')])
def test_chinese_has_no_spaces_around_marks(split, written):
  assert remove_chinese_spaces(split) == written
  tokenizer = WordPiece([*SPECIALS, *'年的人在上定义与流浪中(%)，.“”', 'windows', '1964', '28', '3', 'the',
                         'word'])
  assert tokenizer.encode(split, specials=True) == tokenizer.encode(written, specials=True)


def test_training(trained):
  assert trained.pieces[:5] == SPECIALS
  assert trained.pieces[5:9] == ['##a', '##e', '##g', '##h']  # the characters, in their order
  assert {'the', 'cat', 'sat', '中', '国', '。'} <= set(trained.pieces)
  assert not any(piece.startswith('##') and piece[2:] in '中文国字' for piece in trained.pieces)
  assert words(trained, 'The Cats') == words(trained, 'the cats')


def test_training_is_the_same_in_every_process(trained):
  code = f'from plm_jax import tokenizers; print(tokenizers.train_wordpiece({TEXTS!r}, 80).hash)'
  found = {
      subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True,
                     env={**os.environ, 'PYTHONHASHSEED': seed,
                          'RAYON_NUM_THREADS': seed}).stdout.strip()
      for seed in '13'
  }
  assert found == {trained.hash}


@pytest.mark.parametrize(('texts', 'size', 'message'), [
    ([], 100, 'the text is empty'),
    (['', ' \n'], 100, 'the text is empty'),
    (['abcdefghij klmnop'], 12, 'vocabulary of 12 is too small'),
])
def test_training_refuses(texts, size, message):
  with pytest.raises(TokenizerError, match=message):
    tokenizers.train_wordpiece(texts, size)


def test_save_and_load(trained, tmp_path):
  cased = WordPiece(trained.pieces,
                    BertNormalization(lowercase=False, strip_accents=False, chinese_chars=False))
  for i, tokenizer in enumerate((trained, cased)):
    tokenizer.save(tmp_path / f'{i}')
    for path in (f'{i}', f'{i}/vocab.txt'):
      again = tokenizers.load(tmp_path / path)
      assert (again.hash, again.text, again.pieces) == (tokenizer.hash, tokenizer.text,
                                                        tokenizer.pieces)
  assert trained.hash != cased.hash
  assert sorted(path.name for path in (tmp_path / '0').iterdir()) == ['tokenizer_config.json',
                                                                      'vocab.txt']
  config = json.loads((tmp_path / '0/tokenizer_config.json').read_text())
  assert config == {
      'kind': 'wordpiece', 'tokenizer_class': 'BertTokenizer', 'do_lower_case': True,
      'strip_accents': None,
      'tokenize_chinese_chars': True, 'pad_token': '[PAD]', 'unk_token': '[UNK]',
      'cls_token': '[CLS]',
      'sep_token': '[SEP]', 'mask_token': '[MASK]'
  }


def test_hash_is_of_the_files():
  tokenizer = WordPiece(PIECES)
  files = tokenizer._files()
  assert tokenizer.hash == hashlib.sha256(
      b''.join(f'{name} {len(files[name])}\n'.encode() + files[name]
               for name in sorted(files))).hexdigest()


def test_case_is_detected_from_a_bare_vocabulary(tmp_path):
  path = tmp_path / 'vocab.txt'
  path.write_bytes('\r\n'.join([*SPECIALS, '[unused0]', 'the', 'ø', '中']).encode() + b'\r\n\n')
  assert tokenizers.load(path).pieces == [*SPECIALS, '[unused0]', 'the', 'ø', '中']
  assert tokenizers.load(path).text == BertNormalization(lowercase=True)
  assert tokenizers.load(path, BertNormalization(lowercase=False)).text.lowercase is False
  path.write_text('\n'.join([*SPECIALS, 'The']))
  assert tokenizers.load(tmp_path).text == BertNormalization(lowercase=False)


@pytest.mark.parametrize('piece', ['é', 'e\u0301', 'が', 'हिन्दी', '##\u0941', 'ọ̀', 'đọc', '한',
                                   'ที่'])
def test_a_vocabulary_with_accents_keeps_them(tmp_path, piece):
  """Accents are not stripped by guess where the vocabulary itself has them; what its configuration
  states holds."""
  path = tmp_path / 'vocab.txt'
  path.write_text('\n'.join([*SPECIALS, 'the', piece]))
  tokenizer = tokenizers.load(path)
  assert tokenizer.text == BertNormalization(lowercase=True,
                                             strip_accents=False)
  assert not tokenizer.text.removes_accents
  if not piece.startswith('##'):
    assert tokenizer.encode(f'THE {piece}') == [5, 6]
  (tmp_path / 'tokenizer_config.json').write_text('{"do_lower_case": true}')
  assert tokenizers.load(path).text == BertNormalization(lowercase=True) and tokenizers.load(
      path).text.removes_accents


def test_accents_can_be_kept_in_lower_case(tmp_path):
  """As transformers does with strip_accents=False, and saved for it."""
  texts = ['Le GARÇON répète', 'かばん がばん', 'ọ̀rọ̀ ọrọ'] * 9
  trained = tokenizers.train_wordpiece(texts, 90, BertNormalization(strip_accents=False))
  assert trained.decode(trained.encode('GARÇON')) == 'garçon'
  assert trained.encode('かばん') != trained.encode('がばん') and trained.encode(
      'ọ̀rọ̀') != trained.encode('ọrọ')
  trained.save(tmp_path)
  assert json.loads((tmp_path / 'tokenizer_config.json').read_text())['strip_accents'] is False
  assert tokenizers.load(tmp_path).hash == trained.hash


@pytest.mark.parametrize(('class_name', 'lowercase'),
                         [('BertTokenizer', False), ('DPRReaderTokenizer', True)])
def test_case_follows_the_class_in_tokenizer_config(tmp_path, class_name, lowercase):
  """transformers 5 writes do_lower_case=false for DPR's classes, and lowercases according to
  their tokenizer.json."""
  ids = {piece: number for number, piece in enumerate([*SPECIALS, 'the'])}
  assemble(ids, BertNormalization(lowercase=True)).save(str(tmp_path / 'tokenizer.json'))
  config = {'tokenizer_class': class_name, 'do_lower_case': False, 'strip_accents': None}
  (tmp_path / 'tokenizer_config.json').write_text(json.dumps(config))
  loaded = tokenizers.load(tmp_path)
  assert loaded.encode('the The') == ([5, 5] if lowercase else [5, 1])


@pytest.mark.parametrize(('content', 'message'), [
    (b'[PAD]\n[UNK]\n[CLS]\nthe\n', r'lacks \[SEP\], \[MASK\] among its 4 tokens'),
    ('\n'.join([*SPECIALS, 'the', 'a', 'the']).encode(), r"1 occur more than once: \['the'\]"),
    (b'', 'lacks'),
    (b'\xff\xfe\x00', 'is not UTF-8 text'),
])
def test_bad_vocabulary(tmp_path, content, message):
  (tmp_path / 'vocab.txt').write_bytes(content)
  with pytest.raises(TokenizerError, match=message) as error:
    tokenizers.load(tmp_path)
  assert 'vocab.txt' in str(error.value)


def test_nothing_there(tmp_path):
  with pytest.raises(TokenizerError, match=r'no tokenizer at .*gone'):
    tokenizers.load(tmp_path / 'gone')
  with pytest.raises(TokenizerError,
                     match=r'vocab.txt .*, a vocab.json .*, a \*.model .* or a tokenizer.json'):
    tokenizers.load(tmp_path)


def test_blanks_of_glm_come_last(tmp_path):
  """In a text they are ordinary characters by default."""
  names = ['<|startofpiece|>', '<|endofpiece|>', '[gMASK]', '[sMASK]']
  tokenizer = tokenizers.train_wordpiece(TEXTS, 80, blanks=True)
  assert tokenizer.pieces[-4:] == names and tokenizer.vocab.size <= 80
  vocab = tokenizer.vocab
  assert [tokenizer.pieces[i] for i in (vocab.sop, vocab.eop, vocab.gmask, vocab.smask)] == names
  tokenizer.save(tmp_path)
  again = tokenizers.load(tmp_path)
  assert again.vocab == vocab and again.text == tokenizer.text
  assert words(again, 'the cat [gMASK]', specials=True)[-1] == '[gMASK]'
  assert '[gMASK]' not in words(again, 'the cat [gMASK]')
  assert WordPiece(PIECES).vocab.gmask == -1
