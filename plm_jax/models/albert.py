"""ALBERT (Lan et al. 2020, arXiv:1909.11942): factorized embeddings, cross-layer parameter sharing.

Parameters as published (table 1): base 12M, large 18M, xlarge 60M, xxlarge 235M. The sizes are
those of version 1; `make_v2` turns one into version 2, which was trained longer and without
dropout.
"""
import dataclasses
import functools

from plm_jax import validation
from plm_jax.architectures.encoder import Encoder, EncoderConfig
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.embeddings import EmbeddingConfig
from plm_jax.layers.heads import MaskedLMHead, PooledClassifier
from plm_jax.layers.mlp import MlpConfig
from plm_jax.layers.stack import StackConfig
from plm_jax.models import bert
from plm_jax.models.bert import GELU_NEW_ACTIVATIONS, embedding_rules, mlm_head_rules
from plm_jax.models.rules import (
    Attribute,
    Family,
    HeadSpec,
    block_rules,
    dense_rules,
    join_rules,
    replace_defaults,
    replace_values,
)


def make_config(layers: int, width: int, heads: int, dtype: Dtype = 'float32') -> EncoderConfig:
  """Make an ALBERT: embeddings of 128, an MLP of 4 x hidden size, 30,000 tokens (section 4.1).

  Its gelu is the tanh approximation, as in the released code.
  """
  block = BlockConfig(
      width=width, heads=heads, mlp_dim=4 * width, mlp=MlpConfig(activation='gelu_tanh'),
      dtype=dtype)
  stack = StackConfig(layers=layers, groups=1)
  return EncoderConfig(
      vocab=30_000, block=block, stack=stack, embeddings=EmbeddingConfig(width=128))


base = functools.partial(make_config, 12, 768, 12)  # 12M parameters
large = functools.partial(make_config, 24, 1024, 16)  # 18M parameters
xlarge = functools.partial(make_config, 24, 2048, 16)  # 60M parameters


def xxlarge(dtype: Dtype = 'float32') -> EncoderConfig:
  """Make ALBERT xxlarge: 235M parameters. The paper trains it without dropout (section 4.8)."""
  return make_v2(make_config(12, 4096, 64, dtype))


def make_v2(config: EncoderConfig) -> EncoderConfig:
  """Return version 2 of a size: no dropout (release notes of google-research/albert)."""
  return validation.with_paths(config, {'block.dropout': 0.0, 'block.attention.dropout': 0.0})


BLOCK, LAYER = 'backbone/stack/layers/block', 'albert.encoder.albert_layer_groups.{n}'
LAYER_NAMES = {
    'attention/query': 'attention.query', 'attention/key': 'attention.key',
    'attention/value': 'attention.value', 'attention/out': 'attention.dense',
    'attention_norm': 'attention.LayerNorm', 'mlp/up': 'ffn', 'mlp/down': 'ffn_output',
    'mlp_norm': 'full_layer_layer_norm'}
"""Parts of a layer, and their names of them."""

# transformers' ALBERT. Its released checkpoints have gelu_new or, in version 1, gelu.
FAMILY = Family(
    name='albert',
    backbone=lambda config: Encoder(config),
    config=EncoderConfig(),
    attributes=(
        Attribute('vocab_size', 'vocab', 30_000),
        Attribute('embedding_size', 'embeddings.width', 128),
        Attribute('hidden_size', 'block.width', 4096),
        Attribute('num_hidden_layers', 'stack.layers', 12),
        Attribute('num_hidden_groups', 'stack.groups', 1),
        Attribute('inner_group_num', 'stack.inner', 1),
        Attribute('num_attention_heads', 'block.heads', 64),
        Attribute('intermediate_size', 'block.mlp_dim', 16384),
        Attribute('hidden_act', 'block.mlp.activation', 'gelu_new', GELU_NEW_ACTIVATIONS),
        Attribute('hidden_dropout_prob', 'block.dropout', 0.0),
        Attribute('attention_probs_dropout_prob', 'block.attention.dropout', 0.0),
        Attribute('max_position_embeddings', 'max_length', 512),
        Attribute('type_vocab_size', 'embeddings.types', 2),
        Attribute('initializer_range', 'block.init.std', 0.02),
        Attribute('layer_norm_eps', 'block.norm.eps', 1e-12),
        Attribute('tie_word_embeddings', 'tied', True),
    ),
    # The last four are options of the original code that transformers does not implement.
    fixed={'position_embedding_type': 'absolute', 'down_scale_factor': 1, 'gap_size': 0,
           'net_structure_type': 0, 'num_memory_blocks': 0},
    ignored=frozenset({'classifier_dropout_prob'}),
    rules=join_rules(
        embedding_rules('albert.embeddings'),
        dense_rules('backbone/embeddings/project', 'albert.encoder.embedding_hidden_mapping_in'),
        block_rules(BLOCK, LAYER, LAYER_NAMES),
        dense_rules('backbone/pooler', 'albert.pooler'),
    ),
    part_tensors={'pooler': 'albert.pooler.weight'},
    heads={
        'mlm': HeadSpec(
            lambda config, classes: MaskedLMHead(config.block, config.tied),
            mlm_head_rules(
                'predictions.dense', 'predictions.LayerNorm',
                'predictions.decoder', 'predictions.bias')),
        'sop': HeadSpec(
            lambda config, classes: PooledClassifier(config.block, 2),
            dense_rules('heads_sop/dense', 'sop_classifier.classifier'),
            required_parts=('pooler',)),
        # Models pre-trained without dropout still have it before classifiers.
        **bert.classification_heads('classifier_dropout_prob', 0.1),
        'span': bert.FAMILY.heads['span'],
    },
    classes={
        'AlbertModel': (), 'AlbertForPreTraining': ('mlm', 'sop'), 'AlbertForMaskedLM': ('mlm',),
        'AlbertForSequenceClassification': ('label',), 'AlbertForTokenClassification': ('tags',),
        'AlbertForMultipleChoice': ('choice',), 'AlbertForQuestionAnswering': ('span',),
    },
    prefix='albert.',
    aliases=((r'^(embeddings|encoder|pooler)\.', r'albert.\1.'),),
    layer_label=lambda config, n: (
        f'{n // config.stack.inner}.albert_layers.{n % config.stack.inner}'),
)


# Patterns of transformers' names of tensors -> names of google-research/albert.
TENSORFLOW_NAMES = (
    (r'^albert\.encoder\.albert_layer_groups\.{n}\.', 'bert.encoder.transformer.{n}.'),
    (r'^albert\.', 'bert.'),
    (r'word_embeddings\.weight$', 'word_embeddings'),
    (r'position_embeddings\.weight$', 'position_embeddings'),
    (r'token_type_embeddings\.weight$', 'token_type_embeddings'),
    (r'\.attention\.LayerNorm\.', '.LayerNorm.'), (r'\.full_layer_layer_norm\.', '.LayerNorm_1.'),
    (r'\.attention\.(query|key|value)\.', r'.attention_1.self.\1.'),
    (r'\.attention\.dense\.', '.attention_1.output.dense.'),
    (r'\.ffn\.', '.ffn_1.intermediate.dense.'),
    (r'\.ffn_output\.', '.ffn_1.intermediate.output.dense.'),
    (r'LayerNorm(_1)?\.weight$', r'LayerNorm\1.gamma'),
    (r'LayerNorm(_1)?\.bias$', r'LayerNorm\1.beta'),
    (r'bert\.pooler\.', 'bert.pooler.dense.'),
    (r'^predictions\.bias$', 'cls.predictions.output_bias'),
    (r'^predictions\.(dense|LayerNorm)', r'cls.predictions.transform.\1'),
    (r'^sop_classifier\.classifier\.weight', 'cls.seq_relationship.output_weights'),
    (r'^sop_classifier\.classifier\.bias', 'cls.seq_relationship.output_bias'),
    (r'^classifier\.weight', 'output_weights'), (r'^classifier\.bias', 'output_bias'))

# The released TensorFlow checkpoints and their albert_config.json, whose gelu is the tanh
# approximation.
ORIGINAL = dataclasses.replace(
    FAMILY,
    attributes=replace_defaults(
        replace_values(FAMILY.attributes, 'hidden_act', bert.ORIGINAL_ACTIVATIONS),
        {'hidden_act': 'gelu'}),
    fixed={**FAMILY.fixed, 'ln_type': 'postln', 'layers_to_keep': []},
    rules=bert.rename_all_for_tensorflow(FAMILY.rules, TENSORFLOW_NAMES),
    heads={name: bert.tensorflow_head(FAMILY.heads[name], TENSORFLOW_NAMES)
           for name in ('mlm', 'sop')},
    part_tensors={'pooler': 'bert/pooler/dense/kernel'},
    prefix='bert/',
    aliases=(),
    skip_patterns=bert.ORIGINAL.skip_patterns,
    layer_label=lambda config, n: (
        f'group_{n // config.stack.inner}/inner_group_{n % config.stack.inner}'),
)
