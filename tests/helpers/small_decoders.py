"""Checks that tests of small decoders share: sizes, configurations, exports and bfloat16."""
import json
import pathlib

from flax.linen import unbox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax import conversion, validation
from plm_jax.conversion import attributes
from plm_jax.layers.dense import count_parameters
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.models.families import get_family

GOLDEN = pathlib.Path(__file__).parents[1] / 'golden'


def parameters(name: str, config, head: str = 'lm'):
  """Return the shapes of the parameters of a model with one head."""
  batch = {field: jax.ShapeDtypeStruct((1, 8), jnp.int32) for field in ('tokens', 'segments')}
  model = ModelWithHeads(config.backbone(), {head: conversion.build_head(name, head, config, 3)})
  return unbox(jax.eval_shape(model.init, jax.random.key(0), batch)['params'])


def count(name: str, config) -> tuple[int, int]:
  """Return (parameters, those outside of the token table and the output matrix)."""
  found = parameters(name, config)
  tables = config.vocab * config.block.width * (1 if config.tied else 2)
  number = count_parameters(found)
  return number, number - tables


def parse(name: str, hf_config):
  """Turn the contents of a config.json into our configuration."""
  family = get_family(name)
  return attributes.parse_hf_config(family, family.normalize_hf_config(hf_config))


def write(name: str, config) -> dict:
  """Turn our configuration into the contents of a config.json."""
  return json.loads(json.dumps(attributes.build_hf_attributes(get_family(name), config)))


def shrink(config, **changes):
  """Return a model of three layers of width 32, with these changes."""
  block = validation.with_paths(config.block, {
      'width': 32, 'heads': 4, 'kv_heads': config.block.kv_heads and 2, 'head_size': None,
      'mlp_dim': 44})
  return validation.with_paths(config.resize(block, 3, 53, 64), changes)


def assert_there_and_back(folder, name: str, config, head: str = 'lm') -> set[str]:
  """Export a random model and load it again; return the names of its tensors."""
  files = pytest.importorskip('safetensors.numpy')
  params = jax.tree.map(np.asarray, tiny.random_params(parameters(name, config, head)))
  conversion.save(folder, config, params, like=name)
  found = conversion.load(folder)
  assert found.config == config and list(found.heads) == [head]
  tiny.assert_same(found.params, params)
  return set(files.load_file(folder / 'model.safetensors'))


def assert_transformers_agrees(folder, name: str, config, attention: str = 'eager') -> None:
  """Compare the logits of an exported model in transformers with ours, in float32: 1e-5."""
  torch = pytest.importorskip('torch')
  transformers = pytest.importorskip('transformers')
  params = jax.tree.map(np.asarray, tiny.random_params(parameters(name, config)))
  conversion.save(folder, config, params, like=name)
  theirs = transformers.AutoModelForCausalLM.from_pretrained(
      folder, attn_implementation=attention, dtype=torch.float32).eval()
  tokens = np.random.default_rng(0).integers(0, config.vocab, (2, 20))
  with torch.no_grad():
    want = theirs(input_ids=torch.tensor(tokens)).logits.numpy()
  got = run(conversion.load(folder), tokens)
  assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


def run(imported, tokens, dtype: str = 'float32', head: str = 'lm'):
  """Compute the logits [batch, length, vocab] of an imported model in a compute dtype."""
  config = validation.with_paths(imported.config, {'block.dtype': dtype})
  module = conversion.build_head(imported.family, head, config, 2)
  model = ModelWithHeads(config.backbone(), {head: module})
  batch = {'tokens': jnp.asarray(tokens, jnp.int32),
           'segments': jnp.ones(tokens.shape, jnp.int32)}
  with jax.default_matmul_precision('highest'):
    return np.asarray(jax.jit(model.apply)({'params': imported.params}, batch)[head], np.float32)


def bfloat16_error(case: str) -> float:
  """Return the error of the logits of a golden case in bfloat16, relative to float32 (RMS)."""
  imported = conversion.load(GOLDEN / case)
  tokens = np.load(GOLDEN / case / 'inputs.npz')['input_ids']
  exact = run(imported, tokens)
  return float(np.sqrt(np.square(run(imported, tokens, 'bfloat16') - exact).mean()
                       / np.square(exact).mean()))
