"""Compare word2vec with gensim on the same text, words and settings: words per second, and scores.

    python -m benchmarks.word_vectors --text enwiki.txt.xz --words DIR               # minutes per epoch on two cores
    python -m benchmarks.word_vectors --text enwiki.txt.xz --words DIR --limit 1000000 --epochs 3 --kinds skip-gram

Needs gensim (pip install gensim). DIR has pairs of words with a score (*.tsv, also .gz) and analogies (*questions*.txt,
CA8), in the formats that `plm_jax vectors measure` reads. Both get the same sentences with the same ids, counted and
split once. They alternate, one epoch each; the learning rate decays over all epochs. gensim uses --workers workers,
plm_jax the threads of XLA, which are those of the machine. Words per second count the words of the text, before
subsampling. The time for compilation and for building gensim's vocabulary is not counted. Scores are on the words that
both have.
"""
import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

import numpy as np

from benchmarks.side_by_side import Worker, machine
from plm_jax.word_vectors import evaluation, formats, load, train
from plm_jax.word_vectors import word_corpus as corpora
from plm_jax.word_vectors.vectors import WordVectors
from plm_jax.word_vectors.word2vec import Word2Vec
from plm_jax.word_vectors.word_corpus import WordCorpus, WordsConfig

CONTESTANTS = 'plm_jax', 'gensim'
KINDS = 'skip-gram', 'cbow'


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--text', required=True, help='text, as in --data.path')
  parser.add_argument('--words', default='', help='folder with pairs and analogies')
  parser.add_argument('--kinds', nargs='+', choices=KINDS, default=list(KINDS))
  parser.add_argument('--split', choices=('letters', 'spaces', 'jieba'), default='letters')
  parser.add_argument('--epochs', type=int, default=2)
  parser.add_argument('--limit', type=int, default=0, help='number of words to read from the text; 0: all')
  parser.add_argument('--width', type=int, default=100)
  parser.add_argument('--window', type=int, default=5)
  parser.add_argument('--negatives', type=int, default=5)
  parser.add_argument('--threshold', type=float, default=1e-3)
  parser.add_argument('--seed', type=int, default=1)
  parser.add_argument('--workers', type=int, default=os.cpu_count(), help="gensim's")
  parser.add_argument('--kind', choices=KINDS, help=argparse.SUPPRESS)
  parser.add_argument('--out', help=argparse.SUPPRESS)
  parser.add_argument('--contestant', choices=CONTESTANTS, help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.contestant:
    take_part(args)
    return
  print(machine())
  corpus = text_of(args)
  print(f'{int(corpus.train.starts[-1]):,} words, {len(corpus.vocabulary):,} different ones, {args.epochs} epochs; '
        f'width {args.width}, window {args.window}, words of noise {args.negatives}, threshold {args.threshold:g}')
  for kind in args.kinds:
    side_by_side(args, kind, int(corpus.train.starts[-1]))


def side_by_side(args: argparse.Namespace, kind: str, words: int) -> None:
  """Train both, alternating one epoch each, and print speeds and scores."""
  with tempfile.TemporaryDirectory() as folder:
    outs = {name: f'{folder}/{name}' for name in CONTESTANTS}
    workers = {name: Worker('benchmarks.word_vectors', name, [*sys.argv[1:], '--kind', kind, '--out', out])
               for name, out in outs.items()}
    seconds: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    for worker in workers.values():
      worker.read()
    for _ in range(args.epochs):
      for name, worker in workers.items():
        seconds[name].append(worker.go()['seconds'])
    for worker in workers.values():
      worker.close()
    found = {name: load(out) for name, out in outs.items()}
  speed = {name: words / statistics.median(times) for name, times in seconds.items()}
  print(f'\n{kind:34}' + ''.join(f'{name:>12}' for name in CONTESTANTS))
  print(f'{"thousand words per second":34}' + ''.join(f'{speed[name] / 1e3:12.0f}' for name in CONTESTANTS)
        + f'   {speed["plm_jax"] / speed["gensim"]:.2f} times')
  for path in sorted(pathlib.Path(args.words).glob('*')) if args.words else ():
    for what, scores in scored(found, path).items():
      print(f'{what:34}' + ''.join(f'{scores[name].value:12.1f}' for name in CONTESTANTS)
            + f'   {scores["gensim"].answered:,} of {scores["gensim"].total:,}', flush=True)


def scored(found: dict[str, WordVectors], path: pathlib.Path) -> dict[str, dict[str, evaluation.VectorScore]]:
  """Score both on a file of word pairs or analogies.

  The result is empty if no question can be answered, as for a file in another language.
  """
  name = path.name.partition('.')[0]
  if '.tsv' in path.name:
    pairs = evaluation.read_pairs(path)
    scores = {f'{name}, Spearman': {who: evaluation.score_similarity(vectors, pairs) for who, vectors in found.items()}}
  else:
    questions = [words for section in evaluation.read_analogies(path).values() for words in section]
    scores = {f'{name}, 3Cos{how.capitalize()}': {
        who: evaluation.score_analogies(vectors, questions, how) for who, vectors in found.items()}
              for how in ('add', 'mul')}
  return {what: each for what, each in scores.items() if each['gensim'].answered}


def text_of(args: argparse.Namespace) -> WordCorpus:
  """Read the text, or only its first --limit words."""
  corpus = corpora.prepare_corpus(WordsConfig(path=(args.text,), split=args.split, heldout=0.0))
  if not args.limit:
    return corpus
  part = corpus.train.select(0, int(np.searchsorted(corpus.train.starts, args.limit, 'right')) - 1)
  words = corpus.vocabulary.words
  return corpora.corpus_from_words([[words[number] for number in part.ids[start:end]]
                           for start, end in zip(part.starts[:-1], part.starts[1:], strict=True)], least=5)


def take_part(args: argparse.Namespace) -> None:
  """Run a contestant: train one epoch for each line on stdin, and write the vectors after the last epoch."""
  corpus = text_of(args)
  turn, write = (ours if args.contestant == 'plm_jax' else theirs)(args, corpus)
  print(json.dumps({}), flush=True)
  for epoch, _ in enumerate(sys.stdin):
    began = time.perf_counter()
    turn(epoch)
    seconds = time.perf_counter() - began
    if epoch == args.epochs - 1:
      write(args.out)
    print(json.dumps({'seconds': seconds}), flush=True)


def rate_of(args: argparse.Namespace) -> float:
  """Return the initial learning rate, that of word2vec.c."""
  return 0.025 if args.kind == 'skip-gram' else 0.05


def ours(args: argparse.Namespace, corpus: WordCorpus):
  import jax  # not imported in gensim's process
  model = Word2Vec(args.kind, width=args.width, window=args.window, negatives=args.negatives, threshold=args.threshold)
  learner = model.make_learner(corpus, args.seed)
  config = train.VectorTrainConfig(epochs=args.epochs, rate=rate_of(args))
  update, last = train.make_update(learner), args.epochs * learner.calls_per_epoch
  state = [jax.jit(lambda: model.init(jax.random.key(args.seed), corpus.vocabulary))()]
  def call(batches, done, count):
    rates = np.array([train.learning_rate(config, at / last) for at in (done, done + 1)], np.float32)
    state[0] = update(state[0], learner.constants, batches.arrays, count, rates)
  call(learner.sample_batches(0, 0), 0, 0)  # compile, without any training
  def turn(epoch):
    for number in range(learner.calls_per_epoch):
      batches = learner.sample_batches(epoch, number)
      call(batches, epoch * learner.calls_per_epoch + number, batches.count)
    jax.block_until_ready(state[0])
  def write(out):
    formats.save(model.make_vectors(jax.device_get(state[0]['params']), corpus.vocabulary), out, 'binary')
  return turn, write


def theirs(args: argparse.Namespace, corpus: WordCorpus):
  from gensim.models import Word2Vec as Gensim  # pyright: ignore[reportMissingImports]
  words, part = corpus.vocabulary.words, corpus.train
  text = [[words[number] for number in part.ids[start:end]]
          for start, end in zip(part.starts[:-1], part.starts[1:], strict=True)]
  rate = rate_of(args)
  model = Gensim(vector_size=args.width, window=args.window, negative=args.negatives, sample=args.threshold, alpha=rate,
                 min_count=1, sg=int(args.kind == 'skip-gram'), hs=0, cbow_mean=1, seed=args.seed, workers=args.workers)
  model.build_vocab(text)
  def turn(epoch):
    ends = [rate * max(1 - done / args.epochs, train.MIN_RATE_SHARE) for done in (epoch, epoch + 1)]
    model.train(text, total_examples=len(text), epochs=1, start_alpha=ends[0], end_alpha=ends[1])
  return turn, lambda out: model.wv.save_word2vec_format(out, binary=True)


if __name__ == '__main__':
  main()
