"""Journals: JSON files from which interrupted work resumes.

A journal is written atomically after each finished part of the work. It has a format number, the
fingerprint of what is worked on (`source`), and a checksum of its fields. Work that is not in the
journal does not count.
"""
from collections.abc import Mapping
import os
from typing import Any

from etils import epath

from plm_jax import storage
from plm_jax.errors import SAVED, UserError
from plm_jax.storage.digests import digest_json

FILE_NAME = 'journal.json'


def write_journal(
    folder: epath.PathLike, format_number: int, fields: Mapping[str, Any],
    error: type[UserError] = storage.StorageError) -> None:
  """Write the journal of a folder atomically.

  Args:
    folder: that of the work.
    format_number: number to raise when the fields, or the rules of the work, change.
    fields: progress of the work, as JSON.
    error: class of the error that is raised where it cannot be written.
  """
  content = {'format': format_number, **fields}
  storage.write_json(
      storage.resolve_path(folder) / FILE_NAME, {**content, 'check': digest_json(content)}, error)
  SAVED.append(os.fspath(folder))


def read_journal(
    folder: epath.PathLike, format_number: int, error: type[UserError] = storage.StorageError
) -> dict[str, Any] | str | None:
  """Read the journal of a folder.

  Args:
    folder: that of the work.
    format_number: number that the journal must have.
    error: class of the error that is raised where it cannot be read.

  Returns:
    The fields; None if there is no journal; or a text that says why it cannot be used.
  """
  path = storage.resolve_path(folder) / FILE_NAME
  with storage.io_errors_as(path, 'read', error):
    if not path.exists():
      return None
  content = storage.read_bytes(path, error=error)
  try:
    fields = storage.parse_json(content.decode(errors='replace'), path, dict, error)
  except error:
    return f'{path} is damaged'
  check = fields.pop('check', None)
  if check != digest_json(fields) or fields.pop('format') != format_number:
    return f'{path} is damaged or of another version'
  return fields
