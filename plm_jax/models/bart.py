"""BART (Lewis et al. 2020, arXiv:1910.13461); `mbart` has the multilingual one, with norms first.

Parameters of the released checkpoints: base 139,420,416, large 406,291,456, tables of positions included.
"""
from collections.abc import Mapping
import dataclasses
from typing import Any

from plm_jax.architectures.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from plm_jax.conversion.layouts import Row
from plm_jax.conversion.rules import Attribute, ConvertError, Family, Head, Rule
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.heads import NextTokens, SummaryClasses, TokenClasses
from plm_jax.layers.init import NORMAL
from plm_jax.layers.norm import NormConfig
from plm_jax.layers.stack import StackConfig
from plm_jax.models import bert
from plm_jax.models.bert import ACTIVATIONS, matrix, norm


def sized(layers: int, width: int, dtype: Dtype = 'float32') -> EncoderDecoderConfig:
  """Heads of 64 and an MLP of four times the width; as many layers on both sides, and rows of 1024 tokens."""
  block = BlockConfig(
      width=width, heads=width // 64, mlp_dim=4 * width, norm=NormConfig(eps=1e-5), init=NORMAL, dtype=dtype)
  return EncoderDecoderConfig(
      vocab=50_265, block=block, stack=StackConfig(layers), decoder=StackConfig(layers), max_length=1024,
      absolute='learned', first_position=2, embed_norm=True)


def base(dtype: Dtype = 'float32') -> EncoderDecoderConfig:
  """Makes BART base: 6 and 6 layers of width 768, 139M parameters."""
  return sized(6, 768, dtype)


def large(dtype: Dtype = 'float32') -> EncoderDecoderConfig:
  """Makes BART large: 12 and 12 layers of width 1024, 406M parameters."""
  return sized(12, 1024, dtype)


def translator(model: EncoderDecoderConfig, layers: int = 6) -> EncoderDecoderConfig:
  """Returns the model with a source encoder of so many layers in place of the encoder's token table (sections 3.4 and
  5.4)."""
  return dataclasses.replace(model, source=StackConfig(layers))


# What the first of two stages of translation trains (section 3.4): the source encoder, BART's positions, and the input
# projections of self-attention in the first layer of BART's encoder. No code of it was released: here the positions are
# those of both sides, and the projections have their biases.
SOURCE_STAGE = (
    'backbone/source', 'backbone/encoder/embeddings/positions', 'backbone/decoder/embeddings/positions',
    *(f'backbone/encoder/stack/layers/block/attention/{name}[0]' for name in ('query', 'key', 'value')))


SIZES = {'attention_heads': 16, 'ffn_dim': 4096}  # of each side


def to_current(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Reads the factor on token vectors as a number. Raises ConvertError where the two sides differ in more than their
  layers."""
  hf_config = {'d_model': 1024, **hf_config}
  for name, default in SIZES.items():
    encoder, decoder = (hf_config.get(f'{side}_{name}', default) for side in ('encoder', 'decoder'))
    hf_config[f'decoder_{name}'] = None if encoder == decoder else decoder
  return {**hf_config, 'scale_embedding': hf_config['d_model'] ** 0.5 if hf_config.get('scale_embedding') else 1.0}


def from_current(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Undoes what `to_current` did."""
  factor, root = hf_config['scale_embedding'], hf_config['d_model'] ** 0.5
  if factor not in (1.0, root):
    raise ConvertError(f'BART multiplies token vectors by {root} or 1, got {factor}')
  sizes = {f'decoder_{name}': hf_config[f'decoder_{name}'] or hf_config[f'encoder_{name}'] for name in SIZES}
  return {**hf_config, **sizes, 'scale_embedding': factor != 1, 'is_encoder_decoder': True}


def side(name: str) -> tuple[Rule, ...]:
  """Makes the rules of the encoder or the decoder."""
  ours, theirs = f'backbone/{name}', f'model.{name}'
  block, layer = f'{ours}/stack/layers/block', f'{theirs}.layers.{{n}}'
  def attention(part, their):
    return (rule for one in ('query', 'key', 'value', 'out') for rule in matrix(
        f'{block}/{part}/{one}', f'{layer}.{their}.{"out" if one == "out" else one[0]}_proj', 2 if one == 'out' else 1))
  cross = (*attention('cross', 'encoder_attn'), *norm(f'{block}/cross_norm', f'{layer}.encoder_attn_layer_norm'))
  return (
      Rule('backbone/tokens', f'{theirs}.embed_tokens.weight', copy=True),
      Rule(f'{ours}/embeddings/positions', f'{theirs}.embed_positions.weight'),
      *norm(f'{ours}/embeddings/norm', f'{theirs}.layernorm_embedding'),
      *attention('attention', 'self_attn'),
      *norm(f'{block}/attention_norm', f'{layer}.self_attn_layer_norm'),
      *(cross if name == 'decoder' else ()),
      *matrix(f'{block}/mlp/up', f'{layer}.fc1'),
      *matrix(f'{block}/mlp/down', f'{layer}.fc2'),
      *norm(f'{block}/mlp_norm', f'{layer}.final_layer_norm'),
      *norm(f'{ours}/stack/norm', f'{theirs}.layer_norm'),
  )


# What encoder-decoders are asked, all of their decoder's states. transformers has no class for tags and choices.
ASKED = {
    'label': Head(lambda config, classes: SummaryClasses(config.block, classes, dropout=0.0, before=True), (
        *matrix('heads_label/hidden', 'classification_head.dense'),
        *matrix('heads_label/dense', 'classification_head.out_proj'),
    ), dropout='classifier_dropout'),
    'choice': Head(lambda config, classes: SummaryClasses(config.block, None, dropout=0.0, before=True), (
        *matrix('heads_choice/hidden', 'choice_head.dense'),
        *matrix('heads_choice/dense', 'choice_head.out_proj'),
    ), dropout='classifier_dropout'),
    'tags': Head(
        lambda config, classes: TokenClasses(config.block, classes, 0.0), matrix('heads_tags/dense', 'classifier'),
        dropout='classifier_dropout'),
    'span': bert.FAMILY.heads['span'],
}

# transformers' BART. What older files say of norms is `fixed`, as this and mBART are two families there.
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
    ),
    fixed={
        'is_encoder_decoder': True, 'add_bias_logits': False, 'add_final_layer_norm': False,
        'do_blenderbot_90_layernorm': False, 'extra_pos_embeddings': 2, 'normalize_before': False,
        'normalize_embedding': True, 'static_position_embeddings': False},
    ignored=frozenset({
        '_num_labels', 'classif_dropout', 'decoder_layerdrop', 'encoder_layerdrop', 'force_bos_token_to_be_generated',
        'hidden_size', 'num_attention_heads', 'num_hidden_layers', 'save_step'}),
    rules=(Rule('backbone/tokens', 'model.shared.weight'), *side('encoder'), *side('decoder')),
    parts={'logit_bias': 'final_logits_bias'},
    heads={
        'lm': Head(lambda config, classes: NextTokens(config.block, config.vocab, bias=config.logit_bias), (
            Rule('backbone/tokens', 'lm_head.weight', copy=True),
            Rule('heads_lm/bias', 'final_logits_bias', Row(), where=lambda config: config.logit_bias),
        )),
        **ASKED,
    },
    classes={
        'BartForConditionalGeneration': ('lm',), 'BartModel': (), 'BartForSequenceClassification': ('label',),
        'BartForQuestionAnswering': ('span',),
    },
    prefix='model.',
    aliases=((r'^(shared|encoder|decoder)\.', r'model.\1.'),),
    says={'pad_token_id': 1, 'decoder_start_token_id': 2, 'forced_eos_token_id': 2},
    to_current=to_current,
    from_current=from_current,
    skipped=(r'(encoder|decoder)\.version$',),
)
