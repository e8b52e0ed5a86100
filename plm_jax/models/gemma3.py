"""Gemma 3 (Gemma Team 2025, arXiv:2503.19786): the text models of 270M and 1B.

Parameters of the released checkpoints: 268,098,176, of which 168M are embeddings, and 999,885,952,
of which 302M are embeddings (table 1). Embeddings are tied, and token vectors are multiplied by the
root of the hidden size.

Five layers of six have a sliding window of 512 tokens, the token itself included, and another rope
base than the layers with global attention. RMSNorm, whose scale is 1 + its parameter, comes before
and after each sublayer, and normalizes the queries and keys of each head (QK-norm). GeGLU with the
tanh approximation. The initialization of the weights is not published, here 0.02.
"""
from collections.abc import Mapping
import dataclasses
import functools
from typing import Any

from plm_jax import validation
from plm_jax.architectures.decoder import DecoderConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.rope import Rope, TwoRopes
from plm_jax.layers.stack import StackConfig
from plm_jax.models import gemma2, llama, modernbert
from plm_jax.models.llama import BLOCK, FULL, LAYER
from plm_jax.models.rules import Attribute, Rule, join_rules, replace_defaults


def make_config(layers: int, width: int, mlp_dim: int, dtype: Dtype = 'float32') -> DecoderConfig:
  """Make a Gemma 3 with 4 heads of 256, 1 key head and texts of up to 32,768 tokens.

  The vocabulary has 262,144 tokens.
  """
  block = validation.with_paths(gemma2.make_block(width, 4, 1, mlp_dim, dtype), {
      'attention.logit_cap': None, 'attention.qk_norm': True,
      'attention.position': TwoRopes(Rope(1_000_000.0))})
  return DecoderConfig(
      vocab=262_144, block=block, stack=StackConfig(layers), max_length=32_768, absolute='none',
      embed_factor=width ** 0.5, windows=(512, 512, 512, 512, 512, 0))


gemma3_270m = functools.partial(make_config, 18, 640, 2048)  # 268M parameters
gemma3_1b = functools.partial(make_config, 26, 1152, 6912)  # 1.00B parameters


DEFAULTS = {
    'vocab_size': 262_208, 'hidden_size': 2304, 'num_hidden_layers': 26, 'num_attention_heads': 8,
    'num_key_value_heads': 4, 'head_dim': 256, 'intermediate_size': 9216,
    'max_position_embeddings': 131_072, 'tie_word_embeddings': True}


def normalize_hf_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Read layers as Gemma 2's, and both ropes as `rope`. Raises ConvertError."""
  hf_config = {**DEFAULTS, **hf_config}
  size = hf_config.get('sliding_window', 4096)
  bidirectional = hf_config.get('use_bidirectional_attention') or False
  if bidirectional and type(size) is int:  # half of the window on each side
    size //= 2
  every = hf_config.pop('sliding_window_pattern', 6)
  hf_config = gemma2.normalize_layers(
      {**hf_config, 'sliding_window': size, 'use_bidirectional_attention': bidirectional}, every)
  stated = dict(hf_config.pop('rope_parameters', None) or {})
  scaling = hf_config.pop('rope_scaling', None) or {}
  rope = modernbert.import_two_ropes(
      {**stated, FULL: {**(stated.get(FULL) or {}), **scaling}},
      hf_config.pop('rope_theta', 1_000_000.0), hf_config.pop('rope_local_base_freq', 10_000.0),
      hf_config['max_position_embeddings'])
  return {**llama.normalize_hf_config(hf_config), 'rope': rope}


def denormalize_hf_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Reverse `normalize_hf_config`; every version of transformers reads the result.

  Raises ConvertError for what `gemma2.denormalize_layers` refuses, and where rope rotates only a
  share of a head.
  """
  rope = hf_config['rope']
  written = llama.denormalize_hf_config({**hf_config, 'rope': rope.whole})
  written = gemma2.denormalize_layers(written)
  if written['use_bidirectional_attention']:
    written['sliding_window'] *= 2
  return {**written, 'rope_local_base_freq': rope.band.theta,
          'rope_parameters': modernbert.export_two_ropes(rope)}


# transformers' Gemma3Text.
FAMILY = dataclasses.replace(
    gemma2.FAMILY,
    name='gemma3_text',
    config=gemma3_270m(),
    attributes=(
        *replace_defaults(
            [dataclasses.replace(one, default=TwoRopes()) if one.theirs == 'rope' else one
             for one in gemma2.ATTRIBUTES], DEFAULTS),
        Attribute('use_bidirectional_attention', 'causal', False, ((False, True), (True, False)))),
    fixed={'final_logit_softcapping': None, 'attn_logit_softcapping': None, 'is_causal': True},
    ignored=frozenset({'cache_implementation', '_sliding_window_pattern'}),
    rules=join_rules(
        gemma2.FAMILY.rules,
        Rule(f'{BLOCK}/attention/query_norm/scale', f'{LAYER}.self_attn.q_norm.weight'),
        Rule(f'{BLOCK}/attention/key_norm/scale', f'{LAYER}.self_attn.k_norm.weight')),
    classes={
        'Gemma3TextModel': (), 'Gemma3ForCausalLM': ('lm',),
        'Gemma3TextForSequenceClassification': ('label',)},
    normalize_hf_config=normalize_hf_config,
    denormalize_hf_config=denormalize_hf_config,
)
