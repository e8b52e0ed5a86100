"""ALBERT (Lan et al. 2020, arXiv:1909.11942): embeddings factorised, all layers share one layer's parameters.

Parameters as published (table 1): base 12M, large 18M, xlarge 60M, xxlarge 235M. The sizes are the first version's;
`second` makes the second of one, which was trained longer and without dropout.
"""
import dataclasses
import re

from plm_jax import checked
from plm_jax.architectures.encoder import Encoder, EncoderConfig
from plm_jax.conversion.layouts import Linear
from plm_jax.conversion.rules import Attribute, Family, Head, Rule
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.heads import MaskedTokens, PooledClasses, TokenClasses
from plm_jax.layers.mlp import MlpConfig
from plm_jax.layers.stack import StackConfig
from plm_jax.models import bert
from plm_jax.models.bert import ACTIVATIONS, matrix, norm


def sized(layers: int, width: int, heads: int, dtype: Dtype = 'float32') -> EncoderConfig:
  """Embeddings of 128, an MLP of four times the width, 30,000 pieces (section 4.1); the released code's `gelu`."""
  block = BlockConfig(width=width, heads=heads, mlp_dim=4 * width, mlp=MlpConfig(activation='gelu_tanh'), dtype=dtype)
  return EncoderConfig(vocab=30_000, block=block, stack=StackConfig(layers=layers, groups=1), embed_dim=128)


def base(dtype: Dtype = 'float32') -> EncoderConfig:
  """Makes ALBERT base: 12 layers of width 768, 12M parameters."""
  return sized(12, 768, 12, dtype)


def large(dtype: Dtype = 'float32') -> EncoderConfig:
  """Makes ALBERT large: 24 layers of width 1024, 18M parameters."""
  return sized(24, 1024, 16, dtype)


def xlarge(dtype: Dtype = 'float32') -> EncoderConfig:
  """Makes ALBERT xlarge: 24 layers of width 2048, 60M parameters."""
  return sized(24, 2048, 16, dtype)


def xxlarge(dtype: Dtype = 'float32') -> EncoderConfig:
  """Makes ALBERT xxlarge: 12 layers of width 4096, 235M parameters; the paper trains it without dropout (section
  4.8)."""
  return second(sized(12, 4096, 64, dtype))


def second(config: EncoderConfig) -> EncoderConfig:
  """Returns the same size in version 2: no dropout (release notes of google-research/albert)."""
  return dataclasses.replace(config, block=checked.replaced(config.block, {'dropout': 0.0, 'attention.dropout': 0.0}))


BLOCK, LAYER = 'backbone/stack/layers/block', 'albert.encoder.albert_layer_groups.{n}'

# transformers' ALBERT. Its released checkpoints say `gelu_new` or, the first version, `gelu`.
FAMILY = Family(
    name='albert',
    backbone=lambda config: Encoder(config),
    config=EncoderConfig(),
    attributes=(
        Attribute('vocab_size', 'vocab', 30_000),
        Attribute('embedding_size', 'embed_dim', 128),
        Attribute('hidden_size', 'block.width', 4096),
        Attribute('num_hidden_layers', 'stack.layers', 12),
        Attribute('num_hidden_groups', 'stack.groups', 1),
        Attribute('inner_group_num', 'stack.inner', 1),
        Attribute('num_attention_heads', 'block.heads', 64),
        Attribute('intermediate_size', 'block.mlp_dim', 16384),
        Attribute('hidden_act', 'block.mlp.activation', 'gelu_new', (('gelu_new', 'gelu_tanh'), *ACTIVATIONS)),
        Attribute('hidden_dropout_prob', 'block.dropout', 0.0),
        Attribute('attention_probs_dropout_prob', 'block.attention.dropout', 0.0),
        Attribute('max_position_embeddings', 'max_length', 512),
        Attribute('type_vocab_size', 'types', 2),
        Attribute('initializer_range', 'block.init.std', 0.02),
        Attribute('layer_norm_eps', 'block.norm.eps', 1e-12),
        Attribute('tie_word_embeddings', 'tied', True),
    ),
    # What the original code meant to do and transformers does not.
    fixed={'position_embedding_type': 'absolute', 'down_scale_factor': 1, 'gap_size': 0, 'net_structure_type': 0,
           'num_memory_blocks': 0},
    ignored=frozenset({'classifier_dropout_prob'}),
    rules=(
        Rule('backbone/embeddings/tokens', 'albert.embeddings.word_embeddings.weight'),
        Rule('backbone/embeddings/positions', 'albert.embeddings.position_embeddings.weight'),
        Rule('backbone/embeddings/types', 'albert.embeddings.token_type_embeddings.weight'),
        *norm('backbone/embeddings/norm', 'albert.embeddings.LayerNorm'),
        *matrix('backbone/embeddings/project', 'albert.encoder.embedding_hidden_mapping_in'),
        *matrix(f'{BLOCK}/attention/query', f'{LAYER}.attention.query'),
        *matrix(f'{BLOCK}/attention/key', f'{LAYER}.attention.key'),
        *matrix(f'{BLOCK}/attention/value', f'{LAYER}.attention.value'),
        *matrix(f'{BLOCK}/attention/out', f'{LAYER}.attention.dense', inputs=2),
        *norm(f'{BLOCK}/attention_norm', f'{LAYER}.attention.LayerNorm'),
        *matrix(f'{BLOCK}/mlp/up', f'{LAYER}.ffn'),
        *matrix(f'{BLOCK}/mlp/down', f'{LAYER}.ffn_output'),
        *norm(f'{BLOCK}/mlp_norm', f'{LAYER}.full_layer_layer_norm'),
        *matrix('backbone/pooler', 'albert.pooler'),
    ),
    parts={'pooler': 'albert.pooler.weight'},
    heads={
        'mlm': Head(lambda config, classes: MaskedTokens(config.block, config.tied), (
            *matrix('heads_mlm/dense', 'predictions.dense'),
            *norm('heads_mlm/norm', 'predictions.LayerNorm'),
            *bert.output('predictions.decoder', 'predictions.bias'),
        )),
        'sop': Head(
            lambda config, classes: PooledClasses(config.block, 2),
            matrix('heads_sop/dense', 'sop_classifier.classifier'), parts=('pooler',)),
        # Versions without dropout in pre-training have it in front of classifiers.
        'label': Head(
            lambda config, classes: PooledClasses(config.block, classes, 0.1),
            matrix('heads_label/dense', 'classifier'), dropout='classifier_dropout_prob', parts=('pooler',)),
        'tags': Head(
            lambda config, classes: TokenClasses(config.block, classes, 0.1),
            matrix('heads_tags/dense', 'classifier'), dropout='classifier_dropout_prob'),
        'choice': Head(
            lambda config, classes: PooledClasses(config.block, None, 0.1),
            matrix('heads_choice/dense', 'classifier'), dropout='classifier_dropout_prob', parts=('pooler',)),
        'span': bert.FAMILY.heads['span'],
    },
    classes={
        'AlbertModel': (), 'AlbertForPreTraining': ('mlm', 'sop'), 'AlbertForMaskedLM': ('mlm',),
        'AlbertForSequenceClassification': ('label',), 'AlbertForTokenClassification': ('tags',),
        'AlbertForMultipleChoice': ('choice',), 'AlbertForQuestionAnswering': ('span',),
    },
    prefix='albert.',
    aliases=((r'^(embeddings|encoder|pooler)\.', r'albert.\1.'),),
    number=lambda config, n: f'{n // config.stack.inner}.albert_layers.{n % config.stack.inner}',
)


def in_tensorflow(rule: Rule) -> Rule:
  """Renames a parameter as google-research/albert has it: other names, and kernels that are not transposed."""
  name, layout = rule.theirs, rule.layout
  for old, new in TENSORFLOW:
    name = re.sub(old, new, name)
  if name.endswith('.weight'):
    name, layout = name.removesuffix('weight') + 'kernel', Linear(layout.inputs, transposed=False)
  return dataclasses.replace(rule, theirs=name.replace('.', '/'), layout=layout)


# From transformers' names.
GROUP = r'^albert\.encoder\.albert_layer_groups'
TENSORFLOW = (
    (rf'{GROUP}\.{{n}}\.', 'bert.encoder.transformer.{n}.'), (r'^albert\.', 'bert.'),
    (r'word_embeddings\.weight$', 'word_embeddings'), (r'position_embeddings\.weight$', 'position_embeddings'),
    (r'token_type_embeddings\.weight$', 'token_type_embeddings'),
    (r'\.attention\.LayerNorm\.', '.LayerNorm.'), (r'\.full_layer_layer_norm\.', '.LayerNorm_1.'),
    (r'\.attention\.(query|key|value)\.', r'.attention_1.self.\1.'),
    (r'\.attention\.dense\.', '.attention_1.output.dense.'),
    (r'\.ffn\.', '.ffn_1.intermediate.dense.'), (r'\.ffn_output\.', '.ffn_1.intermediate.output.dense.'),
    (r'LayerNorm(_1)?\.weight$', r'LayerNorm\1.gamma'), (r'LayerNorm(_1)?\.bias$', r'LayerNorm\1.beta'),
    (r'bert\.pooler\.', 'bert.pooler.dense.'), (r'^predictions\.bias$', 'cls.predictions.output_bias'),
    (r'^predictions\.(dense|LayerNorm)', r'cls.predictions.transform.\1'),
    (r'^sop_classifier\.classifier\.weight', 'cls.seq_relationship.output_weights'),
    (r'^sop_classifier\.classifier\.bias', 'cls.seq_relationship.output_bias'),
    (r'^classifier\.weight', 'output_weights'), (r'^classifier\.bias', 'output_bias'))
# The released TensorFlow checkpoints and their albert_config.json, whose `gelu` is the tanh approximation.
ORIGINAL = dataclasses.replace(
    FAMILY,
    attributes=tuple(
        dataclasses.replace(attribute, default='gelu', values=bert.ORIGINAL_ACTIVATIONS)
        if attribute.theirs == 'hidden_act' else attribute for attribute in FAMILY.attributes),
    fixed={**FAMILY.fixed, 'ln_type': 'postln', 'layers_to_keep': []},
    rules=tuple(in_tensorflow(rule) for rule in FAMILY.rules if not rule.copy),
    heads={name: dataclasses.replace(head, rules=tuple(in_tensorflow(rule) for rule in head.rules if not rule.copy))
           for name, head in FAMILY.heads.items() if name in ('mlm', 'sop')},
    parts={'pooler': 'bert/pooler/dense/kernel'},
    prefix='bert/',
    aliases=(),
    skipped=bert.ORIGINAL.skipped,
    number=lambda config, n: f'group_{n // config.stack.inner}/inner_group_{n % config.stack.inner}',
)
