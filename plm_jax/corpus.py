"""The front door to what is done with text before a run: it is cleaned, prepared, and looked at. See `plm_jax.api`."""
from collections.abc import Sequence
import dataclasses
import functools
import os
from typing import Any

from plm_jax import checked
from plm_jax.api import Path, recipe
from plm_jax.cli import inspection
from plm_jax.cli.inspection import Inspected
from plm_jax.config import ConfigError, Experiment, FineTuning
from plm_jax.corpora import clean as cleaning
from plm_jax.corpora import parallel as parallel_cleaning
from plm_jax.corpora.examine import CleanConfig, rules_of
from plm_jax.corpora.report import Report
from plm_jax.data import beam as beam_lib
from plm_jax.data import parallel
from plm_jax.data import prepare as preparation
from plm_jax.data.settings import PrepareConfig, TextConfig
from plm_jax.storage import reachable


def prepare(source: str, folder: Path, like: str = '', *, beam: Sequence[str] = (), **options: Any) -> str:
  """Writes the token records of a corpus; `train` takes their folder as data={'path': (folder,)}.

  >>> plm_jax.prepare('corpus.txt', 'records', vocab=300)
  trained a wordpiece tokenizer of 300 pieces ...
  'records'

  Args:
    source: text files, globs, folders, by commas; .txt, .jsonl, .gz, .xz; tfds:NAME[:SPLIT]
    folder: where to; what was begun there is finished
    like: the recipe with whose tokenizer and settings to begin; otherwise BERT's
    beam: options of Apache Beam, which then does the work: '--runner=FlinkRunner', ...; none: this machine does it
    **options: fields of `plm_jax.data.settings.PrepareConfig` that are to be otherwise: vocab, tokenizer, kind, ...

  Returns:
    The folder.

  Raises:
    SourceError, TokenizerError, RecordsError: the text, the tokenizer or what is in the folder cannot be used.
    BeamError: Beam is not installed, or its work has failed.
  """
  writing = functools.partial(parallel.write, beam_lib.running(beam)) if beam else None
  reachable.check_reachable({os.fspath(folder): 'write'})
  rules = (recipe(like) if like else Experiment('bert_base')).rules()  # by which its windows are counted, too
  config = checked.changed(PrepareConfig(source=source, **settings_of(like)), options)
  preparation.prepare(config, folder, rules, writing)
  return os.fspath(folder)


def clean(source: str, folder: Path, rules: str = '', *, beam: Sequence[str] = (), **options: Any) -> Report:
  """Filters, deduplicates and decontaminates a corpus; `prepare` reads the folder.

  >>> plm_jax.clean('corpus.txt', 'cleaned', 'c4', min_sentences=1).dropped
  Counter(...)

  Args:
    source: as of `prepare`
    folder: where to; what was begun there is finished
    rules: published sets of rules, by commas: c4, gopher
    beam: as of `prepare`
    **options: fields of `plm_jax.corpora.examine.CleanConfig` that are to be otherwise

  Returns:
    How many documents were read, kept, and dropped for which reason.

  Raises:
    SourceError, ConfigError, CleanError: the text, the rules or what is in the folder cannot be used.
    BeamError: Beam is not installed, or its work has failed.
  """
  working = functools.partial(parallel_cleaning.work_with, beam_lib.running(beam)) if beam else None
  reachable.check_reachable({os.fspath(folder): 'write'})
  return cleaning.clean(checked.changed(CleanConfig(), rules_of(rules) | options), source, folder, working)


def inspect(config: str | Experiment | FineTuning, rows: int = 2, step: int = 0, **options: Any) -> Inspected:
  """Shows what a run will give its model: rows of text as they are cut, corrupted and asked, before it is trained.

  >>> found = plm_jax.inspect('bert_base', rows=1, scale='test', data={'path': ('corpus.txt',)})
  >>> [lane.title for lane in found.rows[0].lanes], found.rows[0].lanes[1].columns[0].piece
  (['text', 'reads'], '[CLS]')

  Args:
    config: a recipe, or its name; or a run of a task
    rows: of the batch, the first
    step: whose batch it is
    **options: as of `train`

  Returns:
    The rows, each with its lanes of tokens, what is asked of them, and who sees whom (`plm_jax.cli.lanes`).

  Raises:
    ConfigError: no row, or a step that the run does not have; what `train` refuses.
  """
  if rows < 1 or step < 0:
    raise ConfigError(f'rows is 1 or more and step 0 or more, got {rows} and {step}')
  config = recipe(config, **options) if isinstance(config, str) else checked.changed(config, options)
  return inspection.inspected(config, rows, step)


def settings_of(name: str) -> dict[str, Any]:
  """Finds the settings with which text is prepared for a recipe; none for no name."""
  if not name:
    return {}
  config = recipe(name)
  return {'vocab': config.model.vocab,
          **{field.name: getattr(config.data.prepare, field.name) for field in dataclasses.fields(TextConfig)}}
