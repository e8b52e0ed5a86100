"""Sentence vectors of texts, by a model that has learned them."""
from collections.abc import Sequence
import functools

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.errors import ConfigError
from plm_jax.inference.batches import by_length, doubled
from plm_jax.inference.loading import Trained
from plm_jax.layers.pooling import SentenceVector, VectorConfig
from plm_jax.tasks.embedding import EmbeddingTask
from plm_jax.tasks.forms import Form, form_of
from plm_jax.tasks.predict import LONGEST


def embeds(trained: Trained) -> bool:
  """Tells whether a model has learned sentence vectors."""
  return isinstance(trained.task, EmbeddingTask)


def embed(trained: Trained, texts: Sequence[str], tokens: int = 8192) -> np.ndarray:
  """Computes the vectors of texts as the model has learned them -> float32 [N, W].

  A text that is too long loses its end, as in training; an empty one is what stands around it. Texts of like length go
  through the model together, at most `tokens` of them, padding included. Raises ConfigError for a model that has
  learned no vectors or has no tokenizer, and for a text that leaves no tokens.
  """
  if not isinstance(trained.task, EmbeddingTask) or trained.tokenizer is None:
    raise ConfigError(f'{trained.source or "the model"} has learned no sentence vectors, or has no tokenizer')
  form, vocab, longest = form_of(trained.family), trained.tokenizer.vocab, longest_of(trained)
  rows = [form.row([ids], vocab, longest) for ids in trained.tokenizer.encode_batch(list(texts))]
  for number, row in enumerate(rows):
    if not row.tokens:
      raise ConfigError(f'text {number + 1} is empty, and the model puts nothing around it')
  config = trained.task.vector
  params = {name: jax.tree.map(jnp.asarray, trained.params[name])
            for name in ('backbone', 'heads_embedding') if name in trained.params}
  found: list[np.ndarray] = [np.zeros(0)] * len(rows)
  waiting: list[tuple[list[int], jax.Array]] = []
  def fetch():
    numbers, vectors = waiting.pop(0)
    for number, vector in zip(numbers, np.asarray(vectors), strict=False):
      found[number] = vector
  lengths = [len(row.tokens) for row in rows]
  for length, numbers in sorted(by_length(lengths, longest, tokens).items()):
    size = min(max(1, tokens // length), doubled(len(numbers)))
    for first in range(0, len(numbers), size):
      some = numbers[first:first + size]
      batch = {name: np.full((size, length), empty, np.int32) for name, empty in (
          ('tokens', max(vocab.pad, 0)), ('segments', 0), ('types', 0))}
      for place, number in enumerate(some):
        row = rows[number]
        batch['tokens'][place, :len(row.tokens)] = row.tokens
        batch['types'][place, :len(row.tokens)] = row.types
        batch['segments'][place, :len(row.tokens)] = 1
      waiting.append((some, vectors_of(trained.model, config, form, vocab, params, batch)))
      if len(waiting) > 1:  # one is computed while the next is laid out
        fetch()
  while waiting:
    fetch()
  return np.stack(found)


def longest_of(trained: Trained) -> int:
  """Returns the tokens that a row has at most: as many as in training."""
  return trained.length or trained.model.max_length or LONGEST


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def vectors_of(model, config: VectorConfig, form: Form, vocab, params, batch):
  """Computes the vectors of a batch of tokens, types and segments [B, L] -> [B, W]."""
  arranged = form.arrange(batch, vocab)
  output = model.backbone().apply({'params': params['backbone']}, arranged)
  return SentenceVector(config).apply({'params': params.get('heads_embedding', {})}, output, arranged)
