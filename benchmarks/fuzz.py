"""Fuzz commands with damaged inputs, and classify how each command ends: a clear message, normally, or badly.

    python -m benchmarks.fuzz --cases=1500                      # hours on one core: one command per case
    python -m benchmarks.fuzz --only tokenizer pickle --cases=100 --seed=7
    python -m benchmarks.fuzz --case=records:17 --show          # one case again, with its output

Bad ends are a traceback, a process that died, more than 10 seconds of CPU time or 60 of wall-clock time, more than
2 GiB of memory, or exit status 1 without a message. Cases that end with status 0 are listed with the damage, to be
reviewed by hand: damage may have no effect, but it must not produce nonsense. Every case is a function of the seed and
its number. Commands run in child processes that are forked after all imports, so a case takes about one second.
"""
import argparse
import collections
from collections.abc import Iterator, Sequence
import contextlib
import dataclasses
import importlib
import os
import pathlib
import random
import resource
import runpy
import shlex
import shutil
import signal
import sys
import tempfile
import time

# Modules of the tests are used here: mutators, and writers of other libraries' files.
TESTS = pathlib.Path(__file__).parents[1] / 'tests'
sys.path[:0] = [str(TESTS / 'helpers'), str(TESTS / 'conversion')]

from benchmarks import fuzz_cases  # noqa: E402

CPU, CLOCK, MEMORY = 10, 60, 2 << 30  # seconds, seconds, bytes
SHARES = {  # cases per kind, out of a hundred
    'option': 20, 'run': 12, 'config': 14, 'tokenizer': 14, 'records': 12, 'journal': 5, 'safetensors': 8, 'pickle': 5,
    't5x': 3, 'text': 7}


@dataclasses.dataclass(frozen=True)
class Case:
  """One command with a damaged input."""

  name: str
  what: str  # the damage
  command: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class End:
  """Outcome of a command."""

  verdict: str
  status: int
  said: str
  seconds: float
  memory: int  # bytes


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--cases', type=int, default=1500)
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--only', nargs='*', default=list(SHARES), choices=list(SHARES))
  parser.add_argument('--case', default='', help='KIND:NUMBER of a single case')
  parser.add_argument('--show', action='store_true', help='print the output of each case')
  parser.add_argument('--ground', type=pathlib.Path, help='folder of the undamaged files, made if missing')
  parser.add_argument('--workers', type=int, default=os.cpu_count() or 1)
  parser.add_argument('--lay', type=pathlib.Path, help='only make the undamaged files in this folder')
  args = parser.parse_args()
  if args.lay:
    lay(args.lay)
    return
  total = sum(SHARES[kind] for kind in args.only)
  cases = [
      (kind, number) for kind in args.only for number in range(max(1, args.cases * SHARES[kind] // total))]
  if args.case:
    kind, _, number = args.case.partition(':')
    cases = [(kind, int(number))]
  random.Random(args.seed).shuffle(cases)
  with contextlib.ExitStack() as stack:
    ground = args.ground or pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
    os.environ |= {'PLM_JAX_CACHE': str(ground / 'cache'), 'JAX_PLATFORMS': 'cpu'}
    load()
    if not (ground / 'done').exists():
      maker = os.fork()  # its computation starts threads, and a process with threads must not fork
      if not maker:
        os._exit(as_main(('benchmarks.fuzz', '--lay', str(ground)), 1))
      if os.waitpid(maker, 0)[1]:
        sys.exit('what is to be damaged could not be made')
    found = collections.Counter()
    for case, end in attempts(ground, args.seed, cases, args.workers):
      found[end.verdict] += 1
      if end.verdict != 'clear' or args.show:
        last = '' if end.verdict == 'goes on' else ' '.join(end.said.split())[-300:]
        print(f'{end.verdict:10} {case.name:18} {end.seconds:5.1f} s {end.memory >> 20:5} MiB  {case.what}: '
              f'{shlex.join(case.command)}\n    {end.said if args.show else last}', flush=True)
  print(f'{len(cases)} cases: ' + ', '.join(f'{count} {verdict}' for verdict, count in sorted(found.items())))
  sys.exit(bool(set(found) - {'clear', 'goes on'}))


def load() -> None:
  """Import the modules that commands import; JAX starts no threads before its first use."""
  for name in ('plm_jax.cli.run', 'plm_jax.conversion', 'plm_jax.evaluation.few_shot',
               'plm_jax.evaluation.text_to_text', 'plm_jax.recipes', 'safetensors.numpy',
               'orbax.checkpoint', 'tensorstore', 'sentencepiece', 'tokenizers'):
    importlib.import_module(name)


def lay(ground: pathlib.Path) -> None:
  """Create the intact inputs: text, records, runs, and checkpoints in other libraries' formats."""
  from plm_jax.sources import builtin_corpus
  shutil.rmtree(ground, ignore_errors=True)
  ground.mkdir(parents=True)
  text = pathlib.Path(builtin_corpus.corpus_path()).read_text()[:400_000].rpartition('\n\n')[0]
  (ground / 'text').mkdir(exist_ok=True)
  (ground / 'text' / 'corpus.txt').write_text(text)
  tiny = ['--train.phases.0.steps=2', '--train.phases.1.steps=1', '--train.save-every=1']
  prepare = ('plm_jax', 'prepare', str(ground / 'text'))
  runs = {'bert_base': (), 'gpt2_small': ('--kind=byte-bpe', '--layout=gpt2'),
          't5_small': ('--kind=sentencepiece-unigram', '--layout=t5')}
  for recipe, how in runs.items():
    records = str(ground / f'{recipe}-records')
    need((*prepare, records, '--vocab=1500', '--workers=1', '--shard-tokens=30000', *how))
    need(('plm_jax', 'train', recipe, '--scale=test', f'--data.path={records}', f'--output={ground / recipe}', *tiny))
    need(('plm_jax', 'export', str(ground / recipe), str(ground / f'{recipe}-hf')))
  fuzz_cases.lay_foreign(ground)
  # A `prepare` that is killed midway leaves shards and a journal.
  command = (*prepare, str(ground / 'torn'), '--vocab=1500', '--workers=1', '--shard-tokens=30000')
  child = Child(command)
  while not (ground / 'torn' / 'journal.json').exists() and not child.ended(600, 600):
    time.sleep(0.001)
  os.kill(child.process, signal.SIGKILL)
  (ground / 'done').touch()


def need(command: tuple[str, ...]) -> None:
  child = Child(command)
  while not (end := child.ended(clock=600, cpu=600)):
    time.sleep(0.05)
  if end.status:
    sys.exit(f'{shlex.join(command)}\n{end.said}')
  print(f'{end.seconds:5.1f} s  {shlex.join(command)}', flush=True)


def attempts(
    ground: pathlib.Path, seed: int, cases: Sequence[tuple[str, int]], workers: int) -> Iterator[tuple[Case, End]]:
  """Run the cases, up to `workers` at a time; yield each with its outcome."""
  waiting, running = list(reversed(cases)), []
  while waiting or running:
    while waiting and len(running) < workers:
      kind, number = waiting.pop()
      scratch = tempfile.TemporaryDirectory()
      draw = random.Random(f'{seed} {kind} {number}')
      what, command = fuzz_cases.KINDS[kind](draw, ground, pathlib.Path(scratch.name))
      place = pathlib.Path(scratch.name, 'a', 'b')  # so that writes to .. and ~ stay in the scratch folder
      place.mkdir(parents=True)
      running.append((Case(f'{kind}:{number}', what, command), scratch, Child(command, place)))
    for entry in list(running):
      case, scratch, child = entry
      if end := child.ended():
        running.remove(entry)
        scratch.cleanup()
        yield case, end
    time.sleep(0.02)


class Child:
  """Child process that runs `python -m COMMAND`."""

  def __init__(self, command: tuple[str, ...], folder: pathlib.Path | None = None):
    self.out = tempfile.TemporaryFile('w+b')  # noqa: SIM115  (closed when the child has ended)
    self.began = time.monotonic()
    self.process = os.fork()
    if not self.process:
      if folder:
        os.chdir(folder)
        os.environ['HOME'] = str(folder)
      os._exit(as_main(command, self.out.fileno()))

  def ended(self, clock: float = CLOCK, cpu: float = CPU) -> End | None:
    """Return how the child ended, or None while it runs.

    Args:
      clock: wall-clock seconds after which the child is killed.
      cpu: CPU seconds that it may use.
    """
    seconds = time.monotonic() - self.began
    if seconds > clock:
      os.killpg(self.process, signal.SIGKILL)
    ended, state, used = os.wait4(self.process, 0 if seconds > clock else os.WNOHANG)
    if not ended:
      return None
    with contextlib.suppress(ProcessLookupError):
      os.killpg(self.process, signal.SIGKILL)  # its remaining child processes
    self.out.seek(0)
    said, status = self.out.read().decode(errors='replace'), os.waitstatus_to_exitcode(state)
    self.out.close()
    share = max(seconds / clock, (used.ru_utime + used.ru_stime) / cpu)
    memory = used.ru_maxrss << 10
    return End(verdict_of(status, said, share, memory), status, said, seconds, memory)


def verdict_of(status: int, said: str, share: float, memory: int) -> str:
  """Classify the outcome of a command.

  Args:
    status: exit status, negative for a signal.
    said: its output.
    share: share of the time limit that it used.
    memory: peak memory in bytes.
  """
  if share > 1:
    return 'hangs'
  if status < 0:
    return 'dies'
  if memory > MEMORY:
    return 'memory'
  if 'Traceback (most recent call last)' in said or status not in (0, 1, 2):
    return 'traceback'
  if status and not said.strip():
    return 'mute'
  return 'clear' if status else 'goes on'


def as_main(command: tuple[str, ...], out: int) -> int:
  """Run a module as `python -m` does, with its output in file descriptor `out`; return the exit status."""
  os.setsid()
  os.dup2(out, 1)
  os.dup2(out, 2)
  os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
  resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
  sys.argv = list(command)
  status = 0
  try:
    runpy.run_module(command[0], run_name='__main__', alter_sys=True)
  except SystemExit as end:
    status = end.code if isinstance(end.code, int) else int(end.code is not None)
    if isinstance(end.code, str):
      print(end.code, file=sys.stderr)
  except BaseException:  # prints the traceback, as the interpreter would
    sys.excepthook(*sys.exc_info())
    status = 1
  sys.stdout.flush()
  sys.stderr.flush()
  return status


if __name__ == '__main__':
  main()
