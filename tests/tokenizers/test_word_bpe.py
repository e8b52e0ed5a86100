import json

import pytest

from plm_jax import tokenizers
from plm_jax.tokenizers import TokenizerError, WordBPE, train_word_bpe

TEXT = ['The lower the better.', 'Lower, lower; the lowest of the low!'] * 3


def vocabulary(*pieces: str) -> dict[str, int]:
  return {piece: i for i, piece in enumerate(pieces)}


@pytest.fixture
def small() -> WordBPE:
  ids = vocabulary('<unk>', 'l', 'o', 'w</w>', 'w', 'e', 'r</w>', ',</w>', 'lo', 'low</w>', 'low',
                   'er</w>',
                   'lower</w>')
  return WordBPE(ids, [('l', 'o'), ('lo', 'w</w>'), ('lo', 'w'), ('e', 'r</w>'), ('low', 'er</w>')])


def test_merges_in_order_by_hand(small):
  """'low' ends a word and is one piece; in front of 'er' it is another."""
  assert [small.pieces[i] for i in small.encode('low')] == ['low</w>']
  assert [small.pieces[i] for i in small.encode('Lower, LÖW')] == ['lower</w>', ',</w>', 'low</w>']
  assert [small.pieces[i] for i in small.encode('wel')] == ['w', 'e', '<unk>']
  assert small.decode(small.encode('Lower, low')) == 'lower , low'


def test_batches_are_texts_one_by_one(small):
  texts = ['low lower', '', 'lower,low 中', ' low\tlow ']
  assert small.encode_batch(texts) == [small.encode(text) for text in texts]
  ids, lengths, places = small.encode_with_offsets(texts)
  assert lengths.tolist() == [len(small.encode(text))
                              for text in texts] and places[:2].tolist() == [0, 4]
  assert len(ids) == lengths.sum()


def test_trained_saved_and_read_back(tmp_path):
  tokenizer = train_word_bpe(TEXT, 60)
  assert tokenizer.pieces[:4] == ['<unk>', '_start_', '_delimiter_', '_classify_']
  assert (tokenizer.vocab.unk, tokenizer.vocab.bos, tokenizer.vocab.sep,
          tokenizer.vocab.cls) == (0, 1, 2, 3)
  assert [tokenizer.pieces[i] for i in tokenizer.encode('the lower')] == ['the</w>', 'lower</w>']
  assert tokenizer.hash == train_word_bpe(TEXT, 60).hash
  tokenizer.save(tmp_path)
  back = tokenizers.load(tmp_path)
  assert isinstance(back, WordBPE) and back.hash == tokenizer.hash
  (tmp_path / 'fast').mkdir()
  (tmp_path / 'fast' / 'tokenizer.json').write_text(tokenizer.assemble().to_str())
  assert tokenizers.load(tmp_path / 'fast').encode_batch(TEXT) == tokenizer.encode_batch(TEXT)


def test_special_tokens_of_word_bpe_are_text_by_default():
  tokenizer = train_word_bpe(TEXT, 60)
  assert tokenizer.vocab.bos not in tokenizer.encode('_start_ low')
  assert tokenizer.encode('_start_ low', specials=True)[0] == tokenizer.vocab.bos


def test_unusable_texts_sizes_and_vocabularies_are_refused(tmp_path):
  with pytest.raises(TokenizerError, match='the text is empty'):
    train_word_bpe([' '], 100)
  with pytest.raises(TokenizerError, match='a BPE vocabulary of 8 is too small'):
    train_word_bpe(TEXT, 8)
  with pytest.raises(TokenizerError, match='expected a token <unk>'):
    WordBPE(vocabulary('a'), [])
  with pytest.raises(TokenizerError, match='1 merges are not of two tokens to a third'):
    WordBPE(vocabulary('<unk>', 'a', 'b'), [('a', 'b')])
  (tmp_path / 'vocab.json').write_text(json.dumps(vocabulary('<unk>', 'a</w>')))
  with pytest.raises(TokenizerError, match=r'without a merges\.txt'):
    tokenizers.load(tmp_path)


def test_sizes_are_bytes_of_text():
  """Of every kind: a word with the space that goes with it; bytes are counted one by one."""
  text = 'the löwest of the low'
  words = train_word_bpe(TEXT, 60)
  assert words.byte_lengths[words.encode('lower')].sum() == len('lower ')
  some = tokenizers.train_byte_bpe([text] * 9, 300, layout='gpt2')
  assert some.byte_lengths[some.encode('löw中 the')].sum() == len('löw中 the'.encode())
  assert some.byte_lengths[some.vocab.eos] == 1
  pieces = tokenizers.WordPiece(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'low', '##est'])
  assert pieces.byte_lengths.tolist() == [1, 1, 1, 1, 1, 4, 3]
