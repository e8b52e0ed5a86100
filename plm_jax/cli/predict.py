"""Implement `python -m plm_jax predict`, `answer`, `tag` and `encode`, for files of any size."""
import collections
from collections.abc import Iterable, Iterator
import contextlib
import dataclasses
import sys
from typing import Annotated, Any

import tyro

from plm_jax import errors, progress
from plm_jax.api import models, transfer
from plm_jax.cli import inputs, output_files, partial_output, work_identity
from plm_jax.cli.inputs import (
  display_name,
  is_source,
  is_text_file,
  load_on_mesh,
  read_text_lines,
)
from plm_jax.cli.options import command
from plm_jax.conversion import is_checkpoint
from plm_jax.errors import ConfigError
from plm_jax.finetuning.predict import make_predictor, require_task
from plm_jax.loading.loaded_model import LoadedModel, read_config
from plm_jax.progress import Progress
from plm_jax.sharding import MeshConfig
from plm_jax.sources import charsets, text_sources
from plm_jax.sources.lines import OnError, ReadStats
from plm_jax.sources.row_readers import Columns
from plm_jax.tasks import sources
from plm_jax.tasks.contract import Task
from plm_jax.tasks.example_formats import InputExample
from plm_jax.tasks.outputs import StreamingMetrics, bracket_entities, name_labels
from plm_jax.tasks.tagging_format import TAGGING
from plm_jax.validation import ValidatedConfig, intervals


@dataclasses.dataclass(frozen=True)
class PredictConfig(ValidatedConfig):
  """How rows are read and batched."""

  limits = intervals(batch='[1, 16777216]')

  batch: int = 32
  """batch size"""
  pack: bool = False
  """sequence packing: several short texts share a sequence without attending to each other"""
  probabilities: bool = False
  """write the probabilities of all classes: a column per class in .tsv; of all tags of every word
  in .jsonl (.jsonl always has the classes and labels)"""
  columns: Columns = Columns()
  """columns to read. Default: the columns of the training data"""
  on_error: OnError = 'refuse'
  """what to do with an invalid row. refuse: stop and report the row; skip: skip and count it"""
  encoding: str = 'utf-8'
  """character encoding of the file, by its Python name: gb18030, shift_jis, cp1251, utf-16, ..."""

  def conflict(self, option):
    """Return an error message for an unknown encoding, or None."""
    wrong = charsets.encoding_problem(self.encoding)
    return f'{option("encoding")} {wrong}, got {self.encoding!r}' if wrong else None


@command()
def predict_command(
    run: tyro.conf.Positional[str], file: tyro.conf.Positional[str], output: str = '',
    settings: Annotated[PredictConfig, tyro.conf.arg(name='')] = PredictConfig(),
    mesh: MeshConfig = MeshConfig(1)) -> None:
  """Predicts the labels of the rows of a file; prints metrics if the rows have labels.

  Args:
    run: run folder, or transformers checkpoint with a task head
    file: examples: .jsonl, .tsv, .csv, .json or .conll, optionally compressed (.gz, .xz); .parquet;
      .txt with one text per line; tfds:NAME:SPLIT; or - for standard input, one example per line
      with its texts separated by tabs
    output: file for the predictions: .jsonl or .tsv; for token classification also .conll. Default,
      or -: JSON Lines on standard output
    settings: how rows are read and batched
    mesh: devices over which the batch, or a large model, is split
  """
  trained = load_on_mesh(run, mesh)
  task = require_task(trained)
  layout = output_files.prediction_format(
      output, task.example_format, settings.probabilities)
  report, scores = sources.ReadReport(), StreamingMetrics(task)
  columns = settings.columns.fill_from(training_columns(run))
  rows = read_chunks(task, file, columns, report, settings.on_error, settings.encoding)
  # Complete chunks are the same whether other rows are refused or skipped.
  reading = dataclasses.replace(settings, columns=columns, on_error='refuse')
  work = work_identity.identify_work(output, [file], trained, settings=reading, mesh=mesh)
  with partial_output.open_text(output, work) as out, track_progress(task, output):
    write_predictions(trained, rows, layout, out, scores, settings.batch, settings.pack)
  # Skipped rows, and the metrics of those with labels.
  place = sys.stdout if output else sys.stderr
  for line in report.lines():
    errors.print_line(line, place)
  if scores.num_labeled:
    for name, value in scores.compute().items():
      print(f'{name:18}{value:8.2f}', file=place)
    others = scores.num_predictions - scores.num_labeled
    without = f'; {others:,} rows have no known label' if others else ''
    print(f'of {scores.num_labeled:,} rows with labels{without}', file=place)
  if output:
    print(f'{scores.num_predictions:,} predictions in {output}')


def write_predictions(
    trained: LoadedModel, rows: Iterable[list[InputExample]],
    layout: output_files.PredictionFormat, output: partial_output.ChunkOutput,
    scores: StreamingMetrics | None, batch: int, pack: bool) -> int:
  """Predict chunks of rows, write the predictions, and update the metrics.

  Chunks that are complete in the output are only counted.

  Returns:
    The number of predictions.
  """
  task, predict = require_task(trained), make_predictor(trained, batch, pack=pack)
  if isinstance(layout, output_files.TableFormat) and output.rows:
    layout.head = tuple(output.first_line().split('\t'))
  count = 0
  for chunk in rows:
    examples = [one.example for one in chunk]
    count += len(chunk)
    if complete := output.skip_chunk(len(chunk)):
      if scores:
        scores.restore(examples, complete.record)
      continue
    predictions = predict(examples)
    for one, prediction in zip(chunk, predictions, strict=True):
      named = name_labels(task, one.example, prediction, one.text, one.starts)
      if layout.probabilities:
        named = task.example_format.all_probabilities(task, named, prediction)
      output.write(layout.row(task, one, named))
    kept = scores.add(examples, predictions) if scores else None
    output.finish_chunk(len(chunk), kept)
  return count


def track_progress(task: Task, output: str) -> contextlib.AbstractContextManager[Progress]:
  """Show the progress of predictions, unless they are printed in the terminal themselves."""
  return progress.track(task.row_unit, quiet=not output and sys.stdout.isatty())


def training_columns(run: str) -> Columns:
  """Return the columns that a run was trained on."""
  if is_checkpoint(run):
    return Columns()
  return getattr(read_config(run).data, 'columns', Columns())


def read_chunks(
    task: Task, file: str, columns: Columns, report: sources.ReadReport,
    on_error: OnError = 'refuse', encoding: str = charsets.UTF_8) -> Iterator[list[InputExample]]:
  """Yield the rows of a file, thousands at a time.

  Args:
    task: the task of the rows.
    file: a file, - for standard input, or tfds:NAME:SPLIT.
    columns: columns to read.
    report: gets the numbers of skipped rows.
    on_error: what to do with rows that are not examples.
    encoding: encoding of the file.
  """
  if is_text_file(file) and (not task.example_format.writes_columns or file == '-'):
    stats = ReadStats()
    lines = read_text_lines(file, on_error, stats, encoding)
    examples = sources.parse_lines(
        task.example_format, lines, display_name(file), on_error, stats)
    yield from output_files.split_chunks(examples, inputs.chunk_rows())
    report.skipped += collections.Counter({'unreadable lines': stats.skipped})
    report.problems = stats.examples
    return
  chunks = sources.read_chunks(
      task.example_kind, file, columns, task.labels, on_error, inputs.chunk_rows(), report,
      encoding)
  for chunk in chunks:
    yield [InputExample(example) for example in chunk]


@command(top='[1, 10000]', batch='[1, 16777216]')
def answer_command(
    run: tyro.conf.Positional[str], questions: tyro.conf.Positional[tuple[str, ...]],
    context: str = '', top: int = 1, batch: int = 32) -> None:
  """Prints answers to questions, as spans of a context with their probabilities and places.

  Args:
    run: run folder or transformers checkpoint of an extractive QA model
    questions: questions to answer. Without --context, the first argument is the context
    context: text that contains the answers: a file, - for standard input, or the text itself
    top: number of candidate answers to print
    batch: batch size in windows of the context
  """
  if not context and len(questions) > 1:
    context, questions = questions[0], questions[1:]
  if not questions:
    raise ConfigError('there is no question')
  if not context:
    raise ConfigError('there is no text to answer from: give --context, a file, - for standard '
                      'input, or the text itself')
  trained, text = models.load(run), context
  if context == '-':
    text = sys.stdin.read()
  elif is_source(context):
    text = '\n\n'.join(text_sources.read_texts(context))
  answers = transfer.answer(trained, questions, text, batch)
  for question, found in zip(questions, answers, strict=True):
    print(question)
    number = top
    if not found.text:
      print(f'  {found.probability:7.2%}  no answer')
      number = top - 1
    for one in found.candidates[:number]:
      print(f'  {one.probability:7.2%}  {one.start}:{one.end}  {output_files.one_line(one.text)}')


@command(batch='[1, 16777216]')
def tag_command(
    run: tyro.conf.Positional[str], texts: tyro.conf.Positional[tuple[str, ...]], output: str = '',
    batch: int = 32) -> None:
  """Tags the entities of texts: [Angela Merkel PER] came.

  Args:
    run: run folder or transformers checkpoint of a token classification model
    texts: texts; files (.txt with one text per line, or .conll, .jsonl, ... with words in columns);
      or - for standard input
    output: file for the tags: .conll or .tsv with one word and its tag per line, or .jsonl.
      Default, or -: print the texts with the entities in brackets
    batch: batch size
  """
  if not texts:
    raise ConfigError('there is no text: give one, a file, or - for standard input')
  sources_read = [text for text in texts if text == '-' or is_source(text)]
  trained = transfer.load_for_task(run, 'tagging', 'tag')
  task = require_task(trained)
  layout = (output_files.prediction_format(output, TAGGING) if output
            else output_files.PredictionFormat(mark_up))

  def read_all() -> Iterator[list[InputExample]]:
    for text in texts:
      if text in sources_read:
        yield from read_tagging_chunks(task, text, training_columns(run))
      else:
        yield [TAGGING.parse_input(text, 'the text')]

  work = work_identity.identify_work(
      output, sources_read, trained, texts=texts, batch=batch, columns=training_columns(run))
  with partial_output.open_text(output, work, 'texts') as out, track_progress(task, output):
    count = write_predictions(trained, read_all(), layout, out, None, batch, pack=False)
  if output:
    print(f'{count:,} texts in {output}')


def read_tagging_chunks(task: Task, file: str, columns: Columns) -> Iterator[list[InputExample]]:
  """Yield the sentences of a file to tag, thousands at a time."""
  if is_text_file(file):
    examples = sources.parse_lines(TAGGING, read_text_lines(file), display_name(file))
    yield from output_files.split_chunks(examples, inputs.chunk_rows())
  else:
    yield from read_chunks(task, file, columns, sources.ReadReport())


def mark_up(task: Task, one: InputExample, prediction: Any) -> str:
  """Return a text with its entities in brackets; for classes of words, each word with its class."""
  if any(label[1:2] == '-' for label in task.labels):
    text = one.text or ' '.join(prediction.words)
    return bracket_entities(text, prediction.entities) + '\n'
  words = zip(prediction.words, prediction.tags, strict=True)
  return ' '.join(f'{word}/{tag}' for word, tag in words) + '\n'


