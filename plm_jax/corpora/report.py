"""What of a corpus was left out and why: numbers that add up, and the first documents of each reason."""
from collections import Counter
import dataclasses
from typing import Any

from plm_jax import storage

SAMPLE = 2000  # characters of a document that are shown


@dataclasses.dataclass
class Report:
  """What happened to documents."""

  documents: int = 0  # that were read
  characters: int = 0
  kept_documents: int = 0
  kept_characters: int = 0
  dropped: Counter[str] = dataclasses.field(default_factory=Counter)  # reason -> documents
  lines: Counter[str] = dataclasses.field(default_factory=Counter)  # reason -> lines, or sentences
  skipped: int = 0  # lines of the source that could not be read
  samples: dict[str, list[dict[str, str]]] = dataclasses.field(default_factory=dict)  # reason -> documents

  def add(self, other: 'Report', samples: int) -> None:
    """Adds what happened to other documents, which come after these; of each reason as many are shown."""
    for name in ('documents', 'characters', 'kept_documents', 'kept_characters', 'skipped'):
      setattr(self, name, getattr(self, name) + getattr(other, name))
    self.dropped += other.dropped
    self.lines += other.lines
    for reason, shown in other.samples.items():
      before = self.samples.setdefault(reason, [])
      before += shown[:samples - len(before)]

  def drop(self, reason: str, paragraphs: list[str], where: str, samples: int) -> None:
    """Counts a document that is left out, and shows it if it is one of the first."""
    self.dropped[reason] += 1
    shown = self.samples.setdefault(reason, [])
    if len(shown) < samples:
      shown.append({'reason': reason, 'where': where, 'text': '\n'.join(paragraphs)[:SAMPLE]})

  @classmethod
  def of(cls, fields: dict[str, Any]) -> 'Report':
    """Makes a report of what a file has of one."""
    counted: dict[str, Any] = {name: Counter(fields[name]) for name in ('dropped', 'lines')}
    return cls(**{**fields, **counted})

  def __str__(self) -> str:
    whole, characters = max(self.documents, 1), max(self.characters, 1)
    rows = [f'{"":32}{"documents":>14}{"":9}{"characters":>18}', f'{"read":32}{self.documents:>14,}{"":9}'
            f'{self.characters:>18,}']
    rows += [f'{f"  {reason}":32}{-number:>14,}{number / whole:>9.2%}' for reason, number in self.dropped.most_common()]
    rows.append(f'{"kept":32}{self.kept_documents:>14,}{self.kept_documents / whole:>9.2%}{self.kept_characters:>18,}'
                f'{self.kept_characters / characters:>9.2%}')
    if self.lines:
      rows.append('taken out of documents')
      rows += [f'{f"  {reason}":32}{number:>14,} {"sentences" if reason == SPAN else "lines"}'
               for reason, number in self.lines.most_common()]
    if self.skipped:
      rows.append(f'{"lines that cannot be read":32}{self.skipped:>14,}')
    return '\n'.join(rows)


def write(report: Report, path: Any, **more: Any) -> None:
  """Writes the numbers as JSON, with whatever else is to be known."""
  storage.write_json(path, {**{name: value for name, value in vars(report).items() if name != 'samples'}, **more})


SPAN = 'repeated span'
