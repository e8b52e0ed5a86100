"""DeBERTa: an encoder with disentangled attention, a convolution beside its first layer, and a decoder of masks."""
from collections.abc import Mapping
import dataclasses
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.architectures import Kind, resized
from plm_jax.architectures.encoder import Output
from plm_jax.checked import Checked, within
from plm_jax.layers.attention import AttentionConfig, Visible
from plm_jax.layers.block import Block, BlockConfig
from plm_jax.layers.dense import Dense, Dropout, named
from plm_jax.layers.disentangled import Disentangled
from plm_jax.layers.embeddings import Embeddings
from plm_jax.layers.heads import HeadConfig, standing
from plm_jax.layers.masks import of_batch
from plm_jax.layers.mlp import Activation, activation
from plm_jax.layers.norm import Norm, NormConfig
from plm_jax.layers.stack import Layers, StackConfig
from plm_jax.sharding import gathered


@dataclasses.dataclass(frozen=True)
class DebertaConfig(Checked):
  """A DeBERTa's sizes; `models` has the published ones."""

  limits = within(vocab='[1, inf)', max_length='[1, inf)')

  kind: ClassVar[Kind] = 'encoder'
  cls_last: ClassVar[bool] = False
  padding: ClassVar[int] = -1
  tied: ClassVar[bool] = True  # masked tokens are read off by the token table
  head: ClassVar[HeadConfig] = HeadConfig()

  vocab: int = 50265
  """V, token ids"""
  block: BlockConfig = BlockConfig(
      attention=AttentionConfig(position=Disentangled()), norm=NormConfig(eps=1e-7))
  """one layer"""
  stack: StackConfig = StackConfig()
  """the layers"""
  max_length: int = 512
  """the longest row, in tokens"""
  absolute: bool = True
  """a table of absolute positions"""
  biased_input: bool = False
  """absolute positions are added to the tokens'; False: they come in at the end, to decode masks (section 3.2)"""
  types: int = 0
  """rows of the segment type table; 0: no types"""
  conv: int = 0
  """tokens under the convolution beside the first layer, an odd number; 0: no convolution"""
  conv_activation: Activation = 'tanh'
  """what the convolution goes through before it is added"""
  pooler: bool = False
  """a dense layer on the first token, for sentence-level heads"""
  pooler_activation: Activation = 'gelu'
  """of the pooler"""

  def conflict(self, option):
    """Says that positions are to be added to the input, and there are none."""
    if self.biased_input and not self.absolute:
      return f'{option("biased_input")} needs the table of {option("absolute")} positions'
    return None

  @property
  def decoder(self) -> bool:
    """Whether masked tokens are read off the decoder."""
    return self.absolute and not self.biased_input

  @property
  def added(self) -> tuple[str, ...]:
    """Parts of the backbone that begin afresh where a run starts from a model that has none."""
    return ('pooler',) if self.pooler else ()

  def backbone(self, packed: bool = False) -> 'Deberta':
    """Makes the module; packed: rows hold several segments that do not see each other."""
    return Deberta(self, packed)

  def generator(self, width: float, depth: float) -> 'DebertaConfig':
    """Returns a shallower one that decodes masks; it is as wide, since its table is not projected (He et al. 2023,
    3.2)."""
    if width != 1:
      raise ValueError(f'a DeBERTa\'s generator is as wide as itself: objective.width is {width}, expected 1')
    stack = dataclasses.replace(self.stack, layers=max(1, round(self.stack.layers * depth)))
    return dataclasses.replace(self, stack=stack, absolute=True, pooler=False)

  def resized(self, block: BlockConfig, layers: int, vocab: int, max_length: int) -> 'DebertaConfig':
    """Makes the same wiring in another size: `layers` of `block`, `vocab` ids, rows of `max_length` tokens."""
    return resized(self, block, layers, vocab, max_length)

  def forward_flops(self, length: int, predicted: int) -> int:
    """Counts the floating point operations of the matrix products for one row of `length` tokens and `predicted`
    positions.

    Distances are projected once a batch, which is not counted.
    """
    b = self.block
    terms = getattr(b.attention.position, 'terms', ())
    content, by_query, by_key = b.width * b.width, 2 * length * b.width, 2 * length * b.width
    query = 2 * content + by_query + by_key * ('c2p' in terms) + 2 * b.width * b.mlp_dim
    key = 2 * content + by_key * ('p2c' in terms)
    layers = self.stack.blocks * length * (query + key) + self.conv * length * b.width ** 2
    decoder = self.decoder * (2 * predicted * query + length * key)
    head = predicted * b.width * (b.width + self.vocab)
    return 2 * (layers + decoder + head + self.pooler * b.width ** 2)


class Deberta(nn.Module):
  """batch -> Output (He et al. 2021, arXiv:2006.03654).

  batch: tokens [B, L]; segments [B, L] (0 padding, equal numbers see each other); optional types and place [B, L],
  the row of the position table, positions [B, M], those whose masks are to be decoded (all, where it is missing), and
  extract [B, E], tokens to be pooled in place of the first.
  `packed`: rows may hold several segments; optional visible [B, L, L], True where a query (row) sees a key, instead
  of what segments say; noise and perturbation: those of `Embeddings`. rows [B] key dropout; None: no dropout.

  Embeddings of padding are zero, as in the released code: its row of the table is zero in released checkpoints, where
  the gradient of the norm, which a softmax over whole rows asks for, is thousands of times that of any other token.
  """

  cfg: DebertaConfig
  packed: bool = False

  @nn.compact
  def __call__(self, batch: Mapping[str, Any], rows=None) -> Output:
    cfg, tokens, segments = self.cfg, batch['tokens'], batch['segments']
    if cfg.absolute and tokens.shape[1] > cfg.max_length:
      raise ValueError(f'rows of {tokens.shape[1]} tokens do not fit a model of max_length {cfg.max_length}')
    place = batch.get('place', jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape))
    types = batch.get('types', jnp.zeros_like(tokens))
    embeddings = Embeddings(
        cfg.block, cfg.vocab, 0, cfg.max_length if cfg.biased_input else 0, cfg.types, name='embeddings')
    x, embedding = embeddings(tokens, types, place, rows, batch.get('tables'), batch)
    x = jnp.where(segments[..., None] > 0, x, 0)
    self.sow('intermediates', 'embedded', x)
    mask = of_batch(batch, self.packed)
    local = Convolution(cfg, name='conv')(x, segments, rows) if cfg.conv else None

    absolute, positions = None, batch.get('positions')
    if cfg.decoder:
      table = self.param('positions', named(cfg.block.init.plain, (None, 'width')), (cfg.max_length, cfg.block.width))
      absolute = table[place if positions is None else jnp.take_along_axis(place, positions, 1)]
    x, decoded = DecodingStack(cfg, name='stack')(x, mask, local, absolute, positions, rows)
    pooled = None
    if cfg.pooler:
      dense = Dense((cfg.block.width,), ('width', None), True, cfg.block.compute, cfg.block.init.plain, name='pooler')
      pooled = activation(cfg.pooler_activation)(dense(standing(x, batch)))
    return Output(x, pooled, embedding, decoded)


class DecodingStack(nn.Module):
  """The layers, and the enhanced mask decoder: the last one twice more, asked by absolute positions (section 3.2).

  Its queries begin as absolute positions plus the states before the last layer, which are its keys and values both
  times. Nobody sees a query, so it is run at the predicted positions alone; where no head reads the result, the
  compiler leaves it out.
  """

  cfg: DebertaConfig

  @nn.compact
  def __call__(self, x, mask, local, absolute, positions, rows):
    """x [B, L, D], absolute [B, M|L, D] or None, positions [B, M] or None (all) -> [B, L, D], [B, M|L, D] or None."""
    cfg, block = self.cfg, self.cfg.block
    context = block.attention.position.context(self, block, None, None)
    layers = Layers(block, cfg.stack, one_of_many, name='layers')
    last_two: Any = layers((x, x, jnp.zeros((), jnp.int32)), Visible(mask, context), local, rows)
    x, before, _ = last_two
    if absolute is None:
      return x, None
    query: Any = before
    if positions is not None:
      context = {**context, 'places': positions}
      query = jnp.take_along_axis(before, positions[..., None], 1)
      if mask.shape[2] > 1:
        mask = jnp.take_along_axis(mask, positions[:, None, :, None], 2)
    query += absolute.astype(query.dtype)
    last = jax.tree.map(lambda leaf: leaf[-1], nn.unbox(layers.variables['params']['block']))
    for _ in range(2):
      rngs = {'dropout': self.make_rng('dropout')} if self.has_rng('dropout') else {}
      query = Block(block, parent=None).apply(
          {'params': last}, query, Visible(mask, context), kv=before, rows=rows, rngs=rngs)
      self.sow('intermediates', 'decoded', query)
    return x, query


def one_of_many(block, carry, visible: Visible, local, rows):
  """Calls a layer -> (its output, the output before it, its number); what the convolution found is added behind the
  first."""
  x, _, number = carry
  y = block(x, visible, rows=rows)
  if local is not None:
    y = jax.lax.cond(number == 0, local, lambda y: y, y)
    block.sow('intermediates', 'hidden', y)
  return y, x, number + 1


class Convolution(nn.Module):
  """Each token and its neighbours of the same segment, beside the first layer (released with DeBERTa v2)."""

  cfg: DebertaConfig

  @nn.compact
  def __call__(self, x, segments, rows):
    """x [B, L, D], segments [B, L] -> a function that adds what is found [B, L, D] to the first layer's output."""
    cfg, block = self.cfg, self.cfg.block
    kernel = self.param('kernel', named(block.init.plain, (None, None, 'width')), (cfg.conv, block.width, block.width))
    bias = self.param('bias', named(nn.initializers.zeros, ('width',)), (block.width,))
    kernel = gathered(kernel.astype(x.dtype), None, None, 'width')
    def neighbours(shift):
      same = (shifted(segments, shift) == segments) & (segments > 0)
      return jnp.where(same[..., None], shifted(x, shift), 0)
    found = sum(jnp.einsum('bld,de->ble', neighbours(place - cfg.conv // 2), kernel[place])
                for place in range(cfg.conv)) + bias.astype(x.dtype)
    found = activation(cfg.conv_activation)(Dropout(block.dropout, name='dropout')(found, rows))
    norm = Norm(block.norm, block.compute, parent=None)
    params = self.param('norm', lambda key: norm.init(key, found)['params'])
    return lambda y: norm.apply({'params': params}, y + found)


def shifted(x, by: int):
  """Returns, of x [B, L, ...], what stands `by` places to the right, 0 beyond the ends."""
  padding = [(0, 0), (max(-by, 0), max(by, 0))] + [(0, 0)] * (x.ndim - 2)
  return jnp.pad(x, padding)[:, max(by, 0):x.shape[1] + max(by, 0)]
