"""Outputs of commands that resume where they were interrupted (`storage.journal`)."""
from __future__ import annotations

from collections.abc import Iterator
import contextlib
import sys
from typing import Any

import numpy as np

from plm_jax import errors, storage
from plm_jax.cli import output_files
from plm_jax.cli.work_identity import Work
from plm_jax.errors import ConfigError
from plm_jax.storage.journal import ChunkOutput, PartialFile
from plm_jax.storage.lock import LockError


class VectorOutput(ChunkOutput):
  """Vectors that grow in a partial output as float32 numbers; the journal holds their shapes."""

  def __init__(self, part: PartialFile, ragged: bool):
    self.part, self.ragged = part, ragged
    self.shape: list[Any] = []

  def skip_chunk(self, rows):
    return self.part.skip_chunk(rows)

  def write(self, content):
    """Append the vectors of a chunk: an array [N, D], or arrays [length, D] of N texts."""
    flat, lengths = content, []
    if self.ragged:
      flat, lengths = np.concatenate(content), [len(one) for one in content]
    self.part.write(np.ascontiguousarray(flat, '<f4').tobytes())
    self.shape = [flat.shape[1], lengths]

  def finish_chunk(self, rows, record=None):
    del record
    self.part.finish_chunk(rows, self.shape)

  def read_vectors(self) -> Iterator[Any]:
    """Yield the vectors of each chunk, as they were written."""
    self.part.data.flush()
    with storage.io_errors_as(self.part.path, 'read'), open(self.part.path, 'rb') as file:
      for chunk in self.part.chunks():
        width, lengths = chunk.record
        vectors = np.frombuffer(file.read(chunk.bytes - file.tell()), '<f4').reshape(-1, width)
        yield np.split(vectors, np.cumsum(lengths)[:-1]) if self.ragged else vectors


@contextlib.contextmanager
def open_partial(output: str, work: Work, unit: str) -> Iterator[PartialFile]:
  """Open a partial output, and close it; it stays if the work does not finish."""
  try:
    part = PartialFile(output, work, unit)
  except LockError as error:
    raise ConfigError(f'{error}: wait for it, stop it, or give another --output') from error
  try:
    yield part
  except BaseException as error:
    if not part.num_chunks:
      part.remove()
      raise
    errors.SAVED.append(part.name)
    stopped = errors.SIGNALS or isinstance(error, KeyboardInterrupt)
    remedy = '; the same command resumes after them' if stopped else ''
    print(f'{part.rows:,} {unit} are complete in {part.name}{remedy}', file=sys.stderr)
    raise
  finally:
    part.close()


@contextlib.contextmanager
def open_text(output: str, work: Work | None, unit: str = 'rows') -> Iterator[ChunkOutput]:
  """Open an output for text.

  Args:
    output: a file; '': standard output.
    work: identifies the work (`work_identity.identify_work`); None: it cannot be resumed.
    unit: plural noun for the rows in messages.
  """
  if work is None:
    with output_files.open_text(output) as write:
      yield ChunkOutput(write)
    return
  with open_partial(output, work, unit) as part:
    yield part
    part.publish()


@contextlib.contextmanager
def open_vectors(
    output: str, writer: contextlib.AbstractContextManager[output_files.Write], ragged: bool,
    work: Work | None) -> Iterator[ChunkOutput]:
  """Open an output for vectors.

  Args:
    output: a file.
    writer: writes the complete file, see `output_files.open_vectors`.
    ragged: whether chunks are lists of arrays [length, D], and not arrays [N, D].
    work: identifies the work (`work_identity.identify_work`); None: it cannot be resumed.
  """
  if work is None:
    with writer as write:
      yield ChunkOutput(write)
    return
  with open_partial(output, work, 'texts') as part:
    vectors = VectorOutput(part, ragged)
    yield vectors
    with writer as write:
      for chunk in vectors.read_vectors():
        write(chunk)
    part.remove()
