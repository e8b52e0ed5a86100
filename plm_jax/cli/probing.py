"""python -m plm_jax probe, attention: what the layers of a model know of words, and where its heads look."""
import base64
from collections.abc import Sequence
import itertools
import statistics
import struct
from typing import Annotated
from xml.etree.ElementTree import Element
import zlib

import numpy as np
import tyro

from plm_jax import knowledge, storage
from plm_jax.cli import applied, report
from plm_jax.cli.options import command
from plm_jax.cli.report import Metric, el
from plm_jax.evaluation.attending import PLACES, Head, Map
from plm_jax.evaluation.probing import Layer, ProbeConfig
from plm_jax.sharding import MeshConfig
from plm_jax.storage import reachable
from plm_jax.tasks.reading import Columns


@command()
def probe_command(
    run: tyro.conf.Positional[str], train: tyro.conf.Positional[str], test: tyro.conf.Positional[str], page: str = '',
    columns: Columns = Columns(), mesh: MeshConfig = MeshConfig(1),
    settings: Annotated[ProbeConfig, tyro.conf.arg(name='')] = ProbeConfig()) -> None:
  """Prints what linear classifiers read from each layer of a model, beside a model with fresh parameters.

  Args:
    run: folder of a run, or of a checkpoint of transformers; an ELMo too
    train: sentences to learn from, words and tags in columns, as CoNLL's: parts of speech, say; .gz too
    test: sentences to be asked
    page: .html file for the same with a chart
    columns: which column has the words, and which the tags; the first and the last where nothing is said
    mesh: devices that share a large model
    settings: how probes learn
  """
  reachable.check_reachable({page: 'write'})
  found = knowledge.probe(applied.shared(run, mesh), train, test, columns, settings)
  seen, asked = found.words
  print(f'right of {asked:,} words, learned from {seen:,}, {settings.seeds} seeds; by the commonest tag of a word '
        f'{found.commonest:.1%}\n')
  print(f'{"layer":12}{"trained":>16}{"untrained":>16}{"control task":>16}{"selectivity":>12}')
  for layer in found.layers:
    cells = ''.join(f'{shown(values):>16}' for values in (layer.accuracy, layer.untrained, layer.control))
    print(f'{named(layer):12}{cells}{layer.selectivity:12.1%}')
  if page:
    lead = (f'A linear classifier for each layer, learned from {seen:,} words, {settings.seeds} seeds. The tag that a '
            f'word has most often is right of {found.commonest:.1%} of {asked:,} words.')
    storage.write(page, report.document(f'Probes: {run}', 'plm_jax · what a model knows', [
        el('p', lead, class_='lead'), el('section', el('h2', 'By layer'), chart(found.layers)),
        el('section', el('h2', 'Figures'), table(found.layers))]))
    print(f'page: {page}')


@command(maps='[0, 64]', limit='[1, 16777216]')
def attention_command(
    run: tyro.conf.Positional[str], texts: tyro.conf.Positional[tuple[str, ...]], page: str = '', maps: int = 4,
    limit: int = 1000, mesh: MeshConfig = MeshConfig(1)) -> None:
  """Prints where the heads of a model look: at neighbours, at special tokens, broadly; draws who looks at whom.

  Args:
    run: folder of a run, or of a checkpoint of transformers
    texts: sentences, or files with one a line
    page: .html file for the table, and the maps of all heads
    maps: sentences whose maps are drawn, the first
    limit: lines of a file that are read
    mesh: devices that share a large model
  """
  reachable.check_reachable({page: 'write'})
  heads, drawn = knowledge.attention(applied.shared(run, mesh), applied.given_lines(texts, limit), maps)
  print(f'share of the attention of words that goes to\n{"head":10}' + ''.join(f'{name:>10}' for name in PLACES)
        + f'{"spread":>10}{"distance":>10}  role')
  for head in heads:
    print(f'{head.layer:>3}.{head.head:<6}' + ''.join(f'{share:10.1%}' for share in head.shares)
          + f'{head.spread:10.2f}{head.distance:10.1f}  {head.role}'.rstrip())
  if page:
    lead = ('A row is who looks, a column what is looked at; the darker, the more. Under each map: layer, head and, '
            'where most of its attention goes to one place, which.')
    storage.write(page, report.document(f'Attention: {run}', 'plm_jax · what a model knows', [
        el('p', lead, class_='lead'), *(pictures(one, heads) for one in drawn)], CSS))
    print(f'page: {page}')


def named(layer: Layer) -> str:
  """Names a layer."""
  return f'layer {layer.layer}' if layer.layer else 'embeddings'


def shown(values: Sequence[float]) -> str:
  """Writes a mean and its standard deviation."""
  return f'{statistics.mean(values):.1%}' + (f' ± {statistics.stdev(values):.1%}' if len(values) > 1 else '')


def chart(layers: Sequence[Layer]) -> Element:
  """Draws accuracies over layers."""
  lines = {name: [(layer.layer, statistics.mean(values(layer))) for layer in layers] for name, values in (
      ('heldout', lambda layer: layer.accuracy), ('train', lambda layer: layer.untrained),
      ('baseline', lambda layer: layer.control))}
  names = {'heldout': 'trained', 'train': 'untrained', 'baseline': 'control task'}
  legend = el('span', *(el('span', el('i', class_=line), name) for line, name in names.items()), class_='legend')
  drawn = report.chart(lines, 1.0, [], Metric(2, 'Right', 'of all words', percent=True), names, 'layer')
  return el('figure', el('figcaption', el('b', 'Right of all words'), legend), drawn)


def table(layers: Sequence[Layer]) -> Element:
  """Lays out the figures."""
  head = 'layer', 'trained', 'untrained', 'control task', 'selectivity'
  body = [(named(one), *map(shown, (one.accuracy, one.untrained, one.control)), f'{one.selectivity:.1%}')
          for one in layers]
  return el('table', *(el('tr', *(el(tag, cell) for cell in row)) for tag, row in itertools.chain(
      [('th', head)], (('td', row) for row in body))))


def pictures(one: Map, heads: Sequence[Head]) -> Element:
  """Draws the maps of all heads of a sentence."""
  roles = {(head.layer, head.head): head.role for head in heads}
  figures = []
  for layer, head in np.ndindex(one.attention.shape[:2]):
    role = roles[layer + 1, head + 1]
    figures.append(el('figure', el('img', src=picture(one.attention[layer, head]), alt=f'layer {layer + 1}, head '
                                   f'{head + 1}'),
                      el('figcaption', f'{layer + 1}.{head + 1} {role}'.rstrip())))
  return el('section', el('p', ' '.join(one.pieces), class_='pieces'), el('div', *figures, class_='maps'))


def picture(values: np.ndarray) -> str:
  """Makes a grey picture of values of 0 to 1 [rows, columns], 1 the darkest, as an address with its data."""
  grey = np.rint(255 * (1 - np.clip(values, 0, 1))).astype(np.uint8)
  rows = b''.join(b'\0' + row.tobytes() for row in grey)
  def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
  size = struct.pack('>IIBBBBB', *grey.shape[::-1], 8, 0, 0, 0, 0)
  png = b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', size) + chunk(b'IDAT', zlib.compress(rows)) + chunk(b'IEND', b'')
  return 'data:image/png;base64,' + base64.b64encode(png).decode()


CSS = """
.maps { display: grid; grid-template-columns: repeat(auto-fill, minmax(8em, 1fr)); gap: .8em; }
.maps figure { margin: 0; } .maps img { width: 100%; image-rendering: pixelated; border: 1px solid var(--line, #ccc); }
.maps figcaption { font-size: .8em; } .pieces { overflow-wrap: anywhere; }
"""
