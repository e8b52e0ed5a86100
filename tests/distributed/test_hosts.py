"""Processes of a job that are given different things end at once, each with the same line; and what
one of them decides, all of them do."""
from concurrent import futures
import json
import random
import shutil
import threading
import time

import jax
import numpy as np
from orbax.checkpoint import multihost
import pytest
import run_worker
from test_distributed import two_processes

from plm_jax import recipes, tokenizers, versions
from plm_jax.cli import run as run_lib
from plm_jax.cli.run import parse
from plm_jax.config import serialization
from plm_jax.distributed import hosts
from plm_jax.runs import preflight
from plm_jax.runs.run import run
from plm_jax.training import feed


class Coordinator:
  """The coordinator of a job of threads: their key-value store and barriers."""

  def __init__(self, count):
    self.values, self.barrier, self.changed = {}, threading.Barrier(
        count, timeout=20), threading.Condition()

  def key_value_set(self, key, value):
    with self.changed:
      self.values[key] = value
      self.changed.notify_all()

  def blocking_key_value_get(self, key, timeout):
    with self.changed:
      assert self.changed.wait_for(lambda: key in self.values, 20), key
      return self.values[key]

  def key_value_delete(self, key):
    for found in [found for found in self.values if found.startswith(key)]:
      del self.values[found]


@pytest.fixture
def job(monkeypatch):
  """Runs a function of the index in a thread per process -> what each returned, or the error of
  each."""
  def call(count, work):
    coordinator, own = Coordinator(count), threading.local()
    monkeypatch.setattr(multihost, 'get_jax_distributed_client', lambda: coordinator)
    monkeypatch.setattr(hosts, 'wait_at_barrier', lambda _: coordinator.barrier.wait())
    monkeypatch.setattr(jax, 'process_count', lambda: count)
    monkeypatch.setattr(jax, 'process_index', lambda: own.index)
    class Numbers:
      def __next__(self):
        own.number += 1
        return own.number
    class Read:
      def __iter__(self):
        return iter(own.read)
      def append(self, key):
        own.read.append(key)
      def __setitem__(self, _, keys):
        own.read = list(keys)
    monkeypatch.setattr(hosts, 'KEY_NUMBERS', Numbers())
    monkeypatch.setattr(hosts, 'STALE_KEYS', Read())
    def process(index):
      own.index, own.number, own.read = index, 0, []
      try:
        return work(index)
      except hosts.UserError as error:
        return error
    with futures.ThreadPoolExecutor(count) as pool:
      found = list(pool.map(process, range(count)))
    return found, coordinator
  return call


def test_the_value_of_process_0_is_everybodys(job):
  value = {'clm': float('nan'), 'step': 3, 'names': ['a', None]}
  found, _ = job(3, lambda index: hosts.broadcast(value if index == 0 else {'clm': index},
                                                  'values'))
  assert json.dumps(found) == json.dumps([value] * 3)


@pytest.mark.parametrize(('values', 'said'), [
    ([{'a': 1, 'b': 2}] * 3, None),
    ([{'a': 1}, {'a': 1}, {'a': 2}], 'a is 1 on process 0 and 2 on process 2. Do it'),
    ([{'a': 1}, {'a': 2}, {'a': 3}],
     'a is 1 on process 0 and 2 on process 1 (processes that differ from process 0 as well: 2). Do '
     'it'),
    ([{'a': 1, 'b': 'x'}, {'a': 2, 'c': 'x'}, {'a': 1, 'b': 'x'}],
     "a is 1 on process 0 and 2 on process 1; b is 'x' on process 0 and 'missing' on process 1; "
     "c is 'missing' on process 0 and 'x' on process 1. Do it"),
    ([{str(n): n for n in range(20)}, {str(n): -1 for n in range(20)}],
     '15 is 15 on process 0 and -1 on process 1, and 12 more differences. Do it'),
])
def test_every_process_reports_the_same_difference(job, values, said):
  found, _ = job(len(values),
                 lambda index: hosts.check_agreement('options', values[index], 'Do it'))
  if said is None:
    assert found == [None] * len(values)
  else:
    assert len({str(error) for error in found}) == 1 and isinstance(found[0], hosts.HostsError)
    assert str(found[0]).startswith('the processes of the job have different options: ')
    assert str(found[0]).endswith(said)


def test_an_error_of_one_process_ends_all_and_the_coordinator_deletes_messages(job):
  def work(index):
    for number in range(50):
      hosts.broadcast(number, 'number')
      with hosts.barrier('work'):
        if number == 49 and index == 1:
          raise hosts.HostsError('no disk')
  found, coordinator = job(2, work)
  assert [str(error) for error in found] == ['process 1 of the job cannot go on: no disk',
                                             'no disk']
  assert len(coordinator.values) <= 6


def test_options_have_the_names_of_their_fields():
  config = parse(recipes.find_recipe('bert_base'), ['--scale=test', '--optim.warmup=3'])
  names = serialization.flatten(serialization.to_plain(config))
  assert names['optim.warmup'] == 3 and names['train.phases.0.length'] == 32
  assert names['data.path'] == ['embedded'] and 'data.prepare.on_error' in names


def test_a_package_or_source_of_another_version_changes_the_facts(tmp_path, monkeypatch):
  before = versions.describe_environment()
  assert {'Python', 'jax', 'flax', 'the source of plm_jax', 'jax_enable_x64'} <= {*before}
  (tmp_path / 'optax-0.0.1.dist-info').mkdir()
  (tmp_path / 'optax-0.0.1.dist-info/METADATA').write_text(
      'Metadata-Version: 2.1\nName: optax\nVersion: 0.0.1\n')
  monkeypatch.syspath_prepend(str(tmp_path))
  changed = {name for name, value in versions.describe_environment().items() if before.get(name)
             != value}
  assert changed == {'optax'}
  monkeypatch.setattr(jax, '__version__', '9.9.9')
  assert versions.describe_environment()['jax'].endswith('imported as 9.9.9')


def documents(seed, count=60):
  draw = random.Random(seed)
  words = ['array', 'matrix', 'value', 'order', 'memory', 'place', 'copy', 'list']
  def sentence():
    return f'The {" ".join(draw.choices(words, k=8))}.'
  return '\n\n'.join('\n'.join(sentence() for _ in range(8)) for _ in range(count))


@pytest.fixture
def disks(tmp_path):
  """Folders of two hosts that share no disk, with the same text and tokenizer, and their
  settings."""
  folders = [tmp_path / '0', tmp_path / '1']
  for folder in folders:
    folder.mkdir()
    (folder / 'text.txt').write_text(documents(0))
    tokenizers.train_wordpiece([documents(0)], 200).save(folder / 'tokenizer')
  return folders, [{'PLM_JAX_CACHE': str(folder / 'cache')} for folder in folders]


@pytest.mark.slow
@pytest.mark.parametrize('different', [
    'text', 'versions', *(pytest.param(what, marks=pytest.mark.release)
                          for what in ('tokenizer', 'options', 'checkpoint'))])
def test_two_hosts_with_different_settings_end_with_one_line(different, disks, tmp_path):
  folders, settings = disks
  said = {'options': 'different options: --optim.peak is 0.001 on process 0 and 0.002 on process '
                     '1. Give every',
          'versions': "different versions: optax is '",
          'text': "different data: the text of text.txt is '",
          'tokenizer': "; the tokenizer is '",
          'checkpoint': "different parameters to start from: begin/checkpoints/"}[different]
  args = ['-1', '--scale=test', '--data.path=text.txt', '--data.prepare.tokenizer=tokenizer',
          f'--output={tmp_path / "run"}', '--optim.peak=0.001']
  if different == 'text':
    (folders[1] / 'text.txt').write_text(documents(0).replace('array', 'order', 1))
  if different == 'tokenizer':
    tokenizers.train_wordpiece([documents(1)], 100).save(folders[1] / 'tokenizer')
  if different == 'options':
    settings[1]['EXTRA'] = '--optim.peak=0.002'
  if different == 'versions':
    package = folders[1] / 'packages/optax-0.0.1.dist-info'
    package.mkdir(parents=True)
    (package / 'METADATA').write_text('Metadata-Version: 2.1\nName: optax\nVersion: 0.0.1\n')
    settings[1]['PYTHONPATH'] = f'{package.parent}:{run_lib.__file__.rpartition("/plm_jax/")[0]}'
  if different == 'checkpoint':
    for seed, folder in enumerate(folders):
      run(parse(recipes.find_recipe('bert_base'), [
          '--scale=test', f'--data.path={folders[0] / "text.txt"}', f'--seed={seed}',
          f'--output={folder / "begin"}', '--mesh.data=1',
          f'--data.prepare.tokenizer={folders[0] / "tokenizer"}']))
    args += ['--warm-start=begin']
  began = time.monotonic()
  with two_processes('run_worker.py', 1, lambda index: args, folders, status=1,
                     settings=settings) as outputs:
    printed = outputs()
  assert time.monotonic() - began < 120  # with the start of both processes
  lines = [[line for line in text.splitlines() if line.startswith('error: ')] for text in printed]
  assert len(lines[0]) == len(lines[1]) == 1 and lines[0] == lines[1]
  assert said in lines[0][0] and 'Traceback' not in ''.join(printed)
  assert not (tmp_path / 'run/checkpoints').exists() or not any(
      (tmp_path / 'run/checkpoints').glob('[0-9]*'))


TWO_TEXTS = ['--scale=test', '--data.prepare.heldout=0.3', '--train.eval-every=2',
             '--train.save-every=4',
             '--train.eval-batches=6', '--train.phases.1.length=32', '--model.vocab=300']


@pytest.mark.slow
@pytest.mark.release
def test_two_processes_select_the_same_checkpoint_across_a_restart(tmp_path):
  """Each is the best metric of a run that stops and continues, by two processes; one process
  chooses the same."""
  paths = []
  for number in range(2):
    paths.append(tmp_path / f'text{number}.txt')
    paths[-1].write_text(documents(number))
  args = [*TWO_TEXTS, '--data.path', *map(str, paths)]
  config = parse(recipes.find_recipe('gpt2_small'), args)
  metrics = preflight.heldout_metrics(config)
  assert {'clm', 'clm_accuracy', 'clm_baseline', 'bits_per_byte', 'clm/text0',
          'bits_per_byte/text1'} <= {*metrics}
  chosen = ['clm', 'clm_baseline', 'bits_per_byte']
  with two_processes('best_worker.py', 1, lambda index: [
      tmp_path / f'{index}.json', tmp_path / 'job', ','.join(chosen), '--', *args],
      seconds=900) as outputs:
    outputs()
  first, second = (json.loads((tmp_path / f'{index}.json').read_text()) for index in range(2))
  assert first == second and list(first) == chosen
  alone = run(parse(recipes.find_recipe('gpt2_small'),
                    [*args, '--mesh.data=1', f'--output={tmp_path / "alone"}',
                                                 '--train.best=bits_per_byte']))
  assert first['bits_per_byte']['best'] == alone.best
  for name in metrics:
    # Sums in another order may turn an answer that is close.
    near = {'abs': 0.02} if 'accuracy' in name else {'rel': 1e-4}
    assert first['bits_per_byte']['heldout'][name] == pytest.approx(alone.heldout[name],
                                                                    **near), name


def read_windows(*files):
  """Reads files of `run_worker` -> step -> rows (number, window, epoch); a later line replaces an
  earlier one."""
  found = {}
  for file in files:
    if file.exists():
      for line in file.read_text().splitlines():
        step, rows = json.loads(line)
        found[step] = [tuple(row) for row in rows]
  return found


def run_alone(args, windows):
  """Runs in this process, and notes the windows."""
  batches = feed.stream_batches
  def noted(*arguments):
    for step, phase, batch in batches(*arguments):
      run_worker.note(step, batch)
      yield step, phase, batch
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('WINDOWS', str(windows))
    patch.setattr(feed, 'stream_batches', noted)
    assert run(parse(recipes.find_recipe('bert_base'), args)).finished


@pytest.mark.slow
@pytest.mark.release
def test_two_resumed_processes_equal_one_uninterrupted_process(
    tmp_path):
  """The batch grows in the second phase, which continues the order of the first."""
  text = tmp_path / 'text.txt'
  text.write_text(documents(0, 120))
  phases = [f'--train.phases.{number}.{name}={value}'
            for number, phase in enumerate([(4, 32, 4), (12, 32, 8)])
            for name, value in zip(('steps', 'length', 'batch'), phase, strict=True)]
  args = ['--scale=test', f'--data.path={text}', '--data.prepare.heldout=0.2',
          '--train.save-every=3', *phases,
          '--train.log-every=1', '--train.eval-every=4']
  def settings(attempt, **more):
    return [{'WINDOWS': str(tmp_path / f'windows-{index}-{attempt}'), **more} for index in range(2)]
  def job(attempt, status, **more):
    with two_processes('run_worker.py', 1,
                       lambda index: ['-1', *args, f'--output={tmp_path / "run"}'],
                       status=status, settings=settings(attempt, **more), seconds=900) as outputs:
      return outputs()
  job(0, None, KILL='8')
  assert (tmp_path / 'run/checkpoints/6').is_dir() and not (tmp_path / 'run/report.html').exists()
  job(1, 0)
  alone = tmp_path / 'alone'
  run_alone([*args, '--mesh.data=1', f'--output={alone}'], tmp_path / 'windows-alone')
  want = read_windows(tmp_path / 'windows-alone')
  assert len(want) == 16 and [len(rows) for rows in want.values()] == [4] * 4 + [8] * 12
  parts = [read_windows(*(tmp_path / f'windows-{index}-{attempt}' for attempt in range(2)))
           for index in range(2)]
  assert {step: sorted(parts[0][step] + parts[1][step]) for step in want} == want
  windows = [row[1:] for rows in want.values() for row in rows]
  assert len(set(windows)) == len(windows)
  def losses(folder, split):
    lines = [json.loads(line) for line in (folder / 'metrics.jsonl').read_text().splitlines()]
    return {line['step']: line.get('mlm') for line in lines if line['split'] == split}
  for split, steps in (('train', range(1, 17)), ('heldout', (4, 8, 12, 16))):
    ours, theirs = losses(tmp_path / 'run', split), losses(alone, split)
    assert list(ours) == list(theirs) == list(steps)
    np.testing.assert_allclose(list(ours.values()), list(theirs.values()), rtol=2e-4)
  shutil.rmtree(tmp_path / 'run')
