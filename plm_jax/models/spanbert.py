"""SpanBERT (Joshi et al. 2020, arXiv:1907.10529): BERT's cased models, pre-trained by `objectives.sbo`.

Parameters are those of BERT with 28,996 cased pieces, 108M and 333M, without a pooler: no question is asked of a row.
The released models are BERT's in every file format. FAMILY reads what the original pre-training code wrote, with the
head of the span boundary objective; exports are BERT's.
"""
import dataclasses

from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.conversion.rules import Head, Rule
from plm_jax.layers.common import Dtype
from plm_jax.layers.heads import BoundaryTokens
from plm_jax.layers.init import NORMAL
from plm_jax.models import bert


def sized(config: EncoderConfig) -> EncoderConfig:
  """Returns a BERT of this size without its second sentence, with initial weights as fairseq draws them."""
  return dataclasses.replace(
      config, vocab=28996, pooler=False, block=dataclasses.replace(config.block, init=NORMAL))


def base(dtype: Dtype = 'float32') -> EncoderConfig:
  """Makes SpanBERT base: 12 layers of width 768, 108M parameters."""
  return sized(bert.base(dtype))


def large(dtype: Dtype = 'float32') -> EncoderConfig:
  """Makes SpanBERT large: 24 layers of width 1024, 333M parameters."""
  return sized(bert.large(dtype))


BOUNDARY = 'cls.pair_target_predictions'
# facebookresearch/SpanBERT, pretraining/fairseq/models/pair_bert.py.
FAMILY = dataclasses.replace(
    bert.FAMILY,
    fixed={**bert.FAMILY.fixed, 'pair_target_layer': -1},
    ignored=bert.FAMILY.ignored | {'max_pair_targets', 'pair_positional_embedding_size', 'no_nsp', 'pair_loss_weight'},
    heads={
        **bert.FAMILY.heads,
        'sbo': Head(
            lambda config, classes, max_pair_targets, pair_positional_embedding_size: BoundaryTokens(
                config.block, max_pair_targets, pair_positional_embedding_size),
            (
                Rule('heads_sbo/offsets', f'{BOUNDARY}.position_embeddings.weight'),
                *bert.matrix('heads_sbo/dense_0', f'{BOUNDARY}.mlp_layer_norm.linear1'),
                *bert.norm('heads_sbo/norm_0', f'{BOUNDARY}.mlp_layer_norm.layer_norm1'),
                *bert.matrix('heads_sbo/dense_1', f'{BOUNDARY}.mlp_layer_norm.linear2'),
                *bert.norm('heads_sbo/norm_1', f'{BOUNDARY}.mlp_layer_norm.layer_norm2'),
                Rule('heads_sbo/bias', f'{BOUNDARY}.bias'),
                Rule('backbone/embeddings/tokens', f'{BOUNDARY}.decoder.weight', copy=True),
            ),
            sizes={'max_pair_targets': 20, 'pair_positional_embedding_size': 200}),
    },
    aliases=(*bert.FAMILY.aliases, (r'layer_norm([12])\.gamma$', r'layer_norm\1.weight'),
             (r'layer_norm([12])\.beta$', r'layer_norm\1.bias')),
    marks=frozenset({'pair_target_layer', 'max_pair_targets'}),
)
