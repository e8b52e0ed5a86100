"""The decoder: GPT, GPT-2, GPT-3, GPT-Neo, LLaMA, PaLM, GLM. Each token sees what comes before it, or what its rank
lets it see; keys and values of what was read can be kept in a cache."""
from collections.abc import Mapping
import dataclasses
from typing import Any, ClassVar, Literal

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.architectures import Kind, resized
from plm_jax.checked import Checked, within
from plm_jax.layers import bands
from plm_jax.layers.attention import Past, Visible
from plm_jax.layers.bands import Band
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.embeddings import Embeddings
from plm_jax.layers.heads import standing
from plm_jax.layers.masks import visible
from plm_jax.layers.mlp import MlpConfig
from plm_jax.layers.norm import NormConfig
from plm_jax.layers.stack import Inside, Stack, StackConfig, inside

Cache = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class DecoderConfig(Checked):
  """A decoder's sizes; `models` has the published ones."""

  limits = within(vocab='[1, inf)')

  cls_last: ClassVar[bool] = True  # what stands for a row is its last token
  padding: ClassVar[int] = -1  # the model does not know its id
  added: ClassVar[tuple[str, ...]] = ()

  vocab: int = 50257
  """V, token ids"""
  block: BlockConfig = BlockConfig(
      norm_at='pre', norm=NormConfig(eps=1e-5), mlp=MlpConfig(activation='gelu_tanh'))
  """one layer"""
  stack: StackConfig = StackConfig()
  """the layers"""
  max_length: int = 1024
  """the longest row, in tokens; 0: any"""
  absolute: Literal['learned', 'none'] = 'learned'
  """positions that are added to the embeddings: a table of max_length rows, or none"""
  types: int = 0
  """rows of a second table, looked up by the batch's types (GLM: positions inside a span)"""
  tied: bool = True
  """the output matrix is the token table; else the language-modelling head has its own"""
  logit_factor: float = 1.0
  """on output logits (PaLM: 1 / sqrt(D))"""
  windows: tuple[int, ...] = ()
  """how many tokens a layer sees, its own included, one number a layer, in turn; 0: all (GPT-3: 0 and a band)"""
  depth_scale: bool = False
  """divide the attention logits of layer 1, 2, ... by its number (GPT-2's scale_attn_by_inverse_layer_idx)"""

  def conflict(self, option):
    """Says that a learned table of positions has no number of rows."""
    if self.absolute == 'learned' and not self.max_length:
      return f'a learned table of positions needs {option("max_length")}, its number of rows'
    return None

  @property
  def kind(self) -> Kind:
    """A decoder, or, with a table of places in blanks, what fills them in (GLM)."""
    return 'infilling' if self.types else 'decoder'

  def backbone(self, packed: bool = False) -> 'Decoder':
    """Makes the module. Rows may always hold several segments, so `packed` changes nothing."""
    del packed
    return Decoder(self)

  def resized(self, block: BlockConfig, layers: int, vocab: int, max_length: int) -> 'DecoderConfig':
    """Makes the same wiring in another size: `layers` of `block`, `vocab` ids, rows of `max_length` tokens."""
    return resized(
        self, block, layers, vocab, max_length, types=min(self.types, max_length),
        logit_factor=1.0 if self.logit_factor == 1 else block.width ** -0.5,
        windows=tuple(-(-size * max_length // self.max_length) for size in self.windows))

  def forward_flops(self, length: int, predicted: int) -> int:
    """Counts the floating point operations of the matrix products for one row of `length` tokens and `predicted`
    positions.

    Attention counts all pairs of tokens, seen or not (Chowdhery et al. 2022, appendix B); in a layer with a window,
    those within it.
    """
    b, pairs = self.block, bands.pairs(self.windows, self.stack.blocks, length)
    attention = b.width * b.head_dim * (2 * b.heads + 2 * b.key_heads)
    mlp = b.width * b.mlp_dim * (3 if b.mlp.gated else 2)
    layers = length * self.stack.blocks * (attention + mlp) + 2 * pairs * b.heads * b.head_dim
    return 2 * (layers + predicted * b.width * self.vocab)


class Output(flax.struct.PyTreeNode):
  """What heads read. hidden [B, L, D]; pooled [B, D], that of the last token that is no padding, or [B, E, D], those
  that the batch names; embedding [V, D], the token table; keys: `key` and `value` [N, B, L, G, A] of the row, or
  None; inside, what the layers do, where it was asked for."""

  hidden: jax.Array
  pooled: jax.Array
  embedding: jax.Array
  keys: Any = None
  predicted: None = None
  inside: Inside | None = None


class Decoder(nn.Module):
  """batch -> Output. What a batch holds beyond tokens [B, L] and segments [B, L] (0 padding) may be left out:

    place [B, L]       positions: rows of the table, or what the scheme inside attention takes; 0, 1, 2, ...
    types [B, L]       rows of the second table; 0
    ranks [B, L]       a token sees those of its segment whose rank is no larger; `place`
    visible [B, L, K]  instead, True where a token sees a key: the cache's first, then the row's
    noise, perturbation [B, L, D]  those of `Embeddings`
    extract [B, E]     tokens to be pooled in place of the last

  cache: what `extend` has made of earlier rows; the row goes on from there, and gives its `place`. remember: give
  Output.keys; within: give Output.inside. rows [B] key dropout; None: no dropout.
  """

  cfg: DecoderConfig

  @nn.compact
  def __call__(
      self, batch: Mapping[str, Any], rows=None, cache: Cache | None = None, remember: bool = False,
      within: bool = False) -> Output:
    cfg, tokens, segments = self.cfg, batch['tokens'], batch['segments']
    if cfg.max_length and tokens.shape[1] > cfg.max_length:
      raise ValueError(f'rows of {tokens.shape[1]} tokens do not fit a model of max_length {cfg.max_length}')
    place = batch['place'] if 'place' in batch else jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    types = batch['types'] if 'types' in batch else jnp.zeros_like(tokens)
    learned = cfg.max_length if cfg.absolute == 'learned' else 0
    embeddings = Embeddings(cfg.block, cfg.vocab, 0, learned, cfg.types, norm=False, name='embeddings')
    embedded, embedding = embeddings(tokens, types, place, rows, moved=batch)
    self.sow('intermediates', 'embedded', embedded)

    ranks = batch.get('ranks', place)
    seen = lambda name, own: own if cache is None else jnp.concatenate([cache[name], own], 1)
    keys = {'segments': seen('segments', segments), 'ranks': seen('ranks', ranks), 'places': seen('places', place)}
    if 'visible' in batch:
      mask = batch['visible'][:, None]
    else:
      mask = visible(segments, keys['segments'], ranks, keys['ranks'])
    distance = None  # as in the row: so far apart are earlier tokens of a text, but not those of a cache or of blanks
    if cfg.windows and (cfg.types or cache is not None or not {'ranks', 'visible'}.isdisjoint(batch)):
      distance = place[:, None, :, None] - keys['places'][:, None, None, :]
    own = per_layer(cfg) | ({} if cache is None else {name: cache[name] for name in ('key', 'value')})
    x: Any = Stack(cfg.block, cfg.stack, one_layer, windows=cfg.windows, name='stack')(
        embedded, mask, place, distance, rows, past=None if cache is None else cache['places'], cache=own or None,
        remember='inside' if within else 'keys' if remember else '')
    if within:
      last, layers = x
      return Output(last, standing(last, batch, segments), embedding, inside=inside(embedded, last, layers))
    x, given = x if remember else (x, None)
    return Output(x, standing(x, batch, segments), embedding, given)


def one_layer(block, x, visible: Visible, distance, rows=None, cache=None, window: int = 0):
  """Calls the block, with what differs from layer to layer: its window, and in `cache` its factor, keys and values.

  distance [B, 1, Q, S + K] between tokens; None: as in the row, where what is seen are earlier tokens of a text, whose
  places go along it one by one.
  """
  own = cache or {}
  visible = visible._replace(factor=own.get('factor'))
  if window and distance is None:
    visible = visible._replace(band=Band(window - 1, 0))
  elif window:
    visible = visible._replace(mask=visible.mask & (distance < window))
  past = Past(own['key'], own['value']) if 'key' in own else None
  return block(x, visible, rows=rows, past=past)


def per_layer(cfg: DecoderConfig) -> dict[str, Any]:
  """Returns factor [N] float32, where layers differ in it."""
  return {'factor': jnp.array(1 / (np.arange(cfg.stack.blocks) + 1), jnp.float32)} if cfg.depth_scale else {}


def empty_cache(cfg: DecoderConfig, rows: int, slots: int) -> Cache:
  """Makes room for `slots` tokens in each of `rows`: key and value [N, B, G, S, A], or where layers are not scanned a
  tuple of N arrays; segments (0: empty), ranks and places [B, S]; length, how many slots are taken.

  2 N B S G A numbers of the compute type are all that grows.
  """
  return empty(cfg.block, cfg.stack, rows, slots)


def empty(block: BlockConfig, stack: StackConfig, rows: int, slots: int) -> Cache:
  """Makes the empty cache of one stack."""
  size = (rows, block.key_heads, slots, block.head_dim)
  def room():
    if stack.scan:
      return jnp.zeros((stack.blocks, *size), block.compute)
    return tuple(jnp.zeros(size, block.compute) for _ in range(stack.blocks))
  numbers = {name: jnp.zeros((rows, slots), jnp.int32) for name in ('segments', 'ranks', 'places')}
  return {'key': room(), 'value': room(), **numbers, 'length': jnp.zeros((), jnp.int32)}


def extend(cache: Cache, keys, batch: Mapping[str, Any]) -> Cache:
  """Returns the cache with a row's Output.keys, and what its batch says of them, in the next slots. All rows take the
  same slots: those of different lengths are padded in front."""
  segments, start = batch['segments'], cache['length']
  place = batch['place'] if 'place' in batch else jnp.broadcast_to(jnp.arange(segments.shape[1]), segments.shape)
  numbers = {'segments': segments, 'ranks': batch.get('ranks', place), 'places': place}
  put = jax.lax.dynamic_update_slice_in_dim
  def behind(kept, x):
    return put(kept, x.astype(kept.dtype).swapaxes(-3, -2), start, kept.ndim - 2)
  return {name: jax.tree.map(behind, cache[name], x) for name, x in keys.items()} | {
      name: put(cache[name], x, start, 1) for name, x in numbers.items()} | {'length': start + segments.shape[1]}
