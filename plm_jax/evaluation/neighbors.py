"""Nearest neighbors of a word: tokens by the embedding table, and words in context by a layer.

The embedding table knows no context. The vectors of a layer distinguish the bank of a river from a
bank with money (Ethayarajh 2019 measures how much).
"""
from collections.abc import Sequence
import re
from typing import NamedTuple

from flax import traverse_util
import numpy as np

from plm_jax.errors import ConfigError
from plm_jax.inference import token_features
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.metrics.nearest import find_nearest

MARKED_WORD = re.compile(r'\*(\S+?)\*')


class Neighbor(NamedTuple):
  """A neighbor in context: a word of a sentence."""

  word: str
  cosine: float
  sentence: str


def find_neighbors(
    trained: LoadedModel, sentence: str, among: Sequence[str], layer: int, top: int,
) -> tuple[list[tuple[str, float]], list[Neighbor]]:
  """Find neighbors of the word between stars; see `plm_jax.neighbors`."""
  query, place = parse_marked_word(sentence)
  corpus = [tuple(text.split()) for text in among if text.strip()]
  if not corpus:
    raise ConfigError('there is no sentence to look in: give some, or a file with them')
  vectors = token_features.word_layers(trained, [query, *corpus])
  depth = len(vectors[0])
  if not -depth <= layer < depth:
    raise ConfigError(f'the model has layers 0 (its embeddings) to {depth - 1}, got {layer}')

  # Neighbors in context.
  words = [(word, number) for number, sentence in enumerate(corpus) for word in sentence]
  table = np.concatenate([some[layer] for some in vectors[1:]])
  cosines, found = find_nearest(vectors[0][layer][[place]], table, top)
  in_context = []
  for cosine, at in zip(cosines[0], found[0].tolist(), strict=True):
    word, number = words[at]
    in_context.append(Neighbor(word, float(cosine), ' '.join(corpus[number])))
  return find_table_neighbors(trained, query[place], top), in_context


def parse_marked_word(sentence: str) -> tuple[tuple[str, ...], int]:
  """Parse a sentence with one word between stars -> (words, index of that word).

  Raises:
    ConfigError: not exactly one word is between stars.
  """
  given = sentence.split()
  stars = [at for at, word in enumerate(given) if MARKED_WORD.fullmatch(word)]
  if len(stars) != 1:
    raise ConfigError(f'one word of {sentence[:60]!r} must be between stars, as in "the *bank* '
                      f'of a river", got {len(stars)}')
  return tuple(MARKED_WORD.sub(r'\1', word) for word in given), stars[0]


def find_table_neighbors(trained: LoadedModel, word: str, top: int) -> list[tuple[str, float]]:
  """Find the tokens whose embeddings are nearest to that of a word; [] for an ELMo.

  The embedding of a word is the mean over its tokens. The mean over the table is subtracted first,
  because it alone makes most cosines large (Mu and Viswanath 2018).
  """
  flat = traverse_util.flatten_dict(trained.params['backbone'], sep='/')
  tables = [table for name, table in flat.items() if re.search(r'embeddings/tokens$', name)]
  if not tables or not trained.tokenizer:
    return []
  vocab, pieces = trained.tokenizer.vocab, trained.tokenizer.pieces
  table = np.asarray(tables[0], np.float32)[:vocab.size]
  table = table - table.mean(0)
  ids = trained.tokenizer.encode(word)
  query = table[ids].mean(0, keepdims=True)
  hidden = {*ids, *vocab.specials}
  cosines, found = find_nearest(query, table, top + len(hidden))
  neighbors = []
  for cosine, number in zip(cosines[0], found[0].tolist(), strict=True):
    if number not in hidden:
      name = pieces[number] if number < len(pieces) else f'<{number}>'
      neighbors.append((name, float(cosine)))
  return neighbors[:top]
