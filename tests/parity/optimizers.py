"""Runs the cases of optimizers and schedules: the gradients are given, the parameters after every
update compared."""
from collections.abc import Mapping
import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from parity.shared import Unsupported
from plm_jax.optim.optimizers import Adafactor, AdamW, Lamb, OptimConfig, make_schedule
from plm_jax.optim.transformations import make_optimizer
from plm_jax.validation import choose_kind

# Our fields, and what cases call them. What none of them is called is left, and makes the case an
# unsupported one.
NAMES = {
    'peak': ('lr', 'init_lr', 'learning_rate', 'peak_lr', 'peak'),
    'warmup': ('warm', 'warmup', 'warmup_steps', 'num_warmup_steps'),
    'weight_decay': ('wd', 'weight_decay', 'weight_decay_rate', 'decay'),
    'b1': ('b1', 'beta1', 'beta_1'), 'b2': ('b2', 'beta2', 'beta_2'), 'eps': ('eps', 'epsilon'),
    'clip': ('clip', 'clip_norm', 'max_grad_norm', 'max_norm'),
    'bias_correction': ('bias_correction', 'correct_bias'),
}
STEPS = ('n', 'total', 'total_steps', 'steps', 'num_train_steps', 'num_training_steps')
ADAFACTOR = {
    'peak': NAMES['peak'], 'factored': ('min_dim_size_to_factor',),
    'momentum': ('beta1', 'b1', 'momentum'),
    'parameter_scale': ('multiply_by_parameter_scale', 'scale_parameter'),
}
# What Adafactor has one value of here (section 8 of its paper).
CONSTANTS = dict(decay_rate=0.8, clipping_threshold=1.0, clip_threshold=1.0, eps=[1e-30, 1e-3],
                 eps1=1e-30, eps2=1e-3,
                 epsilon1=1e-30, epsilon2=1e-3, relative_step=False, warmup_init=False,
                 factored=True, weight_decay=0.0)


def bert_adamw(case) -> dict[str, np.ndarray]:
  return adam(case, AdamW(schedule='bert'))


def torch_adamw(case) -> dict[str, np.ndarray]:
  """Hyperparameters of cases that describe them in words."""
  case.about['hparams'].only(amsgrad=False, maximize=False)
  return adam(case, AdamW(peak=0.01, warmup=5, schedule='linear', eps=1e-8, bias_correction=True))


def adam(case, default: OptimConfig) -> dict[str, np.ndarray]:
  """The learning rate has the schedule of a run of the case's number of steps, even if it has
  fewer gradients."""
  hyper = case.about['hparams']
  config, steps = configured(hyper, NAMES, default), hyper.take(*STEPS, default=20)
  norms = jax.vmap(optax.tree.norm)(tree(case.inputs, 'grads/'))
  rate = jax.vmap(make_schedule(config, steps))(jnp.arange(len(case.outputs.get('lr', ()))))
  return {**trace(case, config, steps), 'lr': rate, 'global_norm': norms}


def lamb_albert(case) -> dict[str, np.ndarray]:
  config = configured(
      case.about['hparams'], NAMES, Lamb(warmup=0, schedule='constant', clip=0.0))
  got = trace(case, config)
  return {**got, **trust_ratios(case, config, got)}


def lamb_apex(case) -> dict[str, np.ndarray]:
  """Where nothing decays there is no ratio."""
  hyper = case.about['hparams']
  hyper.only(adam_w_mode=True, grad_averaging=True, use_nvlamb=False, amsgrad=False)
  config = configured(
      hyper, NAMES, Lamb(warmup=0, schedule='constant', bias_correction=True))
  return trace(case, config if config.weight_decay else choose_kind(config, 'adamw'))


def adafactor(case) -> dict[str, np.ndarray]:
  hyper = case.about['hparams']
  hyper.only(**CONSTANTS)
  return trace(case, configured(hyper, ADAFACTOR, Adafactor(
      warmup=0, schedule='constant', weight_decay=0.0, clip=0.0)))


def adafactor_t5(case) -> dict[str, np.ndarray]:
  """Gradients by the formula in the case's note."""
  hyper = case.about['hparams']
  warmup = hyper.take(*NAMES['warmup'])
  hyper.only(**CONSTANTS)
  config = configured(hyper, ADAFACTOR, Adafactor(
      peak=warmup ** -0.5, warmup=warmup, schedule='t5', weight_decay=0.0, clip=0.0))
  params = {name.removeprefix('params/'): jnp.asarray(x) for name, x in case.inputs.items()}
  steps = next(len(x) for name, x in case.outputs.items() if name.startswith('rms_per_step/'))
  t = np.arange(float(steps))[:, None]
  def formula(name, shape):
    i = np.arange(np.prod(shape), dtype=np.float64)
    grads = 0.3 * np.sin(0.7 * t + 0.0137 * i + len(name)) + 0.1 * np.cos(0.31 * t * (i % 7)) + 0.01
    return jnp.asarray(grads.reshape(steps, *shape), jnp.float32)
  after = run(config, params, {name: formula(name, x.shape) for name, x in params.items()}, steps)
  return {**{f'final/{name}': x[-1] for name, x in after.items()},
          **{f'rms_per_step/{name}': np.sqrt(np.square(x).reshape(steps, -1).mean(1))
             for name, x in after.items()}}


def configured(hyper, names: Mapping[str, tuple[str, ...]], default: OptimConfig) -> OptimConfig:
  """Return `default` with the case's other settings, under any of the names."""
  said: dict[str, Any] = {ours: hyper.take(*theirs)
                          for ours, theirs in names.items() if set(theirs) & hyper.keys()}
  if 'betas' in hyper:
    said['b1'], said['b2'] = hyper['betas']
  return dataclasses.replace(default, **{ours: 0.0 if value is None else value
                                         for ours, value in said.items()})


# Of a name like noam_d512_warmup20 or poly2_warmup10_total100_end1em7: the schedule; the rest is
# read from the name.
SHAPES: dict[str, Any] = {
    'linear': 'linear', 'cosine': 'cosine', 'poly': 'linear', 'inverse_sqrt': 'inverse_sqrt',
    'constant': 'constant',
    'bert_tf': 'bert', 't5_rsqrt': 't5', 'noam': 'inverse_sqrt', 'gpt1_cosine': 'gpt1',
    'xlnet_poly': 'linear',
    'electra': 'electra',
}


def schedules(case) -> dict[str, Any]:
  return {name: factors(name, len(want)) for name, want in case.outputs.items()}


def factors(name: str, length: int) -> Any:
  """Factors of steps 0, 1, ..., or Unsupported."""
  found = re.fullmatch(r'(.+?)(\d*)(?:_d(\d+))?_warmup(\d+)(?:_total(\d+))?(?:_(?:end|min)(\w+))?',
                       name)
  if not found or found[1] not in SHAPES or (found[3] and found[1] != 'noam'):
    return Unsupported(f'schedule {name}')
  shape, power, width, warmup, total, floor = found.groups()
  rise = max(1, int(warmup))
  peak = {'t5_rsqrt': rise ** -0.5, 'noam': (int(width or 512) * rise) ** -0.5}.get(shape, 1.0)
  rate = make_schedule(AdamW(
      peak=peak, warmup=int(warmup), schedule=SHAPES[shape], power=float(power or 1),
      floor=number(floor or '0'),
  ), int(total or length))
  first = 1 if shape == 'noam' else 0  # Vaswani et al. 2017 count from 1
  return np.asarray(jax.vmap(rate)(jnp.arange(first, first + length)))


def number(text: str) -> float:
  """'1em7' is 1e-7, '01' a tenth."""
  return float(f'0.{text[1:]}' if text.startswith('0') and text[1:] else text.replace('em', 'e-'))


def trace(case, config: OptimConfig, steps: int = 20) -> dict[str, np.ndarray]:
  """Return params/NAME after each of the given gradients [T, ...]; steps: the length of the run,
  for the schedule."""
  after = run(config, tree(case.inputs, 'params/'), tree(case.inputs, 'grads/'), steps)
  return {f'params/{name}': after[module][leaf]
          for name, (module, leaf) in named(case.inputs, 'params/').items()}


def run(config: OptimConfig, params, grads, steps: int):
  optimizer = make_optimizer(config, steps)
  @jax.jit
  def every(params, grads):
    def step(carry, grads):
      params, state = carry
      updates, state = optimizer.update(grads, state, params)
      params = optax.apply_updates(params, updates)
      return (params, state), params
    return jax.lax.scan(step, (params, optimizer.init(params)), grads)[1]
  return jax.device_get(every(params, grads))


def trust_ratios(case, config: OptimConfig, after: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Return trust_ratio/NAME [T]: the norm of each update divided by its norm in the same
  optimizer without trust ratios."""
  start, plain = tree(case.inputs, 'params/'), make_optimizer(choose_kind(config, 'adamw'), 20)
  names = named(case.inputs, 'params/')
  places = {name: np.concatenate([case.inputs[f'params/{name}'][None], after[f'params/{name}']])
            for name in names}
  @jax.jit
  def updates(params, grads):
    def step(state, params_grads):
      update, state = plain.update(params_grads[1], state, params_grads[0])
      return state, update
    return jax.lax.scan(step, plain.init(start), (params, grads))[1]
  given = updates(tree({name: x[:-1] for name, x in places.items()}, ''),
                  tree(case.inputs, 'grads/'))
  def length(x):
    return np.sqrt(np.square(np.asarray(x, np.float64)).reshape(len(x), -1).sum(1))
  return {f'trust_ratio/{name}': length(np.diff(places[name].astype(np.float64), axis=0))
          / length(given[module][leaf])
          for name, (module, leaf) in names.items()}


def tree(arrays, prefix: str):
  """Nest arrays under names from which our optimizers determine weight decay: {name: {kernel or
  bias}}."""
  return {name: {leaf: jnp.asarray(arrays[prefix + name])}
          for name, (_, leaf) in named(arrays, prefix).items()}


def named(arrays, prefix: str) -> dict[str, tuple[str, str]]:
  """Map the reference's names to ours: (name, bias) for parameters without weight decay, else
  (name, kernel)."""
  names = [name.removeprefix(prefix) for name in arrays if name.startswith(prefix)]
  return {name: (name, 'bias' if re.search('LayerNorm|layer_norm|bias', name) else 'kernel')
          for name in names}
