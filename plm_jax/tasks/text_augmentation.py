"""Easy data augmentation (EDA, Wei and Zou 2019): replace, insert, swap and delete words.

A replacement or an inserted word is a word of the training examples, sampled by frequency. The
authors use synonyms of WordNet, which exists in few languages. An augmented text is a pure function
of the given generator, which callers seed by the run's seed, the epoch and the example's index.
"""
import dataclasses

import numpy as np

from plm_jax.tasks.features import Ragged
from plm_jax.validation import ValidatedConfig, intervals


@dataclasses.dataclass(frozen=True)
class AugmentConfig(ValidatedConfig):
  """How much of a text each operation changes, in order; 0 turns one off (section 2: alpha)."""

  limits = intervals(share='[0, 1]', substitute='[0, 1]', insert='[0, 1]', swap='[0, 1]',
                     delete='[0, 1]')
  counts_with = dict.fromkeys(('substitute', 'insert', 'swap', 'delete'), ('share', None))

  share: float = 0.0
  """probability that an example is augmented in an epoch"""
  substitute: float = 0.1
  """share of words to replace, rounded, at least one"""
  insert: float = 0.1
  """number of words to insert as a share of the text's words, rounded, at least one"""
  swap: float = 0.1
  """number of word swaps as a share of the text's words, rounded, at least one"""
  delete: float = 0.1
  """probability that a word is deleted; at least one word stays"""


def build_word_pool(tokens: Ragged, starts: Ragged) -> Ragged:
  """Collect all words of texts, as token ids each: the pool that words are sampled from.

  Args:
    tokens: ids of each text.
    starts: per token, whether it is the first of a word.
  """
  first = np.array(starts.flat, bool)
  first[tokens.offsets[:-1][tokens.lengths > 0]] = True
  return Ragged(tokens.flat, np.append(np.flatnonzero(first), len(tokens.flat)))


def augment_text(
    tokens: np.ndarray, starts: np.ndarray, rng: np.random.Generator, config: AugmentConfig,
    pool: Ragged) -> np.ndarray:
  """Augment a text of token ids [T] -> [T'], or return it unchanged. Never empties a text.

  Args:
    tokens: ids [T].
    starts: [T], True for the first token of a word.
    rng: source of randomness.
    config: how much each operation changes.
    pool: words to sample from (`build_word_pool`), at least one.
  """
  if not len(tokens) or rng.random() >= config.share:
    return tokens
  borders = np.flatnonzero(starts)
  words = np.split(tokens, borders[borders > 0])
  def count(share):
    return max(1, round(share * len(words))) if share else 0
  def sample_word():
    return pool[int(rng.integers(len(pool)))]
  for place in rng.permutation(len(words))[:count(config.substitute)]:
    words[place] = sample_word()
  for _ in range(count(config.insert)):
    words.insert(int(rng.integers(len(words) + 1)), sample_word())
  for _ in range(count(config.swap)):
    one, two = rng.integers(len(words), size=2)
    words[one], words[two] = words[two], words[one]
  if config.delete:
    keep = rng.random(len(words)) >= config.delete
    keep[rng.integers(len(words))] |= not keep.any()
    words = [word for word, kept in zip(words, keep, strict=True) if kept]
  return np.concatenate(words)
