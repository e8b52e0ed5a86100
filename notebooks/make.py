"""Makes the notebooks of their sources, NAME.py, as jupytext's percent format has them.

    python notebooks/make.py                       # what stands in the sources, with the outputs that are there
    python notebooks/make.py --run [NAME ...]      # executed at their real size, in the folder of the notebooks

The .ipynb are kept with their outputs: who looks at them where they are stored, or on the site, sees the pictures
before anything is installed. Outputs are trimmed: pictures of 64 colours, the first and last lines of a text, no progress
bars, and no place where this checkout lies.
"""
import argparse
import base64
import io
import pathlib
import re
import time
from typing import Any

import jupytext
from nbclient import NotebookClient
import nbformat
from PIL import Image

HERE = pathlib.Path(__file__).parent
LINES = 30  # of a cell's text, at most
BAR = re.compile(r'[^\n]*\| +[\d,]+/[\d,]+ [^\n]*|[^\r\n]*\r(?!\n)|\x1b\[[0-9;]*[A-Za-z]')
NOISE = re.compile(r'^(WARNING|INFO|[WIE]\d{4} |[WIE]0000 ).*\n?', re.M)


def sources() -> list[pathlib.Path]:
  """Returns the files that notebooks are made of, in their order."""
  return sorted(HERE.glob('[0-9]_*.py'))


def read(source: pathlib.Path) -> Any:
  """Reads a source as a notebook without outputs, whose cells have the same names each time."""
  notebook = jupytext.read(source)
  notebook.metadata = nbformat.from_dict({'kernelspec': {
      'display_name': 'Python 3', 'language': 'python', 'name': 'python3'}, 'language_info': {'name': 'python'}})
  for number, cell in enumerate(notebook.cells):
    cell.id, cell.metadata = f'cell-{number}', nbformat.from_dict({})
  return notebook


def execute(notebook: Any, folder: pathlib.Path, seconds: int = 3600) -> None:
  """Executes a notebook in a folder. Raises CellExecutionError for a cell that fails."""
  NotebookClient(notebook, timeout=seconds, kernel_name='python3', resources={'metadata': {'path': str(folder)}},
                 record_timing=False).execute()


def trimmed(notebook: Any) -> Any:
  """Takes out of outputs what nobody reads."""
  for cell in notebook.cells:
    if cell.cell_type != 'code':
      continue
    cell.execution_count, kept, said = None, [], ''
    for output in cell.outputs:
      if output.output_type == 'stream':
        told = output.text.replace(str(HERE.parent), 'plm_jax')
        said += NOISE.sub('', BAR.sub('', told)) if output.name == 'stdout' else ''
        continue
      output.metadata = nbformat.from_dict({})
      if 'execution_count' in output:
        output.execution_count = None
      if 'image/png' in output.get('data', {}):
        output.data.pop('text/plain', None)
        output.data['image/png'] = small(output.data['image/png'])
      kept.append(output)
    cell.outputs = ([nbformat.v4.new_output('stream', name='stdout', text=shortened(said))] if said.strip() else [])
    cell.outputs += kept
  return notebook


def small(picture: str) -> str:
  """Leaves 64 colours of a picture, a PNG in base64: a third of its size."""
  written = io.BytesIO()
  Image.open(io.BytesIO(base64.b64decode(picture))).convert('RGB').quantize(64).save(written, 'PNG', optimize=True)
  return base64.b64encode(written.getvalue()).decode()


def shortened(text: str) -> str:
  """Leaves out the middle of a long text."""
  lines = text.strip('\n').split('\n')
  half = LINES // 2
  return '\n'.join(lines if len(lines) <= LINES else [*lines[:half], '...', *lines[-half:]]) + '\n'


def with_outputs(notebook: Any, before: Any) -> Any:
  """Takes over the outputs of cells that are as they were."""
  known = {cell.source: cell.outputs for cell in before.cells if cell.cell_type == 'code'}
  for cell in notebook.cells:
    if cell.cell_type == 'code':
      cell.outputs = known.get(cell.source, [])
  return notebook


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--run', action='store_true', help='execute them')
  parser.add_argument('names', nargs='*', help='beginnings of their names; none: all')
  args = parser.parse_args()
  for source in sources():
    if args.names and not source.name.startswith(tuple(args.names)):
      continue
    notebook, target, began = read(source), source.with_suffix('.ipynb'), time.time()
    if args.run:
      execute(notebook, HERE)
      notebook = trimmed(notebook)
    elif target.exists():
      notebook = with_outputs(notebook, nbformat.read(target, 4))
    nbformat.write(notebook, target)
    print(f'{target.name}: {time.time() - began:.0f} s, {target.stat().st_size / 1000:.0f} kB')


if __name__ == '__main__':
  main()
