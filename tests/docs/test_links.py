"""Links between the repository's pages lead to files that a plain checkout has, and figures are the
ones that the code draws."""
import importlib
import os
import pathlib
import re
import subprocess

import pytest
from typed import ROOT

DOCS = ROOT / 'docs'
LINK = re.compile(r'\]\(([^)\s]+)\)|<img [^>]*src="([^"]+)"')


def checked_out_files() -> set[pathlib.Path]:
  """Return the files of a plain checkout, without what a build has written next to them."""
  listed = subprocess.run(['git', 'ls-files', '-z', '--cached', '--others', '--exclude-standard'],
                          cwd=ROOT, capture_output=True, text=True)
  if listed.returncode:
    pytest.skip('this is not a git checkout')
  return {ROOT / name for name in listed.stdout.split('\0') if name}


def anchors_of(path: pathlib.Path) -> set[str]:
  """Return the anchors of a page's headings, as GitHub and the site name them."""
  headings = re.findall(r'^#+ (.*)$', path.read_text(encoding='utf-8'), re.M)
  plain = [re.sub(r'\[([^\]]*)\]\([^)]*\)', r'\1', heading) for heading in headings]
  return {re.sub(r'[^\w\- ]', '', heading.strip().lower()).replace(' ', '-') for heading in plain}


def test_relative_links_lead_to_files_of_the_checkout():
  files = checked_out_files()
  folders = {folder for path in files for folder in path.parents}
  pages = [path for path in files if path.suffix == '.md' and path.exists() and
           path.relative_to(ROOT).parts[0] in ('docs', 'benchmarks', 'experiments', path.name)]
  dead, count = [], 0
  for page in pages:
    text = re.sub(r'```.*?```|`[^`\n]*`', '', page.read_text(encoding='utf-8'), flags=re.S)
    for target in (one or other for one, other in LINK.findall(text)):
      name, _, anchor = target.partition('#')
      if re.match(r'[a-z]+:', target):
        continue
      count += 1
      path = pathlib.Path(os.path.normpath(page.parent / name)) if name else page
      if path not in files and path not in folders:
        dead.append(f'{page.relative_to(ROOT)}: {target}')
      elif anchor and path.suffix == '.md' and anchor not in anchors_of(path):
        dead.append(f'{page.relative_to(ROOT)}: {target} (no such heading)')
  assert count > 500 and not dead, '\n'.join(dead)


def test_every_figure_is_there_in_both_languages(monkeypatch):
  monkeypatch.syspath_prepend(str(DOCS))
  pytest.importorskip('matplotlib')
  names = {draw.__name__ for draw in importlib.import_module('figures').FIGURES}
  assert {path.stem for path in (DOCS / 'figures').glob('*.svg')} - {'summary'} == names
  chinese = {path.stem for path in (DOCS / 'zh/figures').glob('*.svg')}
  assert chinese == {f'{name}_zh' for name in names}
