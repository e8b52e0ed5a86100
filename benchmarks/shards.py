"""Measure how long a run with three phases takes to open records of many shards, and its memory and open files.

    python -m benchmarks.shards --shards=10000 --tokens=4194304 --sentences=1000

The token files are sparse files of zeros. Their sizes, checksums and bytes are read like those of any other records.
Window counts are stored with the records, as `prepare` does for the phases that it knows. In the rows `not counted`
the run has to compute them, as for older records or for other phases.
"""
import argparse
import contextlib
import dataclasses
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

from benchmarks.side_by_side import machine

PHASES = 128, 512, 1024
VOCAB = 50_000
OPENINGS = (('packed', 'first'), ('packed', 'second'), ('document', 'prepared'), ('document', 'first'),
            ('document', 'second'), ('document', 'not counted'))


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--shards', type=int, default=10_000)
  parser.add_argument('--tokens', type=int, default=1 << 22, help='tokens per shard')
  parser.add_argument('--sentences', type=int, default=1000, help='sentences per shard')
  parser.add_argument('--bucket', action='store_true', help='put the records into a bucket on loopback')
  parser.add_argument('--open', default='', help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.open:
    measure(*args.open.split(','))
    return
  print(machine('numpy'))
  print('\n| shards | assembly | opening | seconds | open files | memory MiB | first batch of 256, s |\n'
        '|---|---|---|---|---|---|---|')
  for shards in (args.shards // 100, args.shards):
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
      folder, environment, bucket = scratch, {**os.environ, 'PLM_JAX_CACHE': f'{scratch}/cache'}, None
      if args.bucket:
        bucket = stack.enter_context(on_loopback(pathlib.Path(scratch)))
        folder, environment = 'gs://bucket/records', environment | bucket.environment
        fill(bucket, pathlib.Path(scratch), shards, args.tokens, args.sentences)
      else:
        make(pathlib.Path(scratch), shards, args.tokens, args.sentences)
      for assembly, which in OPENINGS:
        if which == 'not counted':
          forget(pathlib.Path(scratch), bucket)
        command = [sys.executable, '-m', 'benchmarks.shards', f'--open={folder},{assembly},{which}']
        subprocess.run(command, env=environment, check=True, stderr=subprocess.DEVNULL)


def make(folder: pathlib.Path, number: int, tokens: int, sentences: int) -> None:
  """Write records of `number` identical shards."""
  from plm_jax.data import records
  from plm_jax.storage import checksums
  starts = np.zeros(sentences, records.SENTENCE_DTYPE)
  starts['start'] = np.arange(sentences) * (tokens // sentences)
  starts['document'] = np.arange(sentences) // 10
  entry = records.write_shard(folder, 'train-00000', np.zeros(tokens, records.token_dtype(VOCAB)), starts)
  contents = {kind: (folder / f'train-00000{kind}.npy').read_bytes() for kind in ('.sentences', '.crc')}
  head, size = records.npy_header(records.token_dtype(VOCAB), tokens), (folder / 'train-00000.npy').stat().st_size
  entries = []
  for shard in range(number):
    name = f'train-{shard:05d}'
    with open(folder / f'{name}.npy', 'wb') as file:
      file.write(head)
      file.truncate(size)
    for kind, content in contents.items():
      (folder / f'{name}{kind}.npy').write_bytes(content)
    entries.append(records.Shard(name, tokens, sentences, entry.documents, entry.sentences_crc, entry.blocks_crc))
  assert checksums.crc(contents['.crc']) == entry.blocks_crc
  records.write_meta(folder, records.RecordsMeta(VOCAB, 'hash', tuple(entries), (), 'holes'))


def on_loopback(scratch: pathlib.Path):
  """Return the bucket server that the tests use."""
  sys.path.append(str(pathlib.Path(__file__).parents[1] / 'tests/helpers'))
  from bucket import Bucket
  return Bucket(scratch)


def fill(bucket, scratch: pathlib.Path, number: int, tokens: int, sentences: int) -> None:
  """Put the same records into a bucket that holds one shard under many names."""
  from plm_jax.data import records
  make(scratch, 1, tokens, sentences)
  meta = records.read_meta(scratch)
  entries = tuple(dataclasses.replace(meta.train[0], name=f'train-{shard:05d}') for shard in range(number))
  records.write_meta(scratch, dataclasses.replace(meta, train=entries))
  bucket.put('records/records.json', (scratch / 'records.json').read_bytes())
  for kind in ('', '.sentences', '.crc'):
    content = (scratch / f'train-00000{kind}.npy').read_bytes()
    for entry in entries:
      bucket.put(f'records/{entry.name}{kind}.npy', content)


def forget(scratch: pathlib.Path, bucket) -> None:
  """Delete the stored window counts and the cache."""
  for folder in (scratch / 'windows', scratch / 'cache'):
    shutil.rmtree(folder, ignore_errors=True)
  for name in bucket.names('records/windows') if bucket else []:
    del bucket.objects[name]


def store_counts(folder: str, rules) -> None:
  """Store window counts as `prepare` does, for identical shards."""
  from plm_jax import storage
  from plm_jax.data import records, shards, window_counts
  meta = records.read_meta(folder)
  some = shards.Shards(storage.resolve_path(folder), meta, 'train')
  for rule in rules:
    window_counts.store_counts(
      some, rule, window_counts.sum_counts([rule.count_windows(some.sentences(0), meta.train[0])] * len(meta.train))
    )


def measure(folder: str, assembly: Any, which: str) -> None:
  from plm_jax import storage
  from plm_jax.data import records, window_counts
  from plm_jax.data.pipeline import Pipeline
  from plm_jax.data.window_rules import WindowRule
  from plm_jax.data.windows import Windows
  rules = [WindowRule(assembly, length) for length in PHASES]
  if which == 'prepared':
    store_counts(folder, rules)
    return
  resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
  if storage.is_remote(folder):  # start the clients, which takes seconds for any number of shards
    storage.read_text(f'{folder}/records.json')
    storage.read_range(f'{folder}/records.json', 0, 1)
  before = files(), memory()
  began = time.perf_counter()
  window_counts.count_missing(storage.resolve_path(folder), records.read_meta(folder), rules)
  phases = [Windows(folder, 'train', length, assembly) for length in PHASES]
  opened = time.perf_counter() - began
  began = time.perf_counter()
  Pipeline(phases[:1], batch=256).read(0, 64)
  first = time.perf_counter() - began
  for phase in phases[1:]:
    Pipeline([phase], batch=256).read(0, 4)
  meta = phases[0].meta
  print(f'| {len(meta.train):,} ({meta.tokens("train") / 1e9:.1f} G tokens) | {assembly} | {which} | {opened:.1f} | '
        f'{files() - before[0]} | {memory() - before[1]:.0f} | {first:.1f} |', flush=True)


def files() -> int:
  return len(os.listdir('/proc/self/fd'))


def memory() -> float:
  """Return the anonymous resident memory of the process in MiB.

  Pages of mapped files are not counted: the system reclaims them when it needs memory elsewhere.
  """
  lines = pathlib.Path('/proc/self/status').read_text().splitlines()
  return int(next(line for line in lines if line.startswith('RssAnon')).split()[1]) / 1024


if __name__ == '__main__':
  main()
