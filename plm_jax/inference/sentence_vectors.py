"""Sentence embeddings of texts, by a model that was fine-tuned for them."""
from collections.abc import Sequence
import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from plm_jax import progress, truncation
from plm_jax.errors import ConfigError, check_finite
from plm_jax.inference.encode import split_rows
from plm_jax.inference.prompts import pad_rows
from plm_jax.layers.splade import SpladeConfig
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.metrics.nearest import stack_vectors, to_dense, to_sparse
from plm_jax.tasks.batches import delay_items
from plm_jax.tasks.contract import DEFAULT_ROW_LENGTH
from plm_jax.tasks.document_windows import WindowPooling, combine_windows, window_starts
from plm_jax.tasks.input_formats import InputRow, get_input_format
from plm_jax.tasks.sentence_embedding import EmbeddingTask, apply_heads
from plm_jax.truncation import Truncation


def has_sentence_vectors(trained: LoadedModel) -> bool:
  """Tell whether a model was fine-tuned for sentence embeddings."""
  return isinstance(trained.task, EmbeddingTask)


def with_sparse_vectors(trained: LoadedModel) -> LoadedModel:
  """Return a masked language model as one with sparse vectors (SPLADE).

  SparseEncoder of sentence-transformers reads such a checkpoint in the same way.

  Raises:
    ConfigError: the model has no masked-LM head, or was fine-tuned for dense vectors.
  """
  if has_sentence_vectors(trained) and trained.task.is_sparse:
    return trained
  if has_sentence_vectors(trained) or 'mlm' not in trained.heads:
    has = 'was trained for dense vectors'
    if 'mlm' not in trained.heads:
      has = f'has the heads {", ".join(trained.heads) or "none"}'
    raise ConfigError(f'{trained.source or "the model"} {has}: sparse vectors are made by a masked '
                      'language model')
  task = EmbeddingTask(family=trained.family, vector=SpladeConfig(), similarity='dot')
  return dataclasses.replace(trained, task=task)


def encode_sentences(
    trained: LoadedModel, texts: Sequence[str], tokens: int = 8192, windows: WindowPooling = 'off',
    stride: int = 0, prompt: str = 'own') -> Any:
  """Compute the sentence embeddings of texts -> float32 [N, W], sparse ones as a csr_array.

  A text that is too long is truncated, as in training, or read in windows. An empty text consists
  of its special tokens.

  Args:
    trained: a model that was fine-tuned for sentence embeddings.
    texts: N texts.
    tokens: maximum tokens per batch, with padding, on a CPU at most 2,048; a batch holds texts of
      similar length.
    windows: for a text that is too long, the mean or the maximum of the vectors of its windows.
    stride: tokens between the starts of windows; 0: three quarters of a window.
    prompt: name of the prompt before each text, as for `LoadedModel.find_prompt`.

  Raises:
    ConfigError: the model has no sentence embeddings or no tokenizer, or a text has no tokens.
  """
  if not isinstance(trained.task, EmbeddingTask) or trained.tokenizer is None:
    raise ConfigError(f'{trained.source or "the model"} was not fine-tuned for sentence '
                      'embeddings, or has no tokenizer')
  if prompt == 'query' and trained.task.has_query_weights:
    return encode_queries(trained, texts)
  row_format, vocab = get_input_format(trained.family), trained.tokenizer.vocab
  longest = max_row_length(trained)
  room = longest - row_format.count_special(vocab, 1)
  # Rows of all texts; `documents` has the number of the text of each row.
  rows, documents, cuts = [], [], Truncation(len(texts))
  before, skip = trained.find_prompt(prompt), 0
  if before and not trained.pools_prompt:
    skip = len(row_format.special_ids(vocab)[0]) + len(trained.tokenizer.encode(before))
    if skip >= longest or windows != 'off':
      raise ConfigError(f'the prompt {prompt!r} has {skip} tokens that are not pooled: a text is '
                        f'read in one row of {longest}, not in windows')
  for number, ids in enumerate(trained.tokenizer.encode_batch([before + text for text in texts])):
    parts = ([ids] if windows == 'off' else
             [ids[start:start + room] for start in window_starts(len(ids), room, stride)])
    own = [row_format.make_row([part], vocab, longest) for part in parts]
    if not own[0].tokens:
      raise ConfigError(f'text {number + 1} is empty, and the model adds no special tokens')
    cuts.truncated += own[0].lost > 0
    cuts.lost += own[0].lost
    cuts.tokens += len(own[0].tokens) + own[0].lost
    rows += own
    documents += [number] * len(own)
  truncation.report(cuts)
  is_sparse = trained.task.is_sparse
  params = trained.device_params(
      'backbone', *(f'heads_{name}' for name in trained.task.vector_heads))
  found: list[Any] = []
  order: list[int] = []
  lengths = [len(row.tokens) for row in rows]
  def compute():
    for length, size, some in split_rows(lengths, trained.model, longest, tokens):
      batch = make_batch([rows[number] for number in some], size, length, max(vocab.pad, 0))
      yield some, encode_batch(
          trained.model, trained.task, vocab, skip, params, jax.device_put(batch))
  with progress.progress_bar('texts', len(rows)) as done:
    for numbers, vectors in delay_items(compute()):
      vectors = check_finite(np.asarray(vectors)[:len(numbers)])
      found.append(to_sparse(vectors) if is_sparse else vectors)
      order += list(numbers)
      done.update(len(numbers))
  vectors = stack_vectors(found)[np.argsort(order)]
  if windows != 'off':
    combined = np.stack(combine_windows([*to_dense(vectors)], np.array(documents), windows))
    return to_sparse(combined) if is_sparse else combined
  return vectors


def encode_queries(trained: LoadedModel, texts: Sequence[str]) -> Any:
  """Compute the vectors of queries from fixed token weights, without the model -> csr_array [N, V].

  A query has the weight of each distinct token once.
  """
  from scipy import sparse
  weights = np.asarray(trained.params['heads_embedding']['query_weights'])
  before, longest = trained.find_prompt('query'), max_row_length(trained)
  encoded = trained.tokenizer.encode_batch([before + text for text in texts])  # pyright: ignore
  tokens = [np.unique(np.array(row[:longest], np.int32)) for row in encoded]
  ends = np.cumsum([0, *map(len, tokens)])
  flat = np.concatenate(tokens)
  return sparse.csr_array((weights[flat], flat, ends), (len(texts), len(weights)))


def make_batch(
    rows: Sequence[InputRow], size: int, length: int, pad: int) -> dict[str, np.ndarray]:
  """Pad rows into arrays tokens, segments and types [size, length]."""
  tokens, segments = pad_rows([row.tokens for row in rows], length, pad, size)
  types, _ = pad_rows([row.token_types for row in rows], length, 0, size)
  return {'tokens': tokens, 'segments': segments, 'types': types}


def max_row_length(trained: LoadedModel) -> int:
  """Return the maximum tokens per row: as in training."""
  return trained.length or trained.model.max_length or DEFAULT_ROW_LENGTH


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def encode_batch(model, task: EmbeddingTask, vocab, skip: int, params, batch):
  """Compute the vectors of a batch of tokens, types and segments [B, L] -> [B, W].

  skip: tokens at the start of each row that are not pooled.
  """
  batch = task.input_format.add_model_inputs(batch, vocab)
  output = model.backbone().apply({'params': params['backbone']}, batch)
  heads = {
      name: functools.partial(head.apply, {'params': params.get(f'heads_{name}', {})})
      for name, head in task.heads(model).items()}
  return apply_heads(heads, output, batch, skip=skip)
