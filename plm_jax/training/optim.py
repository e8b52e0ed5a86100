"""Optimizers and schedules from optax, as the papers had them."""
from collections.abc import Callable, Sequence
import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from plm_jax.checked import Checked, within
from plm_jax.training.selection import Selection, heights, is_stacked

Schedule = Literal['bert', 'electra', 'linear', 'slanted', 'gpt1', 'cosine', 'inverse_sqrt', 't5', 'constant', 'wsd',
                   'trapezoid']
Pace = Sequence[tuple[int, int]]  # one phase after another: updates, and tokens that each of them sees


@dataclasses.dataclass(frozen=True)
class OptimConfig(Checked):
  """Optimizer and learning rate; the defaults are BERT's (Devlin et al. 2019, A.2, and its optimization.py)."""

  limits = within(
      warmup='[0, 1e18]', horizon='[0, 1e18]', cooldown='[0, 1e18]', floor='[0, 1]', warmup_start='[0, 1]', b1='[0, 1)',
      b2='[0, 1)', ema='[0, 1)', eps='[0, 1]', decay_power='[0, 10]', momentum='[0, 1)', layer_decay='(0, 1]')

  kind: Literal['adamw', 'stable_adamw', 'lamb', 'adafactor', 'adagrad'] = 'adamw'
  """Adam with decoupled decay, the same with Adafactor's clipping of updates in place of gradients' (Wortsman et al.
  2023, algorithm 2), LAMB (You et al. 2020), Adafactor (Shazeer and Stern 2018, as T5 has it), or Adagrad
  (Duchi et al. 2011)"""
  peak: float = 1e-4
  """learning rate at the end of the warmup; times the size of the parameter with Adafactor (see parameter_scale)"""
  warmup: int = 10_000
  """steps of linear warmup; with t5 of a flat start"""
  horizon: int = 0
  """where a line or a cosine ends, in steps, and goes on flat (GLM-large: 160,000 of 200,000); 0: with the run"""
  clock: Literal['steps', 'tokens'] = 'steps'
  """what warmup, horizon and cooldown count; tokens: those of rows, of which phases with larger batches see more in a
  step"""
  schedule: Schedule = 'bert'
  """after the warmup: a line (linear) or half a cosine to the end, the same from peak at step 0 on (bert, gpt1),
  1 / sqrt(step) with and without the linear warmup (inverse_sqrt, t5), or flat; electra: bert's line, by which its
  warmup is multiplied too; wsd, trapezoid: flat, then down over `cooldown`, as 1 minus the root of what is done of it
  or along a line (warmup-stable-decay: Hägele et al. 2024, section 3); slanted: linear, whose warmup begins at the
  floor (Howard and Ruder 2018, equation 3, with a floor of 1/32 and a warmup of a tenth)"""
  warmup_start: float = 0.0
  """share of the peak that a warmup begins at"""
  cooldown: int = 0
  """how much of the end a wsd or a trapezoid goes down over, in what the clock counts; a cosine that has one falls to 0
  there from what it has come down to (GPT-BERT)"""
  power: float = 1.0
  """exponent of a line's remaining part"""
  floor: float = 0.0
  """share of the peak that the way down ends at"""
  b1: float = 0.9
  """decay of the mean of gradients (Adafactor keeps none, see momentum)"""
  b2: float = 0.999
  """decay of the mean of their squares (Adafactor's grows with the step)"""
  eps: float = 1e-6
  """added to the root of the mean square"""
  bias_correction: bool = False
  """divide the means by 1 - b^t; the released BERT and ALBERT did not"""
  weight_decay: float = 0.01
  """times learning rate and parameter, subtracted"""
  exempt: tuple[str, ...] = ('bias', 'scale')
  """last names of parameters that do not decay and have no ratio of LAMB's: biases and gains of norms; none: all decay,
  as in fairseq (trainer.py, _build_optimizer, has one group of parameters): RoBERTa, SpanBERT, BART, mBART"""
  decay_power: float = 1.0
  """power of the learning rate that decay is multiplied by (PaLM: 2)"""
  clip: float = 1.0
  """largest global norm of the gradient; 0: no clipping"""
  factored: int = 128
  """sides of the smallest matrix whose mean squares Adafactor keeps as those of rows and columns; 0: of none"""
  heads: Literal['apart', 'joined'] = 'apart'
  """attention's kernels [D, H, A] for Adafactor: by their two largest axes, or as matrices of D by H A, as T5 has them
  (combine_dims of its operative_config.gin; t5x/adafactor.py, standard_logical_factor_rules)"""
  parameter_scale: bool = True
  """Adafactor's updates are shares of the parameter's size (Shazeer and Stern 2018, section 8); False: as they are"""
  momentum: float = 0.0
  """decay of the mean of Adafactor's updates; 0: none is kept"""
  accumulator: float = 1.0
  """what Adagrad's sums of squared gradients begin with (ELMo: 1)"""
  ema: float = 0.0
  """decay of a mean of the parameters, to which every update adds what is left of 1 of those that it gives: the mean is
  what is evaluated, exported and begun with by others, and both are in checkpoints; 0: no mean"""
  only: tuple[str, ...] = ()
  """parameters that are trained, by patterns (see `selection.matching`), while the others stay as they are; none: all
  are"""
  layer_decay: float = 1.0
  """factor on the learning rate for each step down from the head: layer n of N has it to the power of N + 2 - n,
  embeddings N + 2, heads 0, as in ELECTRA's released code (Clark et al. 2020, appendix B; `selection.heights`)"""
  unfreeze: int = 0
  """updates after which one layer more learns, from the top; at first heads alone do (gradual unfreezing, Howard and
  Ruder 2018, section 3.3: an epoch); 0: all learn from the first on"""


def schedule(config: OptimConfig, steps: int, pace: Pace = ()) -> Callable[[Any], jax.Array]:
  """Makes the learning rate at step 0 .. steps - 1, of which step 0 of a warmup is 0. pace: needed by a clock of
  tokens."""
  if config.clock == 'tokens':
    ends, seen = np.cumsum([(0, 0), *((n, n * tokens) for n, tokens in pace)], 0).T
    plain = schedule(dataclasses.replace(config, clock='steps'), int(seen[-1]))
    return lambda step: plain(jnp.interp(jnp.asarray(step, jnp.float32), ends.astype(float), seen.astype(float)))
  # Numbers of tokens do not fit an int32.
  end, warmup, cooldown = float(config.horizon or steps), float(config.warmup), float(config.cooldown)
  def rate(step):
    step = jnp.asarray(step, jnp.float32)
    start = 0.0 if config.schedule in ('bert', 'electra', 'gpt1') else warmup
    done = (step - start) / max(1.0, end - start)
    if config.horizon:  # which a run may go on behind
      done = jnp.minimum(done, 1)
    line = config.floor + (1 - config.floor) * jnp.maximum(1 - done, 0) ** config.power
    cosine = config.floor + (1 - config.floor) * (1 + jnp.cos(jnp.pi * done)) / 2
    fallen = jnp.clip((step - (end - cooldown)) / max(1.0, cooldown), 0, 1)
    cosine *= 1 - fallen if cooldown else 1
    root = jnp.sqrt(max(1.0, warmup) / jnp.maximum(step, max(1.0, warmup)))
    after = {'bert': line, 'electra': line, 'linear': line, 'slanted': line, 'gpt1': cosine, 'cosine': cosine,
             'inverse_sqrt': root, 't5': root, 'constant': 1.0,
             'wsd': 1 - (1 - config.floor) * jnp.sqrt(fallen),
             'trapezoid': 1 - (1 - config.floor) * fallen}[config.schedule]
    # GPT's code reaches the peak before it joins the cosine from step 0.
    rise = {'t5': 0, 'gpt1': warmup + 1}.get(config.schedule, warmup)
    begin = step / max(1.0, warmup) * (after if config.schedule == 'electra' else 1)
    first = config.floor if config.schedule == 'slanted' else config.warmup_start
    begin = first + (1 - first) * begin
    return config.peak * jnp.where(step < rise, begin, after)
  return rate


def make_optimizer(
    config: OptimConfig, steps: int, frozen: Sequence[str] = (), pace: Pace = (),
    parts: Sequence[Sequence[str]] = (), select: Selection | None = None) -> optax.GradientTransformation:
  """Makes the optimizer: clip, the optimizer's direction, decoupled decay, LAMB's ratio, schedule: the order of the
  released code.

  What `select` leaves out stays as it is, bit for bit, has no state here, and does not count in the norm that is
  clipped; without it that is what is not in config.only or matches a pattern of `frozen`. pace: that of `schedule`.
  parts: those of `clipping`. The transformation raises ParameterError for a pattern that matches nothing.
  """
  ratio = optax.masked(each_layer(optax.scale_by_trust_ratio()), lambda params: decayed(params, config.exempt))
  moved = direction(config), decay(config, steps, pace)
  optimizer = optax.chain(
      clipping(config.clip, parts) if config.clip else optax.identity(),
      *([stabilised(optax.chain(*moved), config)] if config.kind == 'stable_adamw' else moved),
      ratio if config.kind == 'lamb' else optax.identity(),
      optax.scale_by_learning_rate(schedule(config, steps, pace)))
  select = select or Selection(config.only, tuple(frozen))
  optimizer = chosen(optimizer, select) if select else optimizer
  if config.layer_decay == 1 and not config.unfreeze:
    return optimizer
  return optax.chain(optimizer, by_height(config.layer_decay, config.unfreeze))


def chosen(optimizer: optax.GradientTransformation, select: Selection) -> optax.GradientTransformation:
  """Makes an optimizer of the parameters that are selected; of the others the updates are -0.0."""
  # Of zeros, only this one leaves every number as it is that it is added to.
  nothing = optax.stateless(lambda updates, _: jax.tree.map(lambda x: jnp.full_like(x, -0.0), updates))
  whole = optax.partition({'trained': optimizer, 'frozen': nothing}, lambda tree: jax.tree.map(
      lambda rows: 'trained' if rows.any() else 'frozen', select(tree)))
  def rows_of(tree, zero):
    def of_leaf(rows, x):
      return x if rows.all() or not rows.any() else jnp.where(rows.reshape(-1, *[1] * (x.ndim - 1)), x, zero)
    return jax.tree.map(of_leaf, select(tree), tree)
  def update(updates, state, params=None):
    updates, state = whole.update(rows_of(updates, 0.0), state, params)
    return rows_of(updates, -0.0), state
  return optax.GradientTransformation(whole.init, update)


def by_height(layer_decay: float, unfreeze: int) -> optax.GradientTransformation:
  """Scales updates by how far below the head their parameter is (`selection.heights`): those of each layer by
  `layer_decay` to the power of it; where `unfreeze` is not 0 they are -0.0 for so many steps more, the lower it is.

  Means of gradients go on meanwhile, and the gradient that is clipped is that of all: a layer that begins to learn does
  so at the pace of the others.
  """
  def update(updates, state, params=None):
    del params
    def scaled(x, height):
      height = height.reshape(-1, *[1] * (x.ndim - 1)) if height.ndim else height
      x = x if layer_decay == 1 else x * jnp.asarray(layer_decay ** height, x.dtype)
      return jnp.where(state.count >= unfreeze * np.maximum(height - 1, 0), x, -0.0) if unfreeze else x
    updates = jax.tree.map(scaled, updates, heights(updates))
    return updates, optax.ScaleByScheduleState(optax.safe_increment(state.count))
  return optax.GradientTransformation(lambda params: optax.ScaleByScheduleState(jnp.zeros((), jnp.int32)), update)


def clipping(limit: float, parts: Sequence[Sequence[str]] = ()) -> optax.GradientTransformation:
  """Scales a gradient that is longer than `limit` down to it.

  parts: names of parameters, at the top of their tree, that have an optimizer of their own: a length of their own. In
  nothing else do several optimizers of one configuration differ from one, which works on each parameter alone.
  """
  clip = optax.clip_by_global_norm(limit)
  if not parts:
    return clip
  def label(path, _):
    return next((number for number, names in enumerate(parts) if path[0].key in names), len(parts))
  return optax.partition(
      dict.fromkeys(range(len(parts) + 1), clip), lambda tree: jax.tree_util.tree_map_with_path(label, tree))


def direction(config: OptimConfig) -> optax.GradientTransformation:
  """Makes what a gradient becomes before decay and learning rate."""
  if config.kind == 'adafactor':
    # The constants of section 8.
    squares = optax.scale_by_factored_rms(
        factored=config.factored > 0, min_dim_size_to_factor=config.factored, decay_rate=0.8, epsilon=1e-30)
    updates = each_layer(optax.chain(
        by_matrices(squares) if config.heads == 'joined' else squares,
        optax.clip_by_block_rms(1.0),
        optax.scale_by_param_block_rms(1e-3) if config.parameter_scale else optax.identity()))
    return optax.chain(updates, optax.ema(config.momentum, debias=False)) if config.momentum else updates
  if config.kind == 'adagrad':
    return optax.scale_by_rss(config.accumulator, config.eps)
  plain = optax.scale_by_adam if config.bias_correction else scale_by_plain_adam
  return plain(config.b1, config.b2, config.eps)


def decay(config: OptimConfig, steps: int, pace: Pace = ()) -> optax.GradientTransformation:
  """Adds what the learning rate is yet to be multiplied with."""
  if config.decay_power == 1:
    return optax.add_decayed_weights(config.weight_decay, lambda params: decayed(params, config.exempt))
  rate = schedule(config, steps, pace)
  def update(updates, state, params=None):
    factor = config.weight_decay * rate(state.count) ** (config.decay_power - 1)
    updates = jax.tree.map(
        lambda u, p, yes: u + factor * p if yes else u, updates, params, decayed(params, config.exempt))
    return updates, optax.ScaleByScheduleState(optax.safe_increment(state.count))
  return optax.GradientTransformation(lambda params: optax.ScaleByScheduleState(jnp.zeros((), jnp.int32)), update)


def scale_by_plain_adam(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
  """Makes Adam without bias correction, which optax.scale_by_adam cannot leave out; the state is optax's own."""
  def update(updates, state, params=None):
    del params
    mu = optax.tree.update_moment(updates, state.mu, b1, 1)
    nu = optax.tree.update_moment_per_elem_norm(updates, state.nu, b2, 2)
    updates = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu)
    return updates, optax.ScaleByAdamState(optax.safe_increment(state.count), mu, nu)
  return optax.GradientTransformation(optax.scale_by_adam(b1, b2, eps).init, update)


def stabilised(adam: optax.GradientTransformation, config: OptimConfig) -> optax.GradientTransformation:
  """Divides what Adam and decay make of each parameter, of each layer of those that hold one a row, by the root mean of
  g^2 / v where that is over 1: v lags behind gradients that grow, and updates would be too long (Wortsman et al. 2023,
  section 3.3 and algorithm 2). adam: a chain of which Adam is the first."""
  def update(updates, state: Any, params=None):
    grads = updates
    updates, state = adam.update(grads, state, params)
    corrected = 1 - config.b2 ** jnp.asarray(state[0].count, jnp.float32) if config.bias_correction else 1.0
    def shorter(path, update, grad, square):
      layers = is_stacked([getattr(entry, 'key', None) for entry in path])
      share = jnp.square(grad) / jnp.maximum(square / corrected, config.eps ** 2)
      return update / jnp.maximum(1, jnp.sqrt(share.mean(range(int(layers), grad.ndim), keepdims=True)))
    return jax.tree_util.tree_map_with_path(shorter, updates, grads, state[0].nu), state
  return optax.GradientTransformation(adam.init, update)


def each_layer(transform: optax.GradientTransformation) -> optax.GradientTransformation:
  """Applies `transform`, which looks at whole tensors, for each layer of those that hold one layer a row."""
  def label(path, x):
    return str(x.shape[0]) if is_stacked([getattr(entry, 'key', None) for entry in path]) else 'single'
  def labels(tree):
    return jax.tree_util.tree_map_with_path(label, tree)
  def parts(tree):
    rows = optax.GradientTransformation(jax.vmap(transform.init), jax.vmap(transform.update))
    names = sorted({*jax.tree.leaves(labels(tree))})  # in one order on every process
    return optax.partition({name: transform if name == 'single' else rows for name in names}, labels)
  return optax.GradientTransformation(
      lambda params: parts(params).init(params),
      lambda updates, state, params=None: parts(updates).update(updates, state, params))


def by_matrices(transform: optax.GradientTransformation) -> optax.GradientTransformation:
  """Applies `transform`, which looks at matrices, for attention's kernels [D, H, A], on the way out [H, A, D], as
  matrices."""
  def matrix(path, x):
    out = 'out' in [getattr(entry, 'key', None) for entry in path]
    return x if x.ndim < 3 else x.reshape((-1, x.shape[-1]) if out else (x.shape[0], -1))
  def matrices(tree):
    return jax.tree_util.tree_map_with_path(matrix, tree)
  def update(updates, state, params=None):
    new, state = transform.update(matrices(updates), state, matrices(params))
    return jax.tree.map(lambda new, old: new.reshape(old.shape), new, updates), state
  return optax.GradientTransformation(lambda params: transform.init(matrices(params)), update)


def decayed(params, exempt: Sequence[str] = OptimConfig.exempt):
  """Returns the same tree of bools: False where the last name is one of `exempt`.

  XLNet's content_bias, position_bias and type_bias, which are added to queries, do decay: the released code names
  r_w_bias, r_r_bias and r_s_bias as exceptions to its exclusion of biases (model_utils.py, include_in_weight_decay).
  """
  def leaf(path, _):
    return not any(getattr(entry, 'key', None) in exempt for entry in path)
  return jax.tree_util.tree_map_with_path(leaf, params)
