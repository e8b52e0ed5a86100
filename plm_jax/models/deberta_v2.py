"""DeBERTa v2 (released with He et al. 2021) and DeBERTa v3 (He et al. 2023, arXiv:2111.09543).

Relative positions have logarithmic buckets, with the projections of tokens. The vocabulary has 128k
tokens. v2 has a convolution next to its first layer, v3 has none. Parameters without the token
table, as published with the code: v2 xlarge 710M, xxlarge 1,320M; v3 xsmall 22M, small 44M, base
86M, large 304M.
"""
from collections.abc import Mapping
import dataclasses
import functools
from typing import Any

from plm_jax.architectures.deberta import DebertaConfig
from plm_jax.layers.attention import AttentionConfig
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.disentangled import Disentangled
from plm_jax.layers.init import NORMAL_INIT
from plm_jax.layers.norm import NormConfig
from plm_jax.layers.stack import StackConfig
from plm_jax.models import deberta
from plm_jax.models.bert import ACTIVATIONS
from plm_jax.models.deberta import ATTENTION, THEIR_ATTENTION
from plm_jax.models.layouts import Axes
from plm_jax.models.rules import Attribute, Rule, dense_rules, join_rules, norm_rules


def make_config(
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


xlarge = functools.partial(make_config, 24, 1536, conv=3, conv_activation='gelu')  # 885M
xxlarge = functools.partial(make_config, 48, 1536, conv=3, conv_activation='gelu')  # 1.57B
# v3 has no mask decoder, and so no absolute positions.
v3_xsmall = functools.partial(make_config, 12, 384, absolute=False)  # 71M parameters
v3_small = functools.partial(make_config, 6, 768, absolute=False)  # 141M parameters
v3_base = functools.partial(make_config, 12, 768, absolute=False)  # 184M parameters
v3_large = functools.partial(make_config, 24, 1024, absolute=False)  # 434M parameters


def mdeberta_v3_base(dtype: Dtype = 'float32') -> DebertaConfig:
  """Make mDeBERTa v3 base's discriminator: v3 base with 250,000 tokens, 278M parameters.

  The table has 251,000 rows.
  """
  return dataclasses.replace(v3_base(dtype), vocab=251_000)


def normalize_hf_config(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
  """Reduce the spellings of their configuration as for version 1; 0 stands for no buckets."""
  hf_config = {**deberta.normalize_hf_config(hf_config)}
  hf_config['position_buckets'] = max(hf_config.get('position_buckets', -1), 0)
  kinds = [kind.strip() for kind in hf_config.get('norm_rel_ebd', 'none').lower().split('|')]
  hf_config['norm_rel_ebd'] = 'layer_norm' if 'layer_norm' in kinds else 'none'
  return hf_config


# transformers' DeBERTa v2, which is v3, too.
FAMILY = dataclasses.replace(
    deberta.FAMILY,
    name='deberta-v2',
    config=DebertaConfig(),
    attributes=(
        Attribute('vocab_size', 'vocab', 128100),
        Attribute('hidden_size', 'block.width', 1536),
        Attribute('num_hidden_layers', 'stack.layers', 24),
        Attribute('num_attention_heads', 'block.heads', 24),
        Attribute('intermediate_size', 'block.mlp_dim', 6144),
        *deberta.ATTRIBUTES,
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
        deberta.RULES,
    ),
    classes={
        'DebertaV2Model': (), 'DebertaV2ForMaskedLM': ('mlm',),
        'DebertaV2ForSequenceClassification': ('label',),
        'DebertaV2ForTokenClassification': ('tags',), 'DebertaV2ForQuestionAnswering': ('span',),
        'DebertaV2ForMultipleChoice': ('choice',),
    },
    normalize_hf_config=normalize_hf_config,
    marker_attributes=frozenset({'norm_rel_ebd', 'position_buckets', 'share_att_key'}),
)
