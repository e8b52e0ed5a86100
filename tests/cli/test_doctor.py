"""Checks of `doctor`: each planted fault is reported with its fix, and a healthy run passes."""
import dataclasses
import os
import pathlib
import re
import shutil
import socket

from bucket import Bucket, Fault
from bucket_client import Client
import jax.numpy as jnp
import pytest
import tiny

from plm_jax import recipes, versions
from plm_jax.checkpoints.checkpoint import Checkpoints
from plm_jax.cli import commands, costs, doctor
from plm_jax.cli.flags import write_flags
from plm_jax.cli.run import parse
from plm_jax.compile.report import CompileReport, describe_total
from plm_jax.config import serialization
from plm_jax.config.run import Phase
from plm_jax.data.records import read_meta
from plm_jax.distributed import machine
from plm_jax.distributed.machine import AcceleratorError, Machine
from plm_jax.preparation.prepare import PrepareConfig, prepare
from plm_jax.runs import preflight
from plm_jax.storage.lock import Lock
from plm_jax.tokenizers import load

BERT = ['bert_base', '--scale=test', '--mesh.data=1']


@pytest.fixture(scope='module')
def records(tmp_path_factory) -> pathlib.Path:
  folder = tmp_path_factory.mktemp('records')
  (folder / 'text.txt').write_text(tiny.text())
  prepare(PrepareConfig(source=str(folder / 'text.txt'), vocab=2048, heldout=0.1),
          folder / 'prepared')
  return folder / 'prepared'


def laptop(root: pathlib.Path) -> Machine:
  """A machine without an accelerator."""
  return Machine(root, {}, False)


def tpu_vm(root: pathlib.Path, **changes) -> Machine:
  """A machine with four TPU chips, and another process that has nothing to do with them."""
  (root / 'dev').mkdir()
  for number in range(4):
    (root / f'dev/accel{number}').touch()
  process(root, 99, 'sshd: somebody', '/dev/null')
  return dataclasses.replace(Machine(root, {}, True), **changes)


def process(root: pathlib.Path, number: int, command: str, *opened: str) -> None:
  """A process that has files open."""
  (root / f'proc/{number}/fd').mkdir(parents=True)
  (root / f'proc/{number}/cmdline').write_bytes(command.replace(' ', '\0').encode() + b'\0')
  for descriptor, path in enumerate(opened):
    (root / f'proc/{number}/fd/{descriptor}').symlink_to(path)


def package(folder: pathlib.Path, name: str, version: str) -> None:
  """Write the files that pip installs for a package."""
  (folder / f'{name}-{version}.dist-info').mkdir(parents=True)
  (folder / f'{name}-{version}.dist-info/METADATA').write_text(
      f'Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n')


def faults(args, own: Machine) -> dict[str, str]:
  """Map the checks that found a fault to their messages."""
  return {found.check: found.message for found in doctor.examine(args, own).findings if found.level
          == 'fault'}


def run_of(tmp_path, records, *more) -> list[str]:
  return [*BERT, f'--data.path={records}', f'--output={tmp_path / "run"}', *more]


def test_a_healthy_run_passes_and_leaves_no_files(tmp_path, records, capsys):
  found = doctor.examine(run_of(tmp_path, records), laptop(tmp_path))
  assert {one.level for one in found.findings} == {'ok'}
  assert [one.check for one in found.findings] == [
      'versions', 'accelerator', 'options', 'hosts', 'devices', 'mesh', 'memory', 'disk', 'cost',
      'records', 'cache',
      'output', 'checkpoint']
  assert capsys.readouterr().out.count('\n') == 13
  assert not (tmp_path / 'run').exists()


def test_unprepared_text_passes_with_exit_status_0(tmp_path, records, monkeypatch, capsys):
  text = records.parent / 'text.txt'
  monkeypatch.setattr('sys.argv', ['plm_jax', 'doctor', *run_of(tmp_path, text)])
  commands.main()
  out = capsys.readouterr().out
  assert (
      f'{text}: text that will be prepared with a wordpiece tokenizer that will be trained') in out
  assert out.endswith('\n0 faults, 0 warnings\n')


def test_incompatible_jaxlib_and_libtpu_are_reported(tmp_path, monkeypatch):
  package(tmp_path, 'jaxlib', '0.4.30')
  package(tmp_path, 'libtpu', '0.0.1')
  monkeypatch.syspath_prepend(str(tmp_path))
  said = faults([], laptop(tmp_path))['versions']
  jax = versions.find_installed()['jax'].version
  assert f'jax {jax} needs jaxlib' in said
  assert "and jaxlib 0.4.30 is installed: pip install 'jaxlib" in said
  assert f"and libtpu 0.0.1 is installed: pip install 'jax[tpu]=={jax}'" in said
  with pytest.raises(versions.VersionError, match=r'jaxlib 0\.4\.30 is installed'):
    versions.check_importable()


def test_python_that_is_too_old(tmp_path):
  package(tmp_path, 'jax', '9.9.9')
  with (tmp_path / 'jax-9.9.9.dist-info/METADATA').open('a') as file:
    file.write('Requires-Python: >=3.99\n')
  found, = versions.find_conflicts(versions.find_installed([str(tmp_path)]))
  assert found.startswith(
      'jax 9.9.9 is for Python >=3.99, and this is 3.') and 'uv venv -p' in found


def test_a_tpu_that_jax_does_not_use_is_reported(tmp_path):
  own = tpu_vm(tmp_path)
  said = faults([], own)['devices']
  assert said.startswith(
      'there is a TPU (/dev/accel0, /dev/accel1, /dev/accel2, /dev/accel3), and JAX computes on '
      'the '
                         'CPU: ') and "pip install 'plm_jax[tpu]'" in said
  machine.check_platform(own, 'tpu')
  machine.check_platform(dataclasses.replace(own, environ={'JAX_PLATFORMS': 'cpu'}), 'cpu')


def test_a_tpu_without_libtpu(tmp_path):
  said = faults([], tpu_vm(tmp_path, libtpu=False))['accelerator']
  assert ("libtpu is not installed, so that JAX would compute on the CPU: pip install "
          "'plm_jax[tpu]'") in said


def test_a_tpu_is_found_by_environment_variables(tmp_path):
  own = Machine(tmp_path, {'TPU_ACCELERATOR_TYPE': 'v5litepod-16'}, True)
  with pytest.raises(AcceleratorError,
                     match=r'there is a TPU \(TPU_ACCELERATOR_TYPE=v5litepod-16\), and JAX '
                           r'computes'):
    machine.check_platform(own, 'cpu')


def test_a_tpu_that_another_process_holds(tmp_path):
  own = tpu_vm(tmp_path)
  process(tmp_path, 4711, 'python -m experiments.bert_base', '/dev/null', '/dev/accel2')
  process(tmp_path, os.getpid(), 'python -m plm_jax doctor', '/dev/accel0')
  said = faults([], own)
  assert said == {'accelerator': (
      "/dev/accel2 is held by process 4711 (python -m experiments.bert_base): a TPU is one "
      "process's at a time. Wait "
      'for it, or end it: kill 4711')}
  machine.check_tpu_usable(dataclasses.replace(own, environ={'TPU_VISIBLE_CHIPS': '0,1'}))
  machine.check_tpu_usable(dataclasses.replace(own, environ={'JAX_PLATFORMS': 'cpu'}))


def test_vfio_devices_are_tpus_if_the_pci_bus_lists_a_tpu(tmp_path):
  (tmp_path / 'dev/vfio').mkdir(parents=True)
  for name in ('vfio', '7'):
    (tmp_path / f'dev/vfio/{name}').touch()
  card = tmp_path / 'sys/bus/pci/devices/0000:00:05.0'
  card.mkdir(parents=True)
  (card / 'vendor').write_text('0x10de\n')
  (card / 'device').write_text('0x2330\n')
  assert machine.tpu_device_files(laptop(tmp_path)) == []
  (card / 'vendor').write_text('0x1ae0\n')
  (card / 'device').write_text('0x0063\n')
  assert machine.tpu_device_files(laptop(tmp_path)) == ['/dev/vfio/7']


def test_a_host_that_does_not_come(tmp_path, records):
  with socket.create_server(('localhost', 0)) as server:
    port = server.getsockname()[1]
  job = [f'--hosts.coordinator=localhost:{port}', '--hosts.count=3', '--hosts.index=0',
         '--hosts.timeout=0.2']
  found = doctor.examine(run_of(tmp_path, records, '--hosts.distributed=True', *job),
                         laptop(tmp_path))
  said = {one.check: (one.level, one.message) for one in found.findings}
  assert said['hosts'] == (
      'fault', 'of 3 processes, number 1, 2 did not come within 0.2 s: every worker of the job has '
               'to run this command'
      ', within --hosts.timeout seconds of the others')
  assert said['records'][0] == 'ok' and said['mesh'][0] == 'warning'


@pytest.mark.parametrize(('option', 'said'), [
    ('--mesh.fsdp=16',
     "the mesh {'data': 1, 'fsdp': 16, 'tensor': 1} needs 16 devices, there are 8 (cpu). Make "
                       '--mesh.data, --mesh.fsdp or --mesh.tensor smaller.'),
    ('--train.accumulate=3',
     'a batch of 8 sequences cannot be divided evenly: 1 devices (data 1 x fsdp 1) and 3 '
                             'micro-batches need a multiple of 3')])
def test_indivisible_meshes_and_batches_are_reported(tmp_path, records, option, said):
  assert faults(run_of(tmp_path, records, option), laptop(tmp_path)) == {'mesh': said}


def test_records_of_another_tokenizer(tmp_path, records):
  args = ['gpt2_small', '--scale=test', '--mesh.data=1', f'--data.path={records}',
          f'--output={tmp_path / "run"}']
  said = faults(args, laptop(tmp_path))['records']
  assert (
      'contains records of a wordpiece tokenizer, but gpt2_small needs byte-bpe: make them with '
      '`python') in said


def test_several_faults_are_reported_together(tmp_path, records):
  shutil.copytree(records, tmp_path / 'damaged')
  path = tmp_path / 'damaged/train-00000.npy'
  content = bytearray(path.read_bytes())
  content[-1] ^= 1
  path.write_bytes(content)
  full = dataclasses.replace(laptop(tmp_path), free_bytes=lambda folder: 1_000_000)
  with Lock(tmp_path / 'run', 'a run'):
    said = faults(run_of(tmp_path, tmp_path / 'damaged'), full)
  assert sorted(said) == ['disk', 'output', 'records']
  assert 'train-00000.npy is damaged: its checksum is wrong. Copy it again' in said['records']
  assert said['disk'].endswith(
      '1.0 MB are free. The existing checkpoints are complete: make room, and the same '
                               'command resumes.')
  assert f'run is in use by a run (process {os.getpid()} on' in said['output']
  assert 'wait for it, stop it (`kill ' in said['output']


def test_space_for_too_few_checkpoints_is_a_warning():
  config = recipes.find_recipe('bert_base')('test')
  assert preflight.check_disk(config, 100, lambda folder: 400) == ''
  assert write_flags(preflight.check_disk(config, 100, lambda folder: 399)) == (
      'runs/bert_base-test has room for 3 checkpoints of 0.0 MB, and the run keeps 3 and writes '
      'the next one as well: '
      'make room, or give --train.keep=2')


def test_missing_text_and_a_full_cache_are_reported(tmp_path):
  said = faults(run_of(tmp_path, tmp_path / 'nix.txt'), laptop(tmp_path))
  assert [*said] == ['records'] and "nix.txt': expected a file, folder or glob" in said['records']
  text = tmp_path / 'text.txt'
  text.write_text(tiny.text())
  config = parse(recipes.find_recipe('bert_base'), ['--scale=test', f'--data.path={text}'])
  with pytest.raises(
    doctor.UserError,
    match=r'records of this text need about .* make room, or let PLM_JAX_CACHE name'
  ):
    doctor.check_cache(config, dataclasses.replace(laptop(tmp_path), free_bytes=lambda folder: 100))


def test_a_checkpoint_of_another_model_and_a_damaged_one(tmp_path, records):
  folder, tokenizer = tmp_path / 'run', load(records / 'tokenizer')
  config = parse(recipes.find_recipe('bert_base'), run_of(tmp_path, records)[1:])
  meta = {'config': serialization.to_json(config), 'tokenizer': tokenizer.hash}
  saved = Checkpoints(folder / 'checkpoints')
  saved.save(2, {'x': jnp.zeros(3)},
             {**meta, 'data': {'digests': {'prepared': read_meta(records).content_digest}}})
  saved.close()
  assert (
    doctor.check_resume(config, tokenizer).message
    == 'the run resumes from step 2, whose checksums are correct'
  )
  saved = Checkpoints(folder / 'checkpoints')
  saved.save(3, {'x': jnp.zeros(3)}, {**meta, 'data': {'digests': {'prepared': '0' * 64}}})
  saved.close()
  with pytest.raises(doctor.UserError, match='is not what the checkpoint of step 3 was trained on'):
    doctor.check_resume(config, tokenizer)
  shutil.rmtree(folder / 'checkpoints/3')
  said = faults(run_of(tmp_path, records, '--model.stack.layers=3'), laptop(tmp_path))
  assert [*said] == ['checkpoint'] and 'model.stack.layers: 2 -> 3' in said['checkpoint']
  assert 'Restore the old values, or choose another folder with --output' in said['checkpoint']
  (folder / 'checkpoints/2/meta/metadata').write_text('{}')
  with pytest.raises(doctor.UserError, match='the checkpoint of step 2 is damaged'):
    doctor.check_resume(config, tokenizer)


@pytest.mark.parametrize(('args', 'said'), [
    (['bert_bas'], 'did you mean bert_base'), (['--scale=test'], 'which recipe?'),
    (['bert_base', '--mode=evaluate'], 'leave out --mode'),
    (['bert_base', '--topology=v9:1'], 'such as v2:4x4'),
    (['bert_base', '--optim.warmup=9000000'], '--optim.warmup is 9,000,000 steps')])
def test_the_machine_is_checked_despite_invalid_options(
    tmp_path, args, said):
  found = doctor.examine(args, laptop(tmp_path)).findings
  assert said in next(one.message for one in found if one.check == 'options'
                      and one.level == 'fault')
  assert found[-1].check == 'cache'


def test_a_fault_is_exit_status_1(tmp_path, capsys):
  with pytest.raises(SystemExit) as ended:
    doctor.start([], tpu_vm(tmp_path))
  assert ended.value.code == 1
  assert capsys.readouterr().out.endswith('\n1 fault, 0 warnings\n')


@pytest.mark.slow
def test_missing_remote_and_read_only_buckets_are_reported(tmp_path):
  with Bucket(tmp_path, zone='us-central1-a') as bucket, Client(bucket) as client:
    client.ask('from plm_jax.cli import doctor')
    def told(path: str) -> str:
      client.ask(f'found = doctor.Examination(); found.run_check("bucket", doctor.check_bucket, '
                 f'{path!r}, "run")')
      level, _, said = client.ask('[*found.findings[0]]')
      return f'{level}: {said}'
    assert told('gs://bucket/run') == (
        'ok: gs://bucket/run: lists, writes, deletes, in the region of this machine, us-central1')
    assert told('gs://nix/run').endswith("there is no bucket gs://nix (Google's client)")
    bucket.faults.append(Fault(403, 'begin'))
    bucket.faults.append(Fault(403, 'write'))
    said = told('gs://bucket/run')
    assert said.startswith(
        'fault: gs://bucket/run cannot be written') and 'it needs the role Storage Admin' in said
    bucket.forget()
    bucket.layout['location'] = 'EUROPE-WEST4'
    said = told('gs://bucket/run')
    assert said.startswith(
        'fault: gs://bucket/run lies in EUROPE-WEST4, this machine in us-central1: ')
    assert 'Use a bucket in us-central1' in said


def test_cost_by_operations_and_an_assumption():
  recipe = recipes.find_recipe('bert_base')
  said = costs.describe_estimated_cost(recipe('paper'), recipe, None)
  # 900,000 x 256 rows of 128 tokens and 100,000 x 256 of 512: 4.3e10 tokens x 6 FLOPs x 86M
  # parameters, and attention
  assert '2.4e+19 FLOPs at an assumed 40% of the peak of 16 x TPU v2' in said
  assert said.endswith('the published run took 16 TPU chips, 4 days')
  assert costs.describe_estimated_cost(recipe('test'), recipe, None) == ''


def test_paper_scale_on_a_cpu_is_a_warning():
  """A beginner who has forgotten --scale=laptop learns how long the run takes here."""
  recipe = recipes.find_recipe('bert_base')
  found = doctor.check_cost(doctor.DoctorRequest(recipe, recipe('paper')), None)
  said = write_flags(found.warnings[0])
  assert re.search(r'1,000,000 steps take very roughly [\d.]+ (years|days)', said)
  assert '--scale=laptop' in said and 'chip-hours on v2:4x4' in said
  found = doctor.check_cost(doctor.DoctorRequest(recipe, recipe('test')), None)
  assert not found.warnings and 'give --step' in found.message


def test_a_run_of_some_hours_has_no_other_cost():
  recipe = recipes.find_recipe('bert_base')
  config = dataclasses.replace(recipe('gpu'), hours=8.0)
  found = doctor.check_cost(doctor.DoctorRequest(recipe, config), None)
  assert not found.warnings and found.message.startswith('8 hours: the run chooses batch and steps')


def test_cost_by_a_compiled_step():
  config = recipes.find_recipe('bert_base')('paper')
  report = CompileReport('TPU v2', {}, 1.0, 23e12, 0, {}, 0, 1.0)  # a second of arithmetic, on v2
  said = costs.describe_compiled_cost(config, 'v2:4x4', lambda config: [report] * 2)
  assert said.startswith('at least 4,444 chip-hours on v2:4x4, 11.6 days')  # 1,000,000 s x 16 chips


def test_a_compilation_ends_with_the_bound_of_all_steps():
  config = recipes.find_recipe('bert_base')('paper')
  report = CompileReport('TPU v2', {}, 1.0, 23e12, 0, {}, 0, 1.0)  # a second of arithmetic, on v2
  assert describe_total(config, [report] * 2, 32) == (
      'all 1,000,000 steps: at least 11.6 days, 4,444.4 chip-hours')


def test_cost_of_phases_that_were_not_measured():
  config = dataclasses.replace(recipes.find_recipe('bert_base')('test'))
  short, long = config.train.phases
  assert costs.run_seconds(config, {short: 2.0, long: 3.0}) == short.steps * 2 + long.steps * 3
  twice = dataclasses.replace(config, train=dataclasses.replace(
      config.train, phases=(short, Phase(10, short.length, 2 * short.batch))))
  assert costs.run_seconds(twice, {short: 2.0}) == pytest.approx(short.steps * 2 + 10 * 4)


@pytest.mark.slow
def test_a_step_is_measured(tmp_path, records, capsys):
  found = doctor.examine(run_of(tmp_path, records, '--step'), laptop(tmp_path))
  said = next(one for one in found.findings if one.check == 'first step')
  assert said.level == 'ok' and 'chip-hours on the 1 x cpu here' in said.message


def test_accents_dropped_by_a_new_tokenizer_are_reported(tmp_path):
  """Counted before anything is prepared, with the option that keeps them."""
  (tmp_path / 'text.txt').write_text('\n\n'.join(['ọ̀rọ̀ ọdún wọ́n ní ìlú'] * 9))
  config = recipes.find_recipe('bert_base')('test')
  config = dataclasses.replace(config, data=dataclasses.replace(config.data,
                                                                path=(str(tmp_path / 'text.txt'),)))
  told = doctor.check_records(config)
  assert len(told.warnings) == 1 and 'letters in a sample of the text' in told.warnings[0]
  prepared = dataclasses.replace(config.data.prepare, strip_accents=False)
  assert not doctor.check_records(dataclasses.replace(config, data=dataclasses.replace(
      config.data, prepare=prepared))).warnings


def test_too_many_epochs_are_a_warning_for_each_corpus(tmp_path, records):
  once = [f'--data.path={records}', '--train.phases.0.steps=6', '--train.phases.1.steps=2']
  assert 'help little' not in said_of_records(once, tmp_path)
  often = [f'--data.path={records}', '--train.phases.0.steps=60000']
  assert re.search(rf'[\d,]+ epochs over {records}; more than 40 help little', said_of_records(
      often, tmp_path))
  # In a mixture only the small corpus is repeated too often: half of the run's tokens come from it.
  small = tmp_path / 'small'
  text = tmp_path / 'small.txt'
  text.write_text('\n\n'.join(tiny.text().split('\n\n')[:4]))
  prepare(PrepareConfig(source=str(text), tokenizer=str(records / 'tokenizer'), heldout=0.3), small)
  mixed = ['--data.path', str(records), str(small), '--data.weights', '1', '1',
           '--train.phases.0.steps=400']
  found = said_of_records(mixed, tmp_path)
  assert f'epochs over {small};' in found and f'epochs over {records};' not in found
  builtin = ['--data.path=embedded', '--train.phases.0.steps=6000000']
  assert 'epochs over the built-in text (no --data.path is given)' in write_flags(
      said_of_records(builtin, tmp_path))
  raw = [f'--data.path={text}', '--train.phases.0.steps=60000']
  assert re.search(r'about [\d,]+ epochs over \S*small.txt', said_of_records(raw, tmp_path))


def said_of_records(more, tmp_path) -> str:
  config = parse(recipes.find_recipe('bert_base'),
                 [*BERT[1:], f'--output={tmp_path / "run"}', *more])
  told = doctor.check_records(config)
  return '; '.join(told.warnings) or told.message
