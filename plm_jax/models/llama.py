"""LLaMA (Touvron et al. 2023, arXiv:2302.13971), LLaMA 2 (arXiv:2307.09288) and LLaMA 3 (Dubey et al. 2024,
arXiv:2407.21783).

Parameters as released: LLaMA 6.7B, 13.0B, 32.5B and 65.2B (table 2). The table of embeddings and the output matrix are
two, but for the smallest of LLaMA 3.2. Rope's pairs lie as transformers has them, half a head apart.
"""
from collections.abc import Mapping
import dataclasses
import math
from typing import Any

from plm_jax import checked
from plm_jax.architectures.decoder import Decoder, DecoderConfig
from plm_jax.conversion.rules import Attribute, ConvertError, Family, Rule
from plm_jax.layers.attention import AttentionConfig
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.mlp import MlpConfig
from plm_jax.layers.norm import NormConfig
from plm_jax.layers.rope import DynamicScaling, LinearScaling, Llama3Scaling, Rope, Unscaled, YarnScaling
from plm_jax.layers.stack import StackConfig
from plm_jax.models import gpt2
from plm_jax.models.bert import ACTIVATIONS, matrix

PROJECTIONS = ('query', 'key', 'value', 'out')


def sized(layers: int, width: int, heads: int, mlp_dim: int, dtype: Dtype = 'float32') -> DecoderConfig:
  """Makes a LLaMA: 32,000 pieces, rows of 2048 tokens. No biases, no dropout."""
  block = BlockConfig(
      width=width, heads=heads, mlp_dim=mlp_dim, mlp=MlpConfig(activation='silu', gated=True, bias=False),
      norm=NormConfig(kind='rms', eps=1e-6), norm_at='pre',
      attention=AttentionConfig(bias=(), position=Rope(), dropout=0.0), dropout=0.0, dtype=dtype)
  return DecoderConfig(
      vocab=32_000, block=block, stack=StackConfig(layers), max_length=2048, absolute='none', tied=False)


def llama_7b(dtype: Dtype = 'float32') -> DecoderConfig:
  """Makes LLaMA 7B: 32 layers of width 4096, 6.74B parameters."""
  return sized(32, 4096, 32, 11_008, dtype)


def llama_13b(dtype: Dtype = 'float32') -> DecoderConfig:
  """Makes LLaMA 13B: 40 layers of width 5120, 13.0B parameters."""
  return sized(40, 5120, 40, 13_824, dtype)


def llama_33b(dtype: Dtype = 'float32') -> DecoderConfig:
  """Makes LLaMA 33B: 60 layers of width 6656, 32.5B parameters."""
  return sized(60, 6656, 52, 17_920, dtype)


def llama_65b(dtype: Dtype = 'float32') -> DecoderConfig:
  """Makes LLaMA 65B: 80 layers of width 8192, 65.3B parameters."""
  return sized(80, 8192, 64, 22_016, dtype)


def second(config: DecoderConfig) -> DecoderConfig:
  """Makes a LLaMA 2: rows of 4096 tokens."""
  return dataclasses.replace(config, max_length=4096, block=checked.replaced(config.block, {'norm.eps': 1e-5}))


def llama2_7b(dtype: Dtype = 'float32') -> DecoderConfig:
  """Makes LLaMA 2 7B: 32 layers of width 4096, 6.74B parameters."""
  return second(llama_7b(dtype))


def llama2_13b(dtype: Dtype = 'float32') -> DecoderConfig:
  """Makes LLaMA 2 13B: 40 layers of width 5120, 13.0B parameters."""
  return second(llama_13b(dtype))


def llama2_70b(dtype: Dtype = 'float32') -> DecoderConfig:
  """Makes LLaMA 2 70B: 80 layers of width 8192, 69.0B parameters; eight query heads share a key head."""
  config = second(sized(80, 8192, 64, 28_672, dtype))
  return dataclasses.replace(config, block=dataclasses.replace(config.block, kv_heads=8))


def third(config: DecoderConfig, scaling: Unscaled = Unscaled(), tied: bool = False) -> DecoderConfig:
  """Makes a LLaMA 3: 128,256 pieces, 8 key heads, slower turns; rows of 8192 tokens, or of 131,072 where they are
  scaled."""
  block = checked.replaced(
      config.block, {'kv_heads': 8, 'norm.eps': 1e-5, 'attention.position': Rope(500_000.0, scaling=scaling)})
  return dataclasses.replace(
      config, vocab=128_256, block=block, max_length=8192 if scaling == Unscaled() else 131_072, tied=tied)


def llama3_8b(dtype: Dtype = 'float32') -> DecoderConfig:
  """Makes LLaMA 3 8B: 32 layers of width 4096, 8.03B parameters."""
  return third(sized(32, 4096, 32, 14_336, dtype))


def llama3_70b(dtype: Dtype = 'float32') -> DecoderConfig:
  """Makes LLaMA 3 70B: 80 layers of width 8192, 70.6B parameters."""
  return third(sized(80, 8192, 64, 28_672, dtype))


def llama31_8b(dtype: Dtype = 'float32') -> DecoderConfig:
  """Makes LLaMA 3.1 8B, whose rope is scaled by 8: 32 layers of width 4096, 8.03B parameters."""
  return third(sized(32, 4096, 32, 14_336, dtype), Llama3Scaling(8.0))


def llama31_70b(dtype: Dtype = 'float32') -> DecoderConfig:
  """Makes LLaMA 3.1 70B, whose rope is scaled by 8: 80 layers of width 8192, 70.6B parameters."""
  return third(sized(80, 8192, 64, 28_672, dtype), Llama3Scaling(8.0))


def llama3_405b(dtype: Dtype = 'float32') -> DecoderConfig:
  """Makes LLaMA 3 405B before its rows grow: 126 layers of width 16,384, 405.9B parameters."""
  return third(sized(126, 16_384, 128, 53_248, dtype))


def llama31_405b(dtype: Dtype = 'float32') -> DecoderConfig:
  """Makes LLaMA 3.1 405B, whose rope is scaled by 8: 126 layers of width 16,384, 405.9B parameters."""
  return third(sized(126, 16_384, 128, 53_248, dtype), Llama3Scaling(8.0))


def llama32_1b(dtype: Dtype = 'float32') -> DecoderConfig:
  """Makes LLaMA 3.2 1B, tied, whose rope is scaled by 32: 16 layers of width 2048, 1.24B parameters."""
  return third(sized(16, 2048, 32, 8192, dtype), Llama3Scaling(32.0), tied=True)


def llama32_3b(dtype: Dtype = 'float32') -> DecoderConfig:
  """Makes LLaMA 3.2 3B, tied, whose rope is scaled by 32: 28 layers of width 3072, 3.21B parameters."""
  return third(sized(28, 3072, 24, 8192, dtype), Llama3Scaling(32.0), tied=True)


def to_current(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Reads rope as one value, `rope`, from any of the ways that transformers has had to write it; defaults that depend
  on other attributes. ConvertError for a scaling that is not known."""
  hf_config = {'num_attention_heads': 32, 'hidden_size': 4096, 'max_position_embeddings': 2048, **hf_config}
  parameters = {**(hf_config.pop('rope_scaling', None) or {}), **(hf_config.pop('rope_parameters', None) or {})}
  theta = parameters.pop('rope_theta', None) or hf_config.get('rope_theta') or 10_000.0
  hf_config.pop('rope_theta', None)
  scaling = read_scaling(parameters, hf_config['max_position_embeddings'])
  if isinstance(scaling, DynamicScaling):
    # Theirs is the longest row learned on, ours the longest that the model takes.
    hf_config['max_position_embeddings'] = round(scaling.factor * scaling.original)
  heads, width = hf_config['num_attention_heads'], hf_config['hidden_size']
  if hf_config.get('num_key_value_heads') in (None, heads):
    hf_config['num_key_value_heads'] = None
  if hf_config.get('head_dim') in (None, width // heads):
    hf_config['head_dim'] = None
  return {**hf_config, 'rope': Rope(float(theta), scaling=scaling)}


def read_scaling(parameters: Mapping[str, Any], longest: int) -> Unscaled:
  """Reads their parameters of rope, without theta; `longest` is max_position_embeddings."""
  left = dict(parameters)
  old = left.pop('type', 'default')
  kind = left.pop('rope_type', old)
  def take(name: str, default: Any = None) -> Any:
    value = left.pop(name, None)
    if value is None and default is None:
      raise ConvertError(f'cannot convert the configuration: rope scaling {kind} without {name}: {dict(parameters)}')
    return default if value is None else value

  if kind == 'default':
    scaling = Unscaled()
  elif kind == 'linear':
    scaling = LinearScaling(float(take('factor')))
  elif kind == 'dynamic':
    scaling = DynamicScaling(float(take('factor')), longest)
  elif kind == 'llama3':
    scaling = Llama3Scaling(float(take('factor')), float(take('low_freq_factor')), float(take('high_freq_factor')),
                            take('original_max_position_embeddings', longest))
  elif kind == 'yarn':
    original = take('original_max_position_embeddings', longest)
    factor = float(take('factor', longest / original))
    scale, scale_all = take('mscale', 0.0), take('mscale_all_dim', 0.0)
    ratio = temperature(factor, scale) / temperature(factor, scale_all) if scale and scale_all else 0.0
    scaling = YarnScaling(factor, original, float(take('beta_fast', 32.0)), float(take('beta_slow', 1.0)),
                          take('truncate', True), float(take('attention_factor', ratio)))
  else:
    raise ConvertError(f'cannot convert the configuration: rope of type {kind!r}; known are default, linear, dynamic, '
                       'llama3, yarn')
  if left:
    raise ConvertError(f'cannot convert the configuration: unknown parameters of rope scaling {kind}: {left}')
  return scaling


def temperature(factor: float, scale: float) -> float:
  """Returns YaRN's factor on cos and sin, 1 where rows are no longer (Peng et al. 2023, section 3.4)."""
  return 0.1 * scale * math.log(max(factor, 1.0)) + 1


def written(scaling: Unscaled) -> dict[str, Any] | None:
  """Returns their parameters of a scaling of rope; None: there is none."""
  match scaling:
    case LinearScaling():
      return dict(rope_type='linear', factor=scaling.factor)
    case DynamicScaling():
      return dict(rope_type='dynamic', factor=scaling.factor)
    case Llama3Scaling():
      return dict(rope_type='llama3', factor=scaling.factor, low_freq_factor=scaling.low,
                  high_freq_factor=scaling.high, original_max_position_embeddings=scaling.original)
    case YarnScaling():
      return dict(rope_type='yarn', factor=scaling.factor, original_max_position_embeddings=scaling.original,
                  beta_fast=scaling.fast, beta_slow=scaling.slow, truncate=scaling.whole,
                  attention_factor=scaling.temperature or None)
  return None


def from_current(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Undoes what `to_current` did, as every version of transformers reads it."""
  hf_config = dict(hf_config)
  rope = hf_config.pop('rope')
  scaling = rope.scaling
  if rope.share != 1:
    raise ConvertError(f"transformers' LLaMA turns whole heads, not a share of {rope.share}")
  if isinstance(scaling, DynamicScaling):
    hf_config['max_position_embeddings'] = scaling.original
  heads = hf_config['num_attention_heads']
  return {**hf_config, 'rope_theta': rope.theta, 'rope_scaling': written(scaling),
          'num_key_value_heads': hf_config['num_key_value_heads'] or heads,
          'head_dim': hf_config['head_dim'] or hf_config['hidden_size'] // heads}


BLOCK, LAYER = 'backbone/stack/layers/block', 'model.layers.{n}'
SWITCH = ((False, ()), (True, PROJECTIONS))

# transformers' Llama.
FAMILY = Family(
    name='llama',
    backbone=lambda config: Decoder(config),
    config=sized(32, 4096, 32, 11_008),
    attributes=(
        Attribute('vocab_size', 'vocab', 32_000),
        Attribute('hidden_size', 'block.width', 4096),
        Attribute('num_hidden_layers', 'stack.layers', 32),
        Attribute('num_attention_heads', 'block.heads', 32),
        Attribute('num_key_value_heads', 'block.kv_heads', None),
        Attribute('head_dim', 'block.head_size', None),
        Attribute('intermediate_size', 'block.mlp_dim', 11_008),
        Attribute('hidden_act', 'block.mlp.activation', 'silu', ACTIVATIONS),
        Attribute('max_position_embeddings', 'max_length', 2048),
        Attribute('initializer_range', 'block.init.std', 0.02),
        Attribute('rms_norm_eps', 'block.norm.eps', 1e-6),
        Attribute('attention_bias', 'block.attention.bias', False, SWITCH),
        Attribute('mlp_bias', 'block.mlp.bias', False),
        Attribute('attention_dropout', 'block.attention.dropout', 0.0),
        Attribute('tie_word_embeddings', 'tied', False),
        Attribute('rope', 'block.attention.position', Rope()),
    ),
    fixed={},
    # How the products of a layer were cut up over devices, and what is said again by max_position_embeddings.
    ignored=frozenset({'pretraining_tp', 'max_sequence_length'}),
    rules=(
        Rule('backbone/embeddings/tokens', 'model.embed_tokens.weight'),
        *matrix(f'{BLOCK}/attention/query', f'{LAYER}.self_attn.q_proj'),
        *matrix(f'{BLOCK}/attention/key', f'{LAYER}.self_attn.k_proj'),
        *matrix(f'{BLOCK}/attention/value', f'{LAYER}.self_attn.v_proj'),
        *matrix(f'{BLOCK}/attention/out', f'{LAYER}.self_attn.o_proj', inputs=2),
        Rule(f'{BLOCK}/attention_norm/scale', f'{LAYER}.input_layernorm.weight'),
        # Ours is activated first and multiplied by the gate: they have it the other way round.
        *matrix(f'{BLOCK}/mlp/up', f'{LAYER}.mlp.gate_proj'),
        *matrix(f'{BLOCK}/mlp/gate', f'{LAYER}.mlp.up_proj'),
        *matrix(f'{BLOCK}/mlp/down', f'{LAYER}.mlp.down_proj'),
        Rule(f'{BLOCK}/mlp_norm/scale', f'{LAYER}.post_attention_layernorm.weight'),
        Rule('backbone/stack/norm/scale', 'model.norm.weight'),
    ),
    parts={},
    heads={
        'lm': gpt2.LM,
        **gpt2.ASKED,
        'tags': dataclasses.replace(gpt2.TAGS, rules=matrix('heads_tags/dense', 'score')),
    },
    classes={
        'LlamaModel': (), 'LlamaForCausalLM': ('lm',), 'LlamaForSequenceClassification': ('label',),
        'LlamaForTokenClassification': ('tags',), 'LlamaForQuestionAnswering': ('span',),
    },
    prefix='model.',
    within={'LlamaForQuestionAnswering': 'transformer.'},
    aliases=((r'^transformer\.', 'model.'), (r'^(embed_tokens|layers|norm)\.', r'model.\1.')),
    to_current=to_current,
    from_current=from_current,
    skipped=(r'\brotary_emb\.inv_freq$',),
)
