"""Implement `python -m plm_jax plan RECIPE`: the size, batch and steps for a device and a time.

    python -m plm_jax plan bert_base --data.path=corpus.txt --hours=24 --device=rtx4090
    python -m plm_jax plan gpt2_small --tokens=100000000 --hours=8 --device=4xa100-80gb

Prints two or three sizes of the family, with the reason for each, and the command that starts the
recommended one. Options of `train` apply to all of them.
"""
from collections.abc import Sequence
import shlex

from plm_jax import environment, errors, validation
from plm_jax.cli import options
from plm_jax.cli import run as runs
from plm_jax.cli.flags import name_flags
from plm_jax.cli.show import compare_options, format_value
from plm_jax.config.run import ConfigError, PretrainRun
from plm_jax.data.records import read_meta
from plm_jax.planning import choices, fit
from plm_jax.planning.devices import find_device
from plm_jax.recipes import Recipe
from plm_jax.runs import preflight

DEFAULT_HOURS = 24


def start(args: Sequence[str]) -> None:
  """Print the plan that the arguments ask for; exit with status 1 and one line on bad input."""
  with errors.exit_on_error(), name_flags(validation.field_paths(PretrainRun)):
    device, rest = options.pop_option('--device', args)
    tokens, rest = options.pop_option('--tokens', rest)
    recipe, rest = options.take_recipe('plan RECIPE --device=NAME', rest)
    print('\n'.join(describe_plan(recipe, rest, device, tokens)))


def describe_plan(recipe: Recipe, rest: list[str], device: str, tokens: str) -> list[str]:
  """Return the lines of a plan.

  Args:
    recipe: a size of the family.
    rest: options of `train`.
    device: name of the device.
    tokens: number of tokens of the text; '': the text that the options name is counted.
  """
  if not device:
    raise ConfigError('for which device? --device=rtx4090, a100-80gb, 8xh100, v5e-8, ...')
  target = find_device(device)
  hours, rest = options.pop_option('--hours', rest)
  own = ['--scale=gpu', f'--hours={hours or DEFAULT_HOURS}']
  config = runs.parse(recipe, rest + own)  # which checks the hours
  if tokens:
    size, records = options.parse_whole_number('tokens', tokens, 1), False
    rest = rest if options.option_value('--data.path', rest) else rest + ['--data.path=TEXT']
  else:
    size, records = preflight.corpus_tokens(config)
    if records and not options.option_value('--model.vocab', rest):
      folders = filter(None, map(preflight.finished_records, config.data.path))
      rest = rest + [f'--model.vocab={max(read_meta(folder).vocab for folder in folders)}']
  found, best = choices.list_choices(
      recipe, lambda other: runs.parse(other, rest), target, config.hours, size,
      fit.has_new_tokenizer(config, records))
  train = environment.program().split() + ['train', found[best].recipe.name]
  return [
      f'{recipe.name} on {device}, {config.hours:g} hours, {size:,} tokens of text', '',
      '\n'.join(choices.describe_choices(found, best, target, config.hours)), '',
      'Start it:', shlex.join(train + list_options(found[best], rest)), '',
      'The same with the time per step measured on the device:', shlex.join(train + rest + own)]


def list_options(choice: choices.Choice, rest: Sequence[str]) -> list[str]:
  """Return the options that make a choice from its recipe; rest: options that the user gave."""
  given = [f'{option}={format_value(value)}' for option, value, default
           in compare_options(choice.config, choice.recipe('paper'))
           if value != default and not isinstance(value, tuple)]
  names = {option.partition('=')[0] for option in given}
  return [option for option in rest if option.partition('=')[0] not in names] + given
