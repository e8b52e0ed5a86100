"""Files on disks; test_gcs.py tests buckets."""
import ctypes
import errno
import json
import os
import pathlib
import subprocess
import sys
import threading

import pytest

from plm_jax import environment, storage
from plm_jax.config import run
from plm_jax.errors import UserError, exit_on_error
from plm_jax.storage import SpaceError, StorageError


class TextError(UserError):
  """Error class of the caller."""


@pytest.mark.parametrize(('given', 'meant'), [
    ('~/runs', os.path.expanduser('~/runs')), ('gs://bucket/a/', 'gs://bucket/a'),
    ('/gs/bucket/a', 'gs://bucket/a'),
    ('gs://my.bucket_1/a', 'gs://my.bucket_1/a'), ('a/~/b', 'a/~/b'), (pathlib.Path('a'), 'a')])
def test_paths(given, meant):
  assert os.fspath(storage.resolve_path(given)) == meant


@pytest.mark.parametrize('given', ['s3://bucket/a', 'gs:///a', 'gs://', 'http://host/a', 'a\0b',
                                   '~nobody-at-all/a'])
def test_invalid_paths_are_named(given):
  with pytest.raises(StorageError) as error:
    storage.resolve_path(given)
  assert given.replace('\0', '\\x00') in str(error.value)


def test_the_cache_is_a_local_folder(monkeypatch):
  monkeypatch.setenv('PLM_JAX_CACHE', '~/elsewhere')
  assert storage.cache_folder() == pathlib.Path('~/elsewhere').expanduser()
  monkeypatch.setenv('PLM_JAX_CACHE', 'gs://bucket/cache')
  with pytest.raises(StorageError,
                     match='gs://bucket/cache is a bucket: the cache has to be a local folder'):
    storage.cache_folder()
  monkeypatch.delenv('PLM_JAX_CACHE')
  assert storage.cache_folder() == pathlib.Path('~/.cache/plm_jax').expanduser()


def test_tilde_is_the_home_folder(tmp_path, monkeypatch):
  monkeypatch.setenv('HOME', str(tmp_path))
  from plm_jax import recipes
  from plm_jax.cli.run import parse
  assert parse(recipes.find_recipe('bert_base'), ['--output=~/x']).folder == f'{tmp_path}/x'
  assert run.PretrainRun.folder.fget(parse(recipes.find_recipe('bert_base'),
                                           ['--scale=test'])) == 'runs/bert_base-test'


def test_reading(tmp_path):
  (tmp_path / 'a').write_text('content')
  assert storage.read_bytes(tmp_path / 'a') == b'content' and storage.read_text(
      tmp_path / 'a', 7) == 'content'


@pytest.mark.parametrize(('name', 'message'), [
    ('nix', 'nix is not there'), ('folder', 'folder is a folder, expected a file'),
    ('pipe', 'is no ordinary file'),
    ('large', 'large has 100 bytes, expected 99 at most: is this the right file?'),
    ('file/below', 'Not a directory'),
    ('latin', 'latin is not UTF-8 text: invalid continuation byte at byte 2')])
def test_unreadable_files_are_named(tmp_path, name, message):
  (tmp_path / 'folder').mkdir()
  os.mkfifo(tmp_path / 'pipe')
  (tmp_path / 'large').write_bytes(bytes(100))
  (tmp_path / 'file').write_bytes(b'')
  (tmp_path / 'latin').write_bytes('naïve'.encode('latin-1'))
  with pytest.raises(TextError) as error:
    storage.read_text(tmp_path / name, 99, TextError)
  assert message in str(error.value) and str(tmp_path) in str(error.value) and '\n' not in str(
      error.value)


def test_a_file_deleted_during_reading_is_missing(tmp_path, monkeypatch):
  """Claims of a lock can disappear between the type check and the reading."""
  file = tmp_path / 'claim'
  file.write_text('content')
  def asked(path, *args, inner=os.stat, **named):
    found = inner(path, *args, **named)
    if os.fspath(path) == str(file):
      file.unlink(missing_ok=True)
    return found
  monkeypatch.setattr(os, 'stat', asked)
  with pytest.raises(storage.StorageError) as error:
    storage.read_bytes(file)
  assert storage.is_missing(error.value)


@pytest.mark.parametrize(('text', 'kind', 'message'), [
    ('{"a": ', dict, 'cannot be read as JSON: Expecting value'),
    ('', dict, 'cannot be read as JSON'),
    ('[1]', dict, 'holds a list, expected an object'),
    ('null', (dict, list), 'holds null, expected an object or a list'),
    ('9' * 5000, int, '5000 digits'), ('[' * 100_000 + ']' * 100_000, list, 'too deep'),
    ('{"a":' * 100_000 + '1' + '}' * 100_000, dict, 'too deep')])
def test_json_that_cannot_be_used_is_named(text, kind, message):
  with pytest.raises(TextError, match='here') as error:
    storage.parse_json(text, 'here', kind, TextError)
  assert message in str(error.value)


def test_json(tmp_path):
  storage.write_json(tmp_path / 'new' / 'a.json', {'ä': [1, 2.5, None]})
  assert storage.read_json(tmp_path / 'new' / 'a.json') == {'ä': [1, 2.5, None]}
  assert 'ä' in (tmp_path / 'new' / 'a.json').read_text()
  (tmp_path / 'mark.json').write_text('{"a": 1}', encoding='utf-8-sig')
  assert storage.read_json(tmp_path / 'mark.json') == {'a': 1}
  assert storage.parse_json('[' * 99 + ']' * 99, 'here',
                            list) and storage.parse_json('9' * 100, 'here', int)


def test_an_error_while_writing_keeps_the_old_file(tmp_path):
  storage.write(tmp_path / 'a', 'before')
  def half():
    yield b'half'
    raise KeyError('inside')
  with pytest.raises(KeyError), storage.atomic_writer(tmp_path / 'a') as file:
    file.writelines(half())
  assert (tmp_path / 'a').read_text() == 'before' and os.listdir(tmp_path) == ['a']


@pytest.mark.parametrize(('number', 'kind'), [
    (errno.ENOSPC, SpaceError), (errno.EDQUOT, SpaceError), (errno.EROFS, TextError),
    (errno.EIO, TextError)])
def test_disk_errors_are_one_line(tmp_path, monkeypatch, number, kind):
  storage.write(tmp_path / 'a', 'before')
  def fail(descriptor):
    raise OSError(number, os.strerror(number))
  monkeypatch.setattr(os, 'fsync', fail)
  with pytest.raises(kind) as error:
    storage.write(tmp_path / 'a', 'after', TextError)
  assert str(tmp_path / 'a') in str(error.value) and os.strerror(number) in str(error.value)
  assert (tmp_path / 'a').read_text() == 'before' and os.listdir(tmp_path) == ['a']


def test_concurrent_writers_leave_one_complete_file(tmp_path):
  contents = [str(number) * 200_000 for number in range(6)]
  def work(content):
    for _ in range(5):
      storage.write(tmp_path / 'a', content)
      assert storage.read_text(tmp_path / 'a') in contents
  threads = [threading.Thread(target=work, args=[content]) for content in contents]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert (tmp_path / 'a').read_text() in contents and os.listdir(tmp_path) == ['a']


def test_files_have_the_permissions_of_the_umask(tmp_path):
  before = os.umask(0o022)
  try:
    storage.write(tmp_path / 'a', '')
  finally:
    os.umask(before)
  assert (tmp_path / 'a').stat().st_mode & 0o777 == 0o644


def test_appending(tmp_path):
  for number in range(3):
    storage.append(tmp_path / 'new' / 'a.jsonl',
                   json.dumps({'ä': number}, ensure_ascii=False) + '\n')
  assert (tmp_path / 'new' / 'a.jsonl').read_bytes().decode() == '{"ä": 0}\n{"ä": 1}\n{"ä": 2}\n'


def test_lines_with_a_limit_and_ranges(tmp_path):
  (tmp_path / 'a').write_bytes(b'first\r\nsecond')
  with storage.open_stream(tmp_path / 'a') as file:
    assert [file.readline(3), file.readline(), file.tell(),
            file.readline(100)] == [b'fir', b'st\r\n', 7, b'second']
  assert storage.read_range(tmp_path / 'a', 2,
                            5) == b'rst' and storage.read_range(tmp_path / 'a', 13, 13) == b''
  with pytest.raises(TextError, match='a ends at byte 13, expected 20 at least'):
    storage.read_range(tmp_path / 'a', 2, 20, TextError)


def test_only_temporary_files_of_killed_processes_are_removed(tmp_path):
  for name in ('.a.json.0123.tmp', 'kept.tmp', '.kept'):
    (tmp_path / name).write_text('')
  storage.remove_drafts(tmp_path)
  assert sorted(os.listdir(tmp_path)) == ['.kept', 'kept.tmp']
  storage.remove_drafts(tmp_path / 'nix')


def test_free_space_is_read_for_a_folder_that_does_not_exist_yet(tmp_path):
  assert storage.free_bytes(tmp_path / 'not' / 'yet') == pytest.approx(storage.free_bytes(tmp_path),
                                                                       rel=0.1)
  assert storage.free_bytes('gs://bucket/a') is None


def test_errors_of_code_are_not_explained_away():
  with pytest.raises(ZeroDivisionError), storage.io_errors_as('a', 'read'):
    print(1 // 0)
  with pytest.raises(ValueError, match='of our own'), storage.io_errors_as('a', 'read'):
    raise ValueError('of our own')


def test_a_command_ends_with_one_line():
  with pytest.raises(SystemExit) as ended, exit_on_error():
    storage.read_bytes('/nix')
  assert ended.value.code == 'error: /nix is not there'


def test_environment_settings_of_the_user_are_kept(monkeypatch):
  monkeypatch.setenv('GCS_READ_CACHE_BLOCK_SIZE_MB', '16')
  monkeypatch.delenv('GCS_APPEND_MODE')
  environment.set_defaults()
  assert os.environ['GCS_READ_CACHE_BLOCK_SIZE_MB'] == '16' and os.environ[
      'GCS_APPEND_MODE'] == 'compose'


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), 'mallopt'), reason='another library of C')
@pytest.mark.parametrize(('settings', 'kept'), [({}, True), ({'MALLOC_ARENA_MAX': '2'}, False)])
def test_freed_memory_stays_in_the_process_unless_configured(settings, kept):
  program = """if True:
    import resource, threading
    from plm_jax import environment
    environment.keep_memory()
    def pages():
      return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    def work():
      b'x' * (1 << 26), b'x' * (1 << 27)
      before = pages()
      b'x' * (1 << 26), b'x' * (1 << 27)
      print(pages() - before)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()"""
  plain = {name: value for name, value in os.environ.items()
           if not name.startswith(('MALLOC_', 'GLIBC_'))}
  done = subprocess.run([sys.executable, '-c', program],
                        env=plain | {'JAX_PLATFORMS': 'cpu'} | settings,
                        capture_output=True, text=True, check=True)
  assert (int(done.stdout) < 1000) == kept


def test_an_output_that_is_a_link_stays_a_link(tmp_path):
  (tmp_path / 'real').mkdir()
  target = tmp_path / 'real' / 'target'
  target.write_text('old')
  for name, place in {'file': target, 'chain': 'file', 'dangling': 'real/new'}.items():
    (tmp_path / name).symlink_to(place)
    storage.write(tmp_path / name, name)
    assert (tmp_path / name).is_symlink() and (tmp_path / name).read_text() == name
  assert target.read_text() == 'chain' and (tmp_path / 'real' / 'new').read_text() == 'dangling'
  assert sorted(os.listdir(tmp_path / 'real')) == ['new', 'target']


def test_links_in_a_circle_are_one_line(tmp_path):
  (tmp_path / 'a').symlink_to('b')
  (tmp_path / 'b').symlink_to('a')
  with pytest.raises(StorageError, match='a cannot be written: Too many levels of symbolic links'):
    storage.write(tmp_path / 'a', 'content')


def test_an_output_that_is_a_pipe_receives_the_bytes(tmp_path):
  os.mkfifo(tmp_path / 'pipe')
  received = []
  reader = threading.Thread(target=lambda: received.append((tmp_path / 'pipe').read_bytes()))
  reader.start()
  storage.write(tmp_path / 'pipe', 'content')
  reader.join(10)
  assert received == [b'content'] and (tmp_path
                                       / 'pipe').is_fifo() and os.listdir(tmp_path) == ['pipe']


def test_devices_are_written_to_and_not_replaced(tmp_path):
  (tmp_path / 'null').symlink_to('/dev/null')
  for path in ('/dev/null', tmp_path / 'null'):
    storage.write(path, 'content')
  assert os.path.exists('/dev/null') and not os.path.isfile('/dev/null') and (
      tmp_path / 'null').is_symlink()


@pytest.mark.parametrize('name', ['/dev/stdout', '/proc/self/fd/1', '/dev/fd/1', 'link'])
def test_standard_output_keeps_earlier_output(tmp_path, name):
  (tmp_path / 'link').symlink_to('/dev/stdout')
  program = ('from plm_jax import storage; print("before"); '
             f'storage.write({name!r}, "content\\n"); print("after")')
  with open(tmp_path / 'out', 'wb') as out:
    subprocess.run([sys.executable, '-c', program], stdout=out, check=True, cwd=tmp_path,
                   env=os.environ | {'PYTHONPATH': os.pathsep.join(sys.path)})
  assert (tmp_path / 'out').read_text() == 'before\ncontent\nafter\n'


def test_an_output_keeps_its_permissions(tmp_path):
  storage.write(tmp_path / 'a', 'old')
  (tmp_path / 'a').chmod(0o600)
  storage.write(tmp_path / 'a', 'new')
  assert (tmp_path / 'a').read_text() == 'new' and (tmp_path / 'a').stat().st_mode & 0o777 == 0o600
