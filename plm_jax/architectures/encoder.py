"""The bidirectional encoder: BERT, RoBERTa, SpanBERT, DistilBERT, ALBERT, and what is built on them."""
from collections.abc import Mapping
import dataclasses
from typing import Any, ClassVar, Literal

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from plm_jax.architectures import Kind, resized
from plm_jax.checked import Checked, within
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.dense import Dense
from plm_jax.layers.embeddings import Embeddings
from plm_jax.layers.heads import standing
from plm_jax.layers.masks import of_batch
from plm_jax.layers.stack import Stack, StackConfig


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
  """the longest row, in tokens, where there are absolute positions; 0: there are none"""
  padding: int = -1
  """id of padding, behind whose row positions are numbered and which takes none (RoBERTa: 1); -1: numbered from 0"""
  types: int = 2
  """rows of the segment type table; 0: no types, 1: the same for every token"""
  languages: int = 0
  """rows of the table of languages, which is added where a batch says the language of each token (XLM); 0: no table"""
  tasks: int = 0
  """rows of the table of pre-training tasks, of which the first is added where a batch names none (ERNIE 2.0); 0: no
  table"""
  absolute: Literal['learned', 'sinusoidal'] = 'learned'
  """whether the position table is trained, or stays the sines and cosines that it begins with (XLM)"""
  causal: bool = False
  """a token sees only what comes before it (XLM's CLM)"""
  clear: bool = False
  """hidden states of padding are 0 (XLM)"""
  embed_dim: int = 0
  """E, width of the embedding tables, which are projected to the layers' (ALBERT); 0: the layers' own"""
  tied: bool = True
  """masked tokens are read off by the token table; else by a matrix of the head's own"""
  transform: bool = True
  """masked tokens go through a dense layer and a norm before they are read off"""
  pooler: bool = True
  """a dense layer with tanh on the first token, for sentence-level heads"""

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
    return resized(self, block, layers, vocab, max_length)

  def forward_flops(self, length: int, predicted: int) -> int:
    """Counts the floating point operations of the matrix products for one row of `length` tokens and `predicted`
    positions.

    Multiplications and additions count one each; a training step is three times this (Kaplan et al. 2020, 2.1).
    """
    b, embed = self.block, self.embed_dim or self.block.width
    attention = b.width * b.head_dim * (2 * b.heads + 2 * b.key_heads) + 2 * length * b.heads * b.head_dim
    mlp = b.width * b.mlp_dim * (3 if b.mlp.gated else 2)
    project = b.width * self.embed_dim
    head = predicted * embed * (b.width * self.transform + self.vocab)
    return 2 * (length * (self.stack.blocks * (attention + mlp) + project) + head + self.pooler * b.width ** 2)


class Output(flax.struct.PyTreeNode):
  """What heads read. hidden [B, L, D]; pooled [B, D], or [B, E, D] where the batch has `extract`, or None; embedding
  [V, E], the token table; predicted [B, M, D], what masked tokens are read off where that is not hidden itself, or
  None."""

  hidden: jax.Array
  pooled: jax.Array | None
  embedding: jax.Array
  predicted: jax.Array | None = None


class Encoder(nn.Module):
  """batch -> Output.

  batch: tokens [B, L]; segments [B, L] (0 padding, equal numbers see each other); optional types [B, L], and
  place [B, L], the row of the position table (that of `places` where it is missing). `packed`: rows may hold several
  segments; optional visible [B, L, L], True where a query (row) sees a key, instead of what segments say; optional
  noise and perturbation, those of `Embeddings`; optional extract [B, E], tokens to be pooled in place of the first;
  optional languages and tasks [B, L], rows of their tables.
  rows [B] key dropout; None: no dropout.
  """

  cfg: EncoderConfig
  packed: bool = False

  @nn.compact
  def __call__(self, batch: Mapping[str, Any], rows=None) -> Output:
    cfg, tokens = self.cfg, batch['tokens']
    if cfg.max_length and tokens.shape[1] > cfg.max_length:
      raise ValueError(f'rows of {tokens.shape[1]} tokens do not fit a model of max_length {cfg.max_length}')
    place = batch['place'] if 'place' in batch else places(tokens, cfg.padding)
    types = batch['types'] if 'types' in batch and cfg.types > 1 else jnp.zeros_like(tokens)
    positions = cfg.max_length and cfg.max_length + cfg.first_position
    embeddings = Embeddings(
        cfg.block, cfg.vocab, cfg.embed_dim, positions, cfg.types, cfg.block.norm_at == 'post',
        more=(('languages', cfg.languages), ('tasks', cfg.tasks)), waves=cfg.absolute == 'sinusoidal',
        name='embeddings')
    given = {'tasks': jnp.zeros_like(types), **batch} if cfg.tasks else batch
    x, embedding = embeddings(tokens, types, place, rows, batch.get('tables'), given)
    def cleared(x):  # Nothing sees padding, so that between layers it may be anything.
      return x * (batch['segments'] > 0)[..., None].astype(x.dtype) if cfg.clear else x
    x = cleared(x)
    self.sow('intermediates', 'embedded', x)
    mask = of_batch(batch, self.packed, cfg.causal)
    x: Any = cleared(Stack(cfg.block, cfg.stack, name='stack')(x, mask, place, rows))
    pooled = None
    if cfg.pooler:
      dense = Dense((cfg.block.width,), ('width', None), True, cfg.block.compute, cfg.block.init.plain, name='pooler')
      pooled = jnp.tanh(dense(standing(x, batch)))
    return Output(x, pooled, embedding)


def places(tokens, padding: int = -1):
  """Returns, of tokens [B, L], rows of the position table [B, L]: 0, 1, 2, ...; with an id of padding, one behind it
  and on.

  Padding has the row of its own number, and is told by the ids alone (transformers, fairseq).
  """
  if padding < 0:
    return jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
  real = (tokens != padding).astype(jnp.int32)
  return padding + real * jnp.cumsum(real, axis=1)
