import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax.errors import ConfigError
from plm_jax.layers.attention import Attention, AttentionMask
from plm_jax.layers.disentangled import Disentangled, log_buckets

LENGTH = 11


def test_buckets_by_hand():
  """Eight a direction up to 32: single ones up to 4, then 5-7, 8-15 and 16-31 by the logarithm,
  rounded up."""
  np.testing.assert_array_equal(log_buckets(np.arange(-5, 6), 8, 32),
                                [-5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5])
  far = log_buckets(np.arange(32), 8, 32)
  assert [int((far == bucket).sum()) for bucket in range(5, 8)] == FAR
  assert far.max() == 7 and (np.diff(far) >= 0).all()
  np.testing.assert_array_equal(log_buckets(-np.arange(32), 8, 32), -far)


def test_buckets_as_released():
  """256 a direction up to 512: the longest distance of every sixteenth bucket beyond the single
  ones."""
  far = log_buckets(np.arange(512), 256, 512)
  assert [int(np.flatnonzero(far == bucket)[-1]) for bucket in range(128, 256, 16)] == [
      128, 152, 181, 215, 257, 306, 364, 433]
  assert far[128] == 128 and far.max() == 255 and (np.diff(far) >= 0).all()


FAR = [3, 8, 16]  # of 5, 6 and 7


def test_long_distances_count_as_the_span():
  plain = Disentangled(span=3)
  np.testing.assert_array_equal(plain.table_rows(np.arange(-5, 6)),
                                [0, 0, 0, 1, 2, 3, 4, 5, 5, 5, 5])
  assert Disentangled(span=512, buckets=256).table_rows(np.array([-4000, 0, 4000])).tolist() == [
      0, 256, 511]


@pytest.mark.parametrize(('span', 'buckets', 'said'), [
    (5, 8, r'span is 6 or more, got 5'), (2, 2, 'span is 3 or more, got 2'),
    (1, 8, 'span is 6 or more, got 1'),
    (512, 1, 'buckets is 0, or 2 or more, got 1'), (129, 256, 'span is 130 or more, got 129')])
def test_indivisible_spans_of_buckets_are_refused(span, buckets, said):
  with pytest.raises(ConfigError, match=said):
    Disentangled(span=span, buckets=buckets)


@pytest.mark.filterwarnings('error')
def test_other_spans_have_rows_of_the_table():
  distances = np.arange(-40, 41)
  for buckets in range(2, 12):
    for span in range(2, 20):
      if span != buckets // 2 + 1:
        rows = Disentangled(span=span, buckets=buckets).table_rows(distances)
        assert (rows >= 0).all() and (rows < 2 * buckets).all()


@pytest.mark.parametrize('position', [
    Disentangled(span=4), Disentangled(span=64), Disentangled(terms=('c2p',), span=4),
    Disentangled(terms=('p2c',), span=64, buckets=4, shared=True),
    Disentangled(span=64, buckets=4, shared=True)],
    ids=['clamped', 'few rows', 'c2p', 'p2c', 'shared'])
def test_logits_equal_the_equation_of_the_paper(position):
  """Equation 4, distance by distance: q k + q k_r(i - j) + k q_r(i - j), over the root of size
  times products."""
  cfg = tiny.block(attention=dict(position=position))
  draw = np.random.default_rng(0)
  x = jnp.asarray(draw.normal(size=(2, LENGTH, 32)), jnp.float32)
  table = jnp.asarray(draw.normal(size=(2 * position.size, 32)), jnp.float32)
  attention = Attention(cfg.attention, cfg)
  mask = AttentionMask(None, {'relative': table})
  shapes = jax.eval_shape(lambda: attention.init(jax.random.key(0), x, x, mask)['params'])
  params = tiny.random_params(shapes)

  @jax.jit
  def run(x, places, mask):
    context = {'relative': table} if places is None else {'relative': table, 'places': places}
    asked = x if places is None else jnp.take_along_axis(x, places[..., None], 1)
    y, seen = attention.apply({'params': params}, asked, x, AttentionMask(mask, context),
                              mutable=['intermediates'])
    return y, seen['intermediates']['probs'][0]
  output, probs = run(x, None, None)

  def project(name, x):
    return np.einsum('...d,dha->...ha', x,
                     params[name]['kernel']) + np.asarray(params[name]['bias'])
  own = ('query', 'key') if position.shared else ('relative_query', 'relative_key')
  q, k = project('query', x), project('key', x)
  q_r, k_r = (project(name, table) if name in params else np.zeros((len(table), 4, 8))
              for name in own)
  row = position.table_rows(np.arange(LENGTH)[:, None] - np.arange(LENGTH))
  logits = np.einsum('bqha,bkha->bhqk', q, k)
  if 'c2p' in position.terms:
    logits += np.einsum('bqha,qkha->bhqk', q, k_r[row])
  if 'p2c' in position.terms:
    logits += np.einsum('bkha,qkha->bhqk', k, q_r[row])
  logits /= np.sqrt(8 * (1 + len(position.terms)))
  want = np.exp(logits - logits.max(-1, keepdims=True))
  np.testing.assert_allclose(probs, want / want.sum(-1, keepdims=True), atol=2e-6)

  # Queries at a subset of the positions, in any order.
  places = jnp.array([[3, 0, 10], [7, 7, 2]])
  some = run(x, places, None)
  np.testing.assert_allclose(some[0], np.take_along_axis(np.asarray(output), places[..., None], 1),
                             atol=5e-6)


def test_no_terms_are_no_position():
  cfg = tiny.block(attention=dict(position=Disentangled(terms=())))
  x = jnp.asarray(np.random.default_rng(0).normal(size=(2, LENGTH, 32)), jnp.float32)
  plain = Attention(tiny.block().attention, cfg)
  params = tiny.random_params(jax.eval_shape(
      lambda: plain.init(jax.random.key(0), x, x, AttentionMask(None))['params']))
  run = lambda module: jax.jit(lambda x: module.apply({'params': params}, x, x,
                                                      AttentionMask(None)))(x)
  np.testing.assert_array_equal(run(plain), run(Attention(cfg.attention, cfg)))


def test_no_array_of_distances_times_width():
  """Nothing of [Q, K, A] or more but the logits [B, H, Q, 2 K] of each term."""
  cfg = tiny.block(attention=dict(position=Disentangled(span=64, shared=True)))
  x, table = jnp.zeros((2, 64, 32)), jnp.zeros((128, 32))
  attention = Attention(cfg.attention, cfg)
  params = jax.eval_shape(lambda: attention.init(jax.random.key(0), x, x,
                                                 AttentionMask(None, {'relative': table})))
  text = str(jax.make_jaxpr(lambda p: attention.apply(
      p, x, x, AttentionMask(None, {'relative': table})))(params))
  sizes = [np.prod([int(n) for n in shape.split(',')])
           for shape in re.findall(r'f32\[([\d,]+)\]', text)]
  assert max(sizes) <= 2 * 4 * 64 * 2 * 64
