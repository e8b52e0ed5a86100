"""Folders of sentence-transformers, both ways: modules.json, the pooling, a dense layer, the length 1.

    given = read('all-MiniLM-L6-v2/')      # None: a folder of another kind
    write(folder, task, params, width)     # beside the checkpoint of the encoder
"""
from collections.abc import Mapping
import json
import pathlib
from typing import Any, NamedTuple

import numpy as np

from plm_jax import storage
from plm_jax.conversion import folders
from plm_jax.conversion.files import SafeTensors, write_json, write_safetensors
from plm_jax.conversion.rules import ConvertError
from plm_jax.layers.pooling import Pooling, VectorConfig
from plm_jax.tokenizers.contract import brief

MODULES = 'modules.json'
LENGTHS = 'sentence_bert_config.json'
THEIRS: Mapping[Pooling, str] = {
    'first': 'cls_token', 'mean': 'mean_tokens', 'max': 'max_tokens', 'mean_sqrt': 'mean_sqrt_len_tokens',
    'weighted_mean': 'weightedmean_tokens', 'last': 'lasttoken'}
SHORT = {'cls': 'first', 'mean': 'mean', 'max': 'max', 'mean_sqrt_len_tokens': 'mean_sqrt',
         'weightedmean': 'weighted_mean', 'lasttoken': 'last'}
"""as release 6 and later write them"""
ACTIVATIONS: Mapping[str, str] = {
    'tanh': 'torch.nn.modules.activation.Tanh', 'relu': 'torch.nn.modules.activation.ReLU',
    'gelu': 'torch.nn.modules.activation.GELU', 'silu': 'torch.nn.modules.activation.SiLU',
    'none': 'torch.nn.modules.linear.Identity'}
KNOWN = ('Transformer', 'Pooling', 'Dense', 'Normalize')  # in the order that they have


class Given(NamedTuple):
  """What a folder says besides its encoder."""

  root: str
  """folder of the encoder"""
  vector: VectorConfig
  params: dict[str, Any]
  """of the head: `dense`, or nothing"""
  length: int
  """tokens of a row, at most; 0: as many as the encoder reads"""


def read(folder: Any) -> Given | None:
  """Reads a folder of sentence-transformers; None for one that has no modules.json.

  Raises ConvertError, which names it, for a module, a pooling, an activation or a setting that is not known.
  """
  listed = modules(folder)
  if listed is None:
    return None
  home, found = listed
  names, paths = [name for name, _ in found], dict(found)
  if names not in [[name for name in KNOWN if name in names]] or names[:2] != ['Transformer', 'Pooling']:
    raise ConvertError(f'{home / MODULES}: the modules are {brief(names)}; known are {", ".join(KNOWN)}, in this '
                       'order, the last two of which may be left out')
  check_settings(home, paths['Transformer'])
  said: dict[str, Any] = {'pooling': poolings(paths['Pooling'] / 'config.json'), 'normalise': 'Normalize' in names}
  params: dict[str, Any] = {}
  if 'Dense' in names:
    more, params = dense(paths['Dense'])
    said |= more
  length = lengths_of(paths['Transformer']).get('max_seq_length')
  return Given(str(paths['Transformer']), VectorConfig(**said), params, length if isinstance(length, int) else 0)


def modules(folder: Any) -> tuple[pathlib.Path, list[tuple[str, pathlib.Path]]] | None:
  """Reads which modules a folder of sentence-transformers has -> (the folder here, the name of each module's class and
  its folder, in their order); None for a folder without modules.json. Raises ConvertError for what is no such list."""
  place = storage.path_of(folder)
  with storage.explained(place, 'read', ConvertError):
    if not (place / MODULES).exists():
      return None
  home, found = folders.local(place), []
  for one in storage.read_json(home / MODULES, list, error=ConvertError):
    said = one if isinstance(one, dict) else {}
    path = str(said.get('path', ''))
    found.append((str(said.get('type', '')).rpartition('.')[2], folders.inside(home, path) if path else home))
  return home, found


def lengths_of(root: Any) -> dict[str, Any]:
  """Reads how the encoder takes texts, {} where that is not said."""
  return storage.read_json(root / LENGTHS, error=ConvertError) if (root / LENGTHS).exists() else {}


def check_settings(home: Any, root: Any) -> None:
  """Raises ConvertError for settings that change texts before they are encoded: a prompt, or lower case."""
  settings = home / 'config_sentence_transformers.json'
  prompt = storage.read_json(settings, error=ConvertError).get('default_prompt_name') if settings.exists() else None
  if prompt:
    raise ConvertError(f'{settings}: texts are encoded behind the prompt {brief(prompt)}, which is not known here')
  tokens = root / 'tokenizer_config.json'
  lower = storage.read_json(tokens, error=ConvertError).get('do_lower_case') if tokens.exists() else None
  if lengths_of(root).get('do_lower_case') and not lower:
    raise ConvertError(f'{root / LENGTHS}: do_lower_case is true, and the tokenizer keeps capitals')


def poolings(path: Any) -> tuple[Pooling, ...]:
  """Reads the poolings. Raises ConvertError for one that is not known."""
  said = storage.read_json(path, error=ConvertError)
  if 'pooling_mode' in said:
    modes = said['pooling_mode']
    modes, known = [modes] if isinstance(modes, str) else list(modes), SHORT
  else:
    prefix, known = 'pooling_mode_', {theirs: ours for ours, theirs in THEIRS.items()}
    modes = [name.removeprefix(prefix) for name, so in said.items() if name.startswith(prefix) and so is True]
    modes = ordered(modes)
  if unknown := [mode for mode in modes if mode not in known]:
    raise ConvertError(f'{path}: the pooling {", ".join(map(brief, unknown))} is not known: known are '
                       f'{", ".join(known)}')
  if not modes:
    raise ConvertError(f'{path}: no pooling is said to be used')
  return tuple(known[mode] for mode in modes)  # pyright: ignore


def ordered(modes: list[str]) -> list[str]:
  """Returns poolings in the order in which sentence-transformers joins their vectors."""
  order = ('cls_token', 'max_tokens', 'mean_tokens', 'mean_sqrt_len_tokens', 'weightedmean_tokens', 'lasttoken')
  return sorted(modes, key=lambda mode: order.index(mode) if mode in order else -1)


def dense(folder: Any) -> tuple[dict[str, Any], dict[str, Any]]:
  """Reads a dense layer -> (fields of `VectorConfig`, parameters)."""
  said = storage.read_json(folder / 'config.json', error=ConvertError)
  known = {theirs.rpartition('.')[2]: ours for ours, theirs in ACTIVATIONS.items()}
  name = str(said.get('activation_function', ACTIVATIONS['tanh'])).rpartition('.')[2]
  if name not in known:
    raise ConvertError(f'{folder}: the activation {brief(name)} is not known: known are {", ".join(known)}')
  source = SafeTensors(folder)
  if 'linear.weight' not in source.tensors:
    raise ConvertError(f'{folder}: there is no tensor linear.weight')
  weight = np.asarray(source.read('linear.weight'), np.float32)
  layer = {'kernel': weight.T}
  if biased := 'linear.bias' in source.tensors:
    layer['bias'] = np.asarray(source.read('linear.bias'), np.float32)
  return {'dense': len(weight), 'activation': known[name], 'dense_bias': biased}, {'dense': layer}


def write(folder: pathlib.Path, vector: VectorConfig, params: Mapping[str, Any], width: int, length: int) -> None:
  """Writes the modules of sentence vectors beside an encoder's checkpoint.

  params: of the head; width: D, of the encoder's states; length: tokens of a row, at most. Raises ConvertError for
  poolings that sentence-transformers joins in another order.
  """
  modes = [THEIRS[name] for name in vector.pooling]
  if modes != ordered(modes) or len({*modes}) < len(modes):
    raise ConvertError(f'sentence-transformers joins the vectors of poolings in the order {", ".join(ordered(modes))}')
  modules = ['Transformer', 'Pooling']
  put(folder / '1_Pooling', {'word_embedding_dimension': width, **{
      f'pooling_mode_{theirs}': theirs in modes for theirs in THEIRS.values()}, 'include_prompt': True})
  if vector.dense and vector.dense_used == 'always':
    modules.append('Dense')
    layer = params['dense']
    put(folder / '2_Dense', {
        'in_features': width * len(modes), 'out_features': vector.dense, 'bias': vector.dense_bias,
        'activation_function': ACTIVATIONS[vector.activation]})
    tensors = {'linear.weight': np.asarray(layer['kernel'], np.float32).T}
    tensors |= {'linear.bias': np.asarray(layer['bias'], np.float32)} if vector.dense_bias else {}
    write_safetensors(folder / '2_Dense', iter(tensors.items()), 1 << 40)
  if vector.normalise:
    modules.append('Normalize')
    (folder / f'{len(modules) - 1}_Normalize').mkdir()
  write_json(folder / LENGTHS, {'max_seq_length': length, 'do_lower_case': False})
  paths = ['', *(f'{number}_{name}' for number, name in enumerate(modules[1:], 1))]
  listed = [{'idx': number, 'name': str(number), 'path': path, 'type': f'sentence_transformers.models.{name}'}
            for number, (name, path) in enumerate(zip(modules, paths, strict=True))]
  (folder / MODULES).write_text(json.dumps(listed, indent=2))


def put(folder: pathlib.Path, config: Mapping[str, Any]) -> None:
  """Makes the folder of a module, with what it is."""
  folder.mkdir()
  write_json(folder / 'config.json', config)
