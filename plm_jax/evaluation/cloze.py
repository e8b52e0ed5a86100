"""Classification as a blank to fill (Schick and Schütze 2021; Du et al. 2022, section 2.3).

    cloze = Cloze('{text} It was [MASK].', ('bad', 'good'))
    probabilities = classify(loading.load('runs/glm_large'), cloze, [{'text': 'A joy from start to end.'}])
"""
from collections.abc import Mapping, Sequence
import dataclasses

import numpy as np

from plm_jax.config import ConfigError
from plm_jax.inference import blanks
from plm_jax.inference.loading import Trained
from plm_jax.inference.prompts import filled


@dataclasses.dataclass(frozen=True)
class Cloze:
  """A task, as data."""

  pattern: str
  """a text with one [MASK]; fields of an example stand in it as {name}"""
  words: tuple[str, ...]
  """the verbaliser: what stands in the blank for each class, of any number of tokens"""

  def __post_init__(self):
    if len(self.words) < 2:
      raise ValueError(f'a verbaliser has a word for each of two or more classes, got {self.words}')

  def ask(self, example: Mapping[str, str]) -> str:
    """Raises ConfigError for an example without a field that the pattern names, and for what is no pattern."""
    try:
      return filled(self.pattern, example)
    except KeyError as error:
      raise ConfigError(f'the pattern {self.pattern!r} asks for {error}; the example has {sorted(example)}') from error


def classify(trained: Trained, cloze: Cloze, examples: Sequence[Mapping[str, str]]) -> np.ndarray:
  """Returns probabilities [N, C]: those of the words in the blank, among each other. Raises as `blanks.score`."""
  asked = [(cloze.ask(example), word) for example in examples for word in cloze.words]
  scores = blanks.score(trained, asked).reshape(len(examples), -1)
  scores = np.exp(scores - scores.max(1, keepdims=True))
  return scores / scores.sum(1, keepdims=True)
