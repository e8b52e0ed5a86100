"""Client of the Hugging Face hub: time limits for requests, and checks of what a hub answers.

`huggingface_hub` waits without a limit for an answer of the API, and makes paths in its cache of
commits, ETags and file names as they come. A hub that HF_ENDPOINT names, a proxy or the login page
of a network may answer anything, so answers are checked before the client reads them.
"""
from collections.abc import Callable, Iterator
import functools
import json
import re
import time
from typing import Any, TypeVar

from plm_jax import storage

Result = TypeVar('Result')

UPLOAD_SECONDS = 600
"""time limit for an answer to an upload, during which the hub may check many files"""
ANSWER_SECONDS = 300
"""time limit for the whole answer to a request of the API"""
ANSWER_BYTES = 64 << 20
"""limit for an answer of the API, and for a file whose size is not stated"""
RETRY_STATUSES = (429, 500, 502, 503, 504)
RETRY_WAITS = (0.5, 1, 2)  # seconds
API = re.compile('/api/(models|datasets)/')
SAFE_TAG = re.compile(r'(W/)?"?[\w.:+=-]*"?', re.ASCII)
PATH_HEADERS = ('ETag', 'X-Linked-Etag', 'X-Repo-Commit', 'X-Xet-Hash')
"""headers that become parts of paths in the cache"""
HASH_KEYS = {'sha', 'oid', 'sha256', 'blobId', 'xetHash'}
PATH_KEYS = {'path', 'rfilename'}


class HubError(storage.StorageError):
  """A model of the hub that cannot be found, read or written."""


@functools.cache
def import_client() -> Any:
  """Import `huggingface_hub`, with time limits and checks in the client of this process."""
  import httpx2  # the client's own dependency
  import huggingface_hub
  from huggingface_hub import constants
  hooks = huggingface_hub.get_session().event_hooks
  endpoint = constants.ENDPOINT

  class LimitedStream(httpx2.SyncByteStream):
    """The content of an answer, which may neither be endless nor take forever."""

    def __init__(self, stream: Any):
      self.stream, self.begun = stream, time.monotonic()

    def __iter__(self) -> Iterator[bytes]:
      size = 0
      for part in self.stream:
        size += len(part)
        if size > ANSWER_BYTES or time.monotonic() - self.begun > ANSWER_SECONDS:
          raise HubError(f'{endpoint} sends an answer without an end: check HF_ENDPOINT and the '
                         'network')
        yield part

    def close(self) -> None:
      self.stream.close()

  def limit_time(request: Any) -> None:
    stated = request.extensions.get('timeout') or {}
    seconds = constants.HF_HUB_DOWNLOAD_TIMEOUT
    if request.method not in ('GET', 'HEAD'):
      seconds = UPLOAD_SECONDS
    kinds = ('connect', 'read', 'write', 'pool')
    request.extensions['timeout'] = {kind: stated.get(kind) or seconds for kind in kinds}

  def check_response(response: Any) -> None:
    for name in PATH_HEADERS:
      value = response.headers.get(name, '')
      if not SAFE_TAG.fullmatch(value) or '..' in value:
        raise_foreign(endpoint, f'its header {name} is {value[:100]!r}')
    path, method = response.request.url.path, response.request.method
    if API.search(path) or 'Content-Length' not in response.headers:
      response.stream = LimitedStream(response.stream)
    if API.search(path) and method == 'GET' and response.status_code == 200:
      check_answer(endpoint, response.read())

  def make_client() -> Any:
    return httpx2.Client(
        event_hooks={'request': [*hooks['request'], limit_time],
                     'response': [*hooks['response'], check_response]},
        follow_redirects=True)

  huggingface_hub.set_client_factory(make_client)
  return huggingface_hub


def check_answer(endpoint: str, content: bytes) -> None:
  """Check an answer of the API: JSON whose hashes and paths are such.

  Raises:
    HubError: it is not.
  """
  try:
    for key, value in iterate_strings(json.loads(content)):
      if key in HASH_KEYS and not re.fullmatch('[0-9a-fA-F]{8,128}', value):
        raise_foreign(endpoint, f'{key} is {value[:100]!r}')
      if key in PATH_KEYS and (value.startswith('/') or re.search(
          r'(^|/)\.{0,2}(/|$)|[\\\0-\x1f]', value)):
        raise_foreign(endpoint, f'it has a file called {value[:100]!r}')
  except (ValueError, RecursionError):
    begin = content[:60].decode(errors='replace').strip()
    raise_foreign(endpoint, f'expected JSON, got {begin!r}')


def iterate_strings(value: Any, key: str = '') -> Iterator[tuple[str, str]]:
  """Yield the texts in a JSON value, each with the key of its object."""
  if isinstance(value, str):
    yield key, value
  for name, part in value.items() if isinstance(value, dict) else ():
    yield from iterate_strings(part, name)
  for part in value if isinstance(value, list) else ():
    yield from iterate_strings(part, key)


def raise_foreign(endpoint: str, problem: str) -> None:
  """Raise HubError for an answer that the Hugging Face hub would not give."""
  raise HubError(f'{endpoint} does not answer as the Hugging Face hub ({problem}): check '
                 'HF_ENDPOINT, the proxy, and whether the network asks for a login') from None


def retry(call: Callable[[], Result]) -> Result:
  """Call a function of the client again after 429 and errors of the server.

  The client itself does so for listings and downloads.
  """
  for wait in RETRY_WAITS:
    try:
      return call()
    except Exception as error:
      if classify_error(error)[1] not in RETRY_STATUSES:
        raise
    time.sleep(wait)
  return call()


def classify_error(error: BaseException) -> tuple[set[str], int]:
  """Return the names of the classes of an error and its causes, and the status of a response.

  A response 404 to the request for a file adds the name 'MissingFile'.
  """
  names, status = set(), 0
  causes: list[BaseException] = [error]
  while causes[-1].__cause__ is not None and len(causes) < 10:
    causes.append(causes[-1].__cause__)
  for cause in causes:
    response = getattr(cause, 'response', None)
    status = status or getattr(response, 'status_code', 0)
    if status == 404 and response is not None and '/api/' not in str(response.url):
      names.add('MissingFile')
    names.update(kind.__name__ for kind in type(cause).__mro__)
  return names, status
