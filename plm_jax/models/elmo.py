"""ELMo (Peters et al. 2018, arXiv:1802.05365), and the layout of the files that AllenNLP released.

Parameters as released, without softmax: small 13.6M, medium 28.0M, original 93.6M
(allennlp.org/elmo).
"""
from collections.abc import Mapping
import dataclasses
from typing import Any

import numpy as np

from plm_jax.architectures.elmo import Elmo, ElmoConfig
from plm_jax.errors import UserError
from plm_jax.layers import char_ids
from plm_jax.layers.char_cnn import CharacterConfig
from plm_jax.layers.common import Dtype
from plm_jax.models.rules import Family

GATE_ORDER = [0, 2, 1, 3]
"""input, forget, candidate, output gate among TensorFlow's input, candidate, forget, output"""
FORGET_BIAS = [[0], [1], [0], [0]]
"""what TensorFlow adds to the bias of each gate, in our order"""

# AllenNLP's ELMo has no tensors by transformers' names but arrays in a file of its own, no heads.
FAMILY = Family(
    name='elmo', backbone=lambda config: Elmo(config), config=ElmoConfig(), attributes=(), fixed={},
    ignored=frozenset(), rules=(), part_tensors={}, heads={}, classes={}, prefix='',
    usage="AllenNLP reads it with Elmo('{folder}/options.json', '{folder}/weights.hdf5', 1)",
    input_shapes=lambda config: {'characters': (1, 8, config.characters.longest)})


class WeightsError(UserError):
  """Files of an ELMo that are damaged, incomplete or not of one model."""


def small(dtype: Dtype = 'float32') -> ElmoConfig:
  """Make ELMo small: LSTMs of 1,024 cells projected to 128, one highway layer."""
  return ElmoConfig(characters=CharacterConfig(highways=1), cells=1024, width=128, dtype=dtype)


def medium(dtype: Dtype = 'float32') -> ElmoConfig:
  """Make ELMo medium: LSTMs of 2,048 cells projected to 256, one highway layer."""
  return ElmoConfig(characters=CharacterConfig(highways=1), cells=2048, width=256, dtype=dtype)


def original(dtype: Dtype = 'float32') -> ElmoConfig:
  """Make the ELMo of the paper: LSTMs of 4,096 cells projected to 512, two highway layers."""
  return ElmoConfig(dtype=dtype)


def parse_options(options: Mapping[str, Any]) -> ElmoConfig:
  """Turn the contents of an `options.json` into a configuration.

  The vocabulary and dropout, which it need not state, are the paper's. Raises WeightsError for
  options that are missing or not known.
  """
  try:
    cnn, lstm = options['char_cnn'], options['lstm']
    if cnn['n_characters'] not in (261, 262):
      raise WeightsError(f'n_characters is 262 (261 in training), got {cnn["n_characters"]}')
    characters = CharacterConfig(
        size=cnn['embedding']['dim'],
        filters=tuple((width, number) for width, number in cnn['filters']),
        highways=cnn.get('n_highway') or 0, longest=cnn['max_characters_per_token'],
        activation=cnn['activation'])
    return ElmoConfig(
        characters=characters, layers=lstm['n_layers'], width=lstm['projection_dim'],
        cells=lstm['dim'], cell_clip=parse_clip(lstm.get('cell_clip')),
        proj_clip=parse_clip(lstm.get('proj_clip')), skip=bool(lstm.get('use_skip_connections')))
  except (KeyError, TypeError, ValueError, AttributeError) as error:
    raise WeightsError(f'not the options.json of an ELMo of characters: '
                       f'{type(error).__name__} {error}') from error


def parse_clip(value: float | None) -> float | None:
  """Read a clipping threshold; 0 and null mean none."""
  return float(value) if value else None


def make_options(config: ElmoConfig) -> dict[str, Any]:
  """Return the contents of an `options.json` as AllenNLP reads it."""
  cnn = config.characters
  lstm = {
      'use_skip_connections': config.skip, 'projection_dim': config.width,
      'cell_clip': config.cell_clip, 'proj_clip': config.proj_clip, 'dim': config.cells,
      'n_layers': config.layers}
  char_cnn = {
      'activation': cnn.activation, 'filters': [list(pair) for pair in cnn.filters],
      'n_highway': cnn.highways, 'embedding': {'dim': cnn.size},
      'n_characters': char_ids.NUM_CHARACTER_IDS + 1, 'max_characters_per_token': cnn.longest}
  return {'lstm': lstm, 'char_cnn': char_cnn}


def array_shapes(config: ElmoConfig) -> dict[str, tuple[int, ...]]:
  """Return name -> shape of the arrays of a released .hdf5 (allenai/bilm-tf, dump_weights)."""
  cnn, width, cells = config.characters, config.width, config.cells
  features = cnn.features
  shapes: dict[str, tuple[int, ...]] = {'char_embed': (char_ids.NUM_CHARACTER_IDS, cnn.size)}
  for number, (size, filters) in enumerate(cnn.filters):
    shapes[f'CNN/W_cnn_{number}'] = (1, size, cnn.size, filters)
    shapes[f'CNN/b_cnn_{number}'] = (filters,)
  for number in range(cnn.highways):
    for part in ('transform', 'carry'):
      shapes[f'CNN_high_{number}/W_{part}'] = (features, features)
      shapes[f'CNN_high_{number}/b_{part}'] = (features,)
  shapes |= {'CNN_proj/W_proj': (features, width), 'CNN_proj/b_proj': (width,)}
  for number in range(config.layers):
    for direction in range(2):
      prefix = cell_prefix(direction, number)
      shapes[f'{prefix}W_0'] = (2 * width, 4 * cells)
      shapes[f'{prefix}B'] = (4 * cells,)
      shapes[f'{prefix}W_P_0'] = (cells, width)
  return shapes


def cell_prefix(direction: int, number: int) -> str:
  """Return the group of an LSTM; direction 0 reads from left to right, 1 from right to left."""
  return f'RNN_{direction}/RNN/MultiRNNCell/Cell{number}/LSTMCell/'


def import_arrays(config: ElmoConfig, arrays: Mapping[str, Any]) -> dict[str, Any]:
  """Turn the arrays of a released file into the backbone's parameters.

  TensorFlow adds 1 to the bias of the forget gate; here that is part of the parameter. Raises
  WeightsError for arrays that are missing, superfluous, or of other shapes.
  """
  check_arrays(config, {name: tuple(x.shape) for name, x in arrays.items()})
  get = lambda name: np.asarray(arrays[name], np.float32)
  cnn = config.characters
  characters: dict[str, Any] = {'table': get('char_embed')}
  for number in range(len(cnn.filters)):
    characters[f'kernel_{number}'] = get(f'CNN/W_cnn_{number}')[0]
    characters[f'bias_{number}'] = get(f'CNN/b_cnn_{number}')
  for number in range(cnn.highways):
    prefix = f'CNN_high_{number}'
    kernels = [get(f'{prefix}/W_transform'), get(f'{prefix}/W_carry')]
    biases = [get(f'{prefix}/b_transform'), get(f'{prefix}/b_carry')]
    characters[f'highway_{number}'] = {
        'both': {'kernel': np.stack(kernels, 1)}, 'bias': np.stack(biases)}
  characters['project'] = {'kernel': get('CNN_proj/W_proj'), 'bias': get('CNN_proj/b_proj')}
  params: dict[str, Any] = {'characters': characters}
  for number in range(config.layers):
    parts = []
    for direction in range(2):
      prefix = cell_prefix(direction, number)
      parts.append(import_lstm(
          config, get(f'{prefix}W_0'), get(f'{prefix}B'), get(f'{prefix}W_P_0')))
    params[f'layer_{number}'] = {
        name: np.stack([part[name] for part in parts]) for name in parts[0]}
  return params


def import_lstm(config: ElmoConfig, kernel, bias, project) -> dict[str, np.ndarray]:
  """Split TensorFlow's arrays of an LSTM with P projections and F cells.

  Args:
    config: of the model.
    kernel: [2 P, 4 F].
    bias: [4 F].
    project: [F, P].

  Returns:
    input and recurrent [P, 4, F], bias [4, F], project [F, P].
  """
  gates = kernel.reshape(-1, 4, config.cells)[:, GATE_ORDER]
  bias = bias.reshape(4, config.cells)[GATE_ORDER] + FORGET_BIAS
  return {'input': gates[:config.width], 'recurrent': gates[config.width:],
          'bias': bias.astype(np.float32), 'project': project}


def export_arrays(config: ElmoConfig, params: Mapping[str, Any]) -> dict[str, np.ndarray]:
  """Turn the backbone's parameters into the arrays of a released file.

  The reverse of `import_arrays`.
  """
  cnn, characters = config.characters, params['characters']
  arrays: dict[str, Any] = {'char_embed': characters['table']}
  for number in range(len(cnn.filters)):
    arrays[f'CNN/W_cnn_{number}'] = np.asarray(characters[f'kernel_{number}'])[None]
    arrays[f'CNN/b_cnn_{number}'] = characters[f'bias_{number}']
  for number in range(cnn.highways):
    highway = characters[f'highway_{number}']
    for part, name in enumerate(('transform', 'carry')):
      kernel = np.asarray(highway['both']['kernel'])[:, part]
      arrays[f'CNN_high_{number}/W_{name}'] = kernel
      arrays[f'CNN_high_{number}/b_{name}'] = np.asarray(highway['bias'])[part]
  arrays['CNN_proj/W_proj'] = characters['project']['kernel']
  arrays['CNN_proj/b_proj'] = characters['project']['bias']
  for number in range(config.layers):
    layer = {name: np.asarray(x) for name, x in params[f'layer_{number}'].items()}
    for direction in range(2):
      prefix = cell_prefix(direction, number)
      gates = np.concatenate([layer['input'][direction], layer['recurrent'][direction]])
      gates = gates[:, GATE_ORDER]
      bias = (layer['bias'][direction] - FORGET_BIAS)[GATE_ORDER]
      arrays[f'{prefix}W_0'] = gates.reshape(len(gates), -1)
      arrays[f'{prefix}B'] = bias.reshape(-1)
      arrays[f'{prefix}W_P_0'] = layer['project'][direction]
  return {name: np.asarray(x, np.float32) for name, x in arrays.items()}


def check_arrays(config: ElmoConfig, found: Mapping[str, tuple[int, ...]]) -> None:
  """Raise WeightsError unless arrays have the names and shapes of `array_shapes`.

  The softmax, which some files have, may be there.
  """
  wanted = array_shapes(config)
  for name, shape in wanted.items():
    if name not in found:
      raise WeightsError(
          f'the weights have no {name}, which options.json requires: {list(shape)}')
    if found[name] != shape:
      raise WeightsError(
          f'{name} of the weights is {list(found[name])}, and options.json makes it '
          f'{list(shape)}: the two files are not of one model')
  extra = sorted(
      name for name in found if name not in wanted and not name.startswith('softmax/'))
  if extra:
    more = ' and more' if len(extra) > 1 else ''
    raise WeightsError(
        f'the weights have {extra[0]}{more}, which options.json does not have')


def shrink_config(
    config: ElmoConfig, width: int, cells: int, words: int, filters: int,
) -> ElmoConfig:
  """Make a smaller model in float32 with one highway layer.

  Args:
    config: of the large model.
    width: size of the LSTMs' projections.
    cells: size of the LSTMs.
    words: words that the tokenizer and the softmax know.
    filters: the most convolution filters of one width.
  """
  cnn = config.characters
  kept = tuple((size, min(number, filters)) for size, number in cnn.filters)
  return dataclasses.replace(
      config, width=width, cells=cells, words=words, vocab=2 * words, dtype='float32',
      characters=dataclasses.replace(cnn, filters=kept, highways=1))
