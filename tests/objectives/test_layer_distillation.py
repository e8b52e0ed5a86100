import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy_bert
import pytest
import tiny

from plm_jax import validation
from plm_jax.architectures.deberta import DebertaConfig
from plm_jax.architectures.decoder import DecoderConfig
from plm_jax.inference import encode
from plm_jax.layers.rope import Rope
from plm_jax.objectives.clm import CausalLM
from plm_jax.objectives.distillation import Distillation
from plm_jax.objectives.layer_distillation import Layerwise, Relations, attention_logits
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.row_builders import Single

TEACHER = tiny.config(layers=4)
STUDENT = validation.with_paths(
  tiny.config(layers=2), {'block.width': 24, 'block.mlp_dim': 20, 'embeddings.types': 0,
                          'pooler': False}
)
ROWS = MaskedLM(pair=Single(), mask_share=0.0, random_share=0.0)
TINYBERT = Distillation(model=TEACHER, soft=0.0, hard=0.0, cosine=0.0, inner=Layerwise(), task=ROWS)
MINILM = dataclasses.replace(TINYBERT, inner=Relations())
SECOND = dataclasses.replace(TINYBERT, inner=Relations(('queries', 'keys', 'values'), 2, 3))


def sums(objective, params, batch):
  """The losses as the papers have them, row by row, of numpy's BERT."""
  own, theirs = (numpy_bert.inside(p['backbone'], batch) for p in (params, params['teacher']))
  total, sizes = dict.fromkeys(objective.inner.terms, 0.0), batch['segments'].astype(bool).sum(1)
  fit = params.get('fit')
  mean = lambda a, b: ((a - b) ** 2).mean()
  for row, size in enumerate(sizes):
    if not size:
      continue
    of = lambda x, row=row, size=size: x[row, :size]
    if isinstance(objective.inner, Layerwise):
      fitted = lambda x, of=of: of(x) @ fit['kernel'] + fit['bias']
      total['embeddings'] += size * mean(fitted(own['embedded']), of(theirs['embedded']))
      for ours, layer in enumerate((1, 3)):
        total['hidden'] += size * mean(fitted(own['hidden'][ours]), of(theirs['hidden'][layer]))
        a, b = (x['scores'][n][row, :, :size, :size] for x, n in ((own, ours), (theirs, layer)))
        total['scores'] += size ** 2 * mean(a, b)
      continue
    layer = (objective.inner.layer or 4) - 1
    for name in total:
      def relation(x, n, name=name, row=row, size=size):
        if name == 'attention':
          return numpy_bert.log_softmax(x['scores'][n][row, :, :size, :size])
        vectors = x[name.removesuffix('s').replace('querie', 'query')][n][row, :size]
        vectors = vectors.reshape(size, objective.inner.heads or vectors.shape[1], -1)
        return numpy_bert.log_softmax(np.einsum('qra,kra->rqk', vectors, vectors)
                                      / np.sqrt(vectors.shape[-1]))
      a, b = relation(own, 1), relation(theirs, layer)
      total[name] += (np.exp(b) * (b - a)).sum(-1).mean(0).sum()
  weights = {name: (sizes ** 2).sum() if name == 'scores' else sizes.sum() for name in total}
  return {name: (total[name], weights[name]) for name in total}


@pytest.mark.slow
@pytest.mark.parametrize('objective', [
    pytest.param(TINYBERT, id='tinybert'), pytest.param(MINILM, id='minilm'),
    pytest.param(SECOND, id='minilmv2')])
def test_losses_and_their_gradient_are_those_of_numpys_bert(objective):
  model = objective.build(STUDENT, packed=False)
  windows: Any = tiny.windows(3, objective.text_length(16))
  batch = jax.device_get(objective.corrupt(jax.random.key(0), windows, tiny.VOCAB))
  shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), batch)['params'])
  params = tiny.random_params(shapes)
  names = {'backbone', 'teacher'} | ({'fit'} if objective is TINYBERT else set())
  assert {*params} == names and {*params['teacher']} == {'backbone'}
  assert {*objective.lifecycle.exported(params)} == {'backbone'} and not objective.heads(STUDENT)

  def total(params):
    outputs: Any = model.apply({'params': params}, batch)
    losses = objective.loss(outputs, batch)
    return sum(x / weight for x, weight in losses.values()), losses
  (_, got), gradient = jax.jit(jax.value_and_grad(total, has_aux=True))(params)
  exact = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
  want = sums(objective, exact, batch)
  assert {*got} == {*want} == {*objective.terms}
  for name, pair in want.items():
    np.testing.assert_allclose(jax.device_get(got[name]), pair, rtol=2e-4)
  assert not any(np.any(x) for x in jax.tree.leaves(gradient['teacher']))

  step = jax.tree.map(lambda x: 1e-4 * np.random.default_rng(1).normal(size=x.shape), exact)
  step['teacher'] = jax.tree.map(np.zeros_like, step['teacher'])
  ahead, back = (sums(objective, jax.tree.map(lambda x, y, sign=sign: x + sign * y, exact, step),
                      batch)
                 for sign in (1, -1))
  slope = sum(ahead[name][0] / want[name][1] - back[name][0] / want[name][1] for name in want) / 2
  along = sum(np.vdot(np.asarray(x, np.float64), y) for x, y in zip(
      jax.tree.leaves(gradient), jax.tree.leaves(step), strict=True))
  np.testing.assert_allclose(along, slope, rtol=2e-3)


@pytest.mark.parametrize('config', [
    pytest.param(tiny.config(layers=3), marks=pytest.mark.slow),
    pytest.param(validation.with_paths(tiny.config(layers=3),
                                       {'block.norm_at': 'pre', 'windows': (0, 4)}),
                 marks=pytest.mark.slow),
    DecoderConfig(vocab=96, block=tiny.block(norm_at='pre', kv_heads=2,
                                             attention={'position': Rope()}), max_length=32,
                  absolute='none', stack=tiny.config(layers=3).stack)],
                  ids=['post', 'pre', 'decoder'])
def test_what_is_inside_is_what_the_layers_do(config):
  """As `encode.layers` observes it, whose kernels are the plain ones."""
  batch = {'tokens': jnp.arange(24).reshape(2, 12) + 5,
           'segments': jnp.array([[1] * 12, [1] * 9 + [0] * 3])}
  params = tiny.random_params(
      jax.eval_shape(lambda: config.backbone().init(jax.random.key(0), batch)['params']))
  read: Any = functools.partial(config.backbone().apply, {'params': params}, batch)
  inside = read(within=True).inside
  layers, probs = (encode.compute_all_layers(config, params, batch, attention=attention)
                   for attention in (False, True))
  np.testing.assert_allclose(jnp.concatenate([inside.embedded[None], inside.hidden]), layers,
                             atol=1e-5)
  assert read().inside is None
  whole = jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((12, 12), bool)) | (config.kind == 'encoder'),
                                   attention_logits(inside, config, 2), -1e9))
  # a row without padding, of a layer that sees all
  np.testing.assert_allclose(whole[0], probs[2, 0], atol=1e-5)
  assert inside.value.shape == (3, 2, 12, config.block.key_heads, 8)


def test_a_decoder_learns_what_comes_next():
  """A student that is its teacher has no more to learn but of the text; another has."""
  config = DecoderConfig(vocab=96, block=tiny.block(norm_at='pre'), max_length=32,
                         stack=TEACHER.stack)
  objective = Distillation(model=config, task=CausalLM(isolated=False), inner=Relations())
  assert {*objective.terms} == {'soft', 'clm', 'cosine', 'attention',
                                'values'} and objective.max_predictions(16) == 16
  windows: Any = tiny.windows(3, objective.text_length(16))
  batch = objective.corrupt(jax.random.key(0), windows, tiny.VOCAB)
  model = objective.build(config, packed=False)
  params = tiny.random_params(jax.eval_shape(lambda: model.init(jax.random.key(0),
                                                                batch)['params']))
  same = {**params['teacher'], 'teacher': params['teacher']}
  read: Any = model.apply
  losses = jax.jit(lambda p: objective.loss(read({'params': p}, batch), batch))
  for p, least in (same, 0), (params, 1e-2):
    got = jax.device_get(losses(p))
    for name in ('soft', 'cosine', 'attention', 'values'):
      assert least <= got[name][0] + 1e-3 and (least or got[name][0] < 1e-3), name
    assert got['clm'][0] / got['clm'][1] > 2 and got['soft'][1] == batch['weights'].sum()


def test_refusals():
  def build(objective, student=STUDENT, **changes):
    return dataclasses.replace(objective, **changes).build(student, packed=False)
  with pytest.raises(ValueError, match="evenly spaced among its teacher's 4, got 3"):
    build(TINYBERT, tiny.config(layers=3))
  with pytest.raises(ValueError, match=r'give model\.block\.heads 4'):
    build(TINYBERT, tiny.config(heads=2))
  with pytest.raises(ValueError, match=r'or objective\.inner\.heads a number'):
    build(MINILM, tiny.config(heads=2))
  with pytest.raises(ValueError, match='5 does not divide the width of queries or keys, 24'):
    build(TINYBERT, inner=Relations(('keys',), 5))
  with pytest.raises(ValueError,
                     match=r'the teacher has 4 layers, and objective\.inner\.layer is 7'):
    build(TINYBERT, inner=Relations(layer=7))
  with pytest.raises(ValueError, match='not those of DebertaConfig'):
    build(TINYBERT, model=DebertaConfig(vocab=96, block=tiny.block(), stack=TEACHER.stack))
  with pytest.raises(ValueError, match="attention is that of the models' heads"):
    Relations(heads=4)
  with pytest.raises(ValueError, match='names relations, each once'):
    Relations(of=('keys', 'keys'))
  with pytest.raises(ValueError, match='are all 0'):
    Layerwise(0.0, 0.0, 0.0)
  with pytest.raises(ValueError, match='targets are of whole logits'):
    Distillation(task=CausalLM(loss_blocks=4))
  with pytest.raises(ValueError, match='there is nothing to learn'):
    Distillation(soft=0.0, hard=0.0, cosine=0.0)
