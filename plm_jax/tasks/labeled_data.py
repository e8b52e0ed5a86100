"""Labeled data sets of a downstream task: `config.data`, class names, and features."""
from collections.abc import Iterable, Sequence, Set
import dataclasses
import unicodedata

from plm_jax.errors import ConfigError, add_advice, name_field
from plm_jax.sources.row_readers import Example
from plm_jax.tasks.contract import Task
from plm_jax.tasks.features import Features
from plm_jax.tasks.sources import (
  LabeledExamples,
  ReadReport,
  SourceConfig,
  Use,
  read_sources,
)
from plm_jax.tasks.text_augmentation import AugmentConfig
from plm_jax.tokenizers import Tokenizer
from plm_jax.validation import intervals, short_repr


@dataclasses.dataclass(frozen=True)
class LabeledConfig(SourceConfig):
  """Labeled data of a fine-tuning run: sources, epochs, batching and augmentation."""

  limits = intervals(epochs='[0, 1e6]', least_steps='[0, inf)', warmup='[0, 1]',
                     evaluations='(0, 1e6]')
  counts_with = dict.fromkeys(('least_steps', 'evaluations', 'unfreeze'), ('epochs', None))

  epochs: float = 3.0
  """number of epochs; 0: train for the steps of --train.phases"""
  least_steps: int = 0
  """minimum number of updates: small data sets get more epochs. A number of epochs that is given in
  --data.epochs counts instead"""
  warmup: float = 0.1
  """warmup ratio: share of the steps with learning-rate warmup, if --optim.warmup is 0"""
  evaluations: float = 1.0
  """number of evaluations per epoch, if --data.epochs is used; each saves a checkpoint. Where
  --data.least-steps repeats short epochs, a 20th of these steps counts as an epoch"""
  pack: bool = False
  """sequence packing: several short examples share a sequence without attending to each other. The
  losses are the same, and training is faster"""
  by_length: bool = False
  """length bucketing: batch examples of similar length, for less padding; their order is less
  random"""
  unfreeze: bool = False
  """unfreeze one more layer per epoch, from the top (gradual unfreezing, Howard and Ruder 2018,
  section 3.3)"""
  cache: bool = True
  """compute the features of a frozen backbone once, without dropout, and keep them in memory"""
  augment: AugmentConfig = AugmentConfig()
  """data augmentation of training texts with a class"""
  baseline: bool = True
  """compute the majority-class baseline and a simple baseline, such as TF-IDF with logistic
  regression, and print them next to the score"""
  tokenizer: str = ''
  """tokenizer file or folder. Default: the tokenizer of the initial model"""

  @property
  def several_texts(self) -> bool:
    """Whether rows may hold several texts (sequence packing)."""
    return self.pack


MAX_CLASSES = 1000  # more are refused if most examples have a class of their own


@dataclasses.dataclass(frozen=True)
class LabeledDataset:
  """Labeled examples with their features."""

  examples: Sequence[Example]
  features: Features
  report: ReadReport


def read_examples(
    task: Task, sources: Sequence[str], use: Use, data: SourceConfig) -> LabeledExamples:
  """Read the examples of a task from sources.

  If a task is evaluated on another kind of examples than it learns from (on similarity, from
  classes of pairs), labels may also be in the default columns of that kind. Raises SourceError.
  """
  example_format = task.train_format if use == 'train' else task.example_format
  columns = data.columns
  if example_format is not task.train_format and columns.label:
    label = f'{columns.label}|{example_format.columns.label}'
    columns = dataclasses.replace(columns, label=label)
  return read_sources(
      example_format.name, sources, columns, task.labels, use, data.on_error, data.encoding)


def encode_examples(
    task: Task, found: LabeledExamples, tokenizer: Tokenizer, length: int, use: Use = 'dev'
) -> LabeledDataset:
  """Make the features of examples. Raises ConfigError for an example that does not fit the task."""
  make = task.training_features if use == 'train' else task.features
  features = make(found.examples, tokenizer, length)
  return LabeledDataset(found.examples, features, found.report)


def note_repeated_texts(
    task: Task, train: LabeledExamples, dev: Iterable[LabeledDataset]) -> None:
  """Note equal texts with different labels, and development examples that are in training.

  Texts are equal if they differ only in case, white space and Unicode normalization.
  """
  known = note_conflicts(task, train)
  for some in dev:
    note_conflicts(task, some)
    found = [one for one in some.examples if hash_texts(task, one) in known]
    if found:
      some.report.notes.append(f'{len(found):,} of {len(some.examples):,} are also training '
                               f'examples, such as {found[0].where}')


def note_conflicts(task: Task, data: LabeledExamples | LabeledDataset) -> Set[int]:
  """Note equal texts with different labels -> hashes of all texts."""
  first: dict[int, Example] = {}
  pairs = []
  for example in data.examples:
    other = first.setdefault(hash_texts(task, example), example)
    if other.label != example.label:
      pairs.append((other, example))
  if pairs:
    one, other = pairs[0]
    data.report.notes.append(f'{len(pairs):,} examples have the text of another one and a '
                             f'different label, such as {one.where} and {other.where}')
  return first.keys()


def hash_texts(task: Task, example: Example) -> int:
  """Hash the normalized texts of an example; of related texts, the anchor and its positive."""
  texts = example.texts if task.example_kind == 'tagging' else example.texts[:2]
  return hash(tuple(' '.join(unicodedata.normalize('NFC', text).casefold().split())
                    for text in texts + example.choices))


def add_class_names(task: Task, found: LabeledExamples) -> Task:
  """Set the class names of a task to those of the training examples, if it has none.

  Raises ConfigError if all examples have the same class, or most have a class of their own.
  """
  if task.labels or not task.train_format.has_class_names:
    return task
  labels, count = found.labels, len(found.examples)
  source = found.examples[0].where.rpartition(':')[0]
  message = ''
  if len(labels) < 2:
    message = (f'{source}: all examples have the label {"".join(labels)!r}: there is nothing to '
               'learn. Is this the column with the label?')
  elif len(labels) > MAX_CLASSES and 2 * len(labels) > count:
    message = (f'{source}: {count:,} examples have {len(labels):,} different labels, such as '
               f'{short_repr(labels[0], 60)}: is this the column with the label?')
  if message:
    advice = add_advice(f' {name_field("columns.label")}=NAME reads another')
    raise ConfigError(message + advice)
  return dataclasses.replace(task, labels=found.labels)
