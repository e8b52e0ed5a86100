"""XLM (Lample and Conneau 2019, arXiv:1901.07291): an encoder whose tokens say their language.

A text is </s> text </s>, and its vectors are those of tokens, positions and languages, normalised; padding is set to 0
behind every layer; masked tokens are read off the hidden states as they are. Where a batch names no languages none are
added, as in transformers. Parameters of released checkpoints: xlm-mlm-tlm-xnli15-1024, of 15 languages, 249M;
xlm-mlm-en-2048 667M; xlm-mlm-100-1280, of 100 languages that tokens do not say, 572M.
"""
from collections.abc import Mapping
import dataclasses
from typing import Any

from plm_jax.architectures.encoder import Encoder, EncoderConfig
from plm_jax.conversion.rules import Attribute, ConvertError, Family, Head, Rule
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.heads import FirstTokenScores, HeadConfig, MaskedTokens, SpanEnds, TokenClasses
from plm_jax.layers.init import NORMAL
from plm_jax.layers.stack import StackConfig
from plm_jax.models import bert
from plm_jax.models.bert import matrix, norm


def sized(layers: int, width: int, heads: int, vocab: int, languages: int, dtype: Dtype = 'float32') -> EncoderConfig:
  """An MLP of four times the width, exact gelu, rows of 512 tokens."""
  init = dataclasses.replace(NORMAL, std=width ** -0.5)
  block = BlockConfig(width=width, heads=heads, mlp_dim=4 * width, init=init, dtype=dtype)
  return EncoderConfig(vocab=vocab, block=block, stack=StackConfig(layers=layers), types=0, languages=languages,
                       clear=True, head=HeadConfig(transform=False), pooler=False)


def xnli15(dtype: Dtype = 'float32') -> EncoderConfig:
  """Makes the XLM of XNLI's 15 languages: 12 layers of width 1024 with 8 heads, 95,000 pieces, 249M parameters."""
  return sized(12, 1024, 8, 95_000, 15, dtype)


def english(dtype: Dtype = 'float32') -> EncoderConfig:
  """Makes the XLM of English: 12 layers of width 2048 with 16 heads, 30,145 pieces, 667M parameters."""
  return sized(12, 2048, 16, 30_145, 0, dtype)


def hundred(dtype: Dtype = 'float32') -> EncoderConfig:
  """Makes the XLM of 100 languages, which tokens do not say: 16 layers of width 1280 with 16 heads, 200,000 pieces,
  572M parameters."""
  return sized(16, 1280, 16, 200_000, 0, dtype)


def to_current(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
  """Reads the width of the MLP, four times the model's, and the rows of the table of languages: 0 with us where tokens
  do not say them."""
  languages, width = hf_config.get('n_langs', 1), hf_config.get('emb_dim', 2048)
  says = hf_config.get('use_lang_emb', True) and isinstance(languages, int) and languages > 1
  old = {'vocab_size': hf_config['n_words']} if 'n_words' in hf_config else {}
  return {**old, **hf_config, 'n_langs': languages if says else 0,
          'hidden_dim': 4 * width if isinstance(width, int) else width}


def from_current(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
  """Undoes what `to_current` did. Raises ConvertError for another width of the MLP, which there is not there."""
  languages, width, hidden = (hf_config[name] for name in ('n_langs', 'emb_dim', 'hidden_dim'))
  if hidden != 4 * width:
    raise ConvertError(f'block.mlp_dim is {hidden:,}, which transformers has at four times the width, {4 * width:,}')
  hf_config = {name: value for name, value in hf_config.items() if name != 'hidden_dim'}
  return {**hf_config, 'n_langs': languages or 1, 'use_lang_emb': languages > 1, 'embed_init_std': width ** -0.5}


BLOCK = 'backbone/stack/layers/block'

# transformers' XLM. Of `asm`, a softmax in parts, no checkpoint was released, and its class cannot compute one.
FAMILY = Family(
    name='xlm',
    backbone=lambda config: Encoder(config),
    config=sized(12, 2048, 16, 30_145, 0),
    attributes=(
        Attribute('vocab_size', 'vocab', 30_145),
        Attribute('emb_dim', 'block.width', 2048),
        Attribute('n_layers', 'stack.layers', 12),
        Attribute('n_heads', 'block.heads', 16),
        Attribute('hidden_dim', 'block.mlp_dim', 8192),
        Attribute('gelu_activation', 'block.mlp.activation', True, ((True, 'gelu'), (False, 'relu'))),
        Attribute('dropout', 'block.dropout', 0.1),
        Attribute('attention_dropout', 'block.attention.dropout', 0.1),
        Attribute('max_position_embeddings', 'max_length', 512),
        Attribute('sinusoidal_embeddings', 'absolute', False, ((False, 'learned'), (True, 'sinusoidal'))),
        Attribute('causal', 'causal', False),
        Attribute('n_langs', 'languages', 1),
        Attribute('init_std', 'block.init.std', 0.02),
        Attribute('layer_norm_eps', 'block.norm.eps', 1e-12),
        Attribute('tie_word_embeddings', 'tied', True),
    ),
    fixed={'asm': False, 'is_encoder': True, 'summary_type': 'first', 'summary_use_proj': True,
           'summary_activation': None, 'summary_proj_to_labels': True},
    ignored=frozenset({
        'bos_index', 'embed_init_std', 'end_n_top', 'eos_index', 'id2lang', 'lang2id', 'lang_id', 'mask_index',
        'max_vocab', 'min_count', 'n_words', 'pad_index', 'same_enc_dec', 'share_inout_emb', 'start_n_top',
        'summary_first_dropout', 'unk_index', 'use_lang_emb'}),
    rules=(
        Rule('backbone/embeddings/tokens', 'transformer.embeddings.weight'),
        Rule('backbone/embeddings/positions', 'transformer.position_embeddings.weight'),
        Rule('backbone/embeddings/languages', 'transformer.lang_embeddings.weight'),
        *norm('backbone/embeddings/norm', 'transformer.layer_norm_emb'),
        *matrix(f'{BLOCK}/attention/query', 'transformer.attentions.{n}.q_lin'),
        *matrix(f'{BLOCK}/attention/key', 'transformer.attentions.{n}.k_lin'),
        *matrix(f'{BLOCK}/attention/value', 'transformer.attentions.{n}.v_lin'),
        *matrix(f'{BLOCK}/attention/out', 'transformer.attentions.{n}.out_lin', inputs=2),
        *norm(f'{BLOCK}/attention_norm', 'transformer.layer_norm1.{n}'),
        *matrix(f'{BLOCK}/mlp/up', 'transformer.ffns.{n}.lin1'),
        *matrix(f'{BLOCK}/mlp/down', 'transformer.ffns.{n}.lin2'),
        *norm(f'{BLOCK}/mlp_norm', 'transformer.layer_norm2.{n}'),
    ),
    parts={},
    heads={
        'mlm': Head(lambda config, classes: MaskedTokens(config.block, config.tied, config.head),
                    bert.output('pred_layer.proj', 'pred_layer.proj.bias')),
        'label': Head(lambda config, classes: FirstTokenScores(config.block, classes),
                      matrix('heads_label/dense', 'sequence_summary.summary'), dropout='summary_first_dropout'),
        'tags': Head(lambda config, classes: TokenClasses(config.block, classes),
                     bert.FAMILY.heads['tags'].rules),
        'span': Head(lambda config, classes: SpanEnds(config.block), bert.FAMILY.heads['span'].rules),
    },
    classes={
        'XLMModel': (), 'XLMWithLMHeadModel': ('mlm',), 'XLMForSequenceClassification': ('label',),
        'XLMForTokenClassification': ('tags',), 'XLMForQuestionAnsweringSimple': ('span',),
    },
    prefix='transformer.',
    to_current=to_current,
    from_current=from_current,
    aliases=((r'^(embeddings|position_embeddings|lang_embeddings|layer_norm_emb|attentions|layer_norm[12]|ffns)\.',
              r'transformer.\1.'),),
    skipped=(r'(^|\.)position_ids$',),
)
