"""ELMo embeddings: contextual vectors of words from all layers."""
from collections.abc import Sequence
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax import progress
from plm_jax.architectures.elmo import Elmo, ElmoConfig
from plm_jax.errors import ConfigError, check_finite
from plm_jax.layers import char_ids
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.validation import short_repr

POOLINGS = {
    'mean': lambda x: x.mean(0), 'max': lambda x: x.max(0), 'first': lambda x: x[0],
    'last': lambda x: x[-1], 'none': lambda x: x, 'own': lambda x: x.mean(0)}


def word_layers(
    trained: LoadedModel, sentences: Sequence[Sequence[str]], rows: int = 32,
) -> list[np.ndarray]:
  """Compute the vectors of words in all layers, without those of <S> and </S>.

  Each sentence starts from an empty LSTM state, so its vectors do not depend on other sentences.
  AllenNLP carries the state over, so its first batches differ (allenai/bilm-tf, README).

  Args:
    trained: an ELMo.
    sentences: the words of each sentence.
    rows: batch size.

  Returns:
    float32 [layers + 1, words, 2 * projection] per sentence; layer 0 has the word vectors. A
    sentence without words has no vectors.

  Raises:
    ConfigError: the model is no ELMo.
  """
  config = trained.model
  if not isinstance(config, ElmoConfig):
    raise ConfigError('vectors of all layers are an ELMo\'s, this is a model of type '
                      f'{trained.family}')
  params = trained.device_params('backbone')['backbone']
  spelling_length = config.characters.longest
  order = sorted(range(len(sentences)), key=lambda number: len(sentences[number]))
  found: list[Any] = [None] * len(sentences)
  with progress.progress_bar('texts', len(order)) as done:
    for start in range(0, len(order), rows):
      some = order[start:start + rows]
      longest = max(1, len(sentences[some[-1]]))  # sentences are in order of length
      longest = -(-longest // 16) * 16  # a multiple of 16, to limit compilation
      characters = np.zeros((rows, longest, spelling_length), np.int32)
      for row, number in enumerate(some):
        if words := sentences[number]:
          characters[row, :len(words)] = char_ids.encode_words(words, spelling_length)
      layers = np.asarray(apply_elmo(config, params, jax.device_put(characters)))
      for row, number in enumerate(some):
        found[number] = check_finite(layers[:, row, 1:len(sentences[number]) + 1])
      done.update(len(some))
  return found


def encode_texts(
    trained: LoadedModel, texts: Sequence[str], layer: int, pooling: str,
) -> np.ndarray | list[np.ndarray]:
  """Encode texts with an ELMo, as `inference.encode.encode` does with other models.

  Words are split by the tokenizer, or at spaces. layer: from 0 to the number of layers.

  Raises:
    ConfigError: a text has no words, or the layer or pooling does not exist.
  """
  if pooling not in POOLINGS:
    raise ConfigError(f'pooling of the words of an ELMo is one of {", ".join(POOLINGS)}, got '
                      f'{short_repr(pooling)}')
  split = getattr(trained.tokenizer, 'split', str.split)
  sentences = [split(text) for text in texts]
  if [] in sentences:
    raise ConfigError(f'text {sentences.index([]) + 1} has no words')
  if not -trained.model.layers - 1 <= layer <= trained.model.layers:
    raise ConfigError(f'layer is from 0 to {trained.model.layers}, or from -1 down, got {layer}')
  pooled = POOLINGS[pooling]
  vectors = [pooled(layers[layer]) for layers in word_layers(trained, sentences)]
  return vectors if pooling == 'none' else np.stack(vectors)


@functools.partial(jax.jit, static_argnums=0)
def apply_elmo(config: ElmoConfig, params, characters):
  """Compute all layers [layers + 1, batch, words + 2, 2 * projection].

  characters: character ids [batch, words, characters of a word].
  """
  output: Any = Elmo(config).apply({'params': params}, {'characters': jnp.asarray(characters)})
  return output.layers
