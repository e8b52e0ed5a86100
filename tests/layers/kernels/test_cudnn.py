"""What goes to cuDNN's kernel: by the table, by JAX's own checks, and by the shapes and numbers
that it is given."""
import functools

import jax
from jax._src.cudnn import fused_attention_stablehlo as checks
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax.layers import attention
from plm_jax.layers.attention import Attention, AttentionMask, mix_values, probabilities
from plm_jax.layers.kernels import cudnn
from plm_jax.layers.masks import padding_mask


@pytest.mark.parametrize(('capability', 'size', 'lengths', 'taken'), [
    ((0, 0), 64, (128, 128), False),
    ((7, 0), 64, (128, 128), False),
    ((7, 5), 64, (128, 128), False),
    ((8, 0), 64, (128, 128), True),
    ((8, 6), 128, (128, 512), True),
    ((8, 9), 256, (128, 128), False),
    ((9, 0), 256, (128, 128), True),
    ((9, 0), 264, (128, 128), False),
    ((9, 0), 60, (128, 128), False),
    ((10, 0), 128, (128, 128), True),
    ((10, 0), 256, (128, 128), False),
    ((9, 0), 64, (127, 128), False),
    ((9, 0), 64, (128, 129), False),
    ((9, 0), 64, (1, 128), False)])
def test_supported_shapes_and_dtypes(capability, size, lengths, taken):
  takes = functools.partial(cudnn.supports, capability)
  assert takes(jnp.dtype('bfloat16'), size,
               *lengths) == takes(jnp.dtype('float16'), size, *lengths) == taken
  assert not takes(jnp.dtype('float32'), size, *lengths)
  assert not takes(jnp.dtype('bfloat16'), size, *lengths, bias=True)
  assert not takes(jnp.dtype('bfloat16'), size, *lengths, dropout=True)


def pretend(monkeypatch, capability):
  monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
  monkeypatch.setattr(checks, 'check_cudnn_version', lambda: 91400)
  monkeypatch.setattr(checks, 'is_cuda_compute_capability_equal', lambda _: False)
  monkeypatch.setattr(checks, 'check_compute_capability',
                      lambda need: capability >= tuple(map(int, need.split('.'))))


@pytest.mark.parametrize('capability', [(8, 0), (9, 0), (10, 0)])
def test_supported_shapes_pass_the_checks_of_jax(capability, monkeypatch):
  """JAX rejects all other shapes; its checks run when the gradient is traced."""
  pretend(monkeypatch, capability)
  assert cudnn.compute_capability() == capability
  def refused(dtype, size, queries, keys):
    q, k = (jax.ShapeDtypeStruct((2, length, 2, size), dtype) for length in (queries, keys))
    mask = jax.ShapeDtypeStruct((2, 1, 1, keys), bool)
    def total(q, k, mask):
      return attention.cudnn_attention(q, k, k, mask, 0.5).astype(jnp.float32).sum()
    try:
      jax.eval_shape(jax.grad(total, (0, 1)), q, k, mask)
    except (NotImplementedError, ValueError):
      return True
    return False
  kinds = [(jnp.dtype(dtype), size, *lengths) for dtype in ('bfloat16', 'float32')
           for size in (20, 64, 128, 256)
           for lengths in ((8, 8), (8, 6), (7, 8), (8, 7))]
  found = {kind: (refused(*kind), cudnn.supports(capability, *kind)) for kind in kinds}
  assert not any(refused and taken for refused, taken in found.values())
  # What JAX lets through and is not taken: heads of 256 on what came after Hopper.
  left = {kind[1] for kind, (refused, taken) in found.items() if not refused and not taken}
  assert left == ({256} if capability == (10, 0) else set())


def test_capability_of_a_device(monkeypatch):
  """Of NVIDIA's and AMD's GPUs, and of this machine, which has none."""
  assert cudnn.compute_capability() == (0, 0)
  monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
  assert cudnn.compute_capability() == (0, 0)
  for name, found in ('8.6', (8, 6)), ('12.0', (12, 0)), ('gfx942', (0, 0)):
    device = type('Device', (), {'platform': 'gpu', 'compute_capability': name})()
    monkeypatch.setattr(jax, 'local_devices', lambda device=device: [device])
    assert cudnn.compute_capability() == found


@pytest.mark.parametrize('keys', [4, 2, 1])
def test_the_kernel_computes_the_plain_form(keys, monkeypatch):
  """JAX's other implementation replaces the kernel: masks are complete, and values and gradients
  are equal."""
  q, k, v = (jax.random.normal(jax.random.key(n), (3, 8, heads, 8))
             for n, heads in enumerate((4, keys, keys)))
  full = (jax.random.uniform(jax.random.key(4), (3, 1, 8, 8)) < 0.5) | jnp.eye(8, dtype=bool)
  shapes, dot_product_attention = [], jax.nn.dot_product_attention
  def stand_in(*qkv, mask, scale, is_causal, implementation):
    assert implementation == 'cudnn'
    shapes.append(mask is not None and mask.shape)
    return dot_product_attention(*qkv, mask=mask, scale=scale, is_causal=is_causal,
                                 implementation='xla')
  monkeypatch.setattr(jax.nn, 'dot_product_attention', stand_in)
  def run(qkv):
    both = []
    padding = padding_mask(jnp.array([[1] * 8, [1] * 5 + [0] * 3, [1] + [0] * 7]))
    earlier = full & jnp.tril(jnp.ones((8, 8), bool))
    for mask, causal in (None, False), (padding, False), (full, False), (full[:1],
                                                                         False), (earlier, True):
      def fused(qkv, mask=mask, causal=causal):
        return jnp.sin(attention.cudnn_attention(*qkv, mask, 0.7, causal)).sum()
      def plain(qkv, mask=mask):
        return jnp.sin(mix_values(probabilities(*qkv[:2], mask, 0.7), qkv[2])).sum()
      both.append([jax.value_and_grad(f)(qkv) for f in (fused, plain)])
    return both
  for fused, plain in jax.device_get(jax.jit(run)((q, k, v))):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), fused, plain)
  assert shapes == [False, (3, 1, 8, 8), (3, 1, 8, 8), (1, 1, 8, 8), (3, 1, 8, 8)]


@pytest.mark.parametrize(('changes', 'length', 'mesh', 'taken'), [
    (dict(), 8, (1, 1), True),
    (dict(dtype='float32'), 8, (1, 1), False),
    (dict(), 7, (1, 1), False),
    (dict(kv_heads=2), 8, (2, 2), True),
    (dict(kv_heads=1), 8, (4, 1), True),
    (dict(kv_heads=1), 8, (2, 2), False)], ids=str)
def test_layers_choose(changes, length, mesh, taken, monkeypatch):
  """mesh: devices that split rows, and heads. What one key head for all leaves unsplit does not fit
  split queries."""
  pretend(monkeypatch, (9, 0))
  cfg = tiny.block(**{'dtype': 'bfloat16', 'attention.dropout': 0.0, **changes})
  module, x = Attention(cfg.attention, cfg), jnp.zeros((4, length, 32), cfg.dtype)
  mask = AttentionMask(padding_mask(jnp.ones((4, length), jnp.int32)))
  devices = np.array(jax.devices()[:mesh[0] * mesh[1]]).reshape(mesh[0], 1, mesh[1])
  with jax.set_mesh(jax.sharding.Mesh(devices, ('data', 'fsdp', 'tensor'))):
    shapes = jax.eval_shape(module.init, jax.random.key(0), x, x, mask)
    used = [
        'dot_product_attention_fwd' in str(jax.make_jaxpr(
            lambda params, look=look: module.apply(params, x, x, mask, mutable=look))(shapes))
        for look in ([], ['intermediates'])]
  assert used == [taken, False]


def test_initialisation_can_be_vmapped(monkeypatch):
  pretend(monkeypatch, (9, 0))
  cfg = tiny.block(dtype='bfloat16', attention=dict(bias=()), mlp=dict(bias=False))
  x = jnp.zeros((2, 8, 32), 'bfloat16')
  def init(key):
    return Attention(cfg.attention, cfg).init(key, x, x, AttentionMask(None))
  shapes = jax.eval_shape(jax.vmap(init), jax.random.split(jax.random.key(0), 3))
  assert jax.tree.leaves(shapes)[0].shape[0] == 3
