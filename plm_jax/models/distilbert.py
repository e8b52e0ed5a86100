"""DistilBERT (Sanh et al. 2019, arXiv:1910.01108): half of BERT's layers, no segment types, no pooler.

Parameters as published: 66M (table 3). It learns from a teacher (`objectives/distillation.py`).
"""
import dataclasses

from plm_jax.architectures.encoder import Encoder, EncoderConfig
from plm_jax.conversion.rules import Attribute, Family, Head, Rule
from plm_jax.layers.common import Dtype
from plm_jax.layers.heads import FirstTokenClasses, MaskedTokens, SpanEnds
from plm_jax.models import bert
from plm_jax.models.bert import ACTIVATIONS, matrix, norm


def base(dtype: Dtype = 'float32') -> EncoderConfig:
  """Makes DistilBERT: 6 layers of width 768, 66M parameters."""
  return student(bert.base(dtype))


def student(teacher: EncoderConfig) -> EncoderConfig:
  """Returns half of the teacher's layers, without types and pooler (section 3)."""
  stack = dataclasses.replace(teacher.stack, layers=teacher.stack.layers // 2)
  return dataclasses.replace(teacher, stack=stack, types=0, pooler=False)


BLOCK, LAYER = 'backbone/stack/layers/block', 'distilbert.transformer.layer.{n}'

# transformers' DistilBERT.
FAMILY = Family(
    name='distilbert',
    backbone=lambda config: Encoder(config),
    config=dataclasses.replace(EncoderConfig(), types=0, pooler=False),
    attributes=(
        Attribute('vocab_size', 'vocab', 30522),
        Attribute('dim', 'block.width', 768),
        Attribute('n_layers', 'stack.layers', 6),
        Attribute('n_heads', 'block.heads', 12),
        Attribute('hidden_dim', 'block.mlp_dim', 3072),
        Attribute('activation', 'block.mlp.activation', 'gelu', ACTIVATIONS),
        Attribute('dropout', 'block.dropout', 0.1),
        Attribute('attention_dropout', 'block.attention.dropout', 0.1),
        Attribute('max_position_embeddings', 'max_length', 512),
        Attribute('initializer_range', 'block.init.std', 0.02),
        Attribute('tie_word_embeddings', 'tied', True),
    ),
    fixed={'tie_weights_': True},
    # What heads read for themselves, and how a table begins that the checkpoint holds.
    ignored=frozenset({'qa_dropout', 'seq_classif_dropout', 'sinusoidal_pos_embds'}),
    rules=(
        Rule('backbone/embeddings/tokens', 'distilbert.embeddings.word_embeddings.weight'),
        Rule('backbone/embeddings/positions', 'distilbert.embeddings.position_embeddings.weight'),
        *norm('backbone/embeddings/norm', 'distilbert.embeddings.LayerNorm'),
        *matrix(f'{BLOCK}/attention/query', f'{LAYER}.attention.q_lin'),
        *matrix(f'{BLOCK}/attention/key', f'{LAYER}.attention.k_lin'),
        *matrix(f'{BLOCK}/attention/value', f'{LAYER}.attention.v_lin'),
        *matrix(f'{BLOCK}/attention/out', f'{LAYER}.attention.out_lin', inputs=2),
        *norm(f'{BLOCK}/attention_norm', f'{LAYER}.sa_layer_norm'),
        *matrix(f'{BLOCK}/mlp/up', f'{LAYER}.ffn.lin1'),
        *matrix(f'{BLOCK}/mlp/down', f'{LAYER}.ffn.lin2'),
        *norm(f'{BLOCK}/mlp_norm', f'{LAYER}.output_layer_norm'),
    ),
    parts={},
    heads={
        'mlm': Head(lambda config, classes: MaskedTokens(config.block, config.tied), (
            *matrix('heads_mlm/dense', 'vocab_transform'),
            *norm('heads_mlm/norm', 'vocab_layer_norm'),
            *bert.output('vocab_projector', 'vocab_projector.bias'),
        )),
        'label': Head(
            lambda config, classes: FirstTokenClasses(config.block, classes, 'relu', 0.2),
            (*matrix('heads_label/hidden', 'pre_classifier'), *matrix('heads_label/dense', 'classifier')),
            dropout='seq_classif_dropout'),
        'choice': Head(
            lambda config, classes: FirstTokenClasses(config.block, None, 'relu', 0.2),
            (*matrix('heads_choice/hidden', 'pre_classifier'), *matrix('heads_choice/dense', 'classifier')),
            dropout='seq_classif_dropout'),
        'tags': dataclasses.replace(bert.FAMILY.heads['tags'], dropout=''),
        'span': Head(
            lambda config, classes: SpanEnds(config.block, 0.1), bert.FAMILY.heads['span'].rules, dropout='qa_dropout'),
    },
    classes={
        'DistilBertModel': (), 'DistilBertForMaskedLM': ('mlm',), 'DistilBertForSequenceClassification': ('label',),
        'DistilBertForTokenClassification': ('tags',), 'DistilBertForMultipleChoice': ('choice',),
        'DistilBertForQuestionAnswering': ('span',),
    },
    prefix='distilbert.',
    aliases=((r'LayerNorm\.gamma$', 'LayerNorm.weight'), (r'LayerNorm\.beta$', 'LayerNorm.bias'),
             (r'^(embeddings|transformer)\.', r'distilbert.\1.')),
)
