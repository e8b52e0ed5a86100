"""GPT-NeoX (Black et al. 2022, arXiv:2204.06745) and Pythia.

Pythia is by Biderman et al. 2023 (arXiv:2304.01373). Its parameters, with those outside of the
embeddings: 14M (1.2M), 31M (4.7M), 70M (18.9M), 160M (85.1M), 410M (302M), 1B (806M), 1.4B (1.21B),
2.8B (2.52B), 6.9B (6.44B) and 12B (11.3B). GPT-NeoX-20B has 20.6B.

Parallel blocks: attention and MLP have a LayerNorm of their own of the same residual stream. A
quarter of each head's features have rotary positions. Embeddings are not tied. Initial weights:
"small init" and, for projections into the residual stream, "wang init" (gpt-neox, init_functions).
"""
from collections.abc import Mapping
import dataclasses
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
from plm_jax.models import bert, gpt2, llama
from plm_jax.models.layouts import Linear
from plm_jax.models.rules import (
  Attribute,
  Family,
  Rule,
  dense_rules,
  join_rules,
  norm_rules,
  packed_rules,
)


def make_config(
    layers: int, width: int, heads: int, dtype: Dtype = 'float32', vocab: int = 50_304,
) -> DecoderConfig:
  """Make a Pythia with an MLP of 4 x hidden size, for texts of up to 2,048 tokens.

  Args:
    layers: number of layers.
    width: hidden size.
    heads: number of attention heads.
    dtype: compute dtype.
    vocab: 50,277 tokens, and unused ones up to a multiple of 128 x the devices that shared the
      embeddings in training.
  """
  init = InitConfig(
      (0.4 / width) ** 0.5, 2 / layers * width ** -0.5, tables='normal', matrices='normal')
  block = BlockConfig(
      width=width, heads=heads, mlp_dim=4 * width, mlp=MlpConfig(), norm=NormConfig(eps=1e-5),
      norm_at='pre', parallel=True, parallel_norms=True, dropout=0.0, init=init, dtype=dtype,
      attention=AttentionConfig(position=Rope(share=0.25), dropout=0.0))
  return DecoderConfig(
      vocab=vocab, block=block, stack=StackConfig(layers), max_length=2048, absolute='none',
      tied=False)


pythia_14m = functools.partial(make_config, 6, 128, 4)  # 14.1M parameters
pythia_31m = functools.partial(make_config, 6, 256, 8)  # 30.5M parameters
pythia_70m = functools.partial(make_config, 6, 512, 8)  # 70.4M parameters
pythia_160m = functools.partial(make_config, 12, 768, 12)  # 162M parameters
pythia_410m = functools.partial(make_config, 24, 1024, 16)  # 405M parameters
pythia_1b = functools.partial(make_config, 16, 2048, 8)  # 1.01B parameters
pythia_1_4b = functools.partial(make_config, 24, 2048, 16)  # 1.41B parameters
pythia_2_8b = functools.partial(make_config, 32, 2560, 32)  # 2.78B parameters
pythia_6_9b = functools.partial(make_config, 32, 4096, 32, vocab=50_432)  # 6.86B parameters
pythia_12b = functools.partial(make_config, 36, 5120, 40, vocab=50_688)  # 11.8B parameters
gpt_neox_20b = functools.partial(make_config, 44, 6144, 64, vocab=50_432)  # 20.6B parameters


def normalize_hf_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Read rope, in any spelling of transformers, as one value `rope`."""
  hf_config = {'num_attention_heads': 64, 'hidden_size': 6144, **hf_config}
  share, theta = hf_config.pop('rotary_pct', 0.25), hf_config.pop('rotary_emb_base', 10_000)
  stated = dict(hf_config.pop('rope_parameters', None) or {})
  share = stated.pop('partial_rotary_factor', share)
  read = llama.normalize_hf_config({'rope_theta': theta, **hf_config, 'rope_parameters': stated})
  return {**read, 'rope': dataclasses.replace(read['rope'], share=float(share))}


def denormalize_hf_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Reverse `normalize_hf_config`; every version of transformers reads the result."""
  rope = hf_config['rope']
  written = llama.denormalize_hf_config({
      **hf_config, 'rope': dataclasses.replace(rope, share=1.0), 'num_key_value_heads': None,
      'head_dim': None})
  for name in ('num_key_value_heads', 'head_dim'):
    del written[name]
  return {**written, 'rotary_pct': rope.share, 'rotary_emb_base': written.pop('rope_theta')}


BLOCK, LAYER = 'backbone/stack/layers/block', 'gpt_neox.layers.{n}'

# transformers' GPTNeoX.
FAMILY = Family(
    name='gpt_neox',
    backbone=lambda config: Decoder(config),
    config=pythia_160m(),
    attributes=(
        Attribute('vocab_size', 'vocab', 50_432),
        Attribute('hidden_size', 'block.width', 6144),
        Attribute('num_hidden_layers', 'stack.layers', 44),
        Attribute('num_attention_heads', 'block.heads', 64),
        Attribute('intermediate_size', 'block.mlp_dim', 24_576),
        Attribute('hidden_act', 'block.mlp.activation', 'gelu', bert.ACTIVATIONS),
        Attribute('max_position_embeddings', 'max_length', 2048),
        Attribute('initializer_range', 'block.init.std', 0.02),
        Attribute('layer_norm_eps', 'block.norm.eps', 1e-5),
        Attribute('attention_bias', 'block.attention.bias', True, llama.BIAS_VALUES),
        Attribute('hidden_dropout', 'block.dropout', 0.0),
        Attribute('attention_dropout', 'block.attention.dropout', 0.0),
        Attribute('use_parallel_residual', 'block.parallel', True),
        Attribute('tie_word_embeddings', 'tied', False),
        Attribute('rope', 'block.attention.position', Rope(share=0.25)),
        Attribute('is_causal', 'causal', True),
    ),
    fixed={},
    ignored=frozenset(),
    rules=join_rules(
        Rule('backbone/embeddings/tokens', 'gpt_neox.embed_in.weight'),
        packed_rules(
            f'{BLOCK}/attention', f'{LAYER}.attention.query_key_value', ('query', 'key', 'value'),
            by_head=True),
        dense_rules(f'{BLOCK}/attention/out', f'{LAYER}.attention.dense', inputs=2),
        # Their first norm is that of attention, also where the sublayers are parallel.
        norm_rules(f'{BLOCK}/parallel_norm', f'{LAYER}.input_layernorm'),
        norm_rules(f'{BLOCK}/attention_norm', f'{LAYER}.input_layernorm'),
        norm_rules(f'{BLOCK}/mlp_norm', f'{LAYER}.post_attention_layernorm'),
        dense_rules(f'{BLOCK}/mlp/up', f'{LAYER}.mlp.dense_h_to_4h'),
        dense_rules(f'{BLOCK}/mlp/down', f'{LAYER}.mlp.dense_4h_to_h'),
        norm_rules('backbone/stack/norm', 'gpt_neox.final_layer_norm'),
    ),
    part_tensors={},
    heads={
        # Versions of transformers before 5 call it embed_out.
        'lm': dataclasses.replace(gpt2.LM_HEAD, rules=(
            Rule('heads_lm/kernel', 'embed_out.weight', Linear(), applies_to=bert.is_untied),
            Rule('backbone/embeddings/tokens', 'embed_out.weight', copy=True,
                 applies_to=bert.is_tied))),
        **gpt2.TASK_HEADS,
    },
    classes={
        'GPTNeoXForCausalLM': ('lm',), 'GPTNeoXModel': (),
        'GPTNeoXForSequenceClassification': ('label',),
        'GPTNeoXForTokenClassification': ('tags',), 'GPTNeoXForQuestionAnswering': ('span',),
    },
    prefix='gpt_neox.',
    aliases=((r'^(embed_in|layers|final_layer_norm)\.', r'gpt_neox.\1.'),
             (r'^lm_head\.', 'embed_out.')),
    normalize_hf_config=normalize_hf_config,
    denormalize_hf_config=denormalize_hf_config,
    skip_patterns=(r'\.attention\.(masked_)?bias$', r'\.rotary_emb\.inv_freq$'),
)
