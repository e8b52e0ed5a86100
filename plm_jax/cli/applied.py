"""python -m plm_jax predict, answer, tag and encode: what has been trained is put to use, on files of any size."""
from collections.abc import Callable, Iterable, Iterator, Sequence
import contextlib
import dataclasses
import itertools
import sys
from typing import Annotated, Any

import tyro

from plm_jax import api, storage, transfer
from plm_jax.checked import Checked, within
from plm_jax.cli import writing
from plm_jax.cli.options import command
from plm_jax.conversion import is_checkpoint
from plm_jax.data import sources as raw
from plm_jax.data.lines import OnError, SourceError, Tally, decode, lines
from plm_jax.embeddings import static
from plm_jax.embeddings.static import StaticVectors
from plm_jax.errors import ConfigError
from plm_jax.inference.encode import Pooling
from plm_jax.inference.loading import Trained, read_config
from plm_jax.sharding import MeshConfig, make_mesh
from plm_jax.similarity import encode
from plm_jax.storage import reachable
from plm_jax.tasks import asked, measuring, reading, sources
from plm_jax.tasks.asked import Asked
from plm_jax.tasks.contract import Task
from plm_jax.tasks.predict import predictor, task_of
from plm_jax.tasks.reading import Columns
from plm_jax.tasks.results import marked, named

CHUNK = 4096  # rows that are in memory together
PLAIN = ('.txt', '.txt.gz', '.txt.xz')  # files that hold a text a line


def shared(folder: str, mesh: MeshConfig) -> Trained:
  """Loads a model, on the devices of the mesh where there are several."""
  return api.load(folder, mesh if make_mesh(mesh).size > 1 else None)


@dataclasses.dataclass(frozen=True)
class RowsConfig(Checked):
  """How rows are read, and put to a model."""

  limits = within(batch='[1, 16777216]')

  batch: int = 32
  """rows that go through the model together"""
  pack: bool = False
  """several short rows go through it as one"""
  columns: Columns = Columns()
  """which columns are read; empty: those of the run's training"""
  on_error: OnError = 'refuse'
  """what becomes of a row that is no example: refuse the file, or skip and count the row"""


@dataclasses.dataclass(frozen=True)
class VectorsConfig(Checked):
  """Which vectors of texts."""

  limits = within(tokens='[1, 16777216]', layer='(-inf, inf)')

  layer: int = -1
  """0, the embeddings; k, the output of layer k; -1, the last"""
  pooling: Pooling = 'own'
  """the sentence vectors that the model has learned, or the mean where it has learned none; mean, maximum, first, last,
  ... of the vectors of a text's tokens; none, all of them"""
  cut: bool = False
  """texts that are too long lose their end; otherwise they are refused"""
  column: str = ''
  """which column is read; empty: sentence, text, or another of the usual names"""
  tokens: int = 8192
  """that go through the model together, padding included"""


@command()
def predict_command(
    run: tyro.conf.Positional[str], file: tyro.conf.Positional[str], output: str = '',
    settings: Annotated[RowsConfig, tyro.conf.arg(name='')] = RowsConfig(), mesh: MeshConfig = MeshConfig(1)) -> None:
  """Writes what a model says of the rows of a file, by the names of its labels; where these have labels, how good it
  is.

  Args:
    run: folder of a run, or of a checkpoint of transformers with the head of a task
    file: .jsonl, .tsv, .csv, .json, .conll, plain, .gz or .xz; tfds:NAME:SPLIT; .txt, a text a line; - for standard
      input, a text a line, several apart by tabs
    output: .jsonl or .tsv, of tags .conll too; empty: JSON lines on standard output
    settings: how
    mesh: devices that share the rows, and a large model
  """
  reachable.check_reachable({output: 'write'})
  trained = shared(run, mesh)
  task = task_of(trained)
  layout = writing.layout(output, task.reads)
  report, scores = sources.Report(), measuring.Scores(task)
  rows = chunks(task, file, settings.columns.over(own_columns(run)), settings.on_error, report)
  with writing.text(output) as write:
    predicted(trained, rows, layout, write, scores, settings.batch, settings.pack)
  tell(report, scores, sys.stdout if output else sys.stderr)
  if output:
    print(f'{scores.rows:,} predictions in {output}')


def predicted(trained: Trained, rows: Iterable[list[Asked]], layout: writing.Layout, write: Callable[[str], None],
              scores: measuring.Scores, batch: int, pack: bool) -> None:
  """Predicts and writes chunks of rows, and holds them against the labels that they have."""
  task, answer = task_of(trained), predictor(trained, batch, pack=pack)
  write(layout.head(task))
  for chunk in rows:
    examples = [one.example for one in chunk]
    found = answer(examples)
    for one, said in zip(chunk, found, strict=True):
      write(layout.row(task, one, named(task, one.example, said, one.text, one.starts)))
    scores.add(examples, found)


def tell(report: sources.Report, scores: measuring.Scores, file: Any) -> None:
  """Prints what was left out, and metrics."""
  for line in report.lines():
    print(line, file=file)
  if scores.labelled:
    for name, value in scores.values().items():
      print(f'{name:18}{value:8.2f}', file=file)
    print(f'of {scores.labelled:,} rows with labels', file=file)


def own_columns(run: str) -> Columns:
  """Returns the columns that a run was trained on."""
  return Columns() if is_checkpoint(run) else getattr(read_config(run).data, 'columns', Columns())


def chunks(task: Task, file: str, columns: Columns, on_error: OnError, report: sources.Report
           ) -> Iterator[list[Asked]]:
  """Yields the rows of a file, thousands at a time."""
  if is_plain(file) and (task.reads != 'tagging' or file == '-'):
    yield from writing.several(asked.lines(task.reads, plain(file), name_of(file)), CHUNK)
    return
  for chunk in sources.in_chunks(task.reads, file, columns, task.labels, on_error, CHUNK, report):
    yield [Asked(example) for example in chunk]


@command(top='[1, 10000]', batch='[1, 16777216]')
def answer_command(
    run: tyro.conf.Positional[str], context: tyro.conf.Positional[str],
    questions: tyro.conf.Positional[tuple[str, ...]], top: int = 1, batch: int = 32) -> None:
  """Prints answers to questions, parts of a context, with their probabilities and their places in it.

  Args:
    run: folder of a run that has learned to answer, or of a checkpoint of transformers
    context: a file of text, - for standard input, or a text
    questions: what is asked
    top: candidates to print
    batch: windows of the context that go through the model together
  """
  if not questions:
    raise ConfigError('there is no question')
  trained, text = api.load(run), context
  if context == '-':
    text = sys.stdin.read()
  elif is_file(context):
    text = storage.read_text(context)
  for question, found in zip(questions, transfer.answer(trained, questions, text, batch), strict=True):
    print(question)
    if not found.text:
      print(f'  {found.probability:7.2%}  no answer')
    for one in found.candidates[:top if found.text else top - 1]:
      print(f'  {one.probability:7.2%}  {one.start}:{one.end}  {writing.flat(one.text)}')


@command(batch='[1, 16777216]')
def tag_command(run: tyro.conf.Positional[str], text: tyro.conf.Positional[str], output: str = '', batch: int = 32,
                ) -> None:
  """Prints a text with the entities that a model finds: [Angela Merkel PER] came.

  Args:
    run: folder of a run that has learned to tag, or of a checkpoint of transformers
    text: a text; a file, .txt of a text a line, or words in columns (.conll, .jsonl, ...); or - for standard input
    output: .conll or .tsv, a word a line with its tag, or .jsonl; empty: the text marked up
    batch: rows that go through the model together
  """
  reachable.check_reachable({output: 'write'})
  trained = transfer.able(run, 'tagging', 'tag')
  task, layout = task_of(trained), writing.layout(output, 'tagging') if output else writing.Layout(marked_up)
  if is_plain(text) and (text == '-' or is_file(text)):
    rows = writing.several(asked.lines('tagging', plain(text), name_of(text)), CHUNK)
  elif is_file(text) or text.startswith(('tfds:', 'embedded:')):
    rows = chunks(task, text, own_columns(run), 'refuse', sources.Report())
  else:
    rows = iter([[asked.asked('tagging', text, 'the text')]])
  with writing.text(output) as write:
    predicted(trained, rows, layout, write, scores := measuring.Scores(task), batch, pack=False)
  if output:
    print(f'{scores.rows:,} texts in {output}')


def marked_up(task: Task, one: Asked, said: Any) -> str:
  """Writes a text with its entities in brackets; of classes of words each word with its own."""
  if any(label[1:2] == '-' for label in task.labels):
    return marked(one.text or ' '.join(said.words), said.entities) + '\n'
  return ' '.join(f'{word}/{tag}' for word, tag in zip(said.words, said.tags, strict=True)) + '\n'


@command()
def encode_command(
    run: tyro.conf.Positional[str], file: tyro.conf.Positional[str], output: str,
    settings: Annotated[VectorsConfig, tyro.conf.arg(name='')] = VectorsConfig(),
    mesh: MeshConfig = MeshConfig(1)) -> None:
  """Writes a vector for each text of a file, or with --pooling=none one for each of its tokens.

  Args:
    run: folder of a run, or of a checkpoint of transformers
    file: .txt, a text a line; .jsonl, .tsv, .csv, plain, .gz or .xz; tfds:NAME:SPLIT; - for standard input
    output: .npy; .npz, `vectors` and, of tokens, `lengths`; or .parquet
    settings: which
    mesh: devices that share a large model
  """
  reachable.check_reachable({output: 'write'})
  writer = writing.vectors(output, settings.pooling == 'none')
  trained = static.load(run) or shared(run, mesh)
  count = 0
  with writer as write, api.on(trained) if isinstance(trained, Trained) else contextlib.nullcontext():
    for chunk in writing.several(texts_of(file, settings.column), CHUNK):
      write(encoded(trained, chunk, settings))
      count += len(chunk)
  if not count:
    raise SourceError(f'{name_of(file)} has no texts')
  print(f'vectors of {count:,} texts in {output}')


def encoded(trained: Trained | StaticVectors, chunk: list[tuple[str, str]], settings: VectorsConfig) -> Any:
  """Encodes texts with the places that they are from. Raises SourceError that names the place of one that cannot
  be."""
  def vectors(texts):
    pooling: Any = settings.pooling  # of which one gives lists
    return encode(trained, texts, settings.layer, pooling, settings.cut, settings.tokens)
  try:
    return vectors([text for text, _ in chunk])
  except ConfigError:
    for text, where in chunk:
      try:
        vectors([text])
      except ConfigError as error:
        raise SourceError(f'{where}: {error}') from error
    raise


def texts_of(file: str, column: str) -> Iterator[tuple[str, str]]:
  """Yields the texts of a file, and where each stands: 'file:line'. Raises SourceError."""
  if is_plain(file):
    for number, line in plain(file):
      if not line.strip():
        raise SourceError(f'{name_of(file)}:{number}: the line is empty: a line is a text')
      yield line, f'{name_of(file)}:{number}'
    return
  for row in sources.rows_of('classification', file, Columns(), 'refuse', Tally()):
    yield reading.text(row, column or reading.GUESSES['classification'].first), row.where


def is_plain(file: str) -> bool:
  """Tells whether a file holds a text a line."""
  return file == '-' or file.lower().endswith(PLAIN)


def is_file(text: str) -> bool:
  """Tells whether a text names a file that is there."""
  if '\n' in text or len(text) > 4096:
    return False
  with contextlib.suppress(OSError, storage.StorageError):
    return storage.path_of(text).exists()
  return False


def given_texts(given: Sequence[str], limit: int) -> list[str]:
  """Reads the texts of what are files, `limit` of each, and takes the rest as it is. Raises SourceError."""
  return [text for one in given for text in (itertools.islice(raw.texts(one), limit) if is_file(one) else [one])]


def given_lines(given: Sequence[str], limit: int) -> list[str]:
  """Reads the lines of what are files, `limit` of each, and takes the rest as it is. Raises SourceError."""
  def lines(file):
    return filter(str.strip, (line for text in raw.texts(file) for line in text.splitlines()))
  return [line for one in given for line in (itertools.islice(lines(one), limit) if is_file(one) else [one])]


def name_of(file: str) -> str:
  """Names a file for messages."""
  return 'standard input' if file == '-' else file


def plain(file: str) -> Iterator[tuple[int, str]]:
  """Yields (number, text) of the lines of a file, or of standard input."""
  if file != '-':
    yield from lines(storage.path_of(file), 'refuse', Tally())
    return
  for number, line in enumerate(sys.stdin.buffer, 1):
    text = decode(line, f'standard input:{number}', 'refuse', Tally())
    if text is not None:
      yield number, text.removesuffix('\n').removesuffix('\r')
