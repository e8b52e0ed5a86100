"""What reads the words of a text for a task: their vectors and ELMo's beside them, and LSTMs from both sides (Peters et
al. 2018, section 3.3)."""
import dataclasses

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from plm_jax.checked import Checked, within
from plm_jax.layers import spelling
from plm_jax.layers.crf import CRF
from plm_jax.layers.dense import Dense, Dropout, named
from plm_jax.layers.init import drawn
from plm_jax.layers.lstm import LSTMState, ProjectedLSTM, turned
from plm_jax.layers.mix import ScalarMix
from plm_jax.layers.pooling import pooled
from plm_jax.sharding import gathered


@dataclasses.dataclass(frozen=True)
class ReaderConfig(Checked):
  """What stands between an ELMo and a task. Layers and cells are those of AllenNLP's ner_elmo, from memory."""

  limits = within(width='[0, 65536]', least='[1, inf)', layers='[1, 64]', cells='[1, 65536]', longest='[3, 1024]')

  features: bool = True
  """ELMo's layers, in a mixture that the task learns, are read; False: word vectors alone, for comparison"""
  norm: bool = False
  """each layer is normalised over its sentence before it is mixed; the paper's section 3.2 has it over the batch, by
  which what is said of a sentence would depend on the others"""
  vectors: str = ''
  """word vectors to begin with: a file of word2vec's, GloVe's or fastText's, or a run; empty: random ones"""
  width: int = 100
  """of word vectors, that of those to begin with; 0: ELMo's features alone"""
  least: int = 2
  """times that a word without a vector to begin with has to come in the training examples to have one of its own; the
  others share one, and only their characters tell them apart"""
  layers: int = 2
  """LSTMs above each other, for each direction"""
  cells: int = 200
  """of each, and how wide its output is"""
  longest: int = spelling.LONGEST
  """ids of characters of a word: those that the ELMo reads"""

  def conflict(self, option):
    """Says that nothing is left to read."""
    if not self.width and not self.features:
      return f'{option("width")} is 0 and {option("features")} is False: there is nothing to read of a word'
    if self.vectors and not self.width:
      return f'{option("vectors")} has no place where {option("width")} is 0'
    return None


class WordReader(nn.Module):
  """Words of sentences -> what the LSTMs say of each, [B, L, 2 * cells] float32."""

  cfg: ReaderConfig
  vocab: int  # V, words that have a vector
  dropout: float  # of what each LSTM is given, and of what the last gives

  @nn.compact
  def __call__(self, output, batch, rows=None):
    """output.words [B, L, N, D]; batch['tokens'], ['segments'] [B, L] (0 padding); rows [B] key dropout."""
    cfg, mask, parts = self.cfg, batch['segments'] > 0, []
    if cfg.width:
      init = named(drawn('normal', 0.1), ('vocab', 'width'))
      table = self.param('words', init, (self.vocab, cfg.width), jnp.float32)
      parts.append(gathered(table, 'vocab', 'width')[batch['tokens']])
    if cfg.features:
      parts.append(ScalarMix(cfg.norm, apart=True, name='mix')(jnp.moveaxis(output.words, 2, 0), mask))
    x, lengths = jnp.concatenate(parts, -1), mask.sum(-1)
    valid = jnp.broadcast_to(mask[:, None], (len(mask), 2, mask.shape[1]))
    for number in range(cfg.layers):
      x = Dropout(self.dropout, name=f'dropout_{number}')(x, rows)
      begin = LSTMState(*(jnp.zeros((len(x), 2, cfg.cells)),) * 2)
      lstm = ProjectedLSTM(cfg.cells, cfg.cells, None, None, name=f'layer_{number}')
      h, _ = lstm(jnp.stack([x, turned(x, lengths)], 1), begin, valid)
      x = jnp.concatenate([h[:, 0], turned(h[:, 1], lengths)], -1)
    return Dropout(self.dropout, name='dropout')(x, rows)


class RowOfTags(flax.struct.PyTreeNode):
  """What is said of the tags of sentences: likelihood [B], the logarithm of the probability of those that they have;
  best [B, L], the likeliest ones together, and shares [B, L], the probability of each of these: None in training."""

  likelihood: jax.Array
  best: jax.Array | None = None
  shares: jax.Array | None = None


class Recurrent(nn.Module):
  """A head on what is read of each word."""

  cfg: ReaderConfig
  vocab: int
  classes: int
  dropout: float

  def read(self, output, batch, rows):
    """-> [B, L, 2 cells], as `WordReader`; for a compact method."""
    return WordReader(self.cfg, self.vocab, self.dropout, name='reader')(output, batch, rows)


class RecurrentTags(Recurrent):
  """Tags of sentences: a dense layer on what is read of each word, and a CRF (Lample et al. 2016; Peters et al. 2018,
  section 4)."""

  @nn.compact
  def __call__(self, output, batch, rows=None):
    """batch['tags'] [B, L] -> RowOfTags; rows [B] key dropout, None: not in training."""
    h = self.read(output, batch, rows)
    scores = Dense((self.classes,), ('width', None), True, jnp.float32, name='dense')(h)
    crf, mask = CRF(self.classes, name='crf'), batch['segments'] > 0
    likelihood = crf(scores, batch['tags'], mask)
    if rows is not None:
      return RowOfTags(likelihood)
    best = crf.decode(scores, mask)
    return RowOfTags(likelihood, best, jnp.take_along_axis(crf.marginals(scores, mask), best[..., None], 2)[..., 0])


class RecurrentClasses(Recurrent):
  """Class logits of texts: the greatest and the mean of what is read of their words, and a dense layer.

  Simpler than what Peters et al. 2018 took for SST-5, the biattentive network of McCann et al. 2017.
  """

  @nn.compact
  def __call__(self, output, batch, rows=None):
    """-> [B, 1, C] float32; rows [B] key dropout."""
    h = self.read(output, batch, rows)
    both = jnp.concatenate([pooled(h, batch['segments'], 'max'), pooled(h, batch['segments'], 'mean')], -1)
    return Dense((self.classes,), ('width', None), True, jnp.float32, name='dense')(both)[:, None]
