"""python -m plm_jax losses, neighbours: what a model knows of language."""
import tyro

from plm_jax import knowledge as known
from plm_jax import storage
from plm_jax.cli import applied, report
from plm_jax.cli.options import command
from plm_jax.cli.report import el
from plm_jax.data import sources
from plm_jax.sharding import MeshConfig
from plm_jax.storage import reachable


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


CSS = """
.pairs li { grid-template-columns: minmax(0, 24em) 1fr 9em; }
@media (max-width: 700px) { .pairs li { grid-template-columns: 1fr; gap: 0; } .pairs .share { text-align: left; } }
"""
