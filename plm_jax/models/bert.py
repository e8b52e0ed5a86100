"""BERT (Devlin et al. 2019, arXiv:1810.04805).

Parameters as published: base 110M, large 340M (section 3). The sizes below base are those of Turc
et al. 2019 (arXiv:1908.08962).

ERNIE (Sun et al. 2019, arXiv:1904.09223): a BERT that masks whole words, phrases and entities.
From ERNIE 2.0 (Sun et al. 2020, arXiv:1907.12412) there is the table of task ids, which is added to
the embeddings; the released ERNIE 1.0 has none. Parameters of the released ERNIE 1.0, a Chinese
model: 18,000 tokens, 513 positions, relu, 99.9M parameters without heads.

Megatron-LM's BERT (Shoeybi et al. 2020, arXiv:1909.08053, section 5.8): pre-layer normalization.
One more norm follows the last layer, and embeddings are not normalized; otherwise it is a BERT. In
this arrangement larger models train without diverging. Parameters of the released model, published
as 345M: 334,723,458 with 29,056 cased tokens, 336,297,858 with 30,592 uncased tokens. Both
vocabularies are padded to a multiple of 128.

SpanBERT (Joshi et al. 2020, arXiv:1907.10529): BERT pre-trained with `objectives.sbo`.
SBO is the span boundary objective. Parameters are those of BERT with 28,996 cased tokens, 108M and
333M. There is no pooler, because no sentence-level objective is trained.
The released models are BERT's in every file format. SPANBERT reads the files of the original
pre-training code, which have the head of the span boundary objective. Exports are BERT's.
"""
from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import functools
import re
from typing import Any

from plm_jax import validation
from plm_jax.architectures.encoder import Encoder, EncoderConfig
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.heads import (
  AnswerSpanHead,
  MaskedLMHead,
  PooledClassifier,
  SpanBoundaryHead,
  TokenClassifier,
)
from plm_jax.layers.init import NORMAL_INIT
from plm_jax.layers.stack import StackConfig
from plm_jax.models.layouts import CountBuffer, Linear
from plm_jax.models.rules import (
  Attribute,
  Family,
  HeadSpec,
  Rule,
  block_rules,
  dense_rules,
  join_rules,
  norm_rules,
  rename_tensors,
  replace_defaults,
  replace_values,
)


def make_config(layers: int, width: int, dtype: Dtype = 'float32') -> EncoderConfig:
  """Make a BERT with heads of 64 and an MLP of 4 x hidden size.

  So are all 24 released sizes, from 2 layers and hidden size 128 to 24 layers and 1024.
  """
  block = BlockConfig(width=width, heads=width // 64, mlp_dim=4 * width, dtype=dtype)
  return EncoderConfig(block=block, stack=StackConfig(layers=layers))


base = functools.partial(make_config, 12, 768)  # 110M parameters
large = functools.partial(make_config, 24, 1024)  # 340M parameters
# The smaller sizes of Turc et al. 2019, table 1.
tiny = functools.partial(make_config, 2, 128)  # 4.4M parameters
mini = functools.partial(make_config, 4, 256)  # 11.3M parameters
small = functools.partial(make_config, 4, 512)  # 29.1M parameters
medium = functools.partial(make_config, 8, 512)  # 41.7M parameters


def use_tanh_gelu(config: EncoderConfig) -> EncoderConfig:
  """Return the model with the tanh approximation of gelu, as the released TensorFlow code has."""
  return validation.with_paths(config, {'block.mlp.activation': 'gelu_tanh'})


def mlm_output_rules(matrix: str, bias: str) -> tuple[Rule, ...]:
  """Make the rules of the masked-LM head's output layer, with tied or untied embeddings.

  Tied, the layer is the token table and a bias of its own. Untied, it has a matrix and a bias, and
  transformers leaves the tensor `bias` in the file unused.

  Args:
    matrix: name of their output layer.
    bias: name of the bias of the tied layer; where it is not the layer's own bias, that is a copy.
  """
  rules = [Rule('heads_mlm/bias', bias, applies_to=is_tied)]
  if bias != f'{matrix}.bias':
    rules.append(Rule('heads_mlm/bias', f'{matrix}.bias', copy=True, applies_to=is_tied))
  tokens = 'backbone/embeddings/tokens'
  return (
      *rules,
      Rule(tokens, f'{matrix}.weight', copy=True, applies_to=is_tied),
      Rule('heads_mlm/kernel', f'{matrix}.weight', Linear(), applies_to=is_untied),
      Rule('heads_mlm/bias', f'{matrix}.bias', applies_to=is_untied),
  )


def mlm_head_rules(dense: str, norm: str, matrix: str, bias: str) -> tuple[Rule, ...]:
  """Make the rules of a masked-LM head with a hidden layer.

  Args:
    dense: name of their hidden layer.
    norm: name of its norm.
    matrix: name of their output layer, as for `mlm_output_rules`.
    bias: name of its bias.
  """
  return join_rules(
      dense_rules('heads_mlm/dense', dense), norm_rules('heads_mlm/norm', norm),
      mlm_output_rules(matrix, bias))


def embedding_rules(theirs: str, types: bool = True) -> tuple[Rule, ...]:
  """Make the rules of token, position and segment type embeddings and their norm.

  Args:
    theirs: prefix of their names, before a dot.
    types: whether there are segment types.
  """
  tables = {'tokens': 'word_embeddings', 'positions': 'position_embeddings'}
  if types:
    tables['types'] = 'token_type_embeddings'
  rules = [Rule(f'backbone/embeddings/{ours}', f'{theirs}.{name}.weight')
           for ours, name in tables.items()]
  return join_rules(*rules, norm_rules('backbone/embeddings/norm', f'{theirs}.LayerNorm'))


def classification_heads(attribute: str, rate: float | None = None) -> dict[str, HeadSpec]:
  """Make the heads `label`, `tags` and `choice`, whose layer is `classifier`.

  Args:
    attribute: their attribute with the heads' dropout rate.
    rate: dropout rate where they have none; None: that of the blocks.
  """
  def rules(name):
    return dense_rules(f'heads_{name}/dense', 'classifier')
  return {
      'label': HeadSpec(
          lambda config, classes: PooledClassifier(config.block, classes, rate), rules('label'),
          dropout=attribute, required_parts=('pooler',)),
      'tags': HeadSpec(
          lambda config, classes: TokenClassifier(config.block, classes, rate), rules('tags'),
          dropout=attribute),
      'choice': HeadSpec(
          lambda config, classes: PooledClassifier(config.block, None, rate), rules('choice'),
          dropout=attribute, required_parts=('pooler',)),
  }


def is_tied(config: EncoderConfig) -> bool:
  """Tell whether embeddings are tied: the masked-LM head's matrix is the token table."""
  return config.tied


def is_untied(config: EncoderConfig) -> bool:
  """Tell whether the masked-LM head has an output matrix of its own."""
  return not config.tied


BLOCK, LAYER = 'backbone/stack/layers/block', 'bert.encoder.layer.{n}'
LAYER_NAMES = {
    'attention/query': 'attention.self.query', 'attention/key': 'attention.self.key',
    'attention/value': 'attention.self.value', 'attention/out': 'attention.output.dense',
    'attention_norm': 'attention.output.LayerNorm', 'mlp/up': 'intermediate.dense',
    'mlp/down': 'output.dense', 'mlp_norm': 'output.LayerNorm'}
"""Parts of a layer, and their names of them."""
# transformers' names of activations and ours.
ACTIVATIONS = (
    ('gelu', 'gelu'), ('gelu_python', 'gelu'), ('gelu_new', 'gelu_tanh'),
    ('gelu_pytorch_tanh', 'gelu_tanh'), ('gelu_fast', 'gelu_tanh'), ('gelu_accurate', 'gelu_tanh'),
    ('relu', 'relu'), ('silu', 'silu'), ('swish', 'silu'), ('tanh', 'tanh'))
# The same; the tanh approximation is written as gelu_new.
GELU_NEW_ACTIVATIONS = (('gelu_new', 'gelu_tanh'), *ACTIVATIONS)

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
        Attribute('type_vocab_size', 'embeddings.types', 2),
        Attribute('initializer_range', 'block.init.std', 0.02),
        Attribute('layer_norm_eps', 'block.norm.eps', 1e-12),
        Attribute('tie_word_embeddings', 'tied', True),
    ),
    fixed={'position_embedding_type': 'absolute', 'directionality': 'bidi',
           'pooler_type': 'first_token_transform'},
    # The configurations of the Chinese and the multilingual model describe a pooler that no
    # released model has.
    ignored=frozenset({
        'pooler_fc_size', 'pooler_num_attention_heads', 'pooler_num_fc_layers',
        'pooler_size_per_head'}),
    rules=join_rules(
        embedding_rules('bert.embeddings'),
        block_rules(BLOCK, LAYER, LAYER_NAMES),
        dense_rules('backbone/pooler', 'bert.pooler.dense'),
        Rule('backbone/embeddings/positions', 'bert.embeddings.position_ids', CountBuffer(),
             copy=True),
    ),
    part_tensors={'pooler': 'bert.pooler.dense.weight'},
    heads={
        'mlm': HeadSpec(
            lambda config, classes: MaskedLMHead(config.block, config.tied),
            mlm_head_rules(
                'cls.predictions.transform.dense', 'cls.predictions.transform.LayerNorm',
                'cls.predictions.decoder', 'cls.predictions.bias')),
        'nsp': HeadSpec(
            lambda config, classes: PooledClassifier(config.block, 2),
            dense_rules('heads_nsp/dense', 'cls.seq_relationship'),
            required_parts=('pooler',)),
        **classification_heads('classifier_dropout'),
        'span': HeadSpec(
            lambda config, classes: AnswerSpanHead(config.block),
            dense_rules('heads_span/dense', 'qa_outputs')),
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


# Patterns of transformers' names of tensors -> names of google-research/bert.
TENSORFLOW_NAMES = (
    (r'LayerNorm\.weight', 'LayerNorm.gamma'), (r'LayerNorm\.bias', 'LayerNorm.beta'),
    (r'_embeddings\.weight', '_embeddings'), (r'layer\.{n}', 'layer_{n}'),
    (r'cls\.predictions\.bias', 'cls.predictions.output_bias'),
    (r'cls\.seq_relationship\.weight', 'cls.seq_relationship.output_weights'),
    (r'cls\.seq_relationship\.bias', 'cls.seq_relationship.output_bias'),
    (r'classifier\.weight', 'output_weights'), (r'classifier\.bias', 'output_bias'),
    (r'qa_outputs\.weight', 'cls.squad.output_weights'),
    (r'qa_outputs\.bias', 'cls.squad.output_bias'))
Names = Sequence[tuple[str, str]]


def rename_for_tensorflow(rule: Rule, names: Names = TENSORFLOW_NAMES) -> Rule:
  """Rename a parameter as Google's released code does; kernels are not transposed there.

  names: patterns of transformers' names -> names of that code.
  """
  name, layout = rule.theirs, rule.layout
  for old, new in names:
    name = re.sub(old, new, name)
  if name.endswith('.weight'):
    name = name.removesuffix('weight') + 'kernel'
    layout = Linear(layout.inputs, transposed=False)
  return dataclasses.replace(rule, theirs=name.replace('.', '/'), layout=layout)


def rename_all_for_tensorflow(
    rules: Iterable[Rule], names: Names = TENSORFLOW_NAMES) -> tuple[Rule, ...]:
  """Rename the parameters of rules; tensors that are stored twice are stored once there."""
  return tuple(rename_for_tensorflow(rule, names) for rule in rules if not rule.copy)


def tensorflow_head(head: HeadSpec, names: Names = TENSORFLOW_NAMES) -> HeadSpec:
  """Return a head with the names of Google's released code."""
  return dataclasses.replace(head, rules=rename_all_for_tensorflow(head.rules, names))


ORIGINAL_ACTIVATIONS = (('gelu', 'gelu_tanh'), ('relu', 'relu'), ('tanh', 'tanh'))
# The released TensorFlow checkpoints and their bert_config.json, whose gelu is the tanh
# approximation.
ORIGINAL = dataclasses.replace(
    FAMILY,
    attributes=replace_values(FAMILY.attributes, 'hidden_act', ORIGINAL_ACTIVATIONS),
    rules=rename_all_for_tensorflow(FAMILY.rules),
    heads={name: tensorflow_head(head) for name, head in FAMILY.heads.items()},
    part_tensors={'pooler': 'bert/pooler/dense/kernel'},
    prefix='bert/',
    aliases=(),
    skip_patterns=(
        r'/(adam|lamb)_[mv]$',
        r'^(global_step|beta[12]_power|bad_steps|good_steps|loss_scale)$'),
)


def ernie_base(dtype: Dtype = 'float32') -> EncoderConfig:
  """Make ERNIE 1.0: 12 layers, hidden size 768, relu, 18,000 tokens, texts of up to 513."""
  return validation.with_paths(base(dtype), {
      'vocab': 18_000, 'max_length': 513, 'block.mlp.activation': 'relu', 'block.norm.eps': 1e-5})


def normalize_ernie_config(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
  """Set task_type_vocab_size to 0 where the model does not use task ids."""
  size = hf_config.get('task_type_vocab_size', 3)
  return {**hf_config, 'task_type_vocab_size': size if hf_config.get('use_task_id') else 0}


def denormalize_ernie_config(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
  """Reverse `normalize_ernie_config`."""
  size = hf_config['task_type_vocab_size']
  return {**hf_config, 'use_task_id': size > 0, 'task_type_vocab_size': size or 3}


ERNIE = dataclasses.replace(
    FAMILY,
    name='ernie',
    attributes=(*FAMILY.attributes, Attribute('task_type_vocab_size', 'embeddings.tasks', 0)),
    fixed={'position_embedding_type': 'absolute'},
    ignored=frozenset({'use_task_id'}),
    rules=join_rules(
        rename_tensors(FAMILY.rules, 'bert.', 'ernie.'),
        Rule('backbone/embeddings/tasks', 'ernie.embeddings.task_type_embeddings.weight'),
    ),
    part_tensors={'pooler': 'ernie.pooler.dense.weight'},
    classes={name.replace('Bert', 'Ernie'): heads for name, heads in FAMILY.classes.items()},
    prefix='ernie.',
    aliases=((r'LayerNorm\.gamma$', 'LayerNorm.weight'), (r'LayerNorm\.beta$', 'LayerNorm.bias'),
             (r'^(embeddings|encoder|pooler)\.', r'ernie.\1.')),
    normalize_hf_config=normalize_ernie_config,
    denormalize_hf_config=denormalize_ernie_config,
)


def megatron_345m(dtype: Dtype = 'float32') -> EncoderConfig:
  """Make Megatron's BERT of 345M: 24 layers, hidden size 1024, 29,056 cased tokens."""
  return validation.with_paths(large(dtype), {'vocab': 29_056, 'block.norm_at': 'pre'})


# BERT's names of norms -> theirs.
MEGATRON_NORM_NAMES = {
    f'{LAYER}.attention.output.LayerNorm': f'{LAYER}.attention.ln',
    f'{LAYER}.output.LayerNorm': f'{LAYER}.ln'}


def rename_norm(rule: Rule) -> Rule:
  """Rename the parameter of a norm; other rules do not change."""
  module, _, leaf = rule.theirs.rpartition('.')
  return dataclasses.replace(rule, theirs=f'{MEGATRON_NORM_NAMES.get(module, module)}.{leaf}')


MEGATRON_DEFAULTS = {
    'vocab_size': 29_056, 'hidden_size': 1024, 'num_hidden_layers': 24, 'num_attention_heads': 16,
    'intermediate_size': 4096}
# transformers' MegatronBERT.
MEGATRON_BERT = dataclasses.replace(
    FAMILY,
    name='megatron-bert',
    config=megatron_345m(),
    attributes=replace_defaults(FAMILY.attributes, MEGATRON_DEFAULTS),
    fixed={'position_embedding_type': 'absolute'},
    ignored=frozenset(),
    rules=join_rules(
        [rename_norm(rule) for rule in FAMILY.rules
         if not rule.ours.startswith('backbone/embeddings/norm')],
        norm_rules('backbone/stack/norm', 'bert.encoder.ln'),
    ),
    classes={f'Megatron{name}': heads for name, heads in FAMILY.classes.items()},
    aliases=((r'^(embeddings|encoder|pooler)\.', r'bert.\1.'),),
)


def make_spanbert_config(
    size: Callable[..., EncoderConfig], dtype: Dtype = 'float32') -> EncoderConfig:
  """Make a SpanBERT of a size of BERT: cased, without pooler, initial weights as in fairseq."""
  return validation.with_paths(
      size(dtype), {'vocab': 28_996, 'pooler': False, 'block.init': NORMAL_INIT})


spanbert_base = functools.partial(make_spanbert_config, base)  # 108M parameters
spanbert_large = functools.partial(make_spanbert_config, large)  # 333M parameters


BOUNDARY = 'cls.pair_target_predictions'
# facebookresearch/SpanBERT, pretraining/fairseq/models/pair_bert.py.
SPANBERT = dataclasses.replace(
    FAMILY,
    fixed={**FAMILY.fixed, 'pair_target_layer': -1},
    ignored=FAMILY.ignored | {
        'max_pair_targets', 'pair_positional_embedding_size', 'no_nsp', 'pair_loss_weight'},
    heads={
        **FAMILY.heads,
        'sbo': HeadSpec(
            lambda config, classes, max_pair_targets, pair_positional_embedding_size: (
                SpanBoundaryHead(config.block, max_pair_targets, pair_positional_embedding_size)),
            join_rules(
                Rule('heads_sbo/offsets', f'{BOUNDARY}.position_embeddings.weight'),
                dense_rules('heads_sbo/dense_0', f'{BOUNDARY}.mlp_layer_norm.linear1'),
                norm_rules('heads_sbo/norm_0', f'{BOUNDARY}.mlp_layer_norm.layer_norm1'),
                dense_rules('heads_sbo/dense_1', f'{BOUNDARY}.mlp_layer_norm.linear2'),
                norm_rules('heads_sbo/norm_1', f'{BOUNDARY}.mlp_layer_norm.layer_norm2'),
                Rule('heads_sbo/bias', f'{BOUNDARY}.bias'),
                Rule('backbone/embeddings/tokens', f'{BOUNDARY}.decoder.weight', copy=True)),
            sizes={'max_pair_targets': 20, 'pair_positional_embedding_size': 200}),
    },
    aliases=(*FAMILY.aliases, (r'layer_norm([12])\.gamma$', r'layer_norm\1.weight'),
             (r'layer_norm([12])\.beta$', r'layer_norm\1.bias')),
    marker_attributes=frozenset({'pair_target_layer', 'max_pair_targets'}),
)
