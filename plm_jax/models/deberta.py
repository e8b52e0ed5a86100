"""DeBERTa (He et al. 2021, arXiv:2006.03654): disentangled attention.

Tables of version 1 have a row for every single distance. Keys have no bias. Parameters without the
token table, as published with the code: base 100M, large 350M, xlarge 700M. Pre-training also has
absolute positions, which only the enhanced mask decoder reads.

DeBERTa v2 (released with He et al. 2021) and DeBERTa v3 (He et al. 2023, arXiv:2111.09543).
Relative positions have logarithmic buckets, with the projections of tokens. The vocabulary has 128k
tokens. v2 has a convolution next to its first layer, v3 has none. Parameters without the token
table, as published with the code: v2 xlarge 710M, xxlarge 1,320M; v3 xsmall 22M, small 44M, base
86M, large 304M.
"""
from collections.abc import Mapping
import dataclasses
import functools
from typing import Any

from plm_jax.architectures.deberta import Deberta, DebertaConfig
from plm_jax.layers.attention import AttentionConfig
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.disentangled import Disentangled
from plm_jax.layers.heads import MaskedLMHead, ReplacedTokenHead
from plm_jax.layers.init import NORMAL_INIT
from plm_jax.layers.norm import NormConfig
from plm_jax.layers.stack import StackConfig
from plm_jax.models import bert
from plm_jax.models.bert import ACTIVATIONS
from plm_jax.models.layouts import Axes, Linear, Same
from plm_jax.models.rules import (
  Attribute,
  Family,
  HeadSpec,
  Rule,
  dense_rules,
  join_rules,
  norm_rules,
  packed_rules,
)


def make_config(layers: int, width: int, dtype: Dtype = 'float32') -> DebertaConfig:
  """Make a DeBERTa with heads of 64, an MLP of 4 x hidden size, and RoBERTa's vocabulary."""
  block = BlockConfig(
      width=width, heads=width // 64, mlp_dim=4 * width, norm=NormConfig(eps=1e-7),
      init=NORMAL_INIT, dtype=dtype,
      attention=AttentionConfig(bias=('query', 'value', 'out'), position=Disentangled()))
  return DebertaConfig(vocab=50265, block=block, stack=StackConfig(layers=layers))


base = functools.partial(make_config, 12, 768)  # 139M parameters
large = functools.partial(make_config, 24, 1024)  # 406M parameters
xlarge = functools.partial(make_config, 48, 1024)  # 758M parameters


def normalize_hf_config(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
  """Reduce the spellings of their configuration to one.

  The terms of attention may be 'c2p|p2c' or a list. A size of -1 stands for a default, and sizes
  that repeat others are left out.
  """
  hf_config = {'legacy': True, **hf_config}
  if not hf_config['legacy']:
    hf_config.pop('tie_word_embeddings', None)  # their newer head is always tied
  terms = hf_config.get('pos_att_type') or ()
  if isinstance(terms, str):
    terms = [term.strip() for term in terms.lower().split('|')]
  hf_config['pos_att_type'] = tuple(sorted(set(filter(None, terms))))
  if not hf_config.get('relative_attention', False) and not hf_config['pos_att_type']:
    hf_config['relative_attention'] = True  # without terms it has no effect
  if hf_config.get('max_relative_positions', -1) < 1:
    hf_config['max_relative_positions'] = hf_config.get('max_position_embeddings', 512)
  width = hf_config.get('hidden_size', 0)
  head_size = width // hf_config.get('num_attention_heads', 1)
  implied = {
      'pooler_hidden_size': width, 'embedding_size': width, 'attention_head_size': head_size}
  for name, value in implied.items():
    if name in hf_config and hf_config[name] == value:
      del hf_config[name]
  return hf_config


# Sets of attention terms besides content to content: content to position, position to content.
TERMS = tuple((terms, terms) for terms in ((), ('c2p',), ('p2c',), ('c2p', 'p2c')))
BLOCK, LAYER = 'backbone/stack/layers/block', 'deberta.encoder.layer.{n}'
ATTENTION, THEIR_ATTENTION = f'{BLOCK}/attention', f'{LAYER}.attention.self'

# Attributes that transformers' two DeBERTa classes share.
ATTRIBUTES = (
    Attribute('hidden_act', 'block.mlp.activation', 'gelu', ACTIVATIONS),
    Attribute('hidden_dropout_prob', 'block.dropout', 0.1),
    Attribute('attention_probs_dropout_prob', 'block.attention.dropout', 0.1),
    Attribute('max_position_embeddings', 'max_length', 512),
    Attribute('type_vocab_size', 'types', 0),
    Attribute('initializer_range', 'block.init.std', 0.02),
    Attribute('layer_norm_eps', 'block.norm.eps', 1e-7),
    Attribute('max_relative_positions', 'block.attention.position.span', 512),
    Attribute('position_biased_input', 'biased_input', True),
    Attribute('pos_att_type', 'block.attention.position.terms', (), TERMS),
    Attribute('pooler_hidden_act', 'pooler_activation', 'gelu', ACTIVATIONS),
)
POSITIONS = 'deberta.embeddings.position_embeddings.weight'
RULES = join_rules(
    Rule('backbone/embeddings/tokens', 'deberta.embeddings.word_embeddings.weight'),
    Rule('backbone/embeddings/positions', POSITIONS),
    Rule('backbone/positions', POSITIONS),
    Rule('backbone/embeddings/types', 'deberta.embeddings.token_type_embeddings.weight'),
    norm_rules('backbone/embeddings/norm', 'deberta.embeddings.LayerNorm'),
    Rule('backbone/stack/relative', 'deberta.encoder.rel_embeddings.weight'),
    dense_rules(f'{ATTENTION}/out', f'{LAYER}.attention.output.dense', inputs=2),
    norm_rules(f'{BLOCK}/attention_norm', f'{LAYER}.attention.output.LayerNorm'),
    dense_rules(f'{BLOCK}/mlp/up', f'{LAYER}.intermediate.dense'),
    dense_rules(f'{BLOCK}/mlp/down', f'{LAYER}.output.dense'),
    norm_rules(f'{BLOCK}/mlp_norm', f'{LAYER}.output.LayerNorm'),
    dense_rules('backbone/pooler', 'pooler.dense'),
)
HEADS = {
    'mlm': HeadSpec(
        lambda config, classes: MaskedLMHead(config.block),
        join_rules(
            dense_rules('heads_mlm/dense', 'lm_predictions.lm_head.dense'),
            norm_rules('heads_mlm/norm', 'lm_predictions.lm_head.LayerNorm'),
            Rule('heads_mlm/bias', 'lm_predictions.lm_head.bias'),
            Rule('heads_mlm/bias', 'cls.predictions.decoder.bias', copy=True),
            Rule('backbone/embeddings/tokens', 'cls.predictions.decoder.weight', copy=True))),
    # transformers ignores these tensors of released files.
    'rtd': HeadSpec(
        lambda config, classes: ReplacedTokenHead(config.block, first=True),
        join_rules(
            norm_rules('heads_rtd/norm', 'mask_predictions.LayerNorm'),
            dense_rules('heads_rtd/hidden', 'mask_predictions.dense'),
            dense_rules('heads_rtd/dense', 'mask_predictions.classifier'))),
    'label': dataclasses.replace(bert.FAMILY.heads['label'], dropout='cls_dropout'),
    'choice': dataclasses.replace(bert.FAMILY.heads['choice'], dropout='cls_dropout'),
    'tags': dataclasses.replace(bert.FAMILY.heads['tags'], dropout=''),
    'span': bert.FAMILY.heads['span'],
}
ALIASES = (
    (r'LayerNorm\.gamma$', 'LayerNorm.weight'), (r'LayerNorm\.beta$', 'LayerNorm.bias'),
    (r'^bert\.', 'deberta.'), (r'^(embeddings|encoder)\.', r'deberta.\1.'),
    # The head of transformers before it was fixed, and of the original code.
    (r'^cls\.predictions\.transform\.', 'lm_predictions.lm_head.'),
    (r'^cls\.predictions\.bias$', 'lm_predictions.lm_head.bias'),
    (r'^mask_predictions\.classifer\.', 'mask_predictions.classifier.'),
)

# transformers' DeBERTa. The `lm_predictions` of released files are read, where its own class in
# `legacy` mode would initialize a new head. Its classes have no mask decoder: they compute logits
# from the last layer.
FAMILY = Family(
    name='deberta',
    backbone=lambda config: Deberta(config),
    config=base(),
    attributes=(
        Attribute('vocab_size', 'vocab', 50265),
        Attribute('hidden_size', 'block.width', 768),
        Attribute('num_hidden_layers', 'stack.layers', 12),
        Attribute('num_attention_heads', 'block.heads', 12),
        Attribute('intermediate_size', 'block.mlp_dim', 3072),
        *ATTRIBUTES,
    ),
    fixed={'relative_attention': True, 'talking_head': False},
    ignored=frozenset({'cls_dropout', 'legacy', 'padding_idx', 'pooler_dropout'}),
    rules=join_rules(
        packed_rules(
            ATTENTION, f'{THEIR_ATTENTION}.in_proj', ('query', 'key', 'value'), bias=False,
            by_head=True),
        Rule(f'{ATTENTION}/query/bias', f'{THEIR_ATTENTION}.q_bias', Same(flat=True)),
        Rule(f'{ATTENTION}/value/bias', f'{THEIR_ATTENTION}.v_bias', Same(flat=True)),
        Rule(f'{ATTENTION}/relative_key/kernel', f'{THEIR_ATTENTION}.pos_proj.weight', Linear()),
        dense_rules(f'{ATTENTION}/relative_query', f'{THEIR_ATTENTION}.pos_q_proj'),
        RULES,
    ),
    part_tensors={'absolute': POSITIONS, 'pooler': 'pooler.dense.weight'},
    heads=HEADS,
    classes={
        'DebertaModel': (), 'DebertaForMaskedLM': ('mlm',),
        'DebertaForSequenceClassification': ('label',),
        'DebertaForTokenClassification': ('tags',), 'DebertaForQuestionAnswering': ('span',),
    },
    prefix='deberta.',
    aliases=ALIASES,
    extra_heads=frozenset({'rtd'}),
    export_defaults={'legacy': False, 'relative_attention': True},
    normalize_hf_config=normalize_hf_config,
    marker_attributes=frozenset({'relative_attention'}),
    skip_patterns=(r'\.position_ids$',),
)


def make_v2_config(
    layers: int, width: int, dtype: Dtype = 'float32', **changes: Any,
) -> DebertaConfig:
  """Make a DeBERTa v2 with heads of 64 and an MLP of 4 x hidden size.

  The table has 128,100 rows: 128,000 tokens, [MASK] and spare rows.
  """
  position = Disentangled(buckets=256, shared=True, norm=True)
  block = BlockConfig(
      width=width, heads=width // 64, mlp_dim=4 * width, norm=NormConfig(eps=1e-7),
      init=NORMAL_INIT, attention=AttentionConfig(position=position), dtype=dtype)
  return DebertaConfig(vocab=128100, block=block, stack=StackConfig(layers=layers), **changes)


v2_xlarge = functools.partial(make_v2_config, 24, 1536, conv=3, conv_activation='gelu')  # 885M
v2_xxlarge = functools.partial(make_v2_config, 48, 1536, conv=3, conv_activation='gelu')  # 1.57B
# v3 has no mask decoder, and so no absolute positions.
v3_xsmall = functools.partial(make_v2_config, 12, 384, absolute=False)  # 71M parameters
v3_small = functools.partial(make_v2_config, 6, 768, absolute=False)  # 141M parameters
v3_base = functools.partial(make_v2_config, 12, 768, absolute=False)  # 184M parameters
v3_large = functools.partial(make_v2_config, 24, 1024, absolute=False)  # 434M parameters


def mdeberta_v3_base(dtype: Dtype = 'float32') -> DebertaConfig:
  """Make mDeBERTa v3 base's discriminator: v3 base with 250,000 tokens, 278M parameters.

  The table has 251,000 rows.
  """
  return dataclasses.replace(v3_base(dtype), vocab=251_000)


def normalize_v2_config(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
  """Reduce the spellings of their configuration as for version 1; 0 stands for no buckets."""
  hf_config = {**normalize_hf_config(hf_config)}
  hf_config['position_buckets'] = max(hf_config.get('position_buckets', -1), 0)
  kinds = [kind.strip() for kind in hf_config.get('norm_rel_ebd', 'none').lower().split('|')]
  hf_config['norm_rel_ebd'] = 'layer_norm' if 'layer_norm' in kinds else 'none'
  return hf_config


# transformers' DeBERTa v2, which is v3, too.
V2 = dataclasses.replace(
    FAMILY,
    name='deberta-v2',
    config=DebertaConfig(),
    attributes=(
        Attribute('vocab_size', 'vocab', 128100),
        Attribute('hidden_size', 'block.width', 1536),
        Attribute('num_hidden_layers', 'stack.layers', 24),
        Attribute('num_attention_heads', 'block.heads', 24),
        Attribute('intermediate_size', 'block.mlp_dim', 6144),
        *ATTRIBUTES,
        Attribute('position_buckets', 'block.attention.position.buckets', 0),
        Attribute('share_att_key', 'block.attention.position.shared', False),
        Attribute('norm_rel_ebd', 'block.attention.position.norm', 'none',
                  (('none', False), ('layer_norm', True))),
        Attribute('conv_kernel_size', 'conv', 0),
        Attribute('conv_act', 'conv_activation', 'tanh', ACTIVATIONS),
    ),
    fixed={'relative_attention': True, 'conv_groups': 1},
    rules=join_rules(
        dense_rules(f'{ATTENTION}/query', f'{THEIR_ATTENTION}.query_proj'),
        dense_rules(f'{ATTENTION}/key', f'{THEIR_ATTENTION}.key_proj'),
        dense_rules(f'{ATTENTION}/value', f'{THEIR_ATTENTION}.value_proj'),
        dense_rules(f'{ATTENTION}/relative_key', f'{THEIR_ATTENTION}.pos_key_proj'),
        dense_rules(f'{ATTENTION}/relative_query', f'{THEIR_ATTENTION}.pos_query_proj'),
        norm_rules('backbone/stack/relative_norm', 'deberta.encoder.LayerNorm'),
        Rule('backbone/conv/kernel', 'deberta.encoder.conv.conv.weight', Axes((2, 1, 0))),
        Rule('backbone/conv/bias', 'deberta.encoder.conv.conv.bias'),
        norm_rules('backbone/conv/norm', 'deberta.encoder.conv.LayerNorm'),
        RULES,
    ),
    classes={
        'DebertaV2Model': (), 'DebertaV2ForMaskedLM': ('mlm',),
        'DebertaV2ForSequenceClassification': ('label',),
        'DebertaV2ForTokenClassification': ('tags',), 'DebertaV2ForQuestionAnswering': ('span',),
        'DebertaV2ForMultipleChoice': ('choice',),
    },
    normalize_hf_config=normalize_v2_config,
    marker_attributes=frozenset({'norm_rel_ebd', 'position_buckets', 'share_att_key'}),
)
