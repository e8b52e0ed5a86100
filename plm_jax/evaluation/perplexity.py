"""Perplexity of texts with a sliding window.

    perplexity(scorer, ['A text ...'], length=1024, stride=512)

Windows of `length` tokens begin every `stride` tokens. Each window predicts the tokens that no
window before it has predicted, so a token sees at least `length - stride` tokens before it, if
there are so many. A smaller stride is slower and gives a lower perplexity: compare results only at
the same length and stride. Of a run, each window begins with the start token, as its training
sequences do; of another library's checkpoint, only the first window does. Perplexity per token
depends on the tokenizer; per word and per byte it does not.
"""
from collections.abc import Iterable
import dataclasses
import math

from plm_jax.errors import ConfigError
from plm_jax.evaluation.scoring import Scorer, Span, strided_spans
from plm_jax.sources import text_sources
from plm_jax.tokenizers import Tokenizer
from plm_jax.validation import short_repr


@dataclasses.dataclass(frozen=True)
class Perplexity:
  """The total negative log-likelihood of texts, and the counts that normalize it."""

  nats: float
  """negative natural log-likelihood of the texts"""
  tokens: int
  """predicted tokens: all but the first of each text, which is the begin-of-text token or given"""
  words: int
  """words, separated by white space, of which at least a part is predicted"""
  bytes: int
  """UTF-8 bytes of the characters of which at least a part is predicted"""
  is_bound: bool = False
  """whether `nats` is an estimate of an upper bound (masked diffusion)"""

  @property
  def per_token(self) -> float:
    """Perplexity per token, which depends on the tokenizer."""
    return math.exp(self.nats / self.tokens)

  @property
  def per_word(self) -> float:
    """Perplexity per word between white space, as the literature reports it for WikiText."""
    return math.exp(self.nats / self.words)

  @property
  def per_byte(self) -> float:
    """Perplexity per UTF-8 byte."""
    return math.exp(self.nats / self.bytes)

  @property
  def bits_per_byte(self) -> float:
    """Bits per UTF-8 byte, which do not depend on the tokenizer."""
    return self.nats / self.bytes / math.log(2)


def perplexity(
    scorer: Scorer, texts: Iterable[str], length: int = 0, stride: int = 0,
) -> Perplexity:
  """Compute the perplexity of independent texts with a sliding window.

  Args:
    scorer: the model.
    texts: the texts.
    length: tokens per window, including the last predicted one; 0: the model's maximum.
    stride: tokens between the starts of windows; 0: half of the length.

  Raises:
    ConfigError: the window is too long, the stride leaves out tokens, or no token is predicted.
  """
  texts = keep_texts(texts)
  # Without a begin-of-text token the first token is given, not predicted, as in transformers.
  begin = scorer.start_ids(1)
  ids = [begin + some for some in scorer.tokenizer.encode_batch(texts)]
  predicted = (texts if begin
               else [text_after_first_token(scorer.tokenizer, text) for text in texts])
  longest = max(map(len, ids))
  if longest < 2:
    raise ConfigError('there is no token to predict: without a start, the first token of each text '
                      'is given')

  length = length or scorer.length or longest
  stride = stride or max(1, length // 2)
  if scorer.length and length > scorer.length + 1:
    raise ConfigError(f'windows of {length} tokens do not fit a model that reads {scorer.length}')
  if not 1 <= stride < length:
    raise ConfigError(f'the stride is at least 1 and below the length of {length} tokens, got '
                      f'{stride}: every token is predicted from one before it in its window')
  spans: list[Span] = []
  for some in ids:
    spans += strided_spans(some, 1, length, stride, scorer.row_start)
  return Perplexity(
      nats=-sum(logprob for logprob, _ in scorer.predict(spans)),
      tokens=sum(len(span.ids) - span.first for span in spans),
      words=sum(len(text.split()) for text in predicted),
      bytes=sum(len(text.encode()) for text in predicted))


def keep_texts(texts: Iterable[str]) -> list[str]:
  """Leave out empty texts. Raises ConfigError where nothing is left, or for one that is not UTF-8.
  """
  kept = [text for text in texts if text.strip()]
  if not kept:
    raise ConfigError('there is no text to measure')
  for text in kept:
    try:
      text.encode()
    except UnicodeEncodeError as error:
      raise ConfigError(f'the text {short_repr(text, 40)} is not UTF-8, at character '
                        f'{error.start}') from error
  return kept


def text_after_first_token(tokenizer: Tokenizer, text: str) -> str:
  """Return the text from the character on at which its second token begins."""
  _, _, places = tokenizer.encode_with_offsets([text])
  return text[int(places[1]):] if len(places) > 1 else ''


def read_texts(source: str) -> list[str]:
  """Read the texts of files (`text_sources.read_texts`). Raises SourceError."""
  return list(text_sources.read_texts(source))
