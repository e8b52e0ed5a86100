"""python -m plm_jax finetune: a model that was pre-trained learns a task."""
from collections.abc import Sequence
import dataclasses
import math
import statistics
import sys
from typing import Any, get_args

import tyro

from plm_jax import checked, errors
from plm_jax.cli import options
from plm_jax.cli import run as runs
from plm_jax.config import ConfigError, FineTuning, Scale
from plm_jax.embeddings.losses import LOSSES
from plm_jax.inference.loading import described
from plm_jax.recipes import finetune
from plm_jax.recipes.finetune import Start
from plm_jax.tasks.given import loaded
from plm_jax.tasks.recurrent import RecurrentTask
from plm_jax.tasks.regularize import REGULARIZERS
from plm_jax.training.train import Result

# Options that name a value of a field of the objective.
CHOSEN: dict[str, tuple[str, dict[str, Any]]] = {
    'regularizer': ('regularizer', {**REGULARIZERS}), 'loss': ('loss_of', {**LOSSES})}


def start(task: str = '', args: Sequence[str] | None = None, about: str = finetune.__doc__ or '') -> None:
  """Runs `finetune` with a task that need not be given; exits with 1 and a message on bad input,
  with 75 where a signal has stopped it."""
  with errors.shown():
    config, seeds = parse(task, sys.argv[1:] if args is None else args, about)
    errors.ended(all(result.finished for result in several(config, seeds)))


def parse(task: str, args: Sequence[str], about: str) -> tuple[FineTuning, int]:
  """Returns the run that the arguments name, and how many seeds there are to be."""
  given = {}
  rest = list(args)
  for name in ('task', 'init', 'train', 'dev', 'seeds', 'vectors', *CHOSEN):
    given[name], rest = options.taken(f'--{name}', rest)
  task = given['task'] or task
  scale: Any = options.value_of('--scale', rest) or 'paper'
  if scale not in get_args(Scale):
    raise ConfigError(f'--scale is paper, laptop or test, got {checked.shortened(scale)}')
  helped = bool({'-h', '--help'} & {*rest})
  if not task:
    if helped:
      print(about)
      sys.exit(0)
    raise ConfigError('--task is missing: see `python -m plm_jax finetune --help`')
  seeds = given['seeds'] or '1'
  if not seeds.isdecimal() or not 1 <= int(seeds) <= 1000:
    raise ConfigError(f'--seeds is a number of runs, got {checked.shortened(seeds)}')
  init = given['init'] or ''
  begin = Start(init, *described(init)) if init else Start()
  if not init and scale == 'paper' and not any(arg.startswith('--warm') for arg in rest):
    if not helped:
      raise ConfigError('--init is missing: the folder of a run or of a checkpoint; or --scale=laptop, for a small '
                        'fresh model')
    scale, about = 'laptop', f'{about}\n\nDefaults are those of --scale=laptop; behind --init=..., those of its model.'
  default = finetune.recipe(task, begin, scale, sources(given['train']), sources(given['dev']))
  for option, (field, known) in CHOSEN.items():
    if value := given[option]:
      if value not in known:
        raise ConfigError(f'--{option} is one of {", ".join(known)}, got {checked.shortened(value)}')
      if not hasattr(default.objective, field):
        raise ConfigError(f'--{option} is for tasks of another kind than {task}')
      default = checked.replaced(default, {f'objective.{field}': known[value]})
  if vectors := given['vectors']:
    if not isinstance(default.objective, RecurrentTask):
      raise ConfigError('--vectors are read beside the features of an ELMo, and --init is none')
    default = checked.replaced(default, {
        'objective.reader.vectors': vectors, 'objective.reader.width': loaded(vectors).matrix.shape[1]})
  with checked.later():
    config = tyro.cli(
        FineTuning, default=default, args=options.normalise_booleans(rest, options.booleans_of(default)),
        prog=f'python -m plm_jax finetune --task={task}', description=about,
        config=(tyro.conf.AvoidSubcommands, tyro.conf.FlagConversionOff))
  return config, int(seeds)


def sources(text: str | None) -> tuple[str, ...]:
  """Reads sources, by commas."""
  return tuple(text.split(',')) if text else ()


def several(config: FineTuning, seeds: int) -> list[Result]:
  """Does the run, with several seeds one after another, each in a folder of its own, and sums them up.

  The last result is not finished where a signal has stopped it."""
  if seeds == 1:
    return [found] if (found := runs.run(config)) else []
  if not config.data.dev:
    raise ConfigError('--seeds sums up a figure of a development set: give --dev')
  results = {}
  for seed in range(config.seed, config.seed + seeds):
    found = runs.run(dataclasses.replace(config, seed=seed, output=f'{config.folder}/seed-{seed}'))
    if found is None or not found.finished:
      return [*results.values(), *([found] if found else [])]
    results[seed] = found
  measure = config.train.best or next(iter(results[config.seed].heldout))
  summary(measure, {seed: result.heldout[measure] for seed, result in results.items()})
  return [*results.values()]


def summary(measure: str, values: dict[int, float]) -> None:
  """Prints mean and deviation over seeds, and names those that collapsed."""
  every = [*values.values()]
  print(f'{measure} of {len(every)} seeds: mean {statistics.mean(every):.2f}, standard deviation '
        f'{statistics.stdev(every):.2f}, best {max(every):.2f}, median {statistics.median(every):.2f}')
  lost = collapsed(values)
  if lost:
    print(f'collapsed: seeds {", ".join(map(str, lost))}, without which the mean is '
          f'{statistics.mean([value for seed, value in values.items() if seed not in lost]):.2f}')


def collapsed(values: dict[int, float]) -> list[int]:
  """Finds the seeds whose figure is as far below the median as no noise is: more than three times the spread of those
  above it, and five points at the least (Mosbach et al. 2021 call a run failed that is no better than guessing)."""
  middle = statistics.median(values.values())
  upper = [value - middle for value in values.values() if value >= middle]
  spread = math.sqrt(statistics.mean([gap ** 2 for gap in upper]))
  return [seed for seed, value in values.items() if middle - value > max(5.0, 3 * spread)]
