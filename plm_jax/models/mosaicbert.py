"""MosaicBERT (Portes et al. 2023, arXiv:2312.17482), as released in mosaicml/examples.

The code is benchmarks/bert there. Parameters as published: base 137M, large 434M. It is BERT with
ALiBi in place of position embeddings, and GeGLU without biases on the way in. Attention has no
dropout. Dropout in the MLP comes after the hidden units, not after the output. The vocabulary is a
multiple of 8.

Jina Embeddings 2 (Guenther et al. 2023, arXiv:2310.19923, section 3): the same layers, for texts of
up to 8,192 tokens; only the names of parameters differ. Parameters as published: small 33M, base
137M, as released in jinaai/jina-bert-implementation.
"""
from collections.abc import Callable, Mapping
import dataclasses
import functools
from typing import Any

from plm_jax import validation
from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.heads import MaskedLMHead
from plm_jax.layers.init import NORMAL_INIT
from plm_jax.layers.positions import Alibi
from plm_jax.models import bert
from plm_jax.models.bert import mlm_head_rules
from plm_jax.models.rules import (
    Attribute,
    ConvertError,
    HeadSpec,
    dense_rules,
    join_rules,
    norm_rules,
    packed_rules,
    replace_defaults,
    replace_values,
)

MARKER = 'alibi_starting_size'
"""the attribute that its configurations have and BERT's, with the same model_type, do not"""


def make_config(
    size: Callable[..., EncoderConfig], dtype: Dtype = 'float32') -> EncoderConfig:
  """Make a MosaicBERT of a size of BERT.

  Initial weights are normal and not truncated, as BertPreTrainedModel of transformers draws them;
  bert_layers.py of the released code derives from it.
  """
  return validation.with_paths(size(dtype), {
      'vocab': 30_528, 'embeddings.absolute': 'none', 'block.attention.position': Alibi(),
      'block.attention.dropout': 0.0, 'block.mlp.gated': True, 'block.mlp.bias_in': False,
      'block.mlp.dropout': 0.1, 'block.mlp.dropped': False, 'block.init': NORMAL_INIT,
      'pooler': False})


base = functools.partial(make_config, bert.base)  # 137M parameters
large = functools.partial(make_config, bert.large)  # 434M parameters


def normalize_hf_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Drop auto_map, which names the released code."""
  return {name: value for name, value in hf_config.items() if name != 'auto_map'}


def denormalize_hf_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Add the attributes by which the released code accepts a configuration as its own.

  The code reads texts of any length, and enlarges ALiBi's tables for those beyond 512 tokens.
  Raises ConvertError for a vocabulary that is no multiple of 8.
  """
  if hf_config['vocab_size'] % 8:
    raise ConvertError("MosaicBERT's code rounds vocabularies up to a multiple of 8, got "
                       f"{hf_config['vocab_size']}")
  return {**hf_config, 'model_type': 'bert', MARKER: 512}


BLOCK, LAYER = 'backbone/stack/layers/block', 'bert.encoder.layer.{n}'
PROJECTIONS = 'query', 'key', 'value'
REPLACED = (
    f'{BLOCK}/mlp', 'backbone/embeddings/positions',
    *(f'{BLOCK}/attention/{part}' for part in PROJECTIONS))
"""parameters of BERT that have other rules or do not exist"""

FAMILY = dataclasses.replace(
    bert.FAMILY,
    name='mosaicbert',
    config=base(),
    attributes=(
        *replace_values(
            replace_defaults(bert.FAMILY.attributes, {'attention_probs_dropout_prob': 0.0}),
            'hidden_act', (('gelu', 'gelu'),)),
        Attribute('hidden_dropout_prob', 'block.mlp.dropout', 0.1),
    ),
    ignored=bert.FAMILY.ignored | {MARKER},
    rules=join_rules(
        [rule for rule in bert.FAMILY.rules if not rule.ours.startswith(REPLACED)],
        packed_rules(f'{BLOCK}/attention', f'{LAYER}.attention.self.Wqkv', PROJECTIONS),
        packed_rules(f'{BLOCK}/mlp', f'{LAYER}.mlp.gated_layers', ('up', 'gate'), bias=False),
        dense_rules(f'{BLOCK}/mlp/down', f'{LAYER}.mlp.wo'),
        norm_rules(f'{BLOCK}/mlp_norm', f'{LAYER}.mlp.layernorm'),
    ),
    heads={
        **bert.FAMILY.heads,
        'mlm': HeadSpec(
            lambda config, classes: MaskedLMHead(config.block, config.tied),
            mlm_head_rules(
                'cls.predictions.transform.dense', 'cls.predictions.transform.LayerNorm',
                'cls.predictions.decoder', 'cls.predictions.decoder.bias')),
    },
    # The released code names BERT's other classes, but they are empty.
    classes={
        'BertModel': (), 'BertForMaskedLM': ('mlm',), 'BertForSequenceClassification': ('label',)},
    marker_attributes=frozenset({MARKER}),
    extra_heads=frozenset({'nsp', 'tags', 'choice', 'span'}),
    export_defaults={'auto_map': {
        'AutoConfig': 'configuration_bert.BertConfig',
        'AutoModelForMaskedLM': 'bert_layers.BertForMaskedLM',
        'AutoModelForSequenceClassification': 'bert_layers.BertForSequenceClassification'}},
    normalize_hf_config=normalize_hf_config,
    denormalize_hf_config=denormalize_hf_config,
    usage='released code loads it: AutoModelForMaskedLM.from_pretrained({folder!r}, '
          'trust_remote_code=True), next to the bert_layers.py, bert_padding.py and '
          'configuration_bert.py of mosaicml/mosaic-bert-base',
)


JINA_MARKER = 'feed_forward_type'
"""the attribute that its configurations have and BERT's, with the same model_type, do not"""


def make_jina_config(layers: int, width: int, dtype: Dtype = 'float32') -> EncoderConfig:
  """Make a JinaBERT with heads of 64, an MLP of 4 x hidden size and texts of up to 8,192."""
  size = functools.partial(bert.make_config, layers, width)
  return validation.with_paths(make_config(size, dtype), {'max_length': 8192})


jina_v2_small = functools.partial(make_jina_config, 4, 512)  # 33M parameters
jina_v2_base = functools.partial(make_jina_config, 12, 768)  # 137M parameters


def denormalize_jina_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Add the attributes by which the released code accepts a configuration as its own."""
  return {**hf_config, 'model_type': 'bert', JINA_MARKER: 'geglu', 'emb_pooler': 'mean',
          'position_embedding_type': 'alibi'}


JINA_BERT = dataclasses.replace(
    FAMILY,
    name='jina-bert',
    config=jina_v2_base(),
    fixed={**bert.FAMILY.fixed, JINA_MARKER: 'geglu', 'position_embedding_type': 'alibi'},
    ignored=bert.FAMILY.ignored | {'emb_pooler', 'attn_implementation', 'model_max_length'},
    rules=join_rules(
        [rule for rule in FAMILY.rules if '.Wqkv.' not in rule.theirs],
        [rule for rule in bert.FAMILY.rules if rule.ours.startswith(REPLACED[2:])]),
    heads=bert.FAMILY.heads,
    classes={
        name.replace('Bert', 'JinaBert'): heads for name, heads in bert.FAMILY.classes.items()},
    marker_attributes=frozenset({JINA_MARKER}),
    extra_heads=frozenset(),
    export_defaults={'auto_map': {
        auto: f'jinaai/jina-bert-implementation--{name}' for auto, name in (
            ('AutoConfig', 'configuration_bert.JinaBertConfig'),
            ('AutoModel', 'modeling_bert.JinaBertModel'),
            ('AutoModelForMaskedLM', 'modeling_bert.JinaBertForMaskedLM'),
            ('AutoModelForSequenceClassification',
             'modeling_bert.JinaBertForSequenceClassification'))}},
    denormalize_hf_config=denormalize_jina_config,
    usage='released code loads it: AutoModelForMaskedLM.from_pretrained({folder!r}, '
          'trust_remote_code=True)',
)
