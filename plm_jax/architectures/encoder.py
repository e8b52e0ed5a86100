"""The bidirectional encoder: BERT, RoBERTa, SpanBERT, DistilBERT, ALBERT, ModernBERT and others."""
from collections.abc import Mapping
import dataclasses
from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp

from plm_jax.architectures import Kind, Output, check_length, mlp_flops, resize_config
from plm_jax.layers import sliding_window
from plm_jax.layers.attention import AttentionMask
from plm_jax.layers.block import BlockConfig, CrossAttentionInput
from plm_jax.layers.embeddings import EmbeddingConfig, Embeddings
from plm_jax.layers.heads import HeadConfig, make_dense, select_token
from plm_jax.layers.masks import encoder_attention_mask
from plm_jax.layers.sliding_window import SlidingWindow
from plm_jax.layers.stack import LayerInputs, Stack, StackConfig, make_layer_states
from plm_jax.validation import ValidatedConfig, intervals


@dataclasses.dataclass(frozen=True)
class EncoderConfig(ValidatedConfig):
  """Configuration of an encoder; `models` has the published ones."""

  limits = intervals(vocab='[1, inf)', padding='[-1, inf)')

  kind: ClassVar[Kind] = 'encoder'
  cls_last: ClassVar[bool] = False

  vocab: int = 30522
  """Vocabulary size."""
  block: BlockConfig = BlockConfig()
  """Configuration of one layer."""
  stack: StackConfig = StackConfig()
  """Number of layers, and how they are compiled."""
  max_length: int = 512
  """Maximum sequence length, in tokens; 0: any, without absolute positions."""
  padding: int = -1
  """Id of padding, which takes no position; other tokens are numbered from this id + 1 (RoBERTa:
  1). -1: positions count all tokens from 0."""
  embeddings: EmbeddingConfig = EmbeddingConfig()
  """Tables that are added to the token vectors, and their norm."""
  windows: tuple[int, ...] = ()
  """Sliding window of each layer, in tokens on each side, repeated over the layers; 0: global
  attention (ModernBERT: 0, 64, 64)."""
  causal: bool = False
  """A token attends only to itself and the tokens before it (XLM's CLM)."""
  clear: bool = False
  """Hidden states of padding are set to 0 (XLM)."""
  summed: bool = False
  """The residual stream is a trained weighted sum of all its earlier states, after each sublayer
  (DenseFormer: Pagliardini et al. 2024; GPT-BERT)."""
  tied: bool = True
  """Tied embeddings: the masked-LM head uses the weights of the token embeddings; False: a separate
  matrix."""
  head: HeadConfig = HeadConfig()
  """Pooling and hidden layer of the heads."""
  pooler: bool = True
  """A dense layer with tanh on the first token, for sentence-level heads."""

  def conflict(self, option):
    unequal = (self.windows or self.stack.groups or not self.stack.first_norm
               or self.block.parallel or self.block.cross)
    if self.summed and unequal:
      return (f'{option("summed")} is of layers of two sublayers, which are all alike and share '
              'nothing')
    return None

  @property
  def types(self) -> int:
    """Rows of the segment type table; 0: no types."""
    return self.embeddings.types

  @property
  def absolute(self) -> str:
    """Absolute positions that are added to the embeddings."""
    return self.embeddings.absolute

  @property
  def first_position(self) -> int:
    """Row of the position table for a row's first token."""
    return self.padding + 1

  @property
  def new_parts(self) -> tuple[str, ...]:
    """Parts of the backbone to initialize where a run starts from a model without them."""
    return ('pooler',) if self.pooler else ()

  @property
  def frozen(self) -> tuple[str, ...]:
    """Parameters that are never trained."""
    if self.embeddings.absolute == 'sinusoidal' and self.max_length:
      return ('backbone/embeddings/positions',)
    return ()

  def backbone(self, packed: bool = False) -> 'Encoder':
    """Make the module; packed: rows hold several segments (sequence packing)."""
    return Encoder(self, packed)

  def generator(self, width: float, depth: float) -> 'EncoderConfig':
    """Make ELECTRA's generator, a smaller encoder (Clark et al. 2020, section 3.2).

    Args:
      width: its hidden size, as a share.
      depth: its number of layers, as a share. Embedding tables keep their size.
    """
    block, size = self.block, round(self.block.width * width)
    heads = max(1, round(block.heads * width))
    mlp_dim = round(block.mlp_dim * width)
    layers = max(1, round(self.stack.layers * depth))
    embed_dim = self.embeddings.width or block.width
    embeddings = dataclasses.replace(  # 0 stands for the hidden size
        self.embeddings, width=0 if embed_dim == size else embed_dim)
    return dataclasses.replace(
        self, block=dataclasses.replace(block, width=size, heads=heads, mlp_dim=mlp_dim),
        stack=dataclasses.replace(self.stack, layers=layers),
        embeddings=embeddings, pooler=False)

  def resize(
      self, block: BlockConfig, layers: int, vocab: int, max_length: int) -> 'EncoderConfig':
    """Make the same architecture in another size; windows scale with `max_length`."""
    windows = tuple(-(-size * max_length // self.max_length) for size in self.windows)
    return resize_config(self, block, layers, vocab, max_length, windows=windows)

  def forward_flops(self, length: int, predicted: int) -> int:
    """Count the FLOPs of the matrix products for one row.

    Multiplications and additions count one each; a training step is three times this (Kaplan et al.
    2020, 2.1). Only pairs of tokens within a layer's sliding window count.

    Args:
      length: tokens of the row.
      predicted: positions with vocabulary logits.
    """
    block, projected = self.block, self.embeddings.width
    embed_dim = projected or block.width
    windows = [2 * window + 1 if window else 0 for window in self.windows]
    pairs = sliding_window.count_pairs(windows, self.stack.blocks, length)
    projections = block.width * block.head_dim * (2 * block.heads + 2 * block.key_heads)
    layers = length * self.stack.blocks * (projections + mlp_flops(block))
    layers += 2 * pairs * block.heads * block.head_dim
    embedding = length * block.width * projected
    head = predicted * embed_dim * (block.width * self.head.transform + self.vocab)
    return 2 * (layers + embedding + head + self.pooler * block.width ** 2)


class Encoder(nn.Module):
  """Bidirectional encoder: batch -> Output.

  A batch holds tokens and segments [batch, length]; segment 0 is padding, and tokens attend to
  their own segment. With `packed` rows may hold several segments. Optional entries:

    types [batch, length]       segment types
    place [batch, length]       rows of the position table; else by `position_ids`
    position_of [batch, length]  for each token, the index of the token whose position it has
                                (MPNet); such rows may be longer than max_length
    ranks [batch, length]       a token attends to the tokens of its segment of no larger rank
    visible [batch, length, length]  attention mask in place of segments and ranks
    noise, perturbation         as in `Embeddings`
    extract [batch, texts]      positions of tokens to pool in place of the first
    languages, tasks [batch, length]  rows of their tables
    decoded [batch, length]     other tokens at the same positions: Output.decoded has their
                                embeddings (RetroMAE)
    memory [batch, n, hidden]   what cross-attention of the blocks attends to (TSDAE's decoder)

  row_ids: [batch] row numbers, folded into the dropout key; None: no dropout.
  within: return Output.inside.
  """

  cfg: EncoderConfig
  packed: bool = False

  @nn.compact
  def __call__(self, batch: Mapping[str, Any], row_ids=None, within: bool = False) -> Output:
    cfg, block, tokens = self.cfg, self.cfg.block, batch['tokens']
    tables = cfg.embeddings

    # Embeddings.
    positions = batch['place'] if 'place' in batch else position_ids(tokens, cfg.padding)
    if 'position_of' in batch:
      positions = jnp.take_along_axis(positions, batch['position_of'], 1)
    else:
      check_length(tokens, cfg.max_length)
    types = batch['types'] if 'types' in batch and tables.types > 1 else jnp.zeros_like(tokens)
    has_positions = cfg.max_length and tables.absolute != 'none'
    position_rows = cfg.max_length + cfg.first_position if has_positions else 0
    embeddings = Embeddings(
        block, cfg.vocab, tables.width, position_rows, tables.types,
        norm=tables.norm or block.norm_at == 'post',
        more=(('languages', tables.languages), ('tasks', tables.tasks)),
        waves=tables.absolute == 'sinusoidal', scaled=tables.absolute == 'scaled',
        name='embeddings')
    if tables.tasks:
      batch = {'tasks': jnp.zeros_like(types), **batch}
    x, token_table = embeddings(tokens, types, positions, row_ids, batch.get('tables'), batch)
    decoded = None
    if 'decoded' in batch:
      decoded, _ = embeddings(batch['decoded'], types, positions, row_ids, batch.get('tables'))
    if cfg.clear:
      x = clear_padding(x, batch['segments'])
    embedded = x
    self.sow('intermediates', 'embedded', x)

    # Layers. No token attends to padding, so its states need no clearing in between.
    mask = AttentionMask(encoder_attention_mask(batch, self.packed, cfg.causal))
    windows = tuple(SlidingWindow(size, size) if size else None for size in cfg.windows)
    stack = Stack(block, cfg.stack, cfg.summed, windows, name='stack')
    memory = CrossAttentionInput(batch['memory'], None) if block.cross else None
    x, layers = stack(x, mask, positions, memory, row_ids, inputs=layer_inputs(cfg),
                      remember='inside' if within else '')
    inside = make_layer_states(embedded, x, layers) if within else None
    if cfg.clear:
      x = clear_padding(x, batch['segments'])

    # Pooler.
    pooled = None
    if cfg.pooler:
      dense = make_dense(block, block.width, 'pooler')
      pooled = jnp.tanh(dense(select_token(x, batch)))
    return Output(x, pooled, token_table, decoded=decoded, inside=inside)


def clear_padding(x, segments):
  """Set the hidden states x [batch, length, hidden] of padding to 0."""
  return x * (segments > 0)[..., None].astype(x.dtype)


def layer_inputs(cfg: EncoderConfig) -> LayerInputs | None:
  """Make the inputs that differ from layer to layer; None: there are none."""
  if cfg.stack.first_norm:
    return None
  return LayerInputs(skip_norm=jnp.arange(cfg.stack.blocks) == 0)


def position_ids(tokens, padding: int = -1):
  """Compute position ids, rows of the position table.

  With an id of padding, other tokens are numbered from padding + 1, and padding has the row of its
  own id. It is recognized by the ids alone (transformers, fairseq).

  Args:
    tokens: [batch, length] ids.
    padding: id of padding; -1: tokens are numbered 0, 1, 2, ...

  Returns:
    [batch, length].
  """
  if padding < 0:
    return jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
  real = (tokens != padding).astype(jnp.int32)
  return padding + real * jnp.cumsum(real, axis=1)
