"""Condenser: its loss computed by hand, its export, and the layer that it reads."""
import dataclasses
import functools

import jax
import numpy as np
import numpy_bert
import pytest
import tiny

from plm_jax.errors import ConfigError
from plm_jax.models import modernbert
from plm_jax.objectives.condenser import Condenser

OBJECTIVE = Condenser()
CONFIG = tiny.config(layers=4, dropout=0.0, attention={'dropout': 0.0})


@functools.cache
def corrupted():
  windows = tiny.windows(4, OBJECTIVE.text_length(tiny.LENGTH), seed=3, shortest=12)
  corrupt = jax.jit(lambda key, w: OBJECTIVE.corrupt(key, w, tiny.VOCAB))
  return jax.device_get(corrupt(jax.random.key(5), windows))


@functools.cache
def params_of(objective=OBJECTIVE):
  module = objective.build(CONFIG, packed=False)
  shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), corrupted())['params'])
  return tiny.random_params(shapes)


def reference_loss(params, batch, depth):
  """Compute the loss of the head in numpy, float64."""
  p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
  states = numpy_bert.inside(p['backbone'], batch)
  layers = [states['embedded'], *states['hidden']]
  x = np.concatenate([layers[-1][:, :1], layers[depth][:, 1:]], 1)
  # The layers of the head, as an encoder whose embeddings are x.
  x = numpy_bert.run_layers(p['decoder']['layers']['block'], x, batch['segments'] > 0)
  h, mlm = np.take_along_axis(x, batch['positions'][..., None], 1), p['heads_mlm']
  h = numpy_bert.norm(numpy_bert.gelu(h @ mlm['dense']['kernel'] + mlm['dense']['bias']),
                      mlm['norm'])
  table = p['backbone']['embeddings']['tokens']
  logits = numpy_bert.log_softmax(h @ table.T + mlm['bias'])
  loss = -np.take_along_axis(logits, batch['labels'][..., None], -1)[..., 0]
  return (loss * batch['weights']).sum() / batch['weights'].sum()


@pytest.mark.parametrize(('early', 'depth'), [(0.5, 2), (0.0, 0), (1.0, 4)])
def test_the_loss_is_that_of_numpy(early, depth):
  objective = dataclasses.replace(OBJECTIVE, early=early)
  module, batch = objective.build(CONFIG, packed=False), corrupted()
  outputs = jax.jit(module.apply)({'params': params_of()}, batch)
  total, weight = objective.loss(outputs, batch)['condenser']
  np.testing.assert_allclose(total / weight, reference_loss(params_of(), batch, depth), rtol=2e-6)


def test_the_loss_of_the_encoder_can_be_left_out():
  assert dataclasses.replace(OBJECTIVE, late=0.0).terms == {'mlm': 0.0, 'condenser': 1.0}


def test_what_is_exported_is_an_encoder_with_its_head():
  assert {*params_of()} == {'backbone', 'heads_mlm', 'decoder'}
  assert {*OBJECTIVE.lifecycle.exported(params_of())} == {'backbone', 'heads_mlm'}


def test_encoders_with_norms_before_their_layers_are_refused():
  with pytest.raises(ConfigError, match='both after their norm'):
    OBJECTIVE.build(modernbert.base(), packed=False)
