"""ELMo (Peters et al. 2018): words from their characters, read by LSTMs from the left and from the right."""
from collections.abc import Mapping
import dataclasses
from typing import Any, ClassVar

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from plm_jax.architectures import Kind
from plm_jax.checked import Checked, within
from plm_jax.layers import spelling
from plm_jax.layers.characters import CharacterConfig, Characters
from plm_jax.layers.common import Dtype
from plm_jax.layers.dense import Dropout
from plm_jax.layers.lstm import LSTMState, ProjectedLSTM, turned
from plm_jax.sharding import constrain


@dataclasses.dataclass(frozen=True)
class ElmoConfig(Checked):
  """An ELMo's sizes; `models.elmo` has the published ones."""

  limits = within(
      vocab='[4, inf)', words='[4, inf)', layers='[1, inf)', width='[1, inf)', cells='[1, inf)', dropout='[0, 1)',
      cell_clip='(0, inf)', proj_clip='(0, inf)')

  kind: ClassVar[Kind] = 'recurrent'
  cls_last: ClassVar[bool] = False
  padding: ClassVar[int] = -1
  max_length: ClassVar[int] = 0
  added: ClassVar[tuple[str, ...]] = ()

  vocab: int = 2_500_000
  """words that the tokenizer tells apart, at most: whose characters are known where text is read as ids"""
  words: int = 793_471
  """V, the most frequent of them, which are predicted; all others are predicted as <UNK>"""
  characters: CharacterConfig = CharacterConfig()
  """how the characters of a word become its vector"""
  layers: int = 2
  """N, LSTMs above each other, for each direction"""
  width: int = 512
  """P, of word vectors, and of what an LSTM gives; both directions together are twice as wide"""
  cells: int = 4096
  """F, memory cells of an LSTM"""
  cell_clip: float | None = 3.0
  """largest magnitude of a cell; None: any"""
  proj_clip: float | None = 3.0
  """largest magnitude of what an LSTM gives; None: any"""
  skip: bool = True
  """LSTMs above the first add what they are given to what they give"""
  dropout: float = 0.1
  """share of what each LSTM is given, and of what the last gives, that is dropped"""
  dtype: Dtype = 'float32'
  """what matrix products compute in; parameters, cells and losses stay float32"""

  def backbone(self, packed: bool = False) -> 'Elmo':
    """Makes the module."""
    del packed  # what a row may hold: words of one stream, or of one sentence
    return Elmo(self)

  def state(self, rows: int) -> LSTMState:
    """Makes what LSTMs begin with: hidden [B, N, 2, P] and cells [B, N, 2, F] of zeros."""
    return LSTMState(jnp.zeros((rows, self.layers, 2, self.width)), jnp.zeros((rows, self.layers, 2, self.cells)))

  def forward_flops(self, length: int, predicted: int) -> int:
    """Counts the floating point operations of the matrix products for a row of `length` words, read from both sides,
    and `predicted` logits."""
    lstm = 2 * (2 * self.width * 4 * self.cells + self.cells * self.width)
    return 2 * length * (self.characters.flops(self.width) + self.layers * lstm) + 2 * predicted * self.width


class Output(flax.struct.PyTreeNode):
  """What heads read. Of sentences: hidden [B, T, 2P], the last layer; layers [N + 1, B, T, 2P], word vectors (twice)
  first; mask [B, T]. Of streams: hidden [B, 2, L, P] and state, to go on from. What is not there is None."""

  hidden: jax.Array
  layers: jax.Array | None = None
  mask: jax.Array | None = None
  state: LSTMState | None = None
  pooled: jax.Array | None = None
  embedding: jax.Array | None = None
  predicted: jax.Array | None = None

  @property
  def words(self):
    """The layers of each word of sentences, without <S> and </S>: [B, T, N + 1, 2P]."""
    return jnp.moveaxis(self.layers[:, :, 1:-1], 0, 2)  # pyright: ignore[reportOptionalSubscript]


class Kept(flax.struct.PyTreeNode):
  """What a task reads of an output that was computed before: words, as `Output.words`."""

  words: jax.Array


class Elmo(nn.Module):
  """batch -> Output.

  Sentences: characters [B, T, 50], 0 where there is no word, which are set between <S> and </S>: outputs have T + 2
  words. Streams, for training: streams [B, 2, L, 50], words to be read by each direction in its order, valid [B, 2, L],
  False behind their end. Both go on from an optional state (`ElmoConfig.state`). rows [B] key dropout; None: none.
  """

  cfg: ElmoConfig

  @nn.compact
  def __call__(self, batch: Mapping[str, Any], rows=None) -> Output:
    cfg = self.cfg
    words = Characters(cfg.characters, cfg.width, jnp.dtype(cfg.dtype), name='characters')
    if 'streams' in batch:
      hidden, state = self.read(words(batch['streams']), batch['valid'], self.begin(batch), rows)
      return Output(Dropout(cfg.dropout, name='dropout')(hidden[-1], rows), state=state)
    characters = bounded(batch['characters'])
    mask = characters.any(-1)
    x = words(characters) * mask[..., None]
    lengths = mask.sum(-1)
    both = jnp.stack([x, turned(x, lengths)], 1)
    hidden, state = self.read(both, jnp.broadcast_to(mask[:, None], both.shape[:3]), self.begin(batch), rows)
    layers = [jnp.concatenate([h[:, 0], turned(h[:, 1], lengths)], -1) for h in [both, *hidden]]
    return Output(layers[-1], jnp.stack(layers).astype(jnp.float32), mask, state)

  def begin(self, batch) -> LSTMState:
    """Returns the state that the batch has, or that of a beginning."""
    words = 'streams' if 'streams' in batch else 'characters'
    return batch['state'] if 'state' in batch else self.cfg.state(len(batch[words]))

  def read(self, x, valid, state: LSTMState, rows) -> tuple[list[jax.Array], LSTMState]:
    """Reads x [B, 2, L, P], each direction in its order -> what each layer gives, [B, 2, L, P] each, and the state."""
    cfg, outputs, states = self.cfg, [], []
    for number in range(cfg.layers):
      lstm = ProjectedLSTM(
          cfg.width, cfg.cells, cfg.cell_clip, cfg.proj_clip, jnp.dtype(cfg.dtype), name=f'layer_{number}')
      x = Dropout(cfg.dropout, name=f'dropout_{number}')(x, rows)
      before = LSTMState(state.hidden[:, number], state.cell[:, number])
      h, after = lstm(constrain(x, 'batch', None, None, None), before, valid)
      x = h + x * valid[..., None] if cfg.skip and number else h
      outputs.append(x)
      states.append(after)
    return outputs, LSTMState(*(jnp.stack(parts, 1) for parts in zip(*states, strict=True)))


def bounded(characters):
  """Sets the words of each row, characters [B, T, 50], between <S> and </S> -> [B, T + 2, 50]."""
  longest, lengths = characters.shape[-1], characters.any(-1).sum(-1)
  begin, end = (spelling.mark(sign, longest) for sign in (spelling.SENTENCE_BEGIN, spelling.SENTENCE_END))
  ids = jnp.pad(characters, ((0, 0), (1, 1), (0, 0))).at[:, 0].set(begin)
  return ids.at[jnp.arange(len(ids)), lengths + 1].set(end)
