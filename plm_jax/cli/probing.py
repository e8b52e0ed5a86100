"""Implement `python -m plm_jax probe` and `attention`: linear probes and attention maps."""
import base64
from collections.abc import Sequence
import statistics
import struct
from typing import Annotated
from xml.etree.ElementTree import Element
import zlib

import numpy as np
import tyro

from plm_jax import storage
from plm_jax.api import knowledge
from plm_jax.cli import inputs
from plm_jax.cli.options import command
from plm_jax.evaluation.attention_maps import ATTENTION_TARGETS, AttentionMap, HeadStatistics
from plm_jax.evaluation.probing import LayerProbe, ProbeConfig
from plm_jax.report import html
from plm_jax.report.html import el
from plm_jax.report.metric_display import Metric
from plm_jax.sharding import MeshConfig
from plm_jax.sources.row_readers import Columns


@command()
def probe_command(
    run: tyro.conf.Positional[str], train: tyro.conf.Positional[str],
    test: tyro.conf.Positional[str], page: str = '', columns: Columns = Columns(),
    mesh: MeshConfig = MeshConfig(1),
    settings: Annotated[ProbeConfig, tyro.conf.arg(name='')] = ProbeConfig()) -> None:
  """Prints accuracies of linear probes on each layer, compared with an untrained model.

  Args:
    run: run folder or transformers checkpoint, or an ELMo model
    train: training sentences with a tag per word, such as the part of speech, in a CoNLL file; also
      .gz
    test: test sentences, in the same format
    page: also write the table, with a chart, to this HTML file
    columns: columns with the words and with the tags. Default: the first and the last
    mesh: devices over which a large model is split
    settings: how probes are trained
  """
  trained = inputs.load_on_mesh(run, mesh)
  found = knowledge.probe(trained, train, test, columns, settings)
  seen, tested = found.words
  print(f'accuracy on {tested:,} words, trained on {seen:,}, {settings.seeds} seeds; majority '
        f'baseline, the most frequent tag of each word: {found.commonest:.1%}\n')
  print(f'{"layer":12}{"trained":>16}{"untrained":>16}{"control task":>16}{"selectivity":>12}')
  for layer in found.layers:
    accuracies = layer.accuracy, layer.untrained, layer.control
    cells = ''.join(f'{format_mean(values):>16}' for values in accuracies)
    print(f'{layer_name(layer):12}{cells}{layer.selectivity:12.1%}')
  if page:
    lead = (f'One linear classifier per layer, trained on {seen:,} words, {settings.seeds} seeds. '
            f'Majority baseline, the most frequent tag of each word: accuracy '
            f'{found.commonest:.1%} on {tested:,} words.')
    storage.write(page, html.render_document(f'Probes: {run}', 'plm_jax · analysis of a model', [
        el('p', lead, class_='lead'),
        el('section', el('h2', 'By layer'), draw_layer_chart(found.layers)),
        el('section', el('h2', 'Figures'), layer_table(found.layers))]))
    print(f'page: {page}')


@command(maps='[0, 64]', limit='[1, 16777216]')
def attention_command(
    run: tyro.conf.Positional[str], texts: tyro.conf.Positional[tuple[str, ...]], page: str = '',
    maps: int = 4, limit: int = 1000, mesh: MeshConfig = MeshConfig(1)) -> None:
  """Prints what attention heads attend to: neighbors, special tokens, or broadly; draws maps.

  Args:
    run: run folder or transformers checkpoint
    texts: sentences, or files with one sentence per line
    page: also write attention maps of all heads to this HTML file
    maps: number of sentences to draw attention maps for
    limit: maximum number of lines per file
    mesh: devices over which a large model is split
  """
  trained = inputs.load_on_mesh(run, mesh)
  sentences = inputs.read_text_arguments(texts, limit, by_line=True)
  heads, drawn = knowledge.attention(trained, sentences, maps)
  names = ''.join(f'{name:>10}' for name in ATTENTION_TARGETS)
  print('share of the attention of words that goes to')
  print(f'{"head":10}{names}{"spread":>10}{"distance":>10}  role')
  for head in heads:
    shares = ''.join(f'{share:10.1%}' for share in head.shares)
    line = f'{head.layer:>3}.{head.head:<6}{shares}{head.spread:10.2f}{head.distance:10.1f}'
    print(f'{line}  {head.role}'.rstrip())
  if page:
    lead = ('Rows are queries, columns are keys; darker means more attention. Under each map: '
            'layer, head, and the target of most of its attention, if there is one.')
    parts = [el('p', lead, class_='lead')]
    parts += [draw_maps(one, heads) for one in drawn]
    storage.write(page, html.render_document(
        f'Attention: {run}', 'plm_jax · analysis of a model', parts, CSS))
    print(f'page: {page}')


def layer_name(layer: LayerProbe) -> str:
  """Return the name of a layer."""
  return f'layer {layer.layer}' if layer.layer else 'embeddings'


def format_mean(values: Sequence[float]) -> str:
  """Format the mean and the standard deviation of accuracies."""
  mean = f'{statistics.mean(values):.1%}'
  if len(values) == 1:
    return mean
  return f'{mean} ± {statistics.stdev(values):.1%}'


def draw_layer_chart(layers: Sequence[LayerProbe]) -> Element:
  """Draw accuracies over layers."""
  fields = {'heldout': 'accuracy', 'train': 'untrained', 'baseline': 'control'}
  lines = {line: [(layer.layer, statistics.mean(getattr(layer, field))) for layer in layers]
           for line, field in fields.items()}
  names = {'heldout': 'trained', 'train': 'untrained', 'baseline': 'control task'}
  metric = Metric(2, 'Accuracy', percent=True)
  chart = html.draw_chart(lines, 1.0, [], metric, names, 'layer')
  return html.chart_figure('Accuracy', None, names, chart)


def layer_table(layers: Sequence[LayerProbe]) -> Element:
  """Return the table of accuracies by layer."""
  titles = 'layer', 'trained', 'untrained', 'control task', 'selectivity'
  table = el('table', el('tr', *(el('th', title) for title in titles)))
  for one in layers:
    means = map(format_mean, (one.accuracy, one.untrained, one.control))
    cells = layer_name(one), *means, f'{one.selectivity:.1%}'
    table.append(el('tr', *(el('td', cell) for cell in cells)))
  return table


def draw_maps(one: AttentionMap, heads: Sequence[HeadStatistics]) -> Element:
  """Draw the attention maps of all heads for a sentence."""
  roles = {(head.layer, head.head): head.role for head in heads}
  maps = el('div', class_='maps')
  for layer, head in np.ndindex(one.attention.shape[:2]):
    role = roles[layer + 1, head + 1]
    image = el('img', src=png_data_url(one.attention[layer, head]),
               alt=f'layer {layer + 1}, head {head + 1}')
    caption = el('figcaption', f'{layer + 1}.{head + 1} {role}'.rstrip())
    maps.append(el('figure', image, caption))
  return el('section', el('p', ' '.join(one.pieces), class_='pieces'), maps)


def png_data_url(values: np.ndarray) -> str:
  """Encode values in 0 .. 1 [rows, columns] as a grey PNG, 1 the darkest, in a data URL."""
  grey = np.rint(255 * (1 - np.clip(values, 0, 1))).astype(np.uint8)
  rows = b''.join(b'\0' + row.tobytes() for row in grey)

  def make_chunk(kind: bytes, data: bytes) -> bytes:
    check = struct.pack('>I', zlib.crc32(kind + data))
    return struct.pack('>I', len(data)) + kind + data + check

  size = struct.pack('>IIBBBBB', *grey.shape[::-1], 8, 0, 0, 0, 0)
  png = (b'\x89PNG\r\n\x1a\n' + make_chunk(b'IHDR', size)
         + make_chunk(b'IDAT', zlib.compress(rows)) + make_chunk(b'IEND', b''))
  return 'data:image/png;base64,' + base64.b64encode(png).decode()


CSS = """
.maps { display: grid; grid-template-columns: repeat(auto-fill, minmax(8em, 1fr)); gap: .8em; }
.maps figure { margin: 0; } .maps img { width: 100%; image-rendering: pixelated; border: 1px solid
  var(--line, #ccc); }
.maps figcaption { font-size: .8em; } .pieces { overflow-wrap: anywhere; }
"""
