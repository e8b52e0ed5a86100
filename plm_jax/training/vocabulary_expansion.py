"""Model expansion: larger vocabularies, and weights tiled to a larger model."""
from collections import Counter
from collections.abc import Iterable, Sequence
import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.errors import ConfigError
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.optim.trainable import is_stacked
from plm_jax.tokenizers import Tokenizer
from plm_jax.training import vocabulary_replacement


def find_new_words(
    texts: Iterable[str], tokenizer: Tokenizer, number: int, least: int = 5) -> list[str]:
  """Find the most frequent words of texts that the tokenizer splits, for vocabulary expansion.

  Equally frequent words are in the order of the alphabet. Words with an unknown part are left out.

  Args:
    texts: the texts.
    tokenizer: that of the model.
    number: maximum number of words.
    least: minimum number of occurrences of a word.
  """
  counts: Counter[str] = Counter()
  for text in texts:
    counts.update(word for word in tokenizer.split_words(text) if any(map(str.isalnum, word)))
  frequent = [word for word, count in counts.items() if count >= least]
  ranked = sorted(frequent, key=lambda word: (-counts[word], word))
  unknown = tokenizer.vocab.unk
  words = [word for word, ids in zip(ranked, tokenizer.encode_batch(ranked), strict=True)
           if len(ids) > 1 and unknown not in ids]
  return words[:number]


def require_tokenizer(trained: LoadedModel) -> Tokenizer:
  """Return the tokenizer of a model. Raises ConfigError where it has none."""
  if trained.tokenizer is None:
    raise ConfigError(f'{trained.source or "the model"} has no tokenizer whose vocabulary could '
                      'be expanded')
  return trained.tokenizer


def expand_vocabulary(trained: LoadedModel, words: Sequence[str]) -> LoadedModel:
  """Expand the vocabulary of a model by whole words, after the tokens of the text that there are.

  The ids of these tokens stay. New rows of the token embeddings, and of the output's matrix and
  bias, are the mean of those of the tokens that a word was.

  Raises:
    ConfigError: there are no words.
    TokenizerError: the tokenizer cannot be extended.
  """
  tokenizer = require_tokenizer(trained)
  if not words:
    raise ConfigError(
        'there is no word to add: none of the text is split into pieces and comes often enough')
  larger = tokenizer.extend(words)
  old, size, added = tokenizer.vocab.size, trained.model.vocab, larger.vocab.size
  # New tokens come before special tokens that are not part of the model of the tokenizer.
  pairs = zip(tokenizer.pieces, larger.pieces, strict=False)
  first = next((n for n, (before, after) in enumerate(pairs) if before != after), old)
  new = slice(first, first + added - old)
  pieces = vocabulary_replacement.find_pieces(tokenizer, larger.token_bytes[new])
  vocab = max(size, added)

  def extend(rows: np.ndarray) -> np.ndarray:
    extended = np.zeros((vocab, *rows.shape[1:]), rows.dtype)
    extended[:first] = rows[:first]
    extended[new] = [rows[ids].mean(0) for ids in pieces]
    extended[new.stop:added] = rows[first:old]
    extended[added:size] = rows[added:]  # rows that no token has
    return extended

  params = vocabulary_replacement.map_token_rows(trained.params, size, extend)
  params = jax.tree.map(jnp.asarray, params)
  model = dataclasses.replace(trained.model, vocab=vocab)
  return dataclasses.replace(trained, model=model, params=params, tokenizer=larger)


def tile_from_middle(x: np.ndarray, shape: Sequence[int]) -> np.ndarray:
  """Tile an array to a larger `shape`: it is in the middle, and repeats along each axis on both
  sides.

  This is `tile_weights_from_middle` of AnswerDotAI/ModernBERT, src/bert_layers/initialization.py
  (_tile_1d, _tile_2d).

  Raises:
    ConfigError: the shape is smaller in some axis.
  """
  smaller = x.ndim != len(shape)
  if smaller or any(new < old for old, new in zip(x.shape, shape, strict=True)):
    raise ConfigError(
        f'an array of shape {list(x.shape)} cannot be tiled to the shape {list(shape)}')
  for axis, (old, new) in enumerate(zip(x.shape, shape, strict=True)):
    if old != new:
      x = np.take(x, (np.arange(new) - (new - old) // 2) % old, axis)
  return x


def tile_params(large: Any, small: Any) -> Any:
  """Fill a larger model of the same architecture with a smaller one's parameters (ModernBERT
  large).

  Follows AnswerDotAI/ModernBERT, src/bert_layers/model.py, init_model_from_pretrained. Weights
  are tiled from the middle, queries, keys and values over all heads together. Layer i of N starts
  from layer round(i n / N) of n. The norm after the last layer starts with ones, as there.

  Args:
    large: parameters of the larger model, a tree of arrays of which only the shapes are read.
    small: the same parameters of the smaller one.

  Returns:
    the tree of `large`, as numpy arrays.

  Raises:
    ConfigError: a vocabulary or a number of positions has another size, or the model is not larger.
  """
  new_layers, old_layers = count_layers(large), count_layers(small)

  def tile(path, new, old):
    name = [entry.key for entry in path]
    old = np.asarray(old)
    fresh_norm = np.ones if name[-1] == 'scale' else np.zeros
    if name[-2:-1] == ['norm'] and tuple(name[:-2]) in new_layers:
      return fresh_norm(new.shape, old.dtype)

    # Parameters outside of stacks.
    if not is_stacked(name):
      in_head = name[0].startswith('heads_') and len(name) == 2
      table = name[-2:-1] == ['embeddings'] or in_head
      if table and new.ndim and new.shape[0] != old.shape[0]:
        raise ConfigError(
            f'{"/".join(name)} has {old.shape[0]:,} rows there and {new.shape[0]:,} here')
      return tile_matrix(name, old, new.shape)

    # Layers. Without a norm in the first layer, row 0 of that norm is of layer 1.
    stack = tuple(name[:name.index('layers')])
    total, before = new_layers[stack], old_layers[stack]
    lacking, lacking_before = total - new.shape[0], before - old.shape[0]
    if lacking != lacking_before or total < before:
      raise ConfigError(
          f'{"/".join(name)} is of {old.shape[0]} layers there and of {new.shape[0]} here')
    rows = []
    for layer in range(lacking, total):
      source = min(round(layer * before / total), before - 1) - lacking
      if source < 0:
        rows.append(fresh_norm(new.shape[1:], old.dtype))
      else:
        rows.append(tile_matrix(name, old[source], new.shape[1:]))
    return np.stack(rows)

  return jax.tree_util.tree_map_with_path(tile, large, small)


def count_layers(tree) -> dict[tuple[str, ...], int]:
  """Count the layers of each stack: names before `layers` -> number of layers."""
  found: dict[tuple[str, ...], int] = {}
  for path, x in jax.tree_util.tree_flatten_with_path(tree)[0]:
    name = [entry.key for entry in path]
    if is_stacked(name):
      stack = tuple(name[:name.index('layers')])
      found[stack] = max(found.get(stack, 0), x.shape[0])
  return found


def tile_matrix(name: Sequence[str], x: np.ndarray, shape: Sequence[int]) -> np.ndarray:
  """Tile the parameter called `name`; kernels and biases of attention as matrices over all
  heads."""
  if 'attention' not in name or x.ndim != len(shape) or name[-1] not in ('kernel', 'bias'):
    return tile_from_middle(x, shape)
  def matrix_shape(size: Sequence[int]) -> tuple[int, ...]:
    if name[-1] == 'bias':
      return math.prod(size),
    if 'out' in name:
      return math.prod(size[:-1]), size[-1]
    return size[0], math.prod(size[1:])
  return tile_from_middle(x.reshape(matrix_shape(x.shape)), matrix_shape(shape)).reshape(shape)
