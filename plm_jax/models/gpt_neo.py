"""GPT-Neo (Black et al. 2021, doi:10.5281/zenodo.5297715): layers that see all and layers that see 256 tokens in turn.

Parameters of the released checkpoints: 125M 125,198,592, 1.3B 1,315,575,808, 2.7B 2,651,307,520. Attention logits are
not divided by the root of the head size, and of attention's projections only the last has a bias.
"""
from collections.abc import Mapping
import dataclasses
from typing import Any

from plm_jax import checked
from plm_jax.architectures.decoder import DecoderConfig
from plm_jax.conversion.layouts import Linear
from plm_jax.conversion.rules import Attribute, Rule
from plm_jax.layers.common import Dtype
from plm_jax.models import gpt2
from plm_jax.models.bert import ACTIVATIONS, matrix
from plm_jax.models.gpt2 import BLOCK, LAYER


def sized(layers: int, width: int, heads: int, dtype: Dtype = 'float32') -> DecoderConfig:
  """Makes a size with an MLP of four times the width, over 2,048 positions; released without dropout."""
  config = gpt2.sized(layers, width, dtype)
  block = checked.replaced(
      config.block, {'heads': heads, 'attention.scale': 1.0, 'attention.bias': ('out',), 'init.out_std': None,
                     'dropout': 0.0, 'attention.dropout': 0.0})
  return dataclasses.replace(config, block=block, max_length=2048, windows=(0, 256))


def b0_125(dtype: Dtype = 'float32') -> DecoderConfig:
  """Makes GPT-Neo 125M: 12 layers of width 768, 125M parameters."""
  return sized(12, 768, 12, dtype)


def b1_3(dtype: Dtype = 'float32') -> DecoderConfig:
  """Makes GPT-Neo 1.3B: 24 layers of width 2048, 1.32B parameters."""
  return sized(24, 2048, 16, dtype)


def b2_7(dtype: Dtype = 'float32') -> DecoderConfig:
  """Makes GPT-Neo 2.7B: 32 layers of width 2560, 2.65B parameters."""
  return sized(32, 2560, 20, dtype)


def to_current(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
  """Writes out the width of the MLP and the window of each layer."""
  layers = hf_config.get('num_layers', 24)
  inner = hf_config.get('intermediate_size') or 4 * hf_config.get('hidden_size', 2048)
  return gpt2.bands({'attention_types': [[['global', 'local'], 12]], **hf_config, 'intermediate_size': inner}, layers)


def from_current(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
  """Undoes what `to_current` did."""
  hf_config = dict(hf_config)
  named = gpt2.kinds(hf_config.pop('windows'), hf_config['num_layers'], 'global')
  if hf_config['intermediate_size'] == 4 * hf_config['hidden_size']:
    hf_config['intermediate_size'] = None
  return {**hf_config, **named, 'attention_types': [[[kind], 1] for kind in named['attention_layers']]}


ATTENTION = f'{LAYER}.attn.attention'
FAMILY = dataclasses.replace(
    gpt2.FAMILY,
    name='gpt_neo',
    config=b0_125(),
    attributes=(
        Attribute('vocab_size', 'vocab', 50257),
        Attribute('hidden_size', 'block.width', 2048),
        Attribute('num_layers', 'stack.layers', 24),
        Attribute('num_heads', 'block.heads', 16),
        Attribute('intermediate_size', 'block.mlp_dim', 8192),
        Attribute('max_position_embeddings', 'max_length', 2048),
        Attribute('activation_function', 'block.mlp.activation', 'gelu_new', (('gelu_new', 'gelu_tanh'), *ACTIVATIONS)),
        Attribute('embed_dropout', 'block.dropout', 0.0),
        Attribute('resid_dropout', 'block.dropout', 0.0),
        Attribute('attention_dropout', 'block.attention.dropout', 0.0),
        Attribute('initializer_range', 'block.init.std', 0.02),
        Attribute('layer_norm_epsilon', 'block.norm.eps', 1e-5),
        Attribute('tie_word_embeddings', 'tied', True),
        Attribute('windows', 'windows', ()),
    ),
    ignored=frozenset({'summary_first_dropout'}),
    rules=(
        *(rule for rule in gpt2.FAMILY.rules if f'{BLOCK}/attention/' not in rule.ours and '/mlp/' not in rule.ours),
        *(Rule(f'{BLOCK}/attention/{name}/kernel', f'{ATTENTION}.{name[0]}_proj.weight', Linear())
          for name in ('query', 'key', 'value')),
        *matrix(f'{BLOCK}/attention/out', f'{ATTENTION}.out_proj', inputs=2),
        *matrix(f'{BLOCK}/mlp/up', f'{LAYER}.mlp.c_fc'),
        *matrix(f'{BLOCK}/mlp/down', f'{LAYER}.mlp.c_proj'),
    ),
    heads={'lm': gpt2.LM, **gpt2.ASKED},
    classes={
        'GPTNeoForCausalLM': ('lm',), 'GPTNeoModel': (), 'GPTNeoForSequenceClassification': ('label',),
        'GPTNeoForTokenClassification': ('tags',), 'GPTNeoForQuestionAnswering': ('span',),
    },
    to_current=to_current,
    from_current=from_current,
    skipped=(r'\.attn\.attention\.(masked_)?bias$',),
)
