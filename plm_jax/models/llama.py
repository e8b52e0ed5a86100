"""LLaMA (Touvron et al. 2023, arXiv:2302.13971), LLaMA 2 (arXiv:2307.09288) and LLaMA 3.

LLaMA 3 is by Dubey et al. 2024 (arXiv:2407.21783). Parameters as released: LLaMA 6.7B, 13.0B, 32.5B
and 65.2B (table 2). Embeddings are untied, except in the small LLaMA 3.2. The two numbers of a
rotary pair are half a head apart, as in transformers.
"""
from collections.abc import Mapping
import dataclasses
import functools
import math
from typing import Any

from plm_jax import validation
from plm_jax.architectures.decoder import Decoder, DecoderConfig
from plm_jax.layers.attention import AttentionConfig
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.mlp import MlpConfig
from plm_jax.layers.norm import NormConfig
from plm_jax.layers.rope import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    Rope,
    Unscaled,
    YarnScaling,
)
from plm_jax.layers.stack import StackConfig
from plm_jax.models import gpt2
from plm_jax.models.bert import ACTIVATIONS
from plm_jax.models.rules import (
    Attribute,
    ConvertError,
    Family,
    Rule,
    dense_rules,
    join_rules,
)

PROJECTIONS = ('query', 'key', 'value', 'out')


def make_config(
    layers: int, width: int, heads: int, mlp_dim: int, dtype: Dtype = 'float32',
) -> DecoderConfig:
  """Make a LLaMA with 32,000 tokens and texts of up to 2048, without biases and dropout."""
  block = BlockConfig(
      width=width, heads=heads, mlp_dim=mlp_dim,
      mlp=MlpConfig(activation='silu', gated=True, bias=False),
      norm=NormConfig(kind='rms', eps=1e-6), norm_at='pre',
      attention=AttentionConfig(bias=(), position=Rope(), dropout=0.0), dropout=0.0, dtype=dtype)
  return DecoderConfig(
      vocab=32_000, block=block, stack=StackConfig(layers), max_length=2048, absolute='none',
      tied=False)


llama_7b = functools.partial(make_config, 32, 4096, 32, 11_008)  # 6.74B parameters
llama_13b = functools.partial(make_config, 40, 5120, 40, 13_824)  # 13.0B parameters
llama_33b = functools.partial(make_config, 60, 6656, 52, 17_920)  # 32.5B parameters
llama_65b = functools.partial(make_config, 80, 8192, 64, 22_016)  # 65.3B parameters


def make_llama2(
    layers: int, width: int, heads: int, mlp_dim: int, dtype: Dtype = 'float32',
    kv_heads: int | None = None,
) -> DecoderConfig:
  """Make a LLaMA 2: texts of up to 4096 tokens, another epsilon of norms."""
  return validation.with_paths(make_config(layers, width, heads, mlp_dim, dtype), {
      'max_length': 4096, 'block.norm.eps': 1e-5, 'block.kv_heads': kv_heads})


llama2_7b = functools.partial(make_llama2, 32, 4096, 32, 11_008)  # 6.74B parameters
llama2_13b = functools.partial(make_llama2, 40, 5120, 40, 13_824)  # 13.0B parameters
sheared_llama_1_3b = functools.partial(make_llama2, 24, 2048, 16, 5504)  # 1.35B parameters
# Grouped-query attention: eight query heads share a key head.
llama2_70b = functools.partial(make_llama2, 80, 8192, 64, 28_672, kv_heads=8)  # 69.0B parameters


def make_llama3(
    layers: int, width: int, heads: int, mlp_dim: int, dtype: Dtype = 'float32',
    scaling: Unscaled = Unscaled(), tied: bool = False,
) -> DecoderConfig:
  """Make a LLaMA 3: 128,256 tokens, 8 key heads, a rope base of 500,000.

  Texts have up to 8192 tokens, or up to 131,072 where rope is scaled.
  """
  return validation.with_paths(make_config(layers, width, heads, mlp_dim, dtype), {
      'vocab': 128_256, 'max_length': 8192 if scaling == Unscaled() else 131_072, 'tied': tied,
      'block.kv_heads': 8, 'block.norm.eps': 1e-5,
      'block.attention.position': Rope(500_000.0, scaling=scaling)})


llama3_8b = functools.partial(make_llama3, 32, 4096, 32, 14_336)  # 8.03B parameters
llama3_70b = functools.partial(make_llama3, 80, 8192, 64, 28_672)  # 70.6B parameters
llama3_405b = functools.partial(make_llama3, 126, 16_384, 128, 53_248)  # 405.9B parameters
# LLaMA 3.1 and 3.2 are for longer texts. 3.2: 1.24B and 3.21B parameters.
llama31_8b = functools.partial(llama3_8b, scaling=Llama3Scaling(8.0))
llama31_70b = functools.partial(llama3_70b, scaling=Llama3Scaling(8.0))
llama31_405b = functools.partial(llama3_405b, scaling=Llama3Scaling(8.0))
llama32_1b = functools.partial(
    make_llama3, 16, 2048, 32, 8192, scaling=Llama3Scaling(32.0), tied=True)
llama32_3b = functools.partial(
    make_llama3, 28, 3072, 24, 8192, scaling=Llama3Scaling(32.0), tied=True)


def normalize_hf_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Read rope, in any spelling of transformers, as one value `rope`.

  num_key_value_heads and head_dim become None where they are what other attributes imply. Raises
  ConvertError for a rope scaling that is not known.
  """
  hf_config = {
      'num_attention_heads': 32, 'hidden_size': 4096, 'max_position_embeddings': 2048, **hf_config}
  scaling_parameters = hf_config.pop('rope_scaling', None) or {}
  rope_parameters = hf_config.pop('rope_parameters', None) or {}
  parameters = {**scaling_parameters, **rope_parameters}
  theta = parameters.pop('rope_theta', None) or hf_config.get('rope_theta') or 10_000.0
  hf_config.pop('rope_theta', None)
  scaling = parse_scaling(parameters, hf_config['max_position_embeddings'])
  if isinstance(scaling, DynamicScaling):
    # Theirs is the length of pre-training, ours the longest text that the model takes.
    hf_config['max_position_embeddings'] = round(scaling.factor * scaling.original)
  heads, width = hf_config['num_attention_heads'], hf_config['hidden_size']
  if hf_config.get('num_key_value_heads') in (None, heads):
    hf_config['num_key_value_heads'] = None
  if hf_config.get('head_dim') in (None, width // heads):
    hf_config['head_dim'] = None
  return {**hf_config, 'rope': Rope(float(theta), scaling=scaling)}


def parse_scaling(parameters: Mapping[str, Any], longest: int) -> Unscaled:
  """Read the rope scaling of a config.json.

  Args:
    parameters: of rope, without theta.
    longest: max_position_embeddings.

  Raises:
    ConvertError: for a type of scaling or parameters that are not known.
  """
  left = dict(parameters)
  old = left.pop('type', 'default')
  kind = left.pop('rope_type', old)
  def take(name: str, default: Any = None) -> Any:
    value = left.pop(name, None)
    if value is not None:
      return value
    if default is None:
      raise ConvertError(f'cannot convert the configuration: rope scaling {kind} without {name}: '
                         f'{dict(parameters)}')
    return default

  if kind == 'default':
    scaling = Unscaled()
  elif kind == 'linear':
    scaling = LinearScaling(float(take('factor')))
  elif kind == 'dynamic':
    scaling = DynamicScaling(float(take('factor')), longest)
  elif kind == 'llama3':
    scaling = Llama3Scaling(
        float(take('factor')), float(take('low_freq_factor')), float(take('high_freq_factor')),
        take('original_max_position_embeddings', longest))
  elif kind == 'yarn':
    original = take('original_max_position_embeddings', longest)
    factor = float(take('factor', longest / original))
    scale, scale_all = take('mscale', 0.0), take('mscale_all_dim', 0.0)
    ratio = (yarn_temperature(factor, scale) / yarn_temperature(factor, scale_all)
             if scale and scale_all else 0.0)
    scaling = YarnScaling(
        factor, original, float(take('beta_fast', 32.0)), float(take('beta_slow', 1.0)),
        take('truncate', True), float(take('attention_factor', ratio)))
  else:
    raise ConvertError(f'cannot convert the configuration: rope of type {kind!r}; known are '
                       'default, linear, dynamic, llama3, yarn')
  if left:
    raise ConvertError(
        f'cannot convert the configuration: unknown parameters of rope scaling {kind}: {left}')
  return scaling


def yarn_temperature(factor: float, scale: float) -> float:
  """Return YaRN's factor on cos and sin (Peng et al. 2023, section 3.4).

  It is 1 where texts are no longer than in pre-training.
  """
  return 0.1 * scale * math.log(max(factor, 1.0)) + 1


def export_scaling(scaling: Unscaled) -> dict[str, Any] | None:
  """Return the parameters of a rope scaling in a config.json; None: there is no scaling."""
  match scaling:
    case LinearScaling():
      return dict(rope_type='linear', factor=scaling.factor)
    case DynamicScaling():
      return dict(rope_type='dynamic', factor=scaling.factor)
    case Llama3Scaling():
      return dict(
          rope_type='llama3', factor=scaling.factor, low_freq_factor=scaling.low,
          high_freq_factor=scaling.high, original_max_position_embeddings=scaling.original)
    case YarnScaling():
      return dict(
          rope_type='yarn', factor=scaling.factor,
          original_max_position_embeddings=scaling.original, beta_fast=scaling.fast,
          beta_slow=scaling.slow, truncate=scaling.whole,
          attention_factor=scaling.temperature or None)
  return None


def denormalize_hf_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Reverse `normalize_hf_config`; every version of transformers reads the result.

  Raises ConvertError where rope rotates only a share of a head.
  """
  hf_config = dict(hf_config)
  rope = hf_config.pop('rope')
  scaling = rope.scaling
  if rope.share != 1:
    raise ConvertError(f"transformers' LLaMA rotates whole heads, not a share of {rope.share}")
  if isinstance(scaling, DynamicScaling):
    hf_config['max_position_embeddings'] = scaling.original
  heads = hf_config['num_attention_heads']
  return {
      **hf_config, 'rope_theta': rope.theta, 'rope_scaling': export_scaling(scaling),
      'num_key_value_heads': hf_config['num_key_value_heads'] or heads,
      'head_dim': hf_config['head_dim'] or hf_config['hidden_size'] // heads}


FULL, SLIDING = 'full_attention', 'sliding_attention'


def import_layer_types(kinds: Any, layers: int, size: Any) -> tuple[int, ...]:
  """Read layer_types as sliding windows of the layers; (): all layers have global attention.

  Args:
    kinds: layer_types.
    layers: number of layers.
    size: sliding window, as our configuration has it; unused where no layer has one.

  Raises:
    ConvertError: for other kinds of layers, another number of them, or windows without a size.
  """
  if not isinstance(kinds, list) or len(kinds) != layers or set(kinds) - {FULL, SLIDING}:
    raise ConvertError(f'cannot convert the configuration: layer_types is {str(kinds)[:200]}, '
                       f'expected {layers} of {FULL} and {SLIDING}')
  if SLIDING in kinds and (type(size) is not int or size < 1):
    raise ConvertError(f'cannot convert the configuration: sliding_window is {size!r:.200}, '
                       f'expected a number of tokens for the layers with {SLIDING}')
  windows = gpt2.shortest_period([0 if kind == FULL else size for kind in kinds])
  return windows if any(windows) else ()


def export_layer_types(windows: tuple[int, ...], layers: int) -> tuple[list[str], int]:
  """Return (layer_types, size of the sliding windows; 0: there are none).

  Raises ConvertError for windows of several sizes.
  """
  sizes = {size for size in windows if size}
  if len(sizes) > 1:
    raise ConvertError(f'transformers has sliding windows of one size, not {sorted(sizes)} '
                       'tokens')
  period = windows or (0,)
  kinds = [SLIDING if period[n % len(period)] else FULL for n in range(layers)]
  return kinds, max(sizes, default=0)


BLOCK, LAYER = 'backbone/stack/layers/block', 'model.layers.{n}'
BIAS_VALUES = ((False, ()), (True, PROJECTIONS))

# transformers' Llama.
FAMILY = Family(
    name='llama',
    backbone=lambda config: Decoder(config),
    config=make_config(32, 4096, 32, 11_008),
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
        Attribute('attention_bias', 'block.attention.bias', False, BIAS_VALUES),
        Attribute('mlp_bias', 'block.mlp.bias', False),
        Attribute('attention_dropout', 'block.attention.dropout', 0.0),
        Attribute('tie_word_embeddings', 'tied', False),
        Attribute('rope', 'block.attention.position', Rope()),
        Attribute('is_causal', 'causal', True),
    ),
    fixed={},
    # How matrix products were split over devices, and a copy of max_position_embeddings. Files of
    # SmolLM2 have attributes of the program that trained it, and of transformers.js.
    ignored=frozenset({
        'pretraining_tp', 'max_sequence_length', 'is_llama_config', 'rope_interleaved',
        'transformers.js_config'}),
    rules=join_rules(
        Rule('backbone/embeddings/tokens', 'model.embed_tokens.weight'),
        dense_rules(f'{BLOCK}/attention/query', f'{LAYER}.self_attn.q_proj'),
        dense_rules(f'{BLOCK}/attention/key', f'{LAYER}.self_attn.k_proj'),
        dense_rules(f'{BLOCK}/attention/value', f'{LAYER}.self_attn.v_proj'),
        dense_rules(f'{BLOCK}/attention/out', f'{LAYER}.self_attn.o_proj', inputs=2),
        Rule(f'{BLOCK}/attention_norm/scale', f'{LAYER}.input_layernorm.weight'),
        # Our `up` has the activation, which their gate_proj has.
        dense_rules(f'{BLOCK}/mlp/up', f'{LAYER}.mlp.gate_proj'),
        dense_rules(f'{BLOCK}/mlp/gate', f'{LAYER}.mlp.up_proj'),
        dense_rules(f'{BLOCK}/mlp/down', f'{LAYER}.mlp.down_proj'),
        Rule(f'{BLOCK}/mlp_norm/scale', f'{LAYER}.post_attention_layernorm.weight'),
        Rule('backbone/stack/norm/scale', 'model.norm.weight'),
    ),
    part_tensors={},
    heads={
        'lm': gpt2.LM_HEAD,
        **gpt2.TASK_HEADS,
        'tags': dataclasses.replace(gpt2.TAGS_HEAD, rules=dense_rules('heads_tags/dense', 'score')),
    },
    classes={
        'LlamaModel': (), 'LlamaForCausalLM': ('lm',), 'LlamaForSequenceClassification': ('label',),
        'LlamaForTokenClassification': ('tags',), 'LlamaForQuestionAnswering': ('span',),
    },
    prefix='model.',
    class_prefixes={'LlamaForQuestionAnswering': 'transformer.'},
    aliases=((r'^transformer\.', 'model.'), (r'^(embed_tokens|layers|norm)\.', r'model.\1.')),
    normalize_hf_config=normalize_hf_config,
    denormalize_hf_config=denormalize_hf_config,
    skip_patterns=(r'\brotary_emb\.inv_freq$',),
)


def derive_family(name: str, title: str, **changes: Any) -> Family:
  """Make a family that is LLaMA's but for `changes`; its classes' names begin with `title`."""
  def rename(names):
    return {cls.replace('Llama', title): value for cls, value in names.items()}
  return dataclasses.replace(
      FAMILY, name=name, classes=rename(FAMILY.classes),
      class_prefixes=rename(FAMILY.class_prefixes), **changes)
