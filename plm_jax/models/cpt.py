"""CPT's understanding half (Shao et al. 2021, arXiv:2109.05729): the shared encoder and the decoder that fills masks.

The shared encoder, 10 layers of base and 20 of large, and the understanding decoder, 2 and 4 more, are one BERT, whose
tokens all have the second type; masked tokens are read off its hidden states as they are. The generation decoder, which
reads the shared encoder's last layer in the same file, is left out: what is read here fills masks, gives vectors and is
fine-tuned, as the paper's CPT_u.
"""
from collections.abc import Mapping
import dataclasses
from typing import Any

from plm_jax import checked
from plm_jax.architectures.encoder import Encoder, EncoderConfig
from plm_jax.conversion.layouts import Row, Same
from plm_jax.conversion.rules import Attribute, Family, Head, Rule
from plm_jax.layers.common import Dtype
from plm_jax.layers.heads import FirstTokenClasses, HeadConfig, MaskedTokens, SpanEnds, TokenClasses
from plm_jax.layers.init import NORMAL
from plm_jax.models import bert


def sized(size: EncoderConfig) -> EncoderConfig:
  """Returns a Chinese BERT of this size with types that are one and the same, whose masks are read off as they are."""
  return dataclasses.replace(
      size, vocab=51_271, max_length=1024, types=1, pooler=False, head=HeadConfig(transform=False, output_bias=False),
      block=checked.replaced(size.block, {'init': NORMAL}))


def base(dtype: Dtype = 'float32') -> EncoderConfig:
  """Makes the half of CPT base of December 2022: 10 and 2 layers of width 768, 51,271 pieces."""
  return sized(bert.base(dtype))


def large(dtype: Dtype = 'float32') -> EncoderConfig:
  """Makes the half of CPT large of December 2022: 20 and 4 layers of width 1024, 51,271 pieces."""
  return sized(bert.large(dtype))


@dataclasses.dataclass(frozen=True)
class Second(Same):
  """The second of their two rows, all of ours; the first is used by nobody, and written as the second."""

  def shape(self, ours):
    """Returns two rows."""
    return (2, *ours[1:])

  def theirs(self, x):
    """Writes the row twice."""
    return x.repeat(2, 0)

  def covering(self, index, shape):
    """Returns the same part of the second row."""
    del shape
    return (slice(1, 2), *index[1:]), index


def to_current(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Returns what is said of the encoder: its dropout is called the activation's."""
  return {name: value for name, value in hf_config.items()
          if not name.startswith('decoder_') and name != 'is_encoder_decoder'}


def from_current(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Says what else theirs has: no layers of a generation decoder."""
  heads, inner = hf_config['encoder_attention_heads'], hf_config['encoder_ffn_dim']
  return {**hf_config, 'decoder_layers': 0, 'decoder_attention_heads': heads, 'decoder_ffn_dim': inner,
          'is_encoder_decoder': True}


def with_bias(config: EncoderConfig, names: Any) -> EncoderConfig:
  """Returns the configuration with a bias of logits where the file has one: the released ones have none."""
  return checked.replaced(config, {'head.output_bias': 'final_logits_bias' in names})


def renamed(rule: Rule) -> Rule:
  """Renames a parameter of BERT; of the types, the second row."""
  layout = Second() if rule.ours == 'backbone/embeddings/types' else rule.layout
  return dataclasses.replace(rule, theirs=rule.theirs.replace('bert.', 'model.encoder.', 1), layout=layout)


CLASSES = {'CPTModel': (), 'CPTForMaskedLM': ('mlm',), 'CPTForConditionalGeneration': ('mlm',),
           'CPTForSequenceClassification': ('label',), 'CPTForQuestionAnswering': ('span',)}
# fastnlp/CPT, finetune/modeling_cpt.py; config.json calls it a bart.
FAMILY = Family(
    name='cpt',
    backbone=lambda config: Encoder(config),
    config=base(),
    attributes=(
        Attribute('vocab_size', 'vocab', 51_271),
        Attribute('d_model', 'block.width', 768),
        Attribute('encoder_layers', 'stack.layers', 12),
        Attribute('encoder_attention_heads', 'block.heads', 12),
        Attribute('encoder_ffn_dim', 'block.mlp_dim', 3072),
        Attribute('activation_dropout', 'block.dropout', 0.1),
        Attribute('attention_dropout', 'block.attention.dropout', 0.1),
        Attribute('init_std', 'block.init.std', 0.02),
        Attribute('max_position_embeddings', 'max_length', 1024),
    ),
    # BertModel's gelu, whatever the decoder has.
    fixed={'activation_function': 'gelu', 'add_bias_logits': False, 'add_final_layer_norm': False,
           'normalize_before': False, 'normalize_embedding': True, 'scale_embedding': False, 'cls_mode': 1},
    ignored=frozenset({'classif_dropout', 'decoder_layerdrop', 'dropout', 'encoder_layerdrop', 'hidden_size',
                       'num_attention_heads', 'num_hidden_layers'}),
    rules=(
        *(renamed(rule) for rule in bert.FAMILY.rules if '/pooler/' not in rule.ours),
        Rule('backbone/embeddings/tokens', 'model.shared.weight', copy=True),
    ),
    parts={},
    heads={
        'mlm': Head(lambda config, classes: MaskedTokens(config.block, config.tied, config.head), (
            Rule('backbone/embeddings/tokens', 'lm_head.weight', copy=True),
            Rule('heads_mlm/bias', 'final_logits_bias', Row(), where=lambda config: config.head.output_bias))),
        'label': Head(lambda config, classes: FirstTokenClasses(config.block, classes), (
            *bert.matrix('heads_label/hidden', 'cls_head.dense'),
            *bert.matrix('heads_label/dense', 'cls_head.out_proj')), dropout='classifier_dropout'),
        'tags': Head(lambda config, classes: TokenClasses(config.block, classes), bert.FAMILY.heads['tags'].rules),
        'span': Head(lambda config, classes: SpanEnds(config.block), bert.FAMILY.heads['span'].rules),
    },
    classes=CLASSES,
    beside=frozenset({'tags'}),
    prefix='model.',
    aliases=((r'^(shared|encoder|decoder)\.', r'model.\1.'),),
    read='modeling_cpt.py of fastnlp/CPT has its classes; here there is no generation decoder',
    pickled=True,
    skipped=(r'^(model\.)?decoder\.', r'^encoder\.version$'),
    to_current=to_current,
    from_current=from_current,
    infer_from_tensors=with_bias,
)
