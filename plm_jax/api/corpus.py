"""Public API for corpora: clean and prepare text, inspect what a run reads (see `api.models`)."""
from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import os
from typing import TYPE_CHECKING, Any

from etils import epath

from plm_jax import validation
from plm_jax.errors import ConfigError, warn
from plm_jax.storage import bucket_check

# `clean` needs no JAX: each function imports what it needs.
if TYPE_CHECKING:
  from plm_jax.api.models import Path
  from plm_jax.config.run import FinetuneRun, PretrainRun, Scale
  from plm_jax.corpora.batches import CleanReport
  from plm_jax.runs.inspect import Inspection


def prepare(
    source: str, folder: Path, like: str = '', scale: Scale = 'paper', *,
    beam: Sequence[str] = (), **options: Any) -> str:
  """Tokenize a corpus into token records; `train` reads them with data={'path': (folder,)}.

  >>> plm_jax.prepare('corpus.txt', 'records', vocab=300)
  trained a wordpiece tokenizer with a vocabulary of 300 tokens ...
  'records'

  Args:
    source: text files, globs, folders, separated by commas; .txt, .jsonl, .gz, .xz;
      tfds:NAME[:SPLIT]
    folder: output folder; unfinished records in it are finished
    like: recipe whose tokenizer and settings are the defaults; empty: BERT's
    scale: scale of the run that will read the records: it sets the vocabulary size
    beam: options of Apache Beam, which then does the work: '--runner=FlinkRunner', ...; none: this
      machine does it
    **options: fields of `plm_jax.preparation.prepare_config.PrepareConfig` to override: vocab,
      tokenizer, kind, ...

  Returns:
    The folder.

  Raises:
    SourceError, TokenizerError, RecordsError: the text, the tokenizer or the contents of the folder
      cannot be used.
    BeamError: Beam is not installed, or its pipeline has failed.
  """
  from plm_jax.config.run import PretrainRun
  from plm_jax.preparation import parallel_stages
  from plm_jax.preparation import prepare as preparation
  from plm_jax.preparation.prepare_config import PrepareConfig
  run_stages = parallel_stages.make_runner(beam) if beam else None
  bucket_check.check_reachable({os.fspath(folder): 'write'})
  # Windows are counted for the sequence lengths of the recipe.
  run = PretrainRun('bert_base')
  if like or scale != 'paper':
    from plm_jax.api.models import recipe
    like = like or 'bert_base'
    run = recipe(like, scale)
  settings = PrepareConfig(source=source, **recipe_settings(like, scale))
  config = validation.with_overrides(settings, options)
  preparation.prepare(config, folder, run.rules(), run_stages)
  if like:
    from plm_jax.runs.preflight import check_sentence_pairs
    if warning := check_sentence_pairs(run, [epath.Path(folder)]):
      warn(warning)
  return os.fspath(folder)


def clean(
    source: str, folder: Path, rules: str = '', *, beam: Sequence[str] = (), **options: Any
) -> CleanReport:
  """Filter, deduplicate and decontaminate a corpus; `prepare` reads the output folder.

  >>> plm_jax.clean('corpus.txt', 'cleaned', 'c4', min_sentences=1).dropped
  Counter(...)

  Args:
    source: as for `prepare`
    folder: output folder; unfinished work in it is finished
    rules: published sets of rules, separated by commas: c4, gopher
    beam: as for `prepare`
    **options: fields of `plm_jax.corpora.filter_documents.CleanConfig` to override

  Returns:
    The numbers of documents read, kept, and dropped for each reason.

  Raises:
    SourceError, ConfigError, CleanError: the text, the rules or the contents of the folder cannot
      be used.
    BeamError: Beam is not installed, or its pipeline has failed.
  """
  from plm_jax.corpora import clean as cleaning
  from plm_jax.corpora.filter_documents import CleanConfig, parse_rules
  from plm_jax.preparation import parallel_stages
  run = parallel_stages.make_runner(beam) if beam else None
  bucket_check.check_reachable({os.fspath(folder): 'write'})
  config = validation.with_overrides(CleanConfig(), parse_rules(rules) | options)
  return cleaning.clean(config, source, folder, run)


def inspect(
    config: str | PretrainRun | FinetuneRun, rows: int = 2, step: int = 0, **options: Any
) -> Inspection:
  """Show the model inputs of a run before training: sequences, corrupted tokens and labels.

  >>> found = plm_jax.inspect('bert_base', rows=1, scale='test', data={'path': ('corpus.txt',)})
  >>> [lane.title for lane in found.rows[0].lanes], found.rows[0].lanes[1].columns[0].piece
  (['text', 'reads'], '[CLS]')

  Args:
    config: a recipe, or its name; or a fine-tuning run
    rows: number of sequences, from the start of the batch
    step: the step whose batch is shown
    **options: as for `train`

  Returns:
    The sequences, each with its tokens, their labels and the attention mask
    (`plm_jax.objectives.batch_view`).

  Raises:
    ConfigError: rows below 1, a step that the run does not have, or options that `train` refuses.
  """
  if rows < 1 or step < 0:
    raise ConfigError(f'rows is 1 or more and step 0 or more, got {rows} and {step}')
  from plm_jax.api.models import recipe
  from plm_jax.runs import inspect as inspection
  if isinstance(config, str):
    config = recipe(config, **options)
  else:
    config = validation.with_overrides(config, options)
  return inspection.inspect_run(config, rows, step)


def recipe_settings(name: str, scale: Scale) -> dict[str, Any]:
  """Return the options of `prepare` for a recipe at a scale; none without a name."""
  if not name:
    return {}
  from plm_jax.api.models import recipe
  from plm_jax.preparation.prepare_config import TextConfig
  config = recipe(name, scale)
  text = {field.name: getattr(config.data.prepare, field.name)
          for field in dataclasses.fields(TextConfig)}
  return {'vocab': config.model.vocab} | text
