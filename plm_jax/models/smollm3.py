"""SmolLM2 (Ben Allal et al. 2025, arXiv:2502.02737) and SmolLM3 (huggingface.co/blog/smollm3).

Parameters of the released checkpoints: SmolLM2 134,515,008, 361,821,120 and 1,711,376,384,
published as 135M, 360M and 1.7B; SmolLM3 3,075,098,624, published as 3B. Embeddings are tied.

SmolLM2 is LLaMA's architecture, and its files are of that family. In SmolLM3 every fourth layer has
no positions (NoPE; Yang et al. 2025, arXiv:2501.18795). transformers can give these layers a
sliding window, which the released model has not. Initial weights of output projections are divided
by sqrt(2 * layers), as in nanotron, which trained these models.
"""
from collections.abc import Mapping
import functools
from typing import Any

from plm_jax import validation
from plm_jax.architectures.decoder import DecoderConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.init import InitConfig
from plm_jax.layers.rope import Rope
from plm_jax.models import gpt2, llama
from plm_jax.models.llama import FULL, SLIDING
from plm_jax.models.rules import Attribute, ConvertError, replace_defaults


def make_config(
    layers: int, width: int, heads: int, kv_heads: int | None, mlp_dim: int, std: float,
    dtype: Dtype = 'float32',
) -> DecoderConfig:
  """Make a SmolLM2 with 49,152 tokens, for texts of up to 8,192 tokens.

  Args:
    layers: number of layers.
    width: hidden size.
    heads: number of attention heads.
    kv_heads: number of heads of keys and values; None: as many as `heads`.
    mlp_dim: width of the SwiGLU.
    std: standard deviation of initial weights.
    dtype: compute dtype.
  """
  config = llama.make_config(layers, width, heads, mlp_dim, dtype)
  init = InitConfig(std, std * (2 * layers) ** -0.5, tables='normal', matrices='normal')
  return validation.with_paths(config, {
      'vocab': 49_152, 'max_length': 8192, 'tied': True, 'block.kv_heads': kv_heads,
      'block.norm.eps': 1e-5, 'block.init': init, 'block.attention.position': Rope(100_000.0)})


smollm2_135m = functools.partial(make_config, 30, 576, 9, 3, 1536, 576 ** -0.5)  # 134.5M parameters
smollm2_360m = functools.partial(make_config, 32, 960, 15, 5, 2560, 0.03227)  # 361.8M parameters


def smollm2_1_7b(dtype: Dtype = 'float32') -> DecoderConfig:
  """Make the largest SmolLM2: 24 layers, hidden size 2,048, 1.71B parameters."""
  config = make_config(24, 2048, 32, None, 8192, 0.02, dtype)
  return validation.with_paths(config, {'block.attention.position': Rope(130_000.0)})


def smollm3_3b(dtype: Dtype = 'float32') -> DecoderConfig:
  """Make SmolLM3: 36 layers, hidden size 2,048, 3.08B parameters, for up to 65,536 tokens."""
  config = make_config(36, 2048, 16, 4, 11_008, 0.02, dtype)
  return validation.with_paths(config, {
      'vocab': 128_256, 'max_length': 65_536, 'block.norm.eps': 1e-6,
      'block.attention.position': Rope(5_000_000.0), 'rotated': (True, True, True, False)})


DEFAULTS = {
    'vocab_size': 128_256, 'hidden_size': 2048, 'intermediate_size': 11_008,
    'num_hidden_layers': 36, 'num_attention_heads': 16, 'num_key_value_heads': 4,
    'max_position_embeddings': 32_768, 'tie_word_embeddings': True}


def normalize_hf_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Read layers without rope as `rotated`, sliding windows as `windows`, and rope as LLaMA's.

  Raises ConvertError for what is not known.
  """
  hf_config = {**DEFAULTS, 'rope_theta': 2_000_000.0, **hf_config}
  layers = hf_config['num_hidden_layers']

  # Layers without rope.
  every, flags = hf_config.pop('no_rope_layer_interval', 4), hf_config.pop('no_rope_layers', None)
  if flags is None:
    flags = [int((number + 1) % every != 0) for number in range(layers)]
  if not isinstance(flags, list) or len(flags) < layers or set(flags) - {0, 1}:
    raise ConvertError(f'cannot convert the configuration: no_rope_layers is {str(flags)[:200]}, '
                       f'expected 0 or 1 for each of {layers} layers')
  rotated = gpt2.shortest_period([bool(flag) for flag in flags[:layers]])

  # Sliding windows.
  size = hf_config.pop('sliding_window', None)
  if not hf_config.pop('use_sliding_window', False):
    size = None
  kinds = hf_config.pop('layer_types', None)
  if kinds is None:
    kinds = [SLIDING if size and not flag else FULL for flag in flags[:layers]]
  return llama.normalize_hf_config({
      **hf_config, 'rotated': () if all(rotated) else rotated,
      'windows': llama.import_layer_types(kinds, layers, size)})


def denormalize_hf_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Reverse `normalize_hf_config`.

  Raises ConvertError for windows of several sizes, and where rope rotates only a share of a head.
  """
  hf_config = llama.denormalize_hf_config(hf_config)
  layers, rotated = hf_config['num_hidden_layers'], hf_config.pop('rotated') or (True,)
  kinds, size = llama.export_layer_types(hf_config.pop('windows'), layers)
  return {**hf_config, 'layer_types': kinds, 'use_sliding_window': size > 0,
          'sliding_window': size or None,
          'no_rope_layers': [int(rotated[number % len(rotated)]) for number in range(layers)]}


# transformers' SmolLM3.
FAMILY = llama.derive_family(
    'smollm3', 'SmolLM3',
    config=smollm3_3b(),
    ignored=llama.FAMILY.ignored | {'max_window_layers'},
    attributes=(
        *replace_defaults(llama.FAMILY.attributes, DEFAULTS),
        Attribute('windows', 'windows', ()),
        Attribute('rotated', 'rotated', ()),
    ),
    normalize_hf_config=normalize_hf_config,
    denormalize_hf_config=denormalize_hf_config,
)
