"""Pre-train an encoder of a given quality as fast as possible: see README.md for the rules.

    python -m benchmarks.speedrun train NAME --text=enwiki2015_sample.txt.xz   # does it reach the target?
    python -m benchmarks.speedrun pace NAME --text=enwiki2015_sample.txt.xz    # how fast? On a quiet machine.
    python -m benchmarks.speedrun tasks NAME --data=DIR                        # CoLA, SST-2 and minimal pairs
    python -m benchmarks.speedrun table                                        # writes the table into README.md
"""
import argparse

from benchmarks.speedrun import board, record
from benchmarks.speedrun.entries import TRACKS, make_entries


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('stage', nargs='?', choices=('train', 'pace', 'tasks', 'table'), default='table')
  parser.add_argument('name', nargs='?', default='', help='name of the entry')
  parser.add_argument('--track', choices=TRACKS, default='cpu')
  parser.add_argument('--text', default='', help='file of the text')
  parser.add_argument('--data', default='', help='folder of the tasks')
  parser.add_argument('--output', default='runs/speedrun')
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--seeds', type=int, default=3, help='of fine-tuning')
  parser.add_argument('--rounds', type=int, default=8, help='in which the pace is measured')
  parser.add_argument('--contestant', help=argparse.SUPPRESS)
  args = parser.parse_args()
  track = TRACKS[args.track]
  if args.contestant:
    record.contestant(track, args.contestant, args.text, args.output)
    return
  if args.stage == 'table':
    board.write_tables()
    return
  names = list(make_entries(track))
  if args.name not in names:
    parser.error(f'the entries of the track {args.track} are {", ".join(names)}, got {args.name!r}')
  if args.stage in ('train', 'pace') and not args.text:
    parser.error('--text is missing: the file of the text')
  if args.stage == 'tasks' and not args.data:
    parser.error('--data is missing: the folder of the tasks')
  if args.stage == 'train':
    found = record.train_entry(args.track, args.name, args.text, args.output, args.seed)
    target = 'no target yet' if track.target is None else f'the target is {track.target}'
    print(f'{args.name}: held-out loss {found["losses"][str(args.seed)]} after {found["steps"]:,} steps; {target}')
  elif args.stage == 'pace':
    found = record.measure_pace(args.track, args.name, args.text, args.output, args.rounds)
    print(f'{args.name}: {found["seconds"]:,.0f} seconds, {found["speed"]:.2f} times as fast as the first entry')
  else:
    print(f'{args.name}: {record.score_tasks(args.track, args.name, args.output, args.data, args.seeds)["scores"]}')


if __name__ == '__main__':
  main()
