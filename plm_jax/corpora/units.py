"""What is done with some documents at a time, on one machine or many: they are examined, and what stays is written."""
from collections.abc import Iterable
import gzip
import json
from typing import NamedTuple

from etils import epath
import numpy as np

from plm_jax import storage
from plm_jax.corpora import duplicates, examine, tables
from plm_jax.corpora import report as report_lib
from plm_jax.corpora.examine import CleanConfig, Examiner
from plm_jax.corpora.report import Report
from plm_jax.data.formats import Document


class Unit(NamedTuple):
  """What is left of some documents, and what happened to the others."""

  content: bytes  # lines of JSON
  report: Report
  exact: np.ndarray  # [D] uint64
  sketches: np.ndarray  # [D, values] uint8
  bands: np.ndarray  # [D, bands] uint64
  spans: np.ndarray  # [S] of tables.SPAN; places are counted from the first document of the unit


class Left(NamedTuple):
  """A document that the rules have left, and what was found out when it met others."""

  line: str  # of JSON
  mark: int  # KEPT, or another of `duplicates`
  repeated: set[int]  # first sentences of spans that came before


def examine_unit(examiner: Examiner, unit: list[Document]) -> Unit:
  """Examines documents."""
  config, report, kept, content = examiner.config, Report(), [], []
  for document in unit:
    found = examiner(document.paragraphs)
    report.documents += 1
    report.characters += sum(map(len, document.paragraphs))
    report.lines.update(found.lines)
    if found.reason:
      report.drop(found.reason, document.paragraphs, document.where, config.samples)
      continue
    report.kept_documents += 1
    report.kept_characters += sum(map(len, found.paragraphs))
    kept.append(found)
    content.append(line_of(found.paragraphs, document.where))
  spans = [tables.rows_of(tables.SPAN, number=found.spans, place=np.full(len(found.spans), place),
                          start=np.arange(len(found.spans))) for place, found in enumerate(kept)]
  stacked = lambda name: np.array([getattr(found, name) for found in kept])
  return Unit(''.join(content).encode(), report, stacked('exact').astype(np.uint64), stacked('sketch'),
              stacked('bands'), np.concatenate([np.empty(0, tables.SPAN), *spans]))


def write_documents(config: CleanConfig, target: epath.PathLike, documents: Iterable[Left]) -> Report:
  """Writes those of some documents that stay to a file; none where no document does."""
  report = Report()
  with storage.drafted(target) as draft, gzip.GzipFile('', 'wb', 6, draft, mtime=0) as out:
    for line, mark, repeated in documents:
      document = json.loads(line)
      paragraphs, reason = document['text'].split('\n'), duplicates.REASONS.get(mark, '')
      if not reason and repeated:
        paragraphs, cut = examine.without(paragraphs, repeated, config.span)
        report.lines[report_lib.SPAN] += cut
        reason = '' if examine.long_enough(paragraphs, config) else report_lib.SPAN
        line = line_of(paragraphs, document['where'])
      if reason:
        report.drop(reason, paragraphs, document['where'], config.samples)
      else:
        report.kept_documents += 1
        report.kept_characters += sum(map(len, paragraphs))
        out.write(line.encode())
  if not report.kept_documents:
    storage.path_of(target).unlink(missing_ok=True)
  return report


def shard_name(number: int) -> str:
  """Returns the name of a file of documents."""
  return f'documents-{number:05d}.jsonl.gz'


def line_of(paragraphs: list[str], where: str) -> str:
  """Returns the line of a document."""
  return json.dumps({'text': '\n'.join(paragraphs), 'where': where}, ensure_ascii=False) + '\n'
