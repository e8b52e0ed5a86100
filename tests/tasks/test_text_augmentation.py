import dataclasses
from typing import Any

import numpy as np

from plm_jax.tasks.features import Ragged
from plm_jax.tasks.text_augmentation import AugmentConfig, augment_text, build_word_pool

TOKENS = np.arange(10, 18, dtype=np.int32)
STARTS = np.array([1, 0, 1, 1, 0, 0, 1, 1], bool)  # 10 11 | 12 | 13 14 15 | 16 | 17
POOL = Ragged.concat([[90, 91], [92]])
NONE = AugmentConfig(share=1.0, substitute=0.0, insert=0.0, swap=0.0, delete=0.0)


def run(seed=0, tokens=TOKENS, starts=STARTS, **shares):
  config = dataclasses.replace(NONE, **shares)
  return augment_text(tokens, starts, np.random.default_rng(seed), config, POOL).tolist()


def words(ids):
  """Splits a text into the words of which it is made; none is taken apart."""
  known = [[10, 11], [12], [13, 14, 15], [16], [17], [90, 91], [92]]
  found = []
  while ids:
    word = next(word for word in known if ids[:len(word)] == word)
    found.append(known.index(word))
    ids = ids[len(word):]
  return found


def test_each_operation():
  for seed in range(20):
    swapped = words(run(seed, swap=0.4))
    assert sorted(swapped) == [0, 1, 2, 3, 4]
    inserted = words(run(seed, insert=0.4))
    assert len(inserted) == 7 and [n for n in inserted if n < 5] == [0, 1, 2, 3, 4]
    substituted = words(run(seed, substitute=0.4))
    assert len(substituted) == 5 and sum(n > 4 for n in substituted) == 2
    assert all(n in (place, 5, 6) for place, n in enumerate(substituted))
    left = words(run(seed, delete=0.5))
    assert left == sorted(left) and left
  assert {len(words(run(seed, delete=0.5))) for seed in range(50)} == {1, 2, 3, 4, 5}


def test_one_word_at_least_is_touched_and_none_by_nothing():
  assert sum(n > 4 for n in words(run(substitute=0.01))) == 1
  assert run() == run(swap=0.9, share=0.0) == TOKENS.tolist()


def test_a_text_is_a_function_of_the_generator():
  both: dict[str, Any] = dict(substitute=0.2, insert=0.2, swap=0.2, delete=0.2)
  assert run(5, **both) == run(5, **both) == [13, 14, 15, 92, 16, 17]
  assert len({tuple(run(seed, **both)) for seed in range(30)}) > 20


def test_no_text_becomes_empty():
  for seed in range(20):
    assert run(seed, delete=1.0)
    assert run(seed, TOKENS[:1], STARTS[:1], delete=1.0) == [10]
  assert run(0, TOKENS[:0], STARTS[:0], insert=1.0) == []


def test_words_of_texts():
  pool = build_word_pool(Ragged.concat([[5, 6, 7], [], [8, 9]]),
                         Ragged.concat([[1, 0, 1], [], [0, 0]], bool))
  assert [pool[n].tolist() for n in range(len(pool))] == [[5, 6], [7], [8, 9]]
