"""Folders of SparseEncoder of sentence-transformers: both ways, BERT and RoBERTa, and errors."""
import json
import shutil

import library_folders
import numpy as np
import pytest

import plm_jax
from plm_jax.conversion import ConvertError

TEXTS = ['a', 'b c d', 'e f g h i', 'jklmnopqrstuvwxyzabc', 'yb']


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  pytest.importorskip('sentence_transformers')
  folder = tmp_path_factory.mktemp('sparse') / 'model'
  library_folders.write_sparse_encoder(folder, 'bert', 'max', 'relu')
  return folder


@pytest.mark.parametrize(('kind', 'pooling', 'activation'), [
    ('bert', 'max', 'relu'), ('bert', 'sum', 'log1p_relu'), ('roberta', 'max', 'relu'),
    ('roberta', 'sum', 'relu')])
def test_the_library_gives_the_same_weights(kind, pooling, activation, tmp_path):
  """Of its folder, and of our exports of it: vectors, similarities and results of a search."""
  pytest.importorskip('sentence_transformers')
  from sentence_transformers import SparseEncoder
  theirs = library_folders.write_sparse_encoder(tmp_path / 'model', kind, pooling, activation)
  ours = plm_jax.load(tmp_path / 'model')
  assert ours.task.is_sparse and ours.similarity == 'dot' and ours.length == 10
  plm_jax.export(tmp_path / 'model', tmp_path / 'converted')
  assert plm_jax.export(ours, tmp_path / 'exported').how.startswith('SparseEncoder(')
  vectors = plm_jax.encode(ours, TEXTS)
  assert vectors.format == 'csr' and 0 < vectors.nnz < vectors.shape[0] * vectors.shape[1]
  encoders = [theirs] + [SparseEncoder(str(tmp_path / place), device='cpu')
                         for place in ('converted', 'exported')]
  for encoder in encoders:
    expected = encoder.encode(TEXTS, convert_to_sparse_tensor=False).numpy()
    np.testing.assert_allclose(vectors.toarray(), expected, atol=1e-5)
  want = theirs.similarity(theirs.encode_query(TEXTS[:1]), theirs.encode_document(TEXTS))[0]
  hits, = plm_jax.search(ours, TEXTS, TEXTS[0], top=len(TEXTS))
  np.testing.assert_allclose([hit.score for hit in sorted(hits)], want, rtol=1e-4, atol=1e-5)


def test_queries_without_a_model(tmp_path):
  """Weights of the tokens of queries, and a masked language model of documents (Router)."""
  pytest.importorskip('sentence_transformers')
  from sentence_transformers import SparseEncoder
  theirs = library_folders.write_sparse_encoder(tmp_path / 'model', 'bert', 'max', 'relu', True)
  ours, texts = plm_jax.load(tmp_path / 'model'), [*TEXTS, 'a a b c']
  assert ours.task.vector.queries == 'idf'
  plm_jax.export(tmp_path / 'model', tmp_path / 'converted')
  plm_jax.export(ours, tmp_path / 'exported')
  for encoder in (theirs, *(SparseEncoder(str(tmp_path / place), device='cpu')
                            for place in ('converted', 'exported'))):
    for prompt, encode in (('query', encoder.encode_query), ('document', encoder.encode_document)):
      expected = encode(texts, convert_to_sparse_tensor=False).numpy()
      found = plm_jax.encode(ours, texts, prompt=prompt)
      np.testing.assert_allclose(found.toarray(), expected, atol=1e-5)
  back = plm_jax.load(tmp_path / 'exported')
  np.testing.assert_array_equal(plm_jax.encode(back, texts, prompt='query').toarray(),
                                plm_jax.encode(ours, texts, prompt='query').toarray())
  hits, = plm_jax.search(ours, texts, texts[1], top=len(texts))
  want = theirs.similarity(theirs.encode_query(texts[1:2]), theirs.encode_document(texts))[0]
  np.testing.assert_allclose([hit.score for hit in sorted(hits)], want, rtol=1e-4, atol=1e-5)


def test_a_masked_language_model_alone(folder, tmp_path):
  """Without the library's files, `--sparse` makes the same vectors."""
  copy = shutil.copytree(folder, tmp_path / 'copy')
  for name in ('modules.json', 'config_sentence_transformers.json', 'sentence_bert_config.json'):
    (copy / name).unlink()
  from plm_jax.inference.sentence_vectors import with_sparse_vectors
  trained = plm_jax.load(copy)
  assert trained.task is None
  found = plm_jax.encode(with_sparse_vectors(trained), TEXTS[:3])
  np.testing.assert_allclose(
      found.toarray(), plm_jax.encode(folder, TEXTS[:3]).toarray(), atol=1e-6)


@pytest.mark.parametrize(('file', 'changes', 'message'), [
    ('config_sentence_transformers.json', {'max_active_dims': 64},
     'a maximum of 64 dimensions of sparse vectors is not supported'),
    ('1_SpladePooling/config.json', {'pooling_strategy': 'mean'},
     'pooling is max or sum, got .mean.'),
    ('1_SpladePooling/config.json', {'activation_function': 'gelu'},
     'activation is relu or log1p_relu')])
def test_unknown_settings_are_named(file, changes, message, folder, tmp_path):
  copy = shutil.copytree(folder, tmp_path / 'copy')
  path = copy / file
  path.write_text(json.dumps(json.loads(path.read_text()) | changes))
  with pytest.raises(ConvertError, match=message):
    plm_jax.load(copy)


def test_other_modules_are_refused(folder, tmp_path):
  copy = shutil.copytree(folder, tmp_path / 'copy')
  modules = json.loads((copy / 'modules.json').read_text())
  extra = {'idx': 2, 'name': '2', 'path': '2_SparseAutoEncoder',
           'type': 'sentence_transformers.sparse_encoder.models.SparseAutoEncoder'}
  (copy / 'modules.json').write_text(json.dumps([*modules, extra]))
  with pytest.raises(ConvertError, match='of a SparseEncoder are not supported: known are'):
    plm_jax.load(copy)
