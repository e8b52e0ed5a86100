"""mT5 (Xue et al. 2021, arXiv:2010.11934): T5 v1.1 with a vocabulary for a hundred languages.

Parameters of the released checkpoints: small 300,176,768, base 582,401,280, large 1,229,581,312, xl
3,742,619,648, xxl 12,921,057,280 (section 3.2: 300M, 580M, 1.2B, 3.7B, 13B).
"""
from collections.abc import Callable, Mapping
import dataclasses
import functools
from typing import Any

from plm_jax.architectures.encoder_decoder import EncoderDecoderConfig
from plm_jax.layers.common import Dtype
from plm_jax.models import t5
from plm_jax.models.rules import ConvertError


def make_config(
    size: Callable[..., EncoderDecoderConfig], dtype: Dtype = 'float32',
) -> EncoderDecoderConfig:
  """Make an mT5 of a size of T5: 250,000 tokens with sentinels, in a table of 250,112 rows."""
  return dataclasses.replace(size(dtype), vocab=250_112)


small = functools.partial(make_config, t5.v1_1_small)  # 300M parameters
base = functools.partial(make_config, t5.v1_1_base)  # 582M parameters
large = functools.partial(make_config, t5.v1_1_large)  # 1.23B parameters
xl = functools.partial(make_config, t5.v1_1_xl)  # 3.74B parameters
xxl = functools.partial(make_config, t5.v1_1_xxl)  # 12.9B parameters
DEFAULTS = {'vocab_size': 250_112, 'd_ff': 1024, 'num_layers': 8, 'num_heads': 6,
            'feed_forward_proj': 'gated-gelu'}


def normalize_hf_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Do the same as T5's; logits are never scaled, whether embeddings are tied or not."""
  classes = [name.removeprefix('M') for name in hf_config.get('architectures') or ()]
  normalized = t5.normalize_hf_config({
      **DEFAULTS, **hf_config, 'architectures': classes, 'scale_decoder_outputs': False})
  if 'architectures' in hf_config:
    normalized['architectures'] = hf_config['architectures']
  return normalized


def denormalize_hf_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Reverse `normalize_hf_config`. Raises ConvertError for logits that are scaled."""
  if hf_config['logit_factor'] != 1:
    raise ConvertError(f'mT5 does not scale logits, got a factor of {hf_config["logit_factor"]}')
  hf_config = t5.denormalize_hf_config(hf_config)
  if not hf_config['is_encoder_decoder']:
    hf_config['architectures'] = ['MT5EncoderModel']
  return hf_config


# transformers' MT5.
FAMILY = dataclasses.replace(
    t5.FAMILY,
    name='mt5',
    config=small(),
    classes={f'M{name}': heads for name, heads in t5.FAMILY.classes.items()},
    class_prefixes={f'M{name}': prefix for name, prefix in t5.FAMILY.class_prefixes.items()},
    normalize_hf_config=normalize_hf_config,
    denormalize_hf_config=denormalize_hf_config,
)
