"""Measure tokens per second per core: `prepare` compared with datasets.map and transformers' fast tokenizer.

    python -m benchmarks.prepare --text=corpus.txt                # or .txt.xz; about 100 MB of text
    python -m benchmarks.prepare --text=corpus.txt --processes=2

Needs the extra `bench`, and Linux for the peak memory. Both convert the same text to token ids with the same WordPiece
vocabulary, which is trained beforehand. plm_jax also splits sentences, hashes documents, marks words and holds out a
part of the text. datasets loads the text (one row per paragraph) and maps it in batches, without special tokens, masks
or truncation.

The measure is CPU time, user and system, of the process and its children, so that neither gains from a second core.
With --processes=2 both divide the text among two processes; then compare the seconds, too.

Every measurement runs in its own process. The first tenth of the text, and for plm_jax ten times the text, show how the
memory of a contestant's first process depends on the size: tables of words seen before fill up to a limit, and beyond
it nothing grows.
"""
import argparse
import contextlib
import json
import lzma
import os
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks.side_by_side import machine

CONTESTANTS = 'plm_jax', 'datasets'


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--text', required=True, help='a text file, plain or .xz')
  parser.add_argument('--rounds', type=int, default=3)
  parser.add_argument('--processes', type=int, default=1, help='processes of each contestant')
  parser.add_argument('--contestant', choices=['vocabulary', *CONTESTANTS], help=argparse.SUPPRESS)
  parser.add_argument('--vocabulary', type=pathlib.Path, help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.contestant:
    run = {'vocabulary': vocabulary, 'plm_jax': ours, 'datasets': theirs}[args.contestant]
    print(json.dumps(run(args.text, args.vocabulary, args.processes)))
    return
  with tempfile.TemporaryDirectory() as scratch:
    compare(pathlib.Path(args.text), pathlib.Path(scratch), args.rounds, args.processes)


def compare(text: pathlib.Path, scratch: pathlib.Path, rounds: int, processes: int) -> None:
  whole, tenth = scratch / 'whole.txt', scratch / 'tenth.txt'
  with lzma.open(text) if text.suffix == '.xz' else text.open('rb') as f:
    whole.write_bytes(f.read())
  content = whole.read_bytes()
  tenth.write_bytes(content[:content.index(b'\n\n', len(content) // 10) + 2])
  del content
  measure('vocabulary', str(tenth), scratch / 'vocabulary')
  print(machine('tokenizers', 'transformers', 'datasets'))
  print('\n| text | | tokens | seconds | ratio | CPU seconds | tokens per CPU second | ratio | peak memory |')
  print('|---|---|---|---|---|---|---|---|---|')
  for files, names, times in (
      ([tenth], CONTESTANTS, rounds), ([whole], CONTESTANTS, rounds), ([whole] * 10, CONTESTANTS[:1], 1)):
    runs = {name: [] for name in names}
    for _ in range(times):
      for name in names:
        runs[name].append(measure(name, ','.join(map(str, files)), scratch / 'vocabulary', processes))
    median = {
        name: {key: statistics.median(run[key] for run in some) for key in some[0]} for name, some in runs.items()}
    speed = {name: figures['tokens'] / figures['cpu'] for name, figures in median.items()}
    for name, figures in median.items():
      ratio = faster = ''
      if 'datasets' in speed:
        ratio = f'{speed[name] / speed["datasets"]:.2f}'
        faster = f'{median["datasets"]["seconds"] / figures["seconds"]:.2f}'
      print(f'| {sum(file.stat().st_size for file in files) / 1e6:.0f} MB | {name} | {figures["tokens"]:,.0f} | '
            f'{figures["seconds"]:.1f} | {faster} | {figures["cpu"]:.1f} | {speed[name]:,.0f} | {ratio} | '
            f'{figures["memory"] / 1024:,.0f} MiB |', flush=True)


def measure(contestant: str, text: str, vocabulary: pathlib.Path, processes: int = 1) -> dict[str, float]:
  process = subprocess.run(
      [sys.executable, '-m', 'benchmarks.prepare', f'--contestant={contestant}', f'--text={text}',
       f'--vocabulary={vocabulary}', f'--processes={processes}'], check=True, stdout=subprocess.PIPE, text=True)
  return json.loads(process.stdout.splitlines()[-1])


def vocabulary(text: str, folder: pathlib.Path, processes: int) -> dict:
  del processes
  from plm_jax.preparation.prepare import PrepareConfig, train_tokenizer

  train_tokenizer(PrepareConfig(source=text, sample=10_000_000)).save(folder)
  return {}


def ours(text: str, vocabulary: pathlib.Path, processes: int) -> dict[str, float]:
  from plm_jax.preparation.prepare import PrepareConfig, prepare

  with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(sys.stderr):
    began, used = time.perf_counter(), cpu_seconds()
    meta = prepare(PrepareConfig(source=text, tokenizer=str(vocabulary), workers=processes), scratch)
    return figures(meta.tokens('train') + meta.tokens('heldout'), began, used)


def theirs(text: str, vocabulary: pathlib.Path, processes: int) -> dict[str, float]:
  os.environ['TOKENIZERS_PARALLELISM'] = 'false'  # threads would use more CPU time, not less
  import datasets
  import transformers

  datasets.disable_progress_bars()
  tokenizer = transformers.AutoTokenizer.from_pretrained(str(vocabulary))
  with tempfile.TemporaryDirectory() as scratch:
    began, used = time.perf_counter(), cpu_seconds()
    lines: Any = datasets.load_dataset('text', data_files=text, split='train', cache_dir=scratch)
    ids = lines.map(
        lambda rows: tokenizer(rows['text'], add_special_tokens=False, return_attention_mask=False,
                               return_token_type_ids=False, verbose=False), batched=True, remove_columns=['text'],
        num_proc=processes if processes > 1 else None)
    result = figures(0, began, used)
    counts = (len(row) for rows in ids.with_format('numpy').iter(1000) for row in rows['input_ids'])
    return result | {'tokens': sum(counts)}


def figures(tokens: int, began: float, used: float) -> dict[str, float]:
  """Return the tokens, and the seconds and CPU seconds since `began` and `used`.

  `memory` is the peak resident memory in KiB of this process, not of the process that started it.
  """
  peak = re.search(r'VmHWM:\s*(\d+)', pathlib.Path('/proc/self/status').read_text())
  assert peak
  return {'tokens': tokens, 'seconds': time.perf_counter() - began, 'cpu': cpu_seconds() - used,
          'memory': int(peak.group(1))}


def cpu_seconds() -> float:
  spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
  return sum(usage.ru_utime + usage.ru_stime for usage in spent)


if __name__ == '__main__':
  main()
