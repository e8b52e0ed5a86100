"""Google Cloud Storage where it is no disk: parts of objects, and objects that grow."""
import contextlib
import errno
import functools
import os
from typing import Any
import uuid

from etils import epath

PART = '.part'  # what is to be joined to an object


def append(path: epath.PathLike, content: bytes) -> None:
  """Adds to an object: the new bytes go up alone, and the bucket joins them to those that it has.

  For one writer at a time. Raises what google-cloud-storage raises.
  """
  from google.api_core import exceptions
  name, of = split(os.fspath(path))
  bucket, retry = google_client().bucket(name), google_retry(120)
  whole, expected = bucket.blob(of), None
  for _ in range(5):
    found = bucket.get_blob(of, retry=retry)
    if found and found.size == expected:  # it had been done, and only the answer was lost
      return
    expected = (found.size or 0 if found else 0) + len(content)
    try:
      if not found:
        whole.upload_from_string(content, if_generation_match=0, retry=retry)
        return
      part = bucket.blob(f'{of}.{uuid.uuid4().hex}{PART}')
      part.upload_from_string(content, retry=retry)
      try:
        whole.compose([found, part], if_generation_match=found.generation, retry=retry)
      finally:
        with contextlib.suppress(exceptions.NotFound):  # deleted already, and only the answer was lost
          part.delete(retry=retry)
      return
    except exceptions.PreconditionFailed:  # we did it ourselves, or somebody else was faster: look again
      continue
  raise OSError(errno.EBUSY, 'somebody else writes it too', os.fspath(path))


def move(folder: str, target: str) -> None:
  """Gives all objects below a folder names below another of the same bucket."""
  bucket, prefix = split(f'{folder.rstrip("/")}/')
  _, wanted = split(f'{target.rstrip("/")}/')
  within, retry = google_client().bucket(bucket), google_retry(120)
  for blob in list(google_client().list_blobs(bucket, prefix=prefix, retry=retry)):
    within.copy_blob(blob, within, wanted + blob.name.removeprefix(prefix), retry=retry)  # pyright: ignore
    blob.delete(retry=retry)


@functools.cache
def google_client():
  """Returns Google's client, one a process. Raises DefaultCredentialsError where there are no credentials."""
  from google.cloud import storage as google
  return google.Client()


def google_retry(seconds: float) -> Any:
  """Returns a policy under which a request that cannot be answered now is repeated for so many seconds."""
  from google.cloud.storage.retry import DEFAULT_RETRY
  return DEFAULT_RETRY.with_delay(initial=0.2, maximum=10).with_timeout(seconds)


@functools.cache
def bucket_store(bucket: str, retries: int = 10):
  """Opens tensorstore's view of a bucket: reads of parts, many at a time. retries: of a request, the last after a
  minute."""
  import tensorstore
  return tensorstore.KvStore.open(
      {'driver': 'gcs', 'bucket': bucket, 'path': ''},
      context=tensorstore.Context({
          'gcs_request_retries': {'max_retries': retries, 'initial_delay': '200ms', 'max_delay': '20s'},
          'gcs_request_concurrency': {'limit': 32}})).result()


def split(path: str) -> tuple[str, str]:
  """Splits gs://BUCKET/NAME into BUCKET and NAME."""
  bucket, _, name = path.removeprefix('gs://').partition('/')
  return bucket, name
