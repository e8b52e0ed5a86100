"""Describe the environment of a run: command, devices and versions of packages."""
import contextlib
import importlib.metadata
import pathlib
import platform
import shlex
import subprocess
import sys
import time

import jax

from plm_jax.errors import print_line


def run_environment() -> dict[str, str]:
  """Return the command, the devices and the versions of packages of this process."""
  kind = jax.devices()[0].device_kind
  found = {
      'Command': shlex.join(['python', *sys.orig_argv[1:]]), 'Finished': time.strftime('%F %T %Z'),
      'Devices': f'{jax.device_count()} x {kind.upper() if kind == "cpu" else kind}',
      'Python': platform.python_version(), 'plm_jax': package_version()}
  for name in ('jax', 'flax', 'optax', 'orbax-checkpoint'):
    found[name] = importlib.metadata.version(name)
  return found


def package_version() -> str:
  """Return the installed version of plm_jax, and the commit where it runs from a git checkout."""
  parts = []
  with contextlib.suppress(importlib.metadata.PackageNotFoundError):
    parts.append(importlib.metadata.version('plm_jax'))
  home = pathlib.Path(__file__).parents[2]
  with contextlib.suppress(OSError, subprocess.SubprocessError):
    if (home / '.git').exists():
      commit = read_git(home, 'rev-parse', 'HEAD')[:12]
      changed = '-dirty' if read_git(home, 'status', '-s', '-uno') else ''
      parts.append(f'commit {commit}{changed}')
  return ', '.join(parts) or 'unknown'


def read_git(home: pathlib.Path, *command: str) -> str:
  """Return what a git command prints about a checkout."""
  call = ['git', '-C', str(home), *command]
  done = subprocess.run(call, capture_output=True, text=True, timeout=10, check=True)
  return done.stdout.strip()


def print_on_leader(text: str) -> None:
  """Print a line on process 0 of a job."""
  if jax.process_index() == 0:
    print_line(text)
