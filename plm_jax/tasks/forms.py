"""How families take labelled texts: which tokens stand around them in a row, and which token stands for the row."""
from collections.abc import Sequence
import dataclasses
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from plm_jax.errors import ConfigError
from plm_jax.tokenizers.contract import Vocab

Cut = Literal['longest', 'first', 'second', 'none']
"""which text loses its end where a row is too long: the longer one, the first, the second, or none may"""


class Row(NamedTuple):
  """Texts as a row of a model."""

  tokens: list[int]
  types: list[int]
  """of each token the segment type that the family gives it"""
  starts: list[int]
  """of each text the place of its first token"""
  stand: int
  """place of the token that stands for the row"""
  kept: list[int]
  """of each text how many tokens are left of it"""


@dataclasses.dataclass(frozen=True)
class Form:
  """An encoder's: [CLS] text [SEP], and for a second one text [SEP] with types 1 (Devlin et al. 2019, section 3)."""

  doubled: bool = False
  """two separators between texts, and no types (Liu et al. 2019)"""
  last: bool = False
  """the classifying token stands at the end and has the type 2 (Yang et al. 2019)"""

  def around(self, vocab: Vocab) -> tuple[list[int], list[int], list[int]]:
    """Returns the ids before the first text, between two, and behind the last. Raises ConfigError where the tokenizer
    lacks one."""
    if min(vocab.cls, vocab.sep) < 0:
      raise ConfigError('the tokenizer has no [CLS] or no [SEP], which stand around the texts of an encoder')
    cls, sep = [vocab.cls], [vocab.sep]
    return ([], sep, sep + cls) if self.last else (cls, sep * (2 if self.doubled else 1), sep)

  def specials(self, vocab: Vocab, texts: int) -> int:
    """Counts the tokens of a row that are of no text."""
    before, between, behind = self.around(vocab)
    return len(before) + len(between) * (texts - 1) + len(behind)

  def row(self, texts: Sequence[Sequence[int]], vocab: Vocab, length: int, cut: Cut = 'longest') -> Row:
    """Puts one text, or two, in a row of at most `length` tokens. Raises ConfigError where they do not fit and none may
    be cut."""
    before, between, behind = self.around(vocab)
    kept = fitted([len(text) for text in texts], length - self.specials(vocab, len(texts)), cut)
    tokens, types, starts = list(before), [0] * len(before), []
    for number, (text, size) in enumerate(zip(texts, kept, strict=True)):
      starts.append(len(tokens))
      more = [*text[:size], *(between if number + 1 < len(texts) else behind)]
      tokens += more
      types += [0 if self.doubled else number] * len(more)
    if self.last:
      types[-1] = 2
    return Row(tokens, types, starts, len(tokens) - 1 if self.last else 0, kept)

  def arrange(self, batch: dict[str, jax.Array], vocab: Vocab) -> dict[str, jax.Array]:
    """Adds to a batch what the family reads besides: `place` [B, L], where a row holds several texts apart."""
    del vocab
    return batch


def fitted(sizes: Sequence[int], room: int, cut: Cut) -> list[int]:
  """Returns what is left of texts of so many tokens in `room`. Raises ConfigError where it is too little."""
  kept, over = list(sizes), sum(sizes) - room
  if over > 0 and cut == 'longest':
    while sum(kept) > room and max(kept):
      kept[max(range(len(kept)), key=lambda number: kept[number])] -= 1
  elif over > 0 and cut != 'none':
    kept[0 if cut == 'first' else -1] -= over
  if room < 1 or min(kept) < 0 or sum(kept) > room:
    raise ConfigError(f'texts of {" and ".join(map(str, sizes))} tokens do not fit a row that has room for {room}')
  return kept


def form_of(family: str) -> Form:
  """Returns the form of a family, by transformers' model_type."""
  return FORMS.get(family, Form())


FORMS = {'roberta': Form(doubled=True), 'xlnet': Form(last=True)}


def places(segments: jax.Array) -> jax.Array:
  """Numbers the tokens of each text of rows [B, L] from 0: place [B, L]; segments: 0 padding, equal ones are one text,
  which lies in one piece."""
  at = jnp.arange(segments.shape[1])
  new = jnp.pad(segments[:, 1:] != segments[:, :-1], ((0, 0), (1, 0)), constant_values=True)
  return at - jax.lax.cummax(jnp.where(new, at, 0), axis=1)
