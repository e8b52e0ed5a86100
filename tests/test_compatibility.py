"""Runs, records and configurations that a version of before wrote, in fixtures/before: read,
continued and exported."""
import dataclasses
import json
import lzma
import pathlib
import tarfile

import jax
import numpy as np
import pytest

from plm_jax import conversion
from plm_jax.config.serialization import from_json
from plm_jax.data import pipeline
from plm_jax.layers.dense import count_parameters
from plm_jax.loading import loaded_model
from plm_jax.runs.run import run

BEFORE = pathlib.Path(__file__).parent / 'fixtures' / 'before'
# Without decoders: in that version they learned from text without its white space, which is refused
# now.
AFTER = json.loads((BEFORE / 'after.json').read_text())


@pytest.fixture(scope='module')
def folder(tmp_path_factory) -> pathlib.Path:
  """records/NAME and runs/NAME, which know each other by paths from here."""
  path = tmp_path_factory.mktemp('before')
  with tarfile.open(BEFORE / 'runs.tar.xz') as archive:
    archive.extractall(path, filter='data')
  return path


@pytest.fixture(scope='module')
def configs() -> dict:
  return json.loads(lzma.decompress((BEFORE / 'configs.json.xz').read_bytes()))


@pytest.mark.slow
@pytest.mark.parametrize('name', [
    pytest.param(name, marks=[pytest.mark.release] * (name != 'bert_base')) for name in AFTER])
def test_an_older_run_continues_with_the_same_metrics(name, folder, tmp_path, monkeypatch):
  monkeypatch.chdir(folder)
  monkeypatch.setattr(pipeline, 'MIN_BLOCKS', 1)  # that version had larger blocks for small corpora
  config = loaded_model.read_config(f'runs/{name}')
  result = run(config)
  assert result and result.finished
  lines = [json.loads(line) for line in pathlib.Path('runs', name,
                                                     'metrics.jsonl').read_text().splitlines()]
  losses = {str(line['step']): line['loss'] for line in lines if line['split'] == 'train'}
  # Dropout of the pooled vector is in the head, formerly in the backbone, so its random numbers
  # differ.
  redrawn = bool(getattr(getattr(config.objective, 'pair', None), 'pair_task',
                         '')) and config.model.block.dropout > 0
  assert losses == pytest.approx(AFTER[name]['losses'], rel=1e-3 if redrawn else 1e-5)
  trained = loaded_model.load_model(f'runs/{name}')
  sizes = {jax.tree_util.keystr(path): float(np.abs(leaf).sum())
           for path, leaf in jax.tree_util.tree_flatten_with_path(jax.device_get(trained.params))[
               0]}
  # Gradients of key biases are zero but for rounding, which Adam makes steps of.
  assert sizes == pytest.approx(AFTER[name]['sizes'], rel=2e-3 if redrawn else 1e-4, abs=3e-3)

  params, _ = conversion.exportable_params(trained.family, trained.params)
  conversion.save(tmp_path / 'out', trained.model, params, trained.tokenizer, like=trained.family)
  theirs = conversion.load(tmp_path / 'out')
  jax.tree.map(np.testing.assert_array_equal, {part: params[part] for part in theirs.params},
               dict(theirs.params))


def test_the_configurations_of_every_recipe_are_read(configs):
  """FLOPs are those of the earlier version."""
  assert len(configs) == 77
  for name, saved in configs.items():
    config = from_json(saved['config'], name)
    assert (config.name, config.scale) == (name, 'paper')
    model = config.model
    if getattr(model, 'windows', ()):  # of these, pairs outside of a window counted as well
      model = dataclasses.replace(model, windows=())
    assert model.forward_flops(512, 77) == saved['flops'], name


@pytest.mark.release
@pytest.mark.slow
def test_they_make_the_models_that_they_made(configs):
  short = dict(tokens=jax.ShapeDtypeStruct((1, 8), int), segments=jax.ShapeDtypeStruct((1, 8), int))
  short |= {f'decoder_{name}': value for name, value in short.items()}
  for name, saved in configs.items():
    model = from_json(saved['config'], name).model
    shapes = jax.eval_shape(model.backbone().init, jax.random.key(0), short)['params']
    assert count_parameters(shapes) == saved['parameters'], name
