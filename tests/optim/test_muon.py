"""Muon: which parameters are matrices, its update against numpy in float64, and the same update on
eight devices."""
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

import plm_jax
from plm_jax.loading.build import build_model, parameter_shapes
from plm_jax.optim.muon import Sides, find_sides, matrix_dimensions, scale_by_muon_and_adam
from plm_jax.optim.optimizers import Lion, Muon
from plm_jax.optim.trainable import path_names
from plm_jax.optim.transformations import make_optimizer
from plm_jax.sharding import MeshConfig, make_mesh
from plm_jax.training.learner import make_learner, placeholder_vocab, state_shapes
from plm_jax.validation import with_overrides

ARCHITECTURES = (
    'bert_base', 'albert_base', 'roberta_base', 'electra_base', 'deberta_base', 'deberta_v2_xlarge',
    'xlnet_base',
    'mpnet_base', 'modernbert_base', 'neobert_base', 'ltg_bert_strict', 'gpt_bert_strict',
    'elmo_medium', 'gpt2_small', 'llama3_8b',
    'palm_8b', 'glm_base', 't5_small', 't5_v1_1_small', 'bart_base')
STEPS = (3.4445, -4.775, 2.0315)


def shapes_of(name):
  config = plm_jax.recipe(name, scale='test')
  return parameter_shapes(config, build_model(config, placeholder_vocab(config)))


def leaves_of(tree):
  """Path -> leaf without its box."""
  flat, _ = jax.tree_util.tree_flatten_with_path(tiny.unbox(tree))
  return {tuple(path_names(path)): leaf for path, leaf in flat}


def orthogonalized(matrix):
  """Five Newton-Schulz iterations in float64."""
  x = matrix / (np.linalg.norm(matrix) + 1e-8)
  if tall := len(x) > len(x.T):
    x = x.T
  for _ in range(5):
    square = x @ x.T
    x = STEPS[0] * x + (STEPS[1] * square + STEPS[2] * square @ square) @ x
  return x.T if tall else x


def expected_update(grads, axes, rms):
  """The update after several gradients [N, ...] of a parameter, matrix by matrix."""
  grads = np.asarray(grads, np.float64)
  mean = np.zeros_like(grads[0])
  for grad in grads:
    mean = 0.95 * mean + 0.05 * grad
  ahead = 0.95 * mean + 0.05 * grads[-1]
  inner = (*axes.inputs, *axes.outputs)
  outer = [axis for axis in range(ahead.ndim) if axis not in inner]
  moved = ahead.transpose(*outer, *inner)
  rows = int(np.prod([ahead.shape[axis] for axis in axes.inputs]))
  columns = int(np.prod([ahead.shape[axis] for axis in axes.outputs]))
  matrices = moved.reshape(-1, rows, columns)
  factor = rms * max(rows, columns) ** 0.5 if rms else max(1, columns / rows) ** 0.5
  made = np.stack([orthogonalized(matrix) for matrix in matrices]) * factor
  return made.reshape(moved.shape).transpose(np.argsort([*outer, *inner]))


@pytest.mark.parametrize(('axes', 'rows', 'columns'), [
    ((None, 'width', 'heads', None), (1,), (2, 3)), ((None, 'heads', None, 'width'), (1, 2), (3,)),
    ((None, 'width', 'mlp'), (1,), (2,)), ((None, 'mlp', 'width'), (1,), (2,)),
    (('width', None), (0,), (1,)),
    ((None, 'width', None, 'mlp'), (1,), (3,)), (('mlp', 'width'), (0,), (1,)),
    ((None, None, 'width'), (1,), (2,))])
def test_sides_of_a_matrix(axes, rows, columns):
  assert find_sides(axes) == Sides(rows, columns)


@pytest.mark.parametrize('axes', [('vocab', 'width'), ('width', 'vocab'), ('width',), (None,)])
def test_axes_that_are_no_matrix(axes):
  assert find_sides(axes) is None


@pytest.mark.parametrize('name', ARCHITECTURES)
def test_hidden_matrices_of_every_architecture(name):
  """All kernels of the blocks, and no embedding, head, bias or norm."""
  boxed = shapes_of(name)
  found, leaves = matrix_dimensions(boxed), leaves_of(boxed)
  assert found
  for path, leaf in leaves.items():
    if path in found:
      assert not path[0].startswith('heads') and 'embeddings' not in path and path[-1] not in (
          'bias', 'scale')
      own = (*found[path].inputs, *found[path].outputs)
      assert len({*own}) == len(own) and max(own) < leaf.ndim
    elif path[-1] == 'kernel' and {'layers', 'block'} <= {*path}:
      pytest.fail(f'{"/".join(path)} {leaf.shape} is no matrix')
  inside = [path for path in found if {'layers', 'block'} <= {*path}]
  assert bool(inside) == (name != 'elmo_medium')


@pytest.mark.parametrize(('name', 'rms'), [
    ('bert_base', 0.2), ('bert_base', 0.0), ('deberta_v2_xlarge', 0.2), ('xlnet_base', 0.2),
    ('elmo_medium', 0.2),
    ('llama3_8b', 0.2), ('t5_small', 0.2)])
def test_updates_equal_numpy(name, rms):
  boxed = shapes_of(name)
  dimensions, leaves = matrix_dimensions(boxed), leaves_of(boxed)
  random = np.random.default_rng(0)
  grads = jax.tree.map(lambda x: random.normal(size=(3, *x.shape)).astype(np.float32),
                       tiny.unbox(boxed))
  transform = scale_by_muon_and_adam(dimensions, optax.scale_by_adam(), rms=rms)
  params = jax.tree.map(lambda x: jnp.zeros(x.shape), tiny.unbox(boxed))
  state = transform.init(params)
  with jax.default_matmul_precision('highest'):
    for step in range(3):
      updates, state = jax.jit(transform.update)(jax.tree.map(lambda x, step=step: x[step], grads),
                                                 state)
  found, given = leaves_of(updates), leaves_of(grads)
  for path in leaves:
    if path in dimensions:
      wanted = expected_update(given[path], dimensions[path], rms)
      np.testing.assert_allclose(found[path], wanted, atol=2e-5 * np.abs(wanted).max(),
                                 err_msg='/'.join(path))
  plain = optax.scale_by_adam()
  state = plain.init(params)
  for step in range(3):
    adam, state = jax.jit(plain.update)(jax.tree.map(lambda x, step=step: x[step], grads), state)
  adam = leaves_of(adam)
  for path in leaves.keys() - dimensions.keys():
    np.testing.assert_allclose(found[path], adam[path], rtol=1e-5, atol=1e-6)


def test_orthogonal_updates_have_the_size_of_adamw():
  """Singular values are between 0.5 and 1.5, and the root mean square is about 0.2."""
  random = np.random.default_rng(0)
  axes = Sides((0,), (1,))
  transform = scale_by_muon_and_adam({('kernel',): axes}, optax.identity())
  grad = {'kernel': jnp.asarray(random.normal(size=(96, 32)), jnp.float32)}
  update, _ = transform.update(grad, transform.init(grad))
  assert 0.12 < float(jnp.sqrt(jnp.square(update['kernel']).mean())) < 0.28
  values = np.linalg.svd(np.asarray(update['kernel']) / (0.2 * 96 ** 0.5), compute_uv=False)
  assert values.min() > 0.5 and values.max() < 1.5


@pytest.mark.parametrize(('mesh', 'layers'), [
    (MeshConfig(1, fsdp=8), 2), (MeshConfig(1, fsdp=8), 12), (MeshConfig(1, tensor=2, fsdp=4), 8),
    (MeshConfig(1, tensor=2, fsdp=4), 12)])
def test_eight_devices_make_the_update_of_one(mesh, layers):
  """Parameters and gradients are split over their sides. Eight layers or more are dealt out to the
  devices."""
  random = np.random.default_rng(0)
  layouts = {'attention': (None, 'fsdp', 'tensor', None), 'out': (None, 'tensor', None, 'fsdp'),
             'up': (None, 'fsdp', 'tensor')}
  sides = {'attention': ((1,), (2, 3)), 'out': ((1, 2), (3,)), 'up': ((1,), (2,))}
  shapes = {'attention': (layers, 32, 4, 8), 'out': (layers, 4, 8, 32), 'up': (layers, 32, 64)}
  transform = scale_by_muon_and_adam(
      {(name,): Sides(*own) for name, own in sides.items()}, optax.identity())
  grads = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
  with jax.default_matmul_precision('highest'):
    step = jax.jit(lambda x: transform.update(x, transform.init(x))[0])
    alone = step(grads)
    devices = make_mesh(mesh)
    spread = {name: jax.device_put(x, jax.NamedSharding(devices, jax.P(*layouts[name])))
              for name, x in grads.items()}
    with jax.set_mesh(devices):
      together = step(spread)
      program = step.lower(spread).compile().as_text()
  assert ('all-to-all' in program) == (layers >= 8)
  for name, x in alone.items():
    np.testing.assert_allclose(together[name], x, atol=1e-5 * np.abs(np.asarray(x)).max())


@pytest.mark.parametrize('rate', [0.5, 1.0])
def test_the_rate_of_matrices_multiplies_their_weight_decay(rate):
  """Without gradients, only the decay is left: learning rate x factor x weight decay x
  parameter."""
  config = Muon(muon_rate=rate, peak=0.1, warmup=0, schedule='constant', weight_decay=0.2,
                exempt=())
  params = {'kernel': jnp.full((4, 4), 2.0), 'table': jnp.full((4, 4), 2.0)}
  optimizer = make_optimizer(config, 10, matrices={('kernel',): Sides((0,), (1,))})
  updates, _ = optimizer.update(jax.tree.map(jnp.zeros_like, params), optimizer.init(params),
                                params)
  np.testing.assert_allclose(updates['kernel'], -0.1 * rate * 0.2 * 2, rtol=1e-5)
  np.testing.assert_allclose(updates['table'], -0.1 * 0.2 * 2, rtol=1e-5)


def test_the_optimizer_of_a_run():
  """Momentum of the kernels of the blocks, Adam's two means of embeddings and heads."""
  config = plm_jax.recipe('bert_base', scale='test')
  config = with_overrides(config, {'optim': {'kind': 'muon'}})
  learner = make_learner(config, placeholder_vocab(config))
  state = tiny.unbox(state_shapes(config, learner).opt_state)
  kept = {'/'.join(str(getattr(entry, 'key', getattr(entry, 'name', entry))) for entry in path)
          for path, _ in jax.tree_util.tree_flatten_with_path(state)[0]}
  def means(kind, name):
    return sum(path.endswith(name) and f'/{kind}/' in f'/{path}' for path in kept)
  assert means('muon', 'block/mlp/up/kernel') == 1 and not means('adam', 'block/mlp/up/kernel')
  assert means('adam', 'embeddings/tokens') == 2 and not means('muon', 'embeddings/tokens')


def test_lion_takes_the_sign_of_a_mean():
  config = Lion(peak=0.1, warmup=0, schedule='constant', weight_decay=0.0, clip=0.0, b1=0.9,
                b2=0.99)
  optimizer = make_optimizer(config, 10)
  params = {'kernel': jnp.zeros(3)}
  state = optimizer.init(params)
  for grad in ([1.0, -2.0, 0.5], [-3.0, -1.0, -1.0]):
    updates, state = optimizer.update({'kernel': jnp.array(grad)}, state, params)
  # 0.9 * mean + 0.1 * gradient, of the mean 0.01 * [1, -2, 0.5]
  np.testing.assert_allclose(updates['kernel'],
                             -0.1 * np.sign(np.array([0.009 - 0.3, -0.018 - 0.1, 0.0045 - 0.1])))
