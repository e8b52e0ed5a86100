"""GPT-3 (Brown et al. 2020, arXiv:2005.14165): GPT-2's wiring, layers that see all and layers that see a band in turn.

The eight sizes of table 2.1. Its XL and 13B do not add up to the parameters that table D.1 has of them, 1,320 and
12,850 million; with heads that make up the width (16 of 128, and 40 of 128 for a width of 5,120) they do, and that is
what is here. The paper does not say how wide the band is: 256 tokens here, the token's own among them, as in GPT-Neo.
"""
import dataclasses

from plm_jax.architectures.decoder import DecoderConfig
from plm_jax.layers.common import Dtype
from plm_jax.models import gpt2

BAND = 256


def sized(layers: int, width: int, heads: int, dtype: Dtype = 'float32') -> DecoderConfig:
  """Makes a size with an MLP of four times the width, over 2,048 positions."""
  config = gpt2.sized(layers, width, dtype)
  block = dataclasses.replace(config.block, heads=heads)
  return dataclasses.replace(config, block=block, max_length=2048, windows=(0, BAND))


def small(dtype: Dtype = 'float32') -> DecoderConfig:
  """Makes GPT-3 small: 12 layers of width 768, 125M parameters."""
  return sized(12, 768, 12, dtype)


def medium(dtype: Dtype = 'float32') -> DecoderConfig:
  """Makes GPT-3 medium: 24 layers of width 1024, 356M parameters."""
  return sized(24, 1024, 16, dtype)


def large(dtype: Dtype = 'float32') -> DecoderConfig:
  """Makes GPT-3 large: 24 layers of width 1536, 760M parameters."""
  return sized(24, 1536, 16, dtype)


def xl(dtype: Dtype = 'float32') -> DecoderConfig:
  """Makes GPT-3 XL: 24 layers of width 2048, 1.32B parameters."""
  return sized(24, 2048, 16, dtype)


def b2_7(dtype: Dtype = 'float32') -> DecoderConfig:
  """Makes GPT-3 2.7B: 32 layers of width 2560, 2.65B parameters."""
  return sized(32, 2560, 32, dtype)


def b6_7(dtype: Dtype = 'float32') -> DecoderConfig:
  """Makes GPT-3 6.7B: 32 layers of width 4096, 6.66B parameters."""
  return sized(32, 4096, 32, dtype)


def b13(dtype: Dtype = 'float32') -> DecoderConfig:
  """Makes GPT-3 13B: 40 layers of width 5120, 12.85B parameters."""
  return sized(40, 5120, 40, dtype)


def b175(dtype: Dtype = 'float32') -> DecoderConfig:
  """Makes GPT-3 175B: 96 layers of width 12,288, 174.6B parameters."""
  return sized(96, 12288, 96, dtype)


# Names and layouts of GPT-2, under a model_type of its own: transformers has no such model.
FAMILY = dataclasses.replace(gpt2.FAMILY, name='gpt3', config=small(), classes={'GPT2LMHeadModel': ('lm',)})
