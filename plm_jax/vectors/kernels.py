"""Losses of word vectors as pure functions of the rows that a batch gathers, and how their gradients go back into
tables.

A row that is not gathered is not computed on: the gradient is taken of the gathered rows, and added to the table where
they came from. So a batch costs what its words cost, however many others there are. Letters: B blocks, X and Y words of
a block that predict and are predicted, K words of noise, P nodes of a path, D width.
"""
from collections.abc import Callable, Mapping
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

Tables = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Penalty:
  """What a score costs that should be high, and one that should be low."""

  high: Callable[[jax.Array], jax.Array]
  low: Callable[[jax.Array], jax.Array]
  whole: bool = True
  """rows of a mean get the whole gradient of the mean, as released, not their share of it"""


LOGISTIC = Penalty(lambda score: jax.nn.softplus(-score), jax.nn.softplus)
PLAIN = Penalty(lambda score: score, lambda score: score, whole=False)


def skip_gram(
    inputs: jax.Array, outputs: jax.Array, noise: jax.Array, pairs: jax.Array, counted: jax.Array,
    penalty: Penalty = LOGISTIC) -> jax.Array:
  """Measures negative sampling's loss (Mikolov et al. 2013, equation 4), of each block [B] the sum over its pairs.

  inputs [B, X, D] predict outputs [B, Y, D] where pairs [B, X, Y] is 1, and are told from noise [B, K, D], whose word k
  counts counted [B, Y, K] in a prediction of output y. The words of noise are shared by a block, which makes products
  of matrices of what would be products of vectors (Ji et al. 2016, "Parallelizing word2vec in shared and distributed
  memory"); the expected gradient stays.
  """
  true = jnp.einsum('bxd,byd->bxy', inputs, outputs)
  false = jnp.einsum('bxd,bkd->bxk', inputs, noise)
  against = jnp.einsum('bxy,byk->bxk', pairs, counted)
  return (pairs * penalty.high(true)).sum((1, 2)) + (against * penalty.low(false)).sum((1, 2))


def cbow(
    inputs: jax.Array, outputs: jax.Array, noise: jax.Array, pairs: jax.Array, counted: jax.Array,
    sizes: jax.Array, penalty: Penalty = LOGISTIC) -> jax.Array:
  """Measures negative sampling's loss where the mean of the inputs of each output predicts it -> [B].

  Shapes are those of `skip_gram`; inputs are sums of sizes [B, X] rows. An output without inputs is not predicted.
  """
  hidden = mean_of(inputs, pairs, sizes, penalty.whole)
  some = pairs.any(1)
  true = (hidden * outputs).sum(-1)
  false = jnp.einsum('byd,bkd->byk', hidden, noise)
  return (some * penalty.high(true)).sum(1) + (some[:, :, None] * counted * penalty.low(false)).sum((1, 2))


def mean_of(inputs: jax.Array, pairs: jax.Array, sizes: jax.Array, whole: bool = True) -> jax.Array:
  """Averages inputs [B, X, D], each the sum of sizes [B, X] rows, for every output -> [B, Y, D].

  whole: every row gets the whole gradient of the mean, not its share of it, as in word2vec.c and fastText (Irsoy et al.
  2021, "Corrected CBOW performs as well as skip-gram", call that wrong and mend it).
  """
  total = jnp.einsum('bxd,bxy->byd', inputs, pairs)
  number = jnp.maximum(jnp.einsum('bx,bxy->by', sizes, pairs), 1)[..., None]
  if not whole:
    return total / number
  return total + jax.lax.stop_gradient(total / number - total)


def hierarchical(
    hidden: jax.Array, nodes: jax.Array, codes: jax.Array, weight: jax.Array, penalty: Penalty = LOGISTIC) -> jax.Array:
  """Measures the loss of predicting words by their paths -> the sum over all predictions.

  hidden [B, Y, C, D], C predictions of word y, each counted weight [B, Y, C]; nodes [B, Y, P, D] on the path of the
  word, and the branch taken at each, codes [B, Y, P]: 0 where the node's probability is that of the first, 1, and -1
  behind the path's end (word2vec.c: the label is 1 - code).
  """
  score = jnp.einsum('bycd,bypd->bycp', hidden, nodes)
  codes = codes[:, :, None]
  return (weight[..., None] * (codes >= 0) * jnp.where(codes == 0, penalty.high(score), penalty.low(score))).sum()


def ranking(true: jax.Array, corrupted: jax.Array) -> jax.Array:
  """Measures the hinge by which texts have to be ranked above corrupted ones (Collobert and Weston 2008, section 4).

  true [B] scores, corrupted [B, K] scores of the same texts with another word -> [B, K]: max(0, 1 - true + corrupted).
  """
  return jnp.maximum(0.0, 1.0 - true[:, None] + corrupted)


def co_occurrence(
    words: jax.Array, contexts: jax.Array, biases: jax.Array, counts: jax.Array, largest: float,
    power: float) -> tuple[jax.Array, jax.Array]:
  """Measures how far pairs are from their logarithmic counts (Pennington et al. 2014, equation 8) -> (f d, f d^2 / 2),
  each [B].

  words, contexts [B, D], biases [B] the sum of both, counts [B] > 0; f is `weight`, d the difference.
  """
  difference = (words * contexts).sum(-1) + biases - jnp.log(counts)
  weighted = weight(counts, largest, power) * difference
  return weighted, 0.5 * weighted * difference


def weight(counts: jax.Array, largest: float, power: float) -> jax.Array:
  """Weighs pairs by their counts [B], from `largest` on alike (Pennington et al. 2014, equation 9)."""
  return jnp.minimum(1.0, (counts / largest) ** power)


def gathered(tables: Tables, rows: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
  """Takes rows of tables: rows[name] of any shape -> [..., D]."""
  return {name: tables[name][ids] for name, ids in rows.items()}


def descend(
    loss: Callable[[dict[str, jax.Array]], jax.Array], tables: Tables, rows: Mapping[str, jax.Array], rate: Any,
    damping: Mapping[str, jax.Array] | None = None) -> Tables:
  """Makes a step of gradient descent on loss(gathered rows), in the rows alone that are gathered. A row that is
  gathered more than once is moved by the sum, each times its damping, which has the shape of the ids."""
  slopes = jax.grad(loss)(gathered(tables, rows))
  if damping:
    slopes = {name: slope * damping[name][..., None] for name, slope in slopes.items()}
  return tables | {name: tables[name].at[ids].add(-rate * slopes[name], mode='drop') for name, ids in rows.items()}


def damped(
    idle: Tables, rows: Mapping[str, jax.Array], loads: Mapping[str, jax.Array],
    limit: Any) -> tuple[dict[str, jax.Array], Tables]:
  """Finds by how much rows are damped whose loads in a small batch come to more than `limit`: by limit / load.

  loads: of each gathered row. idle: a number for each row of a table, all 0, in which the loads of a row that is
  gathered more than once are added up, and which are 0 again afterwards: what is not gathered is not touched. Returns
  the damping, in the shape of the ids, and idle.
  """
  damping, after = {}, dict(idle)
  for name, ids in rows.items():
    busy = idle[name].at[ids].add(loads[name])
    damping[name] = limit / jnp.maximum(limit, busy[ids])
    after[name] = busy.at[ids].set(0.0)
  return damping, after
