"""From a configuration to a fine-tuning run: its examples are read, and what depends on them is settled."""
from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any, NamedTuple

from etils import epath

from plm_jax import conversion
from plm_jax.config import ConfigError, FineTuning
from plm_jax.embeddings.teaching import taught
from plm_jax.tasks.feed import LabelledFeed
from plm_jax.tasks.labelled import Labelled, encoded, named, read
from plm_jax.tokenizers import Tokenizer


class Settled(NamedTuple):
  """A run whose examples have been read."""

  config: FineTuning
  """with names of classes, steps, warmup and evaluations"""
  train: Labelled
  dev: Mapping[str, Labelled]
  """by name; '' is the first, by which the best checkpoint is chosen"""
  open_feed: Callable[[Any], LabelledFeed]
  """as `training.train.fit` takes it"""


def settled(config: FineTuning, tokenizer: Tokenizer) -> Settled:
  """Reads the examples of a run and settles what depends on them. Raises SourceError, ConfigError.

  Steps are those of `data.epochs`; the share `data.warmup` of them is the warmup where none is given; evaluations and
  checkpoints come `data.evaluations` times an epoch.
  """
  data, phase = config.data, config.train.phases[0]
  found = read(config.objective, data.train, 'train', data)
  task = spoken(named(config.objective, found), config.family, tokenizer)
  found = found._replace(examples=[*task.lessons(found.examples)])
  train = taught(task, config.model, encoded(task, found, tokenizer, phase.length))
  dev = development(config, task, tokenizer)
  loop, optim, model = config.train, config.optim, config.model
  # Ids behind the vocabulary, for tokens of rows that the tokenizer does not have.
  if (ids := tokenizer.vocab.size + task.form.more(tokenizer.vocab)) > model.vocab:
    model = dataclasses.replace(model, vocab=ids)
  if data.epochs:
    batches = -(-len(train.features) // (train.features.group * phase.batch))
    steps = max(1, round(data.epochs * batches))
    every = max(1, round(batches / data.evaluations))
    loop = dataclasses.replace(loop, phases=(dataclasses.replace(phase, steps=steps),), eval_every=every,
                               save_every=every, log_every=min(loop.log_every, every))
    if data.unfreeze:
      optim = dataclasses.replace(optim, unfreeze=batches)
  if not dev:
    loop = dataclasses.replace(loop, best='')
  if not optim.warmup:
    optim = dataclasses.replace(optim, warmup=round(data.warmup * loop.steps))
  config = dataclasses.replace(config, objective=task, train=loop, optim=optim, model=model)
  return Settled(config, train, dev, lambda mesh: LabelledFeed(config, train, dev, tokenizer, mesh))


def measuring(config: FineTuning, tokenizer: Tokenizer) -> Callable[[Any], LabelledFeed]:
  """Reads the development sets of a run whose configuration is settled -> what opens its feed, to be measured by: its
  batches for training are the first set's. Raises SourceError, and ConfigError where there is none."""
  dev = development(config, config.objective, tokenizer)
  if not dev:
    raise ConfigError(f'{config.folder} has no development set that it could be measured on: give --dev')
  return lambda mesh: LabelledFeed(config, dev[''], dev, tokenizer, mesh)


def development(config: FineTuning, task: Any, tokenizer: Tokenizer) -> dict[str, Labelled]:
  """Reads the development sets, by name. Raises SourceError, ConfigError."""
  data, length = config.data, config.train.phases[0].length
  return {name: encoded(task, read(task, [source], 'dev', data), tokenizer, length)
          for name, source in zip(names_of(data.dev), data.dev, strict=True)}


def names_of(sources: Sequence[str]) -> list[str]:
  """Names development sets: the first '', others as their files are, with a number where two would be alike."""
  names = [epath.Path(source).name.split('.')[0] for source in sources]
  return ['' if not number else name if names[1:].count(name) == 1 else f'{name}_{number}'
          for number, name in enumerate(names)]


def spoken(task: Any, family: str, tokenizer: Tokenizer) -> Any:
  """Returns the task with the tokens that say its classes, where the family is asked by a blank. Raises ConfigError for
  names of which two begin with the same token."""
  if not conversion.asks_words(family, task.head) or task.words:
    return task
  first = [ids[0] if ids else -1 for ids in tokenizer.encode_batch([f' {name}' for name in task.labels])]
  if len({*first}) < len(first) or -1 in first:
    raise ConfigError(f'a {family} says a class by the first token of its name, and these are not all different: '
                      f'{", ".join(task.labels[:20])}: give --objective.words, an id for each')
  return dataclasses.replace(task, words=tuple(first))
