"""A runner as bad as a cluster may be: items come in any order, go by in pickles, and are worked on twice."""
import collections
import functools
import itertools
import pickle
import random


class Shuffled:
  """A `plm_jax.data.stages.Runner` in memory; collections are lists."""

  def __init__(self, seed=0):
    self.draw = random.Random(seed)

  def __call__(self, describe):
    describe(self)

  def of(self, items):
    return self.draw.sample(items := list(items), len(items))

  def each(self, function, items):
    function = pickle.loads(pickle.dumps(function))
    found = []
    for item in self.of(items):
      first = list(function(travelled(item)))
      found += list(function(travelled(item))) if self.draw.random() < 0.5 else first
    return self.of(map(travelled, found))

  def together(self, function, *items):
    return self.each(lambda_free(function, [self.of(some) for some in items]), [None])

  def grouped(self, function, *items):
    groups = collections.defaultdict(list)
    for number, item in self.of(itertools.chain(*items)):
      groups[number].append(item)
    return self.each(functools.partial(apart, function), groups.items())


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
