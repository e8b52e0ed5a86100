"""The door to vectors of texts: what they are, how near to each other, which are nearest. The rest of the front door is
`plm_jax.api`.

A `model` is what `load` or `finetune` gave, or the folder of a run, of a checkpoint, or of sentence-transformers.
"""
from collections.abc import Sequence
from typing import Literal, NamedTuple, overload

import numpy as np

from plm_jax import api
from plm_jax.api import on, opened, several
from plm_jax.config import ConfigError
from plm_jax.embeddings import static
from plm_jax.embeddings.encoding import embed, embeds
from plm_jax.embeddings.measures import unit
from plm_jax.embeddings.nearest import nearest
from plm_jax.embeddings.static import StaticVectors
from plm_jax.inference import encode as encoding
from plm_jax.inference.encode import Pooling
from plm_jax.inference.generate import Prompt
from plm_jax.inference.prompts import check

PerText = Literal['own', 'mean', 'max', 'first', 'last', 'mean_sqrt', 'weighted_mean']


Model = api.Model | StaticVectors


class Hit(NamedTuple):
  """What a search has found."""

  number: int
  """of the text in the corpus, from 0"""
  score: float
  """cosine"""
  text: str
  """'' where the corpus is vectors"""


@overload
def encode(model: Model, texts: str | Sequence[Prompt], layer: int = -1,
           pooling: PerText = 'own', cut: bool = False, tokens: int = 8192) -> np.ndarray:
  """Returns a vector for each text [N, D]."""


@overload
def encode(model: Model, texts: str | Sequence[Prompt], layer: int = -1, *, pooling: Literal['none'],
           cut: bool = False, tokens: int = 8192) -> list[np.ndarray]:
  """Returns a vector for each token of each text [L, D]."""


def encode(
    model: Model, texts: str | Sequence[Prompt], layer: int = -1, pooling: Pooling = 'own', cut: bool = False,
    tokens: int = 8192) -> np.ndarray | list[np.ndarray]:
  """Encodes texts as vectors, for search, clusters or classifiers.

  >>> bert = plm_jax.load('runs/bert_base-laptop')
  >>> vectors = plm_jax.encode(bert, ['Returns the array.', 'Sorts a list in place.'])
  >>> vectors.shape == (2, bert.model.block.width)
  True
  >>> of_tokens = plm_jax.encode(bert, 'Returns the array.', layer=1, pooling='none')

  Args:
    model: any model with a tokenizer; an encoder-decoder encodes by its encoder; or static vectors
    texts: texts, or their ids; each gets the special tokens that stand around a text in training
    layer: 0: the embeddings; k: the output of layer k; -1: the last, as transformers numbers its `hidden_states`
    pooling: own: the sentence vectors that the model has learned, its dense layer and all, or the mean where it has
      learned none; or over the tokens of a text: their mean, their maximum, the first or the last of them, their sum
      over the root of their number, their mean weighted by 1, 2, 3, ...; none: all of them
    cut: texts that are too long lose their end, as they do of a model that has learned sentence vectors; otherwise
      they are refused
    tokens: that go through the model together, padding included, at most

  Returns:
    float32 [N, D]; with pooling 'none' a list of N arrays [tokens of the text, D].

  Raises:
    CheckpointError: the model has no tokenizer.
    ConfigError: no text, one that is too long or empty, a layer that the model does not have.
  """
  trained = reader(model)
  if isinstance(trained, StaticVectors):
    check([text if isinstance(text, str) else '' for text in several(texts)], 'give texts')
    return trained.encode(several(texts))  # pyright: ignore[reportArgumentType]  ids are of models
  with on(trained):
    plain = [text for text in several(texts) if isinstance(text, str)]
    if pooling == 'own' and embeds(trained) and layer == -1 and len(plain) == len(several(texts)):
      check(plain, 'give texts')
      return embed(trained, plain, tokens)
    return encoding.encode(trained, several(texts), layer, pooling, cut, tokens)


def similar(model: Model, first: str | Sequence[str], second: str | Sequence[str]) -> np.ndarray:
  """Measures how alike texts are, by the cosine of their vectors.

  >>> same, other = plm_jax.similar('runs/bert_base-laptop', 'Returns it.', ['Returns it.', 'Sorts a list.'])
  >>> bool(same > 0.999 > other)
  True

  Args:
    model: any model with a tokenizer, best one that has learned sentence vectors
    first: texts, or one, which is compared with each of the second
    second: as many texts

  Returns:
    Cosines, float32 [N].

  Raises:
    ConfigError: other numbers of texts; what `encode` refuses.
  """
  sides = several(first), several(second)
  if len(sides[0]) == 1:
    sides = sides[0] * len(sides[1]), sides[1]
  if len(sides[0]) != len(sides[1]):
    raise ConfigError(f'texts are compared one by one, got {len(sides[0])} and {len(sides[1])}: give as many')
  trained = reader(model)
  every = list(dict.fromkeys([*sides[0], *sides[1]]))
  vectors = dict(zip(every, unit(encode(trained, every)), strict=True))
  cosines = [float(vectors[a] @ vectors[b]) for a, b in zip(*sides, strict=True)]
  return np.clip(np.array(cosines, np.float32), -1, 1)


def search(model: Model, corpus: Sequence[str] | np.ndarray, queries: str | Sequence[str], top: int = 10
           ) -> list[list[Hit]]:
  """Finds the texts of a corpus that are most like queries, by the cosine of their vectors; all are looked at.

  >>> found, = plm_jax.search('runs/bert_base-laptop', ['Sorts a list.', 'Returns the array.'], 'Sorts a list.', top=1)
  >>> found[0].number, found[0].text
  (0, 'Sorts a list.')

  Args:
    model: any model with a tokenizer, best one that has learned sentence vectors
    corpus: texts; or the vectors [N, D] that `encode` gave them, also of a file that is mapped into memory
    queries: texts
    top: how many are found for each query

  Returns:
    For each query `Hit`s, the nearest first.

  Raises:
    ConfigError: an empty corpus, vectors of another width; what `encode` refuses.
  """
  trained, texts = reader(model), [] if isinstance(corpus, np.ndarray) else several(corpus)
  if not len(corpus):
    raise ConfigError('the corpus is empty: there is nothing to search')
  vectors = corpus if isinstance(corpus, np.ndarray) else encode(trained, texts)
  scores, numbers = nearest(encode(trained, queries), vectors, top)
  return [[Hit(number, score, texts[number] if texts else '') for number, score in zip(*row, strict=True)]
          for row in zip(numbers.tolist(), scores.tolist(), strict=True)]


def distil(model: api.Model, folder: api.Path, size: int = 256) -> StaticVectors:
  """Distils static vectors, a vector a token, whose mean is that of a text: hundreds of times the speed.

  >>> plm_jax.distil('runs/bert_base-laptop', 'static', size=32).table.shape[1]
  32

  Args:
    model: any encoder with a tokenizer
    folder: where to, not there yet, or empty; wherever vectors are asked of a model it may stand, and
      sentence-transformers loads it
    size: numbers of a vector: principal components of those that the encoder gives the tokens

  Raises:
    ConfigError, ConvertError: more components than there are; the folder is not empty.
  """
  found = static.distil(opened(model), size)
  found.save(folder)
  return found


def reader(model: Model) -> api.Trained | StaticVectors:
  """Loads what is only named, a model or static vectors."""
  if isinstance(model, StaticVectors | api.Trained):
    return model
  return static.load(model) or opened(model)
