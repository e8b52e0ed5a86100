"""Measure examples per second of fine-tuning and of prediction, next to transformers' Trainer, on the CPU.

    python -m benchmarks.finetune_speed --data DIR
    python -m benchmarks.finetune_speed --data DIR --what predict --rows short

Needs the extra `bench` with accelerate, and somewhere in DIR sst2_train.tsv.gz. The model is a BERT of 4 layers,
256 wide, with random parameters and a vocabulary size of 8,000, for sequence classification in float32 with dropout 0.1
and a batch size of 32. `short` are sentences of SST-2 at their natural length. `128` are several sentences joined and
truncated to 128 tokens. Both libraries get tokenized examples. They build batches, compute gradients, clip them and
update with AdamW. transformers pads a batch to its longest sequence. plm_jax pads to one of a few lengths, and takes
the examples in random order, grouped by length, or packed into sequences of 128. A round is --steps updates, or
predictions for as many batches. Compilation is not counted but reported: the seconds by which the first round exceeds
the median, and the number of shapes. The last columns show the CPU seconds of a round: compare these if other programs
run on the machine.
"""
import argparse
import contextlib
import dataclasses
import itertools
import json
import pathlib
import sys
import tempfile
import time
from typing import Any

from benchmarks.side_by_side import compare, contest, machine, spread

OURS: Any = {'plm_jax': {}, 'plm_jax by length': {'by_length': True}, 'plm_jax packed': {'pack': True}}
THEIRS = 'transformers'
LAYERS, WIDTH, PIECES, LENGTH, BATCH = 4, 256, 8000, 128, 32


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--data', required=True, help='folder with sst2_train.tsv.gz, at any depth')
  parser.add_argument('--what', choices=('train', 'predict'), nargs='*', default=['train', 'predict'])
  parser.add_argument('--rows', choices=('short', '128'), nargs='*', default=['short', '128'])
  parser.add_argument('--steps', type=int, default=32, help='batches per round')
  parser.add_argument('--rounds', type=int, default=6)
  parser.add_argument('--contestant', choices=(*OURS, THEIRS), help=argparse.SUPPRESS)
  parser.add_argument('--folder', help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.contestant:
    (theirs if args.contestant == THEIRS else ours)(args)
    return
  print(machine('jax', 'torch', 'transformers'))
  print('\n| | rows | contestant | examples per second | ratio | shapes | compilation | CPU seconds | least to most | ratio |\n'
        + '|---' * 10 + '|')
  for what, rows in itertools.product(args.what, args.rows):
    with tempfile.TemporaryDirectory() as folder:
      write(pathlib.Path(folder), args.data, rows, args.steps * BATCH)
      given = ['--data', args.data, '--what', what, '--rows', rows, '--steps', str(args.steps), '--folder', folder]
      names = [name for name in OURS if rows == 'short' or name == 'plm_jax'] + [THEIRS]
      found = compare('benchmarks.finetune_speed', names, given, args.rounds)
    for name in names:
      figures = found[name]
      print(f'| {what} | {rows} | {name} | {args.steps * BATCH / figures["median"]:,.0f} | '
            f'{found[THEIRS]["median"] / figures["median"]:.2f} | {figures["shapes"] or "-"} | '
            f'{max(0.0, figures["first"] - figures["median"]):.1f} s | {figures["cpu"]:.2f} | {spread(figures)} | '
            f'{found[THEIRS]["cpu"] / figures["cpu"]:.2f} |', flush=True)


def write(folder: pathlib.Path, data: str, rows: str, examples: int) -> None:
  """Write examples sampled from SST-2, the same for all contestants, and a tokenizer trained on its texts."""
  import gzip
  import random

  from plm_jax import tokenizers

  file = next(iter(sorted(pathlib.Path(data).expanduser().rglob('sst2_train.tsv.gz'))), None)
  if file is None:
    sys.exit(f'{data} has no sst2_train.tsv.gz')
  lines = [line.split('\t') for line in gzip.decompress(file.read_bytes()).decode().splitlines()[1:]]
  tokenizers.train_wordpiece([text for _, text in lines], PIECES).save(folder / 'tokenizer')
  random.Random(0).shuffle(lines)
  size = 1 if rows == 'short' else 20
  joined = [(lines[at % len(lines)][0], ' '.join(lines[(at + n) % len(lines)][1] for n in range(size)))
            for at in range(examples)]
  (folder / 'train.jsonl').write_text(''.join(json.dumps({'text': text, 'label': label}) + '\n'
                                              for label, text in joined))


def run_of(args):
  """Return the run of the recipe and its tokenizer."""
  from plm_jax import tokenizers
  from plm_jax.config.run import Phase
  from plm_jax.models import bert
  from plm_jax.recipes import finetune

  model = bert.base()
  model = model.resize(dataclasses.replace(model.block, width=WIDTH, heads=WIDTH // 64, mlp_dim=4 * WIDTH), LAYERS,
                        PIECES, LENGTH)
  file = f'{args.folder}/train.jsonl'
  config = finetune.recipe('sst2', finetune.InitialModel(model=model), train=(file,), dev=(file,))
  loop = dataclasses.replace(config.train, phases=(Phase(args.steps, LENGTH, BATCH),), best='')
  data = dataclasses.replace(config.data, epochs=0.0, **OURS.get(args.contestant, {}))
  return dataclasses.replace(config, data=data, train=loop), tokenizers.load(f'{args.folder}/tokenizer')


def ours(args) -> None:
  """Time training or prediction with plm_jax on the feed of the run, as its training loop does."""
  import jax

  from plm_jax import environment, sharding
  from plm_jax.finetuning.setup import resolve_run
  from plm_jax.training.learner import make_learner
  from plm_jax.training.step import jit_train_step, make_sharded_init

  environment.keep_memory()  # as a run does
  config, tokenizer = run_of(args)
  ready = resolve_run(config, tokenizer)
  config, mesh = ready.config, sharding.make_mesh(ready.config.mesh)
  with jax.set_mesh(mesh):
    learner, feed = make_learner(config, tokenizer.vocab), ready.open_feed(mesh)
    make, _, layout = make_sharded_init(learner, feed.first_window(), mesh)
    state, step, shapes = make(), jit_train_step(learner, layout), set()
    evaluate = feed.make_evaluator(learner, mesh)

    def train():
      nonlocal state
      for _, phase, windows in feed.stream(0, mesh):
        shapes.add((phase.batch, phase.length))
        state, numbers = step(state, windows)
        jax.block_until_ready(numbers)  # as the loop does on the CPU

    def predict():
      evaluate(state.params, config.train.phases[-1])

    work = train if args.what == ['train'] else predict
    contest({'first': timed(work), 'shapes': len(shapes)}, work, 1)


def theirs(args) -> None:
  """Time training or prediction with transformers' Trainer, with a collator that pads."""
  import transformers

  from benchmarks.training_step import torch_ready
  from plm_jax.finetuning.setup import resolve_run

  torch = torch_ready()
  config, tokenizer = run_of(args)
  ready = resolve_run(config, tokenizer)
  features = ready.train.features
  rows = [{'input_ids': features.tokens[number].tolist(), 'labels': int(features.values['label'][number])}
          for number in range(len(features))]

  def collate(batch):
    longest = max(len(row['input_ids']) for row in batch)
    ids = torch.tensor([row['input_ids'] + [0] * (longest - len(row['input_ids'])) for row in batch])
    labels = torch.tensor([row['labels'] for row in batch])
    return {'input_ids': ids, 'attention_mask': (ids > 0).long(), 'labels': labels}

  model = transformers.BertForSequenceClassification(transformers.BertConfig(
      vocab_size=tokenizer.vocab.size, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=WIDTH // 64,
      intermediate_size=4 * WIDTH, max_position_embeddings=LENGTH))
  settings = transformers.TrainingArguments(
      output_dir=f'{args.folder}/trainer', per_device_train_batch_size=BATCH, per_device_eval_batch_size=BATCH,
      max_steps=args.steps, learning_rate=config.optim.peak, weight_decay=0.01, report_to=[], save_strategy='no',
      logging_strategy='no', disable_tqdm=True, use_cpu=True)
  trainer = transformers.Trainer(model=model, args=settings, train_dataset=rows, data_collator=collate)

  def work():
    with contextlib.redirect_stdout(sys.stderr):  # the parent process reads stdout
      trainer.train() if args.what == ['train'] else trainer.predict(rows)

  contest({'first': timed(work), 'shapes': 0}, work, 1)


def timed(work) -> float:
  began = time.perf_counter()
  work()
  return time.perf_counter() - began


if __name__ == '__main__':
  main()
