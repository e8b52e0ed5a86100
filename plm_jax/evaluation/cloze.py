"""Cloze classification by filling a blank (Schick and Schütze 2021; Du et al. 2022, 2.3).

    cloze = ClozeTask('{text} It was [MASK].', ('bad', 'good'))
    model = loading.load_model('runs/glm_large')
    probabilities = classify(model, cloze, [{'text': 'A joy from start to end.'}])
"""
from collections.abc import Mapping, Sequence
import dataclasses
import itertools

import numpy as np

from plm_jax.errors import ConfigError
from plm_jax.inference import glm_infill
from plm_jax.inference.prompts import fill_template
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.tasks.contract import softmax


@dataclasses.dataclass(frozen=True)
class ClozeTask:
  """A classification task: a pattern and a verbalizer."""

  pattern: str
  """a text with one [MASK], and fields of the example as {name}"""
  words: tuple[str, ...]
  """the verbalizer: the text that fills the blank for each class, of any number of tokens"""

  def __post_init__(self):
    if len(self.words) < 2:
      raise ValueError(f'a verbalizer has a word for each of two or more classes, got {self.words}')

  def ask(self, example: Mapping[str, str]) -> str:
    """Fill the pattern with the fields of an example.

    Raises:
      ConfigError: a field of the pattern is missing, or the pattern is malformed.
    """
    try:
      return fill_template(self.pattern, example)
    except KeyError as error:
      raise ConfigError(f'the pattern {self.pattern!r} needs {error}; the example has '
                        f'{sorted(example)}') from error


def classify(
    trained: LoadedModel, cloze: ClozeTask, examples: Sequence[Mapping[str, str]],
) -> np.ndarray:
  """Compute class probabilities [examples, classes], normalized over the words of the verbalizer.

  Raises:
    CheckpointError, ConfigError: as for `inference.glm_infill.score_blanks`.
  """
  prompts = [cloze.ask(example) for example in examples]
  pairs = list(itertools.product(prompts, cloze.words))
  return softmax(glm_infill.score_blanks(trained, pairs).reshape(len(examples), -1))
