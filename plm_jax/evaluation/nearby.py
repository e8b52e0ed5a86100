"""What is near a word: tokens by the table of embeddings, which knows no context, and words of sentences by a layer's
vectors, which tell the bank of a river from one with money (Ethayarajh 2019 measures how much)."""
from collections.abc import Sequence
import re
from typing import NamedTuple

from flax import traverse_util
import numpy as np

from plm_jax.embeddings.nearest import nearest
from plm_jax.errors import ConfigError
from plm_jax.inference import words
from plm_jax.inference.loading import Trained

MARKED = re.compile(r'\*(\S+?)\*')


class Nearby(NamedTuple):
  """A word of a sentence."""

  word: str
  cosine: float
  sentence: str


def neighbours(trained: Trained, sentence: str, among: Sequence[str], layer: int, top: int
               ) -> tuple[list[tuple[str, float]], list[Nearby]]:
  """Finds neighbours of the word between stars, see `plm_jax.neighbours`."""
  asked, place = marked(sentence)
  within = [some for one in among if (some := tuple(one.split()))]
  if not within:
    raise ConfigError('there is no sentence to look in: give some, or a file with them')
  vectors = words.word_layers(trained, [asked, *within])
  depth = len(vectors[0])
  if not -depth <= layer < depth:
    raise ConfigError(f'the model has layers 0 (its embeddings) to {depth - 1}, got {layer}')
  places = [(number, word) for number, some in enumerate(within) for word in range(len(some))]
  corpus = np.concatenate([some[layer] for some in vectors[1:]])
  cosines, found = nearest(vectors[0][layer][[place]], corpus, top)
  return alone(trained, asked[place], top), [
      Nearby(within[number][word], float(cosine), ' '.join(within[number])) for cosine, (number, word) in (
          (cosine, places[at]) for cosine, at in zip(cosines[0], found[0].tolist(), strict=True))]


def marked(sentence: str) -> tuple[tuple[str, ...], int]:
  """Returns the words of a sentence, and which of them is between stars. Raises ConfigError where it is not one."""
  given = sentence.split()
  stars = [at for at, word in enumerate(given) if MARKED.fullmatch(word)]
  if len(stars) != 1:
    raise ConfigError(f'one word of {sentence[:60]!r} is to stand between stars, as in "the *bank* of a river", got '
                      f'{len(stars)}')
  return tuple(MARKED.sub(r'\1', word) for word in given), stars[0]


def alone(trained: Trained, word: str, top: int) -> list[tuple[str, float]]:
  """Finds the tokens whose vectors in the table are nearest to the word's, the mean of its tokens'; none of an ELMo.

  What all vectors share is taken off first, since it alone makes most cosines large (Mu and Viswanath 2018).
  """
  flat = traverse_util.flatten_dict(trained.params['backbone'], sep='/')
  tables = [table for name, table in flat.items() if re.search(r'embeddings/tokens$', name)]
  if not tables or not trained.tokenizer:
    return []
  vocab = trained.tokenizer.vocab
  table = np.asarray(tables[0], np.float32)[:vocab.size]
  table = table - table.mean(0)
  ids = trained.tokenizer.encode(word)
  own = table[ids].mean(0, keepdims=True)
  hidden = {*ids, *vocab.specials}
  cosines, found = nearest(own, table, top + len(hidden))
  return [(trained.tokenizer.pieces[number] if number < len(trained.tokenizer.pieces) else f'<{number}>', float(cosine))
          for cosine, number in zip(cosines[0], found[0].tolist(), strict=True) if number not in hidden][:top]
