"""Sentence vectors as a task: what is learned from, how it is measured, and what cannot be."""

import dataclasses
import json

import labelled
import numpy as np
import pytest

import plm_jax
from plm_jax import validation
from plm_jax.cli import finetune as command
from plm_jax.config.run import check
from plm_jax.errors import ConfigError
from plm_jax.finetuning.setup import resolve_run
from plm_jax.layers.pooling import VectorConfig
from plm_jax.loading import loaded_model
from plm_jax.models import bert
from plm_jax.recipes import finetune
from plm_jax.runs.run import run
from plm_jax.sources.row_readers import Example
from plm_jax.tasks.embedding_losses import LOSSES, CosineRegression, InBatch, Triplet
from plm_jax.tasks.labeled_data import read_examples
from plm_jax.tasks.sentence_embedding import (
  EmbeddingPrediction,
  EmbeddingTask,
  group_queries,
  make_triplets,
)
from plm_jax.tasks.sources import SourceError, read_sources

PAIRS = [('the film is good', 'a fine film', 5), ('the film is good', 'a poor book', 0),
         ('the book was bad', 'a poor book', 4), ('ana was bad', 'a fine film', 1),
         ('bo is fine', 'bo was good', 4),
         ('cy is poor', 'dan was good', 0.5)]
TRIPLES = [{'anchor': 'the film is good', 'positive': 'a fine film', 'negative': 'a poor film'},
           {'anchor': 'the book was bad', 'positive': 'a poor book', 'negative': 'a good book'},
           {'anchor': 'ana is fine', 'positive': 'ana was good', 'negative': 'ana is poor'}]


@pytest.fixture(scope='module')
def home(tmp_path_factory):
  folder = tmp_path_factory.mktemp('vectors')
  labelled.tokenizer().save(folder / 'tokenizer')
  def write(name, rows):
    (folder / name).write_text(''.join(json.dumps(row) + '\n' for row in rows))
  scored = [dict(zip(('sentence1', 'sentence2', 'score'), pair, strict=True)) for pair in PAIRS]
  write('pairs.jsonl', scored * 3)
  write('dev.jsonl', scored)
  write('triples.jsonl', TRIPLES * 5)
  write('scored.jsonl', [{**row, 'scores': [3.0, 1.0]} for row in TRIPLES * 5])
  write('classes.jsonl', [{'sentence1': a, 'sentence2': b, 'label': 'yes' if n > 2 else 'no'}
                          for a, b, n in PAIRS * 3])
  (folder / 'texts.txt').write_text('\n\n'.join(row['anchor'] for row in TRIPLES * 4))
  return folder


def config_of(home, name, train, steps=4, **changes):
  config = finetune.recipe('embedding', scale='test', train=(str(home / train),),
                           dev=(str(home / 'dev.jsonl'),))
  return validation.with_paths(config, {
      'objective.vector_loss': LOSSES[name], 'data.epochs': 0.0,
      'data.tokenizer': str(home / 'tokenizer'),
      'train.phases': labelled.phases(steps), 'train.log_every': 1, 'train.eval_every': 2,
      'train.save_every': 2,
      'mesh.data': 1, 'model.vocab': 80,
      **{path.replace('__', '.'): value for path, value in changes.items()}})


@pytest.mark.slow
@pytest.mark.parametrize(('name', 'train'), [
    ('in_batch', 'triples.jsonl'), ('softmax', 'classes.jsonl'), ('margin_mse', 'scored.jsonl'),
    *(pytest.param(name, train, marks=pytest.mark.release) for name, train in (
        ('cosine', 'pairs.jsonl'), ('triplet', 'triples.jsonl'), ('cosent', 'pairs.jsonl'),
        ('in_batch', 'texts.txt'),
        ('kl', 'scored.jsonl')))])
def test_a_run_of_each_loss(name, train, home, tmp_path):
  """It ends with the checkpoint of the best Spearman, which the loaded model has too."""
  config = config_of(home, name, train, output=str(tmp_path),
                     train__accumulate=2 if name == 'in_batch' else 1)
  result = run(config)
  assert result.finished and {*result.heldout} == {'spearman', 'pearson'}
  assert result.best is not None and np.isfinite(result.heldout['spearman'])
  trained = loaded_model.load_model(tmp_path)
  assert isinstance(trained.task, EmbeddingTask) and trained.task.vector_loss == LOSSES[name]


def test_a_development_set_may_be_searched(home):
  config = config_of(home, 'in_batch', 'triples.jsonl', objective__measured_by='retrieval')
  config = validation.with_paths(config, {'data.dev': config.data.train})
  ready = resolve_run(config, labelled.tokenizer())
  some = ready.dev['']
  assert ready.config.objective.example_kind == 'embedding' and ready.config.train.best == 'ndcg_10'
  vectors = np.eye(len(some.features), 15, dtype=np.float32)
  # every anchor lies where its positive does, of which several are one text
  vectors[0::3] = vectors[1::3]
  found = ready.config.objective.predict(some.examples, some.features, [*vectors])
  assert found[0].value == pytest.approx(1.0) and found[0].vectors.shape == (3, 15)
  scores = ready.config.objective.scores(some.examples, found)
  assert scores['recall_10'] == 100.0 and tuple(scores) == ready.config.objective.metric_names


def test_triplets_of_pairs_with_classes():
  labels = ('no', 'yes', 'so')
  pairs = [Example(('a', 'b'), 1), Example(('a', 'c'), 0), Example(('a', 'd'), 2),
           Example(('e', 'f'), 1),
           Example(('a', 'g'), 1)]
  def texts(least):
    return [example.texts for example in make_triplets(pairs, labels, 'yes', 'no', least)]
  assert texts(1) == [('a', 'b', 'c'), ('a', 'g', 'c'), ('e', 'f')]
  assert texts(3) == [('a', 'b', 'c'), ('a', 'g', 'c')]
  with pytest.raises(ConfigError, match="there is no class 'maybe' among no, yes, so"):
    make_triplets(pairs, labels, 'maybe', '', 1)


def test_a_text_alone_is_its_own_positive():
  task = EmbeddingTask(vector_loss=InBatch())
  found = task.features([Example(('the film',)), Example(('ana', 'bo'))], labelled.tokenizer(), 16)
  assert found.group == 2 and found.tokens[0].tolist() == found.tokens[1].tolist() != found.tokens[
      2].tolist()
  np.testing.assert_array_equal(found.values['real'], 2)


def test_prompts_mark_queries_and_documents(home, tmp_path):
  config = validation.with_paths(config_of(home, 'in_batch', 'triples.jsonl'), {
      'objective.query_prompt': 'ana ', 'objective.document_prompt': 'the ',
      'output': str(tmp_path / 'run')})
  tokenizer = labelled.tokenizer()
  train = resolve_run(config, tokenizer).train
  size = train.features.group
  first, second = (train.features.tokens[number].tolist() for number in (0, 1))
  assert tokenizer.encode(f'ana {TRIPLES[0]["anchor"]}') == first[1:-1] and size == 3
  assert tokenizer.encode(f'the {TRIPLES[0]["positive"]}') == second[1:-1]
  run(config)
  trained = loaded_model.load_model(tmp_path / 'run')
  assert trained.prompts == {'query': 'ana ', 'document': 'the '}
  plm_jax.export(trained, tmp_path / 'out')
  said = json.loads((tmp_path / 'out/config_sentence_transformers.json').read_text())
  assert said['prompts'] == {'query': 'ana ', 'document': 'the '}
  assert said['default_prompt_name'] == 'document' and said['similarity_fn_name'] == 'cosine'
  again = plm_jax.load(tmp_path / 'out')
  texts = ['a film', 'a book']
  for model in (trained, again):
    vectors = plm_jax.encode(model, texts)  # after the prompt of documents
    np.testing.assert_allclose(
        vectors, plm_jax.encode(model, [f'the {text}' for text in texts], prompt='none'), atol=1e-6)
    np.testing.assert_allclose(
        [[hit.score for hit in plm_jax.search(model, corpus, 'the film')[0]]
         for corpus in (texts, vectors)], [[hit.score for hit in plm_jax.search(
             trained, texts, 'the film')[0]]] * 2, atol=1e-5)
  hits = [plm_jax.search(model, ['a film', 'a book'], 'the film')[0] for model in (trained, again)]
  assert [[hit.number for hit in some] for some in hits] == [[hit.number for hit in hits[0]]] * 2


@pytest.mark.parametrize(('loss', 'normalize', 'similarity'), [
    ('in_batch', False, 'cosine'), ('kl', False, 'dot'), ('margin_mse', False, 'dot'),
    ('kl', True, 'cosine')])
def test_search_compares_as_the_loss_does(loss, normalize, similarity):
  """Predictions too; a given similarity counts in any case."""
  vector = VectorConfig(normalize=normalize)
  task = EmbeddingTask(vector_loss=LOSSES[loss], vector=vector)
  assert task.compared_by == similarity
  assert dataclasses.replace(task, similarity='euclidean').compared_by == 'euclidean'
  outputs, examples = np.array([[3.0, 4.0], [6.0, 8.0]]), [Example(('a', 'b'))]
  features = task.features(examples, labelled.tokenizer(), 16)
  prediction, = task.predict(examples, features, outputs)
  assert prediction.value == pytest.approx(50.0 if similarity == 'dot' else 1.0)


def test_scored_documents_are_examples(home):
  task = EmbeddingTask(vector_loss=LOSSES['kl'])
  found = read_sources('rerank', [str(home / 'scored.jsonl')]).examples
  examples = task.training_examples(found)
  assert examples[0].texts == tuple(TRIPLES[0].values()) and examples[0].label == (3.0, 1.0)
  features = task.features(examples, labelled.tokenizer(), 32)
  assert features.group == 3 and features.values['scores'][0].tolist() == [3.0, 1.0]
  with pytest.raises(ConfigError,
                     match='ScoreDistribution learns from examples of 3 to 65 texts, got 2'):
    task.training_examples([Example(('a',), (1.0,), ('b',), where='x')])


def test_what_cannot_be_learned():
  pair, alone = Example(('a', 'b'), 3.0, where='x.tsv:2'), Example(('a',), where='x.txt:1')
  with pytest.raises(ConfigError,
                     match=r'x.tsv:2: Triplet learns from examples of 3 texts, got 2: a text, one '
                           r'that'):
    EmbeddingTask(vector_loss=Triplet()).training_examples([pair])
  with pytest.raises(ConfigError, match=r'x.txt:1: Triplet learns from examples of 3 texts, got 1'):
    EmbeddingTask(vector_loss=Triplet()).training_examples([alone])
  with pytest.raises(ConfigError,
                     match=r'x.tsv:2: CosineRegression learns from numbers from 0 to 1, got 3.0: '
                           r'obj'):
    EmbeddingTask(vector_loss=CosineRegression(full=1.0)).training_examples([pair])
  with pytest.raises(ConfigError, match=r'x.txt:1: expected two texts, which are compared, got 1'):
    EmbeddingTask().features([alone], labelled.tokenizer(), 16)


def test_an_empty_sentence_has_a_place(tmp_path):
  path = tmp_path / 'pairs.jsonl'
  path.write_text('{"anchor": "a", "positive": "b"}\n{"anchor": "a", "positive": " "}\n')
  with pytest.raises(SourceError, match=r"pairs.jsonl:2: the column 'positive' is empty"):
    read_sources('embedding', [str(path)])


def test_negatives_come_in_a_list_or_in_columns(tmp_path):
  path = tmp_path / 'pairs.jsonl'
  path.write_text('{"query": "a", "positive": "b", "negatives": ["c", "d"]}\n')
  assert read_sources('embedding', [str(path)]).examples[0].texts == ('a', 'b', 'c', 'd')
  path.write_text('{"query": "a", "positive": "b", "negatives": ["c", ""]}\n')
  with pytest.raises(SourceError, match="the column 'negatives' must hold texts"):
    read_sources('embedding', [str(path)])


def test_options_of_other_tasks():
  with pytest.raises(ConfigError,
                     match=r'auxiliary and .*regularizer are for other tasks than sentence '
                           r'vectors'):
    EmbeddingTask(auxiliary=0.5)
  with pytest.raises(ConfigError, match='--loss is for tasks of another kind than sst2'):
    command.parse('sst2', ['--scale=test', '--loss=triplet'], '')
  with pytest.raises(ConfigError, match=r'--loss is one of softmax, .*, got .mse'):
    command.parse('embedding', ['--scale=test', '--loss=mse'], '')
  with pytest.raises(ConfigError,
                     match=r'prefixes are shorter than the vector, which has 32 numbers, got '
                           r'\[64\]'):
    EmbeddingTask(prefixes=(16, 64)).heads(labelled_model())


def labelled_model():
  return finetune.recipe('embedding', scale='test').model


@pytest.mark.parametrize('name', ['sbert_nli', 'sbert_sts', 'simcse', 'simcse_nli'])
@pytest.mark.parametrize('scale', ['laptop', 'test'])
def test_recipes_learn_what_every_machine_has(name, scale):
  config = finetune.recipe(name, scale=scale)
  check(config)
  assert config.data.train[0].startswith('embedded:') and config.data.dev == (
      'embedded:similarity:dev',)
  assert config.objective.vector.dense in (0, config.model.block.width)
  assert config.train.best == 'main' and config.objective.metric_names[0] == 'spearman'


def test_published_settings():
  """Reimers and Gurevych 2019, section 3.1; README of princeton-nlp/SimCSE."""
  start = finetune.InitialModel('bert-base-uncased', 'bert', bert.base())
  nli, sts = (finetune.recipe(name, start) for name in ('sbert_nli', 'sbert_sts'))
  unsupervised = finetune.recipe('simcse', start, train=('wiki.txt',))
  for config, epochs, batch, peak, length in ((nli, 1, 16, 2e-5, 128), (sts, 4, 16, 2e-5, 128),
                                              (unsupervised, 1, 64, 3e-5, 32)):
    phase = config.train.phases[0]
    assert (config.data.epochs, phase.batch, config.optim.peak,
            phase.length) == (epochs, batch, peak, length)
  assert nli.data.warmup == sts.data.warmup == 0.1 and unsupervised.data.warmup == 0
  assert unsupervised.objective.vector_loss == InBatch(temperature=0.05)


def test_pairs_that_measure_may_call_their_similarity_as_it_is(tmp_path):
  """What sbert_nli learns from has classes under `label`, what STS-B measures it by has `score`."""
  config = finetune.recipe('sbert_nli', scale='test', train=('nli.tsv',))
  for column in ('score', 'label'):
    path = tmp_path / f'{column}.tsv'
    path.write_text(f'sentence1\tsentence2\t{column}\na cat\ta dog\t2.5\na cat\ta car\t0.5\n')
    found = read_examples(config.objective, [str(path)], 'dev', config.data)
    assert [example.label for example in found.examples] == [2.5, 0.5]


@pytest.mark.parametrize('name', ['embedding', 'sbert_sts'])
def test_built_in_pairs_are_measured_by_their_score(name):
  """They have a class under `label` too."""
  config = finetune.recipe(name, scale='test')
  found = read_examples(config.objective, list(config.data.dev), 'dev', config.data)
  assert {example.label for example in found.examples} == {0.0, 2.5, 5.0}


def test_a_query_with_several_positives_counts_once_and_does_not_find_itself():
  """The queries are q, with b and c, and b, with c; b is left out of the ranking for itself."""
  vectors = {'q': [1, 0], 'b': [0.6, 0.8], 'c': [-1, 0.1]}
  pairs = [('q', 'b'), ('q', 'c'), ('b', 'c')]
  examples = [Example(pair) for pair in pairs]
  predictions = [EmbeddingPrediction(0, np.array([vectors[text] for text in pair], np.float32))
                 for pair in pairs]
  search = group_queries(examples)
  assert search.corpus == ['b', 'c'] and search.relevant == [{0, 1}, {1}] and search.own == [-1, 0]
  found = EmbeddingTask(measured_by='retrieval').scores(examples, predictions)
  assert found == {'ndcg_10': 100.0, 'mrr': 100.0, 'recall_1': 75.0, 'recall_10': 100.0}
