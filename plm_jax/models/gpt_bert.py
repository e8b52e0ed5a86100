"""GPT-BERT (Charpentier and Samuel 2024, arXiv:2410.24159): masked and causal LM in one model.

As released in ltgoslo/gpt-bert (model_extra.py). Parameters as published: base 119M, small 30M. The
same parameters fill masks and generate text: a token is predicted from the position before it
(masked next token prediction).

The model is LTG-BERT with these differences (section 2). Attention heads are gated, and their
outputs are normalized before the output projection instead of after it. After each sublayer the
residual stream is a weighted sum of all its earlier states. Not from the paper: the smaller initial
weights of each layer's MLP, by the square root of twice the layer's number, and dropout in the
masked-LM head.
"""
from collections.abc import Mapping
import dataclasses
import functools
from typing import Any

from plm_jax import validation
from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.layers.common import Dtype
from plm_jax.models import ltg_bert
from plm_jax.models.rules import (
    Attribute,
    Rule,
    dense_rules,
    join_rules,
    norm_rules,
    packed_rules,
    replace_defaults,
)

BIASED_PROJECTIONS = 'query', 'key', 'value', 'gate', 'out'
MAX_SUMS = 256
"""number of weighted sums that the rules know: those of 128 layers"""


def make_config(
    width: int, heads: int, mlp_dim: int, vocab: int, dtype: Dtype = 'float32',
) -> EncoderConfig:
  """Make a GPT-BERT with 12 layers for texts of up to 512 tokens."""
  return validation.with_paths(ltg_bert.make_config(width, heads, mlp_dim, dtype), {
      'vocab': vocab, 'summed': True, 'head.shifted': True, 'block.norm.eps': 1e-5,
      'block.attention.out_norm': False, 'block.attention.gated': True,
      'block.attention.mixture_norm': True, 'block.attention.bias': BIASED_PROJECTIONS})


base = functools.partial(make_config, 768, 12, 2560, 16_384)  # 119M parameters
small = functools.partial(make_config, 384, 6, 1280, 8192)  # 30M parameters


BLOCK, STACK = ltg_bert.BLOCK, ltg_bert.STACK
LAYER, MLP = 'transformer.attention_layers.{n}', 'transformer.mlp_layers.{n}.mlp'


def normalize_hf_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Add what LTG-BERT's does, and drop is_decoder: the model can always generate."""
  hf_config = {name: value for name, value in hf_config.items() if name != 'is_decoder'}
  return ltg_bert.normalize_hf_config(hf_config)


# Released code. Its wrapper for transformers writes the names of classes with a small b, where
# LTG-BERT's has a capital B.
FAMILY = dataclasses.replace(
    ltg_bert.FAMILY,
    name='gptbert',
    config=base(),
    attributes=(
        *replace_defaults(
            ltg_bert.FAMILY.attributes, {'intermediate_size': 2560, 'layer_norm_eps': 1e-5}),
        # Not in released configurations: masked diffusion predicts a token at its own position.
        Attribute('shifted_targets', 'head.shifted', True)),
    rules=join_rules(
        Rule('backbone/embeddings/tokens', 'embedding.word_embedding.weight'),
        Rule(f'{STACK}/relative', 'embedding.relative_embedding'),
        norm_rules(f'{STACK}/relative_norm', 'embedding.relative_layer_norm'),
        packed_rules(f'{BLOCK}/attention', f'{LAYER}.in_proj_qk', ('query', 'key')),
        packed_rules(f'{BLOCK}/attention', f'{LAYER}.in_proj_vg', ('value', 'gate')),
        dense_rules(f'{BLOCK}/attention/out', f'{LAYER}.out_proj', inputs=2),
        packed_rules(f'{BLOCK}/mlp', f'{MLP}.1', ('gate', 'up'), bias=False),
        dense_rules(f'{BLOCK}/mlp/down', f'{MLP}.4')[0],
        [Rule(f'{STACK}/layers/sum_{n}', f'transformer.dwa_modules.alphas.{n}')
         for n in range(MAX_SUMS)],
    ),
    classes={
        'LtgbertModel': (), 'LtgbertForMaskedLM': ('mlm',),
        'LtgbertForSequenceClassification': ('label',), 'LtgbertForTokenClassification': ('tags',),
        'LtgbertForMultipleChoice': ('choice',), 'LtgbertForQuestionAnswering': ('span',),
        'LtgbertForCausalLM': ('mlm',),
    },
    marker_attributes=frozenset(),
    normalize_hf_config=normalize_hf_config,
    usage='Bert of pretraining/model_extra.py (ltgoslo/gpt-bert) takes the tensors in {folder!r}',
)
