"""Adapter for MTEB, the benchmark of text embeddings (pip install 'plm_jax[mteb]').

    import mteb
    from plm_jax.api.mteb_adapter import load_for_mteb

    mteb.evaluate(load_for_mteb('runs/vectors'), mteb.get_tasks(tasks=['SICK-R']))
"""
import itertools
import os
from typing import Any

import jax
from mteb._create_dataloaders import create_dataloader  # pyright: ignore[reportMissingImports]
from mteb.models.abs_encoder import get_prompt_name  # pyright: ignore[reportMissingImports]
from mteb.models.model_meta import (  # pyright: ignore[reportMissingImports]
  ModelMeta,
  ScoringFunction,
)
from mteb.types import PromptType  # pyright: ignore[reportMissingImports]
import numpy as np
from sentence_transformers import SimilarityFunction  # pyright: ignore[reportMissingImports]

from plm_jax.api import model_identity, retrieval, similarity, transfer
from plm_jax.errors import ConfigError
from plm_jax.metrics.nearest import find_nearest, is_sparse, take_vectors, to_dense
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
    check_precision(options)
    prompts = dict(getattr(self.trained, 'prompts', {}))
    name = get_prompt_name(prompts, task_metadata, prompt_type) or prompt_type or 'own'
    return to_dense(retrieval.encode_texts(self.trained, list_texts(inputs), str(name)))


class MtebSearch:
  """A model that searches by itself, as mteb calls it (its `SearchProtocol`).

  Late interaction (ColBERT) compares token vectors by MaxSim.
  """

  def __init__(self, trained: Any, meta: ModelMeta):
    self.trained, self.mteb_model_meta = trained, meta
    self.names, self.vectors = [], None

  def index(self, corpus: Any, *, task_metadata: Any, **options: Any) -> None:
    """Encode a corpus; arguments as in mteb. Raises ConfigError as `MtebEncoder.encode`."""
    self.names = list(corpus['id'])
    self.vectors = self.encode_side(corpus, task_metadata, PromptType.document, options)

  def search(
      self, queries: Any, *, task_metadata: Any, top_k: int, top_ranked: Any = None,
      **options: Any) -> dict[str, dict[str, float]]:
    """Find the best documents of each query, or score those of `top_ranked`.

    Args:
      queries: data set with columns 'id' and 'text'.
      task_metadata: the task.
      top_k: documents per query.
      top_ranked: query id -> ids of documents; None: all documents.
      **options: options of mteb. All but `precision` are ignored.

    Returns:
      {query id: {document id: similarity}}.
    """
    vectors = self.encode_side(queries, task_metadata, PromptType.query, options)
    if top_ranked is None:
      found = self.rank(vectors, self.names, self.vectors, top_k)
      return dict(zip(queries['id'], found, strict=True))
    places = {name: place for place, name in enumerate(self.names)}
    ranked: dict[str, dict[str, float]] = {query: {} for query in queries['id']}
    for number, query in enumerate(ranked):
      if names := top_ranked.get(query):
        candidates = take_vectors(self.vectors, [places[name] for name in names])
        ranked[query], = self.rank(take_vectors(vectors, [number]), names, candidates, top_k)
    return ranked

  def rank(
      self, queries: Any, names: list[str], vectors: Any, top_k: int) -> list[dict[str, float]]:
    """Find the best documents of each query -> {id: similarity} of each."""
    scores, numbers = find_nearest(queries, vectors, top_k, similarity=self.trained.similarity)
    rows = zip(numbers.tolist(), scores.tolist(), strict=True)
    return [{names[number]: score for number, score in zip(*row, strict=True)} for row in rows]

  def encode_side(
      self, texts: Any, task_metadata: Any, prompt_type: PromptType, options: Any) -> Any:
    """Encode the texts of a data set as queries or as documents."""
    check_precision(options.get('encode_kwargs', {}))
    batches = create_dataloader(texts, task_metadata=task_metadata, prompt_type=prompt_type)
    return retrieval.encode_texts(self.trained, list_texts(batches), str(prompt_type))


class MtebSparseEncoder(MtebSearch, MtebEncoder):
  """Sparse vectors (SPLADE): an inverted index searches them; other tasks get dense arrays."""

  def __init__(self, trained: Any, meta: ModelMeta):
    MtebEncoder.__init__(self, trained, meta)


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


def check_precision(options: Any) -> None:
  """Raise ConfigError for options of mteb that ask for vectors other than float32."""
  if options.get('precision', 'float32') != 'float32':
    raise ConfigError(f'vectors are float32, got the precision {options["precision"]}')


def list_texts(batches: Any) -> list[str]:
  """List the texts of mteb's batches."""
  return [*itertools.chain.from_iterable(batch['text'] for batch in batches)]


def load_for_mteb(
    model: similarity.Model, name: str = '', **metadata: Any
) -> MtebEncoder | MtebSearch | MtebCrossEncoder:
  """Load a model for `mteb.evaluate`: an encoder, or a cross-encoder that has learned reranking.

  Sparse encoders search by an inverted index. Late interaction searches by MaxSim, and takes part
  in tasks of retrieval and reranking only.

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
  task, prompts = (getattr(trained, field, None) for field in ('task', 'prompts'))
  # Rerankers of other libraries are regression of pairs; `load_for_task` tells which are rerankers.
  if task and task.head == 'label' and task.example_kind in ('rerank', 'regression'):
    trained = transfer.load_for_task(trained, 'rerank', 'rerank')
    adapter, kind, known = MtebCrossEncoder, 'cross-encoder', {}
  else:
    vectors, measure = retrieval.encode_texts(trained, ['a'], 'none'), trained.similarity
    adapter, kind = MtebEncoder, 'dense'
    if measure == 'maxsim':
      adapter, kind, measure = MtebSearch, 'late-interaction', ScoringFunction.MAX_SIM
    elif is_sparse(vectors):
      adapter, kind = MtebSparseEncoder, 'sparse'
    known = {'embed_dim': vectors[0].shape[-1], 'similarity_fn_name': ScoringFunction(measure)}
  source = model if isinstance(model, str | os.PathLike) else getattr(trained, 'source', '')
  leaves = jax.tree.leaves(getattr(trained, 'params', None) or trained.table)
  meta = ModelMeta.create_empty({
      'name': name or f'plm_jax/{os.path.basename(os.path.abspath(source or "model"))}',
      'revision': digest_json(model_identity.identify_model(trained))[:16], 'framework': ['JAX'],
      'n_parameters': sum(leaf.size for leaf in leaves), 'model_type': [kind],
      'memory_usage_mb': sum(leaf.nbytes for leaf in leaves) / 2**20,
      'use_instructions': bool(prompts), 'max_tokens': getattr(trained, 'length', 0) or None,
      **known, **metadata})
  return adapter(trained, meta)
