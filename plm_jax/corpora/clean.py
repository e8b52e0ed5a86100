"""`clean`: filter, deduplicate and decontaminate a corpus, once, before `prepare`.

The work is done in stages (`clean_stages`), on this machine or on many. Then the documents are
moved to the output folder.
"""
import contextlib
import dataclasses
import functools
import itertools
import json
import shutil

from etils import epath

from plm_jax import storage
from plm_jax.corpora import batches, clean_stages
from plm_jax.corpora.batches import CleanReport
from plm_jax.corpora.clean_stages import WORK_FOLDER, CleanError
from plm_jax.corpora.filter_documents import CleanConfig, DocumentFilter
from plm_jax.errors import name_field, print_line
from plm_jax.preparation.parallel_stages import RunStages
from plm_jax.sources import charsets, text_sources
from plm_jax.sources.source_files import content_digest, map_in_threads
from plm_jax.storage import lock
from plm_jax.storage.digests import compute_digest

FORMAT = 2  # raise it when documents are judged by another rule: work then begins again
REPORT_FILE, DROPPED_FILE = '_clean.json', '_dropped.jsonl'  # names that a source of text ignores


def clean(
    config: CleanConfig, source: str, output: epath.PathLike,
    run: RunStages | None = None) -> CleanReport:
  """Filter, deduplicate and decontaminate a corpus, or resume that, or return the finished report.

  Args:
    config: of the filters.
    source: text files, globs, folders, tfds:NAME.
    output: folder for documents-*.jsonl.gz and the report.
    run: runs the stages; None: this machine does.

  Returns:
    How many documents were dropped, and why.

  Raises:
    SourceError: text is missing, empty or (unless skipped) damaged.
    CleanError: the folder holds other documents.
    StorageError: the folder cannot be written.
    SpaceError: the disk is full.
  """
  output = check_output(output, source)
  examiner = DocumentFilter(config)
  known = fingerprint(examiner, source)
  if finished := read_finished(output, known):
    return finished
  with lock.Lock(output, 'clean', wait=True) as held:
    if finished := read_finished(output, known):
      return finished
    storage.remove_drafts(output)
    evaluation = examiner.evaluation
    if evaluation.short:
      print_line(
          f'{evaluation.short:,} of {evaluation.texts:,} evaluation texts have fewer than '
          f'{config.ngram} words and are ignored: a smaller {name_field("ngram")} includes them')
    report, work = clean_stages.run_clean(run, examiner, source, output, known, held)
    publish(config, report, known, work, output)
  return report


def publish(
    config: CleanConfig, report: CleanReport, known: str, work: epath.Path,
    output: epath.Path) -> None:
  """Move the documents to the output folder, then write the report, which marks them as complete.

  The folders for work are removed.
  """
  with storage.io_errors_as(output, 'written', CleanError):
    for path in output.glob('documents-*.jsonl.gz'):
      path.unlink()  # of a publication that was interrupted, with other options perhaps
    documents = sorted(work.glob('documents-*.jsonl.gz'))
    map_in_threads(functools.partial(move_file, output=output), documents)
  if config.samples:
    samples = itertools.chain.from_iterable(report.samples.values())
    rows = ''.join(json.dumps(sample, ensure_ascii=False) + '\n' for sample in samples)
    storage.write(output / DROPPED_FILE, rows, CleanError)
  batches.write_report(report, output / REPORT_FILE, source=known)
  for folder in [work] + list(output.glob(f'{WORK_FOLDER}*')):
    with contextlib.suppress(storage.StorageError), storage.io_errors_as(folder, 'removed'):
      folder.rmtree()


def move_file(path: epath.Path, output: epath.Path) -> None:
  """Move a file to a folder."""
  if storage.is_remote(path) == storage.is_remote(output):
    path.replace(output / path.name)
  else:
    with path.open('rb') as file, storage.atomic_writer(output / path.name, CleanError) as out:
      shutil.copyfileobj(file, out)


def check_output(output: epath.PathLike, source: str) -> epath.Path:
  """Return the path of the output folder. Raises CleanError for an unusable one."""
  output = storage.resolve_path(output)
  with storage.io_errors_as(output, 'read', CleanError):
    if output.exists() and not output.is_dir():
      raise CleanError(f'{output} is a file, expected a folder for the documents')
  for text in text_sources.source_folders(source):
    if text == output or text in output.parents:
      raise CleanError(f'{output} lies in {text}: what is written would be read again')
  return output


def read_finished(output: epath.Path, known: str) -> CleanReport | None:
  """Return the report of finished work, None where there is none.

  Raises:
    CleanError: it is of another source, or of other options.
  """
  with storage.io_errors_as(output, 'read', CleanError):
    if not (output / REPORT_FILE).exists():
      if (not storage.is_remote(output) and list(output.glob('documents-*.jsonl.gz'))
          and not list(output.glob(f'{WORK_FOLDER}*'))):
        raise CleanError(
            f'{output} holds documents without {REPORT_FILE}: choose another folder')
      return None
  fields = storage.read_json(output / REPORT_FILE, error=CleanError)
  if fields.pop('source', '') != known:
    raise CleanError(f'{output} holds documents of another source, or by other settings. Choose '
                     'another folder, or delete this one')
  return CleanReport.from_json(fields)


def fingerprint(examiner: DocumentFilter, source: str) -> str:
  """Return the sha256 of everything that the output depends on, as hex."""
  config = dataclasses.asdict(examiner.config)
  del config['workers']
  if config['encoding'] == charsets.UTF_8:
    del config['encoding']  # so that work of versions without other encodings resumes
  model = ''
  if config['language_model']:
    model = content_digest(storage.resolve_path(config['language_model']))
  fields = [FORMAT, config, examiner.rule_filter.bad_words, model]
  return compute_digest(
      json.dumps(fields, sort_keys=True), examiner.evaluation.ngrams.tobytes(),
      text_sources.fingerprint(source))
