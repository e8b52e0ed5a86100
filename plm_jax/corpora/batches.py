"""Batches of documents, on one machine or many: filter them, and write those that are kept.

`CleanReport` counts the dropped documents by reason, and has samples of them.
"""
from collections import Counter
from collections.abc import Iterable
import dataclasses
import gzip
import json
from typing import Any, NamedTuple

from etils import epath
import numpy as np

from plm_jax import storage
from plm_jax.corpora import duplicates, filter_documents
from plm_jax.corpora.filter_documents import CleanConfig, DocumentFilter
from plm_jax.sources.document_formats import Document

SAMPLE_CHARACTERS = 2000  # of a document that is kept as a sample
REPEATED_SPAN = 'repeated span'


@dataclasses.dataclass
class CleanReport:
  """Counts of documents, characters and lines that were read, kept and dropped."""

  documents: int = 0  # that were read
  characters: int = 0
  kept_documents: int = 0
  kept_characters: int = 0
  dropped: Counter[str] = dataclasses.field(default_factory=Counter)  # reason -> documents
  lines: Counter[str] = dataclasses.field(default_factory=Counter)  # reason -> lines, or sentences
  skipped: int = 0  # lines of the source that could not be read
  # Reason -> documents.
  samples: dict[str, list[dict[str, str]]] = dataclasses.field(default_factory=dict)

  def add(self, other: 'CleanReport', samples: int) -> None:
    """Add the report of documents that come after these.

    Args:
      other: the report.
      samples: number of samples of each reason to keep.
    """
    for name in ('documents', 'characters', 'kept_documents', 'kept_characters', 'skipped'):
      setattr(self, name, getattr(self, name) + getattr(other, name))
    self.dropped += other.dropped
    self.lines += other.lines
    for reason, documents in other.samples.items():
      before = self.samples.setdefault(reason, [])
      before += documents[:samples - len(before)]

  def drop(self, reason: str, paragraphs: list[str], where: str, samples: int) -> None:
    """Count a document that is dropped, and keep it if it is one of the first `samples`."""
    self.dropped[reason] += 1
    kept = self.samples.setdefault(reason, [])
    if len(kept) < samples:
      text = '\n'.join(paragraphs)[:SAMPLE_CHARACTERS]
      kept.append({'reason': reason, 'where': where, 'text': text})

  @classmethod
  def from_json(cls, fields: dict[str, Any]) -> 'CleanReport':
    """Make a report from the fields of a file."""
    counters: dict[str, Any] = {name: Counter(fields[name]) for name in ('dropped', 'lines')}
    return cls(**(fields | counters))

  def __str__(self) -> str:
    documents, characters = max(self.documents, 1), max(self.characters, 1)
    rows = [f'{"":32}{"documents":>14}{"":9}{"characters":>18}',
            f'{"read":32}{self.documents:>14,}{"":9}{self.characters:>18,}']
    for reason, number in self.dropped.most_common():
      rows.append(f'{f"  {reason}":32}{-number:>14,}{number / documents:>9.2%}')
    rows.append(f'{"kept":32}{self.kept_documents:>14,}{self.kept_documents / documents:>9.2%}'
                f'{self.kept_characters:>18,}{self.kept_characters / characters:>9.2%}')
    if self.lines:
      rows.append('removed from documents')
      for reason, number in self.lines.most_common():
        unit = 'sentences' if reason == REPEATED_SPAN else 'lines'
        rows.append(f'{f"  {reason}":32}{number:>14,} {unit}')
    if self.skipped:
      rows.append(f'{"lines that cannot be read":32}{self.skipped:>14,}')
    return '\n'.join(rows)


def write_report(report: CleanReport, path: Any, **more: Any) -> None:
  """Write the counts as JSON, with further fields."""
  counts = dict(vars(report))
  counts.pop('samples', None)
  storage.write_json(path, {**counts, **more})


class FilteredBatch(NamedTuple):
  """The documents of a batch that the filters kept, their hashes, and the report."""

  content: bytes  # JSON Lines
  report: CleanReport
  exact: np.ndarray  # [D] uint64
  sketches: np.ndarray  # [D, values] uint8
  bands: np.ndarray  # [D, bands] uint64
  spans: np.ndarray  # [S] of SPAN_DTYPE; places count from the first document of the batch


class KeptDocument(NamedTuple):
  """A document that the filters kept, with the results of deduplication."""

  line: str  # JSON
  mark: int  # KEPT, or another of `duplicates`
  repeated: set[int]  # first sentences of repeated spans


def filter_batch(examiner: DocumentFilter, unit: list[Document]) -> FilteredBatch:
  """Filter a batch of documents."""
  config, report, kept, content = examiner.config, CleanReport(), [], []
  spans = [np.empty(0, duplicates.SPAN_DTYPE)]
  for document in unit:
    paragraphs = ''.join(document.paragraphs).split('\n')  # and blank lines between them
    result = examiner(paragraphs)
    report.documents += 1
    report.characters += sum(map(len, paragraphs))
    report.lines.update(result.lines)
    if result.reason:
      report.drop(result.reason, paragraphs, document.where, config.samples)
      continue
    report.kept_documents += 1
    report.kept_characters += sum(map(len, result.paragraphs))
    number = len(result.spans)
    spans.append(duplicates.make_rows(
        duplicates.SPAN_DTYPE, number=result.spans, place=np.full(number, len(kept)),
        start=np.arange(number)))
    kept.append(result)
    content.append(document_line(result.paragraphs, document.where))
  return FilteredBatch(
      ''.join(content).encode(), report,
      exact=np.array([result.exact for result in kept]).astype(np.uint64),
      sketches=np.array([result.sketch for result in kept]),
      bands=np.array([result.bands for result in kept]),
      spans=np.concatenate(spans))


def write_documents(
    config: CleanConfig, target: epath.PathLike, documents: Iterable[KeptDocument]) -> CleanReport:
  """Write the documents that are not duplicates to a file; no file if there are none."""
  report = CleanReport()
  with storage.atomic_writer(target) as draft, gzip.GzipFile('', 'wb', 6, draft, mtime=0) as out:
    for line, mark, repeated in documents:
      document = json.loads(line)
      paragraphs, reason = document['text'].split('\n'), duplicates.REASONS.get(mark, '')
      if not reason and repeated:
        paragraphs, removed = filter_documents.remove_repeated_spans(
            paragraphs, repeated, config.span)
        report.lines[REPEATED_SPAN] += removed
        if not filter_documents.is_long_enough(paragraphs, config):
          reason = REPEATED_SPAN
        line = document_line(paragraphs, document['where'])
      if reason:
        report.drop(reason, paragraphs, document['where'], config.samples)
      else:
        report.kept_documents += 1
        report.kept_characters += sum(map(len, paragraphs))
        out.write(line.encode())
  if not report.kept_documents:
    storage.resolve_path(target).unlink(missing_ok=True)
  return report


def shard_name(number: int) -> str:
  """Return the name of an output file."""
  return f'documents-{number:05d}.jsonl.gz'


def document_line(paragraphs: list[str], where: str) -> str:
  """Return a document as a line of JSON."""
  return json.dumps({'text': '\n'.join(paragraphs), 'where': where}, ensure_ascii=False) + '\n'
