"""Training and evaluation steps: pure functions of the training state, with gradient accumulation.

They know no model and no objective by name.
"""
from collections.abc import Mapping
import dataclasses
import functools
from typing import Any, Literal, get_args

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import optax

from plm_jax import sharding
from plm_jax.objectives import CARRY, PROGRESS, STATISTICS, ForwardPass, Objective
from plm_jax.optim import adapters
from plm_jax.optim.adapters import AdapterConfig
from plm_jax.optim.trainable import ParameterSelection, split_trained
from plm_jax.optim.transformations import compute_global_norm

KeyPurpose = Literal['init', 'corruption', 'dropout', 'evaluation', 'adapters']
KEY_PURPOSES = get_args(KeyPurpose)  # their order is part of the keys of a seed


class TrainState(flax.struct.PyTreeNode):
  """Training state: all that a run carries from step to step, and saves in checkpoints."""

  step: jax.Array  # int32, updates so far, skipped ones included
  params: Any
  opt_state: Any
  skipped: jax.Array  # int32, updates skipped because loss or gradient was not finite
  streak: jax.Array  # int32, how many of these were the last ones in a row
  # What the last batch of a continuous objective hands to the next, with a leading batch axis.
  carry: Any = None
  statistics: Any = None  # of the run, where the objective keeps some (`Objective.statistics`)
  trained: Any = None  # parameters at which gradients are taken, where `params` are their EMA

  @property
  def parts(self) -> dict[str, Any]:
    """What the run has of these, by name: the content of a checkpoint."""
    return {name: part for name, part in vars(self).items() if part is not None}


@dataclasses.dataclass(frozen=True, eq=False)
class Learner:
  """Static parts of a training step: model, objective, optimizer, and options."""

  model: nn.Module  # batch, rows -> {head: output}
  objective: Objective
  optimizer: optax.GradientTransformation
  vocab: Any  # the tokenizer's Vocab
  seed: int
  accumulate: int = 1  # gradient accumulation: micro-batches per update
  select: ParameterSelection = ParameterSelection()  # frozen parameters have no gradient
  adapter: AdapterConfig = AdapterConfig()  # adapters of kernels
  steps: int = 1  # of the run, for an objective that depends on progress
  carry: Any = None  # shapes of what a batch hands to the next, zeros at first; None: nothing
  ema: float = 0.0  # decay rate of the EMA of parameters; 0: none

  def key(self, purpose: KeyPurpose):
    """Make the random key of a purpose, the same in every step.

    `corruption` is for training, `evaluation` for the corruption of held-out text.
    """
    return jax.random.fold_in(jax.random.key(self.seed), KEY_PURPOSES.index(purpose))


def init_state(learner: Learner, windows) -> TrainState:
  """Initialize the training state; parameters have their logical axes in flax boxes.

  Args:
    learner: static parts of the step.
    windows: a batch of any size, or its shapes.
  """
  batch = jax.eval_shape(
      lambda w: learner.objective.corrupt(learner.key('corruption'), w, learner.vocab), windows)
  batch = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), batch)
  params = learner.model.init(learner.key('init'), batch)['params']
  if learner.adapter.kind != 'none':
    params = adapters.add(params, learner.adapter, learner.key('adapters'))
  zero = jnp.zeros((), jnp.int32)
  def init_carry(x):
    axes = 'batch', *[None] * (x.ndim - 1)
    return nn.LogicallyPartitioned(jnp.zeros(x.shape, x.dtype), axes)
  state = TrainState(zero, params, learner.optimizer.init(params), zero, zero,
                     carry=jax.tree.map(init_carry, learner.carry))
  if learner.objective.step_traits.keeps_statistics:
    state = state.replace(statistics=learner.objective.statistics(learner.vocab.size))
  return state.replace(trained=jax.tree.map(jnp.copy, params)) if learner.ema else state


def make_sharded_init(learner: Learner, windows, mesh):
  """Make the initialization of the training state on a mesh.

  Returns:
    (compiled function that makes the fresh state, shapes of the state, shardings of the state).
  """
  boxed = jax.eval_shape(lambda: init_state(learner, windows))
  shardings = sharding.shardings(boxed, mesh)
  make = jax.jit(lambda: nn.unbox(init_state(learner, windows)), out_shardings=shardings)
  return make, nn.unbox(boxed), shardings


def train_step(
    learner: Learner, state: TrainState, windows) -> tuple[TrainState, dict[str, Any]]:
  """Make one update from a batch of windows.

  A loss or gradient that is not finite leaves parameters and optimizer as they were. A single new
  number that is not finite is left out by itself: whether there is any could only be known after
  another pass over all of them.

  Returns:
    (state, metrics): the objective's (sum, weight) pairs by name, and the scalars `loss`,
    `grad_norm`, `skipped` and `streak`.
  """
  # Corrupt the text: windows of tokens become inputs and labels.
  if state.carry is not None:
    windows = {**windows, CARRY: state.carry}
  if state.statistics is not None:
    windows = {**windows, STATISTICS: state.statistics}
  batch = corrupt_windows(learner, windows, state.step)

  # Loss and gradient.
  dropout_key = jax.random.fold_in(learner.key('dropout'), state.step)
  before = state.params if state.trained is None else state.trained
  grads, metrics = compute_gradient(learner, before, batch, dropout_key)
  carry, seen = metrics.pop(CARRY, None), metrics.pop(STATISTICS, None)
  loss = total_loss(learner.objective.terms, metrics)
  norm = compute_global_norm(grads)

  # Update.
  updates, opt_state = learner.optimizer.update(grads, state.opt_state, before)
  params = optax.apply_updates(before, updates)

  # Skip it where loss or gradient is not finite.
  finite = jnp.isfinite(loss) & jnp.isfinite(norm) & all_finite(carry)
  def keep_finite(new, old):
    return jax.tree.map(lambda n, o: jnp.where(finite & jnp.isfinite(n), n, o), new, old)
  state = state.replace(carry=keep_finite(carry, state.carry))
  if state.statistics is not None:
    statistics = learner.objective.update_statistics(state.statistics, seen, state.step)
    state = state.replace(statistics=keep_finite(statistics, state.statistics))
  params = keep_finite(params, before)

  # EMA of the parameters.
  if state.trained is not None:
    def average(mean, x):
      return learner.ema * mean + (1 - learner.ema) * x
    mean = jax.tree.map(average, state.params, params)
    state, params = state.replace(trained=params), keep_finite(mean, state.params)

  state = state.replace(
      step=state.step + 1, params=params, opt_state=keep_finite(opt_state, state.opt_state),
      skipped=state.skipped + ~finite, streak=jnp.where(finite, 0, state.streak + 1))
  metrics = {
      **metrics, 'loss': loss, 'grad_norm': norm, 'skipped': state.skipped, 'streak': state.streak}
  return state, metrics


def corrupt_windows(learner: Learner, windows, step):
  """Build the batch from which a training step learns."""
  if learner.objective.step_traits.needs_progress:
    windows = {**windows, PROGRESS: jnp.minimum(step / learner.steps, 1)}
  # The key is the same in every step: `corruption.example_keys` folds in corpus, window and epoch.
  # So the masks of a window depend neither on the step nor on its row in the batch.
  return learner.objective.corrupt(learner.key('corruption'), windows, learner.vocab)


def all_finite(tree) -> jax.Array:
  """Tell whether every number of the floating arrays in `tree` is finite."""
  floats = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]
  return jnp.array([jnp.isfinite(x).all() for x in floats]).all()


def jit_train_step(learner: Learner, layout):
  """Compile `train_step` for a mesh: the state keeps its shardings and is updated in place."""
  step = functools.partial(train_step, learner)
  return jax.jit(step, donate_argnums=0, out_shardings=(layout, None))


def eval_step(learner: Learner, params, windows):
  """Compute the objective's (sum, weight) pairs and its accuracy targets, without dropout."""
  batch = learner.objective.corrupt(learner.key('evaluation'), windows, learner.vocab)
  # Without row_ids there is no dropout.
  outputs: Any = learner.model.apply({'params': params}, batch)
  losses = learner.objective.loss(outputs, batch)
  return losses, learner.objective.accuracy_targets(outputs, batch)


def compute_gradient(learner: Learner, params, batch, dropout_key):
  """Compute the gradient of the objective's terms, with gradient accumulation over micro-batches.

  Each term is a mean over the whole batch. The gradient is 0 for frozen parameters.

  A micro-batch takes every `accumulate`-th row, which leaves rows on their devices. Each sum is
  divided by the weight of the whole batch, so the result does not depend on the split. A loss that
  compares rows of the batch is computed once for all micro-batches.

  Returns:
    (gradient, (sum, weight) pairs by name).
  """
  row_ids = jnp.arange(jax.tree.leaves(batch)[0].shape[0])
  weights = term_weights(learner, params, batch)
  # A loss that compares rows needs all of them in one pass: `ForwardPass` splits them into chunks.
  cross_row = learner.objective.step_traits.cross_row
  chunks = learner.accumulate if cross_row else 1
  trained, combine = split_trained(learner.select, params)

  def loss(trained, batch, row_ids):
    forward = ForwardPass(learner.model, combine(trained), row_ids, dropout_key, chunks)
    losses = learner.objective.losses(forward, batch)
    terms = learner.objective.terms.items()
    return sum(factor * losses[name][0] / weights[name] for name, factor in terms), losses

  grad = jax.grad(loss, has_aux=True)
  zeros = jax.tree.map(jnp.zeros_like, jax.tree.leaves(params))  # for frozen parameters
  if cross_row or learner.accumulate == 1:
    grads, losses = grad(trained, batch, row_ids)
    return combine(grads, zeros), losses

  # Gradient accumulation: sums over micro-batches. `by_row` has a value for each row: what the
  # objective hands to the next batch (CARRY), or adds to its statistics.
  def micro_grad(part):
    grads, losses = grad(trained, *part)
    by_row = {name: losses.pop(name) for name in (CARRY, STATISTICS) if name in losses}
    return (grads, losses), by_row

  def add(total, part):
    new, by_row = micro_grad(part)
    return jax.tree.map(jnp.add, total, new), by_row

  micro_batches = sharding.split_microbatches((batch, row_ids), learner.accumulate)
  first = jax.tree.map(lambda x: x[0], micro_batches)
  shapes, _ = jax.eval_shape(micro_grad, first)
  start = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
  (grads, losses), by_row = jax.lax.scan(add, start, micro_batches)
  # Rows were dealt out in turn: the axes swap back before they are joined.
  by_row = jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(-1, *x.shape[2:]), by_row)
  return combine(grads, zeros), {**losses, **by_row}


def term_weights(learner: Learner, params, batch) -> Mapping[str, jax.Array]:
  """Compute the weight of each term over the whole batch, as a divisor.

  Weights depend on the batch alone, so outputs of zeros replace the model's; the compiler drops
  the sums.
  """
  outputs = jax.eval_shape(lambda: learner.model.apply({'params': params}, batch))
  zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), outputs)
  losses = learner.objective.loss(zeros, batch)
  return {name: nonzero(losses[name][1]) for name in learner.objective.terms}


def total_loss(terms: Mapping[str, float], losses):
  """Compute the number that training minimizes, from (sum, weight) pairs."""
  return sum(
      factor * losses[name][0] / nonzero(losses[name][1]) for name, factor in terms.items())


def nonzero(weight):
  """Return a sum of weights as a divisor: 1 in place of 0, where there is nothing to learn."""
  return jnp.where(weight > 0, weight, 1)
