"""ELECTRA (Clark et al. 2020, arXiv:2003.10555): BERT's wiring, pre-trained to tell which tokens were replaced.

Parameters as published: small 14M, base 110M, large 335M; those of the discriminator, which is what is kept.
"""
from collections.abc import Mapping
import dataclasses
import re
from typing import Any

from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.conversion.rules import Attribute, Head, Rule, refuse
from plm_jax.conversion.slices import Shape
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.heads import FirstTokenClasses, MaskedTokens, ReplacedTokens
from plm_jax.layers.stack import StackConfig
from plm_jax.models import bert
from plm_jax.models.roberta import gelu


def sized(layers: int, width: int, embed_dim: int = 0, dtype: Dtype = 'float32') -> EncoderConfig:
  """Heads of 64, an MLP of four times the width, no pooler."""
  block = BlockConfig(width=width, heads=width // 64, mlp_dim=4 * width, dtype=dtype)
  return EncoderConfig(block=block, stack=StackConfig(layers=layers), embed_dim=embed_dim, pooler=False)


def small(dtype: Dtype = 'float32') -> EncoderConfig:
  """Makes ELECTRA small's discriminator: 12 layers of width 256, 14M parameters."""
  return sized(12, 256, 128, dtype)


def base(dtype: Dtype = 'float32') -> EncoderConfig:
  """Makes ELECTRA base's discriminator: 12 layers of width 768, 110M parameters."""
  return sized(12, 768, dtype=dtype)


def large(dtype: Dtype = 'float32') -> EncoderConfig:
  """Makes ELECTRA large's discriminator: 24 layers of width 1024, 335M parameters."""
  return sized(24, 1024, dtype=dtype)


def to_current(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
  """Reads the width of embeddings; tables of the layers' own width are not projected: 0 with us."""
  width = hf_config.get('hidden_size', 256)
  size = hf_config.get('embedding_size', 128)
  return {**hf_config, 'embedding_size': 0 if size == width else size}


def from_current(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
  """Undoes what `to_current` did."""
  return {**hf_config, 'embedding_size': hf_config['embedding_size'] or hf_config['hidden_size']}


# What differs from transformers' BERT: defaults, the width of the tables, names, and heads.
DEFAULTS = {'hidden_size': 256, 'num_attention_heads': 4, 'intermediate_size': 1024}
FAMILY = dataclasses.replace(
    bert.FAMILY,
    name='electra',
    config=base(),
    attributes=(
        *(dataclasses.replace(attribute, default=DEFAULTS.get(attribute.theirs, attribute.default))
          for attribute in bert.FAMILY.attributes),
        Attribute('embedding_size', 'embed_dim', 128),
    ),
    fixed={'position_embedding_type': 'absolute', 'summary_type': 'first', 'summary_use_proj': True,
           'summary_activation': 'gelu'},
    ignored=frozenset({'summary_last_dropout'}),
    rules=(
        *(dataclasses.replace(rule, theirs=rule.theirs.replace('bert.', 'electra.', 1))
          for rule in bert.FAMILY.rules if not rule.ours.startswith('backbone/pooler')),
        *bert.matrix('backbone/embeddings/project', 'electra.embeddings_project'),
    ),
    parts={},
    heads={
        'rtd': Head(lambda config, classes: ReplacedTokens(config.block), (
            *bert.matrix('heads_rtd/hidden', 'discriminator_predictions.dense'),
            *bert.matrix('heads_rtd/dense', 'discriminator_predictions.dense_prediction'),
        )),
        'mlm': Head(lambda config, classes: MaskedTokens(gelu(config), config.tied), (
            *bert.matrix('heads_mlm/dense', 'generator_predictions.dense'),
            *bert.norm('heads_mlm/norm', 'generator_predictions.LayerNorm'),
            *bert.output('generator_lm_head', 'generator_lm_head.bias'),
        )),
        'label': Head(
            lambda config, classes: FirstTokenClasses(config.block, classes, 'gelu', before=True),
            (*bert.matrix('heads_label/hidden', 'classifier.dense'),
             *bert.matrix('heads_label/dense', 'classifier.out_proj')), dropout='classifier_dropout'),
        'tags': bert.FAMILY.heads['tags'],
        'choice': Head(
            lambda config, classes: FirstTokenClasses(config.block, None, 'gelu', 0.1),
            (*bert.matrix('heads_choice/hidden', 'sequence_summary.summary'),
             *bert.matrix('heads_choice/dense', 'classifier')), dropout='summary_last_dropout'),
        'span': bert.FAMILY.heads['span'],
    },
    classes={
        'ElectraModel': (), 'ElectraForPreTraining': ('rtd',), 'ElectraForMaskedLM': ('mlm',),
        'ElectraForSequenceClassification': ('label',), 'ElectraForTokenClassification': ('tags',),
        'ElectraForMultipleChoice': ('choice',), 'ElectraForQuestionAnswering': ('span',),
    },
    prefix='electra.',
    to_current=to_current,
    from_current=from_current,
    aliases=((r'^(embeddings|embeddings_project|encoder)\.', r'electra.\1.'),),
)


def in_tensorflow(rule: Rule) -> Rule:
  """Renames a parameter as google-research/electra has it: BERT's names, and two of its head's."""
  return bert.in_tensorflow(dataclasses.replace(rule, theirs=rule.theirs.replace('dense_prediction', 'dense_1')))


def described(tensors: Mapping[str, tuple[Shape, str]]) -> dict[str, Any]:
  """Reads the configuration of a checkpoint of google-research/electra, which has no file for it, off the shapes in it;
  heads of 64, as in every released size."""
  first = 'electra/encoder/layer_0'
  table, place, kind, query, middle = needed = (
      *(f'electra/embeddings/{name}_embeddings' for name in ('word', 'position', 'token_type')),
      f'{first}/attention/self/query/kernel', f'{first}/intermediate/dense/kernel')
  refuse([name for name in needed if len(tensors.get(name, ((), ''))[0]) != 2],
         'this is no checkpoint of an ELECTRA: it has no tensor')
  shapes = {name: tensors[name][0] for name in needed}
  width = shapes[query][0]
  return {
      'model_type': 'electra', 'architectures': ['ElectraForPreTraining'], 'vocab_size': shapes[table][0],
      'embedding_size': shapes[table][1], 'hidden_size': width, 'num_attention_heads': max(1, width // 64),
      'num_hidden_layers': len({found[0] for name in tensors
                                if (found := re.match(r'electra/encoder/layer_\d+/', name))}),
      'intermediate_size': shapes[middle][1], 'max_position_embeddings': shapes[place][0],
      'type_vocab_size': shapes[kind][0], 'hidden_act': 'gelu'}


# The discriminators of the released TensorFlow checkpoints, whose `gelu` is the tanh approximation.
ORIGINAL = dataclasses.replace(
    FAMILY,
    attributes=tuple(
        dataclasses.replace(attribute, values=bert.ORIGINAL_ACTIVATIONS) if attribute.theirs == 'hidden_act'
        else attribute for attribute in FAMILY.attributes),
    rules=tuple(in_tensorflow(rule) for rule in FAMILY.rules if not rule.copy),
    heads={'rtd': dataclasses.replace(FAMILY.heads['rtd'], rules=tuple(map(in_tensorflow, FAMILY.heads['rtd'].rules)))},
    prefix='electra/',
    aliases=(),
    skipped=(*bert.ORIGINAL.skipped, r'^generator'),
)
