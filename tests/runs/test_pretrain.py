"""From text to a report with all files in a bucket, as on a pod: prepared, killed, resumed and
used; also with faults."""
import gzip
import json
import os
import pathlib
import random
import re

from bucket import Bucket, Fault
from bucket_client import Client, Failed
import pytest

SMALL = ('--scale=test', '--data.path=gs://bucket/records', '--mesh.data=1', '--train.save-every=2')
# Dies as by kill -9 before its sixth step, while the checkpoint of the fourth may be on its way.
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
SAME = """
import jax
import numpy as np
from plm_jax.loading import loaded_model
def same(a, b):
  a, b = (loaded_model.load_model(folder).params for folder in (a, b))
  return jax.tree.all(jax.tree.map(lambda x, y: bool(np.array_equal(x, y)), a, b))
"""


def put_text(bucket: Bucket) -> None:
  """Sixty documents of a few sentences that a model could learn: plain, compressed, and as JSON
  lines."""
  draw = random.Random(0)
  def sentence():
    return (f'The {draw.choice(["old", "new", "small", "great"])} '
            f'{draw.choice(["array", "matrix", "value"])} is '
            f'{draw.choice(["returned", "copied", "sorted", "stored"])} in '
            f'{draw.choice(["memory", "place", "order"])}.')
  documents = ['\n'.join(' '.join(sentence() for _ in range(4)) for _ in range(3))
               for _ in range(60)]
  bucket.put('text/a.txt', '\n\n'.join(documents[:20]).encode())
  bucket.put('text/b.txt.gz', gzip.compress('\n\n'.join(documents[20:40]).encode()))
  bucket.put('text/c.jsonl', '\n'.join(json.dumps({'text': text})
                                       for text in documents[40:]).encode())


@pytest.fixture(scope='module')
def disk(tmp_path_factory):
  """A folder for a run on the disk, which the first that needs one trains."""
  return tmp_path_factory.mktemp('disk') / 'run'


@pytest.fixture
def bucket(tmp_path):
  with Bucket(tmp_path) as bucket:
    put_text(bucket)
    yield bucket


def client(bucket: Bucket) -> Client:
  return Client(bucket, PLM_JAX_CACHE=str(bucket.folder / 'cache'),
                JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS='0.1')


def done(answer) -> str:
  status, output = answer
  assert status == 0, status
  return output


def prepare(client: Client) -> None:
  assert 'records in gs://bucket/records' in done(
      client.command('plm_jax', 'prepare', 'gs://bucket/text', 'gs://bucket/records',
                     '--heldout=0.2'))


def check_run(bucket: Bucket, client: Client, disk: pathlib.Path) -> None:
  """Check the files of the run and its use, and that it equals a run on disk to the bit."""
  evaluated = done(client.command('bert_base', *SMALL, '--output=gs://bucket/run',
                                  '--mode=evaluate'))
  lines = [json.loads(line) for line in bucket.read('run/metrics.jsonl').splitlines()]
  assert [line['step'] for line in lines if line['split'] == 'train'] == [2, 4, 6, 8]
  assert f'MLM loss: {lines[-1]["mlm"]:.4f}' in evaluated
  assert bucket.read('run/report.html').startswith(b'<!DOCTYPE html>')
  assert any('tfevents' in name for name in bucket.names('run/tensorboard/'))
  assert not [name for name in bucket.names('run/') if '.part' in name or '.lock/' in name
              or '.probe' in name]
  assert re.search(r'\d%  \S',
                   done(client.command('plm_jax', 'fill-mask', 'gs://bucket/run',
                                       'The [MASK] is old.')))
  done(client.command('plm_jax', 'export', 'gs://bucket/run', bucket.folder / 'exported'))
  assert 'model.safetensors' in os.listdir(bucket.folder / 'exported')
  bucket.faults = []
  if not disk.exists():
    done(client.command('bert_base', *SMALL, f'--output={disk}'))
  client.ask(SAME)
  assert client.ask(f'same("gs://bucket/run", {str(disk)!r})')


@pytest.mark.slow
def test_a_killed_run_in_a_bucket_equals_a_run_on_disk(bucket, disk):
  with client(bucket) as first:
    prepare(first)
    first.ask(KILLED)
    with pytest.raises(Failed, match='ended with -9'):
      first.command('bert_base', *SMALL, '--output=gs://bucket/run')
  assert 'run/report.html' not in bucket.names()
  with client(bucket) as second:
    said = done(second.command('bert_base', *SMALL, '--output=gs://bucket/run'))
    assert 'report: gs://bucket/run/report.html' in said
    check_run(bucket, second, disk)


@pytest.mark.slow
@pytest.mark.release
def test_failed_requests_are_retried_without_effect(bucket, disk):
  """One in eleven requests of every kind fails; then perplexity of text in the bucket under a
  decoder. Faults after which a client waits for a second or more are rarer, to keep the test
  short."""
  bucket.faults = faults = [Fault(503, every=67), Fault(429, every=71), Fault('reset', every=73),
                            Fault('slow', every=37, seconds=0.2),
                            Fault('truncated', 'read', every=41)]
  with client(bucket) as only:
    prepare(only)
    done(only.command('bert_base', *SMALL, '--output=gs://bucket/run'))
    done(only.command('gpt2_small', *SMALL, '--data.path=gs://bucket/text/a.txt',
                      '--output=gs://bucket/gpt2'))
    assert 'perplexity per token' in done(
        only.command('plm_jax', 'perplexity', 'gs://bucket/gpt2', 'gs://bucket/text/b.txt.gz'))
    assert all(fault.done for fault in faults)
    check_run(bucket, only, disk)
