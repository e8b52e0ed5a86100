"""How the bucket on loopback answers one connection: the requests of Google Cloud Storage that its
clients make."""
import contextlib
import http.server
import json
import os
import re
import socket
import struct
from typing import Any
import urllib.parse

HOSTS = ('www.googleapis.com', 'storage.googleapis.com', 'oauth2.googleapis.com')
PATH = re.compile(
    r'(?P<service>/upload|/download)?/storage/v1/b(/(?P<bucket>[^/]+)(/o(/(?P<name>[^/]+)'
    r'(/(?P<action>compose|(rewriteTo|copyTo)/b/(?P<to>[^/]+)/o/(?P<copy>[^/]+)))?)?)?)?/?')


class Refused(Exception):
  """status, reason, message."""


class Handler(http.server.BaseHTTPRequestHandler):
  protocol_version = 'HTTP/1.1'
  disable_nagle_algorithm = True
  wbufsize = 1 << 16
  scheme = 'http'

  def __init__(self, bucket: Any, *arguments: Any):
    self.bucket = bucket
    super().__init__(*arguments)

  def log_message(self, *_: Any) -> None:
    pass

  def handle(self) -> None:
    with contextlib.suppress(OSError):  # clients go away as they like
      super().handle()

  def finish(self) -> None:
    with contextlib.suppress(OSError, ValueError):
      super().finish()
    self.connection.close()

  def handle_expect_100(self) -> bool:
    super().handle_expect_100()
    self.wfile.flush()
    return True

  def do_CONNECT(self) -> None:
    if self.path.partition(':')[0] not in HOSTS:
      self.send_error(403, 'no other hosts')
      return
    self.wfile.write(b'HTTP/1.1 200 Connection established\r\n\r\n')
    self.wfile.flush()
    self.connection = self.bucket.context.wrap_socket(self.connection, server_side=True)
    self.rfile, self.wfile = self.connection.makefile('rb'), self.connection.makefile(
        'wb', self.wbufsize)
    self.scheme, self.close_connection = 'https', False

  def do_GET(self) -> None:
    self.body = self.received()
    self.url = urllib.parse.urlsplit(self.path)
    self.query = {name: values[0] for name, values in urllib.parse.parse_qs(self.url.query).items()}
    self.status, self.answer, self.more = 200, b'', {}
    if self.url.path.startswith('/computeMetadata/'):
      self.answer = f'projects/1/zones/{self.bucket.zone}'.encode()
      self.reply()
      return
    operation, name, work = self.route()
    bucket = self.bucket
    with bucket.guard:
      fault = next((fault for fault in bucket.faults if fault.strikes(operation, name)), None)
      count = bucket.counts[operation]
      count.requests, count.sent = count.requests + 1, count.sent + len(self.body)
      bucket.requests.append((operation, name))
    what = fault.what if fault else ''
    if fault and what == 'slow':
      bucket.closing.wait(fault.seconds)
    if what == 'reset':
      count.failed += 1
      self.reset()
      return
    try:
      if isinstance(what, int):
        raise Refused(what, 'fault', f'the server answers {what}')
      with bucket.guard:
        found = work()
      self.answer = found if isinstance(found, bytes) else json.dumps(found).encode()
    except Refused as refused:
      self.status, reason, message = refused.args
      self.answer = json.dumps({'error': {'code': self.status, 'message': message, 'errors': [
          {'reason': reason, 'message': message}]}}).encode()
    with bucket.guard:
      count.received += len(self.answer)
      count.failed += (self.status >= 400 and self.status
                       not in (404, 412, 416)) or what == 'truncated'
    if what == 'lost':
      self.reset()
    else:
      self.reply(truncated=what == 'truncated')

  do_POST = do_PUT = do_DELETE = do_PATCH = do_GET

  def received(self) -> bytes:
    # TensorFlow gives both it and Content-Length
    if self.headers.get('Transfer-Encoding') != 'chunked':
      return self.rfile.read(int(self.headers.get('Content-Length') or 0))
    content = b''
    while size := int(self.rfile.readline(), 16):
      content += self.rfile.read(size)
      self.rfile.readline()
    self.rfile.readline()
    return content

  def reply(self, truncated: bool = False) -> None:
    if self.status in (204, 304):
      self.answer = b''
    head = [f'HTTP/1.1 {self.status} {http.HTTPStatus(self.status).phrase}',
            f'Content-Length: {len(self.answer)}',
            *(f'{name}: {value}' for name, value in self.more.items())]
    head += [] if 'Content-Type' in self.more else ['Content-Type: application/json']
    shown = self.answer[:len(self.answer) // 2] if truncated else self.answer
    self.wfile.write('\r\n'.join([*head, '\r\n']).encode() + shown)
    self.wfile.flush()
    if truncated:
      self.close_connection = True

  def reset(self) -> None:
    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
    os.close(self.connection.detach())
    self.close_connection = True

  def route(self) -> tuple[str, str, Any]:
    """-> (operation, name of the object, what to do), of the request."""
    match = PATH.fullmatch(self.url.path)
    if not match:  # https://storage.googleapis.com/BUCKET/OBJECT
      bucket, _, name = urllib.parse.unquote(self.url.path[1:]).partition('/')
      return 'read', name, lambda: self.in_bucket(bucket) or self.content(name)
    part = {key: urllib.parse.unquote(value or '') for key, value in match.groupdict().items()}
    method, name, action = self.command, part['name'] or self.query.get('name', ''), part[
        'action'].partition('/')[0]
    there = lambda work: lambda: self.in_bucket(part['bucket']) or work()
    if part['service'] == '/upload':
      kind = self.query.get('uploadType', '')
      if 'upload_id' in self.query:
        return 'upload', self.bucket.sessions.get(self.query['upload_id'],
                                                  ('', b''))[0], there(self.chunk)
      if kind == 'multipart':
        described, content = parts(self.body, self.headers['Content-Type'])
        name = json.loads(described).get('name', name)
        return 'write', name, there(lambda: self.write(name, content))
      if kind == 'resumable':
        name = name or json.loads(self.body)['name']
        return 'begin', name, there(lambda: self.begin(part['bucket'], name))
      return 'write', name, there(lambda: self.write(name, self.body))
    if action == 'compose':
      return 'compose', name, there(lambda: self.compose(name))
    if action:
      return 'copy', name, there(lambda: {'kind': 'storage#rewriteResponse', 'done': True,
                                          'resource': self.write(
          part['copy'], self.found(name).content)})
    if method == 'DELETE' and name:
      return 'delete', name, there(lambda: self.delete(name))
    if method == 'GET' and name:
      if self.query.get('alt') == 'media':
        return 'read', name, there(lambda: self.content(name))
      return 'stat', name, there(lambda: self.found(name).said(self.bucket.name, name))
    if method == 'GET' and self.url.path.rstrip('/').endswith('/o'):
      return 'list', self.query.get('prefix', ''), there(self.list)
    return 'bucket', '', there(lambda: {'kind': 'storage#bucket', 'id': self.bucket.name,
                                        'name': self.bucket.name,
                                        **self.bucket.layout})

  def in_bucket(self, name: str) -> None:
    if name != self.bucket.name:
      raise Refused(404, 'notFound', f'The specified bucket does not exist: {name}')

  def found(self, name: str) -> Any:
    found = self.bucket.objects.get(name)
    if not found or self.query.get('generation', str(found.generation)) != str(found.generation):
      raise Refused(404, 'notFound', f'No such object: {self.bucket.name}/{name}')
    self.condition(found)
    return found

  def condition(self, found: Any) -> None:
    generation = found.generation if found else 0
    if self.query.get('ifGenerationMatch', str(generation)) != str(generation):
      raise Refused(412, 'conditionNotMet', f'the generation is {generation}')
    if self.query.get('ifGenerationNotMatch') == str(generation):
      raise Refused(304, 'notModified', '')

  def content(self, name: str) -> bytes:
    found = self.found(name)
    self.more = {'Content-Type': 'application/octet-stream', 'x-goog-generation': found.generation,
                 'x-goog-metageneration': 1, 'x-goog-stored-content-length': len(found.content)}
    asked = re.fullmatch(r'bytes=(\d+)-(\d*)', self.headers.get('Range', ''))
    if not asked:
      return found.content
    start, stop = int(asked[1]), min(int(asked[2] or 1 << 60) + 1, len(found.content))
    if start >= len(found.content):
      raise Refused(416, 'requestedRangeNotSatisfiable',
                    f'the object has {len(found.content)} bytes')
    self.status = 206
    self.more['Content-Range'] = f'bytes {start}-{stop - 1}/{len(found.content)}'
    return found.content[start:stop]

  def write(self, name: str, content: bytes) -> dict[str, Any]:
    self.condition(self.bucket.objects.get(name))
    return self.bucket.put(name, content).said(self.bucket.name, name)

  def begin(self, bucket: str, name: str) -> bytes:
    self.condition(self.bucket.objects.get(name))
    session = f'{len(self.bucket.sessions)}-{name.rpartition("/")[2]}'
    self.bucket.sessions[session] = name, bytearray()
    self.more['Location'] = (
        f'{self.scheme}://{self.headers["Host"]}/upload/storage/v1/b/{bucket}/o'
        f'?uploadType=resumable&upload_id={urllib.parse.quote(session, safe="")}')
    return b''

  def chunk(self) -> dict[str, Any] | bytes:
    """Some bytes of an upload: `bytes 0-9/*`, `bytes 10-19/20`; or the question how far it came:
    `bytes */20`."""
    if self.query['upload_id'] not in self.bucket.sessions:
      raise Refused(410, 'gone', 'no such upload')
    name, received = self.bucket.sessions[self.query['upload_id']]
    place = self.headers.get('Content-Range', f'bytes 0-0/{len(self.body)}')
    asked = re.fullmatch(r'bytes (?:\*|(\d+)-\d+)/(\*|\d+)', place)
    if not asked or (asked[1] and int(asked[1]) > len(received)):
      raise Refused(400, 'invalid', f'{place} behind {len(received)} bytes')
    if asked[1]:
      received[int(asked[1]):] = self.body
    if asked[2].isdecimal() and len(received) == int(asked[2]):
      return self.bucket.put(name, bytes(received)).said(self.bucket.name, name)
    self.status = 308
    self.more |= {'Range': f'bytes=0-{len(received) - 1}'} if received else {}
    return b''

  def compose(self, name: str) -> dict[str, Any]:
    # TensorFlow writes what JavaScript reads: single quotes.
    said = json.loads(self.body if b'"' in self.body else self.body.replace(b"'", b'"'))
    content = b''
    for source in said['sourceObjects']:
      found = self.found_source(source)
      content += found.content
    return self.write(name, content)

  def found_source(self, source: dict[str, Any]) -> Any:
    found = self.bucket.objects.get(source['name'])
    wanted = source.get('objectPreconditions',
                        source.get('objectPrecondition', {})).get('ifGenerationMatch')
    if not found:
      raise Refused(404, 'notFound', f'No such object: {source["name"]}')
    if wanted is not None and int(wanted) != found.generation:
      raise Refused(412, 'conditionNotMet',
                    f'the generation of {source["name"]} is {found.generation}')
    return found

  def delete(self, name: str) -> bytes:
    self.found(name)
    del self.bucket.objects[name]
    self.status = 204
    return b''

  def list(self) -> dict[str, Any]:
    prefix, delimiter = self.query.get('prefix', ''), self.query.get('delimiter', '')
    after, most = self.query.get('pageToken', ''), int(self.query.get('maxResults', 1000))
    first, end = self.query.get('startOffset', ''), self.query.get('endOffset')
    items, folders = {}, {}
    for name in self.bucket.names(prefix):
      if name < first or (end is not None and name >= end):
        continue
      rest = name[len(prefix):]
      folder = prefix + rest[:rest.index(delimiter)
                             + len(delimiter)] if delimiter and delimiter in rest else ''
      (folders if folder else items)[folder or name] = name
    entries = [name for name in sorted([*items, *folders]) if name > after]
    page = entries[:most]
    answer = {'kind': 'storage#objects'}
    answer['items'] = [self.bucket.objects[name].said(self.bucket.name, name)
                       for name in page if name in items]
    answer['prefixes'] = [name for name in page if name in folders]
    if len(entries) > len(page):
      answer['nextPageToken'] = page[-1]
    return {key: value for key, value in answer.items() if value}


def parts(body: bytes, kind: str) -> tuple[bytes, bytes]:
  """multipart/related -> (the object's description, its content)."""
  boundary = re.search('boundary="?([^";]+)', kind)
  assert boundary, kind
  _, described, content, _ = body.split(b'--' + boundary[1].encode(), 3)
  return described.partition(b'\r\n\r\n')[2], content.partition(b'\r\n\r\n')[2].removesuffix(
      b'\r\n')
