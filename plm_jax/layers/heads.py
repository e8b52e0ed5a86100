"""What is read off a backbone's output. A head is named by its owner: an objective or a task."""
from collections.abc import Mapping
import dataclasses
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.checked import Checked
from plm_jax.layers import vocabulary
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.dense import Dense, Dropout, named
from plm_jax.layers.mlp import Activation, activation
from plm_jax.sharding import constrain, gathered


class WithHeads(nn.Module):
  """A backbone and named heads: batch -> {name: head's output}. Parameters: `backbone`, and `heads_NAME` each.

  batch['output']: what the backbone would say, where that is known before. within: heads read what its layers do, too.
  """

  backbone: nn.Module
  heads: Mapping[str, nn.Module]
  within: bool = False

  def __call__(self, batch, rows=None):
    more = {'within': True} if self.within else {}
    output = batch['output'] if 'output' in batch else self.backbone(batch, rows, **more)
    return {name: head(output, batch, rows) for name, head in self.heads.items()}


@dataclasses.dataclass(frozen=True)
class HeadConfig(Checked):
  """The hidden layer that heads with a norm read, and what they read it off."""

  transform: bool = True
  """masked tokens go through it; False: hidden states are read off as they are (XLM)"""
  bias: bool = True
  """the hidden layer has one"""
  activation: Activation | None = None
  """of the hidden layer; None: the blocks'"""
  output_bias: bool = True
  """logits of masked tokens have one"""
  pooling: Literal['first', 'mean'] = 'first'
  """what stands for a text: its first token, or the mean of its tokens"""


class MaskedTokens(nn.Module):
  """Vocabulary logits at the predicted positions only: dense, activation, norm, then the token table, transposed, or a
  matrix of the head's own.

  Devlin et al. 2019, section 3.1 and the released code; the output bias is the head's own.
  """

  cfg: BlockConfig
  tied: bool = True
  head: HeadConfig = HeadConfig()

  @nn.compact
  def __call__(self, output, batch, rows=None):
    """batch['positions'] [B, M] (all positions where it is missing) -> logits [B, M, V], float32."""
    del rows
    cfg, embedding = self.cfg, output.embedding
    h = output.hidden if output.predicted is None else output.predicted
    if 'positions' in batch and output.predicted is None:
      h = jnp.take_along_axis(h, batch['positions'][..., None], axis=1)
    if self.head.transform:
      h = Dense((embedding.shape[1],), ('width', None), self.head.bias, cfg.compute, cfg.init.plain, name='dense')(h)
      h = cfg.make_norm('norm')(activation(self.head.activation or cfg.mlp.activation)(h))
    if not self.tied:
      embedding = self.param('kernel', named(cfg.init.plain, ('width', 'vocab')), embedding.shape[::-1]).T
    return tied(self, h, embedding, self.head.output_bias)


class BoundaryTokens(nn.Module):
  """Vocabulary logits of tokens in a span from the two tokens around it: the span boundary objective.

  Joshi et al. 2020, section 3.2: two layers of dense, activation, norm on the boundaries and an embedding of the place
  in the span; then the token table, transposed, and a bias of the head's own, as released.
  """

  cfg: BlockConfig
  targets: int  # rows of the table of places
  size: int  # of their embedding

  @nn.compact
  def __call__(self, output, batch, rows=None):
    """batch['left'], ['right'], ['offset'] [B, M]: positions around the span, place in it -> [B, M, V], float32."""
    del rows
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
  blocks: int = 1  # of the vocabulary, in which logits are made where there are labels: these are scored, not returned

  @nn.compact
  def __call__(self, output, batch, rows=None):
    """batch['positions'] [B, M] (all positions where it is missing) -> [B, M, V], float32; of several blocks the
    `vocabulary.Scores` of batch['labels'] [B, M], where no mesh splits the vocabulary."""
    del rows
    h = output.hidden
    if 'positions' in batch:
      h = jnp.take_along_axis(h, batch['positions'][..., None], axis=1)
    if self.tied:
      matrix = output.embedding.T
    else:
      init = self.cfg.init.matrix(self.cfg.width, self.cfg.width)
      matrix = self.param('kernel', named(init, ('width', 'vocab')), (h.shape[-1], self.vocab))
    matrix = gathered(matrix.astype(h.dtype), 'width', 'pieces')
    bias = None
    if self.bias:
      bias = jax.lax.stop_gradient(self.param('bias', named(nn.initializers.zeros, ('vocab',)), (self.vocab,)))
    if self.blocks > 1 and 'labels' in batch and vocabulary.whole(jax.sharding.get_abstract_mesh()):
      bias = jnp.zeros(self.vocab) if bias is None else bias
      return vocabulary.scored(h, matrix.T, bias, batch['labels'], self.factor, self.blocks)
    logits = jnp.einsum('bld,dv->blv', h, matrix, preferred_element_type=jnp.float32)
    logits = constrain(logits * self.factor, 'batch', None, 'pieces')
    return logits if bias is None else logits + bias


class TiedTokens(nn.Module):
  """Vocabulary logits by the token table alone, transposed, and a bias of the head's own (XLNet)."""

  @nn.compact
  def __call__(self, output, batch, rows=None):
    """-> [B, M, V] float32 of the query stream where there is one, else [B, L, V] of all tokens."""
    del batch, rows
    embedding, h = output.embedding, output.hidden if output.predicted is None else output.predicted
    return tied(self, h, embedding)


class PooledClasses(nn.Module):
  """Class logits from what is pooled: of the first token by a dense layer (BERT), or the last (GPT)."""

  cfg: BlockConfig
  classes: int | None  # None: one score, without an axis of classes (multiple choice)
  dropout: float | None = None  # of what is pooled; None: the block's
  bias: bool = True

  @nn.compact
  def __call__(self, output, batch, rows=None):
    """-> [B, C], or of texts that batch['extract'] names [B, E, C], float32; rows [B] key dropout."""
    del batch
    return classified(self, Dropout(rate(self), name='dropout')(output.pooled, rows), self.bias)


class SummaryClasses(nn.Module):
  """Class logits from what is pooled by a hidden layer of the head's own (XLNet, BART, T5)."""

  cfg: BlockConfig
  classes: int | None  # None: one score, without an axis of classes (multiple choice)
  act: Activation = 'tanh'
  dropout: float | None = None  # of the hidden layer; None: the block's
  before: bool = False  # of what is pooled too

  @nn.compact
  def __call__(self, output, batch, rows=None):
    """-> [B, C], or of texts that batch['extract'] names [B, E, C], float32; rows [B] key dropout."""
    cfg, h = self.cfg, self.token(output, batch)
    if self.before:
      h = Dropout(rate(self), name='first_dropout')(h, rows)
    hidden = Dense((cfg.width,), ('width', None), True, cfg.compute, cfg.init.plain, name='hidden')
    return classified(self, Dropout(rate(self), name='dropout')(activation(self.act)(hidden(h)), rows))

  def token(self, output, batch):
    """Returns what is read [B, D], or [B, E, D]."""
    del batch
    return output.pooled


class FirstTokenClasses(SummaryClasses):
  """Class logits from the first token by a hidden layer: RoBERTa's tanh, ELECTRA's gelu, DistilBERT's relu."""

  def token(self, output, batch):
    """Returns the first token, or those that batch['extract'] names."""
    return standing(output.hidden, batch)


class FirstTokenScores(PooledClasses):
  """Class logits of the first token as it is, without a hidden layer (XLM)."""

  @nn.compact
  def __call__(self, output, batch, rows=None):
    """-> [B, C], or of texts that batch['extract'] names [B, E, C], float32; rows [B] key dropout."""
    h = standing(output.hidden, batch)
    return classified(self, Dropout(rate(self), name='dropout')(h, rows), self.bias)


class NormedClasses(nn.Module):
  """Class logits by a hidden layer with a norm, of what stands for a text, or of every token (ModernBERT)."""

  cfg: BlockConfig
  head: HeadConfig
  classes: int | None  # None: one score, without an axis of classes (multiple choice)
  every: bool = False  # every token
  dropout: float | None = None  # of the hidden layer; None: the block's

  @nn.compact
  def __call__(self, output, batch, rows=None):
    """-> [B, C], of texts that batch['extract'] names [B, E, C], of every token [B, L, C], float32; rows [B] key
    dropout."""
    cfg, head, h = self.cfg, self.head, output.hidden
    if not self.every:
      h = standing(h, batch) if head.pooling == 'first' else mean(h, batch)
    h = Dense((cfg.width,), ('width', None), head.bias, cfg.compute, cfg.init.plain, name='hidden')(h)
    h = cfg.make_norm('norm')(activation(head.activation or cfg.mlp.activation)(h))
    return classified(self, Dropout(rate(self), name='dropout')(h, rows))


class TokenClasses(nn.Module):
  """Class logits of every token (Devlin et al. 2019, section 5.3): tagging, named entities."""

  cfg: BlockConfig
  classes: int
  dropout: float | None = None  # of the tokens; None: the block's
  encoder: bool = False  # of an encoder-decoder the encoder's tokens are read, not the decoder's

  @nn.compact
  def __call__(self, output, batch, rows=None):
    """-> [B, L, C], float32; rows [B] key dropout."""
    del batch
    h = output.encoded if self.encoder else output.hidden
    return classified(self, Dropout(rate(self), name='dropout')(h, rows))


class SpanEnds(nn.Module):
  """Where an answer starts and ends (Devlin et al. 2019, section 4.2): a score for every token, twice."""

  cfg: BlockConfig
  dropout: float = 0.0  # of the tokens

  @nn.compact
  def __call__(self, output, batch, rows=None):
    """-> [B, L, 2] float32, start and end; rows [B] key dropout."""
    del batch
    h = Dropout(self.dropout, name='dropout')(output.hidden, rows)
    return Dense((2,), ('width', None), True, jnp.float32, self.cfg.init.plain, name='dense')(h)


class WordClasses(nn.Module):
  """Class logits of what is pooled as those of words, one for each class (Du et al. 2022, section 2.3: GLM)."""

  words: tuple[int, ...]  # ids

  @nn.compact
  def __call__(self, output, batch, rows=None):
    """-> [B, C], or of texts that batch['extract'] names [B, E, C], float32."""
    del batch, rows
    table = gathered(output.embedding, 'vocab', 'width')[jnp.array(self.words)].astype(output.pooled.dtype)
    return jnp.einsum('...d,cd->...c', output.pooled, table, preferred_element_type=jnp.float32)


class ReplacedTokens(nn.Module):
  """For every token a logit of having been replaced (Clark et al. 2020, section 2): dense, activation, one unit.

  `first`: the first token's state is added to each, and the sum normalised (released DeBERTa v3).
  """

  cfg: BlockConfig
  first: bool = False

  @nn.compact
  def __call__(self, output, batch, rows=None):
    """-> [B, L], float32."""
    del batch, rows
    cfg, h = self.cfg, output.hidden
    if self.first:
      h = cfg.make_norm('norm')(h + h[:, :1])
    hidden = Dense((cfg.width,), ('width', None), True, cfg.compute, cfg.init.plain, name='hidden')
    h = activation(cfg.mlp.activation)(hidden(h))
    return Dense((1,), ('width', None), True, jnp.float32, cfg.init.plain, name='dense')(h)[..., 0]


def standing(hidden, batch, segments=None):
  """Returns what stands for texts: of hidden [B, L, D] the tokens that batch['extract'] [B, E] names -> [B, E, D].

  Without them one token of each row [B, D]: the first, or of `segments` [B, L] the last that is no padding.
  """
  if 'extract' in batch:
    return jnp.take_along_axis(hidden, batch['extract'][..., None], axis=1)
  if segments is None:
    return hidden[:, 0]
  last = jnp.max(jnp.arange(hidden.shape[1]) * (segments > 0), 1)
  return jnp.take_along_axis(hidden, last[:, None, None], 1)[:, 0]


def mean(hidden, batch):
  """Returns the mean of the tokens of each row, of hidden [B, L, D] -> [B, D], or of the texts whose first tokens
  batch['extract'] [B, E] names -> [B, E, D]; batch['segments'] [B, L] tell texts apart, 0 is padding."""
  segments = batch['segments']
  own = (segments > 0)[:, None]
  if 'extract' in batch:
    own &= segments[:, None] == jnp.take_along_axis(segments, batch['extract'], 1)[..., None]
  own = own.astype(jnp.float32)
  total = jnp.einsum('bel,bld->bed', own, hidden.astype(jnp.float32), precision='highest')
  means = (total / jnp.maximum(own.sum(-1, keepdims=True), 1)).astype(hidden.dtype)
  return means if 'extract' in batch else means[:, 0]


def classified(head, h, bias: bool = True):
  """Turns h [..., D] into logits [..., C], or one score [...] where the head has no classes, by its layer `dense`."""
  cfg, classes = head.cfg, head.classes
  logits = Dense((classes or 1,), ('width', None), bias, jnp.float32, cfg.init.plain, name='dense')(h)
  return logits if classes else logits[..., 0]


def rate(head) -> float:
  """Returns the share that a head drops: its own, or the block's."""
  return head.cfg.dropout if head.dropout is None else head.dropout


def tied(head: nn.Module, h, embedding, bias: bool = True):
  """Multiplies h [B, M, E] by the token table [V, E], transposed, and adds a bias of the head's own, where it is to
  have one -> logits [B, M, V], float32."""
  table = gathered(embedding.astype(h.dtype), 'pieces', 'width')
  logits = jnp.einsum('bme,ve->bmv', h, table, preferred_element_type=jnp.float32)
  logits = constrain(logits, 'batch', None, 'pieces')
  if not bias:
    return logits
  return logits + head.param('bias', named(nn.initializers.zeros, ('vocab',)), embedding.shape[:1])
