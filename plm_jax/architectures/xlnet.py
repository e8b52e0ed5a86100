"""XLNet (Yang et al. 2019, arXiv:1906.08237): two streams, relative positions and a memory of preceding text."""
from collections.abc import Mapping
import dataclasses
from typing import ClassVar, Literal

from flax.core import FrozenDict
import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from plm_jax.architectures import Kind, resized
from plm_jax.checked import Checked, within
from plm_jax.layers.attention import AttentionConfig, Visible
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.dense import Dropout, named
from plm_jax.layers.embeddings import Embeddings
from plm_jax.layers.heads import standing
from plm_jax.layers.masks import visible
from plm_jax.layers.positions import TransformerXL
from plm_jax.layers.stack import Layers, StackConfig


@dataclasses.dataclass(frozen=True)
class XLNetConfig(Checked):
  """An XLNet's sizes; `models.xlnet` has the published ones."""

  limits = within(vocab='[1, inf)')

  kind: ClassVar[Kind] = 'encoder'
  added: ClassVar[tuple[str, ...]] = ()
  cls_last: ClassVar[bool] = True  # rows end with [CLS], where others begin with it
  padding: ClassVar[int] = -1  # the model does not know its id

  vocab: int = 32000
  """V, token ids"""
  block: BlockConfig = BlockConfig(attention=AttentionConfig(bias=(), position=TransformerXL()))
  """one layer"""
  stack: StackConfig = StackConfig()
  """the layers"""
  max_length: int = 512
  """tokens in a row, at most; 0: any number. No parameter depends on it"""
  attention: Literal['bi', 'uni'] = 'bi'
  """what a token sees where the batch does not say: all of its segment, or what comes before (Transformer-XL)"""
  same_length: bool = False
  """with uni: each token sees itself and as many before it as there is memory, not more the later it comes (released
  code of Dai et al. 2019)"""

  def backbone(self, packed: bool = False) -> 'XLNet':
    """Makes the module. Rows may always hold several segments, so `packed` changes nothing."""
    del packed
    return XLNet(self)

  def resized(self, block: BlockConfig, layers: int, vocab: int, max_length: int) -> 'XLNetConfig':
    """Makes the same wiring in another size: `layers` of `block`, `vocab` ids, rows of `max_length` tokens."""
    return resized(self, block, layers, vocab, max_length)

  def forward_flops(self, length: int, predicted: int, memory: int = 0) -> int:
    """Counts the floating point operations of the matrix products for one row of `length` tokens and `predicted`
    positions.

    memory: tokens of preceding text that the row sees, without the pass that makes them. The projection of distances
    is left out: it is the same for all rows of a batch. Counted as `EncoderConfig.forward_flops` does.
    """
    b, keys, queries = self.block, length + memory, length + predicted
    inner = b.heads * b.head_dim
    linear = b.width * (inner * 2 * queries + inner * 2 * keys + 2 * b.mlp_dim * queries)
    attention = queries * inner * (2 * keys + keys + length)
    return 2 * (self.stack.layers * (linear + attention) + predicted * b.width * self.vocab)


class Output(flax.struct.PyTreeNode):
  """What heads read. hidden [B, L, D], of the content stream; predicted [B, M, D], of the query stream, or None;
  pooled [B, D], of the last token, or [B, E, D], those that the batch names, before any dense layer; embedding [V, D],
  the token table; memory [N, B, L, D], what each layer was given, or None."""

  hidden: jax.Array
  predicted: jax.Array | None
  pooled: jax.Array
  embedding: jax.Array
  memory: jax.Array | None


class XLNet(nn.Module):
  """batch -> Output. What a batch holds beyond tokens [B, L] and segments [B, L] (0 padding) may be left out:

    types [B, L]       relative segments, of which only equality matters; 0
    positions [B, M]   where the query stream predicts, from what comes before in the order; without it there is one
                       stream, as in fine-tuning
    ranks [B, L]       the factorisation order: content sees ranks no larger than its own, queries smaller ones. With
                       positions alone, these come after all others and do not see each other
    visible [B, L, K]  instead, True where a token sees a key: memory first, then the row. Content always sees itself
    noise, perturbation [B, L, D]  those of `Embeddings`
    backward [B]       True for rows whose text runs backwards
    extract [B, E]     tokens to be pooled in place of the last
    memory_tokens, memory_segments [B, K']  the text before the row. Its hidden states are computed here, in one
                       stream, and pass no gradient on (Dai et al. 2019, section 3.2)
    memory [N, B, K', D]  instead of memory_tokens, what each layer was given before: an earlier Output's

  `remember` gives Output.memory. Memory has type 0. rows [B] key dropout; None: no dropout.
  """

  cfg: XLNetConfig
  remember: bool = False

  @nn.compact
  def __call__(self, batch: Mapping[str, jax.Array], rows=None) -> Output:
    cfg, block = self.cfg, self.cfg.block
    tokens, segments, positions = batch['tokens'], batch['segments'], batch.get('positions')
    length = tokens.shape[1]
    if cfg.max_length and length > cfg.max_length:
      raise ValueError(f'rows of {length} tokens do not fit a model of max_length {cfg.max_length}')
    embeddings = Embeddings(block, cfg.vocab, 0, 0, 0, norm=False, name='embeddings')
    layers = Layers(block, cfg.stack, two_streams, name='layers')
    mask = self.param('mask', named(block.init.plain, (None, None, 'width')), (1, 1, block.width))

    def embed(tokens, moved: Mapping[str, jax.Array] = FrozenDict()):
      return embeddings(tokens, jnp.zeros_like(tokens), jnp.zeros_like(tokens), rows, moved=moved)

    def context(types, past):
      """For rows with relative segments `types`, behind `past` [B, K'], the segments of their memory."""
      of_keys = jnp.concatenate([jnp.zeros_like(past), types], 1)
      distances = block.attention.position.context(self, block, types, of_keys)
      return distances | {'types': (types, of_keys)} | {
          name: batch[name] for name in ('backward',) if name in batch}

    memory, past = batch.get('memory'), jnp.zeros((len(tokens), 0), segments.dtype)
    if 'memory_tokens' in batch:
      past = batch['memory_segments']
      x, _ = embed(batch['memory_tokens'])
      ranks = jnp.broadcast_to(jnp.arange(past.shape[1]) * (cfg.attention == 'uni'), past.shape)
      whole = visible(past, past, ranks, ranks) | itself(past)
      _, memory = layers(
          x, Visible(whole, context(jnp.zeros_like(past), past[:, :0])), rows, remember='inputs')
      memory = jax.lax.stop_gradient(memory)
    elif memory is not None:
      past = batch.get('memory_segments', jnp.ones(memory.shape[1:3], segments.dtype))

    x, embedding = embed(tokens, batch)
    self.sow('intermediates', 'embedded', x)
    types = batch.get('types', jnp.zeros_like(tokens))
    seen = context(types, past)
    of_content, of_queries = self.masks(batch, past)
    if positions is not None:
      queries = jnp.broadcast_to(mask.astype(x.dtype), (*positions.shape, block.width))
      x = jnp.concatenate([x, Dropout(block.dropout, name='mask_dropout')(queries, rows)], 1)
      of_content = jnp.concatenate([of_content, of_queries], 2)
      of_predicted = jnp.take_along_axis(types, positions, 1)
      seen |= {'places': positions, 'types': (jnp.concatenate([types, of_predicted], 1), seen['types'][1])}
    x = layers(x, Visible(of_content, seen), rows, cache=memory, remember='inputs' if self.remember else '')
    x, given = x if self.remember else (x, None)
    x = Dropout(block.dropout, name='dropout')(x, rows)
    hidden = x[:, :length]
    return Output(hidden, None if positions is None else x[:, length:], standing(hidden, batch, segments), embedding,
                  None if given is None else given[:, :, :length])

  def masks(self, batch, past):
    """Returns what content [B, 1, L, K] and queries [B, 1, M, K] see, memory `past` [B, K'] first."""
    segments, positions = batch['segments'], batch.get('positions')
    keys = jnp.concatenate([past, segments], 1)
    own = jnp.pad(itself(segments), ((0, 0), (0, 0), (0, 0), (past.shape[1], 0)))
    if 'visible' in batch:
      content = query = batch['visible'][:, None]
    else:
      ranks = batch.get('ranks')
      if ranks is None:
        ranks = jnp.broadcast_to(jnp.arange(segments.shape[1]) * (self.cfg.attention == 'uni'), segments.shape)
        if positions is not None and self.cfg.attention == 'bi':
          ranks = jax.vmap(lambda row, where: row.at[where].set(1))(ranks, positions)
      of_keys = jnp.concatenate([jnp.full_like(past, -1), ranks], 1)
      content = visible(segments, keys, ranks, of_keys)
      query = visible(segments, keys, ranks, of_keys, strict=True)
      if self.cfg.same_length and self.cfg.attention == 'uni':
        near = jnp.arange(keys.shape[1]) >= jnp.arange(segments.shape[1])[:, None]
        content, query = content & near, query & near
    if positions is not None:
      query = jnp.take_along_axis(query, positions[:, None, :, None], 2)
    return content | own, query


def two_streams(block, x, visible: Visible, rows=None, cache=None):
  """Calls a layer on x [B, L + M, D]: the content of L tokens, then the queries of M predicted ones; keys and values
  are of the cache [B, K', D] and the content.

  The streams share all parameters, so they are one array here: what keys and values cost is paid once, where two calls
  of the block would project them, and their gradients, twice.
  """
  assert visible.mask is not None
  length = visible.mask.shape[-1] - (0 if cache is None else cache.shape[1])
  content = x[:, :length]
  return block(x, visible, kv=content if cache is None else jnp.concatenate([cache, content], 1), rows=rows)


def itself(segments):
  """Returns, of segments [B, L], bool [1, 1, L, L]: padding sees itself too, so that no row of attention is empty."""
  return jnp.eye(segments.shape[1], dtype=bool)[None, None]
