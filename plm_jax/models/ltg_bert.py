"""LTG-BERT (Samuel et al. 2023, arXiv:2303.09859), as released in ltgoslo/ltg-bert (babylm/train/model.py).

Parameters as published: base 98M; small 28M, xs 9M are its sizes for BabyLM. Norms come first and have no parameters;
what attention gives, and the hidden units of GeGLU, are normalised once more (NormFormer); attention is disentangled
from distances in 63 buckets, which the layer's own queries and keys project. The layers end without a norm there, and
heads begin with one: here that one ends the layers. Not theirs: in each layer's network, matrices that begin smaller by
the root of twice its number, and dropout in the head of masked tokens.
"""
from collections.abc import Mapping
import math
from typing import Any

from plm_jax.architectures.encoder import Encoder, EncoderConfig
from plm_jax.conversion.layouts import Packed, Same
from plm_jax.conversion.rules import Attribute, Family, Head, Rule
from plm_jax.layers.attention import AttentionConfig
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.disentangled import Disentangled
from plm_jax.layers.heads import HeadConfig, MaskedTokens, NormedClasses
from plm_jax.layers.init import InitConfig
from plm_jax.layers.mlp import MlpConfig
from plm_jax.layers.norm import NormConfig
from plm_jax.layers.stack import StackConfig
from plm_jax.models.bert import matrix, norm, output


def sized(width: int, heads: int, mlp_dim: int, dtype: Dtype = 'float32') -> EncoderConfig:
  """Makes 12 layers over rows of up to 512 tokens."""
  position = Disentangled(span=512, buckets=32, shared=True, norm=True, exact=True)
  block = BlockConfig(
      width=width, heads=heads, mlp_dim=mlp_dim, norm_at='pre', norm=NormConfig('plain', 1e-7),
      attention=AttentionConfig(out_norm=True, position=position),
      mlp=MlpConfig(activation='gelu_tanh', gated=True, bias=False, norm=True), init=InitConfig(spread(width)),
      dtype=dtype)
  return EncoderConfig(
      vocab=16_384, block=block, stack=StackConfig(12), max_length=512, absolute='none', types=0, norm_embedded=True,
      head=HeadConfig(activation='gelu'), pooler=False)


def spread(width: int) -> float:
  """Returns the deviation that weights begin with."""
  return math.sqrt(2 / (5 * width))


def base(dtype: Dtype = 'float32') -> EncoderConfig:
  """Makes LTG-BERT base: 12 layers of width 768, 98M parameters."""
  return sized(768, 12, 2048, dtype)


def small(dtype: Dtype = 'float32') -> EncoderConfig:
  """Makes LTG-BERT small: 12 layers of width 384, 28M parameters."""
  return sized(384, 6, 1024, dtype)


def xs(dtype: Dtype = 'float32') -> EncoderConfig:
  """Makes LTG-BERT xs: 12 layers of width 192, 9M parameters."""
  return sized(192, 3, 512, dtype)


def to_current(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Adds what weights begin with, of which released configurations say nothing."""
  width = hf_config.get('hidden_size', 768)
  kept = {name: value for name, value in hf_config.items() if name != 'auto_map'}
  return {**kept, 'init_std': spread(width) if type(width) is int and width > 0 else 0.02}


def from_current(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Undoes what `to_current` did."""
  return {name: value for name, value in hf_config.items() if name != 'init_std'}


BLOCK, LAYER = 'backbone/stack/layers/block', 'transformer.layers.{n}'
RELATIVE = 'backbone/stack'


def packed(part: str, number: int) -> tuple[Rule, Rule]:
  """Makes the rules of queries or keys, which they keep in one."""
  theirs = f'{LAYER}.attention.in_proj_qk'
  return (Rule(f'{BLOCK}/attention/{part}/kernel', f'{theirs}.weight', Packed(number, 2)),
          Rule(f'{BLOCK}/attention/{part}/bias', f'{theirs}.bias', Packed(number, 2, layout=Same(flat=True))))


def head(name: str, every: bool = False, classes: int | None = 0) -> Head:
  """Makes a task's head: a hidden layer and a norm, as masked tokens have. classes: as many; 0: as there are labels."""
  at = f'heads_{name}'
  return Head(
      lambda config, labels: NormedClasses(config.block, config.head, labels if classes == 0 else classes, every),
      (*matrix(f'{at}/hidden', 'head.nonlinearity.1'), *matrix(f'{at}/dense', 'head.nonlinearity.5')),
      dropout='classifier_dropout')


# Released code; names of classes and of heads of tasks as in its wrapper for transformers.
FAMILY = Family(
    name='ltgbert',
    backbone=lambda config: Encoder(config),
    config=base(),
    attributes=(
        Attribute('vocab_size', 'vocab', 16_384),
        Attribute('hidden_size', 'block.width', 768),
        Attribute('num_hidden_layers', 'stack.layers', 12),
        Attribute('num_attention_heads', 'block.heads', 12),
        Attribute('intermediate_size', 'block.mlp_dim', 2048),
        Attribute('hidden_dropout_prob', 'block.dropout', 0.1),
        Attribute('attention_probs_dropout_prob', 'block.attention.dropout', 0.1),
        Attribute('max_position_embeddings', 'max_length', 512),
        Attribute('max_position_embeddings', 'block.attention.position.span', 512),
        Attribute('position_bucket_size', 'block.attention.position.buckets', 32),
        Attribute('layer_norm_eps', 'block.norm.eps', 1e-7),
        Attribute('init_std', 'block.init.std', spread(768)),
    ),
    fixed={},
    ignored=frozenset({'initializer_range', 'output_all_encoded_layers', 'temperature'}),
    rules=(
        Rule('backbone/embeddings/tokens', 'embedding.word_embedding.weight'),
        Rule(f'{RELATIVE}/relative', 'embedding.relative_embedding'),
        *norm(f'{RELATIVE}/relative_norm', 'embedding.relative_layer_norm'),
        *packed('query', 0), *packed('key', 1),
        *matrix(f'{BLOCK}/attention/value', f'{LAYER}.attention.in_proj_v'),
        *matrix(f'{BLOCK}/attention/out', f'{LAYER}.attention.out_proj', inputs=2),
        *norm(f'{BLOCK}/attention/out_norm', f'{LAYER}.attention.post_layer_norm'),
        *(Rule(f'{BLOCK}/mlp/{part}/kernel', f'{LAYER}.mlp.mlp.1.weight', Packed(number, 2))
          for number, part in enumerate(('gate', 'up'))),
        matrix(f'{BLOCK}/mlp/down', f'{LAYER}.mlp.mlp.4')[0],
    ),
    parts={},
    heads={
        'mlm': Head(lambda config, classes: MaskedTokens(config.block, config.tied, config.head), (
            *matrix('heads_mlm/dense', 'classifier.nonlinearity.1'),
            *output('classifier.nonlinearity.5', 'classifier.nonlinearity.5.bias'),
        )),
        'label': head('label'), 'tags': head('tags', every=True), 'choice': head('choice', classes=None),
        'span': head('span', every=True, classes=2),
    },
    classes={'LtgBertModel': (), 'LtgBertForMaskedLM': ('mlm',), 'LtgBertForSequenceClassification': ('label',),
             'LtgBertForTokenClassification': ('tags',), 'LtgBertForMultipleChoice': ('choice',),
             'LtgBertForQuestionAnswering': ('span',)},
    prefix='',
    aliases=((r'^model\.', ''),),
    marks=frozenset({'position_bucket_size'}),
    skipped=(r'position_indices$',),
    to_current=to_current,
    from_current=from_current,
    read='Bert of babylm/train/model.py (ltgoslo/ltg-bert) takes the tensors in {folder!r}',
)
