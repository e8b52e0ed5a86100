"""ERNIE (Sun et al. 2019, arXiv:1904.09223): BERT's wiring, whose masks are of words, phrases and names.

Of ERNIE 2.0 (Sun et al. 2020, arXiv:1907.12412) there is the table of tasks, which is added to the embeddings; the
released ERNIE 1.0 has none. Parameters of the released ERNIE 1.0, a Chinese one: 18,000 characters and pieces, 513
positions, relu, 99.9M parameters without heads.
"""
from collections.abc import Mapping
import dataclasses
from typing import Any

from plm_jax import checked
from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.conversion.rules import Attribute, Rule
from plm_jax.layers.common import Dtype
from plm_jax.models import bert


def base(dtype: Dtype = 'float32') -> EncoderConfig:
  """Makes ERNIE 1.0: 12 layers of width 768, relu, 18,000 ids, rows of 513 tokens."""
  config = checked.replaced(bert.base(dtype), {'block.mlp.activation': 'relu', 'block.norm.eps': 1e-5})
  return dataclasses.replace(config, vocab=18_000, max_length=513)


def to_current(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
  """Reads the rows of the table of tasks: 0 with us where the model does not use it."""
  size = hf_config.get('task_type_vocab_size', 3)
  return {**hf_config, 'task_type_vocab_size': size if hf_config.get('use_task_id') else 0}


def from_current(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
  """Undoes what `to_current` did."""
  size = hf_config['task_type_vocab_size']
  return {**hf_config, 'use_task_id': size > 0, 'task_type_vocab_size': size or 3}


FAMILY = dataclasses.replace(
    bert.FAMILY,
    name='ernie',
    attributes=(*bert.FAMILY.attributes, Attribute('task_type_vocab_size', 'tasks', 0)),
    fixed={'position_embedding_type': 'absolute'},
    ignored=frozenset({'use_task_id'}),
    rules=(
        *(dataclasses.replace(rule, theirs=rule.theirs.replace('bert.', 'ernie.', 1)) for rule in bert.FAMILY.rules),
        Rule('backbone/embeddings/tasks', 'ernie.embeddings.task_type_embeddings.weight'),
    ),
    parts={'pooler': 'ernie.pooler.dense.weight'},
    classes={name.replace('Bert', 'Ernie'): heads for name, heads in bert.FAMILY.classes.items()},
    prefix='ernie.',
    aliases=((r'LayerNorm\.gamma$', 'LayerNorm.weight'), (r'LayerNorm\.beta$', 'LayerNorm.bias'),
             (r'^(embeddings|encoder|pooler)\.', r'ernie.\1.')),
    to_current=to_current,
    from_current=from_current,
)
