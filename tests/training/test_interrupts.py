"""Real signals to real commands: finished work is saved, the exit status means "run it again", and
one line reports it."""
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
import tuned

import plm_jax

pytestmark = pytest.mark.slow
ROOT = pathlib.Path(__file__).parents[2]
TRAINING = '--scale=test', '--output=run', '--train.log-every=1', '--train.save-every=1000000'
FINETUNING = (
    'finetune', '--task=classification', '--train=x.tsv', '--dev=x.tsv', '--data.epochs=0',
    '--train.phases.0.steps=1000000', '--train.eval-every=1000000', '--data.no-baseline', *TRAINING)
# (signal, arguments, what its messages or the files of its folder show when it has begun)
COMMANDS = {
    'train': (signal.SIGUSR1, ('train', 'gpt2_small', '--data.path=text.txt',
                               '--train.phases.0.steps=1000000',
                               '--train.eval-every=1000000', *TRAINING), 'step 2 of'),
    'finetune': (signal.SIGHUP, FINETUNING, 'step 2 of'),
    'sweep': (signal.SIGXCPU, (*FINETUNING, '--sweep=learning-rate=1e-4,1e-3'), 'step 2 of'),
    'vectors': (signal.SIGUSR2, ('train', 'word2vec', '--data.path=text.txt',
                                 '--train.epochs=1000000', *TRAINING),
                'call 2 of'),
    'prepare': (signal.SIGTERM, ('prepare', 'long.txt', 'out', '--kind=bytes', '--workers=1'),
                'out/journal.json'),
    'clean': (signal.SIGUSR1, ('clean', 'long.txt', 'out', '--workers=1',
                               '--shard-characters=100000'), 'out/.work-*/*.json'),
    'predict': (signal.SIGINT, ('predict', 'model', 'x.txt', '--output=y.jsonl'),
                'y.jsonl.part.jsonl')}


def write_inputs(folder):
  """Write texts, labeled rows and a model."""
  lines = [f'A cat number {number} sat on the mat. It is a good film, and a long story.\n'
           for number in range(400)]
  (folder / 'text.txt').write_text('\n'.join(lines))
  (folder / 'long.txt').write_text('\n'.join(lines) * 200)
  (folder / 'x.tsv').write_text('text\tlabel\n' + 'a fine film\tgood\na dull film\tbad\n' * 8)
  (folder / 'x.txt').write_text('a fine film\n' * 40_000)
  plm_jax.export(tuned.trained('classification'), folder / 'model')


def has_begun(folder, sign):
  """Tell whether a command has saved, or can save, something."""
  if sign.endswith('.part.jsonl'):
    return (folder / sign).exists() and len((folder / sign).read_text().splitlines()) > 2
  return any(folder.glob(sign)) or sign in (folder / 'messages').read_text()


@pytest.mark.parametrize('name', [
    pytest.param(name, marks=[pytest.mark.release] * (name in ('sweep', 'vectors', 'clean')))
    for name in COMMANDS])
def test_a_signal_stops_a_command_after_it_saved_its_work(name, tmp_path):
  """Its standard output is a full disk."""
  write_inputs(tmp_path)
  number, args, sign = COMMANDS[name]
  with open('/dev/full', 'w') as full, open(tmp_path / 'messages', 'w') as messages:
    # Under nohup, the tests ignore SIGHUP, and so would the command.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    process = subprocess.Popen(
        [sys.executable, '-m', 'plm_jax', *args], cwd=tmp_path, stdout=full, stderr=messages,
        env={**os.environ, 'PYTHONPATH': str(ROOT), 'XLA_FLAGS': ''})
    signal.signal(signal.SIGHUP, before)
    try:
      until = time.monotonic() + 500
      while not has_begun(tmp_path, sign) and process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
      process.send_signal(number)
      status = process.wait(300)
    finally:
      process.kill()
  said = (tmp_path / 'messages').read_text()
  assert status == 75, said
  assert 'Traceback' not in said
  if name in ('prepare', 'clean', 'predict'):
    # Where standard output is noticed to be full depends on what was printed before.
    *_, last = (line for line in said.splitlines() if 'standard output cannot' not in line)
    assert last.endswith('interrupted: the same command resumes' if name == 'predict' else
                         f'stopped by {number.name}: the same command resumes')
  else:
    assert 'and saved: the same command resumes from there' in said
    assert len([*tmp_path.glob('run/*/*/checkpoints/*' if name == 'sweep'
                               else 'run/checkpoints/*')]) == 1
