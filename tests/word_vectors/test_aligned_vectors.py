"""Vectors of the tokens of two vocabularies, aligned by a dictionary, next to literal loops."""
import numpy as np
import pytest
from scipy.linalg import orthogonal_procrustes

from plm_jax import tokenizers
from plm_jax.errors import ConfigError
from plm_jax.optim.tuning import TuningConfig
from plm_jax.sources.lines import SourceError
from plm_jax.validation import check
from plm_jax.word_vectors import WordVectors, aligned_vectors, save
from plm_jax.word_vectors.subwords import SubwordRows, Subwords, compose_vectors

WORDS = ('the', 'House', 'house', 'dog', 'cat', 'cathouse', 'unseen')
OTHERS = ('das', 'Haus', 'hund', 'Hund', 'katze', 'katzenhaus')


def vectors(words, seed, width=4):
  matrix = np.random.default_rng(seed).normal(size=(len(words), width)).astype(np.float32)
  return WordVectors(words, matrix)


def byte_pairs(words):
  return tokenizers.train_byte_bpe([' '.join(('x', *words))] * 20, 330)


def test_the_rotation_is_that_of_all_forms_of_the_pairs(tmp_path):
  """The loops of CPJKU/wechsel, with scipy's function."""
  dictionary = tmp_path / 'pairs.txt'
  dictionary.write_text('house\tHaus\nDOG hund\nTHE\tdas\nnone\tHaus\ncat katze\n')
  source, target = vectors(WORDS, 0), vectors(OTHERS, 1)
  found = aligned_vectors.find_rotation(source, target, str(dictionary))
  pairs = []
  for one, other in (('house', 'Haus'), ('DOG', 'hund'), ('THE', 'das'), ('cat', 'katze')):
    for a in (one, one.lower(), one.title()):
      for b in (other, other.lower(), other.title()):
        if a in WORDS and b in OTHERS:
          pairs.append((source[a], target[b]))
  assert len(pairs) == 15
  left, right = (np.array(side) for side in zip(*pairs, strict=True))
  expected, _ = orthogonal_procrustes(left, right)
  np.testing.assert_allclose(found, expected, atol=1e-6)
  np.testing.assert_allclose(found @ found.T, np.eye(4), atol=1e-6)


def test_vectors_of_the_other_language_are_found_again(tmp_path):
  """If one space is the other one rotated, tokens of translations get the same vector."""
  rotation, _ = np.linalg.qr(np.random.default_rng(2).normal(size=(4, 4)))
  target = vectors(OTHERS[1:5], 1)
  source = WordVectors(('home', 'dog', 'Dog', 'cat'), target.matrix @ rotation.T.astype(np.float32))
  names = [str(tmp_path / name) for name in ('old.vec', 'new.vec', 'pairs')]
  save(source, names[0])
  save(target, names[1])
  (tmp_path / 'pairs').write_text('home\tHaus\ndog\thund\nDog\tHund\ncat\tkatze\n')
  tuning = TuningConfig(vocabulary='wechsel', source_vectors=names[0], target_vectors=names[1])
  old, new = byte_pairs(source.words), byte_pairs(target.words)
  for dictionary, near in (('', False), (names[2], True)):
    # Forms of the dictionary's words pair dog with Hund, too, which has another vector.
    given = TuningConfig(**{**vars(tuning), 'dictionary': dictionary})
    before, after = aligned_vectors.load_aligned_vectors(given, old, new)
    ours, theirs = before[old.pieces.index('▁home')], after[new.pieces.index('▁Haus')]
    cosine = ours @ theirs / np.linalg.norm(ours) / np.linalg.norm(theirs)
    assert (cosine > 0.9) == near


def test_tokens_have_vectors_of_their_text_or_means_of_words_with_them():
  tokenizer = byte_pairs(WORDS)
  plain = vectors(WORDS, 0)
  found = aligned_vectors.embed_tokens(tokenizer, plain)
  expected = np.zeros((tokenizer.vocab.size, 4))
  for token in range(tokenizer.vocab.size):
    weights, rows = [], []
    for rank, word in enumerate(WORDS):
      for text in (word, f' {word}'):
        if token in tokenizer.encode(text):
          weights.append(1 / (1 + rank))
          rows.append(plain.matrix[rank])
    if rows:
      expected[token] = np.average(rows, 0, weights)
  np.testing.assert_allclose(found, expected, atol=1e-6)
  assert not found[list(tokenizer.vocab.specials)].any()

  subwords = Subwords(3, 4, 50)
  table = np.random.default_rng(0).normal(size=(57, 4)).astype(np.float32)
  composed = compose_vectors(WORDS, table, subwords, SubwordRows.build(WORDS, subwords))
  found = aligned_vectors.embed_tokens(tokenizer, composed)
  for piece, word in (('▁house', 'house'), ('▁cat', 'cat'), ('▁uns', 'uns')):
    if piece in tokenizer.pieces:
      np.testing.assert_array_equal(found[tokenizer.pieces.index(piece)], composed[word])
  assert found[tokenizer.pieces.index('▁house')].any()
  assert not found[list(tokenizer.vocab.specials)].any()


def test_what_cannot_be_aligned_is_described(tmp_path):
  names = [str(tmp_path / name) for name in ('old.vec', 'new.vec', 'pairs')]
  save(vectors(WORDS, 0), names[0])
  save(vectors(OTHERS, 0, 3), names[1])
  tokenizer = byte_pairs(WORDS)
  given = TuningConfig(vocabulary='wechsel', source_vectors=names[0], target_vectors=names[1])
  with pytest.raises(ConfigError, match='vectors of 4 and 3 numbers: give vectors of the same'):
    aligned_vectors.load_aligned_vectors(given, tokenizer, tokenizer)
  (tmp_path / 'pairs').write_text('house\tdog\n')
  with pytest.raises(ConfigError, match=r'no line has a word of .*source_vectors'):
    aligned_vectors.find_rotation(vectors(WORDS, 0), vectors(OTHERS, 0), names[2])
  (tmp_path / 'pairs').write_text('house\tHaus\na b c\n')
  with pytest.raises(SourceError, match='pairs:2: expected a word, a tab'):
    aligned_vectors.find_rotation(vectors(WORDS, 0), vectors(OTHERS, 0), names[2])
  with pytest.raises(ConfigError, match=r'needs .*source_vectors and .*target_vectors'):
    check(TuningConfig(vocabulary='wechsel', source_vectors='a'), str)
