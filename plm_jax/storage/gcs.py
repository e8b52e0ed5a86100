"""Google Cloud Storage where it differs from a disk: parts of objects, and objects that grow."""
import contextlib
import errno
import functools
import io
import os
from typing import Any
import uuid

from etils import epath

PART_SUFFIX = '.part'  # of an object that is composed into another one


def append(path: epath.PathLike, content: bytes) -> None:
  """Append to an object: only the new bytes are uploaded, and the bucket composes the two.

  Only one process may write the object.

  Raises:
    OSError: another process writes it, too. Errors of google-cloud-storage are raised as they are.
  """
  from google.api_core import exceptions
  bucket_name, name = split_url(os.fspath(path))
  bucket, retry = google_client().bucket(bucket_name), google_retry(120)
  whole, expected = bucket.blob(name), None
  for _ in range(5):
    found = bucket.get_blob(name, retry=retry)
    if found and found.size == expected:  # it was done, and only the response was lost
      return
    size = (found.size or 0) if found else 0
    expected = size + len(content)
    try:
      if not found:
        whole.upload_from_string(content, if_generation_match=0, retry=retry)
        return
      part = bucket.blob(f'{name}.{uuid.uuid4().hex}{PART_SUFFIX}')
      part.upload_from_string(content, retry=retry)
      try:
        whole.compose([found, part], if_generation_match=found.generation, retry=retry)
      finally:
        with contextlib.suppress(exceptions.NotFound):  # deleted, and only the response was lost
          part.delete(retry=retry)
      return
    except exceptions.PreconditionFailed:  # we did it, or another process was faster: look again
      continue
  raise OSError(errno.EBUSY, 'somebody else writes it too', os.fspath(path))


def move(folder: str, target: str) -> None:
  """Rename all objects of a folder into another folder of the same bucket, one by one."""
  bucket_name, prefix = split_url(f'{folder.rstrip("/")}/')
  _, new_prefix = split_url(f'{target.rstrip("/")}/')
  bucket, retry = google_client().bucket(bucket_name), google_retry(120)
  for blob in list(google_client().list_blobs(bucket_name, prefix=prefix, retry=retry)):
    new_name = new_prefix + blob.name.removeprefix(prefix)
    bucket.copy_blob(blob, bucket, new_name, retry=retry)  # pyright: ignore
    blob.delete(retry=retry)


@functools.cache
def google_client():
  """Return Google's client, one per process.

  Raises:
    DefaultCredentialsError: there are no credentials.
  """
  from google.cloud import storage as google
  return google.Client()


def google_retry(seconds: float) -> Any:
  """Return a policy that repeats a request for so many seconds while the service is unavailable."""
  from google.cloud.storage.retry import DEFAULT_RETRY
  return DEFAULT_RETRY.with_delay(initial=0.2, maximum=10).with_timeout(seconds)


@functools.cache
def bucket_store(bucket: str, retries: int = 10):
  """Open a bucket with tensorstore, which reads many parts of objects at once.

  Args:
    bucket: its name.
    retries: of a request, the last one after a minute.
  """
  import tensorstore
  return tensorstore.KvStore.open(
      {'driver': 'gcs', 'bucket': bucket, 'path': ''},
      context=tensorstore.Context({
          'gcs_request_retries': {
              'max_retries': retries, 'initial_delay': '200ms', 'max_delay': '20s'},
          'gcs_request_concurrency': {'limit': 32}})).result()


def split_url(path: str) -> tuple[str, str]:
  """Split gs://BUCKET/NAME into BUCKET and NAME."""
  bucket, _, name = path.removeprefix('gs://').partition('/')
  return bucket, name


class BucketStream(io.RawIOBase):
  """File of a bucket, read from beginning to end."""

  def __init__(self, path: epath.Path):
    self.resources = contextlib.ExitStack()
    self.file = self.resources.enter_context(path.open('rb'))
    self.position = 0

  def readable(self) -> bool:
    """Return True, as io.BufferedReader requires."""
    return True

  def readinto(self, buffer) -> int:
    """Fill a buffer with the next bytes, and return their number; 0 at the end."""
    content = self.file.read(len(buffer))
    buffer[:len(content)] = content
    self.position += len(content)
    return len(content)

  def tell(self) -> int:
    """Return the number of bytes that were read."""
    return self.position

  def close(self) -> None:
    """Close the stream and the file."""
    self.resources.close()
    super().close()
