"""GPT-3 (Brown et al. 2020, arXiv:2005.14165): GPT-2 with alternating full and local attention.

The eight sizes are those of table 2.1. Its XL and 13B do not add up to the parameters in table D.1,
1,320 and 12,850 million. With heads that make up the hidden size (16 of 128, and 40 of 128 for a
hidden size of 5,120) they do, and those are the sizes here. The paper does not state the size of
the sliding window: 256 tokens here, the token itself included, as in GPT-Neo.
"""
import dataclasses
import functools

from plm_jax.architectures.decoder import DecoderConfig
from plm_jax.layers.common import Dtype
from plm_jax.models import gpt2

WINDOW = 256


def make_config(layers: int, width: int, heads: int, dtype: Dtype = 'float32') -> DecoderConfig:
  """Make a GPT-3 with an MLP of 4 x hidden size and 2,048 positions."""
  config = gpt2.make_config(layers, width, dtype)
  block = dataclasses.replace(config.block, heads=heads)
  return dataclasses.replace(config, block=block, max_length=2048, windows=(0, WINDOW))


small = functools.partial(make_config, 12, 768, 12)  # 125M parameters
medium = functools.partial(make_config, 24, 1024, 16)  # 356M parameters
large = functools.partial(make_config, 24, 1536, 16)  # 760M parameters
xl = functools.partial(make_config, 24, 2048, 16)  # 1.32B parameters
gpt3_2_7b = functools.partial(make_config, 32, 2560, 32)  # 2.65B parameters
gpt3_6_7b = functools.partial(make_config, 32, 4096, 32)  # 6.66B parameters
gpt3_13b = functools.partial(make_config, 40, 5120, 40)  # 12.85B parameters
gpt3_175b = functools.partial(make_config, 96, 12288, 96)  # 174.6B parameters


# Names and layouts of GPT-2 under a model_type of its own, because transformers has no GPT-3.
FAMILY = dataclasses.replace(
    gpt2.FAMILY, name='gpt3', config=small(), classes={'GPT2LMHeadModel': ('lm',)})
