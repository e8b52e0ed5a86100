"""Crammed BERT (Geiping and Goldstein 2023, arXiv:2212.14034): a BERT for one day on one GPU.

The model is that of crammed-bert.yaml in JonasGeiping/cramming. Parameters as published: 120M. It
has 16 layers, hidden size 768 and pre-layer normalization. Embeddings are normalized too, and
nothing but norms has biases. The MLP is a GLU with halves of 1,536. Positions are sinusoidal, times
one trained number. Masked tokens are predicted from the last norm without a transform.
"""
from collections.abc import Mapping
from typing import Any

from plm_jax.architectures.encoder import Encoder, EncoderConfig
from plm_jax.layers.attention import AttentionConfig
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.embeddings import EmbeddingConfig
from plm_jax.layers.heads import (
    AnswerSpanHead,
    FirstTokenClassifier,
    HeadConfig,
    MaskedLMHead,
    TokenClassifier,
)
from plm_jax.layers.init import NORMAL_INIT
from plm_jax.layers.mlp import MlpConfig
from plm_jax.layers.stack import StackConfig
from plm_jax.models.layouts import Linear
from plm_jax.models.rules import (
    Attribute,
    ConvertError,
    Family,
    HeadSpec,
    Rule,
    dense_rules,
    join_rules,
    norm_rules,
    packed_rules,
)

# Attributes in `arch` of a configuration that are supported at these values only.
FIXED_EMBEDDING = {'pos_embedding': 'scaled-sinusoidal', 'normalization': True}
FIXED_ATTENTION = {
    'type': 'self-attention', 'causal_attention': False, 'skip_output_projection': False,
    'qkv_bias': False, 'rotary_embedding': False, 'sequence_op': 'torch-softmax'}
FIXED = {
    'norm': 'LayerNorm', 'norm_scheme': 'pre', 'nonlin': 'GELUglu', 'tie_weights': True,
    'decoder_bias': False, 'ffn_layer_frequency': 1, 'skip_head_transform': True,
    'use_bias': False, 'final_norm': True}


def base(dtype: Dtype = 'float32') -> EncoderConfig:
  """Make crammed BERT: 16 layers, hidden size 768, texts of 128 tokens, 120M parameters."""
  block = BlockConfig(
      width=768, heads=12, mlp_dim=1536, norm_at='pre',
      attention=AttentionConfig(bias=(), dropout=0.1), mlp=MlpConfig(gated=True, bias=False),
      init=NORMAL_INIT, dtype=dtype)
  return EncoderConfig(
      vocab=32_768, block=block, stack=StackConfig(16), max_length=128,
      embeddings=EmbeddingConfig(types=0, absolute='scaled', norm=True),
      head=HeadConfig(transform=False, output_bias=False), pooler=False)


def normalize_hf_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Flatten `arch`, which holds the architecture; intermed_size becomes half of theirs.

  Raises ConvertError for another architecture of the same code.
  """
  hf_config, arch = dict(hf_config), hf_config.get('arch')
  parts = ('embedding', 'attention')
  if not isinstance(arch, dict) or not all(isinstance(arch.get(name), dict) for name in parts):
    raise ConvertError(
        'cannot convert the configuration: it has no arch with embedding and attention')
  embedding, attention = arch['embedding'], arch['attention']
  wrong = [
      *describe_unknown('arch.', arch, FIXED),
      *describe_unknown('arch.embedding.', embedding, FIXED_EMBEDDING),
      *describe_unknown('arch.attention.', attention, FIXED_ATTENTION)]
  hidden = arch.get('intermed_size', 3072)
  if type(hidden) is not int or hidden % 2:
    wrong.append(
        f'arch.intermed_size is {str(hidden)[:100]}, of which a half is the width of the GLU')
  if wrong:
    raise ConvertError('cannot convert the configuration:\n  ' + '\n  '.join(wrong))
  del hf_config['arch']
  flat = {
      'vocab_size': embedding.get('vocab_size'),
      'max_seq_length': embedding.get('max_seq_length'),
      'num_attention_heads': attention.get('num_attention_heads'),
      'attention_dropout': attention.get('dropout_prob')}
  for name in ('hidden_size', 'num_transformer_layers', 'norm_eps', 'hidden_dropout_prob'):
    flat[name] = arch.get(name)
  stated = {name: value for name, value in flat.items() if value is not None}
  init = arch.get('init')
  std = init.get('std', 0.02) if isinstance(init, dict) else 0.02
  return {**hf_config, **stated, 'norm_eps': float(stated.get('norm_eps', 1e-12)), 'init_std': std,
          'intermed_size': hidden // 2}


def describe_unknown(
    prefix: str, found: Mapping[str, Any], known: Mapping[str, Any],
) -> list[str]:
  """Return a line for every attribute in `found` with another value than in `known`."""
  return [f'{prefix}{name} is {str(found[name])[:100]}, only {value!r} is supported'
          for name, value in known.items() if name in found and found[name] != value]


def denormalize_hf_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Reverse `normalize_hf_config`."""
  rest = dict(hf_config)
  embedding = {
      **FIXED_EMBEDDING, 'vocab_size': rest.pop('vocab_size'),
      'embedding_dim': rest['hidden_size'], 'max_seq_length': rest.pop('max_seq_length'),
      'dropout_prob': rest['hidden_dropout_prob'], 'pad_token_id': 0,
      'stable_low_precision': False}
  attention = {
      **FIXED_ATTENTION, 'num_attention_heads': rest.pop('num_attention_heads'),
      'dropout_prob': rest.pop('attention_dropout'), 'seq_op_in_fp32': False}
  init = {'type': 'normal', 'std': rest.pop('init_std')}
  return {'arch': {
      **FIXED, 'embedding': embedding, 'attention': attention, 'num_labels': None, 'init': init,
      'objective_layout': 'MLM', 'loss': 'cross-entropy', 'sparse_prediction': 0.25,
      **rest, 'intermed_size': 2 * rest['intermed_size']}}


BLOCK, LAYER = 'backbone/stack/layers/block', 'encoder.layers.{n}'

# Released code, of the package `cramming`.
FAMILY = Family(
    name='crammedBERT',
    backbone=lambda config: Encoder(config),
    config=base(),
    attributes=(
        Attribute('vocab_size', 'vocab', 32_768),
        Attribute('hidden_size', 'block.width', 768),
        Attribute('num_transformer_layers', 'stack.layers', 16),
        Attribute('num_attention_heads', 'block.heads', 12),
        Attribute('intermed_size', 'block.mlp_dim', 1536),
        Attribute('max_seq_length', 'max_length', 128),
        Attribute('norm_eps', 'block.norm.eps', 1e-12),
        Attribute('hidden_dropout_prob', 'block.dropout', 0.1),
        Attribute('attention_dropout', 'block.attention.dropout', 0.1),
        Attribute('init_std', 'block.init.std', 0.02),
    ),
    fixed={},
    ignored=frozenset(),
    rules=join_rules(
        Rule('backbone/embeddings/tokens', 'encoder.embedding.word_embedding.weight'),
        Rule('backbone/embeddings/position_scale', 'encoder.embedding.pos_embedding.scale_factor'),
        norm_rules('backbone/embeddings/norm', 'encoder.embedding.norm'),
        norm_rules(f'{BLOCK}/attention_norm', f'{LAYER}.norm1'),
        packed_rules(
            f'{BLOCK}/attention', f'{LAYER}.attn.self_attention.query_key_value',
            ('query', 'key', 'value'), bias=False, by_head=True),
        Rule(f'{BLOCK}/attention/out/kernel', f'{LAYER}.attn.dense.weight', Linear(2)),
        norm_rules(f'{BLOCK}/mlp_norm', f'{LAYER}.norm2'),
        packed_rules(f'{BLOCK}/mlp', f'{LAYER}.ffn.dense_in', ('gate', 'up'), bias=False),
        Rule(f'{BLOCK}/mlp/down/kernel', f'{LAYER}.ffn.dense_out.weight', Linear()),
        norm_rules('backbone/stack/norm', 'encoder.final_norm'),
        Rule('backbone/embeddings/tokens', 'decoder.weight', copy=True),
    ),
    part_tensors={},
    heads={
        'mlm': HeadSpec(
            lambda config, classes: MaskedLMHead(config.block, config.tied, config.head), ()),
        # The released classifier reads the mean of a row, padding included, through 1,024 units.
        # These heads are plm_jax's own.
        'label': HeadSpec(
            lambda config, classes: FirstTokenClassifier(config.block, classes),
            join_rules(
                dense_rules('heads_label/hidden', 'hidden'),
                dense_rules('heads_label/dense', 'classifier'))),
        'tags': HeadSpec(
            lambda config, classes: TokenClassifier(config.block, classes),
            dense_rules('heads_tags/dense', 'classifier')),
        'span': HeadSpec(
            lambda config, classes: AnswerSpanHead(config.block),
            dense_rules('heads_span/dense', 'qa_outputs')),
    },
    classes={'ScriptableLM': (), 'ScriptableLMForPreTraining': ('mlm',)},
    extra_heads=frozenset({'label', 'tags', 'span'}),
    prefix='encoder.',
    aliases=((r'^(embedding|layers|final_norm)\.', r'encoder.\1.'),),
    skip_patterns=(r'pos_embedding\.pe$',),
    normalize_hf_config=normalize_hf_config,
    denormalize_hf_config=denormalize_hf_config,
    usage='AutoModelForMaskedLM.from_pretrained({folder!r}) loads it, after `import cramming`',
)
