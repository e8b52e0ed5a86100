"""Implement `python -m plm_jax losses` and `neighbors`, which analyze a language model."""
from collections.abc import Mapping, Sequence

import tyro

from plm_jax import storage
from plm_jax.api import knowledge as known
from plm_jax.cli import inputs
from plm_jax.cli.options import command
from plm_jax.evaluation.token_losses import LossBin
from plm_jax.report import html
from plm_jax.report.html import el
from plm_jax.sharding import MeshConfig
from plm_jax.sources import text_sources


@command(limit='[1, 16777216]')
def losses_command(
    run: tyro.conf.Positional[str], texts: tyro.conf.Positional[tuple[str, ...]],
    corpus: tuple[str, ...] = (), limit: int = 200, page: str = '',
    mesh: MeshConfig = MeshConfig(1)) -> None:
  """Prints token losses by the frequency of tokens and by their position.

  Args:
    run: run folder or transformers checkpoint: a decoder, or an encoder with a masked-LM head
    texts: texts, or text files in the formats that `prepare` reads
    corpus: files to count token frequencies in, such as the training text. Default: the texts
      themselves
    limit: maximum number of texts per file. An encoder needs one forward pass per token
    page: also write the table, with bars, to this HTML file
    mesh: devices over which a large model is split
  """
  trained = inputs.load_on_mesh(run, mesh)
  counted = [text for source in corpus for text in text_sources.read_texts(source)]
  frequency, position = known.losses(trained, inputs.read_text_arguments(texts, limit), counted)
  where = 'the corpus' if corpus else 'these texts'
  tables = {f'met in {where}, times': frequency, 'tokens before it': position}
  for title, bins in tables.items():
    print(f'{title:32}{"tokens":>10}{"nats":>8}{"+-":>7}')
    for one in bins:
      print(f'{one.name:32}{one.tokens:10,}{one.nats:8.3f}{one.error:7.3f}')
    print()
  if page:
    storage.write(page, render_page(run, tables))
    print(f'page: {page}')


def render_page(run: str, tables: Mapping[str, Sequence[LossBin]]) -> str:
  """Return the HTML page of token losses, with bars."""
  most = max(one.nats for bins in tables.values() for one in bins)
  sections = []
  for title, bins in tables.items():
    rows = el('ol', class_='pairs')
    for one in bins:
      bar = el('span', el('span', style=f'width:{100 * one.nats / most:.2f}%'), class_='bar')
      rows.append(el(
          'li', el('span', one.name, class_='piece', title=f'{one.tokens:,} tokens'), bar,
          el('span', f'{one.nats:.2f} ± {one.error:.2f} nats', class_='share')))
    sections.append(el('section', el('h2', title.capitalize()), rows))
  return html.render_document(
      f'Losses: {run}', 'plm_jax · analysis of a model', sections, CSS)


@command(top='[1, 1000]', limit='[1, 16777216]', layer='(-inf, inf)')
def neighbors_command(
    run: tyro.conf.Positional[str], sentence: tyro.conf.Positional[str],
    among: tyro.conf.Positional[tuple[str, ...]], layer: int = -1, top: int = 10,
    limit: int = 2000, mesh: MeshConfig = MeshConfig(1)) -> None:
  """Prints the nearest neighbors of a word, alone and in a sentence: 'the *bank* of a river'.

  Args:
    run: run folder or transformers checkpoint
    sentence: sentence with words separated by spaces and stars around one word: 'the *bank* of a
      river'
    among: sentences whose words are the candidates, or files with one sentence per line
    layer: layer of the vectors. 0: token embeddings; -1: last layer
    top: number of neighbors to print of each kind
    limit: maximum number of lines per file
    mesh: devices over which a large model is split
  """
  trained = inputs.load_on_mesh(run, mesh)
  sentences = inputs.read_text_arguments(among, limit, by_line=True)
  alone, in_context = known.neighbors(trained, sentence, sentences, layer, top)
  print('by itself:' if alone else 'by itself: the model has no table of tokens')
  for token, cosine in alone:
    print(f'  {cosine:6.3f}  {token}')
  print('in context:')
  for one in in_context:
    print(f'  {one.cosine:6.3f}  {one.word}: {one.sentence}')


CSS = """
.pairs li { grid-template-columns: minmax(0, 24em) 1fr 9em; }
@media (max-width: 700px) { .pairs li { grid-template-columns: 1fr; gap: 0; } .pairs .share {
  text-align: left; } }
"""
