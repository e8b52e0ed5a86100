"""Heads on a backbone's output: language modelling, classification, question answering.

A head is named by its owner, an objective or a task. Heads that share a name across families have
the same inputs: (output, batch, row_ids).
"""
from collections.abc import Mapping
import dataclasses
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.layers import chunked_cross_entropy
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.chunked_cross_entropy import LogitScale
from plm_jax.layers.dense import Dense, Dropout, with_logical_axes
from plm_jax.layers.kernels import cpu, gpu
from plm_jax.layers.mlp import Activation, activation
from plm_jax.layers.pooling import Pooling, pool
from plm_jax.sharding import constrain, gather_parameter
from plm_jax.validation import ValidatedConfig


class ModelWithHeads(nn.Module):
  """A backbone with named heads: batch -> {name of a head: its output}.

  Parameters are under `backbone`, and under `heads_NAME` for each head. Where the batch has an
  `output`, it replaces the backbone's. `within`: the backbone also returns the states of its
  layers.
  """

  backbone: nn.Module
  heads: Mapping[str, nn.Module]
  within: bool = False

  def __call__(self, batch, row_ids=None):
    if 'output' in batch:
      output = batch['output']
    elif self.within:
      output = self.backbone(batch, row_ids, within=True)
    else:
      output = self.backbone(batch, row_ids)
    return {name: head(output, batch, row_ids) for name, head in self.heads.items()}


TextPooling = Pooling | Literal['late']
"""pooling for classification: of token states, or `late`: each token is classified, and the logits
of a text are the mean of those of its tokens (EuroBERT)"""


@dataclasses.dataclass(frozen=True)
class ClassifierConfig(ValidatedConfig):
  """What classification heads read of a model whose last token represents a text."""

  pooling: TextPooling = 'last'
  """Pooling for classification: the last token of a text, the first one, or the mean, the maximum
  or another pooling of its tokens, as for sentence vectors."""


@dataclasses.dataclass(frozen=True)
class NextTokenConfig(ValidatedConfig):
  """The causal LM head before and after its matrix."""

  hidden: bool = False
  """A hidden layer with activation and norm comes before the logits (ModernBERT's decoders)."""
  bias: bool = False
  """The hidden layer has a bias."""
  activation: Activation | None = None
  """Activation of the hidden layer; None: that of the blocks."""
  output_bias: bool = False
  """Next-token logits have a bias."""


@dataclasses.dataclass(frozen=True)
class HeadConfig(ValidatedConfig):
  """The hidden layer of masked-LM and classification heads, and what it reads."""

  transform: bool = True
  """The masked-LM head has a hidden layer; False: logits are computed from the hidden states
  (XLM)."""
  bias: bool = True
  """The hidden layer has a bias."""
  activation: Activation | None = None
  """Activation of the hidden layer; None: that of the blocks."""
  output_bias: bool = True
  """Masked-LM logits have a bias."""
  pooling: TextPooling = 'first'
  """Pooling for classification: the first token of a text (through the pooler, if the family has
  one); the mean, the maximum or another pooling of its tokens, as for sentence vectors; or `late`:
  each token is classified, and the logits of a text are the mean of those of its tokens (EuroBERT).
  Default: that of a sentence-transformers folder, or of the family."""
  shifted: bool = False
  """A token is predicted at the position before it, masked or not. So the same parameters fill
  masks and, in rows whose batch has ranks, generate text (GPT-BERT)."""


class MaskedLMHead(nn.Module):
  """Masked-LM head: vocabulary logits at the predicted positions.

  A hidden layer with activation and norm, then the transposed token table (tied embeddings), or a
  matrix of its own, and a bias (Devlin et al. 2019, section 3.1 and the released code).
  """

  cfg: BlockConfig
  tied: bool = True
  head: HeadConfig = HeadConfig()

  @nn.compact
  def __call__(self, output, batch, row_ids=None):
    """Compute logits [batch, predicted, vocab] float32.

    batch['positions'] [batch, predicted] are the predicted positions; without it, all are.
    """
    del row_ids
    cfg, embedding = self.cfg, output.embedding
    h = output.hidden if output.predicted is None else output.predicted
    if 'positions' in batch and output.predicted is None:
      h = jnp.take_along_axis(h, batch['positions'][..., None], axis=1)
    if self.head.transform:
      h = hidden_layer(cfg, self.head, h, embedding.shape[1])
    if not self.tied:
      init = with_logical_axes(cfg.init.table_initializer, ('width', 'vocab'))
      embedding = self.param('kernel', init, embedding.shape[::-1]).T  # [vocab, E], as the table
    return vocabulary_logits(self, h, embedding, self.head.output_bias)


def make_dense(
    cfg: BlockConfig, width: int, name: str | None = None, bias: bool = True) -> Dense:
  """Make a dense layer [..., hidden] -> [..., width] outside of the blocks."""
  return Dense((width,), ('width', None), bias, cfg.compute_dtype, cfg.init.table_initializer,
               name=name)


def hidden_layer(cfg: BlockConfig, head: HeadConfig | NextTokenConfig, h, width: int):
  """Compute the hidden layer of a head on h [..., hidden], in the head's scope -> [..., width]."""
  dense = make_dense(cfg, width, 'dense', head.bias)
  return cfg.make_norm('norm')(activation(head.activation or cfg.mlp.activation)(dense(h)))


class SpanBoundaryHead(nn.Module):
  """Span boundary head: vocabulary logits of a span's tokens from the two tokens around the span.

  SpanBERT's span boundary objective, Joshi et al. 2020, section 3.2. Two layers of dense,
  activation and norm read the boundaries and an embedding of the place in the span. Then follow the
  transposed token table and a bias of its own, as released.
  """

  cfg: BlockConfig
  targets: int  # rows of the table of places in the span
  size: int  # size of their embedding

  @nn.compact
  def __call__(self, output, batch, row_ids=None):
    """Compute logits [batch, predicted, vocab] float32.

    batch['left'], batch['right'] [batch, predicted]: positions of the boundaries; batch['offset']
    [batch, predicted]: place in the span.
    """
    del row_ids
    cfg, embedding = self.cfg, output.embedding
    init, shape = cfg.init.table_initializer, (self.targets, self.size)
    table = self.param('offsets', with_logical_axes(init, (None, None)), shape, jnp.float32)
    # [batch, predictions, hidden]: the tokens to the left and to the right of each span
    left = jnp.take_along_axis(output.hidden, batch['left'][..., None], axis=1)
    right = jnp.take_along_axis(output.hidden, batch['right'][..., None], axis=1)
    h = jnp.concatenate([left, right, table.astype(cfg.compute_dtype)[batch['offset']]], -1)
    for number, width in enumerate((cfg.width, embedding.shape[1])):
      h = make_dense(cfg, width, f'dense_{number}')(h)
      h = cfg.make_norm(f'norm_{number}')(activation(cfg.mlp.activation)(h))
    return vocabulary_logits(self, h, embedding)


class NextTokenHead(nn.Module):
  """Causal LM head: vocabulary logits of the next token.

  Logits are products with the transposed token table (tied embeddings), or with a matrix of its
  own. A tied head with neither a bias nor a hidden layer has no parameters.
  """

  cfg: BlockConfig
  vocab: int
  tied: bool = True
  factor: float = 1.0  # on the logits
  bias: bool = False  # constant of the logits that came with a checkpoint, not trained (BART)
  blocks: int = 1  # chunks of the vocabulary for chunked cross-entropy, where there are labels
  head: NextTokenConfig = NextTokenConfig()
  cap: float | None = None  # soft cap on the logits (Gemma 2)

  @nn.compact
  def __call__(self, output, batch, row_ids=None):
    """Compute logits [batch, predicted, vocab] float32.

    batch['positions'] [batch, predicted] are the predicted positions; without it, all are. With
    several blocks and batch['labels'] [batch, predicted], the result is `LogitStats` instead,
    unless the mesh splits the vocabulary.
    """
    del row_ids
    h = output.hidden
    if 'positions' in batch:
      h = jnp.take_along_axis(h, batch['positions'][..., None], axis=1)
    if self.head.hidden:
      h = hidden_layer(self.cfg, self.head, h, self.cfg.width)
    if self.tied:
      matrix = output.embedding.T
    else:
      init = self.cfg.init.matrix_initializer(self.cfg.width, self.cfg.width)
      init = with_logical_axes(init, ('width', 'vocab'))
      matrix = self.param('kernel', init, (h.shape[-1], self.vocab))
    matrix = gather_parameter(matrix.astype(h.dtype), 'width', 'pieces')
    bias, scale = None, LogitScale(self.factor, self.cap)
    if self.bias or self.head.output_bias:
      init = with_logical_axes(nn.initializers.zeros, ('vocab',))
      bias = self.param('bias', init, (self.vocab,))
      bias = jax.lax.stop_gradient(bias) if self.bias else bias  # BART's is not trained

    if self.blocks > 1 and 'labels' in batch and gpu.has_whole_vocabulary():
      bias = jnp.zeros(self.vocab) if bias is None else bias
      return chunked_cross_entropy.chunked_logit_stats(
          h, matrix.T, bias, batch['labels'], scale, self.blocks)
    logits = cpu.vocabulary_product('bld,dv->blv', h, matrix)
    return constrain(scale.apply(logits, bias), 'batch', None, 'pieces')


class TiedLMHead(nn.Module):
  """LM head of the transposed token table alone (tied embeddings), with a bias of its own
  (XLNet)."""

  @nn.compact
  def __call__(self, output, batch, row_ids=None):
    """Compute float32 logits of the query stream [batch, predicted, vocab], or of all tokens."""
    del batch, row_ids
    h = output.hidden if output.predicted is None else output.predicted
    return vocabulary_logits(self, h, output.embedding)


class PooledClassifier(nn.Module):
  """Classification head on the pooled output: first token with a pooler (BERT), last token
  (GPT)."""

  cfg: BlockConfig
  classes: int | None  # None: one score per text, without an axis of classes (multiple choice)
  dropout: float | None = None  # dropout rate of the pooled output; None: that of the block
  bias: bool = True
  pooling: Pooling | None = None  # of token states; None: the family's own

  @nn.compact
  def __call__(self, output, batch, row_ids=None):
    """Compute logits [batch, classes], or [batch, texts, classes] of batch['extract'], float32."""
    h = pool_texts(output, batch, self.pooling) if self.pooling else self.token(output, batch)
    h = Dropout(dropout_rate(self), name='dropout')(h, row_ids)
    return classify(self, h, self.bias)

  def token(self, output, batch):
    """Return what represents a text in this family, [batch, hidden] or [batch, texts, hidden]."""
    del batch
    return output.pooled


class SummaryClassifier(nn.Module):
  """Classification head with a hidden layer on the pooled output (XLNet, BART, T5)."""

  cfg: BlockConfig
  classes: int | None  # None: one score per text, without an axis of classes (multiple choice)
  act: Activation | None = 'tanh'  # None: the hidden layer is linear
  dropout: float | None = None  # dropout rate of the hidden layer; None: that of the block
  before: bool = False  # dropout of the hidden layer's input, too
  width: int = 0  # width of the hidden layer; 0: that of the block
  pooling: Pooling | None = None  # of token states; None: the family's own

  @nn.compact
  def __call__(self, output, batch, row_ids=None):
    """Compute logits [batch, classes], or [batch, texts, classes] of batch['extract'], float32."""
    cfg = self.cfg
    h = pool_texts(output, batch, self.pooling) if self.pooling else self.token(output, batch)
    if self.before:
      h = Dropout(dropout_rate(self), name='first_dropout')(h, row_ids)
    h = make_dense(cfg, self.width or cfg.width, 'hidden')(h)
    h = activation(self.act)(h) if self.act else h
    return classify(self, Dropout(dropout_rate(self), name='dropout')(h, row_ids))

  def token(self, output, batch):
    """Return the input of the hidden layer, [batch, hidden] or [batch, texts, hidden]."""
    del batch
    return output.pooled


class FirstTokenClassifier(SummaryClassifier):
  """Classification head with a hidden layer on the first token (RoBERTa, ELECTRA, DistilBERT).

  The activation is tanh for RoBERTa, gelu for ELECTRA, relu for DistilBERT.
  """

  def token(self, output, batch):
    """Return the first token, or the tokens that batch['extract'] names."""
    return select_token(output.hidden, batch)


class FirstTokenLinearClassifier(PooledClassifier):
  """Linear classification head on the first token, without a hidden layer (XLM)."""

  def token(self, output, batch):
    """Return the first token, or the tokens that batch['extract'] names."""
    return select_token(output.hidden, batch)


class PoolingClassifier(nn.Module):
  """Classification head with a hidden layer, per text or per token (ModernBERT, EuroBERT).

  `HeadConfig.pooling` says which tokens represent a text.
  """

  cfg: BlockConfig
  head: HeadConfig
  classes: int | None  # None: one score per text, without an axis of classes (multiple choice)
  every: bool = False  # classify every token
  dropout: float | None = None  # dropout rate of the hidden layer; None: that of the block
  norm: bool = True  # normalize the hidden layer
  bias: bool = True  # of the logits

  @nn.compact
  def __call__(self, output, batch, row_ids=None):
    """Compute logits, float32.

    Returns:
      [batch, classes]; [batch, texts, classes] of batch['extract']; or [batch, length, classes] of
      every token.
    """
    cfg, head, h = self.cfg, self.head, output.hidden
    if not self.every and head.pooling == 'first':
      h = select_token(h, batch)
    elif not self.every and head.pooling == 'last' and output.pooled is not None:
      h = output.pooled  # a decoder's
    elif not self.every and head.pooling != 'late':
      h = pool_texts(output, batch, head.pooling)
    hidden = make_dense(cfg, cfg.width, 'hidden', head.bias)
    h = activation(head.activation or cfg.mlp.activation)(hidden(h))
    h = cfg.make_norm('norm')(h) if self.norm else h
    if not self.every and head.pooling == 'late':
      # The last layer is linear, so this is the mean of the logits.
      h = pool_texts(output.replace(hidden=h), batch, 'mean')
    return classify(self, Dropout(dropout_rate(self), name='dropout')(h, row_ids), self.bias)


class TokenClassifier(nn.Module):
  """Token classification head, for tagging and NER (Devlin et al. 2019, section 5.3)."""

  cfg: BlockConfig
  classes: int
  dropout: float | None = None  # dropout rate of the tokens; None: that of the block
  encoder: bool = False  # read the encoder's tokens of an encoder-decoder, not the decoder's

  @nn.compact
  def __call__(self, output, batch, row_ids=None):
    """Compute logits [batch, length, classes] float32."""
    del batch
    h = output.encoded if self.encoder else output.hidden
    return classify(self, Dropout(dropout_rate(self), name='dropout')(h, row_ids))


class AnswerSpanHead(nn.Module):
  """Extractive QA head: start and end scores of every token (Devlin et al. 2019, section 4.2)."""

  cfg: BlockConfig
  dropout: float = 0.0  # dropout rate of the tokens

  @nn.compact
  def __call__(self, output, batch, row_ids=None):
    """Compute scores [batch, length, 2] float32, start and end."""
    del batch
    h = Dropout(self.dropout, name='dropout')(output.hidden, row_ids)
    init = self.cfg.init.table_initializer
    return Dense((2,), ('width', None), True, jnp.float32, init, name='dense')(h)


class LabelWordClassifier(nn.Module):
  """Cloze classification head: logits of one label word per class (GLM: Du et al. 2022, section
  2.3)."""

  words: tuple[int, ...]  # token ids

  @nn.compact
  def __call__(self, output, batch, row_ids=None):
    """Compute logits [batch, classes], or [batch, texts, classes] of batch['extract'], float32."""
    del batch, row_ids
    table = gather_parameter(output.embedding, 'vocab', 'width')[jnp.array(self.words)]
    table = table.astype(output.pooled.dtype)
    return jnp.einsum('...d,cd->...c', output.pooled, table, preferred_element_type=jnp.float32)


class ReplacedTokenHead(nn.Module):
  """Replaced-token detection head: a logit per token (ELECTRA: Clark et al. 2020, section 2).

  Dense, activation, one unit. `first`: the state of the first token is added to each token, and the
  sum normalized (released DeBERTa v3).
  """

  cfg: BlockConfig
  first: bool = False

  @nn.compact
  def __call__(self, output, batch, row_ids=None):
    """Compute logits [batch, length] float32, positive for replaced tokens."""
    del batch, row_ids
    cfg, h = self.cfg, output.hidden
    init = cfg.init.table_initializer
    if self.first:
      h = cfg.make_norm('norm')(h + h[:, :1])
    h = activation(cfg.mlp.activation)(make_dense(cfg, cfg.width, 'hidden')(h))
    return Dense((1,), ('width', None), True, jnp.float32, init, name='dense')(h)[..., 0]


def select_token(hidden, batch, segments=None):
  """Select the token that represents each text.

  Args:
    hidden: [batch, length, hidden].
    batch: optional `extract` [batch, texts], positions of the tokens.
    segments: [batch, length], 0 is padding: the last token that is not padding is selected; None:
      the first token is.

  Returns:
    [batch, texts, hidden] with `extract`, else [batch, hidden].
  """
  if 'extract' in batch:
    return jnp.take_along_axis(hidden, batch['extract'][..., None], axis=1)
  if segments is None:
    return hidden[:, 0]
  last = jnp.max(jnp.arange(hidden.shape[1]) * (segments > 0), 1)
  return jnp.take_along_axis(hidden, last[:, None, None], 1)[:, 0]


def pool_texts(output, batch, how: Pooling):
  """Pool the token states of each text.

  Args:
    output: the backbone's; `encoded` of an encoder-decoder is pooled, else `hidden` [batch, length,
      hidden].
    batch: `segments` [batch, length], which separate texts, 0 is padding; optional `extract`
      [batch, texts], positions of a token of each text.
    how: kind of pooling.

  Returns:
    [batch, texts, hidden] with `extract`, else [batch, hidden] of each row.
  """
  hidden, segments = output.hidden if output.encoded is None else output.encoded, batch['segments']
  states = hidden.astype(jnp.float32)
  if 'extract' not in batch:
    return pool(states, segments, how).astype(hidden.dtype)
  text_segments = jnp.take_along_axis(segments, batch['extract'], 1)[..., None]
  # The first position of a left-padded row is padding, and stands for the row's only text.
  own = (segments[:, None] == text_segments) | (text_segments == 0)
  own = own & (segments > 0)[:, None]  # [batch, texts, length]
  pooled = jax.vmap(lambda mask: pool(states, mask, how), 1, 1)(own)
  return pooled.astype(hidden.dtype)


def classify(head, h, bias: bool = True):
  """Compute logits [..., classes] of h [..., hidden] by the layer `dense`; classes None: [...]."""
  classes, init = head.classes, head.cfg.init.table_initializer
  logits = Dense((classes or 1,), ('width', None), bias, jnp.float32, init, name='dense')(h)
  return logits if classes else logits[..., 0]


def dropout_rate(head) -> float:
  """Return the dropout rate of a head: its own, or that of the block."""
  return head.cfg.dropout if head.dropout is None else head.dropout


def vocabulary_logits(head: nn.Module, h, embedding, bias: bool = True):
  """Compute vocabulary logits: products with the rows of an output matrix.

  Args:
    head: module that owns the bias.
    h: [batch, predicted, E].
    embedding: [vocab, E], the token table (tied embeddings) or the head's own matrix, transposed.
    bias: add a bias.

  Returns:
    [batch, predicted, vocab] float32.
  """
  table = gather_parameter(embedding.astype(h.dtype), 'pieces', 'width')
  logits = cpu.vocabulary_product('bld,vd->blv', h, table)
  logits = constrain(logits, 'batch', None, 'pieces')
  if not bias:
    return logits
  init = with_logical_axes(nn.initializers.zeros, ('vocab',))
  return logits + head.param('bias', init, embedding.shape[:1])
