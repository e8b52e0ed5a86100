"""Implement `python -m plm_jax train RECIPE`, and the files of `experiments/`."""
from collections.abc import Sequence
import dataclasses
import functools
import sys

from plm_jax import errors, recipes, streams, validation
from plm_jax.cli import options, vectors
from plm_jax.cli.flags import name_flags, write_flags
from plm_jax.config.run import PretrainRun
from plm_jax.errors import ConfigError
from plm_jax.objectives.row_builders import FullSentences
from plm_jax.recipes import Recipe, word_vectors
from plm_jax.runs import preflight
from plm_jax.runs.run import run
from plm_jax.sharding import MeshConfig


def start(name: str, args: Sequence[str] | None = None) -> None:
  """Run the recipe of a name, or of a family with --size; exit with status 1 on bad input.

  Args:
    name: a recipe, or a family of recipes.
    args: the options; None: those of the command line.
  """
  args = sys.argv[1:] if args is None else args
  if name in word_vectors.PUBLISHED:
    vectors.start(name, args)
    return
  with streams.protect(tolerant=True), errors.exit_on_error():
    size, rest = options.pop_option('--size', args)
    wants_help = '-h' in rest or '--help' in rest
    if wants_help and recipes.needs_size(name, size):
      print(recipes.describe_family(name))
    else:
      main(recipes.find_recipe(name, size), rest)


def main(recipe: Recipe, args: Sequence[str]) -> None:
  """Run a recipe with the options of the command line.

  Exits with status 1 and one line on bad input, and with status 75 where a signal has stopped it.
  """
  paths = validation.field_paths(PretrainRun)
  with errors.exit_on_error(), name_flags(paths):
    caller = errors.Caller(spell=functools.partial(write_flags, paths=paths))
    result = run(parse(recipe, args), caller=caller)
    errors.exit_unless_finished(result is None or result.finished)


def remove_pair_task(config: PretrainRun, pair: str) -> PretrainRun:
  """Return a run without its sentence-pair task: rows are full of sentences, as RoBERTa's.

  Raises:
    ConfigError: the run has no such task, or `pair` is not 'none'.
  """
  task = getattr(getattr(config.objective, 'pair', None), 'pair_task', None)
  if pair != 'none' or not task:
    raise ConfigError('--pair=none leaves out the sentence-pair task of a recipe such as bert_base '
                      f'or albert_base, got --pair={pair} for {config.name}')
  return validation.with_paths(config, {
      'objective.pair': FullSentences(), 'data.assembly': 'sentences', 'model.pooler': False})


def parse(recipe: Recipe, args: Sequence[str]) -> PretrainRun:
  """Parse the options of a run over the defaults of its recipe and scale."""
  # The defaults of all other options depend on the scale.
  scale = options.scale_option(args, fits=True)
  default = recipe(scale, options.option_value('--warm-start', list(args)))
  pair, args = options.pop_option('--pair', args)
  if pair:
    default = remove_pair_task(default, pair)
  config, args = options.parse_run(
      default, args, options.program_name(recipe), recipe.description)
  with validation.defer_checks():
    preflight.check_text_options(config, options.given_fields(args, 'data.prepare.'))
    # A mesh that is given is used as it is. Axes that are left out do not come from the recipe.
    given = {name: getattr(config.mesh, name) for name in ('data', 'fsdp', 'tensor')
             if options.option_value(f'--mesh.{name}', list(args))}
    if given and config.mesh.adapts:
      config = dataclasses.replace(config, mesh=MeshConfig(**given))
    return config
