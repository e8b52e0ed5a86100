"""Modules of sentence-transformers' SparseEncoder: pooling of SPLADE, and weights of queries."""
from collections.abc import Mapping
import pathlib
import shutil
from typing import Any

import numpy as np

from plm_jax import storage
from plm_jax.conversion import folders
from plm_jax.conversion.files import (
  SafeTensorsFolder,
  write_json,
  write_module,
  write_safetensors,
)
from plm_jax.errors import ConfigError
from plm_jax.layers.splade import SpladeConfig
from plm_jax.models.rules import ConvertError
from plm_jax.tokenizers.contract import abbreviate

SPARSE_MODULES = (('Transformer', 'SpladePooling'), ('MLMTransformer', 'SpladePooling'))
ROUTER_SETTINGS = 'router_config.json'
QUERY_MODULE = 'SparseStaticEmbedding'


def read_router(folder: pathlib.Path) -> tuple[np.ndarray, list[tuple[str, pathlib.Path]]]:
  """Read a Router of queries by token weights, and documents by a masked language model.

  Returns:
    (weights of the tokens, class name and folder of each module of documents).

  Raises:
    ConvertError: there are other routes.
  """
  config = storage.read_json(folder / ROUTER_SETTINGS, error=ConvertError)
  types, structure = config.get('types') or {}, config.get('structure') or {}
  routes = {name: [(str(types.get(key, '')).rpartition('.')[2],
                    folders.child_path(folder, key) if key else folder) for key in keys]
            for name, keys in structure.items()}
  found = {name: tuple(module for module, _ in route) for name, route in routes.items()}
  if (set(found) != {'query', 'document'} or found['query'] != (QUERY_MODULE,)
      or found['document'] not in SPARSE_MODULES):
    raise ConvertError(f'{folder / ROUTER_SETTINGS}: the routes {abbreviate(found)} are not '
                       f'supported: known are {QUERY_MODULE} of queries, and Transformer and '
                       'SpladePooling of documents')
  source = SafeTensorsFolder(routes['query'][0][1])
  if 'weight' not in source.tensors:
    raise ConvertError(f'{source.folder}: there is no tensor weight')
  return np.asarray(source.read('weight'), np.float32), routes['document']


def read_pooling(path: Any, config: Mapping[str, Any]) -> SpladeConfig:
  """Read the pooling of sparse vectors. Raises ConvertError for an unknown one."""
  fields = {'pooling': config.get('pooling_strategy', 'max'),
            'activation': config.get('activation_function', 'relu')}
  try:
    return SpladeConfig(**fields)
  except ConfigError as error:
    raise ConvertError(f'{path}: {error.marked}') from error


def write_modules(
    folder: pathlib.Path, vector: SpladeConfig, params: Mapping[str, Any]) -> list[tuple[str, str]]:
  """Write the modules of sparse vectors -> [(class, folder)], as releases 5 and later name them."""
  package = 'sentence_transformers.sparse_encoder.models'
  documents = [(f'{package}.MLMTransformer', ''),
               (f'{package}.SpladePooling', '1_SpladePooling')]
  write_module(folder / '1_SpladePooling', {
      'pooling_strategy': vector.pooling, 'activation_function': vector.activation})
  if vector.queries == 'model':
    return documents

  # Queries: the weights of tokens, and the tokenizer again.
  query = f'query_0_{QUERY_MODULE}'
  write_module(folder / query, {'frozen': True})
  weights = np.asarray(params['query_weights'], np.float32)
  write_safetensors(folder / query, iter([('weight', weights)]), 1 << 40)
  for path in sorted(folder.iterdir()):
    if path.is_file() and path.suffix != '.safetensors' and path.name != 'config.json':
      shutil.copy(path, folder / query / path.name)
  routes = [*documents, (f'{package}.{QUERY_MODULE}', query)]
  write_json(folder / ROUTER_SETTINGS, {
      'types': {path: name for name, path in routes},
      'structure': {'query': [query], 'document': [path for _, path in documents]},
      'parameters': {'default_route': 'document', 'allow_empty_key': True}})
  return [('Router', '')]
