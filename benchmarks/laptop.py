"""Estimate the minutes that the laptop scale of each family takes, from the speed of its first steps.

    python -m benchmarks.laptop
    python -m benchmarks.laptop gpt2_small deberta_base --steps 60

One recipe per family is trained on the built-in corpus. Each runs in its own process, as a user would start it, and
stops after the given number of steps. The speed is measured on the second half of the steps. The time outside the steps
(imports, tokenizer and records if they are not cached yet, compilation, the report) is the rest of the run, and is
counted once. Student models need a teacher and are left out.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks.side_by_side import machine
from plm_jax import recipes

FAMILIES = (
    'bert_base', 'roberta_base', 'xlm_r_base', 'albert_base', 'spanbert_base', 'deberta_base',
    'deberta_v3_base', 'electra_small', 'xlnet_base', 'elmo_small', 'modernbert_base', 'neobert_base',
    'mosaicbert_base', 'cramming_base', 'ltg_bert_strict', 'gpt_base', 'gpt2_small', 'llama_7b', 'palm_8b',
    'glm_base', 't5_small', 't5_v1_1_small', 'byt5_small', 'bart_base')


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('recipes', nargs='*', default=FAMILIES)
  parser.add_argument('--steps', type=int, default=100, help='timed steps')
  args = parser.parse_args()
  print(machine('jax', 'flax'))
  print('\n| recipe | objective | steps | tokens per second | minutes | minutes outside the steps |\n' + '|---' * 6 + '|')
  for name in args.recipes:
    run = recipes.find_recipe(name)('laptop')
    phase = run.train.phases[0]
    began = time.perf_counter()
    lines = timed(name, args.steps, min(run.optim.warmup, args.steps))
    seconds = time.perf_counter() - began
    pace = statistics.median(line['tokens_per_second'] for line in lines[len(lines) // 2:])
    step = phase.batch * phase.length / pace
    around = max(0.0, seconds - args.steps * step)
    print(f'| {name} | {type(run.objective).__name__} | {run.train.steps:,} | {pace:,.0f} | '
          f'{(run.train.steps * step + around) / 60:.1f} | {around / 60:.1f} |', flush=True)


def timed(name: str, steps: int, warmup: int) -> list[dict]:
  """Train a recipe for `steps` steps, the first `warmup` of them with a rising learning rate; return its log lines."""
  with tempfile.TemporaryDirectory() as folder:
    subprocess.run([sys.executable, '-m', 'plm_jax', 'train', name, '--scale=laptop', f'--train.phases.0.steps={steps}',
                    f'--optim.warmup={warmup}', f'--output={folder}/run', '--train.log-every=10'], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    lines = map(json.loads, pathlib.Path(folder, 'run', 'metrics.jsonl').read_text().splitlines())
    return [line for line in lines if 'tokens_per_second' in line]


if __name__ == '__main__':
  main()
