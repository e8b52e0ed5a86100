"""Time of training steps: measured on the devices here, or estimated from FLOPs."""
from collections.abc import Iterable, Mapping, Sequence
import math
import time
from typing import NamedTuple

import jax
from jax.sharding import Mesh

from plm_jax import sharding
from plm_jax.config.run import Phase, RunConfig
from plm_jax.planning.devices import Device
from plm_jax.recipes.scale_presets import count_flops
from plm_jax.training.learner import make_learner, phase_learner, placeholder_vocab
from plm_jax.training.step import jit_train_step, make_sharded_init

REMAT_FACTOR = {'none': 1.0, 'dots': 1.1, 'full': 4 / 3}
"""Time of a step with activation checkpointing: with `full`, the forward pass runs twice (Chen et
al. 2016, arXiv:1604.06174); with `dots`, all of it but the products does."""


class StepTimes(NamedTuple):
  """Seconds of steps on the devices of this machine."""

  first: float
  """time until the first step is done: initialization, compilation and the step"""
  step: float
  """mean of the later steps"""


def measure_steps(
    config: RunConfig, mesh: Mesh, phase: Phase, steps: int = 3, seconds: float = 0.0) -> StepTimes:
  """Measure training steps of a phase on empty sequences, whose contents do not change the time.

  Args:
    config: the run.
    mesh: the devices.
    phase: the phase.
    steps: number of steps after the first one.
    seconds: measure more steps until they have taken this long, on one process.
  """
  learner = make_learner(config, placeholder_vocab(config))
  learner = phase_learner(config, learner, phase)
  shapes = learner.objective.shapes(phase.batch, phase.length, sharding.batch_sharding(mesh))
  started = time.monotonic()
  with jax.set_mesh(mesh):
    make_windows = jax.jit(
        lambda: jax.tree.map(lambda x: jax.numpy.zeros(x.shape, x.dtype), shapes),
        out_shardings=jax.tree.map(lambda x: x.sharding, shapes))
    windows = make_windows()
    make_state, _, layout = make_sharded_init(learner, windows, mesh)
    state, update, ended = make_state(), jit_train_step(learner, layout), []
    while len(ended) <= steps or (
        jax.process_count() == 1 and ended[-1] - ended[0] < seconds):
      state, numbers = update(state, windows)
      jax.block_until_ready(numbers)
      ended.append(time.monotonic())
  return StepTimes(ended[0] - started, (ended[-1] - ended[0]) / (len(ended) - 1))


def run_seconds(config: RunConfig, known: Mapping[Phase, float]) -> float:
  """Estimate the time of all steps of a run.

  Args:
    config: the run.
    known: seconds per step of some phases; others are scaled from the most similar one by FLOPs.
  """
  total = 0.0
  for phase in config.train.phases:
    near = most_similar_phase(phase, known)
    total += known[near] * near.steps * count_flops(config, [phase]) / count_flops(config, [near])
  return total


def most_similar_phase(phase: Phase, others: Iterable[Phase]) -> Phase:
  """Return the phase with the most similar sequence length, then batch size."""
  def distance(other):
    return (abs(math.log(other.length / phase.length)), abs(math.log(other.batch / phase.batch)))
  return min(others, key=distance)


def phases_to_measure(phases: Sequence[Phase]) -> list[Phase]:
  """Return the first phase of each sequence length."""
  first: dict[int, Phase] = {}
  for phase in phases:
    first.setdefault(phase.length, phase)
  return list(first.values())


def estimate_hours(config: RunConfig, device: Device) -> float:
  """Estimate the hours of a run's steps on a device, from FLOPs and an assumed utilization."""
  flops = count_flops(config, config.train.phases)
  stack = getattr(config.model, 'stack', None)
  factor = REMAT_FACTOR[stack.remat] if stack else 1.0
  rate = device.peak * device.count * device.utilization(config.model)
  return flops * factor / rate / 3600
