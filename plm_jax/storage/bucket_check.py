"""Check buckets when a command begins, before anything is computed: access, and region.

Three clients access a bucket: TensorFlow's (files, TFRecords, TensorBoard), tensorstore's (arrays)
and Google's own (Orbax reads the bucket's metadata with it). Each finds its credentials and its
route by itself, so each is checked.
"""
from collections.abc import Callable, Mapping
import contextlib
import functools
import http.client
import importlib
import os
import pathlib
import re
import threading
from typing import Any, Literal, NamedTuple
import urllib.request
import uuid

from etils import epath

from plm_jax import storage
from plm_jax.errors import UserError, describe_error
from plm_jax.storage import gcs

BucketUse = Literal['read', 'write', 'file', 'run']
"""write: a folder is written; file: one file is written; run: a run is written, and read by Orbax,
which needs the bucket's metadata."""


class BucketLocation(NamedTuple):
  """Where a bucket keeps its objects."""

  location: str  # 'US-CENTRAL1', 'EU', 'NAM4'
  regions: tuple[str, ...] = ()  # of a configurable dual region, else none


def check_reachable(uses: Mapping[str, BucketUse]) -> None:
  """Check that every bucket among the paths can be used: list, and where needed write and delete.

  On a disk, only files that will be written are checked.

  Args:
    uses: path -> how it will be used.

  Raises:
    StorageError: a file that cannot be written, or standard output (-); or a bucket that does not
      exist, does not respond within `CLIENT_TIMEOUT` per client, does not permit it, or is in
      another region than this machine, where every byte is charged for (unless
      PLM_JAX_ANY_REGION=1).
  """
  order = ['read', 'write', 'file', 'run']
  found: dict[str, BucketUse] = {}
  for path, use in uses.items():
    if path.partition('/')[0] == '-' and use != 'read':
      raise storage.StorageError('the output is -, but this command does not write its results to '
                                 'standard output: give a name (./- for a file named -)')
    if storage.is_hub_file(path):
      if use != 'read':
        raise storage.StorageError(f'{path} is on the Hugging Face hub, from where text is only '
                                   'read: give a local folder, or gs://BUCKET/FOLDER')
    elif storage.is_remote(path):
      folder = os.fspath(storage.resolve_path(path))
      found[folder] = max(found.get(folder, 'read'), use, key=order.index)
    elif path and use == 'file':
      check_writable_file(path)
  if not found:
    return
  for module in ('tensorflow', 'tensorstore', 'google.cloud.storage'):
    with contextlib.suppress(ImportError):
      importlib.import_module(module)  # which takes seconds, and does not depend on the bucket
  checks = (("Google's client", check_google_client), ('TensorFlow', check_tensorflow_client),
            ('tensorstore', check_tensorstore_client))
  for folder, use in found.items():
    verb = 'read' if use == 'read' else 'written'
    for client, check_client in checks:
      run_with_timeout(folder, verb, client, functools.partial(check_client, folder, use))


def check_writable_file(path: str) -> None:
  """Check that a file can be written at a path on a disk.

  Raises:
    StorageError: it cannot.
  """
  with storage.io_errors_as(path, 'written'):
    target = storage.write_target(storage.resolve_path(path))
  if target is None:  # a device or a pipe
    return
  failure = f'{path} cannot be written'
  if target.is_dir():
    raise storage.StorageError(f'{failure}: it is a folder, expected the name of a file')
  folder = next(parent for parent in target.parents if parent.exists())
  if not folder.is_dir():
    raise storage.StorageError(f'{failure}: {folder} is a file, expected a folder')
  if not os.access(folder, os.W_OK | os.X_OK):
    raise storage.StorageError(f'{failure}: no permission to write in {folder}')


def find_bucket_paths(value: Any) -> list[str]:
  """Find the bucket paths in an option, or in a dictionary or list of options.

  Of a glob pattern it is the folder.
  """
  if isinstance(value, str):
    found = re.findall(r'(?:^|[,:=])\s*(gs://[^,]+)', value)
    return [re.split(r'[*?\[]', path)[0] for path in found]
  if isinstance(value, dict):
    value = list(value.values())
  paths = []
  if isinstance(value, list | tuple):
    for item in value:
      paths += find_bucket_paths(item)
  return paths


def run_with_timeout(folder: str, verb: str, client: str, work: Callable[[], None]) -> None:
  """Run `work` in a thread, for at most CLIENT_TIMEOUT: TensorFlow's client retries for minutes.

  Args:
    folder: the bucket's folder, for messages.
    verb: 'read' or 'written', for messages.
    client: name of the client, for messages.
    work: the check.

  Raises:
    StorageError: the check failed, or had no response in time.
  """
  raised: list[BaseException] = []

  def run() -> None:
    try:
      work()
    except BaseException as error:
      raised.append(error)

  thread = threading.Thread(target=run, name=f'{client} asks {folder}', daemon=True)
  thread.start()
  thread.join(CLIENT_TIMEOUT)
  if thread.is_alive():
    raise storage.StorageError(
        f'{folder} cannot be {verb}: {client} had no answer within {CLIENT_TIMEOUT:.0f} s. '
        'Is this machine connected, and may it use the bucket?')
  for error in raised:
    if isinstance(error, UserError) or not storage.is_storage_error(error):
      raise error
    reason = describe_client_error(error, folder)
    raise storage.StorageError(f'{folder} cannot be {verb}: {reason} ({client})') from error


def describe_client_error(error: BaseException, folder: str) -> str:
  """Describe the cause of a client's error in one line."""
  kind, message = type(error).__name__, describe_error(error)
  bucket = 'gs://' + folder.removeprefix('gs://').partition('/')[0]
  if kind in FORBIDDEN_ERRORS or 'PERMISSION_DENIED' in message:
    return (f'the account of this machine has no permission; it needs the role Storage Admin on '
            f'{bucket}, or Storage Object Viewer to read. {message[:200]}')
  if kind == 'DefaultCredentialsError':
    return 'there are no credentials: gcloud auth application-default login'
  if kind in ('NotFound', 'NotFoundError'):
    return f'there is no bucket {bucket}'
  return message[:300]


def check_google_client(folder: str, use: BucketUse) -> None:
  """List the folder with Google's client, and check the bucket's region.

  Reading needs only the list; a run's checkpoints need storage.buckets.get, because Orbax uses it.

  Raises:
    StorageError: the bucket is in another region than this machine.
  """
  from google.api_core import exceptions
  from google.auth.exceptions import DefaultCredentialsError
  from google.cloud import storage as google
  name, prefix = gcs.split_url(folder)
  try:
    client = google.Client()
  except (DefaultCredentialsError, OSError):
    # No credentials, or no project: enough for a public bucket.
    if use != 'read':
      raise
    client = google.Client.create_anonymous_client()
  limits: Any = {'timeout': CLIENT_TIMEOUT / 2, 'retry': gcs.google_retry(CLIENT_TIMEOUT / 2)}
  next(iter(client.list_blobs(name, prefix=prefix, max_results=1, **limits)), None)
  region = machine_region()
  if not region and use != 'run':
    return
  try:
    bucket = client.get_bucket(name, **limits)
  except exceptions.Forbidden:
    if use == 'run':
      raise
    print(f'gs://{name}: its region cannot be seen, which needs storage.buckets.get: from another '
          'one every byte is paid for', flush=True)
    return
  location = BucketLocation(bucket.location or '', tuple(bucket.data_locations or ()))
  any_region = os.environ.get('PLM_JAX_ANY_REGION') == '1'
  if region and not is_in_region(region, location) and not any_region:
    place = ' and '.join(location.regions) or location.location
    raise storage.StorageError(
        f'{folder} lies in {place}, this machine in {region}: what is read or written there is '
        f'charged for, as egress. Use a bucket in {region}, or set PLM_JAX_ANY_REGION=1')


def check_tensorflow_client(folder: str, use: BucketUse) -> None:
  """Look up the folder with TensorFlow's client, and write and delete a file unless it is read."""
  path = epath.Path(folder)
  path.is_dir()
  if use != 'read':
    probe = path / f'.probe-{uuid.uuid4().hex}'
    with probe.open('wb') as file:
      file.write(b'plm_jax was here')
    probe.unlink()


def check_tensorstore_client(folder: str, use: BucketUse) -> None:
  """Read an object that does not exist with tensorstore: any response is enough."""
  del use
  name, prefix = gcs.split_url(folder)
  store = gcs.bucket_store(name, 3)
  store.read(f'{prefix}/.probe'.lstrip('/')).result(timeout=CLIENT_TIMEOUT)


@functools.cache
def machine_region() -> str:
  """Return this machine's region, such as 'us-central1', from Google's metadata server.

  '' outside of Google Cloud.
  """
  host = os.environ.get('GCE_METADATA_HOST')
  if not host:
    product = pathlib.Path('/sys/class/dmi/id/product_name')
    if os.environ.get('NO_GCE_CHECK') == 'true' or not product.exists():
      return ''
    if not product.read_text().startswith('Google'):
      return ''
  url = f'http://{host or "metadata.google.internal"}/computeMetadata/v1/instance/zone'
  request = urllib.request.Request(url, headers={'Metadata-Flavor': 'Google'})
  opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
  try:
    with opener.open(request, timeout=3) as answer:
      zone = answer.read(1000).decode().rpartition('/')[2]
  except (OSError, ValueError, http.client.HTTPException):
    return ''
  return zone.rpartition('-')[0]


def is_in_region(region: str, location: BucketLocation) -> bool:
  """Tell whether a bucket keeps its objects in a region, among others."""
  name = location.location.lower()
  if location.regions:
    return region in [known.lower() for known in location.regions]
  if region in DUAL_REGIONS.get(name, (name,)):
    return True
  prefix = {'us': 'us-', 'eu': 'europe-', 'asia': 'asia-'}.get(name)
  if prefix is None or region in EXCLUDED_REGIONS:
    return False
  return region.startswith(prefix)


FORBIDDEN_ERRORS = ('Forbidden', 'Unauthorized', 'PermissionDeniedError', 'UnauthenticatedError')
CLIENT_TIMEOUT = 20.0  # seconds for a client's response when a command begins
# Google's pairs of regions, and the regions that its multi-region of that continent excludes.
DUAL_REGIONS = {
    'asia1': ('asia-northeast1', 'asia-northeast2'), 'eur4': ('europe-north1', 'europe-west4'),
    'eur5': ('europe-west1', 'europe-west2'), 'eur7': ('europe-west2', 'europe-west3'),
    'eur8': ('europe-west3', 'europe-west6'), 'nam4': ('us-central1', 'us-east1')}
EXCLUDED_REGIONS = ('europe-west2', 'europe-west6')
