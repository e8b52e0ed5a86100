"""Count the requests and bytes that a workflow, from text to a report, sends to a bucket, with and without faults.

    python -m benchmarks.bucket

Counts are printed per step of the workflow. Needs the folder `tests` of the checkout: its server on loopback replaces
Google Cloud Storage. A real run uses the same clients: TensorFlow's, tensorstore's and Google's. The exit status is
0 if the models trained with and without faults are bit-identical.
"""
import argparse
import contextlib
import gzip
import json
import pathlib
import random
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / 'tests/helpers'))
from bucket import Bucket, Fault
from bucket_client import Client, Failed

RUN = ('--scale=test', '--data.path=gs://bucket/records', '--mesh.data=1', '--train.save-every=2')
KILLED = """
import os
from plm_jax.training import feed
batches = feed.stream_batches
def killed(*arguments):
  for step, phase, windows in batches(*arguments):
    if step == 5:
      os.kill(os.getpid(), 9)
    yield step, phase, windows
feed.stream_batches = killed
"""
BITS = """
import hashlib
import jax
import numpy as np
from plm_jax.loading import loaded_model
def bits(folder):
  params = jax.tree.leaves(loaded_model.load_model(folder).params)
  return hashlib.sha256(b''.join(np.asarray(x).tobytes() for x in params)).hexdigest()
"""
FLAGS = '--xla_backend_optimization_level=0'  # shorten compilation: it takes most of the time, and is not measured
KINDS = ('list', 'stat', 'read', 'write', 'delete', 'other')


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--megabytes', type=float, default=2, help='size of the text, in three files')
  parser.add_argument('--faults', nargs='*', default=['503:23', '429:29', 'reset:31', 'slow:37'],
                      help='KIND:N fails one in N requests; KIND is a status, reset or slow')
  args = parser.parse_args()
  faults = [(int(what) if what.isdecimal() else what, int(every))
            for what, every in (fault.split(':') for fault in args.faults)]
  ends = [journey(args.megabytes, faults) for faults in ([], faults)]
  same = ends[0] == ends[1]
  print(f'\nThe parameters with and without faults are {"identical" if same else "DIFFERENT"}.')
  sys.exit(not same)


def journey(megabytes: float, faults: list[tuple[int | str, int]]) -> str:
  """Run the workflow once on a new bucket and return a hash of the trained parameters."""
  print(f'\n{"Faults: " + ", ".join(f"{what} in one of {every}" for what, every in faults) if faults else "No faults"}\n')
  print(f'| step | requests | failed | {" | ".join(KINDS)} | MB up | MB down | s |\n|{"---|" * (len(KINDS) + 6)}')
  with contextlib.ExitStack() as opened:
    scratch = opened.enter_context(tempfile.TemporaryDirectory())
    bucket = opened.enter_context(Bucket(pathlib.Path(scratch)))
    for name, content in texts(megabytes).items():
      bucket.put(f'text/{name}', content)
    bucket.faults = [Fault(what, every=every) for what, every in faults]
    def client() -> Client:
      return opened.enter_context(Client(bucket, PLM_JAX_CACHE=f'{scratch}/cache', JAX_PLATFORMS='cpu', XLA_FLAGS=FLAGS,
                                         JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS='0.1'))
    asked, output = client(), '--output=gs://bucket/run'
    step(bucket, asked, 'prepare', 'plm_jax', 'prepare', 'gs://bucket/text', 'gs://bucket/records', '--vocab=512')
    asked.ask(KILLED)
    step(bucket, asked, 'train, killed at step 5', 'bert_base', *RUN, output)
    asked = client()
    for name, *command in (
        ('resume, to step 8 and the report', 'bert_base', *RUN, output),
        ('evaluate', 'bert_base', *RUN, output, '--mode=evaluate'),
        ('fill-mask', 'plm_jax', 'fill-mask', 'gs://bucket/run', 'The [MASK] is old.'),
        ('export', 'plm_jax', 'export', 'gs://bucket/run', f'{scratch}/exported'),
        ('train a decoder from its text', 'gpt2_small', *RUN, '--data.path=gs://bucket/text/c.jsonl',
         '--output=gs://bucket/gpt2'),
        ('perplexity', 'plm_jax', 'perplexity', 'gs://bucket/gpt2', 'gs://bucket/text/b.txt.gz')):
      step(bucket, asked, name, *command)
    bucket.faults.clear()
    asked.ask(BITS)
    return asked.ask('bits("gs://bucket/run")')


def step(bucket: Bucket, client: Client, name: str, *command: str) -> None:
  """Run a command and print its row of the table; exit if it fails without having been killed."""
  bucket.counts.clear()
  began = time.monotonic()
  try:
    status, _ = client.command(*command)
  except Failed:
    status = 'killed'
  if status not in (0, 'killed'):
    sys.exit(f'{name}: {status}')
  kinds = {kind: bucket.counts[kind].requests for kind in KINDS[:-1]}
  kinds['write'] += sum(bucket.counts[kind].requests for kind in ('begin', 'upload', 'compose'))
  total = bucket.total
  kinds['other'] = total.requests - sum(kinds.values())
  print(f'| {name} | {total.requests} | {total.failed} | {" | ".join(str(kinds[kind]) for kind in KINDS)} | '
        f'{total.sent / 1e6:.2f} | {total.received / 1e6:.2f} | {time.monotonic() - began:.0f} |', flush=True)


def texts(megabytes: float) -> dict[str, bytes]:
  """Generate documents of learnable sentences in three files: plain text, gzip and JSON Lines."""
  draw, documents, size = random.Random(0), [], 0
  while size < megabytes * 1e6:
    sentences = [f'The {draw.choice(["old", "new", "small"])} {draw.choice(["array", "matrix", "value"])} {number} is '
                 f'{draw.choice(["copied", "sorted", "stored"])} in {draw.choice(["memory", "place", "order"])}.'
                 for number in draw.sample(range(1000), 8)]
    documents.append('\n'.join([' '.join(sentences[:4]), ' '.join(sentences[4:])]))
    size += len(documents[-1])
  third = len(documents) // 3
  return {'a.txt': '\n\n'.join(documents[:third]).encode(),
          'b.txt.gz': gzip.compress('\n\n'.join(documents[third:third + 40]).encode()),
          'c.jsonl': '\n'.join(json.dumps({'text': text}) for text in documents[2 * third:]).encode()}


if __name__ == '__main__':
  main()
