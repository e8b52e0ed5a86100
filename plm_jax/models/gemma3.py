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

from plm_jax.architectures.decoder import DecoderConfig
from plm_jax.layers.attention import AttentionConfig
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.init import NORMAL_INIT
from plm_jax.layers.mlp import MlpConfig
from plm_jax.layers.norm import NormConfig
from plm_jax.layers.rope import Rope, TwoRopes
from plm_jax.layers.stack import StackConfig
from plm_jax.models import llama, modernbert
from plm_jax.models.bert import ACTIVATIONS
from plm_jax.models.llama import BLOCK, FULL, LAYER, SLIDING
from plm_jax.models.rules import (
  Attribute,
  ConvertError,
  Rule,
  join_rules,
  replace_defaults,
)


def make_config(layers: int, width: int, mlp_dim: int, dtype: Dtype = 'float32') -> DecoderConfig:
  """Make a Gemma 3 with 4 heads of 256, 1 key head and texts of up to 32,768 tokens.

  The vocabulary has 262,144 tokens.
  """
  block = BlockConfig(
      width=width, heads=4, kv_heads=1, head_size=256, mlp_dim=mlp_dim, norm_at='both',
      norm=NormConfig('rms_offset', 1e-6), dropout=0.0, init=NORMAL_INIT, dtype=dtype,
      attention=AttentionConfig(
          bias=(), dropout=0.0, qk_norm=True, position=TwoRopes(Rope(1_000_000.0))),
      mlp=MlpConfig(activation='gelu_tanh', gated=True, bias=False))
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
  """Read sliding windows as `windows`, both ropes as `rope` and the factor of logits as `scale`.

  Raises ConvertError for what is not known.
  """
  hf_config = {**DEFAULTS, **hf_config}
  layers, every = hf_config['num_hidden_layers'], hf_config.pop('sliding_window_pattern', 6)
  kinds = hf_config.pop('layer_types', None)
  if kinds is None:
    kinds = [SLIDING if (number + 1) % every else FULL for number in range(layers)]
  size = hf_config.pop('sliding_window', 4096)
  bidirectional = hf_config.get('use_bidirectional_attention') or False
  if bidirectional and type(size) is int:  # half of the window on each side
    size //= 2
  windows = llama.import_layer_types(kinds, layers, size)

  stated = dict(hf_config.pop('rope_parameters', None) or {})
  scaling = hf_config.pop('rope_scaling', None) or {}
  rope = modernbert.import_two_ropes(
      {**stated, FULL: {**(stated.get(FULL) or {}), **scaling}},
      hf_config.pop('rope_theta', 1_000_000.0), hf_config.pop('rope_local_base_freq', 10_000.0),
      hf_config['max_position_embeddings'])
  scalar = hf_config.pop('query_pre_attn_scalar', 256)
  scale = None if scalar == hf_config['head_dim'] else scalar ** -0.5
  read = llama.normalize_hf_config(
      {**hf_config, 'use_bidirectional_attention': bidirectional})
  return {**read, 'windows': windows, 'rope': rope, 'scale': scale,
          'embed_factor': hf_config['hidden_size'] ** 0.5}


def denormalize_hf_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Reverse `normalize_hf_config`; every version of transformers reads the result.

  Raises ConvertError for windows of several sizes, for factors of token vectors and logits that
  they do not have, and where rope rotates only a share of a head.
  """
  rope, width = hf_config['rope'], hf_config['hidden_size']
  written = llama.denormalize_hf_config({**hf_config, 'rope': rope.whole})
  kinds, size = llama.export_layer_types(written.pop('windows'), written['num_hidden_layers'])
  if written['use_bidirectional_attention']:
    size *= 2
  scale = written.pop('scale')
  scalar = written['head_dim'] if scale is None else round(scale ** -2)
  if scale is not None and abs(scalar ** -0.5 - scale) > 1e-6 * scale:
    raise ConvertError(f'block.attention.scale is {scale}; theirs are 1 / the root of an integer')
  if abs(written.pop('embed_factor') - width ** 0.5) > 1e-6:
    raise ConvertError(f'embed_factor is the root of the hidden size there, {width ** 0.5}')
  return {**written, 'query_pre_attn_scalar': scalar, 'layer_types': kinds,
          'sliding_window': size or 4096, 'rope_local_base_freq': rope.band.theta,
          'rope_parameters': modernbert.export_two_ropes(rope)}


# transformers' Gemma3Text.
FAMILY = dataclasses.replace(
    llama.FAMILY,
    name='gemma3_text',
    config=gemma3_270m(),
    attributes=(
        *replace_defaults(
            [one for one in llama.FAMILY.attributes
             if one.theirs not in ('hidden_act', 'mlp_bias', 'rope', 'is_causal')], DEFAULTS),
        Attribute('use_bidirectional_attention', 'causal', False, ((False, True), (True, False))),
        Attribute('hidden_activation', 'block.mlp.activation', 'gelu_pytorch_tanh',
                  (('gelu_pytorch_tanh', 'gelu_tanh'), *ACTIVATIONS)),
        Attribute('rope', 'block.attention.position', TwoRopes()),
        Attribute('scale', 'block.attention.scale', None),
        Attribute('embed_factor', 'embed_factor', 2304 ** 0.5),
        Attribute('windows', 'windows', ()),
    ),
    fixed={'final_logit_softcapping': None, 'attn_logit_softcapping': None, 'is_causal': True},
    ignored=frozenset({'cache_implementation', '_sliding_window_pattern'}),
    rules=join_rules(
        [rule for rule in llama.FAMILY.rules if '/mlp_norm/' not in rule.ours],
        *(Rule(f'{BLOCK}/{ours}/scale', f'{LAYER}.{theirs}.weight') for ours, theirs in (
            ('attention_out_norm', 'post_attention_layernorm'),
            ('mlp_norm', 'pre_feedforward_layernorm'),
            ('mlp_out_norm', 'post_feedforward_layernorm'),
            ('attention/query_norm', 'self_attn.q_norm'),
            ('attention/key_norm', 'self_attn.k_norm')))),
    classes={
        'Gemma3TextModel': (), 'Gemma3ForCausalLM': ('lm',),
        'Gemma3TextForSequenceClassification': ('label',)},
    class_prefixes={},
    normalize_hf_config=normalize_hf_config,
    denormalize_hf_config=denormalize_hf_config,
)
