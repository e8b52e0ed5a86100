"""A runner as bad as a cluster may be: items come in any order, go by in pickles, and are worked on
twice."""
import collections
import functools
import itertools
import pickle
import random


class Shuffled:
  """A `plm_jax.preparation.parallel_stages.Runner` in memory; collections are lists."""

  def __init__(self, seed=0):
    self.draw = random.Random(seed)

  def __call__(self, describe):
    describe(self)

  def shuffle(self, items):
    return self.draw.sample(items := list(items), len(items))

  def read(self, function, parts):
    return self.flat_map(function, parts)

  def flat_map(self, function, items):
    function = pickle.loads(pickle.dumps(function))
    found = []
    for item in self.shuffle(items):
      first = list(function(travelled(item)))
      found += list(function(travelled(item))) if self.draw.random() < 0.5 else first
    return self.shuffle(map(travelled, found))

  def call_once(self, function, *items):
    return self.flat_map(lambda_free(function, [self.shuffle(some) for some in items]), [None])

  def group_by_key(self, function, items):
    groups = collections.defaultdict(list)
    for number, item in self.shuffle(itertools.chain(*items)):
      groups[number].append(item)
    return self.flat_map(functools.partial(apart, function), groups.items())


def apart(function, group):
  number, items = group
  return function(number, iter(items))


class lambda_free:
  """A function of collections, as one of an item that it leaves alone."""

  def __init__(self, function, items):
    self.function, self.items = function, items

  def __call__(self, _):
    return self.function(*map(iter, self.items))


def travelled(item):
  return pickle.loads(pickle.dumps(item))
