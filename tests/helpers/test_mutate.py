"""The damage that other tests try: the same for a seed, of every kind, and under limits that
hold."""
import collections
import itertools
import json
import time

import mutate
import numpy as np
import pytest


def test_damage_is_a_function_of_the_seed():
  value = {'a': [1, {'b': 'text'}], 'c': None, 'd': 0.5}
  one, again, other = (list(mutate.jsons(value, 200, seed)) for seed in (1, 1, 2))
  assert one == again != other
  assert sum(text != json.dumps(value).encode() for text in one) > 190
  assert any(b'9' * 5000 in text for text in one) and any(b'NaN' in text for text in one)
  content = bytes(range(256)) * 4
  assert list(mutate.contents(content, 50, 3)) == list(mutate.contents(content, 50, 3))
  lengths = {len(changed) - len(content) for changed in mutate.contents(content, 200)}
  assert min(lengths) < -500 and max(lengths) >= 64 and 0 in lengths


def test_limits_hold():
  with pytest.raises(mutate.Late), mutate.limits(seconds=0.05):
    collections.deque(map(time.sleep, itertools.repeat(0.001, 10_000)), 0)
  with pytest.raises(MemoryError), mutate.limits(memory=1 << 28):
    np.zeros(1 << 29, np.uint8)
  assert np.zeros(1 << 29, np.uint8).size
