"""Long texts and words get the ids of the whole text with little memory; invalid text in all
tokenizers."""
import pickle
import random
import threading

import numpy as np
import pytest

from plm_jax import tokenizers
from plm_jax.tokenizers import TokenizerError, byte_bpe, long_text

WORDS = ['the', 'cat', "don't", 'mat.', 'dogs,', 'Ünïcode', '中文', '字。', '(a!)', '12', '3.5', '--',
         '\n', ' ']
TEXTS = [' '.join(random.Random(i).choices(WORDS, k=12))
         for i in range(80)] + [*'abcdefghijklmnopqrstuvwxyz']


@pytest.fixture(scope='module', params=['wordpiece', 'byte_bpe', 'prefixed', 'llama 3', 'word_bpe'])
def trained(request):
  if request.param == 'wordpiece':
    return tokenizers.train_wordpiece(TEXTS, 150)
  if request.param == 'word_bpe':
    return tokenizers.train_word_bpe(TEXTS, 150)
  plain = tokenizers.train_byte_bpe(TEXTS, 320)
  split = byte_bpe.SPLIT_PATTERNS[2] if request.param == 'llama 3' else ''
  return tokenizers.ByteBPE(plain.ids, plain.merges, request.param == 'prefixed', split)


def test_parts_have_the_ids_of_the_whole(trained, monkeypatch):
  draw = random.Random(1)
  texts = [''.join(draw.choice(WORDS) + draw.choice(['', '', ' ', '  ']) for _ in range(600))
           for _ in range(4)]
  def encoded():
    ids, lengths, places = trained.encode_with_offsets(texts)
    return [[trained.encode(text) for text in texts], trained.encode_batch(texts), ids.tolist(),
            lengths.tolist(),
            places.tolist()]
  whole = encoded()
  assert whole[0] == whole[1]
  # Long enough for the letters between two boundaries.
  monkeypatch.setattr(long_text, 'MAX_PART', 200)
  monkeypatch.setattr(long_text, 'MAX_BATCH', 300)
  tried = pickle.loads(pickle.dumps(trained))
  assert all(len(some) > 1 for some in (long_text.split_text(text, long_text.SPACE_BORDERS)
                                        for text in texts))
  trained = tried
  assert encoded() == whole


@pytest.mark.slow
def test_a_word_without_end():
  """A megabyte of letters: one unknown word of BERT, parts of the library's own ids in BPE; learnt
  from by neither."""
  word = ''.join(random.Random(0).choices('abcdefgh', k=1 << 20))
  wordpiece = tokenizers.train_wordpiece([*TEXTS, word], 150)
  assert wordpiece.pieces == tokenizers.train_wordpiece(TEXTS, 150).pieces
  assert wordpiece.encode(f'the {word} cat') == [
      *wordpiece.encode('the'), wordpiece.vocab.unk,
      *wordpiece.encode('cat')] == wordpiece.encode_batch(
          [f'the {word} cat'])[0]
  bpe = tokenizers.train_byte_bpe([*TEXTS, word], 320)
  assert bpe.merges == tokenizers.train_byte_bpe(TEXTS, 320).merges
  ids = bpe.encode(word)
  assert bpe.decode(ids) == word and bpe.encode_batch([word])[0] == ids
  assert ids[:1000] == bpe.encode(word[:long_text.MAX_PART // 2])[:1000]
  assert np.array_equal(bpe.encode_with_offsets([word])[0], ids)


def test_invalid_characters_are_refused(trained):
  for encode in (trained.encode, lambda text: trained.encode_batch([text]),
                 lambda text: trained.encode_with_offsets([text])):
    with pytest.raises(TokenizerError, match=r"the text holds '\\udc80' at character 5,"):
      encode('the \udc80 cat')


def test_expressions_are_known_ones():
  plain = tokenizers.train_byte_bpe(TEXTS, 320)
  for split in byte_bpe.SPLIT_PATTERNS:
    assert tokenizers.ByteBPE(plain.ids, plain.merges, split=split).encode('the cat')
  with pytest.raises(TokenizerError,
                     match=r"in a way that is not known here: '\(a\+\)\+\$'; known are"):
    tokenizers.ByteBPE(plain.ids, plain.merges, split='(a+)+$')


def test_saving_at_the_same_moment(tmp_path):
  """The folder is complete at any moment, and no other file is left."""
  tokenizer = tokenizers.train_byte_bpe(TEXTS, 320)
  failed = []
  def work():
    try:
      for _ in range(15):
        tokenizer.save(tmp_path)
        assert tokenizers.load(tmp_path).hash == tokenizer.hash
    except Exception as error:
      failed.append(error)
  threads = [threading.Thread(target=work) for _ in range(8)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert not failed
  assert sorted(path.name for path in tmp_path.iterdir()) == ['merges.txt', 'tokenizer_config.json',
                                                              'vocab.json']
