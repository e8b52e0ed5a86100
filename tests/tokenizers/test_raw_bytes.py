import json
import pickle

import pytest

from plm_jax import tokenizers
from plm_jax.conversion import tokenizer_files
from plm_jax.tokenizers import ByteTokenizer, TokenizerError

HARD = ['The cat', ' two  spaces ', 'line\nbreak\tand tab', '中文', '😀 é', '\x00\x7f\x80', '',
        '<pad> is text </s>']


def test_ids():
  assert ByteTokenizer().vocab == tokenizers.Vocab(
      384, pad=0, eos=1, unk=2, sentinel=258, fim_prefix=259, fim_suffix=260, fim_middle=261,
      fim_end=262)
  assert ByteTokenizer().encode('Hé 中\n') == [75, 198, 172, 35, 231, 187, 176, 13]
  ids, lengths = ByteTokenizer().encode_flat(['é', '', 'a'])
  assert (ids.tolist(), lengths.tolist()) == ([198, 172, 100], [2, 0, 1])
  assert ByteTokenizer().encode_batch(['é', '', 'a']) == [[198, 172], [], [100]]


def test_text_comes_back():
  tokenizer = ByteTokenizer()
  assert [tokenizer.decode(tokenizer.encode(text)) for text in HARD] == HARD
  assert tokenizer.decode([0, 75, 1, 2, 231, 187, 108, 258, 383]) == 'Hi'


def test_special_tokens_as_in_transformers():
  """Ids of its ByT5Tokenizer; the first three tokens take the spaces around them along."""
  tokenizer = ByteTokenizer()
  assert tokenizer.encode('a <extra_id_0>  <pad> b', specials=True) == [100, 35, 259, 0, 101]
  assert tokenizer.encode('a\n</s>\nb<extra_id_124>', specials=True) == [100, 1, 101, 383]
  assert tokenizer.encode('<extra_id_125>', specials=True) == tokenizer.encode('<extra_id_125>')
  assert not set(tokenizer.encode('a </s> <extra_id_0>')) & {0, 1, 2, 259}


def test_without_extra_ids():
  tokenizer = ByteTokenizer(extra=0)
  for text in ('(?!)', 'a(?!)b', '<extra_id_0>', ''):
    assert tokenizer.encode(text, specials=True) == tokenizer.encode(text)
  assert tokenizer.encode('(?!) </s>', specials=True) == [*tokenizer.encode('(?!)'), 1]


def test_places_and_words():
  tokenizer = ByteTokenizer()
  ids, lengths, places = tokenizer.encode_with_offsets(['aé中', '', 'b'])
  assert (len(ids), lengths.tolist(), places.tolist()) == (7, [6, 0, 1], [0, 1, 1, 2, 2, 2, 0])
  starts = tokenizer.starts_word[tokenizer.encode('a b,é')].tolist()
  assert starts == [False, True, False, True, False, False]
  assert len(tokenizer.pieces) == len(tokenizer.byte_lengths) == 384
  assert tokenizer.byte_lengths[tokenizer.encode('中')].sum() == 3


def test_save_load_pickle(tmp_path):
  tokenizer = ByteTokenizer(extra=100)
  tokenizer.save(tmp_path)
  for again in (tokenizers.load(tmp_path), tokenizers.load(tmp_path / 'tokenizer_config.json'),
                pickle.loads(pickle.dumps(tokenizer))):
    assert (again.vocab, again.hash) == (tokenizer.vocab,
                                         tokenizer.hash) and again.encode('é') == [198, 172]
  assert ByteTokenizer().hash != tokenizer.hash


def test_files_next_to_a_checkpoint(tmp_path):
  tokenizer_files.save(tmp_path, ByteTokenizer(), 1024)
  said = json.loads((tmp_path / 'tokenizer_config.json').read_text())
  assert (said['tokenizer_class'], said['extra_ids'],
          said['model_max_length']) == ('ByT5Tokenizer', 125, 1024)
  assert [path.name for path in tmp_path.iterdir()] == ['tokenizer_config.json']
  assert tokenizer_files.load(tmp_path).hash == ByteTokenizer().hash


def test_files_written_by_transformers(tmp_path):
  """extra_ids is 0 where the tokens are listed; released files have a number and a list of
  names."""
  file = tmp_path / 'tokenizer_config.json'
  listed = {str(259 + n): {'content': f'<extra_id_{n}>'} for n in range(125)}
  for said in ({'extra_ids': 0, 'added_tokens_decoder': listed},
               {'extra_ids': 125,
                'additional_special_tokens': [f'<extra_id_{n}>' for n in range(125)]}):
    file.write_text(json.dumps({'tokenizer_class': 'ByT5Tokenizer', **said}))
    assert tokenizers.load(tmp_path).vocab.size == 384
  file.write_text(json.dumps({'tokenizer_class': 'ByT5Tokenizer',
                              'additional_special_tokens': ['<extra_id_7>']}))
  with pytest.raises(TokenizerError, match=r'expected <extra_id_0> to <extra_id_0>, got'):
    tokenizers.load(tmp_path)
  file.write_text('{"tokenizer_class": "T5Tokenizer"}')
  with pytest.raises(TokenizerError, match='no tokenizer in'):
    tokenizers.load(tmp_path)
  with pytest.raises(TokenizerError, match="class 'T5Tokenizer', which has a vocabulary"):
    tokenizers.load(file)


def test_other_added_tokens_are_refused(tmp_path):
  added = {'0': {'content': '<pad>'}, '259': {'content': '[E1]'}}
  (tmp_path / 'tokenizer_config.json').write_text(json.dumps(
      {'tokenizer_class': 'ByT5Tokenizer', 'added_tokens_decoder': added}))
  with pytest.raises(TokenizerError, match=r"adds the tokens \['\[E1\]'\] to the bytes"):
    tokenizers.load(tmp_path)
