import numpy as np
import pytest

from plm_jax import tokenizers
from plm_jax.layers import char_ids
from plm_jax.tokenizers import TokenizerError, WordTokenizer, train_word_tokenizer


def test_words_are_listed_by_frequency():
  words = train_word_tokenizer(["The cat sat. The cat's mat, the mat"], 8, signs=True)
  assert words.pieces == ['<S>', '</S>', '<UNK>', 'The', 'mat', ',', '.', 'cat']
  assert train_word_tokenizer(['a b. b.'], 5).pieces[3:] == ['b.', 'a']


def test_encoding_adds_the_end_of_the_sentence():
  words = WordTokenizer(['<S>', '</S>', '<UNK>', 'a', 'cat', '.'], signs=True)
  assert words.encode('a cat, a dog.') == [3, 4, 2, 3, 2, 5, 1] and words.encode(' ') == []
  ids, sizes = words.encode_flat(['a.', '', 'cat'])
  assert ids.tolist() == [3, 5, 1, 4, 1] and sizes.tolist() == [3, 0, 2]
  assert words.encode_with_offsets(['a  cat'])[2].tolist() == [0, 3, 5]
  assert words.decode([3, 4, 1, 3, 5, 1]) == 'a cat\na .'


def test_characters_of_words_and_sentence_marks():
  words = WordTokenizer(['<S>', '</S>', '<UNK>', 'né'])
  ids = words.characters(np.array([[3, 0], [1, 3]]), 6)
  assert ids.shape == (2, 2, 6) and ids[0, 0].tolist() == char_ids.encode_words(['né'], 6)[
      0].tolist()
  assert ids[0, 1].tolist() == [259, 257, 260, 261, 261, 261] and ids[1, 0, 1] == 258


def test_a_list_is_read_back(tmp_path):
  words = WordTokenizer(['<S>', '</S>', '<UNK>', 'é', 'b'], signs=True)
  words.save(tmp_path)
  again = tokenizers.load(tmp_path)
  assert isinstance(again, WordTokenizer)
  assert (again.hash, again.punctuation, again.pieces) == (words.hash, True, words.pieces)


@pytest.mark.parametrize(('listed', 'message'), [
    (['a'], 'begins with <S>, </S>, <UNK>'),
    (['<S>', '</S>', '<UNK>', 'a', 'b', 'a'], "has 'a' twice")])
def test_invalid_word_lists_are_refused(listed, message):
  with pytest.raises(TokenizerError, match=message):
    WordTokenizer(listed)


def test_a_text_without_words_is_refused():
  with pytest.raises(TokenizerError, match='no word'):
    train_word_tokenizer([' ', ''], 10)
