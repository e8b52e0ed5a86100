"""Regularizers of fine-tuning: R-Drop, adversarial training (FGM, FreeLB) and SiFT.

Each is a value that a task may have. Called with the objective (`tasks.objective`), the forward
passes (`objectives.ForwardPass`) and a batch, it returns the losses of a training step. What it
adds goes into the sum of the task's loss, so that it has the weight of the batch. It is reported
under its own name too. Inference never calls a regularizer.

Noise is added to token embeddings, in every architecture; SiFT's to normalized ones, which
encoders have. Sizes of noise are per row, without padding, as in the papers, where a row holds
one example.
"""
from collections.abc import Callable
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from plm_jax.objectives import Arrays, ForwardPass, Losses
from plm_jax.objectives.sift import Sift
from plm_jax.validation import ValidatedConfig, intervals


@dataclasses.dataclass(frozen=True)
class Plain(ValidatedConfig):
  """No regularizer: one forward pass, and the task's own losses."""

  perturbs_inputs = False

  def __call__(self, objective: Any, passes: ForwardPass, batch: Arrays) -> Losses:
    """Compute the losses of the batch."""
    return objective.loss(passes(batch), batch)


@dataclasses.dataclass(frozen=True)
class RDrop(ValidatedConfig):
  """R-Drop: two forward passes with different dropout should agree (Liang et al. 2021).

  The loss is the mean of both losses, plus alpha times the mean of both Kullback-Leibler
  divergences between them, as in the authors' README. A regression uses the squared difference.
  """

  perturbs_inputs = False

  alpha: float = 1.0
  """factor of the divergence (section 4.1 and appendix: 0.1 to 5)"""

  def __call__(self, objective: Any, passes: ForwardPass, batch: Arrays) -> Losses:
    """Compute the losses of the batch, and `rdrop`, the mean divergence."""
    outputs = [passes(batch), passes(batch, jax.random.fold_in(passes.key, 1))]
    one, weight = objective.task.logits_and_weights(outputs[0], batch)
    other, _ = objective.task.logits_and_weights(outputs[1], batch)
    divergence = (symmetric_kl(one, other) * weight).sum()
    losses = mean_losses([objective.loss(each, batch) for each in outputs])
    total = add_to_task_loss(objective, losses, self.alpha * divergence)
    return total | {'rdrop': (divergence, losses[objective.task.head][1])}


@dataclasses.dataclass(frozen=True)
class FGM(ValidatedConfig):
  """Adversarial training by the fast gradient method (FGM): add the loss of perturbed embeddings.

  Token embeddings move along the gradient (Miyato et al. 2017, section 3); both losses are summed.
  """

  perturbs_inputs = True
  limits = intervals(epsilon='(0, 1e6]')

  epsilon: float = 1.0
  """norm of the perturbation of all token embeddings of a row together"""

  def __call__(self, objective: Any, passes: ForwardPass, batch: Arrays) -> Losses:
    """Compute the losses of the batch, and `fgm`, the task's loss of the perturbed batch."""
    clean = objective.loss(passes(batch), batch)
    noise = self.make_noise(objective, passes, batch)
    perturbed = objective.loss(passes({**batch, 'noise': noise}), batch)
    losses = {}
    for name, (total, weight) in clean.items():
      if name in objective.terms:
        total = total + perturbed[name][0]
      losses[name] = total, weight
    return losses | {'fgm': perturbed[objective.task.head]}

  def make_noise(self, objective: Any, passes: ForwardPass, batch: Arrays) -> jax.Array:
    """Compute the perturbation of token embeddings [.., L, E], of norm epsilon in each row."""
    zeros = jnp.zeros((*batch['tokens'].shape, passes.width))
    return self.epsilon * normalize_rows(make_input_gradient(objective, passes, batch)(zeros))


@dataclasses.dataclass(frozen=True)
class FreeLB(ValidatedConfig):
  """FreeLB: the mean loss along several steps of gradient ascent on token embeddings.

  Zhu et al. 2020, algorithm 1, each row by itself, with the same dropout in all passes (section
  3.3). Each step computes the gradient by embeddings separately from that by parameters: twice
  the cost of the released code.
  """

  perturbs_inputs = True
  limits = intervals(steps='[1, 100]', magnitude='(0, 1e6]', largest='[0, 1e6]', init='[0, 1e6]')

  steps: int = 3
  """number of forward passes, K"""
  magnitude: float = 1e-1
  """length of an ascent step, alpha"""
  largest: float = 0.0
  """maximum norm of the perturbation of a row, epsilon; 0: no maximum"""
  init: float = 0.0
  """approximate norm of the initial random perturbation; 0: none"""

  def __call__(self, objective: Any, passes: ForwardPass, batch: Arrays) -> Losses:
    """Compute the mean losses over all steps."""
    losses = []
    noise = self.initial_noise(passes, batch, (*batch['tokens'].shape, passes.width))
    gradient = make_input_gradient(objective, passes, batch)
    for number in range(self.steps):
      losses.append(objective.loss(passes({**batch, 'noise': noise}), batch))
      if number + 1 < self.steps:
        noise = self.clip_noise(noise + self.magnitude * normalize_rows(gradient(noise)))
    return mean_losses(losses)

  def initial_noise(
      self, passes: ForwardPass, batch: Arrays, shape: tuple[int, ...]) -> jax.Array:
    """Sample the initial perturbation: uniform, smaller per token in longer rows, as released."""
    if not self.init:
      return jnp.zeros(shape)
    def sample(row):
      key = jax.random.fold_in(jax.random.fold_in(passes.key, 2), row)
      return jax.random.uniform(key, shape[1:], minval=-1, maxval=1)
    noise = jax.vmap(sample)(passes.row_ids)
    real = (batch['segments'] > 0).astype(jnp.float32)
    size = jnp.maximum(real.sum(-1, keepdims=True), 1) * shape[-1]
    return self.clip_noise(noise * (self.init * real / jnp.sqrt(size))[..., None])

  def clip_noise(self, noise: jax.Array) -> jax.Array:
    """Scale the perturbation of each row down to the norm `largest`."""
    if not self.largest:
      return noise
    return noise * jnp.minimum(1, self.largest / jnp.maximum(row_norms(noise), 1e-12))


@dataclasses.dataclass(frozen=True)
class ScaleInvariant(Sift):
  """SiFT (`objectives.sift`): outputs should not change if normalized embeddings move a little."""

  perturbs_inputs = True

  def __call__(self, objective: Any, passes: ForwardPass, batch: Arrays) -> Losses:
    """Compute the losses of the batch, and `sift`, the mean divergence of the perturbed outputs."""
    outputs = []
    def logits(perturbation):
      outputs.append(passes({**batch, 'perturbation': perturbation}))
      return objective.task.logits_and_weights(outputs[-1], batch)[0]
    def row_key(row):
      return jax.random.fold_in(jax.random.fold_in(passes.key, 3), row)
    shape = (*batch['tokens'].shape[1:], passes.width)
    _, change = self.perturbed_divergence(logits, jax.vmap(row_key)(passes.row_ids), shape)
    divergence = (change * objective.task.logits_and_weights(outputs[0], batch)[1]).sum()
    losses = objective.loss(outputs[0], batch)
    total = add_to_task_loss(objective, losses, self.weight * divergence)
    return total | {'sift': (divergence, losses[objective.task.head][1])}


Regularizer = Plain | RDrop | FGM | FreeLB | ScaleInvariant
REGULARIZERS: dict[str, Regularizer] = {
    'none': Plain(), 'rdrop': RDrop(), 'fgm': FGM(), 'freelb': FreeLB(), 'sift': ScaleInvariant()}
"""regularizers by their names on the command line"""


def make_input_gradient(
    objective: Any, passes: ForwardPass, batch: Arrays) -> Callable[[jax.Array], jax.Array]:
  """Make the gradient of the summed losses by noise [.., L, E] on embeddings; 0 on padding."""
  real = (batch['segments'] > 0)[..., None]
  def loss(noise):
    losses = objective.loss(passes({**batch, 'noise': noise}), batch)
    return sum(factor * losses[name][0] for name, factor in objective.terms.items())
  return lambda noise: jax.lax.stop_gradient(jnp.where(real, jax.grad(loss)(noise), 0))


def row_norms(x: jax.Array) -> jax.Array:
  """Compute the norm of all vectors of a row together: [.., L, E] -> [.., 1, 1]."""
  return jnp.sqrt(jnp.square(x).sum((-2, -1), keepdims=True))


def normalize_rows(x: jax.Array) -> jax.Array:
  """Scale each row [.., L, E] to norm 1; rows of zeros stay zeros."""
  return x / jnp.maximum(row_norms(x), 1e-30)


def symmetric_kl(one: jax.Array, other: jax.Array) -> jax.Array:
  """Compute the symmetric KL divergence: the mean of both directions, of logits [.., C] -> [..].

  For a single output, C = 1, it is the squared difference.
  """
  if one.shape[-1] == 1:
    return jnp.square(one.astype(jnp.float32) - other)[..., 0]
  log_p = jax.nn.log_softmax(one.astype(jnp.float32))
  log_q = jax.nn.log_softmax(other.astype(jnp.float32))
  return ((jnp.exp(log_p) - jnp.exp(log_q)) * (log_p - log_q)).sum(-1) / 2


def mean_losses(losses: list[Losses]) -> Losses:
  """Average several (sum, weight) pairs per name; weights are those of the batch."""
  return {name: (jnp.stack([each[name][0] for each in losses]).mean(), weight)
          for name, (_, weight) in losses[0].items()}


def add_to_task_loss(objective: Any, losses: Losses, more: jax.Array) -> Losses:
  """Add to the sum of the task's own loss."""
  total, weight = losses[objective.task.head]
  return {**losses, objective.task.head: (total + more, weight)}
