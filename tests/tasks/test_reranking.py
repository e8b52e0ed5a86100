"""Reranking: how files are read, what lists are made of them, losses, predictions, exports and
commands."""
import dataclasses
import json

import jax
import jax.numpy as jnp
import labelled
import numpy as np
import pytest
import tuned

import plm_jax
from plm_jax.errors import ConfigError
from plm_jax.finetuning.predict import predict
from plm_jax.report import error_analysis
from plm_jax.sources.lines import SourceError
from plm_jax.sources.row_readers import Example
from plm_jax.tasks import baselines, ranking_losses
from plm_jax.tasks.batches import BatchShape, FeatureBatches
from plm_jax.tasks.outputs import Relevance, StreamingMetrics, name_labels
from plm_jax.tasks.ranking_format import RERANK
from plm_jax.tasks.ranking_losses import Binary, ListNet, MarginMSE, Negatives, RankingGroup
from plm_jax.tasks.reranking import RerankTask, make_lists
from plm_jax.tasks.sources import read_sources


def read(tmp_path, rows, **kwargs):
  (tmp_path / 'x.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows))
  return read_sources('rerank', [str(tmp_path / 'x.jsonl')], **kwargs).examples


@pytest.mark.parametrize(('row', 'documents', 'relevance', 'scores'), [
    ({'query': 'q', 'document': 'a', 'relevance': 2}, ('a',), (2.0,), None),
    ({'question': 'q', 'passage': 'a', 'label': '0.5'}, ('a',), (0.5,), None),
    ({'query': 'q', 'positive': 'a', 'negative': 'b'}, ('a', 'b'), (1.0, 0.0), None),
    ({'anchor': 'q', 'positive': 'a', 'negatives': ['b', 'c']},
     ('a', 'b', 'c'), (1.0, 0.0, 0.0), None),
    ({'query': 'q', 'positive': 'a', 'negative_1': 'b', 'negative_2': 'c'},
     ('a', 'b', 'c'), (1.0, 0.0, 0.0), None),
    ({'query': 'q', 'docs': ['a', 'b'], 'labels': [1, 0]}, ('a', 'b'), (1.0, 0.0), None),
    ({'query': 'q', 'docs': ['a', 'b'], 'scores': [4, 2]}, ('a', 'b'), (4.0, 2.0), None),
    ({'query': 'q', 'positive': 'a', 'negatives': ['b'], 'relevance': [2, 1]},
     ('a', 'b'), (2.0, 1.0), None),
    ({'query': 'q', 'positive': 'a', 'negative': 'b', 'label': 2.5},
     ('a', 'b'), (1.0, 0.0), (0.0, -2.5)),
    ({'query': 'q', 'positive': 'a', 'negatives': ['b', 'c'], 'scores': [3, 1, 2]},
     ('a', 'b', 'c'), (1.0, 0.0, 0.0), (3.0, 1.0, 2.0)),
    ({'query': 'q', 'positive': 'a', 'negatives': ['b', 'c'], 'scores': [2, 1]},
     ('a', 'b', 'c'), (1.0, 0.0, 0.0), (0.0, -2.0, -1.0))])
def test_rows_of_every_form(tmp_path, row, documents, relevance, scores):
  """Columns of positives and negatives state the relevance; scores are a teacher's."""
  example, = read(tmp_path, [row])
  assert (example.texts, example.choices) == (('q',), documents)
  assert (example.label, example.scores) == (relevance, scores)


@pytest.mark.parametrize(('row', 'message'), [
    ({'query': 'q'}, r"x.jsonl:1: no column 'documents' or"),
    ({'query': 'q', 'document': 'a'}, 'has no labels to learn from'),
    ({'query': 'q', 'documents': [], 'labels': []},
     "x.jsonl:1: the column 'documents' must hold texts"),
    ({'query': 'q', 'document': 'a', 'label': 'high'},
     'x.jsonl:1: the label must be a number in decimal notation'),
    ({'query': 'q', 'docs': ['a', 'b', 'c'], 'labels': [1]},
     'x.jsonl:1: 3 documents need a relevance each, or 2 margins'),
    ({'query': ' ', 'document': 'a', 'label': 1}, "x.jsonl:1: the column 'query' is empty")])
def test_bad_rows_are_refused_by_their_line(tmp_path, row, message):
  with pytest.raises(SourceError, match=message):
    read(tmp_path, [row])


def test_relevance_out_of_range_is_refused():
  examples = [Example(('q',), (3.0,), ('a',), where='x.tsv:2')]
  with pytest.raises(ConfigError,
                     match=r'x.tsv:2: the binary loss learns relevance from 0 to 1, got 3: '
                           r'.*loss.full'):
    RerankTask().training_examples(examples)
  assert RerankTask(ranking_loss=Binary(full=3.0)).training_examples(examples) == examples
  with pytest.raises(ConfigError, match='is larger than'):
    RerankTask(ranking_loss=Negatives(random=8))


def pair(query, document, relevance):
  return Example((query,), (float(relevance),), (document,))


def test_lists_of_documents():
  examples = [pair('q', f'd{n}', n % 3) for n in range(10)] + [pair('r', 'd1', 0)]
  lists, skipped = make_lists(examples, ListNet(), 4)
  assert sorted(document for one in lists
                for document in one.documents) == sorted(f'd{n}' for n in range(10))
  assert all(len(one.documents) <= 4 and len(set(one.relevance)) > 1 for one in lists)
  assert skipped == ('1 queries have no documents of different relevance and are left out',)

  negatives = Negatives(random=0)
  lists, _ = make_lists(examples, negatives, 3)
  assert len(lists) == 6  # a relevant document each
  for one in lists:
    assert one.relevance[0] > 0 == one.relevance[1] == one.relevance[2] and len(one.documents) == 3
  assert {document for one in lists for document in one.documents[1:]} == {'d0', 'd3', 'd6', 'd9'}

  # A document that occurs twice counts by its largest relevance; it is never a negative of its
  # query.
  twice = [Example(('q',), (1.0, 0.0, 0.0), ('a', 'b', 'a')), pair('q', 'b', 1), pair('q', 'c', 0)]
  lists, _ = make_lists(twice, negatives, 8)
  assert [(one.documents, one.relevance) for one in lists] == [
      (('a', 'c'), (1.0, 0.0)), (('b', 'c'), (1.0, 0.0))]
  with pytest.raises(ConfigError, match='no query has documents of different relevance'):
    make_lists([pair('q', 'a', 1), pair('q', 'b', 1)], ListNet(), 8)


def test_mined_negatives_with_scores_are_no_relevant_documents():
  """A judge's scores above 0 of negatives do not make them relevant, whatever the loss."""
  scores = (0.98, 0.21, 0.05, 0.01)
  mined = [Example(('q',), (1.0, 0.0, 0.0, 0.0), ('right', 'x', 'y', 'z'), scores=scores)]
  lists, _ = make_lists(mined, Negatives(random=0), 8)
  assert [(one.documents, one.relevance) for one in lists] == [
      (('right', 'x', 'y', 'z'), (1.0, 0.0, 0.0, 0.0))]
  for loss in (Binary(), ListNet(), Negatives()):
    features = RerankTask(ranking_loss=loss).features(mined, labelled.tokenizer(), 16)
    np.testing.assert_array_equal(features.values['label'].ravel(), [1, 0, 0, 0])


@pytest.mark.parametrize(('size', 'documents'), [
    (8, [('right', 'x', 'y', 'z')]), (3, [('right', 'x', 'y'), ('right', 'z')]),
    (2, [('right', 'x'), ('right', 'y'), ('right', 'z')])])
def test_margins_are_those_of_the_relevant_document_to_each_other(size, documents):
  """Hofstätter et al. 2020: each negative is compared with the relevant document once."""
  scores = {'right': -0.5, 'x': 3.0, 'y': -2.0, 'z': -4.0}
  labels = {True: (1.0, 0.0, 0.0, 0.0), False: tuple(scores.values())}
  for label in labels.values():
    separate = label == labels[True]
    one = Example(
        ('q',), label, tuple(scores), scores=tuple(scores.values()) if separate else None)
    lists, _ = make_lists([one], MarginMSE(), size)
    found = [made.documents for made in lists]
    if separate:
      assert found == documents
    # Without relevance, the best document is compared with the others.
    assert separate or all(made[0] == 'x' for made in found)
    for made in lists:
      assert made.relevance == tuple(scores[document] for document in made.documents)


def test_a_teachers_scores_are_needed():
  examples = [Example(('q',), (1.0, 0.0), ('a', 'b'))]
  with pytest.raises(ConfigError, match="learns a teacher's scores, and the examples have none"):
    RerankTask(ranking_loss=MarginMSE()).training_examples(examples)


@pytest.mark.parametrize('seed', range(5))
def test_random_negatives_are_never_documents_of_their_query(seed):
  draw = np.random.default_rng(seed)
  examples = [pair(f'q{draw.integers(6)}', f'd{draw.integers(12)}', draw.integers(2))
              for _ in range(30)]
  examples.append(pair('last', 'd0', 1))
  known = {}
  for one in examples:
    known.setdefault(one.texts[0], {}).setdefault(one.choices[0], []).append(one.label[0])
  lists, _ = make_lists(examples, Negatives(random=3), 6)
  assert lists
  for one in lists:
    relevant = {document for document, values in known[one.query].items() if max(values) > 0}
    assert one.documents[0] in relevant and not relevant & {*one.documents[1:]}
    assert len(set(one.documents)) == len(one.documents) <= 6


def numpy_loss(name, scores, relevance):
  """Losses of one list of documents in numpy."""
  p = 1 / (1 + np.exp(-scores))
  if name == 'binary':
    return -(relevance * np.log(p) + (1 - relevance) * np.log(1 - p)).mean()
  if name == 'regression':
    return np.square(scores - relevance).mean()
  if name == 'negatives':
    return np.log(np.exp(10 * p).sum()) - 10 * p[0]
  if name == 'listnet':
    target = np.exp(relevance) / np.exp(relevance).sum()
    return -(target * (scores - np.log(np.exp(scores).sum()))).sum()
  return np.square((scores[0] - scores[1:]) - (relevance[0] - relevance[1:])).mean()


@pytest.mark.parametrize('name', ranking_losses.RANKING_LOSSES)
def test_losses_and_gradients_by_hand(name):
  """Padding and queries without weight do not count."""
  draw = np.random.default_rng(0)
  loss = ranking_losses.RANKING_LOSSES[name]
  scores, relevance = draw.normal(size=(3, 5)), draw.random((3, 5))
  real = np.ones((3, 5))
  real[0, 3:] = 0
  weight = np.array([1.0, 1.0, 0.0])
  group = RankingGroup(jnp.asarray(relevance, jnp.float32), jnp.asarray(real, jnp.float32),
                       jnp.asarray(weight, jnp.float32))
  def mean(x):
    total, count = loss(x, group)
    return total / count
  def expected(x):
    parts = [(x[0, :3], relevance[0, :3]), (x[1], relevance[1])]
    losses = [numpy_loss(name, *part) for part in parts]
    sizes = {'binary': (3, 5), 'regression': (3, 5), 'margin_mse': (2, 4)}.get(name, (1, 1))
    return np.average(losses, weights=sizes)
  assert float(mean(jnp.asarray(scores, jnp.float32))) == pytest.approx(expected(scores), rel=1e-5)
  gradient = jax.grad(mean)(jnp.asarray(scores, jnp.float32))
  for place in np.ndindex(scores.shape):
    step = np.zeros(scores.shape)
    step[place] = 1e-6
    assert gradient[place] == pytest.approx((expected(scores + step) - expected(scores - step))
                                            / 2e-6, abs=1e-5)


@pytest.fixture
def trained():
  return tuned.trained('rerank')


DOCUMENTS = ['a dull film', 'a film', 'a fine film']


def test_rows_and_groups_of_batches(trained):
  examples = [Example(('berlin',), (0.0, 1.0), ('dull', 'fine')),
              Example(('film',), (1.0, 0.0, 0.0), tuple(DOCUMENTS[::-1]))]
  task = trained.task
  for pack in (False, True):
    features = task.training_features(examples, trained.tokenizer, 16)
    assert features.group == 1 and len(features) == 5
    batch, _ = FeatureBatches(features, BatchShape(8, 16, pack=pack)).batch(0)
    outputs = {'label': jnp.zeros((*batch['weight'].shape, 1))}
    loss, weight = task.loss(outputs, batch)['label']
    assert weight == 5 and loss / weight == pytest.approx(np.log(2))
  grouped = dataclasses.replace(task, ranking_loss=ListNet())
  features = grouped.training_features(examples, trained.tokenizer, 16)
  assert features.group == 3 and len(features) == 6
  batch, placement = FeatureBatches(features, BatchShape(2, 16)).batch(0)
  rows = placement.number[::3] // 3
  assert batch['tokens'].shape[:2] == (2, 3) and batch['label'][:, 0].tolist() == [
      [[1, 0, 0], [1, 0, 0]][row] for row in rows]
  assert batch['real'][:, 0].tolist() == [[2, 3][row] for row in rows]
  assert {name: x.shape[2:] for name, x in batch.items() if name in ('label', 'tokens')} == {
      'label': (3,), 'tokens': batch['tokens'].shape[2:]}
  assert grouped.features(examples, trained.tokenizer,
                          16).group == 1 and not grouped.has_heldout_loss


def test_predictions_metrics_and_report(trained):
  examples = [Example(('berlin',), (0.0, 0.0, 1.0), tuple(DOCUMENTS)), pair('came', 'dull', 1),
              pair('came', 'fine', 0)]
  found = predict(trained, examples)
  assert [len(one.scores) for one in found] == [3, 1, 1] and np.all(np.diff(found[0].scores) > 0)
  assert found[0].scores[1] == pytest.approx(0.5) and 0 < found[0].scores[0] < 0.5
  listed = dataclasses.replace(trained, task=dataclasses.replace(trained.task,
                                                                 ranking_loss=ListNet()))
  for one, other in zip(found, predict(listed, examples), strict=True):
    np.testing.assert_allclose(1 / (1 + np.exp(-np.array(other.scores))), one.scores, rtol=1e-6)
  kept = StreamingMetrics(trained.task)
  kept.add(examples[:2], found[:2])
  kept.add(examples[2:], found[2:])
  assert kept.compute() == {'ndcg_10': pytest.approx(100 * (1 + 1 / np.log2(3)) / 2), 'mrr_10': 75,
                            'map': 75}
  named = name_labels(trained.task, examples[0], found[0])
  assert isinstance(named, Relevance)
  text = ' '.join(''.join(section.itertext()) for section in error_analysis.error_sections(
      trained.task, error_analysis.labeled_pairs(examples, predict(trained, examples))))
  assert 'Largest errors' in text and 'came' in text and 'dull' in text
  best = baselines.simple_baseline(trained.task, examples,
                                   [Example(('fine film',), (0.0, 0.0, 1.0), tuple(DOCUMENTS))])
  assert best.name == 'BM25' and best.scores['mrr_10'] == 100


def test_rerank_sorts_documents(trained, tmp_path):
  hits, = plm_jax.rerank(trained, 'berlin', DOCUMENTS)
  assert [hit.number for hit in hits] == [2, 1, 0] and hits[0].text == 'a fine film'
  first, second = plm_jax.rerank(trained, ['berlin', 'who'], [['dull', 'fine'], ['fine']], top=1)
  assert (first[0].number, second[0].number) == (1, 0)
  for wrong in ([], [['a']], [[], ['a']]):
    with pytest.raises(ConfigError, match='reranking needs documents for each query'):
      plm_jax.rerank(trained, ['berlin', 'who'], wrong)
  with pytest.raises(ConfigError, match='expected a query and a document'):
    plm_jax.rerank(trained, 'berlin', ['  '])
  assert 'rerank' in trained.capabilities
  plm_jax.export(trained, tmp_path / 'out')
  config = json.loads((tmp_path / 'out/config.json').read_text())
  assert config['sentence_transformers']['activation_fn'].endswith('Sigmoid')
  again, = plm_jax.rerank(tmp_path / 'out', 'berlin', DOCUMENTS)
  assert [hit.number for hit in again] == [2, 1, 0] and again[0].score == pytest.approx(
      hits[0].score)
  listed = dataclasses.replace(trained, task=dataclasses.replace(trained.task,
                                                                 ranking_loss=ListNet()))
  plm_jax.export(listed, tmp_path / 'listed')
  assert plm_jax.load(tmp_path / 'listed').task.activation == 'none'


def test_fields_that_are_written():
  one = RERANK.parse_input(('q', ['a', 'b']), 'here')
  assert RERANK.json_fields(one, Relevance([0.5, 0.25]), {'truth': [1.0, 0.0]}) == {
      'query': 'q', 'documents': ['a', 'b'], 'scores': [0.5, 0.25], 'truth': [1.0, 0.0]}
  assert RERANK.table_fields(RERANK.parse_input(('q', 'a'), 'here'), Relevance([0.5]), [1.0]) == {
      'query': 'q', 'document': 'a', 'score': 0.5, 'truth': 1.0}
