"""RoBERTa (Liu et al. 2019, arXiv:1907.11692): BERT's wiring, pre-trained better.

Parameters as published: base 125M, large 355M (table 10 names their sizes). Bytes are the vocabulary's alphabet, there
are no segment types, and the first token of a row has the position behind that of padding, as the released code has it.
"""
import dataclasses

from plm_jax import checked
from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.conversion.rules import Attribute, Head
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.heads import FirstTokenClasses, MaskedTokens
from plm_jax.layers.init import NORMAL
from plm_jax.layers.norm import NormConfig
from plm_jax.layers.stack import StackConfig
from plm_jax.models import bert


def sized(layers: int, width: int, dtype: Dtype = 'float32') -> EncoderConfig:
  """Heads of 64 and an MLP of four times the width; rows of 512 tokens, so 514 rows in the table of positions."""
  block = BlockConfig(
      width=width, heads=width // 64, mlp_dim=4 * width, norm=NormConfig(eps=1e-5), init=NORMAL, dtype=dtype)
  return EncoderConfig(vocab=50265, block=block, stack=StackConfig(layers=layers), padding=1, types=1, pooler=False)


def base(dtype: Dtype = 'float32') -> EncoderConfig:
  """Makes RoBERTa base: 12 layers of width 768, 125M parameters."""
  return sized(12, 768, dtype)


def large(dtype: Dtype = 'float32') -> EncoderConfig:
  """Makes RoBERTa large: 24 layers of width 1024, 355M parameters."""
  return sized(24, 1024, dtype)


def gelu(config: EncoderConfig) -> BlockConfig:
  """Returns a block with gelu, which transformers' head has whatever the layers have."""
  return checked.replaced(config.block, {'mlp.activation': 'gelu'})


# What differs from transformers' BERT: defaults, two attributes, names, and two heads.
DIFFERENT = {
    attribute.theirs: attribute for attribute in (
        Attribute('vocab_size', 'vocab', 50265),
        Attribute('max_position_embeddings', 'max_length', 512, besides='first_position'),
        Attribute('type_vocab_size', 'types', 2),
    )}
FAMILY = dataclasses.replace(
    bert.FAMILY,
    name='roberta',
    config=base(),
    attributes=(
        *(DIFFERENT.get(attribute.theirs, attribute) for attribute in bert.FAMILY.attributes),
        Attribute('pad_token_id', 'padding', 1),
    ),
    fixed={'position_embedding_type': 'absolute'},
    ignored=frozenset(),
    rules=tuple(dataclasses.replace(rule, theirs=rule.theirs.replace('bert.', 'roberta.', 1))
                for rule in bert.FAMILY.rules),
    parts={'pooler': 'roberta.pooler.dense.weight'},
    heads={
        'mlm': Head(lambda config, classes: MaskedTokens(gelu(config), config.tied), (
            *bert.matrix('heads_mlm/dense', 'lm_head.dense'),
            *bert.norm('heads_mlm/norm', 'lm_head.layer_norm'),
            *bert.output('lm_head.decoder', 'lm_head.bias'),
        )),
        'label': Head(
            lambda config, classes: FirstTokenClasses(config.block, classes, before=True),
            (*bert.matrix('heads_label/hidden', 'classifier.dense'),
             *bert.matrix('heads_label/dense', 'classifier.out_proj')), dropout='classifier_dropout'),
        **{name: bert.FAMILY.heads[name] for name in ('tags', 'span')},
        'choice': dataclasses.replace(bert.FAMILY.heads['choice'], dropout=''),
    },
    classes={
        'RobertaModel': (), 'RobertaForMaskedLM': ('mlm',), 'RobertaForSequenceClassification': ('label',),
        'RobertaForTokenClassification': ('tags',), 'RobertaForMultipleChoice': ('choice',),
        'RobertaForQuestionAnswering': ('span',),
    },
    prefix='roberta.',
    aliases=((r'LayerNorm\.gamma$', 'LayerNorm.weight'), (r'LayerNorm\.beta$', 'LayerNorm.bias'),
             (r'^(embeddings|encoder|pooler)\.', r'roberta.\1.')),
)
