"""umT5 (Chung et al. 2023, arXiv:2304.09151): mT5 whose layers have position biases of their own.

Its vocabulary has 256,000 tokens and 300 sentinels. Parameters of transformers'
UMT5ForConditionalGeneration with untied embeddings: small 306,601,984, base 592,043,520,
xl 3,768,356,864, xxl 12,972,531,712.
"""
from collections.abc import Callable, Mapping
import dataclasses
import functools
from typing import Any

from plm_jax import validation
from plm_jax.architectures.encoder_decoder import EncoderDecoderConfig
from plm_jax.layers.common import Dtype
from plm_jax.models import mt5, t5
from plm_jax.models.rules import Rule, join_rules

VOCAB = 256_384
"""rows of the table of tokens"""


def make_config(
    size: Callable[..., EncoderDecoderConfig], dtype: Dtype = 'float32',
) -> EncoderDecoderConfig:
  """Make a umT5 of a size of T5: its own vocabulary, and position biases of each layer."""
  config = size(dtype)
  block = validation.with_paths(config.block, {'attention.position.shared': False})
  return dataclasses.replace(config, vocab=VOCAB, block=block)


small = functools.partial(make_config, t5.v1_1_small)  # 307M parameters
base = functools.partial(make_config, t5.v1_1_base)  # 592M parameters
xl = functools.partial(make_config, t5.v1_1_xl)  # 3.77B parameters
xxl = functools.partial(make_config, t5.v1_1_xxl)  # 13.0B parameters


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
