"""similar, search and distill as they are typed."""
import json
import re
import shutil

import numpy as np
import pytest
from scipy import sparse
from sentence_model import trained_of

import plm_jax
from plm_jax.cli import commands
from plm_jax.layers.pooling import VectorConfig
from plm_jax.layers.splade import SpladeConfig
from plm_jax.layers.token_vectors import TokenVectorConfig


@pytest.fixture(scope='module')
def home(tmp_path_factory):
  folder = tmp_path_factory.mktemp('compared')
  plm_jax.export(trained_of(VectorConfig(normalize=True)), folder / 'model')
  (folder / 'texts.txt').write_text('a book\nthe film is good\nana\n')
  (folder / 'pairs.tsv').write_text('sentence1\tsentence2\na book\ta book\nana\tthe film\n')
  return folder


def typed(monkeypatch, capsys, *args):
  monkeypatch.setattr('sys.argv', ['plm_jax', *map(str, args)])
  commands.main()
  return capsys.readouterr().out


def test_vectors_and_search(home, monkeypatch, capsys):
  model = home / 'model'
  out = typed(monkeypatch, capsys, 'similar', model, 'a book', 'a book', 'ana')
  assert out.splitlines()[0] == '1.0000\ta book\ta book' and len(out.splitlines()) == 2
  assert typed(monkeypatch, capsys, 'similar', model,
               home / 'pairs.tsv').startswith('1.0000\ta book\ta book\n')
  typed(monkeypatch, capsys, 'encode', model, home / 'texts.txt', '--output', home / 'known.npy')
  vectors = np.load(home / 'known.npy')
  np.testing.assert_array_equal(vectors, plm_jax.encode(
      model, (home / 'texts.txt').read_text().splitlines()))
  for corpus in ('texts.txt', 'known.npy'):
    found = json.loads(typed(monkeypatch, capsys, 'search', model, home / corpus,
                             'the film is good', '--top=2'))
    assert found['hits'][0]['number'] == 1 and len(found['hits']) == 2
    assert found['hits'][0].get('text', 'the film is good') == 'the film is good'
  assert 'vectors of 8 numbers' in typed(monkeypatch, capsys, 'distill', model, home / 'static',
                                         '--size=8')
  assert typed(monkeypatch, capsys, 'similar', home / 'static', 'a book',
               'a book').startswith('1.0000')
  loaded = plm_jax.load(home / 'static')
  assert repr(loaded).startswith('<static vectors: ') and plm_jax.encode(
      loaded, 'a book').shape == (1, 8)
  found, = plm_jax.search(loaded, ['ana', 'a book'], 'a book', top=1)
  assert found[0].text == 'a book'
  typed(monkeypatch, capsys, 'encode', home / 'static', home / 'texts.txt', '--output',
        home / 'static.npy')
  assert np.load(home / 'static.npy').shape == (3, 8)


def test_sparse_vectors_and_search(home, tmp_path, monkeypatch, capsys):
  """Written to .npz, searched from there, and evaluated with their active dimensions."""
  model = tmp_path / 'model'
  plm_jax.export(trained_of(SpladeConfig()), model)
  known = tmp_path / 'known.npz'
  typed(monkeypatch, capsys, 'encode', model, home / 'texts.txt', '--output', known)
  vectors, texts = sparse.load_npz(known), (home / 'texts.txt').read_text().splitlines()
  expected = plm_jax.encode(model, texts)
  np.testing.assert_array_equal(vectors.toarray(), expected.toarray())
  for corpus in (home / 'texts.txt', known):
    found = json.loads(typed(monkeypatch, capsys, 'search', model, corpus, texts[1], '--top=2'))
    assert found['hits'][0]['number'] == 1 and len(found['hits']) == 2
  assert typed(monkeypatch, capsys, 'similar', model, 'ana', 'ana').startswith('1.0000')
  # A masked language model that nothing says is sparse.
  plain = shutil.copytree(model, tmp_path / 'plain')
  (plain / 'modules.json').unlink()
  typed(monkeypatch, capsys, 'encode', plain, home / 'texts.txt', '--sparse', '--output',
        tmp_path / 'plain.npz')
  np.testing.assert_allclose(
      sparse.load_npz(tmp_path / 'plain.npz').toarray(), expected.toarray(), atol=1e-5)
  hits = json.loads(typed(monkeypatch, capsys, 'search', plain, known, texts[1], '--top=1'))['hits']
  assert hits[0]['number'] == 1
  for args, said in (((model, home / 'texts.txt', '--output=x.npy'), 'sparse vectors is .npz'),
                     ((home / 'model', home / 'texts.txt', '--sparse', '--output=x.npz'),
                      'sparse vectors are made by a masked language model'),
                     ((plain, home / 'texts.txt', '--sparse', '--layer=1', '--output=x.npz'),
                      '--sparse is for masked language models')):
    with pytest.raises(SystemExit, match=said):
      typed(monkeypatch, capsys, 'encode', *args)
  (tmp_path / 'qrels').mkdir()
  for name, rows in (('corpus', texts), ('queries', texts[:2])):
    lines = [json.dumps({'_id': f'{name} {text}', 'text': text}) for text in rows]
    (tmp_path / f'{name}.jsonl').write_text('\n'.join(lines) + '\n')
  judged = [f'queries {text}\tcorpus {text}\t1\n' for text in texts[:2]]
  (tmp_path / 'qrels/test.tsv').write_text('query-id\tcorpus-id\tscore\n' + ''.join(judged))
  out = typed(monkeypatch, capsys, 'evaluate-retrieval', model, tmp_path)
  assert re.search(r'ndcg_10 +100\.00', out)
  found = expected.toarray() > 0
  for name, value in (('query_dimensions', found[:2].sum(1).mean()),
                      ('document_dimensions', found.sum(1).mean()),
                      ('flops', found[:2].mean(0) @ found.mean(0))):
    assert f'{name:18}{value:8.2f}' in out


@pytest.mark.parametrize(('args', 'said'), [
    (('search', 'model', 'bad.npz', 'a'), 'holds no vectors'),
    (('similar', 'model', 'alone'), "'alone' is no file of pairs: give two texts, or a file"),
    (('similar', 'model', 'texts.txt'),
     'a row has a text alone: there is nothing that it is compared with'),
    (('search', 'model', 'bad.npy', 'a'), 'holds no vectors'),
    (('search', 'model', 'empty.txt', 'a'), 'empty.txt has no texts'),
    (('search', 'model', 'gaps.txt', 'a'), 'gaps.txt:2: the line is empty'),
    (('similar', 'model', 'texts.txt', 'a'), 'is a file, and texts are compared')])
def test_wrong_inputs_of_comparisons_are_refused(args, said, home, monkeypatch):
  (home / 'bad.npy').write_bytes(b'no array')
  (home / 'bad.npz').write_bytes(b'no array')
  (home / 'empty.txt').write_text('')
  (home / 'gaps.txt').write_text('a\n\nb\n')
  monkeypatch.chdir(home)
  monkeypatch.setattr('sys.argv', ['plm_jax', *args])
  with pytest.raises(SystemExit, match=said):
    commands.main()


def test_token_vectors(home, tmp_path, monkeypatch, capsys):
  """encode, search of its file, rerank, similar, and evaluation in BEIR's layout."""
  model = tmp_path / 'colbert'
  plm_jax.export(trained_of(TokenVectorConfig(dense=8, query_length=8)), model)
  texts = (home / 'texts.txt').read_text().splitlines()
  with pytest.raises(SystemExit, match=r'token vectors differ in number .*: write \.npz or'):
    typed(monkeypatch, capsys, 'encode', model, home / 'texts.txt', '--output', tmp_path / 'a.npy')
  file = tmp_path / 'a.npz'
  typed(monkeypatch, capsys, 'encode', model, home / 'texts.txt', '--output', file)
  with np.load(file) as found:
    expected = plm_jax.encode(model, texts)
    assert found['lengths'].tolist() == [len(vectors) for vectors in expected] == [5, 7, 4]
    np.testing.assert_allclose(found['vectors'], np.concatenate(expected), atol=1e-6)
  hits, = plm_jax.search(model, texts, 'a book')
  for corpus in (home / 'texts.txt', file):
    found = json.loads(typed(monkeypatch, capsys, 'search', model, corpus, 'a book'))
    assert [hit['number'] for hit in found['hits']] == [hit.number for hit in hits]
  found = json.loads(typed(monkeypatch, capsys, 'rerank', model, 'a book', home / 'texts.txt'))
  assert [hit['text'] for hit in found['hits']] == [hit.text for hit in hits]
  (score,) = plm_jax.similar(model, 'a book', 'ana')
  assert typed(monkeypatch, capsys, 'similar', model, 'a book', 'ana') == (
      f'{score:.4f}\ta book\tana\n')
  (tmp_path / 'qrels').mkdir()
  (tmp_path / 'corpus.jsonl').write_text(''.join(
      json.dumps({'_id': f'd{n}', 'text': text}) + '\n' for n, text in enumerate(texts)))
  (tmp_path / 'queries.jsonl').write_text('{"_id": "q", "text": "a book"}\n')
  (tmp_path / 'qrels' / 'test.tsv').write_text(
      f'query-id\tcorpus-id\tscore\nq\td{hits[0].number}\t1\n')
  out = typed(monkeypatch, capsys, 'evaluate-retrieval', model, tmp_path, '--reranker', model,
              '--output', tmp_path / 'ranking')
  assert 'ndcg_10             100.00' in out
  ranked = [line.split() for line in (tmp_path / 'ranking').read_text().splitlines()]
  assert [row[2] for row in ranked] == [f'd{hit.number}' for hit in hits]
  np.testing.assert_allclose([float(row[4]) for row in ranked], [hit.score for hit in hits],
                             atol=1e-4)
