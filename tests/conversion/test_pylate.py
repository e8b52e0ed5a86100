"""Folders of PyLate: vectors, scores, losses and settings are those of the library, both ways."""
import json
import pathlib
import shutil

import jax
import jax.numpy as jnp
import labelled
import numpy as np
import pytest

import plm_jax
from plm_jax import validation
from plm_jax.conversion import ConvertError
from plm_jax.layers.token_vectors import TokenVectorConfig
from plm_jax.recipes import finetune
from plm_jax.runs.run import run
from plm_jax.sources.row_readers import Example
from plm_jax.tasks.batches import BatchShape, FeatureBatches
from plm_jax.tasks.embedding_losses import InBatch, ScoreDistribution
from plm_jax.tasks.late_interaction import LateInteractionTask
from plm_jax.tasks.objective import TaskObjective

FOLDER = pathlib.Path(__file__).parent.parent / 'fixtures' / 'pylate'
CASES = [path.name for path in sorted(FOLDER.iterdir())]
BY_CASE = pytest.mark.parametrize('case', CASES)


def read_case(case):
  """Return the texts of a case, and what PyLate computes of them."""
  texts = json.loads((FOLDER / case / 'texts.json').read_text())
  with np.load(FOLDER / case / 'outputs.npz') as file:
    return texts, dict(file)


def check_vectors(model, texts, outputs):
  """Compare the vectors of all texts with PyLate's."""
  for kind in ('query', 'document'):
    found = plm_jax.encode(model, texts['queries' if kind == 'query' else 'documents'], prompt=kind)
    for number, vectors in enumerate(found):
      np.testing.assert_allclose(vectors, outputs[f'{kind}/{number}'], atol=1e-5)


@BY_CASE
def test_vectors_and_scores_are_those_of_pylate(case):
  texts, outputs = read_case(case)
  model = plm_jax.load(FOLDER / case / 'model')
  check_vectors(model, texts, outputs)
  for query, scores in zip(texts['queries'], outputs['scores'], strict=True):
    np.testing.assert_allclose(
        plm_jax.similar(model, query, texts['documents']), scores, atol=1e-4)
  assert model.length == 20 and model.task.vector.query_length == 14


@BY_CASE
def test_an_export_is_read_by_both(case, tmp_path):
  """The settings are those that PyLate has written, and the vectors stay the same."""
  texts, outputs = read_case(case)
  exported = plm_jax.export(plm_jax.load(FOLDER / case / 'model'), tmp_path / 'out')
  assert exported.how.startswith('models.ColBERT(') and not exported.lost
  check_vectors(plm_jax.load(tmp_path / 'out'), texts, outputs)
  for name in ('modules.json', 'config_sentence_transformers.json', '1_Dense/config.json'):
    theirs, ours = (json.loads((folder / name).read_text())
                    for folder in (FOLDER / case / 'model', tmp_path / 'out'))
    if isinstance(theirs, dict):
      theirs = {key: value for key, value in theirs.items()
                if key not in ('__version__', 'use_residual', 'module_input_name',
                               'module_output_name')}
    assert ours == theirs, name


@BY_CASE
@pytest.mark.parametrize('name', ['contrastive', 'kl', 'kl_min_max'])
def test_losses_and_gradients_are_those_of_pylate(case, name):
  texts, outputs = read_case(case)
  model = plm_jax.load(FOLDER / case / 'model')
  loss = InBatch(temperature=1.0) if name == 'contrastive' else ScoreDistribution(
      min_max=name == 'kl_min_max')
  task = LateInteractionTask(family=model.family, vector=model.task.vector, vector_loss=loss)
  pairs = zip(texts['queries'], texts['documents'][::2], texts['documents'][1::2], strict=True)
  labels = [None] * 3 if name == 'contrastive' else map(tuple, texts['teacher'])
  examples = [Example(own, label) for own, label in zip(pairs, labels, strict=True)]
  features = task.features(examples, model.tokenizer, model.length)
  batch, _ = FeatureBatches(features, BatchShape(3, 20)).lay_out(np.arange(3))
  objective = TaskObjective(task)
  batch = objective.corrupt(jax.random.key(0), jax.tree.map(jnp.asarray, batch),
                            model.tokenizer.vocab)
  batch.pop('texts', None)  # PyLate keeps equal texts as negatives
  module, params = objective.build(model.model, False), jax.tree.map(jnp.asarray, model.params)
  def mean(kernel):
    params['heads_embedding']['dense']['kernel'] = kernel
    total, weight = task.loss(module.apply({'params': params}, batch), batch)['embedding']
    return total / weight
  value, gradient = jax.jit(jax.value_and_grad(mean))(params['heads_embedding']['dense']['kernel'])
  assert float(value) == pytest.approx(float(outputs[name]), abs=2e-6, rel=2e-6)
  scale = np.abs(outputs[f'gradient/{name}']).max()
  np.testing.assert_allclose(gradient.T, outputs[f'gradient/{name}'], atol=1e-5 * max(1, scale))


def changed(tmp_path, **settings):
  """Copy a folder with other settings."""
  copy = shutil.copytree(FOLDER / 'bert' / 'model', tmp_path / 'copy')
  path = copy / 'config_sentence_transformers.json'
  path.write_text(json.dumps(json.loads(path.read_text()) | settings))
  return copy


def test_settings_that_are_absent_have_the_defaults_of_pylate(tmp_path):
  names = ('query_length', 'document_length', 'skiplist_words', 'do_query_expansion',
           'attend_to_expansion_tokens', 'query_prefix', 'document_prefix')
  model = plm_jax.load(changed(tmp_path, **dict.fromkeys(names)))
  assert model.task.vector == TokenVectorConfig(
      dense=8, query_token='[Q] ', document_token='[D] ')
  assert model.length == 40  # that of the encoder; PyLate's is 180


def test_unknown_settings_are_refused_by_name(tmp_path):
  with pytest.raises(ConvertError, match="query_length is '32', expected int"):
    plm_jax.load(changed(tmp_path, query_length='32'))
  shutil.rmtree(tmp_path / 'copy')
  copy = changed(tmp_path)
  path = copy / '1_Dense' / 'config.json'
  path.write_text(json.dumps(json.loads(path.read_text()) | {'use_residual': True}))
  with pytest.raises(ConvertError, match='a dense layer with a residual connection'):
    plm_jax.load(copy)


def test_folders_of_the_authors_code(tmp_path):
  """The same model as they write it has the same vectors."""
  safetensors = pytest.importorskip('safetensors.numpy')
  texts, outputs = read_case('bert')
  given = FOLDER / 'bert' / 'model'
  folder = shutil.copytree(given, tmp_path / 'colbert')
  for name in ('modules.json', 'config_sentence_transformers.json', 'sentence_bert_config.json'):
    (folder / name).unlink()
  shutil.rmtree(folder / '1_Dense')
  tensors = safetensors.load_file(given / 'model.safetensors')
  tensors = {f'bert.{name}': x for name, x in tensors.items()}
  tensors |= safetensors.load_file(given / '1_Dense' / 'model.safetensors')
  safetensors.save_file(tensors, folder / 'model.safetensors')
  config = json.loads((given / 'config.json').read_text())
  (folder / 'config.json').write_text(json.dumps(config | {'architectures': ['HF_ColBERT']}))
  (folder / 'artifact.metadata').write_text(json.dumps({
      'query_token_id': '[Q] ', 'doc_token_id': '[D] ', 'query_maxlen': 14, 'doc_maxlen': 20,
      'attend_to_mask_tokens': False}))
  model = plm_jax.load(folder)
  check_vectors(model, texts, outputs)
  plm_jax.export(model, tmp_path / 'out')
  check_vectors(plm_jax.load(tmp_path / 'out'), texts, outputs)


@pytest.mark.slow
def test_a_run_starts_from_a_folder(tmp_path):
  """With its projection and its settings: nearly nothing is learned, and the vectors stay."""
  texts, outputs = read_case('bert')
  path = tmp_path / 'pairs.jsonl'
  pairs = zip(texts['queries'], texts['documents'], strict=False)
  path.write_text(''.join(json.dumps({'query': query, 'positive': document}) + '\n'
                          for query, document in pairs))
  start = finetune.read_initial_model(str(FOLDER / 'bert' / 'model'))
  config = validation.with_paths(
      finetune.recipe('colbert', start, 'test', (str(path),)), {
          'output': str(tmp_path / 'run'), 'optim.peak': 1e-9, 'data.epochs': 0.0,
          'train.phases': labelled.phases(1, 20)})
  assert config.objective.vector == plm_jax.load(start.folder).task.vector
  assert run(config).finished
  check_vectors(tmp_path / 'run', texts, outputs)
