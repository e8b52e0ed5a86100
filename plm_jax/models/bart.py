"""BART (Lewis et al. 2020, arXiv:1910.13461), a denoising encoder-decoder.

`mbart` has the multilingual model, with pre-layer normalization. Parameters of the released
checkpoints: base 139,420,416, large 406,291,456, position embeddings included.

mBART (Liu et al. 2020, arXiv:2001.08210): a multilingual BART with pre-layer normalization.
Parameters of the released checkpoint of 25 languages: 610,851,840 (section 2.2: 680M, where
embedding tables are counted separately). A text ends with the token of its language, and the
decoder begins with that token, too.
"""
from collections.abc import Container, Mapping
import dataclasses
import functools
from typing import Any

from plm_jax import validation
from plm_jax.architectures.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.heads import NextTokenHead, SummaryClassifier, TokenClassifier
from plm_jax.layers.init import NORMAL_INIT
from plm_jax.layers.norm import NormConfig
from plm_jax.layers.stack import StackConfig
from plm_jax.models import bert
from plm_jax.models.bert import ACTIVATIONS
from plm_jax.models.layouts import Linear, RowVector
from plm_jax.models.rules import (
  Attribute,
  ConvertError,
  Family,
  HeadSpec,
  Rule,
  dense_rules,
  join_rules,
  norm_rules,
)


def make_config(layers: int, width: int, dtype: Dtype = 'float32') -> EncoderDecoderConfig:
  """Make a BART with `layers` layers on each side and texts of up to 1024 tokens.

  Heads are of 64, and the MLP is 4 x hidden size.
  """
  block = BlockConfig(
      width=width, heads=width // 64, mlp_dim=4 * width, norm=NormConfig(eps=1e-5),
      init=NORMAL_INIT, dtype=dtype)
  return EncoderDecoderConfig(
      vocab=50_265, block=block, stack=StackConfig(layers), decoder=StackConfig(layers),
      max_length=1024, absolute='learned', first_position=2, embed_norm=True)


base = functools.partial(make_config, 6, 768)  # 139M parameters
large = functools.partial(make_config, 12, 1024)  # 406M parameters


def add_source_encoder(model: EncoderDecoderConfig, layers: int = 6) -> EncoderDecoderConfig:
  """Return the model for translation: a source encoder replaces the encoder's token embeddings.

  The source encoder has `layers` layers (sections 3.4 and 5.4).
  """
  return dataclasses.replace(model, source=StackConfig(layers))


# Parameters that the first of two stages of translation trains (section 3.4): the source encoder,
# BART's positions, and the input projections of self-attention in the encoder's first layer. No
# code was released. Here the positions are those of both sides, and the projections include biases.
SOURCE_STAGE = (
    'backbone/source',
    'backbone/encoder/embeddings/positions',
    'backbone/decoder/embeddings/positions',
    'backbone/encoder/stack/layers/block/attention/query[0]',
    'backbone/encoder/stack/layers/block/attention/key[0]',
    'backbone/encoder/stack/layers/block/attention/value[0]')


SIDE_SIZES = {'attention_heads': 16, 'ffn_dim': 4096}
"""attributes that encoder and decoder have each, with their defaults"""


def normalize_hf_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Turn the factor on token embeddings into a number.

  The decoder's sizes become None where they are those of the encoder.
  """
  hf_config = {'d_model': 1024, **hf_config}
  for name, default in SIDE_SIZES.items():
    encoder = hf_config.get(f'encoder_{name}', default)
    decoder = hf_config.get(f'decoder_{name}', default)
    hf_config[f'decoder_{name}'] = None if encoder == decoder else decoder
  factor = hf_config['d_model'] ** 0.5 if hf_config.get('scale_embedding') else 1.0
  return {**hf_config, 'scale_embedding': factor}


def denormalize_hf_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Reverse `normalize_hf_config`. Raises ConvertError for another factor than 1 and sqrt(D)."""
  hf_config = dict(hf_config)
  factor, root = hf_config['scale_embedding'], hf_config['d_model'] ** 0.5
  if factor not in (1.0, root):
    raise ConvertError(f'BART multiplies token vectors by {root} or 1, got {factor}')
  for name in SIDE_SIZES:
    size = hf_config[f'decoder_{name}'] or hf_config[f'encoder_{name}']
    hf_config[f'decoder_{name}'] = size
  return {**hf_config, 'scale_embedding': factor != 1, 'is_encoder_decoder': True}


def infer_from_tensors(
    config: EncoderDecoderConfig, names: Container[str],
) -> EncoderDecoderConfig:
  """Tell whether the decoder has a token table of its own.

  Files of tied models may hold copies of one table. In transformers 5, untied models have a table
  on each side next to `shared`, which nothing reads.
  """
  encoder, shared = 'model.encoder.embed_tokens.weight' in names, 'model.shared.weight' in names
  separate = config.separate_embeddings and encoder and not (config.tied and shared)
  return dataclasses.replace(config, separate_embeddings=separate)


def shares_table(config: EncoderDecoderConfig) -> bool:
  """Tell whether both sides share one token table."""
  return not config.separate_embeddings


def has_two_tables(config: EncoderDecoderConfig) -> bool:
  """Tell whether encoder and decoder have a token table each."""
  return config.separate_embeddings


def attention_rules(ours: str, theirs: str) -> tuple[Rule, ...]:
  """Make the rules of the four projections of an attention."""
  return join_rules(
      dense_rules(f'{ours}/query', f'{theirs}.q_proj'),
      dense_rules(f'{ours}/key', f'{theirs}.k_proj'),
      dense_rules(f'{ours}/value', f'{theirs}.v_proj'),
      dense_rules(f'{ours}/out', f'{theirs}.out_proj', inputs=2))


def side_rules(name: str) -> tuple[Rule, ...]:
  """Make the rules of the 'encoder' or the 'decoder'."""
  ours, theirs = f'backbone/{name}', f'model.{name}'
  block, layer = f'{ours}/stack/layers/block', f'{theirs}.layers.{{n}}'
  cross_attention = join_rules(
      attention_rules(f'{block}/cross', f'{layer}.encoder_attn'),
      norm_rules(f'{block}/cross_norm', f'{layer}.encoder_attn_layer_norm'))
  return join_rules(
      Rule('backbone/tokens', f'{theirs}.embed_tokens.weight', copy=True,
           applies_to=shares_table),
      Rule(f'{ours}/embeddings/positions', f'{theirs}.embed_positions.weight'),
      norm_rules(f'{ours}/embeddings/norm', f'{theirs}.layernorm_embedding'),
      attention_rules(f'{block}/attention', f'{layer}.self_attn'),
      norm_rules(f'{block}/attention_norm', f'{layer}.self_attn_layer_norm'),
      cross_attention if name == 'decoder' else (),
      dense_rules(f'{block}/mlp/up', f'{layer}.fc1'),
      dense_rules(f'{block}/mlp/down', f'{layer}.fc2'),
      norm_rules(f'{block}/mlp_norm', f'{layer}.final_layer_norm'),
      norm_rules(f'{ours}/stack/norm', f'{theirs}.layer_norm'),
  )


# Heads of downstream tasks for encoder-decoders, which read the decoder's hidden states.
# transformers has no class for tags and choice.
TASK_HEADS = {
    'label': HeadSpec(
        lambda config, classes: SummaryClassifier(config.block, classes, dropout=0.0, before=True),
        join_rules(
            dense_rules('heads_label/hidden', 'classification_head.dense'),
            dense_rules('heads_label/dense', 'classification_head.out_proj')),
        dropout='classifier_dropout'),
    'choice': HeadSpec(
        lambda config, classes: SummaryClassifier(config.block, None, dropout=0.0, before=True),
        join_rules(
            dense_rules('heads_choice/hidden', 'choice_head.dense'),
            dense_rules('heads_choice/dense', 'choice_head.out_proj')),
        dropout='classifier_dropout'),
    'tags': HeadSpec(
        lambda config, classes: TokenClassifier(config.block, classes, 0.0),
        dense_rules('heads_tags/dense', 'classifier'), dropout='classifier_dropout'),
    'span': bert.FAMILY.heads['span'],
}

# transformers' BART. BART and mBART are two families there, so the attributes with which older
# files choose between them are `fixed`.
FAMILY = Family(
    name='bart',
    backbone=lambda config: EncoderDecoder(config),
    config=large(),
    attributes=(
        Attribute('vocab_size', 'vocab', 50_265),
        Attribute('d_model', 'block.width', 1024),
        Attribute('encoder_layers', 'stack.layers', 12),
        Attribute('decoder_layers', 'decoder.layers', 12),
        Attribute('encoder_attention_heads', 'block.heads', 16),
        Attribute('decoder_attention_heads', 'decoder_heads', None),
        Attribute('encoder_ffn_dim', 'block.mlp_dim', 4096),
        Attribute('decoder_ffn_dim', 'decoder_mlp_dim', None),
        Attribute('activation_function', 'block.mlp.activation', 'gelu', ACTIVATIONS),
        Attribute('dropout', 'block.dropout', 0.1),
        Attribute('attention_dropout', 'block.attention.dropout', 0.0),
        Attribute('activation_dropout', 'block.mlp.dropout', 0.0),
        Attribute('init_std', 'block.init.std', 0.02),
        Attribute('max_position_embeddings', 'max_length', 1024),
        Attribute('scale_embedding', 'embed_factor', 1.0),
        Attribute('tie_word_embeddings', 'tied', True),
    ),
    fixed={
        'is_encoder_decoder': True, 'add_bias_logits': False, 'add_final_layer_norm': False,
        'do_blenderbot_90_layernorm': False, 'extra_pos_embeddings': 2, 'normalize_before': False,
        'normalize_embedding': True, 'static_position_embeddings': False},
    ignored=frozenset({
        '_num_labels', 'classif_dropout', 'decoder_layerdrop', 'encoder_layerdrop',
        'force_bos_token_to_be_generated', 'hidden_size', 'num_attention_heads',
        'num_hidden_layers', 'save_step'}),
    rules=join_rules(
        Rule('backbone/tokens', 'model.shared.weight', applies_to=shares_table),
        Rule('backbone/tokens', 'model.encoder.embed_tokens.weight', applies_to=has_two_tables),
        Rule('backbone/tokens', 'model.shared.weight', copy=True, unused=True,
             applies_to=has_two_tables),
        Rule('backbone/decoder/embeddings/tokens', 'model.decoder.embed_tokens.weight'),
        side_rules('encoder'),
        side_rules('decoder')),
    part_tensors={'logit_bias': 'final_logits_bias',
                  'separate_embeddings': 'model.decoder.embed_tokens.weight'},
    heads={
        'lm': HeadSpec(
            lambda config, classes: NextTokenHead(
                config.block, config.vocab, config.tied, bias=config.logit_bias),
            (
                Rule('backbone/tokens', 'lm_head.weight', copy=True,
                     applies_to=lambda config: config.tied and not config.separate_embeddings),
                Rule('backbone/decoder/embeddings/tokens', 'lm_head.weight', copy=True,
                     applies_to=lambda config: config.tied and config.separate_embeddings),
                Rule('heads_lm/kernel', 'lm_head.weight', Linear(),
                     applies_to=lambda config: not config.tied),
                Rule('heads_lm/bias', 'final_logits_bias', RowVector(),
                     applies_to=lambda config: config.logit_bias))),
        **TASK_HEADS,
    },
    classes={
        'BartForConditionalGeneration': ('lm',), 'BartModel': (),
        'BartForSequenceClassification': ('label',), 'BartForQuestionAnswering': ('span',),
    },
    prefix='model.',
    aliases=((r'^(shared|encoder|decoder)\.', r'model.\1.'),),
    export_defaults={
        'pad_token_id': 1, 'decoder_start_token_id': 2, 'forced_eos_token_id': 2},
    normalize_hf_config=normalize_hf_config,
    denormalize_hf_config=denormalize_hf_config,
    skip_patterns=(r'(encoder|decoder)\.version$',),
    infer_from_tensors=infer_from_tensors,
)


def mbart_large(dtype: Dtype = 'float32') -> EncoderDecoderConfig:
  """Make mBART of 25 languages: 12 + 12 layers, hidden size 1024, 611M parameters.

  The vocabulary has 250,000 tokens and those of the languages.
  """
  config = large(dtype)
  # Norms before sublayers, with one more after each side (section 2.2 of the paper); token
  # embeddings are multiplied by sqrt(D), as released.
  return validation.with_paths(config, {
      'block.norm_at': 'pre', 'embed_factor': config.block.width ** 0.5, 'vocab': 250_027})


def mbart_large_50(dtype: Dtype = 'float32') -> EncoderDecoderConfig:
  """Make mBART-50 (Tang et al. 2020, arXiv:2008.00401): 27 more language tokens, 611M."""
  return dataclasses.replace(mbart_large(dtype), vocab=250_054)


# transformers' MBart.
MBART = dataclasses.replace(
    FAMILY,
    name='mbart',
    config=mbart_large(),
    fixed={**FAMILY.fixed, 'add_final_layer_norm': True, 'normalize_before': True},
    classes={name.replace('Bart', 'MBart'): heads for name, heads in FAMILY.classes.items()},
    export_defaults={'pad_token_id': 1, 'forced_eos_token_id': 2},
)
