"""Identify the work of a command, so that the same command resumes and other work does not."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

import plm_jax
from plm_jax import errors, storage
from plm_jax.api import model_identity
from plm_jax.cli import inputs
from plm_jax.config import serialization
from plm_jax.sources import text_sources
from plm_jax.sources.source_files import file_version, find_files
from plm_jax.storage.digests import digest_json

if TYPE_CHECKING:
  from plm_jax.inference.static_vectors import StaticVectors
  from plm_jax.loading.loaded_model import LoadedModel

Work = Mapping[str, str]
"""digests that identify the work by name: model, task, tokenizer, input, configuration, ..."""


def identify_work(
    output: str, sources: Sequence[str], trained: LoadedModel | StaticVectors,
    **configuration: Any) -> Work | None:
  """Compute digests of everything that determines the results.

  Args:
    output: the output.
    sources: input files, globs and data sets, without texts.
    trained: the model.
    configuration: settings and texts: dataclasses and JSON values.

  Returns:
    The digests; None if the work cannot be resumed: the output is standard output, a device or in a
    bucket, or the input can be read only once.
  """
  if not output or storage.is_remote(storage.resolve_path(output)) or jax.process_count() > 1:
    return None
  if storage.write_target(storage.resolve_path(output)) is None:
    return None
  versions = [*map(source_versions, sources)]
  if None in versions:
    return None
  values = {name: serialization.to_plain(value) for name, value in configuration.items()}
  devices = jax.devices()
  environment = [
      plm_jax.__version__, jax.__version__, np.__version__, devices[0].device_kind, len(devices)]
  return {
      **model_identity.identify_model(trained),
      'input': digest_json(versions),
      'configuration': digest_json({**values, 'chunk': inputs.chunk_rows()}),
      'environment': digest_json(environment)}


def source_versions(source: str) -> list[str] | None:
  """Return texts that change with a source; None: it can be read only once, or not at all."""
  if source.startswith(('tfds:', 'embedded')):
    return [source]
  if source == '-':
    return None
  try:
    return [f'{file} {file_version(file)}' for file in find_files(source)]
  except errors.UserError:  # reading it raises an error that names the place
    return None


def digest_content(names: Sequence[str]) -> str:
  """Compute the sha256 of the content of sources: files, globs, folders and data sets."""
  return digest_json([name if name.startswith(('tfds:', 'embedded')) else
                      text_sources.fingerprint(name) for name in names])
