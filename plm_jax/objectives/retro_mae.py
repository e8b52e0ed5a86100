"""Masked auto-encoding for retrieval (RetroMAE, DupMAE)."""
from collections.abc import Mapping
import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.architectures.encoder import EncoderConfig, position_ids
from plm_jax.errors import ConfigError
from plm_jax.layers.attention import AttentionMask
from plm_jax.layers.block import Block
from plm_jax.layers.embeddings import Embeddings
from plm_jax.layers.rope import Rope, TwoRopes
from plm_jax.objectives import corruption
from plm_jax.objectives.bottleneck import SentenceBottleneck, decoder_flops
from plm_jax.objectives.masking import Distinct, Masking
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.row_builders import Single
from plm_jax.validation import intervals

MASK_SETS = 256
"""masks of a sequence that its tokens share (src/pretrain/data.py of the released code)"""


@dataclasses.dataclass(frozen=True)
class RetroMAE(SentenceBottleneck, MaskedLM):
  """Masked language modeling, and a decoder that reconstructs the text from its [CLS] vector.

  Xiao et al. 2022, sections 3.2 and 3.3; staoxiao/RetroMAE@ee375876, src/pretrain/modeling.py and
  data.py. The decoder is one layer, used in training only. At each position it sees the [CLS]
  vector and, masked for this position, the embeddings of the text, of which its own is always
  hidden. So the vector has to carry what the text means.

  The published encoder is BERT, whose positions are added to the queries. With rotary positions
  the attention of the decoder rotates queries and keys, and has no sliding window. Where norms come
  before the sublayers, the decoder ends with a norm of its own, as the encoder does.
  """

  limits = intervals(decoder_mask_rate='(0, 1)')

  pair: Single = Single()
  """How text becomes sequences."""
  mask_rate: float = 0.3
  """Mask rate of the encoder."""
  masking: Masking = Distinct(unit='word')
  """How the tokens to predict are sampled."""
  decoder_mask_rate: float = 0.5
  """Fraction of the text's tokens that each position of the decoder does not see."""

  @property
  def terms(self) -> Mapping[str, float]:
    """Both losses count alike (modeling.py: loss + lm_out.loss)."""
    return {**super().terms, 'retro': 1.0}

  def corrupt(self, key, windows, vocab):
    """Build sequences and mask them, once for the encoder and many times for the decoder.

    Returns:
      what MaskedLM returns, and `decoded` [batch, length], the text; `decoded_weights` [batch,
      length], 1.0 at tokens that the decoder predicts; `context` bool [batch, length, length], what
      each position of the decoder sees.
    """
    keys = corruption.split_example_keys(key, windows, 2, self.duplicates)
    rows = self.pair.arrange(keys[:, 0], windows, vocab)
    words = rows['words']
    decoder_keys = jax.vmap(lambda k: jax.random.fold_in(k, 3))(keys[:, 1])
    return {
        **super().corrupt(key, windows, vocab), 'decoded': rows['tokens'],
        'decoded_weights': (words > 0).astype(jnp.float32),
        'context': jax.vmap(self.draw_context)(decoder_keys, rows['segments'], words)}

  def draw_context(self, key, segments, words):
    """Draw what each position of a sequence sees, bool [length, length].

    Special tokens are always visible, padding and the position itself never.

    Args:
      key: key of the example.
      segments: 0 at padding, [length].
      words: word of each token, 0 where nothing is masked, [length].
    """
    length = words.shape[0]
    sets = min(length, MASK_SETS)
    set_key, which_key = jax.random.split(key)
    def draw_mask(key):
      return self.masking.choose(key, segments > 0, words, length, self.decoder_mask_rate) > 0
    hidden = jax.vmap(draw_mask)(jax.random.split(set_key, sets))
    chosen = hidden[jax.random.randint(which_key, (length,), 0, sets)]
    return ~chosen & (segments > 0) & ~jnp.eye(length, dtype=bool)

  def build(self, model, packed):
    """Build encoder, head and decoder.

    Raises:
      ConfigError: the decoder's queries need a table of positions as wide as the hidden states, or
        rotary positions, and a [CLS] vector stands for one text.
    """
    super().build(model, packed)
    tables, block = model.embeddings, model.block
    learned = model.max_length and tables.absolute == 'learned'
    rotary = tables.absolute == 'none' and isinstance(block.attention.position, Rope | TwoRopes)
    if packed or tables.width or not (learned or rotary):
      raise ConfigError(
          'the decoder of RetroMAE adds the [CLS] vector to learned positions of the same width, '
          'or rotates it: it is for encoders such as BERT, RoBERTa and ModernBERT, with one text '
          'per sequence')
    return EncoderWithDecoder(
        model.backbone(packed), self.heads(model), decoder=Block(block), model=model,
        decoder_norm=None if block.norm_at == 'post' else block.make_norm('decoder_norm'))

  def module_inputs(self, model):
    del model
    return {'decoded': jax.ShapeDtypeStruct((1, 8), jnp.int32),
            'context': jax.ShapeDtypeStruct((1, 8, 8), jnp.bool_)}

  def step_flops(self, model: Any, length: int) -> int:
    """Count the encoder's FLOPs, and those of one layer and the head at every position."""
    return super().step_flops(model, length) + decoder_flops(model, 1, length, length)

  def accuracy_targets(self, outputs, batch):
    return {'mlm': (batch['labels'], batch['weights']),
            'retro': (batch['decoded'], batch['decoded_weights'])}


@dataclasses.dataclass(frozen=True)
class DupMAE(RetroMAE):
  """RetroMAE, and the bag of words of the text from the vectors of its other tokens.

  RetroMAE v2 (Xiao et al. 2022, arXiv:2211.08769); staoxiao/RetroMAE@ee375876, src/pretrain/
  modeling_duplex.py and data.py, DupMAECollator. The largest masked-LM logit of each token of the
  vocabulary, over all positions but [CLS], is its logit in the bag. As released, the decoder's
  queries are the [CLS] vector embedded at each position: types, norm and dropout are added.
  """

  bag: float = 0.1
  """Factor of the loss of the bag of words (--bow_loss_weight)."""

  @property
  def terms(self) -> Mapping[str, float]:
    return {**super().terms, 'bag': self.bag}

  def build(self, model, packed):
    return super().build(model, packed).clone(duplex=True)

  def step_flops(self, model: Any, length: int) -> int:
    """Count RetroMAE's FLOPs, with the encoder's logits at every position."""
    everywhere = model.forward_flops(length, length)
    masked = model.forward_flops(length, self.max_predictions(length))
    return super().step_flops(model, length) + 3 * (everywhere - masked)

  def loss(self, outputs, batch):
    """Add the cross-entropy of the bag, in which each distinct token of a text of n tokens has the
    share 1 / n (data.py, line 129)."""
    logs = jax.nn.log_softmax(outputs['bag'])
    weights = batch['decoded_weights']
    sizes = weights.sum(-1)
    shares = weights / jnp.maximum(sizes, 1)[:, None]
    rows = jnp.arange(len(logs))[:, None]
    shares = jnp.zeros_like(logs).at[rows, batch['decoded']].max(shares)
    bag = -(shares * logs).sum(), (sizes > 0).astype(jnp.float32).sum()
    return {**super().loss(outputs, batch), 'bag': bag}


class EncoderWithDecoder(nn.Module):
  """An encoder with heads, and RetroMAE's decoder: batch -> {'mlm': logits, 'retro': logits}.

  With `duplex`, also 'bag': logits [batch, vocab]. Parameters: `backbone`, `heads_mlm`, `decoder`,
  and `decoder_norm`, if there is one. The decoder shares embeddings and head with the encoder.
  """

  backbone: nn.Module
  heads: Mapping[str, nn.Module]
  decoder: nn.Module
  model: EncoderConfig
  decoder_norm: nn.Module | None = None
  """final norm of the decoder"""
  duplex: bool = False

  def __call__(self, batch, row_ids=None):
    output = self.backbone(batch, row_ids)
    head = self.heads['mlm']
    cls, text = output.hidden[:, :1], batch['decoded']
    tables = nn.unbox(self.backbone.variables['params']['embeddings'])
    positions = position_ids(text, self.model.padding)
    if self.duplex:
      queries = self.embed_queries(tables, cls, positions, row_ids)
    elif 'positions' in tables:
      queries = cls + tables['positions'][positions].astype(cls.dtype)
    else:
      queries = jnp.broadcast_to(cls, output.decoded.shape)
    seen = jnp.concatenate([cls, output.decoded[:, 1:]], axis=1)
    scheme = self.model.block.attention.position
    context = scheme.context(self, self.model.block, positions, positions)
    mask = AttentionMask(batch['context'][:, None], scheme.layer_context(context, windowed=False))
    h = self.decoder(queries, mask, row_ids=row_ids, kv=seen)
    if self.decoder_norm is not None:
      h = self.decoder_norm(h)
    everywhere = {'tokens': text}  # no positions: a prediction at each
    outputs = {'retro': head(output.replace(hidden=h), everywhere, row_ids)}
    if not self.duplex:
      return {**outputs, 'mlm': head(output, batch, row_ids)}

    logits = head(output, everywhere, row_ids)  # [batch, length, vocab]
    words = (batch['segments'] > 0) & (jnp.arange(text.shape[1]) > 0)
    # By argmax, as in `pooling.pool`: the gradient of max() may find no number that equals it.
    place = jnp.where(words[..., None], logits, -jnp.inf).argmax(1)
    return {**outputs, 'bag': jnp.take_along_axis(logits, place[:, None], 1)[:, 0],
            'mlm': jnp.take_along_axis(logits, batch['positions'][..., None], 1)}

  def embed_queries(self, tables, cls, positions, row_ids):
    """Embed the [CLS] vector [batch, 1, hidden] in place of the tokens at all positions."""
    model = self.model
    rows = model.max_length + model.first_position if 'positions' in tables else 0
    embeddings = Embeddings(
        model.block, model.vocab, 0, rows, model.types,
        norm=model.embeddings.norm or model.block.norm_at == 'post', parent=None)
    tokens = jnp.broadcast_to(cls, (*positions.shape, cls.shape[-1]))
    rngs = {} if row_ids is None else {'dropout': self.make_rng('dropout')}
    queries, _ = embeddings.apply(
        {'params': tables}, tokens, jnp.zeros_like(positions), positions, row_ids, rngs=rngs)
    return queries
