"""Data sets of TFDS: tfds:NAME, tfds:NAME:SPLIT, or by the folder that holds one, tfds:FOLDER:SPLIT."""
from collections.abc import Iterator
import contextlib
import re
from typing import Any

from etils import epath

from plm_jax.data.formats import Document, Reading, split_text
from plm_jax.data.lines import SourceError, Tally, decode
from plm_jax.errors import outside


def rows(source: str) -> Iterator[dict[str, Any]]:
  """Yields the features of every example, in the order of its files. Raises SourceError."""
  import tensorflow_datasets as tfds  # late: TensorFlow takes seconds to load, and files do not need it
  builder, split = builder_of(source)
  # One file after the other: interleaved reading would make the order depend on the shards of the copy.
  data = builder.as_dataset(split=split, read_config=tfds.ReadConfig(interleave_cycle_length=1), shuffle_files=False)
  examples = iter(tfds.as_numpy(data))
  while True:
    with of_tfds(source):
      row = next(examples, None)
    if row is None:
      return
    yield row


def documents(source: str, reading: Reading, tally: Tally) -> Iterator[Document]:
  """Yields the documents of a feature of text. Raises SourceError where there is none of the name."""
  builder, _ = builder_of(source)
  if reading.field not in builder.info.features:
    raise SourceError(f'{source} has no feature {reading.field!r}, only {sorted(builder.info.features)}.')
  for number, example in enumerate(rows(source)):
    where = f'{source}[{number}]'
    if not isinstance(example[reading.field], bytes):
      raise SourceError(f'{source}: the feature {reading.field!r} is no text')
    text = decode(example[reading.field], where, reading.on_error, tally)
    if text is not None:
      yield from split_text(text, where, tally)


def class_names(source: str, feature: str) -> tuple[str, ...]:
  """Returns what the classes of a feature are called, in the order of their numbers; () where it has none. A dot goes
  inside. Raises SourceError for a data set that is not there."""
  builder, _ = builder_of(source)
  found: Any = builder.info.features
  for part in feature.split('.'):
    found = found[part] if hasattr(found, 'keys') and part in found else None  # a FeaturesDict is no Mapping
  found = getattr(found, 'feature', found)  # of the items of a sequence
  return tuple(getattr(found, 'names', None) or ())


def builder_of(source: str) -> tuple[Any, str]:
  """Returns builder and split of `tfds:NAME:SPLIT` or `tfds:FOLDER:SPLIT`."""
  match = re.fullmatch(r'tfds:(?P<name>.+?)(:(?P<split>[A-Za-z_]\w*(\[[^/]*\])?(\+[^/]*)?))?', source)
  if not match:
    raise SourceError(f'{source!r} names no TFDS data set: expected tfds:NAME or tfds:FOLDER, and perhaps :SPLIT.')
  name, split = match['name'], match['split'] or 'train'
  with of_tfds(source):
    import tensorflow_datasets as tfds
    if epath.Path(name).expanduser().is_dir():
      builder = tfds.builder_from_directory(epath.Path(name).expanduser())
    else:
      builder = tfds.builder(name)
      builder.download_and_prepare()
    builder.info.splits[split]  # raises when there is no such split
  return builder, split


@contextlib.contextmanager
def of_tfds(source: str) -> Iterator[None]:
  """Turns what TFDS raises, of its own and of what it downloads with and is not installed, into one line."""
  try:
    yield
  except Exception as error:
    raise SourceError(f'{source}: {outside(error)}') from error


def described(source: str) -> str:
  """Returns name, version, split and number of examples: what changes when the data set does."""
  builder, split = builder_of(source)
  return f'{builder.info.full_name} {split} {builder.info.splits[split].num_examples}'
