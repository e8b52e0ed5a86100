"""MosaicBERT (Portes et al. 2023, arXiv:2312.17482), as released in mosaicml/examples (benchmarks/bert).

Parameters as published: base 137M, large 434M. BERT with ALiBi in place of positions, GeGLU without biases on the way
in, no dropout in attention, behind the position-wise network's hidden units in place of the network, and a vocabulary
of a multiple of 8.
"""
from collections.abc import Mapping
import dataclasses
from typing import Any

from plm_jax import checked
from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.conversion.layouts import Packed, Same
from plm_jax.conversion.rules import Attribute, ConvertError, Head, Rule
from plm_jax.layers.common import Dtype
from plm_jax.layers.heads import MaskedTokens
from plm_jax.layers.positions import Alibi
from plm_jax.models import bert
from plm_jax.models.bert import matrix, norm, output

MARK = 'alibi_starting_size'
"""the attribute that tells its configurations from BERT's, whose model_type they have"""


def like(config: EncoderConfig) -> EncoderConfig:
  """Returns a BERT with what MosaicBERT has in place of it."""
  return checked.replaced(config, {
      'vocab': 30_528, 'absolute': 'none', 'block.attention.position': Alibi(), 'block.attention.dropout': 0.0,
      'block.mlp.gated': True, 'block.mlp.bias_in': False, 'block.mlp.dropout': 0.1, 'block.mlp.dropped': False,
      'pooler': False})


def base(dtype: Dtype = 'float32') -> EncoderConfig:
  """Makes MosaicBERT base: 12 layers of width 768, 137M parameters."""
  return like(bert.base(dtype))


def large(dtype: Dtype = 'float32') -> EncoderConfig:
  """Makes MosaicBERT large: 24 layers of width 1024, 434M parameters."""
  return like(bert.large(dtype))


def from_current(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Adds what makes released code read it as its own; rows of any length are read, from 512 on by larger tables."""
  if hf_config['vocab_size'] % 8:
    raise ConvertError(f"MosaicBERT's code rounds vocabularies up to a multiple of 8, got {hf_config['vocab_size']}")
  return {**hf_config, 'model_type': 'bert', MARK: 512}


BLOCK, LAYER = 'backbone/stack/layers/block', 'bert.encoder.layer.{n}'
PARTS = 'query', 'key', 'value'

FAMILY = dataclasses.replace(
    bert.FAMILY,
    name='mosaicbert',
    config=base(),
    attributes=(
        *(dataclasses.replace(attribute, default=0.0) if attribute.theirs == 'attention_probs_dropout_prob' else
          dataclasses.replace(attribute, values=(('gelu', 'gelu'),)) if attribute.theirs == 'hidden_act' else attribute
          for attribute in bert.FAMILY.attributes),
        Attribute('hidden_dropout_prob', 'block.mlp.dropout', 0.1),
    ),
    ignored=bert.FAMILY.ignored | {MARK},
    rules=(
        *(rule for rule in bert.FAMILY.rules
          if not rule.ours.startswith((f'{BLOCK}/mlp', 'backbone/embeddings/positions')) and not rule.ours.startswith(
              tuple(f'{BLOCK}/attention/{part}' for part in PARTS))),
        *(rule for number, part in enumerate(PARTS) for rule in (
            Rule(f'{BLOCK}/attention/{part}/kernel', f'{LAYER}.attention.self.Wqkv.weight', Packed(number)),
            Rule(f'{BLOCK}/attention/{part}/bias', f'{LAYER}.attention.self.Wqkv.bias',
                 Packed(number, layout=Same(flat=True))))),
        *(Rule(f'{BLOCK}/mlp/{part}/kernel', f'{LAYER}.mlp.gated_layers.weight', Packed(number, 2))
          for number, part in enumerate(('up', 'gate'))),
        *matrix(f'{BLOCK}/mlp/down', f'{LAYER}.mlp.wo'),
        *norm(f'{BLOCK}/mlp_norm', f'{LAYER}.mlp.layernorm'),
    ),
    heads={
        **bert.FAMILY.heads,
        'mlm': Head(lambda config, classes: MaskedTokens(config.block, config.tied), (
            *matrix('heads_mlm/dense', 'cls.predictions.transform.dense'),
            *norm('heads_mlm/norm', 'cls.predictions.transform.LayerNorm'),
            *output('cls.predictions.decoder', 'cls.predictions.decoder.bias'),
        )),
    },
    # The other classes of BERT are named in released code, and have nothing in them.
    classes={'BertModel': (), 'BertForMaskedLM': ('mlm',), 'BertForSequenceClassification': ('label',)},
    marks=frozenset({MARK}),
    beside=frozenset({'nsp', 'tags', 'choice', 'span'}),
    says={'auto_map': {
        'AutoConfig': 'configuration_bert.BertConfig', 'AutoModelForMaskedLM': 'bert_layers.BertForMaskedLM',
        'AutoModelForSequenceClassification': 'bert_layers.BertForSequenceClassification'}},
    to_current=lambda hf_config: {name: value for name, value in hf_config.items() if name != 'auto_map'},
    from_current=from_current,
    read='released code loads it: AutoModelForMaskedLM.from_pretrained({folder!r}, trust_remote_code=True), beside the '
         'bert_layers.py, bert_padding.py and configuration_bert.py of mosaicml/mosaic-bert-base',
)
