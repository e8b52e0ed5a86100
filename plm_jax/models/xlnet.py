"""XLNet (Yang et al. 2019, arXiv:1906.08237): permutation language modeling.

Parameters of the released checkpoints, by transformers' XLNetModel: base 116,718,336, large
360,268,800; the token head adds one bias per token id. Unlike the released training code there is
no dropout inside the MLP (the paper's table 8 has 0, the released code 0.1), nor on the table of
relative positions.
"""
from collections.abc import Mapping
import dataclasses
import functools
import re
from typing import Any

from plm_jax.architectures.xlnet import XLNet, XLNetConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.heads import SummaryClassifier, TiedLMHead, TokenClassifier
from plm_jax.layers.init import NORMAL_INIT
from plm_jax.layers.stack import StackConfig
from plm_jax.models import bert
from plm_jax.models.bert import ACTIVATIONS
from plm_jax.models.layouts import Axes, Linear
from plm_jax.models.rules import (
    Attribute,
    Family,
    HeadSpec,
    Rule,
    dense_rules,
    join_rules,
    norm_rules,
    replace_values,
)


def make_config(layers: int, width: int, dtype: Dtype = 'float32') -> XLNetConfig:
  """Make an XLNet with heads of 64 and an MLP of 4 x hidden size, as both released sizes have."""
  config = XLNetConfig(stack=StackConfig(layers=layers))
  block = dataclasses.replace(
      config.block, width=width, heads=width // 64, mlp_dim=4 * width, init=NORMAL_INIT,
      dtype=dtype)
  return dataclasses.replace(config, block=block)


base = functools.partial(make_config, 12, 768)  # 117M parameters
large = functools.partial(make_config, 24, 1024)  # 360M parameters


BLOCK, LAYER = 'backbone/layers/block', 'transformer.layer.{n}'
ATTENTION = f'{LAYER}.rel_attn'

# transformers' XLNet.
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
        Attribute('bi_data', 'bi_data', False),
        Attribute('clamp_len', 'block.attention.position.clamp', -1),
        Attribute('dropout', 'block.dropout', 0.1),
        Attribute('dropout', 'block.attention.dropout', 0.1),
        Attribute('initializer_range', 'block.init.std', 0.02),
        Attribute('layer_norm_eps', 'block.norm.eps', 1e-12),
    ),
    fixed={'summary_type': 'last', 'summary_use_proj': True, 'summary_activation': 'tanh'},
    # d_head is d_model / n_head there. Its layers never share biases, whatever untie_r says.
    ignored=frozenset({
        'd_head', 'end_n_top', 'mem_len', 'reuse_len', 'start_n_top', 'summary_last_dropout',
        'untie_r', 'use_mems_eval', 'use_mems_train'}),
    rules=join_rules(
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
        norm_rules(f'{BLOCK}/attention_norm', f'{ATTENTION}.layer_norm'),
        dense_rules(f'{BLOCK}/mlp/up', f'{LAYER}.ff.layer_1'),
        dense_rules(f'{BLOCK}/mlp/down', f'{LAYER}.ff.layer_2'),
        norm_rules(f'{BLOCK}/mlp_norm', f'{LAYER}.ff.layer_norm'),
    ),
    part_tensors={},
    heads={
        'mlm': HeadSpec(
            lambda config, classes: TiedLMHead(),
            (
                Rule('heads_mlm/bias', 'lm_loss.bias'),
                Rule('backbone/embeddings/tokens', 'lm_loss.weight', copy=True))),
        'label': HeadSpec(
            lambda config, classes: SummaryClassifier(config.block, classes, dropout=0.1),
            join_rules(
                dense_rules('heads_label/hidden', 'sequence_summary.summary'),
                dense_rules('heads_label/dense', 'logits_proj')),
            dropout='summary_last_dropout'),
        'choice': HeadSpec(
            lambda config, classes: SummaryClassifier(config.block, None, dropout=0.1),
            join_rules(
                dense_rules('heads_choice/hidden', 'sequence_summary.summary'),
                dense_rules('heads_choice/dense', 'logits_proj')),
            dropout='summary_last_dropout'),
        'tags': HeadSpec(
            lambda config, classes: TokenClassifier(config.block, classes, 0.0),
            bert.FAMILY.heads['tags'].rules),
        'span': bert.FAMILY.heads['span'],
    },
    classes={
        'XLNetModel': (), 'XLNetLMHeadModel': ('mlm',),
        'XLNetForSequenceClassification': ('label',), 'XLNetForTokenClassification': ('tags',),
        'XLNetForMultipleChoice': ('choice',), 'XLNetForQuestionAnsweringSimple': ('span',),
    },
    prefix='transformer.',
    aliases=((r'^(word_embedding|mask_emb|layer)\b', r'transformer.\1'),),
)


# transformers' names of tensors -> those of zihangdai/xlnet.
TENSORFLOW_NAMES = {
    'transformer.word_embedding.weight': 'transformer.word_embedding.lookup_table',
    'transformer.mask_emb': 'transformer.mask_emb.mask_emb', 'lm_loss.bias': 'lm_loss.bias',
    f'{ATTENTION}.r_w_bias': 'transformer.r_w_bias',
    f'{ATTENTION}.r_r_bias': 'transformer.r_r_bias',
    f'{ATTENTION}.r_s_bias': 'transformer.r_s_bias',
    f'{ATTENTION}.seg_embed': 'transformer.seg_embed'}


def rename_for_tensorflow(rule: Rule) -> Rule:
  """Rename a parameter as the released TensorFlow code does.

  Kernels are not transposed there, and the biases of all layers are one tensor.
  """
  name, layout = TENSORFLOW_NAMES.get(rule.theirs, rule.theirs), rule.layout
  name = name.replace('.layer.{n}', '.layer_{n}')
  name = name.replace('layer_norm.weight', 'LayerNorm.gamma')
  name = name.replace('layer_norm.bias', 'LayerNorm.beta')
  if name.endswith('.weight'):
    name, layout = name.removesuffix('weight') + 'kernel', Linear(transposed=False)
  elif re.search(r'rel_attn\.[qkvor]$', name):
    name += '.kernel'
  return dataclasses.replace(rule, theirs='model/' + name.replace('.', '/'), layout=layout)


def normalize_original_config(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
  """Rename the size of the vocabulary in the contents of xlnet_config.json."""
  names = {'n_token': 'vocab_size'}
  return {names.get(name, name): value for name, value in hf_config.items()}


MLM = FAMILY.heads['mlm']
# The released TensorFlow checkpoints and their xlnet_config.json, whose gelu is the tanh
# approximation.
ORIGINAL = dataclasses.replace(
    FAMILY,
    attributes=replace_values(FAMILY.attributes, 'ff_activation', bert.ORIGINAL_ACTIVATIONS),
    # No released file has biases that layers share.
    fixed={**FAMILY.fixed, 'untie_r': True},
    ignored=FAMILY.ignored - {'untie_r'},
    rules=tuple(rename_for_tensorflow(rule) for rule in FAMILY.rules),
    heads={'mlm': dataclasses.replace(MLM, rules=(rename_for_tensorflow(MLM.rules[0]),))},
    prefix='model/',
    aliases=(),
    normalize_hf_config=normalize_original_config,
    skip_patterns=bert.ORIGINAL.skip_patterns,
)
