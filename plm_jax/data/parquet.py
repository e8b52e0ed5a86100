"""Parquet files with a column of text, as datatrove and the hub have them."""
from collections.abc import Iterator
from typing import Any

from etils import epath

from plm_jax import storage
from plm_jax.data.lines import SourceError
from plm_jax.errors import option, understood

ROWS = 256  # that are read at once: documents, of which one has megabytes at most


def rows(file: epath.Path, field: str) -> Iterator[tuple[dict[str, Any], str]]:
  """Yields (the column `field` of a row, 'file[row]'). Raises SourceError for a damaged file, and for one without the
  column."""
  from pyarrow import parquet  # which tensorflow-datasets brings

  with storage.explained(file, 'read', SourceError), file.open('rb') as opened, understood(
      file, 'a Parquet file', SourceError):
    table = parquet.ParquetFile(opened)
    names = table.schema_arrow.names
    if field not in names:
      raise SourceError(f'{file} has no column {field!r}, only {", ".join(names)[:200]}. {option("text-field=NAME")} '
                        'reads another')
    number = 0
    for batch in table.iter_batches(ROWS, columns=[field]):
      for value in batch.column(0).to_pylist():
        yield {field: value}, f'{file}[{number}]'
        number += 1
