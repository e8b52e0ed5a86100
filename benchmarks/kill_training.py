"""Kill a run with SIGKILL at random moments, many inside a save, and resume it with the same command until it ends.

    python -m benchmarks.kill_training --kills=40 --inside-saves=20 --in-bucket=6 --together=10

Some kills hit a run in a bucket (tests/helpers/bucket.py). Before some kills the command is started twice at once: one
process has to resume the run, the other has to report which process uses the folder. Exits with status 0 if every array
of the last checkpoints, including the optimizer state, is bit-identical to that of an undisturbed run, and no process
is left running.
"""
import argparse
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time

import jax
import numpy as np
import orbax.checkpoint as ocp

RUN = [
    '--scale=test', '--mesh.data=1', '--train.save-every=5', '--train.log-every=1', '--train.eval-every=100000',
    '--model.block.width=192', '--model.block.mlp-dim=768', '--model.vocab=512', '--data.prepare.heldout=0.1']
ADVANCE = 25  # maximum number of steps between two kills
WORDS = ['the', 'small', 'large', 'array', 'matrix', 'value', 'is', 'was', 'in', 'copy', 'list', 'order', 'memory']
PATIENCE = 240  # seconds within which one of two simultaneous runs has to end, including its start


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--kills', type=int, default=40)
  parser.add_argument('--inside-saves', type=int, default=20, help='number of kills during a save')
  parser.add_argument('--in-bucket', type=int, default=6, help='number of kills of a run in a bucket')
  parser.add_argument('--together', type=int, default=10, help='number of kills with two runs started at once')
  parser.add_argument('--seed', type=int, default=0)
  args = parser.parse_args()
  draw = random.Random(args.seed)
  os.environ |= {  # most of the time is spent on starting
      'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0', 'XLA_FLAGS': '--xla_backend_optimization_level=0'}
  with tempfile.TemporaryDirectory() as scratch:
    text = pathlib.Path(scratch) / 'text.txt'
    text.write_text(''.join(f'{" ".join(draw.choices(WORDS, k=draw.randint(5, 12)))}.\n{blank}'
                            for _ in range(4000) for blank in ['\n' * (draw.random() < 0.1)]))
    lanes = [OnDisk(pathlib.Path(scratch) / 'torn')]
    saves, pairs = ([True] * n + [False] * (args.kills - n) for n in (args.inside_saves, args.together))
    draw.shuffle(saves)
    draw.shuffle(pairs)
    moments = list(zip(saves, pairs, strict=True))
    parts = [moments[args.in_bucket:]]
    if args.in_bucket:
      lanes.append(InBucket(pathlib.Path(scratch)))
      parts.append(moments[:args.in_bucket])
    failed = [prove(lane, part, pathlib.Path(scratch) / f'whole-{number}', draw, str(text))
              for number, (lane, part) in enumerate(zip(lanes, parts, strict=True))]
  sys.exit(any(failed))


class OnDisk:
  """Run folder on the local disk."""

  def __init__(self, folder: pathlib.Path):
    self.folder, self.name, self.environment = folder, str(folder), {}

  def metrics(self) -> list[bytes]:
    path = self.folder / 'metrics.jsonl'
    return path.read_bytes().split(b'\n')[:-1] if path.exists() else []

  def saving(self) -> bool:
    """Return whether a save is under way: Orbax writes a step under a temporary name."""
    return any('tmp' in path.name for path in (self.folder / 'checkpoints').glob('*'))

  def local(self) -> pathlib.Path:
    return self.folder


class InBucket:
  """Run folder in a bucket on a local server."""

  def __init__(self, scratch: pathlib.Path):
    sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / 'tests/helpers'))
    from bucket import Bucket
    (scratch / 'server').mkdir()
    self.bucket = Bucket(scratch / 'server').__enter__()
    self.environment, self.name, self.copy = self.bucket.environment, 'gs://bucket/torn', scratch / 'copy'

  def metrics(self) -> list[bytes]:
    names = self.bucket.names('torn/metrics.jsonl')
    return self.bucket.read(names[0]).split(b'\n')[:-1] if names else []

  def saving(self) -> bool:
    """Return whether a save is under way: Orbax writes commit_success.txt at the end of a step."""
    names = set(self.bucket.names('torn/checkpoints/'))
    steps = {match[0] for name in names if (match := re.match(r'torn/checkpoints/\d+/', name))}
    return any(f'{step}commit_success.txt' not in names for step in steps)

  def local(self) -> pathlib.Path:
    for name in self.bucket.names('torn/checkpoints/'):
      if not name.endswith('/'):
        path = self.copy / name.removeprefix('torn/')
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.bucket.read(name))
    return self.copy


def prove(lane, moments: list[tuple[bool, bool]], whole: pathlib.Path, draw: random.Random, data: str) -> bool:
  """Kill and resume a run, and compare its end with an undisturbed run.

  Args:
    lane: folder of the run that is killed.
    moments: for each kill, whether it is inside a save, and whether two runs are started at once before it.
    whole: folder of the undisturbed run.
    draw: source of randomness.
    data: path of the text.

  Returns:
    Whether something went wrong.
  """
  # Long enough that every kill hits an unfinished run: the number of steps grows with the number of kills.
  options = [f'--train.phases.0.steps={ADVANCE * len(moments)}', '--train.phases.1.steps=10', f'--data.path={data}']
  subprocess.run(command(str(whole), options), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
  print(f'{lane.name}: the run without kills ended at step {last_step(whole)}', flush=True)
  inside_saves = 0
  for number, (in_save, twice) in enumerate(moments, 1):
    began = time.monotonic()
    processes = [start(lane, options) for _ in range(1 + twice)]
    process = alone(processes) if twice else processes[0]
    if process is None:
      return True
    enough = len(lane.metrics()) + draw.randint(1, 8)
    wait_for(process, lambda enough=enough: len(lane.metrics()) >= enough)
    if in_save:
      wait_for(process, lane.saving)
      time.sleep(draw.uniform(0, 0.02))
    else:
      time.sleep(draw.uniform(0, 0.2))
    inside = lane.saving()
    process.kill()
    status = process.wait()
    inside = inside or lane.saving()
    inside_saves += inside
    lines = lane.metrics()
    print(f'kill {number}: status {status}, at step {json.loads(lines[-1])["step"] if lines else "none"}'
          f'{", inside a save" if inside else ""}{", with a second run in the folder" if twice else ""}, '
          f'{time.monotonic() - began:.0f} s', flush=True)
    time.sleep(0.1)
    if status != -9 or (left := left_behind(lane.name)):
      print('the run ended before it was killed' if status != -9 else f'left behind: {left}',
            process.stderr.read() if process.stderr else '')
      return True
  subprocess.run(command(lane.name, options), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                 env={**os.environ, **lane.environment})
  torn = lane.local()
  differing = compare(whole, torn)
  print(f'{lane.name}: {len(moments)} kills, {inside_saves} inside a save, {sum(twice for _, twice in moments)} with a '
        f'second run in the folder; last steps {last_step(whole)} and {last_step(torn)}; '
        f'{len(differing)} arrays differ {differing[:5]}')
  steps = [json.loads(line)['step'] for line in lane.metrics() if b'"train"' in line]
  print(f'metrics.jsonl has each step once: {steps == list(range(1, last_step(whole) + 1))}', flush=True)
  wanted = sum(in_save for in_save, _ in moments)
  return bool(differing) or inside_saves < wanted or last_step(whole) != last_step(torn)


def command(folder: str, options: list[str]) -> list[str]:
  return [sys.executable, '-m', 'experiments.bert_base', *RUN, *options, f'--output={folder}']


def start(lane, options: list[str]) -> subprocess.Popen:
  errors = tempfile.TemporaryFile('w+')  # noqa: SIM115
  process = subprocess.Popen(command(lane.name, options), stdout=subprocess.DEVNULL, stderr=errors,
                             env={**os.environ, **lane.environment})
  process.stderr = errors
  return process


def alone(processes: list[subprocess.Popen]) -> subprocess.Popen | None:
  """Return the one of two simultaneous runs that continues, after the other has ended and named its process id.

  Returns:
    None if they did not end so; both are then killed.
  """
  until = time.monotonic() + PATIENCE
  while time.monotonic() < until and all(process.poll() is None for process in processes):
    time.sleep(0.05)
  ended = [process for process in processes if process.poll() is not None]
  said = ''
  for process in ended:
    process.stderr.seek(0)
    said += process.stderr.read()
  named = re.search(r'is in use by a run \(process (\d+) ', said)
  living = [process for process in processes if process not in ended]
  if [process.returncode for process in ended] == [1] and named and int(named[1]) == living[0].pid and (
      'Traceback' not in said):
    return living[0]
  print(f'two runs in one folder: {len(ended)} of them ended: {said}')
  for process in processes:
    process.kill()
  return None


def left_behind(name: str) -> list[str]:
  """Return the ids of the processes with this output folder in their command."""
  found = []
  for path in pathlib.Path('/proc').glob('[0-9]*/cmdline'):
    try:
      words = path.read_bytes().split(b'\0')
    except OSError:
      continue
    if f'--output={name}'.encode() in words:
      found.append(path.parent.name)
  return found


def wait_for(process, condition) -> None:
  while process.poll() is None and not condition():
    time.sleep(0.002)


def last_step(folder: pathlib.Path) -> int:
  steps = [int(path.name) for path in (folder / 'checkpoints').glob('*') if path.name.isdigit()]
  return max(steps, default=0)


def compare(a: pathlib.Path, b: pathlib.Path) -> list[str]:
  """Return the names of the arrays in the last checkpoints that are not bit-identical."""
  states = []
  for folder in (a, b):
    path = folder.resolve() / 'checkpoints' / str(last_step(folder)) / 'state'
    states.append(jax.tree_util.tree_flatten_with_path(ocp.PyTreeCheckpointer().restore(path))[0])
  return [jax.tree_util.keystr(path) for (path, x), (_, y) in zip(*states, strict=True)
          if np.asarray(x).tobytes() != np.asarray(y).tobytes()]


if __name__ == '__main__':
  main()
