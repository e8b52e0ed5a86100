"""Whether Mosaic compiles the kernel, forward and backward, where the TPU compiler is installed."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.compile.report import topology_devices
from plm_jax.layers.kernels import tpu_attention
from plm_jax.layers.relative_logits import RelativeLogits, TransformerXLLogits
from plm_jax.layers.sliding_window import SlidingWindow

pytestmark = [pytest.mark.slow, pytest.mark.compiler]
ROW = 2, 512, 3, 64
CASES = [  # arguments other than q, k and v; the shape of q
    ('nothing', ROW), ('bias', ROW), ('bias', (2, 1024, 2, 64)), ('both', ROW),
    ('keys', (2, 256, 1, 128)),
    ('both', (2, 128, 4, 32)),
    ('queries', (2, 900, 2, 80)), ('both', (1, 2048, 2, 64)),
    ('neighbours', (1, 1024, 2, 64)), ('earlier', (1, 2000, 1, 128)),
    ('nothing', (1, 4096, 2, 128)), ('nothing', (1, 8192, 4, 64)), ('nothing', (1, 4096, 1, 256)),
    ('nothing', (1, 2056, 2, 64)), ('nothing', (1, 4104, 2, 64))]


@pytest.fixture(scope='module', params=[
    'v3:2x2', 'v5e:2x2', *(pytest.param(chips, marks=pytest.mark.release)
                           for chips in ('v4:2x2x1', 'v5p:2x2x1', 'v6e:2x2'))])
def mesh(request):
  pytest.importorskip('libtpu')
  device = topology_devices(request.param)[0]
  return jax.sharding.Mesh(np.array([device]), ('data',), axis_types=(jax.sharding.AxisType.Auto,))


@pytest.mark.parametrize(('beside', 'shape'), CASES)
def test_both_passes_compile(mesh, beside, shape):
  rows, length, heads, size = shape
  kind = mesh.devices.flat[0].device_kind
  terms = {'both': ('keys', 'queries'), 'keys': ('keys',), 'queries': ('queries',)}.get(beside, ())
  band = {'neighbours': SlidingWindow(64, 64), 'earlier': SlidingWindow(255, 0)}.get(beside)
  biased = (1, heads, length, length) if beside == 'bias' else None
  if not tpu_attention.supports(kind, jnp.bfloat16, shape, shape, biased, len(terms)):
    pytest.skip(f'{kind} leaves it to the plain path')
  everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  def array(dtype, *shape):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=everywhere)

  def learned(q, k, v, tables, mask, seed, given):
    noise = tpu_attention.AttentionDropout(seed, jnp.arange(rows), 0.1)
    def attended(q, k, v, tables):
      bias = RelativeLogits(tables.get('keys'), tables.get('queries'),
                            0.6) if terms else tables.get('bias')
      return tpu_attention.attend(tpu_attention.Arrays(q, k, v, mask, bias), 0.125, noise, band)
    y, back = jax.vjp(attended, q, k, v, tables)
    return y, back(given)
  q, tables = array(jnp.bfloat16, *shape), {name: array(jnp.bfloat16, 2 * length, heads, size)
                                            for name in terms}
  tables |= {'bias': array(jnp.float32, *biased)} if biased else {}
  with jax.set_mesh(mesh):
    lowered = jax.jit(learned).lower(
        q, q, q, tables, array(bool, rows, 1, length, length), array(jnp.uint32, 2), q)
    text = lowered.compile().as_text()
  parts = 1
  if tpu_attention.needs_parts(kind, length, size):
    settings = tpu_attention.Settings(0.125, 0.1, None, kind, False)
    parts = len(tpu_attention.list_parts(tpu_attention.Arrays(q, q, q, None, None), settings,
                                         False))
  assert text.count('custom_call_target="tpu_custom_call"') == 2 * parts


@pytest.mark.parametrize(('content', 'others', 'memory'), [(512, 85, 384), (1024, 170, 0)])
def test_both_streams_compile(mesh, content, others, memory):
  """XLNet's, with segments and reversed rows: two programs in each pass."""
  rows, heads, size, queries, keys = 2, 2, 64, content + others, memory + content
  everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  def array(dtype, *shape):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=everywhere)
  q, k = (array(jnp.bfloat16, rows, length, heads, size) for length in (queries, keys))
  kind = mesh.devices.flat[0].device_kind
  assert tpu_attention.supports(kind, jnp.bfloat16, q.shape, k.shape, terms=1)
  vector = array(jnp.float32, heads, size)
  learns = dict(
      table=array(jnp.bfloat16, 2, keys + content, heads, size), content_bias=vector,
      position_bias=vector,
      type_bias=vector, types=array(jnp.float32, 2, heads, size))
  fixed = dict(same=array(bool, rows, queries, keys), backward=array(bool, rows),
               places=array(jnp.int32, rows, others))

  def learned(q, k, v, learns, fixed, mask, seed, given):
    noise = tpu_attention.AttentionDropout(seed, jnp.arange(rows), 0.1)
    def attended(q, k, v, learns):
      logits = TransformerXLLogits(**learns, **fixed)
      return tpu_attention.attend(tpu_attention.Arrays(q, k, v, mask, logits), 0.125, noise)
    y, back = jax.vjp(attended, q, k, v, learns)
    return y, back(given)
  with jax.set_mesh(mesh):
    lowered = jax.jit(learned).lower(
        q, k, k, learns, fixed, array(bool, rows, 1, queries, keys), array(jnp.uint32, 2), q)
    text = lowered.compile().as_text()
  assert text.count('custom_call_target="tpu_custom_call"') == 4
