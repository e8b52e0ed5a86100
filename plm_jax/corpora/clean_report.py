"""The report of `clean`: numbers of dropped documents, and samples, for each reason."""
from collections import Counter
import dataclasses
from typing import Any

from plm_jax import storage

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
