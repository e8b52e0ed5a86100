"""Whether a bucket can be used, and where it lies: asked when a command begins, before anything is computed.

Three clients meet a bucket: TensorFlow's (files, TFRecords, TensorBoard), tensorstore's (arrays) and Google's own
(Orbax asks it about buckets). Each finds its credentials and its way by itself, so each is asked.
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
from plm_jax.errors import Expected, outside
from plm_jax.storage import gcs

Use = Literal['read', 'write', 'run']  # a run is written, and read by Orbax, which asks about the bucket


class Layout(NamedTuple):
  """Where a bucket lies."""

  location: str  # 'US-CENTRAL1', 'EU', 'NAM4'
  regions: tuple[str, ...] = ()  # of a dual region that was chosen, else none


def check_reachable(uses: Mapping[str, Use]) -> None:
  """Asks for every bucket among the paths what will be asked of it later: a list, and a write and a delete.

  Paths on a disk are left alone. Raises StorageError, `PATIENCE` seconds a client later at most: for a bucket that
  is not there, does not answer, does not permit it, or lies in another region than this machine (every byte from there
  is paid for), unless PLM_JAX_ANY_REGION=1.
  """
  found: dict[str, Use] = {}
  for path, use in uses.items():
    if storage.remote(path):
      folder = os.fspath(storage.path_of(path))
      found[folder] = max(found.get(folder, 'read'), use, key=['read', 'write', 'run'].index)
  for module in ('tensorflow', 'tensorstore', 'google.cloud.storage') if found else ():
    with contextlib.suppress(ImportError):
      importlib.import_module(module)  # which takes seconds, and says nothing about the bucket
  for folder, use in found.items():
    verb = 'read' if use == 'read' else 'written'
    for client, work in (("Google's client", ask_google), ('TensorFlow', ask_files), ('tensorstore', ask_arrays)):
      asked(folder, verb, client, functools.partial(work, folder, use))


def paths_in(value: Any) -> list[str]:
  """Finds what an option names in buckets, or all of a dictionary or list of options: of a glob the folder."""
  if isinstance(value, str):
    return [re.split(r'[*?\[]', path)[0] for path in re.findall(r'(?:^|[,:=])\s*(gs://[^,]+)', value)]
  inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
  return [path for one in inner for path in paths_in(one)]


def asked(folder: str, verb: str, client: str, work: Callable[[], None]) -> None:
  """Does the work, or raises StorageError after PATIENCE: TensorFlow's client goes on trying for minutes."""
  raised: list[BaseException] = []
  def run() -> None:
    try:
      work()
    except BaseException as error:
      raised.append(error)
  thread = threading.Thread(target=run, name=f'{client} asks {folder}', daemon=True)
  thread.start()
  thread.join(PATIENCE)
  if thread.is_alive():
    raise storage.StorageError(f'{folder} cannot be {verb}: {client} had no answer within {PATIENCE:.0f} s. '
                               f'Is this machine connected, and may it use the bucket?')
  for error in raised:
    if isinstance(error, Expected) or not storage.of_storage(error):
      raise error
    raise storage.StorageError(f'{folder} cannot be {verb}: {reason(error, folder)} ({client})') from error


def reason(error: BaseException, folder: str) -> str:
  """Says what a client's error comes to, in one line."""
  kind, said = type(error).__name__, outside(error)
  bucket = 'gs://' + folder.removeprefix('gs://').partition('/')[0]
  if kind in FORBIDDEN or 'PERMISSION_DENIED' in said:
    return (f'the account of this machine has no permission; it needs the role Storage Admin on {bucket}, or Storage '
            f'Object Viewer to read. {said[:200]}')
  if kind == 'DefaultCredentialsError':
    return 'there are no credentials: gcloud auth application-default login'
  if kind in ('NotFound', 'NotFoundError'):
    return f'there is no bucket {bucket}'
  return said[:300]


def ask_google(folder: str, use: Use) -> None:
  """Asks Google's client for a list of the folder and for the bucket's region. Raises StorageError where that is
  another than this machine's.

  Reading needs no more than the list; a run's checkpoints need storage.buckets.get, which Orbax asks for.
  """
  from google.api_core import exceptions
  from google.auth.exceptions import DefaultCredentialsError
  from google.cloud import storage as google
  name, prefix = gcs.split(folder)
  try:
    client = google.Client()
  except (DefaultCredentialsError, OSError):  # no credentials, or no project: enough for what all may read
    if use != 'read':
      raise
    client = google.Client.create_anonymous_client()
  short: Any = {'timeout': PATIENCE / 2, 'retry': gcs.google_retry(PATIENCE / 2)}
  next(iter(client.list_blobs(name, prefix=prefix, max_results=1, **short)), None)
  if not (region := machine_region()) and use != 'run':
    return
  try:
    bucket = client.get_bucket(name, **short)
  except exceptions.Forbidden:
    if use == 'run':
      raise
    print(f'gs://{name}: its region cannot be seen, which needs storage.buckets.get: from another one every byte is '
          'paid for', flush=True)
    return
  layout = Layout(bucket.location or '', tuple(bucket.data_locations or ()))
  if region and not inside(region, layout) and os.environ.get('PLM_JAX_ANY_REGION') != '1':
    raise storage.StorageError(
        f'{folder} lies in {" and ".join(layout.regions) or layout.location}, this machine in {region}: what is read '
        f'or written there is charged for, as egress. Use a bucket in {region}, or set PLM_JAX_ANY_REGION=1')


def ask_files(folder: str, use: Use) -> None:
  """Asks TensorFlow's client whether the folder is there, and, unless it is only read, to write and delete a file."""
  path = epath.Path(folder)
  path.is_dir()
  if use != 'read':
    probe = path / f'.probe-{uuid.uuid4().hex}'
    with probe.open('wb') as file:
      file.write(b'plm_jax was here')
    probe.unlink()


def ask_arrays(folder: str, use: Use) -> None:
  """Asks tensorstore for an object that is not there: an answer is enough."""
  del use
  name, prefix = gcs.split(folder)
  gcs.bucket_store(name, 3).read(f'{prefix}/.probe'.lstrip('/')).result(timeout=PATIENCE)


@functools.cache
def machine_region() -> str:
  """Returns the region of this machine where Google's metadata server says it, 'us-central1'; '' off Google's
  machines."""
  host = os.environ.get('GCE_METADATA_HOST')
  product = pathlib.Path('/sys/class/dmi/id/product_name')
  if not host and (os.environ.get('NO_GCE_CHECK') == 'true' or not product.exists()
                   or not product.read_text().startswith('Google')):
    return ''
  request = urllib.request.Request(f'http://{host or "metadata.google.internal"}/computeMetadata/v1/instance/zone',
                                   headers={'Metadata-Flavor': 'Google'})
  try:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=3) as answer:
      zone = answer.read(1000).decode().rpartition('/')[2]
  except (OSError, ValueError, http.client.HTTPException):
    return ''
  return zone.rpartition('-')[0]


def inside(region: str, layout: Layout) -> bool:
  """Tells whether a bucket keeps its objects in a region too."""
  location = layout.location.lower()
  regions = tuple(name.lower() for name in layout.regions) or DUAL.get(location, (location,))
  continent = {'us': 'us-', 'eu': 'europe-', 'asia': 'asia-'}.get(location) if not layout.regions else None
  return region in regions or (bool(continent) and region.startswith(continent) and region not in APART)


FORBIDDEN = ('Forbidden', 'Unauthorized', 'PermissionDeniedError', 'UnauthenticatedError')
PATIENCE = 20.0  # seconds for a client's answer when a command begins
# Google's pairs of regions, and regions that its multi-region of that continent leaves out.
DUAL = {'asia1': ('asia-northeast1', 'asia-northeast2'), 'eur4': ('europe-north1', 'europe-west4'),
        'eur5': ('europe-west1', 'europe-west2'), 'eur7': ('europe-west2', 'europe-west3'),
        'eur8': ('europe-west3', 'europe-west6'), 'nam4': ('us-central1', 'us-east1')}
APART = ('europe-west2', 'europe-west6')
