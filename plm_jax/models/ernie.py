"""ERNIE (Sun et al. 2019, arXiv:1904.09223): a BERT that masks whole words, phrases and entities.

From ERNIE 2.0 (Sun et al. 2020, arXiv:1907.12412) there is the table of task ids, which is added to
the embeddings; the released ERNIE 1.0 has none. Parameters of the released ERNIE 1.0, a Chinese
model: 18,000 tokens, 513 positions, relu, 99.9M parameters without heads.
"""
from collections.abc import Mapping
import dataclasses
from typing import Any

from plm_jax import validation
from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.layers.common import Dtype
from plm_jax.models import bert
from plm_jax.models.rules import Attribute, Rule, join_rules, rename_tensors


def base(dtype: Dtype = 'float32') -> EncoderConfig:
  """Make ERNIE 1.0: 12 layers, hidden size 768, relu, 18,000 tokens, texts of up to 513."""
  config = validation.with_paths(
      bert.base(dtype), {'block.mlp.activation': 'relu', 'block.norm.eps': 1e-5})
  return dataclasses.replace(config, vocab=18_000, max_length=513)


def normalize_hf_config(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
  """Set task_type_vocab_size to 0 where the model does not use task ids."""
  size = hf_config.get('task_type_vocab_size', 3)
  return {**hf_config, 'task_type_vocab_size': size if hf_config.get('use_task_id') else 0}


def denormalize_hf_config(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
  """Reverse `normalize_hf_config`."""
  size = hf_config['task_type_vocab_size']
  return {**hf_config, 'use_task_id': size > 0, 'task_type_vocab_size': size or 3}


FAMILY = dataclasses.replace(
    bert.FAMILY,
    name='ernie',
    attributes=(*bert.FAMILY.attributes, Attribute('task_type_vocab_size', 'embeddings.tasks', 0)),
    fixed={'position_embedding_type': 'absolute'},
    ignored=frozenset({'use_task_id'}),
    rules=join_rules(
        rename_tensors(bert.FAMILY.rules, 'bert.', 'ernie.'),
        Rule('backbone/embeddings/tasks', 'ernie.embeddings.task_type_embeddings.weight'),
    ),
    part_tensors={'pooler': 'ernie.pooler.dense.weight'},
    classes={name.replace('Bert', 'Ernie'): heads for name, heads in bert.FAMILY.classes.items()},
    prefix='ernie.',
    aliases=((r'LayerNorm\.gamma$', 'LayerNorm.weight'), (r'LayerNorm\.beta$', 'LayerNorm.bias'),
             (r'^(embeddings|encoder|pooler)\.', r'ernie.\1.')),
    normalize_hf_config=normalize_hf_config,
    denormalize_hf_config=denormalize_hf_config,
)
