"""XLM-R (Conneau et al. 2020, arXiv:1911.02116): RoBERTa for 100 languages, with 250,000 tokens.

Parameters as published: base 270M, large 550M (table 5); the released checkpoints with their heads
have 278,295,186 and 560,142,482. The ids are those of a SentencePiece model of 250,000, <pad> and
<mask>.
"""
from collections.abc import Callable
import dataclasses
import functools

from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.layers.common import Dtype
from plm_jax.models import roberta
from plm_jax.models.rules import replace_defaults


def make_config(
    size: Callable[..., EncoderConfig], dtype: Dtype = 'float32') -> EncoderConfig:
  """Make an XLM-R of a size of RoBERTa."""
  return dataclasses.replace(size(dtype), vocab=250_002)


base = functools.partial(make_config, roberta.base)  # 278M parameters
large = functools.partial(make_config, roberta.large)  # 560M parameters


# transformers' XLMRoberta: RoBERTa's tensors, BERT's default vocabulary.
FAMILY = dataclasses.replace(
    roberta.FAMILY,
    name='xlm-roberta',
    config=base(),
    attributes=replace_defaults(roberta.FAMILY.attributes, {'vocab_size': 30522}),
    classes={
        name.replace('Roberta', 'XLMRoberta'): heads
        for name, heads in roberta.FAMILY.classes.items()},
)
