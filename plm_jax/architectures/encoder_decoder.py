"""The encoder-decoder: the original Transformer, T5, BART. A decoder reads what comes before in its own row, and all
that the encoder has made of another."""
from collections.abc import Mapping
import dataclasses
from typing import Any, ClassVar, Literal

from flax.core import FrozenDict
import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax import checked
from plm_jax.architectures import Kind, decoder, resized
from plm_jax.architectures.decoder import Cache
from plm_jax.checked import Checked, within
from plm_jax.layers.attention import Keys, Past, Visible
from plm_jax.layers.block import BlockConfig, Memory
from plm_jax.layers.dense import Dropout, named
from plm_jax.layers.embeddings import Embeddings
from plm_jax.layers.heads import standing
from plm_jax.layers.masks import of_batch, visible
from plm_jax.layers.stack import Stack, StackConfig


@dataclasses.dataclass(frozen=True)
class EncoderDecoderConfig(Checked):
  """An encoder-decoder's sizes; `models` has the published ones."""

  limits = within(vocab='[1, inf)', decoder_heads='[1, inf)', decoder_mlp_dim='[1, inf)')

  kind: ClassVar[Kind] = 'encoder-decoder'
  cls_last: ClassVar[bool] = True  # what stands for a row is its last token
  padding: ClassVar[int] = -1  # the model does not know its id

  vocab: int = 32128
  """V, token ids, of both sides"""
  block: BlockConfig = BlockConfig()
  """one layer of the encoder; the decoder's attend to the encoder besides"""
  stack: StackConfig = StackConfig(6)
  """the encoder's layers"""
  decoder: StackConfig = StackConfig(6)
  """the decoder's layers; with none of them the encoder is all there is, and its output what heads read"""
  decoder_heads: int | None = None
  """attention heads in the decoder; None: as many as in the encoder"""
  decoder_mlp_dim: int | None = None
  """hidden size of the position-wise network in the decoder; None: that of the encoder's"""
  source: StackConfig = StackConfig(0)
  """layers of a source encoder, with a token table, positions and norms of its own, whose output takes the place of the
  encoder's token vectors (translation by BART; Lewis et al. 2020, section 3.4); none: there is no such encoder"""
  max_length: int = 0
  """the longest row of either side, in tokens; 0: any"""
  absolute: Literal['learned', 'sinusoidal', 'none'] = 'none'
  """positions that are added to the embeddings: a table of max_length rows for each side, sines and cosines, or none"""
  first_position: int = 0
  """row of the table of positions that a row's first token has (BART: 2)"""
  embed_norm: bool = False
  """a norm of the embeddings of each side (BART)"""
  embed_factor: float = 1.0
  """on token vectors (Vaswani et al. 2017: sqrt(D))"""
  last_dropout: bool = False
  """dropout of what each stack gives (T5)"""
  tied: bool = True
  """the output matrix is the token table; else the language-modelling head has its own"""
  logit_factor: float = 1.0
  """on output logits (T5 v1.0: 1 / sqrt(D))"""
  logit_bias: bool = False
  """a bias of output logits, which is not trained (what BART's released checkpoints hold)"""

  def conflict(self, option):
    """Says that a table of positions has no number of rows."""
    if self.absolute != 'none' and not self.max_length:
      return f'a table of positions needs {option("max_length")}, its number of rows'
    if self.decoder_heads and not self.block.head_size and self.block.width % self.decoder_heads:
      return f'{option("decoder_heads")} {self.decoder_heads} does not divide a width of {self.block.width}'
    return None

  @property
  def decoder_block(self) -> BlockConfig:
    """The decoder's block: the encoder's with cross-attention, and positions of what comes before."""
    block = self.block
    return checked.replaced(block, {
        'cross': True, 'attention.position': block.attention.position.of_decoder(),
        'heads': self.decoder_heads or block.heads, 'mlp_dim': self.decoder_mlp_dim or block.mlp_dim})

  @property
  def added(self) -> tuple[str, ...]:
    """Parts of the backbone that begin afresh where a run starts from a model that has none."""
    return ('source',) if self.source.layers else ()

  def backbone(self, packed: bool = False) -> 'EncoderDecoder':
    """Makes the module; packed: rows hold several segments that do not see each other."""
    return EncoderDecoder(self, packed)

  def resized(self, block: BlockConfig, layers: int, vocab: int, max_length: int) -> 'EncoderDecoderConfig':
    """Makes the same wiring in another size: `layers` of `block`, `vocab` ids, rows of `max_length` tokens."""
    sides = {name: dataclasses.replace(side, layers=layers, remat='none')
             for name, side in (('decoder', self.decoder), ('source', self.source)) if side.layers}
    return resized(
        self, block, layers, vocab, max_length, **sides,
        logit_factor=1.0 if self.logit_factor == 1 else block.width ** -0.5,
        embed_factor=1.0 if self.embed_factor == 1 else block.width ** 0.5)

  def forward_flops(self, length: int, predicted: int) -> int:
    """Counts the floating point operations of the matrix products for one row: `length` tokens for the encoder,
    `predicted` for the decoder, which predicts all of its own. All pairs of tokens count, seen or not, as they are
    computed."""
    def attention(b, queries, keys):
      linear = b.width * b.head_dim * (2 * b.heads * queries + 2 * b.key_heads * keys)
      return linear + 2 * queries * keys * b.heads * b.head_dim
    def mlp(b, tokens):
      return tokens * b.width * b.mlp_dim * (3 if b.mlp.gated else 2)
    near, far = self.block, self.decoder_block
    encoder = (self.source.blocks + self.stack.blocks) * (attention(near, length, length) + mlp(near, length))
    decoder = self.decoder.blocks * (
        attention(far, predicted, predicted) + attention(far, predicted, length) + mlp(far, predicted))
    return 2 * (encoder + decoder + predicted * near.width * self.vocab)


class Output(flax.struct.PyTreeNode):
  """What heads read. hidden [B, T, D], the decoder's, or [B, L, D] where there is none; pooled [B, D], its last token
  that is no padding, or [B, E, D], those that the batch names; embedding [V, D], the token table; encoded [B, L, D];
  keys: `key`, `value` [N, B, T, G, A] of the decoder's row and `memory`, the same [N, B, L, G, A] of the encoder's, or
  None."""

  hidden: jax.Array
  pooled: jax.Array
  embedding: jax.Array
  encoded: jax.Array | None
  keys: Any = None
  predicted: None = None


class EncoderDecoder(nn.Module):
  """batch -> Output.

  batch: tokens, segments [B, L] (0 padding) of the encoder; `decoder_tokens`, `decoder_segments` [B, T]. May be left
  out: place [B, L] and decoder_place [B, T], positions, from 0; encoded [B, L, D], what the encoder has made before;
  embedded [B, L, D], vectors that take the place of the encoder's tokens (a source encoder's), positions added;
  visible [B, L, L] and decoder_visible [B, T, K], True where a token of a side sees one of its own, instead of by
  segments and order: the cache's first, then the row's; noise and perturbation [B, L, D] of the encoder's tokens, those
  of `Embeddings`; extract [B, E], tokens of the decoder to be pooled in place of the last.

  cache: what `extend` has made of the decoder's earlier tokens; the row goes on from there, and gives its
  decoder_place; the encoder's side is not read again. remember: give Output.keys. rows [B] key dropout; None: none.
  """

  cfg: EncoderDecoderConfig
  packed: bool = False

  @nn.compact
  def __call__(
      self, batch: Mapping[str, Any], rows=None, cache: Cache | None = None, remember: bool = False) -> Output:
    cfg = self.cfg
    segments = batch['segments'] if cache is None else cache['memory_segments']
    init = named(cfg.block.init.plain, ('vocab', 'width'))
    table = self.param('tokens', init, (cfg.vocab, cfg.block.width), jnp.float32)

    encoded = batch.get('encoded')
    if encoded is None and cache is None:
      x, mask = batch['tokens'], of_batch(batch, self.packed)
      where = positions_of(batch, 'place', x)
      if cfg.source.layers:
        foreign = dataclasses.replace(cfg, stack=cfg.source)
        x, _ = Side(foreign, name='source')(None, x, where, mask, rows=rows)
      encoded, _ = Side(cfg, name='encoder')(table, x, where, mask, rows=rows, moved=batch)
    if not cfg.decoder.layers:
      return alone(table, encoded, batch, segments)
    tokens, own = batch['decoder_tokens'], batch['decoder_segments']
    where = positions_of(batch, 'decoder_place', tokens)
    seen = lambda name, mine: mine if cache is None else jnp.concatenate([cache[name], mine], 1)
    ranks = jnp.broadcast_to(where, own.shape)
    if 'decoder_visible' in batch:
      mask = batch['decoder_visible'][:, None]
    else:
      mask = visible(own, seen('segments', own), ranks, seen('places', ranks))
    memory = Memory(encoded, visible(own, segments) if self.packed else (segments > 0)[:, None, None])
    hidden, keys = Side(cfg, cross=True, name='decoder')(
        table, tokens, where, mask, memory, rows, cache=cache, remember=remember)
    return Output(hidden, standing(hidden, batch, own), table, encoded, keys)


class Side(nn.Module):
  """Embeddings and a stack: the encoder, or with `cross` the decoder."""

  cfg: EncoderDecoderConfig
  cross: bool = False

  @nn.compact
  def __call__(self, table, tokens, where, mask, memory: Memory | None = None, rows=None, *, cache=None, remember=False,
               moved: Mapping[str, jax.Array] = FrozenDict()):
    """tokens [B, L], or vectors in their place [B, L, D]; where [B|1, L] -> ([B, L, D], what is remembered or None).

    table [V, D], of tokens; None: this side has one of its own. moved: that of `Embeddings`."""
    cfg = self.cfg
    if cfg.max_length and tokens.shape[1] > cfg.max_length:
      raise ValueError(f'rows of {tokens.shape[1]} tokens do not fit a model of max_length {cfg.max_length}')
    block, stack = (cfg.decoder_block, cfg.decoder) if self.cross else (cfg.block, cfg.stack)
    positions = 0 if cfg.absolute == 'none' else cfg.max_length + cfg.first_position
    tables = {} if table is None else {'tokens': table}
    if cfg.absolute == 'sinusoidal':
      tables['positions'] = sinusoids(positions, block.width)
    embeddings = Embeddings(
        block, cfg.vocab, 0, positions, 0, cfg.embed_norm, cfg.embed_factor, name='embeddings')
    x, _ = embeddings(tokens, None, where + cfg.first_position, rows, tables, moved)
    self.sow('intermediates', 'embedded', x)
    past = kept = None
    if cache is not None:
      past = cache['places'][:len(where)]
      kept = {name: cache[name] for name in ('key', 'value', 'memory')}
    y: Any = Stack(block, stack, one_layer, name='stack')(
        x, mask, where, memory, rows, past=past, cache=kept, remember='keys' if remember else '')
    y, keys = y if remember else (y, None)
    return (Dropout(block.dropout, name='dropout')(y, rows) if cfg.last_dropout else y), keys


def alone(table, encoded, batch, segments):
  """Returns the encoder's output, as heads read it."""
  return Output(encoded, standing(encoded, batch, segments), table, encoded)


def one_layer(block, x, visible: Visible, memory: Memory | None, rows=None, cache=None):
  """Calls the block, with its own part of what was kept."""
  if cache is None:
    return block(x, visible, memory, rows)
  assert memory is not None
  memory = memory._replace(keys=Keys(cache['memory']['key'], cache['memory']['value']))
  return block(x, visible, memory, rows, Past(cache['key'], cache['value']))


def positions_of(batch, name, tokens):
  """Returns batch[name] [B, L], else 0, 1, 2, ... [1, L]: one row for all, so that biases by distance are computed
  once."""
  return batch[name] if name in batch else jnp.arange(tokens.shape[1])[None]


def sinusoids(rows: int, width: int):
  """Makes [rows, width]: sines, then cosines, of wavelengths that grow from 2 pi towards 20,000 pi (Vaswani et al.
  2017, section 3.5, which has the two in turn)."""
  angles = np.arange(rows)[:, None] * 10_000 ** -(np.arange(width // 2) / (width // 2))
  return jnp.array(np.concatenate([np.sin(angles), np.cos(angles)], 1), jnp.float32)


def initial_cache(cfg: EncoderDecoderConfig, output: Output, batch: Mapping[str, Any], slots: int) -> Cache:
  """Returns the cache behind the decoder's first tokens, with room for `slots`: as `decoder.empty_cache` describes it,
  and `memory`, keys and values of the encoder's side, which are computed once, with its memory_segments [B, L]."""
  cache = decoder.empty(cfg.decoder_block, cfg.decoder, len(batch['decoder_tokens']), slots)
  cache |= {'memory': output.keys['memory'], 'memory_segments': batch['segments']}
  return extend(cache, output.keys, batch)


def extend(cache: Cache, keys, batch: Mapping[str, Any]) -> Cache:
  """Extends the cache as `decoder.extend` does, for the decoder's tokens of a batch."""
  own = {'segments': batch['decoder_segments']}
  if 'decoder_place' in batch:
    own['place'] = jnp.broadcast_to(batch['decoder_place'], own['segments'].shape)
  memory = {name: cache[name] for name in ('memory', 'memory_segments')}
  return decoder.extend(cache, {name: keys[name] for name in ('key', 'value')}, own) | memory
