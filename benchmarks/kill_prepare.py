"""Kill `prepare` with SIGKILL at random moments, with one worker and with four, and run the same command again.

    python -m benchmarks.kill_prepare --kills=20
    python -m benchmarks.kill_prepare --kills=4 --full-disk      # as root: also on a disk that is sometimes full

Exits with status 0 if every file of the records has the same bytes as after an undisturbed preparation, every worker
ended with its parent, and the folder has no other files.
"""
import argparse
import contextlib
import hashlib
import pathlib
import random
import subprocess
import sys
import tempfile
import time

WORDS = 5000
# Uses several workers although the text is short.
COMMAND = '''
import sys
from plm_jax.preparation import prepare
from plm_jax.data import window_rules
from plm_jax.distributed import worker_pool
if __name__ == '__main__':
  worker_pool.BYTES_PER_WORKER = 1
  source, folder, workers = sys.argv[1:]
  prepare.prepare(prepare.PrepareConfig(
      source=source, vocab=2000, sample=200_000, shard_tokens=20_000, workers=int(workers)), folder,
      [window_rules.WindowRule('document', 64), window_rules.WindowRule('sentences', 200)])
'''


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--kills', type=int, default=20, help='number of kills with one worker, and with four')
  parser.add_argument('--documents', type=int, default=20_000)
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--full-disk', action='store_true')
  args = parser.parse_args()
  with tempfile.TemporaryDirectory() as scratch:
    sys.exit(prove(pathlib.Path(scratch), args.kills, args.documents, args.full_disk, random.Random(args.seed)))


def prove(scratch: pathlib.Path, kills: int, documents: int, full_disk: bool, draw: random.Random) -> int:
  write_text(scratch / 'text.txt', documents, draw)
  (scratch / 'command.py').write_text(COMMAND)
  began = time.monotonic()
  run(scratch, 'whole', 4)
  seconds = time.monotonic() - began
  expected = digests(scratch / 'whole')
  print(f'without kills: {seconds:.1f} s, {len(expected)} files', flush=True)
  wrong = 0
  for workers in (1, 4):
    done = rounds = 0
    while done < kills:
      folder, rounds = f'torn-{workers}-{rounds}', rounds + 1
      while done < kills and kill(scratch, folder, workers, draw.uniform(0.2, 1) * seconds):
        done += 1
        print(f'kill {done} with {workers} workers: {len(digests(scratch / folder))} files', flush=True)
      run(scratch, folder, workers)
      wrong += compare(scratch / folder, expected)
      seconds *= 1 if done >= kills else 0.8  # the last process ended before it was killed
  if full_disk:
    wrong += fill(scratch, expected)
  print(f'{2 * kills} kills, {wrong} folders differ or are not clean')
  return int(wrong > 0)


def command(scratch: pathlib.Path, folder: str | pathlib.Path, workers: int) -> list[str]:
  return [sys.executable, str(scratch / 'command.py'), str(scratch / 'text.txt'), str(scratch / folder), str(workers)]


def run(scratch: pathlib.Path, folder: str, workers: int) -> None:
  subprocess.run(command(scratch, folder, workers), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def kill(scratch: pathlib.Path, folder: str, workers: int, seconds: float = 0, shards: int = 0) -> bool:
  """Start a preparation and kill it after `seconds`, and not before it has `shards` shards.

  Returns:
    Whether it was still running when it was killed.

  Raises:
    RuntimeError: if its workers are still alive 10 s later.
  """
  process = subprocess.Popen(
      command(scratch, folder, workers), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
  with contextlib.suppress(subprocess.TimeoutExpired):
    process.wait(seconds)
  while len(list((scratch / folder).glob('train-*.npy'))) < shards and process.poll() is None:
    time.sleep(0.01)
  children = of_session(process.pid)
  process.kill()
  if process.wait() != -9:
    return False
  for _ in range(100):
    if not of_session(process.pid):
      return True
    time.sleep(0.1)
  raise RuntimeError(f'of {children}, {of_session(process.pid)} are still there')


def of_session(leader: int) -> list[int]:
  """Return the ids of the living processes of a session, without its leader."""
  found = []
  for path in pathlib.Path('/proc').glob('[0-9]*/stat'):
    with contextlib.suppress(OSError):
      state, _, _, session = path.read_text().rpartition(')')[2].split()[:4]
      if int(session) == leader != int(path.parent.name) and state != 'Z':
        found.append(int(path.parent.name))
  return found


def fill(scratch: pathlib.Path, expected: dict[str, str]) -> int:
  """Prepare on a disk that is too small, enlarge it step by step, and compare the records.

  Returns:
    0 if the records are equal and at least two runs reported the full disk in one line, otherwise 1.
  """
  disk = scratch / 'disk'
  disk.mkdir()
  needed = sum(path.stat().st_size for path in (scratch / 'whole').rglob('*'))
  subprocess.run(['mount', '-t', 'tmpfs', '-o', f'size={needed // 4}', 'tmpfs', str(disk)], check=True)
  try:
    failures = 0
    for size in (needed // 4, needed // 2, 3 * needed // 4, 2 * needed):
      subprocess.run(['mount', '-o', f'remount,size={size}', str(disk)], check=True)
      ended = subprocess.run(command(scratch, disk / 'records', 1), check=False, capture_output=True, text=True)
      failures += ended.returncode != 0 and 'SpaceError: no space left' in ended.stderr
    print(f'full disk: {failures} runs of prepare failed and named the full disk')
    return compare(disk / 'records', expected) or int(failures < 2)
  finally:
    subprocess.run(['umount', str(disk)], check=True)


def write_text(path: pathlib.Path, documents: int, draw: random.Random) -> None:
  words = [''.join(draw.choices('abcdefghijklmnop', k=draw.randint(2, 9))) for _ in range(WORDS)]
  with path.open('w') as file:
    for _ in range(documents):
      file.writelines(' '.join(draw.choices(words, k=draw.randint(5, 40))).capitalize() + '.\n' for _ in range(3))
      file.write('\n')


def digests(folder: pathlib.Path) -> dict[str, str]:
  return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
          for path in sorted(folder.rglob('*')) if path.is_file()}


def compare(folder: pathlib.Path, expected: dict[str, str]) -> int:
  found = digests(folder)
  differ = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
  print(f'{folder.name}: {len(found)} files, {len(differ)} differ {differ[:5]}', flush=True)
  return int(bool(differ))


if __name__ == '__main__':
  main()
