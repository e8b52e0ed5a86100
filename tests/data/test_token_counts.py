"""Frequencies of tokens in records, and where they are stored."""
import json

from etils import epath
import numpy as np
import pytest

from plm_jax import storage
from plm_jax.data import window_counts
from plm_jax.data.records import RecordsError
from tests.data.test_windows import write

FIRST = {'ids': [5, 6, 5, 8, 5, 9], 'sentences': [(0, 0)]}
SECOND = {'ids': [9, 9, 9, 9, 6], 'sentences': [(0, 0)]}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  monkeypatch.setenv('PLM_JAX_CACHE', str(tmp_path / 'cache'))


def test_ranks_are_of_all_shards_of_all_corpora(tmp_path, monkeypatch):
  monkeypatch.setattr(window_counts, 'PART', 4)
  folders = [epath.Path(write(tmp_path / name, *shards, vocab=10)) for name, shards in (
      ('a', (FIRST, SECOND)), ('b', (SECOND,)))]
  want = np.bincount(FIRST['ids'] + SECOND['ids'], minlength=10)
  np.testing.assert_array_equal(window_counts.load_token_counts(folders[0]), want)
  # 9 nine times, 5 and 6 three times each, 8 once; then those that never occur, by id.
  ranks = window_counts.frequency_ranks(folders)
  assert ranks.dtype == np.int32 and np.argsort(ranks).tolist() == [9, 5, 6, 8, 0, 1, 2, 3, 4, 7]


def test_counts_are_stored_next_to_the_records_and_checked(tmp_path, caplog):
  folder = epath.Path(write(tmp_path / 'a', FIRST, vocab=10))
  counts = window_counts.load_token_counts(folder)
  path, = (tmp_path / 'a').rglob('token_counts.json')
  stored = path.read_text()
  path.write_text(stored.replace('"counts"', '"count"'))
  np.testing.assert_array_equal(window_counts.load_token_counts(folder), counts)
  assert 'is made again' in caplog.text and path.read_text() == stored
  shifted = json.loads(stored)['counts']
  shifted[0] += 1
  storage.write(path, window_counts.checksums.seal_json({'counts': shifted}))
  np.testing.assert_array_equal(window_counts.load_token_counts(folder), counts)


def test_an_id_beyond_the_vocabulary_is_refused(tmp_path):
  folder = epath.Path(write(tmp_path / 'a', {'ids': [5, 12], 'sentences': [(0, 0)]}, vocab=10))
  with pytest.raises(RecordsError, match='12'):
    window_counts.load_token_counts(folder)
