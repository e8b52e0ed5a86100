"""Easy data augmentation (Wei and Zou 2019): words of a text exchanged, left out, put in, replaced.

What replaces a word, or is put in, is a word of the training examples, drawn as often as it comes there: the authors'
synonyms are of WordNet, which there is in few languages. A text is a pure function of the generator that is given,
which callers make of the seed, the epoch and the example's number.
"""
import dataclasses

import numpy as np

from plm_jax.checked import Checked, within
from plm_jax.tasks.examples import Ragged


@dataclasses.dataclass(frozen=True)
class AugmentConfig(Checked):
  """How much of a text each operation touches, one after another; one of 0 is left out (section 2: alpha)."""

  limits = within(share='[0, 1]', substitute='[0, 1]', insert='[0, 1]', swap='[0, 1]', delete='[0, 1]')

  share: float = 0.0
  """probability that an example is changed at all in an epoch"""
  substitute: float = 0.1
  """share of words, rounded, one at least, replaced by others"""
  insert: float = 0.1
  """share of words, rounded, one at least, put in anywhere"""
  swap: float = 0.1
  """share of words, rounded, one at least, of exchanges of two words"""
  delete: float = 0.1
  """probability of each word to be left out; one stays always"""


def words_of(tokens: Ragged, starts: Ragged) -> Ragged:
  """Returns all words of texts, of each its tokens: what words are drawn from.

  starts: of each token whether it is the first of a word.
  """
  first = np.array(starts.flat, bool)
  first[tokens.offsets[:-1][tokens.lengths > 0]] = True
  return Ragged(tokens.flat, np.append(np.flatnonzero(first), len(tokens.flat)))


def augmented(tokens: np.ndarray, starts: np.ndarray, rng: np.random.Generator, config: AugmentConfig,
              pool: Ragged) -> np.ndarray:
  """Returns a text [T] with some of its words changed [T'], or as it is; never an empty one of one that is not.

  starts [T]: True where a token is the first of a word; pool: words to draw from (`words_of`), at least one.
  """
  if not len(tokens) or rng.random() >= config.share:
    return tokens
  borders = np.flatnonzero(starts)
  words = np.split(tokens, borders[borders > 0])
  def number(share):
    return max(1, round(share * len(words))) if share else 0
  def other():
    return pool[int(rng.integers(len(pool)))]
  for place in rng.permutation(len(words))[:number(config.substitute)]:
    words[place] = other()
  for _ in range(number(config.insert)):
    words.insert(int(rng.integers(len(words) + 1)), other())
  for _ in range(number(config.swap)):
    one, two = rng.integers(len(words), size=2)
    words[one], words[two] = words[two], words[one]
  if config.delete:
    keep = rng.random(len(words)) >= config.delete
    keep[rng.integers(len(words))] |= not keep.any()
    words = [word for word, stays in zip(words, keep, strict=True) if stays]
  return np.concatenate(words)
