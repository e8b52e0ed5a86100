"""Compare ways to build sentence vectors from one pre-trained encoder: Spearman's correlation on STS-B and SICK.

    python -m benchmarks.sentence_vectors --data=DIR --run=runs/en --sentences=wiki.txt --vectors=runs/word2vec

DIR has stsb_train, stsb_dev, stsb_test, sick_train, sick_test and mnli_sample1k (.tsv.gz) at any depth. --run is an
encoder, --sentences a file with one sentence per line, --vectors a run or a file of word vectors.

Without training: the mean of the word vectors; and the encoder's first token, its mean over tokens, and this mean
whitened with the training texts of STS-B (Su et al. 2021).

With training, each with --seeds seeds: SimCSE on the sentences (Gao et al. 2021), also with mean pooling and without
its dense layer, for encoders whose first token was not trained; SBERT with a softmax over pairs with classes, of SICK
and MNLI; and SBERT with cosine regression on STS-B (Reimers and Gurevych 2019). Settings are the published ones, except
for learning rates, which suit a small encoder, and the sequence length. As published, the best checkpoint on stsb_dev
is used. The metrics are on the test sets.
"""
import argparse
import csv
import gzip
import io
import json
import pathlib
import re
import statistics
from typing import Any

import numpy as np

from benchmarks.kept import place
from benchmarks.side_by_side import machine
import plm_jax
from plm_jax.api import similarity
from plm_jax.cli import finetune
from plm_jax.metrics.embeddings import fit_whitening, normalize_vectors
from plm_jax.metrics.tasks import spearman
from plm_jax.word_vectors import load

Pairs = list[tuple[str, str, float]]
TESTS = {'stsb_test.tsv.gz': 'score', 'sick_test.tsv.gz': 'relatedness'}
DROPOUT = ('--model.block.dropout=0.1', '--model.block.attention.dropout=0.1', '--optim.bias-correction=True',
           '--train.phases.0.length=64')
ARMS = {
    'SimCSE': ('simcse', '3e-4', ('--data.evaluations=4',)),
    'SimCSE, mean of tokens': ('simcse', '3e-4', (
        '--data.evaluations=4', '--objective.vector.pooling', 'mean', '--objective.vector.dense=0')),
    'SBERT on NLI': ('sbert_nli', '3e-4', ()),
    'SBERT on STS-B': ('sbert_sts', '3e-4', ())}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--data', required=True, help='folder of the files')
  parser.add_argument('--run', required=True, help='run of a pre-trained encoder')
  parser.add_argument('--sentences', required=True, help='training text of SimCSE')
  parser.add_argument('--vectors', help='word vectors')
  parser.add_argument('--arms', nargs='+', choices=ARMS, default=list(ARMS), help='kinds of vectors')
  parser.add_argument('--seeds', type=int, default=3)
  parser.add_argument('--output', default='runs/sentence_vectors', help='folder of the runs')
  args = parser.parse_args()
  tests = [read(place(args.data, name), measure) for name, measure in TESTS.items()]
  texts = [text for a, b, _ in read(place(args.data, 'stsb_train.tsv.gz'), 'score') for text in (a, b)]
  folder = pathlib.Path(args.output)
  folder.mkdir(parents=True, exist_ok=True)
  (folder / 'nli.jsonl').write_text(''.join(json.dumps(pair) + '\n' for pair in nli(args.data)))
  sources = {'simcse': args.sentences, 'sbert_nli': str(folder / 'nli.jsonl'),
             'sbert_sts': str(place(args.data, 'stsb_train.tsv.gz'))}
  print(machine('jax'))
  print('\n| vectors | STS-B test | SICK test | seeds |\n' + '|---' * 4 + '|')
  if args.vectors:
    row('mean of word vectors', [[judged(averaged(load(args.vectors)), pairs) for pairs in tests]])
  trained = plm_jax.load(args.run)
  def pooled(how: Any):
    return lambda some: similarity.encode(trained, some, pooling=how, cut=True)
  row('first token', [[judged(pooled('first'), pairs) for pairs in tests]])
  row('mean of tokens', [[judged(pooled('mean'), pairs) for pairs in tests]])
  white = fit_whitening(pooled('mean')(texts))
  row('mean of tokens, whitened', [[judged(lambda some: white(pooled('mean')(some)), pairs) for pairs in tests]])
  for name in args.arms:
    task, peak, options = ARMS[name]
    config, seeds = finetune.parse(task, [
        f'--init={args.run}', f'--train={sources[task]}', f'--dev={place(args.data, "stsb_dev.tsv.gz")}',
        f'--seeds={args.seeds}', f'--optim.peak={peak}', f'--output={folder / re.sub("[ ,]+", "-", name)}', *DROPOUT,
        *options], '')
    finetune.run_seeds(config, seeds)
    runs = [config.folder] if seeds == 1 else [f'{config.folder}/seed-{seed}' for seed in range(seeds)]
    models = [plm_jax.load(run) for run in runs]
    row(name, [[judged(lambda some, model=model: similarity.encode(model, some), pairs) for pairs in tests]
               for model in models])


def row(name: str, scores: list[list[float]]) -> None:
  """Print a line of the table: mean and standard deviation over seeds for each test, from scores[seed][test]."""
  cells = [f'{statistics.mean(column):.1f}' + (f' ± {statistics.stdev(column):.1f}' if len(column) > 1 else '')
           for column in zip(*scores, strict=True)]
  print(f'| {name} | {" | ".join(cells)} | {len(scores) if len(scores) > 1 else "-"} |', flush=True)


def read(path: pathlib.Path, measure: str) -> Pairs:
  """Read sentence pairs with their similarity scores."""
  return [(line['sentence1'], line['sentence2'], float(line[measure])) for line in lines(path)]


def nli(data: str) -> list[dict[str, str]]:
  """Read sentence pairs with NLI labels."""
  named = ('sick_train.tsv.gz', 'entailment'), ('mnli_sample1k.tsv.gz', 'label')
  return [{'sentence1': line['sentence1'], 'sentence2': line['sentence2'], 'label': line[column]}
          for name, column in named for line in lines(place(data, name))]


def lines(path: pathlib.Path) -> list[dict[str, str]]:
  """Read a gzipped TSV table with a header."""
  text = gzip.decompress(path.read_bytes()).decode()
  return list(csv.DictReader(io.StringIO(text), delimiter='\t', quoting=csv.QUOTE_NONE))


def averaged(vectors: Any):
  """Return a function that maps texts to the means of their word vectors [N, D], or 0 if no word is known."""
  known = {word: number for number, word in enumerate(vectors.words)}
  def encode(texts: list[str]) -> np.ndarray:
    rows = [[known[word] for word in re.findall(r'\w+', text.lower()) if word in known] for text in texts]
    return np.stack([vectors.matrix[some].mean(0) if some else np.zeros(vectors.matrix.shape[1]) for some in rows])
  return encode


def judged(encode: Any, pairs: Pairs) -> float:
  """Compute Spearman's correlation of cosine similarities with the scores of the pairs, in percent."""
  sides = [normalize_vectors(encode([pair[side] for pair in pairs])) for side in range(2)]
  return spearman([number for _, _, number in pairs], (sides[0] * sides[1]).sum(-1))


if __name__ == '__main__':
  main()
