"""Masked language modeling whose head reads the [CLS] vector (Condenser)."""
from collections.abc import Mapping
import dataclasses
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from plm_jax.architectures.encoder import position_ids
from plm_jax.errors import ConfigError, name_field
from plm_jax.layers.attention import AttentionMask
from plm_jax.layers.masks import encoder_attention_mask
from plm_jax.layers.stack import Stack, StackConfig
from plm_jax.objectives import ParameterLifecycle, Requirements
from plm_jax.objectives.masking import Distinct, Masking
from plm_jax.objectives.mlm import MaskedLM, classification_losses
from plm_jax.objectives.retro_mae import EncoderExport
from plm_jax.objectives.row_builders import Single
from plm_jax.validation import intervals


@dataclasses.dataclass(frozen=True)
class Condenser(MaskedLM):
  """Masked language modeling from the [CLS] vector of the last layer and tokens of an early one.

  Gao and Callan 2021, section 3; luyug/Condenser@74880ab8, modeling.py. Layers of a head, used in
  training only, read both. What late layers have learned of the text reaches the predictions of the
  head through the [CLS] vector alone.
  """

  limits = intervals(
      mask_rate='(0, 1)', final_mask_rate='(0, 1)', held_out_mask_rate='(0, 1)',
      mask_share='[0, 1]', random_share='[0, 1]', head_layers='[1, inf)', early='[0, 1]')

  pair: Single = Single()
  """How text becomes sequences."""
  masking: Masking = Distinct(unit='word')
  """How the tokens to predict are sampled."""
  head_layers: int = 2
  """Number of layers of the head (--n_head_layers)."""
  early: float = 0.5
  """Depth of the layer whose tokens the head reads, as a fraction of all layers (--skip_from 6 of
  12). 0: the embeddings."""
  late: float = 1.0
  """Factor of the loss of the encoder's own predictions (--late_mlm). 0: only the head predicts."""

  @property
  def terms(self) -> Mapping[str, float]:
    return {**super().terms, 'mlm': self.late, 'condenser': 1.0}

  @property
  def requirements(self) -> Requirements:
    return dataclasses.replace(super().requirements, architectures=('EncoderConfig',))

  @property
  def lifecycle(self) -> ParameterLifecycle:
    return EncoderExport()

  def build(self, model, packed):
    """Build encoder, head and layers of the head.

    Raises:
      ConfigError: states inside the encoder are not normalized, or a sequence has several texts.
    """
    super().build(model, packed)
    if packed or model.block.norm_at != 'post' or model.windows:
      raise ConfigError(
          'the head of Condenser joins states of two layers, both after their norm '
          f'({name_field("model.block.norm_at")}=post), of one text per sequence: it is for '
          'encoders such as BERT and RoBERTa')
    layers = Stack(model.block, StackConfig(self.head_layers))
    depth = round(self.early * model.stack.blocks)
    return EncoderWithLayers(
        model.backbone(packed), self.heads(model), decoder=layers, depth=depth,
        padding=model.padding)

  def step_flops(self, model: Any, length: int) -> int:
    """Count the FLOPs of the encoder and of the layers of the head, with logits of both."""
    stack = dataclasses.replace(model.stack, layers=self.head_layers)
    head = dataclasses.replace(model, stack=stack, pooler=False)
    predicted = self.max_predictions(length)
    return super().step_flops(model, length) + 3 * head.forward_flops(length, predicted)

  def loss(self, outputs, batch):
    return super().loss(outputs, batch) | classification_losses(
        'condenser', outputs['condenser'], batch['labels'], batch['weights'])

  def accuracy_targets(self, outputs, batch):
    return dict.fromkeys(('mlm', 'condenser'), (batch['labels'], batch['weights']))


class EncoderWithLayers(nn.Module):
  """An encoder with heads, and layers after it: batch -> {'mlm': logits, 'condenser': logits}.

  Parameters: `backbone`, `heads_mlm`, `decoder`.
  """

  backbone: nn.Module
  heads: Mapping[str, nn.Module]
  decoder: nn.Module
  depth: int
  padding: int

  def __call__(self, batch, row_ids=None):
    output = self.backbone(batch, row_ids, within=True)
    head, inside = self.heads['mlm'], output.inside
    early = inside.hidden[self.depth - 1] if self.depth else inside.embedded
    h = jnp.concatenate([output.hidden[:, :1], early[:, 1:]], axis=1)
    mask = AttentionMask(encoder_attention_mask(batch, packed=False))
    h, _ = self.decoder(h, mask, position_ids(batch['tokens'], self.padding), row_ids=row_ids)
    return {'mlm': head(output, batch, row_ids),
            'condenser': head(output.replace(hidden=h), batch, row_ids)}
