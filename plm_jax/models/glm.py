"""GLM (Du et al. 2022, GLM: General Language Model Pretraining with Autoregressive Blank Infilling, arXiv:2103.10360).

Parameters, all tables included: base 109,338,624, large 334,688,256, 410m 410,265,600 and 515m 514,632,960 (published
as 110M, 335M, 410M and 515M), roberta-large 354,873,344 and large-chinese 355,659,776 (335M both there, whatever the
vocabulary), 2b 1,920,122,880, 10b 9,880,682,496, 10b-chinese 9,879,633,920. The models of the multi-task mixtures have
the sizes of the others.

Norms come first, and one more after the last layer: what section 2.2 of the paper means by "rearranged", after
Megatron. Two tables are added to the embeddings, of the place in the text and of the place in a blank. The output
matrix is the token table, without a bias; gelu is the tanh approximation; weights back into the residual stream begin
smaller, as released.
"""
from collections.abc import Mapping
import dataclasses
from typing import Any

from plm_jax.architectures.decoder import Decoder, DecoderConfig
from plm_jax.conversion.layouts import Packed, Same
from plm_jax.conversion.rules import Attribute, ConvertError, Family, Head, Rule, Shape
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.heads import NextTokens, WordClasses
from plm_jax.layers.init import NORMAL
from plm_jax.layers.mlp import MlpConfig
from plm_jax.layers.norm import NormConfig
from plm_jax.layers.stack import StackConfig
from plm_jax.models import gpt2
from plm_jax.models.bert import matrix, norm


def sized(layers: int, width: int, vocab: int = 30592, length: int = 512, dtype: Dtype = 'float32') -> DecoderConfig:
  """Heads of 64 and an MLP of four times the width; one more row in the tables than a text has tokens. The vocabulary
  is BERT's uncased one with four more pieces, to a multiple of 128."""
  block = BlockConfig(
      width=width, heads=width // 64, mlp_dim=4 * width, mlp=MlpConfig(activation='gelu_tanh'), norm_at='pre',
      norm=NormConfig(eps=1e-5), init=dataclasses.replace(NORMAL, out_std=0.02 * (2 * layers) ** -0.5), dtype=dtype)
  return DecoderConfig(
      vocab=vocab, block=block, stack=StackConfig(layers=layers), max_length=length + 1, types=length + 1)


def base(dtype: Dtype = 'float32') -> DecoderConfig:
  """Makes GLM base: 12 layers of width 768, 109M parameters."""
  return sized(12, 768, dtype=dtype)


def large(dtype: Dtype = 'float32') -> DecoderConfig:
  """Makes GLM large: 24 layers of width 1024, 335M parameters; also those of the mixtures with sentences (GLM-Sent) or
  long blanks (GLM-Doc)."""
  return sized(24, 1024, dtype=dtype)


def medium_410m(dtype: Dtype = 'float32') -> DecoderConfig:
  """Makes GLM of 410M: 30 layers of width 1024, 410M parameters."""
  return sized(30, 1024, dtype=dtype)


def medium_515m(dtype: Dtype = 'float32') -> DecoderConfig:
  """Makes GLM of 515M: 30 layers of width 1152, 515M parameters."""
  return sized(30, 1152, dtype=dtype)


def roberta_large(dtype: Dtype = 'float32') -> DecoderConfig:
  """Makes GLM large on RoBERTa's text, with its alphabet of bytes: 355M parameters."""
  return sized(24, 1024, 50304, dtype=dtype)


def large_chinese(dtype: Dtype = 'float32') -> DecoderConfig:
  """Makes GLM large for Chinese: 24 layers of width 1024, 356M parameters."""
  return sized(24, 1024, 50048, 1024, dtype)


def xxl_2b(dtype: Dtype = 'float32') -> DecoderConfig:
  """Makes GLM of 2B: 36 layers of width 2048, 1.92B parameters."""
  return sized(36, 2048, 50304, 1024, dtype)


def xxl_10b(dtype: Dtype = 'float32') -> DecoderConfig:
  """Makes GLM of 10B: 48 layers of width 4096, 9.88B parameters."""
  return sized(48, 4096, 50304, 1024, dtype)


def xxl_10b_chinese(dtype: Dtype = 'float32') -> DecoderConfig:
  """Makes GLM of 10B for Chinese: 48 layers of width 4096, 9.88B parameters."""
  return sized(48, 4096, 50048, 1024, dtype)


def to_current(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
  """Counts the rows of both tables, one more than max_sequence_length where there are two of them."""
  if 'num_hidden_layers' in hf_config or 'partial_rotary_factor' in hf_config:
    raise ConvertError('this is the GLM of 2024 (GLM-4), which transformers calls glm: another model, not known here')
  hf_config = {name: value for name, value in hf_config.items() if name != 'auto_map'}  # of its own code, which is this
  two = hf_config.pop('block_position_encoding', True)
  rows = hf_config.pop('max_sequence_length', 512) + two
  return {'architectures': ['GLMForConditionalGeneration'], **hf_config, 'rows': rows, 'block_rows': rows * two,
          'inner': 4 * hf_config.get('hidden_size', 1024)}


def from_current(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
  """Undoes what `to_current` did. Raises ConvertError for tables of two sizes, and an MLP that is not four times the
  width."""
  hf_config = dict(hf_config)
  rows, block_rows, inner = (hf_config.pop(name) for name in ('rows', 'block_rows', 'inner'))
  if block_rows not in (0, rows) or inner != 4 * hf_config['hidden_size']:
    raise ConvertError(f'GLM has tables of one size and an MLP of 4 x {hf_config["hidden_size"]}, got tables of {rows} '
                       f'and {block_rows} rows and an MLP of {inner}')
  return {**hf_config, 'max_sequence_length': rows - (block_rows > 0), 'block_position_encoding': block_rows > 0}


def described(tensors: Mapping[str, tuple[Shape, str]]) -> dict[str, Any]:
  """Reads the configuration of a file without one off the shapes in it; heads of 64, as in every released size."""
  shapes = {name.removeprefix('glm.'): shape for name, (shape, _) in tensors.items()}
  lacking = {'word_embeddings.weight', 'transformer.position_embeddings.weight'} - shapes.keys()
  if lacking:
    raise ConvertError(f'this is no checkpoint of GLM: it has no tensor {", ".join(sorted(lacking))}')
  vocab, width = shapes['word_embeddings.weight']
  if width % 64:
    raise ConvertError(f'heads of 64, which all released sizes have, do not divide a width of {width}: say '
                       'num_attention_heads, and the rest, in a config.json beside the file')
  two = 'transformer.block_position_embeddings.weight' in shapes
  layers = {name.split('.')[2] for name in shapes if name.startswith('transformer.layers.')}
  return {'model_type': 'glm', 'vocab_size': vocab, 'hidden_size': width, 'num_layers': len(layers),
          'num_attention_heads': width // 64, 'block_position_encoding': two,
          'max_sequence_length': shapes['transformer.position_embeddings.weight'][0] - two}


def packed(ours: str, theirs: str) -> tuple[Rule, ...]:
  """Makes the rules of queries, keys and values, one behind another in one matrix."""
  return tuple(
      rule for part, name in enumerate(('query', 'key', 'value')) for rule in (
          Rule(f'{ours}/{name}/kernel', f'{theirs}.weight', Packed(part)),
          Rule(f'{ours}/{name}/bias', f'{theirs}.bias', Packed(part, layout=Same(flat=True)))))


BLOCK, LAYER = 'backbone/stack/layers/block', 'glm.transformer.layers.{n}'

# The original code's, and its copy beside the checkpoints on the Hugging Face hub.
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
    # How large a factor keys and logits are divided and multiplied by, so as to fit in float16, changes no more than
    # rounding; there, 1 is none.
    fixed={'relative_encoding': False, 'spell_length': None, 'attention_scale': 1.0},
    ignored=frozenset({
        'bad_words_id', 'checkpoint_activations', 'checkpoint_num_layers', 'command_tokens', 'eop_token_id',
        'gmask_token_id', 'max_memory_length', 'output_predict', 'parallel_output', 'pool_token', 'smask_token_id',
        'sop_token_id', 'spell_func', 'use_scaled_init_for_output_weights'}),
    rules=(
        Rule('backbone/embeddings/tokens', 'glm.word_embeddings.weight'),
        Rule('backbone/embeddings/positions', 'glm.transformer.position_embeddings.weight'),
        Rule('backbone/embeddings/types', 'glm.transformer.block_position_embeddings.weight'),
        *packed(f'{BLOCK}/attention', f'{LAYER}.attention.query_key_value'),
        *matrix(f'{BLOCK}/attention/out', f'{LAYER}.attention.dense', inputs=2),
        *norm(f'{BLOCK}/attention_norm', f'{LAYER}.input_layernorm'),
        *matrix(f'{BLOCK}/mlp/up', f'{LAYER}.mlp.dense_h_to_4h'),
        *matrix(f'{BLOCK}/mlp/down', f'{LAYER}.mlp.dense_4h_to_h'),
        *norm(f'{BLOCK}/mlp_norm', f'{LAYER}.post_attention_layernorm'),
        *norm('backbone/stack/norm', 'glm.transformer.final_layernorm'),
    ),
    parts={},
    heads={
        'lm': Head(lambda config, classes: NextTokens(config.block, config.vocab, config.tied), (
            Rule('backbone/embeddings/tokens', 'glm.lm_head.weight', copy=True),
        )),
        'label': Head(lambda config, classes, words=(): WordClasses(words), (), words=True),
        **{name: gpt2.ASKED[name] for name in ('tags', 'span', 'choice')},
    },
    classes={'GLMForConditionalGeneration': ('lm',), 'GLMModel': ()},
    prefix='glm.',
    # Bare names in the original, and those of the code that came after it (SwissArmyTransformer).
    aliases=((r'^transformer\.word_embeddings\.', 'word_embeddings.'),
             (r'^mixins\.block_position_embedding\.', 'transformer.'),
             (r'^(word_embeddings|transformer|lm_head)\.', r'glm.\1.')),
    read="it has the original code's names; transformers knows no such model, and its own glm is another",
    pickled=True,
    to_current=to_current,
    from_current=from_current,
    marks=frozenset({'block_position_encoding'}),
)
