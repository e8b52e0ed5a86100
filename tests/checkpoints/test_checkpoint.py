import contextlib
import errno
import gc
import random
import shutil

from flax.linen import unbox
import jax
import numpy as np
import pytest
import tiny

from plm_jax import sharding
from plm_jax.checkpoints import checksums
from plm_jax.checkpoints.checkpoint import CheckpointError, Checkpoints
from plm_jax.checkpoints.restore import restore_mean_params, restore_params
from plm_jax.sharding import MeshConfig, make_mesh
from plm_jax.training.step import TrainState, init_state

pytestmark = pytest.mark.filterwarnings(
    'ignore::pytest.PytestUnraisableExceptionWarning',
    'ignore:coroutine .* was never awaited:RuntimeWarning')


def layout(learner, windows, *mesh):
  """-> (shapes, shardings) of the state."""
  boxed = jax.eval_shape(lambda: init_state(learner, windows))
  return unbox(boxed), sharding.shardings(boxed, make_mesh(MeshConfig(*mesh)))


@pytest.fixture(scope='module')
def state(learner, windows):
  """On the host, every array random."""
  shapes, _ = layout(learner, windows, 1)
  draw = np.random.default_rng(0)
  return jax.tree.map(lambda x: (100 * draw.normal(size=x.shape)).astype(x.dtype), shapes)


@pytest.fixture(scope='module')
def saved(state, learner, windows, tmp_path_factory):
  """A folder with checkpoints 3 and 5, written from a mesh of 2 x 2 x 2."""
  folder = tmp_path_factory.mktemp('run') / 'checkpoints'
  checkpoints = Checkpoints(folder)
  _, shardings = layout(learner, windows, 2, 2, 2)
  for step in (3, 5):
    checkpoints.save(step, jax.device_put(state.replace(step=np.int32(step)), shardings),
                     dict(config={'a': [1, 'b']}))
  checkpoints.close()
  return folder


@pytest.mark.slow
@pytest.mark.parametrize('mesh', [(2, 2, 2), (1, 8, 1), (1, 1, 1)], ids=str)
def test_restored_to_the_bit_on_any_mesh(saved, state, learner, windows, mesh):
  shapes, shardings = layout(learner, windows, *mesh)
  checkpoints = Checkpoints(saved)
  assert checkpoints.latest() == 5
  restored = checkpoints.restore(5, shapes, shardings)
  assert isinstance(restored, TrainState)
  assert jax.tree.map(lambda x: x.sharding, restored) == shardings
  tiny.assert_same(restored, state.replace(step=np.int32(5)))
  assert checkpoints.meta(5) == dict(config={'a': [1, 'b']}, step=5)
  checkpoints.close()


@pytest.mark.slow
def test_parameters_alone(saved, state, learner, windows):
  shapes, shardings = layout(learner, windows, 1, 8, 1)
  tiny.assert_same(restore_params(saved, shapes.params), state.params)
  spread = restore_params(saved, shapes.params, shardings.params)
  tiny.assert_same(spread, state.params)
  assert jax.tree.map(lambda x: x.sharding, spread) == shardings.params


def test_the_mean_of_the_newest_checkpoints(tmp_path):
  checkpoints = Checkpoints(tmp_path, keep=3)
  for step in (2, 4, 10):
    checkpoints.save(step, jax.device_put({'params': {'kernel': np.full(3, step, np.float32)}}), {})
  checkpoints.close()
  shapes = {'kernel': jax.ShapeDtypeStruct((3,), np.float32)}
  assert restore_mean_params(tmp_path, 1, shapes)['kernel'].tolist() == [10] * 3
  assert restore_mean_params(tmp_path, 2, shapes)['kernel'].tolist() == [7] * 3
  with pytest.raises(CheckpointError, match='has 3 checkpoints, and 4 are to be averaged: train'):
    restore_mean_params(tmp_path, 4, shapes)


def test_others_read_the_mean_of_the_parameters(tmp_path):
  arrays = {name: {'kernel': np.full(3, number, np.float32)}
            for number, name in enumerate(('mean', 'trained', 'mu'))}
  count = np.int32(4)
  state = TrainState(count, arrays['mean'], arrays['mu'], count, count, trained=arrays['trained'])
  assert {*state.parts} == {'step', 'params', 'opt_state', 'skipped', 'streak', 'trained'}
  checkpoints = Checkpoints(tmp_path)
  checkpoints.save(4, jax.device_put(state.parts), {})
  checkpoints.wait()
  device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
  shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state)
  restored = checkpoints.restore(4, shapes.parts, jax.tree.map(lambda x: device, shapes.parts))
  tiny.assert_same(TrainState(**restored), state)
  checkpoints.close()
  tiny.assert_same(restore_params(tmp_path, shapes.params), arrays['mean'])


def test_only_the_newest_stay(state, tmp_path):
  checkpoints = Checkpoints(tmp_path, keep=2)
  for step in (1, 2, 2, 3, 4):
    checkpoints.save(step, dict(x=state.step), {})
  checkpoints.wait()
  assert checkpoints.latest() == 4
  assert sorted(int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()) == [3, 4]
  checkpoints.close()


@pytest.fixture
def copy(saved, tmp_path):
  """A copy of the checkpoints, to be damaged."""
  yield shutil.copytree(saved, tmp_path / 'checkpoints')
  # Orbax leaves unfinished reads, which print errors when they are garbage-collected.
  gc.collect()


def restore(folder, learner, windows, step=5):
  checkpoints = Checkpoints(folder)
  try:
    return checkpoints.restore(step, *layout(learner, windows, 1))
  finally:
    checkpoints.close()


def test_no_changed_byte_goes_unnoticed(copy):
  """Any bit of any file: each time that file is named."""
  draw = random.Random(0)
  files = [path for path in (copy / '5').rglob('*') if path.is_file()
           and path != copy / '5/commit_success.txt']
  assert {'_METADATA', '_CHECKPOINT_METADATA', 'sums.json',
          'metadata'} <= {path.name for path in files}
  checkpoints = Checkpoints(copy, keep=None)
  checkpoints.verify(5)
  for _ in range(200):
    path = draw.choice(files)
    content = path.read_bytes()
    place = draw.randrange(len(content))
    if path.name == '_CHECKPOINT_METADATA' and content.find(b'"commit_timestamp') <= place:
      continue  # Orbax writes the moment when the sums are there already
    path.write_bytes(content[:place] + bytes([content[place] ^ 1 << draw.randrange(8)])
                     + content[place + 1:])
    with pytest.raises(CheckpointError) as error:
      checkpoints.verify(5)
    assert str(error.value).startswith('the checkpoint of step 5 is damaged: ') and str(
        path) in str(error.value)
    assert 'The one before is that of step 3: to go on' in str(error.value)
    path.write_bytes(content)
  checkpoints.verify(5)
  checkpoints.close()


@pytest.mark.slow
def test_lost_truncated_and_foreign_files_are_detected(copy):
  checkpoints = Checkpoints(copy, keep=None)
  for path in [path for path in (copy / '5').rglob('*') if path.is_file()]:
    content = path.read_bytes()
    for size in (None, 0, len(content) // 2):
      path.unlink() if size is None else path.write_bytes(content[:size])
      if path != copy / '5/commit_success.txt':
        with pytest.raises(CheckpointError, match=f'step 5 is damaged: .*{path.name}'):
          checkpoints.verify(5)
      path.write_bytes(content)
  (copy / '5/state/d/more').write_bytes(b'1')
  with pytest.raises(CheckpointError, match='state/d/more was not written with the others'):
    checkpoints.verify(5)
  checkpoints.close()


@pytest.mark.slow
def test_the_newest_complete_checkpoint_is_found_and_damaged_ones_are_moved(copy):
  (copy / '5/state/manifest.ocdbt').unlink()
  said = []
  checkpoints = Checkpoints(copy)
  assert checkpoints.latest() == 5
  checkpoints.move_damaged_aside(said.append)
  assert checkpoints.latest() == 3 and (copy.parent / 'damaged-5/meta').is_dir()
  assert 'manifest.ocdbt is missing. The checkpoint of step 5 is put aside' in said[0]
  checkpoints.save(5, {'x': np.zeros(3)}, {})
  checkpoints.wait()
  assert checkpoints.latest() == 5
  checkpoints.verify_checksums(5)
  checkpoints.close()


def test_numbers_that_are_not_finite_are_refused(state, learner, windows, tmp_path):
  shapes, shardings = layout(learner, windows, 1)
  bad = jax.tree.map(np.array, state)
  bad.params['heads_mlm']['dense']['kernel'][3, 4] = np.nan
  checkpoints = Checkpoints(tmp_path)
  checkpoints.save(1, bad, {})
  checkpoints.wait()
  for work in (lambda: checkpoints.restore(1, shapes, shardings),
               lambda: restore_params(tmp_path, shapes.params)):
    with pytest.raises(CheckpointError,
                       match=r'numbers in .*heads_mlm/dense/kernel that are not finite'):
      work()
  checkpoints.close()


@pytest.mark.slow
@pytest.mark.parametrize(('raised', 'message'), [
    (PermissionError(errno.EACCES, 'Permission denied', '/there'), '/there: Permission denied'),
    (ValueError('PERMISSION_DENIED: the caller does not have storage.objects.get [source '
                'locations=x]'), 'PERMISSION'),
    (ValueError('UNAVAILABLE: CURL error[7] Could not connect to server'), 'UNAVAILABLE'),
])
def test_read_errors_are_not_reported_as_damage(raised, message, copy, learner, windows,
                                                monkeypatch):
  checkpoints = Checkpoints(copy)
  def fail(*args, **kwargs):
    raise raised
  monkeypatch.setattr(checkpoints.manager, 'restore', fail)
  with pytest.raises(CheckpointError, match=f'cannot be read: .*{message}') as error:
    checkpoints.restore(5, *layout(learner, windows, 1))
  assert 'damaged' not in str(error.value) and 'emove' not in str(error.value) and '\n' not in str(
      error.value)
  checkpoints.close()


def test_a_full_disk_in_the_middle_of_a_save(tmp_path, monkeypatch):
  """Writing continues in the background: the next access reports the error, and earlier
  checkpoints are complete."""
  checkpoints = Checkpoints(tmp_path)
  checkpoints.save(1, {'x': np.arange(3)}, {})
  checkpoints.wait()
  def full(folder):
    raise OSError(errno.ENOSPC, 'No space left on device')
  with monkeypatch.context() as patch:
    patch.setattr(checksums, 'write', full)
    checkpoints.save(2, {'x': np.arange(3)}, {})
    with pytest.raises(CheckpointError,
                       match=r'step 2 could not be written to .*: No space left on device'):
      checkpoints.wait()
  checkpoints.close()
  assert not (tmp_path / '2').exists()
  checkpoints = Checkpoints(tmp_path)
  assert checkpoints.latest() == 1
  checkpoints.verify_checksums(1)
  checkpoints.save(2, {'x': np.arange(3)}, {})
  checkpoints.close()
  assert sorted(path.name for path in tmp_path.iterdir()) == ['1', '2']


@pytest.mark.slow
def test_who_reads_makes_and_removes_nothing(copy, learner, windows):
  """A run may be saving at that moment."""
  draft = copy / '7.orbax-checkpoint-tmp'
  draft.mkdir()
  restore_params(copy, layout(learner, windows, 1)[0].params)
  assert draft.exists() and sorted(path.name for path in copy.iterdir()) == ['3', '5', draft.name]


@pytest.mark.slow
@pytest.mark.parametrize(
    'changes', [dict(mlp_dim=32), dict(layers=3), {'mlp.gated': True}, {'norm.kind': 'rms'}],
    ids=str)
def test_a_checkpoint_of_another_model(copy, windows, changes):
  """Whether the file has other shapes, fewer arrays or more."""
  other = tiny.learner(**changes)
  with pytest.raises(CheckpointError, match='checkpoints/5 cannot be restored'):
    restore(copy, other, windows)
  # restoring only parameters omits the other arrays
  if changes != {'norm.kind': 'rms'}:
    with pytest.raises(CheckpointError, match='checkpoints/5 cannot be restored'):
      restore_params(copy, layout(other, windows, 1)[0].params)


def test_a_folder_without_checkpoints(learner, windows, tmp_path):
  shapes = layout(learner, windows, 1)[0].params
  foreign = tmp_path / 'foreign'
  (foreign / '7').mkdir(parents=True)
  (foreign / '7/model.bin').write_bytes(b'something else')
  (foreign / 'notes.txt').write_text('mine')
  with pytest.raises(CheckpointError, match='foreign'):
    restore_params(foreign, shapes)
  assert (foreign / 'notes.txt').read_text() == 'mine' and (foreign / '7/model.bin').exists()
  with pytest.raises(CheckpointError, match=r'no checkpoint in .*nowhere'):
    restore_params(tmp_path / 'nowhere', shapes)
  assert not (tmp_path / 'nowhere').exists()


@pytest.mark.parametrize('damage', [
    lambda text: text.replace('"init_timestamp_nsecs": 1', '"init_timestamp_nsecs": .'),
    lambda text: text.replace('"commit_timestamp_nsecs": 1', '"commit_timestamp_nsecs": 1.'),
    lambda text: text[:len(text) // 2], lambda text: '', lambda text: '[]', lambda text: 'x' + text,
    None])
@pytest.mark.parametrize('step', [3, 5])
def test_damaged_metadata_is_named_by_all_that_open_the_checkpoints(damage, step, copy, learner,
                                                                    windows):
  """Orbax reads the metadata of all steps before it restores one."""
  path = copy / f'{step}/_CHECKPOINT_METADATA'
  if damage:
    text = path.read_text()
    path.write_text(damage(text))
    assert path.read_text() != text
  else:
    path.unlink()
  checkpoints = Checkpoints(copy, keep=None)
  with pytest.raises(CheckpointError,
                     match=f'the checkpoint of step {step} is damaged: .*_CHECKPOINT_METADATA'):
    checkpoints.verify(step)
  named = pytest.raises(CheckpointError, match=f'the checkpoint of step {step} is damaged: ')
  with named if step == 5 else contextlib.suppress(CheckpointError):
    restore_params(copy, layout(learner, windows, 1)[0].params)
  said = []
  checkpoints = Checkpoints(copy)
  checkpoints.move_damaged_aside(said.append)
  assert len(said) == 1 and checkpoints.steps() == [8 - step]
  checkpoints.close()
