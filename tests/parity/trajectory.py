"""Runs the cases that train a few steps, through the step and the optimizer of real runs."""
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from parity.shared import Unsupported
from plm_jax import convert
from plm_jax.objectives.clm import CausalLM
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.spans import MixtureOfDenoisers
from plm_jax.training.optim import OptimConfig, decayed, make_optimizer
from plm_jax.training.step import Learner, State, train_step


class Given:
  """An objective's rows are corrupted already."""

  def corrupt(self, key, windows, vocab):
    del key, vocab
    return windows


@dataclasses.dataclass(frozen=True)
class GivenMasks(Given, MaskedLM):
  """Masked language modelling and the next sentence."""

  def batch(self, rows):
    """All positions are read; those without a label weigh nothing."""
    labels = rows['labels']
    places = jnp.broadcast_to(jnp.arange(labels.shape[1]), labels.shape)
    return {'tokens': rows['input_ids'], 'segments': rows['attention_mask'], 'types': rows['token_type_ids'],
            'positions': places, 'labels': jnp.maximum(labels, 0), 'weights': (labels != -100).astype(jnp.float32),
            'nsp': rows['next_sentence_label']}


@dataclasses.dataclass(frozen=True)
class GivenText(Given, CausalLM):
  """Language modelling."""

  def batch(self, rows):
    """A label is of the token itself: the position before predicts it."""
    labels = jnp.pad(rows['labels'][:, 1:], ((0, 0), (0, 1)), constant_values=-100)
    segments = rows.get('attention_mask', jnp.ones_like(labels))
    return {'tokens': rows['input_ids'], 'segments': segments, 'labels': jnp.maximum(labels, 0),
            'weights': (labels != -100).astype(jnp.float32)}


@dataclasses.dataclass(frozen=True)
class GivenPairs(Given, MixtureOfDenoisers):
  """One text from another, as an objective has made them."""

  def batch(self, rows):
    """The decoder reads its own labels but the last, behind the token that begins, which is padding (T5)."""
    labels = jnp.maximum(rows['labels'], 0)
    return {'tokens': rows['input_ids'], 'segments': rows.get('attention_mask', jnp.ones_like(rows['input_ids'])),
            'decoder_tokens': jnp.pad(labels[:, :-1], ((0, 0), (1, 0))), 'decoder_segments': jnp.ones_like(labels),
            'labels': labels, 'weights': (rows['labels'] != -100).astype(jnp.float32)}


def run(objective):
  """A runner that trains with `objective`, GivenMasks, GivenText or GivenPairs."""
  return functools.partial(train, objective)


def train(objective, case) -> dict[str, np.ndarray]:
  """losses, pre-clip gradient norms, and the parameters after the last step."""
  imported, settings = convert.load(case.path), case.about['train']
  known = {'steps', 'lr', 'betas', 'eps', 'weight_decay', 'clip_norm', 'no_decay_norm_bias'}
  if set(settings) != known:
    raise Unsupported(f'training with {settings}')
  optim = OptimConfig(
      peak=settings['lr'], warmup=0, schedule='constant', b1=settings['betas'][0], b2=settings['betas'][1],
      eps=settings['eps'], bias_correction=True, weight_decay=settings['weight_decay'], clip=settings['clip_norm'])
  optimizer = make_optimizer(optim, settings['steps'])
  if not settings['no_decay_norm_bias']:
    # What a real run never decays does here, like the rest; behind the learning rate, which is a constant.
    late = optax.add_decayed_weights(-optim.peak * optim.weight_decay, exempt)
    optimizer = optax.chain(optimizer, late)
  learner = Learner(imported.model(), objective, optimizer, None, 0)
  params = jax.tree.map(jnp.asarray, imported.params)
  zero = jnp.zeros((), jnp.int32)
  state, update = State(zero, params, learner.optimizer.init(params), zero, zero), jax.jit(
      lambda state, batch: train_step(learner, state, batch))
  losses, norms = [], []
  with jax.default_matmul_precision('highest'):
    for step in range(settings['steps']):
      rows = {name: jnp.asarray(x[step], jnp.int32) for name, x in case.inputs.items()}
      state, numbers = update(state, objective.batch(rows))
      losses.append(numbers['loss'])
      norms.append(numbers['grad_norm'])
  final = convert.tensors(convert.family_of(imported.family).of(imported.config), state.params)
  return {'losses': np.array(losses), 'grad_norms': np.array(norms), **{f'final/{name}': x for name, x in final}}


def exempt(params):
  """True for what does not decay."""
  return jax.tree.map(lambda yes: not yes, decayed(params))
