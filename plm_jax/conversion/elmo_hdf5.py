"""ELMo files as AllenNLP released them, both ways: an `options.json` and weights in an `.hdf5`."""
from collections.abc import Mapping
import itertools
import json
import pathlib
from typing import Any

from etils import epath
import jax
import numpy as np

from plm_jax import storage
from plm_jax.architectures.elmo import ElmoConfig
from plm_jax.conversion import folders
from plm_jax.conversion.source_formats import ELMO_OPTIONS
from plm_jax.errors import describe_error, name_field
from plm_jax.models import elmo
from plm_jax.models.elmo import WeightsError
from plm_jax.models.rules import ConvertError

MAX_MAGNITUDE = 1e9
"""no trained parameter comes near it; a flipped bit of an exponent goes far beyond it"""
OPTIONS, WEIGHTS = ELMO_OPTIONS, 'weights.hdf5'
"""names of the files; released ones have a prefix"""


def load(folder: epath.PathLike) -> tuple[ElmoConfig, dict[str, Any]]:
  """Load the model in a folder with one *options.json and one *.hdf5.

  Returns:
    The configuration and the parameters of the backbone.

  Raises:
    WeightsError: for files that are missing, damaged, or not of one model, with what differs.
  """
  place = folders.copy_if_remote(folder)
  options = find_single_file(place, f'*{OPTIONS}')
  weights = find_single_file(place, '*.hdf5')
  config = elmo.parse_options(storage.read_json(options, error=WeightsError))
  return config, elmo.import_arrays(config, read_arrays(weights))


def read_arrays(path: pathlib.Path) -> dict[str, np.ndarray]:
  """Read all arrays of an HDF5 file by their full names.

  Such files have no checksums, so everything is checked that the format states: the type of the
  numbers, their count, and that no two arrays share bytes. HDF5 itself refuses a truncated file.
  Raises WeightsError, which names the file and the array.
  """
  arrays: dict[str, np.ndarray] = {}
  extents: list[tuple[int, int, str]] = []
  try:
    with import_h5py().File(path, 'r') as file:
      datasets: dict[str, Any] = {}
      file.visititems(
          lambda name, x: datasets.update({name: x}) if hasattr(x, 'shape') else None)
      for name, dataset in datasets.items():
        if dataset.dtype != np.dtype('<f4'):
          raise WeightsError(
              f'{path}: {name} holds {dataset.dtype}, expected little-endian float32')
        start, stored = dataset.id.get_offset(), dataset.id.get_storage_size()
        if start is not None:  # contiguous
          if stored != dataset.size * 4:
            raise WeightsError(f'{path}: damaged: {name} has {stored:,} bytes, expected '
                               f'{dataset.size * 4:,}')
          extents.append((start, start + stored, name))
        arrays[name] = dataset[()]
  # All of these are raised by h5py for damaged files.
  except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
    raise WeightsError(f'{path} cannot be read as HDF5: {describe_error(error)}') from error
  extents.sort()
  for (_, stop, name), (start, _, following) in itertools.pairwise(extents):
    if start < stop:
      raise WeightsError(f'{path}: damaged: {name} and {following} share bytes')
  for name, array in arrays.items():
    if not (np.abs(array) < MAX_MAGNITUDE).all():  # false for NaN, too
      raise WeightsError(f'{path}: damaged: {name} has values that are not finite, or beyond '
                         f'{MAX_MAGNITUDE:.0e}')
  return arrays


def save(
    folder: epath.PathLike, config: ElmoConfig, params: Mapping[str, Any],
    dtype: str | None = None,
) -> None:
  """Write options.json and weights.hdf5 as AllenNLP and bilm-tf read them, without softmax.

  Args:
    folder: a new or empty folder.
    config: of the model.
    params: of the backbone.
    dtype: float32 or None, which is the same.

  Raises:
    WeightsError: for a model that AllenNLP does not know.
    ConvertError: for another dtype, and for a folder that is not empty.
  """
  if dtype not in (None, 'float32'):
    raise ConvertError(f'the .hdf5 of an ELMo holds float32, got {dtype}')
  if not config.skip:
    raise WeightsError(
        f'AllenNLP reads models whose LSTMs have skip connections only: {name_field("model.skip")} '
        'True')
  with folders.atomic_folder(folder) as draft:
    arrays = elmo.export_arrays(config, jax.tree.map(np.asarray, params))
    with import_h5py().File(draft / WEIGHTS, 'w') as file:
      for name, x in arrays.items():
        file.create_dataset(name, data=x)
    (draft / OPTIONS).write_text(json.dumps(elmo.make_options(config), indent=1) + '\n')


def find_single_file(folder: pathlib.Path, pattern: str) -> pathlib.Path:
  """Find the one file that a pattern matches. Raises WeightsError for none or several."""
  found = sorted(folder.glob(pattern)) if folder.is_dir() else []
  if len(found) != 1:
    raise WeightsError(
        f'{folder} has {len(found)} files {pattern}, expected one, as an ELMo is released')
  return found[0]


def import_h5py() -> Any:
  """Import h5py. Raises WeightsError where it is not installed."""
  try:
    import h5py
  except ImportError as error:
    raise WeightsError(
        'reading and writing .hdf5 needs h5py: pip install "plm_jax[convert]"') from error
  return h5py
