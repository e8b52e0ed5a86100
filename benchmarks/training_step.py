"""Time an optimizer step of pre-training as a contestant: plm_jax with any model and objective, torch with any loss."""
from collections.abc import Callable
import os
import time
from typing import Any

from benchmarks.side_by_side import contest

LENGTH, VOCAB = 128, 30522


def plm_jax(config: Any, objective: Any, rows: int) -> None:
  """Time a training step of plm_jax for MLM and similar objectives on a batch of `rows` full sequences.

  The step has corruption, dropout, gradient clipping, and Adam with bias correction.
  """
  os.environ['JAX_PLATFORMS'] = 'cpu'  # the TPU compiler may be installed on a machine without a TPU
  import plm_jax.environment
  plm_jax.environment.keep_memory()  # as a run does
  import jax
  import numpy as np

  from plm_jax import sharding
  from plm_jax.optim.optimizers import AdamW
  from plm_jax.optim.transformations import make_optimizer
  from plm_jax.tokenizers import Vocab
  from plm_jax.training.step import Learner, make_sharded_init, train_step

  frozen = objective.optimizer_hints.frozen
  optimizer = make_optimizer(AdamW(bias_correction=True, eps=1e-8, warmup=10), 1000, frozen)
  vocab = Vocab(VOCAB, 0, 100, 101, 102, 103, eos=102, sentinel=VOCAB - 1)
  learner = Learner(objective.build(config, packed=False), objective, optimizer, vocab, 0)
  length, draw, number = objective.text_length(LENGTH), np.random.default_rng(0), np.arange(rows, dtype=np.int32)
  windows = {
      'tokens': draw.integers(1000, VOCAB, (rows, length), np.int32), 'segments': np.ones((rows, length), np.int32),
      'sentences': np.tile(np.arange(length, dtype=np.int32) // 20 + 1, (rows, 1)),
      'words': np.tile(np.arange(1, length + 1, dtype=np.int32), (rows, 1)),
      'document': number, 'index': number, 'corpus': 0 * number, 'epoch': 0 * number}
  mesh = sharding.make_mesh(sharding.MeshConfig())
  with jax.set_mesh(mesh):
    make, _, layout = make_sharded_init(learner, windows, mesh)
    state = make()
    step = jax.jit(lambda state, windows: train_step(learner, state, windows), donate_argnums=0,
                   out_shardings=(layout, None))
    windows = jax.device_put(windows)
    for _ in range(2):
      state, metrics = step(state, windows)

    def work():
      nonlocal state, metrics
      state, metrics = step(state, windows)
      jax.block_until_ready(metrics)

    flops = rows * objective.step_flops(config, LENGTH)
    contest({'peak': jax_peak(), 'flops': flops}, work, repeats(flops))


def torch_step(modules: Any, loss: Callable[[], Any], flops: float, compiled: bool = False) -> None:
  """Time a backward pass through `loss`, clipping and fused AdamW on the modules' parameters.

  Args:
    flops: FLOPs that the step needs, with logits at the predicted positions only. torch may do more.
    compiled: whether the modules go through torch.compile, with its default settings.
  """
  import torch

  if compiled:
    for module in modules:
      module.compile()

  named = [item for module in modules for item in module.named_parameters()]
  plain = ('bias', 'LayerNorm', 'layer_norm')
  decayed = [p for name, p in named if not any(part in name for part in plain)]
  others = [p for name, p in named if any(part in name for part in plain)]
  optimizer = torch.optim.AdamW([{'params': decayed, 'weight_decay': 0.01}, {'params': others, 'weight_decay': 0.0}],
                                lr=1e-4, fused=True)

  def work():
    loss().backward()
    torch.nn.utils.clip_grad_norm_([p for _, p in named], 1.0)
    optimizer.step()
    optimizer.zero_grad()

  work()
  work()
  contest({'peak': torch_peak(), 'flops': flops}, work, repeats(flops))


def jax_peak() -> float:
  """Measure the FLOP/s of a float32 product of 2048 in JAX."""
  import jax
  import jax.numpy as jnp

  matrix, product = jnp.ones((2048, 2048)), jax.jit(jnp.matmul)
  return 2 * 2048 ** 3 / fastest(lambda: jax.block_until_ready(product(matrix, matrix)))


def torch_peak() -> float:
  """Measure the FLOP/s of a float32 product of 2048 in torch."""
  import torch

  matrix = torch.ones(2048, 2048)
  return 2 * 2048 ** 3 / fastest(lambda: matrix @ matrix)


def torch_ready() -> Any:
  """Return torch, set up to use all cores and to log only errors."""
  import torch
  from transformers.utils import logging

  logging.disable_progress_bar()
  logging.set_verbosity_error()
  torch.set_num_threads(os.cpu_count() or 1)
  torch.manual_seed(0)
  return torch


def masked_batch(torch: Any, rows: int) -> dict[str, Any]:
  """Return input_ids, attention_mask, token_type_ids, and labels at 19 of 128 positions."""
  labels = torch.full((rows, LENGTH), -100)
  for row in labels:
    row[torch.randperm(LENGTH)[:19]] = torch.randint(1000, VOCAB, (19,))
  return {
      'input_ids': torch.randint(1000, VOCAB, (rows, LENGTH)),
      'attention_mask': torch.ones(rows, LENGTH, dtype=torch.int64),
      'token_type_ids': (torch.arange(LENGTH) > 60).long().expand(rows, -1), 'labels': labels}


def share(figures: dict[str, float]) -> str:
  """Format the share of the measured peak of float32 matrix products."""
  return f'{figures["flops"] / figures["median"] / figures["peak"]:.0%}'


def fastest(work: Callable[[], Any], tries: int = 5) -> float:
  seconds = []
  for _ in range(tries + 1):
    began = time.perf_counter()
    work()
    seconds.append(time.perf_counter() - began)
  return min(seconds[1:])


def repeats(flops: float) -> int:
  """Return the steps per round, for about two seconds at 100 GFLOP/s."""
  return max(1, round(2e11 / flops))
