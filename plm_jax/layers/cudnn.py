"""Which attention cuDNN's fused kernel takes on an NVIDIA GPU.

The rules are what JAX's own checks demand of `jax.nn.dot_product_attention(implementation='cudnn')`, which raise while
the step is traced (the same in JAX 0.10 to 0.12), and what these leave to cuDNN, which fails when it is compiled:

    type        bfloat16 or float16, on compute capability 8.0 (A100) or later: a T4 (7.5) and a V100 (7.0) have none
    head size   a multiple of 8; up to 128, on Hopper (9.x) up to 256. On Blackwell (10.x, 12.x) JAX would let 256
                through, which cuDNN has a backward pass for since 9.23 alone
    lengths     of queries and keys: even, or there is no gradient
    mask        [B|1, H|1, Q, K]: `attention.fused` writes it out over the queries
    bias        none. cuDNN takes one, but in the type of the queries, whole ([B, H, Q, K] with a mask), and gives its
                gradient so; T5's and DeBERTa's are learned, float32, and shared by the rows of the batch
    dropout     none. Its noise would be the same in every step, and depend on where a row lies
"""
import re

import jax
import jax.numpy as jnp


def takes(capability: tuple[int, int], dtype, head_size: int, queries: int, keys: int, *, bias=False, dropout=False):
  """Tells whether the fused kernel takes attention of this kind: pure, and the only place that decides.

  capability: CUDA's, (0, 0) where there is no such GPU. queries, keys: lengths, in tokens.
  """
  largest = 256 if capability[0] == 9 else 128
  return (capability >= (8, 0) and dtype in (jnp.bfloat16, jnp.float16) and head_size % 8 == 0 and head_size <= largest
          and queries % 2 == 0 and keys % 2 == 0 and not bias and not dropout)


def capability() -> tuple[int, int]:
  """Returns the compute capability of the GPU that is traced for, (0, 0) where it is none of NVIDIA's."""
  if jax.default_backend() != 'gpu':
    return 0, 0
  device = jax.local_devices()[0]
  if device.platform == 'gpu':
    found = re.match(r'(\d+)\.(\d+)', getattr(device, 'compute_capability', ''))  # AMD's are gfx942 and the like
    return (int(found[1]), int(found[2])) if found else (0, 0)
  # A trace for a GPU that is not here: JAX's own check answers for it.
  from jax._src.cudnn import fused_attention_stablehlo as fused
  return next(((major, 0) for major in (10, 9, 8) if fused.check_compute_capability(f'{major}.0')), (0, 0))
