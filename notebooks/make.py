"""Build the notebooks from their sources, NAME.py in jupytext's percent format.

    python notebooks/make.py                       # update the cells, keep the outputs of unchanged cells
    python notebooks/make.py --run [NAME ...]      # execute the notebooks at their real size in this folder

The .ipynb files are stored with outputs, so that readers see the figures without installing anything. Outputs are
trimmed: figures have 64 colors, long texts keep their first and last lines, and progress bars and the path of the
checkout are removed. Cells with the tag hide-input (installation, figures) are folded on the site, in JupyterLab and in
Colab.
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
LINES = 30  # lines of text that a cell keeps at most
HIDDEN = {'tags': ['hide-input'], 'jupyter': {'source_hidden': True}, 'cellView': 'form'}  # myst-nb, JupyterLab, Colab
BAR = re.compile(r'[^\n]*\| +[\d,]+/[\d,]+ [^\n]*|[^\r\n]*\r(?!\n)|\x1b\[[0-9;]*[A-Za-z]')
NOISE = re.compile(r'^(WARNING|INFO|[WIE]\d{4} |[WIE]0000 ).*\n?', re.M)


def sources() -> list[pathlib.Path]:
  """Returns the sources of the notebooks in their order."""
  return sorted(HERE.glob('[0-9]_*.py'))


def read(source: pathlib.Path) -> Any:
  """Reads a source as a notebook without outputs and with reproducible cell ids."""
  notebook = jupytext.read(source)
  notebook.metadata = nbformat.from_dict({'kernelspec': {
      'display_name': 'Python 3', 'language': 'python', 'name': 'python3'}, 'language_info': {'name': 'python'}})
  for number, cell in enumerate(notebook.cells):
    hidden = 'hide-input' in cell.metadata.get('tags', [])
    cell.id, cell.metadata = f'cell-{number}', nbformat.from_dict(HIDDEN if hidden else {})
  return notebook


def execute(notebook: Any, folder: pathlib.Path, seconds: int = 3600) -> None:
  """Executes a notebook in a folder. Raises CellExecutionError if a cell fails."""
  NotebookClient(notebook, timeout=seconds, kernel_name='python3', resources={'metadata': {'path': str(folder)}},
                 record_timing=False).execute()


def trimmed(notebook: Any) -> Any:
  """Removes progress bars, logs and metadata from the outputs."""
  for cell in notebook.cells:
    if cell.cell_type != 'code':
      continue
    cell.execution_count, kept, printed = None, [], ''
    for output in cell.outputs:
      if output.output_type == 'stream':
        if output.name == 'stdout':
          text = output.text.replace(str(HERE.parent), 'plm_jax')
          printed += NOISE.sub('', BAR.sub('', text))
        continue
      output.metadata = nbformat.from_dict({})
      if 'execution_count' in output:
        output.execution_count = None
      if 'image/png' in output.get('data', {}):
        output.data.pop('text/plain', None)
        output.data['image/png'] = small(output.data['image/png'])
      kept.append(output)
    cell.outputs = kept
    if printed.strip():
      cell.outputs.insert(0, nbformat.v4.new_output('stream', name='stdout', text=shortened(printed)))
  return notebook


def small(picture: str) -> str:
  """Reduces a figure (PNG in base64) to 64 colors and a third of its size."""
  written = io.BytesIO()
  Image.open(io.BytesIO(base64.b64decode(picture))).convert('RGB').quantize(64).save(written, 'PNG', optimize=True)
  return base64.b64encode(written.getvalue()).decode()


def shortened(text: str) -> str:
  """Omits the middle of a long text."""
  lines = text.strip('\n').split('\n')
  half = LINES // 2
  return '\n'.join(lines if len(lines) <= LINES else [*lines[:half], '...', *lines[-half:]]) + '\n'


def with_outputs(notebook: Any, before: Any) -> Any:
  """Copies the outputs of cells whose source is unchanged."""
  known = {cell.source: cell.outputs for cell in before.cells if cell.cell_type == 'code'}
  for cell in notebook.cells:
    if cell.cell_type == 'code':
      cell.outputs = known.get(cell.source, [])
  return notebook


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--run', action='store_true', help='execute the notebooks')
  parser.add_argument('names', nargs='*', help='prefixes of their names (default: all)')
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
