"""Public API for text vectors: encode, compare, search and distill (see `api.models`).

A `model` argument is a model from `load` or `finetune`, or the folder of a run, of a checkpoint, or
of sentence-transformers.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, overload
import warnings

import numpy as np

from plm_jax.api import models
from plm_jax.api.models import as_list, ensure_loaded, mesh_context
from plm_jax.errors import ConfigError
from plm_jax.inference import encode as encoding
from plm_jax.inference import static_vectors
from plm_jax.inference.encode import Pooling
from plm_jax.inference.prompts import Prompt, check_prompts, check_text_prompts
from plm_jax.inference.static_vectors import StaticVectors
from plm_jax.metrics.nearest import (
  Vectors,
  compare_pairs,
  count_vectors,
  find_nearest,
  is_sparse,
)
from plm_jax.sharding import MeshConfig
from plm_jax.tasks.document_windows import WindowPooling, check_windows

TextPooling = Literal['own', 'mean', 'max', 'first', 'last', 'mean_sqrt', 'weighted_mean']
Model = models.Model | StaticVectors


class Hit(NamedTuple):
  """A result of a search."""

  number: int
  """index of the text in the corpus, from 0"""
  score: float
  """similarity of the vectors, or relevance"""
  text: str
  """the text; '' where the corpus is given as vectors"""


@overload
def encode(
    model: Model, texts: str | Sequence[Prompt], layer: int = -1, pooling: TextPooling = 'own',
    cut: bool = False, tokens: int = 8192, windows: WindowPooling = 'off', stride: int = 0,
    prompt: str = 'own') -> np.ndarray:
  """Return one vector per text [N, D]."""


@overload
def encode(
    model: Model, texts: str | Sequence[Prompt], layer: int = -1, *, pooling: Literal['none'],
    cut: bool = False, tokens: int = 8192, windows: WindowPooling = 'off', stride: int = 0,
    prompt: str = 'own') -> list[np.ndarray]:
  """Return one vector per token of each text [L, D]."""


def encode(
    model: Model, texts: str | Sequence[Prompt], layer: int = -1, pooling: Pooling = 'own',
    cut: bool = False, tokens: int = 8192, windows: WindowPooling = 'off', stride: int = 0,
    prompt: str = 'own') -> Any:
  """Encode texts as vectors (embeddings), for search, clustering or classifiers.

  >>> bert = plm_jax.load('runs/bert_base-laptop')
  >>> vectors = plm_jax.encode(bert, ['Returns the array.', 'Sorts a list in place.'])
  >>> vectors.shape
  (2, ...)
  >>> plm_jax.encode(bert, 'Returns the array.', layer=1, pooling='none')[0].shape  # of its tokens
  (..., ...)

  Args:
    model: any model with a tokenizer (of an encoder-decoder its encoder is used), or static vectors
    texts: texts, or their token ids; each gets the special tokens that it has in training
    layer: 0: the embeddings; k: the output of layer k; -1: the last layer. The numbers are those of
      `hidden_states` in transformers
    pooling: own: the sentence vectors that the model has learned, with its dense layer, the token
      vectors of late interaction (ColBERT), or mean pooling where it has learned none. Or pooling
      over the tokens of a text: mean; max; first; last; mean_sqrt (the sum divided by the square
      root of the length); weighted_mean (weights 1, 2, 3, ...). none: all token vectors
    cut: whether texts that are too long are truncated; otherwise they are refused. A model with
      learned sentence vectors always truncates
    tokens: largest batch size in tokens, padding included; on a CPU at most 2,048, fewer of
      long texts, which is faster
    windows: 'mean' or 'max': a text that is too long is split into windows, and its vector is the
      mean or the maximum of theirs; 'off': see `cut`
    stride: tokens between the starts of consecutive windows; 0: three quarters of a window
    prompt: text before each text, by its name: 'query', 'document', or another one of the model.
      own: the model's default, which is the document prompt of a run, or the default of a folder
      of sentence-transformers. none: no prompt. Token ids never get one. With late interaction,
      texts are queries with 'query', and documents with any other name

  Returns:
    float32 [N, D]; with pooling 'none', or late interaction, a list of N arrays [tokens of the
    text, D]; sparse vectors (SPLADE) as a csr_array of scipy [N, vocabulary].

  Raises:
    CheckpointError: the model has no tokenizer.
    ConfigError: no text, a text that is too long or empty, or a layer or a prompt that the model
      does not have.
  """
  check_windows(windows, stride)
  trained, items = load_encoder(model), as_list(texts)
  plain = [text for text in items if isinstance(text, str)]
  if isinstance(trained, StaticVectors):
    check_text_prompts(items, 'give texts')
    return trained.encode(items)  # pyright: ignore[reportArgumentType]  models take ids
  with mesh_context(trained):
    if pooling == 'own' and layer == -1 and trained.task and len(plain) == len(items):
      from plm_jax.inference import sentence_vectors
      if sentence_vectors.has_sentence_vectors(trained):
        check_prompts(plain, 'give texts')
        if sentence_vectors.has_token_vectors(trained):
          if windows != 'off':
            raise ConfigError('windows are for one vector per text, and late interaction has one '
                              'per token')
          return sentence_vectors.encode_tokens(trained, plain, tokens, prompt)
        return sentence_vectors.encode_sentences(trained, plain, tokens, windows, stride, prompt)
    before = trained.find_prompt(prompt)
    items = [before + text if isinstance(text, str) else text for text in items]
    return encoding.encode(
        trained, items, layer, pooling, cut, tokens, windows, stride)


def similar(
    model: Model, first: str | Sequence[str], second: str | Sequence[str]) -> np.ndarray:
  """Compute the similarity of pairs of texts: their cosine, or what the model was trained for.

  >>> same, other = plm_jax.similar(
  ...     'runs/bert_base-laptop', 'Returns it.', ['Returns it.', 'Sorts a list.'])
  >>> print(f'{same:.2f} and {other:.2f}')
  1.00 and ...

  Args:
    model: any model with a tokenizer, best one with learned sentence vectors
    first: texts, or one text that is compared with each of `second`
    second: as many texts

  Returns:
    Similarities, float32 [N]: cosines, or the dot products or negative distances that a model of
    sentence-transformers states, or that the loss of a run has trained. With late interaction,
    MaxSim of `first` as queries and `second` as documents.

  Raises:
    ConfigError: the numbers of texts differ, or `encode` refuses a text.
  """
  left, right = as_list(first), as_list(second)
  if len(left) == 1:
    left = left * len(right)
  if len(left) != len(right):
    raise ConfigError(f'texts are compared one by one, got {len(left)} and {len(right)}: give as '
                      'many')
  trained = load_encoder(model)
  if trained.similarity == 'maxsim':
    sides = encode_each(trained, left, 'query'), encode_each(trained, right, 'document')
    return compare_pairs(*sides, 'maxsim').astype(np.float32)
  distinct = list(dict.fromkeys(left + right))
  vectors, numbers = encode(trained, distinct), {text: n for n, text in enumerate(distinct)}
  first_vectors, second_vectors = (
      vectors[[numbers[text] for text in texts]] for texts in (left, right))
  found = compare_pairs(first_vectors, second_vectors, trained.similarity).astype(np.float32)
  return np.clip(found, -1, 1) if trained.similarity == 'cosine' else found


def encode_each(
    trained: models.LoadedModel | StaticVectors, texts: Sequence[str], prompt: str) -> list[Any]:
  """Encode texts, equal ones once -> vectors of each."""
  distinct = list(dict.fromkeys(texts))
  found = dict(zip(distinct, encode(trained, distinct, prompt=prompt), strict=True))
  return [found[text] for text in texts]


def search(
    model: Model, corpus: Vectors, queries: str | Sequence[str], top: int = 10
) -> list[list[Hit]]:
  """Find the nearest texts of a corpus, by the similarity of `similar` (exact search).

  Sparse vectors (SPLADE) are found by an inverted index.

  >>> corpus = ['Sorts a list.', 'Returns the array.']
  >>> found, = plm_jax.search('runs/bert_base-laptop', corpus, 'Sorts a list.', top=1)
  >>> found[0].number, found[0].text
  (0, 'Sorts a list.')

  Args:
    model: any model with a tokenizer, best one with learned sentence vectors
    corpus: texts; or their vectors [N, D] from `encode`, an array, which may be a memory-mapped
      file, or a csr_array of sparse vectors; or N arrays of token vectors. A model with a prompt
      for documents needs it there: encode(model, texts, prompt='document')
    queries: texts
    top: number of results per query

  Returns:
    For each query a list of `Hit`, the nearest first.

  Raises:
    ConfigError: an empty corpus, vectors of another width, or a text that `encode` refuses.
  """
  trained = load_encoder(model)
  if not count_vectors(corpus):
    raise ConfigError('the corpus is empty: there is nothing to search')
  if is_sparse(corpus) or not isinstance(corpus[0], str):
    if message := describe_document_prompt(trained):
      warnings.warn(message, stacklevel=2)
    return search_vectors(trained, corpus, queries, top)
  texts: list[Any] = as_list(corpus)
  vectors = encode(trained, texts, prompt='document')
  found = search_vectors(trained, vectors, queries, top)
  return [[hit._replace(text=texts[hit.number]) for hit in hits] for hits in found]


def describe_document_prompt(trained: models.LoadedModel | StaticVectors) -> str:
  """Describe that vectors of documents need a prompt that `encode` does not use; '': no need."""
  if trained.find_prompt('document') == trained.find_prompt('own'):
    return ''
  return ('the model has a prompt for documents: make the vectors of the corpus with the prompt '
          "'document'")


def search_vectors(
    trained: models.LoadedModel | StaticVectors, vectors: Vectors,
    queries: str | Sequence[str], top: int) -> list[list[Hit]]:
  """Find the vectors of documents that are nearest to queries; see `search`."""
  if is_sparse(vectors) and isinstance(trained, models.LoadedModel):
    from plm_jax.inference.sentence_vectors import with_sparse_vectors
    trained = with_sparse_vectors(trained)
  query_vectors = encode(trained, queries, prompt='query')
  scores, numbers = find_nearest(query_vectors, vectors, top, similarity=trained.similarity)
  rows = zip(numbers.tolist(), scores.tolist(), strict=True)
  return [[Hit(number, score, '') for number, score in zip(*row, strict=True)] for row in rows]


def rerank(
    model: models.Model, queries: str | Sequence[str],
    documents: Sequence[str] | Sequence[Sequence[str]], top: int = 0, batch: int = 32
) -> list[list[Hit]]:
  """Score documents by a cross-encoder that has learned reranking, and sort them.

  Late interaction scores them by MaxSim.

  >>> documents = ['Sorts a list.', 'Returns the array.']
  >>> found, = plm_jax.rerank('runs/ranker', 'How do I sort?', documents, top=1)
  >>> print(f'score {found[0].score:.2f}: {found[0].text}')
  score ...: ...

  Args:
    model: a model that has been fine-tuned on the task rerank, a CrossEncoder of
      sentence-transformers with one output, or a model with token vectors (ColBERT)
    queries: queries
    documents: documents to score for every query; or a list of documents for each query
    top: number of results per query; 0: all
    batch: batch size in pairs

  Returns:
    For each query a list of `Hit`, the most relevant first; of documents with the same score, the
    one that is given first.

  Raises:
    ConfigError: the model has not learned reranking, there are no documents, or a text is empty.
  """
  from plm_jax.api import transfer
  trained, query_texts = load_reranker(model), as_list(queries)
  each: list[Sequence[str]] = []
  if documents and isinstance(documents[0], str):
    each = [documents] * len(query_texts)  # pyright: ignore[reportAssignmentType]
  else:
    each = list(documents)  # pyright: ignore[reportArgumentType]
  if len(each) != len(query_texts) or not all(each):
    raise ConfigError('reranking needs documents for each query, got '
                      f'{len(query_texts)} queries and {len(each)} lists of documents, '
                      f'{sum(not some for some in each)} of them empty')
  if top < 0:
    raise ConfigError(f'top is 0 or more, got {top}')
  pairs = [(query, list(some)) for query, some in zip(query_texts, each, strict=True)]
  if trained.similarity == 'maxsim':
    first = [query for query, some in pairs for _ in some]
    flat = similar(trained, first, [document for _, some in pairs for document in some])
    ends = np.cumsum([len(some) for _, some in pairs])[:-1]
    all_scores = [scores.tolist() for scores in np.split(flat, ends)]
  else:
    all_scores = [named.scores for named in transfer.predict_texts(trained, pairs, batch)]
  found = []
  for scores, (_, some) in zip(all_scores, pairs, strict=True):
    order = np.argsort(-np.array(scores), kind='stable')[:top or None]
    found.append([Hit(int(at), scores[at], some[at]) for at in order])
  return found


def load_reranker(model: models.Model) -> models.LoadedModel:
  """Load a model for `rerank`. Raises ConfigError for one that does not score documents."""
  from plm_jax.api import transfer
  trained = ensure_loaded(model)
  if trained.similarity == 'maxsim':
    return trained
  return transfer.load_for_task(trained, 'rerank', 'rerank')


def distill(model: models.Model, folder: models.Path, size: int = 256) -> StaticVectors:
  """Distill an encoder into static vectors, one per token; the mean is the vector of a text.

  Encoding with static vectors is hundreds of times faster.

  >>> plm_jax.distill('runs/bert_base-laptop', 'static', size=32).table.shape[1]
  32

  Args:
    model: any encoder with a tokenizer
    folder: a folder that does not exist yet, or is empty. Functions that need vectors take it in
      place of a model, and sentence-transformers loads it
    size: dimensions of a vector: principal components of the encoder's vectors of the tokens

  Raises:
    ConfigError, ConvertError: more components than there are, or the folder is not empty.
  """
  found = static_vectors.distill_static_vectors(ensure_loaded(model), size)
  found.save(folder)
  return found


def load(folder: models.Path, mesh: MeshConfig | None = None) -> models.LoadedModel | StaticVectors:
  """Load a run's newest checkpoint, a checkpoint of another library, or static vectors.

  >>> plm_jax.load('runs/bert_base-laptop')
  <bert, encoder: 2 layers of ..., ... parameters
   heads: mlm, nsp; wordpiece tokenizer of ... tokens
   from runs/bert_base-laptop; can encode, fill_mask, likelihood, minimal_pairs, export>

  Args:
    folder: folder of a run, or of a checkpoint of transformers, T5X or an original code, on a disk
      or in a bucket; or a model of the Hugging Face hub, `ORG/NAME` or `ORG/NAME@REVISION`
    mesh: mesh for a model that does not fit one device, such as MeshConfig(1, tensor=4)

  Returns:
    The model. Its repr lists its layers, heads and functions. A folder from `distill` gives static
    vectors, which `encode`, `similar` and `search` take.

  Raises:
    CheckpointError, ConvertError: the folder holds no model that can be read.
  """
  return static_vectors.load(folder) or models.load(folder, mesh)


def load_encoder(model: Model) -> models.LoadedModel | StaticVectors:
  """Return a loaded model or static vectors, and load those that are given as a folder."""
  if isinstance(model, StaticVectors | models.LoadedModel):
    return model
  return static_vectors.load(model) or ensure_loaded(model)
