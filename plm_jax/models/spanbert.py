"""SpanBERT (Joshi et al. 2020, arXiv:1907.10529): BERT pre-trained with `objectives.sbo`.

SBO is the span boundary objective. Parameters are those of BERT with 28,996 cased tokens, 108M and
333M. There is no pooler, because no sentence-level objective is trained.

The released models are BERT's in every file format. FAMILY reads the files of the original
pre-training code, which have the head of the span boundary objective. Exports are BERT's.
"""
from collections.abc import Callable
import dataclasses
import functools

from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.heads import SpanBoundaryHead
from plm_jax.layers.init import NORMAL_INIT
from plm_jax.models import bert
from plm_jax.models.rules import HeadSpec, Rule, dense_rules, join_rules, norm_rules


def make_config(
    size: Callable[..., EncoderConfig], dtype: Dtype = 'float32') -> EncoderConfig:
  """Make a SpanBERT of a size of BERT: cased, without pooler, initial weights as in fairseq."""
  config = size(dtype)
  return dataclasses.replace(
      config, vocab=28996, pooler=False, block=dataclasses.replace(config.block, init=NORMAL_INIT))


base = functools.partial(make_config, bert.base)  # 108M parameters
large = functools.partial(make_config, bert.large)  # 333M parameters


BOUNDARY = 'cls.pair_target_predictions'
# facebookresearch/SpanBERT, pretraining/fairseq/models/pair_bert.py.
FAMILY = dataclasses.replace(
    bert.FAMILY,
    fixed={**bert.FAMILY.fixed, 'pair_target_layer': -1},
    ignored=bert.FAMILY.ignored | {
        'max_pair_targets', 'pair_positional_embedding_size', 'no_nsp', 'pair_loss_weight'},
    heads={
        **bert.FAMILY.heads,
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
    aliases=(*bert.FAMILY.aliases, (r'layer_norm([12])\.gamma$', r'layer_norm\1.weight'),
             (r'layer_norm([12])\.beta$', r'layer_norm\1.bias')),
    marker_attributes=frozenset({'pair_target_layer', 'max_pair_targets'}),
)
