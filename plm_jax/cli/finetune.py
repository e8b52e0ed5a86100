"""Implement `python -m plm_jax finetune`, which fine-tunes a pre-trained model on a task."""
from collections.abc import Sequence
import dataclasses
import functools
import re
import statistics
import sys
from typing import Any

import jax

from plm_jax import environment, errors, streams, validation
from plm_jax.cli import options, sweep
from plm_jax.cli.flags import name_flags, write_flags
from plm_jax.config.run import ConfigError, FinetuneRun, check
from plm_jax.finetuning.word_vectors import load_vectors_once
from plm_jax.recipes import finetune
from plm_jax.recipes.finetune import InitialModel
from plm_jax.report.environment import print_on_leader
from plm_jax.runs import run as runs
from plm_jax.sources.source_files import split_names
from plm_jax.tasks.elmo import RecurrentTask
from plm_jax.tasks.embedding_losses import LOSSES
from plm_jax.tasks.ranking_losses import RANKING_LOSSES
from plm_jax.tasks.regularizers import REGULARIZERS
from plm_jax.training.train import TrainingResult

NAMED_VALUES: dict[str, dict[str, dict[str, Any]]] = {
    'regularizer': {'regularizer': {**REGULARIZERS}},
    'loss': {'vector_loss': {**LOSSES}, 'ranking_loss': {**RANKING_LOSSES}}}
"""options that set a field of the objective to a value with a name: option -> field -> values"""


def start(
    task: str = '', args: Sequence[str] | None = None, about: str = finetune.__doc__ or '') -> None:
  """Fine-tune with the options of the command line.

  Exits with status 1 and one line on bad input, and with status 75 where a signal has stopped it.

  Args:
    task: the task if --task is not given.
    args: the arguments; None: those of the command line.
    about: the text of --help.
  """
  args = sys.argv[1:] if args is None else args
  paths = validation.field_paths(FinetuneRun)
  caller = errors.Caller(
      paths & options.given_fields(args), functools.partial(write_flags, paths=paths))
  with streams.protect(tolerant=True), errors.exit_on_error(), name_flags(paths):
    settings, args = sweep.pop_settings(args)
    if settings:
      finished = run_sweep(task, args, about, settings, caller)
    else:
      config, seeds = parse(task, args, about)
      finished = all(result.finished for result in run_seeds(config, seeds, caller))
    errors.exit_unless_finished(finished)


def parse(task: str, args: Sequence[str], about: str) -> tuple[FinetuneRun, int]:
  """Parse the arguments: the run, and the number of random seeds.

  Raises:
    ConfigError: arguments are missing or contradict each other.
  """
  # The defaults of all other options depend on these.
  given = {}
  rest = list(args)
  for name in ('--train', '--dev'):
    rest = options.join_values(name, rest)
  for name in ('task', 'init', 'train', 'dev', 'seeds', 'vectors', *NAMED_VALUES):
    given[name], rest = options.pop_option(f'--{name}', rest)
  task = given['task'] or task
  scale = options.scale_option(rest, None)
  wants_help = '-h' in rest or '--help' in rest
  if not task:
    if wants_help:
      print(about)
      sys.exit(0)
    raise ConfigError('--task is missing: see `python -m plm_jax finetune --help`')
  seeds = given['seeds'] or '1'
  if not seeds.isascii() or not seeds.isdecimal() or not 1 <= int(seeds) <= 1000:
    raise ConfigError('--seeds is a number of runs, got ' + validation.short_repr(seeds))
  init, model = given['init'], InitialModel()
  if init:
    model = finetune.read_initial_model(init)
  elif scale in (None, 'paper') and not any(arg.startswith('--warm') for arg in rest):
    if not wants_help:
      raise ConfigError('--init is missing: the folder of a run or of a checkpoint, or a name on '
                        'the Hugging Face hub; or --scale=laptop, for a small fresh model')
    scale = 'laptop'
    about += ('\n\nDefaults are those of --scale=laptop; after --init=..., those of its model.')

  # The recipe of the task, and options that name values of the objective.
  default = finetune.recipe(
      task, model, scale, split_names(given['train']), split_names(given['dev']))
  if not wants_help and (advice := finetune.intermediate_task_hint(task, model)):
    print_on_leader(advice)
  for option, fields in NAMED_VALUES.items():
    value = given[option]
    if not value:
      continue
    field = next((name for name in fields if hasattr(default.objective, name)), '')
    if not field:
      raise ConfigError(f'--{option} is for tasks of another kind than {task}')
    known = fields[field]
    if value not in known:
      raise ConfigError(f'--{option} is one of {", ".join(known)}, got '
                        f'{validation.short_repr(value)}')
    default = validation.with_paths(default, {f'objective.{field}': known[value]})
  if vectors := given['vectors']:
    if not isinstance(default.objective, RecurrentTask):
      raise ConfigError(
          '--vectors are read together with the features of an ELMo, and --init is none')
    width = load_vectors_once(vectors).matrix.shape[1]
    default = validation.with_paths(default, {
        'objective.reader.vectors': vectors, 'objective.reader.width': width})

  called = f'{environment.program()} finetune --task={task}'
  config, rest = options.parse_run(default, rest, called, about)
  config = finetune.follow_options(config, options.given_fields(rest))
  return check_start(config, init), int(seeds)


def check_start(config: FinetuneRun, init: str) -> FinetuneRun:
  """Return the run with the tokenizer of `init`, where --warm-start= drops only its parameters.

  Raises:
    ConfigError: the run starts from another model than `init`.
  """
  if not init or config.warm_start == init:
    return config
  if config.warm_start:
    raise ConfigError(f'--init={init} and --warm-start={config.warm_start} are two models to start '
                      'from: give --init alone, which sets the other')
  if config.data.tokenizer:
    return config
  return validation.with_paths(config, {'data.tokenizer': init})


def run_sweep(
    task: str, args: Sequence[str], about: str, settings: Sequence[sweep.Setting],
    caller: errors.Caller) -> bool:
  """Do a run for every combination of values and every seed, and print a table of the results.

  All combinations are parsed before the first run, so that a mistake ends the command at once.

  Returns:
    Whether all runs are finished; False where a signal has stopped one.
  """
  base, seeds = parse(task, args, about)
  if not base.data.dev:
    raise ConfigError('--sweep compares a metric of a development set: give --dev')
  if base.mode != 'train':
    raise ConfigError(f'--sweep is for training, got --mode={base.mode}')
  plans = []
  for combination in sweep.combine(settings):
    config, _ = parse(task, [*args, *combination.args], about)
    check(config)
    name = re.sub(r'[^\w.=+-]+', '_', combination.name)
    plans.append((combination, dataclasses.replace(config, output=f'{base.folder}/{name}')))
  log, results, metric = sweep.SweepLog(base.folder), [], ''
  for combination, config in plans:
    values: dict[int, float] = {}
    for seed in range(config.seed, config.seed + seeds):
      one = run_of_seed(config, seed, bool(results or values))
      metrics = log.find(one)
      if metrics is None:
        print_on_leader(f'\nsweep: {combination.name}, seed {seed}')
        found = runs.run(one, caller=caller)
        if found is None or not found.finished:
          return False
        metrics = found.heldout
        log.add(one, metrics)
      metric = config.train.best if config.train.best in metrics else next(iter(metrics))
      values[seed] = metrics[metric]
    results.append(sweep.SweepResult(combination.name, values))
  reporting = base.training_objective.reporting
  def format_value(value: float) -> str:
    return reporting.format_metric(metric, value)
  ranked = sweep.rank_results(results, reporting.higher_is_better(metric))
  print_on_leader('\n' + '\n'.join(sweep.format_table(metric, ranked, format_value)))
  if jax.process_index() == 0:
    print(f'table:  {sweep.write_page(base.folder, metric, ranked, format_value)}')
  return True


def run_of_seed(config: FinetuneRun, seed: int, repeated: bool) -> FinetuneRun:
  """Return the run of one of several seeds. repeated: not the first, whose baselines hold."""
  baseline = config.data.baseline and not repeated
  return validation.with_paths(config, {
      'seed': seed, 'output': f'{config.folder}/seed-{seed}', 'data.baseline': baseline})


def run_seeds(
    config: FinetuneRun, seeds: int, caller: errors.Caller = errors.Caller()
) -> list[TrainingResult]:
  """Do a run with one or several random seeds, each in its own folder, and print a summary.

  Returns:
    The results. The last one is not finished where a signal has stopped it.
  """
  if seeds == 1:
    found = runs.run(config, caller=caller)
    return [found] if found else []
  if not config.data.dev:
    raise ConfigError('--seeds sums up a figure of a development set: give --dev')
  results: dict[int, TrainingResult] = {}
  for seed in range(config.seed, config.seed + seeds):
    one = run_of_seed(config, seed, bool(results))
    found = runs.run(one, caller=caller)
    if found:
      results[seed] = found
    if found is None or not found.finished:
      return list(results.values())
  heldout = results[config.seed].heldout
  metric = config.train.best if config.train.best in heldout else next(iter(heldout))
  values = {seed: result.heldout[metric] for seed, result in results.items()}
  print_summary(metric, values, config.training_objective.reporting.higher_is_better(metric))
  return list(results.values())


def print_summary(metric: str, values: dict[int, float], higher: bool = True) -> None:
  """Print mean and standard deviation of a metric over seeds, and the seeds that collapsed.

  higher: whether larger values are better; only then the metric is in percent.
  """
  every = list(values.values())
  best = max(every) if higher else min(every)
  print(f'{metric} of {len(every)} seeds: mean {statistics.mean(every):.2f}, standard deviation '
        f'{statistics.stdev(every):.2f}, best {best:.2f}, median '
        f'{statistics.median(every):.2f}')
  if higher and (lost := find_collapsed(values)):
    rest = statistics.mean([value for seed, value in values.items() if seed not in lost])
    print(f'collapsed: seeds {", ".join(map(str, lost))}, without which the mean is {rest:.2f}')


def find_collapsed(values: dict[int, float]) -> list[int]:
  """Return the seeds whose metric is much lower than the median.

  The limit is five points, or three times the spread of the values above the median, whichever is
  larger. Mosbach et al. 2021 call a run failed if it is no better than guessing.
  """
  middle = statistics.median(values.values())
  upper = [value - middle for value in values.values() if value >= middle]
  limit = max(5.0, 3 * statistics.pstdev(upper, 0))
  return [seed for seed, value in values.items() if middle - value > limit]
