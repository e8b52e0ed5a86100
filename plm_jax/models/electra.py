"""ELECTRA (Clark et al. 2020, arXiv:2003.10555): a BERT pre-trained by replaced token detection.

Parameters as published: small 14M, base 110M, large 335M. They are those of the discriminator,
which is the model that is kept.
"""
from collections.abc import Mapping
import dataclasses
import functools
import re
from typing import Any

from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.embeddings import EmbeddingConfig
from plm_jax.layers.heads import FirstTokenClassifier, MaskedLMHead, ReplacedTokenHead
from plm_jax.layers.stack import StackConfig
from plm_jax.models import bert
from plm_jax.models.bert import mlm_head_rules
from plm_jax.models.layouts import Shape
from plm_jax.models.roberta import gelu_block
from plm_jax.models.rules import (
    Attribute,
    HeadSpec,
    Rule,
    dense_rules,
    join_rules,
    raise_problems,
    rename_tensors,
    replace_defaults,
    replace_values,
)


def make_config(
    layers: int, width: int, dtype: Dtype = 'float32', embed_dim: int = 0,
) -> EncoderConfig:
  """Make a discriminator with heads of 64, an MLP of 4 x hidden size, and no pooler."""
  block = BlockConfig(width=width, heads=width // 64, mlp_dim=4 * width, dtype=dtype)
  return EncoderConfig(
      block=block, stack=StackConfig(layers=layers),
      embeddings=EmbeddingConfig(width=embed_dim), pooler=False)


# Parameters are those of the discriminator.
small = functools.partial(make_config, 12, 256, embed_dim=128)  # 14M parameters
base = functools.partial(make_config, 12, 768)  # 110M parameters
large = functools.partial(make_config, 24, 1024)  # 335M parameters


def normalize_hf_config(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
  """Set embedding_size to 0 where it is the hidden size: such embeddings are not projected."""
  width = hf_config.get('hidden_size', 256)
  size = hf_config.get('embedding_size', 128)
  return {**hf_config, 'embedding_size': 0 if size == width else size}


def denormalize_hf_config(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
  """Reverse `normalize_hf_config`."""
  size = hf_config['embedding_size'] or hf_config['hidden_size']
  return {**hf_config, 'embedding_size': size}


# transformers' ELECTRA. It differs from BERT in defaults, the width of embeddings, names and heads.
DEFAULTS = {'hidden_size': 256, 'num_attention_heads': 4, 'intermediate_size': 1024}
FAMILY = dataclasses.replace(
    bert.FAMILY,
    name='electra',
    config=base(),
    attributes=(
        *replace_defaults(bert.FAMILY.attributes, DEFAULTS),
        Attribute('embedding_size', 'embeddings.width', 128),
    ),
    fixed={'position_embedding_type': 'absolute', 'summary_type': 'first', 'summary_use_proj': True,
           'summary_activation': 'gelu'},
    ignored=frozenset({'summary_last_dropout'}),
    rules=join_rules(
        [rule for rule in rename_tensors(bert.FAMILY.rules, 'bert.', 'electra.')
         if not rule.ours.startswith('backbone/pooler')],
        dense_rules('backbone/embeddings/project', 'electra.embeddings_project'),
    ),
    part_tensors={},
    heads={
        'rtd': HeadSpec(
            lambda config, classes: ReplacedTokenHead(config.block),
            join_rules(
                dense_rules('heads_rtd/hidden', 'discriminator_predictions.dense'),
                dense_rules('heads_rtd/dense', 'discriminator_predictions.dense_prediction'))),
        'mlm': HeadSpec(
            lambda config, classes: MaskedLMHead(gelu_block(config), config.tied),
            mlm_head_rules(
                'generator_predictions.dense', 'generator_predictions.LayerNorm',
                'generator_lm_head', 'generator_lm_head.bias')),
        'label': HeadSpec(
            lambda config, classes: FirstTokenClassifier(
                config.block, classes, 'gelu', before=True),
            join_rules(
                dense_rules('heads_label/hidden', 'classifier.dense'),
                dense_rules('heads_label/dense', 'classifier.out_proj')),
            dropout='classifier_dropout'),
        'tags': bert.FAMILY.heads['tags'],
        'choice': HeadSpec(
            lambda config, classes: FirstTokenClassifier(config.block, None, 'gelu', 0.1),
            join_rules(
                dense_rules('heads_choice/hidden', 'sequence_summary.summary'),
                dense_rules('heads_choice/dense', 'classifier')),
            dropout='summary_last_dropout'),
        'span': bert.FAMILY.heads['span'],
    },
    classes={
        'ElectraModel': (), 'ElectraForPreTraining': ('rtd',), 'ElectraForMaskedLM': ('mlm',),
        'ElectraForSequenceClassification': ('label',),
        'ElectraForTokenClassification': ('tags',), 'ElectraForMultipleChoice': ('choice',),
        'ElectraForQuestionAnswering': ('span',),
    },
    prefix='electra.',
    normalize_hf_config=normalize_hf_config,
    denormalize_hf_config=denormalize_hf_config,
    aliases=((r'^(embeddings|embeddings_project|encoder)\.', r'electra.\1.'),),
)


def rename_for_tensorflow(rule: Rule) -> Rule:
  """Rename a parameter as google-research/electra does: as BERT's, and two of the head."""
  theirs = rule.theirs.replace('dense_prediction', 'dense_1')
  return bert.rename_for_tensorflow(dataclasses.replace(rule, theirs=theirs))


def infer_hf_config(tensors: Mapping[str, tuple[Shape, str]]) -> dict[str, Any]:
  """Infer the configuration of a checkpoint of google-research/electra from its shapes.

  Such checkpoints have no configuration file. Heads are of 64, as in every released size.

  Args:
    tensors: name -> (shape, type).

  Raises:
    ConvertError: for a checkpoint of another model.
  """
  first = 'electra/encoder/layer_0'
  table = 'electra/embeddings/word_embeddings'
  positions = 'electra/embeddings/position_embeddings'
  types = 'electra/embeddings/token_type_embeddings'
  query = f'{first}/attention/self/query/kernel'
  middle = f'{first}/intermediate/dense/kernel'
  needed = (table, positions, types, query, middle)
  raise_problems([name for name in needed if len(tensors.get(name, ((), ''))[0]) != 2],
                 'this is no checkpoint of an ELECTRA: it has no tensor')
  shapes = {name: tensors[name][0] for name in needed}
  matches = [re.match(r'electra/encoder/layer_\d+/', name) for name in tensors]
  layers = {match[0] for match in matches if match}
  width = shapes[query][0]
  return {
      'model_type': 'electra', 'architectures': ['ElectraForPreTraining'],
      'vocab_size': shapes[table][0], 'embedding_size': shapes[table][1], 'hidden_size': width,
      'num_attention_heads': max(1, width // 64), 'num_hidden_layers': len(layers),
      'intermediate_size': shapes[middle][1], 'max_position_embeddings': shapes[positions][0],
      'type_vocab_size': shapes[types][0], 'hidden_act': 'gelu'}


RTD = FAMILY.heads['rtd']
# The discriminators of the released TensorFlow checkpoints, whose gelu is the tanh approximation.
ORIGINAL = dataclasses.replace(
    FAMILY,
    attributes=replace_values(FAMILY.attributes, 'hidden_act', bert.ORIGINAL_ACTIVATIONS),
    rules=tuple(rename_for_tensorflow(rule) for rule in FAMILY.rules if not rule.copy),
    heads={
        'rtd': dataclasses.replace(RTD, rules=tuple(map(rename_for_tensorflow, RTD.rules)))},
    prefix='electra/',
    aliases=(),
    skip_patterns=(*bert.ORIGINAL.skip_patterns, r'^generator'),
)
