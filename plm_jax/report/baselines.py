"""Compare a fine-tuned model with simple baselines, and suggest improvements."""
from collections.abc import Iterator, Mapping
import sys
from typing import Any

from plm_jax.config.run import FinetuneRun, PretrainRun, length_advice
from plm_jax.errors import UserError
from plm_jax.finetuning.setup import ResolvedRun
from plm_jax.loading.loaded_model import read_config
from plm_jax.recipes import finetune
from plm_jax.tasks import baselines
from plm_jax.tasks.baselines import Baseline
from plm_jax.tasks.multilabel import MultiLabelTask
from plm_jax.tasks.sequence_classification import SequenceTask
from plm_jax.training.train import TrainingResult

MANY_TRUNCATED = 0.1
"""largest share of truncated training examples without a suggestion"""
LARGE_WIDTH = 512
"""width from which a model is not called small"""


def compare_with_baselines(
    ready: ResolvedRun, result: TrainingResult) -> tuple[dict[str, str], list[str]]:
  """Compute the baselines of a run on its first development set.

  Returns:
    Rows of the summary: the majority-class baseline and the simple baseline. And hints: the missing
    package, or suggestions where the model is worse than a baseline. Both are empty where no
    baseline is requested, and at the scale test, which learns nothing.
  """
  config = ready.config
  if not config.data.baseline or not ready.dev or config.scale == 'test':
    return {}, []
  task, metric = config.objective, config.objective.metric_names[0]
  train, dev = ready.train.examples, next(iter(ready.dev.values())).examples
  found, hints = [], []
  if scores := baselines.majority_baseline(task, train, dev):
    found.append(Baseline('the majority class', scores))
    hints += describe_collapse(task, result.heldout, scores)
  if not baselines.has_scikit_learn() and baselines.has_simple_baseline(task):
    hint = 'pip install "plm_jax[baselines]" computes a simple baseline to hold the score against'
    return baseline_rows(found, metric), [*hints, hint]
  print('computing the baselines...', file=sys.stderr, flush=True)
  if simple := baselines.simple_baseline(task, train, dev):
    found.append(simple)
  return baseline_rows(found, metric), hints + describe_gap(ready, result, found, metric)


def describe_collapse(
    task: Any, scores: Mapping[str, float], majority: Mapping[str, float]) -> list[str]:
  """Return a hint where the model predicts the majority class, or no label, of every example."""
  if not isinstance(task, SequenceTask):
    return []
  names = [name for name in task.metric_names if name != 'average_precision']
  is_majority = all(scores.get(name) == majority[name] for name in names)
  has_no_label = isinstance(task, MultiLabelTask) and scores.get('micro_f1') == 0
  if not is_majority and not has_no_label:
    return []
  what = 'no label is predicted' if has_no_label else 'the majority class is always predicted'
  advice = '' if task.balanced or task.class_weights else (
      ': --objective.balanced=True gives all classes the same weight, --objective.focal=2 more '
      'weight to mistakes')
  if has_no_label:
    advice += '; --objective.tune-thresholds=each lowers thresholds'
  return [f'{what}{advice}']


def baseline_rows(found: list[Baseline], metric: str) -> dict[str, str]:
  """Return the baselines as rows of the summary."""
  return {f'Baseline, {name}': f'{scores[metric]:.2f} {metric}' for name, scores in found}


def describe_gap(
    ready: ResolvedRun, result: TrainingResult, found: list[Baseline], metric: str) -> list[str]:
  """Return by how much the model is worse than the best baseline, and suggestions; else nothing."""
  score = result.heldout.get(metric)
  if score is None or not found:
    return []
  best = max(found, key=lambda baseline: baseline.scores[metric])
  if score >= best.scores[metric]:
    return []
  gap = best.scores[metric] - score
  lines = [f'{best.name} reaches {gap:.1f} {metric} more than the model, '
           f'{best.scores[metric]:.1f}. What may help:']
  return lines + [f'- {reason}' for reason in suggest_improvements(ready, result)]


def suggest_improvements(ready: ResolvedRun, result: TrainingResult) -> Iterator[str]:
  """Yield suggestions for a model that is worse than a baseline, with options where possible."""
  config = ready.config
  model: Any = config.model
  clipped = ready.train.features.clipped / max(1, len(ready.train.examples))
  if config.warm_start:
    yield from short_pretraining(config)
  else:
    yield 'it was trained from scratch: begin with a pre-trained model, --init=FOLDER'
  if config.objective.example_kind == 'tagging' and drops_capitals(ready.tokenizer):
    yield ('its tokenizer drops capital letters, which mark names: pre-train with '
           '--data.prepare.lowercase=False')
  pairs = all(len(example.texts) == 2 for example in ready.train.examples[:100])
  task = config.objective
  scores_pairs = task.train_format.name == 'regression' and task.head == 'label'
  if scores_pairs and pairs and is_small(model):
    highest = max(float(example.label or 0) for example in ready.train.examples)  # pyright: ignore
    yield ('a small model compares two texts better by their vectors: --task=embedding '
           f'--loss=cosine --objective.vector-loss.full={highest:g}')
  if clipped > MANY_TRUNCATED:
    longer = length_advice(config, 2 * config.train.phases[0].length)
    yield f'{clipped:.0%} of the training examples lose an end. {longer}'
  if model.kind != 'recurrent' and config.warm_start:
    rate = finetune.suggest_rate(model)
    if 2 * config.optim.peak < rate:
      yield (f'the learning rate is low for a model of width {model.block.width}: '
             f'--optim.peak={rate:.0e}')
  if result.best == result.step:
    epochs = 2 * max(1, round(result.epochs))
    yield f'the last evaluation was the best one: train for longer, --data.epochs={epochs}'
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
    yield (f'its pre-training was short, {steps:,} steps: half an hour on two CPU cores, '
           '--train.phases.0.steps=20000, teaches it more')


def drops_capitals(tokenizer: Any) -> bool:
  """Return whether a tokenizer gives a name the same tokens without its capital letter."""
  ids = tokenizer.encode('Paris')
  is_known = bool(ids) and tokenizer.vocab.unk not in ids
  return is_known and ids == tokenizer.encode('paris')
