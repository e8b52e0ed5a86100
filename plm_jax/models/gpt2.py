"""GPT-2 (Radford et al. 2019, Language Models are Unsupervised Multitask Learners).

Parameters of the released checkpoints, positions included: small 124,439,808, medium 354,823,168,
large 774,030,080, xl 1,557,611,200; published as 117M, 345M, 762M and 1542M (table 2). Layer
normalization comes before sublayers, and once more after the last layer. Initial weights of output
projections into the residual stream are divided by the square root of the number of residual layers
(section 2.3), of which a layer has two.

GPT-3 (Brown et al. 2020, arXiv:2005.14165): GPT-2 with alternating full and local attention.
The eight sizes are those of table 2.1. Its XL and 13B do not add up to the parameters in table D.1,
1,320 and 12,850 million. With heads that make up the hidden size (16 of 128, and 40 of 128 for a
hidden size of 5,120) they do, and those are the sizes here. The paper does not state the size of
the sliding window: 256 tokens here, the token itself included, as in GPT-Neo.

GPT-Neo (Black et al. 2021, doi:10.5281/zenodo.5297715): alternating full and local attention.
Local layers have a sliding window of 256 tokens. Parameters of the released checkpoints: 125M
125,198,592, 1.3B 1,315,575,808, 2.7B 2,651,307,520. Attention logits are not divided by the square
root of the head size, and of attention's projections only the output projection has a bias.
"""
from collections.abc import Mapping
import dataclasses
import functools
from typing import Any

from plm_jax import validation
from plm_jax.architectures.decoder import Decoder, DecoderConfig
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.heads import NextTokenHead, PooledClassifier, TokenClassifier
from plm_jax.layers.init import NORMAL_INIT
from plm_jax.layers.mlp import MlpConfig
from plm_jax.layers.norm import NormConfig
from plm_jax.layers.stack import StackConfig
from plm_jax.models import bert
from plm_jax.models.bert import GELU_NEW_ACTIVATIONS
from plm_jax.models.layouts import Linear, Same
from plm_jax.models.rules import (
  Attribute,
  ConvertError,
  Family,
  HeadSpec,
  Rule,
  dense_rules,
  join_rules,
  norm_rules,
  packed_rules,
)


def make_config(layers: int, width: int, dtype: Dtype = 'float32') -> DecoderConfig:
  """Make a GPT-2 with heads of 64 and an MLP of 4 x hidden size, as in all released sizes."""
  init = dataclasses.replace(NORMAL_INIT, out_std=0.02 * (2 * layers) ** -0.5)
  block = BlockConfig(
      width=width, heads=width // 64, mlp_dim=4 * width, mlp=MlpConfig(activation='gelu_tanh'),
      norm_at='pre', norm=NormConfig(eps=1e-5), init=init, dtype=dtype)
  return DecoderConfig(block=block, stack=StackConfig(layers=layers))


small = functools.partial(make_config, 12, 768)  # 124M parameters
medium = functools.partial(make_config, 24, 1024)  # 355M parameters
large = functools.partial(make_config, 36, 1280)  # 774M parameters
xl = functools.partial(make_config, 48, 1600)  # 1.56B parameters


def conv1d_rules(ours: str, theirs: str, inputs: int = 1) -> tuple[Rule, Rule]:
  """Make the rules of transformers' Conv1D, whose kernel is [inputs, outputs]."""
  kernel = Rule(f'{ours}/kernel', f'{theirs}.weight', Linear(inputs, transposed=False))
  return kernel, Rule(f'{ours}/bias', f'{theirs}.bias', Same(flat=True))


def normalize_hf_config(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
  """Set the width of the MLP, for which null means 4 x hidden size, and sliding windows."""
  inner = hf_config.get('n_inner') or 4 * hf_config.get('n_embd', 768)
  hf_config = {**hf_config, 'n_inner': inner}
  if 'attention_layers' in hf_config:
    return import_windows(hf_config, hf_config.get('n_layer', 12))
  return hf_config


def denormalize_hf_config(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
  """Reverse `normalize_hf_config`, and repeat n_positions as n_ctx, which llama.cpp reads.

  A model with sliding windows gets the model_type gpt3, because transformers' GPT-2 has full
  attention only.
  """
  is_usual = hf_config['n_inner'] == 4 * hf_config['n_embd']
  hf_config = {**hf_config, 'n_inner': None if is_usual else hf_config['n_inner'],
               'n_ctx': hf_config['n_positions']}
  windows = hf_config.pop('windows')
  if not windows:
    return hf_config
  layers = export_windows(windows, hf_config['n_layer'], 'dense')
  return {**hf_config, 'model_type': 'gpt3', **layers}


def import_windows(hf_config: Mapping[str, Any], layers: int) -> dict[str, Any]:
  """Replace attention_layers or attention_types, and window_size, by `windows`.

  `windows` is the shortest tuple that, repeated, gives the sliding window of every layer; 0 is full
  attention. attention_types has (kinds, times) pairs. Raises ConvertError for other kinds of layers
  or another number of them.
  """
  hf_config = dict(hf_config)
  types, size = hf_config.pop('attention_types', None), hf_config.pop('window_size', 256)
  if types and not all(type(times) is int and 0 < times <= layers for _, times in types):
    raise ConvertError(
        f'attention_types is {types!r:.100}, expected at most {layers} times of each')
  kinds = hf_config.pop('attention_layers', None)
  if not kinds:
    kinds = []
    for run, times in types:
      kinds += run * times
  if len(kinds) != layers or not set(kinds) <= {'global', 'dense', 'local'}:
    raise ConvertError(
        f'expected global, dense or local for each of {layers} layers, got {kinds!r:.100}')
  windows = [size if kind == 'local' else 0 for kind in kinds]
  if not any(windows):
    return {**hf_config, 'windows': ()}
  return {**hf_config, 'windows': shortest_period(windows)}


def export_windows(windows: tuple[int, ...], layers: int, full: str) -> dict[str, Any]:
  """Return attention_layers and window_size for `windows`.

  Args:
    windows: sliding windows, repeated over the layers; 0 is full attention.
    layers: number of layers.
    full: name of a layer with full attention.

  Raises:
    ConvertError: for windows of several sizes.
  """
  if len({*windows, 0}) > 2:
    raise ConvertError(f'windows of several sizes, {windows}, have no counterpart there')
  period = windows or (0,)
  sizes = [period[n % len(period)] for n in range(layers)]
  kinds = ['local' if size else full for size in sizes]
  return {'attention_layers': kinds, 'window_size': max(sizes) or 256}


def shortest_period(windows: list[int]) -> tuple[int, ...]:
  """Return the shortest beginning that, repeated, gives the windows of all layers."""
  for size in range(1, len(windows)):
    if all(window == windows[n % size] for n, window in enumerate(windows)):
      return tuple(windows[:size])
  return tuple(windows)


BLOCK, LAYER = 'backbone/stack/layers/block', 'transformer.h.{n}'
BLOCK_RULES = join_rules(
    packed_rules(
        f'{BLOCK}/attention', f'{LAYER}.attn.c_attn', ('query', 'key', 'value'),
        Linear(transposed=False)),
    conv1d_rules(f'{BLOCK}/attention/out', f'{LAYER}.attn.c_proj', inputs=2),
    norm_rules(f'{BLOCK}/attention_norm', f'{LAYER}.ln_1'),
    conv1d_rules(f'{BLOCK}/mlp/up', f'{LAYER}.mlp.c_fc'),
    conv1d_rules(f'{BLOCK}/mlp/down', f'{LAYER}.mlp.c_proj'),
    norm_rules(f'{BLOCK}/mlp_norm', f'{LAYER}.ln_2'),
)
LM_HEAD = HeadSpec(
    lambda config, classes: NextTokenHead(
        config.block, config.vocab, config.tied, config.logit_factor, head=config.lm_head,
        cap=config.logit_cap),
    (
        Rule('heads_lm/kernel', 'lm_head.weight', Linear(),
             applies_to=lambda config: not config.tied),
        Rule('backbone/embeddings/tokens', 'lm_head.weight', copy=True,
             applies_to=lambda config: config.tied),
    ))
LABEL_HEAD = HeadSpec(
    lambda config, classes: PooledClassifier(config.block, classes, 0.0, bias=False),
    (Rule('heads_label/dense/kernel', 'score.weight', Linear()),))
CHOICE_HEAD = HeadSpec(
    lambda config, classes: PooledClassifier(config.block, None, 0.1),
    dense_rules('heads_choice/dense', 'multiple_choice_head.summary'),
    dropout='summary_first_dropout')
TAGS_HEAD = HeadSpec(
    lambda config, classes: TokenClassifier(config.block, classes, 0.1),
    dense_rules('heads_tags/dense', 'classifier'), dropout='classifier_dropout')
# Heads of downstream tasks for decoders. Where transformers has a class for a task, its parameters
# have the same names, except LLaMA's tags.
TASK_HEADS = {'label': LABEL_HEAD, 'tags': TAGS_HEAD, 'span': bert.FAMILY.heads['span'],
              'choice': CHOICE_HEAD}
SUMMARY_ATTRIBUTES = {
    'summary_type': 'cls_index', 'summary_use_proj': True, 'summary_activation': None,
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
        Attribute('activation_function', 'block.mlp.activation', 'gelu_new', GELU_NEW_ACTIVATIONS),
        Attribute('embd_pdrop', 'block.dropout', 0.1),
        Attribute('resid_pdrop', 'block.dropout', 0.1),
        Attribute('attn_pdrop', 'block.attention.dropout', 0.1),
        Attribute('initializer_range', 'block.init.std', 0.02),
        Attribute('layer_norm_epsilon', 'block.norm.eps', 1e-5),
        Attribute('scale_attn_weights', 'block.attention.scale', True,
                  ((True, None), (False, 1.0))),
        Attribute('scale_attn_by_inverse_layer_idx', 'depth_scale', False),
        Attribute('tie_word_embeddings', 'tied', True),
        Attribute('is_causal', 'causal', True),
        Attribute('windows', 'windows', ()),
    ),
    fixed=SUMMARY_ATTRIBUTES,
    # n_ctx repeats n_positions. The order in which attention is computed changes no more than
    # rounding.
    ignored=frozenset({'n_ctx', 'reorder_and_upcast_attn', 'summary_first_dropout'}),
    rules=join_rules(
        Rule('backbone/embeddings/tokens', 'transformer.wte.weight'),
        Rule('backbone/embeddings/positions', 'transformer.wpe.weight'),
        BLOCK_RULES,
        norm_rules('backbone/stack/norm', 'transformer.ln_f'),
    ),
    part_tensors={},
    heads={'lm': LM_HEAD, **TASK_HEADS},
    classes={
        'GPT2LMHeadModel': ('lm',), 'GPT2Model': (), 'GPT2DoubleHeadsModel': ('lm', 'choice'),
        'GPT2ForSequenceClassification': ('label',), 'GPT2ForTokenClassification': ('tags',),
        'GPT2ForQuestionAnswering': ('span',),
    },
    prefix='transformer.',
    aliases=((r'^(wte|wpe|h|ln_f)\.', r'transformer.\1.'),),
    normalize_hf_config=normalize_hf_config,
    denormalize_hf_config=denormalize_hf_config,
    skip_patterns=(r'\.attn\.(masked_)?bias$',),
)


def make_gpt3_config(
    layers: int, width: int, heads: int, dtype: Dtype = 'float32') -> DecoderConfig:
  """Make a GPT-3 with an MLP of 4 x hidden size and 2,048 positions."""
  return validation.with_paths(make_config(layers, width, dtype), {
      'block.heads': heads, 'max_length': 2048, 'windows': (0, 256)})


gpt3_small = functools.partial(make_gpt3_config, 12, 768, 12)  # 125M parameters
gpt3_medium = functools.partial(make_gpt3_config, 24, 1024, 16)  # 356M parameters
gpt3_large = functools.partial(make_gpt3_config, 24, 1536, 16)  # 760M parameters
gpt3_xl = functools.partial(make_gpt3_config, 24, 2048, 16)  # 1.32B parameters
gpt3_2_7b = functools.partial(make_gpt3_config, 32, 2560, 32)  # 2.65B parameters
gpt3_6_7b = functools.partial(make_gpt3_config, 32, 4096, 32)  # 6.66B parameters
gpt3_13b = functools.partial(make_gpt3_config, 40, 5120, 40)  # 12.85B parameters
gpt3_175b = functools.partial(make_gpt3_config, 96, 12288, 96)  # 174.6B parameters


# Names and layouts of GPT-2 under a model_type of its own, because transformers has no GPT-3.
GPT3 = dataclasses.replace(
    FAMILY, name='gpt3', config=gpt3_small(), classes={'GPT2LMHeadModel': ('lm',)})


def make_gpt_neo_config(
    layers: int, width: int, heads: int, dtype: Dtype = 'float32') -> DecoderConfig:
  """Make a GPT-Neo with an MLP of 4 x hidden size and 2,048 positions.

  It has no dropout, as released.
  """
  return validation.with_paths(make_gpt3_config(layers, width, heads, dtype), {
      'block.attention.scale': 1.0, 'block.attention.bias': ('out',), 'block.init.out_std': None,
      'block.dropout': 0.0, 'block.attention.dropout': 0.0})


gpt_neo_125m = functools.partial(make_gpt_neo_config, 12, 768, 12)  # 125M parameters
gpt_neo_1_3b = functools.partial(make_gpt_neo_config, 24, 2048, 16)  # 1.32B parameters
gpt_neo_2_7b = functools.partial(make_gpt_neo_config, 32, 2560, 20)  # 2.65B parameters


def normalize_gpt_neo_config(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
  """Set the width of the MLP and the sliding window of each layer."""
  layers = hf_config.get('num_layers', 24)
  inner = hf_config.get('intermediate_size') or 4 * hf_config.get('hidden_size', 2048)
  return import_windows({
      'attention_types': [[['global', 'local'], 12]], **hf_config, 'intermediate_size': inner},
      layers)


def denormalize_gpt_neo_config(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
  """Reverse `normalize_gpt_neo_config`."""
  hf_config = dict(hf_config)
  layers = export_windows(hf_config.pop('windows'), hf_config['num_layers'], 'global')
  if hf_config['intermediate_size'] == 4 * hf_config['hidden_size']:
    hf_config['intermediate_size'] = None
  types = [[[kind], 1] for kind in layers['attention_layers']]
  return {**hf_config, **layers, 'attention_types': types}


NEO_ATTENTION = f'{LAYER}.attn.attention'
GPT_NEO = dataclasses.replace(
    FAMILY,
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
        [rule for rule in FAMILY.rules
         if f'{BLOCK}/attention/' not in rule.ours and '/mlp/' not in rule.ours],
        Rule(f'{BLOCK}/attention/query/kernel', f'{NEO_ATTENTION}.q_proj.weight', Linear()),
        Rule(f'{BLOCK}/attention/key/kernel', f'{NEO_ATTENTION}.k_proj.weight', Linear()),
        Rule(f'{BLOCK}/attention/value/kernel', f'{NEO_ATTENTION}.v_proj.weight', Linear()),
        dense_rules(f'{BLOCK}/attention/out', f'{NEO_ATTENTION}.out_proj', inputs=2),
        dense_rules(f'{BLOCK}/mlp/up', f'{LAYER}.mlp.c_fc'),
        dense_rules(f'{BLOCK}/mlp/down', f'{LAYER}.mlp.c_proj'),
    ),
    heads={'lm': LM_HEAD, **TASK_HEADS},
    classes={
        'GPTNeoForCausalLM': ('lm',), 'GPTNeoModel': (),
        'GPTNeoForSequenceClassification': ('label',),
        'GPTNeoForTokenClassification': ('tags',), 'GPTNeoForQuestionAnswering': ('span',),
    },
    normalize_hf_config=normalize_gpt_neo_config,
    denormalize_hf_config=denormalize_gpt_neo_config,
    skip_patterns=(r'\.attn\.attention\.(masked_)?bias$',),
)
