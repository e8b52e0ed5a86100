"""XLNet (Yang et al. 2019, arXiv:1906.08237).

Parameters of the released checkpoints, by transformers' XLNetModel: base 116,718,336, large 360,268,800; the head that
predicts tokens adds one bias a token id. Not as released in training: no dropout inside the position-wise network (the
paper's table 8 has 0 there, the released code 0.1) nor on the table of distances.
"""
from collections.abc import Mapping
import dataclasses
import re
from typing import Any

from plm_jax.architectures.xlnet import XLNet, XLNetConfig
from plm_jax.conversion.layouts import Axes, Linear
from plm_jax.conversion.rules import Attribute, Family, Head, Rule
from plm_jax.layers.common import Dtype
from plm_jax.layers.heads import SummaryClasses, TiedTokens, TokenClasses
from plm_jax.layers.init import NORMAL
from plm_jax.layers.stack import StackConfig
from plm_jax.models import bert
from plm_jax.models.bert import ACTIVATIONS, matrix, norm


def sized(layers: int, width: int, dtype: Dtype = 'float32') -> XLNetConfig:
  """Heads of 64 and an MLP of four times the width, as in both released sizes."""
  config = XLNetConfig(stack=StackConfig(layers=layers))
  block = dataclasses.replace(config.block, width=width, heads=width // 64, mlp_dim=4 * width, init=NORMAL, dtype=dtype)
  return dataclasses.replace(config, block=block)


def base(dtype: Dtype = 'float32') -> XLNetConfig:
  """Makes XLNet base: 12 layers of width 768, 117M parameters."""
  return sized(12, 768, dtype)


def large(dtype: Dtype = 'float32') -> XLNetConfig:
  """Makes XLNet large: 24 layers of width 1024, 360M parameters."""
  return sized(24, 1024, dtype)


BLOCK, LAYER = 'backbone/layers/block', 'transformer.layer.{n}'
ATTENTION = f'{LAYER}.rel_attn'

# transformers' XLNet. Its `bi_data` is ours to say a row at a time (batch['backward']).
FAMILY = Family(
    name='xlnet',
    backbone=lambda config: XLNet(config),
    config=XLNetConfig(),
    attributes=(
        Attribute('vocab_size', 'vocab', 32000),
        Attribute('d_model', 'block.width', 1024),
        Attribute('n_layer', 'stack.layers', 24),
        Attribute('n_head', 'block.heads', 16),
        Attribute('d_inner', 'block.mlp_dim', 4096),
        Attribute('ff_activation', 'block.mlp.activation', 'gelu', ACTIVATIONS),
        Attribute('attn_type', 'attention', 'bi', (('bi', 'bi'), ('uni', 'uni'))),
        Attribute('same_length', 'same_length', False),
        Attribute('clamp_len', 'block.attention.position.clamp', -1),
        Attribute('dropout', 'block.dropout', 0.1),
        Attribute('dropout', 'block.attention.dropout', 0.1),
        Attribute('initializer_range', 'block.init.std', 0.02),
        Attribute('layer_norm_eps', 'block.norm.eps', 1e-12),
    ),
    fixed={'summary_type': 'last', 'summary_use_proj': True, 'summary_activation': 'tanh'},
    # d_head is d_model / n_head there. Its layers never share biases, whatever untie_r says.
    ignored=frozenset({
        'bi_data', 'd_head', 'end_n_top', 'mem_len', 'reuse_len', 'start_n_top', 'summary_last_dropout', 'untie_r',
        'use_mems_eval', 'use_mems_train'}),
    rules=(
        Rule('backbone/embeddings/tokens', 'transformer.word_embedding.weight'),
        Rule('backbone/mask', 'transformer.mask_emb'),
        Rule(f'{BLOCK}/attention/query/kernel', f'{ATTENTION}.q'),
        Rule(f'{BLOCK}/attention/key/kernel', f'{ATTENTION}.k'),
        Rule(f'{BLOCK}/attention/value/kernel', f'{ATTENTION}.v'),
        Rule(f'{BLOCK}/attention/out/kernel', f'{ATTENTION}.o', Axes((2, 0, 1))),
        Rule(f'{BLOCK}/attention/relative/kernel', f'{ATTENTION}.r'),
        Rule(f'{BLOCK}/attention/content_bias', f'{ATTENTION}.r_w_bias'),
        Rule(f'{BLOCK}/attention/position_bias', f'{ATTENTION}.r_r_bias'),
        Rule(f'{BLOCK}/attention/type_bias', f'{ATTENTION}.r_s_bias'),
        Rule(f'{BLOCK}/attention/types', f'{ATTENTION}.seg_embed'),
        *norm(f'{BLOCK}/attention_norm', f'{ATTENTION}.layer_norm'),
        *matrix(f'{BLOCK}/mlp/up', f'{LAYER}.ff.layer_1'),
        *matrix(f'{BLOCK}/mlp/down', f'{LAYER}.ff.layer_2'),
        *norm(f'{BLOCK}/mlp_norm', f'{LAYER}.ff.layer_norm'),
    ),
    parts={},
    heads={
        'mlm': Head(lambda config, classes: TiedTokens(), (
            Rule('heads_mlm/bias', 'lm_loss.bias'),
            Rule('backbone/embeddings/tokens', 'lm_loss.weight', copy=True),
        )),
        'label': Head(lambda config, classes: SummaryClasses(config.block, classes, dropout=0.1), (
            *matrix('heads_label/hidden', 'sequence_summary.summary'),
            *matrix('heads_label/dense', 'logits_proj'),
        ), dropout='summary_last_dropout'),
        'choice': Head(lambda config, classes: SummaryClasses(config.block, None, dropout=0.1), (
            *matrix('heads_choice/hidden', 'sequence_summary.summary'),
            *matrix('heads_choice/dense', 'logits_proj'),
        ), dropout='summary_last_dropout'),
        'tags': Head(lambda config, classes: TokenClasses(config.block, classes, 0.0),
                     bert.FAMILY.heads['tags'].rules),
        'span': bert.FAMILY.heads['span'],
    },
    classes={
        'XLNetModel': (), 'XLNetLMHeadModel': ('mlm',), 'XLNetForSequenceClassification': ('label',),
        'XLNetForTokenClassification': ('tags',), 'XLNetForMultipleChoice': ('choice',),
        'XLNetForQuestionAnsweringSimple': ('span',),
    },
    prefix='transformer.',
    aliases=((r'^(word_embedding|mask_emb|layer)\b', r'transformer.\1'),),
)


# From transformers' names to those of zihangdai/xlnet.
TENSORFLOW = {
    'transformer.word_embedding.weight': 'transformer.word_embedding.lookup_table',
    'transformer.mask_emb': 'transformer.mask_emb.mask_emb', 'lm_loss.bias': 'lm_loss.bias',
    **{f'{ATTENTION}.{name}': f'transformer.{name}' for name in ('r_w_bias', 'r_r_bias', 'r_s_bias', 'seg_embed')}}


def in_tensorflow(rule: Rule) -> Rule:
  """Renames a parameter as the released TensorFlow code has it: other names, kernels that are not transposed, and
  biases of all layers in one."""
  name, layout = TENSORFLOW.get(rule.theirs, rule.theirs), rule.layout
  for old, new in (('.layer.{n}', '.layer_{n}'), ('layer_norm.weight', 'LayerNorm.gamma'),
                   ('layer_norm.bias', 'LayerNorm.beta')):
    name = name.replace(old, new)
  if name.endswith('.weight'):
    name, layout = name.removesuffix('weight') + 'kernel', Linear(transposed=False)
  elif re.search(r'rel_attn\.[qkvor]$', name):
    name += '.kernel'
  return dataclasses.replace(rule, theirs='model/' + name.replace('.', '/'), layout=layout)


def from_original(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
  """Reads xlnet_config.json: the vocabulary has another name there."""
  renamed = {'n_token': 'vocab_size'}
  return {renamed.get(name, name): value for name, value in hf_config.items()}


# The released TensorFlow checkpoints and their xlnet_config.json, whose `gelu` is the tanh approximation.
ORIGINAL = dataclasses.replace(
    FAMILY,
    attributes=tuple(
        dataclasses.replace(attribute, values=bert.ORIGINAL_ACTIVATIONS) if attribute.theirs == 'ff_activation'
        else attribute for attribute in FAMILY.attributes),
    # Biases that layers share are not in the files that were released.
    fixed={**FAMILY.fixed, 'untie_r': True},
    ignored=FAMILY.ignored - {'untie_r'},
    rules=tuple(in_tensorflow(rule) for rule in FAMILY.rules),
    heads={'mlm': dataclasses.replace(FAMILY.heads['mlm'], rules=(in_tensorflow(FAMILY.heads['mlm'].rules[0]),))},
    prefix='model/',
    aliases=(),
    to_current=from_original,
    skipped=bert.ORIGINAL.skipped,
)
