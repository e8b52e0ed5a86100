"""What is read off a backbone's output. A head is named by its owner: an objective or a task."""
from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.layers.block import BlockConfig
from plm_jax.layers.dense import Dense, named
from plm_jax.layers.mlp import Activation, activation
from plm_jax.sharding import constrain, gathered


class WithHeads(nn.Module):
  """A backbone and named heads: batch -> {name: head's output}. Parameters: `backbone`, and `heads_NAME` each."""

  backbone: nn.Module
  heads: Mapping[str, nn.Module]

  def __call__(self, batch, rows=None):
    output = self.backbone(batch, rows)
    return {name: head(output, batch) for name, head in self.heads.items()}


class MaskedTokens(nn.Module):
  """Vocabulary logits at the predicted positions only: dense, activation, norm, then the token table, transposed, or a
  matrix of the head's own.

  Devlin et al. 2019, section 3.1 and the released code; the output bias is the head's own.
  """

  cfg: BlockConfig
  tied: bool = True

  @nn.compact
  def __call__(self, output, batch):
    """batch['positions'] [B, M] (all positions where it is missing) -> logits [B, M, V], float32."""
    cfg, embedding = self.cfg, output.embedding
    h = output.hidden if output.predicted is None else output.predicted
    if 'positions' in batch and output.predicted is None:
      h = jnp.take_along_axis(h, batch['positions'][..., None], axis=1)
    h = Dense((embedding.shape[1],), ('width', None), True, cfg.compute, cfg.init.plain, name='dense')(h)
    h = cfg.make_norm('norm')(activation(cfg.mlp.activation)(h))
    if not self.tied:
      embedding = self.param('kernel', named(cfg.init.plain, ('width', 'vocab')), embedding.shape[::-1]).T
    return tied(self, h, embedding)


class BoundaryTokens(nn.Module):
  """Vocabulary logits of tokens in a span from the two tokens around it: the span boundary objective.

  Joshi et al. 2020, section 3.2: two layers of dense, activation, norm on the boundaries and an embedding of the place
  in the span; then the token table, transposed, and a bias of the head's own, as released.
  """

  cfg: BlockConfig
  targets: int  # rows of the table of places
  size: int  # of their embedding

  @nn.compact
  def __call__(self, output, batch):
    """batch['left'], ['right'], ['offset'] [B, M]: positions around the span, place in it -> [B, M, V], float32."""
    cfg, embedding = self.cfg, output.embedding
    table = self.param('offsets', named(cfg.init.plain, (None, None)), (self.targets, self.size), jnp.float32)
    around = [jnp.take_along_axis(output.hidden, batch[side][..., None], axis=1) for side in ('left', 'right')]
    h = jnp.concatenate([*around, table.astype(cfg.compute)[batch['offset']]], -1)
    for number, width in enumerate((cfg.width, embedding.shape[1])):
      h = Dense((width,), ('width', None), True, cfg.compute, cfg.init.plain, name=f'dense_{number}')(h)
      h = cfg.make_norm(f'norm_{number}')(activation(cfg.mlp.activation)(h))
    return tied(self, h, embedding)


class NextTokens(nn.Module):
  """Vocabulary logits for the token behind a position: by the token table, transposed, or by a matrix of the head's
  own. A tied head without a bias has no parameters."""

  cfg: BlockConfig
  vocab: int
  tied: bool = True
  factor: float = 1.0  # on the logits
  bias: bool = False  # on the logits: a constant that came with a checkpoint, which is not trained (BART)

  @nn.compact
  def __call__(self, output, batch):
    """batch['positions'] [B, M] (all positions where it is missing) -> [B, M, V], float32."""
    h = output.hidden
    if 'positions' in batch:
      h = jnp.take_along_axis(h, batch['positions'][..., None], axis=1)
    if self.tied:
      matrix = output.embedding.T
    else:
      init = self.cfg.init.matrix(self.cfg.width, self.cfg.width)
      matrix = self.param('kernel', named(init, ('width', 'vocab')), (h.shape[-1], self.vocab))
    matrix = gathered(matrix.astype(h.dtype), 'width', 'vocab')
    logits = jnp.einsum('bld,dv->blv', h, matrix, preferred_element_type=jnp.float32)
    logits = constrain(logits * self.factor, 'batch', None, 'vocab')
    if not self.bias:
      return logits
    bias = self.param('bias', named(nn.initializers.zeros, ('vocab',)), (self.vocab,))
    return logits + jax.lax.stop_gradient(bias)


class TiedTokens(nn.Module):
  """Vocabulary logits by the token table alone, transposed, and a bias of the head's own (XLNet)."""

  @nn.compact
  def __call__(self, output, batch):
    """-> [B, M, V] float32 of the query stream where there is one, else [B, L, V] of all tokens."""
    del batch
    embedding, h = output.embedding, output.hidden if output.predicted is None else output.predicted
    return tied(self, h, embedding)


class PooledClasses(nn.Module):
  """Class logits from the pooled first token: NSP, and sentence classification."""

  cfg: BlockConfig
  classes: int

  @nn.compact
  def __call__(self, output, batch):
    """-> [B, C], float32."""
    del batch
    return Dense((self.classes,), ('width', None), True, jnp.float32, self.cfg.init.plain, name='dense')(output.pooled)


class FirstTokenClasses(nn.Module):
  """Class logits from the first token by a hidden layer of the head's own: RoBERTa's tanh, DistilBERT's relu."""

  cfg: BlockConfig
  classes: int
  act: Activation = 'tanh'

  @nn.compact
  def __call__(self, output, batch):
    """-> [B, C], float32."""
    del batch
    cfg = self.cfg
    hidden = Dense((cfg.width,), ('width', None), True, cfg.compute, cfg.init.plain, name='hidden')
    h = activation(self.act)(hidden(output.hidden[:, 0]))
    return Dense((self.classes,), ('width', None), True, jnp.float32, cfg.init.plain, name='dense')(h)


class TokenClasses(nn.Module):
  """Class logits of every token (Devlin et al. 2019, section 5.3): tagging, named entities."""

  cfg: BlockConfig
  classes: int

  @nn.compact
  def __call__(self, output, batch):
    """-> [B, L, C], float32."""
    del batch
    return Dense((self.classes,), ('width', None), True, jnp.float32, self.cfg.init.plain, name='dense')(output.hidden)


class SpanEnds(nn.Module):
  """Where an answer starts and ends (Devlin et al. 2019, section 4.2): a score for every token, twice."""

  cfg: BlockConfig

  @nn.compact
  def __call__(self, output, batch):
    """-> [B, L, 2] float32, start and end."""
    del batch
    return Dense((2,), ('width', None), True, jnp.float32, self.cfg.init.plain, name='dense')(output.hidden)


class RowScore(nn.Module):
  """One score a row from the pooled first token (Devlin et al. 2019, section 4.4): multiple choice.

  Each choice is a row of its own; the softmax is over the rows of one question.
  """

  cfg: BlockConfig

  @nn.compact
  def __call__(self, output, batch):
    """-> [B], float32."""
    del batch
    return Dense((1,), ('width', None), True, jnp.float32, self.cfg.init.plain, name='dense')(output.pooled)[..., 0]


class SummaryClasses(nn.Module):
  """Class logits from the token that stands for a row by a dense layer with tanh of the head's own (XLNet, BART).

  batch['extract'] [B] names another token.
  """

  cfg: BlockConfig
  classes: int

  @nn.compact
  def __call__(self, output, batch):
    """-> [B, C], float32."""
    cfg = self.cfg
    summary = Dense((cfg.width,), ('width', None), True, cfg.compute, cfg.init.plain, name='summary')
    h = jnp.tanh(summary(standing(output, batch)))
    return Dense((self.classes,), ('width', None), True, jnp.float32, cfg.init.plain, name='dense')(h)


class ExtractClasses(nn.Module):
  """Class logits from the token that stands for a row (Radford et al. 2018, section 3.3): its last, the extract token.

  batch['extract'] [B] names another one.
  """

  cfg: BlockConfig
  classes: int
  bias: bool = False

  @nn.compact
  def __call__(self, output, batch):
    """-> [B, C], float32."""
    h = standing(output, batch)
    return Dense((self.classes,), ('width', None), self.bias, jnp.float32, self.cfg.init.plain, name='dense')(h)


class ReplacedTokens(nn.Module):
  """For every token a logit of having been replaced (Clark et al. 2020, section 2): dense, activation, one unit.

  `first`: the first token's state is added to each, and the sum normalised (released DeBERTa v3).
  """

  cfg: BlockConfig
  first: bool = False

  @nn.compact
  def __call__(self, output, batch):
    """-> [B, L], float32."""
    del batch
    cfg, h = self.cfg, output.hidden
    if self.first:
      h = cfg.make_norm('norm')(h + h[:, :1])
    hidden = Dense((cfg.width,), ('width', None), True, cfg.compute, cfg.init.plain, name='hidden')
    h = activation(cfg.mlp.activation)(hidden(h))
    return Dense((1,), ('width', None), True, jnp.float32, cfg.init.plain, name='dense')(h)[..., 0]


def standing(output, batch):
  """Returns [B, D]: the token that stands for each row, or the one that batch['extract'] [B] names."""
  if 'extract' not in batch:
    return output.pooled
  return jnp.take_along_axis(output.hidden, batch['extract'][:, None, None], axis=1)[:, 0]


def tied(head: nn.Module, h, embedding):
  """Multiplies h [B, M, E] by the token table [V, E], transposed, and adds a bias of the head's own -> logits [B, M,
  V], float32."""
  table = gathered(embedding.astype(h.dtype), 'vocab', 'width')
  logits = jnp.einsum('bme,ve->bmv', h, table, preferred_element_type=jnp.float32)
  bias = head.param('bias', named(nn.initializers.zeros, ('vocab',)), embedding.shape[:1])
  return constrain(logits, 'batch', None, 'vocab') + bias
