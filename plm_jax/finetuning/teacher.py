"""Vectors of other models to learn sentence embeddings with: of a teacher, or of a guide."""
from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np

from plm_jax import truncation
from plm_jax.errors import ConfigError, name_field
from plm_jax.inference import encode
from plm_jax.inference.sentence_vectors import encode_sentences, has_sentence_vectors
from plm_jax.loading import loaded_model
from plm_jax.metrics.nearest import to_dense
from plm_jax.tasks.embedding_losses import GuidedInBatch, TeacherVectors
from plm_jax.tasks.labeled_data import LabeledDataset
from plm_jax.tasks.sentence_embedding import EmbeddingTask


def add_teacher_vectors(task: Any, model: Any, train: LabeledDataset) -> LabeledDataset:
  """Add the vectors of the teacher, or of the guide, to the training features.

  The teacher encodes the first text of each example, the guide all texts. Training examples are
  returned unchanged if the loss has neither.

  Args:
    task: the task.
    model: configuration of the student.
    train: training examples.

  Raises:
    ConfigError: no model is named, or the teacher's vectors have another width than the student's.
  """
  if not isinstance(task, EmbeddingTask):
    return train
  loss, features = task.vector_loss, train.features
  groups = [train.examples[number].texts for number in features.example[::features.group]]
  if isinstance(loss, GuidedInBatch):
    size = features.group
    # Rows that only fill a group repeat its first text.
    texts = [text for own in groups for text in own + own[:1] * (size - len(own))]
    roles = (['query'] + ['document'] * (size - 1)) * len(groups)
    return with_values(train, guide=encode_distinct(loss.guide, 'guide', texts, roles))
  if not isinstance(loss, TeacherVectors):
    return train
  texts = [own[0] for own in groups for _ in range(features.group)]
  vectors = encode_distinct(loss.teacher, 'teacher', texts)
  width = task.vector.size(model)
  if vectors.shape[1] != width:
    raise ConfigError(
        f'the vectors of {loss.teacher} have {vectors.shape[1]} numbers, and those that are '
        f'trained {width}: {name_field("objective.vector.dense")} makes them as long')
  return with_values(train, target=vectors)


def encode_distinct(
    folder: str, field: str, texts: Sequence[str], roles: Sequence[str] = ()) -> np.ndarray:
  """Encode texts by a model, each distinct one once -> [N, W].

  Args:
    folder: the model.
    field: field of the loss that names the model.
    texts: N texts.
    roles: query or document, of each text, for a model with prompts; empty: its default prompt.

  Raises:
    ConfigError: no model is named.
  """
  if not folder:
    raise ConfigError(
        f'{name_field(f"objective.vector_loss.{field}")} must name the model whose vectors are '
        'used')
  trained = loaded_model.load_model(folder)
  roles = roles or ['own'] * len(texts)
  vectors: dict[tuple[str, str], np.ndarray] = {}
  with truncation.count():
    for role in dict.fromkeys(roles):
      pairs = zip(roles, texts, strict=True)
      distinct = list(dict.fromkeys(text for own, text in pairs if own == role))
      if has_sentence_vectors(trained):
        found: Any = to_dense(encode_sentences(trained, distinct, prompt=role))
      else:
        found = encode.encode(trained, distinct, cut=True)
      vectors |= {(role, text): vector for text, vector in zip(distinct, found, strict=True)}
  return np.stack([vectors[pair] for pair in zip(roles, texts, strict=True)])


def with_values(train: LabeledDataset, **values: np.ndarray) -> LabeledDataset:
  """Add values of rows to the features of training examples."""
  features = dataclasses.replace(train.features, values={**train.features.values, **values})
  return dataclasses.replace(train, features=features)
