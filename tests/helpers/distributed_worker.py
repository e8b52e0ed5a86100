"""Three training steps of the tiny learner; run as a program it is one of several processes that
train together.

    python distributed_worker.py COORDINATOR COUNT INDEX OUTPUT
"""
import functools
import sys

import jax
from jax.experimental import multihost_utils
import numpy as np
import tiny

from plm_jax import sharding
from plm_jax.optim.optimizers import AdamW
from plm_jax.sharding import MeshConfig
from plm_jax.training.step import TrainState, init_state, train_step

ROWS = 16


def train(mesh_shape: tuple[int, int, int]) -> dict[str, np.ndarray]:
  """-> losses and parameters, whole on every process."""
  mesh = sharding.make_mesh(MeshConfig(*mesh_shape))
  learner = tiny.learner(optim=AdamW(peak=1e-2, warmup=0, schedule='constant'))
  windows = tiny.windows(ROWS)
  rows = sharding.host_rows(ROWS, mesh)
  with jax.set_mesh(mesh):
    shapes = jax.eval_shape(lambda: init_state(learner, windows))
    layout = sharding.shardings(shapes, mesh)
    params = tiny.random_params(shapes.params)
    state = jax.device_put(
      TrainState(np.int32(0), params, learner.optimizer.init(params), np.int32(0), np.int32(0)),
      layout
    )
    update = jax.jit(functools.partial(train_step, learner), donate_argnums=0,
                     out_shardings=(layout, None))
    losses = []
    for epoch in range(3):
      own = tiny.take(windows | dict(epoch=np.full(ROWS, epoch, np.int32)), rows)
      state, numbers = update(state, sharding.shard_batch(own, ROWS, mesh))
      losses.append(float(numbers['loss']))
    params = multihost_utils.process_allgather(state.params, tiled=True)
  return {'losses': np.array(losses), 'rows': np.array([rows.start, rows.stop]),
          **tiny.flat(params)}


if __name__ == '__main__':
  coordinator, count, index, output = sys.argv[1:]
  jax.distributed.initialize(coordinator, int(count), int(index))
  assert len(jax.devices()) == 8 and len(jax.local_devices()) == 4
  np.savez(output, **train((2, 2, 2)))
