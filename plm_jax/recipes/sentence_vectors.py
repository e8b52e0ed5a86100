"""Sentence embeddings, as published: SBERT on NLI and STS, SimCSE, and ColBERT's token vectors.

SPLADE (sparse vectors) has no data here: it learns as the kind `embedding` does, from your own.

    python -m plm_jax finetune --task=sbert_nli --init=FOLDER
    python -m plm_jax finetune --task=simcse --init=FOLDER --train=sentences.txt --dev=stsb_dev.tsv
    python -m plm_jax finetune --task=embedding --loss=in_batch --init=FOLDER \\
        --train=pairs.jsonl --dev=stsb_dev.tsv
    python -m plm_jax finetune --task=colbert --init=FOLDER --train=triples.jsonl --dev=pairs.jsonl
"""
from collections.abc import Mapping
import dataclasses

from plm_jax.layers.pooling import VectorConfig
from plm_jax.layers.splade import SpladeConfig
from plm_jax.tasks.embedding_losses import (
  CosineRegression,
  InBatch,
  InBatchProducts,
  ScoreDistributionInBatch,
  Softmax,
)
from plm_jax.tasks.late_interaction import LateInteractionTask
from plm_jax.tasks.sentence_embedding import EmbeddingTask

# Gao et al. 2021, section 6.3: the first token with a dense layer and tanh. Without labels, only
# training uses that layer.
SIMCSE = VectorConfig(('first',), dense=768, dense_used='training')
TASKS: Mapping[str, EmbeddingTask] = {
    'sbert_nli': EmbeddingTask(vector_loss=Softmax()),
    'sbert_sts': EmbeddingTask(vector_loss=CosineRegression(full=5.0)),
    'simcse': EmbeddingTask(vector_loss=InBatch(), vector=SIMCSE),
    'simcse_nli': EmbeddingTask(
        vector_loss=InBatch(), vector=dataclasses.replace(SIMCSE, dense_used='always'),
        entailment='entailment', contradiction='contradiction'),
    # Formal et al. 2021b; regularizers of naver/splade 8dcd33a, conf/config_splade++_max.yaml.
    'splade': EmbeddingTask(vector=SpladeConfig(), vector_loss=InBatchProducts()),
    'colbert': LateInteractionTask(),
    'colbertv2': LateInteractionTask(vector_loss=ScoreDistributionInBatch())}
KIND_OF = {'splade': 'embedding'}
"""tasks without data -> their kind, whose data and hyperparameters they have"""
# Default training data at the scales below the paper's.
BUILTIN_SOURCES = {
    'sbert_nli': 'embedded:similarity', 'sbert_sts': 'embedded:similarity',
    'simcse': 'embedded:sentences', 'simcse_nli': 'embedded:similarity'}


def make_task(name: str, family: str, width: int) -> EmbeddingTask:
  """Make the objective of a sentence embedding task.

  Args:
    name: name of the task. Other tasks than the published ones use in-batch negatives.
    family: model family.
    width: hidden size of the backbone.
  """
  task = TASKS.get(name, EmbeddingTask(vector_loss=InBatch()))
  vector = task.vector
  if isinstance(vector, VectorConfig) and vector.dense:
    vector = dataclasses.replace(vector, dense=width)
  return dataclasses.replace(task, family=family, vector=vector)
