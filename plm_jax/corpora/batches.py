"""Batches of documents, on one machine or many: filter them, and write those that are kept."""
from collections.abc import Iterable
import gzip
import json
from typing import NamedTuple

from etils import epath
import numpy as np

from plm_jax import storage
from plm_jax.corpora import disk_tables, duplicates, filter_documents
from plm_jax.corpora.clean_report import REPEATED_SPAN, CleanReport
from plm_jax.corpora.filter_documents import CleanConfig, DocumentFilter
from plm_jax.sources.document_formats import Document


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
  spans = [np.empty(0, disk_tables.SPAN_DTYPE)]
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
    spans.append(disk_tables.make_rows(
        disk_tables.SPAN_DTYPE, number=result.spans, place=np.full(number, len(kept)),
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
