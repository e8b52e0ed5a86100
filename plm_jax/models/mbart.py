"""mBART (Liu et al. 2020, arXiv:2001.08210): a multilingual BART with pre-layer normalization.

Parameters of the released checkpoint of 25 languages: 610,851,840 (section 2.2: 680M, where
embedding tables are counted separately). A text ends with the token of its language, and the
decoder begins with that token, too.
"""
import dataclasses

from plm_jax.architectures.encoder_decoder import EncoderDecoderConfig
from plm_jax.layers.common import Dtype
from plm_jax.models import bart


def make_pre_norm(config: EncoderDecoderConfig) -> EncoderDecoderConfig:
  """Move norms before sublayers, with one more after each side (section 2.2).

  Token embeddings are multiplied by sqrt(D), as released.
  """
  block = dataclasses.replace(config.block, norm_at='pre')
  return dataclasses.replace(config, block=block, embed_factor=config.block.width ** 0.5)


def large(dtype: Dtype = 'float32') -> EncoderDecoderConfig:
  """Make mBART of 25 languages: 12 + 12 layers, hidden size 1024, 611M parameters.

  The vocabulary has 250,000 tokens and those of the languages.
  """
  return dataclasses.replace(make_pre_norm(bart.large(dtype)), vocab=250_027)


def large_50(dtype: Dtype = 'float32') -> EncoderDecoderConfig:
  """Make mBART-50 (Tang et al. 2020, arXiv:2008.00401): 27 more language tokens, 611M."""
  return dataclasses.replace(large(dtype), vocab=250_054)


# transformers' MBart.
FAMILY = dataclasses.replace(
    bart.FAMILY,
    name='mbart',
    config=large(),
    fixed={**bart.FAMILY.fixed, 'add_final_layer_norm': True, 'normalize_before': True},
    classes={name.replace('Bart', 'MBart'): heads for name, heads in bart.FAMILY.classes.items()},
    export_defaults={'pad_token_id': 1, 'forced_eos_token_id': 2},
)
