"""Implement `python -m plm_jax clean`, which filters and deduplicates a corpus."""
import shlex
from typing import Annotated

import tyro

from plm_jax.api import corpus
from plm_jax.cli import options
from plm_jax.cli.flags import flag_name
from plm_jax.cli.options import command
from plm_jax.corpora import clean, filter_documents
from plm_jax.corpora.filter_documents import RULE_SETS, CleanConfig


@command()
def clean_command(
    source: tyro.conf.Positional[str], out: tyro.conf.Positional[str] = '', output: str = '',
    rules: str = '', beam: str = '',
    settings: Annotated[CleanConfig, tyro.conf.arg(name='')] = CleanConfig()) -> None:
  """Filters, deduplicates and decontaminates a corpus; `prepare` reads the output.

  Args:
    source: files, globs or folders (local, gs:// or hf://datasets/), separated by commas: plain
      text, JSON Lines, tables, WET, Wikipedia dumps, Parquet and other formats, plain or compressed
    out: folder for the documents, local or gs://
    output: same as the OUTPUT argument
    rules: published filter rules: c4, gopher, or both (c4,gopher); other options override them
    beam: use Apache Beam; all options after --beam are passed to Beam: --beam --runner=FlinkRunner
      ...
    settings: filters and deduplication
  """
  out = options.choose_output(out, output)
  del rules  # `clean_arguments` has put their options in front
  print(corpus.clean(source, out, beam=shlex.split(beam), **vars(settings)))
  print(f'documents in {out}, this report in {out}/{clean.REPORT_FILE}: train on them with '
        f'--data.path={out}, or prepare them first with `prepare {out} FOLDER`')


def clean_arguments(args: list[str]) -> list[str]:
  """Return the arguments of `clean`, with the options of published rules in front."""
  args = options.join_values('--rules', args, RULE_SETS)
  args = options.join_beam_options(args, {'rules', *CleanConfig.__dataclass_fields__})
  if rules := options.option_value('--rules', args):
    values = filter_documents.parse_rules(rules)
    args = [f'{flag_name(name)}={value}' for name, value in values.items()] + args
  return args
