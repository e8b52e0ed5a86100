"""Runs the cases that train a few steps, through the step and the optimizer of real runs."""
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from parity import decoder, encoder, encoder_decoder, xlnet
from parity.shared import Given, Unsupported
from plm_jax import conversion
from plm_jax.objectives.clm import CausalLM
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.row_builders import NextSentence, Single
from plm_jax.objectives.span_corruption import MixtureOfDenoisers
from plm_jax.optim.optimizers import AdamW
from plm_jax.optim.transformations import make_optimizer
from plm_jax.training.step import Learner, TrainState, train_step

ROWS = {'input_ids', 'attention_mask', 'labels'}
# Modules that build the rows of a downstream task.
WIRINGS = {'encoder': encoder, 'decoder': decoder, 'encoder-decoder': encoder_decoder}


@dataclasses.dataclass(frozen=True)
class GivenMasks(Given, MaskedLM):
  """Masked LM, with next-sentence prediction if the case has it."""

  known = ROWS | {'token_type_ids', 'position_ids', 'next_sentence_label'}

  @classmethod
  def of(cls, imported, inputs):
    del imported
    return cls(pair=NextSentence() if 'next_sentence_label' in inputs else Single())

  def batch(self, rows, said, make_batch):
    """All positions are read; those without a label weigh nothing."""
    del said, make_batch
    labels = rows['labels']
    places = jnp.broadcast_to(jnp.arange(labels.shape[1]), labels.shape)
    asked = {'nsp': rows['next_sentence_label']} if 'next_sentence_label' in rows else {}
    return encoder.make_batch(rows) | labelled(labels) | asked | {'positions': places}


@dataclasses.dataclass(frozen=True)
class GivenText(Given, CausalLM):
  """Language modelling."""

  known = ROWS

  @classmethod
  def of(cls, imported, inputs):
    del imported, inputs
    return cls()

  def batch(self, rows, said, make_batch):
    """A label is of the token itself: the position before predicts it."""
    del said, make_batch
    labels = jnp.pad(rows['labels'][:, 1:], ((0, 0), (0, 1)), constant_values=-100)
    return encoder.make_batch(rows) | labelled(labels)


@dataclasses.dataclass(frozen=True)
class GivenPairs(Given, MixtureOfDenoisers):
  """One text from another, as an objective has made them."""

  known = ROWS | {'decoder_input_ids', 'decoder_attention_mask'}

  @classmethod
  def of(cls, imported, inputs):
    del imported, inputs
    return cls()

  def batch(self, rows, said, make_batch):
    """The decoder input follows from the labels."""
    del make_batch
    some = labelled(rows['labels'])
    return encoder_decoder.make_batch(rows, said,
                                      generates=True) | some | {'content': some['weights']}


def labelled(labels):
  return {'labels': jnp.maximum(labels, 0), 'weights': (labels != -100).astype(jnp.float32)}


def without_dropout(config):
  """Disable dropout as the reference does, whatever its configuration has."""
  return dataclasses.replace(config, **{
      field.name: off(field.name, getattr(config, field.name))
      for field in dataclasses.fields(config)})


def off(name, value):
  if dataclasses.is_dataclass(value):
    return without_dropout(value)
  return 0.0 if name.endswith('dropout') and isinstance(value, float) else value


def run(kind):
  """A runner that trains with an objective of a kind: GivenMasks, GivenText, GivenPairs, or of
  `fine_tuning`."""
  return functools.partial(train, kind)


def train(kind, case) -> dict[str, np.ndarray]:
  """Return losses, gradient norms before clipping, and the parameters after the last step.
  Default settings are those of torch."""
  imported, said = conversion.load(case.path), case.about['train']
  if unknown := case.inputs.keys() - kind.known:
    raise Unsupported(f'training with inputs {sorted(unknown)}')
  b1, b2 = said.get('betas', (0.9, 0.999))
  said.only(optimizer='adamw', schedule='constant', warmup=0, accumulate=1)
  optim = AdamW(
      peak=said['lr'], warmup=0, schedule='constant', b1=b1, b2=b2, eps=said.get('eps', 1e-8),
      bias_correction=True,
      weight_decay=said.get('weight_decay', 0.01), clip=said.get('clip_norm') or 0.0,
      exempt=AdamW.exempt if said.get('no_decay_norm_bias') else ())
  config = case.config
  objective = kind.of(imported, case.inputs)
  wiring = xlnet if imported.family == 'xlnet' else WIRINGS[imported.config.kind]
  heads = {name: head.clone(**{field: off(field, getattr(head, field))
                               for field in ('cfg', 'dropout')
                               if hasattr(head, field)}) for name, head in imported.heads.items()}
  imported = dataclasses.replace(imported, config=without_dropout(imported.config), heads=heads)
  learner = Learner(objective.module(imported), objective.objective,
                    make_optimizer(optim, said['steps']), None, 0)
  params = jax.tree.map(jnp.asarray, imported.params)
  zero = jnp.zeros((), jnp.int32)
  state: Any = TrainState(zero, params, learner.optimizer.init(params), zero, zero)
  update = jax.jit(lambda state, batch: train_step(learner, state, batch))
  losses, norms = [], []
  with jax.default_matmul_precision('highest'):
    for step in range(said['steps']):
      rows = {name: jnp.asarray(x[step], jnp.float32 if x.dtype.kind == 'f' else jnp.int32)
              for name, x in case.inputs.items()}
      state, numbers = update(state, objective.batch(rows, config, wiring.make_batch))
      losses.append(numbers['loss'])
      norms.append(numbers['grad_norm'])
  family = conversion.get_family(imported.family).specialize(imported.config)
  final = dict(conversion.export_tensors(family, state.params, copies=True))
  names = {name: conversion.rename_tensor(family, name.removeprefix('final/'))
           for name in case.outputs if '/' in name}
  return {'losses': np.array(losses), 'grad_norms': np.array(norms),
          **{name: final[new] for name, new in names.items() if new in final}}
