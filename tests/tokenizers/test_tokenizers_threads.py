"""Tokenizers and segmenters that several threads share give each of them the ids that one thread
gets."""
import concurrent.futures
import importlib.util
import pickle
import sys
import threading

import numpy as np
import pytest
from tokenizer_kinds import KINDS, some_texts

from plm_jax import tokenizers
from plm_jax.preparation import word_segmentation
from plm_jax.tokenizers import word_cache

THREADS = 8


@pytest.fixture(params=KINDS)
def tokenizer(request) -> tokenizers.Tokenizer:
  return KINDS[request.param]()


@pytest.fixture
def switching():
  """Makes Python switch threads as often as it can."""
  before = sys.getswitchinterval()
  sys.setswitchinterval(1e-6)
  yield
  sys.setswitchinterval(before)


def in_threads(work, of):
  """Call work(x) for each x of `of`, each in a separate thread, all at the same time."""
  together = threading.Barrier(len(of))
  def begin(x):
    together.wait()
    return work(x)
  with concurrent.futures.ThreadPoolExecutor(len(of)) as pool:
    return list(pool.map(begin, of))


def test_eight_threads_get_the_ids_of_one(tokenizer, switching):
  texts = [some_texts(60, seed) for seed in range(1, THREADS + 1)]
  alone = pickle.loads(pickle.dumps(tokenizer))
  expected = [[alone.encode(text) for text in some] for some in texts]

  def work(some):
    ids, lengths = tokenizer.encode_flat(some)
    flat = [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]
    one_by_one = [tokenizer.encode_batch([text])[0] for text in some]
    special = [tokenizer.encode(text, specials=True) for text in some]
    places = tokenizer.encode_with_offsets(some)[0].tolist()
    tokenizer.decode(places)
    return flat, one_by_one, special, [part.tolist()
                                       for part in np.split(places, np.cumsum(lengths)[:-1])]

  for ids, found in zip(expected, in_threads(work, texts), strict=True):
    assert all(some == ids for some in found)
  # The caches are correct after the threads, too.
  assert [tokenizer.encode_batch(some) for some in texts] == expected


def test_a_full_cache_is_emptied_by_one_thread_at_a_time(monkeypatch, switching):
  monkeypatch.setattr(word_cache, 'MAX_BYTES', 3000)
  tokenizer = KINDS['wordpiece']()
  texts = [some_texts(60, seed) for seed in range(THREADS)]
  expected = [[tokenizer.encode(text) for text in some] for some in texts]
  assert in_threads(lambda some: [tokenizer.encode_batch([text])[0] for text in some],
                    texts) == expected


def test_an_interrupted_call_leaves_the_cache_right():
  """An exception, such as Ctrl-C, in the middle of an update does not shift the ids of later
  words."""
  tokenizer = KINDS['wordpiece']()
  cache, texts = tokenizer._cache, some_texts(20, 3)

  class Interrupting(dict):
    def __setitem__(self, key, value):
      raise InterruptedError

  cache._rows = Interrupting(cache._rows)
  with pytest.raises(InterruptedError):
    tokenizer.encode_batch(texts)
  assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]


@pytest.mark.skipif(importlib.util.find_spec('jieba') is None, reason='jieba is an extra')
def test_jieba_in_threads_and_with_a_list_of_words(tmp_path):
  """A list of words belongs to the segmenter that reads it: others of the process keep jieba's own
  dictionary."""
  (tmp_path / 'words.txt').write_text('中国人民大学生\n')
  text = '我是中国人民大学生，喜欢北京。'
  plain = word_segmentation.make_segmenter('jieba')
  before = plain(text)
  listed = word_segmentation.make_segmenter(f'jieba:{tmp_path / "words.txt"}')
  assert '中国人民大学生' in listed(text)[1] and '中国人民大学生' not in before[1]
  assert plain(text) == before
  results = in_threads(lambda n: [(plain if n % 2 else listed)(text) for _ in range(20)],
                       range(THREADS))
  assert all(some == [before if n % 2 else listed(text)] * 20 for n, some in enumerate(results))
