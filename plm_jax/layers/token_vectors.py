"""Token vectors for late interaction (ColBERT: Khattab and Zaharia 2020, section 3)."""
import dataclasses
import string
from typing import Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.layers.mlp import Activation
from plm_jax.layers.pooling import DenseConfig, apply_dense_layers, l2_normalize
from plm_jax.validation import ValidatedConfig, intervals

SKIPPED, SCORED, EXPANSION = range(3)
"""kinds of tokens, in the array `scored` of a batch: without a vector (padding, punctuation of
documents); with a vector; and with a vector, but no token attends to it ([MASK] of queries)"""
NO_MATCH = -1e4
"""similarity to a token without a vector: below that of any two vectors of length 1"""


@dataclasses.dataclass(frozen=True)
class TokenVectorConfig(ValidatedConfig):
  """A vector for each token, by a linear layer and L2 norm; texts are compared by MaxSim.

  A query is compared with a document by the sum, over the query's tokens, of the largest cosine
  with a token of the document.
  """

  limits = intervals(dense='[1, 1048576]', query_length='[4, 1048576]')

  dense: int = 128
  """Size of a vector."""
  activation: Activation | Literal['none'] = 'none'
  """Activation of the linear layer."""
  dense_bias: bool = False
  """The linear layer has a bias."""
  more: tuple[DenseConfig, ...] = ()
  """Dense layers after the first one, as some released models have them."""
  query_length: int = 32
  """Tokens of a query: longer ones are truncated."""
  expand: bool = True
  """Query augmentation: queries are filled up with [MASK] tokens, which have vectors too (Khattab
  and Zaharia 2020, section 3.2)."""
  attend: bool = False
  """The other tokens of a query attend to its [MASK] tokens. The authors' code and PyLate do not;
  the paper does not say."""
  query_token: str = '[unused0]'
  """Token after the first token of a query, which tells queries from documents. It is added to a
  tokenizer that lacks it. Empty: none."""
  document_token: str = '[unused1]'
  """Token after the first token of a document."""
  skip: tuple[str, ...] = tuple(string.punctuation)
  """Tokens of documents without a vector, by default punctuation (section 3.2). As in the authors'
  code and in PyLate, one that the tokenizer lacks stands for its unknown token."""

  def conflict(self, option):
    if self.attend and not self.expand:
      return f'{option("attend")} is for queries with [MASK] tokens: {option("expand")}'
    return None

  @property
  def markers(self) -> tuple[str, ...]:
    """Tokens that the tokenizer needs."""
    return tuple(filter(None, (self.query_token, self.document_token)))

  def size(self, width: int) -> int:
    """Return the size of a vector, of a model with hidden size `width`."""
    del width
    return self.more[-1].size if self.more else self.dense


class TokenVectors(nn.Module):
  """Head that computes a vector per token: dense layers and L2 norm."""

  cfg: TokenVectorConfig

  @nn.compact
  def __call__(self, output, batch, row_ids=None):
    """Compute token vectors: the model's output -> [batch, length, size] float32."""
    del batch, row_ids
    hidden = output.hidden if output.encoded is None else output.encoded
    layers = DenseConfig(self.cfg.dense, self.cfg.activation, self.cfg.dense_bias), *self.cfg.more
    return l2_normalize(apply_dense_layers(layers, hidden.astype(jnp.float32)))


class InteractionVectors(NamedTuple):
  """Token vectors of queries, each with the same number of documents."""

  queries: jax.Array
  """[B, Q, W], 0 for a token without a vector"""
  documents: jax.Array
  """[B, C, L, W]"""
  scored: jax.Array
  """[B, C, L], False for a token without a vector"""


def own_maxsim(vectors: InteractionVectors) -> jax.Array:
  """Compute MaxSim of each query with its own documents -> [B, C]."""
  products = jnp.einsum(
      'bqw,bclw->bcql', vectors.queries, vectors.documents, precision='highest')
  return sum_largest(products, vectors.scored)


def all_maxsim(vectors: InteractionVectors) -> jax.Array:
  """Compute MaxSim of each query with all first documents, then all second ones -> [B, C * B]."""
  documents = vectors.documents.swapaxes(0, 1).reshape(-1, *vectors.documents.shape[2:])
  scored = vectors.scored.swapaxes(0, 1).reshape(-1, vectors.scored.shape[2])
  products = jnp.einsum('bqw,dlw->bdql', vectors.queries, documents, precision='highest')
  return sum_largest(products, scored)


def sum_largest(products: jax.Array, scored: jax.Array) -> jax.Array:
  """Sum the largest product of each query token: [..., D, Q, L] and [..., D, L] -> [..., D]."""
  products = jnp.where(scored[..., None, :], products, NO_MATCH)
  # The gradient of max() looks for equal numbers: see `pooling.pool`.
  place = products.argmax(-1)[..., None]
  return jnp.take_along_axis(products, place, -1)[..., 0].sum(-1)
