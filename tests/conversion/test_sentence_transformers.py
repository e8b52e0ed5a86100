"""Folders of sentence-transformers: what is written, what is read back, and what is refused."""
import json
import shutil

import jax
import labelled
import numpy as np
import pytest
from sentence_model import trained_of

import plm_jax
from plm_jax import conversion, validation
from plm_jax.conversion import ConvertError
from plm_jax.errors import ConfigError
from plm_jax.finetuning.setup import resolve_run
from plm_jax.layers.pooling import VectorConfig
from plm_jax.recipes import finetune
from plm_jax.runs import run as runs
from plm_jax.tasks.batches import BatchShape, FeatureBatches
from plm_jax.tasks.embedding_losses import GuidedInBatch, TeacherVectors

TEXTS = ['the film is good', 'a book', '', 'who was of the film and the book and a film and a book and the film', 'ana']


@pytest.fixture(scope='module')
def trained():
  return trained_of(VectorConfig(('first', 'mean'), dense=12, activation='gelu', normalize=True))


@pytest.fixture(scope='module')
def folder(trained, tmp_path_factory):
  folder = tmp_path_factory.mktemp('exported') / 'model'
  exported = plm_jax.export(trained, folder)
  assert exported.how.startswith('SentenceTransformer(') and not exported.lost
  return folder


def test_what_is_written_is_read_back(trained, folder):
  """The same vectors, of an empty text and of one that loses its end too; each module has its place."""
  back = plm_jax.load(folder)
  assert back.task.vector == trained.task.vector and back.length == 12 and 'similar' in back.capabilities
  vectors = plm_jax.encode(trained, TEXTS)
  assert vectors.shape == (5, 12)
  np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
  np.testing.assert_array_equal(plm_jax.encode(back, TEXTS), vectors)
  listed = json.loads((folder / 'modules.json').read_text())
  assert [one['path'] for one in listed] == ['', '1_Pooling', '2_Dense', '3_Normalize']
  assert json.loads((folder / 'sentence_bert_config.json').read_text())['max_seq_length'] == 12


def test_vectors_by_hand(trained):
  """Without batches: one text, its states, its pooling."""
  model, task = trained.model, trained.task
  row = task.input_format.make_row([trained.tokenizer.encode(TEXTS[0])], trained.tokenizer.vocab, 12).tokens
  batch = {'tokens': np.array([row]), 'segments': np.ones((1, len(row)), np.int32)}
  hidden = np.asarray(model.backbone().apply({'params': trained.params['backbone']}, batch).hidden)[0]
  dense = trained.params['heads_embedding']['dense']
  x = jax.nn.gelu(np.concatenate([hidden[0], hidden.mean(0)]) @ dense['kernel'] + dense['bias'], approximate=False)
  np.testing.assert_allclose(plm_jax.encode(trained, TEXTS[0])[0], x / np.linalg.norm(x), atol=1e-5)


def changed(folder, tmp_path, file, change):
  copy = shutil.copytree(folder, tmp_path / 'copy')
  (copy / file).write_text(json.dumps(change(json.loads((copy / file).read_text()))))
  return copy


@pytest.mark.parametrize(('file', 'change', 'said'), [
    ('1_Pooling/config.json', lambda said: said | {'pooling_mode_attention': True},
     "the pooling 'attention' is not known: known are cls_token, mean_tokens"),
    ('1_Pooling/config.json', lambda said: {'pooling_mode': 'sum'}, "the pooling 'sum' is not known: known are cls"),
    ('1_Pooling/config.json', lambda said: {}, 'no pooling is enabled'),
    ('2_Dense/config.json', lambda said: said | {'activation_function': 'torch.nn.Softplus'},
     "the activation 'Softplus' is not known"),
    ('modules.json', lambda said: [*said, {'type': 'sentence_transformers.models.LSTM', 'path': 'x'}],
     r'known are Transformer, Pooling, Dense, Normalize, in this order'),
    ('sentence_bert_config.json', lambda said: said | {'do_lower_case': True}, 'the tokenizer keeps capitals')])
def test_what_is_not_known_is_refused_by_name(file, change, said, folder, tmp_path):
  copy = changed(folder, tmp_path, file, change)
  if 'capitals' in said:
    (copy / 'tokenizer_config.json').write_text('{"do_lower_case": false}')
  with pytest.raises(ConvertError, match=said):
    plm_jax.load(copy)


def test_later_releases_write_one_name(folder, tmp_path):
  copy = changed(folder, tmp_path, '1_Pooling/config.json', lambda said: {'pooling_mode': ['cls', 'mean']})
  assert plm_jax.load(copy).task.vector.pooling == ('first', 'mean')


def test_an_order_that_they_do_not_have(tmp_path):
  with pytest.raises(ConvertError, match='joins the vectors of poolings in the order cls_token, mean_tokens'):
    plm_jax.export(trained_of(VectorConfig(('mean', 'first'))), tmp_path / 'out')


def test_a_layer_of_training_alone_is_left_out(tmp_path):
  trained = trained_of(VectorConfig(('first',), dense=8, dense_used='training'))
  plm_jax.export(trained, tmp_path / 'out')
  back = plm_jax.load(tmp_path / 'out')
  assert back.task.vector == VectorConfig(('first',)) and not (tmp_path / 'out' / '2_Dense').exists()
  np.testing.assert_array_equal(plm_jax.encode(back, 'a film'), plm_jax.encode(trained, 'a film'))
  assert conversion.is_checkpoint(tmp_path / 'out')


def test_a_teacher_says_the_vectors(folder, trained, tmp_path):
  """Of a text and its translation both are to have that of the first; a student of another width is refused."""
  rows = [{'text': 'the film is good', 'translation': 'bo ana cy'}, {'text': 'a book', 'translation': 'dan'}]
  path = tmp_path / 'pairs.jsonl'
  path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  config = validation.with_paths(finetune.recipe('embedding', scale='test', train=(str(path),)), {
      'objective.vector_loss': TeacherVectors(teacher=str(folder)), 'objective.vector': VectorConfig(dense=12)})
  ready = resolve_run(config, labelled.tokenizer())
  wanted = plm_jax.encode(trained, [row['text'] for row in rows])
  np.testing.assert_array_equal(ready.train.features.values['target'], wanted[[0, 0, 1, 1]])
  batch, _ = FeatureBatches(ready.train.features, BatchShape(2, 16)).batch(0)
  assert batch['target'].shape == (2, 1, 12)
  vectors = batch['target'].repeat(2, 1)
  np.testing.assert_allclose(ready.config.objective.task_loss({'embedding': vectors}, batch)['embedding'], [0, 4])
  with pytest.raises(ConfigError, match=r'have 12 numbers, and those that are trained 32: --objective.vector.dense'):
    resolve_run(validation.with_paths(config, {'objective.vector': VectorConfig()}), labelled.tokenizer())
  with pytest.raises(ConfigError, match='teacher must name the model whose vectors are used'):
    resolve_run(validation.with_paths(config, {'objective.vector_loss': TeacherVectors()}), labelled.tokenizer())


def test_a_guide_reads_all_texts(folder, trained, tmp_path):
  rows = [{'query': 'the film', 'positive': 'a film', 'negatives': ['bo ana', 'dan']}, {'query': 'a book', 'positive': 'dan', 'negatives': ['cy']}]
  path = tmp_path / 'pairs.jsonl'
  path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  config = validation.with_paths(finetune.recipe('embedding', scale='test', train=(str(path),)), {
      'objective.vector_loss': GuidedInBatch(guide=str(folder))})
  ready = resolve_run(config, labelled.tokenizer())
  texts = ['the film', 'a film', 'bo ana', 'dan', 'a book', 'dan', 'cy', 'a book']
  np.testing.assert_allclose(ready.train.features.values['guide'], plm_jax.encode(trained, texts), atol=1e-6)
  batch, _ = FeatureBatches(ready.train.features, BatchShape(2, 16)).batch(0)
  assert batch['guide'].shape == (2, 4, 1, 12)
  with pytest.raises(ConfigError, match=r'vector-loss\.guide must name the model'):
    resolve_run(validation.with_paths(config, {'objective.vector_loss': GuidedInBatch()}), labelled.tokenizer())
  config = validation.with_paths(config, {'output': str(tmp_path / 'run'), 'data.tokenizer': ''})
  assert runs.run(config).finished


def test_similar_and_search(trained):
  cosines = plm_jax.similar(trained, 'the film is good', ['the film is good', 'a book'])
  vectors = plm_jax.encode(trained, ['the film is good', 'a book'])
  np.testing.assert_allclose(cosines, [1, vectors[0] @ vectors[1]], atol=1e-6)
  corpus = ['a book', 'the film is good', 'ana']
  for known in (corpus, plm_jax.encode(trained, corpus)):
    (hits,) = plm_jax.search(trained, known, 'the film is good', top=2)
    assert hits[0].number == 1 and hits[0].score == pytest.approx(1, abs=1e-5) and len(hits) == 2
  with pytest.raises(ConfigError, match='compared one by one, got 2 and 3'):
    plm_jax.similar(trained, ['a', 'b'], ['a', 'b', 'c'])
  with pytest.raises(ConfigError, match='the corpus is empty'):
    plm_jax.search(trained, [], 'a')


def test_the_length_of_later_releases_is_the_tokenizers(folder, tmp_path):
  copy = changed(folder, tmp_path, 'sentence_bert_config.json', lambda said: {})
  said = json.loads((copy / 'tokenizer_config.json').read_text())
  for stated, length in ((7, 7), (10 ** 30, plm_jax.load(folder).model.max_length)):
    (copy / 'tokenizer_config.json').write_text(json.dumps(said | {'model_max_length': stated}))
    assert plm_jax.load(copy).length == length


def test_search_puts_the_folders_prompts_in_front(folder, tmp_path):
  copy = shutil.copytree(folder, tmp_path / 'copy')
  settings = {'prompts': {'query': 'one ', 'passage': 'two '}, 'default_prompt_name': None}
  (copy / 'config_sentence_transformers.json').write_text(json.dumps(settings))
  model, corpus, query = plm_jax.load(copy), TEXTS[:2], TEXTS[1]
  found, = plm_jax.search(model, corpus, query, top=2)
  vectors = plm_jax.encode(model, [f'two {text}' for text in corpus])
  want = vectors @ plm_jax.encode(model, f'one {query}')[0]
  np.testing.assert_allclose([hit.score for hit in sorted(found)], want, atol=1e-5)
  assert [hit.text for hit in sorted(found)] == corpus
  (copy / '1_Pooling' / 'config.json').write_text('{"pooling_mode": ["cls", "mean"], "include_prompt": false}')
  with pytest.raises(ConvertError, match='include_prompt is false'):
    plm_jax.load(copy)
