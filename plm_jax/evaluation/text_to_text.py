"""Evaluation of an encoder-decoder on text-to-text tasks (Raffel et al. 2020).

    result = evaluate_text_to_text(load_model('runs/t5_tasks'), 'task:sst2:glue/sst2_dev.tsv.gz')
    result.metrics    {'accuracy': 91.3}

The metrics of a task are those of its papers, in percent. An answer must match exactly: other words
are wrong, and count as no number.
"""
from collections.abc import Callable, Sequence
import dataclasses
import itertools
import math
from typing import Any, NamedTuple

import numpy as np

from plm_jax import progress
from plm_jax.errors import ConfigError
from plm_jax.inference import generate
from plm_jax.loading.generation_config import GenerationConfig
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.metrics import generation as metrics
from plm_jax.metrics import tasks as labels
from plm_jax.sources import text_to_text_tasks as examples_lib
from plm_jax.sources.lines import SourceError
from plm_jax.sources.text_to_text_tasks import TextTask, TextToTextExample
from plm_jax.tokenizers.contract import delimiters
from plm_jax.validation import ValidatedConfig, intervals


class TextPrediction(NamedTuple):
  """An example with the text that the model generates for it."""

  example: TextToTextExample
  text: str


@dataclasses.dataclass(frozen=True)
class ReadingConfig(ValidatedConfig):
  """Options for reading the examples of a task."""

  limits = intervals(length='[1, 16777216]', batch='[1, 65536]')

  length: int = 512
  """maximum sequence length of the inputs, including special tokens"""
  batch: int = 64
  """batch size"""
  limit: int = 0
  """evaluate only the first N examples; 0: all"""


@dataclasses.dataclass(frozen=True)
class TextToTextResult:
  """Predictions and metrics of an evaluation."""

  predictions: tuple[TextPrediction, ...]
  metrics: dict[str, float]
  """in percent"""
  truncated_inputs: int
  """number of inputs that were too long and lost their end"""


def evaluate_text_to_text(
    trained: LoadedModel, source: str, config: GenerationConfig = GenerationConfig(),
    reading: ReadingConfig = ReadingConfig(),
    keep: Callable[[Sequence[TextPrediction]], None] | None = None,
) -> TextToTextResult:
  """Generate answers to the examples of task:NAME:SOURCE, and compute the metrics of the task.

  Args:
    trained: an encoder-decoder.
    source: the task and its data.
    config: the generation options.
    reading: the options for reading examples.
    keep: called with the predictions before any metric is computed.

  Raises:
    SourceError: the source has no examples or cannot be read.
    ConfigError: the model is no encoder-decoder, or the library of a metric is not installed; both
      are raised before anything is generated.
    CheckpointError: as for `generate`.
  """
  tokenizer = trained.tokenizer
  if generate.continues_prompts(trained) or not tokenizer:
    raise ConfigError('tasks as text to text are for an encoder-decoder with its tokenizer')
  task = examples_lib.parse_task(source)
  metrics.check_installed(task.metrics)
  examples = read_examples(source, task, reading.limit)
  if not examples:
    raise SourceError(f'{source} has no examples')
  length = min(reading.length, trained.model.max_length or reading.length)
  before, behind, _ = delimiters(tokenizer.vocab)
  specials = len(before) + len(behind)
  room = length - specials
  if room < 1:
    raise ConfigError(f'{length} tokens leave no room for text next to {specials} special tokens')
  inputs = tokenizer.encode_batch([example.inputs for example in examples])
  shortened = [ids[:room] for ids in inputs]
  texts = generate_answers(trained, shortened, config, reading.batch)
  predictions = tuple(map(TextPrediction, examples, texts))
  if keep:
    keep(predictions)
  truncated_inputs = sum(len(ids) > room for ids in inputs)
  return TextToTextResult(predictions, compute_metrics(task, predictions), truncated_inputs)


def read_examples(source: str, task: TextTask, limit: int = 0) -> list[TextToTextExample]:
  """Read the examples of a task, at most `limit` (0: all).

  Where texts are generated, rows with the same inputs are one example with several references, as
  in E2E NLG and WebNLG: the inputs are answered once and judged against all of them.
  """
  examples = examples_lib.read_examples(source)
  if task.answers or task.step:
    return list(itertools.islice(examples, limit or None))
  found: dict[str, TextToTextExample] = {}
  for example in examples:
    first = found.get(example.inputs)
    if first is None and limit and len(found) == limit:
      break
    targets = first.targets + example.targets if first else example.targets
    found[example.inputs] = (first or example)._replace(targets=tuple(dict.fromkeys(targets)))
  return list(found.values())


def generate_answers(
    trained: LoadedModel, prompts: Sequence[list[int]], config: GenerationConfig, batch: int,
) -> list[str]:
  """Generate the answer to each prompt, with prompts of similar length together.

  All batches have the same size: the last is filled with copies of its first prompt.
  """
  order = np.argsort([len(prompt) for prompt in prompts], kind='stable')
  size = min(batch, len(order))
  texts = [''] * len(prompts)
  with progress.progress_bar('examples', len(order)) as done:
    for begin in range(0, len(order), batch):
      places = order[begin:begin + batch].tolist()
      filled = places + places[:1] * (size - len(places))
      found = generate.generate(trained, [prompts[place] for place in filled], config)
      for place, answers in zip(filled, found, strict=True):
        texts[place] = answers[0].text.strip()
      done.update(len(places))
  return texts


def compute_metrics(task: TextTask, predictions: Sequence[TextPrediction]) -> dict[str, float]:
  """Compute the metrics of a task, by name."""
  found: dict[str, float] = {}
  texts = [prediction.text for prediction in predictions]
  targets = [prediction.example.targets for prediction in predictions]
  for name in task.metrics:
    value = compute_metric(name, task, texts, targets)
    found |= value if isinstance(value, dict) else {name: value}
  return found


def compute_metric(
    name: str, task: TextTask, texts: Sequence[str], targets: Sequence[Sequence[str]]) -> Any:
  """Compute a metric, in percent; ROUGE is several.

  Of a binary task, the second answer has the label 1 and everything else the label 0.
  """
  first = [some[0] for some in targets]
  if name == 'accuracy':
    return 100 * float(np.mean([text in some for text, some in zip(texts, targets, strict=True)]))
  if name in NUMBER_METRICS:
    return NUMBER_METRICS[name](parse_numbers(first), parse_numbers(texts))
  if name in BINARY_METRICS:
    positive = task.answers[1]
    truth, predicted = ([int(text == positive) for text in side] for side in (first, texts))
    return BINARY_METRICS[name](truth, predicted)
  return TEXT_METRICS[name](texts, targets)


def parse_numbers(texts: Sequence[str]) -> list[float]:
  """Parse numbers; other texts become -1, as in the released code."""
  numbers = []
  for text in texts:
    try:
      value = float(text)
    except ValueError:
      value = -1.0
    numbers.append(value if math.isfinite(value) else -1.0)
  return numbers


NUMBER_METRICS = {'pearson': labels.pearson, 'spearman': labels.spearman}
"""correlations of numbers that are written as text"""
BINARY_METRICS = {'matthews': labels.matthews, 'f1': labels.f1}
TEXT_METRICS: dict[str, Callable[..., Any]] = {
    'exact_match': metrics.exact_match, 'token_f1': metrics.token_f1, 'bleu': metrics.bleu,
    'chrf': metrics.chrf, 'rouge': metrics.rouge}
