"""DeBERTa: an encoder with disentangled attention, an enhanced mask decoder and a convolution."""
from collections.abc import Mapping
import dataclasses
import functools
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.architectures import Kind, Output, check_length, resize_config
from plm_jax.errors import ConfigError
from plm_jax.layers.attention import AttentionConfig, AttentionMask
from plm_jax.layers.block import Block, BlockConfig
from plm_jax.layers.dense import Dropout, with_logical_axes
from plm_jax.layers.disentangled import Disentangled
from plm_jax.layers.embeddings import Embeddings
from plm_jax.layers.heads import HeadConfig, make_dense, select_token
from plm_jax.layers.masks import encoder_attention_mask
from plm_jax.layers.mlp import Activation, activation
from plm_jax.layers.norm import Norm, NormConfig
from plm_jax.layers.stack import Layers, StackConfig
from plm_jax.sharding import gather_parameter
from plm_jax.validation import ValidatedConfig, intervals


@dataclasses.dataclass(frozen=True)
class DebertaConfig(ValidatedConfig):
  """Configuration of a DeBERTa; `models` has the published ones."""

  limits = intervals(vocab='[1, inf)', max_length='[1, inf)')

  kind: ClassVar[Kind] = 'encoder'
  cls_last: ClassVar[bool] = False
  padding: ClassVar[int] = -1
  tied: ClassVar[bool] = True  # the masked-LM head uses the token table, always

  vocab: int = 50265
  """Vocabulary size."""
  block: BlockConfig = BlockConfig(
      attention=AttentionConfig(position=Disentangled()), norm=NormConfig(eps=1e-7))
  """Configuration of one layer."""
  stack: StackConfig = StackConfig()
  """Number of layers, and how they are compiled."""
  max_length: int = 512
  """Maximum sequence length, in tokens."""
  absolute: bool = True
  """The model has a table of absolute positions."""
  biased_input: bool = False
  """Absolute positions are added to the token embeddings; False: they are added at the end, to
  decode masks (section 3.2)."""
  types: int = 0
  """Rows of the segment type table; 0: no types."""
  conv: int = 0
  """Width in tokens of the convolution parallel to the first layer, an odd number; 0: no
  convolution."""
  conv_activation: Activation = 'tanh'
  """Activation of the convolution."""
  pooler: bool = False
  """A dense layer on the first token, for sentence-level heads."""
  pooler_activation: Activation = 'gelu'
  """Activation of the pooler."""
  head: HeadConfig = HeadConfig()
  """Pooling and hidden layer of the heads."""

  def conflict(self, option):
    if self.biased_input and not self.absolute:
      return f'{option("biased_input")} needs the table of {option("absolute")} positions'
    return None

  @property
  def decoder(self) -> bool:
    """Whether the masked-LM head reads the enhanced mask decoder."""
    return self.absolute and not self.biased_input

  @property
  def new_parts(self) -> tuple[str, ...]:
    """Parts of the backbone to initialize where a run starts from a model without them."""
    return ('pooler',) if self.pooler else ()

  def backbone(self, packed: bool = False) -> 'Deberta':
    """Make the module; packed: rows hold several segments (sequence packing)."""
    return Deberta(self, packed)

  def generator(self, width: float, depth: float) -> 'DebertaConfig':
    """Make a shallower generator that decodes masks (He et al. 2023, section 3.2).

    Args:
      width: its hidden size, as a share: 1, because its token table is not projected.
      depth: its number of layers, as a share.

    Raises:
      ValueError: width is not 1.
    """
    if width != 1:
      raise ConfigError(
          f'a DeBERTa\'s generator is as wide as itself: objective.width is {width}, expected 1')
    stack = dataclasses.replace(self.stack, layers=max(1, round(self.stack.layers * depth)))
    return dataclasses.replace(self, stack=stack, absolute=True, pooler=False)

  def resize(
      self, block: BlockConfig, layers: int, vocab: int, max_length: int) -> 'DebertaConfig':
    """Make the same architecture in another size."""
    return resize_config(self, block, layers, vocab, max_length)

  def forward_flops(self, length: int, predicted: int) -> int:
    """Count the FLOPs of the matrix products for one row.

    The projection of distances, once per batch, is not counted.

    Args:
      length: tokens of the row.
      predicted: positions with vocabulary logits.
    """
    block = self.block
    terms = getattr(block.attention.position, 'terms', ())
    content, pairs = block.width * block.width, 2 * length * block.width
    query = 2 * content + pairs + pairs * ('c2p' in terms) + 2 * block.width * block.mlp_dim
    key = 2 * content + pairs * ('p2c' in terms)
    layers = self.stack.blocks * length * (query + key) + self.conv * length * content
    decoder = self.decoder * (2 * predicted * query + length * key)
    head = predicted * block.width * (block.width + self.vocab)
    return 2 * (layers + decoder + head + self.pooler * content)


class Deberta(nn.Module):
  """DeBERTa encoder: batch -> Output (He et al. 2021, arXiv:2006.03654).

  A batch holds tokens and segments [batch, length]; segment 0 is padding, and tokens attend to
  their own segment. With `packed` rows may hold several segments. Optional entries:

    types, place [batch, length]    segment types, and rows of the position table
    positions [batch, predicted]    positions whose masks are decoded; else all
    visible [batch, length, length]  attention mask in place of segments
    noise, perturbation             as in `Embeddings`
    extract [batch, texts]          positions of tokens to pool in place of the first

  row_ids: [batch] row numbers, folded into the dropout key; None: no dropout.

  Embeddings of padding are zero, as in the released code: its row of the token table is zero in
  released checkpoints. There the gradient of the norm, through the softmax over complete rows, is
  thousands of times that of any other token.
  """

  cfg: DebertaConfig
  packed: bool = False

  @nn.compact
  def __call__(self, batch: Mapping[str, Any], row_ids=None) -> Output:
    cfg, block = self.cfg, self.cfg.block
    tokens, segments = batch['tokens'], batch['segments']
    if cfg.absolute:
      check_length(tokens, cfg.max_length)

    # Embeddings.
    place = batch.get('place', jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape))
    types = batch.get('types', jnp.zeros_like(tokens))
    position_rows = cfg.max_length if cfg.biased_input else 0
    embeddings = Embeddings(block, cfg.vocab, 0, position_rows, cfg.types, name='embeddings')
    x, token_table = embeddings(tokens, types, place, row_ids, batch.get('tables'), batch)
    x = jnp.where(segments[..., None] > 0, x, 0)
    self.sow('intermediates', 'embedded', x)

    # Layers, convolution and mask decoder.
    mask = encoder_attention_mask(batch, self.packed)
    add_convolution = Convolution(cfg, name='conv')(x, segments, row_ids) if cfg.conv else None
    absolute, positions = None, batch.get('positions')
    if cfg.decoder:
      init = with_logical_axes(block.init.table_initializer, (None, 'width'))
      table = self.param('positions', init, (cfg.max_length, block.width))
      if positions is not None:
        place = jnp.take_along_axis(place, positions, 1)
      absolute = table[place]
    stack = MaskDecoderStack(cfg, name='stack')
    x, decoded = stack(x, mask, add_convolution, absolute, positions, row_ids)

    # Pooler.
    pooled = None
    if cfg.pooler:
      dense = make_dense(block, block.width, 'pooler')
      pooled = activation(cfg.pooler_activation)(dense(select_token(x, batch)))
    return Output(x, pooled, token_table, decoded)


class MaskDecoderStack(nn.Module):
  """The layers, and the enhanced mask decoder (section 3.2).

  The decoder runs the last layer twice more. Its queries begin as absolute positions plus the input
  of the last layer, which is also its keys and values both times. No token attends to a query, so
  the decoder runs at the predicted positions only. Where no head reads its result, the compiler
  removes it.
  """

  cfg: DebertaConfig

  @nn.compact
  def __call__(self, x, mask, add_convolution, absolute, positions, row_ids):
    """Run the layers and the decoder.

    Args:
      x: [batch, length, hidden].
      mask: attention mask.
      add_convolution: function that adds the convolution to the first layer's output, or None.
      absolute: [batch, predicted, hidden], absolute positions of the queries; None: no decoder.
      positions: [batch, predicted]; None: all positions are predicted.
      row_ids: [batch] row numbers, folded into the dropout key; None: no dropout.

    Returns:
      (hidden states [batch, length, hidden], decoded states [batch, predicted, hidden] or None).
    """
    cfg, block = self.cfg, self.cfg.block
    context = block.attention.position.context(self, block, None, None)
    step = functools.partial(call_deberta_layer, add_convolution)
    layers = Layers(block, cfg.stack, step, name='layers')
    carry = x, x, jnp.zeros((), jnp.int32)
    (x, before, _), _ = layers(carry, AttentionMask(mask, context), row_ids=row_ids)
    if absolute is None:
      return x, None

    query: Any = before  # [batch, length or predictions, hidden]
    if positions is not None:
      context = {**context, 'places': positions}
      query = jnp.take_along_axis(before, positions[..., None], 1)
      if mask.shape[2] > 1:
        mask = jnp.take_along_axis(mask, positions[:, None, :, None], 2)
    query += absolute.astype(query.dtype)
    params = nn.unbox(layers.variables['params']['block'])
    last = jax.tree.map(lambda leaf: leaf[-1], params)
    for _ in range(2):
      rngs = {}
      if self.has_rng('dropout'):
        rngs['dropout'] = self.make_rng('dropout')
      query = Block(block, parent=None).apply(
          {'params': last}, query, AttentionMask(mask, context), kv=before, row_ids=row_ids,
          rngs=rngs)
      self.sow('intermediates', 'decoded', query)
    return x, query


def call_deberta_layer(add_convolution, block, carry, mask: AttentionMask, row_ids, inputs):
  """Run one layer, and add the convolution after the first one.

  Args:
    add_convolution: function that adds the convolution, or None.
    block: the layer.
    carry: (input of the layer, input of the layer before, number of the layer).
    mask: attention mask.
    row_ids: [batch] row numbers, folded into the dropout key; None: no dropout.
    inputs: unused.
  """
  del inputs
  x, _, number = carry
  y = block(x, mask, row_ids=row_ids)
  if add_convolution is not None:
    y = jax.lax.cond(number == 0, add_convolution, lambda y: y, y)
    block.sow('intermediates', 'hidden', y)
  return y, x, number + 1


class Convolution(nn.Module):
  """Convolution over tokens of the same segment, parallel to the first layer (DeBERTa v2)."""

  cfg: DebertaConfig

  @nn.compact
  def __call__(self, x, segments, row_ids):
    """Return a function that adds the convolution to the first layer's output.

    Args:
      x: [batch, length, hidden], input of the first layer.
      segments: [batch, length], 0 is padding.
      row_ids: [batch] row numbers, folded into the dropout key; None: no dropout.
    """
    cfg, block = self.cfg, self.cfg.block
    shape = cfg.conv, block.width, block.width
    init = with_logical_axes(block.init.table_initializer, (None, None, 'width'))
    kernel = self.param('kernel', init, shape)
    bias_init = with_logical_axes(nn.initializers.zeros, ('width',))
    bias = self.param('bias', bias_init, (block.width,))
    kernel = gather_parameter(kernel.astype(x.dtype), None, None, 'width')
    convolved: Any = 0
    for place in range(cfg.conv):
      shift = place - cfg.conv // 2
      same = (shift_tokens(segments, shift) == segments) & (segments > 0)
      neighbors = jnp.where(same[..., None], shift_tokens(x, shift), 0)
      convolved += jnp.einsum('bld,de->ble', neighbors, kernel[place])
    convolved += bias.astype(x.dtype)
    convolved = Dropout(block.dropout, name='dropout')(convolved, row_ids)
    convolved = activation(cfg.conv_activation)(convolved)
    norm = Norm(block.norm, block.compute_dtype, parent=None)
    params = self.param('norm', lambda key: norm.init(key, convolved)['params'])
    return lambda y: norm.apply({'params': params}, y + convolved)


def shift_tokens(x, by: int):
  """Shift x [batch, length, ...] by so many places to the left; zeros beyond the ends."""
  padding = [(0, 0), (max(-by, 0), max(by, 0))] + [(0, 0)] * (x.ndim - 2)
  return jnp.pad(x, padding)[:, max(by, 0):x.shape[1] + max(by, 0)]
