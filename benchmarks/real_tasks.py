"""Compare fine-tuning an encoder on real tasks from a pre-trained run and from scratch.

    python -m benchmarks.real_tasks --data=DIR --english=runs/en --chinese=runs/zh
    python -m benchmarks.real_tasks --data=DIR --english=runs/en --tasks cola btc --strategies

DIR has the files that TASKS names, at any depth. Both arms use the same model, tokenizer, examples, order, steps and
learning rate; only the initial parameters differ. Short examples are packed (sequence packing), except for DREAM.

--strategies instead compares which parameters of a pre-trained model are trained: all, LoRA, the top layer, or only
the head on features that are computed once.

Each arm runs in its own process, and `memory` is the peak memory of that process. A process without a run uses memory
too: see the line `nothing`. Results are saved in the folder of the runs and are not computed again.
"""
import argparse
import statistics
from typing import NamedTuple

from benchmarks import kept
from benchmarks.side_by_side import machine


class Real(NamedTuple):
  """A task, its files and its settings."""

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
FINETUNED = 'benchmarks.kept:finetuned'
ARMS: dict[str, list[str]] = {'from scratch': ['--warm-start='], 'pre-trained': []}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--data', required=True, help='folder of the files')
  parser.add_argument('--english', help='run of a pre-trained English encoder')
  parser.add_argument('--chinese', help='run of a pre-trained Chinese encoder')
  parser.add_argument('--tasks', nargs='*', choices=TASKS, default=[*TASKS])
  parser.add_argument('--strategies', action='store_true')
  parser.add_argument('--seeds', type=int, default=3)
  parser.add_argument('--peak', default='2e-4', help='peak learning rate of arms without their own')
  parser.add_argument('--output', default='runs/real_tasks', help='folder of the runs')
  args = parser.parse_args()
  print(machine('jax'))
  arms = STRATEGIES if args.strategies else ARMS
  print('\n| task | measure | arm | mean | standard deviation | trained parameters | seconds per run | memory |')
  print('|---' * 8 + '|')
  if args.strategies:
    print(f'| - | - | nothing | | | | | {kept.run(FINETUNED, ([], ""))["memory"] / 1024:,.0f} MiB |', flush=True)
  for name in args.tasks:
    real = TASKS[name]
    start = args.chinese if real.chinese else args.english
    if not start:
      continue
    for arm, options in arms.items():
      folder = f'{args.output}/{name}-{arm.replace(" ", "-").replace(",", "")}-{args.peak}'
      command = [*tuning(real, args.data, start, args.peak), f'--seeds={args.seeds}', f'--output={folder}', *options]
      found = kept.run(FINETUNED, (command, real.measure), f'{folder}.json')
      scores = found['scores']
      print(f'| {name} | {real.measure} | {arm} | {statistics.mean(scores):.2f} | '
            f'{statistics.stdev(scores) if len(scores) > 1 else 0.0:.2f} | {found["trained"]:,} | '
            f'{found["seconds"]:.0f} | {found["memory"] / 1024:,.0f} MiB |', flush=True)


def tuning(real: Real, data: str, start: str, peak: str) -> list[str]:
  """Return the `finetune` arguments that all arms share.

  Args:
    real: task to train on.
    data: folder of the files.
    start: run whose model and tokenizer are used.
    peak: peak learning rate.
  """
  return [
      f'--init={start}', '--scale=paper', f'--task={real.task}', f'--train={kept.place(data, real.train)}',
      f'--dev={kept.place(data, real.dev)}', f'--data.epochs={real.epochs}', f'--train.phases.0.length={real.length}',
      '--train.phases.0.batch=32', f'--data.pack={real.task != "dream"}', '--data.evaluations=1',
      f'--optim.peak={peak}', '--optim.bias-correction=True', '--model.block.dropout=0.1',
      '--model.block.attention.dropout=0.1',
      *(['--objective.stride=64'] if real.task == 'answers' else [])]


if __name__ == '__main__':
  main()
