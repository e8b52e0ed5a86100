"""DistilBERT (Sanh et al. 2019, arXiv:1910.01108): a BERT with half of the layers.

It has no segment types and no pooler. Parameters as published: 66M (table 3). It is trained by
knowledge distillation from a teacher (`objectives/distillation.py`).
"""
import dataclasses

from plm_jax import validation
from plm_jax.architectures.encoder import Encoder, EncoderConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.embeddings import EmbeddingConfig
from plm_jax.layers.heads import AnswerSpanHead, FirstTokenClassifier, MaskedLMHead
from plm_jax.models import bert
from plm_jax.models.bert import ACTIVATIONS, embedding_rules, mlm_head_rules
from plm_jax.models.rules import (
    Attribute,
    Family,
    HeadSpec,
    block_rules,
    dense_rules,
    join_rules,
)


def base(dtype: Dtype = 'float32') -> EncoderConfig:
  """Make DistilBERT: 6 layers, hidden size 768, 66M parameters."""
  return student(bert.base(dtype))


def student(teacher: EncoderConfig) -> EncoderConfig:
  """Make a student: half of the teacher's layers, no segment types, no pooler (section 3)."""
  return validation.with_paths(teacher, {
      'stack.layers': teacher.stack.layers // 2, 'embeddings.types': 0, 'pooler': False})


BLOCK, LAYER = 'backbone/stack/layers/block', 'distilbert.transformer.layer.{n}'
LAYER_NAMES = {
    'attention/query': 'attention.q_lin', 'attention/key': 'attention.k_lin',
    'attention/value': 'attention.v_lin', 'attention/out': 'attention.out_lin',
    'attention_norm': 'sa_layer_norm', 'mlp/up': 'ffn.lin1', 'mlp/down': 'ffn.lin2',
    'mlp_norm': 'output_layer_norm'}
"""Parts of a layer, and their names of them."""

# transformers' DistilBERT.
FAMILY = Family(
    name='distilbert',
    backbone=lambda config: Encoder(config),
    config=EncoderConfig(embeddings=EmbeddingConfig(types=0), pooler=False),
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
    # Dropout rates that the heads read themselves, and how positions are initialized, which the
    # checkpoint holds.
    ignored=frozenset({'qa_dropout', 'seq_classif_dropout', 'sinusoidal_pos_embds'}),
    rules=join_rules(
        embedding_rules('distilbert.embeddings', types=False),
        block_rules(BLOCK, LAYER, LAYER_NAMES),
    ),
    part_tensors={},
    heads={
        'mlm': HeadSpec(
            lambda config, classes: MaskedLMHead(config.block, config.tied),
            mlm_head_rules(
                'vocab_transform', 'vocab_layer_norm',
                'vocab_projector', 'vocab_projector.bias')),
        'label': HeadSpec(
            lambda config, classes: FirstTokenClassifier(config.block, classes, 'relu', 0.2),
            join_rules(
                dense_rules('heads_label/hidden', 'pre_classifier'),
                dense_rules('heads_label/dense', 'classifier')),
            dropout='seq_classif_dropout'),
        'choice': HeadSpec(
            lambda config, classes: FirstTokenClassifier(config.block, None, 'relu', 0.2),
            join_rules(
                dense_rules('heads_choice/hidden', 'pre_classifier'),
                dense_rules('heads_choice/dense', 'classifier')),
            dropout='seq_classif_dropout'),
        'tags': dataclasses.replace(bert.FAMILY.heads['tags'], dropout=''),
        'span': HeadSpec(
            lambda config, classes: AnswerSpanHead(config.block, 0.1),
            bert.FAMILY.heads['span'].rules, dropout='qa_dropout'),
    },
    classes={
        'DistilBertModel': (), 'DistilBertForMaskedLM': ('mlm',),
        'DistilBertForSequenceClassification': ('label',),
        'DistilBertForTokenClassification': ('tags',),
        'DistilBertForMultipleChoice': ('choice',), 'DistilBertForQuestionAnswering': ('span',),
    },
    prefix='distilbert.',
    aliases=((r'LayerNorm\.gamma$', 'LayerNorm.weight'), (r'LayerNorm\.beta$', 'LayerNorm.bias'),
             (r'^(embeddings|transformer)\.', r'distilbert.\1.')),
)
