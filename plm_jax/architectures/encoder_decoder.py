"""The encoder-decoder: the original Transformer, T5, BART, T5Gemma.

A decoder attends to preceding tokens of its own row, and to the encoder's output by
cross-attention.
"""
from collections.abc import Mapping
import dataclasses
from typing import Any, ClassVar, Literal

from flax.core import FrozenDict
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax import validation
from plm_jax.architectures import Kind, Output, check_length, decoder, mlp_flops, resize_config
from plm_jax.architectures.decoder import Cache
from plm_jax.layers import sliding_window
from plm_jax.layers.attention import AttentionMask
from plm_jax.layers.block import BlockConfig, CrossAttentionInput
from plm_jax.layers.dense import Dropout, with_logical_axes
from plm_jax.layers.embeddings import Embeddings
from plm_jax.layers.heads import ClassifierConfig, select_token
from plm_jax.layers.masks import attention_mask, encoder_attention_mask, padding_mask
from plm_jax.layers.stack import LayerInputs, Stack, StackConfig
from plm_jax.validation import ValidatedConfig, intervals


@dataclasses.dataclass(frozen=True)
class EncoderDecoderConfig(ValidatedConfig):
  """Configuration of an encoder-decoder; `models` has the published ones."""

  limits = intervals(
      vocab='[1, inf)', logit_cap='(0, inf)', **dict.fromkeys(
          ('decoder_width', 'decoder_heads', 'decoder_kv_heads', 'decoder_head_size',
           'decoder_mlp_dim'), '[1, inf)'))

  kind: ClassVar[Kind] = 'encoder-decoder'
  cls_last: ClassVar[bool] = True  # the last token of a row represents it
  padding: ClassVar[int] = -1  # positions do not depend on padding

  vocab: int = 32128
  """Vocabulary size, of both sides."""
  block: BlockConfig = BlockConfig()
  """Configuration of one layer of the encoder; the decoder's also have cross-attention."""
  stack: StackConfig = StackConfig(6)
  """Number of layers of the encoder, and how they are compiled."""
  decoder: StackConfig = StackConfig(6)
  """Number of layers of the decoder; with 0 layers there is only the encoder, whose output heads
  read."""
  decoder_width: int | None = None
  """Hidden size of the decoder, which then has token embeddings of its own (T5Gemma 9B-2B); None:
  that of the encoder."""
  decoder_heads: int | None = None
  """Attention heads of the decoder; None: as many as of the encoder."""
  decoder_kv_heads: int | None = None
  """Key and value heads of the decoder; None: as many as of the encoder."""
  decoder_head_size: int | None = None
  """Size of an attention head of the decoder; None: that of the encoder's."""
  decoder_mlp_dim: int | None = None
  """Hidden size of the decoder's MLP; None: that of the encoder's."""
  source: StackConfig = StackConfig(0)
  """Number of layers of a source encoder, which has separate token embeddings, positions and norms.
  Its output replaces the encoder's token vectors (translation by BART; Lewis et al. 2020, section
  3.4); 0: no source encoder."""
  max_length: int = 0
  """Maximum sequence length of the encoder and of the decoder, in tokens; 0: any."""
  absolute: Literal['learned', 'sinusoidal', 'none'] = 'none'
  """Absolute positions that are added to the embeddings: a trained table of max_length rows per
  side, sines and cosines, or none."""
  first_position: int = 0
  """Row of the position table for the first token of a sequence (BART: 2)."""
  embed_norm: bool = False
  """Normalize the embeddings of each side (BART)."""
  embed_factor: float = 1.0
  """Factor on token vectors (Vaswani et al. 2017: sqrt(hidden size))."""
  last_dropout: bool = False
  """Apply dropout to the output of each stack (T5)."""
  tied: bool = True
  """Tied embeddings: the LM head uses the weights of the token embeddings; False: a separate
  matrix."""
  separate_embeddings: bool = False
  """The decoder has token embeddings of its own, to which a tied LM head belongs; False: both sides
  share one table."""
  logit_factor: float = 1.0
  """Factor on output logits (T5 v1.0: 1 / sqrt(hidden size))."""
  logit_cap: float | None = None
  """Soft cap on output logits, cap * tanh(logits / cap) (T5Gemma: 30); None: no cap."""
  windows: tuple[int, ...] = ()
  """Sliding window of each layer of either side, repeated over the layers; 0: global attention. A
  token of the decoder attends to so many tokens, itself included, one of the encoder to so many on
  each side (T5Gemma). Cross-attention is always global."""
  logit_bias: bool = False
  """Output logits have a bias, which is not trained (BART's released checkpoints)."""
  head: ClassifierConfig = ClassifierConfig()
  """What classification heads read."""

  def conflict(self, option):
    if self.absolute != 'none' and not self.max_length:
      return f'a table of positions needs {option("max_length")}, its number of rows'
    width = self.decoder_width or self.block.width
    sized = self.decoder_head_size or self.block.head_size
    heads = self.decoder_heads or self.block.heads
    if not sized and width % heads:
      return f'{option("decoder_heads")} {heads} does not divide a width of {width}'
    groups = self.decoder_kv_heads or self.block.kv_heads
    if groups and heads % groups:
      return f'{option("decoder_kv_heads")} {groups} does not divide {heads} heads'
    if width != self.block.width and not self.separate_embeddings:
      return (f'{option("decoder_width")} {width} needs {option("separate_embeddings")}: the '
              f'encoder has embeddings of {self.block.width}')
    return None

  @property
  def decoder_block(self) -> BlockConfig:
    """The decoder's block: the encoder's with cross-attention and a decoder's position scheme."""
    block = self.block
    return validation.with_paths(block, {
        'cross': True, 'attention.position': block.attention.position.decoder_scheme(),
        'width': self.decoder_width or block.width, 'heads': self.decoder_heads or block.heads,
        'kv_heads': self.decoder_kv_heads or block.kv_heads,
        'head_size': self.decoder_head_size or block.head_size,
        'mlp_dim': self.decoder_mlp_dim or block.mlp_dim})

  @property
  def decoder_embed_factor(self) -> float:
    """Factor on the decoder's token vectors."""
    if self.embed_factor == 1 or not self.decoder_width:
      return self.embed_factor
    return self.decoder_width ** 0.5

  @property
  def new_parts(self) -> tuple[str, ...]:
    """Parts of the backbone to initialize where a run starts from a model without them."""
    return ('source',) if self.source.layers else ()

  def backbone(self, packed: bool = False) -> 'EncoderDecoder':
    """Make the module; packed: rows hold several segments (sequence packing)."""
    return EncoderDecoder(self, packed)

  def resize(
      self, block: BlockConfig, layers: int, vocab: int, max_length: int) -> 'EncoderDecoderConfig':
    """Make the same architecture in another size, with `layers` on each side that has layers.

    A decoder of another width gets half of the encoder's; windows scale with `max_length`.
    """
    changes: dict[str, Any] = {
        name: dataclasses.replace(side, layers=layers, remat='none')
        for name, side in (('decoder', self.decoder), ('source', self.source)) if side.layers}
    if self.decoder_width:
      changes |= dict(
          decoder_width=block.width // 2, decoder_heads=block.heads // 2,
          decoder_kv_heads=block.kv_heads and max(1, block.kv_heads // 2),
          decoder_head_size=block.head_size, decoder_mlp_dim=block.mlp_dim // 2)
    if self.windows:
      changes['windows'] = sliding_window.resize_windows(
          self.windows, self.max_length, max_length)
    return resize_config(
        self, block, layers, vocab, max_length, **changes,
        logit_factor=1.0 if self.logit_factor == 1 else block.width ** -0.5,
        embed_factor=1.0 if self.embed_factor == 1 else block.width ** 0.5)

  def forward_flops(self, length: int, predicted: int) -> int:
    """Count the FLOPs of the matrix products for one row.

    All pairs of tokens count, masked or not, as they are computed; in a layer with a sliding
    window, as many per token as the decoder's window has.

    Args:
      length: tokens of the encoder.
      predicted: tokens of the decoder, all of which it predicts.
    """
    def project(block, queries, keys, key_width):
      return 2 * block.head_dim * (
          block.width * block.heads * queries + key_width * block.key_heads * keys)

    encoder, decoder = self.block, self.decoder_block
    encoder_layers, decoder_layers = self.source.blocks + self.stack.blocks, self.decoder.blocks
    layers = encoder_layers * (
        project(encoder, length, length, encoder.width) + length * mlp_flops(encoder))
    layers += decoder_layers * (
        project(decoder, predicted, predicted, decoder.width)
        + project(decoder, predicted, length, encoder.width) + predicted * mlp_flops(decoder))
    pairs = sliding_window.count_pairs(self.windows, encoder_layers, length)
    layers += 2 * pairs * encoder.heads * encoder.head_dim
    pairs = sliding_window.count_pairs(self.windows, decoder_layers, predicted)
    pairs += decoder_layers * predicted * length  # cross-attention
    layers += 2 * pairs * decoder.heads * decoder.head_dim
    return 2 * (layers + predicted * decoder.width * self.vocab)


class EncoderDecoder(nn.Module):
  """Encoder-decoder: batch -> Output.

  A batch holds tokens and segments [batch, length] of the encoder, and decoder_tokens and
  decoder_segments [batch, target]; segment 0 is padding. Optional entries:

    place [batch, length], decoder_place [batch, target]  positions; else 0, 1, 2, ...
    encoded [batch, length, hidden]   the encoder's output, computed before
    visible [batch, length, length], decoder_visible [batch, target, keys]  attention masks in place
                                      of segments and order, cached keys first
    noise, perturbation               of the encoder's tokens, as in `Embeddings`
    extract [batch, texts]            positions of the decoder's tokens to pool in place of the last

  cache: KV cache of the decoder's earlier tokens (`extend_cache`). The row continues them, its
  decoder_place is required, and the encoder is not run again. remember: return Output.keys. row_ids
  [batch] row numbers, folded into the dropout key; None: no dropout.
  """

  cfg: EncoderDecoderConfig
  packed: bool = False

  @nn.compact
  def __call__(
      self, batch: Mapping[str, Any], row_ids=None, cache: Cache | None = None,
      remember: bool = False) -> Output:
    cfg = self.cfg
    segments = batch['segments'] if cache is None else cache['memory_segments']
    init = with_logical_axes(cfg.block.init.table_initializer, ('vocab', 'width'))
    token_table = self.param('tokens', init, (cfg.vocab, cfg.block.width), jnp.float32)

    # Encoder.
    encoded = batch.get('encoded')
    if encoded is None and cache is None:
      x = batch['tokens']
      mask = AttentionMask(encoder_attention_mask(batch, self.packed))
      place = position_ids(batch, 'place', x)
      if cfg.source.layers:
        source = Side(dataclasses.replace(cfg, stack=cfg.source), name='source')
        x, _, _ = source(None, x, place, mask, row_ids=row_ids)
      encoder = Side(cfg, name='encoder')
      encoded, _, _ = encoder(token_table, x, place, mask, row_ids=row_ids, batch=batch)
    if not cfg.decoder.layers:
      assert encoded is not None  # a cache needs a decoder
      pooled = select_token(encoded, batch, segments)
      return Output(encoded, pooled, token_table, encoded=encoded)

    # Attention masks of the decoder, over cached keys and those of the row.
    tokens, q_segments = batch['decoder_tokens'], batch['decoder_segments']
    place = position_ids(batch, 'decoder_place', tokens)
    ranks = jnp.broadcast_to(place, q_segments.shape)
    causal = cache is None and 'decoder_visible' not in batch
    if 'decoder_visible' in batch:
      mask = batch['decoder_visible'][:, None]
    else:
      k_segments, k_ranks = q_segments, ranks
      if cache is not None:
        k_segments = jnp.concatenate([cache['segments'], q_segments], 1)
        k_ranks = jnp.concatenate([cache['place'], ranks], 1)
      mask = attention_mask(q_segments, k_segments, ranks, k_ranks)
    cross_mask = attention_mask(q_segments, segments) if self.packed else padding_mask(segments)

    # Decoder.
    memory = CrossAttentionInput(encoded, cross_mask)
    decoder_table = None if cfg.separate_embeddings else token_table
    hidden, keys, token_table = Side(cfg, cross=True, name='decoder')(
        decoder_table, tokens, place, AttentionMask(mask, causal=causal), memory, row_ids,
        cache=cache, remember=remember)
    pooled = select_token(hidden, batch, q_segments)
    return Output(hidden, pooled, token_table, encoded=encoded, keys=keys)


class Side(nn.Module):
  """One side, embeddings and a stack: the encoder, or with `cross` the decoder."""

  cfg: EncoderDecoderConfig
  cross: bool = False

  @nn.compact
  def __call__(
      self, token_table, tokens, place, mask: AttentionMask,
      memory: CrossAttentionInput | None = None, row_ids=None, *, cache: Cache | None = None,
      remember=False, batch: Mapping[str, jax.Array] = FrozenDict()):
    """Run one side.

    Args:
      token_table: [vocab, hidden]; None: this side has a table of its own.
      tokens: [batch, length] ids, or vectors [batch, length, hidden] in their place.
      place: [batch or 1, length], positions.
      mask: self-attention mask, without a context.
      memory: the encoder's output, for the decoder.
      row_ids: [batch] row numbers, folded into the dropout key; None: no dropout.
      cache: KV cache of the decoder.
      remember: also return keys and values.
      batch: `noise` and `perturbation`, as in `Embeddings`.

    Returns:
      (hidden states [batch, length, hidden], keys and values or None, token table).
    """
    cfg = self.cfg
    check_length(tokens, cfg.max_length)
    block, stack, factor = cfg.block, cfg.stack, cfg.embed_factor
    windows = decoder.make_windows(cfg.windows, causal=self.cross)
    if self.cross:
      block, stack, factor = cfg.decoder_block, cfg.decoder, cfg.decoder_embed_factor

    # Embeddings.
    position_rows, tables = 0, {}
    if cfg.absolute != 'none':
      position_rows = cfg.max_length + cfg.first_position
    if token_table is not None:
      tables['tokens'] = token_table
    if cfg.absolute == 'sinusoidal':
      tables['positions'] = sinusoids(position_rows, block.width)
    embeddings = Embeddings(
        block, cfg.vocab, 0, position_rows, 0, cfg.embed_norm, factor, name='embeddings')
    x, token_table = embeddings(tokens, None, place + cfg.first_position, row_ids, tables, batch)
    self.sow('intermediates', 'embedded', x)

    # Layers.
    past_positions = inputs = distance = None
    if cache is not None:
      past_positions = cache['place'][:len(place)]
      if cfg.windows:  # slots of a cache are no places of the text
        keys = jnp.concatenate([past_positions, place], 1)
        distance = keys[:, None, None, :] - place[:, None, :, None]
      inputs = LayerInputs(
          key=cache['key'], value=cache['value'], memory_key=cache['memory']['key'],
          memory_value=cache['memory']['value'])
    y, keys = Stack(block, stack, windows=tuple(windows), name='stack')(
        x, mask, place, memory, row_ids, past_positions=past_positions, inputs=inputs,
        distance=distance, remember='keys' if remember else '')
    if cfg.last_dropout:
      y = Dropout(block.dropout, name='dropout')(y, row_ids)
    return y, keys, token_table


def position_ids(batch, name: str, tokens):
  """Return the positions batch[name] [batch, length], or 0, 1, 2, ... [1, length].

  One row for all, so that biases by distance are computed once.
  """
  return batch[name] if name in batch else jnp.arange(tokens.shape[1])[None]


def sinusoids(rows: int, width: int):
  """Make a table of sinusoidal positions [rows, width]: sines, then cosines.

  Wavelengths grow from 2 pi towards 20,000 pi (Vaswani et al. 2017, section 3.5, which interleaves
  the two).
  """
  angles = np.arange(rows)[:, None] * 10_000 ** -(np.arange(width // 2) / (width // 2))
  return jnp.array(np.concatenate([np.sin(angles), np.cos(angles)], 1), jnp.float32)


def initial_cache(
    cfg: EncoderDecoderConfig, output: Output, batch: Mapping[str, Any], slots: int) -> Cache:
  """Make the KV cache after the decoder's first tokens, with room for `slots` tokens.

  Beyond `decoder.empty_cache` it has `memory`, keys and values of the encoder's output, which are
  computed once, and its `memory_segments` [batch, length].
  """
  cache = decoder.empty_stack_cache(
      cfg.decoder_block, cfg.decoder, len(batch['decoder_tokens']), slots)
  cache |= {'memory': output.keys['memory'], 'memory_segments': batch['segments']}
  return extend_cache(cache, output.keys, batch)


def extend_cache(cache: Cache, keys, batch: Mapping[str, Any]) -> Cache:
  """Extend the KV cache by the decoder's tokens of a batch, as `decoder.extend_cache` does."""
  own = {'segments': batch['decoder_segments']}
  if 'decoder_place' in batch:
    own['place'] = jnp.broadcast_to(batch['decoder_place'], own['segments'].shape)
  extended = decoder.extend_cache(cache, {'key': keys['key'], 'value': keys['value']}, own)
  return extended | {'memory': cache['memory'], 'memory_segments': cache['memory_segments']}
