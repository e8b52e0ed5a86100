"""PaLM (Chowdhery et al. 2022, arXiv:2204.02311).

Parameters as published (table 1): 8.63B, 62.50B, 540.35B. There is no released code or checkpoint.

Section 2: parallel blocks, multi-query attention, SwiGLU, rope, no biases in dense layers and
norms, tied embeddings. Section 5: matrices have initial weights with a deviation of
1 / sqrt(inputs), the embedding table with 1, and logits are divided by the square root of the
hidden size. The paper does not state the epsilon of norms; here it is that of T5X, with which PaLM
was trained.

transformers has no PaLM, but Cohere's Command R has the same architecture, and exports are in that
form.
"""
from collections.abc import Mapping
import functools
from typing import Any

from plm_jax.architectures.decoder import Decoder, DecoderConfig
from plm_jax.layers.attention import AttentionConfig
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.init import InitConfig
from plm_jax.layers.mlp import MlpConfig
from plm_jax.layers.norm import NormConfig
from plm_jax.layers.rope import Rope
from plm_jax.layers.stack import StackConfig
from plm_jax.models import gpt2, llama
from plm_jax.models.bert import ACTIVATIONS
from plm_jax.models.layouts import RopePairs
from plm_jax.models.rules import Attribute, Family, Rule, dense_rules, join_rules


def make_config(layers: int, width: int, heads: int, dtype: Dtype = 'float32') -> DecoderConfig:
  """Make a PaLM with heads of 256, an MLP of 4 x hidden size and texts of up to 2048 tokens.

  The vocabulary has 256,000 tokens, as in every size.
  """
  block = BlockConfig(
      width=width, heads=heads, mlp_dim=4 * width, head_size=256, kv_heads=1,
      mlp=MlpConfig(activation='silu', gated=True, bias=False),
      norm=NormConfig(kind='layer_scale', eps=1e-6), norm_at='pre', parallel=True,
      attention=AttentionConfig(position=Rope(), dropout=0.0, bias=()), dropout=0.0,
      init=InitConfig(std=1.0, fan='in', tables='normal', matrices='normal'), dtype=dtype)
  return DecoderConfig(
      vocab=256_000, block=block, stack=StackConfig(layers), max_length=2048, absolute='none',
      tied=True, logit_factor=width ** -0.5)


palm_8b = functools.partial(make_config, 32, 4096, 16)  # 8.63B parameters
palm_62b = functools.partial(make_config, 64, 8192, 32)  # 62.50B parameters
palm_540b = functools.partial(make_config, 118, 18_432, 48)  # 540.35B parameters


def normalize_hf_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Do the same as LLaMA's, with other defaults."""
  return llama.normalize_hf_config({
      'num_attention_heads': 64, 'hidden_size': 8192, 'max_position_embeddings': 8192,
      'rope_theta': 500_000.0, **hf_config})


BLOCK, LAYER = 'backbone/stack/layers/block', 'model.layers.{n}'

# transformers' Cohere.
FAMILY = Family(
    name='cohere',
    backbone=lambda config: Decoder(config),
    config=palm_8b(),
    attributes=(
        Attribute('vocab_size', 'vocab', 256_000),
        Attribute('hidden_size', 'block.width', 8192),
        Attribute('num_hidden_layers', 'stack.layers', 40),
        Attribute('num_attention_heads', 'block.heads', 64),
        Attribute('num_key_value_heads', 'block.kv_heads', None),
        Attribute('head_dim', 'block.head_size', None),
        Attribute('intermediate_size', 'block.mlp_dim', 22_528),
        Attribute('hidden_act', 'block.mlp.activation', 'silu', ACTIVATIONS),
        Attribute('logit_scale', 'logit_factor', 0.0625),
        Attribute('max_position_embeddings', 'max_length', 8192),
        Attribute('initializer_range', 'block.init.std', 0.02),
        Attribute('layer_norm_eps', 'block.norm.eps', 1e-5),
        Attribute('attention_dropout', 'block.attention.dropout', 0.0),
        Attribute('tie_word_embeddings', 'tied', True),
        Attribute('rope', 'block.attention.position', Rope()),
    ),
    fixed={'attention_bias': False, 'use_qk_norm': False, 'is_causal': True},
    ignored=frozenset(),
    rules=join_rules(
        Rule('backbone/embeddings/tokens', 'model.embed_tokens.weight'),
        Rule(f'{BLOCK}/attention/query/kernel', f'{LAYER}.self_attn.q_proj.weight', RopePairs()),
        Rule(f'{BLOCK}/attention/key/kernel', f'{LAYER}.self_attn.k_proj.weight', RopePairs()),
        dense_rules(f'{BLOCK}/attention/value', f'{LAYER}.self_attn.v_proj'),
        dense_rules(f'{BLOCK}/attention/out', f'{LAYER}.self_attn.o_proj', inputs=2),
        Rule(f'{BLOCK}/parallel_norm/scale', f'{LAYER}.input_layernorm.weight'),
        # Our `up` has the activation, which their gate_proj has.
        dense_rules(f'{BLOCK}/mlp/up', f'{LAYER}.mlp.gate_proj'),
        dense_rules(f'{BLOCK}/mlp/gate', f'{LAYER}.mlp.up_proj'),
        dense_rules(f'{BLOCK}/mlp/down', f'{LAYER}.mlp.down_proj'),
        Rule('backbone/stack/norm/scale', 'model.norm.weight'),
    ),
    part_tensors={},
    heads={'lm': gpt2.LM_HEAD, **gpt2.TASK_HEADS},
    classes={'CohereModel': (), 'CohereForCausalLM': ('lm',)},
    prefix='model.',
    aliases=((r'^(embed_tokens|layers|norm)\.', r'model.\1.'),),
    normalize_hf_config=normalize_hf_config,
    denormalize_hf_config=llama.denormalize_hf_config,
)
