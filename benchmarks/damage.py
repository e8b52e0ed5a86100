"""Flip random single bits in token records and classify each outcome, or time the checksums of checkpoints.

    python -m benchmarks.damage --flips=200 --what=records
    python -m benchmarks.damage --what=checkpoints

Token records are the tokens, sentences, checksums, records.json, the tokenizer and stored window starts (`.cuts`). Each
flip is done in a copy. `verify` checks the copy, and then everything that a run reads of records is read. A flip is
noticed if it ends with a one-line error that names the file. It is mended if the file is made again, with a warning
that names it, and the windows are the same. The exit status is 0 if no flip was silent and none led to another error.
"""
import argparse
import collections
import contextlib
import io
import logging
import os
import pathlib
import random
import shutil
import sys
import tempfile
import time
import unittest.mock

import jax
import numpy as np

from benchmarks.side_by_side import machine
from plm_jax import tokenizers
from plm_jax.checkpoints.checkpoint import Checkpoints
from plm_jax.cli import verify
from plm_jax.data import records
from plm_jax.data.windows import Windows
from plm_jax.errors import UserError
from plm_jax.preparation.prepare import PrepareConfig, prepare


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--flips', type=int, default=200)
  parser.add_argument('--what', choices=['records', 'checkpoints'], default='records',
                      help='checkpoints: the cost of their checksums; tests/checkpoints/test_checkpoint.py flips bits')
  parser.add_argument('--data', default='embedded', help='text to prepare')
  parser.add_argument('--seed', type=int, default=0)
  args = parser.parse_args()
  with tempfile.TemporaryDirectory() as scratch:
    os.environ['PLM_JAX_CACHE'] = f'{scratch}/cache'
    if args.what == 'checkpoints':
      price_of_checkpoints(pathlib.Path(scratch))
    else:
      sys.exit(of_records(pathlib.Path(scratch), args.data, args.flips, random.Random(args.seed)))


def of_records(scratch: pathlib.Path, data: str, flips: int, draw: random.Random) -> int:
  copy = scratch / 'copy'
  print(machine('numpy'))
  # Use little text in many shards, so that copies are quick. Damage all kinds of files equally often.
  few = scratch / 'few'
  with contextlib.redirect_stdout(sys.stderr):
    prepare(PrepareConfig(source=first_lines(data, scratch), vocab=1000, shard_tokens=20_000), few)
  expected = contents(few)
  kinds = collections.defaultdict(list)
  for path in sorted(path for path in few.rglob('*') if path.is_file()):
    kinds[kind_of(path.relative_to(few))].append(path.relative_to(few))
  came = collections.defaultdict(collections.Counter)
  warned = io.StringIO()
  logging.getLogger('plm_jax').addHandler(logging.StreamHandler(warned))
  for number in range(flips):
    kind = sorted(kinds)[number % len(kinds)]
    name = draw.choice(kinds[kind])
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(few, copy)
    content = bytearray((copy / name).read_bytes())
    place = draw.randrange(len(content))
    content[place] ^= 1 << draw.randrange(8)
    (copy / name).write_bytes(content)
    warned.truncate(0)
    seen = found(copy, name)
    what = outcome(copy, name, expected, warned) if seen else 'silent to verify'
    came[kind][what] += 1
    if what not in ('noticed', 'mended'):
      print(f'{name}, byte {place}: {what}', flush=True)
  return table(came)


def outcome(folder: pathlib.Path, name: pathlib.Path, expected: np.ndarray, warned: io.StringIO) -> str:
  """Read all records and return the outcome: noticed, mended, silent, without effect, or another error."""
  try:
    got = contents(folder)
  except UserError as error:
    return 'noticed' if name.name in str(error) and '\n' not in str(error) else f'unclear: {error}'
  except Exception as error:
    return f'{type(error).__name__}: {error}'
  if not np.array_equal(got, expected):
    return 'silent'
  return 'mended' if name.name in warned.getvalue() else 'without effect'


def found(folder: pathlib.Path, name: pathlib.Path) -> bool:
  said = io.StringIO()
  with contextlib.redirect_stdout(said):
    return not verify.verify(folder) and name.stem.partition('.')[0] in said.getvalue()


def table(came) -> int:
  """Print the outcomes by kind of file and return the exit status."""
  kinds = 'noticed', 'mended', 'without effect', 'silent'
  bad = 0
  print(f'\n| byte flipped in | {" | ".join(kinds)} | other errors |\n|---|---|---|---|---|---|')
  for kind, counts in sorted(came.items()):
    others = sum(counts.values()) - sum(counts[one] for one in kinds)
    print(f'| {kind} | {" | ".join(str(counts[one]) for one in kinds)} | {others} |')
    bad += counts['silent'] + others
  return int(bad > 0)


def contents(folder: pathlib.Path) -> np.ndarray:
  """Read everything that a run reads of records: the tokenizer, and all windows of both splits.

  Windows are read with two packing strategies, and concatenated to one array.
  """
  meta = records.read_meta(folder)
  tokenizer = tokenizers.load(folder / 'tokenizer')
  if tokenizer.hash != meta.tokenizer:
    raise records.RecordsError(f'{folder / "tokenizer"} is another')
  every = []
  for split in ('train', 'heldout'):
    for assembly in ('document', 'packed'):
      some = Windows(folder, split, 64, assembly)
      every += [array.ravel() for array in some.read(np.arange(len(some))).values()]
  return np.concatenate(every)


def kind_of(name: pathlib.Path) -> str:
  if len(name.parts) > 1:
    return name.parts[0]
  return {'sentences': 'sentences', 'crc': 'checksums'}.get(name.stem.rpartition('.')[2],
                                                           'records.json' if name.suffix == '.json' else 'tokens')


def first_lines(data: str, scratch: pathlib.Path) -> str:
  """Write the first documents of a source, at least 400,000 characters if it has them; return the path."""
  from plm_jax.sources import text_sources
  text, size = [], 0
  for document in text_sources.read_documents(data):
    text.append('\n'.join(document.paragraphs))
    size += len(text[-1])
    if size > 400_000:
      break
  path = scratch / 'few.txt'
  path.write_text('\n\n'.join(text))
  return str(path)


def price_of_checkpoints(scratch: pathlib.Path, megabytes: int = 300, rounds: int = 7) -> None:
  """Print CPU and wall-clock seconds for saving and restoring a state, with and without checksums."""
  state = {str(number): jax.random.normal(jax.random.key(number), (megabytes * 25_000,)) for number in range(10)}
  shapes = jax.eval_shape(lambda: state)
  places = jax.tree.map(lambda x: x.sharding, state)
  times = collections.defaultdict(list)
  for number in range(2 * rounds):
    with contextlib.ExitStack() as stack:
      kind = ('with', 'without')[number % 2]
      if kind == 'without':
        stack.enter_context(unittest.mock.patch.object(Checkpoints, 'sum_up', return_value=None))
      checkpoints = Checkpoints(scratch / f'{number}')
      clocks = time.process_time(), time.perf_counter()
      checkpoints.save(1, state, {})
      checkpoints.manager.wait_until_finished()
      times[kind, 'save'].append((time.process_time() - clocks[0], time.perf_counter() - clocks[1]))
      clocks = time.process_time(), time.perf_counter()
      checkpoints.verify(1)
      jax.block_until_ready(checkpoints.restore(1, shapes, places))
      times[kind, 'restore'].append((time.process_time() - clocks[0], time.perf_counter() - clocks[1]))
      checkpoints.close()
    shutil.rmtree(scratch / f'{number}')
  print(f'{machine("numpy")}\n\n{megabytes} MB, median of {rounds}, seconds\n\n'
        '| | with checksums: processor; clock | without | price |\n|---|---|---|---|')
  for what in ('save', 'restore'):
    mean, other = (np.median(times[kind, what], 0) for kind in ('with', 'without'))
    print(f'| {what} | {mean[0]:.2f}; {mean[1]:.2f} | {other[0]:.2f}; {other[1]:.2f} | '
          f'{mean[0] / other[0] - 1:+.1%}; {mean[1] / other[1] - 1:+.1%} |')


if __name__ == '__main__':
  main()
