"""A process beside the tests whose clients ask the bucket on loopback: it runs what it is told, and
says what came.

    with Client(bucket) as client:
      client.ask("storage.read_text('gs://bucket/name')")
      client.command('plm_jax', 'fill-mask', 'gs://bucket/run', 'A [MASK].')
"""
import contextlib
import importlib
import io
import json
import os
import pathlib
import subprocess
import sys
from typing import Any


class Failed(Exception):
  """Error raised in the client process: 'StorageError: gs://...'."""


class Client:
  """A process that is started at once and runs requests one after the other."""

  def __init__(self, bucket, **environment: str):
    self.errors = bucket.folder / f'client-{len(list(bucket.folder.iterdir()))}.log'
    self.process = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=self.errors.open('w'),
        text=True, env={**os.environ, **bucket.environment, **environment})

  def __enter__(self) -> 'Client':
    return self

  def __exit__(self, *error: Any) -> None:
    self.process.kill()
    self.process.communicate()

  def ask(self, code: str) -> Any:
    """The value of an expression, or None of statements, run in the client's process. Raises
    Failed."""
    self.process.stdin.write(json.dumps(code) + '\n')
    self.process.stdin.flush()
    line = self.process.stdout.readline()
    if not line:
      raise Failed(f'ended with {self.process.wait()}: {self.errors.read_text()[-2000:]}')
    value, raised = json.loads(line)
    if raised:
      raise Failed(raised)
    return value

  def command(self, module: str, *arguments: str) -> tuple[Any, str]:
    """python -m plm_jax ... or plm_jax train NAME -> (its exit status, or the message instead; its
    output)."""
    return tuple(self.ask(f'command({module!r}, {[*map(str, arguments)]!r})'))


def command(module: str, arguments: list[str]) -> tuple[Any, str]:
  output, status = io.StringIO(), 0
  with contextlib.redirect_stdout(output):
    try:
      if module == 'plm_jax':
        sys.argv = ['plm_jax', *arguments]
        importlib.import_module('plm_jax.cli.commands').main()
      else:
        importlib.import_module('plm_jax.cli.run').start(module, arguments)
    except SystemExit as ended:
      status = ended.code
  return status, output.getvalue()


def serve() -> None:
  answers = os.fdopen(os.dup(1), 'w')
  os.dup2(2, 1)  # what else is printed
  names: dict[str, Any] = {'command': command}
  exec('from plm_jax import storage; from plm_jax.storage import gcs, lock, bucket_check', names)
  for line in sys.stdin:
    code, value, raised = json.loads(line), None, ''
    try:
      try:
        compiled = compile(code, 'asked', 'eval')
      except SyntaxError:
        exec(compile(code, 'asked', 'exec'), names)
      else:
        value = eval(compiled, names)
    except Exception as error:
      raised = f'{type(error).__name__}: {error}'
    answers.write(json.dumps([value, raised],
                             default=lambda other: other.decode() if isinstance(other, bytes)
                             else os.fspath(other) if isinstance(other, os.PathLike)
                             else repr(other)) + '\n')
    answers.flush()


if __name__ == '__main__':
  sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
  serve()
