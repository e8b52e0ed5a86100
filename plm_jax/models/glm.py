"""GLM (Du et al. 2022, arXiv:2103.10360): autoregressive blank infilling.

Parameters, all tables included: base 109,338,624, large 334,688,256, 410m 410,265,600 and 515m
514,632,960 (published as 110M, 335M, 410M and 515M), roberta-large 354,873,344 and large-chinese
355,659,776 (335M both there, whatever the vocabulary), 2b 1,920,122,880, 10b 9,880,682,496,
10b-chinese 9,879,633,920. The models of the multi-task mixtures have the sizes of the others.

Layer normalization comes before sublayers, and once more after the last layer: this is what section
2.2 of the paper means by "rearranged", after Megatron. Two tables are added to the embeddings:
positions in the text and positions in a blank. Embeddings are tied, without a bias of logits. gelu
is the tanh approximation. Output projections into the residual stream have smaller initial weights,
as released.
"""
from collections.abc import Mapping
import dataclasses
import functools
from typing import Any

from plm_jax.architectures.decoder import Decoder, DecoderConfig
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.heads import LabelWordClassifier, NextTokenHead
from plm_jax.layers.init import NORMAL_INIT
from plm_jax.layers.mlp import MlpConfig
from plm_jax.layers.norm import NormConfig
from plm_jax.layers.stack import StackConfig
from plm_jax.models import gpt2
from plm_jax.models.layouts import Shape
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


def make_config(
    layers: int, width: int, dtype: Dtype = 'float32', vocab: int = 30592, length: int = 512,
) -> DecoderConfig:
  """Make a GLM with heads of 64 and an MLP of 4 x hidden size for texts of `length` tokens.

  Both tables of positions have one more row than `length`. The default vocabulary is BERT's uncased
  one with four more tokens, rounded up to a multiple of 128.
  """
  init = dataclasses.replace(NORMAL_INIT, out_std=0.02 * (2 * layers) ** -0.5)
  block = BlockConfig(
      width=width, heads=width // 64, mlp_dim=4 * width, mlp=MlpConfig(activation='gelu_tanh'),
      norm_at='pre', norm=NormConfig(eps=1e-5), init=init, dtype=dtype)
  return DecoderConfig(
      vocab=vocab, block=block, stack=StackConfig(layers=layers), max_length=length + 1,
      types=length + 1)


base = functools.partial(make_config, 12, 768)  # 109M parameters
# The mixtures with sentences (GLM-Sent) and with long blanks (GLM-Doc) have this size, too.
large = functools.partial(make_config, 24, 1024)  # 335M parameters
glm_410m = functools.partial(make_config, 30, 1024)  # 410M parameters
glm_515m = functools.partial(make_config, 30, 1152)  # 515M parameters
# GLM large for RoBERTa's data, with a byte-level vocabulary.
roberta_large = functools.partial(make_config, 24, 1024, vocab=50304)  # 355M parameters
large_chinese = functools.partial(make_config, 24, 1024, vocab=50048, length=1024)  # 356M
glm_2b = functools.partial(make_config, 36, 2048, vocab=50304, length=1024)  # 1.92B parameters
glm_10b = functools.partial(make_config, 48, 4096, vocab=50304, length=1024)  # 9.88B parameters
glm_10b_chinese = functools.partial(make_config, 48, 4096, vocab=50048, length=1024)  # 9.88B


def normalize_hf_config(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
  """Replace max_sequence_length by the rows of both tables, and add the width of the MLP.

  Where there are two tables, they have one row more than max_sequence_length. Raises ConvertError
  for GLM-4, which transformers calls glm, too.
  """
  if 'num_hidden_layers' in hf_config or 'partial_rotary_factor' in hf_config:
    raise ConvertError('this is the GLM of 2024 (GLM-4), which transformers calls glm: '
                       'another model, not known here')
  hf_config = dict(hf_config)
  hf_config.pop('auto_map', None)  # it names the original code, which is this model
  two = hf_config.pop('block_position_encoding', True)
  rows = hf_config.pop('max_sequence_length', 512) + two
  return {
      'architectures': ['GLMForConditionalGeneration'], **hf_config, 'rows': rows,
      'block_rows': rows * two, 'inner': 4 * hf_config.get('hidden_size', 1024)}


def denormalize_hf_config(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
  """Reverse `normalize_hf_config`.

  Raises ConvertError for tables of two sizes, and an MLP that is not 4 x hidden size.
  """
  hf_config = dict(hf_config)
  rows, block_rows = hf_config.pop('rows'), hf_config.pop('block_rows')
  inner, width = hf_config.pop('inner'), hf_config['hidden_size']
  if block_rows not in (0, rows) or inner != 4 * width:
    raise ConvertError(f'GLM has tables of one size and an MLP of 4 x {width}, got tables of '
                       f'{rows} and {block_rows} rows and an MLP of {inner}')
  two = block_rows > 0
  return {**hf_config, 'max_sequence_length': rows - two, 'block_position_encoding': two}


def infer_hf_config(tensors: Mapping[str, tuple[Shape, str]]) -> dict[str, Any]:
  """Infer the configuration of a file without one from its shapes.

  Heads are of 64, as in every released size.

  Args:
    tensors: name -> (shape, type).

  Raises:
    ConvertError: for a file of another model, or a hidden size that is no multiple of 64.
  """
  shapes = {name.removeprefix('glm.'): shape for name, (shape, _) in tensors.items()}
  missing = {'word_embeddings.weight', 'transformer.position_embeddings.weight'} - shapes.keys()
  if missing:
    raise ConvertError(
        f'this is no checkpoint of GLM: it has no tensor {", ".join(sorted(missing))}')
  vocab, width = shapes['word_embeddings.weight']
  if width % 64:
    raise ConvertError(
        f'heads of 64, which all released sizes have, do not divide a width of {width}: state '
        'num_attention_heads, and the rest, in a config.json next to the file')
  two = 'transformer.block_position_embeddings.weight' in shapes
  rows = shapes['transformer.position_embeddings.weight'][0]
  layers = {name.split('.')[2] for name in shapes if name.startswith('transformer.layers.')}
  return {'model_type': 'glm', 'vocab_size': vocab, 'hidden_size': width, 'num_layers': len(layers),
          'num_attention_heads': width // 64, 'block_position_encoding': two,
          'max_sequence_length': rows - two}


BLOCK, LAYER = 'backbone/stack/layers/block', 'glm.transformer.layers.{n}'

# The original code, and its copy next to the checkpoints on the Hugging Face hub.
FAMILY = Family(
    name='glm',
    backbone=lambda config: Decoder(config),
    config=large(),
    attributes=(
        Attribute('vocab_size', 'vocab', 30592),
        Attribute('hidden_size', 'block.width', 1024),
        Attribute('num_layers', 'stack.layers', 24),
        Attribute('num_attention_heads', 'block.heads', 16),
        Attribute('inner', 'block.mlp_dim', 4096),
        Attribute('rows', 'max_length', 513),
        Attribute('block_rows', 'types', 513),
        Attribute('embedding_dropout_prob', 'block.dropout', 0.1),
        Attribute('output_dropout_prob', 'block.dropout', 0.1),
        Attribute('attention_dropout_prob', 'block.attention.dropout', 0.1),
        Attribute('initializer_range', 'block.init.std', 0.02),
        Attribute('layernorm_epsilon', 'block.norm.eps', 1e-5),
    ),
    # attention_scale divides keys and multiplies logits so that they fit in float16, which changes
    # no more than rounding; 1 means none.
    fixed={'relative_encoding': False, 'spell_length': None, 'attention_scale': 1.0},
    ignored=frozenset({
        'bad_words_id', 'checkpoint_activations', 'checkpoint_num_layers', 'command_tokens',
        'eop_token_id', 'gmask_token_id', 'max_memory_length', 'output_predict', 'parallel_output',
        'pool_token', 'smask_token_id', 'sop_token_id', 'spell_func',
        'use_scaled_init_for_output_weights'}),
    rules=join_rules(
        Rule('backbone/embeddings/tokens', 'glm.word_embeddings.weight'),
        Rule('backbone/embeddings/positions', 'glm.transformer.position_embeddings.weight'),
        Rule('backbone/embeddings/types', 'glm.transformer.block_position_embeddings.weight'),
        packed_rules(
            f'{BLOCK}/attention', f'{LAYER}.attention.query_key_value', ('query', 'key', 'value')),
        dense_rules(f'{BLOCK}/attention/out', f'{LAYER}.attention.dense', inputs=2),
        norm_rules(f'{BLOCK}/attention_norm', f'{LAYER}.input_layernorm'),
        dense_rules(f'{BLOCK}/mlp/up', f'{LAYER}.mlp.dense_h_to_4h'),
        dense_rules(f'{BLOCK}/mlp/down', f'{LAYER}.mlp.dense_4h_to_h'),
        norm_rules(f'{BLOCK}/mlp_norm', f'{LAYER}.post_attention_layernorm'),
        norm_rules('backbone/stack/norm', 'glm.transformer.final_layernorm'),
    ),
    part_tensors={},
    heads={
        'lm': HeadSpec(
            lambda config, classes: NextTokenHead(config.block, config.vocab, config.tied),
            (Rule('backbone/embeddings/tokens', 'glm.lm_head.weight', copy=True),)),
        'label': HeadSpec(
            lambda config, classes, words=(): LabelWordClassifier(words), (), verbalizer=True),
        'tags': gpt2.TASK_HEADS['tags'],
        'span': gpt2.TASK_HEADS['span'],
        'choice': gpt2.TASK_HEADS['choice'],
    },
    classes={'GLMForConditionalGeneration': ('lm',), 'GLMModel': ()},
    prefix='glm.',
    # The original code has bare names; the last line is for them. SwissArmyTransformer, which came
    # after it, has those of the first two.
    aliases=((r'^transformer\.word_embeddings\.', 'word_embeddings.'),
             (r'^mixins\.block_position_embedding\.', 'transformer.'),
             (r'^(word_embeddings|transformer|lm_head)\.', r'glm.\1.')),
    usage="it has the original code's names; transformers knows no such model, and its own glm is "
          'another',
    normalize_hf_config=normalize_hf_config,
    denormalize_hf_config=denormalize_hf_config,
    marker_attributes=frozenset({'block_position_encoding'}),
)
