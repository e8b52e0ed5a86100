"""Train and evaluate an entry to the BabyLM challenge: `python -m experiments.babylm COMMAND`.

    run --data=TEXT --output=FOLDER      from the text of a track to a table of results
    run --model=RUN --output=FOLDER      evaluate a run or a checkpoint
    train RECIPE --track.name=TRACK      train a model by the rules of a track
    export RUN OUTPUT                    export the checkpoints of a run of a track
    push RUN NAME                        upload them to the Hugging Face hub

`python -m experiments.babylm COMMAND --help` prints the options of a command. `train` and `run`
take all options of `python -m plm_jax train RECIPE`, and these two:

    --track.name       strict-small: 10 million words; strict: 100 million words; multilingual:
                       text of several languages with 100 million English-equivalent words. The run
                       checks the size of its text and reads it at most ten times. It keeps the
                       checkpoints that the challenge evaluates: chck_1M after a million words, and
                       so on
    --track.languages  language of each corpus in --data.path, for the multilingual track: eng, nld,
                       zho
"""
from collections.abc import Sequence
import sys

from experiments.babylm import entry, export
from plm_jax import errors, recipes, streams, validation
from plm_jax.cli import commands, options, signatures
from plm_jax.cli import run as run_command
from plm_jax.cli.flags import name_flags
from plm_jax.config.run import PretrainRun
from plm_jax.storage import bucket_check

EXPORT_COMMANDS = {'export': export.export_command, 'push': export.push_command}


def main(args: Sequence[str]) -> None:
  """Run the command that the arguments name."""
  name, rest = ''.join(args[:1]), list(args[1:])
  if name == 'run':
    entry.start(rest)
  elif name == 'train':
    train(rest)
  elif name in EXPORT_COMMANDS:
    export_checkpoints(name, rest)
  elif name in ('', '-h', '--help', 'help'):
    print((__doc__ or '').strip())
  else:
    with errors.exit_on_error():
      raise errors.UsageError(f'there is no command {name}: it is run, train, export or push')


def train(args: Sequence[str]) -> None:
  """Run `train RECIPE`; exit with status 1 and one line on bad input, with 75 where it stopped."""
  scope = name_flags(validation.field_paths(PretrainRun))
  with streams.protect(tolerant=True), errors.exit_on_error(), scope:
    if not args or args[0].startswith('-'):
      print((__doc__ or '').strip())
      return
    track, rest = entry.take_track(args[1:])
    size, rest = options.pop_option('--size', rest)
    config = run_command.parse(recipes.find_recipe(args[0], size), rest)
    result = entry.run_on_track(config, track)
    errors.exit_unless_finished(result is None or result.finished)


def export_checkpoints(name: str, args: Sequence[str]) -> None:
  """Run `export` or `push`; exit with status 1 and one line on bad input."""
  with streams.protect(tolerant=True), errors.exit_on_error():
    bucket_check.check_reachable(dict.fromkeys(bucket_check.find_bucket_paths(list(args)), 'read'))
    function = EXPORT_COMMANDS[name]
    kinds = {option.name: option.kind for option in signatures.command_arguments(function)}
    commands.run_function(function, f'python -m experiments.babylm {name}', args, kinds)


if __name__ == '__main__':
  main(sys.argv[1:])
