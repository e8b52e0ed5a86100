"""Compare scores with the published settings in plm_jax and in transformers' Trainer, over several seeds.

    python -m benchmarks.finetune_scores --data DIR --run runs/en

Needs the extra `bench` with accelerate, and somewhere in DIR sst2_ and stsb_train.tsv.gz and _dev.tsv.gz. Both start
from one pre-trained run, an encoder with BERT's architecture: transformers loads its export, `plm_jax finetune` starts
from the run itself. Both use BERT's published settings (Devlin et al. 2019, A.3): 3 epochs with a batch size of 32, a
learning rate with warmup over a tenth of the steps and linear decay, weight decay of 0.01 on matrices, gradients
clipped to 1, dropout 0.1. Adam has bias correction, as in the Trainer. Each library shuffles, samples dropout and
initializes its head in its own way. transformers reads the files with its own tokenizer. --peak sets the peak learning
rate: a model that was pre-trained for an hour needs a higher one than 2e-5.
"""
import argparse
import contextlib
import gzip
import pathlib
import statistics
import sys
import tempfile
from typing import Any

import numpy as np

from benchmarks import kept
from benchmarks.side_by_side import machine
from benchmarks.training_step import torch_ready

MEASURES = {'sst2': 'accuracy', 'stsb': 'pearson'}
COLUMNS = {'sst2': ('sentence',), 'stsb': ('sentence1', 'sentence2')}
DROPOUT = 0.1
# BERT's settings, for encoders of every family: RoBERTa's differ in all of them.
SETTINGS = ('--train.phases.0.batch=32', '--data.warmup=0.1', '--optim.schedule=linear', '--optim.floor=0',
            '--optim.b2=0.999', '--optim.eps=1e-6', '--optim.weight-decay=0.01', '--optim.clip=1')


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--data', required=True, help='folder of the files')
  parser.add_argument('--run', required=True, help='run of a pre-trained encoder')
  parser.add_argument('--tasks', nargs='*', choices=MEASURES, default=[*MEASURES])
  parser.add_argument('--seeds', type=int, default=3, help='number of seeds')
  parser.add_argument('--first', type=int, default=0, help='first seed')
  parser.add_argument('--examples', type=int, default=10_000, help='maximum number of training examples')
  parser.add_argument('--epochs', type=int, default=3)
  parser.add_argument('--peak', type=float, default=2e-5)
  args = parser.parse_args()
  torch_ready()
  print(machine('jax', 'torch', 'transformers'))
  print('\n| task | measure | examples | plm_jax | transformers | difference | its standard error |')
  print('|---' * 7 + '|')
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    export(args.run, folder / 'exported')
    for task in args.tasks:
      train = head(args.data, f'{task}_train.tsv.gz', folder, args.examples)
      dev = head(args.data, f'{task}_dev.tsv.gz', folder, 1_000_000)
      with contextlib.redirect_stdout(sys.stderr):
        seeds = range(args.first, args.first + args.seeds)
        ours = [here(args, task, train, dev, seed, folder) for seed in seeds]
        theirs = [there(args, task, train, dev, seed, folder) for seed in seeds]
      error = np.sqrt(sum(statistics.variance(some) / len(some) for some in (ours, theirs)))
      print(f'| {task} | {MEASURES[task]} | {len(rows(train)):,} | {kept.shown(ours)} | {kept.shown(theirs)} | '
            f'{statistics.mean(ours) - statistics.mean(theirs):+.2f} | {error:.2f} |', flush=True)


def head(data: str, name: str, folder: pathlib.Path, limit: int) -> pathlib.Path:
  """Write the header and the first `limit` rows of a gzipped file uncompressed to `folder`; return the path."""
  found = next(iter(sorted(pathlib.Path(data).expanduser().rglob(name))), None)
  if found is None:
    sys.exit(f'{data} has no {name}')
  lines = gzip.decompress(found.read_bytes()).decode().splitlines(keepends=True)
  out = folder / name.removesuffix('.gz')
  out.write_text(''.join(lines[:limit + 1]))
  return out


def rows(file: pathlib.Path) -> list[dict[str, str]]:
  names, *lines = [line.split('\t') for line in file.read_text().rstrip('\n').split('\n')]
  return [dict(zip(names, line, strict=True)) for line in lines]


def export(run: str, folder: pathlib.Path) -> None:
  import plm_jax

  plm_jax.export(run, folder)


def here(args: Any, task: str, train: pathlib.Path, dev: pathlib.Path, seed: int, folder: pathlib.Path) -> float:
  """Fine-tune with plm_jax; return the score of the last step on the development set."""
  from plm_jax.cli import finetune

  config, _ = finetune.parse('', [
      f'--init={args.run}', '--scale=paper', f'--task={task}', f'--train={train}', f'--dev={dev}',
      f'--data.epochs={args.epochs}',
      f'--optim.peak={args.peak}', '--optim.bias-correction=True', f'--seed={seed}', '--train.best=', *SETTINGS,
      f'--model.block.dropout={DROPOUT}', f'--model.block.attention.dropout={DROPOUT}',
      f'--output={folder}/{task}-{seed}'], '')
  result, = finetune.run_seeds(config, 1)
  return result.heldout[MEASURES[task]]


def there(args: Any, task: str, train: pathlib.Path, dev: pathlib.Path, seed: int, folder: pathlib.Path) -> float:
  """Fine-tune with transformers; return the score of the last step on the development set.

  Pearson's correlation is computed by scipy.
  """
  from scipy import stats
  import torch
  import transformers

  number, label = (float, 'score') if task == 'stsb' else (int, 'label')
  start = folder / 'exported'
  tokenizer = transformers.AutoTokenizer.from_pretrained(start)
  def encoded(file: pathlib.Path) -> Any:
    return [{**tokenizer(*(row[name] for name in COLUMNS[task]), truncation=True, max_length=128),
             'labels': number(row[label])} for row in rows(file)]
  torch.manual_seed(seed)
  model = transformers.AutoModelForSequenceClassification.from_pretrained(
      start, num_labels=1 if task == 'stsb' else 2, hidden_dropout_prob=DROPOUT, attention_probs_dropout_prob=DROPOUT)
  trainer = transformers.Trainer(
      model=model, train_dataset=encoded(train), data_collator=transformers.DataCollatorWithPadding(tokenizer),
      args=transformers.TrainingArguments(
          output_dir=str(folder / 'trainer'), per_device_train_batch_size=32, num_train_epochs=args.epochs,
          learning_rate=args.peak, warmup_steps=0.1, weight_decay=0.01, adam_epsilon=1e-6, max_grad_norm=1.0,
          seed=seed, use_cpu=True, save_strategy='no', report_to=[], disable_tqdm=True))
  trainer.train()
  asked = encoded(dev)
  answers = np.asarray(trainer.predict(asked).predictions)
  labels = np.array([example['labels'] for example in asked])
  if task == 'stsb':
    return 100 * float(stats.pearsonr(answers.ravel(), labels)[0])  # pyright: ignore
  return 100 * float((answers.argmax(-1) == labels).mean())


if __name__ == '__main__':
  main()
