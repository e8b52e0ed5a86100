"""Masked auto-encoding for retrieval (RetroMAE)."""
from collections.abc import Mapping
import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.architectures.encoder import position_ids
from plm_jax.errors import ConfigError
from plm_jax.layers.attention import AttentionMask
from plm_jax.layers.block import Block
from plm_jax.objectives import ParameterLifecycle, Requirements, corruption
from plm_jax.objectives.masking import Distinct, Masking
from plm_jax.objectives.mlm import MaskedLM, classification_losses
from plm_jax.objectives.row_builders import Single
from plm_jax.validation import intervals

MASK_SETS = 256
"""masks of a sequence that its tokens share (src/pretrain/data.py of the released code)"""


@dataclasses.dataclass(frozen=True)
class RetroMAE(MaskedLM):
  """Masked language modeling, and a decoder that reconstructs the text from its [CLS] vector.

  Xiao et al. 2022, sections 3.2 and 3.3; staoxiao/RetroMAE@ee375876, src/pretrain/modeling.py and
  data.py. The decoder is one layer, used in training only. At each position it sees the [CLS]
  vector and, masked for this position, the embeddings of the text, of which its own is always
  hidden. So the vector has to carry what the text means.
  """

  limits = intervals(
      mask_rate='(0, 1)', final_mask_rate='(0, 1)', held_out_mask_rate='(0, 1)',
      mask_share='[0, 1]', random_share='[0, 1]', decoder_mask_rate='(0, 1)')

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

  @property
  def requirements(self) -> Requirements:
    return dataclasses.replace(super().requirements, architectures=('EncoderConfig',))

  @property
  def lifecycle(self) -> ParameterLifecycle:
    return EncoderExport()

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
      ConfigError: the decoder's queries need a table of positions as wide as the hidden states, and
        a [CLS] vector stands for one text.
    """
    super().build(model, packed)
    tables = model.embeddings
    if packed or not model.max_length or tables.absolute != 'learned' or tables.width:
      raise ConfigError(
          'the decoder of RetroMAE adds the [CLS] vector to learned positions of the same width: '
          'it is for encoders such as BERT and RoBERTa, with one text per sequence')
    return EncoderWithDecoder(
        model.backbone(packed), self.heads(model), decoder=Block(model.block),
        padding=model.padding)

  def module_inputs(self, model):
    del model
    return {'decoded': jax.ShapeDtypeStruct((1, 8), jnp.int32),
            'context': jax.ShapeDtypeStruct((1, 8, 8), jnp.bool_)}

  def step_flops(self, model: Any, length: int) -> int:
    """Count the encoder's FLOPs, and those of one layer and the head at every position."""
    one = dataclasses.replace(
        model, stack=dataclasses.replace(model.stack, layers=1), pooler=False)
    return super().step_flops(model, length) + 3 * one.forward_flops(length, length)

  def loss(self, outputs, batch):
    return super().loss(outputs, batch) | classification_losses(
        'retro', outputs['retro'], batch['decoded'], batch['decoded_weights'])

  def accuracy_targets(self, outputs, batch):
    return {'mlm': (batch['labels'], batch['weights']),
            'retro': (batch['decoded'], batch['decoded_weights'])}


class EncoderExport(ParameterLifecycle):
  """Exports the encoder with its masked-LM head, without the decoder."""

  def exported(self, params):
    """Return the parameters without the decoder's."""
    return {name: part for name, part in params.items() if name != 'decoder'}


class EncoderWithDecoder(nn.Module):
  """An encoder with heads, and RetroMAE's decoder: batch -> {'mlm': logits, 'retro': logits}.

  Parameters: `backbone`, `heads_mlm`, `decoder`. The decoder shares embeddings and head with the
  encoder.
  """

  backbone: nn.Module
  heads: Mapping[str, nn.Module]
  decoder: nn.Module
  padding: int

  def __call__(self, batch, row_ids=None):
    output = self.backbone(batch, row_ids)
    head = self.heads['mlm']
    cls, text = output.hidden[:, :1], batch['decoded']
    table = nn.unbox(self.backbone.variables['params']['embeddings']['positions'])
    positions = table[position_ids(text, self.padding)].astype(cls.dtype)
    seen = jnp.concatenate([cls, output.decoded[:, 1:]], axis=1)
    mask = AttentionMask(batch['context'][:, None])
    h = self.decoder(positions + cls, mask, row_ids=row_ids, kv=seen)
    everywhere = {'tokens': text}  # no positions: a prediction at each
    return {'mlm': head(output, batch, row_ids),
            'retro': head(output.replace(hidden=h), everywhere, row_ids)}
