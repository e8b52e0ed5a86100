"""A run on labelled examples, from its sources to its report."""
from collections.abc import Iterator, Sequence
import dataclasses
import itertools
from typing import Any

from plm_jax import storage, tokenizers
from plm_jax.checked import shortened
from plm_jax.cli.concluding import conclude, say
from plm_jax.config import ConfigError, FineTuning
from plm_jax.inference.loading import read_config, tokenizer_of
from plm_jax.sharding import make_mesh
from plm_jax.storage.lock import Lock
from plm_jax.tasks.examples import Example
from plm_jax.tasks.given import vocabulary
from plm_jax.tasks.labelled import LabelledConfig
from plm_jax.tasks.setup import Settled, measuring, settled
from plm_jax.tasks.sources import examples
from plm_jax.tokenizers import Tokenizer
from plm_jax.training.train import Result, fit, measure
from plm_jax.training.warm_start import knows_ids

SAMPLE = 100_000
"""examples at most from whose texts a tokenizer is trained"""


def fine_tuned(config: FineTuning, lock: Lock) -> Result:
  """Does the run. lock: of its folder."""
  tokenizer = tokenizer_for(config)
  ready = settled(config, tokenizer)
  config = ready.config
  announce(ready)
  mesh = make_mesh(config.mesh)
  say(f'{config.name}: {config.train.steps:,} steps on {mesh.size} x {mesh.devices.flat[0].device_kind}, '
      f'output in {config.folder}')
  result = fit(config, ready.open_feed, tokenizer, lock)
  if not result.finished:
    say(f'stopped by a signal at step {result.step:,} and saved: the same command goes on from there')
    return result
  conclude(ready, result)
  return result


def measured(config: FineTuning) -> dict[str, float]:
  """Measures the run in config.folder on its development sets; what it learned from is not read. Raises ConfigError."""
  tokenizer = tokenizers.load(storage.path_of(config.folder) / 'tokenizer')
  run = read_config(config.folder)
  if not isinstance(run, FineTuning):
    raise ConfigError(f'{config.folder} has learned from text, and no task')
  task = dataclasses.replace(config.objective, labels=run.objective.labels, words=run.objective.words)
  config = dataclasses.replace(config, objective=task, model=run.model)
  return measure(config, measuring(config, tokenizer), tokenizer)


def announce(ready: Settled) -> None:
  """Says what was read, and what was left out."""
  for name, some in {'training': ready.train, **{f'development {name}'.strip(): x for name, x in ready.dev.items()}
                     }.items():
    rows, clipped = len(some.features) // some.features.group, some.features.clipped
    say(f'{len(some.examples):,} {name} examples' + (f' in {rows:,} rows' if rows != len(some.examples) else '') + (
        f', of which {clipped:,} are too long for a row and lose an end' if clipped else ''))
    for line in itertools.chain(some.report.lines(), some.features.skipped[:5]):
      say(f'  {line}')
    if len(some.features.skipped) > 5:
      say(f'  and {len(some.features.skipped) - 5:,} more such')
  if ready.config.objective.labels:
    labels = ready.config.objective.labels
    say(f'{len(labels)} classes: {", ".join(labels[:12])}{", ..." if len(labels) > 12 else ""}')


def tokenizer_for(config: FineTuning) -> Tokenizer:
  """Returns the tokenizer of a run: the one that it has, of what it starts from, or one that is trained on the texts of
  its examples, where it is of a fresh model or of words of its own. Raises ConfigError."""
  own = storage.path_of(config.folder) / 'tokenizer'
  if own.exists():
    return tokenizers.load(own)
  data = config.data
  for place in filter(None, (data.tokenizer, config.warm_start if knows_ids(config) else '')):
    if found := tokenizer_of(place):
      return found
    raise ConfigError(f'{shortened(place)} has no tokenizer: give --data.tokenizer, the folder of one')
  if config.objective.own_words:
    task: Any = config.objective
    found = vocabulary(task, unlabelled(config, data))
    say(f'{found.vocab.size:,} words have a vector of their own')
    return found
  found = tokenizers.train_wordpiece(itertools.islice(texts(config, data), SAMPLE), config.model.vocab)
  say(f'trained a wordpiece tokenizer of {found.vocab.size:,} pieces on the texts of the examples')
  return found


def unlabelled(config: FineTuning, data: LabelledConfig) -> Sequence[Example]:
  """Reads the training examples, whatever their labels."""
  task = config.objective
  return examples(task.learns, data.train, data.columns, task.labels, 'predict', data.on_error).examples


def texts(config: FineTuning, data: LabelledConfig) -> Iterator[str]:
  """Yields the texts of the training examples."""
  task = config.objective
  for example in unlabelled(config, data):
    yield ' '.join(example.texts) if task.reads == 'tagging' else '\n'.join((*example.texts, *example.choices))
