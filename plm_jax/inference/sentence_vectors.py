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
from plm_jax.layers.token_vectors import TokenVectorConfig, TokenVectors
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.metrics.nearest import stack_vectors, to_dense, to_sparse
from plm_jax.tasks.batches import delay_items
from plm_jax.tasks.contract import DEFAULT_ROW_LENGTH
from plm_jax.tasks.document_windows import WindowPooling, combine_windows, window_starts
from plm_jax.tasks.input_formats import InputFormat, InputRow, get_input_format
from plm_jax.tasks.late_interaction import (
  InteractionFormat,
  LateInteractionTask,
  hide_expansion,
)
from plm_jax.tasks.sentence_embedding import EmbeddingTask, apply_heads
from plm_jax.truncation import Truncation


def has_sentence_vectors(trained: LoadedModel) -> bool:
  """Tell whether a model was fine-tuned for sentence embeddings."""
  return isinstance(trained.task, EmbeddingTask)


def with_sparse_vectors(trained: LoadedModel) -> LoadedModel:
  """Return a masked language model as one with sparse vectors (SPLADE).

  SparseEncoder of sentence-transformers reads such a checkpoint in the same way.

  Raises:
    ConfigError: the model has no masked-LM head, or was fine-tuned for other vectors.
  """
  if has_sentence_vectors(trained) and trained.task.is_sparse:
    return trained
  if has_sentence_vectors(trained) or 'mlm' not in trained.heads:
    has = 'was trained for other vectors'
    if 'mlm' not in trained.heads:
      has = f'has the heads {", ".join(trained.heads) or "none"}'
    raise ConfigError(f'{trained.source or "the model"} {has}: sparse vectors are made by a masked '
                      'language model')
  task = EmbeddingTask(family=trained.family, vector=SpladeConfig(), similarity='dot')
  return dataclasses.replace(trained, task=task)


def has_token_vectors(trained: Any) -> bool:
  """Tell whether a model was fine-tuned for late interaction: texts have a vector per token."""
  return isinstance(getattr(trained, 'task', None), LateInteractionTask)


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
  if isinstance(trained.task, LateInteractionTask):
    raise ConfigError(f'{trained.source or "the model"} has a vector per token, not per text')
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
    combined = np.stack(combine_windows(list(to_dense(vectors)), np.array(documents), windows))
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


def encode_tokens(
    trained: LoadedModel, texts: Sequence[str], tokens: int = 8192, prompt: str = 'own'
) -> list[np.ndarray]:
  """Compute the token vectors of texts for late interaction -> N arrays [tokens, W] float32.

  A text that is too long is truncated, as in training. Documents have no vectors of punctuation.

  Args:
    trained: a model that was fine-tuned for late interaction.
    texts: N texts.
    tokens: as for `encode_sentences`.
    prompt: 'query' for queries. The texts are documents with any other name of a prompt, which is
      as for `LoadedModel.find_prompt`.

  Raises:
    ConfigError: the model has no token vectors or no tokenizer.
  """
  task, tokenizer = trained.task, trained.tokenizer
  if not isinstance(task, LateInteractionTask) or tokenizer is None:
    raise ConfigError(f'{trained.source or "the model"} was not fine-tuned for late interaction, '
                      'or has no tokenizer')
  row_format = InteractionFormat(task.vector, task.input_format, tokenizer)
  before = trained.find_prompt(prompt)
  length, is_query = max_row_length(trained), prompt == 'query'
  ids = tokenizer.encode_batch([before + text for text in texts])
  rows = [row_format.make_row(one, is_query, length) for one in ids]
  kinds = [row_format.score_tokens(row.tokens, is_query) for row in rows]
  truncation.report(Truncation(
      len(rows), sum(row.lost > 0 for row in rows),
      sum(len(row.tokens) + row.lost for row in rows), sum(row.lost for row in rows)))
  params = trained.device_params('backbone', 'heads_embedding')
  found: list[np.ndarray] = [np.zeros(0)] * len(rows)
  longest = task.vector.query_length if is_query else length
  vocab = tokenizer.vocab
  def compute():
    lengths = [len(row.tokens) for row in rows]
    for width, size, some in split_rows(lengths, trained.model, longest, tokens):
      batch = make_batch([rows[number] for number in some], size, width, max(vocab.pad, 0))
      batch['scored'] = pad_rows([kinds[number].tolist() for number in some], width, 0, size)[0]
      yield some, encode_token_batch(
          trained.model, task.vector, task.input_format, vocab, params, jax.device_put(batch))
  with progress.progress_bar('texts', len(rows)) as done:
    for numbers, vectors in delay_items(compute()):
      for number, own in zip(numbers, np.asarray(vectors), strict=False):
        found[number] = check_finite(own[:len(kinds[number])][kinds[number] > 0])
      done.update(len(numbers))
  return found


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


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def encode_token_batch(
    model, config: TokenVectorConfig, row_format: InputFormat, vocab, params, batch):
  """Compute the token vectors of a batch; `encode_batch` with `scored` [B, L] -> [B, L, W]."""
  batch = hide_expansion(row_format.add_model_inputs(batch, vocab))
  output = model.backbone().apply({'params': params['backbone']}, batch)
  return TokenVectors(config).apply({'params': params['heads_embedding']}, output, batch)
