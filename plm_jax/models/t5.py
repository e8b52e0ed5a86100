"""T5 (Raffel et al. 2020, arXiv:1910.10683), T5 v1.1, ByT5, UL2, mT5 and umT5.

ByT5 is by Xue et al. 2022 (arXiv:2105.13626), UL2 by Tay et al. 2023 (arXiv:2205.05131).
Parameters of the released checkpoints: small 60,506,624, base 222,903,552, large 737,668,096,
3B 2,851,598,336, 11B 11,307,321,344 (the paper: 60M, 220M, 770M, 3B, 11B). v1.1: small 76,961,152,
base 247,577,856, large 783,150,080, xl 2,849,757,184, xxl 11,135,332,352. UL2: 19,459,613,696
(20B). ByT5: 300M, 582M, 1.23B, 3.74B and 12.9B (its table 1).

Attention logits are not scaled; queries have smaller initial weights instead, as released.
Embeddings are tied, and logits are divided by sqrt(D). From v1.1 on embeddings are untied, logits
are not divided, the MLP is gated, and pre-training has no dropout.

mT5 (Xue et al. 2021, arXiv:2010.11934): T5 v1.1 with a vocabulary for a hundred languages.
Parameters of the released checkpoints: small 300,176,768, base 582,401,280, large 1,229,581,312, xl
3,742,619,648, xxl 12,921,057,280 (section 3.2: 300M, 580M, 1.2B, 3.7B, 13B).

umT5 (Chung et al. 2023, arXiv:2304.09151): mT5 whose layers have position biases of their own.
Its vocabulary has 256,000 tokens and 300 sentinels. Parameters of transformers'
UMT5ForConditionalGeneration with untied embeddings: small 306,601,984, base 592,043,520,
xl 3,768,356,864, xxl 12,972,531,712.
"""
from collections.abc import Callable, Container, Mapping
import dataclasses
import functools
from typing import Any

from plm_jax import validation
from plm_jax.architectures.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from plm_jax.layers.attention import AttentionConfig
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.heads import NextTokenHead, TokenClassifier
from plm_jax.layers.init import InitConfig
from plm_jax.layers.mlp import MlpConfig
from plm_jax.layers.norm import NormConfig
from plm_jax.layers.stack import StackConfig
from plm_jax.layers.t5_relative_bias import Buckets
from plm_jax.models import bart
from plm_jax.models.bert import ACTIVATIONS
from plm_jax.models.layouts import Linear
from plm_jax.models.rules import Attribute, ConvertError, Family, HeadSpec, Rule, join_rules


def make_config(
    layers: int, width: int, heads: int, mlp_dim: int, dtype: Dtype = 'float32',
    head_size: int = 64,
) -> EncoderDecoderConfig:
  """Make a T5 v1.0 with `layers` layers on each side, for texts of any length.

  The vocabulary has 32,100 tokens, in a table of 32,128 rows.
  """
  block = BlockConfig(
      width=width, heads=heads, head_size=head_size, mlp_dim=mlp_dim,
      mlp=MlpConfig(activation='relu', dropout=0.1, bias=False),
      norm=NormConfig(kind='rms', eps=1e-6), norm_at='pre',
      attention=AttentionConfig(scale=1.0, position=Buckets(), bias=()),
      init=InitConfig(std=1.0, fan='in', tables='normal', matrices='rescaled'), dtype=dtype)
  return EncoderDecoderConfig(
      block=block, stack=StackConfig(layers), decoder=StackConfig(layers), last_dropout=True,
      logit_factor=width ** -0.5)


small = functools.partial(make_config, 6, 512, 8, 2048)  # 60.5M parameters
base = functools.partial(make_config, 12, 768, 12, 3072)  # 223M parameters
large = functools.partial(make_config, 24, 1024, 16, 4096)  # 738M parameters
t5_3b = functools.partial(make_config, 24, 1024, 32, 16_384, head_size=128)  # 2.85B parameters
t5_11b = functools.partial(make_config, 24, 1024, 128, 65_536, head_size=128)  # 11.3B parameters


def make_v1_1(
    layers: int, width: int, heads: int, mlp_dim: int, dtype: Dtype = 'float32',
    head_size: int = 64,
) -> EncoderDecoderConfig:
  """Make a T5 v1.1: GEGLU with the tanh approximation, untied embeddings, no dropout."""
  return validation.with_paths(make_config(layers, width, heads, mlp_dim, dtype, head_size), {
      'tied': False, 'logit_factor': 1.0, 'block.mlp.activation': 'gelu_tanh',
      'block.mlp.gated': True, 'block.dropout': 0.0, 'block.attention.dropout': 0.0,
      'block.mlp.dropout': 0.0})


v1_1_small = functools.partial(make_v1_1, 8, 512, 6, 1024)  # 77M parameters
v1_1_base = functools.partial(make_v1_1, 12, 768, 12, 2048)  # 248M parameters
v1_1_large = functools.partial(make_v1_1, 24, 1024, 16, 2816)  # 783M parameters
v1_1_xl = functools.partial(make_v1_1, 24, 2048, 32, 5120)  # 2.85B parameters
v1_1_xxl = functools.partial(make_v1_1, 24, 4096, 64, 10_240)  # 11.1B parameters


def ul2_20b(dtype: Dtype = 'float32') -> EncoderDecoderConfig:
  """Make UL2 20B: 32 + 32 layers, hidden size 4096, 19.5B parameters.

  It is a v1.1 with SwiGLU and tied embeddings (Tay et al. 2023, section 5.1).
  """
  return validation.with_paths(make_v1_1(32, 4096, 16, 16_384, dtype, 256), {
      'block.mlp.activation': 'silu', 'tied': True, 'logit_factor': 4096 ** -0.5})


def make_byt5(
    decoder: int, width: int, heads: int, mlp_dim: int, dtype: Dtype = 'float32',
) -> EncoderDecoderConfig:
  """Make a ByT5, whose tokens are bytes; the encoder has three times as many layers as `decoder`.

  The vocabulary has 256 bytes, 3 special tokens and 125 more.
  """
  config = make_v1_1(3 * decoder, width, heads, mlp_dim, dtype)
  return dataclasses.replace(config, vocab=384, decoder=StackConfig(decoder))


byt5_small = functools.partial(make_byt5, 4, 1472, 6, 3584)  # 300M parameters
byt5_base = functools.partial(make_byt5, 6, 1536, 12, 3968)  # 582M parameters
byt5_large = functools.partial(make_byt5, 12, 1536, 16, 3840)  # 1.23B parameters
byt5_xl = functools.partial(make_byt5, 12, 2560, 32, 6720)  # 3.74B parameters
byt5_xxl = functools.partial(make_byt5, 12, 4672, 64, 12_352)  # 12.9B parameters


def normalize_hf_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Split attributes that state two things, and state what follows from a class."""
  hf_config = dict(hf_config)
  width, layers = hf_config.get('d_model', 512), hf_config.get('num_layers', 6)
  kind = hf_config.pop('feed_forward_proj', None) or 'relu'
  activation = 'gelu_new' if kind == 'gated-gelu' else kind.removeprefix('gated-')
  scaled = hf_config.pop(
      'scale_decoder_outputs', hf_config.get('tie_word_embeddings') is not False)
  stated = hf_config.get('num_decoder_layers')
  decoder_layers = layers if stated is None else stated
  classes = set(hf_config.get('architectures') or ())
  if {'T5EncoderModel', 'T5ForTokenClassification'} & classes:
    # These classes have no decoder, whatever the other attributes state.
    decoder_layers, hf_config['is_encoder_decoder'] = 0, True
  return {
      **hf_config, 'dense_act_fn': activation, 'is_gated_act': kind.startswith('gated-'),
      'num_decoder_layers': decoder_layers, 'tie_word_embeddings': scaled,
      'logit_factor': width ** -0.5 if scaled else 1.0}


def denormalize_hf_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Reverse `normalize_hf_config`. Raises ConvertError for another factor on logits."""
  hf_config = dict(hf_config)
  factor, tied = hf_config.pop('logit_factor'), hf_config['tie_word_embeddings']
  scaled = hf_config['d_model'] ** -0.5
  if factor not in (1.0, scaled) or (factor == scaled != 1 and not tied):
    raise ConvertError(f'T5 multiplies logits by {scaled} with tied embeddings, '
                       f'else by 1, got {factor}')
  name = hf_config['dense_act_fn']
  if hf_config['is_gated_act']:
    # They call the tanh approximation gated-gelu.
    name = {'gelu_new': 'gated-gelu', 'gelu': 'gated-gelu_python'}.get(name, f'gated-{name}')
  if not hf_config['d_kv']:
    hf_config['d_kv'] = hf_config['d_model'] // hf_config['num_heads']
  stated = {**hf_config, 'feed_forward_proj': name, 'tie_word_embeddings': factor == scaled,
            'is_encoder_decoder': True}
  if not hf_config['num_decoder_layers']:
    stated |= {'architectures': ['T5EncoderModel'], 'is_encoder_decoder': False,
               'num_decoder_layers': hf_config['num_layers']}
  return stated


def infer_from_tensors(
    config: EncoderDecoderConfig, names: Container[str],
) -> EncoderDecoderConfig:
  """Tie embeddings where the file has no output matrix, as transformers does."""
  if config.tied:
    return config
  return dataclasses.replace(config, tied='lm_head.weight' not in names)


def attention_rules(ours: str, theirs: str) -> tuple[Rule, ...]:
  """Make the rules of the four projections of an attention, which have no biases."""
  return (
      Rule(f'{ours}/query/kernel', f'{theirs}.q.weight', Linear()),
      Rule(f'{ours}/key/kernel', f'{theirs}.k.weight', Linear()),
      Rule(f'{ours}/value/kernel', f'{theirs}.v.weight', Linear()),
      Rule(f'{ours}/out/kernel', f'{theirs}.o.weight', Linear(2)))


def is_gated(config: EncoderDecoderConfig) -> bool:
  """Tell whether the MLP is gated: v1.1."""
  return config.block.mlp.gated


def is_ungated(config: EncoderDecoderConfig) -> bool:
  """Tell whether the MLP has no gate: v1.0."""
  return not config.block.mlp.gated


def side_rules(name: str, shared: bool = True) -> tuple[Rule, ...]:
  """Make the rules of a side.

  Args:
    name: 'encoder' or 'decoder'.
    shared: all layers share the relative position biases of the first; False: each has its own.
  """
  ours, theirs = f'backbone/{name}/stack', f'{name}.block.{{n}}.layer'
  block = f'{ours}/layers/block'
  buckets = 'layer.0.SelfAttention.relative_attention_bias.weight'
  bias = (Rule(f'{ours}/buckets', f'{name}.block.0.{buckets}') if shared
          else Rule(f'{block}/attention/buckets', f'{name}.block.{{n}}.{buckets}'))
  last, cross_attention = 1, ()
  if name == 'decoder':
    last = 2
    cross_attention = join_rules(
        attention_rules(f'{block}/cross', f'{theirs}.1.EncDecAttention'),
        Rule(f'{block}/cross_norm/scale', f'{theirs}.1.layer_norm.weight'))
  mlp = f'{theirs}.{last}.DenseReluDense'
  return join_rules(
      Rule('backbone/tokens', f'{name}.embed_tokens.weight', copy=True),
      attention_rules(f'{block}/attention', f'{theirs}.0.SelfAttention'),
      Rule(f'{block}/attention_norm/scale', f'{theirs}.0.layer_norm.weight'),
      bias,
      cross_attention,
      Rule(f'{block}/mlp/up/kernel', f'{mlp}.wi.weight', Linear(), applies_to=is_ungated),
      Rule(f'{block}/mlp/up/kernel', f'{mlp}.wi_0.weight', Linear(), applies_to=is_gated),
      Rule(f'{block}/mlp/gate/kernel', f'{mlp}.wi_1.weight', Linear(), applies_to=is_gated),
      Rule(f'{block}/mlp/down/kernel', f'{mlp}.wo.weight', Linear()),
      Rule(f'{block}/mlp_norm/scale', f'{theirs}.{last}.layer_norm.weight'),
      Rule(f'{ours}/norm/scale', f'{name}.final_layer_norm.weight'),
  )


# transformers' T5, v1.1 and ByT5, whose two sides differ in their numbers of layers only.
FAMILY = Family(
    name='t5',
    backbone=lambda config: EncoderDecoder(config),
    config=small(),
    attributes=(
        Attribute('vocab_size', 'vocab', 32128),
        Attribute('d_model', 'block.width', 512),
        Attribute('d_kv', 'block.head_size', 64),
        Attribute('d_ff', 'block.mlp_dim', 2048),
        Attribute('num_layers', 'stack.layers', 6),
        Attribute('num_decoder_layers', 'decoder.layers', 6),
        Attribute('num_heads', 'block.heads', 8),
        Attribute('relative_attention_num_buckets', 'block.attention.position.buckets', 32),
        Attribute('relative_attention_max_distance', 'block.attention.position.furthest', 128),
        Attribute('dropout_rate', 'block.dropout', 0.1),
        Attribute('dropout_rate', 'block.attention.dropout', 0.1),
        Attribute('dropout_rate', 'block.mlp.dropout', 0.1),
        Attribute('layer_norm_epsilon', 'block.norm.eps', 1e-6),
        Attribute('dense_act_fn', 'block.mlp.activation', 'relu', ACTIVATIONS),
        Attribute('is_gated_act', 'block.mlp.gated', False),
        Attribute('tie_word_embeddings', 'tied', True),
        Attribute('logit_factor', 'logit_factor', 512 ** -0.5),
    ),
    fixed={'is_encoder_decoder': True},
    ignored=frozenset({
        'n_positions', 'num_hidden_layers', 'hidden_size', 'num_attention_heads', 'head_dim'}),
    rules=join_rules(
        Rule('backbone/tokens', 'shared.weight'),
        side_rules('encoder'),
        side_rules('decoder')),
    part_tensors={},
    heads={
        'lm': HeadSpec(
            lambda config, classes: NextTokenHead(
                config.block, config.vocab, config.tied, config.logit_factor),
            (
                Rule('heads_lm/kernel', 'lm_head.weight', Linear(),
                     applies_to=lambda config: not config.tied),
                Rule('backbone/tokens', 'lm_head.weight', copy=True,
                     applies_to=lambda config: config.tied))),
        **bart.TASK_HEADS,
        'tags': HeadSpec(
            lambda config, classes: TokenClassifier(config.block, classes, 0.0, encoder=True),
            bart.TASK_HEADS['tags'].rules, dropout='classifier_dropout'),
    },
    classes={
        'T5ForConditionalGeneration': ('lm',), 'T5Model': (), 'T5EncoderModel': (),
        'T5ForSequenceClassification': ('label',), 'T5ForQuestionAnswering': ('span',),
        'T5ForTokenClassification': ('tags',),
    },
    prefix='',
    class_prefixes={'T5ForSequenceClassification': 'transformer.',
                    'T5ForTokenClassification': 'transformer.'},
    encoder_only_heads=frozenset({'tags'}),
    aliases=((r'^transformer\.', ''),),
    export_defaults={'decoder_start_token_id': 0},
    normalize_hf_config=normalize_hf_config,
    denormalize_hf_config=denormalize_hf_config,
    infer_from_tensors=infer_from_tensors,
    # A table of cross-attention that the first files have and nothing uses.
    skip_patterns=(r'EncDecAttention\.relative_attention_bias\.weight$',),
)


def make_mt5_config(
    size: Callable[..., EncoderDecoderConfig], dtype: Dtype = 'float32',
) -> EncoderDecoderConfig:
  """Make an mT5 of a size of T5: 250,000 tokens with sentinels, in a table of 250,112 rows."""
  return dataclasses.replace(size(dtype), vocab=250_112)


mt5_small = functools.partial(make_mt5_config, v1_1_small)  # 300M parameters
mt5_base = functools.partial(make_mt5_config, v1_1_base)  # 582M parameters
mt5_large = functools.partial(make_mt5_config, v1_1_large)  # 1.23B parameters
mt5_xl = functools.partial(make_mt5_config, v1_1_xl)  # 3.74B parameters
mt5_xxl = functools.partial(make_mt5_config, v1_1_xxl)  # 12.9B parameters
MT5_DEFAULTS = {
    'vocab_size': 250_112, 'd_ff': 1024, 'num_layers': 8, 'num_heads': 6,
    'feed_forward_proj': 'gated-gelu'}


def normalize_multilingual_config(
    hf_config: Mapping[str, Any], prefix: str, **fixed: Any) -> dict[str, Any]:
  """Do the same as T5's, with mT5's defaults.

  Args:
    hf_config: their configuration.
    prefix: of the names of classes, before T5.
    fixed: attributes that always have these values.
  """
  classes = [name.removeprefix(prefix) for name in hf_config.get('architectures') or ()]
  normalized = normalize_hf_config({
      **MT5_DEFAULTS, **hf_config, 'architectures': classes, **fixed})
  if 'architectures' in hf_config:
    normalized['architectures'] = hf_config['architectures']
  return normalized


def denormalize_multilingual_config(hf_config: Mapping[str, Any], prefix: str) -> dict[str, Any]:
  """Reverse `normalize_multilingual_config`."""
  hf_config = denormalize_hf_config(hf_config)
  if not hf_config['is_encoder_decoder']:
    hf_config['architectures'] = [f'{prefix}T5EncoderModel']
  return hf_config


def denormalize_mt5_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Reverse mT5's normalization. Raises ConvertError for logits that are scaled."""
  if hf_config['logit_factor'] != 1:
    raise ConvertError(f'mT5 does not scale logits, got a factor of {hf_config["logit_factor"]}')
  return denormalize_multilingual_config(hf_config, 'M')


# transformers' MT5. Its logits are never scaled, whether embeddings are tied or not.
MT5 = dataclasses.replace(
    FAMILY,
    name='mt5',
    config=mt5_small(),
    classes={f'M{name}': heads for name, heads in FAMILY.classes.items()},
    class_prefixes={f'M{name}': prefix for name, prefix in FAMILY.class_prefixes.items()},
    normalize_hf_config=functools.partial(
        normalize_multilingual_config, prefix='M', scale_decoder_outputs=False),
    denormalize_hf_config=denormalize_mt5_config,
)


def make_umt5_config(
    size: Callable[..., EncoderDecoderConfig], dtype: Dtype = 'float32',
) -> EncoderDecoderConfig:
  """Make a umT5 of a size of T5: a table of 256,384 tokens, and position biases of each layer."""
  return validation.with_paths(
      size(dtype), {'vocab': 256_384, 'block.attention.position.shared': False})


umt5_small = functools.partial(make_umt5_config, v1_1_small)  # 307M parameters
umt5_base = functools.partial(make_umt5_config, v1_1_base)  # 592M parameters
umt5_xl = functools.partial(make_umt5_config, v1_1_xl)  # 3.77B parameters
umt5_xxl = functools.partial(make_umt5_config, v1_1_xxl)  # 13.0B parameters


# transformers' UMT5.
UMT5 = dataclasses.replace(
    FAMILY,
    name='umt5',
    config=umt5_small(),
    ignored=FAMILY.ignored | {'scalable_attention'},
    rules=join_rules(
        Rule('backbone/tokens', 'shared.weight'),
        side_rules('encoder', shared=False),
        side_rules('decoder', shared=False)),
    classes={f'UM{name}': heads for name, heads in FAMILY.classes.items()},
    class_prefixes={f'UM{name}': prefix for name, prefix in FAMILY.class_prefixes.items()},
    normalize_hf_config=functools.partial(normalize_multilingual_config, prefix='UM'),
    denormalize_hf_config=functools.partial(denormalize_multilingual_config, prefix='UM'),
)
