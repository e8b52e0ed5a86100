"""CPU seconds of commands from the shell to what they print, next to a bare program in JAX that does the same work.

    python -m benchmarks.command_start_up --masked-lm FOLDER --classifier FOLDER --tagger FOLDER --decoder FOLDER

Each folder is a checkpoint of transformers (`plm_jax export`); the fill-mask of a run's own folder can be added with
--run. The bare program is `benchmarks.bare_model`, once as it is, and once with JAX's cache of compiled programs, which
the commands use. Rounds alternate between all programs, and the table shows the least CPU time of each, user and system,
of its process and its children. --before names another checkout of the project, whose commands are measured as well.
`modules` is what a command has imported at its end, the number of entries in sys.modules.
"""
import argparse
import os
import pathlib
import resource
import subprocess
import sys
import tempfile

from benchmarks.side_by_side import machine

COUNT = """
import sys
sys.argv = ['plm-jax', *sys.argv[1:]]
from plm_jax.cli.main import main
try:
  main()
finally:
  print(len(sys.modules), file=sys.stderr)
"""
ROOT = pathlib.Path(__file__).parents[1]


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  for name in ('masked-lm', 'classifier', 'tagger', 'decoder', 'run', 'before'):
    parser.add_argument(f'--{name}', default='')
  parser.add_argument('--rounds', type=int, default=3)
  args = parser.parse_args()
  with tempfile.TemporaryDirectory() as scratch:
    folder = pathlib.Path(scratch)
    measure(list_commands(args, folder), args.before, args.rounds, folder)


def list_commands(args: argparse.Namespace, scratch: pathlib.Path) -> dict[str, tuple[list[str], list[str]]]:
  """Return (arguments of the command, arguments of the bare program) by the name of a row."""
  masked, text = 'the capital of france is [MASK] .', 'a fine film'
  file = scratch / 'texts.txt'
  file.write_text(f'{text}\n')
  found: dict[str, tuple[list[str], list[str]]] = {'--help': (['--help'], []), 'train --help': (['train', '--help'], [])}
  if args.masked_lm:
    found['fill-mask'] = ['fill-mask', args.masked_lm, masked], ['fill-mask', args.masked_lm, masked]
    found['encode'] = (['encode', args.masked_lm, str(file), f'--output={scratch / "vectors.npy"}'],
                       ['encode', args.masked_lm, text])
  if args.run:
    found['fill-mask of a run'] = ['fill-mask', args.run, masked], []
    found['verify of a run'] = ['verify', args.run], []
  if args.classifier:
    found['predict'] = ['predict', args.classifier, str(file)], ['predict', args.classifier, text]
  if args.tagger:
    found['tag'] = ['tag', args.tagger, text], ['tag', args.tagger, text]
  if args.decoder:
    found['generate'] = ['generate', args.decoder, text, '--max-new=8'], ['generate', args.decoder, text]
  return found


def measure(commands: dict[str, tuple[list[str], list[str]]], before: str, rounds: int, scratch: pathlib.Path) -> None:
  programs: dict[tuple[str, str], tuple[list[str], dict[str, str]]] = {}
  base = {**os.environ, 'PLM_JAX_CACHE': str(scratch / 'cache')}
  base.pop('JAX_COMPILATION_CACHE_DIR', None)
  cached = {**base, 'JAX_COMPILATION_CACHE_DIR': str(scratch / 'bare'), 'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0'}
  for name, (arguments, bare) in commands.items():
    if before:
      earlier = {**base, 'PYTHONPATH': before, 'PLM_JAX_CACHE': str(scratch / 'earlier')}
      programs[name, 'before'] = [sys.executable, '-m', 'plm_jax', *arguments], earlier
    programs[name, 'now'] = [sys.executable, '-m', 'plm_jax', *arguments], {**base, 'PYTHONPATH': str(ROOT)}
    if bare:
      program = [sys.executable, '-m', 'benchmarks.bare_model', *bare]
      programs[name, 'bare'], programs[name, 'bare, cached'] = (program, base), (program, cached)

  modules = {}
  for key, (program, environment) in programs.items():  # the first run of each fills the caches
    if program[2] == 'plm_jax':
      program = [sys.executable, '-c', COUNT, *program[3:]]
    said = subprocess.run(program, env=environment, check=True, capture_output=True, text=True, cwd=checkout(environment))
    modules[key] = said.stderr.split()[-1] if said.stderr.split() else ''
  seconds: dict[tuple[str, str], list[float]] = {}
  for _ in range(rounds):
    for key, (program, environment) in programs.items():
      seconds.setdefault(key, []).append(cpu_seconds(program, environment))
  least = {key: min(times) for key, times in seconds.items()}

  print(machine('jax', 'flax'))
  columns = ['before', 'now', 'bare', 'bare, cached']
  print('\n| command | ' + ' | '.join(f'{column}, CPU s' for column in columns) + ' | now / bare | modules before | now |')
  print('|---|' + '---|' * (len(columns) + 3))
  for name in commands:
    cells = [f'{least[name, column]:.2f}' if (name, column) in least else '' for column in columns]
    ratio = f'{least[name, "now"] / least[name, "bare"]:.2f}' if (name, 'bare') in least else ''
    print(f'| {name} | {" | ".join(cells)} | {ratio} | {modules.get((name, "before"), "")} | {modules[name, "now"]} |')


def checkout(environment: dict[str, str]) -> str:
  """Return the checkout that a program measures. It runs there, because python -m looks there first."""
  return environment.get('PYTHONPATH', '') or str(ROOT)


def cpu_seconds(program: list[str], environment: dict[str, str]) -> float:
  """Run a program and return the CPU seconds of it and its children."""
  before = resource.getrusage(resource.RUSAGE_CHILDREN)
  subprocess.run(program, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                 cwd=checkout(environment))
  after = resource.getrusage(resource.RUSAGE_CHILDREN)
  return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


if __name__ == '__main__':
  main()
