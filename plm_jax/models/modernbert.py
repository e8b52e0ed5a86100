"""ModernBERT (Warner et al. 2024, arXiv:2412.13663), Ettin's encoders and mmBERT.

Ettin is by Weller et al. 2025 (arXiv:2507.11412), mmBERT by Marone et al. 2025 (arXiv:2509.06888).
Parameters as published: base 149M, large 395M (section 2.1), Ettin 17M to 1B, mmBERT 140M and 307M.
Layer normalization comes before sublayers, without biases; only the logits have biases. The
embeddings are normalized, so the first layer's attention has no norm of its own. Two layers of
three have a sliding window of 64 tokens to either side and another rope base than the layers with
full attention.

ModernBERT's decoders: those of Ettin (Weller et al. 2025, arXiv:2507.11412).
They have the sizes and layers of Ettin's encoders, with causal attention. A sliding window is of 64
tokens, the token itself included. The LM head has the hidden layer of the encoders' masked-LM head.
"""
from collections.abc import Mapping
import dataclasses
import functools
from typing import Any

from plm_jax import validation
from plm_jax.architectures.decoder import Decoder, DecoderConfig
from plm_jax.architectures.encoder import Encoder, EncoderConfig
from plm_jax.layers.attention import AttentionConfig
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.embeddings import EmbeddingConfig
from plm_jax.layers.heads import (
  HeadConfig,
  MaskedLMHead,
  NextTokenConfig,
  NextTokenHead,
  PoolingClassifier,
)
from plm_jax.layers.init import InitConfig
from plm_jax.layers.mlp import MlpConfig
from plm_jax.layers.norm import NormConfig
from plm_jax.layers.rope import DynamicScaling, Rope, TwoRopes
from plm_jax.layers.stack import StackConfig
from plm_jax.models import bert, gpt2
from plm_jax.models.bert import ACTIVATIONS, mlm_head_rules
from plm_jax.models.llama import (
  BIAS_VALUES,
  FULL,
  PROJECTIONS,
  SLIDING,
  export_layer_types,
  export_scaling,
  import_layer_types,
  parse_scaling,
)
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

VOCAB = 50_368
"""50,280 tokens, five special tokens and 83 unused ones: a multiple of 64"""


def make_config(
    layers: int, width: int, heads: int, mlp_dim: int, dtype: Dtype = 'float32',
) -> EncoderConfig:
  """Make a ModernBERT for texts of up to 8,192 tokens.

  Initial weights of output projections are divided by sqrt(2 * layers).
  """
  block = BlockConfig(
      width=width, heads=heads, mlp_dim=mlp_dim, norm_at='pre',
      norm=NormConfig('layer_scale', 1e-5), dropout=0.0,
      attention=AttentionConfig(bias=(), dropout=0.0, position=TwoRopes()),
      mlp=MlpConfig(gated=True, bias=False),
      init=InitConfig(out_std=0.02 * (2 * layers) ** -0.5), dtype=dtype)
  return EncoderConfig(
      vocab=VOCAB, block=block, stack=StackConfig(layers, first_norm=False), max_length=8192,
      embeddings=EmbeddingConfig(types=0, absolute='none', norm=True), windows=(0, 64, 64),
      head=HeadConfig(bias=False, activation='gelu'), pooler=False)


base = functools.partial(make_config, 22, 768, 12, 1152)  # 149M parameters
large = functools.partial(make_config, 28, 1024, 16, 2624)  # 395M parameters
ettin_17m = functools.partial(make_config, 7, 256, 4, 384)  # 16.9M parameters
ettin_32m = functools.partial(make_config, 10, 384, 6, 576)  # 32.1M parameters
ettin_68m = functools.partial(make_config, 19, 512, 8, 768)  # 68.5M parameters
ettin_1b = functools.partial(make_config, 28, 1792, 28, 3840)  # 1.03B parameters


def make_mmbert(width: int, heads: int, dtype: Dtype = 'float32') -> EncoderConfig:
  """Make an mmBERT: 22 layers, and Gemma 2's vocabulary.

  Local layers have the rope base of global ones, and texts are classified by the mean of their
  tokens.
  """
  config = make_config(22, width, heads, 1152, dtype)
  return validation.with_paths(config, {
      'vocab': 256_000, 'head.pooling': 'mean',
      'block.attention.position': TwoRopes(band=Rope(160_000.0))})


mmbert_small = functools.partial(make_mmbert, 384, 6)  # 140M parameters, 42M without embeddings
mmbert_base = functools.partial(make_mmbert, 768, 12)  # 307M parameters, 110M without embeddings


ABOUT = 'cannot convert the configuration'


def normalize_hf_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Read sliding windows as `windows` and both ropes as `rope`, in any spelling of transformers.

  Raises ConvertError for what is not known.
  """
  hf_config = {'num_hidden_layers': 22, 'max_position_embeddings': 8192, **hf_config}

  # Sliding windows.
  every = hf_config.pop('global_attn_every_n_layers', 3)
  kinds = hf_config.pop('layer_types', None)
  window, layers = hf_config.pop('local_attention', 128), hf_config['num_hidden_layers']
  counts = (('global_attn_every_n_layers', every, 1), ('local_attention', window, 2),
            ('num_hidden_layers', layers, 1))
  for name, value, least in counts:
    if type(value) is not int or not least <= value <= 1 << 24:
      raise ConvertError(f'{ABOUT}: {name} is {value!r}, expected a number from {least} on')
  if kinds is None:
    windows = (0, *[window // 2] * (min(every, layers) - 1))
  else:
    windows = import_layer_types(kinds, layers, window // 2)

  rope = import_two_ropes(
      hf_config.pop('rope_parameters', None) or {},
      hf_config.pop('global_rope_theta', None) or 160_000.0,
      hf_config.pop('local_rope_theta', None) or 10_000.0, hf_config['max_position_embeddings'])
  return {**hf_config, 'windows': windows, 'rope': rope}


def import_two_ropes(stated: Any, theta: float, local_theta: float, longest: int) -> TwoRopes:
  """Read rope_parameters of layers with global attention and with a sliding window.

  Args:
    stated: rope_parameters.
    theta: base of global layers, where they do not state it.
    local_theta: base of layers with a sliding window, where they do not state it.
    longest: max_position_embeddings.

  Raises:
    ConvertError: for what is not known.
  """
  if not isinstance(stated, dict) or set(stated) - {FULL, SLIDING}:
    raise ConvertError(f'{ABOUT}: rope_parameters is {str(stated)[:200]}, expected those of '
                       f'{FULL} and {SLIDING}')
  ropes = []
  for kind, base in ((FULL, theta), (SLIDING, local_theta)):
    parameters = dict(stated.get(kind) or {})
    base = parameters.pop('rope_theta', base)
    scaling = parse_scaling(parameters, longest)
    if isinstance(scaling, DynamicScaling):
      raise ConvertError(f'{ABOUT}: rope scaling dynamic is not known of models of this type')
    ropes.append(Rope(float(base), scaling=scaling))
  return TwoRopes(*ropes)


def export_two_ropes(rope: TwoRopes) -> dict[str, Any]:
  """Return rope_parameters. Raises ConvertError where only a share of a head is rotated."""
  parameters = {}
  for kind, one in ((FULL, rope.whole), (SLIDING, rope.band)):
    if one.share != 1:
      raise ConvertError('transformers rotates whole heads of this type, not a share of them')
    scaling = export_scaling(one.scaling) or {'rope_type': 'default'}
    parameters[kind] = {'rope_theta': one.theta, **scaling}
  return parameters


def denormalize_hf_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Reverse `normalize_hf_config`; every version of transformers reads the result.

  Raises ConvertError for windows of several sizes, and where rope rotates only a share of a head.
  """
  hf_config = dict(hf_config)
  windows, rope = hf_config.pop('windows'), hf_config.pop('rope')
  layers = hf_config['num_hidden_layers']
  kinds, size = export_layer_types(windows, layers)
  stated = {
      **hf_config, 'layer_types': kinds, 'local_attention': 2 * (size or 64),
      'rope_parameters': export_two_ropes(rope), 'global_rope_theta': rope.whole.theta,
      'local_rope_theta': rope.band.theta}
  # Older versions of transformers know only layers with full attention at regular distances.
  for every in range(1, layers + 1):
    if kinds == [SLIDING if n % every else FULL for n in range(layers)]:
      stated['global_attn_every_n_layers'] = every
      break
  return stated


def task_head(name: str, every: bool = False, classes: int | None = 0) -> HeadSpec:
  """Make a task's head: the hidden layer of the masked-LM head, and a dense layer of its own.

  Args:
    name: of the head.
    every: whether it reads every token, not a pooled text.
    classes: number of classes; 0: as many as there are labels; None: one score per text.
  """
  return HeadSpec(
      lambda config, labels: PoolingClassifier(
          config.block, config.head, labels if classes == 0 else classes, every),
      join_rules(
          dense_rules(f'heads_{name}/hidden', 'head.dense'),
          norm_rules(f'heads_{name}/norm', 'head.norm'),
          dense_rules(f'heads_{name}/dense', 'classifier')),
      dropout='classifier_dropout')


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
        Attribute('norm_bias', 'block.norm.kind', False,
                  ((False, 'layer_scale'), (True, 'layer'))),
        Attribute('attention_bias', 'block.attention.bias', False, BIAS_VALUES),
        # Their attention_dropout is both rates of ours. For a model where ours differ, the last is
        # written: that of the attention weights.
        Attribute('attention_dropout', 'block.attention.out_dropout', 0.0),
        Attribute('attention_dropout', 'block.attention.dropout', 0.0),
        Attribute('mlp_bias', 'block.mlp.bias', False),
        Attribute('mlp_dropout', 'block.mlp.dropout', 0.0),
        Attribute('tie_word_embeddings', 'tied', True),
        Attribute('decoder_bias', 'head.output_bias', True),
        Attribute('classifier_bias', 'head.bias', False),
        Attribute('classifier_activation', 'head.activation', 'gelu', ACTIVATIONS),
        Attribute('classifier_pooling', 'head.pooling', 'cls',
                  (('cls', 'first'), ('mean', 'mean'))),
        Attribute('windows', 'windows', ()),
        Attribute('rope', 'block.attention.position', TwoRopes()),
    ),
    fixed={'embedding_dropout': 0.0},
    # Initialization and execution. layer_norm_eps and position_embedding_type are in released
    # files, and nothing there reads them.
    ignored=frozenset({
        'initializer_cutoff_factor', 'deterministic_flash_attn', 'reference_compile',
        'repad_logits_with_grad', 'sparse_prediction', 'sparse_pred_ignore_index',
        'layer_norm_eps', 'position_embedding_type'}),
    rules=join_rules(
        Rule('backbone/embeddings/tokens', 'model.embeddings.tok_embeddings.weight'),
        norm_rules('backbone/embeddings/norm', 'model.embeddings.norm'),
        [dataclasses.replace(rule, first_layer=1)
         for rule in norm_rules(f'{BLOCK}/attention_norm', f'{LAYER}.attn_norm')],
        packed_rules(f'{BLOCK}/attention', f'{LAYER}.attn.Wqkv', PROJECTIONS[:3]),
        dense_rules(f'{BLOCK}/attention/out', f'{LAYER}.attn.Wo', inputs=2),
        norm_rules(f'{BLOCK}/mlp_norm', f'{LAYER}.mlp_norm'),
        packed_rules(f'{BLOCK}/mlp', f'{LAYER}.mlp.Wi', ('up', 'gate')),
        dense_rules(f'{BLOCK}/mlp/down', f'{LAYER}.mlp.Wo'),
        norm_rules('backbone/stack/norm', 'model.final_norm'),
    ),
    part_tensors={},
    heads={
        'mlm': HeadSpec(
            lambda config, classes: MaskedLMHead(config.block, config.tied, config.head),
            mlm_head_rules('head.dense', 'head.norm', 'decoder', 'decoder.bias')),
        'label': task_head('label'),
        'tags': task_head('tags', every=True),
        'choice': task_head('choice', classes=None),
        'span': task_head('span', every=True, classes=2),
    },
    classes={
        'ModernBertModel': (), 'ModernBertForMaskedLM': ('mlm',),
        'ModernBertForSequenceClassification': ('label',),
        'ModernBertForTokenClassification': ('tags',),
        'ModernBertForMultipleChoice': ('choice',), 'ModernBertForQuestionAnswering': ('span',),
    },
    prefix='model.',
    token_roles=('pad', 'bos', 'eos', 'cls', 'sep'),
    aliases=((r'^(embeddings|layers|final_norm)\.', r'model.\1.'),),
    normalize_hf_config=normalize_hf_config,
    denormalize_hf_config=denormalize_hf_config,
)


DECODER_FIELDS = {
    'head.bias': 'lm_head.bias', 'head.activation': 'lm_head.activation',
    'head.output_bias': 'lm_head.output_bias'}
"""fields of the encoders' configuration that have another name in that of the decoders"""


def make_decoder_config(
    layers: int, width: int, heads: int, mlp_dim: int, dtype: Dtype = 'float32',
) -> DecoderConfig:
  """Make a decoder in a size of the encoders, for texts of up to 8,192 tokens."""
  encoder = make_config(layers, width, heads, mlp_dim, dtype)
  return DecoderConfig(
      vocab=encoder.vocab, block=encoder.block, stack=encoder.stack, max_length=encoder.max_length,
      absolute='none', windows=encoder.windows, embed_norm=True,
      lm_head=NextTokenConfig(hidden=True, activation='gelu', output_bias=True))


ettin_decoder_17m = functools.partial(make_decoder_config, 7, 256, 4, 384)  # 16.9M parameters
ettin_decoder_150m = functools.partial(make_decoder_config, 22, 768, 12, 1152)  # 150M parameters


def normalize_decoder_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Read windows and ropes as the encoders do; sliding_window repeats half of local_attention."""
  hf_config = normalize_hf_config(hf_config)
  hf_config.pop('sliding_window', None)
  return hf_config


def make_decoder_classifier(config: DecoderConfig, classes: int) -> PoolingClassifier:
  """Make the classification head, which has the hidden layer of the LM head."""
  layer = config.lm_head
  head = HeadConfig(bias=layer.bias, activation=layer.activation, pooling=config.head.pooling)
  return PoolingClassifier(config.block, head, classes, bias=layer.bias)


LM_RULES = tuple(
    dataclasses.replace(rule, ours=rule.ours.replace('heads_mlm', 'heads_lm'))
    for rule in bert.mlm_head_rules('lm_head.dense', 'lm_head.norm', 'decoder', 'decoder.bias'))

# transformers' ModernBertDecoder.
DECODER = dataclasses.replace(
    FAMILY,
    name='modernbert-decoder',
    backbone=lambda config: Decoder(config),
    config=make_decoder_config(22, 768, 12, 1152),
    attributes=(
        *(dataclasses.replace(attribute, ours=DECODER_FIELDS.get(attribute.ours, attribute.ours))
          for attribute in FAMILY.attributes if attribute.ours != 'head.pooling'),
        Attribute('is_causal', 'causal', True)),
    ignored=FAMILY.ignored | {'classifier_pooling', 'causal_mask'},
    rules=join_rules(
        [rule for rule in FAMILY.rules if 'Wqkv' not in rule.theirs],
        *(dense_rules(f'{BLOCK}/attention/{ours}', f'{LAYER}.attn.{theirs}_proj')
          for ours, theirs in (('query', 'q'), ('key', 'k'), ('value', 'v')))),
    heads={
        'lm': HeadSpec(
            lambda config, classes: NextTokenHead(
                config.block, config.vocab, config.tied, config.logit_factor, head=config.lm_head),
            LM_RULES),
        **gpt2.TASK_HEADS,
        'label': dataclasses.replace(task_head('label'), make=make_decoder_classifier),
    },
    classes={
        'ModernBertDecoderModel': (), 'ModernBertDecoderForCausalLM': ('lm',),
        'ModernBertDecoderForSequenceClassification': ('label',),
    },
    normalize_hf_config=normalize_decoder_config,
)
