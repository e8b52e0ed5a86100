"""LTG-BERT (Samuel et al. 2023, arXiv:2303.09859), as released in ltgoslo/ltg-bert.

The code is babylm/train/model.py. Parameters as published: base 98M; its sizes for BabyLM are small
28M and xs 9M.

Layer normalization comes before sublayers and has no parameters. Attention outputs and the hidden
units of GeGLU are normalized once more (NormFormer). Attention is disentangled, with relative
positions in 63 buckets that share the projections of queries and keys. In the released code the
layers end without a norm and heads begin with one; here that norm ends the layers.

Not from the paper: the smaller initial weights of each layer's MLP, by the square root of twice the
layer's number, and dropout in the masked-LM head.
"""
from collections.abc import Mapping
import functools
import math
from typing import Any

from plm_jax.architectures.encoder import Encoder, EncoderConfig
from plm_jax.layers.attention import AttentionConfig
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.disentangled import Disentangled
from plm_jax.layers.embeddings import EmbeddingConfig
from plm_jax.layers.heads import HeadConfig, MaskedLMHead, PoolingClassifier
from plm_jax.layers.init import InitConfig
from plm_jax.layers.mlp import MlpConfig
from plm_jax.layers.norm import NormConfig
from plm_jax.layers.stack import StackConfig
from plm_jax.models.bert import mlm_output_rules
from plm_jax.models.rules import (
    Attribute,
    Family,
    HeadSpec,
    Rule,
    dense_rules,
    join_rules,
    norm_rules,
    packed_rules,
)


def make_config(
    width: int, heads: int, mlp_dim: int, dtype: Dtype = 'float32',
) -> EncoderConfig:
  """Make an LTG-BERT with 12 layers for texts of up to 512 tokens."""
  position = Disentangled(span=512, buckets=32, shared=True, norm=True, exact=True)
  block = BlockConfig(
      width=width, heads=heads, mlp_dim=mlp_dim, norm_at='pre', norm=NormConfig('plain', 1e-7),
      attention=AttentionConfig(out_norm=True, position=position),
      mlp=MlpConfig(activation='gelu_tanh', gated=True, bias=False, norm=True),
      init=InitConfig(weight_std(width)), dtype=dtype)
  return EncoderConfig(
      vocab=16_384, block=block, stack=StackConfig(12), max_length=512,
      embeddings=EmbeddingConfig(types=0, absolute='none', norm=True),
      head=HeadConfig(activation='gelu'), pooler=False)


def weight_std(width: int) -> float:
  """Return the standard deviation of initial weights."""
  return math.sqrt(2 / (5 * width))


base = functools.partial(make_config, 768, 12, 2048)  # 98M parameters
small = functools.partial(make_config, 384, 6, 1024)  # 28M parameters
xs = functools.partial(make_config, 192, 3, 512)  # 9M parameters


def normalize_hf_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Add the deviation of initial weights, which released configurations do not state."""
  width = hf_config.get('hidden_size', 768)
  kept = {name: value for name, value in hf_config.items() if name != 'auto_map'}
  std = weight_std(width) if type(width) is int and width > 0 else 0.02
  return {**kept, 'init_std': std}


def denormalize_hf_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Reverse `normalize_hf_config`."""
  return {name: value for name, value in hf_config.items() if name != 'init_std'}


def task_head(name: str, every: bool = False, classes: int | None = 0) -> HeadSpec:
  """Make a task's head: a hidden layer and a norm, as in the masked-LM head, and a dense layer.

  Args:
    name: of the head.
    every: whether it reads every token, not only the first.
    classes: number of classes; 0: as many as there are labels; None: one score per text.
  """
  return HeadSpec(
      lambda config, labels: PoolingClassifier(
          config.block, config.head, labels if classes == 0 else classes, every),
      join_rules(
          dense_rules(f'heads_{name}/hidden', 'head.nonlinearity.1'),
          dense_rules(f'heads_{name}/dense', 'head.nonlinearity.5')),
      dropout='classifier_dropout')


BLOCK, LAYER = 'backbone/stack/layers/block', 'transformer.layers.{n}'
STACK = 'backbone/stack'

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
        Attribute('init_std', 'block.init.std', weight_std(768)),
    ),
    fixed={},
    ignored=frozenset({'initializer_range', 'output_all_encoded_layers', 'temperature'}),
    rules=join_rules(
        Rule('backbone/embeddings/tokens', 'embedding.word_embedding.weight'),
        Rule(f'{STACK}/relative', 'embedding.relative_embedding'),
        norm_rules(f'{STACK}/relative_norm', 'embedding.relative_layer_norm'),
        packed_rules(f'{BLOCK}/attention', f'{LAYER}.attention.in_proj_qk', ('query', 'key')),
        dense_rules(f'{BLOCK}/attention/value', f'{LAYER}.attention.in_proj_v'),
        dense_rules(f'{BLOCK}/attention/out', f'{LAYER}.attention.out_proj', inputs=2),
        norm_rules(f'{BLOCK}/attention/out_norm', f'{LAYER}.attention.post_layer_norm'),
        packed_rules(f'{BLOCK}/mlp', f'{LAYER}.mlp.mlp.1', ('gate', 'up'), bias=False),
        dense_rules(f'{BLOCK}/mlp/down', f'{LAYER}.mlp.mlp.4')[0],
    ),
    part_tensors={},
    heads={
        'mlm': HeadSpec(
            lambda config, classes: MaskedLMHead(config.block, config.tied, config.head),
            join_rules(
                dense_rules('heads_mlm/dense', 'classifier.nonlinearity.1'),
                mlm_output_rules(
                    'classifier.nonlinearity.5', 'classifier.nonlinearity.5.bias'))),
        'label': task_head('label'),
        'tags': task_head('tags', every=True),
        'choice': task_head('choice', classes=None),
        'span': task_head('span', every=True, classes=2),
    },
    classes={
        'LtgBertModel': (), 'LtgBertForMaskedLM': ('mlm',),
        'LtgBertForSequenceClassification': ('label',), 'LtgBertForTokenClassification': ('tags',),
        'LtgBertForMultipleChoice': ('choice',), 'LtgBertForQuestionAnswering': ('span',)},
    prefix='',
    aliases=((r'^model\.', ''),),
    marker_attributes=frozenset({'position_bucket_size'}),
    skip_patterns=(r'position_indices$',),
    normalize_hf_config=normalize_hf_config,
    denormalize_hf_config=denormalize_hf_config,
    usage='Bert of babylm/train/model.py (ltgoslo/ltg-bert) takes the tensors in {folder!r}',
)
