"""Perplexity of a text by a window that slides over it.

    perplexity(scorer, ['A text ...'], length=1024, stride=512)

Windows of `length` tokens begin `stride` apart, and each predicts what none before it has, so a token sees at least
`length - stride` tokens before it, once there are so many. A smaller stride is slower and lower: figures are to be
compared at the same two numbers. Per token they depend on the tokenizer; per word and per byte they do not.
"""
from collections.abc import Iterable
import dataclasses
import itertools
import math

from plm_jax.checked import shortened
from plm_jax.config import ConfigError
from plm_jax.data import sources
from plm_jax.evaluation.scoring import Scorer, strided
from plm_jax.tokenizers import Tokenizer


@dataclasses.dataclass(frozen=True)
class Perplexity:
  """Counts, from which the figures follow."""

  nats: float
  """minus the logarithm of the probability of the texts, natural"""
  tokens: int
  """predicted: all but the first of each text, which is its start or else given"""
  words: int
  """between white space, of which a part is predicted"""
  bytes: int
  """of UTF-8, of the characters of which a part is predicted"""

  @property
  def per_token(self) -> float:
    """Perplexity of a token, which another tokenizer changes."""
    return math.exp(self.nats / self.tokens)

  @property
  def per_word(self) -> float:
    """Perplexity of a word between white space: what the literature reports of WikiText."""
    return math.exp(self.nats / self.words)

  @property
  def per_byte(self) -> float:
    """Perplexity of a byte of UTF-8."""
    return math.exp(self.nats / self.bytes)

  @property
  def bits_per_byte(self) -> float:
    """Bits that the texts take, a byte of theirs; no tokenizer changes it."""
    return self.nats / self.bytes / math.log(2)


def perplexity(scorer: Scorer, texts: Iterable[str], length: int = 0, stride: int = 0) -> Perplexity:
  """Measures the perplexity of texts that know nothing of each other.

  length: tokens in a window, the last predicted one included; 0: as many as the model reads. stride: tokens between the
  beginnings of windows; 0: half of the length. Raises ConfigError for a window that is too long, a stride that leaves
  tokens out, and texts without a token to predict.
  """
  texts = [text for text in texts if text.strip()]
  if not texts:
    raise ConfigError('there is no text to measure')
  for text in texts:
    try:
      text.encode()
    except UnicodeEncodeError as error:
      raise ConfigError(f'the text {shortened(text, 40)} is not UTF-8, at character {error.start}') from error
  # Without a start the first token is given, not predicted, as transformers has it.
  begin = scorer.start_ids(1)
  ids = [[*begin, *some] for some in scorer.tokenizer.encode_batch(texts)]
  predicted = texts if begin else [behind_first(scorer.tokenizer, text) for text in texts]
  if max(map(len, ids)) < 2:
    raise ConfigError('there is no token to predict: without a start, the first token of each text is given')
  length = length or scorer.length or max(map(len, ids))
  stride = stride or max(1, length // 2)
  if scorer.length and length > scorer.length + 1:
    raise ConfigError(f'windows of {length} tokens do not fit a model that reads {scorer.length}')
  if not 1 <= stride < length:
    raise ConfigError(f'the stride is at least 1 and below the length of {length} tokens, got {stride}: every token '
                      'is predicted from one before it in its window')
  spans = list(itertools.chain.from_iterable(strided(some, 1, length, stride) for some in ids))
  return Perplexity(
      -sum(logprob for logprob, _ in scorer.predict(spans)), sum(len(span.ids) - span.first for span in spans),
      sum(len(text.split()) for text in predicted), sum(len(text.encode()) for text in predicted))


def behind_first(tokenizer: Tokenizer, text: str) -> str:
  """Returns the text from the character on at which its second token begins."""
  _, _, places = tokenizer.encode_places([text])
  return text[int(places[1]):] if len(places) > 1 else ''


def texts_of(source: str) -> list[str]:
  """Reads the texts of files, see `sources.texts`. Raises SourceError."""
  return list(sources.texts(source))
