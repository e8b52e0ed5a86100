"""The bidirectional encoder: BERT, RoBERTa, SpanBERT, DistilBERT, ALBERT, ModernBERT, and what is built on them."""
from collections.abc import Mapping
import dataclasses
from typing import Any, ClassVar, Literal

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from plm_jax.architectures import Kind, resized
from plm_jax.checked import Checked, within
from plm_jax.layers import bands
from plm_jax.layers.attention import Visible
from plm_jax.layers.bands import Band
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.dense import Dense
from plm_jax.layers.embeddings import Embeddings
from plm_jax.layers.heads import HeadConfig, standing
from plm_jax.layers.masks import of_batch
from plm_jax.layers.stack import Inside, Stack, StackConfig, inside, one_stream


@dataclasses.dataclass(frozen=True)
class EncoderConfig(Checked):
  """An encoder's sizes; `models` has the published ones."""

  limits = within(vocab='[1, inf)', padding='[-1, inf)', languages='[0, inf)', tasks='[0, inf)')

  kind: ClassVar[Kind] = 'encoder'
  cls_last: ClassVar[bool] = False

  vocab: int = 30522
  """V, token ids"""
  block: BlockConfig = BlockConfig()
  """one layer"""
  stack: StackConfig = StackConfig()
  """the layers"""
  max_length: int = 512
  """the longest row, in tokens; 0: any, and there are no absolute positions"""
  padding: int = -1
  """id of padding, behind whose row positions are numbered and which takes none (RoBERTa: 1); -1: numbered from 0"""
  types: int = 2
  """rows of the segment type table; 0: no types, 1: the same for every token"""
  languages: int = 0
  """rows of the table of languages, which is added where a batch says the language of each token (XLM); 0: no table"""
  tasks: int = 0
  """rows of the table of pre-training tasks, of which the first is added where a batch names none (ERNIE 2.0); 0: no
  table"""
  absolute: Literal['learned', 'sinusoidal', 'scaled', 'none'] = 'learned'
  """positions that are added to the embeddings: a table of max_length rows, which is trained, or stays the sines and
  cosines that it begins with (XLM), or is these times one number, which is trained (Cramming), or none"""
  causal: bool = False
  """a token sees only what comes before it (XLM's CLM)"""
  clear: bool = False
  """hidden states of padding are 0 (XLM)"""
  embed_dim: int = 0
  """E, width of the embedding tables, which are projected to the layers' (ALBERT); 0: the layers' own"""
  tied: bool = True
  """masked tokens are read off by the token table; else by a matrix of the head's own"""
  norm_embedded: bool = False
  """embeddings are normalised, as they are before blocks with norm_at post, before others too (ModernBERT)"""
  windows: tuple[int, ...] = ()
  """how many tokens to either side a layer sees, one number a layer, in turn; 0: all (ModernBERT: 0, 64, 64)"""
  summed: bool = False
  """behind each sublayer the residual stream is a weighted sum of all that it was before, of which the weights are
  trained (DenseFormer: Pagliardini et al. 2024; GPT-BERT)"""
  shifted: bool = False
  """a token is predicted where the one before it stands, be it masked or not yet written: so the same parameters fill
  blanks and, in rows whose batch has ranks, write texts (GPT-BERT)"""
  head: HeadConfig = HeadConfig()
  """the hidden layer of heads"""
  pooler: bool = True
  """a dense layer with tanh on the first token, for sentence-level heads"""

  def conflict(self, option):
    """Says what a stream of sums does not go with."""
    if self.summed and (self.windows or self.stack.groups or not self.stack.first_norm or self.block.parallel):
      return f'{option("summed")} is of layers of two sublayers, which are all alike and share nothing'
    return None

  @property
  def first_position(self) -> int:
    """The row of the position table that a row's first token has."""
    return self.padding + 1

  @property
  def added(self) -> tuple[str, ...]:
    """Parts of the backbone that begin afresh where a run starts from a model that has none."""
    return ('pooler',) if self.pooler else ()

  @property
  def frozen(self) -> tuple[str, ...]:
    """Parameters that are never trained."""
    return ('backbone/embeddings/positions',) if self.absolute == 'sinusoidal' and self.max_length else ()

  def backbone(self, packed: bool = False) -> 'Encoder':
    """Makes the module; packed: rows hold several segments that do not see each other."""
    return Encoder(self, packed)

  def generator(self, width: float, depth: float) -> 'EncoderConfig':
    """Returns a smaller one, as shares of width and layers, over tables of the same size (Clark et al. 2020, section
    3.2)."""
    block, size = self.block, round(self.block.width * width)
    heads = max(1, round(block.heads * width))
    block = dataclasses.replace(block, width=size, heads=heads, mlp_dim=round(block.mlp_dim * width))
    embed_dim = self.embed_dim or self.block.width
    return dataclasses.replace(
        self, block=block, stack=dataclasses.replace(self.stack, layers=max(1, round(self.stack.layers * depth))),
        embed_dim=0 if embed_dim == size else embed_dim, pooler=False)

  def resized(self, block: BlockConfig, layers: int, vocab: int, max_length: int) -> 'EncoderConfig':
    """Makes the same wiring in another size: `layers` of `block`, `vocab` ids, rows of `max_length` tokens."""
    windows = tuple(-(-size * max_length // self.max_length) for size in self.windows)
    return resized(self, block, layers, vocab, max_length, windows=windows)

  def forward_flops(self, length: int, predicted: int) -> int:
    """Counts the floating point operations of the matrix products for one row of `length` tokens and `predicted`
    positions.

    Multiplications and additions count one each; a training step is three times this (Kaplan et al. 2020, 2.1). Of
    pairs of tokens those within a layer's window count.
    """
    b, embed = self.block, self.embed_dim or self.block.width
    pairs = bands.pairs([2 * window + 1 if window else 0 for window in self.windows], self.stack.blocks, length)
    attention = b.width * b.head_dim * (2 * b.heads + 2 * b.key_heads)
    mlp = b.width * b.mlp_dim * (3 if b.mlp.gated else 2)
    project = b.width * self.embed_dim
    head = predicted * embed * (b.width * self.head.transform + self.vocab)
    layers = length * self.stack.blocks * (attention + mlp) + 2 * pairs * b.heads * b.head_dim
    return 2 * (layers + length * project + head + self.pooler * b.width ** 2)


class Output(flax.struct.PyTreeNode):
  """What heads read. hidden [B, L, D]; pooled [B, D], or [B, E, D] where the batch has `extract`, or None; embedding
  [V, E], the token table; predicted [B, M, D], what masked tokens are read off where that is not hidden itself, or
  None; inside, what the layers do, where it was asked for."""

  hidden: jax.Array
  pooled: jax.Array | None
  embedding: jax.Array
  predicted: jax.Array | None = None
  inside: Inside | None = None


class Encoder(nn.Module):
  """batch -> Output.

  batch: tokens [B, L]; segments [B, L] (0 padding, equal numbers see each other); optional types [B, L], and
  place [B, L], the row of the position table (that of `places` where it is missing); optional ranks [B, L]: a token
  sees those of its segment whose rank is no larger. `packed`: rows may hold several
  segments; optional visible [B, L, L], True where a query (row) sees a key, instead of what segments say; optional
  noise and perturbation, those of `Embeddings`; optional extract [B, E], tokens to be pooled in place of the first;
  optional languages and tasks [B, L], rows of their tables.
  rows [B] key dropout; None: no dropout. within: give Output.inside.
  """

  cfg: EncoderConfig
  packed: bool = False

  @nn.compact
  def __call__(self, batch: Mapping[str, Any], rows=None, within: bool = False) -> Output:
    cfg, tokens = self.cfg, batch['tokens']
    if cfg.max_length and tokens.shape[1] > cfg.max_length:
      raise ValueError(f'rows of {tokens.shape[1]} tokens do not fit a model of max_length {cfg.max_length}')
    place = batch['place'] if 'place' in batch else places(tokens, cfg.padding)
    types = batch['types'] if 'types' in batch and cfg.types > 1 else jnp.zeros_like(tokens)
    table = cfg.max_length if cfg.absolute != 'none' else 0
    positions, norm = table and table + cfg.first_position, cfg.norm_embedded or cfg.block.norm_at == 'post'
    embeddings = Embeddings(
        cfg.block, cfg.vocab, cfg.embed_dim, positions, cfg.types, norm,
        more=(('languages', cfg.languages), ('tasks', cfg.tasks)), waves=cfg.absolute == 'sinusoidal',
        scaled=cfg.absolute == 'scaled', name='embeddings')
    given = {'tasks': jnp.zeros_like(types), **batch} if cfg.tasks else batch
    x, embedding = embeddings(tokens, types, place, rows, batch.get('tables'), given)
    def cleared(x):  # Nothing sees padding, so that between layers it may be anything.
      return x * (batch['segments'] > 0)[..., None].astype(x.dtype) if cfg.clear else x
    x = cleared(x)
    self.sow('intermediates', 'embedded', x)
    mask, own, seen = of_batch(batch, self.packed, cfg.causal), per_layer(cfg), None
    step = one_layer if own or cfg.windows else one_stream
    stack = Stack(cfg.block, cfg.stack, step, cfg.summed, cfg.windows, name='stack')
    last: Any = stack(x, mask, place, rows, cache=own or None, remember='inside' if within else '')
    if within:
      last, layers = last
      seen = inside(x, last, layers)
    x = cleared(last)
    pooled = None
    if cfg.pooler:
      dense = Dense((cfg.block.width,), ('width', None), True, cfg.block.compute, cfg.block.init.plain, name='pooler')
      pooled = jnp.tanh(dense(standing(x, batch)))
    return Output(x, pooled, embedding, inside=seen)


def one_layer(block, x, visible: Visible, rows=None, cache=None, window: int = 0):
  """Calls the block with what differs from layer to layer: its window, and whether what it reads is normalised already.

  A window is of places in a row, whatever their positions are (transformers).
  """
  context = block.cfg.attention.position.of_layer(visible.context, window > 0)
  visible = visible._replace(context=context, band=Band(window, window) if window else None)
  return block(x, visible, rows=rows, normed=(cache or {}).get('first'))


def per_layer(cfg: EncoderConfig) -> dict[str, Any]:
  """Returns first [N] bool, where layers differ in it."""
  return {} if cfg.stack.first_norm else {'first': jnp.arange(cfg.stack.blocks) == 0}


def places(tokens, padding: int = -1):
  """Returns, of tokens [B, L], rows of the position table [B, L]: 0, 1, 2, ...; with an id of padding, one behind it
  and on.

  Padding has the row of its own number, and is told by the ids alone (transformers, fairseq).
  """
  if padding < 0:
    return jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
  real = (tokens != padding).astype(jnp.int32)
  return padding + real * jnp.cumsum(real, axis=1)
