"""python -m plm_jax clean: what of a corpus is left out before it is prepared."""
import shlex
from typing import Annotated

import tyro

from plm_jax import checked, corpus
from plm_jax.cli.options import command
from plm_jax.corpora import clean, examine
from plm_jax.corpora.examine import CleanConfig


@command()
def clean_command(
    source: tyro.conf.Positional[str], out: tyro.conf.Positional[str], rules: str = '',
    beam: str = '', settings: Annotated[CleanConfig, tyro.conf.arg(name='')] = CleanConfig()) -> None:
  """Filters, deduplicates and decontaminates a corpus: documents in, fewer documents out, for `prepare`.

  Args:
    source: text files, globs, folders (local or gs://), by commas: .txt, .jsonl, WET, Wikipedia's dumps, .parquet
    out: folder for the documents, local or gs://
    rules: published sets of rules, by commas: c4, gopher; other options change them
    beam: work with Apache Beam; what is behind it are options of Beam: --beam --runner=FlinkRunner ...
    settings: how
  """
  del rules  # they stand in front of the other options: see `settings_of`
  print(corpus.clean(source, out, beam=shlex.split(beam), **vars(settings)))
  print(f'documents in {out}, these numbers in {out}/{clean.REPORT}: prepare them with `prepare {out} FOLDER`')


def settings_of(rules: str) -> list[str]:
  """Returns the options of `clean` for published rules. Raises ConfigError for what is none."""
  return [f'{checked.flag(name)}={value}' for name, value in examine.rules_of(rules).items()]
