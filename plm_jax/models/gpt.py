"""GPT (Radford et al. 2018, Improving Language Understanding by Generative Pre-Training).

One size: 12 layers of 768 over 512 positions, 116,534,784 parameters in the released checkpoint. Norms come after each
residual sum, as in BERT, none after the embeddings, and `gelu` is the tanh approximation (section 4.1, released code).
"""
from collections.abc import Mapping
from typing import Any

from plm_jax.architectures.decoder import Decoder, DecoderConfig
from plm_jax.conversion.rules import Attribute, ConvertError, Family, Head, Rule
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.heads import PooledClasses
from plm_jax.layers.init import NORMAL
from plm_jax.layers.mlp import MlpConfig
from plm_jax.layers.norm import NormConfig
from plm_jax.layers.stack import StackConfig
from plm_jax.models.gpt2 import ASKED, LABEL, LM, RULES, SUMMARY


def base(dtype: Dtype = 'float32') -> DecoderConfig:
  """Makes GPT: 12 layers of width 768, 117M parameters."""
  block = BlockConfig(mlp=MlpConfig(activation='gelu_tanh'), norm=NormConfig(eps=1e-5), init=NORMAL, dtype=dtype)
  return DecoderConfig(vocab=40478, block=block, stack=StackConfig(layers=12), max_length=512)


def to_current(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
  """Adds the width of the MLP, which their configuration does not have."""
  return {**hf_config, 'n_inner': 4 * hf_config.get('n_embd', 768)}


def from_current(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
  """Drops the width of the MLP. Raises ConvertError where it is not four times the width of the layers."""
  if hf_config['n_inner'] != 4 * hf_config['n_embd']:
    raise ConvertError(f'block.mlp_dim is {hf_config["n_inner"]}, which they have at {4 * hf_config["n_embd"]} only')
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
        # All that their class knows.
        Attribute('afn', 'block.mlp.activation', 'gelu', (
            ('gelu', 'gelu_tanh'), ('relu', 'relu'), ('silu', 'silu'), ('swish', 'silu'))),
        Attribute('embd_pdrop', 'block.dropout', 0.1),
        Attribute('resid_pdrop', 'block.dropout', 0.1),
        Attribute('attn_pdrop', 'block.attention.dropout', 0.1),
        Attribute('initializer_range', 'block.init.std', 0.02),
        Attribute('layer_norm_epsilon', 'block.norm.eps', 1e-5),
        Attribute('tie_word_embeddings', 'tied', True),
    ),
    fixed=SUMMARY,
    ignored=frozenset({'n_ctx', 'n_special', 'predict_special_tokens', 'summary_first_dropout'}),
    rules=(
        Rule('backbone/embeddings/tokens', 'transformer.tokens_embed.weight'),
        Rule('backbone/embeddings/positions', 'transformer.positions_embed.weight'),
        *RULES,
    ),
    parts={},
    heads={
        'lm': LM, **ASKED,
        # The released code drops what the classifier reads (clf_pdrop).
        'label': Head(lambda config, classes: PooledClasses(config.block, classes, 0.1, bias=False), LABEL.rules),
    },
    classes={
        'OpenAIGPTLMHeadModel': ('lm',), 'OpenAIGPTModel': (), 'OpenAIGPTDoubleHeadsModel': ('lm', 'choice'),
        'OpenAIGPTForSequenceClassification': ('label',),
    },
    prefix='transformer.',
    aliases=((r'^(tokens_embed|positions_embed|h)\.', r'transformer.\1.'),),
    to_current=to_current,
    from_current=from_current,
    skipped=(r'\.attn\.bias$', r'\.position_ids$'),
)
