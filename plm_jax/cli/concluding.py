"""What is shown of a run on labelled examples, or on several corpora, and what every report says of surroundings."""
from collections.abc import Callable, Mapping
import contextlib
import importlib.metadata
import pathlib
import platform
import shlex
import subprocess
import sys
import time
from xml.etree.ElementTree import Element

import jax

from plm_jax import config_file
from plm_jax.cli import mistakes, report
from plm_jax.inference import loading
from plm_jax.objectives import figures
from plm_jax.pods import hosts
from plm_jax.tasks.setup import Settled
from plm_jax.training.learner import selection
from plm_jax.training.selection import trained
from plm_jax.training.train import Result


def conclude(ready: Settled, result: Result) -> None:
  """Writes the report, and what the terminal shows at the end."""
  config = ready.config
  with hosts.together('report'):
    if jax.process_index() == 0:
      headline = {f'Development {name.replace("_", " ")}': f'{value:.2f}' for name, value in result.heldout.items()}
      headline |= {
          'Steps': f'{result.step:,}' + (f', the best of them {result.best:,}' if result.best is not None else ''),
          'Parameters': f'{sum(x.size for x in jax.tree.leaves(result.params)):,}, of which '
                        f'{trained(selection(config), result.params):,} are trained',
          'Training examples': f'{len(ready.train.examples):,}', 'Epochs': f'{result.epochs:.1f}',
          'Duration of this process': f'{result.seconds / 60:.1f} min'}
      path = report.write_report(config.folder, report.Summary(
          title=config.name, headline=headline, config=config_file.to_json(config), environment=surroundings(),
          notes=ready.train.report.lines(), sections=shown(ready)))
      print()
      for name, value in headline.items():
        print(f'{name + ":":34}{value}')
      print(f'\nreport: {path}')
      print(f'more:   python -m plm_jax predict {shlex.quote(config.folder)} FILE')


def shown(ready: Settled) -> list[Element]:
  """Makes what the report shows of the first development set, by the best parameters; nothing where several hosts share
  the model."""
  if not ready.dev or jax.process_count() > 1:
    return []
  return mistakes.sections(loading.load(ready.config.folder), next(iter(ready.dev.values())).examples)


def surroundings() -> dict[str, str]:
  """Returns the command, the devices and the versions of a run."""
  return {
      'Command': shlex.join(['python', *sys.orig_argv[1:]]), 'Finished': time.strftime('%F %T %Z'),
      'Devices': f'{jax.device_count()} x {jax.devices()[0].device_kind}', 'Python': platform.python_version(),
      'plm_jax': own_version(),
      **{name: importlib.metadata.version(name) for name in ('jax', 'flax', 'optax', 'orbax-checkpoint')}}


def own_version() -> str:
  """Returns the version that is installed, and the commit where the code lies in a git checkout."""
  said = []
  with contextlib.suppress(importlib.metadata.PackageNotFoundError):
    said.append(importlib.metadata.version('plm_jax'))
  home = pathlib.Path(__file__).parents[2]
  with contextlib.suppress(OSError, subprocess.SubprocessError):
    if (home / '.git').exists():
      asked = ['git', '-C', str(home), 'describe', '--always', '--dirty', '--abbrev=12']
      commit = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
      said.append(f'commit {commit}')
  return ', '.join(said) or 'unknown'


def say(text: str) -> None:
  """Prints a line on process 0 of a job."""
  if jax.process_index() == 0:
    print(text, flush=True)


def by_corpus(heldout: Mapping[str, float], shown: Callable[[str, float], str]) -> list[Element]:
  """Makes the section of figures by corpus; no section where there is one corpus. shown: (figure, value) -> text."""
  whole, corpora = figures.by_corpus(heldout)
  names = list(dict.fromkeys(name for some in corpora.values() for name in some))
  el = report.el
  head = el('tr', el('th', ''), *(el('th', figures.called(name, whole), scope='col') for name in names))
  rows = [el('tr', el('th', corpus, scope='row'), *(
      el('td', shown(name, some[name]) if name in some else '') for name in names)) for corpus, some in corpora.items()]
  return [el('section', el('h2', 'Held-out figures by corpus'), el('table', head, *rows, class_='counts'))] * bool(rows)
