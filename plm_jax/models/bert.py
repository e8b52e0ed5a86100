"""BERT (Devlin et al. 2019, arXiv:1810.04805), and the smaller ones of Turc et al. 2019 (arXiv:1908.08962).

Parameters as published: base 110M, large 340M (section 3).
"""
import dataclasses

from plm_jax import checked
from plm_jax.architectures.encoder import Encoder, EncoderConfig
from plm_jax.conversion.layouts import Count, Linear, Same
from plm_jax.conversion.rules import Attribute, Family, Head, Rule
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.heads import MaskedTokens, PooledClasses, SpanEnds, TokenClasses
from plm_jax.layers.stack import StackConfig


def sized(layers: int, width: int, dtype: Dtype = 'float32') -> EncoderConfig:
  """Heads of 64 and an MLP of four times the width, as in every released size (24 of them, 2/128 to 24/1024)."""
  block = BlockConfig(width=width, heads=width // 64, mlp_dim=4 * width, dtype=dtype)
  return EncoderConfig(block=block, stack=StackConfig(layers=layers))


def base(dtype: Dtype = 'float32') -> EncoderConfig:
  """Makes BERT base: 12 layers of width 768, 110M parameters."""
  return sized(12, 768, dtype)


def large(dtype: Dtype = 'float32') -> EncoderConfig:
  """Makes BERT large: 24 layers of width 1024, 340M parameters."""
  return sized(24, 1024, dtype)


def tiny() -> EncoderConfig:
  """Makes BERT tiny (Turc et al. 2019, table 1): 2 layers of width 128, 4.4M parameters."""
  return sized(2, 128)


def mini() -> EncoderConfig:
  """Makes BERT mini (Turc et al. 2019, table 1): 4 layers of width 256, 11.3M parameters."""
  return sized(4, 256)


def small() -> EncoderConfig:
  """Makes BERT small (Turc et al. 2019, table 1): 4 layers of width 512, 29.1M parameters."""
  return sized(4, 512)


def medium() -> EncoderConfig:
  """Makes BERT medium (Turc et al. 2019, table 1): 8 layers of width 512, 41.7M parameters."""
  return sized(8, 512)


def tensorflow(config: EncoderConfig) -> EncoderConfig:
  """Returns the same model as the released TensorFlow code computes it: its `gelu` is the tanh approximation."""
  return dataclasses.replace(config, block=checked.replaced(config.block, {'mlp.activation': 'gelu_tanh'}))


def matrix(ours: str, theirs: str, inputs: int = 1) -> tuple[Rule, Rule]:
  """Makes the rules of a torch Linear, kernel and bias; inputs: axes of ours that are one of theirs."""
  kernel = Rule(f'{ours}/kernel', f'{theirs}.weight', Linear(inputs))
  return kernel, Rule(f'{ours}/bias', f'{theirs}.bias', Same(flat=True))


def norm(ours: str, theirs: str) -> tuple[Rule, Rule]:
  """Makes the rules of a LayerNorm, scale and bias."""
  return Rule(f'{ours}/scale', f'{theirs}.weight'), Rule(f'{ours}/bias', f'{theirs}.bias')


def output(matrix: str, bias: str) -> tuple[Rule, ...]:
  """Makes the rules of the last part of the head of masked tokens: tied, it is the token table and a `bias`, with
  copies in `matrix`; else it is `matrix`, and transformers leaves `bias` in the file, unused."""
  copy = Rule('heads_mlm/bias', f'{matrix}.bias', copy=True, where=tied)
  return (
      Rule('heads_mlm/bias', bias, where=tied), *([copy] if copy.theirs != bias else []),
      Rule('backbone/embeddings/tokens', f'{matrix}.weight', copy=True, where=tied),
      Rule('heads_mlm/kernel', f'{matrix}.weight', Linear(), where=untied),
      Rule('heads_mlm/bias', f'{matrix}.bias', where=untied),
  )


def tied(config: EncoderConfig) -> bool:
  """Tells whether the head of masked tokens has the token table for its matrix."""
  return config.tied


def untied(config: EncoderConfig) -> bool:
  """Tells whether the head of masked tokens has a matrix of its own."""
  return not config.tied


BLOCK, LAYER = 'backbone/stack/layers/block', 'bert.encoder.layer.{n}'
ACTIVATIONS = (
    ('gelu', 'gelu'), ('gelu_python', 'gelu'), ('gelu_new', 'gelu_tanh'), ('gelu_pytorch_tanh', 'gelu_tanh'),
    ('gelu_fast', 'gelu_tanh'), ('gelu_accurate', 'gelu_tanh'), ('relu', 'relu'), ('silu', 'silu'), ('swish', 'silu'),
    ('tanh', 'tanh'))

# transformers' BERT.
FAMILY = Family(
    name='bert',
    backbone=lambda config: Encoder(config),
    config=EncoderConfig(),
    attributes=(
        Attribute('vocab_size', 'vocab', 30522),
        Attribute('hidden_size', 'block.width', 768),
        Attribute('num_hidden_layers', 'stack.layers', 12),
        Attribute('num_attention_heads', 'block.heads', 12),
        Attribute('intermediate_size', 'block.mlp_dim', 3072),
        Attribute('hidden_act', 'block.mlp.activation', 'gelu', ACTIVATIONS),
        Attribute('hidden_dropout_prob', 'block.dropout', 0.1),
        Attribute('attention_probs_dropout_prob', 'block.attention.dropout', 0.1),
        Attribute('max_position_embeddings', 'max_length', 512),
        Attribute('type_vocab_size', 'types', 2),
        Attribute('initializer_range', 'block.init.std', 0.02),
        Attribute('layer_norm_eps', 'block.norm.eps', 1e-12),
        Attribute('tie_word_embeddings', 'tied', True),
    ),
    fixed={'position_embedding_type': 'absolute', 'directionality': 'bidi', 'pooler_type': 'first_token_transform'},
    # Of a pooler that no released model has, in the configurations of the Chinese and the multilingual one.
    ignored=frozenset({'pooler_fc_size', 'pooler_num_attention_heads', 'pooler_num_fc_layers', 'pooler_size_per_head'}),
    rules=(
        Rule('backbone/embeddings/tokens', 'bert.embeddings.word_embeddings.weight'),
        Rule('backbone/embeddings/positions', 'bert.embeddings.position_embeddings.weight'),
        Rule('backbone/embeddings/types', 'bert.embeddings.token_type_embeddings.weight'),
        *norm('backbone/embeddings/norm', 'bert.embeddings.LayerNorm'),
        *matrix(f'{BLOCK}/attention/query', f'{LAYER}.attention.self.query'),
        *matrix(f'{BLOCK}/attention/key', f'{LAYER}.attention.self.key'),
        *matrix(f'{BLOCK}/attention/value', f'{LAYER}.attention.self.value'),
        *matrix(f'{BLOCK}/attention/out', f'{LAYER}.attention.output.dense', inputs=2),
        *norm(f'{BLOCK}/attention_norm', f'{LAYER}.attention.output.LayerNorm'),
        *matrix(f'{BLOCK}/mlp/up', f'{LAYER}.intermediate.dense'),
        *matrix(f'{BLOCK}/mlp/down', f'{LAYER}.output.dense'),
        *norm(f'{BLOCK}/mlp_norm', f'{LAYER}.output.LayerNorm'),
        *matrix('backbone/pooler', 'bert.pooler.dense'),
        Rule('backbone/embeddings/positions', 'bert.embeddings.position_ids', Count(), copy=True),
    ),
    parts={'pooler': 'bert.pooler.dense.weight'},
    heads={
        'mlm': Head(lambda config, classes: MaskedTokens(config.block, config.tied), (
            *matrix('heads_mlm/dense', 'cls.predictions.transform.dense'),
            *norm('heads_mlm/norm', 'cls.predictions.transform.LayerNorm'),
            *output('cls.predictions.decoder', 'cls.predictions.bias'),
        )),
        'nsp': Head(
            lambda config, classes: PooledClasses(config.block, 2),
            matrix('heads_nsp/dense', 'cls.seq_relationship'), parts=('pooler',)),
        'label': Head(
            lambda config, classes: PooledClasses(config.block, classes),
            matrix('heads_label/dense', 'classifier'), dropout='classifier_dropout', parts=('pooler',)),
        'tags': Head(
            lambda config, classes: TokenClasses(config.block, classes),
            matrix('heads_tags/dense', 'classifier'), dropout='classifier_dropout'),
        'choice': Head(
            lambda config, classes: PooledClasses(config.block, None),
            matrix('heads_choice/dense', 'classifier'), dropout='classifier_dropout', parts=('pooler',)),
        'span': Head(
            lambda config, classes: SpanEnds(config.block),
            matrix('heads_span/dense', 'qa_outputs')),
    },
    classes={
        'BertModel': (), 'BertForPreTraining': ('mlm', 'nsp'), 'BertForMaskedLM': ('mlm',),
        'BertForNextSentencePrediction': ('nsp',), 'BertForSequenceClassification': ('label',),
        'BertForTokenClassification': ('tags',), 'BertForMultipleChoice': ('choice',),
        'BertForQuestionAnswering': ('span',),
    },
    prefix='bert.',
    aliases=((r'LayerNorm\.gamma$', 'LayerNorm.weight'), (r'LayerNorm\.beta$', 'LayerNorm.bias'),
             (r'^(embeddings|encoder|pooler)\.', r'bert.\1.')),
)


def in_tensorflow(rule: Rule) -> Rule:
  """Renames a parameter as google-research/bert has it: other names, and kernels that are not transposed."""
  name, layout = rule.theirs, rule.layout
  for old, new in (('LayerNorm.weight', 'LayerNorm.gamma'), ('LayerNorm.bias', 'LayerNorm.beta'),
                   ('_embeddings.weight', '_embeddings'), ('layer.{n}', 'layer_{n}'),
                   ('cls.predictions.bias', 'cls.predictions.output_bias'),
                   ('cls.seq_relationship.weight', 'cls.seq_relationship.output_weights'),
                   ('cls.seq_relationship.bias', 'cls.seq_relationship.output_bias'),
                   ('classifier.weight', 'output_weights'), ('classifier.bias', 'output_bias'),
                   ('qa_outputs.weight', 'cls.squad.output_weights'), ('qa_outputs.bias', 'cls.squad.output_bias')):
    name = name.replace(old, new)
  if name.endswith('.weight'):
    name, layout = name.removesuffix('weight') + 'kernel', Linear(layout.inputs, transposed=False)
  return dataclasses.replace(rule, theirs=name.replace('.', '/'), layout=layout)


ORIGINAL_ACTIVATIONS = (('gelu', 'gelu_tanh'), ('relu', 'relu'), ('tanh', 'tanh'))
# The released TensorFlow checkpoints and their bert_config.json, whose `gelu` is the tanh approximation.
ORIGINAL = dataclasses.replace(
    FAMILY,
    attributes=tuple(
        dataclasses.replace(attribute, values=ORIGINAL_ACTIVATIONS)
        if attribute.theirs == 'hidden_act' else attribute for attribute in FAMILY.attributes),
    rules=tuple(in_tensorflow(rule) for rule in FAMILY.rules if not rule.copy),
    heads={name: dataclasses.replace(head, rules=tuple(in_tensorflow(rule) for rule in head.rules if not rule.copy))
           for name, head in FAMILY.heads.items()},
    parts={'pooler': 'bert/pooler/dense/kernel'},
    prefix='bert/',
    aliases=(),
    skipped=(r'/(adam|lamb)_[mv]$', r'^(global_step|beta[12]_power|bad_steps|good_steps|loss_scale)$'),
)
