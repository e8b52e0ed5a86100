"""The labeled examples of a fine-tuning run, read for training or evaluation."""
from collections.abc import Container, Sequence
import dataclasses
import functools
import itertools
from typing import Any

from plm_jax import storage, tokenizers
from plm_jax.config.run import ConfigError, FinetuneRun, length_advice
from plm_jax.distributed import hosts
from plm_jax.errors import Caller, name_field
from plm_jax.finetuning.setup import ResolvedRun, make_evaluation_feed, resolve_run
from plm_jax.finetuning.word_vectors import build_word_list
from plm_jax.loading import loaded_model
from plm_jax.loading.loaded_model import find_tokenizer, read_config
from plm_jax.models.families import own_pooling
from plm_jax.recipes import finetune
from plm_jax.report.environment import print_on_leader
from plm_jax.runs.conclude import PreparedRun, report_finetuning
from plm_jax.sources.row_readers import Example
from plm_jax.tasks.features import Features
from plm_jax.tasks.labeled_data import LabeledConfig
from plm_jax.tasks.sources import read_sources
from plm_jax.tokenizers import Tokenizer
from plm_jax.training.train import evaluate_checkpoint
from plm_jax.training.warm_start import has_token_params
from plm_jax.validation import short_repr

TOKENIZER_EXAMPLES = 100_000
"""largest number of examples that a tokenizer is trained on"""


def prepare_finetuning(config: FinetuneRun, caller: Caller = Caller()) -> PreparedRun:
  """Read the examples of a run, and print how many there are. caller: see `runs.run.run`."""
  with hosts.barrier('labelled examples'):
    tokenizer = load_or_train_tokenizer(config)
    ready = resolve_run(config, tokenizer)
  print_examples_read(ready, caller.given)
  report = functools.partial(report_finetuning, ready, caller)
  return PreparedRun(ready.config, tokenizer, ready.open_feed, report)


def evaluate_finetuning(config: FinetuneRun) -> dict[str, float]:
  """Evaluate the run in config.folder on its development sets, without its training data.

  Raises:
    ConfigError: the folder holds another kind of run.
  """
  with hosts.barrier('development sets'):
    tokenizer = tokenizers.load(storage.resolve_path(config.folder) / 'tokenizer')
    run = read_config(config.folder)
    if not isinstance(run, FinetuneRun):
      raise ConfigError(f'{config.folder} is a pre-training run, without a task')
    resolved = {name: getattr(run.objective, name) for name in run.objective.resolved_fields}
    task = dataclasses.replace(config.objective, **resolved)
    task = loaded_model.apply_decision(config.folder, task)
    config = dataclasses.replace(config, objective=task, model=run.model)
    open_feed = make_evaluation_feed(config, tokenizer)
  return evaluate_checkpoint(config, open_feed, tokenizer)


def print_examples_read(ready: ResolvedRun, given: Container[str] = ()) -> None:
  """Print how many examples were read, what was left out or truncated, and the settings.

  Args:
    ready: the run.
    given: fields that the user has set.
  """
  sets = {'training': ready.train}
  for name, some in ready.dev.items():
    sets[f'development {name}'.strip()] = some
  for name, some in sets.items():
    rows = len(some.features) // some.features.group
    in_rows = f' in {rows:,} rows' if rows != len(some.examples) else ''
    print_on_leader(f'{len(some.examples):,} {name} examples{in_rows}')
    if some.features.clipped:
      print_on_leader(f'  {describe_truncation(ready.config, some.features)}')
    skipped = some.features.skipped
    for line in itertools.chain(some.report.lines(), skipped[:5]):
      print_on_leader(f'  {line}')
    if len(skipped) > 5:
      print_on_leader(f'  and {len(skipped) - 5:,} more such')
  print_on_leader(describe_settings(ready.config, given))
  if labels := ready.config.objective.labels:
    names = list(labels[:12])
    if len(labels) > 12:
      names.append('...')
    print_on_leader(f'{len(labels)} classes: {", ".join(names)}')


def describe_settings(config: FinetuneRun, given: Container[str] = ()) -> str:
  """Return the hyperparameters of a run, and the model size that they were chosen for.

  Args:
    config: the run.
    given: fields that the user has set, which no advice is about.
  """
  phase, peak = config.train.phases[0], config.optim.peak
  model: Any = config.model
  settings = f'learning rate {peak:g}, batch size {phase.batch}, {phase.steps:,} steps'
  if model.kind == 'recurrent' or not config.warm_start:
    return settings
  size = f'{model.stack.layers} layers of width {model.block.width}'
  if model.head.pooling != own_pooling(model):
    settings += f', {model.head.pooling} pooling'
  if config.scale != 'paper':
    return (f'{settings}: for {size}; {name_field("scale")}=paper takes the published settings of '
            'larger models')
  if finetune.choose_scale(model) != 'paper':
    suggested = finetune.suggest_rate(model)
    if 2 * peak < suggested and 'optim.peak' not in given:
      return (f'{settings}, as published for larger models; {size} may need '
              f'{name_field("optim.peak")}={suggested:.0e}')
  return f'{settings}, for {size}'


def describe_truncation(config: FinetuneRun, features: Features) -> str:
  """Return a sentence on how many examples are truncated, and how to avoid it."""
  if text := config.objective.describe_truncation(features.clipped):
    return text
  length = config.train.phases[0].length
  lines = [f'{features.clipped:,} examples do not fit {length} tokens and lose their end, '
           f'{features.lost_share:.1%} of all tokens.', length_advice(config, 2 * length)]
  if advice := config.objective.windows_advice:
    lines[1] += f'; {advice}'
  return ' '.join(lines)


def load_or_train_tokenizer(config: FinetuneRun) -> Tokenizer:
  """Return the tokenizer of a run, with the tokens that its task adds; see `find_run_tokenizer`."""
  return tokenizers.add_special_tokens(find_run_tokenizer(config), config.objective.added_tokens)


def find_run_tokenizer(config: FinetuneRun) -> Tokenizer:
  """Return the tokenizer of a run: its own, that of its initial model, or a new one.

  A new tokenizer, for a new model or a task with its own vocabulary, is trained on the training
  texts.

  Raises:
    ConfigError: the initial model has no tokenizer.
  """
  own = storage.resolve_path(config.folder) / 'tokenizer'
  if own.exists():
    return tokenizers.load(own)
  data = config.data
  place = data.tokenizer or (config.warm_start if has_token_params(config) else '')
  if place:
    if found := find_tokenizer(place):
      return found
    raise ConfigError(f'{short_repr(place)} has no tokenizer: give {name_field("data.tokenizer")}, '
                      'the folder of one')
  if config.objective.own_vocabulary:
    task: Any = config.objective
    found = build_word_list(task, read_unlabeled_examples(config, data))
    print_on_leader(f'{found.vocab.size:,} words have a vector of their own')
    return found
  examples = read_unlabeled_examples(config, data)[:TOKENIZER_EXAMPLES]
  texts = map(config.objective.example_format.join_texts, examples)
  found = tokenizers.train_wordpiece(texts, config.model.vocab)
  print_on_leader(f'trained a wordpiece tokenizer with a vocabulary of {found.vocab.size:,} tokens '
                  'on the texts of the examples')
  return found


def read_unlabeled_examples(config: FinetuneRun, data: LabeledConfig) -> Sequence[Example]:
  """Read the training examples without checks of their labels."""
  task = config.objective
  read = read_sources(
      task.train_format.name, data.train, data.columns, task.labels, 'predict', data.on_error)
  return read.examples
