"""Extractive question answering: predict the answer span in a context (SQuAD).

    task = AnswerTask(unanswerable=True)
    task.predict(examples, features, outputs)[0].text    'in the late 1990s'

Devlin et al. 2019, sections 4.2 and 4.3. A context that is too long for a row is split into
overlapping windows (`doc_stride`). The model learns where the answer starts and ends in each
window. In a window without the whole answer, both are the token that summarizes the row.
"""
from collections.abc import Sequence
import dataclasses
import functools
from typing import ClassVar, NamedTuple
import unicodedata

import jax.numpy as jnp
import numpy as np

from plm_jax.errors import ConfigError, name_field
from plm_jax.metrics import tasks as metrics
from plm_jax.sources.row_readers import Example, find_nearest
from plm_jax.tasks.contract import Task, softmax
from plm_jax.tasks.example_formats import ANSWERS
from plm_jax.tasks.features import Features, Ragged, row_offsets
from plm_jax.tasks.sequence_classification import encode_texts
from plm_jax.tokenizers import Tokenizer
from plm_jax.validation import intervals


class Candidate(NamedTuple):
  """A candidate answer: context[start:end]."""

  text: str
  start: int
  end: int
  score: float
  """start logit of its first token plus end logit of its last"""
  probability: float
  """among the candidates and, if questions may be unanswerable, no answer"""


@dataclasses.dataclass(frozen=True)
class AnswerPrediction:
  """The predicted answer to a question."""

  text: str
  """'': no answer"""
  start: int
  """characters of the context, context[start:end]; both -1 for no answer"""
  end: int
  probability: float
  candidates: tuple[Candidate, ...]
  """the best candidates, best first, all of different characters"""
  null: float
  """score of no answer minus score of the best candidate"""


class EncodedContext(NamedTuple):
  """A context as tokens."""

  ids: list[int]
  begins: np.ndarray
  """characters of each token, context[begins:ends]; both 0 for a token without characters"""
  ends: np.ndarray


@dataclasses.dataclass(frozen=True)
class AnswerTask(Task):
  """Extractive QA: SQuAD 1.1 and 2.0, CMRC 2018, DRCD.

  A batch also holds `start` and `end` [B, E]: positions in the row of the answer's first and last
  token.
  """

  limits = intervals(stride='[1, inf)', question_length='[1, inf)', answer_length='[1, inf)',
                     n_best='[1, 10000]', null_threshold='(-inf, inf)')
  head: ClassVar[str] = 'span'
  output_unit: ClassVar = 'token'
  row_unit: ClassVar = 'windows'

  stride: int = 128
  """tokens between the starts of consecutive windows of a context (`doc_stride` of BERT's
  run_squad)"""
  question_length: int = 64
  """maximum tokens of a question; longer ones are truncated"""
  answer_length: int = 30
  """maximum tokens of a predicted answer"""
  n_best: int = 20
  """number of candidate answers to keep per question"""
  unanswerable: bool = False
  """whether a question may have no answer in its context (SQuAD 2.0)"""
  null_threshold: float = 0.0
  """predict no answer if its score exceeds the best candidate's by more than this"""
  script: metrics.AnswerScript = 'squad'
  """official script whose metrics are computed: SQuAD's, or CMRC 2018's for Chinese"""

  @property
  def metric_names(self):
    """F1 and exact match; with unanswerable questions, also those of SQuAD 2.0's script."""
    if self.unanswerable:
      return metrics.ANSWER_METRICS + metrics.SQUAD2_METRICS
    return metrics.ANSWER_METRICS

  @property
  def example_format(self):
    return ANSWERS

  def describe_truncation(self, clipped):
    """Describe truncated questions; contexts are read in windows."""
    size = self.question_length
    return (f'{clipped:,} questions lose what is behind {size} tokens. '
            f'{name_field("objective.question_length")}={2 * size} reads more')

  def limit_length(self, longest):
    """Limit stride and questions to a third of a row each."""
    third = longest // 3
    return dataclasses.replace(
        self, stride=min(self.stride, third), question_length=min(self.question_length, third))

  @property
  def classes(self):
    """Start and end logits."""
    return 2

  @property
  def loss_arrays(self):
    return {'start': (1,), 'end': (1,)}

  def features(self, examples: Sequence[Example], tokenizer: Tokenizer, length: int) -> Features:
    """Make rows of at most `length` tokens, one or more per example: question and window.

    `values` has `stand`, `start`, `end`, and `weight`, 0.0 if the answer is unknown.
    `prediction_arrays` has `begins` and `ends`: the context characters of each token, equal for
    tokens of no context characters. An answer that splits tokens is widened to whole tokens. An
    answer that is nowhere in its context is unknown, as is that of an empty question, of which
    CMRC has one; `skipped` lists them.

    Raises:
      ConfigError: an example does not have two texts, a context has no tokens, a question has no
        answer although each has one, or a question leaves no room for its context.
    """
    check_examples(examples, self.unanswerable)
    contexts = encode_contexts([example.texts[1] for example in examples], tokenizer)
    questions = encode_texts(tokenizer, [example.texts[0] for example in examples])
    rows, numbers, weights, skipped, clipped, lost = [], [], [], [], 0, 0
    for number, (example, question) in enumerate(zip(examples, questions, strict=True)):
      name, context = example_name(example, number), contexts[example.texts[1]]
      if not context.ends.any():
        raise ConfigError(
            f'{name}: the tokenizer has no tokens for the context {example.texts[1][:50]!r}')
      clipped += len(question) > self.question_length
      lost += max(0, len(question) - self.question_length)
      target = locate_answer(example, context)
      if not question:
        skipped.append(
            f'{name}: the tokenizer has no tokens for the question {example.texts[0]!r}')
      elif example.answers and not target:
        skipped.append(
            f'{name}: the answer {example.answers[0].text[:50]!r} is not in its context')
      question = question[:self.question_length]
      windows = self.context_windows(question, context, tokenizer, length, target)
      if not windows:
        raise ConfigError(f'{name}: in rows of {length} tokens, a question of {len(question)} '
                          'leaves no room for its context')
      is_known = bool(question) and (target is not None or example.answers == ())
      rows += windows
      weights += [float(is_known)] * len(windows)
      numbers += [number] * len(windows)
    columns = zip(*rows, strict=True) if rows else [()] * 7
    tokens, types, begins, ends, stand, start, end = columns
    values = {
        'stand': np.array(stand, np.int32), 'start': np.array(start, np.int32),
        'end': np.array(end, np.int32), 'weight': np.array(weights, np.float32)}
    return Features(
        Ragged.concat(tokens), {'types': Ragged.concat(types)}, values,
        np.array(numbers, np.int32),
        {'begins': Ragged.concat(begins), 'ends': Ragged.concat(ends)}, clipped=clipped, lost=lost,
        skipped=tuple(skipped))

  def context_windows(
      self, question: list[int], context: EncodedContext, tokenizer: Tokenizer, length: int,
      target: tuple[int, int] | None) -> list[tuple]:
    """Make the rows of a question, one per sliding window of its context.

    Args:
      question: ids.
      context: encoded context.
      tokenizer: of both.
      length: maximum tokens of a row.
      target: first and last context token of the answer; None: there is none.

    Returns:
      (tokens, types, begins, ends, stand, start, end) of each row; [] if there is no room.
    """
    row_format, vocab = self.input_format, tokenizer.vocab
    room = length - row_format.count_special(vocab, 2) - len(question)
    if room < 1:
      return []
    rows, size, step = [], len(context.ids), min(self.stride, room)
    for at in range(0, max(size - room, 0) + step, step):
      until = min(at + room, size)
      texts = [question, context.ids[at:until]]
      if row_format.question_last:
        texts.reverse()
      row = row_format.make_row(texts, vocab, length, 'none')
      # Positions of context tokens in the row.
      shift = row.text_starts[0 if row_format.question_last else 1] - at
      begins, ends = np.zeros((2, len(row.tokens)), np.int32)
      begins[at + shift:until + shift] = context.begins[at:until]
      ends[at + shift:until + shift] = context.ends[at:until]
      stand = start = end = row.summary_position
      if target and at <= target[0] and target[1] < until:
        start, end = target[0] + shift, target[1] + shift
      rows.append((row.tokens, row.token_types, begins, ends, stand, start, end))
    return rows

  def logits_and_weights(self, outputs, batch):
    """Return start and end logits [B, E, 2, L], and half the weight of each question [B, E, 1]."""
    logits = jnp.moveaxis(outputs['span'], -1, 1)[:, None]  # [B, 1, 2, L]
    weight = batch['weight']
    if weight.shape[1] > 1:
      slots = 1 + jnp.arange(weight.shape[1])[:, None]
      own = slots == batch['segments'][:, None]
      logits = jnp.where(own[:, :, None], logits, jnp.finfo(logits.dtype).min)
    return logits, weight[..., None] / 2

  def loss(self, outputs, batch):
    """Compute span, the mean cross-entropy of start and end, and span_accuracy (both correct).

    The softmax covers all of a row, with padding, as in BERT's code and in transformers. In packed
    rows it covers the question's own tokens. A position beyond the row has weight 0.
    """
    length = outputs['span'].shape[1]
    places = jnp.stack([batch['start'], batch['end']], -1)  # [B, E, 2]
    logits, _ = self.logits_and_weights(outputs, batch)
    weight = batch['weight'] * (places < length).all(-1)
    places = jnp.minimum(places, length - 1)
    import optax
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, places)
    target_logits = jnp.take_along_axis(logits, places[..., None], -1)[..., 0]
    right = target_logits >= logits.max(-1)
    return {'span': ((losses.mean(-1) * weight).sum(), weight.sum()),
            'span_accuracy': ((right.all(-1) * weight).sum(), weight.sum())}

  def predict(self, examples: Sequence[Example], features: Features, outputs: Sequence[np.ndarray]
              ) -> list[AnswerPrediction]:
    """Predict answers: the best spans of all windows, of at most `answer_length` tokens.

    The score of no answer is the minimum over windows of the summary token's. Of equal scores, the
    span that starts first wins, then the shorter one.
    """
    scores: list[dict[tuple[int, int], float]] = [{} for _ in examples]
    nulls = np.full(len(examples), np.inf)
    for row, (number, logits) in enumerate(zip(features.example.tolist(), outputs, strict=True)):
      logits = np.nan_to_num(np.asarray(logits, np.float64), nan=-1e30, posinf=1e30, neginf=-1e30)
      nulls[number] = min(nulls[number], logits[features.values['stand'][row]].sum())
      begins = features.prediction_arrays['begins'][row]
      ends = features.prediction_arrays['ends'][row]
      spans = best_spans(logits, begins, ends, self.answer_length, self.n_best)
      own = scores[number]
      for score, first, last in zip(*spans, strict=True):
        part = int(begins[first]), int(ends[last])
        own[part] = max(float(score), own.get(part, -np.inf))
    return [self.choose_answer(example.texts[1], some, null)
            for example, some, null in zip(examples, scores, nulls.tolist(), strict=True)]

  def choose_answer(
      self, context: str, scores: dict[tuple[int, int], float], null: float) -> AnswerPrediction:
    """Choose an answer by the scores of spans of the context and that of no answer."""
    best = sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:self.n_best]
    logits = [score for _, score in best]
    if self.unanswerable:
      logits.append(null)
    shares = softmax(np.array(logits)).tolist()
    candidates = [Candidate(context[start:end], start, end, score, share)
                  for ((start, end), score), share in zip(best, shares, strict=False)]
    first = candidates[0]
    margin = null - first.score
    if self.unanswerable and margin > self.null_threshold:
      return AnswerPrediction('', -1, -1, shares[-1], tuple(candidates), margin)
    return AnswerPrediction(
        first.text, first.start, first.end, first.probability, tuple(candidates), margin)

  def compact_prediction(self, prediction: AnswerPrediction) -> AnswerPrediction:
    return dataclasses.replace(prediction, candidates=prediction.candidates[:1])

  def scores(
      self, examples: Sequence[Example], predictions: Sequence[AnswerPrediction]
  ) -> dict[str, float]:
    """Compute `answer_metrics` or `squad2_metrics` over examples with known answers.

    Raises ConfigError if there are none.
    """
    known = [pair for pair in zip(examples, predictions, strict=True)
             if pair[0].answers is not None]
    if not known:
      raise ConfigError('no question has an answer: there is nothing to evaluate')
    golds = [[answer.text for answer in example.answers or ()] for example, _ in known]
    texts = [prediction.candidates[0].text for _, prediction in known]
    if not self.unanswerable:
      return metrics.answer_metrics(golds, texts, self.script)
    nulls = [prediction.null for _, prediction in known]
    return metrics.squad2_metrics(golds, texts, nulls, self.null_threshold, self.script)


def check_examples(examples: Sequence[Example], unanswerable: bool) -> None:
  """Raise ConfigError for an example without question and context, or without a needed answer."""
  for number, example in enumerate(examples):
    name = example_name(example, number)
    if len(example.texts) != 2:
      raise ConfigError(
          f'{name}: a question and its context are two texts, not {len(example.texts)}')
    if example.answers == () and not unanswerable:
      raise ConfigError(f'{name}: the question has no answer, which needs unanswerable')


def example_name(example: Example, number: int) -> str:
  """Name an example for messages."""
  return example.where or f'example {number}'


def encode_contexts(texts: Sequence[str], tokenizer: Tokenizer) -> dict[str, EncodedContext]:
  """Encode contexts, each distinct one once, with the characters of their tokens."""
  distinct = list(dict.fromkeys(texts))
  ids, lengths, starts = tokenizer.encode_with_offsets(distinct)
  offsets = row_offsets(lengths.tolist()).tolist()
  contexts = {}
  for text, at, until in zip(distinct, offsets[:-1], offsets[1:], strict=True):
    begins, ends = token_extents(text, starts[at:until])
    contexts[text] = EncodedContext(ids[at:until].tolist(), begins, ends)
  return contexts


def token_extents(text: str, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Compute the characters of tokens that begin at `starts` [T]: text[begins:ends], [T] each.

  A token extends to the start of the next, without surrounding blanks. Tokens that begin at the
  same character, such as the bytes of one, share their characters. Characters that the tokenizer
  drops belong to the token before them. Both are 0 if only blanks are left.
  """
  starts = np.where(starts == starts[:1], 0, starts)  # the first token also has dropped ones before
  codes = np.frombuffer(text.encode('utf-32-le'), np.uint32)
  solid = np.flatnonzero(~blank_characters()[np.minimum(codes, len(blank_characters()) - 1)])
  following = np.append(starts, len(text))[starts.searchsorted(starts, 'right')]
  first, last = solid.searchsorted(starts), solid.searchsorted(following)
  solid = np.append(solid, 0)
  has_text = last > first
  begins = np.where(has_text, solid[first], 0)
  return begins, np.where(has_text, solid[last - 1] + 1, 0)


@functools.cache
def blank_characters() -> np.ndarray:
  """Mask spaces, control and format characters [65536], with which no answer starts or ends."""
  categories = ('Cc', 'Cf', 'Zs', 'Zl', 'Zp')
  return np.array([unicodedata.category(chr(code)) in categories for code in range(1 << 16)])


def locate_answer(example: Example, context: EncodedContext) -> tuple[int, int] | None:
  """Return the first and last token of the first gold answer in the context; None: no answer is.

  Of several occurrences it is the one nearest to the stated start.
  """
  tokens = np.flatnonzero(context.ends)
  begins, ends = context.begins[tokens], context.ends[tokens]
  for answer in example.answers or ():
    text = answer.text.strip()
    blanks = len(answer.text) - len(answer.text.lstrip())
    stated = answer.start + blanks if answer.start >= 0 else -1
    start = find_nearest(example.texts[1], text, stated) if text else -1
    if start >= 0:
      end = start + len(text)
      first, last = int(ends.searchsorted(start, 'right')), int(begins.searchsorted(end)) - 1
      if first <= last:
        return int(tokens[first]), int(tokens[last])
  return None


def best_spans(
    logits: np.ndarray, begins: np.ndarray, ends: np.ndarray, longest: int, most: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Find the best spans of a window -> (scores, first tokens, last tokens), best first.

  Of tokens with the same characters, the first can start a span and the last can end one.

  Args:
    logits: start and end logits of each token [T, 2].
    begins: first character of each token [T].
    ends: end character of each token [T]; equal to `begins` outside the context.
    longest: maximum tokens of a span.
    most: maximum number of spans.
  """
  has_text = ends > begins
  border = np.ones(len(begins) + 1, bool)  # whether characters change before each token
  border[1:-1] = (begins[1:] != begins[:-1]) | (ends[1:] != ends[:-1])
  start = np.where(border[:-1] & has_text, logits[:, 0], -np.inf)
  end = np.where(border[1:] & has_text, logits[:, 1], -np.inf)
  # Scores [T, longest] by first token and length. The best spans start in the best rows.
  padded_end = np.append(end, np.full(longest - 1, -np.inf))
  table = start[:, None] + np.lib.stride_tricks.sliding_window_view(padded_end, longest)
  rows = np.sort(np.argsort(-table.max(1), kind='stable')[:most])
  scores = table[rows].ravel()
  count = min(most, int(np.isfinite(scores).sum()))
  best = np.argsort(-scores, kind='stable')[:count]
  first = rows[best // longest]
  return scores[best], first, first + best % longest
