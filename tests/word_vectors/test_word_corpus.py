"""Words of text in all scripts, as word vectors learn them."""
import unicodedata

import numpy as np
import pytest
from scripts_text import NAMES, SOLID, sentences

from plm_jax.sources.lines import SourceError
from plm_jax.word_vectors import word_corpus
from plm_jax.word_vectors.vectors import WordVectors
from plm_jax.word_vectors.word_corpus import WordsConfig


def words_of(tmp_path, text, **kwargs):
  (tmp_path / 'text.txt').write_text(text)
  config = WordsConfig((str(tmp_path / 'text.txt'),), **{'least': 1, 'heldout': 0.0, **kwargs})
  word_corpus.write_corpus(config, tmp_path / 'made')
  return {*word_corpus.open_corpus(tmp_path / 'made').vocabulary.words}


@pytest.mark.parametrize('name', NAMES)
def test_words_of_all_scripts(name, tmp_path):
  """Every word between spaces is one of the vocabulary, with its marks; Thai and its like are
  refused, with advice."""
  text = '\n'.join(sentences(name, 60))
  if name in SOLID - {'chinese', 'japanese'}:
    with pytest.raises(SourceError, match='give text with spaces between words'):
      words_of(tmp_path, text)
    return
  wanted = {word.strip('.।。') for word in text.lower().split()}
  if name in SOLID:
    wanted = {letter for letter in text if unicodedata.category(letter).startswith('L')}
    with pytest.raises(SourceError,
                       match=r'data\.split=letters takes Chinese and Japanese characters'):
      words_of(tmp_path, text, split='spaces')
  if name == 'latin' or name == 'latin nfd':
    wanted = {part for word in wanted for part in word.split('-')}
  assert words_of(tmp_path, text) == wanted


def test_words_that_were_split_before(tmp_path):
  text = 'บ้าน สวย แมว กิน ข้าว\n' * 9
  assert words_of(tmp_path, text) == words_of(tmp_path, text, split='spaces') == {*text.split()}


def test_words_are_found_however_they_are_composed():
  composed, decomposed = 'école', unicodedata.normalize('NFD', 'école')
  for form in (composed, decomposed):
    vectors = WordVectors((form, 'maison', 'chat'), np.eye(3, dtype=np.float32))
    assert composed in vectors and decomposed in vectors and 'ecole' not in vectors
    assert (vectors[composed] == vectors[decomposed]).all() and vectors[composed][0] == 1
    assert [word for word, _ in vectors.nearest(composed)] == ['maison', 'chat']
