"""Static vectors: the steps by hand, texts by hand, a folder and back."""
import numpy as np
import pytest
from sentence_model import trained_of

import plm_jax
from plm_jax.errors import ConfigError
from plm_jax.inference import static_vectors
from plm_jax.layers.pooling import VectorConfig


@pytest.fixture(scope='module')
def trained():
  return trained_of(VectorConfig())


@pytest.fixture(scope='module')
def vectors(trained):
  return static_vectors.distill_static_vectors(trained, 5)


def test_the_steps_by_hand(trained, vectors):
  """[CLS] token [SEP] through the encoder, the mean; five components; weights by Zipf's law."""
  vocab = trained.tokenizer.vocab
  states = plm_jax.encode(trained, [[7], [20]], pooling='none')
  plain = static_vectors.distill_static_vectors(trained, 0, sif=0)
  np.testing.assert_allclose(plain.table[[7, 20]], [some.mean(0) for some in states], atol=1e-5)
  centred = plain.table - plain.table.mean(0)
  shares = 1 / np.arange(2, vocab.size + 2)
  weights = 1e-4 / (1e-4 + shares / shares.sum())
  got = vectors.table / weights[:, None]
  assert got.shape == (vocab.size, 5)
  _, _, directions = np.linalg.svd(centred.astype(np.float64), full_matrices=False)
  np.testing.assert_allclose(np.abs(got), np.abs(centred @ directions[:5].T), atol=1e-3)


def test_a_text_is_the_mean_of_its_tokens(vectors):
  ids = vectors.tokenizer.encode('the film is good')
  mean = vectors.table[ids].mean(0)
  got = plm_jax.encode(vectors, ['', 'the film is good', 'a'])
  np.testing.assert_allclose(got[1], mean / np.linalg.norm(mean), rtol=1e-5)
  np.testing.assert_array_equal(got[0], 0)


def test_functions_accept_a_folder_of_static_vectors(vectors, tmp_path):
  vectors.save(tmp_path / 'out')
  texts = ['the film is good', 'a book']
  np.testing.assert_array_equal(plm_jax.encode(tmp_path / 'out', texts), vectors.encode(texts))
  (hits,) = plm_jax.search(tmp_path / 'out', texts, 'a book', top=1)
  assert hits[0].text == 'a book'
  assert plm_jax.similar(tmp_path / 'out', 'a book', 'a book')[0] == pytest.approx(1)


def test_more_components_than_there_are(trained):
  with pytest.raises(ConfigError,
                     match='numbers have 32 principal components, and 64 are requested'):
    static_vectors.distill_static_vectors(trained, 64)
