"""Compare near-duplicate detection with datasketch: recall of planted near-duplicates, and documents per second.

    python -m benchmarks.deduplicate --text=corpus.txt        # or .txt.xz; about 20 MB of text

Needs the extra `bench`, and Linux for peak memory. Documents are chunks of 400 words, about the length of a C4
page. A copy of every tenth document is planted, with evenly spread words replaced, so that the Jaccard similarity of
the 5-gram sets is about 0.9, 0.8, 0.7, 0.6 or 0.5. The exact similarity is computed. Both methods search for documents
of similarity 0.8 with 256 MinHash values in 32 bands of 8. They compare whole signatures and require three quarters of
the values to agree. datasketch gets the same words and 5-grams and holds its index in memory. plm_jax is the whole
command, which reads, writes and sorts on disk. The speed is per second of CPU time, user and system, so that neither
gains from a second core. A run on ten times the text, with different words in each part, shows how memory grows.
"""
import argparse
import json
import lzma
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks.prepare import figures
from benchmarks.side_by_side import machine
from plm_jax.corpora import word_hashes
from plm_jax.corpora.word_hashes import MinHash

CONTESTANTS = 'plm_jax', 'datasketch'
SIMILARITIES = 0.9, 0.8, 0.7, 0.6, 0.5
WORDS = 400
NEAR = 0.02  # tolerance around each similarity


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--text', required=True, help='a text file, plain or .xz')
  parser.add_argument('--rounds', type=int, default=3)
  parser.add_argument('--contestant', choices=CONTESTANTS, help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.contestant:
    print(json.dumps({'plm_jax': ours, 'datasketch': theirs}[args.contestant](args.text)))
    return
  print(machine('numpy', 'datasketch') + f', load {os.getloadavg()[0]:.1f}')
  with tempfile.TemporaryDirectory() as scratch:
    compare(pathlib.Path(args.text), pathlib.Path(scratch), args.rounds)


def compare(text: pathlib.Path, scratch: pathlib.Path, rounds: int) -> None:
  documents, planted = plant(text)
  whole, tenfold = scratch / 'whole.jsonl', scratch / 'tenfold.jsonl'
  write(whole, documents)
  write(tenfold, (' '.join(f'{word}{part}' for word in document.split()) for part in range(10)
                  for document in documents))
  print('\n| documents | | seconds | CPU seconds | documents per CPU second | peak memory |')
  print('|---|---|---|---|---|---|')
  kept = {}
  for file, names, times in ((whole, CONTESTANTS, rounds), (tenfold, CONTESTANTS[:1], 1)):
    runs = {name: [] for name in names}
    for _ in range(times):
      for name in names:
        runs[name].append(measure(name, file))
    for name, some in runs.items():
      kept.setdefault(name, set(some[0].pop('kept')))
      median = {key: statistics.median(run[key] for run in some) for key in some[0] if key != 'kept'}
      number = len(documents) * (10 if file == tenfold else 1)
      print(f'| {number:,} | {name} | {median["seconds"]:.1f} | {median["cpu"]:.1f} | {number / median["cpu"]:,.0f} | '
            f'{median["memory"] / 1024:,.0f} MiB |', flush=True)
  judge(documents, planted, kept)


def plant(text: pathlib.Path) -> tuple[list[str], list[tuple[int, int, float]]]:
  """Divide a text into documents and plant copies.

  Returns:
    documents in random order, and for each copy (index of the original, index of the copy, their similarity).
  """
  with lzma.open(text, 'rt') if text.suffix == '.xz' else text.open() as f:
    every = f.read().split()
  found = [' '.join(every[at:at + WORDS]) for at in range(0, len(every) - WORDS, WORDS)]
  draw, pairs = random.Random(0), []
  for number in range(0, len(found), 10):
    split = found[number].split()
    similarity = SIMILARITIES[number // 10 % len(SIMILARITIES)]
    edits = max(round(len(split) * (1 - similarity) / (1 + similarity) / 5), 1)
    for edit in range(edits):
      split[(2 * edit + 1) * len(split) // (2 * edits)] = f'other{draw.randrange(1 << 30)}'
    pairs.append((number, len(found) + len(pairs), ' '.join(split)))
  every = found + [copy for *_, copy in pairs]
  order = list(range(len(every)))
  draw.shuffle(order)
  places = {number: place for place, number in enumerate(order)}
  return [every[number] for number in order], [
      (places[number], places[other], jaccard(every[number], every[other])) for number, other, _ in pairs]


def jaccard(one: str, other: str) -> float:
  def ngrams(text: str) -> set[int]:
    words = word_hashes.hash_words(word_hashes.split_words(text))
    return set(word_hashes.ngram_hashes(words, 5).tolist())

  a, b = ngrams(one), ngrams(other)
  return len(a & b) / len(a | b)


def write(path: pathlib.Path, documents) -> None:
  with path.open('w') as file:
    file.writelines(json.dumps({'text': document}) + '\n' for document in documents)


def measure(contestant: str, file: pathlib.Path) -> dict:
  process = subprocess.run(
      [sys.executable, '-m', 'benchmarks.deduplicate', f'--contestant={contestant}', f'--text={file}'], check=True,
      stdout=subprocess.PIPE, text=True)
  return json.loads(process.stdout.splitlines()[-1])


def ours(file: str) -> dict:
  from benchmarks.prepare import cpu_seconds
  from plm_jax.corpora.clean import clean
  from plm_jax.corpora.filter_documents import CleanConfig
  from plm_jax.sources import lines

  with tempfile.TemporaryDirectory() as scratch:
    began, used = time.perf_counter(), cpu_seconds()
    report = clean(CleanConfig(workers=1, shard_characters=1 << 25), file, scratch)
    result = figures(report.kept_documents, began, used)
    left = [int(json.loads(line)['where'].rpartition(':')[2]) - 1 for path in pathlib.Path(scratch).glob('*.gz')
            for _, line in lines.read_lines(path, 'refuse', lines.ReadStats())]  # pyright: ignore[reportArgumentType]
  return result | {'kept': left}


def theirs(file: str) -> dict:
  from datasketch import MinHash as Signature  # pyright: ignore[reportMissingImports]
  from datasketch import MinHashLSH  # pyright: ignore[reportMissingImports]

  from benchmarks.prepare import cpu_seconds
  began, used = time.perf_counter(), cpu_seconds()
  minhash = MinHash()
  index = MinHashLSH(num_perm=minhash.values, params=(minhash.bands, minhash.rows))
  left, signatures = [], {}
  with open(file) as texts:
    for number, line in enumerate(texts):
      found = word_hashes.split_words(json.loads(line)['text'])
      signature = Signature(minhash.values)
      signature.update_batch({' '.join(found[at:at + 5]).encode() for at in range(max(len(found) - 4, 1))})
      if not any(signatures[other].jaccard(signature) >= minhash.min_agreement for other in index.query(signature)):
        left.append(number)
      index.insert(number, signature)
      signatures[number] = signature
  return figures(len(left), began, used) | {'kept': left}


def judge(documents: list[str], planted: list[tuple[int, int, float]], kept: dict[str, set[int]]) -> None:
  """Print the share of planted pairs found, and the number of unrelated documents removed by mistake."""
  print('\n| similarity | pairs | ' + ' | '.join(f'found by {name}' for name in kept) + ' |')
  print('|---|---|' + '---|' * len(kept))
  for similarity in SIMILARITIES:
    pairs = [(one, other) for one, other, found in planted if abs(found - similarity) <= NEAR]
    shares = [statistics.mean(not (one in left and other in left) for one, other in pairs) for left in kept.values()]
    print(f'| {similarity} +- {NEAR} | {len(pairs)} | ' + ' | '.join(f'{share:.1%}' for share in shares) + ' |')
  alone = set(range(len(documents))) - {number for pair in planted for number in pair[:2]}
  said = []
  for name, left in kept.items():
    wrong = [number for number in alone - left if most_like(documents, number) < 0.7]
    said.append(f'{name} removed {len(alone - left)}, of which {len(wrong)} have a similarity of less than 0.7 with '
                'every other document')
  print(f'\nOf {len(alone):,} documents without a planted copy ' + '; '.join(said) + '.')


def most_like(documents: list[str], number: int) -> float:
  """Return the largest similarity of a document with any other, among those that share over half of its words."""
  first = set(documents[number].split())
  near = [other for at, other in enumerate(documents)
          if at != number and len(first & (found := set(other.split()))) > 0.5 * max(len(first), len(found))]
  return max((jaccard(documents[number], other) for other in near), default=0.0)


if __name__ == '__main__':
  main()
