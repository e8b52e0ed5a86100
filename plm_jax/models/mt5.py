"""mT5 (Xue et al. 2021, arXiv:2010.11934): T5 v1.1 with a vocabulary of a hundred languages.

Parameters of the released checkpoints: small 300,176,768, base 582,401,280, large 1,229,581,312, xl 3,742,619,648, xxl
12,921,057,280 (section 3.2: 300M, 580M, 1.2B, 3.7B, 13B).
"""
from collections.abc import Mapping
import dataclasses
from typing import Any

from plm_jax.architectures.encoder_decoder import EncoderDecoderConfig
from plm_jax.conversion.rules import ConvertError
from plm_jax.layers.common import Dtype
from plm_jax.models import t5


def multilingual(config: EncoderDecoderConfig) -> EncoderDecoderConfig:
  """Returns the model with 250,000 pieces, sentinels among them, in a table of 250,112 rows."""
  return dataclasses.replace(config, vocab=250_112)


def small(dtype: Dtype = 'float32') -> EncoderDecoderConfig:
  """Makes mT5 small: 8 and 8 layers of width 512, 300M parameters."""
  return multilingual(t5.v1_1_small(dtype))


def base(dtype: Dtype = 'float32') -> EncoderDecoderConfig:
  """Makes mT5 base: 12 and 12 layers of width 768, 582M parameters."""
  return multilingual(t5.v1_1_base(dtype))


def large(dtype: Dtype = 'float32') -> EncoderDecoderConfig:
  """Makes mT5 large: 24 and 24 layers of width 1024, 1.23B parameters."""
  return multilingual(t5.v1_1_large(dtype))


def xl(dtype: Dtype = 'float32') -> EncoderDecoderConfig:
  """Makes mT5 XL: 24 and 24 layers of width 2048, 3.74B parameters."""
  return multilingual(t5.v1_1_xl(dtype))


def xxl(dtype: Dtype = 'float32') -> EncoderDecoderConfig:
  """Makes mT5 XXL: 24 and 24 layers of width 4096, 12.9B parameters."""
  return multilingual(t5.v1_1_xxl(dtype))


DEFAULTS = {'vocab_size': 250_112, 'd_ff': 1024, 'num_layers': 8, 'num_heads': 6, 'feed_forward_proj': 'gated-gelu'}


def to_current(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Reads T5's configuration; logits are never scaled, whatever is tied."""
  renamed = [name.removeprefix('M') for name in hf_config.get('architectures') or ()]
  found = t5.to_current({**DEFAULTS, **hf_config, 'architectures': renamed, 'scale_decoder_outputs': False})
  return {**found, **({'architectures': hf_config['architectures']} if 'architectures' in hf_config else {})}


def from_current(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Undoes what `to_current` did. Raises ConvertError for logits that are scaled."""
  if hf_config['logit_factor'] != 1:
    raise ConvertError(f'mT5 does not scale logits, got a factor of {hf_config["logit_factor"]}')
  hf_config = t5.from_current(hf_config)
  return {**hf_config, **({} if hf_config['is_encoder_decoder'] else {'architectures': ['MT5EncoderModel']})}


# transformers' MT5.
FAMILY = dataclasses.replace(
    t5.FAMILY,
    name='mt5',
    config=small(),
    classes={f'M{name}': heads for name, heads in t5.FAMILY.classes.items()},
    within={f'M{name}': prefix for name, prefix in t5.FAMILY.within.items()},
    to_current=to_current,
    from_current=from_current,
)
