"""The Transformer (Vaswani et al. 2017, arXiv:1706.03762), for translation.

Parameters (table 3): base 65M, big 213M, with the 37,000 tokens that English and German share
(section 5.1).
"""
from collections.abc import Mapping
import dataclasses
import functools
from typing import Any

from plm_jax.architectures.encoder_decoder import EncoderDecoderConfig
from plm_jax.layers.attention import AttentionConfig
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.init import InitConfig
from plm_jax.layers.mlp import MlpConfig
from plm_jax.layers.norm import NormConfig
from plm_jax.layers.stack import StackConfig
from plm_jax.models import bart
from plm_jax.models.rules import Attribute, ConvertError, replace_defaults


def make_config(
    layers: int, width: int, heads: int, mlp_dim: int, dtype: Dtype = 'float32',
    dropout: float = 0.1,
) -> EncoderDecoderConfig:
  """Make a Transformer with sinusoidal positions and tied embeddings for both languages.

  Token embeddings are multiplied by sqrt(D) (section 3.4). As released, initial weights of matrices
  depend on the mean of inputs and outputs, and those of the embedding table on D.
  """
  block = BlockConfig(
      width=width, heads=heads, mlp_dim=mlp_dim, mlp=MlpConfig(activation='relu'),
      norm=NormConfig(eps=1e-5), dropout=dropout, attention=AttentionConfig(dropout=0.0),
      init=InitConfig(std=width ** -0.5, fan='average', tables='normal', matrices='uniform'),
      dtype=dtype)
  return EncoderDecoderConfig(
      vocab=37_000, block=block, stack=StackConfig(layers), decoder=StackConfig(layers),
      max_length=1024, absolute='sinusoidal', embed_factor=width ** 0.5)


base = functools.partial(make_config, 6, 512, 8, 2048)  # 65M parameters
big = functools.partial(make_config, 6, 1024, 16, 4096, dropout=0.3)  # 213M parameters


def normalize_hf_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Read attributes as BART's. Raises ConvertError for two vocabularies of unequal size."""
  sizes = {hf_config.get('vocab_size', 58_101)}
  sizes.add(hf_config.get('decoder_vocab_size') or min(sizes))
  if hf_config.get('share_encoder_decoder_embeddings') is False and len(sizes) > 1:
    raise ConvertError('Marian with two vocabularies of unequal size is not supported: vocab_size '
                       f'and decoder_vocab_size are {sorted(sizes)}')
  return bart.normalize_hf_config(hf_config)


# transformers' Marian, which is this model. It writes no sinusoidal tables, but older files have
# them.
FAMILY = dataclasses.replace(
    bart.FAMILY,
    name='marian',
    config=base(),
    attributes=(
        *replace_defaults(bart.FAMILY.attributes, {'vocab_size': 58_101}),
        Attribute('share_encoder_decoder_embeddings', 'separate_embeddings', True,
                  ((True, False), (False, True)))),
    fixed={**bart.FAMILY.fixed, 'extra_pos_embeddings': 0, 'normalize_embedding': False,
           'static_position_embeddings': True},
    ignored=bart.FAMILY.ignored | {'decoder_vocab_size'},
    rules=tuple(
        rule for rule in bart.FAMILY.rules if not rule.unused
        and ('/embeddings/' not in rule.ours or rule.ours.endswith('/tokens'))),
    classes={'MarianMTModel': ('lm',), 'MarianModel': ()},
    export_defaults={
        'pad_token_id': 0, 'decoder_start_token_id': 0, 'eos_token_id': 1,
        'forced_eos_token_id': 1},
    normalize_hf_config=normalize_hf_config,
    skip_patterns=(r'embed_positions\.weight$', r'(encoder|decoder)\.version$'),
)
