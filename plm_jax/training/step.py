"""Pure functions of the training state: init, train, evaluate. They know no model and no objective by name."""
from collections.abc import Mapping
import dataclasses
import functools
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import optax

from plm_jax import sharding
from plm_jax.objectives import CARRY, PROGRESS, Objective, Passes
from plm_jax.training import adapters
from plm_jax.training.adapters import AdapterConfig
from plm_jax.training.selection import Selection, parted


class State(flax.struct.PyTreeNode):
  """All that a run carries from step to step."""

  step: jax.Array  # int32, updates asked for so far, skipped ones included
  params: Any
  opt_state: Any
  skipped: jax.Array  # int32, updates left out because loss or gradient was not finite
  streak: jax.Array  # int32, of these the ones in a row up to now


class StreamState(State):
  """The state of a run whose batches go on where the one before ended."""

  carry: Any  # what the last batch has handed to the next, a row each


class AveragedState(State):
  """The state of a run whose `params` are a mean of those that were trained."""

  trained: Any  # parameters that gradients are taken at


@dataclasses.dataclass(frozen=True, eq=False)
class Learner:
  """What stays the same from step to step."""

  model: nn.Module  # batch, rows -> {head: output}
  objective: Objective
  optimizer: optax.GradientTransformation
  vocab: Any  # the tokenizer's Vocab
  seed: int
  accumulate: int = 1  # micro-steps that share one update
  select: Selection = Selection()  # of parameters: of the others no gradient is computed
  adapter: AdapterConfig = AdapterConfig()  # what stands beside kernels
  steps: int = 1  # of the run, for an objective that goes by how much of it is done
  carry: Any = None  # shapes of what a batch hands to the next, zeros at first; None: nothing
  ema: float = 0.0  # decay of the mean of parameters; 0: there is none

  def key(self, purpose: int):
    """Makes the keys for 0 initialisation, 1 corruption, 2 dropout, 3 corruption in evaluation, 4
    adapters."""
    return jax.random.fold_in(jax.random.key(self.seed), purpose)


def init_state(learner: Learner, windows) -> State:
  """Makes a fresh state; parameters carry their logical axes (flax boxes). windows: a batch, or its shapes, of any
  size."""
  batch = jax.eval_shape(lambda w: learner.objective.corrupt(learner.key(1), w, learner.vocab), windows)
  batch = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), batch)
  params = learner.model.init(learner.key(0), batch)['params']
  if learner.adapter.kind != 'none':
    params = adapters.add(params, learner.adapter, learner.key(4))
  zero = jnp.zeros((), jnp.int32)
  state = zero, params, learner.optimizer.init(params), zero, zero
  if learner.ema:
    return AveragedState(*state, jax.tree.map(jnp.copy, params))
  if learner.carry is None:
    return State(*state)
  return StreamState(*state, jax.tree.map(
      lambda x: nn.LogicallyPartitioned(jnp.zeros(x.shape, x.dtype), ('batch', *[None] * (x.ndim - 1))),
      learner.carry))


def sharded_init(learner: Learner, windows, mesh):
  """Returns a function that makes the fresh state on the mesh, the state's shapes, and its shardings."""
  boxed = jax.eval_shape(lambda: init_state(learner, windows))
  shardings = sharding.shardings(boxed, mesh)
  make = jax.jit(lambda: nn.unbox(init_state(learner, windows)), out_shardings=shardings)
  return make, nn.unbox(boxed), shardings


def train_step(learner: Learner, state: State, windows) -> tuple[State, dict[str, Any]]:
  """Makes one update from a batch of windows -> (state, metrics).

  Metrics: the objective's (sum, weight) pairs under their names, and scalars `loss`, `grad_norm`, `skipped`, `streak`.
  A loss or a gradient that is not finite leaves parameters and optimizer as they were. So does a new number of theirs
  that is not finite, for itself alone: whether any is could only be known after another pass over all of them.
  """
  if isinstance(state, StreamState):
    windows = {**windows, CARRY: state.carry}
  batch = corrupted(learner, windows, state.step)
  dropout_key = jax.random.fold_in(learner.key(2), state.step)
  before = state.trained if isinstance(state, AveragedState) else state.params
  grads, metrics = gradient(learner, before, batch, dropout_key)
  carry = metrics.pop(CARRY, None)
  loss = total(learner.objective.terms, metrics)
  norm = optax.tree.norm(grads)
  updates, opt_state = learner.optimizer.update(grads, state.opt_state, before)
  params = optax.apply_updates(before, updates)
  finite = jnp.isfinite(loss) & jnp.isfinite(norm) & all_finite(carry)
  keep = lambda new, old: jax.tree.map(lambda n, o: jnp.where(finite & jnp.isfinite(n), n, o), new, old)
  if isinstance(state, StreamState):
    state = state.replace(carry=keep(carry, state.carry))
  params = keep(params, before)
  if isinstance(state, AveragedState):
    mean = jax.tree.map(lambda mean, x: learner.ema * mean + (1 - learner.ema) * x, state.params, params)
    state, params = state.replace(trained=params), keep(mean, state.params)
  state = state.replace(
      step=state.step + 1, params=params, opt_state=keep(opt_state, state.opt_state),
      skipped=state.skipped + ~finite, streak=jnp.where(finite, 0, state.streak + 1))
  return state, {**metrics, 'loss': loss, 'grad_norm': norm, 'skipped': state.skipped, 'streak': state.streak}


def corrupted(learner: Learner, windows, step):
  """Makes the batch that a training step learns from."""
  if learner.objective.paced:
    windows = {**windows, PROGRESS: jnp.minimum(step / learner.steps, 1)}
  return learner.objective.corrupt(learner.key(1), windows, learner.vocab)


def all_finite(tree) -> jax.Array:
  """Tells whether every number of the floating arrays in `tree` is finite."""
  floats = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]
  return jnp.array([jnp.isfinite(x).all() for x in floats]).all()


def jitted_step(learner: Learner, layout):
  """Compiles `train_step` as it runs on a mesh: the state stays in its shardings and is updated in place."""
  return jax.jit(functools.partial(train_step, learner), donate_argnums=0, out_shardings=(layout, None))


def eval_step(learner: Learner, params, windows):
  """Returns the objective's (sum, weight) pairs, and its answers; no dropout."""
  batch = learner.objective.corrupt(learner.key(3), windows, learner.vocab)
  outputs: Any = learner.model.apply({'params': params}, batch)
  return learner.objective.loss(outputs, batch), learner.objective.answers(outputs, batch)


def gradient(learner: Learner, params, batch, dropout_key):
  """Returns the gradient of the objective's terms, each a mean over the whole batch, and its (sum, weight) pairs.

  It is computed for what learner.select names, and 0 elsewhere.

  Micro-steps take every `accumulate`-th row, which leaves rows on their devices. Each sum is divided by the weight of
  the whole batch, so the result does not depend on the split; nor does it where rows are compared with each other:
  micro-steps share their loss.
  """
  rows = jnp.arange(jax.tree.leaves(batch)[0].shape[0])
  weights = term_weights(learner, params, batch)

  parts = learner.accumulate if learner.objective.whole else 1
  moving, whole = parted(learner.select, params)

  def loss(moving, batch, rows):
    losses = learner.objective.losses(Passes(learner.model, whole(moving), rows, dropout_key, parts), batch)
    return sum(factor * losses[name][0] / weights[name] for name, factor in learner.objective.terms.items()), losses

  grad = jax.grad(loss, has_aux=True)
  still = jax.tree.map(jnp.zeros_like, jax.tree.leaves(params))
  if learner.accumulate == parts:
    grads, losses = grad(moving, batch, rows)
    return whole(grads, still), losses

  def apart(part):
    grads, losses = grad(moving, *part)
    carry = {name: losses.pop(name) for name in (CARRY,) if name in losses}
    return (grads, losses), carry

  def add(total, part):
    new, carry = apart(part)
    return jax.tree.map(jnp.add, total, new), carry

  micro = sharding.split((batch, rows), learner.accumulate)
  zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype),
                      jax.eval_shape(apart, jax.tree.map(lambda x: x[0], micro))[0])
  (grads, losses), carry = jax.lax.scan(add, zero, micro)
  carry = jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(-1, *x.shape[2:]), carry)
  return whole(grads, still), {**losses, **carry}


def term_weights(learner: Learner, params, batch) -> Mapping[str, jax.Array]:
  """Returns the weight of each term over the whole batch, at least 1.

  Weights depend on the batch alone, so outputs of zeros stand in for the model's; the compiler drops the sums.
  """
  outputs = jax.eval_shape(lambda: learner.model.apply({'params': params}, batch))
  losses = learner.objective.loss(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), outputs), batch)
  return {name: jnp.maximum(losses[name][1], 1) for name in learner.objective.terms}


def total(terms: Mapping[str, float], losses):
  """Returns the number that training minimises, from (sum, weight) pairs."""
  return sum(factor * losses[name][0] / jnp.maximum(losses[name][1], 1) for name, factor in terms.items())
