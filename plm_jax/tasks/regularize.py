"""Regularisers of fine-tuning: what is asked of a model besides the right answer, in passes of its own.

Each is a value that a task may have: a call with the task, the passes through the model (`objectives.Passes`) and a
batch gives the losses of a training step. What it adds goes into the sum of the task's loss, so that its weight is that
of the batch, and is reported under its own name too. A model that is only asked never meets one.

Noise is added to token vectors, of every wiring; that of SiFT to normalised ones, which encoders have. Sizes of noise
are those of a row, padding left out, as in the papers, where a row holds one example.
"""
from collections.abc import Callable
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from plm_jax.checked import Checked, within
from plm_jax.objectives import Arrays, Losses, Passes
from plm_jax.objectives.sift import Sift


@dataclasses.dataclass(frozen=True)
class Plain(Checked):
  """No regulariser: one pass, and the task's own losses."""

  moves_inputs = False

  def __call__(self, task: Any, passes: Passes, batch: Arrays) -> Losses:
    """Returns the losses of the batch."""
    return task.loss(passes(batch), batch)


@dataclasses.dataclass(frozen=True)
class RDrop(Checked):
  """Two passes with different dropout should say the same (Liang et al. 2021): the mean of their losses, and alpha
  times the mean of both Kullback-Leibler divergences between them, as in the authors' README; of a regression the
  squared difference."""

  moves_inputs = False

  alpha: float = 1.0
  """factor on the divergence (section 4.1 and appendix: 0.1 to 5)"""

  def __call__(self, task: Any, passes: Passes, batch: Arrays) -> Losses:
    """Returns the losses of the batch, and `rdrop`, the mean divergence."""
    outputs = [passes(batch), passes(batch, jax.random.fold_in(passes.key, 1))]
    (one, weight), (other, _) = (task.compared(each, batch) for each in outputs)
    apart = (symmetric(one, other) * weight).sum()
    losses = mean([task.loss(each, batch) for each in outputs])
    return added(task, losses, self.alpha * apart) | {'rdrop': (apart, losses[task.head][1])}


@dataclasses.dataclass(frozen=True)
class FGM(Checked):
  """The loss of token vectors that are moved uphill is learned too (Miyato et al. 2017, section 3): both are added."""

  moves_inputs = True
  limits = within(epsilon='(0, 1e6]')

  epsilon: float = 1.0
  """length of what is added to the vectors of a row, all together"""

  def __call__(self, task: Any, passes: Passes, batch: Arrays) -> Losses:
    """Returns the losses of the batch, and `fgm`, the task's loss of the batch that is moved."""
    clean = task.loss(passes(batch), batch)
    noise = self.noise(task, passes, batch)
    moved = task.loss(passes({**batch, 'noise': noise}), batch)
    return {name: (clean[name][0] + moved[name][0], clean[name][1]) if name in task.terms else pair
            for name, pair in clean.items()} | {'fgm': moved[task.head]}

  def noise(self, task: Any, passes: Passes, batch: Arrays) -> jax.Array:
    """Returns what is added to token vectors [.., L, E], of length epsilon in each row."""
    still = jnp.zeros((*batch['tokens'].shape, passes.width))
    return self.epsilon * unit(uphill(task, passes, batch)(still))


@dataclasses.dataclass(frozen=True)
class FreeLB(Checked):
  """The mean of the losses along a walk of token vectors uphill (Zhu et al. 2020, algorithm 1), each row's by itself,
  with the same dropout in all passes (section 3.3).

  Each step computes the gradient by token vectors apart from that by parameters: twice what the released code pays.
  """

  moves_inputs = True
  limits = within(steps='[1, 100]', magnitude='(0, 1e6]', largest='[0, 1e6]', init='[0, 1e6]')

  steps: int = 3
  """passes, K"""
  magnitude: float = 1e-1
  """length of a step, alpha"""
  largest: float = 0.0
  """length at which what is added to a row is cut, epsilon; 0: none"""
  init: float = 0.0
  """length, about, of the noise that the walk begins with; 0: it begins with none"""

  def __call__(self, task: Any, passes: Passes, batch: Arrays) -> Losses:
    """Returns the mean losses of the walk."""
    shape, found = (*batch['tokens'].shape, passes.width), []
    noise = self.first(passes, batch, shape)
    climb = uphill(task, passes, batch)
    for number in range(self.steps):
      found.append(task.loss(passes({**batch, 'noise': noise}), batch))
      if number + 1 < self.steps:
        noise = self.within(noise + self.magnitude * unit(climb(noise)))
    return mean(found)

  def first(self, passes: Passes, batch: Arrays, shape: tuple[int, ...]) -> jax.Array:
    """Draws where the walk begins: uniform noise, of which a longer row gets less each token (the released code)."""
    if not self.init:
      return jnp.zeros(shape)
    draw = jax.vmap(lambda row: jax.random.uniform(
        jax.random.fold_in(jax.random.fold_in(passes.key, 2), row), shape[1:], minval=-1, maxval=1))(passes.rows)
    real = (batch['segments'] > 0).astype(jnp.float32)
    size = jnp.maximum(real.sum(-1, keepdims=True), 1) * shape[-1]
    return self.within(draw * (self.init * real / jnp.sqrt(size))[..., None])

  def within(self, noise: jax.Array) -> jax.Array:
    """Cuts what is longer than `largest`, row by row."""
    if not self.largest:
      return noise
    return noise * jnp.minimum(1, self.largest / jnp.maximum(length_of(noise), 1e-12))


@dataclasses.dataclass(frozen=True)
class ScaleInvariant(Sift):
  """SiFT (`objectives.sift`): what is said should not change when normalised embeddings move a little."""

  moves_inputs = True

  def __call__(self, task: Any, passes: Passes, batch: Arrays) -> Losses:
    """Returns the losses of the batch, and `sift`, the mean change of what is said."""
    outputs = []
    def logits(perturbation):
      outputs.append(passes({**batch, 'perturbation': perturbation}))
      return task.compared(outputs[-1], batch)[0]
    keys = jax.vmap(lambda row: jax.random.fold_in(jax.random.fold_in(passes.key, 3), row))(passes.rows)
    _, change = self.change(logits, keys, (*batch['tokens'].shape[1:], passes.width))
    apart, losses = (change * task.compared(outputs[0], batch)[1]).sum(), task.loss(outputs[0], batch)
    return added(task, losses, self.weight * apart) | {'sift': (apart, losses[task.head][1])}


Regularizer = Plain | RDrop | FGM | FreeLB | ScaleInvariant
REGULARIZERS: dict[str, Regularizer] = {
    'none': Plain(), 'rdrop': RDrop(), 'fgm': FGM(), 'freelb': FreeLB(), 'sift': ScaleInvariant()}
"""by the names that the command line has for them"""


def uphill(task: Any, passes: Passes, batch: Arrays) -> Callable[[jax.Array], jax.Array]:
  """Makes the gradient of the terms' sums by noise [.., L, E] in token vectors, in which padding has none."""
  real = (batch['segments'] > 0)[..., None]
  def loss(noise):
    losses = task.loss(passes({**batch, 'noise': noise}), batch)
    return sum(factor * losses[name][0] for name, factor in task.terms.items())
  return lambda noise: jax.lax.stop_gradient(jnp.where(real, jax.grad(loss)(noise), 0))


def length_of(x: jax.Array) -> jax.Array:
  """Returns the length of each row's vectors together: [.., L, E] -> [.., 1, 1]."""
  return jnp.sqrt(jnp.square(x).sum((-2, -1), keepdims=True))


def unit(x: jax.Array) -> jax.Array:
  """Gives each row [.., L, E] the length 1, where it has any."""
  return x / jnp.maximum(length_of(x), 1e-30)


def symmetric(one: jax.Array, other: jax.Array) -> jax.Array:
  """Returns the mean of both Kullback-Leibler divergences between two softmaxes [.., C] -> [..]; of one number, C = 1,
  the squared difference."""
  if one.shape[-1] == 1:
    return jnp.square(one.astype(jnp.float32) - other)[..., 0]
  one, other = (jax.nn.log_softmax(x.astype(jnp.float32)) for x in (one, other))
  return ((jnp.exp(one) - jnp.exp(other)) * (one - other)).sum(-1) / 2


def mean(losses: list[Losses]) -> Losses:
  """Returns the mean of several (sum, weight), whose weights are those of the batch."""
  return {name: (jnp.stack([each[name][0] for each in losses]).mean(), pair[1]) for name, pair in losses[0].items()}


def added(task: Any, losses: Losses, more: jax.Array) -> Losses:
  """Adds to the sum of the task's own loss."""
  total, weight = losses[task.head]
  return {**losses, task.head: (total + more, weight)}
