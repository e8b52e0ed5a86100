"""Measure masked windows per second on the CPU: pipeline and jitted corruption compared with transformers' collator.

    python -m benchmarks.masked_windows
    python -m benchmarks.masked_windows --text=corpus.txt.xz

Needs the extra `bench`. Batches have 256 sequences of 128 tokens with [CLS] and [SEP], full of the same text with the
same vocabulary. plm_jax reads its records in shuffled order and corrupts windows with `MaskedLM`. For transformers, the
text is tokenized and chunked in advance into a `datasets` data set. A shuffling torch DataLoader reads it for
DataCollatorForLanguageModeling, with no workers and with two; ratios are to the faster one. Every round
starts a new stream, so that nothing is read before the clock starts.
"""
import argparse
import os
import pathlib
import tempfile
from typing import Any

from benchmarks.side_by_side import compare, contest, machine

ROWS, LENGTH = 256, 128
BATCHES = 400  # plm_jax batches per round, which take one or two seconds
OURS = {
    'mlm': 'pipeline and corruption', 'mlm-pipeline': 'the pipeline alone', 'mlm-corruption': 'the corruption alone',
    'nsp': 'pipeline and corruption, with NSP pairs', 'nsp-pipeline': 'the pipeline alone',
    'nsp-corruption': 'the corruption alone, with NSP pairs'}
THEIRS = {'transformers-0': 'DataLoader without workers', 'transformers-2': 'DataLoader with 2 workers'}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--text', default='embedded', help='text file, or any other source of prepare')
  parser.add_argument('--rounds', type=int, default=6)
  parser.add_argument('--contestant', choices=[*OURS, *THEIRS], help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.contestant in OURS:
    ours(args.text, *args.contestant.partition('-')[::2])
  elif args.contestant:
    theirs(args.text, int(args.contestant.removeprefix('transformers-')))
  else:
    prepared(args.text)
    result = compare('benchmarks.masked_windows', [*OURS, *THEIRS], ['--text', args.text], args.rounds)
    speed = {name: figures['windows'] / figures['median'] for name, figures in result.items()}
    peer = max(speed[name] for name in THEIRS)
    print(machine('jax', 'numpy', 'transformers', 'torch', 'datasets'))
    print('\n| | | windows/s | times transformers |\n|---|---|---|---|')
    for name, text in (OURS | THEIRS).items():
      who = 'plm_jax' if name in OURS else 'transformers'
      print(f'| {who} | {text} | {speed[name]:,.0f} | {speed[name] / peer:.1f} |')


def prepared(text: str):
  """Prepare the records of the text in the cache, unless they are there; return their folder and tokenizer."""
  from plm_jax.preparation.prepare import PrepareConfig, prepare, records_folder
  from plm_jax.tokenizers import load

  config = PrepareConfig(source=text, sample=10_000_000)
  folder = records_folder(config)
  if not (folder / 'records.json').exists():
    prepare(config, folder)
  return folder, load(folder / 'tokenizer')


def ours(text: str, question: str, part: str) -> None:
  """Time plm_jax as a contestant.

  Args:
    text: source of the text.
    question: `mlm` or `nsp`.
    part: `pipeline`, `corruption`, or '' for both.
  """
  import jax

  from plm_jax.data.pipeline import open_pipeline
  from plm_jax.data.window_rules import WindowRule
  from plm_jax.objectives.mlm import MaskedLM
  from plm_jax.objectives.row_builders import NextSentence, Single

  folder, tokenizer = prepared(text)
  objective = MaskedLM(NextSentence() if question == 'nsp' else Single())
  # NSP pairs are made of the sentences of one document. Without NSP, windows are packed full, like the peer's.
  pipeline = open_pipeline(
      [folder], WindowRule('document' if question == 'nsp' else 'packed', objective.text_length(LENGTH)), ROWS)
  corrupt = jax.jit(lambda key, windows: objective.corrupt(key, windows, tokenizer.vocab))
  key, batch = jax.random.key(0), pipeline.batch(0)
  jax.block_until_ready(corrupt(key, batch))

  def work():
    rows = None
    for windows in [batch] * BATCHES if part == 'corruption' else pipeline.stream(0, BATCHES):
      if part != 'pipeline':
        before, rows = rows, corrupt(key, windows)
        jax.block_until_ready(before)  # corrupt one batch while the next one is fetched
    jax.block_until_ready(rows)

  work()
  contest({'windows': ROWS * BATCHES}, work, 1)


def theirs(text: str, workers: int) -> None:
  os.environ['TOKENIZERS_PARALLELISM'] = 'false'  # with workers, it would only print warnings
  import datasets
  import numpy as np
  import torch
  import transformers

  from plm_jax.data import records

  folder, _ = prepared(text)
  tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder / 'tokenizer'))
  shards = records.read_meta(folder).train
  ids = np.concatenate([np.load(folder / f'{shard.name}.npy')['token'] for shard in shards])
  count = len(ids) // (LENGTH - 2) // ROWS * ROWS
  rows = np.empty((count, LENGTH), np.int64)
  rows[:, 0], rows[:, -1] = tokenizer.cls_token_id, tokenizer.sep_token_id
  rows[:, 1:-1] = ids[:count * (LENGTH - 2)].reshape(count, LENGTH - 2)
  with tempfile.TemporaryDirectory() as scratch:
    # The data set is on disk, as after `map`. It has no attention masks: the collator does not need them, and they
    # would make it slower.
    datasets.Dataset.from_dict({'input_ids': list(rows)}).save_to_disk(pathlib.Path(scratch) / 'rows')
    data: Any = datasets.load_from_disk(str(pathlib.Path(scratch) / 'rows'))
    loader = torch.utils.data.DataLoader(
        data, ROWS, shuffle=True, num_workers=workers, persistent_workers=workers > 0,
        collate_fn=transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15))
    passes = max(1, round(20_000 / count))

    def work():
      for _ in range(passes):
        for batch in loader:
          assert batch['labels'].shape == (ROWS, LENGTH)

    work()
    contest({'windows': passes * count}, work, 1)


if __name__ == '__main__':
  main()
