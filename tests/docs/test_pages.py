"""Every command and every Python block of the site's pages runs as it stands there, at --scale=test; every page in both
languages that is to be; search finds words of both.

The README's commands are those of tests/test_readme.py; the notebooks, of tests/notebooks.
"""
import json
import pathlib
import re
import shlex
import subprocess
import sys

import pytest
import tiny
from typed import ELSEWHERE, ROOT, World, shown

import plm_jax
from plm_jax.cli.run import parse
from plm_jax.recipes import find
from plm_jax.training import train

DOCS = ROOT / 'docs'
# These come from the code, or have commands that others run: see their tests.
OTHERS = {'recipes.md', 'beam.md', 'corpora.md', 'doctor.md', 'pods.md', 'api.md', 'commands.md', 'configuration.md'}
PAGES = [path for path in sorted(DOCS.rglob('*.md')) if path.name not in OTHERS]
OURS = re.compile(r'(python -m (plm_jax|experiments)|scripts/)')


def commands_of(path: pathlib.Path) -> list[str]:
  """Returns the commands of a page that are ours: beside them stand those of other projects."""
  return [line for line in shown(path.read_text(encoding='utf-8')) if OURS.match(line)]


def blocks_of(path: pathlib.Path) -> list[str]:
  """Returns the Python blocks of a page."""
  return re.findall(r'^```python\n(.*?)^```', path.read_text(encoding='utf-8'), re.M | re.S)


def test_there_are_pages_and_commands():
  assert sum(len(commands_of(path)) for path in PAGES) > 60
  assert sum(len(blocks_of(path)) for path in PAGES) >= 4
  for section, many in (('howto', 14), ('explanation', 7), ('coming', 5)):
    english = {path.name for path in (DOCS / section).glob('*.md')}
    assert {path.name for path in (DOCS / 'zh' / section).glob('*.md')} == english and len(english) == many


def test_pages_are_short():
  assert all(len(path.read_text(encoding='utf-8').split('\n')) < 100 for path in PAGES)


@pytest.mark.slow
def test_every_command_runs(tmp_path, monkeypatch):
  """In one folder, page by page; a run that a page before has made is gone on with."""
  monkeypatch.setattr(train, 'jitted_step', tiny.traced_step)
  monkeypatch.chdir(tmp_path)
  world, failed, done = World(), [], set()
  for path in PAGES:
    for line in commands_of(path):
      if line in done or (any(word in line for word in ELSEWHERE) and not line.startswith('scripts/')):
        continue
      done.add(line)
      try:
        if line.startswith('scripts/'):
          rehearsed(line)
        else:
          world.type(line, monkeypatch)
      except (Exception, SystemExit) as error:
        failed.append(f'{path.relative_to(DOCS)}: {line}\n    {type(error).__name__}: {error}')
  assert not failed, '\n'.join(failed)


def rehearsed(line: str) -> None:
  """Has a script print what it would do, and reads the options of the run in it."""
  assert '--dry-run' in line, 'a page shows what is paid for without --dry-run'
  done = subprocess.run([ROOT / line.split()[0], *shlex.split(line)[1:]], capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  if '-m plm_jax train' in line:
    name, *options = shlex.split(line.partition('-m plm_jax train ')[2])
    parse(find(name), options)


@pytest.mark.slow
def test_commands_of_compilation_are_understood():
  for path in PAGES:
    for line in commands_of(path):
      if '--mode=compile' in line:
        name, *options = shlex.split(line.partition('-m plm_jax train ')[2])
        assert parse(find(name), options).mode == 'compile'


@pytest.mark.slow
def test_every_python_block_runs(tmp_path, monkeypatch):
  """Each by itself, in a folder of its own, with runs of the smallest scale."""
  monkeypatch.setattr(train, 'jitted_step', tiny.traced_step)
  real = plm_jax.recipe
  for path in PAGES:
    for number, block in enumerate(blocks_of(path)):
      folder = tmp_path / f'{path.stem}-{number}'
      folder.mkdir()
      monkeypatch.chdir(folder)
      World()
      pathlib.Path('corpus.txt').write_text(tiny.text())
      exec(compile(block.replace("'laptop'", "'test'"), str(path), 'exec'), {})
  assert plm_jax.recipe is real


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path):
  """Also without a dead link inside: they are warnings. What people search for is in its index."""
  built = subprocess.run([sys.executable, '-m', 'sphinx', '-W', '--keep-going', '-q', DOCS, tmp_path / 'site'],
                         capture_output=True, text=True)
  assert built.returncode == 0, built.stderr
  index = (tmp_path / 'site/searchindex.js').read_text(encoding='utf-8')
  for term in ('whole', 'word', 'mask', '全词', '词掩', '掩码'):
    written = json.dumps(term).strip('"').replace('\\', '\\\\')  # the index is of ASCII
    assert re.search(rf'"?{written}"?:', index), term
