"""Compare a fine-tuned model with simple baselines, and suggest improvements."""
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
import dataclasses
import json
import shlex
import sys
from typing import Any

import jax
import numpy as np

from plm_jax import environment, storage
from plm_jax.config.run import FinetuneRun, PretrainRun, length_advice
from plm_jax.errors import UserError, name_field, named_fields
from plm_jax.finetuning.setup import ResolvedRun
from plm_jax.inference import sentence_vectors
from plm_jax.loading.loaded_model import load_model, read_config
from plm_jax.metrics.nearest import to_dense
from plm_jax.recipes import finetune
from plm_jax.report.history import history
from plm_jax.report.model_card import BASELINES_FILE
from plm_jax.sources.row_readers import Example
from plm_jax.tasks import baselines
from plm_jax.tasks.baselines import Baseline
from plm_jax.tasks.multilabel import MultiLabelTask
from plm_jax.tasks.outputs import Choice, Relevance
from plm_jax.tasks.sentence_embedding import EmbeddingTask
from plm_jax.tasks.sequence_classification import SequenceTask
from plm_jax.tasks.token_classification import TagPrediction
from plm_jax.training.train import TrainingResult

MANY_TRUNCATED = 0.1
"""largest share of truncated training examples without a suggestion"""
INITIAL_MODEL = 'the initial model'
SAME_OUTPUT = 1e-3
"""largest difference of outputs that count as the same"""
LARGE_WIDTH = 512
"""width from which a model is not called small"""


def compare_with_baselines(
    ready: ResolvedRun, result: TrainingResult, given: Container[str] = ()
) -> tuple[dict[str, str], list[str]]:
  """Compute the baselines of a run on its first development set, and keep them in its folder.

  Args:
    ready: the run.
    result: its result.
    given: fields that the user has set, which no suggestion is about.

  Returns:
    Rows of the summary: the initial model if it can do the task, the majority class, a simple
    baseline, and one on the vectors of the initial model. And suggestions where the model is
    worse than a baseline. Both are empty where no baseline is requested, and at the scale test,
    which learns nothing.
  """
  config = ready.config
  if not config.data.baseline or not ready.dev or config.scale == 'test':
    return {}, []
  task, metric = config.objective, config.objective.metric_names[0]
  train, dev = ready.train.examples, next(iter(ready.dev.values())).examples
  found = []
  points = history(config.folder).curves.get(metric, {}).get('heldout', [])
  if points and points[0][0] == 0 and points[0][1]:  # evaluated if no part of it was random
    found.append(Baseline(INITIAL_MODEL, {metric: points[0][1]}))
  if scores := baselines.majority_baseline(task, train, dev):
    found.append(Baseline('the majority class', scores))
  print('computing the baselines...', file=sys.stderr, flush=True)
  if simple := baselines.simple_baseline(task, train, dev):
    found.append(simple)
  encode = make_initial_encoder(config)
  if encode and (frozen := baselines.vector_baseline(task, train, dev, encode)):
    found.append(frozen)
  kept = {name: scores[metric] for name, scores in found}
  path = storage.resolve_path(config.folder) / BASELINES_FILE
  storage.write(path, json.dumps({metric: kept}) + '\n')
  write = config.training_objective.reporting.format_metric
  rows = {f'Baseline, {name}': f'{write(metric, score)} {metric}' for name, score in kept.items()}
  return rows, drop_given(describe_gap(ready, result, found, metric), given)


def make_initial_encoder(config: FinetuneRun) -> Callable[[Sequence[str]], np.ndarray] | None:
  """Make a function that encodes texts by the initial model; None: it has no sentence vectors.

  Its vectors are those that it was trained for, or means of its token states.
  """
  model: Any = config.model
  if not config.warm_start or model.kind == 'recurrent' or jax.process_count() > 1:
    return None
  trained = load_model(config.warm_start)
  tokenizer = trained.tokenizer
  # The table of GPT has no rows yet for the special tokens of texts.
  if not tokenizer or config.objective.input_format.extra_ids(tokenizer.vocab):
    return None
  if sentence_vectors.has_token_vectors(trained):
    return None
  if not sentence_vectors.has_sentence_vectors(trained):
    trained = dataclasses.replace(trained, task=EmbeddingTask(family=trained.family))
  trained = dataclasses.replace(trained, length=config.train.phases[0].length)
  return lambda texts: to_dense(sentence_vectors.encode_sentences(trained, texts))


def describe_collapse(
    task: Any, examples: Sequence[Example], predictions: Sequence[Any],
    given: Container[str] = ()) -> list[str]:
  """Describe a model that predicts the same for all examples, and what may help.

  Args:
    task: the task.
    examples: examples of a development set.
    predictions: their predictions.
    given: fields that the user has set, which no hint is about.

  Returns:
    Hints; [] where predictions differ, or all examples have the same label.
  """
  truth = {repr(example.label) for example in examples if example.label is not None}
  if len(truth) == 1 or len(examples) < 2:
    return []
  if is_constant(examples, predictions):
    lines = [f'the outputs are constant: for all {len(examples):,} development examples they are '
             f'the same to {SAME_OUTPUT:g}. What may help:']
    options = [f'- another random seed: {name_field("seed")}=1',
               f'- more updates: {name_field("data.least_steps")}=3000 '
               f'{name_field("train.early")}=0']
    if isinstance(task, SequenceTask):
      options.append(f'- {name_field("tuning.top")}=0 trains only the head, on frozen features')
    return lines + drop_given(options, given)
  labels: set[Any] = set()
  for prediction in predictions:
    if isinstance(prediction, TagPrediction):
      labels |= set(prediction.tags)
    else:
      labels.add(getattr(prediction, 'label', getattr(prediction, 'text', id(prediction))))
  if len(labels) != 1:
    return []
  label = labels.pop()
  what, options = 'the same answer is always predicted', []
  if label == ():
    what = 'no label is predicted'
  elif isinstance(label, int) and label < len(task.labels):
    what = f'{task.labels[label]} is always predicted'
  if isinstance(task, SequenceTask) and not (task.balanced or task.class_weights or task.focal):
    options = [f'- {name_field("objective.balanced")}=True gives all classes the same weight',
               f'- {name_field("objective.focal")}=2 gives more weight to mistakes']
  if isinstance(task, MultiLabelTask) and label == () and task.tune_thresholds == 'no':
    options.append(f'- {name_field("objective.tune_thresholds")}=each lowers thresholds')
  options = drop_given(options, given)
  return [what + ('. What may help:' if options else ''), *options]


def is_constant(examples: Sequence[Example], predictions: Sequence[Any]) -> bool:
  """Tell whether probabilities, scores or values are the same for all examples, to SAME_OUTPUT."""
  outputs = []
  for prediction in predictions:
    if isinstance(prediction, Relevance):
      outputs += list(np.array(prediction.scores))
      continue
    if isinstance(prediction, Choice):
      outputs.append(np.array(prediction.probabilities))
      continue
    for field in ('all_probabilities', 'probabilities'):
      rows = getattr(prediction, field, None)
      if isinstance(rows, np.ndarray) and rows.size:  # of words, or of an example
        outputs += [rows] if field == 'probabilities' else list(rows)
        break
    else:
      value = getattr(prediction, 'value', None)
      if not isinstance(value, float):
        return False
      outputs.append(np.asarray(value))
  if len(outputs) < 2:
    return False
  if len({output.shape for output in outputs}) > 1:  # choices of questions with more and fewer
    return all(np.ptp(output) <= SAME_OUTPUT for output in outputs)
  # Values are compared with the spread of the true ones.
  truth = [example.label for example in examples if isinstance(example.label, float)]
  scale = float(np.ptp(truth)) if truth and not outputs[0].shape else 1.0
  return bool(np.ptp(np.stack(outputs), 0).max() <= SAME_OUTPUT * scale)


def drop_given(hints: Iterable[str], given: Container[str]) -> list[str]:
  """Leave out the hints that name a field that is given."""
  return [hint for hint in hints if not any(field in given for field in named_fields(hint))]


def describe_gap(
    ready: ResolvedRun, result: TrainingResult, found: list[Baseline], metric: str) -> list[str]:
  """Return by how much the model is worse than the best baseline, and suggestions; else nothing."""
  score = result.heldout.get(metric)
  if score is None or not found:
    return []
  sign = 1 if ready.config.training_objective.reporting.higher_is_better(metric) else -1
  best = max(found, key=lambda baseline: sign * baseline.scores[metric])
  gap = sign * (best.scores[metric] - score)
  if gap <= 0:
    if result.best == 0:
      return ['training did not improve the initial model, which is the result']
    return []
  more = 'more' if sign > 0 else 'less'
  lines = [f'{best.name} reaches {gap:.1f} {metric} {more} than the model, '
           f'{best.scores[metric]:.1f}. What may help:']
  better = [f'- {reason}' for reason in suggest_baseline(ready.config, best.name)]
  return [*lines, *better, *(f'- {one}' for one in suggest_improvements(ready, result))]


def suggest_baseline(config: FinetuneRun, name: str) -> Iterator[str]:
  """Yield how to use a baseline that is better than the model."""
  start = shlex.quote(config.warm_start)
  if name == INITIAL_MODEL:
    yield (f'use it without fine-tuning: {start}; {name_field("train.best")}=main keeps the best '
           'checkpoint')
  elif name.endswith(baselines.ON_VECTORS):
    yield f'train only a head, on the frozen vectors: {name_field("tuning.top")}=0'
    yield (f'encode the texts, `{environment.program()} encode {start} TEXTS '
           f'{environment.option("output", "OUT.npy")}`, and fit the '
           f'{name.removesuffix(baselines.ON_VECTORS)} of scikit-learn')
  elif name == 'BM25':
    yield f'search without a model: `{environment.program()} evaluate-retrieval bm25 DATA`'
  elif name.startswith('TF-IDF'):
    yield "use it: scikit-learn's TfidfVectorizer with the same regression needs no model"


def suggest_improvements(ready: ResolvedRun, result: TrainingResult) -> Iterator[str]:
  """Yield suggestions for a model that is worse than a baseline, with options where possible."""
  config = ready.config
  model: Any = config.model
  clipped = ready.train.features.clipped / max(1, len(ready.train.examples))
  if config.warm_start:
    yield from short_pretraining(config)
  else:
    yield ('it was trained from scratch: begin with a pre-trained model, '
           f'{name_field("init")}=FOLDER')
  texts = [example.texts[0] for example in ready.train.examples[:100]]
  has_names = sum(text != text.lower() for text in texts) > len(texts) / 2
  if config.objective.example_kind == 'tagging' and has_names and drops_capitals(ready.tokenizer):
    yield ('its tokenizer drops capital letters, which mark names: pre-train with '
           f'{name_field("data.prepare.lowercase")}=False')
  pairs = all(len(example.texts) == 2 for example in ready.train.examples[:100])
  task = config.objective
  scores_pairs = task.train_format.name == 'regression' and task.head == 'label'
  if scores_pairs and pairs and is_small(model):
    highest = max(float(example.label or 0) for example in ready.train.examples)  # pyright: ignore
    yield ('a small model compares two texts better by their vectors: '
           f'{name_field("task")}=embedding {name_field("loss")}=cosine '
           f'{name_field("objective.vector_loss.full")}={highest:g}')
  if clipped > MANY_TRUNCATED:
    longer = length_advice(config, 2 * config.train.phases[0].length)
    yield f'{clipped:.0%} of the training examples lose an end. {longer}'
  if model.kind != 'recurrent' and config.warm_start:
    rate = finetune.suggest_rate(model)
    if 2 * config.optim.peak < rate:
      yield (f'the learning rate is low for a model of width {model.block.width}: '
             f'{name_field("optim.peak")}={rate:.0e}')
  if result.best == result.step:
    epochs = 2 * max(1, round(result.epochs))
    yield ('the last evaluation was the best one: train for longer, '
           f'{name_field("data.epochs")}={epochs}')
  if is_small(model):
    yield (f'it is small, {model.stack.layers} layers of width {model.block.width}: a larger '
           'pre-trained model knows more')


def is_small(model: Any) -> bool:
  """Return whether the blocks of a model are narrower than LARGE_WIDTH."""
  return model.kind != 'recurrent' and model.block.width < LARGE_WIDTH


def short_pretraining(config: FinetuneRun) -> Iterator[str]:
  """Yield a suggestion where the initial model is from a run with a smaller scale than paper."""
  try:
    before = read_config(config.warm_start)
  except UserError:  # another library's checkpoint
    return
  if isinstance(before, PretrainRun) and before.scale != 'paper':
    steps = before.train.steps
    yield (f'its pre-training was short, {steps:,} steps: a longer one teaches it more '
           f'({name_field("train.phases.0.steps")}=20000, or {name_field("hours")})')


def drops_capitals(tokenizer: Any) -> bool:
  """Return whether a tokenizer gives a name the same tokens without its capital letter."""
  ids = tokenizer.encode('Paris')
  is_known = bool(ids) and tokenizer.vocab.unk not in ids
  return is_known and ids == tokenizer.encode('paris')
