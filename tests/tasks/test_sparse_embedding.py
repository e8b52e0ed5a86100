"""Sparse vectors (SPLADE) as a task: losses against numpy and sentence-transformers, the warmup of
regularizers, and a run that learns."""
import json
import random

import jax
import jax.numpy as jnp
import labelled
import numpy as np
import pytest

import plm_jax
from plm_jax import validation
from plm_jax.api import retrieval
from plm_jax.checkpoints.checkpoint import CheckpointError
from plm_jax.errors import ConfigError
from plm_jax.layers.splade import SpladeConfig
from plm_jax.objectives import PROGRESS
from plm_jax.recipes import finetune
from plm_jax.runs.run import run
from plm_jax.tasks.embedding_losses import InBatchProducts, ScoreDistribution, ScoreMargins
from plm_jax.tasks.sentence_embedding import EmbeddingTask

ROWS, TEXTS, VOCAB = 4, 3, 9


def sparse_vectors(seed=0):
  """Vectors [B, C, V], most of their weights 0, as a model makes them."""
  logits = np.random.default_rng(seed).normal(size=(ROWS, TEXTS, VOCAB), scale=2)
  return np.log1p(np.maximum(logits, 0))


def batch_of(real=(TEXTS,) * ROWS, weight=(1.0,) * ROWS, **more):
  return {'weight': jnp.array(weight)[:, None], 'real': jnp.array(real)[:, None],
          'label': jnp.zeros((ROWS, 1)), **more}


def total(task, vectors, batch):
  losses = task.loss({'embedding': vectors}, batch)
  return sum(losses[name][0] / losses[name][1] for name in task.terms)


def literal(task, x, real, weight):
  """The sum of all terms, example by example, in float64."""
  rows = [row for row in range(ROWS) if weight[row]]
  nll = []
  for row in rows:
    scores = [x[row, 0] @ x[row, 1]]
    scores += [x[row, 0] @ x[other, text] for other in rows for text in range(1, real[other])
               if (other, text) != (row, 1)]
    nll.append(np.log(np.exp(scores).sum()) - scores[0])
  cfg, found = task.vector, np.mean(nll)
  queries = np.stack([x[row, 0] for row in rows])
  documents = np.stack([x[row, text] for row in rows for text in range(1, real[row])])
  for vectors, penalty, factor in ((queries, cfg.query_penalty, cfg.query_weight),
                                   (documents, cfg.document_penalty, cfg.document_weight)):
    if penalty == 'flops':
      found += factor * sum(np.mean(np.abs(vectors[:, token])) ** 2 for token in range(VOCAB))
    else:
      found += factor * np.mean([np.abs(vector).sum() for vector in vectors])
  return found


@pytest.mark.parametrize('penalties', [('flops', 'flops'), ('l1', 'flops'), ('flops', 'l1')])
def test_terms_and_their_gradients_by_hand(penalties):
  """One example has a document less, and one only fills the batch."""
  task = EmbeddingTask(vector_loss=InBatchProducts(), vector=SpladeConfig(
      query_penalty=penalties[0], document_penalty=penalties[1], query_weight=0.3,
      document_weight=0.2))
  real, weight, x = (3, 2, 3, 3), (1.0, 1.0, 1.0, 0.0), sparse_vectors() + 0.01
  batch = batch_of(real, weight)
  assert task.terms == ('embedding', 'query_sparsity', 'document_sparsity') and task.cross_row
  function = jax.jit(lambda vectors: total(task, vectors, batch))
  given = jnp.asarray(x, jnp.float32)
  assert float(function(given)) == pytest.approx(literal(task, x, real, weight), rel=1e-6)
  gradient = jax.grad(function)(given)
  for place in np.ndindex(x.shape):
    step = np.zeros(x.shape)
    step[place] = 1e-6
    difference = literal(task, x + step, real, weight) - literal(task, x - step, real, weight)
    assert gradient[place] == pytest.approx(difference / 2e-6, abs=1e-5)


def test_active_dimensions_are_counted():
  task, x = EmbeddingTask(vector=SpladeConfig()), sparse_vectors()
  losses = task.loss({'embedding': jnp.asarray(x)}, batch_of((3, 2, 3, 3), (1.0, 1.0, 1.0, 0.0)))
  queries = losses['query_dimensions']
  assert float(queries[0] / queries[1]) == pytest.approx((x[:3, 0] > 0).sum(-1).mean())
  documents = np.stack([x[0, 1], x[0, 2], x[1, 1], x[2, 1], x[2, 2]])
  found = losses['document_dimensions']
  assert float(found[0] / found[1]) == pytest.approx((documents > 0).sum(-1).mean())


@pytest.mark.parametrize(('warmup', 'progress', 'share'), [
    (0.5, 0.0, 0.0), (0.5, 0.1, 0.04), (0.5, 0.25, 0.25), (0.5, 0.5, 1.0), (0.5, 0.9, 1.0),
    (0.0, 0.0, 1.0)])
def test_regularizers_grow_with_the_square_of_the_step(warmup, progress, share):
  task = EmbeddingTask(vector=SpladeConfig(warmup=warmup))
  vectors = {'embedding': jnp.asarray(sparse_vectors())}
  whole = task.loss(vectors, batch_of())
  found = task.loss(vectors, batch_of(**{PROGRESS: jnp.full(ROWS, progress)}))
  for name in ('query_sparsity', 'document_sparsity'):
    assert float(found[name][0]) == pytest.approx(share * float(whole[name][0]), rel=1e-6)
  assert task.changes_over_run == (warmup > 0)


def library_model():
  """Return a SparseEncoder whose losses get vectors, and no texts."""
  pytest.importorskip('sentence_transformers')
  from sentence_transformers import SparseEncoder
  from sentence_transformers.sparse_encoder.modules import SpladePooling
  return SparseEncoder(modules=[SpladePooling()], device='cpu')


@pytest.mark.parametrize('name', ['in_batch', 'margin_mse', 'kl'])
def test_losses_of_the_library(name, monkeypatch):
  """SpladeLoss of sentence-transformers with in-batch negatives, MarginMSE and KL divergence."""
  model = library_model()
  from sentence_transformers.sparse_encoder import losses as library
  from sentence_transformers.sparse_encoder.losses import splade
  import torch
  ours, theirs = {
      'in_batch': (InBatchProducts(), library.SparseMultipleNegativesRankingLoss(model)),
      'margin_mse': (ScoreMargins(), library.SparseMarginMSELoss(model)),
      'kl': (ScoreDistribution(temperature=2.0), library.SparseDistillKLDivLoss(model)),
  }[name]
  task = EmbeddingTask(
      vector_loss=ours, vector=SpladeConfig(query_weight=0.3, document_weight=0.2))
  x = sparse_vectors(1).astype(np.float32)
  scores = np.random.default_rng(2).normal(size=(ROWS, TEXTS - 1)).astype(np.float32)
  columns = [torch.tensor(x[:, text]) for text in range(TEXTS)]
  monkeypatch.setattr(splade, 'embed_columns', lambda *_, **__: columns)
  expected = library.SpladeLoss(
      model, theirs, document_regularizer_weight=0.2, query_regularizer_weight=0.3)
  found = task.loss({'embedding': jnp.asarray(x)}, batch_of(scores=jnp.asarray(scores)[:, None]))
  for ours, wanted in zip(('embedding', 'document_sparsity', 'query_sparsity'),
                          expected([], torch.tensor(scores)).values(), strict=True):
    assert float(found[ours][0] / found[ours][1]) == pytest.approx(float(wanted), rel=1e-6)


def test_prefixes_are_for_dense_vectors():
  with pytest.raises(ConfigError, match='prefixes are for dense vectors'):
    EmbeddingTask(vector=SpladeConfig(), prefixes=(8,))


TOPICS = ('film', 'book', 'good', 'bad', 'fine', 'poor', 'ana', 'bo', 'cy', 'dan')


def write_pairs(path, count, seed):
  """Write queries of one word, and documents with it among common words."""
  draw, rows = random.Random(seed), []
  for number in range(count):
    topic = TOPICS[number % len(TOPICS)]
    document = [*labelled.words(draw, 3, 6), topic]
    draw.shuffle(document)
    rows.append({'query': f'the {topic}', 'positive': ' '.join(document)})
  path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  return str(path)


@pytest.fixture(scope='module')
def home(tmp_path_factory):
  folder = tmp_path_factory.mktemp('sparse')
  labelled.tokenizer().save(folder / 'tokenizer')
  write_pairs(folder / 'train.jsonl', 200, 0)
  write_pairs(folder / 'dev.jsonl', 10, 1)
  return folder


def config_of(home, steps, output, **changes):
  config = finetune.recipe(
      'splade', scale='test', train=(str(home / 'train.jsonl'),), dev=(str(home / 'dev.jsonl'),))
  return validation.with_paths(config, {
      'data.epochs': 0.0, 'data.tokenizer': str(home / 'tokenizer'), 'output': str(output),
      'train.phases': labelled.phases(steps), 'train.log_every': 5, 'train.eval_every': steps,
      'train.save_every': steps, 'mesh.data': 1, 'model.vocab': 80, 'optim.peak': 5e-3,
      'objective.measured_by': 'retrieval', **changes})


@pytest.mark.slow
def test_a_run_learns_sparse_vectors(home, tmp_path):
  """Most queries find their document first (of ten, 29 is chance), by few dimensions; `export` and
  the loaded run agree."""
  config = config_of(home, 120, tmp_path / 'run', **{
      'objective.vector.query_weight': 0.03, 'objective.vector.document_weight': 0.03})
  result = run(config)
  assert result.finished and result.heldout['mrr'] > 75
  curves = plm_jax.history(tmp_path / 'run').curves
  first, last = (curves['document_dimensions']['train'][place][1] for place in (0, -1))
  assert last < 0.5 * first
  trained = plm_jax.load(tmp_path / 'run')
  assert trained.similarity == 'dot' and 'search' in trained.capabilities
  texts = [json.loads(line)['positive'] for line in (home / 'dev.jsonl').read_text().splitlines()]
  vectors = plm_jax.encode(trained, texts)
  assert vectors.shape == (10, 80) and 0 < vectors.nnz < 0.5 * 10 * 80
  hits, = plm_jax.search(trained, vectors, 'the film', top=1)
  assert 'film' in texts[hits[0].number].split()
  exported = plm_jax.export(trained, tmp_path / 'out')
  assert exported.how.startswith('SparseEncoder(') and not exported.lost
  back = plm_jax.encode(tmp_path / 'out', texts)
  np.testing.assert_array_equal(back.toarray(), vectors.toarray())
  data = retrieval.RetrievalData(
      {str(number): text for number, text in enumerate(texts)},
      {f'q{number}': f'the {topic}' for number, topic in enumerate(TOPICS)},
      {f'q{number}': {str(number): 1.0} for number in range(len(TOPICS))})
  sparsity: dict[str, float] = {}
  found = retrieval.retrieve(trained, data, 5, sparsity)
  assert retrieval.score_retrieval(data, found)['mrr_10'] > 75
  assert sparsity['document_dimensions'] == pytest.approx(vectors.nnz / 10)


@pytest.mark.slow
def test_queries_of_document_frequencies(home, tmp_path):
  """Their weights are those of the training documents, before and after the run; a query's vector
  in training is that of `encode`."""
  config = config_of(home, 40, tmp_path / 'run', **{'objective.vector.queries': 'idf'})
  result = run(config)
  assert result.finished and result.heldout['mrr'] > 50
  trained = plm_jax.load(tmp_path / 'run')
  rows = [json.loads(line) for line in (home / 'train.jsonl').read_text().splitlines()]
  weights = trained.params['heads_embedding']['query_weights']
  for word in ('film', 'the', 'ana'):
    token, = trained.tokenizer.encode(word)
    count = sum(word in row['positive'].split() for row in rows)
    expected = np.log(1 + (200 - count + 0.5) / (count + 0.5))
    assert weights[token] == pytest.approx(expected, rel=1e-5)
  vector = plm_jax.encode(trained, 'the film the', prompt='query')
  tokens = sorted(trained.tokenizer.encode('the film'))
  assert vector.indices.tolist() == tokens
  np.testing.assert_array_equal(vector.data, np.asarray(weights)[tokens])
  found, = plm_jax.search(trained, ['a film', 'a book'], 'the film', top=1)
  assert found[0].text == 'a film'
  assert plm_jax.export(trained, tmp_path / 'out').how.startswith('SparseEncoder(')
  again = plm_jax.encode(tmp_path / 'out', 'the film the', prompt='query')
  np.testing.assert_array_equal(again.toarray(), vector.toarray())


@pytest.mark.slow
def test_a_model_without_masked_lm_head_is_refused(home, tmp_path):
  """Of a classifier; a masked language model is a start."""
  classifier = labelled.run(home, output=str(tmp_path / 'classifier'), steps=2)
  run(classifier)
  start = finetune.read_initial_model(str(tmp_path / 'classifier'))
  config = finetune.recipe('splade', start, 'test', train=(str(home / 'train.jsonl'),))
  config = validation.with_paths(config, {
      'output': str(tmp_path / 'run'), 'train.phases': labelled.phases(2), 'mesh.data': 1})
  with pytest.raises(CheckpointError, match='has no MLM head, from which this run must start'):
    run(config)


def test_the_recipe_follows_the_kind():
  config = finetune.recipe('splade', scale='laptop')
  task = config.objective
  assert isinstance(task, EmbeddingTask) and task.is_sparse and task.compared_by == 'dot'
  assert task.vector_loss == InBatchProducts() and config.data.train == (
      'embedded:embedding:train',)
  plain = finetune.recipe('embedding', scale='laptop')
  assert config.optim == plain.optim
