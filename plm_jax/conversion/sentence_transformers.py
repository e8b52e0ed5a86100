"""Read and write folders of sentence-transformers: pooling, dense layers, normalization, prompts.

Folders of a SparseEncoder have a masked language model and the pooling of its logits (SPLADE).

    folder = read_folder('all-MiniLM-L6-v2/')      # None: a folder of another kind
    write_modules(folder, modules, width)          # next to the checkpoint of the encoder

Folders of PyLate have vectors of tokens instead of pooling: see `conversion.pylate`. A
cross-encoder is a checkpoint of transformers; `cross_encoder_attributes` reads what such a folder
adds to it.
"""
from collections.abc import Mapping, Sequence
import dataclasses
import json
import pathlib
import types
from typing import Any, NamedTuple, get_args

import numpy as np

from plm_jax import storage
from plm_jax.conversion import folders, pylate, sparse_encoder
from plm_jax.conversion.files import (
  SafeTensorsFolder,
  write_json,
  write_module,
  write_safetensors,
)
from plm_jax.conversion.torch_pickle import PICKLED, PytorchBin
from plm_jax.layers.pooling import DenseConfig, Pooling, VectorConfig
from plm_jax.layers.splade import SpladeConfig
from plm_jax.layers.token_vectors import TokenVectorConfig
from plm_jax.metrics.nearest import Comparison, Similarity
from plm_jax.models.rules import ConvertError
from plm_jax.storage import hub
from plm_jax.tokenizers.contract import abbreviate

MODULES = 'modules.json'
MODEL_SETTINGS = 'config_sentence_transformers.json'
ENCODER_SETTINGS = 'sentence_bert_config.json'
POOLING_NAMES: Mapping[Pooling, str] = {
    'first': 'cls_token', 'mean': 'mean_tokens', 'max': 'max_tokens',
    'mean_sqrt': 'mean_sqrt_len_tokens', 'weighted_mean': 'weightedmean_tokens',
    'last': 'lasttoken'}
SHORT_POOLING_NAMES: Mapping[Pooling, str] = {
    'first': 'cls', 'mean': 'mean', 'max': 'max', 'mean_sqrt': 'mean_sqrt_len_tokens',
    'weighted_mean': 'weightedmean', 'last': 'lasttoken'}
"""names of release 6 and later, which concatenates the vectors of poolings in any order"""
# Order in which earlier releases concatenate the vectors of poolings.
POOLING_ORDER = ('cls_token', 'max_tokens', 'mean_tokens', 'mean_sqrt_len_tokens',
                 'weightedmean_tokens', 'lasttoken')
ACTIVATIONS: Mapping[str, str] = {
    'tanh': 'torch.nn.modules.activation.Tanh', 'relu': 'torch.nn.modules.activation.ReLU',
    'gelu': 'torch.nn.modules.activation.GELU', 'silu': 'torch.nn.modules.activation.SiLU',
    'none': 'torch.nn.modules.linear.Identity'}
KNOWN_MODULES = ('Transformer', 'Pooling', 'Dense', 'Normalize')  # in this order
PROMPT_NAMES: Mapping[str, Sequence[str]] = {
    'query': ('query',), 'document': ('document', 'passage', 'corpus')}
"""names of the prompts of encode_query and encode_document, in the order of preference"""


class SentenceTransformersFolder(NamedTuple):
  """A folder of sentence-transformers, without its encoder."""

  root: str
  """folder of the encoder"""
  vector: VectorConfig | SpladeConfig | TokenVectorConfig
  params: Mapping[str, Any]
  """parameters of the head: `dense`, `dense_1`, ..., or nothing"""
  length: int
  """maximum tokens per row, of a document; 0: that of the encoder"""
  prompts: Mapping[str, str] = types.MappingProxyType({})
  """texts before each text, by their names"""
  default_prompt: str = ''
  """name of the prompt before texts that are neither queries nor documents; '': there is none"""
  pools_prompt: bool = True
  """whether the tokens of a prompt are pooled"""
  similarity: Comparison = 'cosine'
  """similarity of vectors"""


def read_folder(folder: Any) -> SentenceTransformersFolder | None:
  """Read a folder of sentence-transformers; None for one without modules.json or a cross-encoder.

  Raises ConvertError, which names it, for an unknown module, pooling, activation or setting.
  """
  listed = read_modules(folder)
  if listed is None:
    return read_original_colbert(folder)
  home, modules = listed
  settings = read_optional_json(home / MODEL_SETTINGS)
  if settings.get('model_type') == 'CrossEncoder':
    return None
  queries = None
  if [name for name, _ in modules] == ['Router']:
    queries, modules = sparse_encoder.read_router(modules[0][1])
  names = [name for name, _ in modules]
  is_sparse = tuple(names) in sparse_encoder.SPARSE_MODULES
  is_late = pylate.has_token_vectors(names, settings)
  check_modules(home, names, settings, is_late)
  root = modules[0][1]
  check_encoder_settings(root, 'fill-mask' if is_sparse else 'feature-extraction')

  # Dense layers.
  layers: list[DenseConfig] = []
  params: dict[str, Any] = {}
  for name, path in modules:
    if name == 'Dense':
      layer, tensors = read_dense(path)
      params[f'dense_{len(layers)}' if layers else 'dense'] = tensors
      layers.append(layer)
  fields: dict[str, Any] = {}
  if layers:
    fields = {'dense': layers[0].size, 'activation': layers[0].activation,
              'dense_bias': layers[0].bias, 'more': tuple(layers[1:])}

  # Settings of the model.
  stated, default = settings.get('prompts') or {}, settings.get('default_prompt_name') or ''
  prompts = {name: prompt or '' for name, prompt in stated.items()}
  if default and default not in prompts:
    raise ConvertError(f'{home / MODEL_SETTINGS}: default_prompt_name is {abbreviate(default)}, '
                       f'which is no prompt among {abbreviate(list(prompts))}')
  if is_late:
    vector = pylate.read_token_vectors(home / MODEL_SETTINGS, settings, layers)
    length = settings.get('document_length') or pylate.DEFAULT_LENGTH
    return SentenceTransformersFolder(
        str(root), vector, params, length, prompts, default, similarity='maxsim')
  similarity = settings.get('similarity_fn_name') or ('dot' if is_sparse else 'cosine')
  if similarity not in get_args(Similarity):
    raise ConvertError(f'{home / MODEL_SETTINGS}: similarity_fn_name is {abbreviate(similarity)}: '
                       f'known are {", ".join(get_args(Similarity))}')
  pooling_folder = modules[1][1]
  pooling_config = storage.read_json(pooling_folder / 'config.json', error=ConvertError)
  if is_sparse:
    vector = sparse_encoder.read_pooling(pooling_folder / 'config.json', pooling_config)
    if queries is not None:
      vector = dataclasses.replace(vector, queries='idf')
      params['query_weights'] = queries
  else:
    vector = VectorConfig(
        pooling=read_poolings(pooling_folder / 'config.json', pooling_config),
        normalize=modules[-1][0] == 'Normalize', truncate=settings.get('truncate_dim') or 0,
        **fields)
  return SentenceTransformersFolder(
      str(root), vector, params, read_max_length(root), prompts, default,
      pooling_config.get('include_prompt', True), similarity)


def check_modules(
    home: pathlib.Path, names: Sequence[str], settings: Mapping[str, Any], is_late: bool) -> None:
  """Raise ConvertError for a model of another kind, or with modules that are not known."""
  if tuple(names) in sparse_encoder.SPARSE_MODULES:
    if limit := settings.get('max_active_dims') or settings.get('truncate_dim'):
      raise ConvertError(f'{home / MODEL_SETTINGS}: a maximum of {limit} dimensions of sparse '
                         'vectors is not supported')
    return
  kind = settings.get('model_type') or 'SentenceTransformer'
  if kind == 'SparseEncoder':
    raise ConvertError(f'{home / MODULES}: the modules {abbreviate(list(names))} of a '
                       'SparseEncoder are not supported: known are Transformer and SpladePooling')
  if kind != 'SentenceTransformer' and not is_late:
    raise ConvertError(f'{home / MODEL_SETTINGS}: a model of the kind {abbreviate(kind)} is not '
                       'supported: known are SentenceTransformer, SparseEncoder, CrossEncoder and '
                       'ColBERT')
  dense = ['Dense'] * names.count('Dense')
  in_order = ['Transformer', 'Pooling', *dense, *['Normalize'] * ('Normalize' in names)]
  if is_late:
    in_order = ['Transformer', *dense]
  if list(names) != in_order:
    unknown = [name for name in names if name not in KNOWN_MODULES]
    problem = f'the module {abbreviate(unknown[0])} is not supported' if unknown else (
        'modules in this order are not supported')
    raise ConvertError(
        f'{home / MODULES}: {problem}: the modules are {abbreviate(list(names))}; known are '
        f'{", ".join(KNOWN_MODULES)}, in this order; Dense may be repeated, and the last two are '
        'optional')


def cross_encoder_attributes(folder: pathlib.Path) -> dict[str, Any]:
  """Return attributes of config.json for what a folder of release 6 states about a cross-encoder.

  They are those of earlier releases. Raises ConvertError, which names it, for a module or setting
  that is not known.
  """
  settings = read_optional_json(folder / MODEL_SETTINGS)
  listed = read_modules(folder) if settings.get('model_type') == 'CrossEncoder' else None
  if listed is None:
    return {}
  names = [name for name, _ in listed[1]]
  if names != ['Transformer']:
    raise ConvertError(f'{folder / MODULES}: the modules of the cross-encoder are '
                       f'{abbreviate(names)}, and only one Transformer is supported')
  check_encoder_settings(folder, 'sequence-classification')
  prompts = [prompt for prompt in (settings.get('prompts') or {}).values() if prompt]
  if prompts:
    raise ConvertError(f'{folder / MODEL_SETTINGS}: the prompt {abbreviate(prompts[0])} of a '
                       'cross-encoder is not supported')
  activation = settings.get('activation_fn')
  return {'sentence_transformers': {'activation_fn': activation}} if activation else {}


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
    fields = item if isinstance(item, dict) else {}
    name = str(fields.get('type', '')).rpartition('.')[2]
    path = str(fields.get('path', ''))
    modules.append((name, folders.child_path(home, path) if path else home))
  return home, modules


def declared_pooling(folder: Any) -> str:
  """Return the pooling that a folder declares; '' if it declares none or several."""
  listed = read_modules(folder)
  place = dict(listed[1]).get('Pooling') if listed else None
  path = place / 'config.json' if place else None
  poolings = read_poolings(path, storage.read_json(path, error=ConvertError)) if path else ()
  return poolings[0] if len(poolings) == 1 else ''


def read_late_interaction(folder: Any) -> SentenceTransformersFolder | None:
  """Read a folder with token vectors; None for another folder. Raises ConvertError."""
  listed = read_modules(folder)
  if listed is None:
    return read_original_colbert(folder)
  names, settings = [name for name, _ in listed[1]], read_optional_json(listed[0] / MODEL_SETTINGS)
  return read_folder(folder) if pylate.has_token_vectors(names, settings) else None


def read_optional_json(path: Any) -> dict[str, Any]:
  """Read a JSON object; {} if there is no file. Raises ConvertError."""
  return storage.read_json(path, error=ConvertError) if path.exists() else {}


def read_encoder_settings(root: Any) -> tuple[pathlib.Path, dict[str, Any]]:
  """Read the settings of an encoder -> (file, contents); early releases name it by the family."""
  named = sorted(root.glob('sentence_*_config.json'))
  path = named[0] if named else root / ENCODER_SETTINGS
  return path, read_optional_json(path)


def read_max_length(root: Any) -> int:
  """Return the maximum tokens per row that a folder states; 0 if it states none.

  Release 6 and later state it in tokenizer_config.json alone, as transformers does.
  """
  length = read_encoder_settings(root)[1].get('max_seq_length')
  if length is None:
    length = read_optional_json(root / 'tokenizer_config.json').get('model_max_length')
  # A tokenizer without a limit states a huge number.
  return length if isinstance(length, int) and 0 < length <= 1 << 24 else 0


def check_encoder_settings(root: Any, use: str) -> None:
  """Raise ConvertError for settings that change what the encoder reads or returns.

  use: the `transformer_task` of release 6.
  """
  path, settings = read_encoder_settings(root)
  lower = read_optional_json(root / 'tokenizer_config.json').get('do_lower_case')
  if settings.get('do_lower_case') and not lower:
    raise ConvertError(f'{path}: do_lower_case is true, and the tokenizer keeps capitals')
  refused = ('processing_kwargs', 'query_length', 'document_length', 'query_expansion')
  wrong = [name for name in refused if settings.get(name)]
  if settings.get('transformer_task', use) != use:
    wrong.append('transformer_task')
  if list(settings.get('modality_config') or ['text']) != ['text']:
    wrong.append('modality_config')
  if wrong:
    raise ConvertError(f'{path}: {wrong[0]} is {abbreviate(settings[wrong[0]])}, which is not '
                       'supported')


def read_poolings(path: Any, config: Mapping[str, Any]) -> tuple[Pooling, ...]:
  """Read the poolings of a config.json. Raises ConvertError for an unknown one."""
  known: Mapping[str, Pooling]
  if 'pooling_mode' in config:
    modes = config['pooling_mode']
    modes = [modes] if isinstance(modes, str) else list(modes)
    known = {theirs: ours for ours, theirs in SHORT_POOLING_NAMES.items()}
  else:
    prefix = 'pooling_mode_'
    used = [name for name, value in config.items() if name.startswith(prefix) and value is True]
    modes = sort_poolings([name.removeprefix(prefix) for name in used])
    known = {theirs: ours for ours, theirs in POOLING_NAMES.items()}
  unknown = [mode for mode in modes if mode not in known]
  if unknown:
    raise ConvertError(f'{path}: the pooling {", ".join(map(abbreviate, unknown))} is not known: '
                       f'known are {", ".join(known)}')
  if not modes:
    raise ConvertError(f'{path}: no pooling is enabled')
  return tuple(known[mode] for mode in modes)


def sort_poolings(modes: list[str]) -> list[str]:
  """Sort poolings by the order in which sentence-transformers concatenates their vectors."""
  order = {mode: number for number, mode in enumerate(POOLING_ORDER)}
  return sorted(modes, key=lambda mode: order.get(mode, -1))


def read_dense(folder: pathlib.Path) -> tuple[DenseConfig, dict[str, Any]]:
  """Read a dense layer -> (its configuration, its parameters)."""
  config = storage.read_json(folder / 'config.json', error=ConvertError)
  known: dict[str, Any] = {
      theirs.rpartition('.')[2]: ours for ours, theirs in ACTIVATIONS.items()}
  name = str(config.get('activation_function', ACTIVATIONS['tanh'])).rpartition('.')[2]
  if name not in known:
    raise ConvertError(f'{folder}: the activation {abbreviate(name)} is not known: known are '
                       f'{", ".join(known)}')
  used = {config.get(field) for field in ('module_input_name', 'module_output_name')}
  if config.get('use_residual') or not used <= {None, 'sentence_embedding'}:
    raise ConvertError(f'{folder}: a dense layer with a residual connection, or of other vectors '
                       'than those of sentences, is not supported')
  layer = read_linear(folder)
  return DenseConfig(layer['kernel'].shape[1], known[name], 'bias' in layer), layer


def read_linear(folder: pathlib.Path) -> dict[str, Any]:
  """Read linear.weight and linear.bias of a folder -> `kernel`, and `bias` if there is one."""
  is_pickled = (folder / PICKLED).exists() and not list(folder.glob('*.safetensors'))
  source = PytorchBin(folder) if is_pickled else SafeTensorsFolder(folder)
  if pylate.LINEAR not in source.tensors:
    raise ConvertError(f'{folder}: there is no tensor {pylate.LINEAR}')
  layer = {'kernel': np.asarray(source.read(pylate.LINEAR), np.float32).T}
  if 'linear.bias' in source.tensors:
    layer['bias'] = np.asarray(source.read('linear.bias'), np.float32)
  return layer


def read_original_colbert(folder: Any) -> SentenceTransformersFolder | None:
  """Read what a folder of the authors' ColBERT adds to its encoder, as PyLate reads it.

  None for another folder. Raises ConvertError.
  """
  place = hub.find_folder(folder)
  with storage.io_errors_as(place, 'read', ConvertError):
    if not (place / pylate.METADATA).exists():
      return None
  home = folders.copy_if_remote(place)
  layer = read_linear(home)
  settings = pylate.read_metadata(home / pylate.METADATA)
  dense = DenseConfig(layer['kernel'].shape[1], 'none', False)
  vector = pylate.read_token_vectors(home / pylate.METADATA, settings, [dense])
  return SentenceTransformersFolder(
      str(folder), vector, {'dense': layer}, settings['document_length'], similarity='maxsim')


def write_modules(
    folder: pathlib.Path, given: SentenceTransformersFolder, width: int) -> None:
  """Write the modules of sentence embeddings next to an encoder's checkpoint.

  Args:
    folder: of the checkpoint.
    given: the modules and settings; `root` is not used.
    width: D, hidden size of the encoder.
  """
  vector = given.vector
  settings: dict[str, Any] = {
      'prompts': dict(given.prompts), 'default_prompt_name': given.default_prompt or None,
      'similarity_fn_name': given.similarity}
  if isinstance(vector, SpladeConfig):
    modules = sparse_encoder.write_modules(folder, vector, given.params)
    return write_settings(folder, given, modules, settings | {'model_type': 'SparseEncoder'})
  modules, size, has_dense = [('Transformer', '')], width, True
  if isinstance(vector, VectorConfig):
    modes = [POOLING_NAMES[name] for name in vector.pooling]
    modules.append(('Pooling', '1_Pooling'))
    config: dict[str, Any] = {'word_embedding_dimension': width}
    if modes == sort_poolings(list(dict.fromkeys(modes))):
      for name in POOLING_NAMES.values():
        config[f'pooling_mode_{name}'] = name in modes
    else:
      config['pooling_mode'] = [SHORT_POOLING_NAMES[name] for name in vector.pooling]
    write_module(folder / '1_Pooling', config | {'include_prompt': given.pools_prompt})
    size, has_dense = width * len(modes), bool(vector.dense and vector.dense_used == 'always')

  # Dense layers.
  layers: list[DenseConfig] = []
  if has_dense:
    layers = [DenseConfig(vector.dense, vector.activation, vector.dense_bias), *vector.more]
  for number, layer in enumerate(layers):
    name = f'{len(modules)}_Dense'
    modules.append(('Dense', name))
    write_module(folder / name, {
        'in_features': size, 'out_features': layer.size, 'bias': layer.bias,
        'activation_function': ACTIVATIONS[layer.activation]})
    params = given.params[f'dense_{number}' if number else 'dense']
    tensors = {'linear.weight': np.asarray(params['kernel'], np.float32).T}
    if layer.bias:
      tensors['linear.bias'] = np.asarray(params['bias'], np.float32)
    write_safetensors(folder / name, iter(tensors.items()), 1 << 40)
    size = layer.size
  if isinstance(vector, VectorConfig) and vector.normalize:
    name = f'{len(modules)}_Normalize'
    modules.append(('Normalize', name))
    (folder / name).mkdir()

  if isinstance(vector, TokenVectorConfig):
    settings |= pylate.make_settings(vector, given.length)
    modules = [(pylate.DENSE_CLASS if name == 'Dense' else name, path) for name, path in modules]
  elif vector.truncate:
    settings['truncate_dim'] = vector.truncate
  write_settings(folder, given, modules, settings)


def write_settings(
    folder: pathlib.Path, given: SentenceTransformersFolder, modules: Sequence[tuple[str, str]],
    settings: Mapping[str, Any]) -> None:
  """Write the settings of the model and of its encoder, and the list of modules."""
  write_json(folder / MODEL_SETTINGS, settings)
  path = folder / 'tokenizer_config.json'
  tokenizer = read_optional_json(path)
  if 'eos_token' in tokenizer:  # a decoder's may have no padding
    write_json(path, {'pad_token': tokenizer['eos_token'], **tokenizer})
  length = given.length or None
  write_json(folder / ENCODER_SETTINGS, {'max_seq_length': length, 'do_lower_case': False})
  write_module_list(folder, modules)


def write_module_list(folder: pathlib.Path, modules: Sequence[tuple[str, str]]) -> None:
  """Write modules.json, given the class and folder of each module.

  A class is named without its package if that is sentence_transformers.models.
  """
  listed = [{'idx': number, 'name': str(number), 'path': path,
             'type': name if '.' in name else f'sentence_transformers.models.{name}'}
            for number, (name, path) in enumerate(modules)]
  (folder / MODULES).write_text(json.dumps(listed, indent=2))
