"""Write the tables of all tracks into README.md, from the records."""
import pathlib
from typing import Any

from benchmarks import kept
from benchmarks.speedrun.entries import TRACKS, Track, make_entries
from benchmarks.speedrun.record import read_record

README = pathlib.Path(__file__).with_name('README.md')
COLUMNS = (
    'entry', 'what is new', 'date', 'commit', 'steps', 'tokens, millions', 'PFLOPs', 'seconds', 'speed', 'held-out loss',
    'CoLA', 'SST-2', 'minimal pairs')


def write_tables() -> None:
  """Replace the part of README.md between the two marks of each track."""
  text = README.read_text()
  for name, track in TRACKS.items():
    begin, end = f'<!-- {name} -->\n', f'<!-- end of {name} -->'
    if begin in text:
      before, _, rest = text.partition(begin)
      text = before + begin + make_table(name, track) + end + rest.partition(end)[2]
  README.write_text(text)


def make_table(name: str, track: Track) -> str:
  """Make the table of a track: entries in the order in which they were added."""
  lines = [f'| {" | ".join(COLUMNS)} |', '|---' * len(COLUMNS) + '|']
  for entry in make_entries(track):
    record = read_record(name, entry)
    if 'losses' in record:
      lines.append(f'| {" | ".join(make_row(entry, record, track))} |')
  return '\n'.join(lines) + '\n'


def make_row(entry: str, record: dict[str, Any], track: Track) -> list[str]:
  """Make the row of an entry; '-' for what has not been measured."""
  losses = list(record['losses'].values())
  loss = kept.shown(losses, 3)
  if track.target is not None and sum(losses) / len(losses) > track.target:
    loss += ' (misses the target)'
  scores = record.get('scores', {})
  return [
      entry, record['title'], record['date'], record['commit'], f'{record["steps"]:,}',
      f'{record["tokens"] / 1e6:.1f}', f'{record["flops"] / 1e15:.2f}',
      f'{record["seconds"]:,.0f}' if 'seconds' in record else '-',
      f'{record["speed"]:.2f}' if 'speed' in record else '-', loss,
      *(kept.shown(scores.get(task, []), 1) for task in ('cola', 'sst2', 'minimal_pairs'))]
