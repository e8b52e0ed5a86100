"""GPT (Radford et al. 2018, Improving Language Understanding by Generative Pre-Training).

There is one size: 12 layers, hidden size 768, 512 positions, 116,534,784 parameters in the released
checkpoint. Layer normalization comes after each residual sum, as in BERT, and not after the
embeddings. `gelu` is the tanh approximation (section 4.1, released code).
"""
from collections.abc import Mapping
from typing import Any

from plm_jax.architectures.decoder import Decoder, DecoderConfig
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.heads import PooledClassifier
from plm_jax.layers.init import NORMAL_INIT
from plm_jax.layers.mlp import MlpConfig
from plm_jax.layers.norm import NormConfig
from plm_jax.layers.stack import StackConfig
from plm_jax.models.gpt2 import BLOCK_RULES, LABEL_HEAD, LM_HEAD, SUMMARY_ATTRIBUTES, TASK_HEADS
from plm_jax.models.rules import Attribute, ConvertError, Family, HeadSpec, Rule, join_rules


def base(dtype: Dtype = 'float32') -> DecoderConfig:
  """Make GPT: 12 layers, hidden size 768, 117M parameters."""
  block = BlockConfig(
      mlp=MlpConfig(activation='gelu_tanh'), norm=NormConfig(eps=1e-5), init=NORMAL_INIT,
      dtype=dtype)
  return DecoderConfig(vocab=40478, block=block, stack=StackConfig(layers=12), max_length=512)


def normalize_hf_config(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
  """Add the width of the MLP, which their configuration does not have."""
  return {**hf_config, 'n_inner': 4 * hf_config.get('n_embd', 768)}


def denormalize_hf_config(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
  """Drop the width of the MLP. Raises ConvertError where it is not 4 x hidden size."""
  inner, width = hf_config['n_inner'], hf_config['n_embd']
  if inner != 4 * width:
    raise ConvertError(f'block.mlp_dim is {inner}, which they have at {4 * width} only')
  return {name: value for name, value in hf_config.items() if name != 'n_inner'}


FAMILY = Family(
    name='openai-gpt',
    backbone=lambda config: Decoder(config),
    config=base(),
    attributes=(
        Attribute('vocab_size', 'vocab', 40478),
        Attribute('n_embd', 'block.width', 768),
        Attribute('n_layer', 'stack.layers', 12),
        Attribute('n_head', 'block.heads', 12),
        Attribute('n_inner', 'block.mlp_dim', 3072),
        Attribute('n_positions', 'max_length', 512),
        # All activations that their class knows.
        Attribute('afn', 'block.mlp.activation', 'gelu', (
            ('gelu', 'gelu_tanh'), ('relu', 'relu'), ('silu', 'silu'), ('swish', 'silu'))),
        Attribute('embd_pdrop', 'block.dropout', 0.1),
        Attribute('resid_pdrop', 'block.dropout', 0.1),
        Attribute('attn_pdrop', 'block.attention.dropout', 0.1),
        Attribute('initializer_range', 'block.init.std', 0.02),
        Attribute('layer_norm_epsilon', 'block.norm.eps', 1e-5),
        Attribute('tie_word_embeddings', 'tied', True),
    ),
    fixed=SUMMARY_ATTRIBUTES,
    ignored=frozenset({'n_ctx', 'n_special', 'predict_special_tokens', 'summary_first_dropout'}),
    rules=join_rules(
        Rule('backbone/embeddings/tokens', 'transformer.tokens_embed.weight'),
        Rule('backbone/embeddings/positions', 'transformer.positions_embed.weight'),
        BLOCK_RULES,
    ),
    part_tensors={},
    heads={
        'lm': LM_HEAD,
        **TASK_HEADS,
        # The released code has dropout on the classifier's input (clf_pdrop).
        'label': HeadSpec(
            lambda config, classes: PooledClassifier(config.block, classes, 0.1, bias=False),
            LABEL_HEAD.rules),
    },
    classes={
        'OpenAIGPTLMHeadModel': ('lm',), 'OpenAIGPTModel': (),
        'OpenAIGPTDoubleHeadsModel': ('lm', 'choice'),
        'OpenAIGPTForSequenceClassification': ('label',),
    },
    prefix='transformer.',
    aliases=((r'^(tokens_embed|positions_embed|h)\.', r'transformer.\1.'),),
    normalize_hf_config=normalize_hf_config,
    denormalize_hf_config=denormalize_hf_config,
    skip_patterns=(r'\.attn\.bias$', r'\.position_ids$'),
)
