import json
import pickle

import pytest
from tokenizers import Tokenizer as Fast

from plm_jax import tokenizers
from plm_jax.conversion import tokenizer_files
from plm_jax.tokenizers import FairseqSentencePiece, TokenizerError

TEXTS = [*(f'The cat number {i} sat on the mat, and the dogs of street {i * 7} barked.'
           for i in range(60)),
         *['中文和中国文字。'] * 9]


@pytest.fixture(scope='module')
def trained():
  return tokenizers.train_fairseq_sentencepiece(TEXTS, 97, source='en_XX', target='ro_RO')


def test_ids_of_fairseq(trained):
  assert trained.pieces[:4] == ['<s>', '<pad>', '</s>', '<unk>']
  assert trained.pieces[-26:-23] == ['ar_AR', 'cs_CZ',
                                     'de_DE'] and trained.pieces[-2:] == ['zh_CN', '<mask>']
  assert trained.vocab == tokenizers.Vocab(97, bos=0, pad=1, eos=2, unk=3, mask=96, source=74,
                                           target=90, language=71)
  text = 'The cat sat on 中'
  assert ''.join(trained.pieces[i] for i in trained.encode(text)) == '▁' + text.replace(' ', '▁')
  assert trained.decode([*trained.encode(text), 2, 74, 96]) == text
  assert [trained.pieces[i] for i in trained.encode('ж')] == ['▁', '<unk>']


def test_batches_and_places(trained):
  the, cat = trained.encode('the'), trained.encode('cat')
  assert trained.encode_batch(['the', '', 'cat']) == [the, [], cat]
  ids, lengths, places = trained.encode_with_offsets(['the cat'])
  assert (ids.tolist(), lengths.tolist()) == (trained.encode('the cat'),
                                              [len(ids)]) and places[0] == 0
  assert len(trained.starts_word) == len(trained.byte_lengths) == 97
  assert trained.starts_word[the[0]] and trained.starts_word[74] and trained.byte_lengths[the].sum(
      ) == 4


def test_special_tokens_in_text(trained):
  assert not set(trained.encode('the <mask> en_XX')) & {74, 96}
  assert trained.encode('the <mask> cat en_XX', specials=True) == [
      *trained.encode('the'), 96, *trained.encode('cat'), 74]


def test_save_load_pickle(trained, tmp_path):
  trained.save(tmp_path)
  assert sorted(path.name for path in tmp_path.iterdir()) == ['sentencepiece.bpe.model',
                                                              'tokenizer_config.json']
  for again in (tokenizers.load(tmp_path), pickle.loads(pickle.dumps(trained))):
    assert (again.vocab, again.hash) == (trained.vocab, trained.hash)
    assert again.encode(TEXTS[3]) == trained.encode(TEXTS[3])
  # As released: the model alone.
  (tmp_path / 'tokenizer_config.json').unlink()
  assert tokenizers.load(tmp_path).target == 'en_XX'


def test_other_libraries_get_the_same_ids(trained, tmp_path):
  tokenizer_files.save(tmp_path, trained, 1024)
  fast = Fast.from_file(str(tmp_path / 'tokenizer.json'))
  for text in ('The cat sat, on  the mat.', ' Ｔｈｅ dogs ½ ', '中文 文字', 'a\tb', '<mask> barked', 'ж',
               ''):
    assert fast.encode(text).ids == [*trained.encode(text, specials=True), 2, 74], text
  assert tokenizer_files.load(tmp_path).hash == trained.hash


def test_others_are_refused(trained, tmp_path):
  with pytest.raises(TokenizerError, match="'xx_XX' is no language of mBART, which has ar_AR"):
    FairseqSentencePiece(trained.model, 'xx_XX')
  with pytest.raises(TokenizerError, match='begins with <unk>, <s> and </s>'):
    FairseqSentencePiece(tokenizers.train_sentencepiece(TEXTS, 70).model)
  trained.save(tmp_path)
  (tmp_path / 'tokenizer_config.json').write_text(
      json.dumps({'tokenizer_class': 'MBart50Tokenizer'}))
  assert tokenizer_files.load(tmp_path) is None
  with pytest.raises(TokenizerError,
                     match='of the class MBart50Tokenizer, which is not implemented'):
    tokenizers.load(tmp_path)


def test_of_fifty_languages(tmp_path):
  """25 languages after those of mBART, and two that were added last."""
  found = tokenizers.train_fairseq_sentencepiece(TEXTS, 124, 'sl_SI', layout='mbart50')
  assert (found.pieces[-3:], len(found.pieces)) == (['gl_ES', 'sl_SI', '<mask>'], 124)
  assert (found.vocab.language, found.vocab.source, found.vocab.mask) == (71, 122, 123)
  found.save(tmp_path)
  assert tokenizers.load(tmp_path).vocab == found.vocab


def test_of_xlm_r(tmp_path):
  """Ids of fairseq, no languages, and the start and end of RoBERTa; detected from the files of a
  released folder."""
  found = tokenizers.train_fairseq_sentencepiece(TEXTS, 72, layout='xlm-r')
  assert found.vocab == tokenizers.Vocab(72, bos=0, pad=1, eos=2, unk=3, cls=0, sep=2, mask=71)
  assert (found.pieces[:4], found.pieces[-1]) == (['<s>', '<pad>', '</s>', '<unk>'], '<mask>')
  assert found.encode('the <mask>', specials=True) == [*found.encode('the'), 71]
  tokenizer_files.save(tmp_path, found, 512)
  fast = Fast.from_file(str(tmp_path / 'tokenizer.json'))
  assert fast.encode('The cat', 'sat').ids == [0, *found.encode('The cat'), 2, 2,
                                               *found.encode('sat'), 2]
  assert tokenizer_files.load(tmp_path).vocab == found.vocab
  for said, beside in (({'tokenizer_class': 'XLMRobertaTokenizerFast'}, {}),
                       ({}, {'model_type': 'xlm-roberta'})):
    (tmp_path / 'tokenizer_config.json').write_text(json.dumps(said))
    (tmp_path / 'config.json').write_text(json.dumps(beside))
    assert tokenizers.load(tmp_path).vocab == found.vocab
