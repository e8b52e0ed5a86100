"""Fill in the middle (FIM): documents whose middle comes last (Bavarian et al. 2022, section 3).

A text is cut at two characters, sampled uniformly, into prefix, middle and suffix:

    PSM  <PRE> prefix <SUF> suffix <MID> middle <EOT>
    SPM  <PRE> <SUF> suffix <MID> prefix middle <EOT>

SPM is the second variant of appendix D: the form that PSM has where the prefix is empty. A cut may
be inside a word, where a prompt may end, too. Each part is tokenized on its own, so this is done
with the text, before training.

Document level: a whole document is cut. Context level (section 3.2): a document is divided into
texts that fit into a sequence, and each of these is cut, so that no sequence has a part of one. The
paper divides after packing, and trims what the cuts make longer; here there is room for it.
"""
from collections.abc import Iterator
import dataclasses
import itertools
import random
from typing import NamedTuple

import numpy as np

from plm_jax.storage.digests import hash64
from plm_jax.tokenizers import Tokenizer
from plm_jax.tokenizers.contract import Vocab, boundary_ids

CONTEXT_ROOM = 16  # tokens of a context for special tokens, and for words in two parts


class TextPart(NamedTuple):
  """A part of a document that is tokenized on its own."""

  text: str
  follows: bool = False  # it continues a text: a tokenizer puts no space before it
  before: tuple[int, ...] = ()  # special tokens
  after: tuple[int, ...] = ()
  begins: bool = True  # it is the first part of a text; the others belong to the same text


@dataclasses.dataclass(frozen=True)
class FillMiddle:
  """Which texts have their middle moved to the end, and in which order."""

  rate: float
  """Share of the texts."""
  spm_rate: float = 0.5
  """Share of these whose suffix comes first."""
  context: int = 0
  """Tokens of a text at most, special tokens included; 0: documents are not divided."""
  seed: int = 0
  """Random seed. Every choice depends on the seed and on the text alone."""

  def divide(self, document: str, follows: bool, tokenizer: Tokenizer) -> Iterator[TextPart]:
    """Yield the parts of a document in the order of training.

    Args:
      document: its text.
      follows: it continues another document.
      tokenizer: with tokens for filling in the middle.
    """
    vocab, borders = tokenizer.vocab, [0, len(document)]
    if self.context:
      _, _, offsets = tokenizer.encode_with_offsets([document])
      size = self.context - CONTEXT_ROOM
      borders = np.unique([0, *offsets[size::size], len(document)]).tolist()
    for start, end in itertools.pairwise(borders):
      text, later = document[start:end], bool(follows or start)
      cut = self.sample_cut(text)
      if cut is None:
        yield TextPart(text, later)
        continue
      first, second, suffix_first = cut
      yield from arrange(TextPart(text[:first], later), text[second:], suffix_first, vocab)
      # Without a token of its own after the middle (StarCoder, Qwen), the end of a text is there,
      # which training puts after a document.
      end_tokens = boundary_ids(vocab)[1:] if end < len(document) else ()
      after = end_tokens if vocab.fim_end < 0 else (vocab.fim_end,)
      yield TextPart(text[first:second], True, (), after, False)

  def sample_cut(self, text: str) -> tuple[int, int, bool] | None:
    """Sample where the middle of a text begins and ends, and whether the suffix comes first.

    None for texts that stay as they are.
    """
    sample = random.Random(hash64(f'{self.seed} {text}'.encode(), 'big')).random
    if sample() >= self.rate:
      return None
    first, second = sorted(int(sample() * (len(text) + 1)) for _ in range(2))
    return first, second, sample() < self.spm_rate


def arrange(prefix: TextPart, suffix: str, suffix_first: bool, vocab: Vocab) -> list[TextPart]:
  """Return the parts of a text before its middle, with their special tokens.

  Args:
    prefix: the text before the middle.
    suffix: the text after it.
    suffix_first: SPM; else PSM.
    vocab: with tokens for filling in the middle.
  """
  start, hole, middle = vocab.fim_prefix, vocab.fim_suffix, vocab.fim_middle
  if suffix_first:
    return [TextPart(suffix, True, (start, hole), (middle,)), prefix._replace(begins=False)]
  return [prefix._replace(before=(start,)), TextPart(suffix, True, (hole,), (middle,), False)]
