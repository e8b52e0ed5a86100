"""Implement `python -m plm_jax show RECIPE`: print a recipe before it runs.

    python -m plm_jax show bert_base
    python -m plm_jax show palm_540b --depth=3
    python -m plm_jax show gpt3 --size=13b --scale=laptop --optim.peak=1e-3

The output has these parts: the number of parameters, the schedule, the mesh, and the options that
differ from their defaults. All options of `train` can be given. The command reads no text, writes
no files and allocates no parameters.

Options of `show` itself:
    --all        also print the options at their defaults
    --layers     also print the table of layers
    --depth=N    the same, with N levels of modules
"""
from collections.abc import Iterator, Sequence
import dataclasses
import shutil
from typing import Any

import flax.linen as nn
from flax.linen import summary
import jax
import jax.numpy as jnp

from plm_jax import errors, validation
from plm_jax.cli import options
from plm_jax.cli import run as runs
from plm_jax.cli.flags import name_flags
from plm_jax.config import run as config_lib
from plm_jax.config.run import ConfigError, Phase, PretrainRun
from plm_jax.layers.dense import count_parameters
from plm_jax.optim.optimizers import make_schedule
from plm_jax.recipes import Recipe, word_vectors
from plm_jax.training.learner import make_learner, placeholder_vocab
from plm_jax.training.step import Learner

MIN_TABLE_WIDTH = 120
"""columns of the layer table in a narrower terminal"""
OPTION_WIDTH = 42
MISSING = dataclasses.MISSING


def start(args: Sequence[str]) -> None:
  """Print the recipe that the arguments name; exit with status 1 and one line on bad input."""
  with errors.exit_on_error(), name_flags(validation.field_paths(PretrainRun)):
    given, rest = options.pop_option('--depth', args)
    depth = options.parse_whole_number('depth', given, 1) if given else None
    flags = {'--all', '--layers'} & {*rest}
    rest = [arg for arg in rest if arg not in flags]
    name = ''.join(rest[:1])
    if name in word_vectors.PUBLISHED:
      raise ConfigError(f'{name} trains word vectors, which have no layers: see `python -m plm_jax '
                        f'train {name} --help`')
    recipe, rest = options.take_recipe('show RECIPE', rest)
    config = runs.parse(recipe, rest)
    config_lib.check(config)
    for line in describe(recipe, config, '--all' in flags):
      print(line)
    if depth or '--layers' in flags:
      print('\nLayers: shapes for one sequence of the first phase, parameters with logical axes')
      print(tabulate_layers(config, depth))


def describe(recipe: Recipe, config: PretrainRun, every_option: bool) -> Iterator[str]:
  """Yield the lines that describe a run.

  Args:
    recipe: the recipe that the run comes from, for its published parameter count and its TPU pod.
    config: the run.
    every_option: also list the options at their defaults.
  """
  rows = list(compare_options(config, type(config)(config.name)))
  yield f'{recipe.name}, scale {config.scale}'
  parameters, exported = count_model_parameters(config)
  yield '\nParameters'
  yield f'  in training{parameters:>26,}'
  yield f'  exported{exported:>29,}'
  if config.scale == 'paper':
    yield f'  published{recipe.row.parameters:>28,}'
  yield '\nSchedule'
  yield from describe_schedule(config)
  yield '\nMesh'
  yield from describe_mesh(recipe, config)
  yield '\nOptions that differ from the defaults'
  for option, value, default in rows:
    if value != default:
      known = '' if default is MISSING else f'   (default {format_value(default)})'
      yield f'  {option:{OPTION_WIDTH}} {format_value(value)}{known}'
  if every_option:
    yield '\nOptions at their defaults'
    for option, value, default in rows:
      if value == default:
        yield f'  {option:{OPTION_WIDTH}} {format_value(value)}'
  else:
    yield '\n--all also prints the options at their defaults, --layers the table of layers'


def compare_options(value: Any, default: Any, path: str = '') -> Iterator[tuple[str, Any, Any]]:
  """Yield (option, value, default) for every field of a configuration and of its sections.

  Where a section has another class than its default, its class is a separate row, and the
  defaults are those of its class. A default is `dataclasses.MISSING` where there is none.
  """
  if dataclasses.is_dataclass(value):
    same = type(value) is type(default)
    if not same:
      name = MISSING if default is MISSING else type(default).__name__
      yield path, type(value).__name__, name
    for field in dataclasses.fields(value):
      inner = getattr(default, field.name) if same else field.default
      option = f'{path}.{field.name}' if path else f'--{field.name}'
      yield from compare_options(getattr(value, field.name), inner, option.replace('_', '-'))
  elif isinstance(value, tuple) and any(dataclasses.is_dataclass(item) for item in value):
    known = default if isinstance(default, tuple) else ()
    for number, item in enumerate(value):
      inner = known[number] if number < len(known) else MISSING
      yield from compare_options(item, inner, f'{path}.{number}')
  else:
    yield path, value, default


def format_value(value: Any) -> str:
  """Write the value of an option as the command line takes it; '' and () for nothing."""
  if isinstance(value, tuple) and value:
    return ' '.join(map(str, value))
  if value == '' or not isinstance(value, (str, float)):
    return repr(value)
  if isinstance(value, float):
    return f'{value:g}'
  return value


def count_model_parameters(config: PretrainRun) -> tuple[int, int]:
  """Count parameters in training, and those that are exported: without ELECTRA's generator."""
  learner, batch = make_placeholders(config)
  variables = jax.eval_shape(lambda: learner.model.init(learner.key('init'), batch))
  params = nn.unbox(variables['params'])
  exported = jax.eval_shape(config.training_objective.lifecycle.exported, params)
  return count_parameters(params), count_parameters(exported)


def tabulate_layers(config: PretrainRun, depth: int | None) -> str:
  """Tabulate the modules of a run's model by Flax, from shapes alone."""
  learner, batch = make_placeholders(config)
  width = max(MIN_TABLE_WIDTH, shutil.get_terminal_size((120, 40)).columns)
  console = {'width': width, 'force_terminal': False}
  tabulate = summary.tabulate(
      learner.model, learner.key('init'), depth=depth, console_kwargs=console)
  return tabulate(batch).strip('\n')


def make_placeholders(config: PretrainRun) -> tuple[Learner, Any]:
  """Make a run's learner, and a batch of one sequence of zeros."""
  learner = make_learner(config, placeholder_vocab(config))
  objective = config.training_objective
  windows = objective.shapes(1, config.train.phases[0].length)
  batch = jax.eval_shape(
      lambda windows: objective.corrupt(learner.key('corruption'), windows, learner.vocab), windows)
  return learner, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), batch)


def describe_schedule(config: PretrainRun) -> Iterator[str]:
  """Yield the phases of a run, its gradient accumulation, and its learning rate over its steps."""
  train, optim = config.train, config.optim
  if config.scale == 'gpu':
    yield (f'  as published: a run chooses batch, steps and learning rate for its devices and '
           f'{config.hours:g} hours when it starts, and `plan` before')
  for number, phase in enumerate(train.phases):
    tokens = phase.steps * phase.batch * phase.length
    yield (f'  phase {number}: {phase.steps:,} steps, batch size {phase.batch:,}, sequence length '
           f'{phase.length:,}: {tokens:,} tokens{describe_phase_changes(phase)}')
  if train.accumulate > 1:
    yield f'  gradient accumulation over {train.accumulate} micro-batches per step'
  yield (f'  optimizer {optim.kind}, schedule {optim.schedule}, peak learning rate {optim.peak:g}, '
         f'warmup {optim.warmup:,} {optim.clock}')
  rate = make_schedule(optim, train.steps, train.steps_and_tokens)
  last = train.steps - 1
  steps = {0, last // 4, last // 2, 3 * last // 4, last}
  if optim.clock == 'steps' and 0 < optim.warmup < last:
    steps.add(optim.warmup)
  for step in sorted(steps):
    yield f'  learning rate at step {step:>11,}: {float(rate(step)):.3g}'


def describe_phase_changes(phase: Phase) -> str:
  """Describe what a phase changes in objective and data mixture, ', ...'; '' for nothing."""
  changes = ''
  if phase.mask_rate is not None:
    changes += f', mask rate {phase.mask_rate:g}'
  if phase.corpora:
    changes += f', the first {phase.corpora} corpora'
  if phase.temperature is not None:
    changes += f', mixture temperature {phase.temperature:g}'
  if phase.weights:
    changes += f', mixture weights {" ".join(f"{weight:g}" for weight in phase.weights)}'
  return changes


def describe_mesh(recipe: Recipe, config: PretrainRun) -> Iterator[str]:
  """Yield the devices along each mesh axis, and the TPU pod that the recipe is written for."""
  mesh = config.mesh
  data = 'all that are left' if mesh.data == -1 else f'{mesh.data:,}'
  yield f'  data    {data}: copies of the model, each with its own part of the batch'
  yield f'  fsdp    {mesh.fsdp:,}: devices that share parameters and optimizer state'
  yield f'  tensor  {mesh.tensor:,}: devices that share heads, MLP width and vocabulary'
  if mesh.adapts:
    yield '  on fewer devices, fsdp and tensor get smaller'
  if config.scale == 'paper':
    yield f'  TPU pod {recipe.row.pod}, on which a step fits the memory'
