"""Crammed BERT (Geiping and Goldstein 2023, arXiv:2212.14034), crammed-bert.yaml of JonasGeiping/cramming.

Parameters as published: 120M. 16 layers of width 768; norms come first, embeddings are normalised too, and nothing but
norms has biases; GLU whose halves are 1,536 wide; positions are sines and cosines times one number that is trained.
Words are read off the last norm as it is.
"""
from collections.abc import Mapping
from typing import Any

from plm_jax.architectures.encoder import Encoder, EncoderConfig
from plm_jax.conversion.layouts import Linear, Packed
from plm_jax.conversion.rules import Attribute, ConvertError, Family, Head, Rule
from plm_jax.layers.attention import AttentionConfig
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.heads import FirstTokenClasses, HeadConfig, MaskedTokens, SpanEnds, TokenClasses
from plm_jax.layers.init import NORMAL
from plm_jax.layers.mlp import MlpConfig
from plm_jax.layers.stack import StackConfig
from plm_jax.models.bert import matrix, norm

# What `arch` of a configuration says besides sizes, all of it known so only: of the embeddings, of attention, and else.
FIXED = {
    'norm': 'LayerNorm', 'norm_scheme': 'pre', 'nonlin': 'GELUglu', 'tie_weights': True, 'decoder_bias': False,
    'ffn_layer_frequency': 1, 'skip_head_transform': True, 'use_bias': False, 'final_norm': True,
    'embedding': {'pos_embedding': 'scaled-sinusoidal', 'normalization': True},
    'attention': {'type': 'self-attention', 'causal_attention': False, 'skip_output_projection': False,
                  'qkv_bias': False, 'rotary_embedding': False, 'sequence_op': 'torch-softmax'}}


def base(dtype: Dtype = 'float32') -> EncoderConfig:
  """Makes crammed BERT: 16 layers of width 768 over rows of 128 tokens, 120M parameters."""
  block = BlockConfig(
      width=768, heads=12, mlp_dim=1536, norm_at='pre', attention=AttentionConfig(bias=(), dropout=0.1),
      mlp=MlpConfig(gated=True, bias=False), init=NORMAL, dtype=dtype)
  return EncoderConfig(
      vocab=32_768, block=block, stack=StackConfig(16), max_length=128, absolute='scaled', types=0, norm_embedded=True,
      head=HeadConfig(transform=False, output_bias=False), pooler=False)


def to_current(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Lays out `arch`, in which theirs is. Raises ConvertError for another architecture of the same code."""
  hf_config, arch = dict(hf_config), hf_config.get('arch')
  if not isinstance(arch, dict) or not all(isinstance(arch.get(name), dict) for name in ('embedding', 'attention')):
    raise ConvertError('cannot convert the configuration: it has no arch with embedding and attention')
  wrong = [f'arch.{name} is {str(of[key])[:100]}, known at {known[key]!r} only'
           for place, known in (('', FIXED), ('embedding.', FIXED['embedding']), ('attention.', FIXED['attention']))
           for of in [arch[place[:-1]] if place else arch]
           for key in known if not isinstance(known[key], dict) and key in of and of[key] != known[key]
           for name in [place + key]]
  hidden = arch.get('intermed_size', 3072)
  if type(hidden) is not int or hidden % 2:
    wrong.append(f'arch.intermed_size is {str(hidden)[:100]}, of which a half is the width of the GLU')
  if wrong:
    raise ConvertError('cannot convert the configuration:\n  ' + '\n  '.join(wrong))
  del hf_config['arch']
  flat = {'vocab_size': (arch['embedding'], 'vocab_size'), 'max_seq_length': (arch['embedding'], 'max_seq_length'),
          'num_attention_heads': (arch['attention'], 'num_attention_heads'),
          'attention_dropout': (arch['attention'], 'dropout_prob'),
          **{name: (arch, name) for name in ('hidden_size', 'num_transformer_layers', 'norm_eps',
                                             'hidden_dropout_prob')}}
  said = {name: of[key] for name, (of, key) in flat.items() if of.get(key) is not None}
  init = arch.get('init')
  std = init.get('std', 0.02) if isinstance(init, dict) else 0.02
  return {**hf_config, **said, 'norm_eps': float(said.get('norm_eps', 1e-12)), 'init_std': std,
          'intermed_size': hidden // 2}


def from_current(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Undoes what `to_current` did."""
  said = dict(hf_config)
  embedding = {**FIXED['embedding'], 'vocab_size': said.pop('vocab_size'), 'embedding_dim': said['hidden_size'],
               'max_seq_length': said.pop('max_seq_length'), 'dropout_prob': said['hidden_dropout_prob'],
               'pad_token_id': 0, 'stable_low_precision': False}
  attention = {**FIXED['attention'], 'num_attention_heads': said.pop('num_attention_heads'),
               'dropout_prob': said.pop('attention_dropout'), 'seq_op_in_fp32': False}
  return {'arch': {**FIXED, 'embedding': embedding, 'attention': attention, 'num_labels': None,
                   'init': {'type': 'normal', 'std': said.pop('init_std')}, 'objective_layout': 'MLM',
                   'loss': 'cross-entropy', 'sparse_prediction': 0.25,
                   **said, 'intermed_size': 2 * said['intermed_size']}}


BLOCK, LAYER = 'backbone/stack/layers/block', 'encoder.layers.{n}'
PARTS = 'query', 'key', 'value'

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
    rules=(
        Rule('backbone/embeddings/tokens', 'encoder.embedding.word_embedding.weight'),
        Rule('backbone/embeddings/position_scale', 'encoder.embedding.pos_embedding.scale_factor'),
        *norm('backbone/embeddings/norm', 'encoder.embedding.norm'),
        *norm(f'{BLOCK}/attention_norm', f'{LAYER}.norm1'),
        *(Rule(f'{BLOCK}/attention/{part}/kernel', f'{LAYER}.attn.self_attention.query_key_value.weight',
               Packed(number, by_head=True)) for number, part in enumerate(PARTS)),
        Rule(f'{BLOCK}/attention/out/kernel', f'{LAYER}.attn.dense.weight', Linear(2)),
        *norm(f'{BLOCK}/mlp_norm', f'{LAYER}.norm2'),
        *(Rule(f'{BLOCK}/mlp/{part}/kernel', f'{LAYER}.ffn.dense_in.weight', Packed(number, 2))
          for number, part in enumerate(('gate', 'up'))),
        Rule(f'{BLOCK}/mlp/down/kernel', f'{LAYER}.ffn.dense_out.weight', Linear()),
        *norm('backbone/stack/norm', 'encoder.final_norm'),
        Rule('backbone/embeddings/tokens', 'decoder.weight', copy=True),
    ),
    parts={},
    heads={
        'mlm': Head(lambda config, classes: MaskedTokens(config.block, config.tied, config.head), ()),
        # Theirs reads the mean of a row, padding included, through 1,024 units; these are ours.
        'label': Head(lambda config, classes: FirstTokenClasses(config.block, classes),
                      (*matrix('heads_label/hidden', 'hidden'), *matrix('heads_label/dense', 'classifier'))),
        'tags': Head(lambda config, classes: TokenClasses(config.block, classes),
                     matrix('heads_tags/dense', 'classifier')),
        'span': Head(lambda config, classes: SpanEnds(config.block), matrix('heads_span/dense', 'qa_outputs')),
    },
    classes={'ScriptableLM': (), 'ScriptableLMForPreTraining': ('mlm',)},
    beside=frozenset({'label', 'tags', 'span'}),
    prefix='encoder.',
    aliases=((r'^(embedding|layers|final_norm)\.', r'encoder.\1.'),),
    skipped=(r'pos_embedding\.pe$',),
    to_current=to_current,
    from_current=from_current,
    read='AutoModelForMaskedLM.from_pretrained({folder!r}) loads it, behind `import cramming`',
)
