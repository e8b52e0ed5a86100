"""DeBERTa (He et al. 2021, arXiv:2006.03654), as first released: tables of single distances, keys without a bias.

Parameters besides the token table, as published with the code: base 100M, large 350M, xlarge 700M. For pre-training
there are absolute positions too, which the mask decoder alone sees.
"""
from collections.abc import Mapping
import dataclasses
from typing import Any

from plm_jax.architectures.deberta import Deberta, DebertaConfig
from plm_jax.conversion.layouts import Linear, Packed, Same
from plm_jax.conversion.rules import Attribute, Family, Head, Rule
from plm_jax.layers.attention import AttentionConfig
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.disentangled import Disentangled
from plm_jax.layers.heads import MaskedTokens, ReplacedTokens
from plm_jax.layers.init import NORMAL
from plm_jax.layers.norm import NormConfig
from plm_jax.layers.stack import StackConfig
from plm_jax.models import bert
from plm_jax.models.bert import ACTIVATIONS, matrix, norm


def sized(layers: int, width: int, dtype: Dtype = 'float32') -> DebertaConfig:
  """Heads of 64, an MLP of four times the width, and the vocabulary of RoBERTa."""
  block = BlockConfig(
      width=width, heads=width // 64, mlp_dim=4 * width, norm=NormConfig(eps=1e-7), init=NORMAL,
      attention=AttentionConfig(bias=('query', 'value', 'out'), position=Disentangled()), dtype=dtype)
  return DebertaConfig(vocab=50265, block=block, stack=StackConfig(layers=layers))


def base(dtype: Dtype = 'float32') -> DebertaConfig:
  """Makes DeBERTa base: 12 layers of width 768, 139M parameters."""
  return sized(12, 768, dtype)


def large(dtype: Dtype = 'float32') -> DebertaConfig:
  """Makes DeBERTa large: 24 layers of width 1024, 406M parameters."""
  return sized(24, 1024, dtype)


def xlarge(dtype: Dtype = 'float32') -> DebertaConfig:
  """Makes DeBERTa xlarge: 48 layers of width 1024, 758M parameters."""
  return sized(48, 1024, dtype)


def to_current(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
  """Reads their configuration without its many spellings: 'c2p|p2c' or a list, -1 for a default, sizes that say
  nothing."""
  hf_config = {'legacy': True, **hf_config}
  if not hf_config['legacy']:
    hf_config.pop('tie_word_embeddings', None)  # their newer head reads the token table whatever is said
  terms = hf_config.get('pos_att_type') or ()
  terms = [term.strip() for term in terms.lower().split('|')] if isinstance(terms, str) else terms
  hf_config['pos_att_type'] = tuple(sorted(set(filter(None, terms))))
  if not hf_config.get('relative_attention', False) and not hf_config['pos_att_type']:
    hf_config['relative_attention'] = True  # of no terms: nothing relative about it
  if hf_config.get('max_relative_positions', -1) < 1:
    hf_config['max_relative_positions'] = hf_config.get('max_position_embeddings', 512)
  width = hf_config.get('hidden_size', 0)
  implied = {'pooler_hidden_size': width, 'embedding_size': width,
             'attention_head_size': width // hf_config.get('num_attention_heads', 1)}
  return {name: value for name, value in hf_config.items() if name not in implied or value != implied[name]}


TERMS = tuple((terms, terms) for terms in ((), ('c2p',), ('p2c',), ('c2p', 'p2c')))
BLOCK, LAYER = 'backbone/stack/layers/block', 'deberta.encoder.layer.{n}'
ATTENTION, THEIR_ATTENTION = f'{BLOCK}/attention', f'{LAYER}.attention.self'

# What transformers' two classes of DeBERTa have in common.
ATTRIBUTES = (
    Attribute('hidden_act', 'block.mlp.activation', 'gelu', ACTIVATIONS),
    Attribute('hidden_dropout_prob', 'block.dropout', 0.1),
    Attribute('attention_probs_dropout_prob', 'block.attention.dropout', 0.1),
    Attribute('max_position_embeddings', 'max_length', 512),
    Attribute('type_vocab_size', 'types', 0),
    Attribute('initializer_range', 'block.init.std', 0.02),
    Attribute('layer_norm_eps', 'block.norm.eps', 1e-7),
    Attribute('max_relative_positions', 'block.attention.position.span', 512),
    Attribute('position_biased_input', 'biased_input', True),
    Attribute('pos_att_type', 'block.attention.position.terms', (), TERMS),
    Attribute('pooler_hidden_act', 'pooler_activation', 'gelu', ACTIVATIONS),
)
POSITIONS = 'deberta.embeddings.position_embeddings.weight'
RULES = (
    Rule('backbone/embeddings/tokens', 'deberta.embeddings.word_embeddings.weight'),
    Rule('backbone/embeddings/positions', POSITIONS),
    Rule('backbone/positions', POSITIONS),
    Rule('backbone/embeddings/types', 'deberta.embeddings.token_type_embeddings.weight'),
    *norm('backbone/embeddings/norm', 'deberta.embeddings.LayerNorm'),
    Rule('backbone/stack/relative', 'deberta.encoder.rel_embeddings.weight'),
    *matrix(f'{ATTENTION}/out', f'{LAYER}.attention.output.dense', inputs=2),
    *norm(f'{BLOCK}/attention_norm', f'{LAYER}.attention.output.LayerNorm'),
    *matrix(f'{BLOCK}/mlp/up', f'{LAYER}.intermediate.dense'),
    *matrix(f'{BLOCK}/mlp/down', f'{LAYER}.output.dense'),
    *norm(f'{BLOCK}/mlp_norm', f'{LAYER}.output.LayerNorm'),
    *matrix('backbone/pooler', 'pooler.dense'),
)
HEADS = {
    'mlm': Head(lambda config, classes: MaskedTokens(config.block), (
        *matrix('heads_mlm/dense', 'lm_predictions.lm_head.dense'),
        *norm('heads_mlm/norm', 'lm_predictions.lm_head.LayerNorm'),
        Rule('heads_mlm/bias', 'lm_predictions.lm_head.bias'),
        Rule('heads_mlm/bias', 'cls.predictions.decoder.bias', copy=True),
        Rule('backbone/embeddings/tokens', 'cls.predictions.decoder.weight', copy=True),
    )),
    # transformers passes over these tensors of released files.
    'rtd': Head(lambda config, classes: ReplacedTokens(config.block, first=True), (
        *norm('heads_rtd/norm', 'mask_predictions.LayerNorm'),
        *matrix('heads_rtd/hidden', 'mask_predictions.dense'),
        *matrix('heads_rtd/dense', 'mask_predictions.classifier'),
    )),
    **{name: dataclasses.replace(bert.FAMILY.heads[name], dropout='cls_dropout') for name in ('label', 'choice')},
    'tags': dataclasses.replace(bert.FAMILY.heads['tags'], dropout=''),
    'span': bert.FAMILY.heads['span'],
}
ALIASES = (
    (r'LayerNorm\.gamma$', 'LayerNorm.weight'), (r'LayerNorm\.beta$', 'LayerNorm.bias'),
    (r'^bert\.', 'deberta.'), (r'^(embeddings|encoder)\.', r'deberta.\1.'),
    # The head of transformers before it was mended, and of the original code.
    (r'^cls\.predictions\.transform\.', 'lm_predictions.lm_head.'),
    (r'^cls\.predictions\.bias$', 'lm_predictions.lm_head.bias'),
    (r'^mask_predictions\.classifer\.', 'mask_predictions.classifier.'),
)

# transformers' DeBERTa; the `lm_predictions` of released files are read where its own class, in `legacy` mode, would
# begin a new head. Its classes know no mask decoder: they read logits off the last layer.
FAMILY = Family(
    name='deberta',
    backbone=lambda config: Deberta(config),
    config=base(),
    attributes=(
        Attribute('vocab_size', 'vocab', 50265),
        Attribute('hidden_size', 'block.width', 768),
        Attribute('num_hidden_layers', 'stack.layers', 12),
        Attribute('num_attention_heads', 'block.heads', 12),
        Attribute('intermediate_size', 'block.mlp_dim', 3072),
        *ATTRIBUTES,
    ),
    fixed={'relative_attention': True, 'talking_head': False},
    ignored=frozenset({'cls_dropout', 'legacy', 'padding_idx', 'pooler_dropout'}),
    rules=(
        *(Rule(f'{ATTENTION}/{name}/kernel', f'{THEIR_ATTENTION}.in_proj.weight', Packed(part, by_head=True))
          for part, name in enumerate(('query', 'key', 'value'))),
        Rule(f'{ATTENTION}/query/bias', f'{THEIR_ATTENTION}.q_bias', Same(flat=True)),
        Rule(f'{ATTENTION}/value/bias', f'{THEIR_ATTENTION}.v_bias', Same(flat=True)),
        Rule(f'{ATTENTION}/relative_key/kernel', f'{THEIR_ATTENTION}.pos_proj.weight', Linear()),
        *matrix(f'{ATTENTION}/relative_query', f'{THEIR_ATTENTION}.pos_q_proj'),
        *RULES,
    ),
    parts={'absolute': POSITIONS, 'pooler': 'pooler.dense.weight'},
    heads=HEADS,
    classes={
        'DebertaModel': (), 'DebertaForMaskedLM': ('mlm',), 'DebertaForSequenceClassification': ('label',),
        'DebertaForTokenClassification': ('tags',), 'DebertaForQuestionAnswering': ('span',),
    },
    prefix='deberta.',
    aliases=ALIASES,
    pickled=True,
    beside=frozenset({'rtd'}),
    says={'legacy': False, 'relative_attention': True},
    to_current=to_current,
    marks=frozenset({'relative_attention'}),
    skipped=(r'\.position_ids$',),
)
