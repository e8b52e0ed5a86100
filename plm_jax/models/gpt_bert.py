"""GPT-BERT (Charpentier and Samuel 2024, arXiv:2410.24159), as released in ltgoslo/gpt-bert (model_extra.py).

Parameters as published: base 119M, small 30M, which fill blanks and write texts with the same ones: a token is
predicted where the one before it stands. LTG-BERT's wiring, but for this: heads are gated, and what they give is
normalised before the projection back instead of behind it; behind each sublayer the stream is a weighted sum of all
that it was before (section 2). Not theirs: in each layer's network, matrices that begin smaller by the root of twice
its number, and dropout in the head of masked tokens.
"""
from collections.abc import Mapping
import dataclasses
from typing import Any

from plm_jax import checked
from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.conversion.layouts import Packed, Same
from plm_jax.conversion.rules import Rule
from plm_jax.layers.common import Dtype
from plm_jax.models import ltg_bert
from plm_jax.models.bert import matrix, norm

BIASED = 'query', 'key', 'value', 'gate', 'out'
SUMS = 256
"""weights of sums that the rules know: those of 128 layers"""


def sized(width: int, heads: int, mlp_dim: int, vocab: int, dtype: Dtype = 'float32') -> EncoderConfig:
  """Makes 12 layers over rows of up to 512 tokens."""
  return checked.replaced(ltg_bert.sized(width, heads, mlp_dim, dtype), {
      'vocab': vocab, 'summed': True, 'shifted': True, 'block.norm.eps': 1e-5, 'block.attention.out_norm': False,
      'block.attention.gated': True, 'block.attention.mixture_norm': True, 'block.attention.bias': BIASED})


def base(dtype: Dtype = 'float32') -> EncoderConfig:
  """Makes GPT-BERT base: 12 layers of width 768, 119M parameters."""
  return sized(768, 12, 2560, 16_384, dtype)


def small(dtype: Dtype = 'float32') -> EncoderConfig:
  """Makes GPT-BERT small: 12 layers of width 384, 30M parameters."""
  return sized(384, 6, 1280, 8192, dtype)


BLOCK, STACK, LAYER = ltg_bert.BLOCK, ltg_bert.RELATIVE, 'transformer.attention_layers.{n}'


def packed(part: str, theirs: str, number: int) -> tuple[Rule, Rule]:
  """Makes the rules of two projections that they keep in one: queries and keys, values and gates."""
  return (Rule(f'{BLOCK}/attention/{part}/kernel', f'{LAYER}.{theirs}.weight', Packed(number, 2)),
          Rule(f'{BLOCK}/attention/{part}/bias', f'{LAYER}.{theirs}.bias', Packed(number, 2, layout=Same(flat=True))))


def to_current(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Adds what LTG-BERT's do, and leaves out whether the model was last asked to write: it can always."""
  return ltg_bert.to_current({name: value for name, value in hf_config.items() if name != 'is_decoder'})


# Released code; classes as its wrapper for transformers writes them, which LTG-BERT's writes with a capital B.
FAMILY = dataclasses.replace(
    ltg_bert.FAMILY,
    name='gptbert',
    config=base(),
    attributes=tuple(
        dataclasses.replace(attribute, default={'intermediate_size': 2560, 'layer_norm_eps': 1e-5}.get(
            attribute.theirs, attribute.default)) for attribute in ltg_bert.FAMILY.attributes),
    rules=(
        Rule('backbone/embeddings/tokens', 'embedding.word_embedding.weight'),
        Rule(f'{STACK}/relative', 'embedding.relative_embedding'),
        *norm(f'{STACK}/relative_norm', 'embedding.relative_layer_norm'),
        *packed('query', 'in_proj_qk', 0), *packed('key', 'in_proj_qk', 1),
        *packed('value', 'in_proj_vg', 0), *packed('gate', 'in_proj_vg', 1),
        *matrix(f'{BLOCK}/attention/out', f'{LAYER}.out_proj', inputs=2),
        *(Rule(f'{BLOCK}/mlp/{part}/kernel', 'transformer.mlp_layers.{n}.mlp.1.weight', Packed(number, 2))
          for number, part in enumerate(('gate', 'up'))),
        matrix(f'{BLOCK}/mlp/down', 'transformer.mlp_layers.{n}.mlp.4')[0],
        *(Rule(f'{STACK}/layers/sum_{number}', f'transformer.dwa_modules.alphas.{number}') for number in range(SUMS)),
    ),
    classes={name.replace('LtgBert', 'Ltgbert'): heads for name, heads in ltg_bert.FAMILY.classes.items()} | {
        'LtgbertForCausalLM': ('mlm',)},
    marks=frozenset(),
    to_current=to_current,
    read='Bert of pretraining/model_extra.py (ltgoslo/gpt-bert) takes the tensors in {folder!r}',
)
