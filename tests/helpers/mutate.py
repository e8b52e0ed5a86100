"""Damage, drawn from a seed, for files that tests let others read; and the limits under which they
are read.

    for damage in mutate.jsons(json.loads(path.read_text()), count=100):
      mutate.attempt(path, damage, lambda: read(folder))
"""
from collections.abc import Callable, Iterator
import contextlib
import json
import pathlib
import random
import resource
import signal
from typing import Any

from plm_jax.errors import UserError

# Written as they are into JSON: what json.dumps would refuse, or could not finish.
RAW = {'\ue000digits': '9' * 5000, '\ue000minus': '-' + '9' * 5000, '\ue000nan': 'NaN',
       '\ue000infinity': '-Infinity',
       '\ue000deep': '[' * 5000 + ']' * 5000,
       '\ue000deeper': '{"a":' * 200_000 + '1' + '}' * 200_000,
       '\ue000fraction': '1e99999', '\ue000surrogate': '"\\ud800"'}
VALUES = (None, True, False, 0, 1, -1, 2, 3, -7, 1 << 20, 10**7, 1 << 31, -(1 << 31), 1 << 62,
          10**12, 10**30, 0.5,
          -0.1, 1e300, 1e-300, '', 'a', '\0', '../x', '/etc/passwd', 'é\U0001f600', 'a' * 10_000,
          [], {}, [[]], [None],
          {'a': 1}, {'': {}}, [1, 2, 3], ['a', 'b'], *RAW)
BYTES = (b'\0', b'\xff', b'\x80', b'\xff\xfe', b'\xff' * 8, b'\0' * 8, b'\x7f' + b'\xff' * 7, b'"',
         b'{', b'[', b'-',
         b'9' * 30, b'\n', b'\n\n', b' ', b'\xed\xa0\x80', b'NaN', b'\\u0000')


def jsons(value: Any, count: int, seed: int = 0) -> Iterator[bytes]:
  """JSON of `count` damaged copies of value: keys and items deleted, doubled, renamed, of other
  types and sizes."""
  draw = random.Random(seed)
  for _ in range(count):
    yield json_of(value, draw)


def json_of(value: Any, draw: random.Random) -> bytes:
  """Return a damaged copy; one in ten also has damaged bytes."""
  text = json.dumps(value)
  copy = json.loads(text)
  for _ in range(draw.choice((1, 1, 1, 2, 4))):
    copy = damaged(copy, draw)
  text = json.dumps(copy)
  for name, raw in RAW.items():
    text = text.replace(json.dumps(name), raw)
  return bytes_of(text.encode(), draw) if draw.random() < 0.1 else text.encode()


def damaged(value: Any, draw: random.Random) -> Any:
  """A JSON value with one thing changed, at any depth."""
  if not isinstance(value, dict | list) or not value or draw.random() < 0.03:
    return draw.choice(VALUES)
  keys = list(value) if isinstance(value, dict) else range(len(value))
  key = draw.choice(keys)
  how = draw.choice(('into', 'into', 'replace', 'replace', 'delete', 'double', 'add', 'swap',
                     'near'))
  if how == 'into' and isinstance(value[key], dict | list):
    value[key] = damaged(value[key], draw)
  elif how == 'delete':
    del value[key]
  elif how in ('double', 'add'):
    new = value[key] if how == 'double' else draw.choice(VALUES)
    if isinstance(value, dict):
      value[draw.choice((f'{key}2', 'type', 'id', 'x', ''))] = new
    else:
      value.insert(key, new)
  elif how == 'swap':
    other = draw.choice(keys)
    value[key], value[other] = value[other], value[key]
  elif how == 'near' and isinstance(value[key], int | float | str):
    value[key] = near(value[key], draw)
  else:
    value[key] = draw.choice(VALUES)
  return value


def near(value: Any, draw: random.Random) -> Any:
  """Almost the same."""
  if isinstance(value, bool):
    return not value
  if isinstance(value, str):
    place = draw.randrange(len(value) + 1)
    return value[:place] + draw.choice(('', ' ', 'x', '\\', '(', '*',
                                        '\0')) + value[place + draw.randrange(2):]
  return draw.choice((value + 1, value - 1, -value, value * 1000, value * 10**9, float(value),
                      str(value)))


def contents(content: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
  """Yield `count` damaged copies of a file's content: bytes flipped, cut, inserted, doubled or
  exchanged."""
  draw = random.Random(seed)
  for _ in range(count):
    yield bytes_of(content, draw)


def bytes_of(content: bytes, draw: random.Random) -> bytes:
  """Return a damaged copy. The beginning of a file determines how the rest is read, so half of
  the damage is in the first 1%."""
  if draw.random() < 0.03:
    return draw.choice((b'', b'\0', b'\x80\x02', content[:1], b'\xff' * 100, content * 2))
  for _ in range(draw.choice((1, 1, 1, 2, 8))):
    size = len(content)
    if not size:
      return content
    place = draw.randrange(size if draw.random() < 0.5 else min(size, max(64, size // 100)))
    length = draw.choice((1, 1, 2, 4, 8, 64, max(1, size // 10)))
    how = draw.choice(('flip', 'flip', 'set', 'cut', 'delete', 'insert', 'double', 'move'))
    if how == 'flip':
      content = content[:place] + bytes([content[place] ^ 1 << draw.randrange(8)]) + content[
          place + 1:]
    elif how == 'set':
      new = draw.choice((*BYTES, draw.randbytes(length)))
      content = content[:place] + new + content[place + len(new):]
    elif how == 'cut':
      content = content[:place]
    elif how == 'delete':
      content = content[:place] + content[place + length:]
    elif how == 'insert':
      content = content[:place] + draw.choice((*BYTES, draw.randbytes(length))) + content[place:]
    elif how == 'double':
      content = content[:place + length] + content[place:]
    else:
      other = draw.randrange(size)
      content = content[:place] + content[other:other + length] + content[place + length:]
  return content


def attempt(path: pathlib.Path, damage: bytes, read: Callable[[], Any], seconds: float = 10) -> str:
  """Read the file `path` with damaged content, restore it, and return '' or the error message.

  The message may name another file of the folder that does not fit the damaged one. Any error
  other than Expected is raised, with the damage in a note.
  """
  good, said = path.read_bytes(), ''
  path.write_bytes(damage)
  try:
    with limits(seconds):
      read()
  except UserError as error:
    said = str(error)
  except BaseException as error:
    error.add_note(f'{path.name}: {damage[:2000]!r}')
    raise
  finally:
    path.write_bytes(good)
  assert not said or (str(path.parent) in said and 'more memory' not in said
                      and len(said) < 20_000), said
  return said


class Late(BaseException):
  """No Exception, so that nobody takes it for the fault of a file."""


@contextlib.contextmanager
def limits(seconds: float = 10, memory: int = 2 << 30) -> Iterator[None]:
  """Limit time and additional memory: raise Late, or MemoryError (or an error with its message).
  Only for the main thread; C code is interrupted when it returns."""
  def late(number, frame):
    raise Late(f'over {seconds} s')
  before = resource.getrlimit(resource.RLIMIT_AS)
  with open('/proc/self/statm') as file:
    mapped = int(file.read().split()[0]) * resource.getpagesize()
  handler = signal.signal(signal.SIGALRM, late)
  try:
    resource.setrlimit(resource.RLIMIT_AS, (mapped + memory, before[1]))
    signal.setitimer(signal.ITIMER_REAL, seconds, 1)  # again, as an error in a destructor is lost
    yield
  finally:
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, handler)
    resource.setrlimit(resource.RLIMIT_AS, before)
