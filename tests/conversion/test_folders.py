"""Checkpoints in a bucket, by the clients that real buckets have."""
from bucket import Bucket
from bucket_client import Client, Failed
import pytest
from test_conversion import CONFIG, all_tensors, assert_bits, make

from plm_jax import conversion
from plm_jax.tokenizers import ByteTokenizer


@pytest.fixture(scope='module')
def opened(tmp_path_factory):
  with Bucket(tmp_path_factory.mktemp('bucket')) as bucket, Client(bucket) as client:
    client.ask('from plm_jax import conversion')
    yield bucket, client


@pytest.mark.slow
def test_there_and_back(opened, tmp_path):
  bucket, client = opened
  conversion.save(tmp_path / 'in', CONFIG, make(), ByteTokenizer(), shard_bytes=6000)
  bucket.put_folder(tmp_path / 'in', 'models/in')
  assert client.ask('conversion.is_checkpoint("gs://bucket/models/in")')
  client.ask('found = conversion.load("gs://bucket/models/in")')
  assert client.ask('[*found.heads, found.tokenizer.kind]') == ['mlm', 'nsp', 'bytes']
  # Downloaded files are not read again unless they have changed.
  bucket.forget()
  client.ask('again = conversion.load("gs://bucket/models/in", lazy=True)')
  assert not [name for operation, name in bucket.requests if operation == 'read'
              and name.endswith('.safetensors')]
  client.ask('conversion.save("gs://bucket/models/out", found.config, found.params, '
             'found.tokenizer, like=found, '
             'shard_bytes=6000)')
  assert bucket.names('models/out')
  uploaded = [name for operation, name in bucket.requests if operation == 'upload']
  assert uploaded[-1] == 'models/out/config.json'
  out = tmp_path / 'out'
  out.mkdir()
  for name in bucket.names('models/out'):
    (out / name.rpartition('/')[2]).write_bytes(bucket.read(name))
  assert_bits(all_tensors(out), all_tensors(tmp_path / 'in'))
  with pytest.raises(
      Failed, match='gs://bucket/models/out is there already and not empty') as error:
    client.ask('conversion.save("gs://bucket/models/out", found.config, found.params)')
  assert '\n' not in str(error.value)


@pytest.mark.slow
def test_missing_folders_are_reported(opened):
  _, client = opened
  assert not client.ask('conversion.is_checkpoint("gs://bucket/nix")')
  with pytest.raises(Failed, match='there is no folder gs://bucket/nix'):
    client.ask('conversion.load("gs://bucket/nix")')
