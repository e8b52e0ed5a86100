"""MPNet (Song et al. 2020, arXiv:2004.09297): a BERT base with T5's relative position bias.

Parameters as published: 110M (section 3.1). The vocabulary is BERT's with RoBERTa's special tokens.
There are no segment types, and all layers share one table of biases. Models for sentence vectors,
such as all-mpnet-base-v2, are fine-tuned from it.
"""
import dataclasses

from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.layers.attention import AttentionConfig
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.embeddings import EmbeddingConfig
from plm_jax.layers.heads import FirstTokenClassifier
from plm_jax.layers.init import NORMAL_INIT
from plm_jax.layers.norm import NormConfig
from plm_jax.layers.stack import StackConfig
from plm_jax.layers.t5_relative_bias import Buckets
from plm_jax.models import bert, roberta
from plm_jax.models.rules import (
    Attribute,
    HeadSpec,
    Rule,
    block_rules,
    dense_rules,
    join_rules,
)


def base(dtype: Dtype = 'float32') -> EncoderConfig:
  """Make MPNet base: 12 layers, hidden size 768, 110M parameters, texts of up to 512 tokens."""
  block = BlockConfig(
      width=768, heads=12, mlp_dim=3072, norm=NormConfig(eps=1e-5), init=NORMAL_INIT, dtype=dtype,
      attention=AttentionConfig(position=Buckets()))
  return EncoderConfig(
      vocab=30527, block=block, stack=StackConfig(12), padding=1,
      embeddings=EmbeddingConfig(types=0), pooler=False)


LAYER_NAMES = {
    **bert.LAYER_NAMES, 'attention/query': 'attention.attn.q', 'attention/key': 'attention.attn.k',
    'attention/value': 'attention.attn.v', 'attention/out': 'attention.attn.o',
    'attention_norm': 'attention.LayerNorm'}
# RoBERTa's attributes that MPNet replaces or fixes.
REPLACED = 'vocab_size', 'max_position_embeddings', 'type_vocab_size', 'pad_token_id'

# transformers' MPNet. It differs from RoBERTa in names, the bias and the absence of types.
FAMILY = dataclasses.replace(
    roberta.FAMILY,
    name='mpnet',
    config=base(),
    attributes=(
        Attribute('vocab_size', 'vocab', 30527),
        roberta.OVERRIDES['max_position_embeddings'],
        *(attribute for attribute in roberta.FAMILY.attributes
          if attribute.theirs not in REPLACED),
    ),
    # Their code computes with these, whatever the configuration states.
    fixed={'relative_attention_num_buckets': 32, 'pad_token_id': 1},
    export_defaults={'pad_token_id': 1},
    rules=join_rules(
        bert.embedding_rules('mpnet.embeddings', types=False),
        block_rules(bert.BLOCK, 'mpnet.encoder.layer.{n}', LAYER_NAMES),
        Rule('backbone/stack/buckets', 'mpnet.encoder.relative_attention_bias.weight'),
        dense_rules('backbone/pooler', 'mpnet.pooler.dense')),
    part_tensors={'pooler': 'mpnet.pooler.dense.weight'},
    heads={
        **roberta.FAMILY.heads,
        'label': HeadSpec(
            lambda config, classes: FirstTokenClassifier(config.block, classes, before=True),
            roberta.FAMILY.heads['label'].rules),
        'tags': dataclasses.replace(bert.FAMILY.heads['tags'], dropout=''),
    },
    classes={
        name.replace('Roberta', 'MPNet'): heads for name, heads in roberta.FAMILY.classes.items()},
    prefix='mpnet.',
    aliases=((r'LayerNorm\.gamma$', 'LayerNorm.weight'), (r'LayerNorm\.beta$', 'LayerNorm.bias'),
             (r'^(embeddings|encoder|pooler)\.', r'mpnet.\1.')),
)
