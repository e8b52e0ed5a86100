"""XLNet: two-stream attention, relative positions and memory of preceding text.

Yang et al. 2019, arXiv:1906.08237.
"""
from collections.abc import Mapping
import dataclasses
from typing import Any, ClassVar, Literal

from flax.core import FrozenDict
import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.architectures import Kind, Output, check_length, resize_config
from plm_jax.layers.attention import AttentionConfig, AttentionMask
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.dense import Dropout, with_logical_axes
from plm_jax.layers.embeddings import Embeddings
from plm_jax.layers.heads import ClassifierConfig, select_token
from plm_jax.layers.masks import attention_mask
from plm_jax.layers.positions import TransformerXL
from plm_jax.layers.stack import Layers, StackConfig
from plm_jax.validation import ValidatedConfig, intervals


@dataclasses.dataclass(frozen=True)
class XLNetConfig(ValidatedConfig):
  """Configuration of an XLNet; `models.xlnet` has the published ones."""

  limits = intervals(vocab='[1, inf)')

  kind: ClassVar[Kind] = 'encoder'
  new_parts: ClassVar[tuple[str, ...]] = ()
  cls_last: ClassVar[bool] = True  # rows end with [CLS]
  padding: ClassVar[int] = -1  # positions do not depend on padding

  vocab: int = 32000
  """Vocabulary size."""
  block: BlockConfig = BlockConfig(attention=AttentionConfig(bias=(), position=TransformerXL()))
  """Configuration of one layer."""
  stack: StackConfig = StackConfig()
  """Number of layers, and how they are compiled."""
  max_length: int = 512
  """Maximum sequence length, in tokens; 0: any. No parameter depends on it."""
  attention: Literal['bi', 'uni'] = 'bi'
  """Attention where the batch has no mask. bi: to the whole segment. uni: to preceding tokens
  (Transformer-XL)."""
  same_length: bool = False
  """With uni, each token attends to itself and to as many tokens before it as there is memory, so
  that all tokens have equal context (released code of Dai et al. 2019)."""

  bi_data: bool = False
  """Where the batch does not say which rows run backwards, the second half does (transformers'
  bi_data)."""
  head: ClassifierConfig = ClassifierConfig()
  """What classification heads read."""

  def conflict(self, option):
    position = self.block.attention.position
    if not isinstance(position, TransformerXL):
      return (f'{option("block.attention.position")}: XLNet has relative positions of its own '
              f'(TransformerXL), got {type(position).__name__}')
    return None

  def backbone(self, packed: bool = False) -> 'XLNet':
    """Make the module. Rows may always hold several segments, so `packed` has no effect."""
    del packed
    return XLNet(self)

  def resize(self, block: BlockConfig, layers: int, vocab: int, max_length: int) -> 'XLNetConfig':
    """Make the same architecture in another size."""
    return resize_config(self, block, layers, vocab, max_length)

  def forward_flops(self, length: int, predicted: int, memory: int = 0) -> int:
    """Count the FLOPs of the matrix products for one row, as `EncoderConfig.forward_flops` does.

    The projection of distances is not counted: it is the same for all rows of a batch.

    Args:
      length: tokens of the row.
      predicted: positions with vocabulary logits.
      memory: tokens of preceding text, without the pass that computes their states.
    """
    block, keys, queries = self.block, length + memory, length + predicted
    inner = block.heads * block.head_dim
    projections = block.width * inner * (2 * queries + 2 * keys)
    mlp = block.width * 2 * block.mlp_dim * queries
    attention = queries * inner * (2 * keys + keys + length)
    layers = self.stack.layers * (projections + mlp + attention)
    return 2 * (layers + predicted * block.width * self.vocab)


class XLNet(nn.Module):
  """XLNet: batch -> Output.

  A batch holds tokens and segments [batch, length]; segment 0 is padding. Optional entries:

    types [batch, length]      relative segments, of which only equality matters; else 0
    positions [batch, predicted]  where the query stream predicts, from what precedes in the
                               factorization order; without it there is one stream, as in
                               fine-tuning
    ranks [batch, length]      the factorization order: content attends to ranks no larger than its
                               own, queries to smaller ones. With positions alone, these come after
                               all others and do not attend to each other
    visible [batch, length, keys]  attention mask in place of ranks, memory first; content always
                               attends to itself
    noise, perturbation        as in `Embeddings`
    backward [batch]           True for rows whose text runs backwards
    extract [batch, texts]     positions of tokens to pool in place of the last
    memory_tokens, memory_segments [batch, memory]  the text before the row. Its hidden states are
                               computed here, in one stream, and have no gradient (Dai et al. 2019,
                               section 3.2)
    memory [layers, batch, memory, hidden]  in place of memory_tokens, an earlier Output.memory

  remember: return Output.memory. Memory has type 0.
  row_ids: [batch] row numbers, folded into the dropout key; None: no dropout.
  """

  cfg: XLNetConfig
  remember: bool = False

  @nn.compact
  def __call__(self, batch: Mapping[str, jax.Array], row_ids=None) -> Output:
    cfg, block = self.cfg, self.cfg.block
    tokens, segments, positions = batch['tokens'], batch['segments'], batch.get('positions')
    length = tokens.shape[1]
    if cfg.bi_data and 'backward' not in batch:
      batch = {**batch, 'backward': jnp.arange(len(tokens)) >= len(tokens) // 2}
    check_length(tokens, cfg.max_length)
    embeddings = Embeddings(block, cfg.vocab, 0, 0, 0, norm=False, name='embeddings')
    layers = Layers(block, cfg.stack, call_two_stream_layer, name='layers')
    mask_init = with_logical_axes(block.init.table_initializer, (None, None, 'width'))
    mask_vector = self.param('mask', mask_init, (1, 1, block.width))

    # Memory and row have one set of the position scheme's parameters.
    shared = SharedParameters(self)

    def embed_tokens(tokens, batch: Mapping[str, jax.Array] = FrozenDict()):
      zeros = jnp.zeros_like(tokens)
      return embeddings(tokens, zeros, zeros, row_ids, batch=batch)

    def position_context(types, past):
      """Compute the context for relative segments `types`, after memory with segments `past`."""
      k_types = jnp.concatenate([jnp.zeros_like(past), types], 1)
      context = block.attention.position.context(shared, block, types, k_types)
      context = context | {'types': (types, k_types)}
      if 'backward' in batch:
        context['backward'] = batch['backward']
      return context

    # Memory of preceding text.
    memory, past = batch.get('memory'), jnp.zeros((len(tokens), 0), segments.dtype)
    if 'memory_tokens' in batch:
      past = batch['memory_segments']
      x, _ = embed_tokens(batch['memory_tokens'])
      ranks = sequential_ranks(past, cfg.attention == 'uni')
      mask = attention_mask(past, past, ranks, ranks) | self_mask(past)
      context = position_context(jnp.zeros_like(past), past[:, :0])
      _, memory = layers(x, AttentionMask(mask, context), row_ids=row_ids, remember='inputs')
      memory = jax.lax.stop_gradient(memory)
    elif memory is not None:
      past = batch.get('memory_segments', jnp.ones(memory.shape[1:3], segments.dtype))

    # Content stream, and after it the query stream.
    x, token_table = embed_tokens(tokens, batch)
    self.sow('intermediates', 'embedded', x)
    types = batch.get('types', jnp.zeros_like(tokens))
    context = position_context(types, past)
    mask, query_mask = self.masks(batch, past)
    if positions is not None:
      shape = (*positions.shape, block.width)
      queries = jnp.broadcast_to(mask_vector.astype(x.dtype), shape)
      queries = Dropout(block.dropout, name='mask_dropout')(queries, row_ids)
      x = jnp.concatenate([x, queries], 1)
      mask = jnp.concatenate([mask, query_mask], 2)
      q_types = jnp.concatenate([types, jnp.take_along_axis(types, positions, 1)], 1)
      context |= {'places': positions, 'types': (q_types, context['types'][1])}
    x, inputs = layers(x, AttentionMask(mask, context), row_ids=row_ids, inputs=memory,
                       remember='inputs' if self.remember else '')
    x = Dropout(block.dropout, name='dropout')(x, row_ids)

    hidden = x[:, :length]
    predicted = None if positions is None else x[:, length:]
    pooled = select_token(hidden, batch, segments)
    new_memory = inputs[:, :, :length] if self.remember else None
    return Output(hidden, pooled, token_table, predicted, memory=new_memory)

  def masks(self, batch, past):
    """Build the attention masks of both streams, with memory first.

    Args:
      batch: the batch.
      past: [batch, memory], segments of the memory.

    Returns:
      (mask of the content stream [batch, 1, length, keys], mask of the query stream [batch, 1,
      predicted, keys]).
    """
    segments, positions = batch['segments'], batch.get('positions')
    unidirectional = self.cfg.attention == 'uni'
    keys = jnp.concatenate([past, segments], 1)
    itself = jnp.pad(self_mask(segments), ((0, 0), (0, 0), (0, 0), (past.shape[1], 0)))
    if 'visible' in batch:
      content = query = batch['visible'][:, None]
    else:
      ranks = batch.get('ranks')
      if ranks is None:
        ranks = sequential_ranks(segments, unidirectional)
        if positions is not None and not unidirectional:
          ranks = jax.vmap(lambda row, where: row.at[where].set(1))(ranks, positions)
      k_ranks = jnp.concatenate([jnp.full_like(past, -1), ranks], 1)
      content = attention_mask(segments, keys, ranks, k_ranks)
      query = attention_mask(segments, keys, ranks, k_ranks, strict=True)
      if self.cfg.same_length and unidirectional:
        near = jnp.arange(keys.shape[1]) >= jnp.arange(segments.shape[1])[:, None]
        content, query = content & near, query & near
    if positions is not None:
      query = jnp.take_along_axis(query, positions[:, None, :, None], 2)
    return content | itself, query


class SharedParameters:
  """Parameters of a module that several calls of a position scheme's `context` share."""

  def __init__(self, scope: nn.Module):
    self.scope = scope
    self.made: dict[str, Any] = {}

  def param(self, name: str, *args):
    """Return the module's parameter, which is made in the first call."""
    if name not in self.made:
      self.made[name] = self.scope.param(name, *args)
    return self.made[name]


def call_two_stream_layer(block, x, mask: AttentionMask, row_ids, memory):
  """Run a layer on both streams: the content of L tokens, then the queries of M predicted ones.

  Keys and values are those of the memory and the content. The streams share all parameters, so they
  are one array: keys and values are projected once, where two calls of the block would project
  them, and their gradients, twice.

  Args:
    block: the layer.
    x: [batch, L + M, hidden].
    mask: attention mask [batch, 1, L + M, memory + L].
    row_ids: [batch] row numbers, folded into the dropout key; None: no dropout.
    memory: [batch, memory, hidden], this layer's input for preceding text; or None.
  """
  assert mask.mask is not None
  num_keys = mask.mask.shape[-1]
  if memory is None:
    return block(x, mask, kv=x[:, :num_keys], row_ids=row_ids)
  content = x[:, :num_keys - memory.shape[1]]
  return block(x, mask, kv=jnp.concatenate([memory, content], 1), row_ids=row_ids)


def sequential_ranks(segments, unidirectional: bool):
  """Make ranks [batch, length] for attention to preceding tokens, or to all tokens."""
  return jnp.broadcast_to(jnp.arange(segments.shape[1]) * unidirectional, segments.shape)


def self_mask(segments):
  """Build the mask [1, 1, length, length] by which each token attends to itself.

  With padding attending to itself, no row of attention is empty.
  """
  return jnp.eye(segments.shape[1], dtype=bool)[None, None]
