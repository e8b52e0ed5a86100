"""Megatron-LM's BERT (Shoeybi et al. 2020, arXiv:1909.08053, section 5.8): pre-layer normalization.

One more norm follows the last layer, and embeddings are not normalized; otherwise it is a BERT. In
this arrangement larger models train without diverging. Parameters of the released model, published
as 345M: 334,723,458 with 29,056 cased tokens, 336,297,858 with 30,592 uncased tokens. Both
vocabularies are padded to a multiple of 128.
"""
import dataclasses

from plm_jax import validation
from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.layers.common import Dtype
from plm_jax.models import bert
from plm_jax.models.bert import LAYER
from plm_jax.models.rules import Rule, join_rules, norm_rules, replace_defaults


def megatron_345m(dtype: Dtype = 'float32') -> EncoderConfig:
  """Make Megatron's BERT of 345M: 24 layers, hidden size 1024, 29,056 cased tokens."""
  large = bert.large(dtype)
  block = validation.with_paths(large.block, {'norm_at': 'pre'})
  return dataclasses.replace(large, vocab=29_056, block=block)


# BERT's names of norms -> theirs.
NORM_NAMES = {
    f'{LAYER}.attention.output.LayerNorm': f'{LAYER}.attention.ln',
    f'{LAYER}.output.LayerNorm': f'{LAYER}.ln'}


def rename_norm(rule: Rule) -> Rule:
  """Rename the parameter of a norm; other rules do not change."""
  module, _, leaf = rule.theirs.rpartition('.')
  return dataclasses.replace(rule, theirs=f'{NORM_NAMES.get(module, module)}.{leaf}')


DEFAULTS = {'vocab_size': 29_056, 'hidden_size': 1024, 'num_hidden_layers': 24,
            'num_attention_heads': 16, 'intermediate_size': 4096}
# transformers' MegatronBERT.
FAMILY = dataclasses.replace(
    bert.FAMILY,
    name='megatron-bert',
    config=megatron_345m(),
    attributes=replace_defaults(bert.FAMILY.attributes, DEFAULTS),
    fixed={'position_embedding_type': 'absolute'},
    ignored=frozenset(),
    rules=join_rules(
        [rename_norm(rule) for rule in bert.FAMILY.rules
         if not rule.ours.startswith('backbone/embeddings/norm')],
        norm_rules('backbone/stack/norm', 'bert.encoder.ln'),
    ),
    classes={f'Megatron{name}': heads for name, heads in bert.FAMILY.classes.items()},
    aliases=((r'^(embeddings|encoder|pooler)\.', r'bert.\1.'),),
)
