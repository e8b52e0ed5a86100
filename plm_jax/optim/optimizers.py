"""Optimizers, one class each, and the learning-rate schedules of the papers.

`transformations` makes the optimizer of a run. Loading a model needs its configuration, but no
optax.
"""
import abc
from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.validation import Choice, intervals

if TYPE_CHECKING:
  import optax

  from plm_jax.optim.muon import Dimensions

Schedule = Literal[
    'bert', 'electra', 'linear', 'slanted', 'gpt1', 'cosine', 'inverse_sqrt', 't5', 'constant',
    'wsd', 'trapezoid']
Pace = Sequence[tuple[int, int]]
"""For each phase of a run: updates, and tokens per update."""


@dataclasses.dataclass(frozen=True)
class OptimConfig(Choice):
  """Optimizer and learning rate; the defaults are BERT's (Devlin et al. 2019, A.2, and its
  optimization.py).

  Base class of optimizers, with the options that all of them have.
  """

  title = 'Optimizer'
  limits = intervals(
      warmup='[0, 1e18]', horizon='[0, 1e18]', cooldown='[0, 1e18]', floor='[0, 1]',
      warmup_start='[0, 1]', ema='[0, 1)', decay_power='[0, 10]', layer_decay='(0, 1]')
  counts_with: ClassVar = {
      'clip_by': ('clip', None), 'decay_power': ('weight_decay', None),
      'power': ('schedule', ('bert', 'electra', 'linear', 'slanted')),
      'cooldown': ('schedule', ('wsd', 'trapezoid', 'cosine', 'gpt1')),
      **dict.fromkeys(('floor', 'horizon'), ('schedule', (
          'bert', 'electra', 'linear', 'slanted', 'gpt1', 'cosine', 'wsd', 'trapezoid')))}

  peak: float = 1e-4
  """Peak learning rate, at the end of the warmup. With Adafactor it is multiplied by the size of
  the parameter (see parameter_scale)."""
  warmup: int = 10_000
  """Number of linear warmup steps; with the t5 schedule, of steps with a constant learning rate."""
  horizon: int = 0
  """Step at which a linear or cosine decay ends and the learning rate stays constant (GLM-large:
  160,000 of 200,000). 0: the end of the run."""
  clock: Literal['steps', 'tokens'] = 'steps'
  """Unit of warmup, horizon and cooldown: steps, or tokens of sequences. Phases with larger
  batches have more tokens per step."""
  schedule: Schedule = 'bert'
  """Learning-rate schedule, warmup included. `linear` and `cosine` decay to the end of the run;
  `bert` and `gpt1` are the same but decay from the peak at step 0. `inverse_sqrt` is 1 / sqrt(step)
  with linear warmup, `t5` without it. `constant` stays at the peak. `electra` is `bert` whose
  warmup ramp is multiplied by the decay as well. `wsd` and `trapezoid` are constant and then fall
  over `cooldown` steps, by 1 - sqrt or linearly (warmup-stable-decay: Hägele et al. 2024, section
  3). `slanted` is linear, with a warmup that begins at the floor (slanted triangular: Howard and
  Ruder 2018, equation 3, with a floor of 1/32 and a warmup of a tenth)."""
  warmup_start: float = 0.0
  """Learning rate at the start of the warmup, as a fraction of the peak."""
  cooldown: int = 0
  """Length of the final decay of wsd and trapezoid, in the unit of the clock. A cosine with a
  cooldown falls to 0 there from the value that it has reached (GPT-BERT)."""
  power: float = 1.0
  """Exponent of the remaining fraction in a linear decay (polynomial decay)."""
  floor: float = 0.0
  """Final learning rate, as a fraction of the peak."""
  weight_decay: float = 0.01
  """Decoupled weight decay: each update subtracts this factor x learning rate x parameter."""
  exempt: tuple[str, ...] = ('bias', 'scale')
  """Names that exempt a parameter from weight decay, and from LAMB's trust ratio, wherever they are
  in its path: biases and gains of norms. Other names replace these two, so repeat `bias` and
  `scale`. Empty: all decay, as in fairseq (trainer.py, _build_optimizer, has one parameter group):
  RoBERTa, SpanBERT, BART, mBART."""
  decay_power: float = 1.0
  """Exponent of the learning rate in the weight decay (PaLM: 2)."""
  clip: float = 1.0
  """Gradient clipping: maximum norm of the gradient. 0: no clipping."""
  clip_by: Literal['global', 'parameter'] = 'global'
  """Norm for gradient clipping: of the whole gradient, or of each parameter and layer by itself
  (TinyBERT: transformer/optimization.py of the released code, BertAdam.step)."""
  ema: float = 0.0
  """Decay rate of an EMA of the parameters: ema * mean + (1 - ema) * parameters after each
  update. The EMA is evaluated, exported and used for warm starts. Checkpoints have both. 0: no
  EMA."""
  only: tuple[str, ...] = ()
  """Patterns of the parameters to train (see `trainable.match_parameters`); the others are frozen.
  Default: train all parameters."""
  layer_decay: float = 1.0
  """Layer-wise learning-rate decay: factor per layer below the head. The exponent is N + 2 - n for
  layer n of N, N + 2 for embeddings and 0 for heads, as in ELECTRA's released code (Clark et al.
  2020, appendix B; `trainable.depths_below_head`)."""
  unfreeze: int = 0
  """Gradual unfreezing: number of updates after which one more layer is trained, from the top. At
  first, only the heads are trained (Howard and Ruder 2018, section 3.3: one epoch per layer). 0:
  all layers are trained from the start."""

  uses_matrices: ClassVar[bool] = False
  """Whether the optimizer updates hidden matrices in its own way (`muon.matrix_dimensions`)."""

  @classmethod
  def kinds(cls) -> Mapping[str, type['OptimConfig']]:
    return OPTIMIZERS

  @abc.abstractmethod
  def make_direction(self, matrices: 'Dimensions') -> 'optax.GradientTransformation':
    """Make the optimizer's direction: the gradient before weight decay and learning rate.

    Args:
      matrices: the hidden matrices, for an optimizer with `uses_matrices`.
    """

  def make_updates(
      self, decay: 'optax.GradientTransformation', matrices: 'Dimensions'
      ) -> 'Sequence[optax.GradientTransformation]':
    """Make the transformations before the learning rate: the direction, then weight decay.

    Args:
      decay: weight decay.
      matrices: the hidden matrices.
    """
    import optax
    return self.make_direction(matrices), decay, optax.identity()  # a trust ratio in LAMB


@dataclasses.dataclass(frozen=True)
class AdamW(OptimConfig):
  """Adam with decoupled weight decay."""

  limits = intervals(b1='[0, 1)', b2='[0, 1)', eps='[0, 1]')

  b1: float = 0.9
  """Decay rate of the mean of gradients (Adafactor has none, see momentum)."""
  b2: float = 0.999
  """Decay rate of the mean of squared gradients (Adafactor's grows with the step)."""
  eps: float = 1e-6
  """Epsilon, which is added to the root of the mean square."""
  bias_correction: bool = False
  """Bias correction of Adam: divide the means by 1 - b^t. The released code of BERT and ALBERT does
  not do this."""

  def make_direction(self, matrices):
    import optax

    from plm_jax.optim import directions
    make_adam = optax.scale_by_adam if self.bias_correction else directions.scale_by_plain_adam
    return make_adam(self.b1, self.b2, self.eps)


@dataclasses.dataclass(frozen=True)
class StableAdamW(AdamW):
  """AdamW with Adafactor's update clipping instead of gradient clipping (Wortsman et al. 2023,
  algorithm 2)."""

  def make_updates(self, decay, matrices):
    import optax

    from plm_jax.optim import directions
    adam = optax.chain(self.make_direction(matrices), decay)
    stable = directions.stabilize_updates(adam, self.b2, self.eps, self.bias_correction)
    return stable, optax.identity()


@dataclasses.dataclass(frozen=True)
class Lamb(AdamW):
  """LAMB (You et al. 2020)."""

  def make_updates(self, decay, matrices):
    import optax

    from plm_jax.optim import directions
    ratio = optax.masked(
        directions.apply_per_layer(optax.scale_by_trust_ratio()),
        lambda params: directions.decay_mask(params, self.exempt))
    return self.make_direction(matrices), decay, ratio


@dataclasses.dataclass(frozen=True)
class Adafactor(OptimConfig):
  """Adafactor (Shazeer and Stern 2018, as in T5)."""

  limits = intervals(momentum='[0, 1)')

  factored: int = 128
  """Minimum side of a matrix whose second moments Adafactor factors into rows and columns. 0: no
  factoring."""
  heads: Literal['apart', 'joined'] = 'apart'
  """Shape of attention's kernels [D, H, A] for Adafactor: by their two largest axes, or joined to
  matrices of D by H A, as in T5 (combine_dims of its operative_config.gin; t5x/adafactor.py,
  standard_logical_factor_rules)."""
  parameter_scale: bool = True
  """Whether Adafactor's updates are relative to the size of the parameter (Shazeer and Stern 2018,
  section 8)."""
  momentum: float = 0.0
  """Decay rate of the mean of Adafactor's updates. 0: no momentum."""

  def make_direction(self, matrices):
    import optax

    from plm_jax.optim import directions
    # The constants of section 8.
    squares = optax.scale_by_factored_rms(
        factored=self.factored > 0, min_dim_size_to_factor=self.factored, decay_rate=0.8,
        epsilon=1e-30)
    squares = directions.apply_to_matrices(squares) if self.heads == 'joined' else squares
    scale = optax.scale_by_param_block_rms(1e-3) if self.parameter_scale else optax.identity()
    updates = directions.apply_per_layer(
        optax.chain(squares, optax.clip_by_block_rms(1.0), scale))
    if self.momentum:
      return optax.chain(updates, optax.ema(self.momentum, debias=False))
    return updates


@dataclasses.dataclass(frozen=True)
class Adagrad(OptimConfig):
  """Adagrad (Duchi et al. 2011)."""

  limits = intervals(eps='[0, 1]')

  eps: float = AdamW.eps
  """Epsilon, which is added to the root of the sum of squares."""
  accumulator: float = 1.0
  """Initial value of Adagrad's sums of squared gradients (ELMo: 1)."""

  def make_direction(self, matrices):
    import optax
    return optax.scale_by_rss(self.accumulator, self.eps)


@dataclasses.dataclass(frozen=True)
class Lion(OptimConfig):
  """Lion (Chen et al. 2023)."""

  limits = intervals(b1='[0, 1)', b2='[0, 1)')

  b1: float = AdamW.b1
  """Weight of the mean of gradients in the direction."""
  b2: float = AdamW.b2
  """Decay rate of the mean of gradients."""

  def make_direction(self, matrices):
    import optax
    return optax.scale_by_lion(self.b1, self.b2)


@dataclasses.dataclass(frozen=True)
class Muon(AdamW):
  """Orthogonalized momentum for hidden matrices (Jordan et al. 2024), and AdamW for embeddings,
  heads, biases and norms."""

  limits = intervals(muon_momentum='[0, 1)', muon_rms='[0, 10]', muon_rate='(0, 1e6]')
  uses_matrices: ClassVar = True

  muon_momentum: float = 0.95
  """Decay rate of Muon's mean of gradients, of which it takes the Nesterov momentum."""
  muon_rms: float = 0.2
  """Root mean square of Muon's updates before the learning rate. Updates of AdamW have about 0.2,
  so that both can share learning rate and weight decay (Moonlight: Liu et al. 2025, section 2.2).
  0: the scale of Jordan et al. 2024, sqrt(max(1, outputs / inputs))."""
  muon_rate: float = 1.0
  """Learning rate of Muon's matrices, as a multiple of that of the other parameters. It multiplies
  their weight decay, too."""

  def make_direction(self, matrices):
    from plm_jax.optim import muon
    adam = super().make_direction(matrices)
    return muon.scale_by_muon_and_adam(matrices, adam, self.muon_momentum, self.muon_rms)

  def make_updates(self, decay, matrices):
    from plm_jax.optim import muon
    direction, *others = super().make_updates(decay, matrices)
    if self.muon_rate == 1:
      return direction, *others
    decay, ratio = others
    return direction, decay, muon.scale_matrices(matrices, self.muon_rate), ratio


OPTIMIZERS: dict[str, type[OptimConfig]] = {
    'adamw': AdamW,
    'stable_adamw': StableAdamW,
    'lamb': Lamb,
    'adafactor': Adafactor,
    'adagrad': Adagrad,
    'lion': Lion,
    'muon': Muon}
"""optimizers by `kind`, whose description on the command line consists of their docstrings"""


def make_schedule(
    config: OptimConfig, steps: int, pace: Pace = ()) -> Callable[[Any], jax.Array]:
  """Make the learning-rate schedule: a function of step 0 .. steps - 1.

  Step 0 of a warmup has a learning rate of 0.

  Args:
    config: the optimizer's configuration.
    steps: number of steps of the run.
    pace: phases of the run, needed with a clock of tokens.
  """
  if config.clock == 'tokens':
    # Tokens seen at the end of each phase; the schedule in between is a function of tokens.
    phases = [(0, 0)]
    for phase_steps, tokens in pace:
      phases.append((phase_steps, phase_steps * tokens))
    ends, seen = np.cumsum(phases, 0).T
    by_tokens = make_schedule(dataclasses.replace(config, clock='steps'), int(seen[-1]))
    def rate_at_step(step):
      step = jnp.asarray(step, jnp.float32)
      return by_tokens(jnp.interp(step, ends.astype(float), seen.astype(float)))
    return rate_at_step

  # Numbers of tokens do not fit an int32.
  end, warmup = float(config.horizon or steps), float(config.warmup)
  cooldown = float(config.cooldown)

  def rate(step):
    step = jnp.asarray(step, jnp.float32)

    # Decay.
    start = 0.0 if config.schedule in ('bert', 'electra', 'gpt1') else warmup
    done = (step - start) / max(1.0, end - start)
    done = jnp.minimum(done, 1) if config.horizon else done  # the run may continue after it
    line = config.floor + (1 - config.floor) * jnp.maximum(1 - done, 0) ** config.power
    cosine = config.floor + (1 - config.floor) * (1 + jnp.cos(jnp.pi * done)) / 2
    fallen = jnp.clip((step - (end - cooldown)) / max(1.0, cooldown), 0, 1)
    if cooldown:
      cosine *= 1 - fallen
    root = jnp.sqrt(max(1.0, warmup) / jnp.maximum(step, max(1.0, warmup)))
    decays = {
        'bert': line, 'electra': line, 'linear': line, 'slanted': line, 'gpt1': cosine,
        'cosine': cosine, 'inverse_sqrt': root, 't5': root, 'constant': 1.0,
        'wsd': 1 - (1 - config.floor) * jnp.sqrt(fallen),
        'trapezoid': 1 - (1 - config.floor) * fallen}
    decay = decays[config.schedule]

    # Warmup. GPT's code reaches the peak before it joins the cosine from step 0.
    rise = {'t5': 0, 'gpt1': warmup + 1}.get(config.schedule, warmup)
    begin = step / max(1.0, warmup)
    if config.schedule == 'electra':
      begin *= decay
    first = config.floor if config.schedule == 'slanted' else config.warmup_start
    begin = first + (1 - first) * begin
    return config.peak * jnp.where(step < rise, begin, decay)

  return rate
