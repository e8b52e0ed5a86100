"""T5Gemma, encoder-decoder Gemma (Zhang et al. 2025, arXiv:2504.06225).

An encoder and a decoder with the blocks of Gemma 2, which are initialized from a Gemma 2 each
(`training.decoder_adaptation`). The decoder has cross-attention between self-attention and MLP,
with the heads of its self-attention and without positions. Each side has token embeddings of its
own; the decoder's are tied to the output.

Parameters of the released checkpoints: s 312,517,632, b 591,490,560, xl 3,766,980,608, 9b_2b
12,292,375,296, 9b_9b 20,333,401,088. The sizes s to xl have T5's numbers of layers and widths. The
configuration of the released ml (2,200,345,344) could not be verified, so it has no name here.
"""
from collections.abc import Mapping
import dataclasses
import functools
from typing import Any

from plm_jax.architectures.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.heads import NextTokenHead, PooledClassifier, TokenClassifier
from plm_jax.layers.stack import StackConfig
from plm_jax.models import bart, gemma2
from plm_jax.models.layouts import Linear
from plm_jax.models.rules import (
  Attribute,
  ConvertError,
  Family,
  HeadSpec,
  Rule,
  dense_rules,
  join_rules,
)


def make_balanced(
    layers: int, width: int, heads: int, kv_heads: int | None, mlp_dim: int,
    dtype: Dtype = 'float32', head_size: int | None = None,
) -> EncoderDecoderConfig:
  """Make a T5Gemma whose encoder and decoder have the same size."""
  block = gemma2.make_block(width, heads, kv_heads, mlp_dim, dtype, head_size)
  return EncoderDecoderConfig(
      vocab=gemma2.VOCAB, block=block, stack=StackConfig(layers), decoder=StackConfig(layers),
      max_length=gemma2.MAX_LENGTH, embed_factor=width ** 0.5, logit_cap=gemma2.LOGIT_CAP,
      windows=gemma2.WINDOWS, separate_embeddings=True, last_dropout=True)


t5gemma_s_s = functools.partial(make_balanced, 8, 512, 8, None, 1024)  # 313M parameters
t5gemma_b_b = functools.partial(make_balanced, 12, 768, 12, None, 2048)  # 591M parameters
t5gemma_l_l = functools.partial(make_balanced, 24, 1024, 16, None, 2816)  # 1.24B parameters
t5gemma_xl_xl = functools.partial(make_balanced, 24, 2048, 32, None, 5120)  # 3.77B parameters
t5gemma_2b_2b = functools.partial(
    make_balanced, 26, 2304, 8, 4, 9216, head_size=256)  # 5.60B parameters
t5gemma_9b_9b = functools.partial(
    make_balanced, 42, 3584, 16, 8, 14_336, head_size=256)  # 20.3B parameters


def t5gemma_9b_2b(dtype: Dtype = 'float32') -> EncoderDecoderConfig:
  """Make the encoder of Gemma 2 9B with the decoder of Gemma 2 2B: 12.3B parameters."""
  return dataclasses.replace(
      t5gemma_9b_9b(dtype), decoder=StackConfig(26), decoder_width=2304, decoder_heads=8,
      decoder_kv_heads=4, decoder_mlp_dim=9216)


SIDES = ('encoder', 'decoder')
SIDE_SIZES = {
    'num_hidden_layers': 'decoder.layers', 'hidden_size': 'decoder_width',
    'num_attention_heads': 'decoder_heads', 'num_key_value_heads': 'decoder_kv_heads',
    'head_dim': 'decoder_head_size', 'intermediate_size': 'decoder_mlp_dim'}
"""attributes in which the decoder may differ, and our fields of it"""


def normalize_hf_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Join the configurations of both sides.

  Sizes of the decoder become None where they are those of the encoder, except its layers. Raises
  ConvertError for sides that differ in anything else.
  """
  hf_config = dict(hf_config)
  encoder, decoder = (
      gemma2.normalize_hf_config(hf_config.pop(side, None) or {}) for side in SIDES)
  decoder.pop('cross_attention_hidden_size', None)
  # Their files do not state it, and transformers starts with the start token.
  start = hf_config.get('bos_token_id', decoder.get('bos_token_id'))
  hf_config.setdefault('decoder_start_token_id', start)
  for name in ('tie_word_embeddings', 'embed_factor'):  # the model's own, and one that follows
    decoder[name] = encoder.get(name)
  sizes = {}
  for attribute in gemma2.FAMILY.attributes:
    name = attribute.theirs
    first, second = (side.get(name, attribute.default) for side in (encoder, decoder))
    if name in SIDE_SIZES:
      sizes[f'decoder_{name}'] = None if first == second else second
    elif first != second:
      raise ConvertError(f'cannot convert the configuration: {name} is {first} of the encoder and '
                         f'{second} of the decoder, which have to agree')
  sizes['decoder_num_hidden_layers'] = decoder['num_hidden_layers']
  heads = decoder['num_attention_heads']
  if encoder['num_key_value_heads'] and not decoder['num_key_value_heads']:
    sizes['decoder_num_key_value_heads'] = heads
  if encoder['head_dim'] and not decoder['head_dim']:
    sizes['decoder_head_dim'] = decoder['hidden_size'] // heads
  return {**decoder, **encoder, **hf_config, **sizes, 'vocab_size': decoder['vocab_size']}


def denormalize_hf_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Reverse `normalize_hf_config`. Raises ConvertError."""
  encoder = dict(hf_config)
  sizes = {name: encoder.pop(f'decoder_{name}') for name in SIDE_SIZES}
  decoder = {**encoder, **{name: size for name, size in sizes.items() if size is not None}}
  if sizes['hidden_size']:
    decoder['embed_factor'] = decoder['hidden_size'] ** 0.5
  written = {}
  for side, values in zip(SIDES, (encoder, decoder), strict=True):
    written[side] = {**gemma2.denormalize_hf_config(values), 'model_type': 't5_gemma_module',
                     'is_decoder': side == 'decoder'}
  written['decoder']['cross_attention_hidden_size'] = encoder['hidden_size']
  names = ('vocab_size', 'dropout_rate', 'attention_dropout', 'tie_word_embeddings',
           'initializer_range')
  return {**{name: encoder[name] for name in names}, **written, 'is_encoder_decoder': True}


def side_rules(side: str) -> tuple[Rule, ...]:
  """Make the rules of the 'encoder' or the 'decoder'."""
  ours, theirs = f'backbone/{side}/stack', f'model.{side}'
  block, layer = f'{ours}/layers/block', f'{theirs}.layers.{{n}}'
  parts = {'attention': 'self_attn', 'mlp': 'feedforward'}
  if side == 'decoder':
    parts['cross'] = 'cross_attn'
  rules = []
  for part, their_part in parts.items():
    rules += [Rule(f'{block}/{part}_norm/scale', f'{layer}.pre_{their_part}_layernorm.weight'),
              Rule(f'{block}/{part}_out_norm/scale', f'{layer}.post_{their_part}_layernorm.weight')]
    if part == 'mlp':
      continue
    for name in ('query', 'key', 'value', 'out'):
      rules += dense_rules(f'{block}/{part}/{name}', f'{layer}.{their_part}.{name[0]}_proj',
                           inputs=2 if name == 'out' else 1)
  return join_rules(
      rules,
      # Our `up` has the activation, which their gate_proj has.
      dense_rules(f'{block}/mlp/up', f'{layer}.mlp.gate_proj'),
      dense_rules(f'{block}/mlp/gate', f'{layer}.mlp.up_proj'),
      dense_rules(f'{block}/mlp/down', f'{layer}.mlp.down_proj'),
      Rule(f'{ours}/norm/scale', f'{theirs}.norm.weight'))


TOKENS = 'backbone/decoder/embeddings/tokens'
# transformers' T5Gemma.
FAMILY = Family(
    name='t5gemma',
    backbone=lambda config: EncoderDecoder(config),
    config=t5gemma_2b_2b(),
    attributes=(
        *gemma2.FAMILY.attributes,
        Attribute('dropout_rate', 'block.dropout', 0.0),
        Attribute('dropout_rate', 'block.mlp.dropout', 0.0),
        *(Attribute(f'decoder_{theirs}', ours, 26 if theirs == 'num_hidden_layers' else None)
          for theirs, ours in SIDE_SIZES.items())),
    fixed={'is_encoder_decoder': True},
    ignored=frozenset({'classifier_dropout_rate', 'cache_implementation'}),
    rules=join_rules(
        Rule('backbone/tokens', 'model.encoder.embed_tokens.weight'),
        Rule(TOKENS, 'model.decoder.embed_tokens.weight'),
        side_rules('encoder'), side_rules('decoder')),
    part_tensors={},
    heads={
        'lm': HeadSpec(
            lambda config, classes: NextTokenHead(
                config.decoder_block, config.vocab, config.tied, config.logit_factor,
                cap=config.logit_cap),
            (
                Rule(TOKENS, 'lm_head.out_proj.weight', copy=True,
                     applies_to=lambda config: config.tied),
                Rule('heads_lm/kernel', 'lm_head.out_proj.weight', Linear(),
                     applies_to=lambda config: not config.tied))),
        'label': HeadSpec(
            lambda config, classes: PooledClassifier(config.decoder_block, classes, 0.0),
            dense_rules('heads_label/dense', 'score.out_proj'), dropout='classifier_dropout_rate'),
        'choice': HeadSpec(
            lambda config, classes: PooledClassifier(config.decoder_block, None, 0.0),
            dense_rules('heads_choice/dense', 'choice_head.out_proj'),
            dropout='classifier_dropout_rate'),
        'tags': HeadSpec(
            lambda config, classes: TokenClassifier(config.decoder_block, classes, 0.0),
            dense_rules('heads_tags/dense', 'score.out_proj'), dropout='classifier_dropout_rate'),
        'span': bart.TASK_HEADS['span'],
    },
    classes={
        'T5GemmaForConditionalGeneration': ('lm',), 'T5GemmaModel': (),
        'T5GemmaForSequenceClassification': ('label',), 'T5GemmaForTokenClassification': ('tags',)},
    prefix='model.',
    aliases=((r'^(encoder|decoder)\.', r'model.\1.'),),
    nested_configs=SIDES,
    normalize_hf_config=normalize_hf_config,
    denormalize_hf_config=denormalize_hf_config,
    skip_patterns=(r'\brotary_emb\.inv_freq$',),
)
