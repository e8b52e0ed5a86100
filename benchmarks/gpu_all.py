"""All measurements on an NVIDIA GPU in a given time, as one command.

    pip install "plm_jax[cuda,bench]"
    python -m benchmarks.gpu_all --minutes=10 --output=gpu.md
    python -m benchmarks.gpu_all --rehearse          # on a CPU: small models, without the peer

The parts run in the order of PARTS, so that the most important figures come first. A part is ended when the time is
out, and the parts that did not run are listed at the end. What a part prints is written to --output as it comes.
"""
import argparse
import contextlib
import pathlib
import subprocess
import sys
import time
from typing import NamedTuple

from benchmarks import gpu, gpu_step


class Part(NamedTuple):
  """A benchmark, and its arguments."""

  module: str
  arguments: tuple[str, ...]
  rehearsal: tuple[str, ...]
  """arguments on a CPU"""


STEPS = 'bert_128', 'gpt2', 'modernbert', 'bert_512', 't5'
PROFILED = 'gpt2', 'bert_128'
PARTS = (
    *(Part('gpu_step', ('--only', name, '--rounds=3'), ('--only', name, '--rounds=1', '--scale=test'))
      for name in STEPS),
    *(Part('gpu_step', ('--only', name, '--profile'), ('--only', name, '--profile', '--scale=test'))
      for name in PROFILED),
    *(Part('gpu', ('--recipe', name), ('--recipe', name, '--rehearse')) for name in gpu.RECIPES))


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--minutes', type=float, default=10)
  parser.add_argument('--rehearse', action='store_true', help='small models on a CPU, without the peer')
  parser.add_argument('--output', help='file to which the tables are written as well')
  args = parser.parse_args()
  if not args.rehearse and gpu_step.device_name() == gpu_step.NO_GPU:
    sys.exit('there is no NVIDIA GPU here: --rehearse runs the same parts on a CPU')
  end, left_out = time.monotonic() + 60 * args.minutes, []
  with contextlib.ExitStack() as stack:
    files = [sys.stdout]
    if args.output:
      files.append(stack.enter_context(pathlib.Path(args.output).open('w')))
    for part in PARTS:
      arguments = part.arguments
      if args.rehearse:
        arguments = part.rehearsal
      if not run(part.module, arguments, end - time.monotonic(), files):
        left_out.append(' '.join([part.module, *arguments]))
    for file in files:
      print(f'\nnot finished in {args.minutes:g} minutes: {", ".join(left_out) or "none"}', file=file, flush=True)


def run(module: str, arguments: tuple[str, ...], seconds: float, files: list) -> bool:
  """Run a benchmark and print its output; return whether it ended in time."""
  if seconds < 20:  # too little to compile anything
    return False
  command = [sys.executable, '-m', f'benchmarks.{module}', *arguments]
  try:
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    output, status = done.stdout, done.returncode
    if status:
      output += f'\nended with status {status}: {" ".join(done.stderr.splitlines()[-1:])}\n'
  except subprocess.TimeoutExpired as stopped:
    output, status = (stopped.stdout or b'').decode(), None
  for file in files:
    print(f'\n## {module} {" ".join(arguments)}\n\n{output}', file=file, flush=True)
  return status is not None


if __name__ == '__main__':
  main()
