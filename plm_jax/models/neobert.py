"""NeoBERT (Le Breton et al. 2025, arXiv:2502.19587), as released in chandar-lab/NeoBERT (model.py).

Parameters as published: 222M without, 245M with its output matrix, which the paper rounds to 250M. Deep and narrow: 28
layers of width 768, RMSNorms first, SwiGLU, rope, no biases but the logits'; nothing is dropped. `intermediate_size`
of a configuration of theirs is that of a network without a gate: the gated one is two thirds of it, rounded up to a
multiple of 8. Their rope turns neighbouring numbers of a head, which here lie half a head apart.
"""
from collections.abc import Mapping
import dataclasses
from typing import Any

from plm_jax.architectures.encoder import Encoder, EncoderConfig
from plm_jax.conversion.layouts import Linear, Packed
from plm_jax.conversion.rules import Attribute, ConvertError, Family, Head, Rule
from plm_jax.layers.attention import AttentionConfig
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.heads import FirstTokenClasses, HeadConfig, MaskedTokens
from plm_jax.layers.init import InitConfig
from plm_jax.layers.mlp import MlpConfig
from plm_jax.layers.norm import NormConfig
from plm_jax.layers.rope import Rope
from plm_jax.layers.stack import StackConfig
from plm_jax.models import bert
from plm_jax.models.bert import matrix

MULTIPLE = 8


def sized(layers: int, width: int, heads: int, mlp_dim: int, dtype: Dtype = 'float32') -> EncoderConfig:
  """Makes a size over rows of up to 4,096 tokens; mlp_dim: the gated one, `gated` of theirs."""
  block = BlockConfig(
      width=width, heads=heads, mlp_dim=mlp_dim, norm_at='pre', norm=NormConfig('rms', 1e-5), dropout=0.0,
      attention=AttentionConfig(bias=(), dropout=0.0, position=Rope()),
      mlp=MlpConfig(activation='silu', gated=True, bias=False), dtype=dtype,
      init=InitConfig(0.02 * 3 ** -0.5, tables='uniform', matrices='uniform'))
  return EncoderConfig(
      block=block, stack=StackConfig(layers), max_length=4096, absolute='none', types=0, tied=False,
      head=HeadConfig(transform=False), pooler=False)


def base(dtype: Dtype = 'float32') -> EncoderConfig:
  """Makes NeoBERT: 28 layers of width 768, 245M parameters with its output matrix."""
  return sized(28, 768, 12, gated(3072), dtype)


def gated(intermediate: int) -> int:
  """Returns the width of a SwiGLU with as many parameters as a network of width `intermediate` without a gate."""
  return -(-int(2 * intermediate / 3) // MULTIPLE) * MULTIPLE


def to_current(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Reads the width of the gated network, and leaves out what repeats other attributes. ConvertError for what is not
  known."""
  hf_config = {name: value for name, value in hf_config.items() if name not in ('auto_map', 'kwargs')}
  given = hf_config.get('intermediate_size', 3072)
  if type(given) is not int or not 1 <= given <= 1 << 24:
    raise ConvertError(f'cannot convert the configuration: intermediate_size is {str(given)[:200]}, expected a number')
  width, heads = hf_config.get('hidden_size', 768), hf_config.get('num_attention_heads', 12)
  if 'dim_head' in hf_config and hf_config.pop('dim_head') * heads != width:
    raise ConvertError('cannot convert the configuration: dim_head is another than hidden_size / num_attention_heads')
  edge = hf_config.get('embedding_init_range', 0.02)  # of a uniform distribution, whose deviation is less
  return {**hf_config, 'intermediate_size': gated(given), 'embedding_init_range': edge * 3 ** -0.5}


def from_current(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Undoes what `to_current` did. ConvertError for a width that no network without a gate has."""
  width = hf_config['intermediate_size']
  found = next((size for size in range(3 * width // 2, 0, -1) if gated(size) <= width), 0)
  if gated(found) != width:
    raise ConvertError(f"cannot write this model as a NeoBERT: block.mlp_dim is {width}, and theirs are multiples of "
                       f'{MULTIPLE}')
  size = hf_config['hidden_size'] // hf_config['num_attention_heads']
  edge = round(hf_config['embedding_init_range'] * 3 ** 0.5, 12)
  return {**hf_config, 'intermediate_size': found, 'dim_head': size, 'embedding_init_range': edge,
          'decoder_init_range': edge}


BLOCK, LAYER = 'backbone/stack/layers/block', 'model.transformer_encoder.{n}'


def packed(ours: str, theirs: str, parts: tuple[str, ...], **how: Any) -> tuple[Rule, ...]:
  """Makes the rules of matrices without biases that they keep in one."""
  return tuple(Rule(f'{ours}/{part}/kernel', f'{theirs}.weight', Packed(number, len(parts), **how))
               for number, part in enumerate(parts))


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
    rules=(
        Rule('backbone/embeddings/tokens', 'model.encoder.weight'),
        Rule(f'{BLOCK}/attention_norm/scale', f'{LAYER}.attention_norm.weight'),
        *packed(f'{BLOCK}/attention', f'{LAYER}.qkv', ('query', 'key', 'value'), by_head=True, turned=(0, 1)),
        matrix(f'{BLOCK}/attention/out', f'{LAYER}.wo', inputs=2)[0],
        Rule(f'{BLOCK}/mlp_norm/scale', f'{LAYER}.ffn_norm.weight'),
        *packed(f'{BLOCK}/mlp', f'{LAYER}.ffn.w12', ('up', 'gate')),
        matrix(f'{BLOCK}/mlp/down', f'{LAYER}.ffn.w3')[0],
        Rule('backbone/stack/norm/scale', 'model.layer_norm.weight'),
    ),
    parts={},
    heads={
        'mlm': Head(lambda config, classes: MaskedTokens(config.block, config.tied, config.head), (
            Rule('heads_mlm/kernel', 'decoder.weight', Linear()), Rule('heads_mlm/bias', 'decoder.bias'))),
        'label': Head(
            lambda config, classes: FirstTokenClasses(config.block, classes, 'tanh', 0.1, True),
            (*matrix('heads_label/hidden', 'dense'), *matrix('heads_label/dense', 'classifier')),
            dropout='classifier_dropout'),
        # Of tasks that released code has no class for.
        **{name: dataclasses.replace(bert.FAMILY.heads[name], dropout='') for name in ('tags', 'span')},
    },
    classes={'NeoBERT': (), 'NeoBERTLMHead': ('mlm',), 'NeoBERTForSequenceClassification': ('label',)},
    beside=frozenset({'tags', 'span'}),
    prefix='model.',
    ids=('pad',),
    aliases=((r'^(encoder|transformer_encoder|layer_norm)\.', r'model.\1.'),),
    skipped=(r'freqs_cis$',),
    to_current=to_current,
    from_current=from_current,
    says={'auto_map': {
        'AutoConfig': 'model.NeoBERTConfig', 'AutoModel': 'model.NeoBERT',
        'AutoModelForMaskedLM': 'model.NeoBERTLMHead',
        'AutoModelForSequenceClassification': 'model.NeoBERTForSequenceClassification'}},
    read='released code loads it: AutoModel.from_pretrained({folder!r}, trust_remote_code=True), beside the model.py '
         'and rotary.py of chandar-lab/NeoBERT',
)
