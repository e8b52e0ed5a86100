"""Blocks of queries compared with full rows under a mask."""
import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax import validation
from plm_jax.architectures.decoder import Decoder
from plm_jax.architectures.encoder import Encoder
from plm_jax.layers import sliding_window
from plm_jax.layers.attention import Attention, AttentionMask
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.sliding_window import SlidingWindow
from plm_jax.models import gpt2, modernbert


def test_a_block_reads_its_neighbors():
  """Keys and queries are numbered: a row of 300 in blocks of 128."""
  band, row = SlidingWindow(3, 2), jnp.arange(1, 301)[None]
  own, beside = sliding_window.split_queries(row, band), sliding_window.neighbor_keys(row, band)
  assert own.shape == (3, 128) and beside.shape == (3, 133)
  assert own[2].tolist() == [*range(257, 301), *[0] * 84]
  assert beside[0].tolist() == [0, 0, 0, *range(1, 131)] and beside[1].tolist() == [
      *range(126, 259)]
  assert beside[2].tolist() == [*range(254, 301), *[0] * 86]
  assert sliding_window.join_blocks(own, 1, 300).tolist() == row.tolist()


@pytest.mark.parametrize('band', [SlidingWindow(3, 2), SlidingWindow(0, 4), SlidingWindow(130, 0)],
                         ids=str)
def test_blocks_and_rows_attend_to_the_same_keys(band):
  """Pairs of query and key by their numbers, for two rows of two texts each, and for padded
  rows."""
  length, rng = 300, np.random.default_rng(0)
  segments = jnp.array([[1] * 140 + [2] * 160, [1] * 200 + [0] * 100])
  number = jnp.tile(jnp.arange(length), (2, 1))
  for mask in (segments[:, None, :, None] == segments[:, None, None, :],
               (segments > 0)[:, None, None], None,
               jnp.array(rng.random((1, 1, length, length)) < 0.5)):
    seen = jnp.broadcast_to(band.restrict(mask, length), (2, 1, length, length))
    cut = np.asarray(sliding_window.block_mask(mask, band, 2, length))
    queries = np.asarray(sliding_window.split_queries(number + 1, band)) - 1
    keys = np.asarray(sliding_window.neighbor_keys(number + 1, band)) - 1
    found = np.zeros((2, length, length), bool)
    for block, at in zip(*np.nonzero(cut[:, 0].any(-1)), strict=True):
      if queries[block, at] >= 0:
        found[block // -(-length // band.block_size), queries[block, at],
              keys[block][cut[block, 0, at]]] = True
    np.testing.assert_array_equal(found, seen[:, 0])


def compared(make, monkeypatch):
  """-> what `make` returns where rows are cut, and where they are not."""
  with monkeypatch.context() as patch:
    calls = []
    patch.setattr(sliding_window, 'join_blocks',
                  lambda *args, inner=sliding_window.join_blocks: calls.append(1) or inner(*args))
    cut = jax.device_get(make())
    assert calls
  monkeypatch.setattr(SlidingWindow, 'saves', lambda band, length: False)
  return cut, jax.device_get(make())


@pytest.mark.parametrize('band', [
    SlidingWindow(5, 5), pytest.param(SlidingWindow(100, 0), marks=pytest.mark.slow)], ids=str)
def test_blocks_attend_as_rows_do(band, monkeypatch):
  """Outputs and gradients, with grouped keys."""
  cfg = BlockConfig(width=16, heads=4, kv_heads=2)
  module = Attention(dataclasses.replace(cfg.attention, dropout=0.0), cfg)
  x, out = (jax.random.normal(jax.random.key(n), (2, 470, 16)) for n in (0, 1))
  segments = jnp.array([[1] * 200 + [2] * 270, [1] * 450 + [0] * 20])
  mask = (segments[:, None, :, None] == segments[:, None, None, :]) & (segments > 0)[:, None, None]
  params = tiny.random_params(jax.eval_shape(module.init, jax.random.key(0), x, x,
                                             AttentionMask(mask)))
  def make():
    def loss(params, x):
      y = module.apply(params, x, x, AttentionMask(mask, window=band)) * (segments > 0)[..., None]
      return (y * out).sum(), y
    return jax.jit(lambda: jax.grad(loss, (0, 1), has_aux=True)(params, x))()
  with jax.default_matmul_precision('highest'):
    cut, whole = map(jax.tree.leaves, compared(make, monkeypatch))
  # of all: softmax does not feel the bias of keys
  largest = max(np.abs(leaf).max() for leaf in whole)
  for one, other in zip(cut, whole, strict=True):
    np.testing.assert_allclose(one, other, atol=1e-5 * largest)


@pytest.mark.slow
def test_dropout_of_blocks_has_its_rate_and_differs_between_blocks():
  """Values identify keys, and all logits are equal, so that each key is either kept or
  dropped."""
  cfg = BlockConfig(width=8, heads=1)
  cfg = dataclasses.replace(cfg, attention=dataclasses.replace(cfg.attention, dropout=0.25))
  module, rows = Attention(cfg.attention, cfg), jnp.array([4, 7])
  visible = AttentionMask(None, window=SlidingWindow(1, 0))
  x = jnp.tile(jnp.array([1.0, 16.0]), 256)[None, :, None] * jnp.ones((2, 1, 8))
  params = jax.tree.map(jnp.zeros_like,
                        nn.unbox(module.init(jax.random.key(0), x, x, visible)['params']))
  for name in ('value', 'out'):
    params[name]['kernel'] = jnp.eye(8).reshape(params[name]['kernel'].shape)
  y = module.apply({'params': params}, x, x, visible, rows, rngs={'dropout': jax.random.key(0)})
  found = np.round(np.asarray(y[:, 1:, 0]) * 0.75 * 2).astype(int)  # 0, 1, 16 or 17
  assert set(np.unique(found)) == {0, 1, 16, 17}
  assert abs((found % 16 == 0).mean() - 0.25) < 0.03 and abs((found < 16).mean() - 0.25) < 0.03
  parts = found[:, :511].reshape(-1, 1)[:1020].reshape(-1, 255)[:, :120]
  assert len({tuple(part) for part in parts.tolist()}) == len(parts)


@pytest.mark.parametrize(('config', 'module'), [
    (modernbert.make_config(5, 32, 4, 48), Encoder),
    (gpt2.make_gpt3_config(5, 64, 4), Decoder)], ids=['ModernBERT', 'GPT-3'])
def test_models_give_the_same_outputs_with_blocks(config, module, monkeypatch):
  config = dataclasses.replace(config, vocab=64, max_length=0 if module is Encoder else 512,
                               windows=(0, 9, 9) if module is Encoder else (0, 9))
  batch = {'tokens': jnp.arange(512)[None] % 59 + 5,
           'segments': jnp.array([[1] * 300 + [2] * 190 + [0] * 22])}
  if module is Decoder:
    batch['place'] = jnp.array([[*range(300), *range(190), *[0] * 22]])
  params = tiny.random_params(jax.eval_shape(module(config).init, jax.random.key(0),
                                             batch)['params'])
  def make():
    return jax.jit(lambda: module(config).apply({'params': params}, batch).hidden[:, :490])()
  with jax.default_matmul_precision('highest'):
    cut, whole = compared(make, monkeypatch)
  np.testing.assert_allclose(cut, whole, atol=2e-5 * np.abs(whole).max())


@pytest.mark.parametrize('frozen',
                         [1, *(pytest.param(number, marks=[pytest.mark.slow, pytest.mark.release])
                               for number in (0, 3, 5))])
def test_alternating_layers_in_a_loop(frozen):
  """Five layers as a loop of two and one more layer, compared with a loop of five: outputs,
  intermediate values and gradients."""
  config = validation.with_paths(modernbert.make_config(5, 32, 4, 48), {
      'vocab': 64, 'stack.frozen': frozen, 'stack.remat': 'full' if frozen == 1 else 'none'})
  batch = {'tokens': jnp.arange(5, 25)[None], 'segments': jnp.ones((1, 20), jnp.int32)}
  params = tiny.random_params(jax.eval_shape(Encoder(config).init, jax.random.key(0),
                                             batch)['params'])
  def run(*windows):
    module = Encoder(dataclasses.replace(config, windows=windows))
    def loss(params):
      output = module.apply({'params': params}, batch, within=True)
      return jnp.sin(output.hidden).sum(), output
    return jax.device_get(jax.jit(jax.grad(loss, has_aux=True))(params))
  with jax.default_matmul_precision('highest'):
    turns, all_at_once, others = run(0, 3), run(0, 3, 0, 3, 0), run(3, 0)
  for one, other in zip(*map(jax.tree.leaves, (turns, all_at_once)), strict=True):
    np.testing.assert_allclose(one, other, atol=1e-5 * max(1, np.abs(other).max()))
  assert np.abs(turns[1].hidden - others[1].hidden).max() > 0.1
  moved = np.abs(turns[0]['stack']['layers']['block']['mlp']['up']['kernel']).max((1, 2)) > 0
  assert moved.tolist() == [number >= frozen for number in range(5)]


@pytest.mark.parametrize(('config', 'seen'), [
    (modernbert.make_config(4, 32, 4, 48), 2 * 9 + 1), (gpt2.make_gpt3_config(4, 64, 4), 9)],
    ids=['ModernBERT', 'GPT-3'])
def test_flops_exclude_pairs_outside_the_window(config, seen):
  """Two products of width numbers, two operations each, for each of them, in two of four layers."""
  every, some = (dataclasses.replace(config, windows=windows).forward_flops(100, 15)
                 for windows in ((), (0, 9)))
  assert every - some == 2 * 2 * 2 * config.block.width * 100 * (100 - seen)
