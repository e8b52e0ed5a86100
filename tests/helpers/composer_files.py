"""Checkpoints in the format of Composer: tensors of a reference case of ModernBERT under the names
of its own repository."""
import pathlib
import re
import shutil

import numpy as np
import pytest
import torch_files

library = pytest.importorskip('safetensors.numpy')
CASE = pathlib.Path(__file__).parents[1] / 'golden' / 'modernbert' / 'masked_lm'


class Other:
  """An object of a class that the reader does not know, such as a timestamp."""

  def __reduce__(self):
    return print, ('never printed',)


def to_composer(name: str) -> str:
  """Give a tensor the name that it has in ModernBERT's repository, within Composer's model."""
  name = re.sub(r'^model\.layers\.', 'model.encoder.layers.', name)
  return 'model.' + re.sub(r'^model\.', 'bert.', name)


def moments_of(name: str, x: np.ndarray) -> dict:
  """Make moments that differ from the parameter, and are known by its name."""
  shift = np.float32(len(name))
  return {'exp_avg': x + shift, 'exp_avg_sq': x * x + shift}


def write_checkpoint(
    folder: pathlib.Path, torch, names=to_composer, moments=moments_of, **group) -> pathlib.Path:
  """Write a checkpoint next to the configuration of the released model."""
  shutil.copy(CASE / 'config.json', folder)
  tensors = library.load_file(CASE / 'model.safetensors')
  trained = {name: x for name, x in tensors.items() if name != 'decoder.weight'}
  saved = {}
  for number, (name, x) in enumerate(trained.items()):
    # Of the two names of a tied table, torch takes the last one.
    last = name.replace('model.embeddings.tok_embeddings', 'decoder')
    saved[names(last) if names else number] = moments(name, x) | {'kahan_comp': None}
  model = {to_composer(name): x for name, x in tensors.items()}
  model.setdefault('model.decoder.weight', tensors['model.embeddings.tok_embeddings.weight'])
  content = {
      'state': {
          'model': model, 'timestamp': Other(), 'algorithms': [('GradientClipping', {})],
          'optimizers': {'StableAdamW': {
              'state': saved,
              'param_groups': [{'lr': 1e-3, 'params': [*saved], **group}]}}},
      'rng': [Other()]}
  path = folder / 'ep0-ba7-rank0.pt'
  torch_files.write(path, content, torch)
  return path
