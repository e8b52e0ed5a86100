"""similar, search and distill as they are typed."""
import json

import numpy as np
import pytest
from sentence_model import trained_of

import plm_jax
from plm_jax.cli import commands
from plm_jax.layers.pooling import VectorConfig


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


@pytest.mark.parametrize(('args', 'said'), [
    (('similar', 'model', 'alone'), "'alone' is no file of pairs: give two texts, or a file"),
    (('similar', 'model', 'texts.txt'),
     'a row has a text alone: there is nothing that it is compared with'),
    (('search', 'model', 'bad.npy', 'a'), 'holds no vectors'),
    (('search', 'model', 'empty.txt', 'a'), 'empty.txt has no texts'),
    (('search', 'model', 'gaps.txt', 'a'), 'gaps.txt:2: the line is empty'),
    (('similar', 'model', 'texts.txt', 'a'), 'is a file, and texts are compared')])
def test_wrong_inputs_of_comparisons_are_refused(args, said, home, monkeypatch):
  (home / 'bad.npy').write_bytes(b'no array')
  (home / 'empty.txt').write_text('')
  (home / 'gaps.txt').write_text('a\n\nb\n')
  monkeypatch.chdir(home)
  monkeypatch.setattr('sys.argv', ['plm_jax', *args])
  with pytest.raises(SystemExit, match=said):
    commands.main()
