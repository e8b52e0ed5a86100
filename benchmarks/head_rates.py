"""Compare learning rates of a linear head on frozen sentence vectors, on three real data sets.

    python -m benchmarks.head_rates --data=DIR --init=FOLDER

DIR contains the files of FILES, at any depth. FOLDER is an encoder, such as all-MiniLM-L6-v2. The head is trained in
NumPy as `finetune --tuning.top=0` does it: 1,000 updates of 32 examples, AdamW with bias correction, warmup over a tenth
of the steps and linear decay, dropout 0.1 of the vectors, gradients clipped to 1. It is evaluated every 50 updates on
400 examples. The table is stored in benchmarks/figures/head_rates.json.
"""
import argparse
import gzip
import json
import pathlib
import random
from typing import Any

import numpy as np

from benchmarks import kept
from benchmarks.small_data import TAGS, read_tag_sets

FILES = {'sst2': ('sst2_train.tsv.gz', 'sst2_dev.tsv.gz'), 'cola': ('cola_train.tsv.gz', 'cola_dev.tsv.gz'),
         'tags': ('en_ewt_dev.conll.gz', 'en_ewt_test.conll.gz')}
RATES = 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2
SIZES, DEV, STEPS, BATCH = (100, 400), 400, 1000, 32
RESULTS = pathlib.Path(__file__).parent / 'figures' / 'head_rates.json'


def main() -> None:
  import plm_jax
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--data', required=True, help='folder of the files')
  parser.add_argument('--init', required=True, help='folder of the encoder')
  args = parser.parse_args()
  model, stored = plm_jax.load(args.init), {}
  print('| set | examples | ' + ' | '.join(f'{rate:g}' for rate in RATES) + ' |')
  print('|---' * (2 + len(RATES)) + '|')
  for name, files in FILES.items():
    parts: list[Any] = []
    for file, most in zip(files, (max(SIZES), DEV), strict=True):
      texts, labels = read(name, gzip.decompress(kept.place(args.data, file).read_bytes()).decode(), most)
      parts += [np.asarray(plm_jax.encode(model, texts, pooling='mean', cut=True)), labels]
    for size in SIZES:
      scores = [train(parts[0][:size], parts[1][:size], parts[2], parts[3], rate, name == 'tags') for rate in RATES]
      stored[f'{name} {size}'] = dict(zip(map(str, RATES), scores, strict=True))
      print(f'| {name} | {size} | ' + ' | '.join(f'{score:.1f}' for score in scores) + ' |', flush=True)
  RESULTS.write_text(json.dumps(stored, indent=1) + '\n')


def read(name: str, text: str, most: int) -> tuple[list[str], np.ndarray]:
  """Read a sample of texts, and their classes as indicators."""
  if name == 'tags':
    rows = [json.loads(row) for row in read_tag_sets(text).examples]
    pairs = [(row['text'], [TAGS.index(tag) for tag in row['labels']]) for row in rows]
  else:
    head, *lines = text.rstrip('\n').split('\n')
    rows = [dict(zip(head.split('\t'), line.split('\t'), strict=True)) for line in lines]
    pairs = [(row['sentence'], [int(row['label'])]) for row in rows]
  random.Random(0).shuffle(pairs)
  labels = np.zeros((most, len(TAGS) if name == 'tags' else 2))
  for row, (_, classes) in zip(labels, pairs, strict=False):
    row[classes] = 1
  return [text for text, _ in pairs[:most]], labels


def train(
    inputs: np.ndarray, labels: np.ndarray, dev: np.ndarray, truth: np.ndarray, rate: float, several: bool) -> float:
  """Train a head -> the best of its scores: accuracy, or micro F1 of several labels, in percent."""
  rng = np.random.default_rng(0)
  params = [rng.normal(0, 0.02, (inputs.shape[1], labels.shape[1])), np.zeros(labels.shape[1])]
  first, second, order, best = [0.0, 0.0], [0.0, 0.0], [], 0.0
  for step in range(1, STEPS + 1):
    if len(order) < BATCH:
      order += list(rng.permutation(len(inputs)))
    batch, order = order[:BATCH], order[BATCH:]
    x = inputs[batch] * (rng.random((len(batch), inputs.shape[1])) > 0.1) / 0.9
    logits = x @ params[0] + params[1]
    if several:
      error = (1 / (1 + np.exp(-logits)) - labels[batch]) / labels.shape[1]
    else:
      powers = np.exp(logits - logits.max(1, keepdims=True))
      error = powers / powers.sum(1, keepdims=True) - labels[batch]
    gradients = [x.T @ error / len(batch), error.mean(0)]
    norm = np.sqrt(sum((gradient ** 2).sum() for gradient in gradients))
    peak = rate * min(step / (STEPS / 10), (STEPS - step) / (0.9 * STEPS))
    for number, gradient in enumerate(gradients):
      gradient = gradient / max(1.0, norm)
      first[number] = 0.9 * first[number] + 0.1 * gradient
      second[number] = 0.999 * second[number] + 0.001 * gradient ** 2
      update = first[number] / (1 - 0.9 ** step) / (np.sqrt(second[number] / (1 - 0.999 ** step)) + 1e-6)
      decay = 0.01 * params[number] if number == 0 else 0.0
      params[number] = params[number] - peak * (update + decay)
    if step % 50 == 0:
      best = max(best, score(dev @ params[0] + params[1], truth, several))
  return best


def score(logits: np.ndarray, truth: np.ndarray, several: bool) -> float:
  """Compute accuracy, or micro F1 of several labels, in percent."""
  if several:
    chosen = logits > 0
    return float(200 * (chosen * truth).sum() / max(1, chosen.sum() + truth.sum()))
  return float(100 * (logits.argmax(1) == truth.argmax(1)).mean())


if __name__ == '__main__':
  main()
