"""Storage in a bucket, with the real clients of buckets: their requests, the cost, and errors."""
import gzip
import json
import time

from bucket import Bucket, Fault
from bucket_client import Client, Failed
import numpy as np
import pytest

from plm_jax.data import records
from plm_jax.data.windows import Windows


@pytest.fixture(scope='module')
def opened(tmp_path_factory):
  with Bucket(tmp_path_factory.mktemp('bucket')) as bucket, Client(bucket) as client:
    client.ask('import tensorflow as tf')
    yield bucket, client


@pytest.fixture
def bucket(opened):
  opened[0].objects.clear()
  opened[0].forget()
  return opened[0]


@pytest.fixture
def client(opened):
  opened[1].ask('bucket_check.CLIENT_TIMEOUT = 20.0')
  return opened[1]


def fails(client, code: str) -> str:
  with pytest.raises(Failed) as error:
    client.ask(code)
  assert '\n' not in str(error.value)
  return str(error.value)


def test_files_come_back_as_they_were_written(bucket, client):
  content = 'ä\n' * 100_000
  client.ask(f'storage.write("gs://bucket/a/b.txt", {content!r})')
  assert bucket.read('a/b.txt').decode() == content
  assert client.ask('storage.read_text("gs://bucket/a/b.txt")') == content
  client.ask('storage.write("gs://bucket/empty", b"")')
  assert client.ask('storage.read_text("gs://bucket/empty")') == ''


def test_a_small_file_costs_a_request_to_read_and_two_to_write(bucket, client):
  client.ask('storage.write("gs://bucket/a.json", "{}")')
  assert client.ask('storage.read_json("gs://bucket/a.json")') == {}
  assert bucket.requests == [('begin', 'a.json'), ('upload', 'a.json'), ('read', 'a.json')]


def test_unreadable_objects_are_named(bucket, client):
  bucket.put('folder/a', b'12345')
  missing = fails(client, 'storage.read_bytes("gs://bucket/nix")')
  assert missing == 'StorageError: gs://bucket/nix is not there'
  assert fails(client, 'storage.read_bytes("gs://bucket/folder")').endswith(
      'is a folder, expected a file')
  assert fails(client, 'storage.read_bytes("gs://bucket/folder/a", limit=4)').endswith(
      'has more than 4 bytes, the most that is expected: is this the right file?')
  assert 'gs://bucket/nix is not there' in fails(
      client, 'storage.read_range("gs://bucket/nix", 0, 1)')
  assert 'gs://bucket/folder/a cannot be read' in fails(
      client, 'storage.read_range("gs://bucket/folder/a", 3, 9)')


def test_nothing_is_there_after_an_error_inside(bucket, client):
  assert 'KeyError' in fails(client, (
      'with storage.atomic_writer("gs://bucket/a") as file:\n  file.write(b"half")\n  raise '
      'KeyError("inside")'))
  assert bucket.names() == []


def test_large_files_go_up_in_pieces_from_the_disk(bucket, client):
  client.ask('storage.SPOOL_SIZE = 1000; storage.READ_SIZE = 10_000')
  client.ask('with storage.atomic_writer("gs://bucket/a") as file:\n'
             '  for n in range(100): file.write(memoryview(bytes([n]) * 1000))')
  client.ask('storage.SPOOL_SIZE = 64 << 20; storage.READ_SIZE = 8 << 20')
  assert bucket.read('a') == b''.join(bytes([n]) * 1000 for n in range(100))


def test_a_stream_has_lines_with_a_limit(bucket, client):
  bucket.put('a', b'first\nsecond\n')
  client.ask('file = storage.open_stream("gs://bucket/a")')
  assert [client.ask(f'file.readline({limit})')
          for limit in (3, 100, 100, 100)] == ['fir', 'st\n', 'second\n', '']
  client.ask('file.close()')


def test_ranges_transfer_only_their_bytes(bucket, client):
  bucket.put('large', bytes(range(256)) * 4096)
  code = '[storage.read_range("gs://bucket/large", n * 5000 + 1, n * 5000 + 3) for n in range(100)]'
  assert client.ask(
      f'b"".join({code}) == b"".join(bytes([(n * 5000 + 1) % 256, (n * 5000 + 2) % 256]) '
                    'for n in range(100))')
  assert bucket.total.requests == 100 and bucket.total.received == 200


def test_a_file_read_to_its_end_is_transferred_once(bucket, client):
  bucket.put('large', bytes(20 << 20))
  assert client.ask('len(storage.read_bytes("gs://bucket/large"))') == 20 << 20
  assert bucket.total.received == 20 << 20 and bucket.total.requests <= 4


def test_appending_sends_only_new_bytes(bucket, client):
  client.ask('for n in range(20): storage.append("gs://bucket/run/metrics.jsonl", f"{n:099}\\n")')
  assert bucket.read('run/metrics.jsonl') == b''.join(b'%099d\n' % n for n in range(20))
  assert bucket.names() == ['run/metrics.jsonl']
  assert bucket.counts['write'].sent < 20 * 600  # 100, and an upload's form
  assert bucket.counts['read'].received == 0
  assert bucket.total.requests < 20 * 4 + 4


def test_appending_to_an_empty_file_begins_it(bucket, client):
  bucket.put('lines', b'')
  client.ask('storage.append("gs://bucket/lines", "1\\n")')
  assert bucket.read('lines') == b'1\n'


def test_tensorboard_sends_only_new_bytes(bucket, client):
  def sent(times: int) -> int:
    bucket.forget()
    client.ask(f'for n in range({times}): tf.summary.text("text", "x" * 1000, step=n); '
               f'writer.flush()')
    return bucket.total.sent
  client.ask('writer = tf.summary.create_file_writer("gs://bucket/run/tensorboard"); '
             'writer.set_as_default()')
  once = sent(10)
  assert sent(10) < 1.1 * once < 20_000
  client.ask('writer.close()')
  assert [name for name in bucket.names('run/tensorboard/') if 'compose' in name] == []


@pytest.mark.parametrize('what', [503, 429, 'reset', 'truncated', 'slow'])
def test_transient_errors_are_retried(bucket, client, what):
  bucket.put('large', b'0123456789' * 1000)
  bucket.faults = [Fault(what, every=3, seconds=0.05)]
  client.ask('storage.write("gs://bucket/a", "content")')
  assert client.ask('storage.read_text("gs://bucket/a")') == 'content'
  assert client.ask('storage.read_range("gs://bucket/large", 1005, 1015)') == '5678901234'
  for n in range(3):
    client.ask(f'storage.append("gs://bucket/lines", "{n}\\n")')
  assert bucket.read('lines') == b'0\n1\n2\n' and bucket.faults[0].done > 3
  client.ask('with lock.Lock("gs://bucket/run", "a run"): pass')
  client.ask('bucket_check.check_reachable({"gs://bucket/run": "run"})')
  bucket.faults.clear()
  assert bucket.names() == ['a', 'large', 'lines']


def test_lost_responses_do_not_append_twice(bucket, client):
  """The bucket did it, and the client cannot know."""
  client.ask('storage.append("gs://bucket/lines", "0\\n")')
  for operation in ('compose', 'write'):
    bucket.faults = [Fault('lost', operation, times=1)]
    client.ask(f'storage.append("gs://bucket/lines", "{operation}\\n")')
  bucket.faults = [Fault('lost', 'write', times=1)]
  client.ask('storage.append("gs://bucket/new", "1\\n")')
  assert bucket.read('lines') == b'0\ncompose\nwrite\n' and bucket.read('new') == b'1\n'


def test_metrics_of_a_run_survive_lost_responses(bucket, client):
  client.ask('from plm_jax.training import run_metrics; writer = '
             'run_metrics.MetricsWriter("gs://bucket/run")')
  for step, operation in enumerate(['', 'compose', 'compose', 'upload', 'begin', 'write', 'stat',
                                    'delete', '']):
    bucket.faults = [Fault('lost', operation, times=1)] if operation else []
    client.ask(f'writer.write({step}, "train", {{"loss": 0.5}})')
  assert [json.loads(line)['step']
          for line in bucket.read('run/metrics.jsonl').splitlines()] == list(range(9))
  events = next(name for name in bucket.names('run/tensorboard/events'))
  found = client.ask(
      f'[event.step for event in tf.compat.v1.train.summary_iterator("gs://bucket/{events}") '
                     'if event.summary.value]')
  assert sorted(set(found)) == list(range(9))


CHECK = ('bucket_check.check_reachable({"gs://bucket/run": "run", "/a/disk": "read", '
         '"gs://bucket/text.txt": "read"})')


def test_the_access_check_costs_a_dozen_requests_and_leaves_no_objects(bucket, client):
  client.ask(CHECK)
  assert bucket.names() == [] and bucket.total.requests <= 16


@pytest.mark.parametrize(('operation', 'use', 'message'), [
    ('list', 'read',
     'gs://bucket/run cannot be read: the account of this machine has no permission'),
    ('read', 'read',
     'gs://bucket/run cannot be read: the account of this machine has no permission'),
    ('begin', 'write',
     'gs://bucket/run cannot be written: the account of this machine has no permission'),
    ('delete', 'write',
     'gs://bucket/run cannot be written: the account of this machine has no permission'),
    ('bucket', 'run',
     'gs://bucket/run cannot be written: the account of this machine has no permission')])
def test_a_missing_permission_is_one_line(bucket, client, operation, use, message):
  bucket.faults = [Fault(403, operation)]
  assert message in fails(client, f'bucket_check.check_reachable({{"gs://bucket/run": "{use}"}})')
  if use != 'read':
    client.ask('bucket_check.check_reachable({"gs://bucket/run": "read"})')


def test_a_missing_bucket_is_a_one_line_error(bucket, client):
  assert fails(client, 'bucket_check.check_reachable({"gs://nowhere/run": "run"})') == (
      "StorageError: gs://nowhere/run cannot be written: there is no bucket gs://nowhere (Google's "
      "client)")


@pytest.mark.parametrize('operation', ['list', 'begin', 'read'])
def test_missing_responses_are_one_line_errors_within_seconds(bucket, client, operation):
  client.ask('bucket_check.CLIENT_TIMEOUT = 1.5')
  bucket.faults = [Fault('slow', operation, seconds=5)]
  began = time.monotonic()
  check = 'bucket_check.check_reachable({"gs://bucket/run": "run"})'
  assert 'gs://bucket/run cannot be written: ' in fails(client, check)
  assert time.monotonic() - began < 8


@pytest.mark.parametrize(('location', 'zone', 'refused'), [
    ({'location': 'US-CENTRAL1'}, 'us-central1-a', False),
    ({'location': 'US-EAST1'}, 'us-central1-a', True),
    ({'location': 'US'}, 'us-central1-a', False), ({'location': 'EU'}, 'us-central1-a', True),
    ({'location': 'EU'}, 'europe-west4-a', False), ({'location': 'EU'}, 'europe-west2-b', True),
    ({'location': 'NAM4'}, 'us-east1-c', False), ({'location': 'NAM4'}, 'us-west1-c', True),
    ({'location': 'ASIA'}, 'asia-northeast1-c', False),
    ({'location': 'ASIA'}, 'australia-southeast1-b', True),
    ({'location': 'US', 'locationType': 'dual-region', 'customPlacementConfig':
        {'dataLocations': ['US-CENTRAL1', 'US-WEST1']}}, 'us-east1-c', True)])
def test_a_bucket_of_another_region_is_refused(bucket, client, location, zone, refused):
  bucket.zone, before, bucket.layout = zone, bucket.layout, location
  client.ask('bucket_check.machine_region.cache_clear(); '
             f'import os; os.environ["GCE_METADATA_HOST"] = "{bucket.address}"')
  try:
    if refused:
      message = fails(client, CHECK)
      assert (f'this machine in {zone[:-2]}: what is read or written there is charged for, as '
              'egress') in message
      assert 'gs://bucket/run lies in ' in message and 'PLM_JAX_ANY_REGION=1' in message
      client.ask('os.environ["PLM_JAX_ANY_REGION"] = "1"')
    client.ask(CHECK)
    if not refused:  # a region that may not be seen is no reason to refuse
      bucket.faults = [Fault(403, 'bucket')]
      client.ask('bucket_check.check_reachable({"gs://bucket/run": "write"})')
  finally:
    bucket.layout = before
    client.ask('os.environ.pop("PLM_JAX_ANY_REGION", ""); os.environ["GCE_METADATA_HOST"] = ""')
    client.ask('bucket_check.machine_region.cache_clear()')


def test_outside_google_cloud_there_is_no_zone(bucket, client):
  client.ask('bucket_check.machine_region.cache_clear()')
  assert client.ask('bucket_check.machine_region()') == ''


def test_options_that_name_buckets_are_found(client):
  assert client.ask('bucket_check.find_bucket_paths('
                    '{"data": {"path": ["gs://a/x/*.txt,b.txt,gs://b/y", "task:sst2:gs://c/z"]}, '
                    '"output": "gs://d/run", "seed": 3, "prompts": ["see gs://e/f"]})') == [
                        'gs://a/x/', 'gs://b/y', 'gs://c/z', 'gs://d/run']
  assert client.ask('bucket_check.find_bucket_paths(["--output=gs://d/run"])') == ['gs://d/run']


def test_a_lock_in_a_bucket(bucket, client):
  client.ask('lock.EXPIRE_SECONDS = 1.0; lock.RENEW_SECONDS = 0.2; '
             'one = lock.Lock("gs://bucket/run", "a run"); one.acquire()')
  assert len(bucket.names('run/.lock/')) == 1
  assert 'gs://bucket/run is in use by a run (process' in fails(
      client, 'lock.Lock("gs://bucket/run", "a run").acquire()')
  client.ask('one.release()')
  assert bucket.names() == []
  # A claim of another machine, which this one has seen before with other bytes.
  claim = ('{"what": "a run", "host": "elsewhere", "machine": "", "process": 7, "started": "1", '
           '"since": "noon", '
           '"renewed": %s, "holds": true}')
  bucket.put('run/.lock/0.json', (claim % f'{time.time():.1f}').encode())
  client.ask('import threading; two = lock.Lock("gs://bucket/run", "a run", wait=True); '
             'thread = threading.Thread(target=two.acquire); thread.start()')
  for _ in range(8):
    time.sleep(0.25)
    bucket.put('run/.lock/0.json', (claim % time.time()).encode())
  assert client.ask('thread.is_alive()')
  client.ask('thread.join(30)')
  assert not client.ask('thread.is_alive()')
  client.ask('two.check(); two.release()')
  assert bucket.names() == []


@pytest.mark.parametrize(('fault', 'options', 'message'), [
    (Fault(403, 'begin', 'run'), ['--output=gs://bucket/run'],
     'error: gs://bucket/run cannot be written: the account of this machine has no permission'),
    (Fault(403, 'read', 'text'), ['--output=/tmp/none'],
     'error: gs://bucket/text.txt cannot be read: the account of this machine has no permission'),
    (None, ['--output=gs://elsewhere/run'],
     'error: gs://elsewhere/run cannot be written: there is no bucket gs://elsewhere'),
    (None, ['--output=gs://x'], 'gs://x'),
    (None, ['--data.path=gs://bucket/nothing/*.txt', '--output=gs://bucket/run'],
     'gs://bucket/nothing/*.txt')])
def test_an_impossible_run_ends_before_anything_is_written(bucket, client, fault, options, message):
  bucket.put('text.txt', b'One. Two.\n\nThree. Four.\n')
  bucket.faults = [fault] if fault else []
  status, output = client.command('bert_base', '--scale=test', '--data.path=gs://bucket/text.txt',
                                  *options)
  assert message in status and '\n' not in status and output == ''
  # a GFile that could not be written tries again when it is thrown away
  client.ask('import gc; gc.collect()')
  assert not [name for name in bucket.names() if name != 'text.txt']


def test_a_cache_in_a_bucket_is_refused(bucket, client):
  bucket.put('text.txt', b'One. Two.\n\nThree. Four.\n')
  client.ask('import os; cache = os.environ["PLM_JAX_CACHE"]; os.environ["PLM_JAX_CACHE"] = '
             '"gs://bucket/cache"')
  status, _ = client.command('bert_base', '--scale=test', '--data.path=gs://bucket/text.txt')
  client.ask('os.environ["PLM_JAX_CACHE"] = cache')
  assert status == (
      'error: PLM_JAX_CACHE=gs://bucket/cache is a bucket: the cache has to be a local folder')


@pytest.fixture
def much_text(bucket, client, tmp_path):
  """Records of two shards in the bucket that count as large -> the folder that they come from."""
  folder = tmp_path / 'records'
  draw, made = np.random.default_rng(0), []
  for number in range(2):
    tokens, sentences = np.zeros(200_000, records.token_dtype(1000)), np.zeros(
        10_000, records.SENTENCE_DTYPE)
    tokens['token'], tokens['flags'] = draw.integers(0, 1000, 200_000), records.WORD_START
    sentences['start'], sentences['document'] = np.arange(10_000) * 20, np.arange(10_000) // 8
    made.append(records.write_shard(folder, f'train-{number:05d}', tokens, sentences))
  records.write_meta(folder, records.RecordsMeta(1000, 'hash', tuple(made), (), 'test'))
  bucket.put_folder(folder, 'records')
  client.ask('import os; import numpy as np; from plm_jax.data import shards, windows')
  client.ask('before = shards.SMALL_BYTES, os.environ["PLM_JAX_CACHE"]; shards.SMALL_BYTES = 0')
  client.ask(f'os.environ["PLM_JAX_CACHE"] = {str(tmp_path / "cache")!r}')
  yield folder
  client.ask('shards.SMALL_BYTES, os.environ["PLM_JAX_CACHE"] = before')


@pytest.mark.slow
def test_records_in_a_bucket_are_read_by_ranges(bucket, client, much_text, tmp_path):
  client.ask('some = windows.Windows("gs://bucket/records", "train", 128, "document")')
  index = [n for block in (0, 7, 30, 41) for n in range(block * 64, block * 64 + 64)]
  expected = Windows(much_text, 'train', 128, 'document').read(np.array(index))
  # sentences of the first shard are in the cache from here on
  client.ask('some.read(np.arange(1))')
  client.ask('some.read(np.array([len(some) - 1]))')
  bucket.forget()
  got = client.ask(
      f'{{name: array.tolist() for name, array in some.read(np.array({index})).items()}}')
  for name, array in expected.items():
    np.testing.assert_array_equal(got[name], array, name)
  assert bucket.total.requests == 4  # one a block
  assert bucket.total.received < 1.4 * 3 * np.count_nonzero(expected['segments'])
  # Another host reads the window counts next to the records, and only the parts of a shard that it
  # needs.
  counted, = (name for name in bucket.names() if name.endswith('train-document-128.json'))
  bucket.forget()
  client.ask(f'os.environ["PLM_JAX_CACHE"] = {str(tmp_path / "other")!r}')
  client.ask('some = windows.Windows("gs://bucket/records", "train", 128, "document")')
  assert {name for _, name in bucket.requests} == {'records/records.json', counted}
  client.ask('some.read(np.arange(64))')
  assert {name for _, name in bucket.requests if '-0000' in name} == {
      'records/train-00000.sentences.npy', 'records/train-00000.crc.npy', 'records/train-00000.npy'}


@pytest.mark.slow
def test_damaged_and_unreachable_records_in_a_bucket_are_reported(bucket, client, much_text):
  client.ask('some = windows.Windows("gs://bucket/records", "train", 128, "packed"); '
             'some.read(np.arange(9))')
  content = bytearray(bucket.read('records/train-00000.npy'))
  content[9000] ^= 1
  bucket.put('records/train-00000.npy', bytes(content))
  assert fails(client, 'some.read(np.arange(64))').startswith(
      'RecordsError: record shard gs://bucket/records/train-00000.npy is damaged')
  bucket.faults = [Fault(403, 'read', prefix='records/train-00001.npy')]
  assert 'gs://bucket/records/train-00001.npy cannot be read' in fails(
      client, 'some.read(np.arange(1600, 1610))')
  bucket.faults = [Fault(503, 'read', prefix='records/train-00001.npy', times=3)]
  client.ask('some.read(np.arange(1600, 1610))')
  bucket.faults = []
  status, said = client.command('plm_jax', 'verify', 'gs://bucket/records')
  assert status == 1 and 'train-00000.npy is damaged: 1 of 147 blocks' in said


@pytest.mark.slow
def test_the_digest_of_text_in_a_bucket_uses_its_ends_and_its_time(bucket, client):
  client.ask('from plm_jax.sources import text_sources')
  text = b'A line of text.\nAnd one more.\n\n' * 10_000
  bucket.put('text/a.txt', text)
  bucket.put('text/b.txt.gz', gzip.compress(text[:62_000]))
  bucket.put('text/c.JSONL', b'{"text": "One."}\n')
  count = 'sum(1 for _ in text_sources.read_documents("gs://bucket/text"))'
  assert client.ask(count) == 10_000 + 2_000 + 1
  bucket.forget()
  before = client.ask('text_sources.fingerprint("gs://bucket/text")')
  assert bucket.total.received < 4 << 16 and before == client.ask(
      'text_sources.fingerprint("gs://bucket/text/")')
  time.sleep(1.1)
  bucket.put('text/a.txt', text[:150_000] + b'x' + text[150_001:])
  assert before != client.ask('text_sources.fingerprint("gs://bucket/text")')
  bucket.put('text/b.txt.gz', b'PAR1')
  assert fails(client, count).startswith('SourceError: gs://bucket/text/b.txt.gz')


def test_a_corpus_is_cleaned_from_a_bucket_into_it(bucket, client):
  lines = ''.join(json.dumps({'text': text}) + '\n'
                  for text in ('One old house. ' * 9, 'one  OLD house. ' * 9, 'Two.'))
  bucket.put('text/a.jsonl.gz', gzip.compress(lines.encode()))
  client.ask('from plm_jax.corpora import clean, filter_documents')
  cleaned = ('clean.clean(filter_documents.CleanConfig(workers=1), "gs://bucket/text/*.jsonl.gz", '
             '"gs://bucket/cleaned").dropped')
  assert client.ask(cleaned) == {'exact duplicate': 1}
  left = gzip.decompress(bucket.read('cleaned/documents-00000.jsonl.gz')).decode().splitlines()
  assert [json.loads(line)['text'] for line in left] == [('One old house. ' * 9), 'Two.']
  assert client.ask(cleaned) == {'exact duplicate': 1}  # finished
  assert sorted(name for name in bucket.objects if name.startswith('cleaned/')) == [
      'cleaned/_clean.json', 'cleaned/documents-00000.jsonl.gz']


@pytest.mark.slow
def test_stages_clean_a_bucket_as_one_process_does(bucket, client):
  for number in range(3):  # a document that is in all files, and two that only one has
    texts = 'The same old house.', f'House {number} here.', f'And there is {number}.'
    bucket.put(f'text/{number}.jsonl',
               ''.join(json.dumps({'text': text * 9}) + '\n' for text in texts).encode())
  client.ask('from shuffled import Shuffled\n'
             'from plm_jax.corpora import clean, filter_documents')
  client.ask('config = filter_documents.CleanConfig(workers=1, shard_characters=300, samples=1)')
  client.ask('clean.clean(config, "gs://bucket/text", "gs://bucket/one")')
  client.ask('clean.clean(config, "gs://bucket/text", "gs://bucket/many", '
             'Shuffled())')
  one, many = ({name.removeprefix(folder): bucket.read(name)
                for name in bucket.names() if name.startswith(folder)}
               for folder in ('one/', 'many/'))
  assert one == many and len(one) == 5
