"""T5 (Raffel et al. 2020, arXiv:1910.10683) and what was released after it under its name: v1.1, ByT5 (Xue et al. 2022,
arXiv:2105.13626); `mt5` has the multilingual one.

Parameters of the released checkpoints: small 60,506,624, base 222,903,552, large 737,668,096, 3B 2,851,598,336, 11B
11,307,321,344 (the paper: 60M, 220M, 770M, 3B, 11B); v1.1 small 76,961,152, base 247,577,856, large 783,150,080, xl
2,849,757,184, xxl 11,135,332,352; UL2 (Tay et al. 2023, arXiv:2205.05131) 19,459,613,696 (20B); ByT5 300M, 582M, 1.23B,
3.74B and 12.9B (its table 1).

Attention logits are not scaled; queries begin smaller instead, as released. The tied output matrix is the token table,
and logits are divided by sqrt(D); from v1.1 on there are two matrices, no such factor, a gated network, and no dropout
in pre-training.
"""
from collections.abc import Container, Mapping
import dataclasses
from typing import Any

from plm_jax import checked
from plm_jax.architectures.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from plm_jax.conversion.layouts import Linear
from plm_jax.conversion.rules import Attribute, ConvertError, Family, Head, Rule
from plm_jax.layers.attention import AttentionConfig
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.buckets import Buckets
from plm_jax.layers.common import Dtype
from plm_jax.layers.heads import NextTokens, TokenClasses
from plm_jax.layers.init import InitConfig
from plm_jax.layers.mlp import MlpConfig
from plm_jax.layers.norm import NormConfig
from plm_jax.layers.stack import StackConfig
from plm_jax.models import bart
from plm_jax.models.bert import ACTIVATIONS, matrix


def sized(
    layers: int, width: int, heads: int, mlp_dim: int, head_size: int = 64, dtype: Dtype = 'float32',
) -> EncoderDecoderConfig:
  """Makes a size of v1.0: 32,100 pieces, in a table of 32,128 rows; as many layers on both sides, which see rows of any
  length."""
  block = BlockConfig(
      width=width, heads=heads, head_size=head_size, mlp_dim=mlp_dim,
      mlp=MlpConfig(activation='relu', dropout=0.1, bias=False), norm=NormConfig(kind='rms', eps=1e-6),
      norm_at='pre', attention=AttentionConfig(scale=1.0, position=Buckets(), bias=()),
      init=InitConfig(std=1.0, fan='in', tables='normal', matrices='rescaled'), dtype=dtype)
  return EncoderDecoderConfig(
      block=block, stack=StackConfig(layers), decoder=StackConfig(layers), last_dropout=True,
      logit_factor=width ** -0.5)


def small(dtype: Dtype = 'float32') -> EncoderDecoderConfig:
  """Makes T5 small: 6 and 6 layers of width 512, 60.5M parameters."""
  return sized(6, 512, 8, 2048, dtype=dtype)


def base(dtype: Dtype = 'float32') -> EncoderDecoderConfig:
  """Makes T5 base: 12 and 12 layers of width 768, 223M parameters."""
  return sized(12, 768, 12, 3072, dtype=dtype)


def large(dtype: Dtype = 'float32') -> EncoderDecoderConfig:
  """Makes T5 large: 24 and 24 layers of width 1024, 738M parameters."""
  return sized(24, 1024, 16, 4096, dtype=dtype)


def t5_3b(dtype: Dtype = 'float32') -> EncoderDecoderConfig:
  """Makes T5 3B: 24 and 24 layers of width 1024, 2.85B parameters."""
  return sized(24, 1024, 32, 16_384, 128, dtype)


def t5_11b(dtype: Dtype = 'float32') -> EncoderDecoderConfig:
  """Makes T5 11B: 24 and 24 layers of width 1024, 11.3B parameters."""
  return sized(24, 1024, 128, 65_536, 128, dtype)


def second(config: EncoderDecoderConfig, dropout: float = 0.0) -> EncoderDecoderConfig:
  """Makes v1.1 of a size: GEGLU with the tanh approximation, two matrices for tokens. Fine-tuning has dropout 0.1."""
  block = checked.replaced(
      config.block, {'mlp.activation': 'gelu_tanh', 'mlp.gated': True, 'dropout': dropout,
                     'attention.dropout': dropout, 'mlp.dropout': dropout})
  return dataclasses.replace(config, block=block, tied=False, logit_factor=1.0)


def v1_1_small(dtype: Dtype = 'float32') -> EncoderDecoderConfig:
  """Makes T5 v1.1 small: 8 and 8 layers of width 512, 77M parameters."""
  return second(sized(8, 512, 6, 1024, dtype=dtype))


def v1_1_base(dtype: Dtype = 'float32') -> EncoderDecoderConfig:
  """Makes T5 v1.1 base: 12 and 12 layers of width 768, 248M parameters."""
  return second(sized(12, 768, 12, 2048, dtype=dtype))


def v1_1_large(dtype: Dtype = 'float32') -> EncoderDecoderConfig:
  """Makes T5 v1.1 large: 24 and 24 layers of width 1024, 783M parameters."""
  return second(sized(24, 1024, 16, 2816, dtype=dtype))


def v1_1_xl(dtype: Dtype = 'float32') -> EncoderDecoderConfig:
  """Makes T5 v1.1 XL: 24 and 24 layers of width 2048, 2.85B parameters."""
  return second(sized(24, 2048, 32, 5120, dtype=dtype))


def v1_1_xxl(dtype: Dtype = 'float32') -> EncoderDecoderConfig:
  """Makes T5 v1.1 XXL: 24 and 24 layers of width 4096, 11.1B parameters."""
  return second(sized(24, 4096, 64, 10_240, dtype=dtype))


def ul2_20b(dtype: Dtype = 'float32') -> EncoderDecoderConfig:
  """Makes UL2: 32 and 32 layers of width 4096, 19.5B parameters; as v1.1, with SwiGLU and one table for tokens (Tay et
  al. 2023, section 5.1)."""
  config = second(sized(32, 4096, 16, 16_384, 256, dtype))
  return dataclasses.replace(
      config, block=checked.replaced(config.block, {'mlp.activation': 'silu'}), tied=True, logit_factor=4096 ** -0.5)


def of_bytes(config: EncoderDecoderConfig, encoder: int, decoder: int) -> EncoderDecoderConfig:
  """Makes ByT5: 256 bytes, 3 special tokens and 125 more, and an encoder of three times the decoder's layers."""
  return dataclasses.replace(
      second(config), vocab=384, stack=StackConfig(encoder), decoder=StackConfig(decoder))


def byt5_small(dtype: Dtype = 'float32') -> EncoderDecoderConfig:
  """Makes ByT5 small: 12 and 4 layers of width 1472, 300M parameters."""
  return of_bytes(sized(12, 1472, 6, 3584, dtype=dtype), 12, 4)


def byt5_base(dtype: Dtype = 'float32') -> EncoderDecoderConfig:
  """Makes ByT5 base: 18 and 6 layers of width 1536, 582M parameters."""
  return of_bytes(sized(18, 1536, 12, 3968, dtype=dtype), 18, 6)


def byt5_large(dtype: Dtype = 'float32') -> EncoderDecoderConfig:
  """Makes ByT5 large: 36 and 12 layers of width 1536, 1.23B parameters."""
  return of_bytes(sized(36, 1536, 16, 3840, dtype=dtype), 36, 12)


def byt5_xl(dtype: Dtype = 'float32') -> EncoderDecoderConfig:
  """Makes ByT5 XL: 36 and 12 layers of width 2560, 3.74B parameters."""
  return of_bytes(sized(36, 2560, 32, 6720, dtype=dtype), 36, 12)


def byt5_xxl(dtype: Dtype = 'float32') -> EncoderDecoderConfig:
  """Makes ByT5 XXL: 36 and 12 layers of width 4672, 12.9B parameters."""
  return of_bytes(sized(36, 4672, 64, 12_352, dtype=dtype), 36, 12)


def to_current(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Writes out apart what one attribute says of two things, and what a class says."""
  hf_config = dict(hf_config)
  width, layers = hf_config.get('d_model', 512), hf_config.get('num_layers', 6)
  kind = hf_config.pop('feed_forward_proj', None) or 'relu'
  gated, name = kind.startswith('gated-'), kind.removeprefix('gated-')
  scaled = hf_config.pop('scale_decoder_outputs', hf_config.get('tie_word_embeddings') is not False)
  decoder = hf_config.get('num_decoder_layers')
  if {'T5EncoderModel', 'T5ForTokenClassification'} & set(hf_config.get('architectures') or ()):
    # Their class leaves the decoder out, whatever the rest says of it.
    decoder, hf_config['is_encoder_decoder'] = 0, True
  return {**hf_config, 'dense_act_fn': 'gelu_new' if kind == 'gated-gelu' else name, 'is_gated_act': gated,
          'num_decoder_layers': layers if decoder is None else decoder,
          'tie_word_embeddings': scaled, 'logit_factor': width ** -0.5 if scaled else 1.0}


def from_current(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Undoes what `to_current` did."""
  hf_config = dict(hf_config)
  factor, tied = hf_config.pop('logit_factor'), hf_config['tie_word_embeddings']
  scaled = hf_config['d_model'] ** -0.5
  if factor not in (1.0, scaled) or (factor == scaled != 1 and not tied):
    raise ConvertError(f'T5 multiplies logits by {scaled} where they are of the token table, else by 1, got {factor}')
  name = hf_config['dense_act_fn']
  if hf_config['is_gated_act']:
    # Theirs is the approximation under the plain name.
    name = {'gelu_new': 'gated-gelu', 'gelu': 'gated-gelu_python'}.get(name, f'gated-{name}')
  alone = {} if hf_config['num_decoder_layers'] else {
      'architectures': ['T5EncoderModel'], 'is_encoder_decoder': False, 'num_decoder_layers': hf_config['num_layers']}
  hf_config['d_kv'] = hf_config['d_kv'] or hf_config['d_model'] // hf_config['num_heads']
  return {**hf_config, 'feed_forward_proj': name, 'tie_word_embeddings': factor == scaled,
          'is_encoder_decoder': True, **alone}


def infer_from_tensors(config: EncoderDecoderConfig, names: Container[str]) -> EncoderDecoderConfig:
  """Ties the logits where they are not scaled and no file keeps them apart, as transformers does."""
  return config if config.tied else dataclasses.replace(config, tied='lm_head.weight' not in names)


def attention(ours: str, theirs: str) -> tuple[Rule, ...]:
  """Makes the rules of attention, which has no biases."""
  return (*(rule for name in ('query', 'key', 'value') for rule in matrix(f'{ours}/{name}', f'{theirs}.{name[0]}')[:1]),
          Rule(f'{ours}/out/kernel', f'{theirs}.o.weight', Linear(2)))


def side(name: str) -> tuple[Rule, ...]:
  """Makes the rules of the encoder or the decoder. Positions are in its first layer and for all."""
  ours, theirs = f'backbone/{name}/stack', f'{name}.block.{{n}}.layer'
  block, last = f'{ours}/layers/block', 2 if name == 'decoder' else 1
  cross = (
      *attention(f'{block}/cross', f'{theirs}.1.EncDecAttention'),
      Rule(f'{block}/cross_norm/scale', f'{theirs}.1.layer_norm.weight'),
  ) if name == 'decoder' else ()
  mlp = f'{theirs}.{last}.DenseReluDense'
  return (
      Rule('backbone/tokens', f'{name}.embed_tokens.weight', copy=True),
      *attention(f'{block}/attention', f'{theirs}.0.SelfAttention'),
      Rule(f'{block}/attention_norm/scale', f'{theirs}.0.layer_norm.weight'),
      Rule(f'{ours}/buckets', f'{name}.block.0.layer.0.SelfAttention.relative_attention_bias.weight'),
      *cross,
      Rule(f'{block}/mlp/up/kernel', f'{mlp}.wi.weight', Linear(), where=lambda config: not config.block.mlp.gated),
      Rule(f'{block}/mlp/up/kernel', f'{mlp}.wi_0.weight', Linear(), where=lambda config: config.block.mlp.gated),
      Rule(f'{block}/mlp/gate/kernel', f'{mlp}.wi_1.weight', Linear(), where=lambda config: config.block.mlp.gated),
      Rule(f'{block}/mlp/down/kernel', f'{mlp}.wo.weight', Linear()),
      Rule(f'{block}/mlp_norm/scale', f'{theirs}.{last}.layer_norm.weight'),
      Rule(f'{ours}/norm/scale', f'{name}.final_layer_norm.weight'),
  )


# transformers' T5, v1.1 and ByT5. It cannot say what the two sides may differ in but for their layers.
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
    ignored=frozenset({'n_positions', 'num_hidden_layers', 'hidden_size', 'num_attention_heads', 'head_dim'}),
    rules=(Rule('backbone/tokens', 'shared.weight'), *side('encoder'), *side('decoder')),
    parts={},
    heads={
        'lm': Head(lambda config, classes: NextTokens(config.block, config.vocab, config.tied, config.logit_factor), (
            Rule('heads_lm/kernel', 'lm_head.weight', Linear(), where=lambda config: not config.tied),
            Rule('backbone/tokens', 'lm_head.weight', copy=True, where=lambda config: config.tied),
        )),
        **bart.ASKED,
        'tags': Head(lambda config, classes: TokenClasses(config.block, classes, 0.0, encoder=True),
                     bart.ASKED['tags'].rules, dropout='classifier_dropout'),
    },
    classes={
        'T5ForConditionalGeneration': ('lm',), 'T5Model': (), 'T5EncoderModel': (),
        'T5ForSequenceClassification': ('label',), 'T5ForQuestionAnswering': ('span',),
        'T5ForTokenClassification': ('tags',),
    },
    prefix='',
    within={'T5ForSequenceClassification': 'transformer.', 'T5ForTokenClassification': 'transformer.'},
    encoding=frozenset({'tags'}),
    aliases=((r'^transformer\.', ''),),
    says={'decoder_start_token_id': 0},
    to_current=to_current,
    from_current=from_current,
    infer_from_tensors=infer_from_tensors,
    # A table that attention to the encoder has in the first files and does not use.
    skipped=(r'EncDecAttention\.relative_attention_bias\.weight$',),
)
