"""ELMo: bidirectional LSTM language model on characters (Peters et al. 2018)."""
from collections.abc import Mapping
import dataclasses
from typing import Any, ClassVar

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from plm_jax.architectures import Kind, Output
from plm_jax.layers import char_ids
from plm_jax.layers.char_cnn import CharacterCNN, CharacterConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.dense import Dropout
from plm_jax.layers.lstm import LSTMState, ProjectedLSTM, reverse_sequences
from plm_jax.sharding import constrain
from plm_jax.validation import ValidatedConfig, intervals


@dataclasses.dataclass(frozen=True)
class ElmoConfig(ValidatedConfig):
  """Configuration of an ELMo; `models.elmo` has the published ones."""

  limits = intervals(
      vocab='[4, inf)', words='[4, inf)', layers='[1, inf)', width='[1, inf)', cells='[1, inf)',
      dropout='[0, 1)', cell_clip='(0, inf)', proj_clip='(0, inf)')

  kind: ClassVar[Kind] = 'recurrent'
  cls_last: ClassVar[bool] = False
  padding: ClassVar[int] = -1
  max_length: ClassVar[int] = 0
  new_parts: ClassVar[tuple[str, ...]] = ()

  vocab: int = 2_500_000
  """Largest number of words of the tokenizer, whose characters are known where text is read as
  ids."""
  words: int = 793_471
  """Vocabulary size of the output: the most frequent words; all others are predicted as <UNK>."""
  characters: CharacterConfig = CharacterConfig()
  """Character CNN that computes the vector of a word."""
  layers: int = 2
  """Number of LSTM layers, per direction."""
  width: int = 512
  """Size of word vectors and of an LSTM's output; both directions together are twice as wide."""
  cells: int = 4096
  """Number of memory cells of an LSTM."""
  cell_clip: float | None = 3.0
  """Limit at which cells are clipped; None: not clipped."""
  proj_clip: float | None = 3.0
  """Limit at which an LSTM's output is clipped; None: not clipped."""
  skip: bool = True
  """LSTMs above the first have residual connections."""
  dropout: float = 0.1
  """Dropout rate of the input of each LSTM, and of the output of the last."""
  dtype: Dtype = 'float32'
  """Compute dtype of matrix products (mixed precision); parameters, cells and losses stay
  float32."""

  def backbone(self, packed: bool = False) -> 'Elmo':
    """Make the module; `packed` has no effect: a row is words of one stream, or one sentence."""
    del packed
    return Elmo(self)

  def zero_state(self, rows: int) -> LSTMState:
    """Make the initial state of the LSTMs: zeros [rows, layers, 2, projection or cells]."""
    return LSTMState(jnp.zeros((rows, self.layers, 2, self.width)),
                     jnp.zeros((rows, self.layers, 2, self.cells)))

  def forward_flops(self, length: int, predicted: int) -> int:
    """Count the FLOPs of the matrix products for one row.

    Args:
      length: words, read in both directions.
      predicted: logits.
    """
    lstm = 2 * (2 * self.width * 4 * self.cells + self.cells * self.width)
    word = self.characters.flops(self.width) + self.layers * lstm
    return 2 * length * word + 2 * predicted * self.width


class CachedWordLayers(flax.struct.PyTreeNode):
  """What a task reads of an output that was computed before."""

  words: jax.Array
  """As `Output.words`."""


class Elmo(nn.Module):
  """ELMo: batch -> Output.

  Sentences: `characters` [batch, length, 50], 0 where there is no word; they are enclosed in <S>
  and </S>, so outputs have length + 2 words. Streams, for training: `streams` [batch, 2, length,
  50], words for each direction in its reading order, and `valid` [batch, 2, length], False after
  their end. Both continue from an optional `state` (`ElmoConfig.zero_state`). row_ids [batch] key
  dropout; None: no dropout.
  """

  cfg: ElmoConfig

  @nn.compact
  def __call__(self, batch: Mapping[str, Any], row_ids=None) -> Output:
    cfg = self.cfg
    char_cnn = CharacterCNN(cfg.characters, cfg.width, jnp.dtype(cfg.dtype), name='characters')
    if 'streams' in batch:
      x, state = char_cnn(batch['streams']), self.initial_state(batch)
      hidden, state = self.run_lstms(x, batch['valid'], state, row_ids)
      return Output(Dropout(cfg.dropout, name='dropout')(hidden[-1], row_ids), state=state)

    characters = add_sentence_marks(batch['characters'])
    mask = characters.any(-1)
    x = char_cnn(characters) * mask[..., None]
    lengths = mask.sum(-1)
    both = jnp.stack([x, reverse_sequences(x, lengths)], 1)
    valid = jnp.broadcast_to(mask[:, None], both.shape[:3])
    hidden, state = self.run_lstms(both, valid, self.initial_state(batch), row_ids)
    layers = []
    for h in [both, *hidden]:
      backward = reverse_sequences(h[:, 1], lengths)
      layers.append(jnp.concatenate([h[:, 0], backward], -1))
    stacked = jnp.stack(layers).astype(jnp.float32)
    return Output(layers[-1], layers=stacked, mask=mask, state=state)

  def initial_state(self, batch) -> LSTMState:
    """Return the state of the batch, or zeros."""
    if 'state' in batch:
      return batch['state']
    words = batch['streams'] if 'streams' in batch else batch['characters']
    return self.cfg.zero_state(len(words))

  def run_lstms(self, x, valid, state: LSTMState, row_ids) -> tuple[list[jax.Array], LSTMState]:
    """Run all LSTM layers, each direction in its reading order.

    Args:
      x: [batch, 2, length, projection].
      valid: [batch, 2, length] bool, False after the end.
      state: the state to begin with.
      row_ids: [batch] row numbers, folded into the dropout key; None: no dropout.

    Returns:
      (output of each layer [batch, 2, length, projection], state after the last word).
    """
    cfg, outputs, states = self.cfg, [], []
    for number in range(cfg.layers):
      lstm = ProjectedLSTM(cfg.width, cfg.cells, cfg.cell_clip, cfg.proj_clip,
                           jnp.dtype(cfg.dtype), name=f'layer_{number}')
      x = Dropout(cfg.dropout, name=f'dropout_{number}')(x, row_ids)
      before = LSTMState(state.hidden[:, number], state.cell[:, number])
      h, after = lstm(constrain(x, 'batch', None, None, None), before, valid)
      x = h + x * valid[..., None] if cfg.skip and number else h
      outputs.append(x)
      states.append(after)
    hidden = jnp.stack([state.hidden for state in states], 1)
    cell = jnp.stack([state.cell for state in states], 1)
    return outputs, LSTMState(hidden, cell)


def add_sentence_marks(characters):
  """Enclose the words of each row, [batch, length, 50], in <S> and </S> -> [batch, length + 2,
  50]."""
  longest, lengths = characters.shape[-1], characters.any(-1).sum(-1)
  begin = char_ids.encode_boundary(char_ids.SENTENCE_BEGIN, longest)
  end = char_ids.encode_boundary(char_ids.SENTENCE_END, longest)
  ids = jnp.pad(characters, ((0, 0), (1, 1), (0, 0))).at[:, 0].set(begin)
  return ids.at[jnp.arange(len(ids)), lengths + 1].set(end)
