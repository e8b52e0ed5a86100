import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax.errors import ConfigError
from plm_jax.layers.attention import Attention, AttentionMask
from plm_jax.layers.positions import TransformerXL
from plm_jax.layers.relative_logits import shift_logits
from plm_jax.layers.stack import Stack, StackConfig
from plm_jax.layers.t5_relative_bias import Buckets


def table(queries, keys, clamp=-1):
  cfg = tiny.block(width=16, heads=2)
  rows = lambda size: jnp.zeros((1, size), int)
  return np.asarray(TransformerXL(clamp).context(None, cfg, rows(queries), rows(keys))['table'])


def test_table_of_distances():
  """The table begins with distance 6, as in transformers'
  XLNetModel.relative_positional_encoding."""
  found = table(6, 6)
  assert found.shape == (12, 16)
  np.testing.assert_allclose(found[0], [
      -0.2794155, 0.9471482, 0.5646425, 0.18860029, 0.059964, 0.01897253, 0.00599996, 0.00189737,
      0.96017027,
      -0.3207964, 0.8253356, 0.98205394, 0.99820054, 0.99982, 0.999982, 0.9999982], atol=1e-6)
  np.testing.assert_allclose(found[6], [0] * 8 + [1] * 8, atol=1e-7)
  np.testing.assert_allclose(found[-1, 0], np.sin(-5), atol=1e-6)
  clamped = table(6, 10, clamp=4)
  np.testing.assert_array_equal(clamped[:7], clamped[6:7].repeat(7, 0))
  np.testing.assert_allclose(clamped[:, 0], np.sin(np.clip(np.arange(10, -6, -1), -4, 4)),
                             atol=1e-6)


def test_relative_shift():
  """As transformers' rel_shift_bnij gives it."""
  found = shift_logits(jnp.arange(64).reshape(2, 1, 4, 8), 4)
  assert found.tolist() == [
      [[[4, 5, 6, 7], [11, 12, 13, 14], [18, 19, 20, 21], [25, 26, 27, 28]]],
      [[[36, 37, 38, 39], [43, 44, 45, 46], [50, 51, 52, 53], [57, 58, 59, 60]]]]
  # More queries, at places of the others, have the same distances.
  more = jnp.concatenate([jnp.arange(64).reshape(2, 1, 4, 8)]
                         + [jnp.arange(64).reshape(2, 1, 4, 8)[:, :, 2:]], 2)
  found = shift_logits(more, 4, places=jnp.array([[2, 3], [3, 0]]))
  assert found[0, 0, 4:].tolist() == [[18, 19, 20, 21], [25, 26, 27, 28]]
  assert found[1, 0, 4:].tolist() == [[49, 50, 51, 52], [60, 61, 62, 63]]


def test_logits_against_the_formula():
  """Four terms with each distance and each pair of segments written out; memory before the row, one
  row backwards."""
  cfg = tiny.block(attention=dict(position=TransformerXL(), bias=(), dropout=0.0), width=16,
                   heads=2)
  queries, keys, places = 5, 8, np.array([[1, 4], [3, 0]])
  draw = np.random.default_rng(0)
  x, memory, other = (draw.normal(size=(2, size, 16)).astype(np.float32)
                      for size in (queries, keys - queries, 2))
  types = draw.integers(0, 2, (2, queries)), draw.integers(0, 2, (2, keys))
  of_queries = np.concatenate([types[0], np.take_along_axis(types[0], places, 1)], 1)
  module = Attention(cfg.attention, cfg)
  kv, x = np.concatenate([memory, x], 1), np.concatenate([x, other], 1)
  context = cfg.attention.position.context(None, cfg, jnp.zeros((2, queries)),
                                           jnp.zeros((2, keys))) | dict(
      places=jnp.array(places), backward=jnp.array([False, True]),
      types=(jnp.array(of_queries), jnp.array(types[1])))
  params = tiny.random_params(jax.eval_shape(
      lambda: module.init(jax.random.key(0), x, kv, AttentionMask(None, context))['params']))
  seen = jax.jit(lambda p: module.apply(
      {'params': p}, x, kv, AttentionMask(None, context), mutable='intermediates'))(params)[1]
  probs = seen['intermediates']['probs'][0]

  p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
  q, k = (np.einsum('bld,dha->blha', y, p[name]['kernel'])
          for y, name in ((x, 'query'), (kv, 'key')))
  at = np.concatenate([np.broadcast_to(np.arange(queries), (2, queries)), places],
                      1) + keys - queries
  distance = (at[:, :, None] - np.arange(keys)) * np.array([1, -1])[:, None, None]
  angles = distance[..., None] / 10_000 ** (np.arange(0, 16, 2) / 16)
  r = np.einsum('bqkd,dha->bqkha', np.concatenate([np.sin(angles), np.cos(angles)], -1),
                p['relative']['kernel'])
  s = p['types'][(of_queries[:, :, None] != types[1][:, None, :]).astype(int)]
  logits = np.einsum('bqha,bkha->bhqk', q + p['content_bias'], k)
  logits += np.einsum('bqha,bqkha->bhqk', q + p['position_bias'], r)
  logits += np.einsum('bqha,bqkha->bhqk', q + p['type_bias'], s)
  exps = np.exp(logits / 8 ** 0.5)
  np.testing.assert_allclose(probs, exps / exps.sum(-1, keepdims=True), atol=1e-5)


@pytest.mark.parametrize('untied', [True, False])
def test_biases_may_be_tied_between_layers(untied):
  cfg = tiny.block(attention=dict(position=TransformerXL(untied=untied), bias=()))
  x, place = jnp.zeros((1, 4, 32)), jnp.zeros((1, 4), int)
  module = Stack(cfg, StackConfig(3))
  shapes = tiny.flat(tiny.unbox(jax.eval_shape(
      lambda: module.init(jax.random.key(0), x, AttentionMask(None), place)['params'])))
  biases = {name: leaf.shape for name, leaf in shapes.items()
            if name.endswith(('position_bias', 'content_bias'))}
  place, shape = ('layers/block/attention/', (3, 4, 8)) if untied else ('', (4, 8))
  assert biases == {f'{place}{name}_bias': shape for name in ('position', 'content')}


@pytest.mark.parametrize(('buckets', 'furthest', 'bidirectional'), [
    (32, 8, True), (32, 7, True), (32, 16, False), (8, 1, True)])
def test_ranges_of_no_length_are_refused(buckets, furthest, bidirectional):
  with pytest.raises(ConfigError,
                     match=f'furthest must be {buckets // (4 if bidirectional else 2) + 1} or '
                           f'more, got'):
    Buckets(buckets, furthest, bidirectional)
  one_more = Buckets(buckets, buckets // (4 if bidirectional else 2) + 1, bidirectional)
  found = np.asarray(one_more.bucket(jnp.arange(-50, 51)))
  assert (found >= 0).all() and (found < buckets).all()
