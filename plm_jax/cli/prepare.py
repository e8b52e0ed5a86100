"""The commands `prepare` and `packing`: from a corpus to token records, and to sequences."""
import shlex
from typing import Annotated

import tyro

from plm_jax import errors, validation
from plm_jax.api import corpus
from plm_jax.cli import options
from plm_jax.cli.flags import flag_name, name_flags
from plm_jax.cli.options import command
from plm_jax.config.run import Scale
from plm_jax.data.windows import Assembly, Windows
from plm_jax.preparation.prepare_config import (
  TOKENIZER_OPTIONS,
  PrepareConfig,
  TextConfig,
  heldout_problem,
)


@command(vocab=PrepareConfig.limits['vocab'])
def prepare_command(
    source: tyro.conf.Positional[str], out: tyro.conf.Positional[str] = '', output: str = '',
    recipe: Annotated[str, tyro.conf.arg(name='for')] = '', scale: Scale = 'paper',
    vocab: int = PrepareConfig.vocab, heldout_path: str = '', beam: str = '',
    settings: Annotated[TextConfig, tyro.conf.arg(name='')] = TextConfig()) -> None:
  """Tokenizes a corpus into token records.

  Args:
    source: files, globs or folders (local, gs:// or hf://datasets/), separated by commas: plain
      text, JSON Lines, tables and other formats, plain or compressed; tfds:NAME[:SPLIT]; or
      embedded, the built-in corpus
    out: folder for the records, local or gs://
    output: same as the OUTPUT argument
    recipe: recipe that will read the records, such as gpt2_small: it sets the tokenizer and other
      options, unless they are given. Default: records for BERT
    scale: scale of the run that will read the records; with --for, it sets the vocabulary size
    vocab: vocabulary size of the new tokenizer; --for and --scale change this default
    heldout_path: held-out text for evaluation (validation set), in any form of the source: all of
      it, and nothing else. Default: --heldout, a share of the documents
    beam: use Apache Beam; all options after --beam are passed to Beam: --beam --runner=FlinkRunner
      ...
    settings: how text becomes token records
  """
  out = options.choose_output(out, output)
  if problem := heldout_problem(source, heldout_path, settings.heldout):
    raise errors.ConfigError(f'--heldout-path {problem}')
  # `commands.main` has put the settings of a recipe in front of the options: see `recipe_options`.
  chosen = {**vars(settings), 'vocab': vocab, 'heldout_path': heldout_path}
  if settings.tokenizer:
    chosen = {name: value for name, value in chosen.items() if name not in TOKENIZER_OPTIONS}
  corpus.prepare(source, out, recipe, scale, beam=shlex.split(beam), **chosen)
  print(f'records in {out}: train on them with --data.path={out}')


def prepare_arguments(args: list[str]) -> list[str]:
  """Return the arguments of `prepare`, with the options of its recipe in front.

  Raises:
    ConfigError: options of a new tokenizer together with --tokenizer, or wrong options of Beam.
  """
  args = options.join_beam_options(args, {'for', 'scale', *PrepareConfig.__dataclass_fields__})
  with name_flags():
    text = TextConfig(options.option_value('--tokenizer', args))
    validation.check_unused(text, options.given_fields(args))
  recipe, scale = options.option_value('--for', args), options.scale_option(args)
  if recipe or scale != 'paper':
    settings = corpus.recipe_settings(recipe or 'bert_base', scale)
    others = {name: value for name, value in settings.items()
              if value != getattr(TextConfig, name, None)}
    args = [*(f'{flag_name(name)}={value}' for name, value in others.items()), *args]
  return args


@command(length='[3, 16777216]', batch='[1, 16777216]')
def packing_command(
    records: tyro.conf.Positional[str], length: int = 512, batch: int = 256) -> None:
  """Compares how well each packing strategy fills sequences, and batch sizes with equal tokens.

  Args:
    records: folder of token records
    length: sequence length in tokens, including two special tokens
    batch: batch size for the `sentences` strategy; the table shows the batch sizes of the other
      strategies with the same number of tokens
  """
  print(f'{"assembly":12}{"rows":>14}{"tokens per row":>15}{"full":>8}{"batch":>8}')
  strategies: tuple[Assembly, ...] = ('packed', 'sentences', 'document')
  fill = {assembly: count_rows(records, length - 2, assembly) for assembly in strategies}
  for assembly, (rows, tokens) in fill.items():
    print(f'{assembly:12}{rows:>14,}{tokens:>15.1f}{tokens / (length - 2):>8.1%}'
          f'{round(batch * fill["sentences"][1] / tokens):>8,}')


def count_rows(records: str, length: int, assembly: Assembly) -> tuple[int, float]:
  """Count the windows of the training split, and their mean number of tokens."""
  windows = Windows(records, 'train', length, assembly)
  return len(windows), windows.meta.tokens('train') / len(windows)
