"""Outputs of commands that resume where they were interrupted (`storage.journal`)."""
from __future__ import annotations

from collections.abc import Iterator
import contextlib
import sys
import tempfile
from typing import Any

import numpy as np

from plm_jax import errors, storage
from plm_jax.cli import output_files
from plm_jax.cli.work_identity import Work
from plm_jax.errors import ConfigError
from plm_jax.storage.journal import ChunkOutput, PartialFile
from plm_jax.storage.lock import LockError

SPARSE_WEIGHT = np.dtype([('token', '<i4'), ('weight', '<f4')])
"""a weight of a sparse vector"""


class VectorOutput(ChunkOutput):
  """Vectors that grow in another output as float32 numbers; its journal holds their shapes.

  Of sparse vectors, these are the numbers of weights per text.
  """

  def __init__(self, part: ChunkOutput, ragged: bool, sparse: bool = False):
    self.part, self.ragged, self.sparse = part, ragged, sparse
    self.shapes: list[Any] = []

  def skip_chunk(self, rows):
    chunk = self.part.skip_chunk(rows)
    if chunk:
      self.shapes.append(chunk.record)
    return chunk

  def write(self, content):
    """Append the vectors of a chunk: [N, D], an array or csr_array; or arrays [length, D] of N
    texts."""
    if self.sparse:
      weights = np.empty(content.nnz, SPARSE_WEIGHT)
      weights['token'], weights['weight'] = content.indices, content.data
      self.part.write(weights.tobytes())
      self.shapes.append([content.shape[1], np.diff(content.indptr).tolist()])
      return
    flat = np.concatenate(content) if self.ragged else content
    self.part.write(np.ascontiguousarray(flat, '<f4').tobytes())
    self.shapes.append([flat.shape[1], [len(one) for one in content] if self.ragged else []])

  def finish_chunk(self, rows, record=None):
    self.part.finish_chunk(rows, record or self.shapes[-1])

  def publish(self, output: str, draft: Any) -> None:
    """Write the complete file from the numbers in a file `draft`."""
    draft.flush()
    lengths = [length for _, some in self.shapes for length in some]
    if self.sparse:
      weights = np.memmap(draft, SPARSE_WEIGHT, 'r') if any(lengths) else np.zeros(0, SPARSE_WEIGHT)
      output_files.write_sparse_vectors(
          output, weights['weight'], weights['token'], lengths, self.shapes[0][0])
      return
    vectors = np.memmap(draft, '<f4', 'r').reshape(-1, self.shapes[0][0])
    output_files.write_vectors(output, vectors, lengths if self.ragged else None)


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
    output: str, ragged: bool, work: Work | None, sparse: bool = False) -> Iterator[ChunkOutput]:
  """Open an output for vectors.

  Args:
    output: a file, see `output_files.check_vector_output`.
    ragged: whether chunks are lists of arrays [length, D], and not arrays [N, D].
    work: identifies the work (`work_identity.identify_work`); None: it cannot be resumed.
    sparse: whether chunks are csr_arrays of scipy.
  """
  if work is None:
    with storage.io_errors_as(output, 'written'), tempfile.TemporaryFile() as draft:
      vectors = VectorOutput(ChunkOutput(draft.write), ragged, sparse)
      yield vectors
      vectors.publish(output, draft)
    return
  with open_partial(output, work, 'texts') as part:
    vectors = VectorOutput(part, ragged, sparse)
    yield vectors
    vectors.publish(output, part.data)
    part.remove()
