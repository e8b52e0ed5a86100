"""Responses of the fake Hugging Face hub: `hub_server.Hub` has its state."""
import base64
import contextlib
import hashlib
import http.server
import json
import re
import time
from typing import Any
import urllib.parse

REPOSITORY = r'(?P<name>[^/]+?(?:/[^/]+?)??)'
API = re.compile(
    rf'/api/(?P<kind>models|datasets)/{REPOSITORY}'
    r'(?:/(?P<action>revision|tree|paths-info|preupload|commit|branch|refs)(?:/(?P<rest>.*))?)?')
FILE = re.compile(rf'/(?P<kind>datasets/)?{REPOSITORY}/resolve/(?P<revision>[^/]+)/(?P<path>.+)')
LFS = re.compile(rf'/(?P<kind>datasets/)?{REPOSITORY}\.git/info/lfs/objects/batch')


class Refusal(Exception):
  """A response that is an error."""

  def __init__(self, status: int, message: str, code: str = '', **headers: str):
    super().__init__(message)
    self.status, self.code, self.headers = status, code, headers


class Handler(http.server.BaseHTTPRequestHandler):
  protocol_version = 'HTTP/1.1'
  disable_nagle_algorithm = True

  def __init__(self, hub: Any, *arguments: Any):
    self.hub, self.fault = hub, None
    super().__init__(*arguments)

  def log_message(self, *_: Any) -> None:
    pass

  def do_GET(self) -> None:
    self.answer()

  do_HEAD = do_POST = do_PUT = do_GET

  def answer(self) -> None:
    """Count a request, and answer it or fail according to a fault."""
    url = urllib.parse.urlsplit(self.path)
    self.query = dict(urllib.parse.parse_qsl(url.query))
    self.body = self.read_body()
    with self.hub.guard:
      if url.path != '/api/agent-harnesses':  # which the client looks up now and then
        self.hub.requests.append((self.command, urllib.parse.unquote(url.path)))
      self.hub.received += len(self.body)
      faults = [fault for fault in self.hub.faults if fault.strikes(self.command, url.path)]
    self.fault = faults[0] if faults else None
    try:
      while self.fault and self.fault.following and not self.hub.sent[self.fault.following]:
        time.sleep(0.01)
      if self.fault and isinstance(self.fault.kind, int):
        raise Refusal(self.fault.kind, 'as the test wants it', **self.fault.headers)
      if self.fault and self.fault.kind == 'html':
        return self.respond(b'<html>Log in</html>', headers={'Content-Type': 'text/html'})
      if self.fault and self.fault.kind == 'silent':
        time.sleep(4)
      if self.fault and self.fault.kind == 'endless':
        return self.send_forever()
      self.route(url.path)
    except Refusal as refusal:
      headers = dict(refusal.headers)
      if refusal.code:
        headers['X-Error-Code'] = refusal.code
      headers['X-Error-Message'] = str(refusal)
      self.respond(json.dumps({'error': str(refusal)}).encode(), refusal.status, headers)

  def send_forever(self) -> None:
    self.send_response(200)
    self.end_headers()
    self.close_connection = True
    with contextlib.suppress(OSError):
      while True:
        self.wfile.write(b'[' * (1 << 16))

  def read_body(self) -> bytes:
    if 'chunked' not in self.headers.get('Transfer-Encoding', ''):
      return self.rfile.read(int(self.headers.get('Content-Length') or 0))
    parts = []
    while size := int(self.rfile.readline(), 16):
      parts.append(self.rfile.read(size))
      self.rfile.readline()
    self.rfile.readline()
    return b''.join(parts)

  def route(self, path: str) -> None:
    if found := FILE.fullmatch(path):
      kind = 'datasets' if found['kind'] else 'models'
      return self.send_file(
          self.repository(kind, found['name'], reads=True), found['revision'],
          urllib.parse.unquote(found['path']))
    if found := LFS.fullmatch(path):
      return self.plan_uploads()
    if path.startswith('/lfs/'):
      oid = path.removeprefix('/lfs/')
      if hashlib.sha256(self.body).hexdigest() != oid:
        raise Refusal(400, 'the content is another')
      self.hub.stored[oid] = self.body
      return self.respond(b'')
    if path == '/api/whoami-v2':
      self.check_token()
      return self.respond_json({'type': 'user', 'name': 'tester', 'orgs': []})
    if path == '/api/validate-yaml':
      return self.respond_json({'errors': [], 'warnings': []})
    if path == '/api/repos/create':
      return self.create()
    if found := API.fullmatch(path):
      return self.route_api(found['kind'], found['name'], found['action'], found['rest'] or '')
    raise Refusal(404, f'no such path: {path}')

  def route_api(self, kind: str, name: str, action: str, rest: str) -> None:
    repository = self.repository(kind, name)
    revision, _, folder = rest.partition('/')
    if action in ('preupload', 'commit', 'branch'):
      self.check_token()
    if action == 'branch':
      wanted = json.loads(self.body or b'{}').get('startingPoint', 'main')
      start = repository.branches.get(wanted, wanted)
      repository.branches[urllib.parse.unquote(revision)] = start
      return self.respond_json({})
    if action == 'refs':
      branches = []
      for branch, commit in repository.branches.items():
        branches.append({'name': branch, 'ref': f'refs/heads/{branch}', 'targetCommit': commit})
      return self.respond_json({'branches': branches, 'tags': [], 'converts': []})
    if action == 'preupload':
      return self.plan_modes(repository, revision)
    if action == 'commit':
      return self.commit(repository, urllib.parse.unquote(revision))
    commit, files = self.resolve(repository, revision or 'main')
    if action == 'tree':
      return self.list_tree(files, urllib.parse.unquote(folder))
    if action == 'paths-info':
      return self.describe_paths(files)
    siblings = [{'rfilename': path} for path in files]
    self.respond_json({
        'id': name, '_id': name, 'sha': commit, 'private': repository.private,
        'gated': 'manual' if repository.gated else False, 'disabled': False, 'downloads': 0,
        'likes': 0, 'tags': [], 'siblings': siblings, 'lastModified': '2026-01-01T00:00:00.000Z',
        'createdAt': '2026-01-01T00:00:00.000Z'})

  def logged_in(self) -> bool:
    return self.headers.get('Authorization') == f'Bearer {self.hub.token}'

  def check_token(self) -> None:
    if not self.logged_in():
      raise Refusal(401, 'Invalid username or password.')

  def repository(self, kind: str, name: str, reads: bool = False) -> Any:
    """Return a repository that the client may know; its files, if it `reads` them."""
    found = self.hub.repositories.get((kind, urllib.parse.unquote(name)))
    if found is None or (found.private and not self.logged_in()):
      # The hub hides private repositories, and requires a token without a login.
      if self.logged_in():
        raise Refusal(404, 'Repository not found', 'RepoNotFound')
      raise Refusal(401, 'Invalid username or password.')
    if reads and found.gated and not self.logged_in():
      raise Refusal(401, f'Access to model {name} is restricted. You must have access to it and be '
                    'authenticated to access it. Please log in.', 'GatedRepo')
    return found

  def resolve(self, repository: Any, revision: str) -> tuple[str, dict[str, Any]]:
    revision = urllib.parse.unquote(revision)
    commit = repository.branches.get(revision, revision)
    if commit not in repository.commits:
      raise Refusal(404, f'Invalid rev id: {revision}', 'RevisionNotFound')
    return commit, repository.commits[commit]

  def list_tree(self, files: dict[str, Any], folder: str) -> None:
    prefix, entries = f'{folder}/' if folder else '', {}
    for path in sorted(files):
      if not path.startswith(prefix):
        continue
      parts = path[len(prefix):].split('/')
      for depth in range(1, len(parts)):
        if depth == 1 or self.query.get('recursive') in ('True', 'true'):
          inner = prefix + '/'.join(parts[:depth])
          oid = hashlib.sha1(inner.encode()).hexdigest()
          entries[inner] = {'type': 'directory', 'path': inner, 'oid': oid, 'size': 0}
      if len(parts) == 1 or self.query.get('recursive') in ('True', 'true'):
        entries[path] = describe(path, files[path])
    if folder and not entries:
      raise Refusal(404, f'{folder} does not exist', 'EntryNotFound')
    start = int(self.query.get('cursor', 0))
    stop, headers = start + self.hub.page, {}
    if stop < len(entries):
      query = urllib.parse.urlencode({**self.query, 'cursor': stop})
      path = urllib.parse.urlsplit(self.path).path
      headers['Link'] = f'<{self.hub.url}{path}?{query}>; rel="next"'
    self.respond_json(list(entries.values())[start:stop], headers)

  def describe_paths(self, files: dict[str, Any]) -> None:
    if 'json' in self.headers.get('Content-Type', ''):
      wanted = json.loads(self.body)['paths']
    else:
      wanted = urllib.parse.parse_qs(self.body.decode()).get('paths', [])
    found = []
    for path in wanted:
      if path in files:
        found.append(describe(path, files[path]))
      elif any(name.startswith(f'{path}/') for name in files):
        oid = hashlib.sha1(path.encode()).hexdigest()
        found.append({'type': 'directory', 'path': path, 'oid': oid, 'size': 0})
    self.respond_json(found)

  def send_file(self, repository: Any, revision: str, path: str) -> None:
    commit, files = self.resolve(repository, revision)
    if path not in files:
      raise Refusal(404, f'{path} does not exist', 'EntryNotFound', **{'X-Repo-Commit': commit})
    file = files[path]
    headers = {'ETag': f'"{file.etag}"', 'X-Repo-Commit': commit, 'Accept-Ranges': 'bytes',
               'X-Linked-Size': str(len(file.content)), 'X-Linked-Etag': f'"{file.etag}"'}
    content, status = file.content, 200
    asked = re.fullmatch(r'bytes=(\d*)-(\d*)', self.headers.get('Range', ''))
    if asked:
      size = len(content)
      start = int(asked[1]) if asked[1] else size - int(asked[2])
      stop = min(int(asked[2]) + 1, size) if asked[1] and asked[2] else size
      if start >= size:
        raise Refusal(416, 'no such range', **{'Content-Range': f'bytes */{size}'})
      content, status = content[start:stop], 206
      headers['Content-Range'] = f'bytes {start}-{stop - 1}/{size}'
    if self.command == 'GET':
      with self.hub.guard:
        self.hub.sent[path] += len(content)
    if self.fault and self.fault.kind == 'corrupt':
      content = bytes([content[0] ^ 1]) + content[1:]
    if self.fault and self.fault.kind == 'short':
      content = content[:self.fault.after]
    self.respond(content, status, headers)

  def create(self) -> None:
    self.check_token()
    wanted = json.loads(self.body)
    kind = f'{wanted.get("type") or "model"}s'
    name = f'{wanted.get("organization") or "tester"}/{wanted["name"]}'
    if (kind, name) in self.hub.repositories:
      answer = {'error': 'You already created this model repo', 'url': f'{self.hub.url}/{name}'}
      return self.respond_json(answer, status=409)
    self.hub.add(name, {'.gitattributes': b''}, kind, private=wanted.get('visibility') == 'private')
    self.respond_json({'url': f'{self.hub.url}/{name}', 'name': name, 'id': name})

  def plan_modes(self, repository: Any, revision: str) -> None:
    _, files = self.resolve(repository, revision)
    modes = []
    for file in json.loads(self.body)['files']:
      large = file['size'] > 1 << 20 or file['path'].endswith(('.safetensors', '.bin', '.model'))
      known = files.get(file['path'])
      modes.append({'path': file['path'], 'uploadMode': 'lfs' if large else 'regular',
                    'shouldIgnore': False, 'oid': known.oid if known else None})
    self.respond_json({'files': modes})

  def plan_uploads(self) -> None:
    """Answer a batch of the LFS protocol."""
    self.check_token()
    objects = []
    for file in json.loads(self.body)['objects']:
      plan = {'oid': file['oid'], 'size': file['size']}
      if file['oid'] not in self.hub.stored:
        plan['actions'] = {'upload': {'href': f'{self.hub.url}/lfs/{file["oid"]}', 'header': {}}}
      objects.append(plan)
    self.respond_json({'transfer': 'basic', 'objects': objects})

  def commit(self, repository: Any, branch: str) -> None:
    files, message = dict(self.resolve(repository, branch)[1]), ''
    make = self.hub.make_file
    for line in self.body.decode().splitlines():
      entry = json.loads(line)
      key, value = entry['key'], entry['value']
      if key == 'header':
        message = value['summary']
      elif key == 'file':
        files[value['path']] = make(base64.b64decode(value['content']), False)
      elif key == 'lfsFile':
        if value['oid'] not in self.hub.stored:
          raise Refusal(400, f'{value["path"]} was not uploaded')
        files[value['path']] = make(self.hub.stored[value['oid']], True)
      elif key == 'deletedFile':
        files.pop(value['path'], None)
      elif key == 'deletedFolder':
        for path in [path for path in files if path.startswith(value['path'].rstrip('/') + '/')]:
          del files[path]
    commit = repository.commit(files, branch, message)
    url = f'{self.hub.url}/{repository.name}/commit/{commit}'
    self.respond_json({'success': True, 'commitOid': commit, 'commitUrl': url, 'hookOutput': ''})

  def respond_json(self, value: Any, headers: dict[str, str] | None = None,
                   status: int = 200) -> None:
    self.respond(json.dumps(value).encode(), status,
                 {'Content-Type': 'application/json', **(headers or {})})

  def respond(self, content: bytes, status: int = 200,
              headers: dict[str, str] | None = None) -> None:
    self.send_response(status)
    headers = dict(headers or {})
    if self.fault and self.fault.kind == 'headers':
      headers |= self.fault.headers
    for name, value in headers.items():
      self.send_header(name, value)
    self.send_header('Content-Length', str(len(content)))
    self.end_headers()
    if self.command == 'HEAD':
      return
    if self.fault and self.fault.kind == 'cut':
      content = content[:self.fault.after]
      self.close_connection = True
    self.wfile.write(content)


def describe(path: str, file: Any) -> dict[str, Any]:
  """Describe a file as a listing does."""
  entry = {'type': 'file', 'path': path, 'size': len(file.content), 'oid': file.oid}
  if file.lfs:
    entry['lfs'] = {'oid': file.sha256, 'size': len(file.content), 'pointerSize': 130}
  return entry
