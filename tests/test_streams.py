"""Standard streams that are closed, full, broken or not UTF-8, in separate processes."""
import os
import pathlib
import pty
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PROGRAM = """
import os, sys
from plm_jax import errors, streams
with streams.protect(), streams.protect(tolerant=sys.argv[1] == 'tolerant'), errors.exit_on_error():
  file = open(sys.argv[2], 'w')
  assert file.fileno() > 2
  for number in range(3):
    print('a line of the results', flush=number == 1)
    print('a line of progress', file=sys.stderr)
  file.write('complete')
"""


def run(kind, output, shell='"$@"', **options):
  """Run PROGRAM by a shell command that changes its streams: returns its status, output, messages,
  file."""
  env = {**os.environ, 'PYTHONPATH': str(ROOT)}
  done = subprocess.run(['bash', '-c', shell, 'bash', sys.executable, '-c', PROGRAM, kind, output],
                        env=env, capture_output=True, text=True, timeout=60, **options)
  return done.returncode, done.stdout, done.stderr, output.read_text() if output.exists() else ''


@pytest.mark.parametrize(('shell', 'warning'), [
    ('"$@"', ''), ('"$@" 2>/dev/full', ''), ('"$@" 2>&-', ''), ('"$@" <&- >&- 2>&-', ''),
    ('"$@" >&-', ''),
    ('"$@" >/dev/full', 'warning: standard output cannot be written: No space left on device\n'),
    ('"$@" >/dev/full 2>&1', ''), ('"$@" > >(exec true)', ''), ('"$@" 2> >(exec true)', ''),
    ('ulimit -f 0; trap "" XFSZ; "$@" > log', None)])
def test_work_saved_in_files_finishes_with_any_streams(shell, warning, tmp_path):
  output = '/dev/null' if warning is None else tmp_path / 'file'
  status, _, said, written = run('tolerant', pathlib.Path(output), shell, cwd=tmp_path)
  assert status == 0
  assert warning is None or written == 'complete'
  assert said.replace('a line of progress\n', '') == (
      'warning: standard output cannot be written: File too large\n' if warning is None
      else warning)


@pytest.mark.parametrize(('shell', 'status', 'error'), [
    ('"$@" 2>&-', 0, ''), ('"$@" 2>/dev/full', 0, ''),
    ('"$@" >/dev/full', 1, 'error: standard output: No space left on device\n'),
    ('"$@" >&-', 1, 'error: standard output: it is closed\n'),
    ('"$@" > >(exec true)', 1, '')])
def test_unprintable_results_are_an_error_and_a_closed_pipe_ends_silently(
    shell, status, error, tmp_path):
  code, _, said, _ = run('strict', tmp_path / 'file', f'sleep 0.2; {shell}')
  assert (code, said.replace('a line of progress\n', '')) == (status, error)


@pytest.mark.parametrize(('encoding', 'printed'), [
    ('ascii', rb'"sch\u00f6n \u96fb \ud83d\ude00 \udcff"'),
    ('latin-1', b'"sch\xf6n \\u96fb \\ud83d\\ude00 \\udcff"'),
    ('utf-8', '"schön 電 😀 \\udcff"'.encode())])
def test_characters_outside_the_encoding_are_escaped_as_in_json(encoding, printed):
  program = ("from plm_jax import streams\nwith streams.protect():\n"
             "  print('\"schön 電 😀 \\udcff\"')")
  done = subprocess.run([sys.executable, '-c', program], capture_output=True, timeout=60,
                        env={**os.environ, 'PYTHONPATH': str(ROOT), 'PYTHONIOENCODING': encoding})
  assert (done.stdout, done.stderr) == (printed + b'\n', b'')


def test_a_closed_terminal_ends_nothing(tmp_path):
  """Its last reader is gone, and writes end in EIO."""
  program = ('import sys, time\nfrom plm_jax import streams\nwith streams.protect(tolerant=True):\n'
             '  print("ready", flush=True)\n  sys.stdin.read(1)\n'
             '  print("more", flush=True)\n  print("more", file=sys.stderr)\n  open("done", "w")')
  own, theirs = pty.openpty()
  process = subprocess.Popen([sys.executable, '-c', program], stdin=subprocess.PIPE, stdout=theirs,
                             stderr=theirs,
                             cwd=tmp_path, env={**os.environ, 'PYTHONPATH': str(ROOT)})
  os.close(theirs)
  assert os.read(own, 5) == b'ready'
  os.close(own)
  process.communicate(b'x', timeout=60)
  assert process.returncode == 0 and (tmp_path / 'done').exists()


def test_a_slow_reader_of_a_nonblocking_pipe_gets_everything():
  program = ('import os\nfrom plm_jax import streams\nos.set_blocking(1, False)\nwith '
             'streams.protect():\n'
             '  print("x" * 1_000_000)')
  done = subprocess.run(['bash', '-c', '"$@" | (sleep 0.3; wc -c)', 'bash', sys.executable, '-c',
                         program],
                        capture_output=True, text=True, timeout=60,
                        env={**os.environ, 'PYTHONPATH': str(ROOT)})
  assert (done.stdout.strip(), done.stderr) == ('1000001', '')
