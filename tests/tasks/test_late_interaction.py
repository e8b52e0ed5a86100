"""Late interaction: rows, MaxSim, losses by hand, and a run that learns."""
import dataclasses
import json

import jax
import jax.numpy as jnp
import labelled
import numpy as np
import pytest
from sentence_model import trained_of

import plm_jax
from plm_jax import tokenizers, validation
from plm_jax.config import serialization
from plm_jax.errors import ConfigError
from plm_jax.layers.token_vectors import InteractionVectors, TokenVectorConfig
from plm_jax.metrics.nearest import compare_pairs, find_nearest
from plm_jax.recipes import finetune
from plm_jax.runs.run import run
from plm_jax.sources.row_readers import Example
from plm_jax.tasks.embedding_losses import (
  ExampleGroup,
  InBatch,
  ScoreDistribution,
  ScoreDistributionInBatch,
  ScoreMargins,
  Triplet,
)
from plm_jax.tasks.late_interaction import InteractionFormat, LateInteractionTask
from plm_jax.tasks.objective import TaskObjective

VECTOR = TokenVectorConfig(dense=8, query_length=8, skip=('of',))


def extended():
  return tokenizers.add_special_tokens(labelled.tokenizer(), VECTOR.markers)


def test_rows_of_queries_and_documents():
  """[CLS] [Q] text [SEP] [MASK] ..., and [CLS] [D] text [SEP]; queries are truncated, too."""
  tokenizer = extended()
  rows = InteractionFormat(VECTOR, LateInteractionTask().input_format, tokenizer)
  ids, vocab = tokenizer.encode('the film of ana'), tokenizer.vocab
  first, second = (tokenizer.find_token(name) for name in VECTOR.markers)
  assert [first, second] == [vocab.size - 2, vocab.size - 1] and len(ids) == 4
  query, document = rows.make_row(ids, True, 16), rows.make_row(ids, False, 16)
  assert query.tokens == [vocab.cls, first, *ids, vocab.sep, vocab.mask]
  assert document.tokens == [vocab.cls, second, *ids, vocab.sep]
  assert rows.score_tokens(query.tokens, True).tolist() == [1, 1, 1, 1, 1, 1, 1, 2]
  assert rows.score_tokens(document.tokens, False).tolist() == [1, 1, 1, 1, 0, 1, 1]
  long = rows.make_row(ids * 3, True, 16)
  assert long.tokens == [vocab.cls, first, *ids, ids[0], vocab.sep] and long.lost == 7
  assert len(rows.make_row(ids * 9, False, 16).tokens) == 16
  plain = dataclasses.replace(VECTOR, expand=False, query_token='', document_token='')
  rows = InteractionFormat(plain, LateInteractionTask().input_format, labelled.tokenizer())
  assert rows.make_row(ids, True, 16).tokens == [vocab.cls, *ids, vocab.sep]
  with pytest.raises(ConfigError, match=r'the tokenizer has no \[unused0\] and no \[unused1\]'):
    InteractionFormat(VECTOR, LateInteractionTask().input_format, labelled.tokenizer())


def test_a_skipped_token_that_is_missing_is_the_unknown_token():
  vector = dataclasses.replace(VECTOR, skip=('~',))
  rows = InteractionFormat(vector, LateInteractionTask().input_format, extended())
  assert rows.score_tokens([rows.tokenizer.vocab.unk, 7], False).tolist() == [0, 1]


def literal_maxsim(query, document):
  """The sum over the tokens of a query of the largest product."""
  return sum(max(float(q @ d) for d in document) for q in query)


def draw_vectors(rows=3, documents=3, queries=4, tokens=5, size=6):
  """Random vectors of length 1, some without a place, and the same as lists."""
  draw = np.random.default_rng(0)
  def unit(*shape):
    x = draw.normal(size=shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)
  real = draw.random((rows, queries)) < 0.7
  scored = draw.random((rows, documents, tokens)) < 0.6
  real[:, 0] = scored[..., 0] = True
  return unit(rows, queries, size), real, unit(rows, documents, tokens, size), scored


@pytest.mark.parametrize('loss', [
    InBatch(temperature=2.0), ScoreMargins(), ScoreDistribution(temperature=2.0),
    ScoreDistribution(min_max=True), ScoreDistributionInBatch()])
def test_losses_of_scores_by_hand(loss):
  """The values and the gradients by finite differences; the last example has a document less."""
  queries, real, documents, scored = draw_vectors()
  teacher = np.random.default_rng(1).normal(size=(3, 3))
  counts = [3, 3, 2]
  def expected(queries, documents):
    def score(row, other, place):
      return literal_maxsim(
          queries[row][real[row]], documents[other, place][scored[other, place]])
    total, pairs = 0.0, 0
    for row in range(3):
      own = np.array([score(row, row, place) for place in range(counts[row])])
      wanted = teacher[row, :counts[row]]
      others = [score(row, other, place) for other in range(3) for place in range(counts[other])
                if other != row or (place and isinstance(loss, InBatch))]
      temperature = loss.temperature if isinstance(loss, InBatch) else 1.0
      candidates = np.array([own[0], *others]) / temperature
      in_batch = np.log(np.exp(candidates).sum()) - candidates[0]
      pairs += len(own) - 1 if isinstance(loss, ScoreMargins) else 1
      if isinstance(loss, InBatch):
        total += in_batch
      elif isinstance(loss, ScoreMargins):
        total += np.square((own[0] - own[1:]) - (wanted[0] - wanted[1:])).sum()
      else:
        scaled = own
        if loss.min_max:
          scaled = (own - own.min()) / (own.max() - own.min() + 1e-8)
        p, q = (np.exp(x / loss.temperature) for x in (wanted, scaled))
        p, q = p / p.sum(), q / q.sum()
        total += loss.temperature ** 2 * (p * np.log(p / q)).sum()
        total += in_batch if isinstance(loss, ScoreDistributionInBatch) else 0
    return total / pairs
  @jax.jit
  def mean(queries, documents):
    group = ExampleGroup(
        jnp.ones(3), jnp.array(counts) + 1, jnp.zeros(3), scores=jnp.asarray(teacher))
    vectors = InteractionVectors(queries * real[..., None], documents, jnp.asarray(scored))
    total, weight = loss(vectors, group)
    return total / weight
  with jax.enable_x64(True):
    inputs = jnp.asarray(queries), jnp.asarray(documents)
    assert float(mean(*inputs)) == pytest.approx(expected(queries, documents), abs=1e-9)
    gradients = jax.grad(mean, (0, 1))(*inputs)
  for number, place in ((0, (0, 0, 1)), (0, (1, 0, 2)), (1, (0, 0, 0, 3)), (1, (1, 0, 1, 0)),
                        (1, (2, 1, 0, 5)), (1, (0, 2, 2, 2))):
    values = []
    for step in (1e-6, -1e-6):
      moved = [queries.copy(), documents.copy()]
      moved[number][place] += step
      values.append(expected(*moved))
    found = (values[0] - values[1]) / 2e-6
    assert float(gradients[number][place]) == pytest.approx(found, abs=1e-6)


def test_exhaustive_search_and_pairs(monkeypatch):
  """In blocks of few tokens; equal scores are in the order of the corpus."""
  monkeypatch.setattr('plm_jax.metrics.nearest.BLOCK_VECTORS', 7)
  draw = np.random.default_rng(2)
  queries = [draw.normal(size=(size, 4)).astype(np.float32) for size in (3, 1)]
  corpus = [draw.normal(size=(size, 4)).astype(np.float32) for size in (2, 9, 1, 4, 3)]
  corpus.append(corpus[1])
  expected = np.array([[literal_maxsim(query, document) for document in corpus]
                       for query in queries])
  scores, numbers = find_nearest(queries, corpus, 4, similarity='maxsim')
  np.testing.assert_array_equal(numbers, np.argsort(-expected, kind='stable')[:, :4])
  np.testing.assert_allclose(scores, -np.sort(-expected)[:, :4], rtol=1e-5)
  found = compare_pairs(queries, corpus[:2], 'maxsim')
  np.testing.assert_allclose(found, [expected[0, 0], expected[1, 1]], rtol=1e-6)
  with pytest.raises(ConfigError, match='none of them empty'):
    find_nearest(queries, [corpus[0], corpus[0][:0]], similarity='maxsim')
  with pytest.raises(ConfigError, match='of one D'):
    find_nearest(queries, [corpus[0][:, :3]], similarity='maxsim')


@pytest.fixture(scope='module')
def trained():
  return trained_of(VECTOR, length=24)


@pytest.mark.parametrize('attend', [False, True])
def test_vectors_by_hand(attend):
  """A query without batches: the states of its row, whose [MASK] tokens only read."""
  trained = trained_of(dataclasses.replace(VECTOR, attend=attend), length=24)
  vocab, tokenizer = trained.tokenizer.vocab, trained.tokenizer
  ids = [vocab.cls, tokenizer.find_token('[unused0]'), *tokenizer.encode('the film'), vocab.sep,
         vocab.mask, vocab.mask, vocab.mask]
  mask = np.ones((1, 8, 8), bool)
  mask[:, :, 5:] = attend
  batch = {'tokens': np.array([ids]), 'segments': np.ones((1, 8), np.int32), 'visible': mask}
  output = trained.model.backbone().apply({'params': trained.params['backbone']}, batch)
  x = np.asarray(output.hidden)[0] @ np.asarray(
      trained.params['heads_embedding']['dense']['kernel'])
  found, = plm_jax.encode(trained, 'the film', prompt='query')
  expected = x / np.linalg.norm(x, axis=1, keepdims=True)
  np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_loss_reads_the_vectors_of_encode(trained):
  """Short and long documents, so that queries are encoded apart; a group with fewer texts."""
  task, long = trained.task, 'the film of a book is the book of a film and was of ana'
  for texts in ([('ana', 'a film'), ('the book', 'bo of a film', 'cy')],
                [('ana', long), ('the book', 'bo of a film', 'cy')]):
    examples = [Example(one) for one in texts]
    features = task.features(examples, trained.tokenizer, 24)
    found = plm_jax.finetuning.predict.predict(trained, examples)
    for prediction, (query, *documents) in zip(found, texts, strict=True):
      vectors = plm_jax.encode(trained, query, prompt='query')
      vectors += plm_jax.encode(trained, documents)
      for own, other in zip(prediction.vectors, vectors, strict=False):
        np.testing.assert_allclose(own, other, atol=1e-5)
      score = plm_jax.similar(trained, query, documents[0])[0]
      assert prediction.value == pytest.approx(float(score), abs=1e-4)
    assert features.group == 3 and features.aligned['scored'].lengths.tolist() == (
        features.tokens.lengths.tolist())


def test_search_and_rerank(trained):
  corpus = ['the film is good', 'a book', 'ana', 'bo of the book']
  hits, = plm_jax.search(trained, corpus, 'a book', top=4)
  expected = [literal_maxsim(plm_jax.encode(trained, 'a book', prompt='query')[0], document)
              for document in plm_jax.encode(trained, corpus)]
  order = np.argsort(-np.array(expected))
  assert [hit.number for hit in hits] == order.tolist()
  np.testing.assert_allclose([hit.score for hit in hits], np.array(expected)[order], rtol=1e-5)
  again, = plm_jax.search(trained, plm_jax.encode(trained, corpus), 'a book', top=4)
  assert [hit.number for hit in again] == order.tolist()
  ranked, = plm_jax.rerank(trained, 'a book', corpus)
  assert [(hit.number, hit.text) for hit in ranked] == [(n, corpus[n]) for n in order]
  assert {'search', 'similar', 'rerank'} <= {*trained.capabilities}


def test_what_late_interaction_cannot_do(trained):
  with pytest.raises(ConfigError, match='of late interaction is in_batch, margin_mse, kl or'):
    LateInteractionTask(vector_loss=Triplet())
  with pytest.raises(ConfigError, match='are for one vector per text'):
    LateInteractionTask(prefixes=(4,))
  with pytest.raises(ConfigError, match='is for queries with'):
    TokenVectorConfig(expand=False, attend=True)
  with pytest.raises(ConfigError, match='query_length is at most the sequence length, 6, got 8'):
    trained.task.features([Example(('a', 'b'))], trained.tokenizer, 6)
  with pytest.raises(ConfigError, match='windows are for one vector per text'):
    plm_jax.encode(trained, 'ana', windows='mean')


def test_shapes_of_a_batch():
  """The shapes from which programs are compiled are those of a real batch."""
  task = LateInteractionTask(vector=VECTOR, vector_loss=ScoreDistribution())
  shapes = TaskObjective(task).shapes(2, 24)
  assert shapes['scored'].shape == shapes['tokens'].shape == (2, 3, 24)


@pytest.mark.slow
def test_a_run_learns_from_pairs(tmp_path):
  """Queries name a person; its documents name the same one. The tokenizer gets markers."""
  rows = [{'query': f'who is {name} and who', 'positive': f'the {noun} of {name} {verb} {good}'}
          for name in labelled.NAMES for noun in ('film', 'book') for verb in ('is', 'was')
          for good in labelled.GOOD]
  path = tmp_path / 'pairs.jsonl'
  path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  labelled.tokenizer().save(tmp_path / 'tokenizer')
  config = validation.with_paths(
      finetune.recipe('colbert', scale='test', train=(str(path),), dev=(str(path),)), {
          'objective.vector': VECTOR, 'data.epochs': 0.0, 'data.baseline': False,
          'data.tokenizer': str(tmp_path / 'tokenizer'), 'train.phases': labelled.phases(40),
          'train.log_every': 40, 'train.eval_every': 40, 'train.save_every': 40, 'mesh.data': 1,
          'model.vocab': 80, 'optim.peak': 3e-3, 'output': str(tmp_path / 'run')})
  assert serialization.from_json(serialization.to_json(config)).objective == config.objective
  result = run(config)
  assert result.finished and result.heldout['recall_10'] > 60
  trained = plm_jax.load(tmp_path / 'run')
  assert trained.task.vector == VECTOR and trained.tokenizer.pieces[-2:] == [*VECTOR.markers]
  texts = [row['positive'] for row in rows]
  hits, = plm_jax.search(trained, texts, 'who is cy and who', top=4)
  assert sum('cy' in hit.text for hit in hits) >= 3
