"""The TPU kernel in interpret mode, compared with plain attention: `attention.probabilities` and
`mixture`."""
import functools
import types

from flax.linen import unbox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax import sharding
from plm_jax.layers.attention import (
  Attention,
  AttentionConfig,
  AttentionMask,
  mix_values,
  probabilities,
)
from plm_jax.layers.common import CommonConfig
from plm_jax.layers.disentangled import Disentangled
from plm_jax.layers.kernels import hashed_dropout, tpu_attention, tpu_attention_blocks
from plm_jax.layers.relative_logits import RelativeLogits, TransformerXLLogits
from plm_jax.layers.sliding_window import SlidingWindow
from plm_jax.optim.optimizers import AdamW
from plm_jax.training.step import init_state, train_step

SMALL = 'TPU v4'


def numbers(*shape, seed=0):
  return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def noise(rows, rate=0.25):
  return tpu_attention.AttentionDropout(jnp.array([3, 1 << 31], jnp.uint32),
                                        jnp.asarray(rows, jnp.int32), rate)


def plain(arrays, scale, noise=None, band=None, causal=False):
  """As `tpu_attention.attend`, with the same bits. The mask is causal, where it is."""
  del causal
  q, k, v, mask, bias = arrays
  if band:
    mask = band.restrict(mask, k.shape[1])
  if isinstance(bias, RelativeLogits | TransformerXLLogits):
    q, bias = bias.to_bias(q, k, scale)
  p = probabilities(q, k, mask, scale, bias)
  if noise is None:
    return mix_values(p, v)
  seed = jax.lax.bitcast_convert_type(noise.seed, jnp.int32)
  _, heads, queries, keys = p.shape
  stay = hashed_dropout.hashed_keep_mask(seed, noise.rows[:, None, None, None],
                                         jnp.arange(heads)[:, None, None],
                       jnp.arange(queries)[:, None], keys, noise.rate)
  return mix_values(p, v, lambda p: jnp.where(stay, p / (1 - noise.rate), 0))


def mask_of(kind, rows, queries, keys):
  if kind == 'padding':
    return jnp.arange(keys) < jnp.array([keys, keys - 3, 0])[:rows, None, None, None]
  if kind == 'causal':
    return (jnp.arange(keys) <= jnp.arange(queries)[:, None] + keys - queries)[None, None]
  if kind == 'band':
    return (abs(jnp.arange(keys) - jnp.arange(queries)[:, None]) < 5)[None, None]
  if kind in ('packed', 'documents'):
    least = 0 if kind == 'packed' else 1  # segment 0 is padding
    segments = jnp.asarray(np.random.default_rng(1).integers(least, 4, (rows, keys)))
    return (segments[:, None, :queries, None] == segments[:, None, None]) & (
        segments[:, None, None] > 0)
  return None


SLOW = pytest.mark.slow
RELEASE = [pytest.mark.slow, pytest.mark.release]
CASES = [  # queries, keys, heads, heads of keys, their size, mask, bias, dropout
    (24, 40, 3, 3, 64, 'causal', True, True),
    pytest.param(136, 136, 2, 1, 128, 'causal', False, False, marks=SLOW),
    pytest.param(8, 8, 2, 2, 64, 'padding', False, True, marks=RELEASE),
    pytest.param(20, 20, 4, 2, 32, 'packed', False, True, marks=SLOW),
    pytest.param(16, 300, 4, 2, 80, 'padding', False, True, marks=RELEASE),
    pytest.param(264, 200, 2, 2, 64, 'padding', True, True, marks=SLOW),
    pytest.param(600, 500, 3, 3, 64, 'padding', True, True, marks=RELEASE),
    pytest.param(40, 40, 2, 1, 256, '', False, True, marks=SLOW),
    pytest.param(640, 640, 4, 2, 128, 'band', False, True, marks=RELEASE),
    pytest.param(2048, 2048, 2, 2, 64, 'causal', False, True, marks=SLOW),
    pytest.param(300, 8100, 2, 2, 64, 'documents', False, True, marks=[SLOW, pytest.mark.release])]


@pytest.mark.parametrize(('queries', 'keys', 'heads', 'key_heads', 'size', 'kind', 'biased',
                          'dropped'), CASES)
def test_the_kernel_equals_plain_attention_and_its_gradients(
    queries, keys, heads, key_heads, size, kind, biased, dropped):
  rows = 3 if queries < 600 else 1
  q, given = numbers(rows, queries, heads, size), numbers(rows, queries, heads, size, seed=1)
  k, v = (numbers(rows, keys, key_heads, size, seed=seed) for seed in (2, 3))
  mask, bias = mask_of(kind, rows, queries, keys), numbers(1, heads, queries, keys,
                                                           seed=4) if biased else None
  bits = noise([7, 2, 1 << 20][:rows]) if dropped else None
  def attending(attend):
    return lambda q, k, v, bias: attend(tpu_attention.Arrays(q, k, v, mask, bias), size ** -0.5,
                                        bits)
  alike(attending, (q, k, v, bias), given, 4 + biased)


@pytest.mark.parametrize(('length', 'heads', 'key_heads', 'size', 'band', 'kind', 'dropped'), [
    (700, 1, 1, 64, SlidingWindow(5, 3), 'packed', True),
    pytest.param(1024, 2, 2, 64, SlidingWindow(64, 64), 'padding', False, marks=RELEASE),
    pytest.param(1100, 4, 2, 128, SlidingWindow(130, 0), '', True, marks=SLOW),
    pytest.param(600, 2, 2, 32, SlidingWindow(3, 200), 'causal', True, marks=RELEASE),
    pytest.param(300, 2, 2, 64, SlidingWindow(5, 5), 'packed', True, marks=SLOW)])
def test_bands(length, heads, key_heads, size, band, kind, dropped):
  """A program meets the tiles in reach; in the last case these would be the whole row, and the mask
  has the band."""
  q, given = numbers(2, length, heads, size), numbers(2, length, heads, size, seed=1)
  k, v = (numbers(2, length, key_heads, size, seed=seed) for seed in (2, 3))
  mask, bits = mask_of(kind, 2, length, length), noise([7, 2]) if dropped else None
  # What sees nothing is uniform over what its program has: no gradient comes from there.
  seen = jnp.broadcast_to(band.restrict(mask, length), (2, 1, length, length)).any((1, 3))
  def attending(attend):
    def call(q, k, v):
      y = attend(tpu_attention.Arrays(q, k, v, mask, None), size ** -0.5, bits, band)
      return jnp.where(seen[..., None, None], y, 0)
    return call
  alike(attending, (q, k, v), given, 4)


@pytest.mark.parametrize(('lengths', 'heads', 'size', 'window', 'kind', 'dropped', 'on'), [
    ((300, 300), (2, 2), 64, None, 'causal', True, SMALL),
    pytest.param((384, 384), (4, 2), 128, None, 'causal', False, SMALL, marks=RELEASE),
    pytest.param((40, 300), (2, 2), 64, None, 'causal', True, SMALL, marks=SLOW),
    pytest.param((260, 260), (3, 3), 32, None, 'packed', True, SMALL, marks=RELEASE),
    pytest.param((300, 300), (2, 1), 80, None, '', True, SMALL, marks=SLOW),
    pytest.param((300, 300), (2, 1), 256, None, 'causal', True, SMALL, marks=RELEASE),
    pytest.param((400, 400), (2, 2), 64, None, 'causal', True, 'TPU v3', marks=SLOW),
    pytest.param((520, 520), (2, 2), 64, SlidingWindow(70, 20), 'padding', True, SMALL,
                 marks=RELEASE)])
def test_keys_in_parts(lengths, heads, size, window, kind, dropped, on, monkeypatch):
  """Rows with more keys than a core's memory holds: softmax over parts of 128 keys."""
  monkeypatch.setattr(tpu_attention, 'max_keys',
                      lambda kind, size: 256 if kind == 'TPU v3' else 128)
  queries, keys = lengths
  q, given = (numbers(2, queries, heads[0], size, seed=seed) for seed in (0, 1))
  k, v = (numbers(2, keys, heads[1], size, seed=seed) for seed in (2, 3))
  mask, bits = mask_of(kind, 2, queries, keys), noise([7, 2]) if dropped else None
  # The mean of a query that sees no key depends on the parts.
  whole = jnp.ones((2, 1, queries, keys), bool)
  visible = whole if mask is None else whole & mask
  seen = (window.restrict(visible, keys) if window else visible).any((1, 3))
  def attending(attend):
    def call(q, k, v):
      y = attend(tpu_attention.Arrays(q, k, v, mask, None), size ** -0.5, bits, window,
                 causal=kind == 'causal')
      return jnp.where(seen[..., None, None], y, 0)
    return call
  alike(attending, (q, k, v), given, 4, on)


def in_parts(q, k, v, mask, bits=None, **options):
  return tpu_attention.attend(
      tpu_attention.Arrays(q, k, v, mask, None), 0.125, bits, on=SMALL, interpret=True, **options)


def test_keys_without_queries_give_finite_values(monkeypatch):
  """The first row is padding, and the second part of the other one; their gradients are not
  zeroed."""
  monkeypatch.setattr(tpu_attention, 'max_keys', lambda *_: 128)
  q, k, v = (numbers(2, 256, 2, 64, seed=seed).astype(jnp.bfloat16) for seed in (1, 2, 3))
  mask = jnp.arange(256) < jnp.array([0, 100])[:, None, None, None]
  y, back = jax.vjp(jax.jit(lambda q, k, v: in_parts(q, k, v, mask)), q, k, v)
  for x in (y, *back(jnp.ones_like(y))):
    assert np.isfinite(np.float32(x)).all() and np.abs(np.float32(x)).max() > 0
  want = plain(tpu_attention.Arrays(*(x[1:].astype(jnp.float32) for x in (q, k, v)), mask[1:],
                                    None), 0.125)
  np.testing.assert_allclose(np.float32(y[1:]), want, atol=0.02)


@pytest.mark.slow
def test_parts_on_a_mesh_and_with_remat(monkeypatch):
  """Values and gradients are the same on four devices, two of which share the rows; grouped key
  heads are repeated."""
  monkeypatch.setattr(tpu_attention, 'max_keys', lambda *_: 128)
  q, given = numbers(4, 300, 4, 64), numbers(4, 300, 4, 64, seed=1)
  k, v = (numbers(4, 300, 1, 64, seed=seed) for seed in (2, 3))
  mask, bits = mask_of('causal', 4, 300, 300), noise([5, 6, 9, 40])
  def learn(q, k, v):
    y, back = jax.vjp(jax.checkpoint(lambda q, k, v: in_parts(q, k, v, mask, bits, causal=True)), q,
                      k, v)
    return y, back(given)
  alone = jax.jit(learn)(q, k, v)
  mesh = sharding.make_mesh(sharding.MeshConfig(data=2, tensor=2), jax.devices()[:4])
  with jax.set_mesh(mesh):
    together = jax.jit(learn)(q, k, v)
  for one, four in zip(jax.tree.leaves(alone), jax.tree.leaves(together), strict=True):
    np.testing.assert_allclose(one, np.asarray(four), atol=1e-5 * np.abs(one).max())


@pytest.mark.parametrize(('kind', 'queries', 'keys', 'causal', 'expected'), [
    ('TPU v4', 8192, 8192, True, [(0, 0, 2048), (2048, 2048, 4096), (4096, 4096, 6144),
                                  (6144, 6144, 8192)]),
    ('TPU v4', 4104, 4104, False, [(0, 0, 1408), (0, 1408, 2816), (0, 2816, 4104)]),
    ('TPU v4', 100, 3000, True, [(0, 0, 1536), (0, 1536, 3000)]),
    ('TPU v3', 2056, 2056, True, [(0, 0, 768), (768, 768, 1536), (1536, 1536, 2056)]),
    ('TPU v5', 8192, 8192, True, [(0, 0, 4096), (4096, 4096, 8192)])])
def test_parts_are_as_equal_as_tiles_allow(kind, queries, keys, causal, expected):
  """First query, first key and end of the keys of each part."""
  q, k = (jax.ShapeDtypeStruct((2, length, 2, 64), jnp.bfloat16) for length in (queries, keys))
  settings = tpu_attention.Settings(1.0, 0.0, None, kind, False)
  parts = tpu_attention.list_parts(tpu_attention.Arrays(q, k, k, None, None), settings, causal)
  assert [(rows.start, own.start, own.stop) for rows, own, _ in parts] == expected
  for rows, own, part in parts:
    assert (part.first_query, part.part, rows.stop) == (rows.start, (own.start, keys), queries)


def test_windows_use_blocks_for_rows_that_are_split(monkeypatch):
  """A layer of ModernBERT on v4: each query meets 256 keys, not a part of 2,048."""
  monkeypatch.setattr(tpu_attention, 'device_kind', lambda: SMALL)
  layer = Attention(AttentionConfig(dropout=0.0), CommonConfig(width=64, heads=1, dtype='bfloat16'))
  x = jnp.zeros((1, 4096, 64), jnp.bfloat16)
  params = jax.eval_shape(layer.init, jax.random.key(0), x, x, AttentionMask(None))
  def attended(params, window):
    return layer.apply(params, x, x, AttentionMask(None, window=window))
  def keys(window):
    jaxpr = jax.make_jaxpr(functools.partial(attended, window=window))(params)
    calls = [equation for equation in equations(jaxpr.jaxpr) if equation.primitive.name
             == 'pallas_call']
    return {call.invars[4].aval.shape[1] for call in calls}
  assert keys(SlidingWindow(64, 64)) == {256}
  assert keys(None) == {2048}


def alike(attending, args, given, leaves, on=SMALL, error=1e-5):
  """Compare the kernel with plain attention: the outputs, and the gradients of args for `given`
  output gradients, relative to the largest entry of each."""
  def both(attend):
    @jax.jit
    def learn(*args):
      y, back = jax.vjp(attending(attend), *args)
      return y, back(given.astype(y.dtype))
    return learn(*args)
  got, want = both(functools.partial(tpu_attention.attend, on=on, interpret=True)), both(plain)
  assert jax.tree.structure(got) == jax.tree.structure(want) and len(jax.tree.leaves(got)) == leaves
  for ours, theirs in zip(*(map(np.float32, jax.tree.leaves(tree)) for tree in (got, want)),
                          strict=True):
    assert ours.shape == theirs.shape and np.abs(theirs).max() > 0.1
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=error * np.abs(theirs).max())


DISTANT = [  # length, heads, their size, terms, mask, dropout, device kind
    (100, 2, 64, 'both', 'packed', True, SMALL),
    pytest.param(8, 3, 32, 'both', '', False, SMALL, marks=SLOW),
    pytest.param(60, 2, 64, 'both', 'padding', True, 'TPU v3', marks=RELEASE),
    pytest.param(256, 1, 128, 'keys', '', True, SMALL, marks=SLOW),
    pytest.param(300, 1, 80, 'queries', 'padding', False, SMALL, marks=RELEASE),
    pytest.param(300, 3, 64, 'both', 'padding', True, SMALL, marks=SLOW),
    pytest.param(512, 2, 64, 'both', 'packed', True, SMALL, marks=RELEASE),
    pytest.param(700, 2, 64, 'both', 'causal', True, SMALL, marks=SLOW)]


@pytest.mark.parametrize(('length', 'heads', 'size', 'terms', 'kind', 'dropped', 'on'), DISTANT)
def test_distances(length, heads, size, terms, kind, dropped, on):
  """A kernel for `Distances` equals the plain form; gradients of the tables are summed over
  rows."""
  rows = 3 if length < 600 else 1
  q, k, v, given = (numbers(rows, length, heads, size, seed=seed) for seed in range(4))
  tables = {name: numbers(2 * length, heads, size, seed=seed)
            for seed, name in ((4, 'keys'), (5, 'queries'))
            if terms in (name, 'both')}
  mask, bits = mask_of(kind, rows, length,
                       length), noise([7, 2, 1 << 20][:rows]) if dropped else None
  def attending(attend):
    def call(q, k, v, tables):
      distances = RelativeLogits(tables.get('keys'), tables.get('queries'), 0.6)
      return attend(tpu_attention.Arrays(q, k, v, mask, distances), size ** -0.5, bits)
    return call
  alike(attending, (q, k, v, tables), given, 4 + len(tables), on)


@pytest.mark.slow
def test_distances_in_bfloat16():
  args = [numbers(2, 100, 2, 64, seed=seed).astype(jnp.bfloat16) for seed in range(3)]
  tables = [numbers(200, 2, 64, seed=seed).astype(jnp.bfloat16) for seed in (3, 4)]
  def attending(attend):
    def call(q, k, v, keys, queries):
      kernel = attend is not plain
      q, k, v, keys, queries = (x if kernel else x.astype(jnp.float32)
                                for x in (q, k, v, keys, queries))
      return attend(tpu_attention.Arrays(q, k, v, None, RelativeLogits(keys, queries, 0.6)), 0.125)
    return call
  alike(attending, (*args, *tables), numbers(2, 100, 2, 64, seed=5).astype(jnp.bfloat16), 6,
        error=2e-2)


@pytest.mark.parametrize('kind', ['packed', pytest.param('padding', marks=SLOW)])
def test_queries_at_a_subset_of_the_positions(kind):
  """As in the mask decoder: queries are at any positions in any order. Of two queries at one
  position, as in padded rows, the first counts."""
  k, v = (numbers(2, 40, 2, 64, seed=seed) for seed in (1, 2))
  places = jnp.array([[3, 39, 0, 17, 8, 9, 1, 2, 0], [5, 4, 20, 21, 22, 38, 6, 7, 5]])
  q, given = numbers(2, 9, 2, 64), numbers(2, 9, 2, 64, seed=5).at[:, 8].set(0)
  tables = {name: numbers(80, 2, 64, seed=seed) for seed, name in ((3, 'keys'), (4, 'queries'))}
  mask = mask_of(kind, 2, 40, 40)
  if kind == 'packed':
    mask = jnp.take_along_axis(mask, places[:, None, :, None], 2)
  def attending(attend):
    def call(q, k, v, tables):
      y = attend(tpu_attention.Arrays(q, k, v, mask,
                                      RelativeLogits(**tables, share=0.6, places=places)), 0.125)
      return y[:, :8]
    return call
  alike(attending, (q, k, v, tables), given[:, :8], 6)


# consecutive queries, others, memory, heads, their size, segments, reversed rows, dropout, device
# kind
TWO_STREAMS = [
    (40, 9, 30, 2, 64, True, True, True, SMALL),
    pytest.param(130, 20, 100, 2, 64, True, True, True, 'TPU v3', marks=RELEASE),
    pytest.param(60, 9, 0, 3, 32, True, True, False, SMALL, marks=SLOW),
    pytest.param(60, 0, 30, 1, 80, True, False, True, SMALL, marks=RELEASE),
    pytest.param(200, 140, 300, 2, 64, False, True, True, SMALL, marks=SLOW),
    pytest.param(300, 60, 0, 1, 128, False, False, False, SMALL, marks=RELEASE),
    pytest.param(512, 85, 384, 2, 64, True, True, True, 'TPU v3',
                 marks=[SLOW, pytest.mark.release])]


def two_streams(content, others, memory, heads, size, segments, backward):
  """Logits of an XLNet layer without parameters, and the mask of both streams."""
  draw, keys, rows = np.random.default_rng(2), memory + content, 3 if content < 200 else 2
  queries = content + others
  places = jnp.asarray(draw.integers(0, content, (rows, others))) if others else None
  learns = dict(table=numbers(keys + content, heads, size, seed=4),
                content_bias=numbers(heads, size, seed=5),
                position_bias=numbers(heads, size, seed=6))
  fixed: dict = dict(places=places)
  if backward:
    learns['table'] = numbers(2, keys + content, heads, size, seed=4)
    fixed['backward'] = jnp.array([True, False, True])[:rows]
  if segments:
    learns |= dict(type_bias=numbers(heads, size, seed=7), types=numbers(2, heads, size, seed=8))
    fixed['same'] = jnp.asarray(draw.integers(0, 2, (rows, queries, keys)) > 0)
  # Of a query of the second stream nothing may be visible; padding at the end.
  ranks = draw.integers(0, 20, (rows, queries))
  mask = ranks[:, :, None] > draw.integers(-1, 20, (rows, 1, keys))
  mask &= np.arange(keys) < keys - np.array([0, 3, 7])[:rows, None, None]
  return learns, fixed, jnp.asarray(mask)[:, None]


@pytest.mark.parametrize(
    ('content', 'others', 'memory', 'heads', 'size', 'segments', 'backward', 'dropped', 'on'),
    TWO_STREAMS)
def test_two_streams(content, others, memory, heads, size, segments, backward, dropped, on):
  """XLNet's logits: queries at consecutive positions after a memory, and others at any
  positions."""
  learns, fixed, mask = two_streams(content, others, memory, heads, size, segments, backward)
  rows, queries, keys = mask.shape[0], content + others, memory + content
  q, given = (numbers(rows, queries, heads, size, seed=seed) for seed in (0, 3))
  k, v = (numbers(rows, keys, heads, size, seed=seed) for seed in (1, 2))
  bits = noise([7, 2, 1 << 20][:rows]) if dropped else None
  def attending(attend):
    def call(q, k, v, learns):
      logits = TransformerXLLogits(**learns, **fixed)
      return attend(tpu_attention.Arrays(q, k, v, mask, logits), size ** -0.5, bits)
    return call
  alike(attending, (q, k, v, learns), given, 4 + len(learns), on)


@pytest.mark.slow
def test_two_streams_in_bfloat16():
  learns, fixed, mask = two_streams(40, 9, 30, 2, 64, True, True)
  q, given = (numbers(3, 49, 2, 64, seed=seed).astype(jnp.bfloat16) for seed in (0, 3))
  k, v = (numbers(3, 70, 2, 64, seed=seed).astype(jnp.bfloat16) for seed in (1, 2))
  def attending(attend):
    def call(q, k, v, learns):
      if attend is plain:
        q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
      else:
        learns = learns | {'table': learns['table'].astype(jnp.bfloat16)}
      return attend(tpu_attention.Arrays(q, k, v, mask, TransformerXLLogits(**learns, **fixed)),
                    0.125)
    return call
  alike(attending, (q, k, v, learns), given, 9, error=2e-2)


@pytest.mark.slow
def test_bfloat16():
  q, k, v = (numbers(2, 32, 2, 64, seed=seed).astype(jnp.bfloat16) for seed in range(3))
  arrays = tpu_attention.Arrays(q, k, v, None, None)
  got = jax.jit(lambda: tpu_attention.attend(arrays, 0.125, on=SMALL, interpret=True))()
  want = plain((*(x.astype(jnp.float32) for x in (q, k, v)), None, None), 0.125)
  assert got.dtype == jnp.bfloat16
  np.testing.assert_allclose(got.astype(jnp.float32), want, atol=2e-2)


@pytest.mark.slow
def test_a_mesh_changes_no_bit_of_dropout():
  """Rows and heads over eight devices: of other bits a quarter of all probabilities would be other
  ones."""
  q, k, v = (numbers(4, 16, 4, 64, seed=seed) for seed in range(3))
  mask, bits = mask_of('padding', 1, 16, 16), noise([5, 6, 9, 40])
  @jax.jit
  def answer(q, k, v):
    return tpu_attention.attend(tpu_attention.Arrays(q, k, v, mask, None), 0.125, bits, on=SMALL,
                                interpret=True)
  want = answer(q, k, v)
  mesh = sharding.make_mesh(sharding.MeshConfig(data=2, fsdp=2, tensor=2))
  with jax.set_mesh(mesh):
    layout = jax.NamedSharding(mesh, sharding.partition_spec(tpu_attention.ARRAY_AXES, q.shape,
                                                             mesh))
    np.testing.assert_allclose(answer(*(jax.device_put(x, layout) for x in (q, k, v))), want,
                               atol=1e-6)
  other = tpu_attention.attend(
      tpu_attention.Arrays(q, k, v, mask, None), 0.125, noise([5, 6, 9, 41]), on=SMALL,
      interpret=True)
  np.testing.assert_allclose(other[:3], want[:3], atol=1e-6)
  assert float(jnp.abs(other[3] - want[3]).max()) > 0.1


@pytest.mark.slow
def test_a_mesh_adds_up_gradients_of_tables():
  """Over eight devices; each has its rows and heads."""
  args = [numbers(4, 16, 4, 64, seed=seed)
          for seed in range(3)] + [numbers(32, 4, 64, seed=seed) for seed in (3, 4)]
  places = jnp.array([[3, 0, 15, 7, 8], [1, 2, 3, 4, 5], [9, 8, 7, 6, 5], [0, 15, 14, 1, 2]])
  @jax.jit
  def learned(q, k, v, keys, queries):
    def total(*args):
      q, k, v, keys, queries = args
      some = RelativeLogits(keys, queries, 0.6, places)
      attend = functools.partial(
          tpu_attention.attend, scale=0.125, noise=noise([5, 6, 9, 40]), on=SMALL, interpret=True)
      whole = attend(tpu_attention.Arrays(q, k, v, None, some._replace(places=None)))
      asked = attend(tpu_attention.Arrays(jnp.take_along_axis(q, places[..., None, None], 1), k, v,
                                          None, some))
      return (whole ** 2).sum() + (asked ** 3).sum()
    return jax.grad(total, range(5))(q, k, v, keys, queries)
  want, mesh = learned(*args), sharding.make_mesh(sharding.MeshConfig(data=2, fsdp=2, tensor=2))
  with jax.set_mesh(mesh):
    laid = [jax.device_put(x, jax.NamedSharding(
        mesh, sharding.partition_spec(names, x.shape, mesh)))
            for x, names in zip(args, [tpu_attention.ARRAY_AXES] * 3 + [(None, 'heads', None)] * 2,
                                strict=True)]
    got = learned(*laid)
  for ours, theirs in zip(got, want, strict=True):
    np.testing.assert_allclose(ours, theirs, atol=1e-5 * float(jnp.abs(theirs).max()))


def test_dropout_bits_pass_tests_of_randomness():
  """Their share; and that neighbouring queries, keys, heads, rows and seeds agree as often as
  chance has them."""
  places = jnp.meshgrid(*map(jnp.arange, (4, 4, 64, 1)), indexing='ij')[:3]
  draw = jax.jit(lambda first, second: hashed_dropout.hashed_keep_mask(
      jnp.int32([first, second]), *places, 256, 0.1))
  stay, other, third = (np.asarray(draw(*seed), float) for seed in ((1, 2), (2, 2), (1, 3)))
  assert stay.shape == (4, 4, 64, 256)
  error = (0.09 / stay.size) ** 0.5
  assert abs(stay.mean() - 0.9) < 4 * error
  pairs = [(np.take(stay, range(1, stay.shape[axis]), axis),
            np.take(stay, range(stay.shape[axis] - 1), axis))
           for axis in range(4)]
  square = stay[..., :64]
  halves = stay[..., :128], stay[..., 128:]  # of the same words
  for some, others in (*pairs, (stay, other), (stay, third), (square, square.swapaxes(2, 3)),
                       halves):
    assert abs(np.corrcoef(some.ravel(), others.ravel())[0, 1]) < 5 / some.size ** 0.5 * 2 ** 0.5
  # A word is of the sum of one of its query and one of its key, which four corners of a rectangle
  # would show.
  z = (stay - 0.9) / 0.3
  corners = z[:, :, 1:, 1:] * z[:, :, :-1, 1:] * z[:, :, 1:, :-1] * z[:, :, :-1, :-1]
  assert abs(corners.mean()) < 5 / corners.size ** 0.5
  by_key = stay.mean((0, 1, 2))
  assert abs(by_key - 0.9).max() < 5 * (0.09 / 1024) ** 0.5
  by_query = stay.mean((0, 1, 3))
  assert abs(by_query - 0.9).max() < 5 * (0.09 / 4096) ** 0.5


def test_supported_inputs_of_the_kernel():
  takes, half = tpu_attention.supports, jnp.bfloat16
  row = (8, 512, 12, 64)
  assert takes('TPU v5 lite', half, row, row) and takes('TPU v3', half, row, row)
  assert not takes('', half, row, row) and not takes('TPU v5 lite', jnp.float32, row, row)
  assert not takes('TPU v5 lite', half, (8, 1, 12, 64), row)  # a token that is generated
  long, longer = (8, 4096, 12, 64), (8, 8192, 12, 64)
  assert takes('TPU v4', half, long, long) and takes('TPU v5', half, longer, longer)  # in parts
  assert not takes('TPU v4', half, long, long, (1, 12, 4096, 4096))
  assert not takes('TPU v5 lite', half, longer, longer, terms=1)
  assert takes('TPU v4', half, row, row,
               (1, 12, 512, 512)) and takes('TPU v3', half, row, row, (1, 12, 512, 512))
  longer = (8, 1024, 12, 64)
  assert takes('TPU v5 lite', half, longer, longer, (1, 12, 1024, 1024))
  assert not takes('TPU v4', half, longer, longer, (1, 12, 1024, 1024))
  assert not takes('TPU v4', half, row, row,
                   (8, 12, 512, 512)) and tpu_attention.device_kind() == ''
  assert takes('TPU v3', half, row, row, terms=2) and not takes('TPU v3', half, row,
                                                                (8, 512, 4, 64), terms=2)
  long, short = (8, 2048, 12, 64), (8, 128, 12, 64)
  assert takes('TPU v5 lite', half, short, short,
               terms=2) and not takes('TPU v5 lite', half, short, short)
  assert takes('TPU v5 lite', half, long, long,
               terms=1) and not takes('TPU v4', half, long, long, terms=1)


@pytest.mark.slow
@pytest.mark.parametrize('position', [
    Disentangled(span=4), Disentangled(terms=('c2p',), span=64, shared=True),
    Disentangled(terms=('p2c',), span=64, buckets=4),
    Disentangled(span=64, buckets=4, shared=True, exact=True)],
    ids=['clamped', 'c2p', 'p2c', 'buckets'])
def test_disentangled_attention_with_it(position):
  """Gradients of all parameters and of the table of distances."""
  cfg = tiny.block(attention=dict(position=position, dropout=0.0))
  x, given = numbers(2, 11, 32), numbers(2, 11, 32, seed=1)
  table = numbers(2 * position.size - position.exact, 32, seed=2)
  attention = Attention(cfg.attention, cfg)
  params = tiny.random_params(jax.eval_shape(
      lambda: attention.init(jax.random.key(0), x, x,
                             AttentionMask(None, {'relative': table}))['params']))
  def learned():
    def run(params, x, table):
      return attention.apply({'params': params}, x, x, AttentionMask(None, {'relative': table}))
    y, back = jax.jit(lambda *args: jax.vjp(run, *args))(params, x, table)
    return y, back(given)
  want = learned()
  with tiny.interpreted_tpu_attention() as calls:
    got = learned()
  assert calls
  for ours, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    np.testing.assert_allclose(ours, theirs, atol=1e-5 * max(0.1, float(jnp.abs(theirs).max())))


@pytest.mark.release
@pytest.mark.slow
def test_a_training_with_it_ends_alike(windows):
  """Fifty steps, without dropout of probabilities, whose bits are others there."""
  learner = tiny.learner.__wrapped__(  # a mapping has no place in a cache
      optim=AdamW(peak=1e-3, warmup=1, schedule='constant'), dropout=0.0,
      attention={'dropout': 0.0})
  def trained():
    state, losses = unbox(jax.jit(functools.partial(init_state, learner))(windows)), []
    step = jax.jit(functools.partial(train_step, learner))
    for _ in range(50):
      state, figures = step(state, windows)
      losses.append(float(figures['loss']))
    return losses, state.params
  plainly, want = trained()
  with tiny.interpreted_tpu_attention() as calls:
    losses, params = trained()
  assert calls and losses[-1] < 0.9 * losses[0]
  np.testing.assert_allclose(losses, plainly, rtol=1e-4)
  for name, leaf in tiny.flat(params).items():
    if not name.endswith('key/bias'):  # its gradient is zero but for rounding
      np.testing.assert_allclose(leaf, tiny.flat(want)[name], atol=1e-3, err_msg=name)


def equations(jaxpr):
  """All equations of a jaxpr, and of those inside."""
  for equation in jaxpr.eqns:
    yield equation
    for inside in (value for value in equation.params.values() if hasattr(value, 'jaxpr')):
      yield from equations(inside.jaxpr)


@pytest.mark.parametrize('rate', [0.0, 0.1])
def test_vector_operations_match_the_kernel(rate):
  """Operations with the shape of the scores, or of the words of random bits: no products and no
  layout changes."""
  q, share = jnp.zeros((1, 512, 1, 128), jnp.bfloat16), {(512, 512): 1.0, (512, 256): 0.5}
  bits = tpu_attention.AttentionDropout(jnp.zeros(2, jnp.uint32), jnp.zeros(1, jnp.int32),
                                        rate) if rate else None
  def attended(q, k, v):
    return tpu_attention.attend(tpu_attention.Arrays(q, k, v, None, None), 0.1, bits,
                                on='TPU v5 lite').sum()
  *_, forward, backward = (equation
                           for equation in equations(jax.make_jaxpr(jax.grad(attended, (0, 1, 2)))(
      q, q, q).jaxpr) if equation.primitive.name == 'pallas_call')
  for equation, name in ((forward, 'forward'), (backward, 'backward')):
    found = sum(max(share.get(getattr(value.aval, 'shape', ()), 0)
                    for value in (*inside.invars, *inside.outvars))
                for inside in equations(types.SimpleNamespace(eqns=equation.params['jaxpr'].eqns))
                if inside.primitive.name not in ('dot_general', 'broadcast_in_dim', 'iota', 'jit',
                                                 'concatenate'))
    plain, dropping = tpu_attention_blocks.VECTOR_OPERATIONS[name]
    assert found == plain + (dropping if rate else 0)
    assert dict(equation.params['metadata']) == {'vector_operations': str(int(found * 512 * 512))}


@pytest.mark.parametrize('on', ['TPU v5 lite', pytest.param('TPU v3', marks=SLOW)])
def test_vector_operations_by_distance(on):
  """Operations on whole tiles; v3 rotates eight rows at once."""
  q, table = jnp.zeros((1, 256, 1, 128), jnp.bfloat16), jnp.zeros((512, 1, 128), jnp.bfloat16)
  def counted(bias):
    def attended(q, k, v):
      return tpu_attention.attend(tpu_attention.Arrays(q, k, v, None, bias), 0.1, on=on).sum()
    for equation in equations(jax.make_jaxpr(jax.grad(attended, (0, 1, 2)))(q, q, q).jaxpr):
      if equation.primitive.name == 'pallas_call':
        sizes = [np.prod(inside.outvars[0].aval.shape)
                 for inside in equations(equation.params['jaxpr'])
                 if inside.primitive.name in ('select_n', 'gather', 'roll', 'add',
                                              'convert_element_type')
                 and inside.outvars[0].aval.shape != (256, 128)
                 and inside.outvars[0].aval.dtype != jnp.int32]
        yield sum(sizes), int(equation.params['metadata']['vector_operations'])
  plain, ours = (list(counted(bias)) for bias in (None, RelativeLogits(table, table, 0.6)))
  assert len(plain) == len(ours) == 2
  for (least, said), (found, says) in zip(plain, ours, strict=True):
    assert 0.9 * (found - least) < says - said < 1.1 * (found - least)
