"""Implement `python -m plm_jax minimal-pairs`: accuracies by paradigm, compared with guessing."""
from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import itertools
import json
from typing import Annotated
from xml.etree.ElementTree import Element

import tyro

from plm_jax import storage
from plm_jax.api import knowledge
from plm_jax.cli import inputs
from plm_jax.cli.compare import run_names
from plm_jax.cli.options import command
from plm_jax.errors import ConfigError
from plm_jax.evaluation import minimal_pairs as pairing
from plm_jax.evaluation.minimal_pairs import JudgedPair, PairAccuracy
from plm_jax.evaluation.pseudo_likelihood import MaskingMode
from plm_jax.report import html
from plm_jax.report.html import el
from plm_jax.sharding import MeshConfig
from plm_jax.storage import bucket_check
from plm_jax.validation import ValidatedConfig

JudgedRuns = Mapping[str, Sequence[JudgedPair]]
"""name of a run -> its pairs"""
MARKS = {'above': '+', 'below': '-', 'unsure': '='}
LEGEND = '+ above guessing, - below it, = no significant difference: binomial intervals of 95%'
CELL_WIDTH = 22
"""characters of the column of a run"""


@dataclasses.dataclass(frozen=True)
class PairsConfig(ValidatedConfig):
  """How minimal pairs are judged."""

  how: MaskingMode = 'pll'
  """score of an encoder. pll: pseudo-log-likelihood, each token is masked in turn; pll-word-l2r:
  the later tokens of its word are masked too; causal: left-to-right log-likelihood, for a model
  that also generates text (GPT-BERT)"""
  limit: int = 0
  """maximum number of pairs per paradigm; 0: all"""
  start: bool = True
  """for a decoder: start each text with the start token, as in training"""


@command()
def minimal_pairs_command(
    run: tyro.conf.Positional[str], files: tyro.conf.Positional[tuple[str, ...]] = (),
    output: str = '', page: str = '', compare_with: tuple[str, ...] = (),
    mesh: MeshConfig = MeshConfig(1),
    settings: Annotated[PairsConfig, tyro.conf.arg(name='')] = PairsConfig()) -> None:
  """Prints accuracies on minimal pairs by paradigm, and whether they are better than guessing.

  Args:
    run: run folder or transformers checkpoint: a decoder, or an encoder with a masked-LM head; or a
      .jsonl file that --output has written
    files: files or globs in the BLiMP format: .jsonl with sentence_good, sentence_bad and UID;
      plain, .gz or .xz
    output: file for the scores of each pair (.jsonl)
    page: also write the table, with bars, to this HTML file
    compare_with: .jsonl files that --output has written for other runs; their accuracies are
      printed too
    mesh: devices over which a large model is split
    settings: how pairs are scored
  """
  bucket_check.check_reachable(dict.fromkeys(compare_with, 'read'))
  others = [pairing.read_judged_pairs(file) for file in compare_with]
  how = ''
  if run.endswith('.jsonl'):
    judged = pairing.read_judged_pairs(run)
    if files or output:
      raise ConfigError(f'{run} has been judged already: it takes no files of pairs, and no '
                        '--output')
  else:
    if not files:
      raise ConfigError('there are no pairs: give files of them, those of BLiMP for one')
    trained = inputs.load_on_mesh(run, mesh)
    judged = knowledge.minimal_pairs(
        trained, ','.join(files), settings.how, settings.start, settings.limit)
    masked = 'mlm' in trained.heads and settings.how != 'causal'
    how = f'By {settings.how if masked else "likelihood"}. '
  called = [name.removesuffix('.jsonl') for name in run_names([run, *compare_with])]
  if len(set(called)) < len(called):
    raise ConfigError(f'of {", ".join([run, *compare_with])} two are the same: give each run once')
  runs = dict(zip(called, [judged, *others], strict=True))
  if output:
    storage.write(output, ''.join(f'{format_record(one)}\n' for one in judged))
  for line in table_lines(runs):
    print(line)
  if output:
    print(f'what each pair got is in {output}')
  if page:
    storage.write(page, render_page(runs, how))
    print(f'page: {page}')


def table_lines(runs: JudgedRuns) -> Iterator[str]:
  """Yield the lines of the table, and a summary."""
  paradigms = shares_by_name(runs, pairing.accuracy_by_paradigm)
  terms = shares_by_name(runs, pairing.accuracy_by_phenomenon)
  whole = shares_by_name(runs, lambda judged: [pairing.overall_accuracy(judged)])
  groups = [paradigms, whole]
  if 0 < len(terms) < len(paradigms):
    groups.insert(1, terms)
  width = max(map(len, ['paradigm', *itertools.chain(*groups)]))
  heads = [f'{"accuracy    at 95%":{CELL_WIDTH}}']
  if len(runs) > 1:
    heads = [f'{name[-CELL_WIDTH:]:>{CELL_WIDTH}}' for name in runs]
  yield f'{"paradigm":{width}}  {"  ".join(heads)}  {"pairs":>7}  phenomenon'
  for group in groups:
    for name, found in group.items():
      some = next(share for share in found if share)
      cells = '  '.join(format_share(share) for share in found)
      yield f'{name:{width}}  {cells}  {some.pairs:7,}  {some.term}'.rstrip()
  yield LEGEND
  for name, judged in runs.items():
    yield describe_significance(name if len(runs) > 1 else '', judged)


def shares_by_name(
    runs: JudgedRuns, count: Callable[[Sequence[JudgedPair]], Sequence[PairAccuracy]]
) -> dict[str, list[PairAccuracy | None]]:
  """Count the pairs of each run by name; None where a run has no such pairs."""
  found: dict[str, list[PairAccuracy | None]] = {}
  for number, judged in enumerate(runs.values()):
    for share in count(judged):
      found.setdefault(share.name, [None] * len(runs))[number] = share
  return found


def format_share(share: PairAccuracy | None) -> str:
  """Format an accuracy with its interval, and a mark for the comparison with guessing."""
  if not share:
    return ' ' * CELL_WIDTH
  low, high = share.interval
  interval = f'{100 * low:.1f}-{high:.1%}'
  cell = f'{share.accuracy:6.1%} {interval:>12} {MARKS[share.versus_chance]}'
  return cell.rjust(CELL_WIDTH)


def describe_significance(name: str, judged: Sequence[JudgedPair]) -> str:
  """Return the numbers of paradigms that are better and worse than guessing."""
  found = [share.versus_chance for share in pairing.accuracy_by_paradigm(judged)]
  above, below = found.count('above'), found.count('below')
  head = f'{name}: ' if name else ''
  return (f'{head}of {len(found)} paradigms {above} are above guessing, {below} below, '
          f'{len(found) - above - below} without a significant difference')


def format_record(one: JudgedPair) -> str:
  """Return a judged pair as a line of JSON."""
  return json.dumps({
      'where': one.pair.where, 'UID': one.pair.paradigm, 'linguistics_term': one.pair.term,
      'sentence_good': one.pair.good, 'sentence_bad': one.pair.bad, 'good': one.good,
      'bad': one.bad, 'right': one.right}, ensure_ascii=False)


def render_page(runs: JudgedRuns, how: str) -> str:
  """Return the HTML page: a summary, and bars for phenomena and paradigms.

  Args:
    runs: the runs.
    how: a sentence on how the pairs were judged, or ''.
  """
  lead = (f'{how}Guessing is right half of the time, where the line is; the stroke is where the '
          'accuracy is with 95% confidence (binomial): of forty guessed paradigms, one will '
          'look above it, one below.')
  leads = [lead, *(describe_significance(name, judged) for name, judged in runs.items())]
  parts = [el('p', text, class_='lead') for text in leads]
  paradigms = shares_by_name(runs, pairing.accuracy_by_paradigm)
  terms = shares_by_name(runs, pairing.accuracy_by_phenomenon)
  if 1 < len(terms) < len(paradigms):
    parts.append(el('section', el('h2', 'Phenomena'), draw_bars(runs, terms)))
  parts.append(el('section', el('h2', 'Paradigms'), draw_bars(runs, paradigms)))
  columns = f'minmax(0, 24em) repeat({len(runs)}, minmax(4em, 1fr) 10.5em)'
  return html.render_document(
      f'Minimal pairs: {", ".join(runs)}', 'plm_jax · analysis of a model', parts,
      CSS.replace('COLUMNS', columns))


def draw_bars(runs: JudgedRuns, shares: Mapping[str, Sequence[PairAccuracy | None]]) -> Element:
  """Draw accuracies as bars with their intervals and a line for guessing, two columns per run."""
  bars = el('ol', class_='pairs')
  if len(runs) > 1:
    heads = [cell for name in runs for cell in (el('b', name), el('span', ''))]
    bars.append(el('li', el('span', ''), *heads, class_='heads'))
  for name, found in shares.items():
    term = next(share.term for share in found if share)
    line = el('li', el('span', name, class_='piece', title=term))
    for run, share in zip(runs, found, strict=True):
      line.extend(draw_bar(run, share))
    bars.append(line)
  return bars


def draw_bar(run: str, share: PairAccuracy | None) -> list[Element]:
  """Draw an accuracy, and write it with the name of the run, which only narrow pages show."""
  if not share:
    return [el('span', ''), el('span', '')]
  low, high = share.interval
  stroke = f'left:{100 * low:.2f}%;width:{100 * (high - low):.2f}%'
  bar = el('span', el('span', style=f'width:{100 * share.accuracy:.2f}%'), el('em', ''),
           el('i', '', style=stroke), class_='bar')
  text = f'{share.accuracy:.1%} ({100 * low:.0f} to {100 * high:.0f}) {MARKS[share.versus_chance]}'
  label = el('span', el('b', f'{run} ', class_='run'), text, class_=f'share {share.versus_chance}',
             title=f'{share.right:,} of {share.pairs:,}')
  return [bar, label]


CSS = """
.pairs li { grid-template-columns: COLUMNS; } .pairs .bar { position: relative; height: 12px; }
.pairs em { position: absolute; left: 50%; top: 0; bottom: 0; border-left: 2px solid var(--amber); }
.pairs .bar i { position: absolute; top: 5px; margin: 0; border-top: 2px solid var(--ink); }
.pairs .share { text-align: left; } .pairs .above { color: var(--green); } .pairs .below { color:
  var(--amber); }
.pairs .run { display: none; }
@media (max-width: 700px) { .pairs .run { display: inline; } .pairs li { grid-template-columns: 1fr;
  gap: 0; }
  .pairs .heads { display: none; } }
"""
