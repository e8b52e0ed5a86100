"""CPT's understanding half (Shao et al. 2021, arXiv:2109.05729): a Chinese BERT that fills masks.

The shared encoder (10 layers for base, 20 for large) and the understanding decoder (2 and 4 more)
are one BERT. All of its tokens have the second segment type, and masked tokens are predicted from
its hidden states without a transform.

The generation decoder, which reads the shared encoder's last layer and is in the same file, is left
out. This model fills masks, encodes texts and is fine-tuned, as the paper's CPT_u.
"""
from collections.abc import Callable, Mapping
import dataclasses
import functools
from typing import Any

from plm_jax import validation
from plm_jax.architectures.encoder import Encoder, EncoderConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.heads import (
    AnswerSpanHead,
    FirstTokenClassifier,
    HeadConfig,
    MaskedLMHead,
    TokenClassifier,
)
from plm_jax.layers.init import NORMAL_INIT
from plm_jax.models import bert
from plm_jax.models.layouts import RowVector, Same
from plm_jax.models.rules import Attribute, Family, HeadSpec, Rule, dense_rules, join_rules


def make_config(
    size: Callable[..., EncoderConfig], dtype: Dtype = 'float32') -> EncoderConfig:
  """Make a Chinese BERT of this size: one segment type, a masked-LM head without transform."""
  return validation.with_paths(size(dtype), {
      'vocab': 51_271, 'max_length': 1024, 'pooler': False, 'embeddings.types': 1,
      'head': HeadConfig(transform=False, output_bias=False), 'block.init': NORMAL_INIT})


# The halves of the models of December 2022: 10 + 2 and 20 + 4 layers.
base = functools.partial(make_config, bert.base)
large = functools.partial(make_config, bert.large)


@dataclasses.dataclass(frozen=True)
class SecondRow(Same):
  """Layout of segment types: their table has two rows, and ours is the second of them.

  No model uses the first row; an export writes it equal to the second.
  """

  def export_shape(self, ours):
    return (2, *ours[1:])

  def export_array(self, x):
    return x.repeat(2, 0)

  def export_index(self, index, shape):
    del shape
    return (slice(1, 2), *index[1:]), index


def normalize_hf_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Keep the attributes of the encoder, whose dropout is called activation_dropout."""
  return {name: value for name, value in hf_config.items()
          if not name.startswith('decoder_') and name != 'is_encoder_decoder'}


def denormalize_hf_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Add the attributes of a generation decoder without layers."""
  return {
      **hf_config, 'decoder_layers': 0,
      'decoder_attention_heads': hf_config['encoder_attention_heads'],
      'decoder_ffn_dim': hf_config['encoder_ffn_dim'], 'is_encoder_decoder': True}


def infer_output_bias(config: EncoderConfig, names: Any) -> EncoderConfig:
  """Give the head a bias of logits if the file has one; released files have none."""
  return validation.with_paths(config, {'head.output_bias': 'final_logits_bias' in names})


def rename_rule(rule: Rule) -> Rule:
  """Rename a parameter of BERT; segment types get the layout `SecondRow`."""
  layout = SecondRow() if rule.ours == 'backbone/embeddings/types' else rule.layout
  theirs = rule.theirs.replace('bert.', 'model.encoder.', 1)
  return dataclasses.replace(rule, theirs=theirs, layout=layout)


CLASSES = {'CPTModel': (), 'CPTForMaskedLM': ('mlm',), 'CPTForConditionalGeneration': ('mlm',),
           'CPTForSequenceClassification': ('label',), 'CPTForQuestionAnswering': ('span',)}
# fastnlp/CPT, finetune/modeling_cpt.py, whose config.json has the model_type bart.
FAMILY = Family(
    name='cpt',
    backbone=lambda config: Encoder(config),
    config=base(),
    attributes=(
        Attribute('vocab_size', 'vocab', 51_271),
        Attribute('d_model', 'block.width', 768),
        Attribute('encoder_layers', 'stack.layers', 12),
        Attribute('encoder_attention_heads', 'block.heads', 12),
        Attribute('encoder_ffn_dim', 'block.mlp_dim', 3072),
        Attribute('activation_dropout', 'block.dropout', 0.1),
        Attribute('attention_dropout', 'block.attention.dropout', 0.1),
        Attribute('init_std', 'block.init.std', 0.02),
        Attribute('max_position_embeddings', 'max_length', 1024),
    ),
    # The encoder is a BertModel, whose activation is gelu whatever the decoder has.
    fixed={'activation_function': 'gelu', 'add_bias_logits': False, 'add_final_layer_norm': False,
           'normalize_before': False, 'normalize_embedding': True, 'scale_embedding': False,
           'cls_mode': 1},
    ignored=frozenset({
        'classif_dropout', 'decoder_layerdrop', 'dropout', 'encoder_layerdrop', 'hidden_size',
        'num_attention_heads', 'num_hidden_layers'}),
    rules=join_rules(
        [rename_rule(rule) for rule in bert.FAMILY.rules if '/pooler/' not in rule.ours],
        Rule('backbone/embeddings/tokens', 'model.shared.weight', copy=True),
    ),
    part_tensors={},
    heads={
        'mlm': HeadSpec(
            lambda config, classes: MaskedLMHead(config.block, config.tied, config.head),
            (
                Rule('backbone/embeddings/tokens', 'lm_head.weight', copy=True),
                Rule('heads_mlm/bias', 'final_logits_bias', RowVector(),
                     applies_to=lambda config: config.head.output_bias))),
        'label': HeadSpec(
            lambda config, classes: FirstTokenClassifier(config.block, classes),
            join_rules(
                dense_rules('heads_label/hidden', 'cls_head.dense'),
                dense_rules('heads_label/dense', 'cls_head.out_proj')),
            dropout='classifier_dropout'),
        'tags': HeadSpec(
            lambda config, classes: TokenClassifier(config.block, classes),
            bert.FAMILY.heads['tags'].rules),
        'span': HeadSpec(
            lambda config, classes: AnswerSpanHead(config.block), bert.FAMILY.heads['span'].rules),
    },
    classes=CLASSES,
    extra_heads=frozenset({'tags'}),
    prefix='model.',
    aliases=((r'^(shared|encoder|decoder)\.', r'model.\1.'),),
    usage='modeling_cpt.py of fastnlp/CPT has its classes; here there is no generation decoder',
    skip_patterns=(r'^(model\.)?decoder\.', r'^encoder\.version$'),
    normalize_hf_config=normalize_hf_config,
    denormalize_hf_config=denormalize_hf_config,
    infer_from_tensors=infer_output_bias,
)
