"""EuroBERT (Boizard et al. 2025, arXiv:2503.05500).

Parameters as published: 210M, 610M and 2.1B (table 1), without the output matrix of the masked-LM
head. Embeddings are not tied, so with it there are 310M, 756M and 2.40B.

LLaMA's layers without the causal mask: RMSNorm before sublayers, SwiGLU, rope, grouped keys and
values in the larger sizes, no biases, no dropout. Rotary pairs are half a head apart
(rotate-half), as in transformers. Logits are computed from the hidden states, without a hidden
layer.
"""
from collections.abc import Mapping
import dataclasses
import functools
from typing import Any

from plm_jax.architectures.encoder import Encoder, EncoderConfig
from plm_jax.layers.attention import AttentionConfig
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.embeddings import EmbeddingConfig
from plm_jax.layers.heads import HeadConfig, MaskedLMHead, PoolingClassifier
from plm_jax.layers.init import NORMAL_INIT
from plm_jax.layers.mlp import MlpConfig
from plm_jax.layers.norm import NormConfig
from plm_jax.layers.rope import Rope
from plm_jax.layers.stack import StackConfig
from plm_jax.models import bert, llama
from plm_jax.models.layouts import Linear
from plm_jax.models.rules import (
    Attribute,
    ConvertError,
    Family,
    HeadSpec,
    Rule,
    dense_rules,
    replace_defaults,
)

VOCAB = 128_256
"""LLaMA 3's vocabulary; one of its reserved tokens is the mask token"""
POOLINGS = (('late', 'late'), ('mean', 'mean'), ('bos', 'first'))


def make_config(
    layers: int, width: int, heads: int, kv_heads: int | None, mlp_dim: int,
    dtype: Dtype = 'float32',
) -> EncoderConfig:
  """Make a EuroBERT for texts of up to 8,192 tokens.

  Args:
    layers: number of layers.
    width: hidden size.
    heads: number of attention heads.
    kv_heads: number of heads of keys and values; None: as many as `heads`.
    mlp_dim: width of the SwiGLU.
    dtype: compute dtype.
  """
  block = BlockConfig(
      width=width, heads=heads, kv_heads=kv_heads, mlp_dim=mlp_dim, norm_at='pre',
      norm=NormConfig('rms', 1e-5), dropout=0.0,
      attention=AttentionConfig(bias=(), dropout=0.0, position=Rope(250_000.0)),
      mlp=MlpConfig(activation='silu', gated=True, bias=False), init=NORMAL_INIT, dtype=dtype)
  return EncoderConfig(
      vocab=VOCAB, block=block, stack=StackConfig(layers), max_length=8192,
      embeddings=EmbeddingConfig(types=0, absolute='none'), tied=False,
      head=HeadConfig(transform=False, activation='gelu', output_bias=False, pooling='late'),
      pooler=False)


eurobert_210m = functools.partial(make_config, 12, 768, 12, None, 3072)  # 212M parameters
eurobert_610m = functools.partial(make_config, 26, 1152, 18, 6, 4096)  # 608M parameters
eurobert_2b = functools.partial(make_config, 32, 2304, 18, 6, 6144)  # 2.11B parameters


def normalize_hf_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Read rope as one value `rope`, and pooling by its name in transformers.

  Released files are older than transformers' class: they name the pooling `clf_pooling`, have names
  of special tokens, and refer to code that they come with. That code computes what the class does.
  Raises ConvertError for what is not known.
  """
  hf_config = {**DEFAULTS, **hf_config}
  for name in ('auto_map', 'bos_token', 'eos_token', 'pad_token', 'mask_token'):
    hf_config.pop(name, None)
  older = hf_config.pop('clf_pooling', None)
  hf_config['classifier_pooling'] = hf_config.get('classifier_pooling') or older or 'late'
  hf_config['head_bias'] = hf_config.get('mlp_bias', False)
  return llama.normalize_hf_config(hf_config)


def denormalize_hf_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Reverse `normalize_hf_config`; released code and transformers read the result.

  Raises ConvertError where rope rotates only a share of a head, and where logits have a bias and
  MLPs have none, or the other way round: one attribute sets both.
  """
  hf_config = llama.denormalize_hf_config(hf_config)
  if hf_config.pop('head_bias') != hf_config['mlp_bias']:
    raise ConvertError(
        "transformers' EuroBERT has biases in MLPs and logits, or in none of them: "
        'block.mlp.bias and head.output_bias differ')
  return {**hf_config, 'clf_pooling': hf_config['classifier_pooling']}


DEFAULTS = {
    'vocab_size': VOCAB, 'hidden_size': 768, 'num_hidden_layers': 12, 'num_attention_heads': 12,
    'intermediate_size': 3072, 'max_position_embeddings': 8192, 'rms_norm_eps': 1e-5}

# transformers' EuroBert.
FAMILY = Family(
    name='eurobert',
    backbone=lambda config: Encoder(config),
    config=eurobert_210m(),
    attributes=(
        *replace_defaults(
            [one for one in llama.FAMILY.attributes if one.theirs != 'is_causal'], DEFAULTS),
        Attribute('head_bias', 'head.output_bias', False),
        Attribute('classifier_pooling', 'head.pooling', 'late', POOLINGS),
    ),
    fixed={'hidden_dropout': 0.0, 'is_causal': False},
    ignored=llama.FAMILY.ignored,
    rules=llama.FAMILY.rules,
    part_tensors={},
    heads={
        'mlm': HeadSpec(
            lambda config, classes: MaskedLMHead(config.block, config.tied, config.head),
            (
                Rule('backbone/embeddings/tokens', 'lm_head.weight', copy=True,
                     applies_to=bert.is_tied),
                Rule('heads_mlm/kernel', 'lm_head.weight', Linear(), applies_to=bert.is_untied),
                Rule('heads_mlm/bias', 'lm_head.bias',
                     applies_to=lambda config: config.head.output_bias))),
        'label': HeadSpec(
            lambda config, classes: PoolingClassifier(
                config.block, config.head, classes, norm=False),
            (
                *dense_rules('heads_label/hidden', 'dense'),
                *dense_rules('heads_label/dense', 'classifier'))),
        'tags': dataclasses.replace(bert.FAMILY.heads['tags'], dropout=''),
        # Neither released code nor transformers has a class for this task.
        'span': bert.FAMILY.heads['span'],
    },
    classes={
        'EuroBertModel': (), 'EuroBertForMaskedLM': ('mlm',),
        'EuroBertForSequenceClassification': ('label',),
        'EuroBertForTokenClassification': ('tags',)},
    extra_heads=frozenset({'span'}),
    prefix='model.',
    token_roles=('pad', 'bos', 'eos', 'mask'),
    aliases=((r'^(embed_tokens|layers|norm)\.', r'model.\1.'),),
    normalize_hf_config=normalize_hf_config,
    denormalize_hf_config=denormalize_hf_config,
    skip_patterns=llama.FAMILY.skip_patterns,
)
