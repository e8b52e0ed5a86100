"""Read and write folders of sentence-transformers: pooling, dense layer, normalization.

    folder = read_folder('all-MiniLM-L6-v2/')      # None: a folder of another kind
    write_modules(folder, vector, params, ...)     # next to the checkpoint of the encoder
"""
from collections.abc import Mapping, Sequence
import json
import pathlib
import types
from typing import Any, NamedTuple

import numpy as np

from plm_jax import storage
from plm_jax.conversion import folders
from plm_jax.conversion.files import SafeTensorsFolder, write_json, write_safetensors
from plm_jax.layers.pooling import Pooling, VectorConfig
from plm_jax.models.rules import ConvertError
from plm_jax.storage import hub
from plm_jax.tokenizers.contract import abbreviate

MODULES = 'modules.json'
ENCODER_SETTINGS = 'sentence_bert_config.json'
POOLING_NAMES: Mapping[Pooling, str] = {
    'first': 'cls_token', 'mean': 'mean_tokens', 'max': 'max_tokens',
    'mean_sqrt': 'mean_sqrt_len_tokens', 'weighted_mean': 'weightedmean_tokens',
    'last': 'lasttoken'}
SHORT_POOLING_NAMES = {
    'cls': 'first', 'mean': 'mean', 'max': 'max', 'mean_sqrt_len_tokens': 'mean_sqrt',
    'weightedmean': 'weighted_mean', 'lasttoken': 'last'}
"""names that release 6 and later write"""
# Order in which sentence-transformers concatenates the vectors of poolings.
POOLING_ORDER = ('cls_token', 'max_tokens', 'mean_tokens', 'mean_sqrt_len_tokens',
                 'weightedmean_tokens', 'lasttoken')
ACTIVATIONS: Mapping[str, str] = {
    'tanh': 'torch.nn.modules.activation.Tanh', 'relu': 'torch.nn.modules.activation.ReLU',
    'gelu': 'torch.nn.modules.activation.GELU', 'silu': 'torch.nn.modules.activation.SiLU',
    'none': 'torch.nn.modules.linear.Identity'}
KNOWN_MODULES = ('Transformer', 'Pooling', 'Dense', 'Normalize')  # in this order


class SentenceTransformersFolder(NamedTuple):
  """A folder of sentence-transformers, without its encoder."""

  root: str
  """folder of the encoder"""
  vector: VectorConfig
  params: dict[str, Any]
  """parameters of the head: `dense`, or nothing"""
  length: int
  """maximum tokens per row; 0: that of the encoder"""
  prompts: Mapping[str, str] = types.MappingProxyType({})
  """prefixes that `search` puts before texts: of a 'query', and of a 'document'"""


def read_folder(folder: Any) -> SentenceTransformersFolder | None:
  """Read a folder of sentence-transformers; None for one without modules.json.

  Raises ConvertError, which names it, for an unknown module, pooling, activation or setting.
  """
  listed = read_modules(folder)
  if listed is None:
    return None
  home, modules = listed
  names, paths = [name for name, _ in modules], dict(modules)
  in_order = []
  for name in KNOWN_MODULES:
    if name in names:
      in_order.append(name)
  if names != in_order or names[:2] != ['Transformer', 'Pooling']:
    raise ConvertError(
        f'{home / MODULES}: the modules are {abbreviate(names)}; known are '
        f'{", ".join(KNOWN_MODULES)}, in this order; the last two are optional')
  check_settings(home, paths['Transformer'])
  pooling_config = paths['Pooling'] / 'config.json'
  fields: dict[str, Any] = {
      'pooling': read_poolings(pooling_config), 'normalize': 'Normalize' in names}
  params: dict[str, Any] = {}
  if 'Dense' in names:
    dense_fields, params = read_dense(paths['Dense'])
    fields |= dense_fields
  prompts = read_prompts(home, pooling_config)
  root = paths['Transformer']
  return SentenceTransformersFolder(
      str(root), VectorConfig(**fields), params, read_max_length(root), prompts)


def read_modules(folder: Any) -> tuple[pathlib.Path, list[tuple[str, pathlib.Path]]] | None:
  """Read modules.json -> (local folder, class name and folder of each module, in order).

  None for a folder without modules.json. Raises ConvertError for an invalid list.
  """
  place = hub.find_folder(folder)
  with storage.io_errors_as(place, 'read', ConvertError):
    if not (place / MODULES).exists():
      return None
  home, modules = folders.copy_if_remote(place), []
  for item in storage.read_json(home / MODULES, list, error=ConvertError):
    fields = {}
    if isinstance(item, dict):
      fields = item
    name = str(fields.get('type', '')).rpartition('.')[2]
    path = str(fields.get('path', ''))
    modules.append((name, folders.child_path(home, path) if path else home))
  return home, modules


def read_optional_json(path: Any) -> dict[str, Any]:
  """Read a JSON object; {} if there is no file. Raises ConvertError."""
  if path.exists():
    return storage.read_json(path, error=ConvertError)
  return {}


def read_max_length(root: Any) -> int:
  """Return the maximum tokens per row that a folder states; 0 if it states none.

  Release 6 and later state it in tokenizer_config.json alone.
  """
  length = read_optional_json(root / ENCODER_SETTINGS).get('max_seq_length')
  if length is None:
    length = read_optional_json(root / 'tokenizer_config.json').get('model_max_length')
  # A tokenizer without a limit states a huge number.
  if isinstance(length, int) and 0 < length <= 1 << 24:
    return length
  return 0


def read_prompts(home: Any, pooling: Any) -> dict[str, str]:
  """Read the prompts of queries and documents, as encode_query and encode_document find them.

  Raises ConvertError if pooling excludes their tokens.
  """
  stated = read_optional_json(home / 'config_sentence_transformers.json').get('prompts')
  if not isinstance(stated, dict):
    stated = {}
  prompts = {}
  for role, names in (('query', ('query',)), ('document', ('document', 'passage', 'corpus'))):
    found = []
    for name in names:
      if isinstance(stated.get(name), str):
        found.append(stated[name])
    if found and found[0]:
      prompts[role] = found[0]
  if prompts and storage.read_json(pooling, error=ConvertError).get('include_prompt') is False:
    raise ConvertError(f'{pooling}: include_prompt is false: tokens of a prompt are left out of '
                       'vectors, which is not supported')
  return prompts


def check_settings(home: Any, root: Any) -> None:
  """Raise ConvertError for settings that change texts before encoding: a prompt, or lower case."""
  settings = home / 'config_sentence_transformers.json'
  prompt = read_optional_json(settings).get('default_prompt_name')
  if prompt:
    raise ConvertError(f'{settings}: texts are encoded after the prompt {abbreviate(prompt)}, '
                       'which is not supported')
  lower = read_optional_json(root / 'tokenizer_config.json').get('do_lower_case')
  if read_optional_json(root / ENCODER_SETTINGS).get('do_lower_case') and not lower:
    raise ConvertError(f'{root / ENCODER_SETTINGS}: do_lower_case is true, and the tokenizer keeps '
                       'capitals')


def read_poolings(path: Any) -> tuple[Pooling, ...]:
  """Read the poolings. Raises ConvertError for an unknown one."""
  config = storage.read_json(path, error=ConvertError)
  if 'pooling_mode' in config:
    modes = config['pooling_mode']
    if isinstance(modes, str):
      modes = [modes]
    else:
      modes = list(modes)
    known = SHORT_POOLING_NAMES
  else:
    prefix = 'pooling_mode_'
    used = []
    for name, value in config.items():
      if name.startswith(prefix) and value is True:
        used.append(name)
    modes = sort_poolings([name.removeprefix(prefix) for name in used])
    known = {theirs: ours for ours, theirs in POOLING_NAMES.items()}
  unknown = []
  for mode in modes:
    if mode not in known:
      unknown.append(mode)
  if unknown:
    raise ConvertError(f'{path}: the pooling {", ".join(map(abbreviate, unknown))} is not known: '
                       f'known are {", ".join(known)}')
  if not modes:
    raise ConvertError(f'{path}: no pooling is enabled')
  return tuple(known[mode] for mode in modes)  # pyright: ignore


def sort_poolings(modes: list[str]) -> list[str]:
  """Sort poolings by the order in which sentence-transformers concatenates their vectors."""
  order = {mode: number for number, mode in enumerate(POOLING_ORDER)}
  return sorted(modes, key=lambda mode: order.get(mode, -1))


def read_dense(folder: Any) -> tuple[dict[str, Any], dict[str, Any]]:
  """Read a dense layer -> (fields of `VectorConfig`, parameters)."""
  config = storage.read_json(folder / 'config.json', error=ConvertError)
  known = {theirs.rpartition('.')[2]: ours for ours, theirs in ACTIVATIONS.items()}
  name = str(config.get('activation_function', ACTIVATIONS['tanh'])).rpartition('.')[2]
  if name not in known:
    raise ConvertError(f'{folder}: the activation {abbreviate(name)} is not known: known are '
                       f'{", ".join(known)}')
  source = SafeTensorsFolder(folder)
  if 'linear.weight' not in source.tensors:
    raise ConvertError(f'{folder}: there is no tensor linear.weight')
  weight = np.asarray(source.read('linear.weight'), np.float32)
  layer, has_bias = {'kernel': weight.T}, 'linear.bias' in source.tensors
  if has_bias:
    layer['bias'] = np.asarray(source.read('linear.bias'), np.float32)
  fields = {'dense': len(weight), 'activation': known[name], 'dense_bias': has_bias}
  return fields, {'dense': layer}


def write_modules(
    folder: pathlib.Path, vector: VectorConfig, params: Mapping[str, Any], width: int, length: int,
    prompts: Mapping[str, str] | None = None) -> None:
  """Write the modules of sentence embeddings next to an encoder's checkpoint.

  Args:
    folder: of the checkpoint.
    vector: pooling, dense layer and normalization.
    params: parameters of the head.
    width: D, hidden size of the encoder.
    length: maximum tokens per row.
    prompts: texts before each 'query' and each 'document'; None: there are none.

  Raises:
    ConvertError: sentence-transformers concatenates the poolings in another order.
  """
  modes = [POOLING_NAMES[name] for name in vector.pooling]
  if modes != sort_poolings(modes) or len({*modes}) < len(modes):
    raise ConvertError('sentence-transformers joins the vectors of poolings in the order '
                       f'{", ".join(sort_poolings(modes))}')
  modules = [('Transformer', ''), ('Pooling', '1_Pooling')]
  config: dict[str, Any] = {'word_embedding_dimension': width}
  for name in POOLING_NAMES.values():
    config[f'pooling_mode_{name}'] = name in modes
  write_module(folder / '1_Pooling', config | {'include_prompt': True})
  if vector.dense and vector.dense_used == 'always':
    modules.append(('Dense', '2_Dense'))
    write_module(folder / '2_Dense', {
        'in_features': width * len(modes), 'out_features': vector.dense,
        'bias': vector.dense_bias, 'activation_function': ACTIVATIONS[vector.activation]})
    layer = params['dense']
    tensors = {'linear.weight': np.asarray(layer['kernel'], np.float32).T}
    if vector.dense_bias:
      tensors['linear.bias'] = np.asarray(layer['bias'], np.float32)
    write_safetensors(folder / '2_Dense', iter(tensors.items()), 1 << 40)
  if vector.normalize:
    name = f'{len(modules)}_Normalize'
    modules.append(('Normalize', name))
    (folder / name).mkdir()
  if prompts:
    write_json(folder / 'config_sentence_transformers.json', {
        'prompts': dict(prompts), 'default_prompt_name': None, 'similarity_fn_name': 'cosine'})
  write_json(folder / ENCODER_SETTINGS, {'max_seq_length': length, 'do_lower_case': False})
  write_module_list(folder, modules)


def write_module(folder: pathlib.Path, config: Mapping[str, Any]) -> None:
  """Create the folder of a module with its configuration."""
  folder.mkdir()
  write_json(folder / 'config.json', config)


def write_module_list(folder: pathlib.Path, modules: Sequence[tuple[str, str]]) -> None:
  """Write modules.json, given the class name and folder of each module."""
  listed = []
  for number, (name, path) in enumerate(modules):
    listed.append({'idx': number, 'name': str(number), 'path': path,
                   'type': f'sentence_transformers.models.{name}'})
  (folder / MODULES).write_text(json.dumps(listed, indent=2))
