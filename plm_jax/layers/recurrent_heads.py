"""Recurrent task heads: BiLSTMs over word vectors and ELMo features, with a CRF or pooling.

Peters et al. 2018, section 3.3. ELMo's features are a scalar mix of its layers.
"""
import dataclasses

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from plm_jax.layers import char_ids
from plm_jax.layers.crf import CRF
from plm_jax.layers.dense import Dense, Dropout, with_logical_axes
from plm_jax.layers.init import make_initializer
from plm_jax.layers.lstm import LSTMState, ProjectedLSTM, reverse_sequences
from plm_jax.layers.pooling import pool
from plm_jax.sharding import gather_parameter
from plm_jax.validation import ValidatedConfig, intervals


@dataclasses.dataclass(frozen=True)
class ReaderConfig(ValidatedConfig):
  """The BiLSTM between an ELMo and a task.

  Layers and cells are those of AllenNLP's ner_elmo, from memory.
  """

  limits = intervals(
      width='[0, 65536]', least='[1, inf)', layers='[1, 64]', cells='[1, 65536]',
      longest='[3, 1024]')

  features: bool = True
  """Read ELMo's layers, in a scalar mix that the task learns; False: word vectors alone, for
  comparison."""
  norm: bool = False
  """Normalize each layer over its sentence before the scalar mix. The paper's section 3.2
  normalizes over the batch, which would make a sentence's predictions depend on the others."""
  vectors: str = ''
  """Pre-trained word vectors: a file of word2vec, GloVe or fastText, or a run; empty: random
  ones."""
  width: int = 100
  """Size of word vectors, which is that of the pre-trained ones; 0: ELMo's features alone."""
  least: int = 2
  """Least count in the training examples for a word without a pre-trained vector to have a vector
  of its own. The others share one; only their characters distinguish them."""
  layers: int = 2
  """Number of LSTM layers, per direction."""
  cells: int = 200
  """Number of cells per LSTM, and the size of its output."""
  longest: int = char_ids.MAX_CHARACTERS
  """Character ids per word: as many as the ELMo reads."""

  def conflict(self, option):
    if not self.width and not self.features:
      return (f'{option("width")} is 0 and {option("features")} is False: there is nothing to read '
              'of a word')
    if self.vectors and not self.width:
      return f'{option("vectors")} has no place where {option("width")} is 0'
    return None


class WordBiLSTM(nn.Module):
  """BiLSTM over the words of sentences -> [batch, length, 2 * cells] float32."""

  cfg: ReaderConfig
  vocab: int  # words that have a vector
  dropout: float  # dropout rate of the input of each LSTM, and of the output of the last

  @nn.compact
  def __call__(self, output, batch, row_ids=None):
    """Read sentences.

    Args:
      output: `words` [batch, length, layers, hidden] of an ELMo.
      batch: `tokens` and `segments` [batch, length], 0 is padding.
      row_ids: [batch] row numbers, folded into the dropout key; None: no dropout.
    """
    cfg, mask, parts = self.cfg, batch['segments'] > 0, []
    if cfg.width:
      init = with_logical_axes(make_initializer('normal', 0.1), ('vocab', 'width'))
      table = self.param('words', init, (self.vocab, cfg.width), jnp.float32)
      parts.append(gather_parameter(table, 'vocab', 'width')[batch['tokens']])
    if cfg.features:
      mix = ScalarMix(cfg.norm, apart=True, name='mix')
      parts.append(mix(jnp.moveaxis(output.words, 2, 0), mask))
    x, lengths = jnp.concatenate(parts, -1), mask.sum(-1)
    valid = jnp.broadcast_to(mask[:, None], (len(mask), 2, mask.shape[1]))
    for number in range(cfg.layers):
      x = Dropout(self.dropout, name=f'dropout_{number}')(x, row_ids)
      zeros = jnp.zeros((len(x), 2, cfg.cells))
      lstm = ProjectedLSTM(cfg.cells, cfg.cells, None, None, name=f'layer_{number}')
      both = jnp.stack([x, reverse_sequences(x, lengths)], 1)
      h, _ = lstm(both, LSTMState(zeros, zeros), valid)
      x = jnp.concatenate([h[:, 0], reverse_sequences(h[:, 1], lengths)], -1)
    return Dropout(self.dropout, name='dropout')(x, row_ids)


class TagScores(flax.struct.PyTreeNode):
  """What a CRF computes of the tags of sentences."""

  log_likelihood: jax.Array
  """[batch], log-likelihood of the given tags."""
  best_tags: jax.Array | None = None
  """[batch, length], the most likely tag sequence; None in training."""
  tag_probabilities: jax.Array | None = None
  """[batch, length], marginal probability of each of these tags; None in training."""


class RecurrentHead(nn.Module):
  """Base class of heads on a BiLSTM over words."""

  cfg: ReaderConfig
  vocab: int
  classes: int
  dropout: float

  def encode_words(self, output, batch, row_ids):
    """Run `WordBiLSTM`, inside a compact method -> [batch, length, 2 * cells]."""
    bilstm = WordBiLSTM(self.cfg, self.vocab, self.dropout, name='reader')
    return bilstm(output, batch, row_ids)


class RecurrentTagger(RecurrentHead):
  """BiLSTM-CRF tagger (Lample et al. 2016; Peters et al. 2018, section 4)."""

  @nn.compact
  def __call__(self, output, batch, row_ids=None):
    """Score batch['tags'] [batch, length] -> TagScores; row_ids None: not in training."""
    h = self.encode_words(output, batch, row_ids)
    scores = Dense((self.classes,), ('width', None), True, jnp.float32, name='dense')(h)
    crf, mask = CRF(self.classes, name='crf'), batch['segments'] > 0
    log_likelihood = crf(scores, batch['tags'], mask)
    if row_ids is not None:
      return TagScores(log_likelihood)
    best = crf.decode(scores, mask)
    marginals = jnp.take_along_axis(crf.marginals(scores, mask), best[..., None], 2)[..., 0]
    return TagScores(log_likelihood, best, marginals)


class RecurrentClassifier(RecurrentHead):
  """Text classifier: max and mean pooling of a BiLSTM over words, and a dense layer.

  It is simpler than what Peters et al. 2018 used for SST-5, the biattentive network of McCann et
  al. 2017.
  """

  @nn.compact
  def __call__(self, output, batch, row_ids=None):
    """Compute logits [batch, 1, classes] float32."""
    h = self.encode_words(output, batch, row_ids)
    segments = batch['segments']
    pooled = jnp.concatenate([pool(h, segments, 'max'), pool(h, segments, 'mean')], -1)
    logits = Dense((self.classes,), ('width', None), True, jnp.float32, name='dense')(pooled)
    return logits[:, None]


class ScalarMix(nn.Module):
  """Scalar mix of layers (Peters et al. 2018, equation 1); each task has its own.

  Layers [layers, batch, length, hidden] -> gamma * sum of softmax(weights) * layer, [batch, length,
  hidden] float32.
  """

  norm: bool = False  # normalize each layer over the batch first (section 3.2)
  apart: bool = False  # normalize over each row instead of the batch

  @nn.compact
  def __call__(self, layers, mask):
    """Mix layers; mask [batch, length] is False for padding, which normalization ignores."""
    weights = self.param('weights', nn.initializers.zeros, layers.shape[:1], jnp.float32)
    gamma = self.param('gamma', nn.initializers.ones, (), jnp.float32)
    layers = layers.astype(jnp.float32)
    if self.norm:
      layers = jax.vmap(lambda layer: normalize_layer(layer, mask, self.apart))(layers)
    return gamma * jnp.einsum('n,nbld->bld', nn.softmax(weights), layers)


def normalize_layer(x, mask, apart: bool = False):
  """Normalize a layer to mean 0 and variance 1 over all its numbers.

  Args:
    x: [batch, length, hidden].
    mask: [batch, length] bool; only numbers where it is True count.
    apart: normalize each row separately.
  """
  real = mask[..., None]
  axes = (1, 2) if apart else (0, 1, 2)

  def total(values):
    return jnp.where(real, values, 0).sum(axes, keepdims=True)

  number = jnp.maximum(total(1.0) * x.shape[-1], 1)
  mean = total(x) / number
  variance = total(jnp.square(x - mean)) / number
  return (x - mean) / jnp.sqrt(variance + 1e-13)
