"""Set up a fine-tuning run: read its examples, and resolve the options that depend on them."""
from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any, NamedTuple

from etils import epath
import jax

from plm_jax import conversion
from plm_jax.config.run import ConfigError, FinetuneRun
from plm_jax.errors import name_field
from plm_jax.finetuning.feed import LabeledFeed
from plm_jax.finetuning.teacher import add_teacher_vectors
from plm_jax.tasks.labeled_data import (
  LabeledDataset,
  add_class_names,
  encode_examples,
  note_repeated_texts,
  read_examples,
)
from plm_jax.tokenizers import Tokenizer
from plm_jax.validation import short_repr

EVALUATIONS = 20  # of a run whose epochs are repeated to reach `data.least_steps`


class ResolvedRun(NamedTuple):
  """A run whose examples have been read."""

  config: FinetuneRun
  """with class names, steps, warmup and evaluations"""
  train: LabeledDataset
  dev: Mapping[str, LabeledDataset]
  """by name; '' is the first, which selects the best checkpoint"""
  open_feed: Callable[[Any], LabeledFeed]
  """as `training.train.train` takes it"""
  tokenizer: Tokenizer


def resolve_run(config: FinetuneRun, tokenizer: Tokenizer) -> ResolvedRun:
  """Read the examples of a run and resolve what depends on them.

  The steps are those of `data.epochs`, at least `data.least_steps`. The share `data.warmup` of them
  is the warmup if none is given. Evaluations and checkpoints happen `data.evaluations` times per
  epoch, or per 20th of `data.least_steps`. Raises SourceError, ConfigError.
  """
  data, phase = config.data, config.train.phases[0]
  # Examples, class names and features.
  found = read_examples(config.objective, data.train, 'train', data)
  task = add_class_names(config.objective, found)
  task = with_label_words(task, config.family, tokenizer).fit_to_training(found.examples)
  labeled = found
  found = found._replace(examples=list(task.training_examples(found.examples)))
  train = encode_examples(task, found, tokenizer, phase.length, 'train')
  train = add_teacher_vectors(task, config.model, train)
  dev = read_dev_sets(config, task, tokenizer)
  note_repeated_texts(task, labeled, dev.values())
  fitting = f'{name_field("objective.tune_thresholds")} and {name_field("objective.calibrate")}'
  if task.fits_development and not dev:
    raise ConfigError(f'{fitting} need a development set: give {name_field("dev")}')
  if task.fits_development and jax.process_count() > 1:
    raise ConfigError(f'{fitting} are for runs on one host: without '
                      f'them, {name_field("objective.thresholds")} and '
                      f'{name_field("objective.temperature")} hold')
  loop, optim, model = config.train, config.optim, config.model
  # Embeddings for special tokens of rows that the tokenizer does not have.
  ids = tokenizer.vocab.size + task.input_format.extra_ids(tokenizer.vocab)
  if ids > model.vocab:
    model = dataclasses.replace(model, vocab=ids)
  # Steps and evaluations.
  if data.epochs:
    batches = -(-len(train.features) // (train.features.group * phase.batch))
    steps = max(1, round(data.epochs * batches), data.least_steps)
    every = max(1, round(max(batches, data.least_steps / EVALUATIONS) / data.evaluations))
    loop = dataclasses.replace(
        loop, phases=(dataclasses.replace(phase, steps=steps),), eval_every=every,
        save_every=every, log_every=min(loop.log_every, every))
    if data.unfreeze:
      optim = dataclasses.replace(optim, unfreeze=batches)
  best = selection_metric(config.train.best, task, list(dev))
  loop = dataclasses.replace(loop, best=best, early=loop.early if best else 0)
  if not optim.warmup:
    optim = dataclasses.replace(optim, warmup=round(data.warmup * loop.steps))
  config = dataclasses.replace(config, objective=task, train=loop, optim=optim, model=model)
  def open_feed(mesh):
    return LabeledFeed(config, train, dev, tokenizer, mesh)
  return ResolvedRun(config, train, dev, open_feed, tokenizer)


def selection_metric(best: str, task: Any, dev: Sequence[str]) -> str:
  """Return the metric that selects the best checkpoint; '' without development sets.

  Args:
    best: `train.best`.
    task: the task.
    dev: names of the development sets, the first ''.

  Raises:
    ConfigError: the task does not have the metric.
  """
  if not dev or not best:
    return ''
  if best == 'main':
    return task.metric_names[0]
  metrics = list(task.metric_names) + (['loss'] if task.has_heldout_loss else [])
  known = [f'{name}_{metric}' if name else metric for name in dev for metric in metrics]
  if best not in known:
    raise ConfigError(f'{name_field("train.best")} is main or one of the metrics of the task, '
                      f'{", ".join(metrics)}, got {short_repr(best)}')
  return best


def make_evaluation_feed(config: FinetuneRun, tokenizer: Tokenizer) -> Callable[[Any], LabeledFeed]:
  """Read the development sets of a resolved run -> function that opens its feed for evaluation.

  The feed's training batches are those of the first set. Raises SourceError, and ConfigError if
  there are no development sets.
  """
  dev = read_dev_sets(config, config.objective, tokenizer)
  if not dev:
    raise ConfigError(
        f'{config.folder} has no development set to evaluate on: give {name_field("dev")}')
  return lambda mesh: LabeledFeed(config, dev[''], dev, tokenizer, mesh)


def read_dev_sets(
    config: FinetuneRun, task: Any, tokenizer: Tokenizer) -> dict[str, LabeledDataset]:
  """Read the development sets, by name. Raises SourceError, ConfigError."""
  data, length = config.data, config.train.phases[0].length
  sets = {}
  for name, source in zip(dev_set_names(data.dev), data.dev, strict=True):
    found = read_examples(task, [source], 'dev', data)
    sets[name] = encode_examples(task, found, tokenizer, length)
  return sets


def dev_set_names(sources: Sequence[str]) -> list[str]:
  """Name development sets: the first '', others by their files, numbered if names repeat."""
  stems = [epath.Path(source).name.split('.')[0] for source in sources[1:]]
  names = [stem if stems.count(stem) == 1 else f'{stem}_{number}'
           for number, stem in enumerate(stems, 1)]
  return ['', *names] if sources else []


def with_label_words(task: Any, family: str, tokenizer: Tokenizer) -> Any:
  """Set the label words (verbalizer) of a task for a family that classifies by cloze (GLM).

  Each class gets the first token of its name. Raises ConfigError if two names begin with the same
  token.
  """
  if not conversion.uses_verbalizer(family, task.head) or task.words:
    return task
  encoded = tokenizer.encode_batch([f' {name}' for name in task.labels])
  words = [ids[0] if ids else -1 for ids in encoded]
  if len(set(words)) < len(words) or -1 in words:
    raise ConfigError(
        f'a {family} predicts the first token of a class name, and these are not all different: '
        f'{", ".join(task.labels[:20])}: give {name_field("objective.words")}, an id for each')
  return dataclasses.replace(task, words=tuple(words))
