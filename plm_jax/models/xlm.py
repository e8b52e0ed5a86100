"""XLM (Lample and Conneau 2019, arXiv:1901.07291): an encoder with language embeddings.

A text is </s> text </s>. Its embeddings are the normalized sum of tokens, positions and languages.
Padding is set to 0 after every layer. Masked tokens are predicted from the hidden states without a
transform. Where a batch has no languages none are added, as in transformers.

Parameters of released checkpoints: xlm-mlm-tlm-xnli15-1024, of 15 languages, 249M; xlm-mlm-en-2048
667M; xlm-mlm-100-1280, of 100 languages without language embeddings, 572M.

FlauBERT (Le et al. 2020, arXiv:1912.05372): XLM for French, in texts that begin with <s>.
Parameters as published in table 2: base 138M, 137M in lower case. The larger and smaller ones, with
norms before sublayers and none at the end, are not read.
"""
from collections.abc import Mapping
import dataclasses
import functools
from typing import Any

from plm_jax.architectures.encoder import Encoder, EncoderConfig
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.embeddings import EmbeddingConfig
from plm_jax.layers.heads import (
    AnswerSpanHead,
    FirstTokenClassifier,
    FirstTokenLinearClassifier,
    HeadConfig,
    MaskedLMHead,
    TokenClassifier,
)
from plm_jax.layers.init import NORMAL_INIT
from plm_jax.layers.stack import StackConfig
from plm_jax.models import bert
from plm_jax.models.bert import mlm_output_rules
from plm_jax.models.rules import (
    Attribute,
    ConvertError,
    Family,
    HeadSpec,
    Rule,
    block_rules,
    dense_rules,
    join_rules,
    norm_rules,
)


def make_config(
    layers: int, width: int, heads: int, vocab: int, languages: int, dtype: Dtype = 'float32',
) -> EncoderConfig:
  """Make an XLM with an MLP of 4 x hidden size, exact gelu, and texts of up to 512 tokens.

  languages: rows of the table of language embeddings; 0: none.
  """
  # facebookresearch/XLM, xlm/model/transformer.py: the code's own Embedding initializes tables,
  # torch.nn.Linear initializes matrices.
  init = dataclasses.replace(NORMAL_INIT, std=width ** -0.5, fan='third', matrices='uniform')
  block = BlockConfig(width=width, heads=heads, mlp_dim=4 * width, init=init, dtype=dtype)
  return EncoderConfig(
      vocab=vocab, block=block, stack=StackConfig(layers=layers),
      embeddings=EmbeddingConfig(types=0, languages=languages), clear=True,
      head=HeadConfig(transform=False), pooler=False)


# The vocabulary has 95,000 tokens.
xlm_xnli15 = functools.partial(make_config, 12, 1024, 8, 95_000, 15)  # 249M parameters
# The vocabulary has 30,145 tokens.
xlm_en = functools.partial(make_config, 12, 2048, 16, 30_145, 0)  # 667M parameters
# The vocabulary has 200,000 tokens, and there are no language embeddings.
xlm_100 = functools.partial(make_config, 16, 1280, 16, 200_000, 0)  # 572M parameters


def normalize_hf_config(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
  """Add the width of the MLP, and set n_langs to 0 where there are no language embeddings."""
  languages, width = hf_config.get('n_langs', 1), hf_config.get('emb_dim', 2048)
  if not (hf_config.get('use_lang_emb', True) and isinstance(languages, int) and languages > 1):
    languages = 0
  old = {'vocab_size': hf_config['n_words']} if 'n_words' in hf_config else {}
  hidden = 4 * width if isinstance(width, int) else width
  return {**old, **hf_config, 'n_langs': languages, 'hidden_dim': hidden}


def denormalize_hf_config(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
  """Reverse `normalize_hf_config`. Raises ConvertError where the MLP is not 4 x hidden size."""
  hf_config = dict(hf_config)
  languages, width = hf_config['n_langs'], hf_config['emb_dim']
  hidden = hf_config.pop('hidden_dim')
  if hidden != 4 * width:
    raise ConvertError(f'block.mlp_dim is {hidden:,}, which transformers has at four times the '
                       f'width, {4 * width:,}')
  return {**hf_config, 'n_langs': languages or 1, 'use_lang_emb': languages > 1,
          'embed_init_std': width ** -0.5}


BLOCK = 'backbone/stack/layers/block'
LAYER_NAMES = {
    'attention/query': 'attentions.{n}.q_lin', 'attention/key': 'attentions.{n}.k_lin',
    'attention/value': 'attentions.{n}.v_lin', 'attention/out': 'attentions.{n}.out_lin',
    'attention_norm': 'layer_norm1.{n}', 'mlp/up': 'ffns.{n}.lin1', 'mlp/down': 'ffns.{n}.lin2',
    'mlp_norm': 'layer_norm2.{n}'}
"""Parts of a layer, and their names of them."""

# transformers' XLM. No checkpoint with `asm`, an adaptive softmax, was released, and transformers'
# class cannot compute it.
FAMILY = Family(
    name='xlm',
    backbone=lambda config: Encoder(config),
    config=make_config(12, 2048, 16, 30_145, 0),
    attributes=(
        Attribute('vocab_size', 'vocab', 30_145),
        Attribute('emb_dim', 'block.width', 2048),
        Attribute('n_layers', 'stack.layers', 12),
        Attribute('n_heads', 'block.heads', 16),
        Attribute('hidden_dim', 'block.mlp_dim', 8192),
        Attribute('gelu_activation', 'block.mlp.activation', True,
                  ((True, 'gelu'), (False, 'relu'))),
        Attribute('dropout', 'block.dropout', 0.1),
        Attribute('attention_dropout', 'block.attention.dropout', 0.1),
        Attribute('max_position_embeddings', 'max_length', 512),
        Attribute('sinusoidal_embeddings', 'embeddings.absolute', False,
                  ((False, 'learned'), (True, 'sinusoidal'))),
        Attribute('causal', 'causal', False),
        Attribute('n_langs', 'embeddings.languages', 1),
        Attribute('init_std', 'block.init.std', 0.02),
        Attribute('layer_norm_eps', 'block.norm.eps', 1e-12),
        Attribute('tie_word_embeddings', 'tied', True),
    ),
    fixed={'asm': False, 'is_encoder': True, 'summary_type': 'first', 'summary_use_proj': True,
           'summary_activation': None, 'summary_proj_to_labels': True},
    ignored=frozenset({
        'bos_index', 'embed_init_std', 'end_n_top', 'eos_index', 'id2lang', 'lang2id', 'lang_id',
        'mask_index', 'max_vocab', 'min_count', 'n_words', 'pad_index', 'same_enc_dec',
        'share_inout_emb', 'start_n_top', 'summary_first_dropout', 'unk_index', 'use_lang_emb'}),
    rules=join_rules(
        Rule('backbone/embeddings/tokens', 'transformer.embeddings.weight'),
        Rule('backbone/embeddings/positions', 'transformer.position_embeddings.weight'),
        Rule('backbone/embeddings/languages', 'transformer.lang_embeddings.weight'),
        norm_rules('backbone/embeddings/norm', 'transformer.layer_norm_emb'),
        block_rules(BLOCK, 'transformer', LAYER_NAMES),
    ),
    part_tensors={},
    heads={
        'mlm': HeadSpec(
            lambda config, classes: MaskedLMHead(config.block, config.tied, config.head),
            mlm_output_rules('pred_layer.proj', 'pred_layer.proj.bias')),
        'label': HeadSpec(
            lambda config, classes: FirstTokenLinearClassifier(config.block, classes),
            dense_rules('heads_label/dense', 'sequence_summary.summary'),
            dropout='summary_first_dropout'),
        # Their hidden layer has as many units as there are labels, 2 where nothing is stated.
        'choice': HeadSpec(
            lambda config, classes: FirstTokenClassifier(
                config.block, None, act=None, before=True, width=max(2, classes)),
            join_rules(
                dense_rules('heads_choice/hidden', 'sequence_summary.summary'),
                dense_rules('heads_choice/dense', 'logits_proj')),
            dropout='summary_first_dropout'),
        'tags': HeadSpec(
            lambda config, classes: TokenClassifier(config.block, classes),
            bert.FAMILY.heads['tags'].rules),
        'span': HeadSpec(
            lambda config, classes: AnswerSpanHead(config.block), bert.FAMILY.heads['span'].rules),
    },
    classes={
        'XLMModel': (), 'XLMWithLMHeadModel': ('mlm',), 'XLMForSequenceClassification': ('label',),
        'XLMForTokenClassification': ('tags',), 'XLMForMultipleChoice': ('choice',),
        'XLMForQuestionAnsweringSimple': ('span',),
    },
    prefix='transformer.',
    normalize_hf_config=normalize_hf_config,
    denormalize_hf_config=denormalize_hf_config,
    aliases=((
        r'^(embeddings|position_embeddings|lang_embeddings|layer_norm_emb|attentions|'
        r'layer_norm[12]|ffns)\.', r'transformer.\1.'),),
    skip_patterns=(r'(^|\.)position_ids$',),
)

flaubert_base = functools.partial(make_config, 12, 768, 12, 68_729, 0)  # 138M parameters

# transformers' Flaubert.
FLAUBERT = dataclasses.replace(
    FAMILY,
    name='flaubert',
    config=flaubert_base(),
    fixed={**FAMILY.fixed, 'pre_norm': False},
    ignored=FAMILY.ignored | {'layerdrop'},  # of training
    classes={name.replace('XLM', 'Flaubert'): heads for name, heads in FAMILY.classes.items()},
)
