"""GPT-2 (Radford et al. 2019, Language Models are Unsupervised Multitask Learners).

Parameters of the released checkpoints, the table of positions included: small 124,439,808, medium 354,823,168, large
774,030,080, xl 1,557,611,200; published as 117M, 345M, 762M and 1542M (table 2). Norms come first, one more after the
last layer, and weights back into the residual stream begin smaller by the root of the number of residual layers
(section 2.3), of which a layer has two.
"""
from collections.abc import Mapping
import dataclasses
from typing import Any

from plm_jax.architectures.decoder import Decoder, DecoderConfig
from plm_jax.conversion.layouts import Linear, Packed, Same
from plm_jax.conversion.rules import Attribute, ConvertError, Family, Head, Rule
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.heads import NextTokens, PooledClasses, TokenClasses
from plm_jax.layers.init import NORMAL
from plm_jax.layers.mlp import MlpConfig
from plm_jax.layers.norm import NormConfig
from plm_jax.layers.stack import StackConfig
from plm_jax.models import bert
from plm_jax.models.bert import ACTIVATIONS, norm


def sized(layers: int, width: int, dtype: Dtype = 'float32') -> DecoderConfig:
  """Heads of 64 and an MLP of four times the width, as in all released sizes."""
  block = BlockConfig(
      width=width, heads=width // 64, mlp_dim=4 * width, mlp=MlpConfig(activation='gelu_tanh'), norm_at='pre',
      norm=NormConfig(eps=1e-5), init=dataclasses.replace(NORMAL, out_std=0.02 * (2 * layers) ** -0.5), dtype=dtype)
  return DecoderConfig(block=block, stack=StackConfig(layers=layers))


def small(dtype: Dtype = 'float32') -> DecoderConfig:
  """Makes GPT-2 small: 12 layers of width 768, 124M parameters."""
  return sized(12, 768, dtype)


def medium(dtype: Dtype = 'float32') -> DecoderConfig:
  """Makes GPT-2 medium: 24 layers of width 1024, 355M parameters."""
  return sized(24, 1024, dtype)


def large(dtype: Dtype = 'float32') -> DecoderConfig:
  """Makes GPT-2 large: 36 layers of width 1280, 774M parameters."""
  return sized(36, 1280, dtype)


def xl(dtype: Dtype = 'float32') -> DecoderConfig:
  """Makes GPT-2 XL: 48 layers of width 1600, 1.56B parameters."""
  return sized(48, 1600, dtype)


def convolution(ours: str, theirs: str, inputs: int = 1) -> tuple[Rule, Rule]:
  """Makes the rules of their Conv1D, whose kernel is [in, out]."""
  kernel = Rule(f'{ours}/kernel', f'{theirs}.weight', Linear(inputs, transposed=False))
  return kernel, Rule(f'{ours}/bias', f'{theirs}.bias', Same(flat=True))


def packed(ours: str, theirs: str) -> tuple[Rule, ...]:
  """Makes the rules of queries, keys and values, one behind another in one Conv1D."""
  return tuple(
      rule for part, name in enumerate(('query', 'key', 'value')) for rule in (
          Rule(f'{ours}/{name}/kernel', f'{theirs}.weight', Packed(part, layout=Linear(transposed=False))),
          Rule(f'{ours}/{name}/bias', f'{theirs}.bias', Packed(part, layout=Same(flat=True)))))


def to_current(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
  """Writes out the width of the MLP: none stands for four times that of the layers."""
  hf_config = {**hf_config, 'n_inner': hf_config.get('n_inner') or 4 * hf_config.get('n_embd', 768)}
  return bands(hf_config, hf_config.get('n_layer', 12)) if 'attention_layers' in hf_config else hf_config


def from_current(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
  """Undoes what `to_current` did. A model with bands gets a type that transformers' GPT-2, which sees all, does not
  read."""
  inner = hf_config['n_inner']
  hf_config = {**hf_config, 'n_inner': None if inner == 4 * hf_config['n_embd'] else inner}
  windows = hf_config.pop('windows')
  return {**hf_config, 'model_type': 'gpt3', **kinds(windows, hf_config['n_layer'], 'dense')} if windows else hf_config


def bands(hf_config: Mapping[str, Any], layers: int) -> dict[str, Any]:
  """Turns attention_layers, or the runs of attention_types, and window_size into `windows`, as short as it repeats."""
  hf_config = dict(hf_config)
  types, size = hf_config.pop('attention_types', None), hf_config.pop('window_size', 256)
  if types and not all(type(times) is int and 0 < times <= layers for _, times in types):
    raise ConvertError(f'attention_types is {types!r:.100}, expected at most {layers} times of each')
  named = hf_config.pop('attention_layers', None) or [kind for run, times in types for kind in run * times]
  if len(named) != layers or not set(named) <= {'global', 'dense', 'local'}:
    raise ConvertError(f'expected global, dense or local for each of {layers} layers, got {named!r:.100}')
  every = [size * (kind == 'local') for kind in named]
  period = next(p for p in range(1, layers + 1) if every == (every[:p] * layers)[:layers])
  return {**hf_config, 'windows': tuple(every[:period]) if any(every) else ()}


def kinds(windows: tuple[int, ...], layers: int, whole: str) -> dict[str, Any]:
  """Turns `windows` back: attention_layers and window_size, with `whole` for a layer that sees all."""
  if len({*windows, 0}) > 2:
    raise ConvertError(f'windows of several sizes, {windows}, have no counterpart there')
  every = [windows[n % len(windows)] if windows else 0 for n in range(layers)]
  return {'attention_layers': ['local' if size else whole for size in every], 'window_size': max(every) or 256}


BLOCK, LAYER = 'backbone/stack/layers/block', 'transformer.h.{n}'
RULES = (
    *packed(f'{BLOCK}/attention', f'{LAYER}.attn.c_attn'),
    *convolution(f'{BLOCK}/attention/out', f'{LAYER}.attn.c_proj', inputs=2),
    *norm(f'{BLOCK}/attention_norm', f'{LAYER}.ln_1'),
    *convolution(f'{BLOCK}/mlp/up', f'{LAYER}.mlp.c_fc'),
    *convolution(f'{BLOCK}/mlp/down', f'{LAYER}.mlp.c_proj'),
    *norm(f'{BLOCK}/mlp_norm', f'{LAYER}.ln_2'),
)
LM = Head(lambda config, classes: NextTokens(config.block, config.vocab, config.tied, config.logit_factor), (
    Rule('heads_lm/kernel', 'lm_head.weight', Linear(), where=lambda config: not config.tied),
    Rule('backbone/embeddings/tokens', 'lm_head.weight', copy=True, where=lambda config: config.tied),
))
LABEL = Head(lambda config, classes: PooledClasses(config.block, classes, 0.0, bias=False), (
    Rule('heads_label/dense/kernel', 'score.weight', Linear()),))
CHOICE = Head(
    lambda config, classes: PooledClasses(config.block, None, 0.1),
    bert.matrix('heads_choice/dense', 'multiple_choice_head.summary'), dropout='summary_first_dropout')
TAGS = Head(
    lambda config, classes: TokenClasses(config.block, classes, 0.1),
    bert.matrix('heads_tags/dense', 'classifier'), dropout='classifier_dropout')
# What decoders are asked. Where transformers has a class for it, it calls parameters the same, but for LLaMA's tags.
ASKED = {'label': LABEL, 'tags': TAGS, 'span': bert.FAMILY.heads['span'], 'choice': CHOICE}
SUMMARY = {'summary_type': 'cls_index', 'summary_use_proj': True, 'summary_activation': None,
           'summary_proj_to_labels': True}

FAMILY = Family(
    name='gpt2',
    backbone=lambda config: Decoder(config),
    config=small(),
    attributes=(
        Attribute('vocab_size', 'vocab', 50257),
        Attribute('n_embd', 'block.width', 768),
        Attribute('n_layer', 'stack.layers', 12),
        Attribute('n_head', 'block.heads', 12),
        Attribute('n_inner', 'block.mlp_dim', 3072),
        Attribute('n_positions', 'max_length', 1024),
        Attribute('activation_function', 'block.mlp.activation', 'gelu_new', (('gelu_new', 'gelu_tanh'), *ACTIVATIONS)),
        Attribute('embd_pdrop', 'block.dropout', 0.1),
        Attribute('resid_pdrop', 'block.dropout', 0.1),
        Attribute('attn_pdrop', 'block.attention.dropout', 0.1),
        Attribute('initializer_range', 'block.init.std', 0.02),
        Attribute('layer_norm_epsilon', 'block.norm.eps', 1e-5),
        Attribute('scale_attn_weights', 'block.attention.scale', True, ((True, None), (False, 1.0))),
        Attribute('scale_attn_by_inverse_layer_idx', 'depth_scale', False),
        Attribute('tie_word_embeddings', 'tied', True),
        Attribute('windows', 'windows', ()),
    ),
    fixed=SUMMARY,
    # n_ctx is n_positions again; how they compute attention changes no more than rounding.
    ignored=frozenset({'n_ctx', 'reorder_and_upcast_attn', 'summary_first_dropout'}),
    rules=(
        Rule('backbone/embeddings/tokens', 'transformer.wte.weight'),
        Rule('backbone/embeddings/positions', 'transformer.wpe.weight'),
        *RULES,
        *norm('backbone/stack/norm', 'transformer.ln_f'),
    ),
    parts={},
    heads={'lm': LM, **ASKED},
    classes={
        'GPT2LMHeadModel': ('lm',), 'GPT2Model': (), 'GPT2DoubleHeadsModel': ('lm', 'choice'),
        'GPT2ForSequenceClassification': ('label',), 'GPT2ForTokenClassification': ('tags',),
        'GPT2ForQuestionAnswering': ('span',),
    },
    prefix='transformer.',
    aliases=((r'^(wte|wpe|h|ln_f)\.', r'transformer.\1.'),),
    to_current=to_current,
    from_current=from_current,
    skipped=(r'\.attn\.(masked_)?bias$',),
)
