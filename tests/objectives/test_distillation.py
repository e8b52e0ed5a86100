import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax.models.distilbert import student
from plm_jax.objectives.distillation import Distillation
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.row_builders import NextSentence, Single
from plm_jax.optim.optimizers import AdamW
from plm_jax.optim.transformations import make_optimizer
from plm_jax.training.step import Learner, init_state, train_step

TEACHER = tiny.config(layers=4)
OBJECTIVE = Distillation(teacher='somewhere', model=TEACHER)


@pytest.fixture(scope='module')
def learner():
  frozen = OBJECTIVE.optimizer_hints.frozen
  optimizer = make_optimizer(AdamW(peak=1e-2, warmup=0, schedule='constant'), 10, frozen)
  return Learner(OBJECTIVE.build(student(TEACHER), packed=False), OBJECTIVE, optimizer, tiny.VOCAB,
                 3)


@pytest.fixture(scope='module')
def windows():
  batch = tiny.windows(8, OBJECTIVE.text_length(tiny.LENGTH))
  for name in ('tokens', 'segments', 'sentences', 'words'):
    batch[name][3] = 0
  return batch


@pytest.fixture(scope='module')
def params(learner, windows):
  """The student's fresh, the teacher's read, then what the run begins with."""
  shapes = jax.eval_shape(lambda: init_state(learner, windows).params)
  fresh, found = tiny.random_params(shapes), tiny.random_params(shapes, seed=1)['teacher']
  return OBJECTIVE.lifecycle.initial(fresh, lambda folder: (
      TEACHER, {**found, 'heads_nsp': {'dense': np.zeros(3)}}))


def test_the_student_begins_with_its_teachers_layers(params):
  taught = params['teacher']
  assert set(params) == {'backbone', 'heads_mlm',
                         'teacher'} and set(taught) == {'backbone', 'heads_mlm'}
  own, theirs = tiny.flat({n: params[n] for n in ('backbone', 'heads_mlm')}), tiny.flat(taught)
  assert set(theirs) - set(own) == {'backbone/embeddings/types', 'backbone/pooler/kernel',
                                    'backbone/pooler/bias'}
  for name, x in own.items():
    np.testing.assert_array_equal(x, theirs[name][np.array([0, 3])] if '/layers/' in name
                                  else theirs[name])


def test_which_layers():
  """Those of the released student of twelve, and of three other depths."""
  def kept(layers, own):
    number = dict(stack=dict(layers=dict(block=dict(kernel=np.arange(layers)))))
    objective = dataclasses.replace(OBJECTIVE, model=TEACHER)
    params = dict(backbone=jax.tree.map(lambda x: np.zeros(own), number),
                  teacher=dict(backbone=number))
    begun = objective.lifecycle.initial(params, lambda folder: (TEACHER, dict(backbone=number)))
    return begun['backbone']['stack']['layers']['block']['kernel'].tolist()
  assert kept(12, 6) == [0, 2, 4, 7, 9, 11]
  assert kept(4, 2) == [0, 3] and kept(2, 1) == [0] and kept(3, 3) == [0, 1, 2] and kept(1, 3) == [
      0, 0, 0]


def test_an_own_beginning():
  fresh = dict(backbone=dict(kernel=np.zeros(2)), teacher=dict(backbone=dict(kernel=np.zeros(2))))
  found = dict(backbone=dict(kernel=np.ones(2)))
  begun = dataclasses.replace(OBJECTIVE,
                              copied=False).lifecycle.initial(
                                  fresh, lambda folder: (TEACHER, found))
  assert not begun['backbone']['kernel'].any() and begun['teacher']['backbone']['kernel'].all()


@pytest.mark.slow
def test_only_the_student_learns(learner, windows, params):
  state = jax.eval_shape(lambda: init_state(learner, windows))
  state = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), state).replace(params=params)
  state = state.replace(opt_state=learner.optimizer.init(params))
  after, numbers = jax.jit(lambda state: train_step(learner, state, windows))(state)
  tiny.assert_same(after.params['teacher'], params['teacher'])
  assert (after.params['backbone']['embeddings']['tokens']
          != params['backbone']['embeddings']['tokens']).any()
  assert set(numbers) >= {'soft', 'mlm', 'cosine',
                          'mlm_accuracy'} and all(numbers[name][1] > 0 for name in numbers
                                                                          if isinstance(
                                                                              numbers[name], tuple))
  # Two moments of the student's token table; none of anything with the teacher's four layers.
  slots = [x.shape for x in jax.tree.leaves(state.opt_state)]
  assert slots.count((96, 32)) == 2 and not any(x and x[0] == 4 for x in slots)



@pytest.mark.parametrize('targets', ['all', 'predicted'])
def test_losses_against_numpy(targets):
  random = np.random.default_rng(0)
  draw = lambda shape: jnp.asarray(random.normal(size=shape), jnp.float32)
  number = 5 if targets == 'all' else 2
  outputs = dict(mlm=draw((2, 2, 7)), logits=3 * draw((2, number, 7)),
                 taught_logits=3 * draw((2, number, 7)),
                 hidden=draw((2, 5, 4)), taught_hidden=draw((2, 5, 4)))
  batch = dict(segments=jnp.array([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]]),
               weights=jnp.array([[1.0, 1.0], [1.0, 0.0]]),
               labels=jnp.array([[1, 2], [3, 0]]))
  losses = jax.device_get(Distillation(model=TEACHER, targets=targets).loss(outputs, batch))
  own, theirs = (np.asarray(outputs[name], np.float64) / 2 for name in ('logits', 'taught_logits'))
  soften = lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True)
  p, q = soften(theirs), soften(own)
  keep = np.asarray(batch['segments' if targets == 'all' else 'weights']) > 0
  np.testing.assert_allclose(losses['soft'][0], 4 * (p * np.log(p / q)).sum(-1)[keep].sum(),
                             rtol=1e-5)
  assert losses['soft'][1] == keep.sum()
  a, b = (np.asarray(outputs[name], np.float64) for name in ('hidden', 'taught_hidden'))
  angles = (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)
  text = np.asarray(batch['segments']) > 0
  np.testing.assert_allclose(losses['cosine'][0], (1 - angles)[text].sum(), rtol=1e-5)
  assert losses['cosine'][1] == 6 and losses['mlm'][1] == 3


@pytest.mark.slow
def test_nothing_is_left_to_learn_from_oneself(windows):
  """A student with all of its teacher's layers, types and pooler computes what its teacher does."""
  model = dataclasses.replace(OBJECTIVE, model=tiny.config()).build(tiny.config(), packed=False)
  batch = OBJECTIVE.corrupt(jax.random.key(0), windows, tiny.VOCAB)
  params = tiny.random_params(jax.eval_shape(lambda: model.init(jax.random.key(0),
                                                                batch)['params']))
  params = {**params['teacher'], 'teacher': params['teacher']}
  losses = jax.jit(lambda p: OBJECTIVE.loss(model.apply({'params': p}, batch), batch))(params)
  assert abs(losses['soft'][0]) < 1e-4 and abs(losses['cosine'][0]) < 1e-4 and losses['mlm'][0] > 1


def test_terms_are_the_released_ones_and_zero_leaves_out():
  assert Distillation().terms == {'soft': 5.0, 'mlm': 2.0,
                                  'cosine': 1.0} and Distillation().temperature == 2.0
  assert Distillation(cosine=0.0).terms == {'soft': 5.0, 'mlm': 2.0}


def test_refusals():
  with pytest.raises(ValueError, match=r'give objective\.teacher'):
    Distillation().lifecycle.resolve_teacher(None)
  with pytest.raises(ValueError, match=r"the student's block\.width is 32, its teacher's 40"):
    dataclasses.replace(OBJECTIVE, model=tiny.config(width=40)).build(tiny.config(), packed=False)
  with pytest.raises(ValueError, match='asked nothing about pairs'):
    Distillation(task=MaskedLM(pair=NextSentence()))
  params = dict(backbone=dict(kernel=np.zeros(3)), teacher=dict(backbone=dict(kernel=np.zeros(2))))
  with pytest.raises(ValueError,
                     match=r"the teacher's backbone/kernel is \[2\], the student's \[3\]"):
    OBJECTIVE.lifecycle.initial(params, lambda folder: (TEACHER, params['teacher']))
  with pytest.raises(ValueError, match='a teacher has backbone, of the shapes'):
    OBJECTIVE.lifecycle.initial(params, lambda folder: (TEACHER, dict(heads_mlm={})))
  assert Distillation(teacher='there').lifecycle.resolve_teacher(
      lambda folder: (folder, 1)).model == ('there', 1)
  assert Distillation(task=MaskedLM(pair=Single())) == Distillation()


def test_the_students_positions_may_stay_its_teachers():
  objective = dataclasses.replace(OBJECTIVE, positions='fixed')
  assert OBJECTIVE.optimizer_hints.frozen == ('teacher',)
  assert objective.optimizer_hints.frozen == ('teacher', 'backbone/embeddings/positions')
