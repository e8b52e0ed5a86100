"""Gemma 2 (Gemma Team 2024, arXiv:2408.00118).

Parameters of the released checkpoints: 2,614,341,888, 9,241,705,984 and 27,227,128,320. Embeddings
are tied, and token vectors are multiplied by the root of the hidden size.

Every other layer, the first one included, has a sliding window of 4,096 tokens. RMSNorm, whose
scale is 1 + its parameter, comes before and after each sublayer. Attention logits have a soft cap
of 50, output logits one of 30 (section 2). GeGLU with the tanh approximation. The initialization of
the weights is not published, here 0.02.
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
from plm_jax.layers.rope import Rope
from plm_jax.layers.stack import StackConfig
from plm_jax.models import llama
from plm_jax.models.bert import ACTIVATIONS
from plm_jax.models.llama import BLOCK, FULL, LAYER, SLIDING
from plm_jax.models.rules import Attribute, ConvertError, Rule, join_rules, replace_defaults

VOCAB, MAX_LENGTH, WINDOWS, LOGIT_CAP = 256_000, 8192, (4096, 0), 30.0


def make_block(
    width: int, heads: int, kv_heads: int | None, mlp_dim: int, dtype: Dtype = 'float32',
    head_size: int | None = 256,
) -> BlockConfig:
  """Make a block of Gemma 2."""
  return BlockConfig(
      width=width, heads=heads, kv_heads=kv_heads, head_size=head_size, mlp_dim=mlp_dim,
      norm_at='both', norm=NormConfig('rms_offset', 1e-6), dropout=0.0, init=NORMAL_INIT,
      dtype=dtype,
      attention=AttentionConfig(bias=(), dropout=0.0, logit_cap=50.0, position=Rope()),
      mlp=MlpConfig(activation='gelu_tanh', gated=True, bias=False))


def make_config(
    layers: int, width: int, heads: int, kv_heads: int, mlp_dim: int, dtype: Dtype = 'float32',
) -> DecoderConfig:
  """Make a Gemma 2 for texts of up to 8,192 tokens, with a vocabulary of 256,000."""
  return DecoderConfig(
      vocab=VOCAB, block=make_block(width, heads, kv_heads, mlp_dim, dtype),
      stack=StackConfig(layers), max_length=MAX_LENGTH, absolute='none', embed_factor=width ** 0.5,
      logit_cap=LOGIT_CAP, windows=WINDOWS)


gemma2_2b = functools.partial(make_config, 26, 2304, 8, 4, 9216)  # 2.61B parameters
gemma2_9b = functools.partial(make_config, 42, 3584, 16, 8, 14_336)  # 9.24B parameters


def gemma2_27b(dtype: Dtype = 'float32') -> DecoderConfig:
  """Make Gemma 2 27B: logits are divided by the root of width / heads. 27.2B parameters."""
  config = make_config(46, 4608, 32, 16, 36_864, dtype)
  block = dataclasses.replace(
      config.block, head_size=128,
      attention=dataclasses.replace(config.block.attention, scale=144 ** -0.5))
  return dataclasses.replace(config, block=block)


DEFAULTS = {
    'vocab_size': 256_000, 'hidden_size': 2304, 'num_hidden_layers': 26, 'num_attention_heads': 8,
    'num_key_value_heads': 4, 'head_dim': 256, 'intermediate_size': 9216,
    'max_position_embeddings': 8192, 'tie_word_embeddings': True}


def normalize_layers(hf_config: Mapping[str, Any], every: int = 2) -> dict[str, Any]:
  """Read sliding windows as `windows`, the factor of logits as `scale`, and that of token vectors.

  Args:
    hf_config: their configuration, with sizes.
    every: where no kinds of layers are stated, each layer of this number has global attention.

  Raises:
    ConvertError: kinds of layers or windows are not known.
  """
  hf_config = dict(hf_config)
  layers, kinds = hf_config['num_hidden_layers'], hf_config.pop('layer_types', None)
  if kinds is None:
    kinds = [SLIDING if (number + 1) % every else FULL for number in range(layers)]
  windows = llama.import_layer_types(kinds, layers, hf_config.pop('sliding_window', 4096))
  scalar = hf_config.pop('query_pre_attn_scalar', 256)
  scale = None if scalar == hf_config['head_dim'] else scalar ** -0.5
  return {**hf_config, 'windows': windows, 'scale': scale,
          'embed_factor': hf_config['hidden_size'] ** 0.5}


def denormalize_layers(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Reverse `normalize_layers`.

  Raises ConvertError for windows of several sizes, and for factors of token vectors and logits that
  they do not have.
  """
  written, width = dict(hf_config), hf_config['hidden_size']
  kinds, size = llama.export_layer_types(written.pop('windows'), written['num_hidden_layers'])
  scale = written.pop('scale')
  scalar = written['head_dim'] if scale is None else round(scale ** -2)
  if scale is not None and abs(scalar ** -0.5 - scale) > 1e-6 * scale:
    raise ConvertError(f'block.attention.scale is {scale}; theirs are 1 / the root of an integer')
  if abs(written.pop('embed_factor') - width ** 0.5) > 1e-6:
    raise ConvertError(f'embed_factor is the root of the hidden size there, {width ** 0.5}')
  return {**written, 'query_pre_attn_scalar': scalar, 'layer_types': kinds,
          'sliding_window': size or 4096}


def normalize_hf_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Read layers as `normalize_layers` and rope as LLaMA does. Raises ConvertError."""
  return llama.normalize_hf_config(normalize_layers({**DEFAULTS, **hf_config}))


def denormalize_hf_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Reverse `normalize_hf_config`. Raises ConvertError."""
  return denormalize_layers(llama.denormalize_hf_config(hf_config))


ATTRIBUTES = (
    *replace_defaults(
        [one for one in llama.FAMILY.attributes
         if one.theirs not in ('hidden_act', 'mlp_bias', 'is_causal')], DEFAULTS),
    Attribute('hidden_activation', 'block.mlp.activation', 'gelu_pytorch_tanh',
              (('gelu_pytorch_tanh', 'gelu_tanh'), *ACTIVATIONS)),
    Attribute('scale', 'block.attention.scale', None),
    Attribute('embed_factor', 'embed_factor', 2304 ** 0.5),
    Attribute('windows', 'windows', ()))
"""attributes that Gemma 3 has, too"""

# transformers' Gemma2.
FAMILY = dataclasses.replace(
    llama.FAMILY,
    name='gemma2',
    config=gemma2_2b(),
    attributes=(
        *ATTRIBUTES,
        Attribute('attn_logit_softcapping', 'block.attention.logit_cap', 50.0),
        Attribute('final_logit_softcapping', 'logit_cap', LOGIT_CAP)),
    fixed={'is_causal': True, 'use_bidirectional_attention': False},
    # The first files also state the activation as hidden_act.
    ignored=frozenset({'cache_implementation', 'hidden_act'}),
    rules=join_rules(
        [rule for rule in llama.FAMILY.rules if '/mlp_norm/' not in rule.ours],
        *(Rule(f'{BLOCK}/{ours}/scale', f'{LAYER}.{theirs}.weight') for ours, theirs in (
            ('attention_out_norm', 'post_attention_layernorm'),
            ('mlp_norm', 'pre_feedforward_layernorm'),
            ('mlp_out_norm', 'post_feedforward_layernorm')))),
    classes={
        'Gemma2Model': (), 'Gemma2ForCausalLM': ('lm',),
        'Gemma2ForSequenceClassification': ('label',), 'Gemma2ForTokenClassification': ('tags',)},
    class_prefixes={},
    normalize_hf_config=normalize_hf_config,
    denormalize_hf_config=denormalize_hf_config,
)
