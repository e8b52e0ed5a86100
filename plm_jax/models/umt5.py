"""umT5 (Chung et al. 2023, arXiv:2304.09151): mT5 whose layers have position biases of their own.

Its vocabulary has 256,000 tokens and 300 sentinels. Parameters of transformers'
UMT5ForConditionalGeneration with untied embeddings: small 306,601,984, base 592,043,520,
xl 3,768,356,864, xxl 12,972,531,712.
"""
from collections.abc import Mapping
import dataclasses
from typing import Any

from plm_jax import validation
from plm_jax.architectures.encoder_decoder import EncoderDecoderConfig
from plm_jax.layers.common import Dtype
from plm_jax.models import mt5, t5
from plm_jax.models.rules import Rule, join_rules

VOCAB = 256_384
"""rows of the table of tokens"""


def separate_biases(config: EncoderDecoderConfig) -> EncoderDecoderConfig:
  """Give a T5 umT5's vocabulary, and each layer its own position biases."""
  block = validation.with_paths(config.block, {'attention.position.shared': False})
  return dataclasses.replace(config, vocab=VOCAB, block=block)


def small(dtype: Dtype = 'float32') -> EncoderDecoderConfig:
  """Make umT5 small: 8 + 8 layers, hidden size 512, 307M parameters."""
  return separate_biases(t5.v1_1_small(dtype))


def base(dtype: Dtype = 'float32') -> EncoderDecoderConfig:
  """Make umT5 base: 12 + 12 layers, hidden size 768, 592M parameters."""
  return separate_biases(t5.v1_1_base(dtype))


def xl(dtype: Dtype = 'float32') -> EncoderDecoderConfig:
  """Make umT5 XL: 24 + 24 layers, hidden size 2048, 3.77B parameters."""
  return separate_biases(t5.v1_1_xl(dtype))


def xxl(dtype: Dtype = 'float32') -> EncoderDecoderConfig:
  """Make umT5 XXL: 24 + 24 layers, hidden size 4096, 13.0B parameters."""
  return separate_biases(t5.v1_1_xxl(dtype))


def normalize_hf_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Do the same as T5's, with umT5's classes and defaults."""
  classes = [name.removeprefix('UM') for name in hf_config.get('architectures') or ()]
  normalized = t5.normalize_hf_config({**mt5.DEFAULTS, **hf_config, 'architectures': classes})
  if 'architectures' in hf_config:
    normalized['architectures'] = hf_config['architectures']
  return normalized


def denormalize_hf_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Reverse `normalize_hf_config`."""
  hf_config = t5.denormalize_hf_config(hf_config)
  if not hf_config['is_encoder_decoder']:
    hf_config['architectures'] = ['UMT5EncoderModel']
  return hf_config


# transformers' UMT5.
FAMILY = dataclasses.replace(
    t5.FAMILY,
    name='umt5',
    config=small(),
    ignored=t5.FAMILY.ignored | {'scalable_attention'},
    rules=join_rules(
        Rule('backbone/tokens', 'shared.weight'),
        t5.side_rules('encoder', shared=False),
        t5.side_rules('decoder', shared=False)),
    classes={f'UM{name}': heads for name, heads in t5.FAMILY.classes.items()},
    class_prefixes={f'UM{name}': prefix for name, prefix in t5.FAMILY.class_prefixes.items()},
    normalize_hf_config=normalize_hf_config,
    denormalize_hf_config=denormalize_hf_config,
)
