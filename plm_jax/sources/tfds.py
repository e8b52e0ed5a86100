"""TFDS data sets: tfds:NAME, tfds:NAME:SPLIT, or by the folder with the data, tfds:FOLDER:SPLIT."""
from collections.abc import Iterator
import contextlib
import functools
import logging
import re
import sys
from typing import Any
import urllib.parse

from etils import epath

from plm_jax.errors import UserError, describe_error
from plm_jax.sources.document_formats import Document, TextReadConfig, split_text
from plm_jax.sources.lines import ReadStats, SourceError, decode_line

CONNECT_TIMEOUT, READ_TIMEOUT = 20.0, 60.0
"""Seconds for a server to accept a connection, and to send the next bytes."""
RETRIES = 2
"""Of a connection; TFDS tries eleven times, which takes minutes where there is no network."""


def iterate_examples(source: str) -> Iterator[dict[str, Any]]:
  """Yield the features of every example, in the order of the files. Raises SourceError."""
  import tensorflow_datasets as tfds  # late: TensorFlow takes seconds to load, files do not need it
  builder, split = open_builder(source)
  # One file after the other: interleaved reading would make the order depend on the copy's shards.
  read_config = tfds.ReadConfig(interleave_cycle_length=1)
  data = builder.as_dataset(split=split, read_config=read_config, shuffle_files=False)
  examples = iter(tfds.as_numpy(data))
  while True:
    with tfds_errors(source):
      row = next(examples, None)
    if row is None:
      return
    yield row


def read_tfds_documents(source: str, config: TextReadConfig, stats: ReadStats
                        ) -> Iterator[Document]:
  """Yield the documents of a text feature. Raises SourceError where the feature is missing."""
  builder, _ = open_builder(source)
  if config.field not in builder.info.features:
    raise SourceError(
        f'{source} has no feature {config.field!r}, only {sorted(builder.info.features)}.')
  for number, example in enumerate(iterate_examples(source)):
    where = f'{source}[{number}]'
    if not isinstance(example[config.field], bytes):
      raise SourceError(f'{source}: the feature {config.field!r} is no text')
    text = decode_line(example[config.field], where, config.on_error, stats)
    if text is not None:
      yield from split_text(text, where, config, stats)


def class_names(source: str, feature: str) -> tuple[str, ...]:
  """Return the names of the classes of a feature, by number; () where it has none.

  Args:
    source: the data set.
    feature: its name; a dot leads to a nested feature.

  Raises:
    SourceError: the data set is missing.
  """
  builder, _ = open_builder(source)
  found: Any = builder.info.features
  for part in feature.split('.'):
    # A FeaturesDict is no Mapping.
    found = found[part] if hasattr(found, 'keys') and part in found else None
  found = getattr(found, 'feature', found)  # of the items of a sequence
  return tuple(getattr(found, 'names', None) or ())


def open_builder(source: str) -> tuple[Any, str]:
  """Return the builder and the split of `tfds:NAME:SPLIT` or `tfds:FOLDER:SPLIT`.

  Downloads the data set if necessary. Raises SourceError.
  """
  pattern = r'tfds:(?P<name>.+?)(:(?P<split>[A-Za-z_]\w*(\[[^/]*\])?(\+[^/]*)?))?'
  match = re.fullmatch(pattern, source)
  if not match:
    raise SourceError(f'{source!r} names no TFDS data set: expected tfds:NAME or tfds:FOLDER, and '
                      'perhaps :SPLIT.')
  name, split = match['name'], match['split'] or 'train'
  with tfds_errors(source):
    import tensorflow_datasets as tfds
    if epath.Path(name).expanduser().is_dir():
      builder = tfds.builder_from_directory(epath.Path(name).expanduser())
    else:
      builder = tfds.builder(name)
      if not builder.is_prepared():
        download_dataset(builder, source)
    builder.info.splits[split]  # raises when there is no such split
  return builder, split


def download_dataset(builder: Any, source: str) -> None:
  """Download a data set, with a message. Raises SourceError where a server does not answer."""
  print(f'{source} is not in {builder.data_path}: TFDS is downloading it', file=sys.stderr,
        flush=True)
  try:
    with limit_download_retries():
      builder.download_and_prepare()
  except OSError as error:  # includes errors of requests
    request = getattr(error, 'request', None)
    host = urllib.parse.urlsplit(request.url).hostname if request is not None else ''
    reason = f'{host} cannot be reached ({type(error).__name__})' if host else describe_error(error)
    raise SourceError(f'{source} cannot be downloaded: {reason}. Is this machine connected? '
                      'Otherwise give a file, or tfds:FOLDER:SPLIT with the folder of a copy'
                      ) from error


@contextlib.contextmanager
def limit_download_retries() -> Iterator[None]:
  """Set timeouts and few retries for downloads of TFDS, which has no setting for that."""
  from tensorflow_datasets.core.download import downloader
  retries, open_url = downloader.MAX_RETRIES, downloader._open_url
  logger = logging.getLogger('urllib3')
  level = logger.level
  downloader.MAX_RETRIES = RETRIES
  downloader._open_url = functools.partial(open_url, timeout=(CONNECT_TIMEOUT, READ_TIMEOUT))
  logger.setLevel(logging.ERROR)  # it would warn of every retry
  try:
    yield
  finally:
    downloader.MAX_RETRIES, downloader._open_url = retries, open_url
    logger.setLevel(level)


@contextlib.contextmanager
def tfds_errors(source: str) -> Iterator[None]:
  """Convert errors of TFDS, and of missing libraries that it needs, into SourceError."""
  try:
    yield
  except UserError:
    raise
  except Exception as error:
    raise SourceError(f'{source}: {describe_error(error)}') from error
