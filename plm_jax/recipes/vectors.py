"""Sentence vectors, as published: SBERT on NLI and on STS, SimCSE without labels and with those of NLI.

    python -m plm_jax finetune --task=sbert_nli --init=FOLDER
    python -m plm_jax finetune --task=simcse --init=FOLDER --train=sentences.txt --dev=stsb_dev.tsv
    python -m plm_jax finetune --task=embedding --loss=in_batch --init=FOLDER --train=pairs.jsonl --dev=stsb_dev.tsv
"""
from collections.abc import Mapping
import dataclasses

from plm_jax.embeddings.losses import CosineRegression, InBatch, Softmax
from plm_jax.layers.pooling import VectorConfig
from plm_jax.tasks.embedding import EmbeddingTask

# Gao et al. 2021, section 6.3: the first token by a dense layer with tanh, which without labels only training has.
SIMCSE = VectorConfig(('first',), dense=768, dense_used='training')
TASKS: Mapping[str, EmbeddingTask] = {
    'sbert_nli': EmbeddingTask(loss_of=Softmax()),
    'sbert_sts': EmbeddingTask(loss_of=CosineRegression(full=5.0)),
    'simcse': EmbeddingTask(loss_of=InBatch(), vector=SIMCSE),
    'simcse_nli': EmbeddingTask(loss_of=InBatch(), vector=dataclasses.replace(SIMCSE, dense_used='always'),
                                entailment='entailment', contradiction='contradiction')}
# What is learned at the scales below the paper's, where no source is given.
EMBEDDED = {'sbert_nli': 'embedded:similarity', 'sbert_sts': 'embedded:similarity', 'simcse': 'embedded:sentences',
            'simcse_nli': 'embedded:similarity'}


def task_of(name: str, family: str, width: int) -> EmbeddingTask:
  """Returns what a task learns, of a backbone of this width; of one that is not published texts that belong together,
  against the others of their batch."""
  task = TASKS.get(name, EmbeddingTask(loss_of=InBatch()))
  if task.vector.dense:
    task = dataclasses.replace(task, vector=dataclasses.replace(task.vector, dense=width))
  return dataclasses.replace(task, family=family)
