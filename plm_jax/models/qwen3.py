"""Qwen3 (Yang et al. 2025, arXiv:2505.09388): the dense models.

Parameters as published (table 1 and model cards), with those outside of the embeddings: 0.6B
(0.44B), 1.7B (1.4B), 4.0B (3.6B) and 8.2B (6.95B). Up to 4B, embeddings are tied.

LLaMA's layers with grouped keys and values and heads of 128 numbers, whatever the hidden size. The
queries and keys of each head are normalized before the rotary positions (QK-norm). transformers has
layers with a sliding window, which no released model has.
"""
from collections.abc import Mapping
import functools
from typing import Any

from plm_jax import validation
from plm_jax.architectures.decoder import DecoderConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.init import NORMAL_INIT
from plm_jax.layers.rope import Rope
from plm_jax.models import llama
from plm_jax.models.llama import BLOCK, FULL, LAYER, SLIDING
from plm_jax.models.rules import Attribute, Rule, join_rules, replace_defaults


def make_config(
    layers: int, width: int, heads: int, mlp_dim: int, dtype: Dtype = 'float32', tied: bool = True,
) -> DecoderConfig:
  """Make a Qwen3 with 151,936 tokens, 8 key heads and texts of up to 32,768 tokens."""
  config = llama.make_config(layers, width, heads, mlp_dim, dtype)
  return validation.with_paths(config, {
      'vocab': 151_936, 'max_length': 32_768, 'tied': tied, 'block.kv_heads': 8,
      'block.head_size': None if width == 128 * heads else 128, 'block.init': NORMAL_INIT,
      'block.attention.qk_norm': True, 'block.attention.position': Rope(1_000_000.0)})


qwen3_0_6b = functools.partial(make_config, 28, 1024, 16, 3072)  # 596M parameters
qwen3_1_7b = functools.partial(make_config, 28, 2048, 16, 6144)  # 1.72B parameters
qwen3_4b = functools.partial(make_config, 36, 2560, 32, 9728)  # 4.02B parameters
qwen3_8b = functools.partial(make_config, 36, 4096, 32, 12_288, tied=False)  # 8.19B parameters


DEFAULTS = {
    'vocab_size': 151_936, 'intermediate_size': 22_016, 'max_position_embeddings': 32_768,
    'head_dim': 128}


def normalize_hf_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Read sliding windows as `windows`, and rope as LLaMA's."""
  hf_config = {'num_hidden_layers': 32, **DEFAULTS, **hf_config}
  layers, first = hf_config['num_hidden_layers'], hf_config.pop('max_window_layers', 28)
  size = hf_config.pop('sliding_window', 4096)
  if not hf_config.pop('use_sliding_window', False):
    size = None
  kinds = hf_config.pop('layer_types', None)
  if kinds is None:
    kinds = [SLIDING if size and number >= first else FULL for number in range(layers)]
  windows = llama.import_layer_types(kinds, layers, size)
  return llama.normalize_hf_config({**hf_config, 'windows': windows})


def denormalize_hf_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Reverse `normalize_hf_config`; every version of transformers reads the result.

  Raises ConvertError for windows of several sizes, and where rope rotates only a share of a head.
  """
  hf_config = llama.denormalize_hf_config(hf_config)
  kinds, size = llama.export_layer_types(hf_config.pop('windows'), hf_config['num_hidden_layers'])
  # Older versions of transformers know only windows from some layer on.
  return {**hf_config, 'layer_types': kinds, 'use_sliding_window': size > 0,
          'sliding_window': size or None, 'max_window_layers': (*kinds, SLIDING).index(SLIDING)}


# transformers' Qwen3.
FAMILY = llama.derive_family(
    'qwen3', 'Qwen3',
    config=qwen3_0_6b(),
    attributes=(
        *replace_defaults(
            [one for one in llama.FAMILY.attributes if one.theirs != 'mlp_bias'], DEFAULTS),
        Attribute('windows', 'windows', ()),
    ),
    rules=join_rules(
        llama.FAMILY.rules,
        Rule(f'{BLOCK}/attention/query_norm/scale', f'{LAYER}.self_attn.q_norm.weight'),
        Rule(f'{BLOCK}/attention/key_norm/scale', f'{LAYER}.self_attn.k_norm.weight')),
    normalize_hf_config=normalize_hf_config,
    denormalize_hf_config=denormalize_hf_config,
)
