"""The notebooks match their sources, and each runs from its first cell to its last, at the smallest
scale and without a network. They share compiled programs with the other tests, and use the runs of
earlier notebooks."""
import importlib.util
import json
import pathlib
import sys

import pytest
import tiny

ROOT = pathlib.Path(__file__).parents[2]
SOURCES = sorted((ROOT / 'notebooks').glob('[0-9]_*.py'))
LARGEST = 400_000  # bytes of a notebook with its pictures


@pytest.fixture(scope='module')
def make():
  """The module that makes them."""
  spec = importlib.util.spec_from_file_location('notebooks_make', ROOT / 'notebooks/make.py')
  assert spec and spec.loader
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """The working folder of all notebooks, which run in order, with a text."""
  folder = tmp_path_factory.mktemp('notebooks')
  (folder / 'text.txt').write_text(tiny.text())
  return folder


def cells(path: pathlib.Path) -> list[dict]:
  return json.loads(path.read_text())['cells']


def test_there_are_seven():
  assert [path.name[0] for path in SOURCES] == list('1234567')


@pytest.mark.parametrize('source', SOURCES, ids=lambda path: path.stem)
def test_the_notebook_matches_its_source(source):
  """Cells of source and notebook are equal, without the libraries that only CI has, between the
  cell markers."""
  notebook = source.with_suffix('.ipynb')
  assert notebook.stat().st_size < LARGEST
  text = '\n'.join(source.read_text().split('\n')[9:])
  for cell in cells(notebook):
    written = ''.join(cell['source'])
    if cell['cell_type'] == 'markdown':
      written = '\n'.join(f'# {line}'.rstrip() for line in written.split('\n'))
    assert written in text
  marks = text.count('\n# %%') + text.startswith('# %%')
  assert len(cells(notebook)) == marks


@pytest.mark.parametrize('source', SOURCES, ids=lambda path: path.stem)
def test_begins_by_the_cell_that_installs(source):
  first = next(''.join(cell['source']) for cell in cells(source.with_suffix('.ipynb'))
               if cell['cell_type'] == 'code')
  of_first = next(''.join(cell['source']) for cell in cells(SOURCES[0].with_suffix('.ipynb'))
                  if cell['cell_type'] == 'code')
  def common(text):
    return [line for line in text.split('\n') if not line.startswith('NEEDS')]
  assert common(first) == common(of_first)
  assert 'PLM_JAX_NOTEBOOK_SCALE' in first


@pytest.mark.slow
def test_jupytext_agrees(make):
  import nbformat
  for source in SOURCES:
    of_source, kept = make.read(source), nbformat.read(source.with_suffix('.ipynb'), 4)
    assert [(cell.cell_type, cell.source) for cell in of_source.cells] == [
        (cell.cell_type, cell.source)
        for cell in kept.cells], f'python notebooks/make.py {source.stem}'


MARKS = {'7_before_a_pod': [pytest.mark.compiler]}


@pytest.mark.slow
@pytest.mark.parametrize(
    'source', [pytest.param(path, marks=MARKS.get(path.stem, [pytest.mark.release]))
               for path in SOURCES],
    ids=lambda path: path.stem)
def test_runs(source, folder, make, monkeypatch):
  monkeypatch.setenv('PLM_JAX_NOTEBOOK_SCALE', 'test')
  monkeypatch.setenv('PLM_JAX_NOTEBOOK_TEXT', str(folder / 'text.txt'))
  # one device, as a laptop has
  monkeypatch.setenv('XLA_FLAGS', '--xla_backend_optimization_level=0')
  monkeypatch.setenv('PYTHONPATH', f'{folder}:{ROOT}:{":".join(sys.path)}')
  (folder / 'sitecustomize.py').write_text(OFFLINE)
  notebook = make.read(source)
  make.execute(notebook, folder, 600)
  code = [cell for cell in notebook.cells if cell.cell_type == 'code']
  shown = [kind for cell in code for output in cell.outputs for kind in output.get('data', {})]
  assert 'image/png' in shown, 'no picture'
  assert code[-1].outputs, 'nothing made at the end'


# No process of a notebook reaches anything but this machine.
OFFLINE = '''
import socket
connect = socket.socket.connect
def only_here(self, address):
  if self.family != socket.AF_UNIX and address[0] not in ('127.0.0.1', 'localhost', '::1'):
    raise OSError(f'no network in the tests: {address}')
  return connect(self, address)
socket.socket.connect = only_here
'''

