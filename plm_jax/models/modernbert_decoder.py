"""ModernBERT's decoders: those of Ettin (Weller et al. 2025, arXiv:2507.11412).

They have the sizes and layers of Ettin's encoders (`modernbert`), with causal attention. A sliding
window is of 64 tokens, the token itself included. The LM head has the hidden layer of the encoders'
masked-LM head.
"""
from collections.abc import Mapping
import dataclasses
from typing import Any

from plm_jax.architectures.decoder import Decoder, DecoderConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.heads import HeadConfig, NextTokenConfig, NextTokenHead, PoolingClassifier
from plm_jax.models import bert, gpt2, modernbert
from plm_jax.models.modernbert import BLOCK, LAYER
from plm_jax.models.rules import HeadSpec, dense_rules, join_rules

FIELDS = {'head.bias': 'lm_head.bias', 'head.activation': 'lm_head.activation',
          'head.output_bias': 'lm_head.output_bias'}
"""fields of the encoders' configuration that have another name here"""


def make_config(
    layers: int, width: int, heads: int, mlp_dim: int, dtype: Dtype = 'float32',
) -> DecoderConfig:
  """Make a decoder in a size of `modernbert`, for texts of up to 8,192 tokens."""
  encoder = modernbert.make_config(layers, width, heads, mlp_dim, dtype)
  return DecoderConfig(
      vocab=encoder.vocab, block=encoder.block, stack=encoder.stack, max_length=encoder.max_length,
      absolute='none', windows=encoder.windows, embed_norm=True,
      lm_head=NextTokenConfig(hidden=True, activation='gelu', output_bias=True))


def normalize_hf_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Read windows and ropes as `modernbert` does; sliding_window repeats half of local_attention."""
  hf_config = modernbert.normalize_hf_config(hf_config)
  hf_config.pop('sliding_window', None)
  return hf_config


def make_classifier(config: DecoderConfig, classes: int) -> PoolingClassifier:
  """Make the classification head, which has the hidden layer of the LM head."""
  layer = config.lm_head
  head = HeadConfig(bias=layer.bias, activation=layer.activation, pooling=config.head.pooling)
  return PoolingClassifier(config.block, head, classes, bias=layer.bias)


LM_RULES = tuple(
    dataclasses.replace(rule, ours=rule.ours.replace('heads_mlm', 'heads_lm'))
    for rule in bert.mlm_head_rules('lm_head.dense', 'lm_head.norm', 'decoder', 'decoder.bias'))

# transformers' ModernBertDecoder.
FAMILY = dataclasses.replace(
    modernbert.FAMILY,
    name='modernbert-decoder',
    backbone=lambda config: Decoder(config),
    config=make_config(22, 768, 12, 1152),
    attributes=tuple(
        dataclasses.replace(attribute, ours=FIELDS.get(attribute.ours, attribute.ours))
        for attribute in modernbert.FAMILY.attributes if attribute.ours != 'head.pooling'),
    ignored=modernbert.FAMILY.ignored | {'classifier_pooling', 'causal_mask', 'is_causal'},
    rules=join_rules(
        [rule for rule in modernbert.FAMILY.rules if 'Wqkv' not in rule.theirs],
        *(dense_rules(f'{BLOCK}/attention/{ours}', f'{LAYER}.attn.{theirs}_proj')
          for ours, theirs in (('query', 'q'), ('key', 'k'), ('value', 'v')))),
    heads={
        'lm': HeadSpec(
            lambda config, classes: NextTokenHead(
                config.block, config.vocab, config.tied, config.logit_factor, head=config.lm_head),
            LM_RULES),
        **gpt2.TASK_HEADS,
        'label': dataclasses.replace(modernbert.task_head('label'), make=make_classifier),
    },
    classes={
        'ModernBertDecoderModel': (), 'ModernBertDecoderForCausalLM': ('lm',),
        'ModernBertDecoderForSequenceClassification': ('label',),
    },
    normalize_hf_config=normalize_hf_config,
)
