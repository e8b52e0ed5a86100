"""What ELMo's features add to word vectors: a BiLSTM-CRF tagger with and without them, of equal size.

    python -m benchmarks.elmo_tagger --elmo=RUN_OR_FOLDER --vectors=VECTORS.txt \\
        --train=train.conll.gz --dev=dev.conll.gz --test=test.conll.gz --seeds=3

Peters et al. 2018, section 4, named entities, smaller: word vectors that are tuned, beside them (or not) a mixture of
the layers of a frozen ELMo, which the task learns; one LSTM from each side; a CRF. The tagger without features has as
many more cells as make its parameters as many. Each run ends with the epoch that is best on `dev`; figures are F1 of
whole entities on `test`. --vectors may be left out: then both begin with random ones. It has not been run with a
trained ELMo yet, and benchmarks/RESULTS.md has no figures of it.
"""
from collections.abc import Iterator, Sequence
import dataclasses
import functools
import gzip
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro

from plm_jax.data import columns
from plm_jax.data.lines import Tally
from plm_jax.inference.elmo import word_layers
from plm_jax.inference.loading import load
from plm_jax.layers.crf import CRF
from plm_jax.layers.dense import count
from plm_jax.layers.lstm import LSTMState, ProjectedLSTM, turned
from plm_jax.layers.mix import ScalarMix
from plm_jax.tasks.metrics import chunks
from plm_jax.vectors import formats


@dataclasses.dataclass(frozen=True)
class Config:
  """The comparison."""

  elmo: str
  """a run, or a folder with options.json and .hdf5"""
  train: str
  """words and tags in columns, as CoNLL's; .gz or not"""
  dev: str
  """by whose F1 the epoch is chosen"""
  test: str
  """on which figures are"""
  vectors: str = ''
  """word vectors, in word2vec's form"""
  seeds: int = 3
  """runs of each"""
  epochs: int = 20
  """times that the training sentences are read"""
  cells: int = 64
  """of each LSTM of the tagger with features"""
  rows: int = 32
  """sentences in an update"""
  rate: float = 1e-3
  """Adam's"""


class Tagger(nn.Module):
  """Ids of words [B, T], layers [N, B, T, D] of features or None -> scores of tags [B, T, C], and its CRF."""

  tags: int
  cells: int
  table: Any  # word vectors to begin with [V, E]

  def setup(self):
    self.words: Any = self.param('words', lambda key: jnp.asarray(self.table))
    self.mix: Any = ScalarMix()
    self.lstm: Any = ProjectedLSTM(self.cells, self.cells, None, None)
    self.dense: Any = nn.Dense(self.tags)
    self.drop: Any = nn.Dropout(0.5)
    self.crf: Any = CRF(self.tags)

  def scores(self, ids, layers, mask, train: bool):
    """Scores tags by what both LSTMs say of a word."""
    x = self.words[ids]
    if layers is not None:
      x = jnp.concatenate([x, self.mix(layers, mask)], -1)
    x, lengths = self.drop(x, deterministic=not train), mask.sum(-1)
    both = jnp.stack([x, turned(x, lengths)], 1)
    state = LSTMState(*(jnp.zeros((len(x), 2, self.cells)),) * 2)
    h, _ = self.lstm(both, state, jnp.broadcast_to(mask[:, None], both.shape[:3]))
    h = jnp.concatenate([h[:, 0], turned(h[:, 1], lengths)], -1)
    return self.dense(self.drop(h, deterministic=not train))

  def __call__(self, ids, layers, mask, tags, train: bool = False):
    return -self.crf(self.scores(ids, layers, mask, train), tags, mask).sum() / jnp.maximum(mask.sum(), 1)

  def decode(self, ids, layers, mask):
    """Returns the likeliest tags."""
    return self.crf.decode(self.scores(ids, layers, mask, False), mask)


@dataclasses.dataclass(frozen=True)
class Split:
  """Sentences, and what an ELMo says of them."""

  ids: list[np.ndarray]
  tags: list[np.ndarray]
  layers: list[np.ndarray]

  def batches(self, rows: int, order: Sequence[int], features: bool) -> Iterator[tuple[Sequence[int], tuple]]:
    """Yields numbers of sentences, and arrays of them; those of a batch are about as long."""
    for start in range(0, len(order), rows):
      some = order[start:start + rows]
      size = -(-max(len(self.ids[n]) for n in some) // 16) * 16
      ids, tags, mask = np.zeros((3, rows, size), np.int32)
      layers = np.zeros((len(self.layers[0]), rows, size, self.layers[0].shape[-1]), np.float32) if features else None
      for row, n in enumerate(some):
        length = len(self.ids[n])
        ids[row, :length], tags[row, :length], mask[row, :length] = self.ids[n], self.tags[n], 1
        if layers is not None:
          layers[:, row, :length] = self.layers[n]
      yield some, (ids, layers, mask > 0, tags)


def read(path: str) -> list[columns.Sentence]:
  """Reads sentences in columns."""
  with (gzip.open if path.endswith('.gz') else open)(path, 'rt', encoding='utf-8') as file:
    lines = [line.rstrip('\r\n') for line in file]
  return list(columns.sentences(path, enumerate(lines, 1), columns.Layout(words=True), 'refuse', Tally()))


def train(config: Config, splits: Sequence[Split], labels: list[str], table: np.ndarray, cells: int, features: bool,
          seed: int) -> tuple[float, int]:
  """Trains a tagger -> F1 on the test split at the best epoch on the development one, and how many parameters."""
  model, tx = Tagger(len(labels), cells, table), optax.chain(optax.clip_by_global_norm(5.0), optax.adam(config.rate))
  rng, key = np.random.default_rng(seed), jax.random.key(seed)
  _, first = next(splits[0].batches(config.rows, [0], features))
  params = jax.jit(model.init)(key, *first)['params']
  state = tx.init(params)

  @jax.jit
  def update(params, state, key, batch):
    loss = lambda params: model.apply({'params': params}, *batch, train=True, rngs={'dropout': key})
    updates, state = tx.update(jax.grad(loss)(params), state, params)
    return optax.apply_updates(params, updates), state

  decode = jax.jit(lambda params, batch: model.apply({'params': params}, *batch[:3], method='decode'))

  def f1(params, split: Split) -> float:
    truth, said = [], []
    for some, batch in split.batches(config.rows, by_length(split, rng=None, rows=config.rows), features):
      found = np.asarray(decode(params, batch))
      for row, n in enumerate(some):
        truth.append([labels[tag] for tag in split.tags[n]])
        said.append([labels[tag] for tag in found[row, :len(split.tags[n])]])
    return chunks(truth, said).total.f1

  best, tested, step = -1.0, 0.0, 0
  for _ in range(config.epochs):
    for _, batch in splits[0].batches(config.rows, by_length(splits[0], rng, config.rows), features):
      params, state = update(params, state, jax.random.fold_in(key, step), batch)
      step += 1
    if (now := f1(params, splits[1])) > best:
      best, tested = now, f1(params, splits[2])
  return tested, count(params)


def by_length(split: Split, rng: np.random.Generator | None, rows: int) -> list[int]:
  """Orders sentences so that neighbours are about as long; rng: batches of them in random order."""
  order = np.argsort([len(ids) for ids in split.ids], kind='stable')
  if rng is None:
    return order.tolist()
  groups = [order[start:start + rows] for start in range(0, len(order), rows)]
  last = groups.pop()  # which may be smaller
  return [int(n) for number in rng.permutation(len(groups)) for n in groups[number]] + last.tolist()


def main(config: Config) -> None:
  """Prints a line for each tagger."""
  read_splits = [read(path) for path in (config.train, config.dev, config.test)]
  labels = sorted({word.tag or '' for split in read_splits for sentence in split for word in sentence.words})
  known: dict[str, int] = {}
  vectors = formats.load(config.vectors) if config.vectors else None
  given = {word: row for row, word in enumerate(vectors.words)} if vectors else {}
  for split in read_splits:
    for sentence in split:
      for word in sentence.words:
        if split is read_splits[0] or word.text in given or word.text.lower() in given:
          known.setdefault(word.text, len(known) + 1)
  width = vectors.matrix.shape[1] if vectors else 100
  table = np.random.default_rng(0).normal(0, 0.1, (len(known) + 1, width)).astype(np.float32)
  for word, number in known.items():
    if (row := given.get(word, given.get(word.lower()))) is not None and vectors:
      table[number] = vectors.matrix[row]
  trained = load(config.elmo)
  splits = []
  for split in read_splits:
    words = [[word.text for word in sentence.words] for sentence in split]
    splits.append(Split(
        [np.array([known.get(word, 0) for word in some], np.int32) for some in words],
        [np.array([labels.index(word.tag or '') for word in sentence.words], np.int32) for sentence in split],
        word_layers(trained, words)))

  def size(features: bool, cells: int) -> int:
    _, batch = next(splits[0].batches(config.rows, [0], features))
    shapes = jax.eval_shape(Tagger(len(labels), cells, table).init, jax.random.key(0), *batch)
    return count(shapes['params'])

  with_features = size(True, config.cells)
  cells = next(number for number in range(config.cells, 100 * config.cells) if size(False, number) >= with_features)
  for name, features, number in (('word vectors', False, cells), ('word vectors and ELMo', True, config.cells)):
    run = functools.partial(train, config, splits, labels, table, number, features)
    scores = [run(seed) for seed in range(config.seeds)]
    f1 = [score for score, _ in scores]
    print(f'{name:24} F1 {np.mean(f1):.2f} +- {np.std(f1):.2f} ({", ".join(f"{x:.2f}" for x in f1)}), '
          f'{scores[0][1]:,} parameters, {number} cells', flush=True)


if __name__ == '__main__':
  main(tyro.cli(Config))
