"""python -m plm_jax minimal-pairs: which paradigms a model, or each of several, judges better than by guessing."""
from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import json
from typing import Annotated
from xml.etree.ElementTree import Element

import tyro

from plm_jax import knowledge, storage
from plm_jax.checked import Checked
from plm_jax.cli import applied, report
from plm_jax.cli.beside import named
from plm_jax.cli.options import command
from plm_jax.cli.report import el
from plm_jax.errors import ConfigError
from plm_jax.evaluation import minimal_pairs as pairing
from plm_jax.evaluation.minimal_pairs import Judged, Share
from plm_jax.evaluation.pseudo import How
from plm_jax.sharding import MeshConfig
from plm_jax.storage import reachable

Runs = Mapping[str, Sequence[Judged]]  # name of a run -> its pairs
MARKS = {'above': '+', 'below': '-', 'unsure': '='}
LEGEND = '+ above guessing, - below it, = not to be told from it: binomial intervals of 95%'
CELL = 22  # characters of a run's column


@dataclasses.dataclass(frozen=True)
class PairsConfig(Checked):
  """How pairs are judged."""

  how: How = 'pll'
  """of an encoder, by pseudo-log-likelihood: each token is masked in turn; or those of its word behind it too; causal:
  of one that writes texts too (GPT-BERT), by likelihood from left to right"""
  limit: int = 0
  """pairs of a paradigm at most; 0: all"""
  start: bool = True
  """of a decoder: a text begins with the token that begins texts in training"""


@command()
def minimal_pairs_command(
    run: tyro.conf.Positional[str], files: tyro.conf.Positional[tuple[str, ...]] = (), output: str = '', page: str = '',
    beside: tuple[str, ...] = (), mesh: MeshConfig = MeshConfig(1),
    settings: Annotated[PairsConfig, tyro.conf.arg(name='')] = PairsConfig()) -> None:
  """Prints how often a model finds the right one of two sentences likelier, by paradigm, and where that is more than
  guessing.

  Args:
    run: folder of a run, or of a checkpoint of transformers: a decoder, or an encoder that fills masks; or a .jsonl
      that --output has written
    files: of BLiMP's form, .jsonl with sentence_good, sentence_bad and UID, plain, .gz or .xz; globs
    output: .jsonl file for what each pair got
    page: .html file for the table with bars
    beside: .jsonl files that --output has written for other runs, to be shown beside this one
    mesh: devices that share a large model
    settings: how
  """
  reachable.check_reachable({output: 'write', page: 'write', **dict.fromkeys(beside, 'read')})
  others = [pairing.read_judged(file) for file in beside]
  if run.endswith('.jsonl'):
    judged, way = pairing.read_judged(run), ''
    if files or output:
      raise ConfigError(f'{run} has been judged already: it takes no files of pairs, and no --output')
  else:
    if not files:
      raise ConfigError('there are no pairs: give files of them, those of BLiMP for one')
    trained = applied.shared(run, mesh)
    judged = knowledge.minimal_pairs(trained, ','.join(files), settings.how, settings.start, settings.limit)
    masked = 'mlm' in trained.heads and settings.how != 'causal'
    way = f'By {settings.how if masked else "likelihood"}. '
  runs = dict(zip(names([run, *beside]), [judged, *others], strict=True))
  for text in table(runs):
    print(text)
  if output:
    storage.write(output, ''.join(f'{record(one)}\n' for one in judged))
    print(f'what each pair got is in {output}')
  if page:
    storage.write(page, report.document(f'Minimal pairs: {", ".join(runs)}', 'plm_jax · what a model knows', [
        el('p', f'{way}Guessing is right half of the time, where the line is; the stroke is where the accuracy lies at '
           '95%, of a binomial distribution: of forty that are guessed one will look above it, one below.',
           class_='lead'), *(el('p', summary(name, some), class_='lead') for name, some in runs.items()),
        *sections(runs)], css(len(runs))))
    print(f'page: {page}')


def names(runs: Sequence[str]) -> list[str]:
  """Names runs by their folders, and those that were judged before by their files. Raises ConfigError for two alike."""
  called = [name.removesuffix('.jsonl') for name in named(runs)]
  if len({*called}) < len(called):
    raise ConfigError(f'of {", ".join(runs)} two are the same: give each run once')
  return called


def table(runs: Runs) -> Iterator[str]:
  """Yields the lines of the table, and what of it is above guessing."""
  paradigms, terms = (each(runs, of) for of in (pairing.by_paradigm, pairing.by_term))
  whole = each(runs, lambda some: [pairing.whole(some)])
  groups = [paradigms, *([terms] if len(terms) < len(paradigms) else []), whole]
  width = max(len(name) for group in groups for name in ('paradigm', *group))
  heads = [f'{name[-CELL:]:>{CELL}}' for name in runs] if len(runs) > 1 else [f'{"accuracy    at 95%":{CELL}}']
  yield f'{"paradigm":{width}}  {"  ".join(heads)}  {"pairs":>7}  phenomenon'
  for group in groups:
    for name, found in group.items():
      some = next(share for share in found if share)
      cells = '  '.join(cell(share) for share in found)
      yield f'{name:{width}}  {cells}  {some.pairs:7,}  {some.term}'.rstrip()
  yield LEGEND
  yield from (summary(name if len(runs) > 1 else '', some) for name, some in runs.items())


def each(runs: Runs, of: Callable[[Sequence[Judged]], Sequence[Share]]) -> dict[str, list[Share | None]]:
  """Lays what `of` counts of each run's pairs beside each other, by name; None where a run has none."""
  counted = [{share.name: share for share in of(some)} for some in runs.values()]
  return {name: [some.get(name) for some in counted] for some in counted for name in some}


def cell(share: Share | None) -> str:
  """Writes an accuracy with its interval, and on which side of guessing that is."""
  if not share:
    return ' ' * CELL
  low, high = share.interval
  return f'{share.accuracy:6.1%} {f"{100 * low:.1f}-{high:.1%}":>12} {MARKS[share.beyond]}'.rjust(CELL)


def summary(name: str, judged: Sequence[Judged]) -> str:
  """Counts the paradigms on each side of guessing."""
  found = [share.beyond for share in pairing.by_paradigm(judged)]
  above, below = found.count('above'), found.count('below')
  return (f'{name}: ' if name else '') + (f'of {len(found)} paradigms {above} are above guessing, {below} below, '
                                          f'{len(found) - above - below} not to be told from it')


def record(one: Judged) -> str:
  """Writes a pair as JSON."""
  return json.dumps({
      'where': one.pair.where, 'UID': one.pair.paradigm, 'linguistics_term': one.pair.term,
      'sentence_good': one.pair.good, 'sentence_bad': one.pair.bad, 'good': one.good, 'bad': one.bad,
      'right': one.right}, ensure_ascii=False)


def sections(runs: Runs) -> list[Element]:
  """Makes a section of bars for phenomena, where there are several, and one for paradigms."""
  paradigms, terms = (each(runs, of) for of in (pairing.by_paradigm, pairing.by_term))
  found = [el('section', el('h2', 'Phenomena'), bars(runs, terms))] if 1 < len(terms) < len(paradigms) else []
  return [*found, el('section', el('h2', 'Paradigms'), bars(runs, paradigms))]


def bars(runs: Runs, shares: Mapping[str, Sequence[Share | None]]) -> Element:
  """Draws accuracies as bars, with the mark of guessing and the intervals, a pair of columns for each run."""
  heads = [part for name in runs for part in (el('b', name), el('span', ''))]
  lines = [el('li', el('span', name, class_='piece', title=next(share.term for share in found if share)),
              *(part for run, share in zip(runs, found, strict=True) for part in bar(run, share)))
           for name, found in shares.items()]
  return el('ol', *([el('li', el('span', ''), *heads, class_='heads')] if len(runs) > 1 else []), *lines,
            class_='pairs')


def bar(run: str, share: Share | None) -> list[Element]:
  """Draws an accuracy, and writes it, with the run's name where a narrow page has no columns."""
  if not share:
    return [el('span', ''), el('span', '')]
  low, high = share.interval
  return [el('span', el('span', style=f'width:{100 * share.accuracy:.2f}%'), el('em', ''),
             el('i', '', style=f'left:{100 * low:.2f}%;width:{100 * (high - low):.2f}%'), class_='bar'),
          el('span', el('b', f'{run} ', class_='run'),
             f'{share.accuracy:.1%} ({100 * low:.0f} to {100 * high:.0f}) {MARKS[share.beyond]}',
             class_=f'share {share.beyond}', title=f'{share.right:,} of {share.pairs:,}')]


def css(runs: int) -> str:
  """Writes the style of the page."""
  return CSS.replace('COLUMNS', f'minmax(0, 24em) repeat({runs}, minmax(4em, 1fr) 10.5em)')


CSS = """
.pairs li { grid-template-columns: COLUMNS; } .pairs .bar { position: relative; height: 12px; }
.pairs em { position: absolute; left: 50%; top: 0; bottom: 0; border-left: 2px solid var(--amber); }
.pairs .bar i { position: absolute; top: 5px; margin: 0; border-top: 2px solid var(--ink); }
.pairs .share { text-align: left; } .pairs .above { color: var(--green); } .pairs .below { color: var(--amber); }
.pairs .run { display: none; }
@media (max-width: 700px) { .pairs .run { display: inline; } .pairs li { grid-template-columns: 1fr; gap: 0; }
  .pairs .heads { display: none; } }
"""
