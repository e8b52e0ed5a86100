"""ModernBERT (Warner et al. 2024, arXiv:2412.13663), and Ettin's encoders (Weller et al. 2025, arXiv:2507.11412).

Parameters as published: base 149M, large 395M (section 2.1), Ettin 17M to 1B. Norms come first and have no biases, as
nothing else has but the logits; the embeddings are normalised, so that the first layer's attention reads them as they
are. Two layers of three see 64 tokens to either side, and turn positions by another base than those that see all.
"""
from collections.abc import Mapping
import dataclasses
from typing import Any

from plm_jax.architectures.encoder import Encoder, EncoderConfig
from plm_jax.conversion.layouts import Packed, Same
from plm_jax.conversion.rules import Attribute, ConvertError, Family, Head, Rule
from plm_jax.layers.attention import AttentionConfig
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.heads import HeadConfig, MaskedTokens, NormedClasses
from plm_jax.layers.init import InitConfig
from plm_jax.layers.mlp import MlpConfig
from plm_jax.layers.norm import NormConfig
from plm_jax.layers.rope import DynamicScaling, Rope, TwoRopes
from plm_jax.layers.stack import StackConfig
from plm_jax.models.bert import ACTIVATIONS, matrix, norm, output
from plm_jax.models.llama import PROJECTIONS, SWITCH, read_scaling, written

VOCAB = 50_368  # 50,280 pieces, five special tokens and 83 that stand for none: a multiple of 64


def sized(layers: int, width: int, heads: int, mlp_dim: int, dtype: Dtype = 'float32') -> EncoderConfig:
  """Makes a size over rows of up to 8,192 tokens; matrices on the way out begin smaller by the root of 2 N."""
  block = BlockConfig(
      width=width, heads=heads, mlp_dim=mlp_dim, norm_at='pre', norm=NormConfig('layer_scale', 1e-5), dropout=0.0,
      attention=AttentionConfig(bias=(), dropout=0.0, position=TwoRopes()), mlp=MlpConfig(gated=True, bias=False),
      init=InitConfig(out_std=0.02 * (2 * layers) ** -0.5), dtype=dtype)
  return EncoderConfig(
      vocab=VOCAB, block=block, stack=StackConfig(layers, first_norm=False), max_length=8192, absolute='none', types=0,
      norm_embedded=True, windows=(0, 64, 64), head=HeadConfig(bias=False, activation='gelu'), pooler=False)


def base(dtype: Dtype = 'float32') -> EncoderConfig:
  """Makes ModernBERT base: 22 layers of width 768, 149M parameters."""
  return sized(22, 768, 12, 1152, dtype)


def large(dtype: Dtype = 'float32') -> EncoderConfig:
  """Makes ModernBERT large: 28 layers of width 1024, 395M parameters."""
  return sized(28, 1024, 16, 2624, dtype)


def ettin_17m(dtype: Dtype = 'float32') -> EncoderConfig:
  """Makes Ettin 17M: 7 layers of width 256, 16.9M parameters."""
  return sized(7, 256, 4, 384, dtype)


def ettin_32m(dtype: Dtype = 'float32') -> EncoderConfig:
  """Makes Ettin 32M: 10 layers of width 384, 32.1M parameters."""
  return sized(10, 384, 6, 576, dtype)


def ettin_68m(dtype: Dtype = 'float32') -> EncoderConfig:
  """Makes Ettin 68M: 19 layers of width 512, 68.5M parameters."""
  return sized(19, 512, 8, 768, dtype)


def ettin_1b(dtype: Dtype = 'float32') -> EncoderConfig:
  """Makes Ettin 1B: 28 layers of width 1792, 1.03B parameters."""
  return sized(28, 1792, 28, 3840, dtype)


def to_current(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Reads which layers see a band as `windows`, and both ropes as one value, `rope`, from either of the ways that
  transformers has had to write them. ConvertError for what is not known."""
  hf_config = {'num_hidden_layers': 22, 'max_position_embeddings': 8192, **hf_config}
  every, kinds = hf_config.pop('global_attn_every_n_layers', 3), hf_config.pop('layer_types', None)
  window, layers = hf_config.pop('local_attention', 128), hf_config['num_hidden_layers']
  counts = (('global_attn_every_n_layers', every, 1), ('local_attention', window, 2), ('num_hidden_layers', layers, 1))
  for name, value, least in counts:
    if type(value) is not int or not least <= value <= 1 << 24:
      raise ConvertError(f'cannot convert the configuration: {name} is {value!r}, expected a number from {least} on')
  if kinds is None:
    windows = (0, *[window // 2] * (min(every, layers) - 1))
  else:
    if not isinstance(kinds, list) or len(kinds) != layers or set(kinds) - {WHOLE, BAND}:
      raise ConvertError(f'cannot convert the configuration: layer_types is {str(kinds)[:200]}, expected {layers} of '
                         f'{WHOLE} and {BAND}')
    windows = turns([0 if kind == WHOLE else window // 2 for kind in kinds])
  given = hf_config.pop('rope_parameters', None) or {}
  thetas = {WHOLE: hf_config.pop('global_rope_theta', None) or 160_000.0,
            BAND: hf_config.pop('local_rope_theta', None) or 10_000.0}
  if not isinstance(given, dict) or set(given) - {WHOLE, BAND}:
    raise ConvertError(f'cannot convert the configuration: rope_parameters is {str(given)[:200]}, expected those of '
                       f'{WHOLE} and {BAND}')
  ropes = []
  for kind, theta in thetas.items():
    parameters = dict(given.get(kind) or {})
    theta = parameters.pop('rope_theta', theta)
    scaling = read_scaling(parameters, hf_config['max_position_embeddings'])
    if isinstance(scaling, DynamicScaling):
      raise ConvertError('cannot convert the configuration: rope scaling dynamic is not known of models of this type')
    ropes.append(Rope(float(theta), scaling=scaling))
  return {**hf_config, 'windows': windows, 'rope': TwoRopes(*ropes)}


def turns(windows: list[int]) -> tuple[int, ...]:
  """Returns the shortest beginning that, repeated, gives the windows of all layers."""
  return next(tuple(windows[:size]) for size in range(1, len(windows) + 1)
              if all(window == windows[number % size] for number, window in enumerate(windows)))


def from_current(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Undoes what `to_current` did, as every version of transformers reads it."""
  hf_config = dict(hf_config)
  windows, rope, layers = hf_config.pop('windows'), hf_config.pop('rope'), hf_config['num_hidden_layers']
  bands = {size for size in windows if size}
  if len(bands) > 1:
    raise ConvertError(f"transformers' ModernBERT has bands of one width, not {sorted(bands)} tokens to either side")
  kinds = [BAND if (windows or (0,))[number % len(windows or (0,))] else WHOLE for number in range(layers)]
  # What an older version reads, of a model that it can say.
  every = next((number for number in range(1, layers + 1) if kinds == [
      BAND if place % number else WHOLE for place in range(layers)]), None)
  ropes = {WHOLE: rope.whole, BAND: rope.band}
  if any(one.share != 1 for one in ropes.values()):
    raise ConvertError("transformers' ModernBERT turns whole heads, not a share of them")
  parameters = {kind: {'rope_theta': one.theta, **(written(one.scaling) or {'rope_type': 'default'})}
                for kind, one in ropes.items()}
  return {**hf_config, 'layer_types': kinds, 'local_attention': 2 * max(bands, default=64),
          'rope_parameters': parameters, 'global_rope_theta': rope.whole.theta, 'local_rope_theta': rope.band.theta,
          **({'global_attn_every_n_layers': every} if every else {})}


def packed(ours: str, theirs: str, parts: tuple[str, ...]) -> tuple[Rule, ...]:
  """Makes the rules of matrices that they keep one below another in one tensor, and of their biases."""
  return tuple(
      rule for number, part in enumerate(parts) for rule in (
          Rule(f'{ours}/{part}/kernel', f'{theirs}.weight', Packed(number, len(parts))),
          Rule(f'{ours}/{part}/bias', f'{theirs}.bias', Packed(number, len(parts), layout=Same(flat=True)))))


def head(name: str, every: bool = False, classes: int | None = 0) -> Head:
  """Makes a task's head: the hidden layer of the head of masked tokens, and a layer of its own. classes: as many; 0: as
  there are labels."""
  return Head(
      lambda config, labels: NormedClasses(config.block, config.head, labels if classes == 0 else classes, every),
      (*matrix(f'heads_{name}/hidden', 'head.dense'), *norm(f'heads_{name}/norm', 'head.norm'),
       *matrix(f'heads_{name}/dense', 'classifier')), dropout='classifier_dropout')


WHOLE, BAND = 'full_attention', 'sliding_attention'
BLOCK, LAYER = 'backbone/stack/layers/block', 'model.layers.{n}'

# transformers' ModernBert.
FAMILY = Family(
    name='modernbert',
    backbone=lambda config: Encoder(config),
    config=base(),
    attributes=(
        Attribute('vocab_size', 'vocab', VOCAB),
        Attribute('hidden_size', 'block.width', 768),
        Attribute('num_hidden_layers', 'stack.layers', 22),
        Attribute('num_attention_heads', 'block.heads', 12),
        Attribute('intermediate_size', 'block.mlp_dim', 1152),
        Attribute('hidden_activation', 'block.mlp.activation', 'gelu', ACTIVATIONS),
        Attribute('max_position_embeddings', 'max_length', 8192),
        Attribute('initializer_range', 'block.init.std', 0.02),
        Attribute('norm_eps', 'block.norm.eps', 1e-5),
        Attribute('norm_bias', 'block.norm.kind', False, ((False, 'layer_scale'), (True, 'layer'))),
        Attribute('attention_bias', 'block.attention.bias', False, SWITCH),
        # Both are theirs by one name; of a model that differs in them the last is written, that of probabilities.
        Attribute('attention_dropout', 'block.attention.out_dropout', 0.0),
        Attribute('attention_dropout', 'block.attention.dropout', 0.0),
        Attribute('mlp_bias', 'block.mlp.bias', False),
        Attribute('mlp_dropout', 'block.mlp.dropout', 0.0),
        Attribute('tie_word_embeddings', 'tied', True),
        Attribute('decoder_bias', 'head.output_bias', True),
        Attribute('classifier_bias', 'head.bias', False),
        Attribute('classifier_activation', 'head.activation', 'gelu', ACTIVATIONS),
        Attribute('classifier_pooling', 'head.pooling', 'cls', (('cls', 'first'), ('mean', 'mean'))),
        Attribute('windows', 'windows', ()),
        Attribute('rope', 'block.attention.position', TwoRopes()),
    ),
    fixed={'embedding_dropout': 0.0},
    # How it is initialised and run; layer_norm_eps and position_embedding_type, which released files say besides, are
    # read by nothing there.
    ignored=frozenset({
        'initializer_cutoff_factor', 'deterministic_flash_attn', 'reference_compile', 'repad_logits_with_grad',
        'sparse_prediction', 'sparse_pred_ignore_index', 'layer_norm_eps', 'position_embedding_type'}),
    rules=(
        Rule('backbone/embeddings/tokens', 'model.embeddings.tok_embeddings.weight'),
        *norm('backbone/embeddings/norm', 'model.embeddings.norm'),
        *(dataclasses.replace(rule, first=1) for rule in norm(f'{BLOCK}/attention_norm', f'{LAYER}.attn_norm')),
        *packed(f'{BLOCK}/attention', f'{LAYER}.attn.Wqkv', PROJECTIONS[:3]),
        *matrix(f'{BLOCK}/attention/out', f'{LAYER}.attn.Wo', inputs=2),
        *norm(f'{BLOCK}/mlp_norm', f'{LAYER}.mlp_norm'),
        *packed(f'{BLOCK}/mlp', f'{LAYER}.mlp.Wi', ('up', 'gate')),
        *matrix(f'{BLOCK}/mlp/down', f'{LAYER}.mlp.Wo'),
        *norm('backbone/stack/norm', 'model.final_norm'),
    ),
    parts={},
    heads={
        'mlm': Head(lambda config, classes: MaskedTokens(config.block, config.tied, config.head), (
            *matrix('heads_mlm/dense', 'head.dense'),
            *norm('heads_mlm/norm', 'head.norm'),
            *output('decoder', 'decoder.bias'),
        )),
        'label': head('label'),
        'tags': head('tags', every=True),
        'choice': head('choice', classes=None),
        'span': head('span', every=True, classes=2),
    },
    classes={
        'ModernBertModel': (), 'ModernBertForMaskedLM': ('mlm',), 'ModernBertForSequenceClassification': ('label',),
        'ModernBertForTokenClassification': ('tags',), 'ModernBertForMultipleChoice': ('choice',),
        'ModernBertForQuestionAnswering': ('span',),
    },
    prefix='model.',
    ids=('pad', 'bos', 'eos', 'cls', 'sep'),
    aliases=((r'^(embeddings|layers|final_norm)\.', r'model.\1.'),),
    to_current=to_current,
    from_current=from_current,
)
