"""ELMo (Peters et al. 2018, arXiv:1802.05365), and the files in which AllenNLP released it.

Parameters as released, without softmax: small 13.6M, medium 28.0M, original 93.6M (allennlp.org/elmo).
"""
from collections.abc import Mapping
import dataclasses
from typing import Any

import numpy as np

from plm_jax.architectures.elmo import ElmoConfig
from plm_jax.errors import Expected
from plm_jax.layers import spelling
from plm_jax.layers.characters import CharacterConfig
from plm_jax.layers.common import Dtype

ORDER = [0, 2, 1, 3]  # input, forget, candidate, output among TensorFlow's input, candidate, forget, output


class WeightsError(Expected):
  """Files of an ELMo that are not what they should be."""


def small(dtype: Dtype = 'float32') -> ElmoConfig:
  """Makes ELMo small: LSTMs of 1,024 cells projected to 128, one highway."""
  return ElmoConfig(characters=CharacterConfig(highways=1), cells=1024, width=128, dtype=dtype)


def medium(dtype: Dtype = 'float32') -> ElmoConfig:
  """Makes ELMo medium: LSTMs of 2,048 cells projected to 256, one highway."""
  return ElmoConfig(characters=CharacterConfig(highways=1), cells=2048, width=256, dtype=dtype)


def original(dtype: Dtype = 'float32') -> ElmoConfig:
  """Makes the ELMo of the paper: LSTMs of 4,096 cells projected to 512, two highways."""
  return ElmoConfig(dtype=dtype)


def from_options(options: Mapping[str, Any]) -> ElmoConfig:
  """Turns the content of an `options.json` into sizes; words and dropout, which it need not tell, stay the paper's.

  Raises WeightsError for options that are missing or not known.
  """
  try:
    cnn, lstm = options['char_cnn'], options['lstm']
    if cnn['n_characters'] not in (261, 262):
      raise WeightsError(f'n_characters is 262 (261 in training), got {cnn["n_characters"]}')
    characters = CharacterConfig(
        size=cnn['embedding']['dim'], filters=tuple((width, number) for width, number in cnn['filters']),
        highways=cnn.get('n_highway') or 0, longest=cnn['max_characters_per_token'], activation=cnn['activation'])
    return ElmoConfig(
        characters=characters, layers=lstm['n_layers'], width=lstm['projection_dim'], cells=lstm['dim'],
        cell_clip=clip_of(lstm.get('cell_clip')), proj_clip=clip_of(lstm.get('proj_clip')),
        skip=bool(lstm.get('use_skip_connections')))
  except (KeyError, TypeError, ValueError, AttributeError) as error:
    raise WeightsError(f'not the options.json of an ELMo of characters: {type(error).__name__} {error}') from error


def clip_of(value: float | None) -> float | None:
  """Reads a limit, of which 0 and null are none."""
  return float(value) if value else None


def to_options(config: ElmoConfig) -> dict[str, Any]:
  """Returns the content of an `options.json`, as AllenNLP reads it."""
  cnn = config.characters
  return {
      'lstm': {'use_skip_connections': config.skip, 'projection_dim': config.width, 'cell_clip': config.cell_clip,
               'proj_clip': config.proj_clip, 'dim': config.cells, 'n_layers': config.layers},
      'char_cnn': {'activation': cnn.activation, 'filters': [list(pair) for pair in cnn.filters],
                   'n_highway': cnn.highways, 'embedding': {'dim': cnn.size}, 'n_characters': spelling.IDS + 1,
                   'max_characters_per_token': cnn.longest}}


def layout(config: ElmoConfig) -> dict[str, tuple[int, ...]]:
  """Returns the arrays of a released .hdf5 file and their shapes (allenai/bilm-tf, dump_weights)."""
  cnn, width, cells = config.characters, config.width, config.cells
  shapes: dict[str, tuple[int, ...]] = {'char_embed': (spelling.IDS, cnn.size)}
  for number, (size, filters) in enumerate(cnn.filters):
    shapes |= {f'CNN/W_cnn_{number}': (1, size, cnn.size, filters), f'CNN/b_cnn_{number}': (filters,)}
  for number in range(cnn.highways):
    for part in ('transform', 'carry'):
      shapes |= {f'CNN_high_{number}/W_{part}': (cnn.features,) * 2, f'CNN_high_{number}/b_{part}': (cnn.features,)}
  shapes |= {'CNN_proj/W_proj': (cnn.features, width), 'CNN_proj/b_proj': (width,)}
  for number in range(config.layers):
    for direction in range(2):
      shapes |= {cell(direction, number) + name: shape for name, shape in (
          ('W_0', (2 * width, 4 * cells)), ('B', (4 * cells,)), ('W_P_0', (cells, width)))}
  return shapes


def cell(direction: int, number: int) -> str:
  """Names the group of an LSTM: direction 0 reads from the left, 1 from the right."""
  return f'RNN_{direction}/RNN/MultiRNNCell/Cell{number}/LSTMCell/'


def from_arrays(config: ElmoConfig, arrays: Mapping[str, Any]) -> dict[str, Any]:
  """Turns the arrays of a released file, by their full names, into the backbone's parameters.

  TensorFlow adds 1 to the bias of the forget gate, which is in the parameter here. Raises WeightsError for arrays that
  are missing, superfluous, or of other shapes.
  """
  check(config, {name: tuple(x.shape) for name, x in arrays.items()})
  get = lambda name: np.asarray(arrays[name], np.float32)
  cnn = config.characters
  characters: dict[str, Any] = {'table': get('char_embed')}
  for number in range(len(cnn.filters)):
    characters |= {f'kernel_{number}': get(f'CNN/W_cnn_{number}')[0], f'bias_{number}': get(f'CNN/b_cnn_{number}')}
  for number in range(cnn.highways):
    both = [[get(f'CNN_high_{number}/{kind}_{part}') for part in ('transform', 'carry')] for kind in 'Wb']
    characters[f'highway_{number}'] = {'both': {'kernel': np.stack(both[0], 1)}, 'bias': np.stack(both[1])}
  characters['project'] = {'kernel': get('CNN_proj/W_proj'), 'bias': get('CNN_proj/b_proj')}
  params: dict[str, Any] = {'characters': characters}
  for number in range(config.layers):
    parts = [lstm(config, *(get(cell(direction, number) + name) for name in ('W_0', 'B', 'W_P_0')))
             for direction in range(2)]
    params[f'layer_{number}'] = {name: np.stack([part[name] for part in parts]) for name in parts[0]}
  return params


def lstm(config: ElmoConfig, kernel, bias, project) -> dict[str, np.ndarray]:
  """Parts TensorFlow's matrix of an LSTM [2P, 4F] and its bias [4F]; project [F, P]."""
  gates = kernel.reshape(-1, 4, config.cells)[:, ORDER]
  bias = bias.reshape(4, config.cells)[ORDER] + [[0], [1], [0], [0]]
  return {'input': gates[:config.width], 'recurrent': gates[config.width:], 'bias': bias.astype(np.float32),
          'project': project}


def to_arrays(config: ElmoConfig, params: Mapping[str, Any]) -> dict[str, np.ndarray]:
  """Turns the backbone's parameters into the arrays of a released file: the reverse of `from_arrays`."""
  cnn, characters = config.characters, params['characters']
  arrays: dict[str, Any] = {'char_embed': characters['table']}
  for number in range(len(cnn.filters)):
    arrays |= {f'CNN/W_cnn_{number}': np.asarray(characters[f'kernel_{number}'])[None],
               f'CNN/b_cnn_{number}': characters[f'bias_{number}']}
  for number in range(cnn.highways):
    highway = characters[f'highway_{number}']
    for part, name in enumerate(('transform', 'carry')):
      arrays |= {f'CNN_high_{number}/W_{name}': np.asarray(highway['both']['kernel'])[:, part],
                 f'CNN_high_{number}/b_{name}': np.asarray(highway['bias'])[part]}
  arrays |= {'CNN_proj/W_proj': characters['project']['kernel'], 'CNN_proj/b_proj': characters['project']['bias']}
  for number in range(config.layers):
    layer = {name: np.asarray(x) for name, x in params[f'layer_{number}'].items()}
    for direction in range(2):
      gates = np.concatenate([layer['input'][direction], layer['recurrent'][direction]])[:, ORDER]
      bias = (layer['bias'][direction] - [[0], [1], [0], [0]])[ORDER]
      arrays |= {cell(direction, number) + name: x for name, x in (
          ('W_0', gates.reshape(len(gates), -1)), ('B', bias.reshape(-1)), ('W_P_0', layer['project'][direction]))}
  return {name: np.asarray(x, np.float32) for name, x in arrays.items()}


def check(config: ElmoConfig, found: Mapping[str, tuple[int, ...]]) -> None:
  """Raises WeightsError unless arrays have the names and shapes of `layout`. Softmax's, which some files have, may be
  there."""
  wanted = layout(config)
  for name, shape in wanted.items():
    if name not in found:
      raise WeightsError(f'the weights have no {name}, which options.json asks for: {list(shape)}')
    if found[name] != shape:
      raise WeightsError(f'{name} of the weights is {list(found[name])}, and options.json makes it {list(shape)}: the '
                         'two files are not of one model')
  if more := sorted(name for name in found if name not in wanted and not name.startswith('softmax/')):
    raise WeightsError(f'the weights have {more[0]}{" and more" if len(more) > 1 else ""}, which options.json does not '
                       'ask for')


def resized(config: ElmoConfig, width: int, cells: int, words: int, filters: int) -> ElmoConfig:
  """Makes a smaller one in float32: the most filters of one width are cut to `filters`, one highway; tokenizer and
  softmax know `words` words."""
  cnn = config.characters
  kept = tuple((size, min(number, filters)) for size, number in cnn.filters)
  return dataclasses.replace(
      config, width=width, cells=cells, words=words, vocab=2 * words, dtype='float32',
      characters=dataclasses.replace(cnn, filters=kept, highways=1))
