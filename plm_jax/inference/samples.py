"""What a report shows of a model: words that it was asked for."""
from collections.abc import Sequence
import dataclasses


@dataclasses.dataclass(frozen=True)
class Blank:
  """A sentence with a hidden word, and what the model would put there."""

  prompt: str  # holds [MASK]
  candidates: Sequence[tuple[str, float]]  # piece, probability; best first
  truth: str | None = None


@dataclasses.dataclass(frozen=True)
class Sample:
  """The beginning of a text, and how the model goes on."""

  prompt: str
  text: str
  truth: str | None = None  # how the text itself goes on
