"""python -m plm_jax minimal-pairs, losses, neighbours: what a model knows of language."""
from collections.abc import Sequence
import dataclasses
import json
from typing import Annotated
from xml.etree.ElementTree import Element

import tyro

from plm_jax import knowledge as known
from plm_jax import storage
from plm_jax.checked import Checked
from plm_jax.cli import applied, report
from plm_jax.cli.options import command
from plm_jax.cli.report import el
from plm_jax.data import sources
from plm_jax.evaluation import minimal_pairs as pairing
from plm_jax.evaluation.minimal_pairs import Judged, Share
from plm_jax.evaluation.pseudo import How
from plm_jax.sharding import MeshConfig
from plm_jax.storage import reachable


@dataclasses.dataclass(frozen=True)
class PairsConfig(Checked):
  """How pairs are judged."""

  how: How = 'pll'
  """of an encoder, by pseudo-log-likelihood: each token is masked in turn; or those of its word behind it too"""
  limit: int = 0
  """pairs of a paradigm at most; 0: all"""
  start: bool = True
  """of a decoder: a text begins with the token that begins texts in training"""


@command()
def minimal_pairs_command(
    run: tyro.conf.Positional[str], files: tyro.conf.Positional[tuple[str, ...]], output: str = '', page: str = '',
    mesh: MeshConfig = MeshConfig(1), settings: Annotated[PairsConfig, tyro.conf.arg(name='')] = PairsConfig()) -> None:
  """Prints how often a model finds the right one of two sentences likelier, by paradigm.

  Args:
    run: folder of a run, or of a checkpoint of transformers: a decoder, or an encoder that fills masks
    files: of BLiMP's form, .jsonl with sentence_good, sentence_bad and UID, plain, .gz or .xz; globs
    output: .jsonl file for what each pair got
    page: .html file for the table with bars
    mesh: devices that share a large model
    settings: how
  """
  reachable.check_reachable({output: 'write', page: 'write'})
  trained = applied.shared(run, mesh)
  judged = known.minimal_pairs(trained, ','.join(files), settings.how, settings.start, settings.limit)
  paradigms, terms, every = pairing.by_paradigm(judged), pairing.by_term(judged), pairing.whole(judged)
  width = max(len(share.name) for share in (*paradigms, *terms))
  print(f'{"paradigm":{width}}  {"accuracy":>8}  {"+-":>6}  {"pairs":>7}  phenomenon')
  for share in paradigms:
    print(line(share, width))
  for share in terms if len(terms) < len(paradigms) else ():
    print(line(share, width))
  print(line(every, width))
  if output:
    storage.write(output, ''.join(f'{record(one)}\n' for one in judged))
    print(f'what each pair got is in {output}')
  if page:
    way = settings.how if 'mlm' in trained.heads else 'likelihood'
    storage.write(page, report.document(f'Minimal pairs: {run}', 'plm_jax · what a model knows', [
        el('p', f'By {way}; guessing is right half of the time. {every.pairs:,} pairs, of which {every.accuracy:.1%} '
           f'(+- {every.error:.1%}) were judged rightly.', class_='lead'), *sections(paradigms, terms)], CSS))
    print(f'page: {page}')


@command(limit='[1, 16777216]')
def losses_command(
    run: tyro.conf.Positional[str], texts: tyro.conf.Positional[tuple[str, ...]], corpus: tuple[str, ...] = (),
    limit: int = 200, page: str = '', mesh: MeshConfig = MeshConfig(1)) -> None:
  """Prints how hard tokens are to predict, by how often they were met and by where they stand.

  Args:
    run: folder of a run, or of a checkpoint of transformers: a decoder, or an encoder that fills masks
    texts: texts, or files of them, as `prepare` takes them
    corpus: files in which tokens are counted, those that the model has learned from, say; none: in the texts
    limit: texts of a file that are read: an encoder reads a text once for each of its tokens
    page: .html file for the same with bars
    mesh: devices that share a large model
  """
  reachable.check_reachable({page: 'write'})
  trained = applied.shared(run, mesh)
  counted = [text for source in corpus for text in sources.texts(source)]
  frequency, place = known.losses(trained, applied.given_texts(texts, limit), counted)
  tables = {f'met in {"the corpus" if corpus else "these texts"}, times': frequency, 'tokens before it': place}
  for title, bins in tables.items():
    print(f'{title:32}{"tokens":>10}{"nats":>8}{"+-":>7}')
    for one in bins:
      print(f'{one.name:32}{one.tokens:10,}{one.nats:8.3f}{one.error:7.3f}')
    print()
  if page:
    most = max(one.nats for bins in tables.values() for one in bins)
    storage.write(page, report.document(f'Losses: {run}', 'plm_jax · what a model knows', [
        el('section', el('h2', title.capitalize()), el('ol', *(el(
            'li', el('span', one.name, class_='piece', title=f'{one.tokens:,} tokens'),
            el('span', el('span', style=f'width:{100 * one.nats / most:.2f}%'), class_='bar'),
            el('span', f'{one.nats:.2f} ± {one.error:.2f} nats', class_='share')) for one in bins), class_='pairs'))
        for title, bins in tables.items()], CSS))
    print(f'page: {page}')


@command(top='[1, 1000]', limit='[1, 16777216]', layer='(-inf, inf)')
def neighbours_command(
    run: tyro.conf.Positional[str], sentence: tyro.conf.Positional[str], among: tyro.conf.Positional[tuple[str, ...]],
    layer: int = -1, top: int = 10, limit: int = 2000, mesh: MeshConfig = MeshConfig(1)) -> None:
  """Prints what is near a word, by itself and as it stands in a sentence: 'the *bank* of a river'.

  Args:
    run: folder of a run, or of a checkpoint of transformers
    sentence: words between spaces, one of them between stars
    among: sentences in whose words neighbours are looked for, or files with one a line
    layer: whose vectors are compared: 0 the embeddings, -1 the last
    top: neighbours of each kind
    limit: lines of a file that are read
    mesh: devices that share a large model
  """
  found = known.neighbours(applied.shared(run, mesh), sentence, applied.given_lines(among, limit), layer, top)
  print('by itself:' if found[0] else 'by itself: the model has no table of tokens')
  for piece, cosine in found[0]:
    print(f'  {cosine:6.3f}  {piece}')
  print('in context:')
  for one in found[1]:
    print(f'  {one.cosine:6.3f}  {one.word}: {one.sentence}')


def line(share: Share, width: int) -> str:
  """Writes a line of the table."""
  return (f'{share.name:{width}}  {share.accuracy:8.1%}  {share.error:6.1%}  {share.pairs:7,}  {share.term}').rstrip()


def record(one: Judged) -> str:
  """Writes a pair as JSON."""
  return json.dumps({'where': one.pair.where, 'UID': one.pair.paradigm, 'sentence_good': one.pair.good, 'sentence_bad':
                     one.pair.bad, 'good': one.good, 'bad': one.bad, 'right': one.right}, ensure_ascii=False)


def sections(paradigms: Sequence[Share], terms: Sequence[Share]) -> list[Element]:
  """Makes a section of bars for phenomena, where there are several, and one for paradigms."""
  found = [el('section', el('h2', 'Phenomena'), bars(terms))] if 1 < len(terms) < len(paradigms) else []
  return [*found, el('section', el('h2', 'Paradigms'), bars(paradigms))]


def bars(some: Sequence[Share]) -> Element:
  """Draws accuracies as bars with the mark of guessing, and their standard errors."""
  return el('ol', *(el(
      'li', el('span', share.name, class_='piece', title=share.term),
      el('span', el('span', style=f'width:{100 * share.accuracy:.2f}%'), el('em', ''), class_='bar'),
      el('span', f'{share.accuracy:.1%} ± {share.error:.1%}', class_='share')) for share in some), class_='pairs')


CSS = """
.pairs li { grid-template-columns: 24em 1fr 9em; } .pairs .bar { position: relative; height: 10px; }
.pairs em { position: absolute; left: 50%; top: 0; bottom: 0; border-left: 2px solid var(--amber); }
"""
