"""NeoBERT (Le Breton et al. 2025, arXiv:2502.19587), as released in chandar-lab/NeoBERT (model.py).

Parameters as published: 222M without its output matrix, 245M with it, which the paper rounds to
250M. It is deep and narrow: 28 layers, hidden size 768, RMSNorm before sublayers, SwiGLU, rope, no
biases except those of the logits, no dropout.

Their `intermediate_size` is that of an MLP without a gate. The gated MLP has two thirds of it,
rounded up to a multiple of 8. Their rope rotates neighboring numbers of a head; here the two
numbers of a pair are half a head apart.
"""
from collections.abc import Mapping
import dataclasses
from typing import Any

from plm_jax.architectures.encoder import Encoder, EncoderConfig
from plm_jax.layers.attention import AttentionConfig
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.embeddings import EmbeddingConfig
from plm_jax.layers.heads import FirstTokenClassifier, HeadConfig, MaskedLMHead
from plm_jax.layers.init import InitConfig
from plm_jax.layers.mlp import MlpConfig
from plm_jax.layers.norm import NormConfig
from plm_jax.layers.rope import Rope
from plm_jax.layers.stack import StackConfig
from plm_jax.models import bert
from plm_jax.models.layouts import Linear
from plm_jax.models.rules import (
    Attribute,
    ConvertError,
    Family,
    HeadSpec,
    Rule,
    dense_rules,
    join_rules,
    packed_rules,
)

MULTIPLE = 8
"""what the width of the SwiGLU is a multiple of"""


def make_config(
    layers: int, width: int, heads: int, mlp_dim: int, dtype: Dtype = 'float32',
) -> EncoderConfig:
  """Make a NeoBERT for texts of up to 4,096 tokens.

  Args:
    layers: number of layers.
    width: hidden size.
    heads: number of attention heads.
    mlp_dim: width of the SwiGLU, `swiglu_width(intermediate_size)`.
    dtype: compute dtype.
  """
  block = BlockConfig(
      width=width, heads=heads, mlp_dim=mlp_dim, norm_at='pre', norm=NormConfig('rms', 1e-5),
      dropout=0.0, attention=AttentionConfig(bias=(), dropout=0.0, position=Rope()),
      mlp=MlpConfig(activation='silu', gated=True, bias=False), dtype=dtype,
      init=InitConfig(0.02 * 3 ** -0.5, tables='uniform', matrices='uniform'))
  return EncoderConfig(
      block=block, stack=StackConfig(layers), max_length=4096,
      embeddings=EmbeddingConfig(types=0, absolute='none'), tied=False,
      head=HeadConfig(transform=False), pooler=False)


def base(dtype: Dtype = 'float32') -> EncoderConfig:
  """Make NeoBERT: 28 layers, hidden size 768, 245M parameters with its output matrix."""
  return make_config(28, 768, 12, swiglu_width(3072), dtype)


def swiglu_width(intermediate: int) -> int:
  """Return the width of a SwiGLU with about the parameters of an ungated MLP of `intermediate`."""
  return -(-int(2 * intermediate / 3) // MULTIPLE) * MULTIPLE


def normalize_hf_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Replace the width of the ungated MLP, and drop what repeats other attributes.

  The range of a uniform distribution becomes its standard deviation. Raises ConvertError for what
  is not known.
  """
  dropped = ('auto_map', 'kwargs')
  hf_config = {name: value for name, value in hf_config.items() if name not in dropped}
  size = hf_config.get('intermediate_size', 3072)
  if type(size) is not int or not 1 <= size <= 1 << 24:
    raise ConvertError('cannot convert the configuration: intermediate_size is '
                       f'{str(size)[:200]}, expected a number')
  width, heads = hf_config.get('hidden_size', 768), hf_config.get('num_attention_heads', 12)
  if 'dim_head' in hf_config and hf_config.pop('dim_head') * heads != width:
    raise ConvertError('cannot convert the configuration: dim_head is not hidden_size / '
                       'num_attention_heads')
  edge = hf_config.get('embedding_init_range', 0.02)
  return {**hf_config, 'intermediate_size': swiglu_width(size),
          'embedding_init_range': edge * 3 ** -0.5}


def denormalize_hf_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Reverse `normalize_hf_config`. Raises ConvertError for a width that no ungated MLP gives."""
  width = hf_config['intermediate_size']
  size = 3 * width // 2
  while size and swiglu_width(size) > width:
    size -= 1
  if swiglu_width(size) != width:
    raise ConvertError(f'cannot write this model as a NeoBERT: block.mlp_dim is {width}, and '
                       f'theirs are multiples of {MULTIPLE}')
  edge = round(hf_config['embedding_init_range'] * 3 ** 0.5, 12)
  head_size = hf_config['hidden_size'] // hf_config['num_attention_heads']
  return {**hf_config, 'intermediate_size': size, 'dim_head': head_size,
          'embedding_init_range': edge, 'decoder_init_range': edge}


BLOCK, LAYER = 'backbone/stack/layers/block', 'model.transformer_encoder.{n}'

# Released code, which transformers runs with trust_remote_code.
FAMILY = Family(
    name='neobert',
    backbone=lambda config: Encoder(config),
    config=base(),
    attributes=(
        Attribute('vocab_size', 'vocab', 30522),
        Attribute('hidden_size', 'block.width', 768),
        Attribute('num_hidden_layers', 'stack.layers', 28),
        Attribute('num_attention_heads', 'block.heads', 12),
        Attribute('intermediate_size', 'block.mlp_dim', 2048),
        Attribute('max_length', 'max_length', 1024),
        Attribute('norm_eps', 'block.norm.eps', 1e-6),
        Attribute('embedding_init_range', 'block.init.std', 0.02 * 3 ** -0.5),
    ),
    fixed={'tie_word_embeddings': False},
    ignored=frozenset({'decoder_init_range', 'classifier_init_range'}),
    rules=join_rules(
        Rule('backbone/embeddings/tokens', 'model.encoder.weight'),
        Rule(f'{BLOCK}/attention_norm/scale', f'{LAYER}.attention_norm.weight'),
        packed_rules(
            f'{BLOCK}/attention', f'{LAYER}.qkv', ('query', 'key', 'value'), bias=False,
            by_head=True, rope_parts=(0, 1)),
        dense_rules(f'{BLOCK}/attention/out', f'{LAYER}.wo', inputs=2)[0],
        Rule(f'{BLOCK}/mlp_norm/scale', f'{LAYER}.ffn_norm.weight'),
        packed_rules(f'{BLOCK}/mlp', f'{LAYER}.ffn.w12', ('up', 'gate'), bias=False),
        dense_rules(f'{BLOCK}/mlp/down', f'{LAYER}.ffn.w3')[0],
        Rule('backbone/stack/norm/scale', 'model.layer_norm.weight'),
    ),
    part_tensors={},
    heads={
        'mlm': HeadSpec(
            lambda config, classes: MaskedLMHead(config.block, config.tied, config.head),
            (
                Rule('heads_mlm/kernel', 'decoder.weight', Linear()),
                Rule('heads_mlm/bias', 'decoder.bias'))),
        'label': HeadSpec(
            lambda config, classes: FirstTokenClassifier(config.block, classes, 'tanh', 0.1, True),
            join_rules(
                dense_rules('heads_label/hidden', 'dense'),
                dense_rules('heads_label/dense', 'classifier')),
            dropout='classifier_dropout'),
        # The released code has no class for these tasks.
        'tags': dataclasses.replace(bert.FAMILY.heads['tags'], dropout=''),
        'span': dataclasses.replace(bert.FAMILY.heads['span'], dropout=''),
    },
    classes={
        'NeoBERT': (), 'NeoBERTLMHead': ('mlm',), 'NeoBERTForSequenceClassification': ('label',)},
    extra_heads=frozenset({'tags', 'span'}),
    prefix='model.',
    token_roles=('pad',),
    aliases=((r'^(encoder|transformer_encoder|layer_norm)\.', r'model.\1.'),),
    skip_patterns=(r'freqs_cis$',),
    normalize_hf_config=normalize_hf_config,
    denormalize_hf_config=denormalize_hf_config,
    export_defaults={'auto_map': {
        'AutoConfig': 'model.NeoBERTConfig', 'AutoModel': 'model.NeoBERT',
        'AutoModelForMaskedLM': 'model.NeoBERTLMHead',
        'AutoModelForSequenceClassification': 'model.NeoBERTForSequenceClassification'}},
    usage='released code loads it: AutoModel.from_pretrained({folder!r}, trust_remote_code=True), '
          'next to the model.py and rotary.py of chandar-lab/NeoBERT',
)
