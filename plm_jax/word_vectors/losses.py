"""Losses of word vectors on gathered table rows, and sparse updates of those rows.

Only gathered rows are computed on: the gradient is taken with respect to the gathered rows and
added to the table where they came from. So a batch costs what its words cost, whatever the
vocabulary size. Shapes: B blocks, X and Y input and output words of a block, K noise words, P nodes
of a Huffman path, D width.
"""
from collections.abc import Callable, Mapping
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

TableValues = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class ScorePenalty:
  """The loss of a score as a function: of a positive pair, and of a negative pair."""

  positive: Callable[[jax.Array], jax.Array]
  negative: Callable[[jax.Array], jax.Array]
  full_gradient: bool = True
  """Whether each row of a mean gets the whole gradient of the mean, as released, not its share."""


LOGISTIC = ScorePenalty(lambda score: jax.nn.softplus(-score), jax.nn.softplus)
LINEAR = ScorePenalty(lambda score: score, lambda score: score, full_gradient=False)


def skip_gram_loss(
    inputs: jax.Array, outputs: jax.Array, noise: jax.Array, pairs: jax.Array, counted: jax.Array,
    penalty: ScorePenalty = LOGISTIC) -> jax.Array:
  """Compute the skip-gram loss with negative sampling (Mikolov et al. 2013, equation 4).

  The noise words are shared by a block, which makes matrix products of what would be products of
  vectors (Ji et al. 2016, "Parallelizing word2vec in shared and distributed memory"). The expected
  gradient is the same.

  Args:
    inputs: vectors [B, X, D] that predict the outputs.
    outputs: vectors [B, Y, D].
    noise: vectors of noise words [B, K, D].
    pairs: [B, X, Y], 1 where the input predicts the output.
    counted: [B, Y, K], weight of each noise word in a prediction of the output.
    penalty: loss of a score.

  Returns:
    The sum over the pairs of each block [B].
  """
  true = jnp.einsum('bxd,byd->bxy', inputs, outputs)
  false = jnp.einsum('bxd,bkd->bxk', inputs, noise)
  against = jnp.einsum('bxy,byk->bxk', pairs, counted)
  positives = (pairs * penalty.positive(true)).sum((1, 2))
  return positives + (against * penalty.negative(false)).sum((1, 2))


def cbow_loss(
    inputs: jax.Array, outputs: jax.Array, noise: jax.Array, pairs: jax.Array, counted: jax.Array,
    sizes: jax.Array, penalty: ScorePenalty = LOGISTIC) -> jax.Array:
  """Compute the CBOW loss with negative sampling: the mean of the inputs of an output predicts it.

  Arguments as of `skip_gram_loss`; each input is the sum of sizes [B, X] rows. An output without
  inputs is not predicted.

  Returns:
    The sum over the outputs of each block [B].
  """
  hidden = mean_inputs(inputs, pairs, sizes, penalty.full_gradient)
  has_inputs = pairs.any(1)
  true = (hidden * outputs).sum(-1)
  false = jnp.einsum('byd,bkd->byk', hidden, noise)
  positives = (has_inputs * penalty.positive(true)).sum(1)
  return positives + (has_inputs[:, :, None] * counted * penalty.negative(false)).sum((1, 2))


def mean_inputs(
    inputs: jax.Array, pairs: jax.Array, sizes: jax.Array, whole: bool = True) -> jax.Array:
  """Average the inputs of every output.

  Args:
    inputs: [B, X, D], each the sum of `sizes` rows.
    pairs: [B, X, Y], 1 where the input belongs to the output.
    sizes: [B, X].
    whole: every row gets the whole gradient of the mean, not its share, as in word2vec.c and
      fastText. Irsoy et al. 2021, "Corrected CBOW performs as well as skip-gram", call that a bug
      and fix it.

  Returns:
    Means [B, Y, D].
  """
  total = jnp.einsum('bxd,bxy->byd', inputs, pairs)
  number = jnp.maximum(jnp.einsum('bx,bxy->by', sizes, pairs), 1)[..., None]
  if not whole:
    return total / number
  return total + jax.lax.stop_gradient(total / number - total)


def hierarchical_softmax_loss(
    hidden: jax.Array, nodes: jax.Array, codes: jax.Array, weight: jax.Array,
    penalty: ScorePenalty = LOGISTIC) -> jax.Array:
  """Compute the hierarchical softmax loss of words by their Huffman paths.

  Args:
    hidden: vectors [B, Y, C, D], C predictions of word y.
    nodes: vectors [B, Y, P, D] of the inner nodes on the word's path.
    codes: branch taken at each node [B, Y, P]: 0 where the node's probability is that of the first
      branch, 1 of the other, -1 after the path's end (in word2vec.c the label is 1 - code).
    weight: of each prediction [B, Y, C].
    penalty: loss of a score.

  Returns:
    The sum over all predictions.
  """
  score = jnp.einsum('bycd,bypd->bycp', hidden, nodes)
  codes = codes[:, :, None]
  losses = jnp.where(codes == 0, penalty.positive(score), penalty.negative(score))
  return (weight[..., None] * (codes >= 0) * losses).sum()


def ranking_loss(true: jax.Array, corrupted: jax.Array) -> jax.Array:
  """Compute the pairwise hinge loss of texts and corrupted texts.

  Collobert and Weston 2008, section 4.

  Args:
    true: scores [B].
    corrupted: scores [B, K] of the same texts with another word.

  Returns:
    max(0, 1 - true + corrupted), [B, K].
  """
  return jnp.maximum(0.0, 1.0 - true[:, None] + corrupted)


def glove_loss(
    words: jax.Array, contexts: jax.Array, biases: jax.Array, counts: jax.Array, largest: float,
    power: float) -> tuple[jax.Array, jax.Array]:
  """Compute GloVe's weighted least squares on log counts (Pennington et al. 2014, equation 8).

  Args:
    words: vectors [B, D].
    contexts: vectors [B, D].
    biases: [B], the sum of both words' biases.
    counts: co-occurrence counts [B], > 0.
    largest: count above which all pairs have the same weight (x_max).
    power: exponent of the weight (alpha).

  Returns:
    With f the `glove_weight` and d the difference: f d and f d^2 / 2, each [B].
  """
  difference = (words * contexts).sum(-1) + biases - jnp.log(counts)
  weighted = glove_weight(counts, largest, power) * difference
  return weighted, 0.5 * weighted * difference


def glove_weight(counts: jax.Array, largest: float, power: float) -> jax.Array:
  """Weigh counts [B], alike from `largest` on (Pennington et al. 2014, equation 9)."""
  return jnp.minimum(1.0, (counts / largest) ** power)


def gather_rows(tables: TableValues, rows: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
  """Gather rows of tables: ids rows[name] [...] -> vectors [..., D]."""
  return {name: tables[name][ids] for name, ids in rows.items()}


def sum_rows(found: jax.Array, owner: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
  """Add up the rows [R, D] of each of `size` owners: (sums [size, D], number of rows [size]).

  owner: of each row [R], ascending; those from `size` on are padding.
  """
  total = jax.ops.segment_sum(found, owner, size, indices_are_sorted=True)
  return total, jax.ops.segment_sum(jnp.ones(len(found)), owner, size, indices_are_sorted=True)


def descend_rows(
    loss: Callable[[dict[str, jax.Array]], jax.Array], tables: TableValues,
    rows: Mapping[str, jax.Array], rate: Any,
    damping: Mapping[str, jax.Array] | None = None) -> TableValues:
  """Make a sparse step of gradient descent on loss(gathered rows).

  A row that is gathered more than once moves by the sum of its gradients.

  Args:
    loss: function of the gathered rows.
    tables: tables by name.
    rows: ids to gather, by name of the table.
    rate: learning rate.
    damping: factors of the gradients, with the shapes of the ids; None: 1.

  Returns:
    The updated tables.
  """
  slopes = jax.grad(loss)(gather_rows(tables, rows))
  if damping:
    slopes = {name: slope * damping[name][..., None] for name, slope in slopes.items()}
  tables = dict(tables)
  for name, ids in rows.items():
    tables[name] = tables[name].at[ids].add(-rate * slopes[name], mode='drop')
  return tables


def damp_rows(
    idle: TableValues, rows: Mapping[str, jax.Array], loads: Mapping[str, jax.Array],
    limit: Any) -> tuple[dict[str, jax.Array], TableValues]:
  """Compute damping factors limit / load of rows whose load in a small batch exceeds a limit.

  Args:
    idle: one number per row of each table, all 0. The loads of a row that is gathered more than
      once are added up here, and set to 0 again afterwards, so that only gathered rows are touched.
    rows: gathered ids, by name of the table.
    loads: load of each gathered row, with the shapes of the ids.
    limit: the largest load without damping.

  Returns:
    The damping factors, with the shapes of the ids, and `idle`.
  """
  damping, after = {}, dict(idle)
  for name, ids in rows.items():
    busy = idle[name].at[ids].add(loads[name])
    damping[name] = limit / jnp.maximum(limit, busy[ids])
    after[name] = busy.at[ids].set(0.0)
  return damping, after
