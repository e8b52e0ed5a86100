"""RoBERTa (Liu et al. 2019, arXiv:1907.11692): a BERT with a better pre-training recipe.

Parameters as published: base 125M, large 355M (table 10 names their sizes). The vocabulary is
byte-level BPE, and there are no segment types. The first token of a text has the position after
that of padding, as in the released code.

XLM-R (Conneau et al. 2020, arXiv:1911.02116): RoBERTa for 100 languages, with 250,000 tokens.
Parameters as published: base 270M, large 550M (table 5); the released checkpoints with their heads
have 278,295,186 and 560,142,482. The ids are those of a SentencePiece model of 250,000, <pad> and
<mask>.

XLM-R XL and XXL (Goyal et al. 2021, arXiv:2105.00572): XLM-R with pre-layer normalization, without
a norm of the embeddings. Parameters as published: 3.5B and 10.7B (section 2).
"""
from collections.abc import Callable
import dataclasses
import functools

from plm_jax import validation
from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.embeddings import EmbeddingConfig
from plm_jax.layers.heads import FirstTokenClassifier, MaskedLMHead
from plm_jax.layers.init import NORMAL_INIT
from plm_jax.layers.norm import NormConfig
from plm_jax.layers.stack import StackConfig
from plm_jax.models import bert
from plm_jax.models.bert import mlm_head_rules
from plm_jax.models.rules import (
  Attribute,
  HeadSpec,
  dense_rules,
  join_rules,
  norm_rules,
  rename_tensors,
  replace_defaults,
)


def make_config(layers: int, width: int, dtype: Dtype = 'float32') -> EncoderConfig:
  """Make a RoBERTa with heads of 64, an MLP of 4 x hidden size and texts of up to 512 tokens.

  The table of positions has 514 rows.
  """
  block = BlockConfig(
      width=width, heads=width // 64, mlp_dim=4 * width, norm=NormConfig(eps=1e-5),
      init=NORMAL_INIT, dtype=dtype)
  return EncoderConfig(
      vocab=50265, block=block, stack=StackConfig(layers=layers), padding=1,
      embeddings=EmbeddingConfig(types=1), pooler=False)


base = functools.partial(make_config, 12, 768)  # 125M parameters
large = functools.partial(make_config, 24, 1024)  # 355M parameters


def gelu_block(config: EncoderConfig) -> BlockConfig:
  """Return the block with gelu: transformers' masked-LM head always has gelu."""
  return validation.with_paths(config.block, {'mlp.activation': 'gelu'})


# Attributes in which it differs from BERT.
OVERRIDES = {
    'vocab_size': Attribute('vocab_size', 'vocab', 50265),
    'max_position_embeddings': Attribute(
        'max_position_embeddings', 'max_length', 512, offset_field='first_position'),
    'type_vocab_size': Attribute('type_vocab_size', 'embeddings.types', 2),
}
# transformers' RoBERTa. It differs from BERT in defaults, two attributes, names and two heads.
FAMILY = dataclasses.replace(
    bert.FAMILY,
    name='roberta',
    config=base(),
    attributes=(
        *(OVERRIDES.get(attribute.theirs, attribute) for attribute in bert.FAMILY.attributes),
        Attribute('pad_token_id', 'padding', 1),
    ),
    fixed={'position_embedding_type': 'absolute'},
    ignored=frozenset(),
    rules=rename_tensors(bert.FAMILY.rules, 'bert.', 'roberta.'),
    part_tensors={'pooler': 'roberta.pooler.dense.weight'},
    heads={
        'mlm': HeadSpec(
            lambda config, classes: MaskedLMHead(gelu_block(config), config.tied),
            mlm_head_rules(
                'lm_head.dense', 'lm_head.layer_norm',
                'lm_head.decoder', 'lm_head.bias')),
        'label': HeadSpec(
            lambda config, classes: FirstTokenClassifier(config.block, classes, before=True),
            join_rules(
                dense_rules('heads_label/hidden', 'classifier.dense'),
                dense_rules('heads_label/dense', 'classifier.out_proj')),
            dropout='classifier_dropout'),
        'tags': bert.FAMILY.heads['tags'],
        'span': bert.FAMILY.heads['span'],
        'choice': dataclasses.replace(bert.FAMILY.heads['choice'], dropout=''),
    },
    classes={
        'RobertaModel': (), 'RobertaForMaskedLM': ('mlm',),
        'RobertaForSequenceClassification': ('label',),
        'RobertaForTokenClassification': ('tags',), 'RobertaForMultipleChoice': ('choice',),
        'RobertaForQuestionAnswering': ('span',),
    },
    prefix='roberta.',
    aliases=((r'LayerNorm\.gamma$', 'LayerNorm.weight'), (r'LayerNorm\.beta$', 'LayerNorm.bias'),
             (r'^(embeddings|encoder|pooler)\.', r'roberta.\1.')),
)


def make_xlm_r_config(
    size: Callable[..., EncoderConfig], dtype: Dtype = 'float32') -> EncoderConfig:
  """Make an XLM-R of a size of RoBERTa."""
  return dataclasses.replace(size(dtype), vocab=250_002)


xlm_r_base = functools.partial(make_xlm_r_config, base)  # 278M parameters
xlm_r_large = functools.partial(make_xlm_r_config, large)  # 560M parameters


# transformers' XLMRoberta: RoBERTa's tensors, BERT's default vocabulary.
XLM_ROBERTA = dataclasses.replace(
    FAMILY,
    name='xlm-roberta',
    config=xlm_r_base(),
    attributes=replace_defaults(FAMILY.attributes, {'vocab_size': 30522}),
    classes={
        name.replace('Roberta', 'XLMRoberta'): heads
        for name, heads in FAMILY.classes.items()},
)


def make_xlm_r_xl(layers: int, width: int, dtype: Dtype = 'float32') -> EncoderConfig:
  """Make an XLM-R of billions of parameters, with 32 heads, pre-norm and 250,880 tokens."""
  return validation.with_paths(make_config(layers, width, dtype), {
      'vocab': 250_880, 'block.heads': 32, 'block.norm_at': 'pre'})


xlm_r_xl = functools.partial(make_xlm_r_xl, 36, 2560)  # 3.48B parameters
xlm_r_xxl = functools.partial(make_xlm_r_xl, 48, 4096)  # 10.7B parameters


# transformers' XLMRobertaXL.
XLM_ROBERTA_XL = dataclasses.replace(
    FAMILY,
    name='xlm-roberta-xl',
    config=xlm_r_xl(),
    attributes=replace_defaults(FAMILY.attributes, {
        'vocab_size': 250_880, 'hidden_size': 2560, 'num_hidden_layers': 36,
        'num_attention_heads': 32, 'intermediate_size': 10_240, 'max_position_embeddings': 514,
        'type_vocab_size': 1, 'layer_norm_eps': 1e-5}),
    rules=join_rules(
        rename_tensors(
            rename_tensors(
                [rule for rule in FAMILY.rules
                 if not rule.ours.startswith('backbone/embeddings/norm')],
                '.attention.output.LayerNorm', '.attention.self_attn_layer_norm'),
            '.output.LayerNorm', '.LayerNorm'),
        norm_rules('backbone/stack/norm', 'roberta.encoder.LayerNorm')),
    classes={
        name.replace('Roberta', 'XLMRobertaXL'): heads
        for name, heads in FAMILY.classes.items()},
)
