"""Megatron's BERT (Shoeybi et al. 2020, arXiv:1909.08053, section 5.8): norms first, and one more after the last layer.

Embeddings are not normalised, and otherwise it is a BERT: so arranged, larger ones train without diverging. Parameters
of the released one, published as 345M: 334,723,458 with 29,056 cased pieces, 336,297,858 with 30,592 uncased ones, the
vocabularies filled up to a multiple of 128.
"""
import dataclasses

from plm_jax import checked
from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.conversion.rules import Rule
from plm_jax.layers.common import Dtype
from plm_jax.models import bert
from plm_jax.models.bert import LAYER, norm


def of_345m(dtype: Dtype = 'float32') -> EncoderConfig:
  """Makes Megatron's BERT of 345M: 24 layers of width 1024, 29,056 cased pieces."""
  large = bert.large(dtype)
  return dataclasses.replace(large, vocab=29_056, block=checked.replaced(large.block, {'norm_at': 'pre'}))


# Their names -> BERT's.
NORMS = {f'{LAYER}.attention.output.LayerNorm': f'{LAYER}.attention.ln', f'{LAYER}.output.LayerNorm': f'{LAYER}.ln'}


def renamed(rule: Rule) -> Rule:
  """Renames the parameter of a norm."""
  before, _, leaf = rule.theirs.rpartition('.')
  return dataclasses.replace(rule, theirs=f'{NORMS.get(before, before)}.{leaf}')


DEFAULTS = {'vocab_size': 29_056, 'hidden_size': 1024, 'num_hidden_layers': 24, 'num_attention_heads': 16,
            'intermediate_size': 4096}
# transformers' MegatronBERT.
FAMILY = dataclasses.replace(
    bert.FAMILY,
    name='megatron-bert',
    config=of_345m(),
    attributes=tuple(dataclasses.replace(attribute, default=DEFAULTS.get(attribute.theirs, attribute.default))
                     for attribute in bert.FAMILY.attributes),
    fixed={'position_embedding_type': 'absolute'},
    ignored=frozenset(),
    rules=(
        *(renamed(rule) for rule in bert.FAMILY.rules if not rule.ours.startswith('backbone/embeddings/norm')),
        *norm('backbone/stack/norm', 'bert.encoder.ln'),
    ),
    classes={f'Megatron{name}': heads for name, heads in bert.FAMILY.classes.items()},
    aliases=((r'^(embeddings|encoder|pooler)\.', r'bert.\1.'),),
)
