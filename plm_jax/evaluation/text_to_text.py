"""How well an encoder-decoder does a task that it answers in words (Raffel et al. 2020).

    result = evaluate(loading.load('runs/t5_tasks'), 'task:sst2:glue/sst2_dev.tsv.gz')
    result.metrics    {'accuracy': 91.3}

A task's metrics are those that its papers report, in percent. What is written has to be the answer, to the letter:
other words are wrong, and count as no number.
"""
from collections.abc import Callable, Sequence
import dataclasses
import itertools
import math
from typing import Any, NamedTuple

import numpy as np

from plm_jax.checked import Checked, within
from plm_jax.config import ConfigError
from plm_jax.data import examples as examples_lib
from plm_jax.data.examples import Example, TextTask
from plm_jax.data.lines import SourceError
from plm_jax.evaluation import metrics
from plm_jax.inference import generate
from plm_jax.inference.loading import Trained
from plm_jax.inference.search import GenerationConfig
from plm_jax.objectives.seq2seq import delimiters
from plm_jax.tasks import metrics as labels


class Prediction(NamedTuple):
  example: Example
  text: str


@dataclasses.dataclass(frozen=True)
class ReadingConfig(Checked):
  """Which examples are read, and how."""

  limits = within(length='[1, 16777216]', batch='[1, 65536]')

  length: int = 512
  """tokens that are read of each example's inputs, at most, special ones included"""
  batch: int = 64
  """examples that go through the model together"""
  limit: int = 0
  """ask so many examples, the first; 0: all"""


@dataclasses.dataclass(frozen=True)
class Result:
  """Figures of an evaluation."""

  predictions: tuple[Prediction, ...]
  metrics: dict[str, float]
  """in percent"""
  cut: int
  """inputs that were too long and lost their ends"""


def evaluate(
    trained: Trained, source: str, config: GenerationConfig = GenerationConfig(),
    reading: ReadingConfig = ReadingConfig()) -> Result:
  """Has the examples of task:NAME:SOURCE answered.

  Raises SourceError, ConfigError for a model that is no encoder-decoder, and what `generate` raises.
  """
  if generate.continues(trained) or not trained.tokenizer:
    raise ConfigError('tasks as text to text are for an encoder-decoder with its tokenizer')
  task = examples_lib.task_of(source)
  asked = list(itertools.islice(examples_lib.examples(source), reading.limit or None))
  if not asked:
    raise SourceError(f'{source} has no examples')
  length = min(reading.length, trained.model.max_length or reading.length)
  try:
    before, behind, _ = delimiters(trained.tokenizer.vocab)
  except ValueError as error:
    raise ConfigError(str(error)) from error
  room = length - len(before) - len(behind)
  if room < 1:
    raise ConfigError(f'{length} tokens leave no room for text beside the {len(before) + len(behind)} around it')
  ids = trained.tokenizer.encode_batch([example.inputs for example in asked])
  texts = written(trained, [some[:room] for some in ids], config, reading.batch)
  predictions = tuple(map(Prediction, asked, texts))
  return Result(predictions, judged(task, predictions), sum(len(some) > room for some in ids))


def written(trained: Trained, prompts: Sequence[list[int]], config: GenerationConfig, batch: int) -> list[str]:
  """Returns what the model answers to each prompt of ids: prompts of like lengths together, batches of one size."""
  order = np.argsort([len(prompt) for prompt in prompts], kind='stable')
  texts: dict[int, str] = {}
  for begin in range(0, len(order), batch):
    places = order[begin:begin + batch].tolist()
    rows = places + places[:1] * (min(batch, len(order)) - len(places))
    found = generate.generate(trained, [prompts[place] for place in rows], config)
    texts |= {place: some[0].text.strip() for place, some in zip(rows, found, strict=True)}
  return [texts[place] for place in range(len(prompts))]


def judged(task: TextTask, predictions: Sequence[Prediction]) -> dict[str, float]:
  """Returns the task's metrics, by name."""
  found: dict[str, float] = {}
  texts, targets = [some.text for some in predictions], [some.example.targets for some in predictions]
  for name in task.metrics:
    value = METRICS[name](task, texts, targets)
    found |= value if isinstance(value, dict) else {name: value}
  return found


def accuracy(task: TextTask, texts, targets) -> float:
  """Returns, in percent, the share of the texts that are one of their targets."""
  del task
  return 100 * float(np.mean([text in some for text, some in zip(texts, targets, strict=True)]))


def matthews(task: TextTask, texts, targets) -> float:
  """Measures Matthews' correlation of two answers, in percent; other words count as the first."""
  return labels.matthews(*seconds(task, texts, targets))


def f1(task: TextTask, texts, targets) -> float:
  """Measures the F1 of the second of two answers, in percent."""
  return labels.f1(*seconds(task, texts, targets))


def seconds(task: TextTask, texts, targets) -> tuple[list[int], list[int]]:
  """Returns, of targets and of texts, 1 for the second of two answers and 0 for the rest."""
  ours, theirs = ([int(text == task.answers[1]) for text in some] for some in (texts, firsts(targets)))
  return theirs, ours


def pearson(task: TextTask, texts, targets) -> float:
  """Measures Pearson's correlation of numbers written as text, in percent."""
  del task
  return labels.pearson(numbers(firsts(targets)), numbers(texts))


def spearman(task: TextTask, texts, targets) -> float:
  """Measures Spearman's correlation of numbers written as text, in percent."""
  del task
  return labels.spearman(numbers(firsts(targets)), numbers(texts))


def numbers(texts: Sequence[str]) -> list[float]:
  """Reads numbers; -1 for what is none, as in the released code."""
  def read(text):
    try:
      value = float(text)
    except ValueError:
      return -1.0
    return value if math.isfinite(value) else -1.0
  return [read(text) for text in texts]


def firsts(targets) -> list[str]:
  """Returns the first of each text's targets."""
  return [some[0] for some in targets]


METRICS: dict[str, Callable[..., Any]] = {
    'accuracy': accuracy, 'matthews': matthews, 'f1': f1, 'pearson': pearson, 'spearman': spearman,
    'exact_match': lambda task, texts, targets: metrics.exact_match(texts, targets),
    'token_f1': lambda task, texts, targets: metrics.token_f1(texts, targets),
    'bleu': lambda task, texts, targets: metrics.bleu(texts, targets),
    'chrf': lambda task, texts, targets: metrics.chrf(texts, targets),
    'rouge': lambda task, texts, targets: metrics.rouge(texts, targets),
}
