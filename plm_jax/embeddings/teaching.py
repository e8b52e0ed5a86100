"""Vectors that a teacher gives the texts that a student learns from (Reimers and Gurevych 2020)."""
import dataclasses
from typing import Any

from plm_jax.embeddings.encoding import embed, embeds
from plm_jax.embeddings.losses import TeacherVectors
from plm_jax.errors import ConfigError
from plm_jax.inference import encode, loading
from plm_jax.tasks.embedding import EmbeddingTask
from plm_jax.tasks.labelled import Labelled


def taught(task: Any, model: Any, train: Labelled) -> Labelled:
  """Returns training examples with the vector that the teacher gives the first text of each; as they are where there is
  no teacher.

  Raises ConfigError where none is named, or where its vectors are longer or shorter than those of the student `model`.
  """
  if not isinstance(task, EmbeddingTask) or not isinstance(task.loss_of, TeacherVectors):
    return train
  if not task.loss_of.teacher:
    raise ConfigError('--objective.loss-of.teacher names no model whose vectors are to be learned')
  teacher = loading.load(task.loss_of.teacher)
  texts = list(dict.fromkeys(example.texts[0] for example in train.examples))
  vectors: Any = embed(teacher, texts) if embeds(teacher) else encode.encode(teacher, texts, cut=True)
  width = task.vector.dense or model.block.width * len(task.vector.pooling)
  if vectors.shape[1] != width:
    raise ConfigError(f'the vectors of {task.loss_of.teacher} have {vectors.shape[1]} numbers, and those that are '
                      f'trained {width}: --objective.vector.dense makes them as long')
  numbers = {text: number for number, text in enumerate(texts)}
  chosen = [numbers[train.examples[example].texts[0]] for example in train.features.example]
  values = {**train.features.values, 'target': vectors[chosen]}
  return dataclasses.replace(train, features=dataclasses.replace(train.features, values=values))
