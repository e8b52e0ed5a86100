"""Folders of sentence-transformers: export, import, and errors."""
import dataclasses
import json
import pathlib
import shutil
import warnings

import backbones
import jax
import labelled
import library_folders
import numpy as np
import pytest
from sentence_model import trained_of
import tokenizer_kinds

import plm_jax
from plm_jax import conversion, validation
from plm_jax.conversion import ConvertError, sentence_transformers
from plm_jax.errors import ConfigError
from plm_jax.finetuning.setup import resolve_run
from plm_jax.layers.pooling import VectorConfig
from plm_jax.recipes import finetune
from plm_jax.runs import run as runs
from plm_jax.tasks.batches import BatchShape, FeatureBatches
from plm_jax.tasks.embedding_losses import GuidedInBatch, TeacherVectors

TEXTS = ['the film is good', 'a book', '',
         'who was of the film and the book and a film and a book and the film', 'ana']


@pytest.fixture(scope='module')
def trained():
  return trained_of(VectorConfig(('first', 'mean'), dense=12, activation='gelu', normalize=True))


@pytest.fixture(scope='module')
def folder(trained, tmp_path_factory):
  folder = tmp_path_factory.mktemp('exported') / 'model'
  exported = plm_jax.export(trained, folder)
  assert exported.how.startswith('SentenceTransformer(') and not exported.lost
  return folder


def test_exported_folders_are_read_back(trained, folder):
  """The vectors are equal, also of an empty and of a truncated text; each module has its
  place."""
  back = plm_jax.load(folder)
  assert back.task.vector == trained.task.vector and back.length == 12
  assert 'similar' in back.capabilities
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
  row = task.input_format.make_row([trained.tokenizer.encode(TEXTS[0])], trained.tokenizer.vocab,
                                   12).tokens
  batch = {'tokens': np.array([row]), 'segments': np.ones((1, len(row)), np.int32)}
  hidden = np.asarray(model.backbone().apply({'params': trained.params['backbone']},
                                             batch).hidden)[0]
  dense = trained.params['heads_embedding']['dense']
  x = jax.nn.gelu(np.concatenate([hidden[0], hidden.mean(0)]) @ dense['kernel'] + dense['bias'],
                  approximate=False)
  np.testing.assert_allclose(plm_jax.encode(trained, TEXTS[0])[0], x / np.linalg.norm(x), atol=1e-5)


def changed(folder, tmp_path, file, change):
  copy = shutil.copytree(folder, tmp_path / 'copy')
  (copy / file).write_text(json.dumps(change(json.loads((copy / file).read_text()))))
  return copy


@pytest.mark.parametrize(('file', 'change', 'said'), [
    ('1_Pooling/config.json', lambda said: said | {'pooling_mode_attention': True},
     "the pooling 'attention' is not known: known are cls_token, mean_tokens"),
    ('1_Pooling/config.json', lambda said: {'pooling_mode': 'sum'},
     "the pooling 'sum' is not known: known are cls"),
    ('1_Pooling/config.json', lambda said: {}, 'no pooling is enabled'),
    ('2_Dense/config.json', lambda said: said | {'activation_function': 'torch.nn.Softplus'},
     "the activation 'Softplus' is not known"),
    ('modules.json', lambda said: [*said, {'type': 'sentence_transformers.models.LSTM',
                                           'path': 'x'}],
     r'known are Transformer, Pooling, Dense, Normalize, in this order'),
    ('sentence_bert_config.json', lambda said: said | {'do_lower_case': True},
     'the tokenizer keeps capitals')])
def test_unknown_settings_are_refused_by_name(file, change, said, folder, tmp_path):
  copy = changed(folder, tmp_path, file, change)
  if 'capitals' in said:
    (copy / 'tokenizer_config.json').write_text('{"do_lower_case": false}')
  with pytest.raises(ConvertError, match=said):
    plm_jax.load(copy)


def test_later_releases_write_one_name(folder, tmp_path):
  copy = changed(folder, tmp_path, '1_Pooling/config.json',
                 lambda said: {'pooling_mode': ['cls', 'mean']})
  assert plm_jax.load(copy).task.vector.pooling == ('first', 'mean')


@pytest.mark.parametrize(('modes', 'expected'),
                         [('cls', 'first'), (['mean'], 'mean'), (['cls', 'mean'], '')])
def test_a_classifier_uses_the_pooling_of_the_folder(folder, tmp_path, modes, expected):
  """Only a single pooling: vectors of several poolings are longer than the head's input."""
  copy = changed(folder, tmp_path, '1_Pooling/config.json', lambda said: {'pooling_mode': modes})
  assert finetune.read_initial_model(str(copy)).pooling == expected
  assert sentence_transformers.declared_pooling(tmp_path) == ''


def test_poolings_in_another_order(tmp_path):
  """Release 6 concatenates poolings in the order of a list; earlier ones have a fixed order."""
  trained = trained_of(VectorConfig(('mean', 'first')))
  plm_jax.export(trained, tmp_path / 'out')
  written = json.loads((tmp_path / 'out' / '1_Pooling' / 'config.json').read_text())
  assert written['pooling_mode'] == ['mean', 'cls']
  np.testing.assert_array_equal(
      plm_jax.encode(tmp_path / 'out', TEXTS), plm_jax.encode(trained, TEXTS))


def test_training_only_layers_are_ignored(tmp_path):
  trained = trained_of(VectorConfig(('first',), dense=8, dense_used='training'))
  plm_jax.export(trained, tmp_path / 'out')
  back = plm_jax.load(tmp_path / 'out')
  assert back.task.vector == VectorConfig(('first',)) and not (tmp_path / 'out' / '2_Dense').exists(
      )
  np.testing.assert_array_equal(plm_jax.encode(back, 'a film'), plm_jax.encode(trained, 'a film'))
  assert conversion.is_checkpoint(tmp_path / 'out')


def test_a_teacher_provides_the_target_vectors(folder, trained, tmp_path):
  """A text and its translation must both get the teacher's vector of the text; a student of
  another width is refused."""
  rows = [{'text': 'the film is good', 'translation': 'bo ana cy'},
          {'text': 'a book', 'translation': 'dan'}]
  path = tmp_path / 'pairs.jsonl'
  path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  config = validation.with_paths(finetune.recipe('embedding', scale='test', train=(str(path),)), {
      'objective.vector_loss': TeacherVectors(teacher=str(folder)),
      'objective.vector': VectorConfig(dense=12)})
  ready = resolve_run(config, labelled.tokenizer())
  wanted = plm_jax.encode(trained, [row['text'] for row in rows])
  np.testing.assert_array_equal(ready.train.features.values['target'], wanted[[0, 0, 1, 1]])
  batch, _ = FeatureBatches(ready.train.features, BatchShape(2, 16)).batch(0)
  assert batch['target'].shape == (2, 1, 12)
  vectors = batch['target'].repeat(2, 1)
  np.testing.assert_allclose(ready.config.objective.loss({'embedding': vectors},
                                                         batch)['embedding'], [0, 4])
  with pytest.raises(ConfigError,
                     match=r'have 12 numbers, and those that are trained 32: '
                           r'objective.vector.dense'):
    resolve_run(validation.with_paths(config, {'objective.vector': VectorConfig()}),
                labelled.tokenizer())
  with pytest.raises(ConfigError, match='teacher must name the model whose vectors are used'):
    resolve_run(validation.with_paths(config, {'objective.vector_loss': TeacherVectors()}),
                labelled.tokenizer())


def test_a_guide_reads_all_texts(folder, trained, tmp_path):
  rows = [{'query': 'the film', 'positive': 'a film', 'negatives': ['bo ana', 'dan']},
          {'query': 'a book', 'positive': 'dan', 'negatives': ['cy']}]
  path = tmp_path / 'pairs.jsonl'
  path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  config = validation.with_paths(finetune.recipe('embedding', scale='test', train=(str(path),)), {
      'objective.vector_loss': GuidedInBatch(guide=str(folder))})
  ready = resolve_run(config, labelled.tokenizer())
  texts = ['the film', 'a film', 'bo ana', 'dan', 'a book', 'dan', 'cy', 'a book']
  np.testing.assert_allclose(ready.train.features.values['guide'], plm_jax.encode(trained, texts),
                             atol=1e-6)
  batch, _ = FeatureBatches(ready.train.features, BatchShape(2, 16)).batch(0)
  assert batch['guide'].shape == (2, 4, 1, 12)
  with pytest.raises(ConfigError, match=r'vector_loss\.guide must name the model'):
    resolve_run(validation.with_paths(config, {'objective.vector_loss': GuidedInBatch()}),
                labelled.tokenizer())
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


def test_later_releases_take_the_length_from_the_tokenizer(folder, tmp_path):
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
  np.testing.assert_array_equal(plm_jax.encode(model, corpus, prompt='document'), vectors)
  with pytest.warns(UserWarning, match="the corpus with the prompt 'document'"):
    plm_jax.search(model, plm_jax.encode(model, corpus), query)
  with pytest.raises(ConfigError, match="no prompt 'STS': prompts are own, none, query, document"):
    plm_jax.encode(model, corpus, prompt='STS')


STORED = pathlib.Path(__file__).parents[1] / 'fixtures' / 'sentence_transformers'


def test_stored_folder_of_the_library():
  """Vectors of a folder of release 6: several poolings and dense layers, one of them a pickle,
  prompts that are not pooled, a length, a truncated size, and the dot product."""
  model = plm_jax.load(STORED / 'bi_encoder')
  want = json.loads((STORED / 'bi_encoder.json').read_text())
  texts = want['texts']
  for prompt, name in (('own', 'encode'), ('query', 'query'), ('document', 'document')):
    vectors = plm_jax.encode(model, texts, prompt=prompt)
    np.testing.assert_allclose(vectors, want[name], atol=1e-5)
  assert model.length == 10 and model.similarity == 'dot'
  hits, = plm_jax.search(model, texts, texts[0], top=len(texts))
  scores = [hit.score for hit in sorted(hits)]
  np.testing.assert_allclose(scores, want['similarity'], rtol=1e-5)


def test_conversion_of_a_stored_folder_keeps_everything(tmp_path):
  """From the folder, and from the loaded model."""
  source = STORED / 'bi_encoder'
  texts = json.loads((STORED / 'bi_encoder.json').read_text())['texts']
  want = plm_jax.encode(source, texts)
  for given in (source, plm_jax.load(source)):
    out = tmp_path / type(given).__name__
    exported = plm_jax.export(given, out)
    assert exported.how.startswith('SentenceTransformer(')
    np.testing.assert_array_equal(plm_jax.encode(out, texts), want)
    first, second = (
        sentence_transformers.read_folder(place)._replace(root='', params={})
        for place in (source, out))
    assert first == second


CROSS_ENCODERS = {
    'release 6': {}, 'release 4': {'sentence_transformers': {
        'activation_fn': 'torch.nn.modules.linear.Identity', 'version': '4.1.0'}},
    'release 3': {'sbert_ce_default_activation_function': 'torch.nn.modules.linear.Identity'},
    'no marks': {}}


@pytest.mark.parametrize('release', CROSS_ENCODERS)
def test_stored_cross_encoder_of_the_library(release, tmp_path):
  """Scores of pairs, one of them too long, of the layouts of all releases, and of their exports."""
  folder = shutil.copytree(STORED / 'cross_encoder', tmp_path / 'model')
  want = json.loads((STORED / 'cross_encoder.json').read_text())
  scores = np.array(want['logits'])
  if release != 'release 6':
    for name in ('modules.json', 'config_sentence_transformers.json', 'sentence_bert_config.json'):
      (folder / name).unlink()
    config = json.loads((folder / 'config.json').read_text())
    (folder / 'config.json').write_text(json.dumps(config | CROSS_ENCODERS[release]))
  if release == 'no marks':
    scores = 1 / (1 + np.exp(-scores))
  model = plm_jax.load(folder)
  plm_jax.export(folder, tmp_path / 'converted')
  plm_jax.export(model, tmp_path / 'exported')
  assert model.length == 16
  for given in (folder, model, tmp_path / 'converted', tmp_path / 'exported'):
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')
      hits, = plm_jax.rerank(given, want['query'], want['documents'])
    np.testing.assert_allclose([hit.score for hit in sorted(hits)], scores, atol=1e-5)


@pytest.mark.parametrize(('file', 'changes', 'message'), [
    ('config_sentence_transformers.json', {'activation_fn': 'torch.nn.modules.activation.Tanh'},
     'the activation torch.nn.modules.activation.Tanh of a cross-encoder is not supported'),
    ('config_sentence_transformers.json', {'prompts': {'query': 'one '}},
     "the prompt 'one ' of a cross-encoder is not supported"),
    ('config_sentence_transformers.json', {'model_type': 'MultiVectorEncoder'},
     "a model of the kind 'MultiVectorEncoder' is not supported"),
    ('sentence_bert_config.json', {'transformer_task': 'text-generation'},
     "transformer_task is 'text-generation', which is not supported")])
def test_unknown_settings_of_cross_encoders_are_named(file, changes, message, tmp_path):
  folder = shutil.copytree(STORED / 'cross_encoder', tmp_path / 'model')
  path = folder / file
  path.write_text(json.dumps(json.loads(path.read_text()) | changes))
  with pytest.raises(ConvertError, match=message):
    plm_jax.load(folder)


@pytest.mark.parametrize(('file', 'changes', 'message'), [
    ('2_Dense/config.json', {'use_residual': True}, 'a dense layer with a residual connection'),
    ('config_sentence_transformers.json', {'similarity_fn_name': 'maxsim'},
     "similarity_fn_name is 'maxsim': known are cosine, dot"),
    ('config_sentence_transformers.json', {'default_prompt_name': 'STS'}, 'is no prompt among'),
    ('sentence_bert_config.json', {'query_length': 8}, 'query_length is 8, which is not supported'),
    ('sentence_bert_config.json', {'modality_config': {'message': {}}},
     "modality_config is {'message': {}}, which is not supported")])
def test_unknown_settings_are_named(file, changes, message, tmp_path):
  folder = shutil.copytree(STORED / 'bi_encoder', tmp_path / 'model')
  path = folder / file
  path.write_text(json.dumps(json.loads(path.read_text()) | changes))
  with pytest.raises(ConvertError, match=message):
    plm_jax.load(folder)


@pytest.mark.parametrize('name', library_folders.BI_ENCODERS)
def test_the_library_gives_the_same_vectors(name, tmp_path):
  """The vectors and similarities of sentence-transformers, of its folder and of its exports."""
  pytest.importorskip('sentence_transformers')
  import sentence_transformers as library
  library_folders.write_bi_encoder(tmp_path / 'model', name)
  theirs = library.SentenceTransformer(str(tmp_path / 'model'), device='cpu')
  ours, texts = plm_jax.load(tmp_path / 'model'), library_folders.TEXTS
  plm_jax.export(tmp_path / 'model', tmp_path / 'converted')
  plm_jax.export(ours, tmp_path / 'exported')
  encoders = [theirs] + [library.SentenceTransformer(str(tmp_path / place), device='cpu')
                         for place in ('converted', 'exported')]
  for encoder in encoders:
    assert encoder.similarity_fn_name == theirs.similarity_fn_name
    for prompt, encode in (('own', encoder.encode), ('query', encoder.encode_query),
                           ('document', encoder.encode_document)):
      np.testing.assert_allclose(
          plm_jax.encode(ours, texts, prompt=prompt), encode(texts), atol=1e-5)
  want = theirs.similarity(theirs.encode_query(texts[:1]), theirs.encode_document(texts))[0]
  hits, = plm_jax.search(ours, texts, texts[0], top=len(texts))
  np.testing.assert_allclose([hit.score for hit in sorted(hits)], want, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('pooling', ['mean', 'last'])
@pytest.mark.parametrize('family', ['llama', 'qwen3', 'gemma3_text'])
def test_the_library_gives_the_same_vectors_of_bidirectional_decoders(family, pooling, tmp_path):
  """LLM2Vec. The last token is the end of the text; rows of a batch are padded."""
  pytest.importorskip('sentence_transformers')
  import sentence_transformers as library
  kind = 'SentencePiece of LLaMA' if family == 'gemma3_text' else 'byte BPE'
  model = validation.with_paths(backbones.small(family, 450, 32), {'causal': False})
  trained = trained_of(
      VectorConfig((pooling,)), 32, (family, model, tokenizer_kinds.KINDS[kind]()))
  texts = [*tokenizer_kinds.some_texts(4, 1), 'kot.']
  vectors = plm_jax.encode(trained, texts)
  causal = dataclasses.replace(trained, model=validation.with_paths(model, {'causal': True}))
  assert np.abs(plm_jax.encode(causal, texts) - vectors).max() > 1e-2
  exported = plm_jax.export(trained, tmp_path / 'model')
  assert exported.how.startswith('SentenceTransformer(')
  encoder = library.SentenceTransformer(str(tmp_path / 'model'), device='cpu')
  np.testing.assert_allclose(encoder.encode(texts), vectors, atol=1e-5)
  back = plm_jax.load(tmp_path / 'model')
  assert back.model.causal is False
  np.testing.assert_allclose(plm_jax.encode(back, texts), vectors, atol=1e-6)


@pytest.mark.parametrize('activation', ['Sigmoid', 'Identity'])
def test_the_library_gives_the_same_scores(activation, tmp_path):
  """Scores of a cross-encoder of sentence-transformers, of its folder and of its exports."""
  pytest.importorskip('sentence_transformers')
  import sentence_transformers as library
  library_folders.write_cross_encoder(tmp_path / 'model', activation)
  query, documents = library_folders.QUERY, library_folders.DOCUMENTS
  plm_jax.export(tmp_path / 'model', tmp_path / 'converted')
  plm_jax.export(plm_jax.load(tmp_path / 'model'), tmp_path / 'exported')
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    hits, = plm_jax.rerank(tmp_path / 'model', query, documents)
  for place in ('model', 'converted', 'exported'):
    scorer = library.CrossEncoder(str(tmp_path / place), device='cpu')
    want = scorer.predict([(query, document) for document in documents])
    np.testing.assert_allclose([hit.score for hit in sorted(hits)], want, atol=1e-5)
