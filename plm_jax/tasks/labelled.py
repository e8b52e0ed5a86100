"""From labelled sources to a run: what `config.data` is for a downstream task, and what is known when it is read."""
from collections.abc import Sequence
import dataclasses

from plm_jax.checked import within
from plm_jax.errors import ConfigError
from plm_jax.tasks.augment import AugmentConfig
from plm_jax.tasks.contract import Task
from plm_jax.tasks.examples import Example, Features
from plm_jax.tasks.reading import GUESSES
from plm_jax.tasks.sources import Found, Report, SourceConfig, Use, examples
from plm_jax.tokenizers import Tokenizer


@dataclasses.dataclass(frozen=True)
class LabelledConfig(SourceConfig):
  """From labelled examples to batches."""

  limits = within(epochs='[0, 1e6]', warmup='[0, 1]', evaluations='(0, 1e6]')

  epochs: float = 3.0
  """how often every example is learned from; 0: for the steps of --train.phases"""
  warmup: float = 0.1
  """share of the steps in which the learning rate rises, where --optim.warmup is 0"""
  evaluations: float = 1.0
  """in an epoch, where epochs are counted; a checkpoint is saved with each"""
  pack: bool = False
  """several short examples share a row, apart from each other: the same losses, sooner"""
  by_length: bool = False
  """examples of like length come together: less padding, an order that is less random"""
  unfreeze: bool = False
  """one layer more learns in each epoch, from the top (gradual unfreezing, Howard and Ruder 2018, section 3.3)"""
  cache: bool = True
  """what a backbone that is not trained says of an example is computed once, without dropout, and kept in memory"""
  augment: AugmentConfig = AugmentConfig()
  """how words of training texts with a class are exchanged, left out, put in and replaced"""
  tokenizer: str = ''
  """file or folder of the tokenizer; empty: that of the run or checkpoint that it starts from"""

  @property
  def packed(self) -> bool:
    """Whether rows may hold several texts, apart from each other."""
    return self.pack


@dataclasses.dataclass(frozen=True)
class Labelled:
  """Examples with the rows that were made of them."""

  examples: Sequence[Example]
  features: Features
  report: Report


def read(task: Task, sources: Sequence[str], use: Use, data: SourceConfig) -> Found:
  """Reads the examples of sources. Where a task is measured by another kind than it learns from (by similarity, from
  classes of pairs), labels may stand under the usual names of that kind too. Raises SourceError."""
  kind, columns = task.learns if use == 'train' else task.reads, data.columns
  if kind != task.learns and columns.label:
    columns = dataclasses.replace(columns, label=f'{columns.label}|{GUESSES[kind].label}')
  return examples(kind, sources, columns, task.labels, use, data.on_error)


def encoded(task: Task, found: Found, tokenizer: Tokenizer, length: int) -> Labelled:
  """Makes rows of examples. Raises ConfigError for one that is not of the task."""
  return Labelled(found.examples, task.features(found.examples, tokenizer, length), found.report)


def named(task: Task, found: Found) -> Task:
  """Returns the task with the names of its classes, those of the training examples where it has none. Raises
  ConfigError where these are all of one class."""
  if task.labels or task.learns not in ('classification', 'tagging'):
    return task
  labels = [*found.labels]
  if len(labels) < 2:
    first = found.examples[0].where.rpartition(':')[0]
    raise ConfigError(f'{first}: all examples have the label {labels[0]!r}: there is nothing to learn')
  return dataclasses.replace(task, labels=found.labels)
