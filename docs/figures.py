"""Figures of the explanations, drawn by the code that they explain."""
import pathlib

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np

matplotlib.use('svg')

import matplotlib.pyplot as plt

from plm_jax.layers.masks import attention_mask
from plm_jax.objectives import corruption
from plm_jax.sharding import AXIS_RULES

plt.rcParams.update({'svg.hashsalt': 'plm_jax', 'font.size': 9, 'figure.facecolor': 'white'})


def write(folder: pathlib.Path) -> None:
  """Draws those that are not there."""
  folder.mkdir(exist_ok=True)
  for draw in (masks, words, precision, sharding, determinism):
    path = folder / f'{draw.__name__}.svg'
    if not path.exists() or path.stat().st_mtime < pathlib.Path(__file__).stat().st_mtime:
      figure = draw()
      figure.savefig(path, metadata={'Date': None}, bbox_inches='tight')
      plt.close(figure)


def masks():
  """Who sees whom, by two integers a token."""
  one, two = jnp.ones((1, 12), int), jnp.array([[1] * 7 + [2] * 5])
  place = jnp.arange(12)[None]
  order = jax.random.permutation(jax.random.key(0), 12)[None]
  cases = {'bidirectional: BERT': (one, None), 'causal: GPT-2': (one, place),
           'prefix: T5 with one stack, GLM': (one, jnp.maximum(place - 6, 0)),
           'an order by lot: XLNet': (one, order), 'packed: two texts in a row': (two, None),
           'packed and causal': (two, place)}
  figure, axes = plt.subplots(2, 3, figsize=(8, 5.6))
  for axis, (title, (segments, ranks)) in zip(axes.flat, cases.items(), strict=True):
    axis.imshow(np.asarray(attention_mask(segments, segments, ranks, ranks))[0, 0], cmap='Blues', vmin=0, vmax=1.5)
    axis.set_title(title, fontsize=9)
    axis.set(xticks=[], yticks=[])
  return figure


def words():
  """Tokens that are masked one by one, and word by word, in eight draws each."""
  pieces = [
      'the', 'token', '##izer', 'un', '##mask', '##s', 'pre', '##train', '##ing', 'text', 'in', 'Jap', '##an',
      '##ese']
  number = jnp.cumsum(jnp.array([not piece.startswith('##') for piece in pieces]))
  keys = jax.random.split(jax.random.key(1), 8)
  chosen = {'unit=token': jax.vmap(lambda key: corruption.choose_tokens(key, number > 0, 4))(keys),
            'unit=word': jax.vmap(lambda key: corruption.choose_spans(key, number, 4))(keys)}
  figure, axes = plt.subplots(2, 1, figsize=(8, 3.6))
  for axis, (title, drawn) in zip(axes, chosen.items(), strict=True):
    axis.imshow(np.asarray(drawn), cmap='YlOrBr', vmin=0, vmax=1.6, aspect='auto')
    axis.set(title=title, yticks=[], xticks=range(len(pieces)))
    axis.set_xticklabels(pieces, fontsize=8)
  figure.tight_layout()
  return figure


def precision():
  """A thousand small updates of a parameter that is 1, kept in float32 and in bfloat16."""
  figure, axis = plt.subplots(figsize=(6, 2.8))
  for dtype in (jnp.float32, jnp.bfloat16):
    _, path = jax.lax.scan(lambda x, _: (x + jnp.asarray(1e-3, x.dtype), x), jnp.ones((), dtype), None, 1000)
    axis.plot(np.asarray(path, np.float32), label=jnp.dtype(dtype).name)
  axis.set(xlabel='updates of 0.001', ylabel='parameter')
  axis.legend()
  return figure


def sharding():
  """How the kernel of an MLP [width, mlp] lies on eight devices under three meshes, by the table."""
  figure, axes = plt.subplots(1, 3, figsize=(8, 2.6))
  for axis, mesh in zip(axes, ({'data': 8}, {'fsdp': 8}, {'fsdp': 4, 'tensor': 2}), strict=True):
    parts = [int(np.prod([mesh.get(name, 1) for name in AXIS_RULES[logical]])) for logical in ('width', 'mlp')]
    owner = np.arange(parts[0] * parts[1]).reshape(parts)
    axis.imshow(np.kron(owner, np.ones((16 // parts[0], 16 // parts[1]))), cmap='tab10', vmin=0, vmax=9)
    title = ' '.join(f'{name}={size}' for name, size in mesh.items())
    axis.set_title(f'{title}: {parts[0] * parts[1]} parts, {8 // (parts[0] * parts[1])} copies', fontsize=9)
    axis.set(xlabel='mlp', ylabel='width', xticks=[], yticks=[])
  figure.tight_layout()
  return figure


def determinism():
  """Masks of four windows in three epochs: drawn anew in each, and with duplicates=2 as in the first of two."""
  figure, axes = plt.subplots(2, 3, figsize=(8, 2.8))
  for line, duplicates in zip(axes, (0, 2), strict=True):
    for epoch, axis in enumerate(line):
      windows = {'corpus': jnp.zeros(4, int), 'index': jnp.arange(4), 'epoch': jnp.full(4, epoch)}
      keys = corruption.example_keys(jax.random.key(0), windows, duplicates)
      drawn = jax.vmap(lambda key: corruption.choose_tokens(key, jnp.ones(24, bool), 4))(keys)
      axis.imshow(np.asarray(drawn), cmap='YlOrBr', vmin=0, vmax=1.6, aspect='auto')
      axis.set_title(f'epoch {epoch}' + (f', duplicates={duplicates}' if duplicates else ''), fontsize=9)
      axis.set(xticks=[], yticks=[])
  figure.tight_layout()
  return figure
