"""Write a list of similar words for MacBERT masking (--objective.masking.synonyms), from word2vec on a Chinese text.

    python -m benchmarks.similar_words zhwiki.txt.xz similar.txt --folder=runs/word2vec

Each line is a word and its nearest words by cosine similarity with the same number of characters, best first. Only
Chinese words are listed, which have one token per character. The vectors are trained on the text, with words from
jieba, and stay in the folder, where an interrupted run resumes. Cui et al. 2020 used existing word vectors.
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
CHUNK = 1024  # words that are compared with all others at once


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('text')
  parser.add_argument('out')
  parser.add_argument('--folder', required=True, help='folder of the word2vec run')
  parser.add_argument('--epochs', type=int, default=3)
  parser.add_argument('--least', type=int, default=5, help='minimum frequency of a word')
  args = parser.parse_args()
  print(f'{made(vars(args))["words"]:,} words')


def made(given: dict) -> dict[str, int]:
  """Train the vectors and write the list.

  Args:
    given: the options of the command, by name.

  Returns:
    The number of words in the list, as `words`.
  """
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
  """Yield each Chinese word with its nearest words of the same number of characters.

  Words that are not Chinese, or that have no other word of their length, are skipped.

  Args:
    words: [V], most frequent first.
    unit: their vectors, normalized to length 1, [V, D].
    most: maximum number of nearest words.
  """
  sizes = np.array([len(word) if CHINESE.fullmatch(word) else 0 for word in words])
  for size in sorted({*sizes} - {0}):
    own = np.flatnonzero(sizes == size)
    near = nearest(unit[own], most)
    for row, others in zip(own, near, strict=True):
      if len(others):
        yield [words[int(row)], *(words[int(own[other])] for other in others)]


def nearest(unit: np.ndarray, most: int) -> list[np.ndarray]:
  """Return the indices of the nearest other vectors of each vector, nearest first.

  Args:
    unit: vectors of length 1, [N, D].
    most: maximum number of neighbors.

  Returns:
    N arrays of up to [most] indices.
  """
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
