"""Kills a run with SIGKILL at random moments, some inside a save, and gives the same command again until it ends.

    python -m benchmarks.kill_and_resume --kills=20 --inside-saves=5

Ends with 0 if every array of the last checkpoint, optimizer included, has the bits of a run that nothing disturbed.
"""
import argparse
import pathlib
import random
import subprocess
import sys
import tempfile
import time

import jax
import numpy as np
import orbax.checkpoint as ocp

RUN = [
    '--scale=test', '--mesh.data=1', '--train.save-every=5', '--train.log-every=1', '--train.eval-every=1000',
    '--model.block.width=192', '--model.block.mlp-dim=768', '--model.stack.layers=4', '--model.vocab=4096']


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--kills', type=int, default=20)
  parser.add_argument('--inside-saves', type=int, default=5)
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--data', default='embedded', help='text to train on')
  args = parser.parse_args()
  with tempfile.TemporaryDirectory() as scratch:
    sys.exit(prove(pathlib.Path(scratch), args.kills, args.inside_saves, random.Random(args.seed), args.data))


def prove(scratch: pathlib.Path, kills: int, inside_saves: int, draw: random.Random, data: str) -> int:
  # Long enough that every kill finds the run under way: steps are added with the kills.
  steps = [f'--train.phases.0.steps={30 * kills}', '--train.phases.1.steps=20', f'--data.path={data}']
  whole, torn = scratch / 'whole', scratch / 'torn'
  subprocess.run(command(whole, steps), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
  print(f'the undisturbed run ended at step {last_step(whole)}', flush=True)
  saves = 0
  moments = ['save'] * inside_saves + ['anywhere'] * (kills - inside_saves)
  draw.shuffle(moments)
  for number, moment in enumerate(moments, 1):
    process = subprocess.Popen(command(torn, steps), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    enough = lines(torn) + draw.randint(1, 25)
    wait_for(process, lambda enough=enough: lines(torn) >= enough)
    if moment == 'save':
      wait_for(process, lambda: saving(torn))
      time.sleep(draw.uniform(0, 0.02))
    else:
      time.sleep(draw.uniform(0, 0.5))
    inside = saving(torn)
    process.kill()
    status = process.wait()
    inside = inside or saving(torn)
    saves += inside
    print(f'kill {number}: status {status}, at step {last_line_step(torn)}, newest checkpoint {last_step(torn)}'
          f'{", inside a save" if inside else ""}', flush=True)
    if status != -9:
      print('the run ended before it was killed')
      return 1
  subprocess.run(command(torn, steps), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
  differing = compare(whole, torn)
  print(f'{kills} kills, {saves} inside a save; last steps {last_step(whole)} and {last_step(torn)}; '
        f'{len(differing)} arrays differ {differing[:5]}')
  return int(bool(differing) or saves < inside_saves or last_step(whole) != last_step(torn))


def command(folder: pathlib.Path, steps: list[str]) -> list[str]:
  return [sys.executable, '-m', 'experiments.bert_base', *RUN, *steps, f'--output={folder}']


def wait_for(process, condition) -> None:
  while process.poll() is None and not condition():
    time.sleep(0.001)


def saving(folder: pathlib.Path) -> bool:
  """Orbax writes a step under a temporary name."""
  return any('tmp' in path.name for path in (folder / 'checkpoints').glob('*'))


def lines(folder: pathlib.Path) -> int:
  path = folder / 'metrics.jsonl'
  return path.read_bytes().count(b'\n') if path.exists() else 0


def last_line_step(folder: pathlib.Path) -> str:
  text = (folder / 'metrics.jsonl').read_text().splitlines()
  return text[-1].split(',')[0].rpartition(' ')[2] if text else 'none'


def last_step(folder: pathlib.Path) -> int:
  steps = [int(path.name) for path in (folder / 'checkpoints').glob('*') if path.name.isdigit()]
  return max(steps, default=0)


def compare(a: pathlib.Path, b: pathlib.Path) -> list[str]:
  """Names of the arrays that are not the same to the bit."""
  states = []
  for folder in (a, b):
    path = folder.resolve() / 'checkpoints' / str(last_step(folder)) / 'state'
    states.append(jax.tree_util.tree_flatten_with_path(ocp.PyTreeCheckpointer().restore(path))[0])
  return [jax.tree_util.keystr(path) for (path, x), (_, y) in zip(*states, strict=True)
          if np.asarray(x).tobytes() != np.asarray(y).tobytes()]


if __name__ == '__main__':
  main()
