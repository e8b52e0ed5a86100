"""The causal decoder with a KV cache: GPT, GPT-2, GPT-3, GPT-Neo, LLaMA, PaLM, GLM,
ModernBERT's decoders.

A token attends to preceding tokens, or to those of no larger rank.
"""
from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.architectures import Kind, Output, check_length, mlp_flops, resize_config
from plm_jax.layers import sliding_window
from plm_jax.layers.attention import AttentionMask
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.embeddings import Embeddings
from plm_jax.layers.heads import ClassifierConfig, NextTokenConfig, select_token
from plm_jax.layers.masks import attention_mask
from plm_jax.layers.mlp import MlpConfig
from plm_jax.layers.norm import NormConfig
from plm_jax.layers.rope import Rope
from plm_jax.layers.sliding_window import SlidingWindow
from plm_jax.layers.stack import (
  LayerInputs,
  RememberedStates,
  Stack,
  StackConfig,
  make_layer_states,
)
from plm_jax.validation import ValidatedConfig, intervals

Cache = dict[str, Any]
"""KV cache of a stack; `empty_cache` describes it."""


@dataclasses.dataclass(frozen=True)
class DecoderConfig(ValidatedConfig):
  """Configuration of a decoder; `models` has the published ones."""

  limits = intervals(vocab='[1, inf)', logit_cap='(0, inf)')

  cls_last: ClassVar[bool] = True  # the last token of a row represents it
  padding: ClassVar[int] = -1  # positions do not depend on padding
  new_parts: ClassVar[tuple[str, ...]] = ()

  vocab: int = 50257
  """Vocabulary size."""
  block: BlockConfig = BlockConfig(
      norm_at='pre', norm=NormConfig(eps=1e-5), mlp=MlpConfig(activation='gelu_tanh'))
  """Configuration of one layer."""
  stack: StackConfig = StackConfig()
  """Number of layers, and how they are compiled."""
  max_length: int = 1024
  """Maximum sequence length, in tokens; 0: any."""
  absolute: Literal['learned', 'none'] = 'learned'
  """Absolute positions that are added to the embeddings: a trained table of max_length rows, or
  none."""
  embed_norm: bool = False
  """Normalize the embeddings (ModernBERT's decoders)."""
  embed_factor: float = 1.0
  """Factor on token vectors (Gemma: sqrt(hidden size))."""
  types: int = 0
  """Rows of a second embedding table, for the types of a batch (GLM: positions inside a span)."""
  tied: bool = True
  """Tied embeddings: the LM head uses the weights of the token embeddings; False: a separate
  matrix."""
  logit_factor: float = 1.0
  """Factor on output logits (PaLM: 1 / sqrt(hidden size))."""
  causal: bool = True
  """A token attends only to itself and the tokens before it. False: bidirectional attention, a
  decoder as an encoder (LLM2Vec: BehnamGhader et al. 2024)."""
  logit_cap: float | None = None
  """Soft cap on output logits, cap * tanh(logits / cap) (Gemma 2: 30); None: no cap."""
  windows: tuple[int, ...] = ()
  """Sliding window of each layer, in tokens including the token itself, repeated over the layers;
  0: global attention (GPT-3 alternates). With bidirectional attention, in tokens on each side."""
  rotated: tuple[bool, ...] = ()
  """Whether each layer has RoPE, repeated over the layers; a layer without it has no positions
  (NoPE: Yang et al. 2025; SmolLM3). Empty: all layers have it."""
  depth_scale: bool = False
  """Divide the attention logits of layer 1, 2, ... by its number (GPT-2's
  scale_attn_by_inverse_layer_idx)."""
  lm_head: NextTokenConfig = NextTokenConfig()
  """Hidden layer and biases of the LM head."""
  head: ClassifierConfig = ClassifierConfig()
  """What classification heads read."""

  def conflict(self, option):
    if self.absolute == 'learned' and not self.max_length:
      return f'a learned table of positions needs {option("max_length")}, its number of rows'
    if self.rotated and not isinstance(self.block.attention.position, Rope):
      return f'{option("rotated")} is for models with RoPE, whose layers may lack it'
    return None

  @property
  def kind(self) -> Kind:
    """'infilling' with a table of positions inside spans (GLM), else 'decoder'."""
    return 'infilling' if self.types else 'decoder'

  def backbone(self, packed: bool = False) -> 'Decoder':
    """Make the module. Rows may always hold several segments, so `packed` has no effect."""
    del packed
    return Decoder(self)

  def resize(
      self, block: BlockConfig, layers: int, vocab: int, max_length: int) -> 'DecoderConfig':
    """Make the same architecture in another size; windows scale with `max_length`."""
    windows = sliding_window.resize_windows(self.windows, self.max_length, max_length)
    return resize_config(
        self, block, layers, vocab, max_length, types=min(self.types, max_length), windows=windows,
        logit_factor=1.0 if self.logit_factor == 1 else block.width ** -0.5,
        embed_factor=1.0 if self.embed_factor == 1 else block.width ** 0.5)

  def forward_flops(self, length: int, predicted: int) -> int:
    """Count the FLOPs of the matrix products for one row.

    Attention counts all pairs of tokens, masked or not (Chowdhery et al. 2022, appendix B); in a
    layer with a sliding window, the pairs within it.

    Args:
      length: tokens of the row.
      predicted: positions with vocabulary logits.
    """
    block, blocks = self.block, self.stack.blocks
    windows = self.windows
    if not self.causal:
      windows = [2 * window + 1 if window else 0 for window in windows]
    pairs = sliding_window.count_pairs(windows, blocks, length)
    projections = block.width * block.head_dim * (2 * block.heads + 2 * block.key_heads)
    layers = length * blocks * (projections + mlp_flops(block))
    layers += 2 * pairs * block.heads * block.head_dim
    hidden = block.width if self.lm_head.hidden else 0
    return 2 * (layers + predicted * block.width * (self.vocab + hidden))


class Decoder(nn.Module):
  """Decoder, causal unless its configuration says otherwise: batch -> Output.

  A batch holds tokens and segments [batch, length]; segment 0 is padding. Optional entries:

    place [batch, length]   positions: rows of the table, or input of the position scheme; else
                            0, 1, 2, ...
    types [batch, length]   rows of the second table; else 0
    ranks [batch, length]   a token attends to the tokens of its segment of no larger rank; else
                            `place`, or 0 with bidirectional attention
    visible [batch, length, keys]  attention mask in place of segments and ranks, cached keys first
    noise, perturbation     as in `Embeddings`
    extract [batch, texts]  positions of tokens to pool in place of the last

  cache: KV cache of earlier tokens (`extend_cache`); the row continues them, and its `place` is
  required. remember: return Output.keys. within: return Output.inside.
  row_ids: [batch] row numbers, folded into the dropout key; None: no dropout.
  """

  cfg: DecoderConfig

  @nn.compact
  def __call__(
      self, batch: Mapping[str, Any], row_ids=None, cache: Cache | None = None,
      remember: bool = False, within: bool = False) -> Output:
    cfg, tokens, segments = self.cfg, batch['tokens'], batch['segments']
    check_length(tokens, cfg.max_length)

    # Embeddings.
    place = sequential_places(batch, tokens)
    types = batch['types'] if 'types' in batch else jnp.zeros_like(tokens)
    position_rows = cfg.max_length if cfg.absolute == 'learned' else 0
    embeddings = Embeddings(
        cfg.block, cfg.vocab, 0, position_rows, cfg.types, cfg.embed_norm, cfg.embed_factor,
        name='embeddings')
    x, token_table = embeddings(tokens, types, place, row_ids, batch=batch)
    embedded = x
    self.sow('intermediates', 'embedded', x)

    # Attention mask, over cached keys and those of the row.
    ranks = batch.get('ranks', place if cfg.causal else jnp.zeros_like(place))
    k_segments, k_ranks, k_place = segments, ranks, place
    if cache is not None:
      k_segments = jnp.concatenate([cache['segments'], segments], 1)
      k_ranks = jnp.concatenate([cache['ranks'], ranks], 1)
      k_place = jnp.concatenate([cache['place'], place], 1)
    mask = (batch['visible'][:, None] if 'visible' in batch
            else attention_mask(segments, k_segments, ranks, k_ranks))
    # Sliding windows apply to places in the row where these are consecutive in the text. Those of a
    # cache, or of GLM's blanks, are not.
    distance = None
    reordered = cfg.types or cache is not None or 'ranks' in batch or 'visible' in batch
    if cfg.windows and reordered:
      distance = k_place[:, None, None, :] - place[:, None, :, None]

    # Layers.
    past_positions = cache['place'] if cache is not None else None
    states: RememberedStates = 'keys' if remember else ''
    if within:
      states = 'inside'
    stack = Stack(cfg.block, cfg.stack, windows=make_windows(cfg.windows, cfg.causal), name='stack')
    x, remembered = stack(
        x, AttentionMask(mask, causal=cfg.causal and not reordered), place, row_ids=row_ids,
        past_positions=past_positions, inputs=layer_inputs(cfg, cache), distance=distance,
        remember=states)
    pooled = select_token(x, batch, segments)
    if within:
      inside = make_layer_states(embedded, x, remembered)
      return Output(x, pooled, token_table, inside=inside)
    return Output(x, pooled, token_table, keys=remembered)


def sequential_places(batch, tokens):
  """Return the positions batch['place'] [batch, length], or 0, 1, 2, ... where there are none."""
  if 'place' in batch:
    return batch['place']
  return jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape[:2])


def make_windows(sizes: Sequence[int], causal: bool = True) -> tuple[SlidingWindow | None, ...]:
  """Make the sliding windows of layers; None: global attention.

  sizes: of causal attention with the token itself, otherwise on each side; 0: global attention.
  """
  def make(size):
    return SlidingWindow(size - 1, 0) if causal else SlidingWindow(size, size)
  return tuple(make(size) if size else None for size in sizes)


def layer_inputs(cfg: DecoderConfig, cache: Cache | None = None) -> LayerInputs | None:
  """Make the inputs that differ from layer to layer; None: there are none."""
  if not cfg.depth_scale and not cfg.rotated and cfg.stack.first_norm and cache is None:
    return None
  factor = key = value = skip_norm = skip_position = None
  if cfg.depth_scale:
    factor = jnp.array(1 / (np.arange(cfg.stack.blocks) + 1), jnp.float32)
  if cache is not None:
    key, value = cache['key'], cache['value']
  if not cfg.stack.first_norm:
    skip_norm = jnp.arange(cfg.stack.blocks) == 0
  if cfg.rotated:
    skip_position = ~jnp.array(np.resize(cfg.rotated, cfg.stack.blocks))
  return LayerInputs(
      logit_factor=factor, skip_norm=skip_norm, skip_position=skip_position, key=key, value=value)


def empty_cache(cfg: DecoderConfig, rows: int, slots: int) -> Cache:
  """Make an empty KV cache with room for `slots` tokens per row.

  Only `key` and `value` grow with a model: 2 * layers * rows * slots * key_heads * head_size
  numbers of the compute dtype.

  Returns:
    `key` and `value` [layers, rows, key_heads, slots, head_size], without a scan over layers tuples
    of one array per layer; `segments` (0: empty), `ranks` and `place` [rows, slots]; `length`, the
    number of slots in use.
  """
  return empty_stack_cache(cfg.block, cfg.stack, rows, slots)


def empty_stack_cache(block: BlockConfig, stack: StackConfig, rows: int, slots: int) -> Cache:
  """Make the empty KV cache of one stack."""
  size = (rows, block.key_heads, slots, block.head_dim)

  def make_room():
    if stack.scan:
      return jnp.zeros((stack.blocks, *size), block.compute_dtype)
    return tuple(jnp.zeros(size, block.compute_dtype) for _ in range(stack.blocks))

  cache = {'key': make_room(), 'value': make_room()}
  for name in ('segments', 'ranks', 'place'):
    cache[name] = jnp.zeros((rows, slots), jnp.int32)
  return cache | {'length': jnp.zeros((), jnp.int32)}


def extend_cache(cache: Cache, keys, batch: Mapping[str, Any]) -> Cache:
  """Extend a KV cache by a row.

  All rows use the same slots: rows of different lengths are padded at the front.

  Args:
    cache: the KV cache.
    keys: Output.keys of the row.
    batch: the row's batch.
  """
  segments, start = batch['segments'], cache['length']
  place = sequential_places(batch, segments)
  update = jax.lax.dynamic_update_slice_in_dim

  def update_slots(cached, x):
    return update(cached, x.astype(cached.dtype).swapaxes(-3, -2), start, cached.ndim - 2)

  extended = {name: jax.tree.map(update_slots, cache[name], x) for name, x in keys.items()}
  numbers = {'segments': segments, 'ranks': batch.get('ranks', place), 'place': place}
  for name, x in numbers.items():
    extended[name] = update(cache[name], x, start, 1)
  return extended | {'length': start + segments.shape[1]}
