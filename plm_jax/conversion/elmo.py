"""ELMo as AllenNLP released it: an `options.json` and weights in an `.hdf5`, both ways."""
from collections.abc import Mapping
import json
import pathlib
from typing import Any

from etils import epath
import jax
import numpy as np

from plm_jax import storage
from plm_jax.architectures.elmo import Elmo, ElmoConfig
from plm_jax.conversion import folders
from plm_jax.conversion.rules import ConvertError, Family
from plm_jax.errors import outside
from plm_jax.models import elmo
from plm_jax.models.elmo import WeightsError

OPTIONS, WEIGHTS = 'options.json', 'weights.hdf5'  # released ones have a prefix

# What AllenNLP knows of it: no tensors by name, but the arrays of a file of its own, and no heads.
FAMILY = Family(
    name='elmo', backbone=lambda config: Elmo(config), config=ElmoConfig(), attributes=(), fixed={},
    ignored=frozenset(), rules=(), parts={}, heads={}, classes={}, prefix='',
    read="AllenNLP reads it with Elmo('{folder}/options.json', '{folder}/weights.hdf5', 1)",
    reads=lambda config: {'characters': (1, 8, config.characters.longest)})


def is_elmo(folder: epath.PathLike) -> bool:
  """Tells whether a folder holds files of an ELMo, NAMEoptions.json, and none of another library."""
  folder = storage.path_of(folder)
  return not storage.remote(folder) and folder.is_dir() and any(folder.glob(f'*{OPTIONS}')) and (
      not (folder / 'config.json').exists())


def load(folder: epath.PathLike) -> tuple[ElmoConfig, dict[str, Any]]:
  """Loads the model in a folder with one *options.json and one *.hdf5 -> its sizes, and parameters of the backbone.

  Raises WeightsError for files that are missing, damaged, or not of one model, and names what differs.
  """
  place = folders.local(folder)
  options, weights = (one(place, pattern) for pattern in (f'*{OPTIONS}', '*.hdf5'))
  config = elmo.from_options(storage.read_json(options, error=WeightsError))
  try:
    with h5py().File(weights, 'r') as file:
      found: dict[str, Any] = {}
      file.visititems(lambda name, x: found.update({name: x}) if hasattr(x, 'shape') else None)
      return config, elmo.from_arrays(config, {name: x[()] for name, x in found.items()})
  except OSError as error:
    raise WeightsError(f'{weights} cannot be read as HDF5: {outside(error)}') from error


def save(folder: epath.PathLike, config: ElmoConfig, params: Mapping[str, Any], dtype: str | None = None) -> None:
  """Writes options.json and weights.hdf5 as AllenNLP and bilm-tf read them, without softmax.

  params: of the backbone. Raises WeightsError for a model that they do not know, ConvertError for another dtype than
  float32 and for a folder that is not empty.
  """
  if dtype not in (None, 'float32'):
    raise ConvertError(f'the .hdf5 of an ELMo holds float32, got {dtype}')
  if not config.skip:
    raise WeightsError('AllenNLP reads models whose LSTMs have skip connections only: --model.skip True')
  with folders.fresh_folder(folder) as draft:
    with h5py().File(draft / WEIGHTS, 'w') as file:
      for name, x in elmo.to_arrays(config, jax.tree.map(np.asarray, params)).items():
        file.create_dataset(name, data=x)
    (draft / OPTIONS).write_text(json.dumps(elmo.to_options(config), indent=1) + '\n')


def one(folder: pathlib.Path, pattern: str) -> pathlib.Path:
  """Finds the one file of a pattern. Raises WeightsError."""
  found = sorted(folder.glob(pattern)) if folder.is_dir() else []
  if len(found) != 1:
    raise WeightsError(f'{folder} has {len(found)} files {pattern}, expected one, as an ELMo is released')
  return found[0]


def h5py() -> Any:
  """Imports h5py. Raises WeightsError where it is not installed."""
  try:
    import h5py as library
  except ImportError as error:
    raise WeightsError('reading and writing .hdf5 needs h5py: pip install "plm_jax[convert]"') from error
  return library
