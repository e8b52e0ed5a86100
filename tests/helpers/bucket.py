"""Fake bucket on the loopback interface: the part of Google Cloud Storage that TensorFlow,
tensorstore, Orbax and google-cloud-storage use.

TensorFlow's client cannot use another host, but its libcurl supports a proxy. So this server
accepts CONNECT for Google's names and terminates TLS; the other clients connect by plain HTTP.
Clients read these settings from the environment when they are first used, so they run in separate
processes with the variables of `Bucket.environment`. Objects are kept in memory, and all clients
read the same state. Requests are counted, and `Fault` makes some of them fail.
"""
import base64
import collections
import dataclasses
import datetime
import functools
import http.server
import pathlib
import ssl
import threading
from typing import Any

from bucket_handler import HOSTS, Handler
import google_crc32c


@dataclasses.dataclass
class Object:
  content: bytes
  generation: int
  updated: str = dataclasses.field(
      default_factory=lambda: datetime.datetime.now(datetime.UTC).strftime('%Y-%m-%dT%H:%M:%S.%fZ'))

  def said(self, bucket: str, name: str) -> dict[str, Any]:
    return {'kind': 'storage#object', 'bucket': bucket, 'name': name,
            'size': str(len(self.content)),
            'generation': str(self.generation), 'metageneration': '1', 'updated': self.updated,
            'timeCreated': self.updated, 'storageClass': 'STANDARD',
            'contentType': 'application/octet-stream',
            'crc32c': base64.b64encode(google_crc32c.value(self.content).to_bytes(4, 'big')).decode(
                )}


@dataclasses.dataclass
class Fault:
  """What goes wrong with requests of an operation ('' for any) on objects whose names begin with a
  prefix."""

  # a status, 'reset' (and nothing was done), 'lost' (it was, and then reset), 'truncated' or 'slow'
  what: int | str
  operation: str = ''
  prefix: str = ''
  every: int = 1  # of those that it is about, the n-th, the 2n-th, ...
  times: int = 1 << 30  # and so many of these
  seconds: float = 0.2  # that a slow one takes
  met: int = 0
  done: int = 0

  def strikes(self, operation: str, name: str) -> bool:
    if self.operation not in ('', operation) or not name.startswith(self.prefix):
      return False
    self.met += 1
    if self.met % self.every or self.done >= self.times:
      return False
    self.done += 1
    return True


@dataclasses.dataclass
class Count:
  requests: int = 0
  sent: int = 0  # bytes of bodies, by clients
  received: int = 0  # bytes of bodies, by clients
  failed: int = 0


class Bucket:
  """`with Bucket(folder) as bucket: subprocess.run(..., env={**os.environ,
  **bucket.environment})`."""

  def __init__(self, folder: pathlib.Path, name: str = 'bucket', location: str = 'US-CENTRAL1',
               zone: str = ''):
    """folder: for the certificate. location: of the bucket. zone: of the machine, in its
    metadata."""
    self.folder, self.name, self.zone = folder, name, zone
    self.layout: dict[str, Any] = {'location': location, 'locationType': 'region'}
    self.objects: dict[str, Object] = {}
    self.faults: list[Fault] = []
    self.counts: dict[str, Count] = collections.defaultdict(Count)
    self.requests: list[tuple[str, str]] = []  # (operation, name)
    self.sessions: dict[str, tuple[str, bytearray]] = {}
    self.generation = 1000
    self.guard = threading.RLock()
    self.closing = threading.Event()
    self.context = certify(folder)
    self.server = http.server.ThreadingHTTPServer(('127.0.0.1', 0),
                                                  functools.partial(Handler, self))
    self.server.daemon_threads = True

  def __enter__(self) -> 'Bucket':
    threading.Thread(target=self.server.serve_forever, kwargs={'poll_interval': 0.05},
                     daemon=True).start()
    return self

  def __exit__(self, *error: Any) -> None:
    self.closing.set()
    self.server.shutdown()
    self.server.server_close()

  @property
  def address(self) -> str:
    return f'127.0.0.1:{self.server.server_address[1]}'

  @property
  def environment(self) -> dict[str, str]:
    """Environment variables of a client process; no request goes to Google."""
    return {
        'https_proxy': f'http://{self.address}',
        'CURL_CA_BUNDLE': str(self.folder / 'authority.pem'),
        'TENSORSTORE_GCS_HTTP_URL': f'http://{self.address}',
        'STORAGE_EMULATOR_HOST': f'http://{self.address}',
        'GOOGLE_AUTH_TOKEN_FOR_TESTING': 'abc', 'GOOGLE_CLOUD_PROJECT': 'project',
        'NO_GCE_CHECK': 'true',
        'no_proxy': '127.0.0.1,localhost', 'GCS_RETRY_CONFIG_INIT_DELAY_TIME_US': '20000',
        'GCE_METADATA_HOST': self.address if self.zone else '',
    }

  def put(self, name: str, content: bytes) -> Object:
    with self.guard:
      self.generation += 1
      self.objects[name] = Object(content, self.generation)
      return self.objects[name]

  def put_folder(self, folder: pathlib.Path, name: str) -> None:
    for path in folder.rglob('*'):
      if path.is_file():
        self.put(f'{name}/{path.relative_to(folder)}', path.read_bytes())

  def read(self, name: str) -> bytes:
    return self.objects[name].content

  def names(self, prefix: str = '') -> list[str]:
    with self.guard:
      return sorted(name for name in self.objects if name.startswith(prefix))

  def forget(self) -> None:
    """Counts and faults; the objects stay."""
    with self.guard:
      self.faults.clear()
      self.counts.clear()
      self.requests.clear()

  @property
  def total(self) -> Count:
    return Count(*map(sum, zip(*(dataclasses.astuple(count) for count in self.counts.values()),
                               strict=True)))


def certify(folder: pathlib.Path) -> ssl.SSLContext:
  """Make a certificate authority, authority.pem, and a certificate for Google's names."""
  from cryptography import x509
  from cryptography.hazmat.primitives import hashes, serialization
  from cryptography.hazmat.primitives.asymmetric import ec
  now, key = datetime.datetime.now(datetime.UTC), ec.generate_private_key(ec.SECP256R1())
  name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, 'bucket of the tests')])
  certificate = (
      x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
      .serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(1))
      .not_valid_after(now + datetime.timedelta(1))
      .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
      .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in HOSTS]),
                     critical=False)
      .sign(key, hashes.SHA256()))
  pem, coding = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
  (folder / 'authority.pem').write_bytes(certificate.public_bytes(pem))
  (folder / 'key.pem').write_bytes(key.private_bytes(pem, coding, serialization.NoEncryption()))
  context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
  context.load_cert_chain(folder / 'authority.pem', folder / 'key.pem')
  return context
