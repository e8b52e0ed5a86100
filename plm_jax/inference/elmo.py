"""Vectors of words in their sentences, of an ELMo: from all layers, for tasks to mix."""
from collections.abc import Sequence
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.architectures.elmo import Elmo, ElmoConfig
from plm_jax.checked import shortened
from plm_jax.config import ConfigError
from plm_jax.inference.loading import Trained
from plm_jax.layers import spelling

POOLED = {'mean': lambda x: x.mean(0), 'max': lambda x: x.max(0), 'first': lambda x: x[0], 'last': lambda x: x[-1],
          'none': lambda x: x}
POOLED['own'] = POOLED['mean']


def word_layers(trained: Trained, sentences: Sequence[Sequence[str]], rows: int = 32) -> list[np.ndarray]:
  """Returns of each sentence, given as its words, the vectors of all layers [N + 1, words, 2P] float32, word vectors
  first, without those of <S> and </S>. A sentence of no words has none.

  Each is read from a fresh state, so that no vector depends on what else was asked; AllenNLP carries the state on, by
  which its first batches differ (allenai/bilm-tf, README). Raises ConfigError for a model that is no ELMo.
  """
  config = trained.model
  if not isinstance(config, ElmoConfig):
    raise ConfigError(f'vectors of all layers are an ELMo\'s, this is a model of type {trained.family}')
  order = sorted(range(len(sentences)), key=lambda number: len(sentences[number]))
  found: list[Any] = [None] * len(sentences)
  for start in range(0, len(order), rows):
    some = order[start:start + rows]
    longest = -(-max(1, *(len(sentences[number]) for number in some)) // 16) * 16  # few shapes, few programs
    characters = np.zeros((rows, longest, config.characters.longest), np.int32)
    for row, number in enumerate(some):
      if words := sentences[number]:
        characters[row, :len(words)] = spelling.spelled(words, config.characters.longest)
    layers = np.asarray(forward(config, trained.params['backbone'], characters))
    for row, number in enumerate(some):
      found[number] = layers[:, row, 1:len(sentences[number]) + 1]
  return found


def encode(trained: Trained, texts: Sequence[str], layer: int, pooling: str) -> np.ndarray | list[np.ndarray]:
  """Encodes texts as `inference.encode.encode` does: their words, by the tokenizer or between spaces, in a layer from 0
  to N. Raises ConfigError for a text without words, and a layer or a pooling that there is not."""
  if pooling not in POOLED:
    raise ConfigError(f'pooling of the words of an ELMo is one of {", ".join(POOLED)}, got {shortened(pooling)}')
  split = trained.tokenizer.split if hasattr(trained.tokenizer, 'split') else str.split  # type: ignore
  sentences = [split(text) for text in texts]
  if [] in sentences:
    raise ConfigError(f'text {sentences.index([]) + 1} has no words')
  if not -trained.model.layers - 1 <= layer <= trained.model.layers:
    raise ConfigError(f'layer is from 0 to {trained.model.layers}, or from -1 down, got {layer}')
  pooled = [POOLED[pooling](layers[layer]) for layers in word_layers(trained, sentences)]
  return pooled if pooling == 'none' else np.stack(pooled)


@functools.partial(jax.jit, static_argnums=0)
def forward(config: ElmoConfig, params, characters):
  """Computes the layers [N + 1, B, T + 2, 2P] of characters [B, T, 50]."""
  output: Any = Elmo(config).apply({'params': params}, {'characters': jnp.asarray(characters)})
  return output.layers
