"""Measure the benefit of pre-training: T5 at laptop scale on a mixture of tasks, pre-trained and from scratch.

    python -m plm_jax train t5_small --scale=laptop
    python -m benchmarks.transfer --pretrained=runs/t5_small-laptop \\
        --task sst2 sst2_train.tsv sst2_dev.tsv 0.4 --task sick sick_train.tsv sick_test.tsv 0.3 \\
        --task summarize dialogsum_train.jsonl dialogsum_dev.jsonl 0.3

Both runs are t5_small_tasks at --scale=laptop with the same tokenizer, examples, order and steps. --task takes the name
of a task (plm_jax/sources/text_to_text_tasks.py), its training file, its evaluation file, and its share of the examples.
"""
import argparse
import collections
import dataclasses

from benchmarks.side_by_side import machine
from plm_jax import recipes
from plm_jax.config.run import Phase
from plm_jax.evaluation import text_to_text
from plm_jax.evaluation.text_to_text import ReadingConfig, TextPrediction
from plm_jax.loading import loaded_model
from plm_jax.loading.generation_config import GenerationConfig
from plm_jax.runs.run import run
from plm_jax.sources import text_to_text_tasks


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--pretrained', required=True, help='folder of the pre-trained run')
  parser.add_argument('--task', nargs=4, action='append', required=True, metavar=('NAME', 'TRAIN', 'ASKED', 'SHARE'))
  parser.add_argument('--steps', type=int, default=1500)
  parser.add_argument('--peak', type=float, default=0.01, help='peak learning rate of both arms')
  parser.add_argument('--limit', type=int, default=1000, help='evaluated examples per task')
  parser.add_argument('--output', default='runs/transfer', help='folder for both runs')
  args = parser.parse_args()
  recipe = recipes.find_recipe('t5_small_tasks')('laptop')
  recipe = dataclasses.replace(
      recipe,
      data=dataclasses.replace(
          recipe.data, path=tuple(f'task:{name}:{train}' for name, train, *_ in args.task),
          weights=tuple(float(share) for *_, share in args.task),
          prepare=dataclasses.replace(recipe.data.prepare, tokenizer=args.pretrained)),
      optim=dataclasses.replace(recipe.optim, peak=args.peak),
      train=dataclasses.replace(
          recipe.train, phases=tuple(Phase(args.steps, phase.length, phase.batch) for phase in recipe.train.phases),
          eval_every=args.steps // 3, save_every=args.steps))
  arms = {'from scratch': '', 'pre-trained': args.pretrained}
  found: dict[tuple[str, str, str], float] = {}
  for arm, start in arms.items():
    folder = f'{args.output}/{arm.replace(" ", "-")}'
    run(dataclasses.replace(recipe, warm_start=start, output=folder))
    trained = loaded_model.load_model(folder)
    for name, _, asked, _ in args.task:
      result = text_to_text.evaluate_text_to_text(
          trained, f'task:{name}:{asked}', GenerationConfig(max_new=48),
          ReadingConfig(recipe.train.phases[-1].length, limit=args.limit))
      found |= {(name, metric, arm): value for metric, value in result.metrics.items()}
      # Majority-class baseline: the most frequent target for every example.
      most = collections.Counter(some.example.targets[0] for some in result.predictions).most_common(1)[0][0]
      same = [TextPrediction(some.example, most) for some in result.predictions]
      always = text_to_text.compute_metrics(text_to_text_tasks.parse_task(f'task:{name}:{asked}'), same)
      found |= {(name, metric, 'one answer to all'): value for metric, value in always.items()}
  print(machine('jax'))
  columns = ['one answer to all', *arms]
  print('\n'.join(['', f'| task | metric | {" | ".join(columns)} |', '|---' * (2 + len(columns)) + '|']))
  for name, metric in dict.fromkeys((name, metric) for name, metric, _ in found):
    print(f'| {name} | {metric} | {" | ".join(f"{found[name, metric, column]:.1f}" for column in columns)} |')


if __name__ == '__main__':
  main()
