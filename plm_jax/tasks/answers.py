"""Extractive question answering: an answer is a part of its context (Devlin et al. 2019, sections 4.2 and 4.3).

    task = AnswerTask(unanswerable=True)
    task.predict(examples, features, outputs)[0].text    'in the late 1990s'

A context that is too long for a row is read in several, by windows that overlap. What is learned of each is where the
answer begins and ends in it; where it does not hold the whole answer, both are the token that stands for the row.
"""
from collections.abc import Sequence
import dataclasses
import functools
from typing import ClassVar, NamedTuple
import unicodedata

import jax.numpy as jnp
import numpy as np
import optax

from plm_jax.checked import within
from plm_jax.errors import ConfigError
from plm_jax.tasks import metrics
from plm_jax.tasks.contract import Task, softmax
from plm_jax.tasks.examples import Answer, Example, Features, Ragged
from plm_jax.tokenizers import Tokenizer


class Candidate(NamedTuple):
  """A part of a context, context[start:end], that may be the answer."""

  text: str
  start: int
  end: int
  score: float
  """what the head gives its first token as a beginning and its last as an end"""
  probability: float
  """among the candidates and, where questions may have none, no answer"""


@dataclasses.dataclass(frozen=True)
class AnswerPrediction:
  """What is answered to a question."""

  text: str
  """'': that there is no answer"""
  start: int
  """characters of the context, context[start:end]; -1 both where there is no answer"""
  end: int
  probability: float
  candidates: tuple[Candidate, ...]
  """the best parts of the context, the best first, no two of the same characters"""
  null: float
  """how much more the head gives to no answer than to the best candidate"""


class Read(NamedTuple):
  """A context as tokens."""

  ids: list[int]
  begins: np.ndarray
  """characters that each token stands for, context[begins:ends]; without any, both are 0"""
  ends: np.ndarray


@dataclasses.dataclass(frozen=True)
class AnswerTask(Task):
  """Finds answers in contexts: SQuAD 1.1 and 2.0, CMRC 2018, DRCD.

  A batch holds `start` and `end` [B, E] besides: places in the row of the first token and of the last one.
  """

  limits = within(stride='[1, inf)', question_length='[1, inf)', answer_length='[1, inf)', n_best='[1, 10000]',
                  null_threshold='(-inf, inf)')
  head: ClassVar[str] = 'span'
  per: ClassVar = 'token'
  of_rows: ClassVar = ('start', 'end')

  stride: int = 128
  """tokens from where one window of a context begins to where the next does (`doc_stride` of BERT's run_squad)"""
  question_length: int = 64
  """most tokens of a question; it loses its end"""
  answer_length: int = 30
  """most tokens of an answer that is predicted"""
  n_best: int = 20
  """candidates that are kept of each question"""
  unanswerable: bool = False
  """whether a question may have no answer in its context (SQuAD 2.0)"""
  null_threshold: float = 0.0
  """the answer is none where the score of that is above the best one's by more"""
  script: metrics.Script = 'squad'
  """whose official script measures answers: SQuAD's, or CMRC 2018's for Chinese"""

  @property
  def reads(self):
    """Questions with answers."""
    return 'answers'

  @property
  def classes(self):
    """Begins and ends."""
    return 2

  def features(self, examples: Sequence[Example], tokenizer: Tokenizer, length: int) -> Features:
    """Makes rows of at most `length` tokens, one or more of an example: question and window, or as the family has it.

    values: `stand`, `start`, `end`, and `weight`, 0.0 where the answer is not known; beside: `begins` and `ends`, of
    each token the characters of the context that it stands for, equal where it is none's. An answer that is not of
    whole tokens is widened to such; one that is nowhere in its context is not known, as is that to an empty question,
    of which CMRC has one: `skipped` names them.

    Raises ConfigError for other than two texts, a context without tokens, a question without an answer where each has
    one, and where a question leaves no room for its context.
    """
    check(examples, self.unanswerable)
    contexts = read([example.texts[1] for example in examples], tokenizer)
    questions = encoded([example.texts[0] for example in examples], tokenizer)
    rows, numbers, skipped, clipped = [], [], [], 0
    for number, example in enumerate(examples):
      question, context = questions[example.texts[0]], contexts[example.texts[1]]
      if not context.ends.any():
        raise ConfigError(f'{place(example, number)}: the tokenizer makes nothing of the context '
                          f'{example.texts[1][:50]!r}')
      clipped += len(question) > self.question_length
      target = located(example, context)
      if not question:
        skipped.append(f'{place(example, number)}: the tokenizer makes nothing of the question {example.texts[0]!r}')
      elif example.answers and not target:
        skipped.append(f'{place(example, number)}: the answer {example.answers[0].text[:50]!r} is not in its context')
      made = self.windows(question[:self.question_length], context, tokenizer, length, target)
      if not made:
        raise ConfigError(f'{place(example, number)}: in rows of {length} tokens, a question of '
                          f'{min(len(question), self.question_length)} leaves no room for its context')
      known = float(bool(question) and (target is not None or example.answers == ()))
      rows += [(*row, known) for row in made]
      numbers += [number] * len(made)
    tokens, types, begins, ends, stand, start, end, weight = zip(*rows, strict=True) if rows else [()] * 8
    values = {name: np.array(some, np.int32) for name, some in (('stand', stand), ('start', start), ('end', end))}
    return Features(
        Ragged.of(tokens), {'types': Ragged.of(types)}, {**values, 'weight': np.array(weight, np.float32)},
        np.array(numbers, np.int32), {'begins': Ragged.of(begins), 'ends': Ragged.of(ends)}, clipped=clipped,
        skipped=tuple(skipped))

  def windows(self, question: list[int], context: Read, tokenizer: Tokenizer, length: int,
              target: tuple[int, int] | None) -> list[tuple]:
    """Makes the rows of a question: (tokens, types, begins, ends, stand, start, end); none where there is no room.

    target: first and last token of the answer.
    """
    form, vocab = self.form, tokenizer.vocab
    room = length - form.specials(vocab, 2) - len(question)
    if room < 1:
      return []
    made, size, step = [], len(context.ids), min(self.stride, room)
    for at in range(0, max(size - room, 0) + step, step):
      until = min(at + room, size)
      texts = (context.ids[at:until], question) if form.question_last else (question, context.ids[at:until])
      row = form.row(texts, vocab, length, 'none')
      shift = row.starts[0 if form.question_last else 1] - at
      extent = np.zeros((2, len(row.tokens)), np.int32)
      extent[:, at + shift:until + shift] = context.begins[at:until], context.ends[at:until]
      inside = target and at <= target[0] and target[1] < until
      start, end = (target[0] + shift, target[1] + shift) if target and inside else (row.stand, row.stand)
      made.append((row.tokens, row.types, *extent, row.stand, start, end))
    return made

  def compared(self, outputs, batch):
    """Returns logits of where answers begin and end [B, E, 2, L], and half of what each question weighs [B, E, 1]."""
    logits = jnp.moveaxis(outputs['span'], -1, 1)[:, None]  # [B, 1, 2, L]
    weight = batch['weight']
    if weight.shape[1] > 1:
      own = 1 + jnp.arange(weight.shape[1])[:, None] == batch['segments'][:, None]
      logits = jnp.where(own[:, :, None], logits, jnp.finfo(logits.dtype).min)
    return logits, weight[..., None] / 2

  def judged(self, outputs, batch):
    """Returns (sum, weight) pairs: span, the mean of the cross-entropies of begin and end, and span_accuracy, whether
    both are right.

    The softmax is over all of a row, padding too, as in BERT's code and in transformers; where rows hold several
    questions, over the question's own tokens. A place beyond the row weighs nothing.
    """
    places, length = jnp.stack([batch['start'], batch['end']], -1), outputs['span'].shape[1]  # [B, E, 2]
    logits, _ = self.compared(outputs, batch)
    weight = batch['weight'] * (places < length).all(-1)
    places = jnp.minimum(places, length - 1)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, places)
    right = jnp.take_along_axis(logits, places[..., None], -1)[..., 0] >= logits.max(-1)
    return {'span': ((losses.mean(-1) * weight).sum(), weight.sum()),
            'span_accuracy': ((right.all(-1) * weight).sum(), weight.sum())}

  def predict(self, examples: Sequence[Example], features: Features, outputs: Sequence[np.ndarray]
              ) -> list[AnswerPrediction]:
    """Answers questions by the best parts of all their windows, which end no more than `answer_length` tokens from
    where they begin.

    The score of no answer is the least that the windows give to the token that stands for them. Of equal scores the
    part that begins first wins, then the shorter one.
    """
    found: list[dict[tuple[int, int], float]] = [{} for _ in examples]
    nulls = np.full(len(examples), np.inf)
    for row, (number, logits) in enumerate(zip(features.example.tolist(), outputs, strict=True)):
      logits = np.nan_to_num(np.asarray(logits, np.float64), nan=-1e30, posinf=1e30, neginf=-1e30)
      nulls[number] = min(nulls[number], logits[features.values['stand'][row]].sum())
      begins, ends = features.beside['begins'][row], features.beside['ends'][row]
      for score, first, last in zip(*best_parts(logits, begins, ends, self.answer_length, self.n_best), strict=True):
        part, best = (int(begins[first]), int(ends[last])), found[number]
        best[part] = max(float(score), best.get(part, -np.inf))
    return [self.answer(example.texts[1], some, null)
            for example, some, null in zip(examples, found, nulls.tolist(), strict=True)]

  def answer(self, context: str, scores: dict[tuple[int, int], float], null: float) -> AnswerPrediction:
    """Answers a question by the scores of parts of its context and that of no answer."""
    best = sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:self.n_best]
    shares = softmax(np.array([score for _, score in best] + [null] * self.unanswerable)).tolist()
    candidates = tuple(Candidate(context[start:end], start, end, score, share)
                       for ((start, end), score), share in zip(best, shares, strict=False))
    first = candidates[0]
    above = null - first.score
    if self.unanswerable and above > self.null_threshold:
      return AnswerPrediction('', -1, -1, shares[-1], candidates, above)
    return AnswerPrediction(first.text, first.start, first.end, first.probability, candidates, above)

  def scores(self, examples: Sequence[Example], predictions: Sequence[AnswerPrediction]) -> dict[str, float]:
    """Measures answers by `metrics.answers`, or `metrics.answers_or_none`, over the examples whose answers are known.
    Raises ConfigError where none are."""
    known = [(example.answers, prediction) for example, prediction in zip(examples, predictions, strict=True)
             if example.answers is not None]
    if not known:
      raise ConfigError('no question comes with its answer: there is nothing to measure')
    golds = [[answer.text for answer in answers] for answers, _ in known]
    texts = [prediction.candidates[0].text for _, prediction in known]
    if not self.unanswerable:
      return metrics.answers(golds, texts, self.script)
    nulls = [prediction.null for _, prediction in known]
    return metrics.answers_or_none(golds, texts, nulls, self.null_threshold, self.script)


def check(examples: Sequence[Example], unanswerable: bool) -> None:
  """Raises ConfigError for an example that is no question with its context, or has no answer where each has one."""
  for number, example in enumerate(examples):
    if len(example.texts) != 2:
      raise ConfigError(f'{place(example, number)}: a question and its context are two texts, not '
                        f'{len(example.texts)}')
    if example.answers == () and not unanswerable:
      raise ConfigError(f'{place(example, number)}: the question has no answer, which takes unanswerable')


def place(example: Example, number: int) -> str:
  """Names an example for messages."""
  return example.where or f'example {number}'


def encoded(texts: Sequence[str], tokenizer: Tokenizer) -> dict[str, list[int]]:
  """Encodes texts, each once."""
  different = list(dict.fromkeys(texts))
  return dict(zip(different, tokenizer.encode_batch(different), strict=True))


def read(texts: Sequence[str], tokenizer: Tokenizer) -> dict[str, Read]:
  """Encodes contexts, each once, and finds the characters of their tokens."""
  different = list(dict.fromkeys(texts))
  ids, lengths, starts = tokenizer.encode_places(different)
  offsets = np.cumsum([0, *lengths.tolist()]).tolist()
  return {text: Read(ids[at:until].tolist(), *extents(text, starts[at:until]))
          for text, at, until in zip(different, offsets[:-1], offsets[1:], strict=True)}


def extents(text: str, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns of tokens that begin at characters `starts` [T] those that they stand for: text[begins:ends], [T] each.

  A token reaches to where another begins, less the blanks around it; tokens that begin at the same character, such as
  the bytes of one, stand for the same. Characters that the tokenizer leaves out belong to the token before them. Both
  are 0 where nothing but blanks is left.
  """
  starts = np.where(starts == starts[:1], 0, starts)  # the first token has what was left out before it, too
  codes = np.frombuffer(text.encode('utf-32-le'), np.uint32)
  solid = np.flatnonzero(~blanks()[np.minimum(codes, len(blanks()) - 1)])
  behind = np.append(starts, len(text))[starts.searchsorted(starts, 'right')]
  first, last = solid.searchsorted(starts), solid.searchsorted(behind)
  solid = np.append(solid, 0)
  some = last > first
  return np.where(some, solid[first], 0), np.where(some, solid[last - 1] + 1, 0)


@functools.cache
def blanks() -> np.ndarray:
  """Tells which characters are spaces, control or format characters [65536]: answers neither begin nor end with
  them."""
  return np.array([unicodedata.category(chr(code)) in ('Cc', 'Cf', 'Zs', 'Zl', 'Zp') for code in range(1 << 16)])


def located(example: Example, context: Read) -> tuple[int, int] | None:
  """Returns the first and the last token of the first answer that is in the context; None where none is."""
  characters = (found(example.texts[1], answer) for answer in example.answers or ())
  tokens = np.flatnonzero(context.ends)
  begins, ends = context.begins[tokens], context.ends[tokens]
  for start, end in filter(None, characters):
    first, last = int(ends.searchsorted(start, 'right')), int(begins.searchsorted(end)) - 1
    if first <= last:
      return int(tokens[first]), int(tokens[last])
  return None


def found(context: str, answer: Answer) -> tuple[int, int] | None:
  """Returns the characters of an answer in a context, where it says or else nearest to there; None: nowhere."""
  text, at = answer.text.strip(), answer.start + len(answer.text) - len(answer.text.lstrip())
  if not text:
    return None
  if answer.start < 0 or not context.startswith(text, at):
    places = context.find(text, max(at, 0)), context.rfind(text, 0, max(at, 0) + len(text))
    at = min((place for place in places if place >= 0), key=lambda place: abs(place - at), default=-1)
  return (at, at + len(text)) if at >= 0 else None


def best_parts(logits: np.ndarray, begins: np.ndarray, ends: np.ndarray, longest: int, most: int
               ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Finds the best parts of a window: scores, first and last tokens, `most` each or as many as there are, best first.

  logits [T, 2]: of each token as the first and as the last; begins and ends [T]: the characters that it stands for;
  longest: tokens of a part. Of tokens with the same characters the first one begins and the last one ends a part.
  """
  some, border = ends > begins, np.ones(len(begins) + 1, bool)
  border[1:-1] = (begins[1:] != begins[:-1]) | (ends[1:] != ends[:-1])
  start = np.where(border[:-1] & some, logits[:, 0], -np.inf)
  end = np.where(border[1:] & some, logits[:, 1], -np.inf)
  end = np.append(end, np.full(longest - 1, -np.inf))
  table = start[:, None] + np.lib.stride_tricks.sliding_window_view(end, longest)
  rows = np.sort(np.argsort(-table.max(1), kind='stable')[:most])  # each better than all that follow by a part at least
  scores = table[rows].ravel()
  best = np.argsort(-scores, kind='stable')[:min(most, int(np.isfinite(scores).sum()))]
  first = rows[best // longest]
  return scores[best], first, first + best % longest
