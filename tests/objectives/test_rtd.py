import dataclasses
import functools

from flax.linen import unbox
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

from plm_jax import validation
from plm_jax.architectures.deberta import DebertaConfig
from plm_jax.layers.disentangled import Disentangled
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.layers.stack import StackConfig
from plm_jax.models import deberta, electra
from plm_jax.objectives import corruption
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.rtd import ReplacedTokenDetection, fill_masks, sample_ids
from plm_jax.optim.directions import decay_mask, scale_by_plain_adam
from plm_jax.optim.optimizers import AdamW
from plm_jax.optim.transformations import make_optimizer
from plm_jax.training.step import Learner, TrainState, compute_gradient, init_state, train_step

LENGTH = tiny.LENGTH
BERT = dataclasses.replace(tiny.config(), pooler=False)
DEBERTA = DebertaConfig(
    vocab=tiny.VOCAB.size, stack=StackConfig(2), max_length=LENGTH, absolute=False,
    block=tiny.block(
        attention=dict(position=Disentangled(span=LENGTH, buckets=8, shared=True, norm=True)),
        norm=dict(eps=1e-7)))


@functools.cache
def setting(sharing, model=BERT):
  """-> (learner, parameters, batch) of a run without dropout."""
  deberta = model is DEBERTA
  objective = ReplacedTokenDetection(sharing=sharing, width=1.0 if deberta else 0.5, depth=0.5,
                                     first=deberta)
  model = dataclasses.replace(
    model, block=validation.with_paths(model.block, {'dropout': 0.0, 'attention.dropout': 0.0})
  )
  learner = Learner(objective.build(model, False), objective, make_optimizer(AdamW(), 10),
                    tiny.VOCAB, 3)
  windows = tiny.windows(8, objective.text_length(LENGTH))
  params = tiny.random_params(jax.eval_shape(lambda: init_state(learner, windows).params))
  batch = jax.jit(lambda w: objective.corrupt(learner.key('corruption'), w, tiny.VOCAB))(windows)
  return learner, params, batch


@functools.cache
def gradients(sharing, model=BERT):
  """-> what each of the two terms alone makes of the parameters, and the outputs."""
  learner, params, batch = setting(sharing, model)
  def term(params, name):
    outputs = learner.model.apply({'params': params}, batch)
    total, weight = learner.objective.loss(outputs, batch)[name]
    return total / weight, outputs
  def both(params):
    return {name: jax.grad(term, has_aux=True)(params, name) for name in ('mlm', 'rtd')}
  found = jax.device_get(jax.jit(both)(params))
  return {name: grad for name, (grad, _) in found.items()}, found['mlm'][1]


def largest(tree):
  return max(np.abs(x).max() for x in jax.tree.leaves(tree))


@pytest.mark.slow
def test_the_discriminator_leaves_the_generators_tables_alone():
  """Gradient-disentangled sharing: to the bit."""
  for sharing, model in (('disentangled', DEBERTA), ('none', BERT)):
    grads, _ = gradients(sharing, model)
    assert largest(grads['rtd']['generator']) == 0
    assert largest(grads['rtd']['backbone']) > 1e-3 and largest(grads['mlm']['backbone']) == 0
  grads, _ = gradients('disentangled', DEBERTA)
  assert largest(grads['rtd']['difference']['tokens']) > 1e-3 and largest(
      grads['mlm']['difference']) == 0


@pytest.mark.slow
def test_shared_tables_learn_from_both():
  grads, _ = gradients('embeddings')
  tables = grads['rtd']['generator']['backbone'].pop('embeddings')
  for name in ('tokens', 'positions', 'types'):
    assert np.abs(tables[name]).max() > 1e-4
    assert np.abs(grads['mlm']['generator']['backbone']['embeddings'][name]).max() > 1e-4
  # Samples cannot be differentiated, and nothing else joins the two.
  assert largest(tables['norm']) == largest(grads['rtd']['generator']) == 0


@pytest.mark.slow
def test_which_parameters_there_are():
  def names(sharing, model=BERT):
    params = setting(sharing, model)[1]
    return set(params), set(params['backbone']['embeddings']), {*params.get('difference', ())}
  common = {'backbone', 'generator', 'heads_rtd'}
  assert names('embeddings') == (common, {'norm'}, set())
  assert names('disentangled') == (common | {'difference'}, {'norm', 'types'},
                                   {'tokens', 'positions'})
  assert names('none') == (common, {'norm', 'tokens', 'positions', 'types'}, set())
  assert names('disentangled', DEBERTA) == (common | {'difference'}, {'norm'}, {'tokens'})


@pytest.mark.release
@pytest.mark.slow
def test_a_fresh_difference_is_zero():
  learner, _, _ = setting('disentangled')
  windows = tiny.windows(2, learner.objective.text_length(LENGTH))
  params = unbox(jax.jit(lambda: init_state(learner, windows).params)())
  assert largest(params['difference']) == 0 and largest(
      params['generator']['backbone']['embeddings']) > 0


@pytest.mark.slow
def test_labels_say_which_tokens_differ_from_the_original():
  """A sample that happens to be the original is no replacement, and padding weighs nothing."""
  learner, _, batch = setting('none')
  outputs = gradients('none')[1]
  batch = jax.device_get(batch)
  windows = tiny.windows(8, learner.objective.text_length(LENGTH))
  original = jax.device_get(learner.objective.mlm.pair.arrange(None, windows, tiny.VOCAB)['tokens'])
  # With the truth in place of samples nothing is replaced.
  _, none = fill_masks(batch['tokens'], batch['positions'], batch['labels'], batch['weights'],
                       batch['labels'])
  filled, _ = fill_masks(batch['tokens'], batch['positions'], batch['labels'], batch['weights'],
                         batch['labels'])
  assert not none.any()
  np.testing.assert_array_equal(filled, original)
  predicted = np.zeros_like(original, bool)
  for row, some in enumerate(batch['positions']):
    predicted[row, some[batch['weights'][row] > 0]] = True
  assert 0 < outputs['replaced'].sum() <= predicted.sum() and not outputs['replaced'][
      ~predicted].any()
  losses = learner.objective.loss(outputs, batch)
  assert losses['rtd'][1] == (batch['segments'] > 0).sum() == losses['replaced'][1]
  p = 1 / (1 + np.exp(-outputs['rtd'].astype(np.float64)))
  want = -np.where(outputs['replaced'] > 0, np.log(p), np.log(1 - p))[batch['segments'] > 0].sum()
  np.testing.assert_allclose(losses['rtd'][0], want, rtol=1e-5)
  answers = learner.objective.accuracy_targets(outputs, batch)
  labels, weights = map(np.asarray, answers['rtd'])
  np.testing.assert_array_equal(np.bincount(labels.ravel(), weights.ravel())[1],
                                losses['replaced'][0])
  assert weights.sum() == losses['rtd_accuracy'][1] and set(answers) == {'mlm', 'rtd'}


def test_filling_by_hand():
  tokens, positions = jnp.array([[2, 4, 7, 4, 3, 0]]), jnp.array([[1, 3, 0]])
  labels, weights = jnp.array([[5, 6, 2]]), jnp.array([[1.0, 1.0, 0.0]])
  filled, replaced = fill_masks(tokens, positions, labels, weights, jnp.array([[5, 9, 8]]))
  np.testing.assert_array_equal(filled, [[2, 5, 7, 9, 3, 0]])
  np.testing.assert_array_equal(replaced, [[0, 0, 0, 1, 0, 0]])


@pytest.mark.parametrize('vocab', [5, 96, 101])
def test_draws_are_those_of_the_softmax(vocab):
  logits = jnp.asarray(np.random.default_rng(0).normal(0, 2, vocab)).at[
      jnp.array([1, vocab - 1])].set(-jnp.inf)
  number = 100_000
  drawn = jax.jit(lambda: sample_ids(jax.random.key(7),
                                     jnp.broadcast_to(logits, (number, vocab))))()
  found, want = np.bincount(drawn, minlength=vocab), number * jax.nn.softmax(logits)
  assert found[1] == found[vocab - 1] == 0
  # Four standard deviations.
  assert (np.abs(found - want) <= 4 * np.sqrt(want) + 1).all()


def test_a_fixed_key_gives_fixed_draws():
  logits = jnp.log(jnp.array([[0.1, 0.2, 0.3, 0.4]] * 8))
  np.testing.assert_array_equal(jax.jit(sample_ids)(jax.random.key(0), logits), DRAWN)


DRAWN = [3, 3, 2, 2, 2, 1, 2, 3]


@pytest.mark.slow
def test_samples_depend_on_the_example_alone():
  learner, params, _ = setting('embeddings')
  windows = tiny.windows(8, learner.objective.text_length(LENGTH))
  @jax.jit
  def run(windows):
    batch = learner.objective.corrupt(learner.key('corruption'), windows, tiny.VOCAB)
    return batch['draw'], learner.model.apply({'params': params}, batch)['replaced']
  order = np.array([3, 1, 0, 2, 7, 6, 5, 4])
  for plain, moved in zip(run(windows), run(tiny.take(windows, order)), strict=True):
    np.testing.assert_array_equal(np.asarray(plain)[order], moved)
  later = run({**windows, 'epoch': windows['epoch'] + 1})[0]
  assert (np.asarray(later) != np.asarray(run(windows)[0])).any(-1).all()


@pytest.mark.slow
def test_samples_and_masks_are_drawn_with_keys_of_their_own():
  key, windows = jax.random.key(7), tiny.windows(4, 30)
  draws = ReplacedTokenDetection().corrupt(key, windows, tiny.VOCAB)['draw']
  keys = corruption.example_keys(key, windows)
  others = [keys, *(jax.vmap(lambda k, n=n: jax.random.split(k, 2)[n])(keys) for n in (0, 1))]
  every = np.concatenate([np.asarray(draws),
                          *(np.asarray(jax.random.key_data(some)) for some in others)])
  assert len(np.unique(every, axis=0)) == 16


@pytest.mark.release
@pytest.mark.slow
def test_micro_steps_change_nothing():
  learner, params, batch = setting('disentangled')
  key = jax.random.key(0)
  whole, parts = (
    jax.jit(lambda p, b, some=dataclasses.replace(learner, accumulate=n): compute_gradient(
        some, p, b, key))(
      params, batch
    )
    for n in (1, 2)
  )
  tiny.assert_close(parts[0], whole[0], 1e-4)


@pytest.mark.parametrize(('sharing', 'model'), [
    ('embeddings', BERT), ('disentangled', DEBERTA), *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in (('disentangled', BERT), ('none', BERT)))],
    ids=['embeddings', 'disentangled deberta', 'disentangled', 'none'])
def test_the_finished_model_stands_alone(sharing, model):
  learner, params, batch = setting(sharing, model)
  objective = learner.objective
  finished = objective.lifecycle.exported(params)
  alone = ModelWithHeads(model.backbone(), objective.heads(model))
  shapes = jax.eval_shape(lambda: alone.init(jax.random.key(0), batch)['params'])
  assert jax.tree.map(jnp.shape, finished) == jax.tree.map(jnp.shape, unbox(shapes))

  @jax.jit
  def run(params, finished):
    outputs = learner.model.apply({'params': params}, batch)
    sampled = jax.vmap(sample_ids)(jax.random.wrap_key_data(batch['draw']), outputs['mlm'])
    filled, _ = fill_masks(batch['tokens'], batch['positions'], batch['labels'], batch['weights'],
                           sampled)
    return outputs['rtd'], alone.apply({'params': finished}, {**batch, 'tokens': filled})['rtd']
  got, want = run(params, finished)
  np.testing.assert_allclose(got, want, atol=1e-5)


def test_generators_are_those_of_the_papers():
  """Clark et al. 2020, table 6: 1/4, 1/3, 1/4 of the width; He et al. 2023, section 4: half of the
  layers."""
  small, base, large = (model.generator(share, 1.0) for model, share in (
      (electra.small(), 1 / 4), (electra.base(), 1 / 3), (electra.large(), 1 / 4)))
  found = [(g.block.width, g.block.heads, g.block.mlp_dim, g.stack.layers, g.embeddings.width)
           for g in (small, base, large)]
  assert found == [
      (64, 1, 256, 12, 128), (256, 4, 1024, 12, 768), (256, 4, 1024, 24, 1024)]
  v3 = deberta.v3_base().generator(1.0, 0.5)
  assert (v3.block.width, v3.stack.layers, v3.decoder) == (768, 6, True)
  with pytest.raises(ValueError, match='as wide as itself'):
    deberta.v3_base().generator(0.25, 1.0)


def test_questions_about_pairs_are_refused():
  with pytest.raises(ValueError, match='asks nothing about pairs'):
    ReplacedTokenDetection(mlm=MaskedLM())


@pytest.mark.release
@pytest.mark.slow
def test_two_optimizers_are_a_generators_step_and_a_discriminators():
  """As get_decoupled_loss_fn in the released rtd_task.py has it: the generator learns its loss, the
  discriminator ten times its own, each clipped at 1 by itself; written out with optax for each
  network alone."""
  one, params, _ = setting('disentangled', DEBERTA)
  objective = dataclasses.replace(one.objective, optimizers='two', weight=10.0)
  config = AdamW(peak=1e-2, warmup=0, schedule='constant', eps=0.1)  # with which sizes matter
  windows = tiny.windows(8, objective.text_length(LENGTH))
  learner = dataclasses.replace(
      one, objective=objective,
      optimizer=make_optimizer(config, 10, parts=objective.optimizer_hints.groups))
  zero = jnp.zeros((), jnp.int32)
  state = TrainState(zero, params, learner.optimizer.init(params), zero, zero)
  after = jax.device_get(jax.jit(functools.partial(train_step, learner))(state, windows)[0].params)

  grads, _ = gradients('disentangled', DEBERTA)
  assert largest(grads['mlm']['difference']) == largest(grads['rtd']['generator']) == 0
  def step(names, grads, factor):
    own, grads = ({name: tree[name] for name in names if name in tree} for tree in (params, grads))
    plain = optax.chain(
        optax.clip_by_global_norm(1.0), scale_by_plain_adam(0.9, 0.999, 0.1),
        optax.add_decayed_weights(0.01, lambda params: decay_mask(params, config.exempt)),
        optax.scale(-1e-2))
    grads = jax.tree.map(lambda x: factor * x, grads)
    assert optax.tree.norm(grads) > 1  # so that clipping matters
    updates, _ = plain.update(grads, plain.init(own), own)
    return optax.apply_updates(own, updates)
  want = step(('generator',), grads['mlm'], 1.0) | step(
      ('backbone', 'heads_rtd', 'difference'), grads['rtd'], 10.0)
  tiny.assert_close(jax.tree.map(lambda a, b: a - b, after, dict(params)),
                    jax.tree.map(lambda a, b: a - b, want, dict(params)), 1e-3)


def test_two_optimizers_need_networks_that_share_nothing_that_learns():
  with pytest.raises(ValueError, match='one optimizer'):
    ReplacedTokenDetection(optimizers='two')
  assert ReplacedTokenDetection().optimizer_hints.groups == ()
