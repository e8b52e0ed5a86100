"""mteb's own scores through the adapter, next to those of sentence-transformers; skipped without
them."""
import logging
import pathlib
from typing import Any

import library_folders
import pytest

pytest.importorskip('mteb')

from datasets import Dataset, DatasetDict
import mteb
from mteb.models.sentence_transformer_wrapper import (  # pyright: ignore
  CrossEncoderWrapper,
  MultiVectorWrapper,
  SentenceTransformerEncoderWrapper,
  SparseEncoderWrapper,
)
import sentence_transformers

import plm_jax
from plm_jax.api.mteb_adapter import load_for_mteb
from plm_jax.api.retrieval import retrieve, score_retrieval
from plm_jax.cli import commands
from plm_jax.errors import ConfigError
from plm_jax.evaluation.retrieval import RetrievalData

PYLATE = pathlib.Path(__file__).parents[1] / 'fixtures' / 'pylate'
QUERIES = ['a b', 'c', 'x y z', 'k l m']
DOCUMENTS = ['a b c', 'c d e', 'x y', 'l m n', 'z z', 'p q', 'b a', 'm', 'q r s t', 'e f']


def sick_r():
  """mteb's SICK-R with other pairs."""
  task: Any = mteb.get_task('SICK-R')
  pairs = [(query, document) for query in QUERIES for document in DOCUMENTS]
  first, second = zip(*pairs, strict=True)
  task.dataset = DatasetDict({'test': Dataset.from_dict({
      'sentence1': list(first), 'sentence2': list(second),
      'score': [len({*query} & {*document}) for query, document in pairs]})})
  task.data_loaded = True
  return task


def retrieval(name='NFCorpus', ranked=None):
  """mteb's retrieval task with other texts; with `ranked`, reranking of all documents."""
  task: Any = mteb.get_task(name)
  relevant = {f'q{i}': {f'd{j}': 1 for j, document in enumerate(DOCUMENTS)
                        if {*query} & {*document} - {' '}} for i, query in enumerate(QUERIES)}
  task.dataset = {'default': {'test': {
      'corpus': Dataset.from_dict({'id': [f'd{i}' for i in range(len(DOCUMENTS))],
                                   'text': DOCUMENTS, 'title': [''] * len(DOCUMENTS)}),
      'queries': Dataset.from_dict({'id': [*relevant], 'text': QUERIES}),
      'relevant_docs': relevant, 'top_ranked': ranked}}}
  task.data_loaded = True
  return task


def evaluate(model, task):
  """Return all scores of the task, a number each."""
  found = mteb.evaluate(model, task, cache=None, show_progress_bar=False)
  [scores] = found.task_results[0].scores['test']
  return {name: value for name, value in scores.items() if isinstance(value, float)}


@pytest.fixture(autouse=True)
def quiet():
  logging.getLogger('mteb').setLevel(logging.ERROR)


@pytest.mark.parametrize('name', ['prompts', 'euclidean', 'all'])
def test_bi_encoders_have_the_scores_of_sentence_transformers(name, tmp_path):
  reference: Any = SentenceTransformerEncoderWrapper(
      library_folders.write_bi_encoder(tmp_path / 'model', name))
  # The wrapper compares pairs by cosine or dot product only.
  reference.similarity_pairwise = reference.model.similarity_pairwise
  ours = load_for_mteb(tmp_path / 'model', 'org/own', license='mit')
  assert isinstance(ours, mteb.EncoderProtocol)
  for task in (sick_r(), retrieval()):
    expected = evaluate(reference, task)
    assert evaluate(ours, task) == pytest.approx(expected, abs=1e-6, nan_ok=True)
    assert expected['main_score'] and len(expected) > 5
  meta: Any = ours.mteb_model_meta
  trained = plm_jax.load(tmp_path / 'model')
  assert (meta.name, meta.license, meta.framework) == ('org/own', 'mit', ['JAX'])
  assert (meta.max_tokens, meta.embed_dim) == (10, plm_jax.encode(trained, 'a').shape[1])
  assert meta.similarity_fn_name.value == trained.similarity
  with pytest.raises(ConfigError, match='vectors are float32, got the precision int8'):
    mteb.evaluate(ours, sick_r(), cache=None, encode_kwargs={'precision': 'int8'})


def test_cross_encoders_have_the_scores_of_sentence_transformers(tmp_path):
  reference = CrossEncoderWrapper(library_folders.write_cross_encoder(
      tmp_path / 'model', 'Identity'))
  ours = load_for_mteb(tmp_path / 'model')
  assert ours.mteb_model_meta.name == 'plm_jax/model' and ours.mteb_model_meta.is_cross_encoder
  documents = [f'd{i}' for i in range(len(DOCUMENTS))]
  task = retrieval('SciDocsRR', {f'q{i}': documents for i in range(len(QUERIES))})
  expected = evaluate(reference, task)
  assert evaluate(ours, task) == pytest.approx(expected, abs=1e-6, nan_ok=True)
  assert 0 < expected['main_score'] < 1


def check_search(ours, reference):
  """Compare scores of retrieval and reranking with the library's, and with our own evaluation."""
  documents = [f'd{i}' for i in range(len(DOCUMENTS))]
  ranked = {'q0': documents[::-1], 'q1': documents[:4], 'q2': documents[1::2], 'q3': documents}
  for task in (retrieval(), retrieval('SciDocsRR', ranked)):
    expected = evaluate(reference, task)
    assert evaluate(ours, task) == pytest.approx(expected, abs=1e-6, nan_ok=True)
    assert 0 < expected['main_score'] < 1
  queries = {f'q{i}': query for i, query in enumerate(QUERIES)}
  relevance = retrieval().dataset['default']['test']['relevant_docs']
  data = RetrievalData(dict(zip(documents, DOCUMENTS, strict=True)), queries, relevance)
  own = score_retrieval(data, retrieve(ours.trained, data))
  rounded = round(own['ndcg_10'] / 100, 5)  # as mteb does
  assert evaluate(ours, retrieval())['ndcg_at_10'] == pytest.approx(rounded, abs=1e-6)


def test_sparse_encoders_search_by_themselves(tmp_path):
  library = library_folders.write_sparse_encoder(tmp_path / 'model', 'bert', 'max', 'relu')
  reference: Any = SparseEncoderWrapper(library)
  ours: Any = load_for_mteb(tmp_path / 'model')
  assert isinstance(ours, mteb.SearchProtocol)
  check_search(ours, reference)
  expected = evaluate(reference, sick_r())
  assert evaluate(ours, sick_r()) == pytest.approx(expected, abs=1e-6, nan_ok=True)
  meta: Any = ours.mteb_model_meta
  assert (meta.model_type, meta.similarity_fn_name.value) == (['sparse'], 'dot')
  assert (meta.embed_dim, meta.max_tokens) == (31, 10)
  assert meta.n_parameters == sum(x.numel() for x in library.parameters())
  assert meta.memory_usage_mb == pytest.approx(4 * meta.n_parameters / 2**20)
  with pytest.raises(ConfigError, match='vectors are float32, got the precision int8'):
    mteb.evaluate(ours, retrieval(), cache=None, encode_kwargs={'precision': 'int8'})


@pytest.mark.parametrize('case', ['bert_without_expansion', 'roberta_attends'])
def test_late_interaction_searches_by_itself(case):
  folder = PYLATE / case / 'model'
  library = sentence_transformers.MultiVectorEncoder(str(folder), device='cpu')
  ours: Any = load_for_mteb(folder)
  assert not isinstance(ours, mteb.EncoderProtocol)
  check_search(ours, MultiVectorWrapper(library))
  meta = ours.mteb_model_meta
  assert (meta.model_type, meta.similarity_fn_name.value) == (['late-interaction'], 'MaxSim')
  assert (meta.embed_dim, meta.max_tokens) == (8, 20)


def test_the_revision_is_that_of_the_weights_and_prompts(tmp_path):
  folder = tmp_path / 'model'
  library_folders.write_bi_encoder(folder, 'prompts')
  revision = load_for_mteb(folder).mteb_model_meta.revision
  assert load_for_mteb(plm_jax.load(folder)).mteb_model_meta.revision == revision
  settings = folder / 'config_sentence_transformers.json'
  settings.write_text(settings.read_text().replace('a b ', 'b a '))
  assert load_for_mteb(folder).mteb_model_meta.revision != revision


def test_static_vectors(tmp_path):
  library_folders.write_bi_encoder(tmp_path / 'model', 'dense layers')
  static = plm_jax.distill(tmp_path / 'model', tmp_path / 'static', size=4)
  ours = load_for_mteb(tmp_path / 'static')
  assert ours.mteb_model_meta.n_parameters == static.table.size
  reference: Any = SentenceTransformerEncoderWrapper(
      sentence_transformers.SentenceTransformer(str(tmp_path / 'static'), device='cpu'))
  expected = evaluate(reference, sick_r())
  assert evaluate(ours, sick_r()) == pytest.approx(expected, abs=1e-6, nan_ok=True)


def test_the_command_prints_the_main_scores(tmp_path, capsys, monkeypatch):
  library_folders.write_bi_encoder(tmp_path / 'model', 'prompts')
  task = sick_r()
  monkeypatch.setattr(mteb, 'get_task', lambda name: task if name == 'SICK-R' else 1 / 0)
  results = tmp_path / 'results'
  monkeypatch.setattr('sys.argv', [
      'plm_jax', 'mteb', str(tmp_path / 'model'), 'SICK-R', '--results', str(results)])
  commands.main()
  score = evaluate(load_for_mteb(tmp_path / 'model'), sick_r())['cosine_spearman']
  line = capsys.readouterr().out.splitlines()[-1].split()
  assert line == ['SICK-R', 'cosine_spearman', f'{100 * score:.2f}']
  assert len([*results.rglob('SICK-R.json')]) == 1
  library_folders.write_cross_encoder(tmp_path / 'pairs', 'Identity')
  for folder in (tmp_path / 'pairs', PYLATE / 'roberta_attends' / 'model'):
    monkeypatch.setattr('sys.argv', ['plm_jax', 'mteb', str(folder), 'SICK-R'])
    with pytest.raises(SystemExit, match=f'{folder} has no vector per text, which SICK-R needs'):
      commands.main()
