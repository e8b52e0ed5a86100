"""Sentence embeddings, as published: SBERT on NLI and STS, SimCSE, LLM2Vec, and ColBERT's token
vectors.

SPLADE (sparse vectors) has the built-in examples and the settings of the kind `embedding`.

    python -m plm_jax finetune --task=sbert_nli --init=FOLDER
    python -m plm_jax finetune --task=simcse --init=FOLDER --train=sentences.txt --dev=stsb_dev.tsv
    python -m plm_jax finetune --task=llm2vec --init=RUN --train=sentences.txt --dev=stsb_dev.tsv
    python -m plm_jax finetune --task=embedding --loss=in_batch --init=FOLDER \\
        --train=pairs.jsonl --dev=stsb_dev.tsv
    python -m plm_jax finetune --task=colbert --init=FOLDER --train=triples.jsonl --dev=pairs.jsonl
"""
from collections.abc import Mapping
import dataclasses

from plm_jax.layers.pooling import VectorConfig
from plm_jax.layers.splade import SpladeConfig
from plm_jax.optim.adapters import AdapterConfig
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
    # BehnamGhader et al. 2024: SimCSE with bidirectional attention and mean pooling.
    'llm2vec': EmbeddingTask(vector_loss=InBatch()),
    'splade': EmbeddingTask(vector=SpladeConfig(), vector_loss=InBatchProducts()),
    'colbert': LateInteractionTask(),
    'colbertv2': LateInteractionTask(vector_loss=ScoreDistributionInBatch())}
LLM2VEC_ADAPTER = AdapterConfig(
    'lora', rank=16, alpha=32.0, dropout=0.05,
    targets=('query', 'key', 'value', 'out', 'up', 'gate', 'down'))
"""of both steps of LLM2Vec (lines 51 to 77 and 357 to 364 of run_simcse.py, 102 to 120 and 711 to
716 of run_mntp.py, experiments of McGill-NLP/llm2vec@312adcfb)"""
# Default training data at the scales below the paper's.
BUILTIN_SOURCES = {
    'sbert_nli': 'embedded:similarity', 'sbert_sts': 'embedded:similarity',
    'simcse': 'embedded:sentences', 'simcse_nli': 'embedded:similarity',
    'llm2vec': 'embedded:sentences'}


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
