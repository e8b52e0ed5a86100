"""Each command imports only the heavy libraries and parts of plm_jax that it uses."""
import json
import os
import pathlib
import subprocess
import sys

import backbones
import jax
import jax.numpy as jnp
import pytest
import tiny
import tuned

import plm_jax
from plm_jax import conversion
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.tokenizers import train_byte_bpe, train_wordpiece

HEAVY = ('apache_beam', 'jax', 'optax', 'orbax', 'plm_jax.config.run', 'plm_jax.recipes',
         'plm_jax.runs',
         'plm_jax.tasks.kinds', 'plm_jax.training.train', 'scipy', 'sklearn', 'tensorflow',
         'tensorstore', 'torch', 'transformers')
# Libraries of HEAVY that a command may import.
ALLOWED = {
    'fill-mask bert [MASK]': {'jax'},
    'encode bert texts.txt --output=vectors.npy': {'jax'},
    'generate gpt2 Bada --max-new=2': {'jax'},
    'predict classification texts.txt': {'jax', 'plm_jax.tasks.kinds'},
    'tag tagging angela': {'jax', 'plm_jax.tasks.kinds'},
    'clean texts.txt cleaned': set(),
    'prepare corpus.txt others --tokenizer=bert': {'jax', 'plm_jax.config.run',
                                                   'plm_jax.tasks.kinds'},
    'verify records': set(),
    'train --help': set(),
    'train': {'jax', 'optax', 'plm_jax.config.run', 'plm_jax.recipes', 'plm_jax.tasks.kinds',
              'plm_jax.training.train'}}
CODE = f"""
import contextlib, io, json, sys
from plm_jax.cli.main import main
with contextlib.redirect_stdout(io.StringIO()):
  main()
print(json.dumps([name for name in {HEAVY} if name in sys.modules]))
"""


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A folder with exported models, whose parameters are random, and texts."""
  folder = tmp_path_factory.mktemp('imports')
  lines = tiny.text().splitlines()[:300]
  zeros = jax.ShapeDtypeStruct((1, 8), jnp.int32)
  for family, head, tokenizer in (('bert', 'mlm', train_wordpiece(lines, 300)),
                                  ('gpt2', 'lm', train_byte_bpe(lines, 300, layout='gpt2'))):
    model = backbones.small(family, tokenizer.vocab.size, 64)
    module = ModelWithHeads(model.backbone(), {head: conversion.build_head(family, head, model, 2)})
    shapes = jax.eval_shape(module.init, jax.random.key(0),
                            {'tokens': zeros, 'segments': zeros})['params']
    conversion.save(folder / family, model, tiny.random_params(shapes), tokenizer, like=family)
  for kind in ('classification', 'tagging'):
    plm_jax.export(tuned.trained(kind), folder / kind)
  (folder / 'texts.txt').write_text('a fine film\n')
  (folder / 'corpus.txt').write_text(tiny.text()[:20000])
  plm_jax.prepare(str(folder / 'corpus.txt'), str(folder / 'records'),
                  tokenizer=str(folder / 'bert'))
  return folder


SLOW = 'encode', 'generate', 'predict', 'tag'  # much as fill-mask, and each takes seconds


@pytest.mark.parametrize('line', [
    pytest.param(line, marks=[pytest.mark.slow] * line.startswith(SLOW)) for line in ALLOWED])
def test_a_command_imports_only_the_libraries_it_uses(line, folder):
  environment = {**os.environ, 'PYTHONPATH': str(pathlib.Path(plm_jax.__file__).parents[1])}
  done = subprocess.run([sys.executable, '-c', CODE, *line.split()], cwd=folder, env=environment,
                        text=True,
                        capture_output=True, timeout=300)
  assert done.returncode == 0, done.stderr
  found = set(json.loads(done.stdout.splitlines()[-1]))
  assert found <= ALLOWED[line] and (not ALLOWED[line] or 'jax' in found)


def test_the_api_imports_only_the_libraries_it_uses(folder):
  code = f"""
import json, sys, plm_jax
plm_jax.fill_mask('bert', '[MASK]')
plm_jax.encode('bert', 'a')
print(json.dumps([name for name in {HEAVY} if name in sys.modules]))
"""
  environment = {**os.environ, 'PYTHONPATH': str(pathlib.Path(plm_jax.__file__).parents[1])}
  done = subprocess.run([sys.executable, '-c', code], cwd=folder, env=environment, text=True,
                        capture_output=True,
                        timeout=300)
  assert done.returncode == 0, done.stderr
  assert json.loads(done.stdout) == ['jax']
