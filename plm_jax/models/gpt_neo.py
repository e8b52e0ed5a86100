"""GPT-Neo (Black et al. 2021, doi:10.5281/zenodo.5297715): alternating full and local attention.

Local layers have a sliding window of 256 tokens. Parameters of the released checkpoints: 125M
125,198,592, 1.3B 1,315,575,808, 2.7B 2,651,307,520. Attention logits are not divided by the square
root of the head size, and of attention's projections only the output projection has a bias.
"""
from collections.abc import Mapping
import dataclasses
import functools
from typing import Any

from plm_jax import validation
from plm_jax.architectures.decoder import DecoderConfig
from plm_jax.layers.common import Dtype
from plm_jax.models import gpt2
from plm_jax.models.bert import GELU_NEW_ACTIVATIONS
from plm_jax.models.gpt2 import BLOCK, LAYER
from plm_jax.models.layouts import Linear
from plm_jax.models.rules import Attribute, Rule, dense_rules, join_rules


def make_config(layers: int, width: int, heads: int, dtype: Dtype = 'float32') -> DecoderConfig:
  """Make a GPT-Neo with an MLP of 4 x hidden size and 2,048 positions.

  It has no dropout, as released.
  """
  config = gpt2.make_config(layers, width, dtype)
  block = validation.with_paths(config.block, {
      'heads': heads, 'attention.scale': 1.0, 'attention.bias': ('out',), 'init.out_std': None,
      'dropout': 0.0, 'attention.dropout': 0.0})
  return dataclasses.replace(config, block=block, max_length=2048, windows=(0, 256))


gpt_neo_125m = functools.partial(make_config, 12, 768, 12)  # 125M parameters
gpt_neo_1_3b = functools.partial(make_config, 24, 2048, 16)  # 1.32B parameters
gpt_neo_2_7b = functools.partial(make_config, 32, 2560, 20)  # 2.65B parameters


def normalize_hf_config(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
  """Set the width of the MLP and the sliding window of each layer."""
  layers = hf_config.get('num_layers', 24)
  inner = hf_config.get('intermediate_size') or 4 * hf_config.get('hidden_size', 2048)
  return gpt2.import_windows({
      'attention_types': [[['global', 'local'], 12]], **hf_config, 'intermediate_size': inner},
      layers)


def denormalize_hf_config(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
  """Reverse `normalize_hf_config`."""
  hf_config = dict(hf_config)
  layers = gpt2.export_windows(hf_config.pop('windows'), hf_config['num_layers'], 'global')
  if hf_config['intermediate_size'] == 4 * hf_config['hidden_size']:
    hf_config['intermediate_size'] = None
  types = [[[kind], 1] for kind in layers['attention_layers']]
  return {**hf_config, **layers, 'attention_types': types}


ATTENTION = f'{LAYER}.attn.attention'
FAMILY = dataclasses.replace(
    gpt2.FAMILY,
    name='gpt_neo',
    config=gpt_neo_125m(),
    attributes=(
        Attribute('vocab_size', 'vocab', 50257),
        Attribute('hidden_size', 'block.width', 2048),
        Attribute('num_layers', 'stack.layers', 24),
        Attribute('num_heads', 'block.heads', 16),
        Attribute('intermediate_size', 'block.mlp_dim', 8192),
        Attribute('max_position_embeddings', 'max_length', 2048),
        Attribute('activation_function', 'block.mlp.activation', 'gelu_new', GELU_NEW_ACTIVATIONS),
        Attribute('embed_dropout', 'block.dropout', 0.0),
        Attribute('resid_dropout', 'block.dropout', 0.0),
        Attribute('attention_dropout', 'block.attention.dropout', 0.0),
        Attribute('initializer_range', 'block.init.std', 0.02),
        Attribute('layer_norm_epsilon', 'block.norm.eps', 1e-5),
        Attribute('tie_word_embeddings', 'tied', True),
        Attribute('windows', 'windows', ()),
    ),
    ignored=frozenset({'summary_first_dropout'}),
    rules=join_rules(
        [rule for rule in gpt2.FAMILY.rules
         if f'{BLOCK}/attention/' not in rule.ours and '/mlp/' not in rule.ours],
        Rule(f'{BLOCK}/attention/query/kernel', f'{ATTENTION}.q_proj.weight', Linear()),
        Rule(f'{BLOCK}/attention/key/kernel', f'{ATTENTION}.k_proj.weight', Linear()),
        Rule(f'{BLOCK}/attention/value/kernel', f'{ATTENTION}.v_proj.weight', Linear()),
        dense_rules(f'{BLOCK}/attention/out', f'{ATTENTION}.out_proj', inputs=2),
        dense_rules(f'{BLOCK}/mlp/up', f'{LAYER}.mlp.c_fc'),
        dense_rules(f'{BLOCK}/mlp/down', f'{LAYER}.mlp.c_proj'),
    ),
    heads={'lm': gpt2.LM_HEAD, **gpt2.TASK_HEADS},
    classes={
        'GPTNeoForCausalLM': ('lm',), 'GPTNeoModel': (),
        'GPTNeoForSequenceClassification': ('label',),
        'GPTNeoForTokenClassification': ('tags',), 'GPTNeoForQuestionAnswering': ('span',),
    },
    normalize_hf_config=normalize_hf_config,
    denormalize_hf_config=denormalize_hf_config,
    skip_patterns=(r'\.attn\.attention\.(masked_)?bias$',),
)
