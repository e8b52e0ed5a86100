"""Runs the cases of optimizers and schedules: the gradients are given, the parameters after every update compared."""
import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax

from parity.shared import Unsupported
from plm_jax.training.optim import OptimConfig, make_optimizer, schedule


def bert_adamw(case) -> dict[str, np.ndarray]:
  hyper = case.about['hparams']
  config = OptimConfig(peak=hyper['init_lr'], warmup=hyper['warm'], weight_decay=hyper['wd'])
  norms = jax.vmap(optax.tree.norm)(tree(case.inputs, 'grads/'))
  return {**trace(case, config, hyper['n']), **rates(config, hyper['n']), 'global_norm': norms}


def torch_adamw(case) -> dict[str, np.ndarray]:
  """The case says its hyper-parameters in words only."""
  config = OptimConfig(peak=0.01, warmup=5, schedule='linear', eps=1e-8, bias_correction=True)
  return {**trace(case, config, 20), **rates(config, 20)}


def lamb_albert(case) -> dict[str, np.ndarray]:
  config = OptimConfig(kind='lamb', peak=case.about['hparams']['lr'], warmup=0, schedule='constant', clip=0.0)
  got = trace(case, config)
  return {**got, **trust_ratios(case, config, got)}


def lamb_apex(case) -> dict[str, np.ndarray]:
  return trace(case, OptimConfig(kind='lamb', peak=case.about['hparams']['lr'], warmup=0, schedule='constant',
                                 bias_correction=True))


def adafactor(case) -> dict[str, np.ndarray]:
  hyper = case.about['hparams']
  if not hyper['multiply_by_parameter_scale']:
    raise Unsupported('Adafactor with updates that are not relative to the parameter')
  return trace(case, OptimConfig(kind='adafactor', peak=hyper['lr'], warmup=0, schedule='constant', weight_decay=0.0,
                                 clip=0.0, factored=hyper['min_dim_size_to_factor']))


def adafactor_t5(case) -> dict[str, np.ndarray]:
  """Gradients by the formula in the case's note."""
  warmup = case.about['hparams']['warmup_steps']
  config = OptimConfig(kind='adafactor', peak=warmup ** -0.5, warmup=warmup, schedule='t5', weight_decay=0.0, clip=0.0)
  params = {name.removeprefix('params/'): jnp.asarray(x) for name, x in case.inputs.items()}
  t = np.arange(20.0)[:, None]
  def formula(name, shape):
    i = np.arange(np.prod(shape), dtype=np.float64)
    grads = 0.3 * np.sin(0.7 * t + 0.0137 * i + len(name)) + 0.1 * np.cos(0.31 * t * (i % 7)) + 0.01
    return jnp.asarray(grads.reshape(20, *shape), jnp.float32)
  after = run(config, params, {name: formula(name, x.shape) for name, x in params.items()}, 20)
  return {**{f'final/{name}': x[-1] for name, x in after.items()},
          **{f'rms_per_step/{name}': np.sqrt(np.square(x).reshape(20, -1).mean(1)) for name, x in after.items()}}


# Of a name like cosine_warmup10_total100: schedule and what else the peak and its end are.
SHAPES = {
    'linear': dict(schedule='linear'), 'cosine': dict(schedule='cosine'),
    'poly2': dict(schedule='linear', power=2.0, floor=1e-7), 'inverse_sqrt': dict(schedule='inverse_sqrt'),
    'constant': dict(schedule='constant'), 'bert_tf': dict(schedule='bert'), 't5_rsqrt': dict(schedule='t5'),
    'noam_d512': dict(schedule='inverse_sqrt'), 'gpt1_cosine': dict(schedule='gpt1'),
    'xlnet_poly': dict(schedule='linear', floor=0.1),
}


def schedules(case) -> dict[str, np.ndarray]:
  return {name: factors(name, want) for name, want in case.outputs.items()}


def factors(name: str, want: np.ndarray) -> np.ndarray:
  """Factors of steps 0, 1, ..."""
  shape, warmup, total = re.fullmatch(r'(\w+?)_warmup(\d+)(?:_total(\d+))?.*', name).groups()
  if shape not in SHAPES:
    raise Unsupported(f'schedule {name}')
  peak = {'t5_rsqrt': int(warmup) ** -0.5, 'noam_d512': (512 * int(warmup)) ** -0.5}.get(shape, 1.0)
  rate = schedule(OptimConfig(peak=peak, warmup=int(warmup), **SHAPES[shape]), int(total or len(want)))
  first = 1 if shape == 'noam_d512' else 0  # Vaswani et al. 2017 count from 1
  return np.asarray(jax.vmap(rate)(jnp.arange(first, first + len(want))))


def trace(case, config: OptimConfig, steps: int = 20) -> dict[str, np.ndarray]:
  """params/NAME after each of the given gradients [T, ...]."""
  after = run(config, tree(case.inputs, 'params/'), tree(case.inputs, 'grads/'), steps)
  return {f'params/{name}': after[module][leaf] for name, (module, leaf) in named(case.inputs, 'params/').items()}


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


def rates(config: OptimConfig, steps: int) -> dict[str, np.ndarray]:
  return {'lr': np.asarray(jax.vmap(schedule(config, steps))(jnp.arange(steps)))}


def trust_ratios(case, config: OptimConfig, after: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
  """trust_ratio/NAME [T]: the length of each update by that of the same optimizer without ratios, at the same place."""
  start, plain = tree(case.inputs, 'params/'), make_optimizer(dataclasses.replace(config, kind='adamw'), 20)
  names = named(case.inputs, 'params/')
  places = {name: np.concatenate([case.inputs[f'params/{name}'][None], after[f'params/{name}']]) for name in names}
  @jax.jit
  def updates(params, grads):
    def step(state, params_grads):
      update, state = plain.update(params_grads[1], state, params_grads[0])
      return state, update
    return jax.lax.scan(step, plain.init(start), (params, grads))[1]
  given = updates(tree({name: x[:-1] for name, x in places.items()}, ''), tree(case.inputs, 'grads/'))
  def length(x):
    return np.sqrt(np.square(np.asarray(x, np.float64)).reshape(len(x), -1).sum(1))
  return {f'trust_ratio/{name}': length(np.diff(places[name].astype(np.float64), axis=0)) / length(given[module][leaf])
          for name, (module, leaf) in names.items()}


def tree(arrays, prefix: str):
  """Arrays under the names that tell our optimizers what decays: {module: {kernel, bias or scale}}."""
  result = {}
  for name, (module, leaf) in named(arrays, prefix).items():
    result.setdefault(module, {})[leaf] = jnp.asarray(arrays[prefix + name])
  return result


def named(arrays, prefix: str) -> dict[str, tuple[str, str]]:
  """Their names -> ours: layer/LayerNorm/gamma is (layer/LayerNorm, scale)."""
  leaves = {'gamma': 'scale', 'beta': 'bias'}
  names = [name.removeprefix(prefix) for name in arrays if name.startswith(prefix)]
  return {name: (name.rpartition('/')[0], leaves.get(name.rpartition('/')[2], name.rpartition('/')[2]))
          for name in names}
