"""Rows of Parquet files, as datatrove and the Hugging Face hub have them."""
from collections.abc import Iterator
from typing import Any

from etils import epath

from plm_jax import storage
from plm_jax.data.lines import SourceError
from plm_jax.errors import add_advice, name_field, parse_errors_as

BATCH_ROWS = 256  # read at once: documents, each of some megabytes at most


def read_rows(file: epath.Path, field: str = '') -> Iterator[tuple[dict[str, Any], str]]:
  """Yield ({column: value}, 'file[row]') of each row; of the column `field` alone if it is given.

  Raises:
    SourceError: the file is damaged, does not have the column, or has a column twice.
  """
  from pyarrow import parquet  # a dependency of tensorflow-datasets

  with (storage.io_errors_as(file, 'read', SourceError), file.open('rb') as opened,
        parse_errors_as(file, 'a Parquet file', SourceError)):
    table = parquet.ParquetFile(opened)
    names = table.schema_arrow.names
    if field and field not in names:
      advice = add_advice(f'. {name_field("text_field")}=NAME reads another')
      raise SourceError(
          f'{file} has no column {field!r}, only {", ".join(names)[:200]}{advice}')
    for name in [field] if field else names:
      if names.count(name) > 1:
        raise SourceError(f'{file} has two columns {name!r}: rename one of them')
    number = 0
    for batch in table.iter_batches(BATCH_ROWS, columns=[field] if field else None):
      for row in batch.to_pylist():
        yield row, f'{file}[{number}]'
        number += 1
