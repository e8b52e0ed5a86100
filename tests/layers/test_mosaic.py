"""The kernel for a TPU, interpreted, beside attention as it is written out: `attention.probabilities` and `mixture`."""
import functools
import types

from flax.linen import unbox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax import sharding
from plm_jax.layers import mosaic
from plm_jax.layers.attention import mixture, probabilities
from plm_jax.training.optim import OptimConfig
from plm_jax.training.step import init_state, train_step

SMALL = 'TPU v4'


def numbers(*shape, seed=0):
  return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def noise(rows, rate=0.25):
  return mosaic.Noise(jnp.array([3, 1 << 31], jnp.uint32), jnp.asarray(rows, jnp.int32), rate)


def plain(arrays, scale, noise=None):
  """As `mosaic.attend`, with the same bits."""
  q, k, v, mask, bias = arrays
  p = probabilities(q, k, mask, scale, bias)
  if noise is None:
    return mixture(p, v)
  seed = jax.lax.bitcast_convert_type(noise.seed, jnp.int32)
  _, heads, queries, keys = p.shape
  stay = mosaic.kept(*seed, noise.rows[:, None, None, None], jnp.arange(heads)[:, None, None],
                     jnp.arange(queries)[:, None], jnp.arange(keys), noise.rate)
  return mixture(p, v, lambda p: jnp.where(stay, p / (1 - noise.rate), 0))


def mask_of(kind, rows, queries, keys):
  if kind == 'padding':
    return jnp.arange(keys) < jnp.array([keys, keys - 3, 0])[:rows, None, None, None]
  if kind == 'causal':
    return (jnp.arange(keys) <= jnp.arange(queries)[:, None] + keys - queries)[None, None]
  if kind == 'band':
    return (abs(jnp.arange(keys) - jnp.arange(queries)[:, None]) < 5)[None, None]
  if kind == 'packed':
    segments = jnp.asarray(np.random.default_rng(1).integers(0, 3, (rows, keys)))
    return (segments[:, None, :queries, None] == segments[:, None, None]) & (segments[:, None, None] > 0)
  return None


SLOW = pytest.mark.slow
CASES = [  # queries, keys, heads, heads of keys, their size, mask, bias, dropout
    (24, 40, 3, 3, 64, 'causal', True, True),
    pytest.param(136, 136, 2, 1, 128, 'causal', False, False, marks=SLOW),
    pytest.param(8, 8, 2, 2, 64, 'padding', False, True, marks=SLOW),
    pytest.param(20, 20, 4, 2, 32, 'packed', False, True, marks=SLOW),
    pytest.param(16, 300, 4, 2, 80, 'padding', False, True, marks=SLOW),
    pytest.param(264, 200, 2, 2, 64, 'padding', True, True, marks=SLOW),
    pytest.param(40, 40, 2, 1, 256, '', False, True, marks=SLOW),
    pytest.param(640, 640, 4, 2, 128, 'band', False, True, marks=SLOW),
    pytest.param(2048, 2048, 2, 2, 64, 'causal', False, True, marks=SLOW)]


@pytest.mark.parametrize(('queries', 'keys', 'heads', 'key_heads', 'size', 'kind', 'biased', 'dropped'), CASES)
def test_what_it_answers_and_its_gradients(queries, keys, heads, key_heads, size, kind, biased, dropped):
  rows = 3 if queries < 600 else 1
  q, given = numbers(rows, queries, heads, size), numbers(rows, queries, heads, size, seed=1)
  k, v = (numbers(rows, keys, key_heads, size, seed=seed) for seed in (2, 3))
  mask, bias = mask_of(kind, rows, queries, keys), numbers(1, heads, queries, keys, seed=4) if biased else None
  bits = noise([7, 2, 1 << 20][:rows]) if dropped else None
  def both(attend):
    @jax.jit
    def learn(q, k, v, bias):
      y, back = jax.vjp(
          lambda q, k, v, bias: attend(mosaic.Arrays(q, k, v, mask, bias), size ** -0.5, bits), q, k, v, bias)
      return y, back(given)
    return learn(q, k, v, bias)
  got, want = both(functools.partial(mosaic.attend, on=SMALL, interpret=True)), both(plain)
  assert jax.tree.structure(got) == jax.tree.structure(want) and len(jax.tree.leaves(got)) == 4 + biased
  for ours, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    assert ours.shape == theirs.shape and float(jnp.abs(theirs).max()) > 0.1
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * float(jnp.abs(theirs).max()))


@pytest.mark.slow
def test_bfloat16():
  q, k, v = (numbers(2, 32, 2, 64, seed=seed).astype(jnp.bfloat16) for seed in range(3))
  got = jax.jit(lambda: mosaic.attend(mosaic.Arrays(q, k, v, None, None), 0.125, on=SMALL, interpret=True))()
  want = plain((*(x.astype(jnp.float32) for x in (q, k, v)), None, None), 0.125)
  assert got.dtype == jnp.bfloat16
  np.testing.assert_allclose(got.astype(jnp.float32), want, atol=2e-2)


@pytest.mark.slow
def test_a_mesh_changes_no_bit_of_dropout():
  """Rows and heads over eight devices: of other bits a quarter of all probabilities would be other ones."""
  q, k, v = (numbers(4, 16, 4, 64, seed=seed) for seed in range(3))
  mask, bits = mask_of('padding', 1, 16, 16), noise([5, 6, 9, 40])
  @jax.jit
  def answer(q, k, v):
    return mosaic.attend(mosaic.Arrays(q, k, v, mask, None), 0.125, bits, on=SMALL, interpret=True)
  want = answer(q, k, v)
  mesh = sharding.make_mesh(sharding.MeshConfig(data=2, fsdp=2, tensor=2))
  with jax.set_mesh(mesh):
    layout = jax.NamedSharding(mesh, sharding.spec(mosaic.SIZES, q.shape, mesh))
    np.testing.assert_allclose(answer(*(jax.device_put(x, layout) for x in (q, k, v))), want, atol=1e-6)
  other = mosaic.attend(
      mosaic.Arrays(q, k, v, mask, None), 0.125, noise([5, 6, 9, 41]), on=SMALL, interpret=True)
  np.testing.assert_allclose(other[:3], want[:3], atol=1e-6)
  assert float(jnp.abs(other[3] - want[3]).max()) > 0.1


def test_bits_of_dropout_are_as_good_as_random():
  """Their share; and that neighbouring queries, keys, heads, rows and seeds agree as often as chance has them."""
  places = jnp.meshgrid(*map(jnp.arange, (4, 4, 64, 64)), indexing='ij')
  draw = jax.jit(lambda first, second: mosaic.kept(jnp.int32(first), jnp.int32(second), *places, 0.1))
  stay, other, third = (np.asarray(draw(*seed), float) for seed in ((1, 2), (2, 2), (1, 3)))
  error = (0.09 / stay.size) ** 0.5
  assert abs(stay.mean() - 0.9) < 4 * error
  pairs = [(np.take(stay, range(1, stay.shape[axis]), axis), np.take(stay, range(stay.shape[axis] - 1), axis))
           for axis in range(4)]
  for some, others in (*pairs, (stay, other), (stay, third), (stay, stay.swapaxes(2, 3))):
    assert abs(np.corrcoef(some.ravel(), others.ravel())[0, 1]) < 5 / some.size ** 0.5 * 2 ** 0.5
  by_key = stay.mean((0, 1, 2))
  assert abs(by_key - 0.9).max() < 5 * (0.09 / 1024) ** 0.5


def test_what_it_takes():
  takes, half = mosaic.takes, jnp.bfloat16
  row = (8, 512, 12, 64)
  assert takes('TPU v5 lite', half, row, row) and takes('TPU v3', half, row, row)
  assert not takes('', half, row, row) and not takes('TPU v5 lite', jnp.float32, row, row)
  assert not takes('TPU v5 lite', half, (8, 1, 12, 64), row)  # a token that is generated
  assert not takes('TPU v5 lite', half, row, (8, 4096, 12, 64))
  wide = (8, 2048, 16, 256)
  assert takes('TPU v5', half, wide, (8, 2048, 1, 256)) and not takes('TPU v4', half, wide, (8, 2048, 1, 256))
  assert takes('TPU v4', half, row, row, (1, 12, 512, 512)) and not takes('TPU v3', half, row, row, (1, 12, 512, 512))
  assert not takes('TPU v4', half, row, row, (8, 12, 512, 512)) and mosaic.kind() == ''


@pytest.mark.slow
def test_a_training_with_it_ends_alike(windows, monkeypatch):
  """Fifty steps, without dropout of probabilities, whose bits are others there."""
  learner = tiny.learner.__wrapped__(  # a mapping has no place in a cache
      optim=OptimConfig(peak=1e-3, warmup=1, schedule='constant'), dropout=0.0, attention={'dropout': 0.0})
  def trained():
    state, losses = unbox(jax.jit(functools.partial(init_state, learner))(windows)), []
    step = jax.jit(functools.partial(train_step, learner))
    for _ in range(50):
      state, figures = step(state, windows)
      losses.append(float(figures['loss']))
    return losses, state.params
  plainly, want = trained()
  calls = []
  with monkeypatch.context() as patch:
    patch.setattr(mosaic, 'takes', lambda *_: True)
    patch.setattr(mosaic, 'attend', lambda *args, inner=mosaic.attend: calls.append(1) or inner(
        *args, on=SMALL, interpret=True))
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
def test_vector_operations_are_those_of_the_kernel(rate):
  """Of what has the shape of the scores: not products, nor what is laid out anew."""
  q = jnp.zeros((1, 256, 1, 128), jnp.bfloat16)
  bits = mosaic.Noise(jnp.zeros(2, jnp.uint32), jnp.zeros(1, jnp.int32), rate) if rate else None
  def attended(q, k, v):
    return mosaic.attend(mosaic.Arrays(q, k, v, None, None), 0.1, bits, on='TPU v5 lite').sum()
  *_, forward, backward = (equation for equation in equations(jax.make_jaxpr(jax.grad(attended, (0, 1, 2)))(
      q, q, q).jaxpr) if equation.primitive.name == 'pallas_call')
  for equation, name in ((forward, 'forward'), (backward, 'backward')):
    found = sum(any(getattr(value.aval, 'shape', ()) == (256, 256) for value in (*inside.invars, *inside.outvars))
                for inside in equations(types.SimpleNamespace(eqns=equation.params['jaxpr'].eqns))
                if inside.primitive.name not in ('dot_general', 'broadcast_in_dim', 'iota', 'jit'))
    plain, dropping = mosaic.OPERATIONS[name]
    assert found == plain + (dropping if rate else 0)
    assert dict(equation.params['metadata']) == {'vector_operations': str(found * 256 * 256)}
