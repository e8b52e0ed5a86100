"""Estimate the memory of a training step from the arrays that its backward pass keeps.

The step is traced, not compiled: what `jax.vjp` keeps between the forward and the backward pass are
the activations, gathered predictions and logits of this objective with this activation
checkpointing. Most of them grow with the batch size. Parameters, optimizer state and gradients are
added, and the work space of the backward pass: the gradient of the logits, and one layer.

`tests/planning/test_memory.py` compares the estimate with the memory that XLA's TPU compiler
reports (benchmarks/budgets): it is within 10% for twelve recipes. Of 30 recipes, these are further
away: XLNet, ELECTRA and masked diffusion need 12% to 17% less than the estimate, MPNet and MiniLM
15% to 22% more, TLM, supervised T5 and ELMo 30% to 80% more. A run that does not fit shows the
usual advice.
"""
import dataclasses
import functools
import math
from typing import Any, NamedTuple

from flax.linen import unbox
import jax
import jax.numpy as jnp
from jax.sharding import AbstractDevice, AbstractMesh

from plm_jax import sharding, validation
from plm_jax.config.run import DataConfig, Phase, PretrainRun, TrainConfig
from plm_jax.objectives import CARRY, PROGRESS, STATISTICS, ForwardPass
from plm_jax.optim.trainable import split_trained
from plm_jax.planning.devices import Device
from plm_jax.training.learner import make_learner, phase_learner, placeholder_vocab
from plm_jax.training.step import init_state

TRACED_ROWS = 61
"""Batch size that is traced: a prime number, so that arrays whose size it divides have a row for
each sequence."""


class StepMemory(NamedTuple):
  """Bytes of a training step on one device, in which every micro-batch has `rows` sequences."""

  state: int
  """parameters and optimizer state"""
  gradients: int
  fixed: int
  """arrays that the backward pass needs for any number of sequences: parameters in the compute
  dtype"""
  row: float
  """bytes of a sequence: what the backward pass needs of it, and work space"""

  def total(self, rows: int, accumulate: int = 1, shards: int = 1) -> float:
    """Return the bytes of a step.

    Args:
      rows: sequences of a micro-batch on the device.
      accumulate: number of micro-batches; if several, their sum of gradients is kept as well.
      shards: number of devices that share state and gradients (FSDP).
    """
    gradients = self.gradients * (2 if accumulate > 1 else 1)
    return (self.state + gradients) / shards + self.fixed + rows * self.row

  def most_rows(self, room: float, accumulate: int = 1, shards: int = 1) -> int:
    """Return the largest number of sequences whose step fits into `room` bytes."""
    return max(0, int((room - self.total(0, accumulate, shards)) / self.row))


def count_bytes(tree: Any) -> int:
  """Return the bytes of a tree of arrays or shapes; a random key has 8."""
  return sum(math.prod(x.shape) * getattr(x.dtype, 'itemsize', 8) for x in jax.tree.leaves(tree))


def estimate_memory(config: PretrainRun, phase: Phase, device: Device) -> StepMemory:
  """Estimate the memory of the training step of a phase on a device that need not be present.

  Args:
    config: the run.
    phase: its sequence length counts, not its batch size.
    device: the device; GPUs differ in the compute dtype of the run alone.
  """
  kind = device.kind if device.platform == 'tpu' else device.platform
  phase = dataclasses.replace(phase, batch=TRACED_ROWS, steps=1)
  # What changes no array is left out, so that a trace serves several devices and batches.
  optim = dataclasses.replace(config.optim, peak=1.0, warmup=0, horizon=0, cooldown=0)
  traced = dataclasses.replace(
      config, scale='test', hours=0.0, data=DataConfig(assembly=config.data.assembly), optim=optim,
      train=TrainConfig(phases=(phase,)))
  stack = getattr(config.model, 'stack', None)
  state, gradients, fixed, row, logits = trace_step(traced, phase, kind, device.platform)
  whole = row
  if stack and stack.remat != 'none':  # one layer at a time is computed again
    plain: Any = validation.with_paths(traced, {'model.stack.remat': 'none'})
    whole = trace_step(plain, phase, kind, device.platform)[3]
  return StepMemory(state, gradients, fixed, row + logits + whole / count_layers(config.model))


def count_layers(model: Any) -> int:
  """Return the number of layers of all stacks of a model."""
  if model.kind == 'recurrent':
    return model.layers
  return model.stack.layers + (model.decoder.layers if model.kind == 'encoder-decoder' else 0)


@functools.cache
def trace_step(
    config: PretrainRun, phase: Phase, kind: str, platform: str
) -> tuple[int, int, int, float, float]:
  """Trace a training step.

  Returns:
    bytes of the state, of gradients, and of what the backward pass keeps: for any batch size, for
    each sequence, and the part of it that is logits.
  """
  axes = sharding.MESH_AXES
  device = AbstractDevice(device_kind=kind, num_cores=1, platform=platform)
  mesh = AbstractMesh((1,) * len(axes), axes, abstract_device=device)
  with jax.sharding.use_abstract_mesh(mesh):
    learner = phase_learner(config, make_learner(config, placeholder_vocab(config)), phase)
    objective, rows = learner.objective, phase.batch
    windows = objective.shapes(rows, phase.length)
    state = unbox(jax.eval_shape(lambda w: init_state(learner, w), windows))
    own = {}  # what the step adds to the windows
    if state.carry is not None:
      own[CARRY] = jax.tree.map(
          lambda x: jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype), state.carry)
    if state.statistics is not None:
      own[STATISTICS] = state.statistics
    if objective.step_traits.needs_progress:
      own[PROGRESS] = jax.ShapeDtypeStruct((), jnp.float32)
    batch = jax.eval_shape(
        lambda w: objective.corrupt(learner.key('corruption'), w, learner.vocab),
        {**windows, **own})

    def pull_back(params, batch, key):
      trained, combine = split_trained(learner.select, params)
      def loss(trained):
        forward = ForwardPass(learner.model, combine(trained), jnp.arange(rows), key, 1)
        losses = objective.losses(forward, batch)
        return sum(factor * losses[name][0] for name, factor in objective.terms.items())
      return jax.vjp(loss, trained)[1]

    key = jax.eval_shape(lambda: jax.random.key(0))
    traced = jax.make_jaxpr(pull_back)(state.params, batch, key).jaxpr
    trained, _ = split_trained(learner.select, state.params)
  given = {id(variable) for variable in traced.invars}
  kept = {id(variable): variable.aval for variable in traced.outvars}
  fixed = row = logits = 0
  for array in (aval for number, aval in kept.items() if number not in given):
    size = count_bytes(array)
    if math.prod(array.shape) % rows:
      fixed += size
      continue
    row += size
    if array.dtype == jnp.float32 and array.shape[-1] >= 0.9 * config.model.vocab:
      logits = max(logits, size)
  held = count_bytes((state.params, state.opt_state, state.trained))
  return held, count_bytes(trained), fixed, row / rows, logits / rows
