import dataclasses
import functools
import re
from types import SimpleNamespace
from typing import Any

from flax.linen import unbox
import jax
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
import pytest
import tiny

from plm_jax import recipes, sharding
from plm_jax.layers import heads
from plm_jax.sharding import MeshConfig, make_mesh
from plm_jax.tokenizers.contract import Vocab
from plm_jax.training import step
from plm_jax.training.learner import make_learner
from plm_jax.training.step import init_state, make_sharded_init

MESHES = {'data': (8, 1, 1), 'fsdp': (1, 8, 1), 'tensor': (4, 1, 2), 'mixed': (2, 2, 2)}


def mesh_of(name):
  return make_mesh(MeshConfig(*MESHES[name]))


def layout(learner, windows, mesh):
  return sharding.shardings(jax.eval_shape(lambda: init_state(learner, windows)), mesh)


def gradient(learner, params, batch):
  return step.compute_gradient(learner, params, batch, learner.key('dropout'))


@pytest.fixture(scope='module')
def single(learner, params, batch):
  return jax.device_get(jax.jit(functools.partial(gradient, learner))(params, batch))


@pytest.mark.parametrize(('name', 'accumulate'), [
    ('mixed', 2), ('fsdp', 1), ('data', 1), ('tensor', 1)])
@pytest.mark.slow
def test_loss_and_gradient_equal_one_device(windows, params, batch, single, name, accumulate):
  """Dropout included."""
  mesh, learner = mesh_of(name), tiny.learner(accumulate=accumulate)
  with jax.set_mesh(mesh):
    shardings = layout(learner, windows, mesh).params
    run = jax.jit(functools.partial(gradient, learner), out_shardings=(shardings, None))
    grads, losses = jax.device_get(run(jax.device_put(params, shardings),
                                       sharding.shard_batch(batch, 16, mesh)))
  tiny.assert_close(grads, single[0])
  for term, pair in single[1].items():
    np.testing.assert_allclose(losses[term], pair, rtol=1e-5, err_msg=term)


SLOW = 'bert_base', 'xlnet_base', 't5_v1_1_small'
RELEASE = 'deberta_v2_xlarge', 'mpnet_base', 'llama_7b', 'palm_8b', 'glm_base', 'bart_base'


@pytest.mark.parametrize('recipe', [
    'gpt2_small', *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW),
    *(pytest.param(name, marks=[pytest.mark.slow, pytest.mark.release]) for name in RELEASE)])
def test_one_row_per_device_on_a_mesh_of_three_axes(recipe):
  """If rows are small compared with kernels, XLA would move rows instead and mix them up."""
  config = recipes.find_recipe(recipe)('test')
  pad = max(config.model.padding, 0)
  vocab = Vocab(512, pad=pad, unk=11, cls=2, sep=3, mask=4, bos=5, eos=6, sop=7, eop=8, gmask=9,
                smask=10, sentinel=511,
                sentinels=100)
  learner = make_learner(dataclasses.replace(
      config, train=dataclasses.replace(config.train, accumulate=1)), vocab)
  windows = tiny.windows(4, config.objective.text_length(32), shortest=16)
  params = tiny.random_params(jax.eval_shape(lambda: init_state(learner, windows).params))
  batch = jax.device_get(jax.jit(lambda w: learner.objective.corrupt(learner.key('corruption'), w,
                                                                     vocab))(windows))
  run = functools.partial(gradient, learner)
  want = jax.device_get(jax.jit(run)(params, batch))
  mesh = mesh_of('mixed')
  with jax.set_mesh(mesh):
    lie = layout(learner, windows, mesh).params
    got = jax.device_get(jax.jit(run, out_shardings=(lie, None))(
        jax.device_put(params, lie), sharding.shard_batch(batch, 4, mesh)))
  tiny.assert_close(got[0], want[0], 1e-4)
  for term, pair in want[1].items():
    np.testing.assert_allclose(got[1][term], pair, rtol=1e-5, err_msg=term)


@pytest.mark.slow
def test_corruption_equals_one_device(learner, windows, batch):
  mesh = mesh_of('mixed')
  with jax.set_mesh(mesh):
    run = jax.jit(lambda w: learner.objective.corrupt(learner.key('corruption'), w, learner.vocab))
    tiny.assert_same(run(sharding.shard_batch(windows, 16, mesh)), batch)


def specs(learner, windows, name):
  return {key: x.spec
          for key, x in tiny.flat(layout(learner, windows, mesh_of(name)).params).items()}


FSDP, TENSOR = ('fsdp',), ('tensor',)


@pytest.mark.parametrize(('name', 'want'), [
    ('data', [P(*[None] * axes) for axes in (4, 4, 3, 2, 1, 2)]),
    ('fsdp', [P(None, FSDP, None, None), P(None, None, None, FSDP), P(None, FSDP, None),
              P(None, FSDP), P(None),
              P(None, FSDP)]),
    ('tensor', [P(None, None, TENSOR, None), P(None, TENSOR, None, None), P(None, None, TENSOR),
                P(TENSOR, None),
                P(TENSOR), P(None, None)]),
    ('mixed', [P(None, FSDP, TENSOR, None), P(None, TENSOR, None, FSDP), P(None, FSDP, TENSOR),
               P(TENSOR, FSDP),
               P(TENSOR), P(None, FSDP)])])
def test_parameters_are_sharded_by_the_table(learner, windows, name, want):
  got = specs(learner, windows, name)
  layer = 'backbone/stack/layers/block'
  keys = [f'{layer}/attention/query/kernel', f'{layer}/attention/out/kernel',
          f'{layer}/mlp/up/kernel',
          'backbone/embeddings/tokens', 'heads_mlm/bias', 'backbone/embeddings/positions']
  assert [got[key] for key in keys] == want


def test_split_parameters_and_optimizer_state_are_an_eighth_on_each_device(learner, windows):
  mesh = mesh_of('fsdp')
  shardings = layout(learner, windows, mesh)
  shapes = unbox(jax.eval_shape(lambda: init_state(learner, windows)))
  bytes_of = lambda shape: 4 * int(np.prod(shape))
  total = sum(bytes_of(x.shape) for x in jax.tree.leaves(shapes))
  own = sum(bytes_of(s.shard_shape(x.shape)) for x, s in zip(
      jax.tree.leaves(shapes), jax.tree.leaves(shardings), strict=True))
  assert own < total * 0.2
  assert tiny.flat(shardings.params) == tiny.flat(shardings.opt_state[1].mu) == tiny.flat(
      shardings.opt_state[1].nu)


@pytest.mark.slow
def test_a_fresh_state_does_not_depend_on_the_mesh(learner, windows):
  made = []
  for shape in (1, 1, 1), MESHES['mixed']:
    mesh = make_mesh(MeshConfig(*shape))
    with jax.set_mesh(mesh):
      make, shapes, shardings = make_sharded_init(learner, windows, mesh)
      state = make()
      assert jax.tree.map(lambda x: (x.shape, x.dtype),
                          state) == jax.tree.map(lambda x: (x.shape, x.dtype), shapes)
      assert jax.tree.map(lambda x: x.sharding, state) == shardings
      made.append(jax.device_get(state))
  tiny.assert_same(*made)


def test_indivisible_axes_are_not_sharded():
  mesh = make_mesh(MeshConfig(1, 2, 4))
  assert sharding.partition_spec(('width', 'heads', None), (6, 8, 3),
                                 mesh) == P(('fsdp',), ('tensor',), None)
  assert sharding.partition_spec(('width', 'heads', None), (7, 6, 3), mesh) == P(None, None, None)
  assert sharding.partition_spec(('batch', None, 'elsewhere'), (4, 4, 4),
                                 mesh) == P(('data', 'fsdp'), None, None)


def test_logits_are_split_where_no_mesh_divides_the_vocabulary():
  """Four devices have 251 of 1,003 logits each, and loss and gradients equal those of one
  device."""
  spec = sharding.partition_spec(('batch', None, 'pieces'), (8, 16, 1003), mesh_of('tensor'))
  assert spec == P(('data', 'fsdp'), None, TENSOR)
  mesh, head = make_mesh(MeshConfig(2, 1, 4)), heads.NextTokenHead(tiny.block(), 1003)
  draw = np.random.default_rng(0)
  table, hidden = (draw.normal(size=size).astype(np.float32) for size in ((1003, 16), (8, 4, 16)))
  labels = draw.integers(1003, size=(8, 4))

  def loss(table, hidden):
    logits: Any = head.apply({}, SimpleNamespace(embedding=table, hidden=hidden), {})
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

  run = jax.value_and_grad(loss, argnums=(0, 1))
  want = jax.jit(run)(table, hidden)
  with jax.set_mesh(mesh):
    compiled = jax.jit(run).lower(table, sharding.shard_batch(hidden, 8, mesh)).compile()
    got = compiled(table, sharding.shard_batch(hidden, 8, mesh))
  for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)
  products = re.findall(r'f32\[([\d,]+)\]\S* dot\(', compiled.as_text())
  assert products and not any('1003' in shape.split(',') for shape in products)
  assert any('251' in shape.split(',') for shape in products)


def slice_of(number, count=8):
  return [SimpleNamespace(id=count * number + at, process_index=number, slice_index=number,
                          platform='tpu',
                          device_kind='TPU v9', coords=(at % 4, at // 4, 0), core_on_chip=0)
                          for at in range(count)]


def test_each_copy_of_the_model_is_in_one_slice():
  devices = [*slice_of(0), *slice_of(1)]
  assert sharding.count_slices(devices) == 2 and sharding.count_slices(jax.devices()) == 1
  found = sharding.arrange_slices((4, 2, 2), devices[::-1])
  assert found.shape == (4, 2, 2)
  assert [{device.slice_index for device in copy.flat} for copy in found] == [{0}, {0}, {1}, {1}]
  with pytest.raises(sharding.MeshError,
                     match=r"'data': 1, .* to 2 slices of 8 devices .*data a multiple of 2"):
    sharding.arrange_slices((1, 8, 2), devices)
  # A recipe's mesh adapts to one slice, and there are as many copies more.
  assert sharding.fit_mesh(MeshConfig(fsdp=16, adapts=True), 16, 2) == MeshConfig(2, 8, 1)


def test_no_mesh_no_constraint():
  x = np.ones(3)
  assert sharding.constrain(x, 'batch') is x


def test_the_data_axis_takes_the_remaining_devices():
  assert dict(make_mesh(MeshConfig()).shape) == dict(data=8, fsdp=1, tensor=1)
  assert dict(make_mesh(MeshConfig(fsdp=2, tensor=2)).shape) == dict(data=2, fsdp=2, tensor=2)
  assert make_mesh(MeshConfig(1, 1, 3)).devices.ravel().tolist() == jax.devices()[:3]
  assert dict(make_mesh(MeshConfig(), jax.devices()[:2]).shape) == dict(data=2, fsdp=1, tensor=1)


@pytest.mark.parametrize(('fsdp', 'tensor', 'devices', 'shape'), [
    (8, 1, 128, (16, 8, 1)), (8, 1, 8, (1, 8, 1)), (8, 1, 4, (1, 4, 1)), (8, 1, 1, (1, 1, 1)),
    (8, 1, 12, (3, 4, 1)),
    (64, 4, 256, (1, 64, 4)), (64, 4, 8, (1, 2, 4)), (192, 8, 1536, (1, 192, 8)),
    (3, 1, 4, (4, 1, 1))])
def test_an_adaptive_mesh_uses_the_available_devices(fsdp, tensor, devices, shape):
  found = sharding.fit_mesh(MeshConfig(fsdp=fsdp, tensor=tensor, adapts=True), devices)
  assert (found.data, found.fsdp, found.tensor) == shape and not found.adapts
  assert sharding.fit_mesh(MeshConfig(fsdp=fsdp), devices).fsdp == fsdp


def test_a_mesh_larger_than_the_devices():
  with pytest.raises(ValueError) as error:
    make_mesh(MeshConfig(data=4, fsdp=2, tensor=2))
  assert str(error.value) == (
      "the mesh {'data': 4, 'fsdp': 2, 'tensor': 2} needs 16 devices, there are 8 (cpu). Make "
      "mesh.data, "
      'mesh.fsdp or mesh.tensor smaller.')
  with pytest.raises(ValueError, match='needs 16 devices, there are 8'):
    make_mesh(MeshConfig(fsdp=16))
  for wrong in dict(data=0), dict(data=-2), dict(fsdp=0), dict(tensor=-1):
    with pytest.raises(ValueError, match=fr'MeshConfig\.{next(iter(wrong))} is .* or more'):
      MeshConfig(**wrong)


def test_indivisible_batches_are_refused():
  mesh = mesh_of('mixed')
  sharding.check_batch(16, 4, mesh)
  with pytest.raises(ValueError) as error:
    sharding.check_batch(18, 2, mesh)
  assert str(error.value) == (
      'a batch of 18 sequences cannot be divided evenly: 4 devices (data 2 x fsdp 2) and 2 '
      'micro-batches need a '
      'multiple of 8')


def test_rows_reach_their_devices():
  mesh = mesh_of('mixed')
  x = np.arange(16 * 3).reshape(16, 3)
  assert sharding.host_rows(16, mesh) == slice(0, 16)
  y = sharding.shard_batch(dict(x=x, row=x[:, 0]), 16, mesh)
  np.testing.assert_array_equal(y['x'], x)
  assert y['x'].sharding.spec == P(('data', 'fsdp')) and y['row'].shape == (16,)
  assert sorted({(s.index[0].start, s.data.shape) for s in y['x'].addressable_shards}) == [
      (start, (4, 3)) for start in (0, 4, 8, 12)]
