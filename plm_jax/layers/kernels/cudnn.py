"""Conditions under which cuDNN's fused attention kernel is used on an NVIDIA GPU.

They are those that JAX checks for `jax.nn.dot_product_attention(implementation='cudnn')`, which
raises while the step is traced (the same in JAX 0.10 to 0.12), and those that only cuDNN checks,
which fails when the step is compiled:

    dtype       bfloat16 or float16, on compute capability 8.0 (A100) or later: T4 (7.5) and V100
                (7.0) have no kernel
    head size   a multiple of 8; up to 128, on Hopper (9.x) up to 256. On Blackwell (10.x, 12.x) JAX
                would accept 256, but cuDNN has a backward pass for it only since 9.23
    lengths     of queries and keys: even, or there is no gradient
    mask        [batch or 1, heads or 1, queries, keys]: `attention.cudnn_attention` broadcasts it
    to
                the queries
    bias        none. cuDNN accepts one, but in the dtype of the queries and complete ([batch,
    heads,
                queries, keys] with a mask), and returns its gradient so. The biases of T5 and
                DeBERTa are learned, float32 and shared by the rows of the batch
    dropout     none. Its mask would be the same in every step, and would depend on a row's place
"""
import re

import jax
import jax.numpy as jnp

from plm_jax.sharding import target_platform


def supports(capability: tuple[int, int], dtype, head_size: int, queries: int, keys: int, *,
             bias=False, dropout=False):
  """Tell whether the fused kernel supports attention of this kind; the only place that decides.

  Args:
    capability: CUDA compute capability; (0, 0): there is no NVIDIA GPU.
    dtype: dtype of queries and keys.
    head_size: size of a head.
    queries: length in tokens.
    keys: length in tokens.
    bias: logits have a bias.
    dropout: probabilities have dropout.
  """
  if bias or dropout or capability < (8, 0) or dtype not in (jnp.bfloat16, jnp.float16):
    return False
  largest = 256 if capability[0] == 9 else 128
  return head_size % 8 == 0 and head_size <= largest and queries % 2 == 0 and keys % 2 == 0


def compute_capability() -> tuple[int, int]:
  """Return the CUDA compute capability of the GPU that is compiled for; (0, 0): not NVIDIA's.

  A step that is only traced, for a GPU that is absent, has the capability of an A100.
  """
  if jax.default_backend() != 'gpu':
    return (8, 0) if target_platform() == 'gpu' else (0, 0)
  device = jax.local_devices()[0]
  if device.platform == 'gpu':
    # AMD's are gfx942 and the like.
    found = re.match(r'(\d+)\.(\d+)', getattr(device, 'compute_capability', ''))
    return (int(found[1]), int(found[2])) if found else (0, 0)
  # Compilation for a GPU that is not present: JAX's own check knows its capability.
  from jax._src.cudnn import fused_attention_stablehlo as fused
  for major in (10, 9, 8):
    if fused.check_compute_capability(f'{major}.0'):
      return major, 0
  return 0, 0
