"""Adapter for MTEB, the benchmark of text embeddings (pip install 'plm_jax[mteb]').

    import mteb
    from plm_jax.api.mteb_adapter import load_for_mteb

    mteb.evaluate(load_for_mteb('runs/vectors'), mteb.get_tasks(tasks=['SICK-R']))
"""
import itertools
import os
from typing import Any

import jax
from mteb.models.abs_encoder import get_prompt_name  # pyright: ignore[reportMissingImports]
from mteb.models.model_meta import (  # pyright: ignore[reportMissingImports]
  ModelMeta,
  ScoringFunction,
)
import numpy as np
from sentence_transformers import SimilarityFunction  # pyright: ignore[reportMissingImports]

from plm_jax.api import model_identity, retrieval, similarity, transfer
from plm_jax.errors import ConfigError
from plm_jax.metrics.nearest import to_dense
from plm_jax.storage.digests import digest_json


class MtebEncoder:
  """A model with text vectors, or static vectors, as mteb calls it (its `EncoderProtocol`)."""

  def __init__(self, trained: Any, meta: ModelMeta):
    self.trained, self.mteb_model_meta = trained, meta
    self.similarity = SimilarityFunction.to_similarity_fn(trained.similarity)
    self.similarity_pairwise = SimilarityFunction.to_similarity_pairwise_fn(trained.similarity)

  def encode(
      self, inputs: Any, *, task_metadata: Any, prompt_type: Any = None, **options: Any
  ) -> np.ndarray:
    """Encode texts, after the model's prompt for the task, its type, or queries and documents.

    Args:
      inputs: batches, with their texts in 'text'.
      task_metadata: the task.
      prompt_type: whether the texts are queries or documents; None: neither.
      **options: options of mteb. All but `precision` are ignored; batches have our own size.

    Returns:
      float32 [texts, width].

    Raises:
      ConfigError: `precision` asks for other than float32.
    """
    if options.get('precision', 'float32') != 'float32':
      raise ConfigError(f'vectors are float32, got the precision {options["precision"]}')
    prompts = dict(getattr(self.trained, 'prompts', {}))
    name = get_prompt_name(prompts, task_metadata, prompt_type) or prompt_type or 'own'
    return to_dense(retrieval.encode_texts(self.trained, list_texts(inputs), str(name)))


class MtebCrossEncoder:
  """A reranker, as mteb calls it (its `CrossEncoderProtocol`)."""

  def __init__(self, trained: Any, meta: ModelMeta):
    self.trained, self.mteb_model_meta = trained, meta

  def predict(self, inputs1: Any, inputs2: Any, **options: Any) -> np.ndarray:
    """Score documents (inputs2), each for its query (inputs1) -> [pairs]."""
    pairs = [(query, [document]) for query, document
             in zip(list_texts(inputs1), list_texts(inputs2), strict=True)]
    found = transfer.predict_texts(self.trained, pairs, options.get('batch_size', 32))
    return np.array([one.scores[0] for one in found])


def list_texts(batches: Any) -> list[str]:
  """List the texts of mteb's batches."""
  return [*itertools.chain.from_iterable(batch['text'] for batch in batches)]


def load_for_mteb(
    model: similarity.Model, name: str = '', **metadata: Any) -> MtebEncoder | MtebCrossEncoder:
  """Load a model for `mteb.evaluate`: an encoder, or a cross-encoder that has learned reranking.

  Args:
    model: a model from `load` or `finetune`, or the folder of a run, of a checkpoint, or of
      sentence-transformers
    name: ORG/NAME in mteb's results. Default: plm_jax/ and the name of the folder
    **metadata: fields of mteb's ModelMeta, such as languages=['eng-Latn'] or license='mit'. The
      revision is by default a digest of the model, so that results of another one are not reused

  Raises:
    CheckpointError, ConvertError: the folder holds no model that can be read.
    ConfigError: the model has no tokenizer, or scores pairs but has not learned reranking.
  """
  trained: Any = similarity.load_encoder(model)
  if trained.similarity == 'maxsim':
    raise ConfigError(f'{trained.source or "the model"} has a vector per token, which this adapter '
                      'does not give to mteb: evaluate-retrieval takes it')
  task, prompts = (getattr(trained, field, None) for field in ('task', 'prompts'))
  # Rerankers of other libraries are regression of pairs; `load_for_task` tells which are rerankers.
  scores_pairs = task and task.head == 'label' and task.example_kind in ('rerank', 'regression')
  if scores_pairs:
    trained = transfer.load_for_task(trained, 'rerank', 'rerank')
    known: dict[str, Any] = {'model_type': ['cross-encoder']}
  else:
    known = {'embed_dim': retrieval.encode_texts(trained, ['a'], 'none').shape[1],
             'similarity_fn_name': ScoringFunction(trained.similarity)}
  source = model if isinstance(model, str | os.PathLike) else getattr(trained, 'source', '')
  leaves = jax.tree.leaves(getattr(trained, 'params', None) or trained.table)
  meta = ModelMeta.create_empty({
      'name': name or f'plm_jax/{os.path.basename(os.path.abspath(source or "model"))}',
      'revision': digest_json(model_identity.identify_model(trained))[:16], 'framework': ['JAX'],
      'n_parameters': sum(leaf.size for leaf in leaves), 'use_instructions': bool(prompts),
      'max_tokens': getattr(trained, 'length', 0) or None, **known, **metadata})
  return (MtebCrossEncoder if scores_pairs else MtebEncoder)(trained, meta)
