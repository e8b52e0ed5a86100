"""Sparse vectors (SPLADE): a weight per token of the vocabulary (Formal et al. 2021a, b)."""
import dataclasses
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.layers.dense import with_logical_axes
from plm_jax.layers.pooling import pool, token_mask
from plm_jax.validation import ValidatedConfig, intervals

Penalty = Literal['flops', 'l1']
"""regularizers of sparse vectors"""


@dataclasses.dataclass(frozen=True)
class SpladeConfig(ValidatedConfig):
  """Sparse vectors (SPLADE): pooled, log-saturated masked-LM logits, with their regularizers."""

  limits = intervals(query_weight='[0, 1e6]', document_weight='[0, 1e6]', warmup='[0, 1]')

  pooling: Literal['max', 'sum'] = 'max'
  """Pooling over the tokens of a text, special tokens included. max: SPLADE v2 and later; sum: the
  first SPLADE."""
  activation: Literal['relu', 'log1p_relu'] = 'relu'
  """Activation of the logits before log(1 + x). log1p_relu: a second logarithm, as in models of
  OpenSearch."""
  query_penalty: Penalty = 'flops'
  """Regularizer of queries. flops: the squared means of each weight over the batch; l1: the sum of
  the weights (Efficient SPLADE)."""
  document_penalty: Penalty = 'flops'
  """Regularizer of documents."""
  query_weight: float = 3e-4
  """Factor (lambda) of the regularizer of queries; more makes them sparser."""
  document_weight: float = 1e-4
  """Factor (lambda) of the regularizer of documents."""
  warmup: float = 1 / 3
  """Share of the run in which both factors grow from 0, with the square of the step."""
  queries: Literal['model', 'idf'] = 'model'
  """How queries become vectors. model: as documents do; idf: without the model, each distinct token
  has its inverse document frequency in the training documents as its weight (inference-free
  retrieval, Geng et al. 2024)."""

  def size(self, model: Any) -> int:
    """Return the size of a vector of a model."""
    return model.vocab

  def make_head(self, model: Any) -> nn.Module:
    """Make the head that computes the vectors."""
    return SpladeVector(self, model.vocab)


class SpladeVector(nn.Module):
  """Head that computes a sparse vector per row from the masked-LM logits of its tokens."""

  cfg: SpladeConfig
  vocab: int

  def setup(self):
    if self.cfg.queries == 'idf':
      init = with_logical_axes(nn.initializers.ones, ('vocab',))
      self.query_weights = self.param('query_weights', init, (self.vocab,), jnp.float32)

  def encode_queries(self, tokens):
    """Compute the vectors [batch, vocab] of queries from token ids [batch, length], -1: none."""
    rows, real = jnp.arange(len(tokens))[:, None], (tokens >= 0).astype(jnp.float32)
    return jnp.zeros((len(tokens), self.vocab)).at[rows, tokens].max(real) * self.query_weights

  def __call__(self, output, batch, row_ids=None, skip=0):
    """Compute sparse vectors.

    Args:
      output: `hidden` are the masked-LM logits [batch, length, vocab].
      batch: `segments` [batch, length], 0 is padding.
      row_ids: not used.
      skip: tokens at the start of each row that are not pooled.

    Returns:
      [batch, vocab] float32, not negative; zeros for a row without tokens.
    """
    del row_ids
    logits, segments = output.hidden.astype(jnp.float32), batch['segments']
    if self.cfg.pooling == 'max':
      # The saturation is monotone: that of the maximum is the maximum.
      return saturate(pool(logits, segments, 'max', skip), self.cfg)
    real = token_mask(segments, skip)[..., None]
    return jnp.where(real, saturate(logits, self.cfg), 0).sum(1)


def saturate(logits: jax.Array, cfg: SpladeConfig) -> jax.Array:
  """Compute the weights of logits: log(1 + relu(logit)), once or twice."""
  weights = jnp.log1p(jax.nn.relu(logits))
  return jnp.log1p(weights) if cfg.activation == 'log1p_relu' else weights
