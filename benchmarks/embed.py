"""Measure sentence embedding speed next to sentence-transformers, and exact search among a million vectors.

    python -m benchmarks.embed --model all-MiniLM-L6-v2/ --data sentences.txt
    python -m benchmarks.embed --search

Needs the extra `bench` with sentence-transformers. --model is a folder in the format of sentence-transformers. --data
is a file with one sentence per line, of any length. Both libraries get all sentences at once and sort them by length.
sentence-transformers pads a batch of 32 to its longest sequence, plm_jax pads to one of a few lengths. The first number
of the first vector of both is printed as a check. Static vectors are distilled from the same model. Compilation is not
counted. CPU seconds are those of one round: compare these if other programs run on the machine. The last column is the
speed in FLOP/s, without padding, as a share of the speed of a float32 product of 2048 x 2048 in the same library.
--search times --queries at once among --vectors of --width.
"""
import argparse
import functools
import pathlib
import statistics
import time
from typing import Any

from benchmarks.side_by_side import compare, contest, machine, spread
from benchmarks.training_step import jax_peak, share, torch_peak

CLOCK_TICK = 0.01
"""Resolution of CPU seconds; the smallest divisor of their ratio."""
OURS, STATIC, THEIRS = 'plm_jax', 'plm_jax static', 'sentence-transformers'


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--model', help='folder of sentence-transformers')
  parser.add_argument('--data', help='file with one sentence per line')
  parser.add_argument('--sentences', type=int, default=1000, help='maximum number of sentences')
  parser.add_argument('--rounds', type=int, default=6)
  parser.add_argument('--search', action='store_true')
  parser.add_argument('--vectors', type=int, default=1_000_000)
  parser.add_argument('--width', type=int, default=384)
  parser.add_argument('--queries', type=int, nargs='*', default=[1, 10, 100])
  parser.add_argument('--contestant', choices=(OURS, STATIC, THEIRS), help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.search:
    search(args)
    return
  if not args.model or not args.data:
    parser.error('give --model and --data, or --search')
  lines = pathlib.Path(args.data).read_text().splitlines()
  texts = [line for line in lines if line.strip()][:args.sentences]
  if args.contestant:
    run(args, texts)
    return
  given = ['--model', args.model, '--data', args.data, '--sentences', str(args.sentences)]
  found = compare('benchmarks.embed', (OURS, STATIC, THEIRS), given, args.rounds)
  print(machine('jax', 'torch', 'sentence-transformers'))
  print(f'\n{len(texts):,} sentences\n\n| contestant | sentences per second | ratio | CPU seconds | least to most | ratio '
        '| of peak |\n' + '|---' * 7 + '|')
  for name, figures in found.items():
    peak = '' if name == STATIC else share(figures | {'flops': found[OURS]['flops']})
    print(f'| {name} | {len(texts) / figures["median"]:,.0f} | {found[THEIRS]["median"] / figures["median"]:.2f} | '
          f'{figures["cpu"]:.2f} | {spread(figures)} | {found[THEIRS]["cpu"] / max(figures["cpu"], CLOCK_TICK):.2f} | '
          f'{peak} |')
  firsts = ', '.join(f'{name} {found[name]["first"]:.6f}' for name in (OURS, THEIRS))
  print(f'\nfirst number of the first vector: {firsts}')


def run(args: Any, texts: list[str]) -> None:
  """Encode all sentences in every round; report the first number of the first vector, and the peak of products."""
  if args.contestant == THEIRS:
    from sentence_transformers import SentenceTransformer  # pyright: ignore[reportMissingImports]

    encode: Any = SentenceTransformer(args.model, device='cpu').encode
    facts = {'peak': torch_peak()}
  else:
    import plm_jax
    from plm_jax.inference import static_vectors

    trained = plm_jax.load(args.model)
    reader = static_vectors.distill_static_vectors(trained) if args.contestant == STATIC else trained
    encode = functools.partial(plm_jax.encode, reader)
    facts = {'peak': jax_peak(), 'flops': count_flops(trained, texts)}
  def work():
    return encode(texts)
  contest(facts | {'first': float(work()[0, 0])}, work, 1)


def count_flops(model: Any, texts: list[str]) -> float:
  """Return the FLOPs of an encoder for all texts, [CLS] and [SEP] included, without padding."""
  block, layers = model.model.block, model.model.stack.layers
  longest = model.length or model.model.max_length
  total = 0.0
  for text in texts:
    length = min(longest, len(model.tokenizer.encode(text)) + 2)
    per_token = 8 * block.width ** 2 + 4 * block.width * block.mlp_dim + 4 * length * block.width
    total += layers * length * per_token
  return total


def search(args: Any) -> None:
  """Time exact search for the 10 nearest neighbors of random queries; print the median of --rounds."""
  import numpy as np

  from plm_jax.metrics.nearest import find_nearest

  draw = np.random.default_rng(0)
  corpus = draw.standard_normal((args.vectors, args.width), np.float32)
  corpus /= np.linalg.norm(corpus, axis=1, keepdims=True)
  print(machine('numpy'))
  print(f'\n{args.vectors:,} vectors of {args.width}\n\n| queries | seconds |\n|---|---|')
  for count in args.queries:
    queries = draw.standard_normal((count, args.width), np.float32)
    find_nearest(queries, corpus, 10, normalised=True)
    seconds = []
    for _ in range(args.rounds):
      began = time.perf_counter()
      find_nearest(queries, corpus, 10, normalised=True)
      seconds.append(time.perf_counter() - began)
    print(f'| {count} | {statistics.median(seconds):.2f} |')


if __name__ == '__main__':
  main()
