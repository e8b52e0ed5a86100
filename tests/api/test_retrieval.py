"""Hard negatives are never relevant documents; data sets in BEIR's layout are read, checked and
measured."""
import json
import re

import numpy as np
import pytest
import tuned

import plm_jax
from plm_jax.api import retrieval
from plm_jax.api.retrieval import MiningConfig
from plm_jax.cli import commands
from plm_jax.errors import ConfigError
from plm_jax.inference.static_vectors import StaticVectors
from plm_jax.sources.lines import SourceError


def drawn(seed, words=12, pairs=30):
  """Draws pairs, some with equal queries and equal documents, and a corpus that has some of the
  documents."""
  draw = np.random.default_rng(seed)
  names = [f'w{number}' for number in range(words)]
  def text(size):
    return ' '.join(draw.choice(names, size))
  documents = [text(4) for _ in range(15)]
  found = [(text(1), documents[draw.integers(len(documents))]) for _ in range(pairs)]
  found += [(documents[0], documents[1])]  # a query that is a document, too
  return found, [*documents[:8], *(text(4) for _ in range(20)), documents[0]]


@pytest.mark.parametrize('draw', [False, True])
@pytest.mark.parametrize('seed', range(4))
def test_negatives_are_never_relevant(seed, draw):
  pairs, corpus = drawn(seed)
  relevant = {}
  for query, positive in pairs:
    relevant.setdefault(query, set()).add(positive)
  config = MiningConfig(number=3, depth=20, draw=draw)
  found = list(retrieval.mine_negatives('bm25', pairs, corpus, config))
  assert [(one.query, one.positive) for one in found] == pairs and any(one.negatives
                                                                       for one in found)
  for one in found:
    assert not relevant[one.query] & {*one.negatives} and one.query not in one.negatives
    assert len(set(one.negatives)) == len(one.negatives) <= 3 and len(one.scores) == 1 + len(
        one.negatives)
  again = list(retrieval.mine_negatives('bm25', pairs, corpus, config))
  assert again == found


class Fixed(StaticVectors):
  """Vectors that are given for each text."""

  def __init__(self, table):
    object.__setattr__(self, 'given', table)

  def encode(self, texts):
    return np.array([self.given[text] for text in texts], np.float32)


def test_the_margin_excludes_documents_as_close_as_the_positive():
  def at(cosine):
    return [cosine, (1 - cosine ** 2) ** 0.5]
  retriever = Fixed({'q': [1, 0], 'right': at(0.8), 'near': at(0.9), 'close': at(0.77),
                     'far': at(0.75), 'other': at(0.1)})
  pairs, corpus = [('q', 'right')], ['near', 'close', 'far', 'other']
  found, = retrieval.mine_negatives(retriever, pairs, corpus, MiningConfig(number=4))
  assert found.negatives == ['far', 'other'] and found.scores == pytest.approx(
      [0.8, 0.75, 0.1], abs=1e-6)
  found, = retrieval.mine_negatives(retriever, pairs, corpus, MiningConfig(number=1, margin=0.0))
  assert found.negatives == ['close']
  found, = retrieval.mine_negatives(retriever, pairs, corpus,
                                    MiningConfig(number=2, skip=4, depth=8))
  assert found.negatives == ['other']
  with pytest.raises(ConfigError, match=r'depth less .*skip is .*number or more'):
    MiningConfig(number=5, depth=6, skip=2)


def test_a_cross_encoder_filters_candidates_and_its_scores_are_kept():
  judge = tuned.trained('rerank')
  pairs = [('film', 'a fine film')]
  found, = retrieval.mine_negatives('bm25', pairs, ['fine film', 'a film', 'dull film'],
                                    MiningConfig(number=3), judge)
  assert found.negatives == ['a film', 'dull film'] or found.negatives == ['dull film', 'a film']
  hits, = plm_jax.rerank(judge, 'film', ['a fine film', *found.negatives])
  probabilities = [hit.score for hit in sorted(hits)]
  assert probabilities[0] > 0.9
  assert all(score < 0.95 * probabilities[0] for score in probabilities[1:])
  # Logits, which losses of distillation learn.
  np.testing.assert_allclose(1 / (1 + np.exp(-np.array(found.scores))), probabilities, rtol=1e-5)


def written(folder, corpus, queries, qrels):
  (folder / 'qrels').mkdir(parents=True)
  for name, rows in (('corpus', corpus), ('queries', queries)):
    (folder / f'{name}.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows))
  (folder / 'qrels/test.tsv').write_text('query-id\tcorpus-id\tscore\n'
                                         + ''.join(f'{row}\n' for row in qrels))
  return str(folder)


CORPUS = [{'_id': 'a', 'title': 'Sort', 'text': 'a list'}, {'_id': 'b', 'text': 'the mean'},
          {'_id': 3, 'text': 'a sum'}]
QUERIES = [{'_id': 'q', 'text': 'list'}, {'_id': 'r', 'text': 'mean sum'},
           {'_id': 's', 'text': 'unjudged'}]
QRELS = ['q\ta\t1', 'r\tb\t1', 'r\t3\t2']


def test_a_data_set_is_read_and_measured(tmp_path, monkeypatch, capsys):
  folder = written(tmp_path / 'set', CORPUS, QUERIES, QRELS)
  data = retrieval.read_beir(folder)
  assert data.documents == {'a': 'Sort a list', 'b': 'the mean', '3': 'a sum'}
  assert data.queries == {'q': 'list',
                          'r': 'mean sum'} and data.relevance['r'] == {'b': 1.0, '3': 2.0}
  found = retrieval.retrieve('bm25', data, 2)
  assert found['q'][0][0] == 'a' and {name for name, _ in found['r']} == {'b', '3'}
  scores = retrieval.score_retrieval(data, found)
  assert scores['recall'] == 100 and scores['mrr_10'] == 100 and scores['map'] == 100
  one = retrieval.score_retrieval(data, {'q': [('b', 1.0)], 'r': [('b', 1.0)]})
  assert one['recall'] == 25 and one['map'] == 25 and one['mrr_10'] == 50
  monkeypatch.setattr('sys.argv', [
      'plm_jax', 'evaluate-retrieval', 'bm25', folder, f'--output={tmp_path}/run.txt', '--depth=2'])
  commands.main()
  said = capsys.readouterr().out
  assert said.startswith('2 queries, 3 documents\nndcg_10') and re.search(r'mrr_10 +100\.00', said)
  lines = (tmp_path / 'run.txt').read_text().splitlines()
  assert len(lines) == 3 and re.fullmatch(r'q Q0 a 1 [\d.]+ plm_jax', lines[0])


# Conventions of BEIR's evaluator.

def test_the_document_with_the_id_of_the_query_is_excluded(tmp_path, monkeypatch, capsys):
  """As in ArguAna and Quora, whose queries are documents."""
  corpus = [{'_id': f'{name}-{side}', 'text': f'{name} {name}{side}'}
            for name in ('sugar', 'space') for side in ('pro', 'con')]
  queries = [row for row in corpus if row['_id'].endswith('pro')]
  folder = written(tmp_path / 'set', corpus, queries,
                   ['sugar-pro\tsugar-con\t1', 'space-pro\tspace-con\t1'])
  data = retrieval.read_beir(folder)
  found = retrieval.retrieve('bm25', data, 1)
  assert {query: [name for name, _ in hits] for query, hits in found.items()} == {
      'sugar-pro': ['sugar-con'], 'space-pro': ['space-con']}
  given = {query: [(query, 2.0), (query.replace('pro', 'con'), 1.0)] for query in data.queries}
  assert set(retrieval.score_retrieval(data, given).values()) == {100.0}
  monkeypatch.setattr('sys.argv', ['plm_jax', 'evaluate-retrieval', 'bm25', folder, '--depth=1'])
  commands.main()
  said = capsys.readouterr().out
  assert '2 queries have the id of a document, which is left out' in said and re.search(
      r'recall_1 +100\.00', said)


def score(relevance, found):
  queries = dict.fromkeys(relevance, 'x')
  return retrieval.score_retrieval(retrieval.RetrievalData({}, queries, relevance), found)


def test_of_equal_scores_the_larger_id_ranks_first():
  """trec_eval sorts by score, then by id, both descending; ids compare as bytes."""
  tied = [('10', 1.0), ('9', 1.0), ('a', 0.5), ('\u00e4', 0.5)]
  ranks = {'9': 1, '10': 2, '\u00e4': 3, 'a': 4}
  for name, rank in ranks.items():
    for order in (tied, tied[::-1]):
      assert score({'q': {name: 1.0}}, {'q': order})['mrr_10'] == pytest.approx(100 / rank)


def test_a_query_without_a_relevant_document_counts_as_zero():
  found = score({'q': {'a': 1.0}, 'r': {'a': 0.0}}, {'q': [('a', 1.0)], 'r': [('a', 1.0)]})
  assert found == {'ndcg_10': 50.0, 'mrr_10': 50.0, 'map': 50.0, 'recall': 50.0}


def draw_rankings(seed):
  """Sample judgments with several levels and rankings with ties; some queries are also
  documents."""
  rng = np.random.default_rng(seed)
  relevance, found = {}, {}
  for number in range(20):
    judged = rng.choice(60, 8, replace=False)
    relevance[str(number)] = {str(name): int(rng.integers(0, 4)) for name in judged}
    some = rng.choice(60, 30, replace=False)
    found[str(number)] = [(str(name), float(np.round(rng.random(), 1))) for name in some]
  return relevance, found


def reference(relevance, found):
  """Compute nDCG@10, MAP and recall by the definitions of trec_eval, query by query."""
  rows = []
  for query, known in relevance.items():
    ranked = sorted(((value, name) for name, value in found[query] if name != query), reverse=True)
    gains = [known.get(name, 0) for _, name in ranked]
    discounts = 1 / np.log2(np.arange(2, 12))
    best = sorted(known.values(), reverse=True)[:10]
    count = sum(gain > 0 for gain in known.values())
    right = np.array(gains) > 0
    precisions = np.cumsum(right) / np.arange(1, len(right) + 1)
    rows.append((discounts @ gains[:10] / (discounts[:len(best)] @ best),
                 (precisions * right).sum() / count,
                 right.sum() / count) if count else (0, 0, 0))
  return 100 * np.mean(rows, axis=0)


@pytest.mark.parametrize('seed', range(3))
def test_scores_match_the_definitions(seed):
  relevance, found = draw_rankings(seed)
  scores = score(relevance, found)
  assert [scores[name] for name in ('ndcg_10', 'map',
                                    'recall')] == pytest.approx(reference(relevance, found))


@pytest.mark.parametrize('seed', range(3))
def test_scores_match_pytrec_eval(seed):
  pytrec_eval = pytest.importorskip('pytrec_eval')
  relevance, found = draw_rankings(seed)
  results = {query: {name: value for name, value in hits if name != query}
             for query, hits in found.items()}
  official = pytrec_eval.RelevanceEvaluator(relevance,
                                            {'ndcg_cut.10', 'map_cut.100',
                                             'recall.100'}).evaluate(results)
  means = [100 * np.mean([row[name] for row in official.values()])
           for name in ('ndcg_cut_10', 'map_cut_100', 'recall_100')]
  scores = score(relevance, found)
  assert [scores[name] for name in ('ndcg_10', 'map', 'recall')] == pytest.approx(means)


def test_documents_are_reranked_by_a_cross_encoder():
  documents = {'x': 'a dull film', 'y': 'a fine film'}
  data = retrieval.RetrievalData(documents, {'q': 'film'}, {'q': {'y': 1.0}})
  found = retrieval.rerank_found(tuned.trained('rerank'), data,
                                 {'q': [('x', 2.0), ('y', 1.0)], 'r': []})
  assert found['r'] == []
  assert [name for name, _ in found['q']] == ['y', 'x'] and retrieval.score_retrieval(data, found)[
      'mrr_10'] == 100


@pytest.mark.parametrize(('corpus', 'queries', 'qrels', 'message'), [
    ([*CORPUS, CORPUS[0]], QUERIES, QRELS, "corpus.jsonl:4: the id 'a' occurs twice in the corpus"),
    (CORPUS, [*QUERIES, QUERIES[0]], QRELS,
     "queries.jsonl:4: the id 'q' occurs twice in the queries"),
    ([{'text': 'x'}], QUERIES, QRELS, "corpus.jsonl:1: a row has an '_id'"),
    ([{'_id': 'a'}], QUERIES, QRELS, "corpus.jsonl:1: a document has a 'text'"),
    (CORPUS, [{'_id': 'q', 'text': ''}], QRELS, "queries.jsonl:1: a query has a 'text'"),
    (CORPUS, QUERIES, ['q\tz\t1'], "test.tsv:2: the id 'z' is not in the corpus"),
    (CORPUS, QUERIES, ['z\ta\t1'], "test.tsv:2: the id 'z' is not in queries"),
    (CORPUS, QUERIES, ['q\ta\thigh'], "test.tsv:2: the score: expected a number, got 'high'"),
    (CORPUS, QUERIES, ['q\ta\t1', 'q\ta\t0'], "test.tsv:3: the document 'a' has two scores"),
    (CORPUS, QUERIES, ['q\ta\t0'], 'no query has a relevant document'),
    ([], QUERIES, QRELS, 'corpus.jsonl has no rows')])
def test_bad_data_sets_are_refused_by_their_line(tmp_path, corpus, queries, qrels, message):
  with pytest.raises(SourceError, match=message):
    retrieval.read_beir(written(tmp_path / 'set', corpus, queries, qrels))


def test_missing_files_are_named(tmp_path):
  with pytest.raises(SourceError, match=r"has no corpus\.jsonl: BEIR's layout is"):
    retrieval.read_beir(str(tmp_path))
  folder = written(tmp_path / 'set', CORPUS, QUERIES, QRELS)
  with pytest.raises(SourceError, match=r'has no qrels/dev\.tsv'):
    retrieval.read_beir(folder, 'dev')


def test_mined_pairs_are_training_examples(tmp_path, monkeypatch, capsys):
  (tmp_path / 'p.tsv').write_text('query\tpositive\nsort\tsort a list\nmean\tthe mean of a list\n')
  (tmp_path / 'c.txt').write_text('sort it\nmean it\n')
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr('sys.argv', [
      'plm_jax', 'mine-negatives', 'bm25', 'p.tsv', '--corpus=c.txt', '--output=m.jsonl',
      '--number=2', '--depth=3'])
  commands.main()
  assert capsys.readouterr().out.startswith('2 pairs with negatives in m.jsonl')
  rows = [json.loads(line) for line in (tmp_path / 'm.jsonl').read_text().splitlines()]
  assert rows[0]['query'] == 'sort' and rows[0]['negatives'][
      0] == 'sort it' and 'scores' not in rows[0]
  from plm_jax.tasks.sources import read_sources
  assert len(read_sources('embedding', ['m.jsonl'], use='predict').examples[0].texts) == 4
  assert read_sources('rerank', ['m.jsonl']).examples[0].label == (1.0, 0.0, 0.0)
