"""Vectors of the tokens of two vocabularies in one space: the auxiliary vectors of WECHSEL.

Minixhofer et al. 2022, "WECHSEL: Effective initialization of subword embeddings for cross-lingual
transfer of monolingual language models". Lines are those of wechsel/__init__.py in CPJKU/wechsel at
395e3d4.
"""
import itertools

import numpy as np

from plm_jax import storage
from plm_jax.errors import ConfigError, name_field
from plm_jax.optim.tuning import TuningConfig
from plm_jax.sources.lines import ReadStats, SourceError, read_lines
from plm_jax.tokenizers import Tokenizer
from plm_jax.word_vectors import formats
from plm_jax.word_vectors.vectors import WordVectors


def load_aligned_vectors(
    tuning: TuningConfig, old: Tokenizer, new: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
  """Compute vectors [V, D] of the tokens of two tokenizers, from word vectors of both languages.

  Those of the old language are rotated by the pairs of the bilingual dictionary, if there is one.

  Raises:
    ConfigError: the vectors have different widths, or no pair of the dictionary in common.
    VectorsError, FastTextError, SourceError: a file cannot be read.
  """
  source, target = formats.load(tuning.source_vectors), formats.load(tuning.target_vectors)
  widths = source.matrix.shape[1], target.matrix.shape[1]
  if widths[0] != widths[1]:
    raise ConfigError(f'{tuning.source_vectors} and {tuning.target_vectors} have vectors of '
                      f'{widths[0]} and {widths[1]} numbers: give vectors of the same width')
  before, after = embed_tokens(old, source), embed_tokens(new, target)
  if tuning.dictionary:
    before = before @ find_rotation(source, target, tuning.dictionary)
  return before, after


def embed_tokens(tokenizer: Tokenizer, vectors: WordVectors) -> np.ndarray:
  """Compute a vector of each token from vectors of words -> float32 [V, D].

  With vectors of subwords (fastText), the vector of the token's text. Otherwise, the mean vector of
  the words with the token, weighted by 1 / rank in place of their counts, which most files do not
  have (lines 78 to 125). Zeros where there is none, and for special tokens.
  """
  size, width = tokenizer.vocab.size, vectors.matrix.shape[1]
  found = np.zeros((size, width), np.float32)
  if vectors.compose:
    for number, content in enumerate(tokenizer.token_bytes):
      if text := content.decode(errors='ignore').strip():
        found[number] = vectors[text]
    return found
  from scipy import sparse  # takes a while to import
  pairs = []  # (token, rank of a word with it)
  for before in ('', ' '):  # words begin a text, and follow others
    tokens, lengths = tokenizer.encode_flat([before + word for word in vectors.words])
    ranks = np.repeat(np.arange(len(vectors)), lengths)
    pairs.append(np.unique(np.stack([tokens.astype(np.int64), ranks]), axis=1))
  tokens, ranks = np.concatenate(pairs, axis=1)
  weights = sparse.csr_array((1 / (1 + ranks), (tokens, ranks)), (size, len(vectors)))
  found += (weights @ vectors.matrix) / np.maximum(weights.sum(1), 1e-30)[:, None]
  found[list(tokenizer.vocab.specials)] = 0
  return found


def find_rotation(source: WordVectors, target: WordVectors, dictionary: str) -> np.ndarray:
  """Find the rotation [D, D] of the source vectors that brings translations closest together.

  Orthogonal Procrustes on all pairs of words that have vectors, also in lower case and with a
  capital letter (lines 323 to 348; Schönemann 1966).

  Args:
    source: vectors of the old language.
    target: vectors of the new language.
    dictionary: file with a pair of words per line, separated by a tab or a space.

  Raises:
    ConfigError: no pair has vectors.
    SourceError: a line of the dictionary is no pair.
  """
  left, right = [], []
  for number, line in read_lines(storage.resolve_path(dictionary), 'refuse', ReadStats()):
    words = line.strip().split('\t') if '\t' in line else line.split()
    if len(words) != 2:
      raise SourceError(f'{dictionary}:{number}: expected a word, a tab and its translation, got '
                        f'{line!r:.60}')
    for one, other in itertools.product(*((x, x.lower(), x.title()) for x in words)):
      if one in source.index and other in target.index:
        left.append(source.index[one])
        right.append(target.index[other])
  if not left:
    raise ConfigError(f'{dictionary}: no line has a word of {name_field("tuning.source_vectors")} '
                      f'and then one of {name_field("tuning.target_vectors")}')
  product = source.matrix[left].astype(np.float64).T @ target.matrix[right]
  first, _, second = np.linalg.svd(product)
  return (first @ second).astype(np.float32)
