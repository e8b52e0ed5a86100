"""Co-occurrences, neighbours, similarities and analogies, on arrays made by hand."""
import numpy as np
import pytest

from plm_jax.sources.lines import SourceError
from plm_jax.word_vectors import WordVectors, evaluation, glove
from plm_jax.word_vectors.vectors import WordError
from plm_jax.word_vectors.word_corpus import Sentences


def test_pairs_by_distance():
  """1 / distance, both ways round, within a sentence: 0 1 0 | 1."""
  found = glove.count_pairs(Sentences(np.array([0, 1, 0, 1], np.int32), np.array([0, 3, 4])), 2, 2,
                            1000)
  assert found.tolist() == [(0, 0, 1.0), (0, 1, 2.0), (1, 0, 2.0)]


def test_counting_in_little_memory_is_counting(tmp_path, monkeypatch):
  """Many files, merged in small pieces, give what one table gives."""
  random = np.random.default_rng(0)
  lengths = random.integers(0, 12, 400)
  sentences = Sentences(np.minimum(random.zipf(1.4, lengths.sum()) - 1, 49).astype(np.int32),
                        np.cumsum([0, *lengths]))
  want = np.zeros((50, 50))
  for start, end in zip(sentences.starts[:-1], sentences.starts[1:], strict=True):
    ids = sentences.ids[start:end]
    for i in range(len(ids)):
      for j in range(max(0, i - 4), i):
        want[ids[i], ids[j]] += 1 / (i - j)
        want[ids[j], ids[i]] += 1 / (i - j)
  monkeypatch.setattr(glove, 'WORDS_AT_ONCE', 50)
  files = [*glove.write_sorted_runs(sentences, 50, 4, 300, tmp_path)]
  assert len(files) > 5
  keys, counts = (np.concatenate(parts)
                  for parts in zip(*glove.merge_files(files, read=7), strict=True))
  assert (np.diff(keys) > 0).all()
  got = np.zeros(2500)
  got[keys] = counts
  np.testing.assert_allclose(got.reshape(50, 50), want, atol=1e-12)


WORDS = ('man', 'king', 'woman', 'queen', 'child', 'none')
MATRIX = np.array([[3, 0, 1], [3, 3, 1], [0, 0, 4], [0, 3, 4], [2, 0, 2.5], [0, 0, 0]], np.float32)
VECTORS = WordVectors(WORDS, MATRIX)


def test_neighbours_and_analogies():
  """Words of the question are no answers; scores follow the formulas, and ties keep their
  order."""
  unit = MATRIX / np.maximum(np.linalg.norm(MATRIX, axis=1, keepdims=True), 1e-9)
  found = VECTORS.nearest('child', top=3)
  assert [word for word, _ in found] == ['man', 'woman', 'queen']
  np.testing.assert_allclose([score for _, score in found], unit[[0, 2, 3]] @ unit[4], rtol=1e-5)
  assert len(VECTORS.nearest(['man'], ['child'], top=99)) == 4
  (add, _), (mul, score) = (VECTORS.analogy('man', 'king', 'woman', how)[0]
                            for how in ('add', 'mul'))
  assert add == mul == 'queen'
  a, b, c = ((1 + unit[3] @ unit[row]) / 2 for row in (0, 1, 2))
  np.testing.assert_allclose(score, b * c / (a + 0.001), rtol=1e-5)
  assert VECTORS.similarity('man', 'none') == 0
  with pytest.raises(WordError, match="'prince' is none of the 6 words"):
    VECTORS.nearest('prince')


def test_scores_skip_pairs_with_unknown_words():
  pairs = [('Man', 'king', 9.0), ('man', 'woman', 1.0), ('woman', 'queen', 5.0),
           ('man', 'prince', 3.0)]
  found = evaluation.score_similarity(VECTORS, pairs)
  cosines = [VECTORS.similarity(a.lower(), b) for a, b, _ in pairs[:3]]
  # by people: 1, 2, 0: one step of rank each
  assert sorted(range(3), key=cosines.__getitem__) == [1, 0, 2]
  assert (found.answered, found.total) == (3, 4) and found.value == pytest.approx(50)
  assert evaluation.score_similarity(VECTORS, pairs, lower=False).answered == 2
  parts = WordVectors(WORDS, MATRIX, lambda word: np.ones(3, np.float32))
  assert evaluation.score_similarity(parts, pairs).answered == 4
  questions = [['man', 'king', 'woman', 'queen'], ['king', 'man', 'queen', 'child'],
               ['a', 'b', 'man', 'king']]
  for how in 'add', 'mul':
    score = evaluation.score_analogies(VECTORS, questions, how)
    assert (score.value, score.answered, score.total) == (50.0, 2, 3)
  assert evaluation.score_analogies(VECTORS, questions, most=4).answered == 1
  assert evaluation.score_analogies(VECTORS, []).value == 0


def test_case_is_ignored_in_questions_and_vocabulary():
  """Cased vectors of perfect analogies score 100; of words that differ in case the most frequent
  counts."""
  words = ('Man', 'KING', 'Woman', 'Queen', 'queen', 'child')
  cased = WordVectors(words, MATRIX[[0, 1, 2, 3, 5, 4]])
  questions = [['man', 'king', 'woman', 'queen']]
  for how in 'add', 'mul':
    assert evaluation.score_analogies(cased, questions, how) == evaluation.VectorScore(100.0, 1, 1)
  assert evaluation.score_analogies(cased, questions, lower=False).answered == 0
  pairs = [('MAN', 'King', 9.0), ('man', 'woman', 1.0), ('woman', 'queen', 5.0)]
  assert evaluation.score_similarity(cased, pairs) == evaluation.score_similarity(VECTORS, pairs)
  parts = WordVectors(words, cased.matrix, lambda word: np.ones(3, np.float32))
  assert evaluation.score_similarity(parts, [*pairs, ('Prince', 'man', 3.0)]).answered == 4


def test_files(tmp_path):
  path = tmp_path / 'x.txt'
  path.write_text(': A\n避 避一避 补 补一补\n\n: B\na b c d\n')
  assert evaluation.read_analogies(path) == {'A': [['避', '避一避', '补', '补一补']],
                                             'B': [['a', 'b', 'c', 'd']]}
  path.write_text('word1\tword2\tscore\nsun\tsunlight\t50.0\n')
  assert evaluation.read_pairs(path) == [('sun', 'sunlight', 50.0)]
  for content, said in ((': A\na b c\n', 'x.txt:2: expected four words'),
                        ('\n', 'has no analogies')):
    path.write_text(content)
    with pytest.raises(SourceError, match=said):
      evaluation.read_analogies(path)
  number = 'x.txt:2: expected two words and a number'
  odd = [(f'a\tb\t1\n{line}\n', number) for line in ('a b 1', 'c\td\t1_5', 'c\td\tnan')]
  for content, said in (*odd, ('a\n', 'has no pairs')):
    path.write_text(content)
    with pytest.raises(SourceError, match=said):
      evaluation.read_pairs(path)
