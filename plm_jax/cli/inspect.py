"""Implement `python -m plm_jax inspect`: show the model inputs of a run before training.

    python -m plm_jax inspect RECIPE [options of a run]
    python -m plm_jax inspect finetune --task=NAME [options of finetune]

The output has sequences of a batch with their tokens, masks and labels.

Options of `inspect` itself:
    --rows=N          number of sequences to show, by default 2
    --step=N          the step whose batch is shown, by default 0; for instance the step at which a
                      loss was not finite
    --page=FILE.html  also write a page, with a picture of the attention mask

Text, order, seed and corruption are those of the run with the same options. A missing tokenizer is
trained and missing records are prepared; nothing is written to the folder of the run. A generator
that fills masks comes from the newest checkpoint of the run, or is newly initialized.
"""
from collections.abc import Sequence
import shutil
import sys

from plm_jax import errors, storage, validation
from plm_jax.cli import finetune, options
from plm_jax.cli import run as runs
from plm_jax.cli.flags import name_flags, write_flags
from plm_jax.config.run import FinetuneRun, PretrainRun, RunConfig
from plm_jax.recipes.finetune import __doc__ as about_finetune
from plm_jax.report import batch_drawing
from plm_jax.runs.inspect import inspect_run
from plm_jax.storage import bucket_check

OPTIONS = {'rows': ('2', 1), 'step': ('0', 0)}
"""options with their default and smallest value"""


def start(args: Sequence[str]) -> None:
  """Show the inputs of the run that the arguments name; exit with status 1 on bad input."""
  is_finetuning = args[0] == 'finetune' or args[0].startswith('-')
  paths = validation.field_paths(FinetuneRun if is_finetuning else PretrainRun)
  with errors.exit_on_error(), name_flags(paths):
    numbers, rest = {}, list(args)
    for name, (default, least) in OPTIONS.items():
      given, rest = options.pop_option(f'--{name}', rest)
      numbers[name] = options.parse_whole_number(name, given or default, least)
    page, rest = options.pop_option('--page', rest)
    bucket_check.check_reachable({page: 'file'})
    found = inspect_run(parse(rest), **numbers)
    for line in found.notes:
      errors.print_line(line)
    width = shutil.get_terminal_size((100, 24)).columns
    for line in batch_drawing.terminal_lines(found.rows, width, sys.stdout.isatty()):
      print(line)
    if page:
      notes = [write_flags(note, paths) for note in found.notes]
      title = f'{found.config.name}, step {numbers["step"]:,}'
      storage.write(page, batch_drawing.render_page(title, notes, found.rows))
      print(f'\npage: {page}')


def parse(args: Sequence[str]) -> RunConfig:
  """Parse the run that the arguments name. Raises ConfigError."""
  name, *rest = args
  if name == 'finetune':
    return finetune.parse('', rest, about_finetune or '')[0]
  if name.startswith('-'):
    return finetune.parse('', args, about_finetune or '')[0]
  return runs.parse(*options.take_recipe('inspect RECIPE', args))
