"""What pre-training is good for in an encoder: real tasks, learned from a pre-trained run and from nothing.

    python -m benchmarks.real_tasks --data=DIR --english=runs/en --chinese=runs/zh
    python -m benchmarks.real_tasks --data=DIR --english=runs/en --tasks cola btc --strategies

DIR has the files that TASKS names, at any depth. Both arms have the same model, tokenizer, examples, order, steps and
learning rate; only the first parameters differ. Short examples share rows. --strategies compares instead what of a
pre-trained model is trained: all, LoRA, its top layer, or only the head on features that were computed once. Each arm
is a process: its memory is the most that it held (which the process without a run holds too: see the line `nothing`).
What was found is kept in the folder of the runs, and not run again.
"""
import argparse
import json
import pathlib
import resource
import statistics
import subprocess
import sys
import time
from typing import Any, NamedTuple

from benchmarks.side_by_side import machine


class Real(NamedTuple):
  """A task and its files."""

  task: str
  train: str
  dev: str
  measure: str
  epochs: float
  length: int = 64
  chinese: bool = False


TASKS = {
    'cola': Real('cola', 'cola_train.tsv.gz', 'cola_dev.tsv.gz', 'matthews', 3),
    'sst2': Real('sst2', 'sst2_train.tsv.gz', 'sst2_dev.tsv.gz', 'accuracy', 0.25),
    'stsb': Real('stsb', 'stsb_train.tsv.gz', 'stsb_dev.tsv.gz', 'spearman', 3),
    'sick': Real('sick', 'sick_train.tsv.gz', 'sick_test.tsv.gz', 'accuracy', 3),
    'btc': Real('btc', 'btc_train.conll.gz', 'btc_dev.conll.gz', 'f1', 3),
    'squad': Real('answers', 'squad_v1.1_train_part.json.gz', 'squad_v1.1_devA.json.gz', 'f1', 1, 192),
    'dream': Real('dream', 'dream_train.jsonl.gz', 'dream_dev.jsonl.gz', 'accuracy', 0.34, 160),
    'chnsenticorp': Real(
        'chnsenticorp', 'chnsenticorp_train.tsv.gz', 'chnsenticorp_dev.tsv.gz', 'accuracy', 1, 128, True),
    'weibo': Real('weibo', 'weibo_ner_train.conll.gz', 'weibo_ner_dev.conll.gz', 'f1', 10, 128, True),
}
STRATEGIES: dict[str, list[str]] = {
    'all': [],
    'LoRA, rank 8': ['--tuning.adapter.kind=lora', '--optim.peak=2e-3'],
    'top layer': ['--tuning.top=1'],
    'head': ['--tuning.top=0', '--optim.peak=2e-3'],
}
ARMS: dict[str, list[str]] = {'from nothing': ['--warm-start='], 'pre-trained': []}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--data', required=True, help='folder of the files')
  parser.add_argument('--english', help='run of an encoder that was pre-trained')
  parser.add_argument('--chinese', help='the same of Chinese')
  parser.add_argument('--tasks', nargs='*', choices=TASKS, default=[*TASKS])
  parser.add_argument('--strategies', action='store_true')
  parser.add_argument('--seeds', type=int, default=3)
  parser.add_argument('--peak', default='2e-4', help='learning rate of every arm that does not say its own')
  parser.add_argument('--output', default='runs/real_tasks', help='folder of the runs')
  parser.add_argument('--arm', help=argparse.SUPPRESS)
  args, given = parser.parse_known_args()
  if args.arm is not None:
    report(json.loads(args.arm))
    return
  if given:
    parser.error(f'not known: {" ".join(given)}')
  print(machine('jax'))
  arms = STRATEGIES if args.strategies else ARMS
  print('\n| task | measure | arm | mean | standard deviation | trained parameters | seconds a run | memory |')
  print('|---' * 8 + '|')
  if args.strategies:
    print(f'| - | - | nothing | | | | | {run([])["memory"] / 1024:,.0f} MiB |', flush=True)
  for name in args.tasks:
    real = TASKS[name]
    start = args.chinese if real.chinese else args.english
    if not start:
      continue
    for arm, options in arms.items():
      folder = f'{args.output}/{name}-{arm.replace(" ", "-").replace(",", "")}-{args.peak}'
      found = run([
          f'--init={start}', f'--task={real.task}', f'--train={place(args.data, real.train)}',
          f'--dev={place(args.data, real.dev)}', f'--seeds={args.seeds}', f'--data.epochs={real.epochs}',
          f'--train.phases.0.length={real.length}', '--train.phases.0.batch=32',
          f'--data.pack={real.task != "dream"}', '--data.evaluations=1', f'--optim.peak={args.peak}',
          '--optim.bias-correction=True', '--model.block.dropout=0.1', '--model.block.attention.dropout=0.1',
          f'--output={folder}', *options,
          *(['--objective.stride=64'] if real.task == 'answers' else [])], real.measure, f'{folder}.json')
      scores = found['scores']
      print(f'| {name} | {real.measure} | {arm} | {statistics.mean(scores):.2f} | '
            f'{statistics.stdev(scores) if len(scores) > 1 else 0.0:.2f} | {found["trained"]:,} | '
            f'{found["seconds"]:.0f} | {found["memory"] / 1024:,.0f} MiB |', flush=True)


def place(data: str, name: str) -> pathlib.Path:
  """Finds a file under a folder."""
  found = next(iter(sorted(pathlib.Path(data).expanduser().rglob(name))), None)
  if found is None:
    sys.exit(f'{data} has no {name}')
  return found


def run(command: list[str], measure: str = '', kept: str = '') -> dict[str, Any]:
  """Runs `finetune` in a process of its own, or nothing -> what `report` prints, which is kept in a file."""
  if kept and (file := pathlib.Path(kept)).exists():
    return json.loads(file.read_text())
  done = subprocess.run(
      [sys.executable, '-m', 'benchmarks.real_tasks', '--data=', '--arm', json.dumps([command, measure])], check=True,
      stdout=subprocess.PIPE, text=True)
  found = done.stdout.splitlines()[-1]
  if kept:
    pathlib.Path(kept).write_text(found)
  return json.loads(found)


def report(given: tuple[list[str], str]) -> None:
  """Runs the command, and prints its scores (a seed each), numbers trained, seconds a run and KiB that it held."""
  from plm_jax.cli import finetune
  from plm_jax.training import selection
  from plm_jax.training.learner import selection as select

  command, measure = given
  config, seeds = finetune.parse('', command or ['--task=classification', '--scale=test'], '')
  begun = time.perf_counter()
  results = finetune.several(config, seeds) if command else []
  if command and len(results) < seeds:
    sys.exit(f'{config.folder} was interrupted: the same command goes on from there')
  print(json.dumps({
      'scores': [result.heldout[measure] for result in results],
      'trained': selection.trained(select(config), results[0].params) if results else 0,
      'seconds': (time.perf_counter() - begun) / seeds,
      'memory': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}))


if __name__ == '__main__':
  main()
