"""Example predictions that a report shows: filled masks and generated text."""
from collections.abc import Sequence
import dataclasses


@dataclasses.dataclass(frozen=True)
class FillMaskSample:
  """A sentence with a [MASK], and the model's predictions for it."""

  prompt: str
  """the sentence, with [MASK]"""
  candidates: Sequence[tuple[str, float]]
  """(token, probability), best first"""
  truth: str | None = None
  """the masked word; None: unknown"""


@dataclasses.dataclass(frozen=True)
class GenerationSample:
  """A prompt and the text that the model generates from it."""

  prompt: str
  text: str
  truth: str | None = None
  """how the original text continues; None: unknown"""
