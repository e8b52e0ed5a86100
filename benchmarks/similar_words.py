"""A list of words like others, as MacBERT's masks take one (--objective.synonyms), from word2vec of a Chinese text.

    python -m benchmarks.similar_words zhwiki.txt.xz similar.txt --folder=runs/word2vec

A line is a word and the words nearest to it by cosine that have as many characters, best first: of Chinese words alone,
which have a token a character. The vectors are learned from the text with jieba's words, and stay in the folder, where
an interrupted run goes on; Cui et al. 2020 took theirs from word vectors of others.
"""
import argparse
from collections.abc import Iterator, Sequence
import pathlib
import re

import numpy as np

from plm_jax import validation
from plm_jax.objectives.synonyms import CANDIDATES
from plm_jax.recipes import word_vectors
from plm_jax.word_vectors.train import train

CHINESE = re.compile('[\u3400-\u9fff]+')
CHUNK = 1024  # words that are compared with all others together


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('text')
  parser.add_argument('out')
  parser.add_argument('--folder', required=True, help='of the run that learns vectors')
  parser.add_argument('--epochs', type=int, default=3)
  parser.add_argument('--least', type=int, default=5, help='times that a word has to come')
  args = parser.parse_args()
  print(f'{made(vars(args))["words"]:,} words')


def made(given: dict) -> dict[str, int]:
  """Learns vectors, and writes the list -> how many words it has. given: what the command's options are called."""
  run = validation.with_paths(word_vectors.recipe('word2vec', 'laptop'), {
      'output': given['folder'], 'data.path': (given['text'],), 'data.split': 'jieba', 'data.least': given['least'],
      'train.epochs': given['epochs']})
  result = train(run)
  if not result.finished:
    raise SystemExit(75)
  found = [*lines(result.vectors.words, result.vectors.unit_matrix)]
  out = pathlib.Path(given['out'])
  out.parent.mkdir(parents=True, exist_ok=True)
  out.write_text(''.join(f'{" ".join(words)}\n' for words in found))
  return {'words': len(found)}


def lines(words: Sequence[str], unit: np.ndarray, most: int = CANDIDATES) -> Iterator[list[str]]:
  """Yields words [V], most frequent first, each with those of as many characters that are nearest by their vectors of
  length 1 [V, D]; none for a word that is alone with its length, or not Chinese."""
  sizes = np.array([len(word) if CHINESE.fullmatch(word) else 0 for word in words])
  for size in sorted({*sizes} - {0}):
    own = np.flatnonzero(sizes == size)
    near = nearest(unit[own], most)
    for row, others in zip(own, near, strict=True):
      if len(others):
        yield [words[int(row)], *(words[int(own[other])] for other in others)]


def nearest(unit: np.ndarray, most: int) -> list[np.ndarray]:
  """Returns, of vectors of length 1 [N, D], the numbers of the nearest others of each, nearest first, [N] of up to
  [most]."""
  found: list[np.ndarray] = []
  most = min(most, len(unit) - 1)
  for start in range(0, len(unit), CHUNK):
    cosines = unit[start:start + CHUNK] @ unit.T
    cosines[np.arange(len(cosines)), start + np.arange(len(cosines))] = -np.inf
    best = np.argpartition(-cosines, max(most - 1, 0), axis=1)[:, :most]
    order = np.argsort(-np.take_along_axis(cosines, best, 1), axis=1, kind='stable')
    found += [*np.take_along_axis(best, order, 1)]
  return found


if __name__ == '__main__':
  main()
