"""A small untrained model with a head for sentence vectors, or for vectors of tokens."""
from typing import Any

import jax
import labelled
import tiny

from plm_jax.layers.pooling import VectorConfig
from plm_jax.layers.splade import SpladeConfig
from plm_jax.layers.token_vectors import TokenVectorConfig
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.tasks.embedding_losses import InBatch
from plm_jax.tasks.late_interaction import LateInteractionTask
from plm_jax.tasks.objective import TaskObjective
from plm_jax.tasks.sentence_embedding import EmbeddingTask
from plm_jax.tokenizers import Tokenizer, add_special_tokens


def trained_of(
    vector: VectorConfig | SpladeConfig | TokenVectorConfig, length: int = 12,
    decoder: tuple[str, Any, Tokenizer] | None = None) -> LoadedModel:
  """decoder: family, configuration and tokenizer; None: a BERT."""
  family, model, tokenizer = decoder or ('bert', tiny.config(), labelled.tokenizer())
  if isinstance(vector, TokenVectorConfig):
    task: Any = LateInteractionTask(vector=vector)
  else:
    task = EmbeddingTask(family=family, vector_loss=InBatch(), vector=vector)
  tokenizer = add_special_tokens(tokenizer, task.added_tokens)
  objective = TaskObjective(task)
  shapes = jax.eval_shape(objective.build(model, False).init, jax.random.key(0),
                          objective.shapes(2, 8))
  params = tiny.random_params(shapes)['params']
  return LoadedModel(family, model, task.heads(model), params, tokenizer, task=task, length=length)
