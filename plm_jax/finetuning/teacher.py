"""Embedding distillation: a teacher's vectors as targets (Reimers and Gurevych 2020)."""
import dataclasses
from typing import Any

from plm_jax.errors import ConfigError
from plm_jax.inference import encode
from plm_jax.inference.sentence_vectors import encode_sentences, has_sentence_vectors
from plm_jax.loading import loaded_model
from plm_jax.tasks.embedding_losses import TeacherVectors
from plm_jax.tasks.labeled_data import LabeledDataset
from plm_jax.tasks.sentence_embedding import EmbeddingTask


def add_teacher_vectors(task: Any, model: Any, train: LabeledDataset) -> LabeledDataset:
  """Add the teacher's vector of each example's first text to the training features.

  Training examples are returned unchanged if the loss has no teacher.

  Args:
    task: the task.
    model: configuration of the student.
    train: training examples.

  Raises:
    ConfigError: no teacher is named, or its vectors have another width than the student's.
  """
  if not isinstance(task, EmbeddingTask) or not isinstance(task.vector_loss, TeacherVectors):
    return train
  if not task.vector_loss.teacher:
    raise ConfigError(
        '--objective.vector-loss.teacher must name the model whose vectors are learned')
  teacher = loaded_model.load_model(task.vector_loss.teacher)
  texts = list(dict.fromkeys(example.texts[0] for example in train.examples))
  if has_sentence_vectors(teacher):
    vectors: Any = encode_sentences(teacher, texts)
  else:
    vectors = encode.encode(teacher, texts, cut=True)
  width = task.vector.dense or model.block.width * len(task.vector.pooling)
  if vectors.shape[1] != width:
    raise ConfigError(
        f'the vectors of {task.vector_loss.teacher} have {vectors.shape[1]} numbers, and those '
        f'that are trained {width}: --objective.vector.dense makes them as long')
  numbers = {text: number for number, text in enumerate(texts)}
  rows = []
  for example in train.features.example:
    rows.append(numbers[train.examples[example].texts[0]])
  values = {**train.features.values, 'target': vectors[rows]}
  return dataclasses.replace(train, features=dataclasses.replace(train.features, values=values))
