"""Token embeddings of another tokenizer: matching tokens, means of pieces, FOCUS."""
import dataclasses

import numpy as np
import pytest
from tokenizer_kinds import KINDS

from plm_jax import tokenizers
from plm_jax.tokenizers import BertNormalization, ByteBPE, WordPiece, byte_bpe
from plm_jax.training import vocabulary_replacement
from plm_jax.training.vocabulary_replacement import Mixture, Replacement, find_pieces

PIECES = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'the', 'heart', 'card', '##io', '##logy',
          'io', '中', '国', '##中', ',', '##s', 'x', 'the中']


def wordpiece():
  return WordPiece(PIECES, BertNormalization(lowercase=True))


def byte_pairs(*tokens: str) -> ByteBPE:
  """A byte-level BPE whose tokens after the 256 bytes and <|endoftext|> are merged one by one."""
  names = [*byte_bpe.ALPHABET, '<|endoftext|>']
  back = {byte: character for character, byte in byte_bpe.ALPHABET.items()}
  merges = []
  for token in tokens:
    text = [back[byte] for byte in token.encode()]
    merges += [(''.join(text[:n]), text[n]) for n in range(1, len(text))]
  names += [''.join(merge) for merge in merges]
  ids = {name: n for n, name in enumerate(dict.fromkeys(names))}
  return ByteBPE(ids, list(dict.fromkeys(merges)))


def pieces_of(old, new, *names: str) -> list[list[str]]:
  """Return the old tokens of new tokens, by their names for display."""
  found = vocabulary_replacement.match_vocabularies(old, new)
  return [[old.pieces[i] for i in found.mixtures[new.pieces.index(name)].ids] for name in names]


@pytest.mark.parametrize('kind', sorted(KINDS))
def test_the_same_vocabulary_is_copied(kind):
  tokenizer = KINDS[kind]()
  found = vocabulary_replacement.match_vocabularies(tokenizer, tokenizer)
  assert [*found.copied] == [*range(tokenizer.vocab.size)]
  assert [mixture.ids.tolist() for mixture in found.mixtures] == [[n] for n in found.copied]


def test_word_boundaries_are_compared_by_their_text():
  """`the` of WordPiece is ` the` of byte-level BPE, and `##io` is `io`. Chinese characters and
  punctuation have no space before them, and `##中` is in no text."""
  old, new = wordpiece(), byte_pairs(' the', 'io', ' io', 'ios', ' Cardio', '中', '中国', ',')
  assert pieces_of(old, new, '▁the', 'io', '▁io', 'ios', '▁Cardio', '中', '中国', ',', 'x') == [
      ['the'], ['##io'], ['io'], ['##io', '##s'], ['card', '##io'], ['中'], ['中', '国'], [','],
      ['x']]
  assert pieces_of(new, old, 'the', '##io', 'io', 'card', '中', '##s', ',') == [
      ['▁the'], ['io'], ['▁io'], ['▁', 'c', 'a', 'r', 'd'], ['中'], ['s'], [',']]


def test_parts_of_characters_are_found_by_their_bytes():
  old, new = byte_pairs('中'), byte_pairs('中'[:1], '国')
  part = new.pieces.index(next(piece for piece in new.pieces if piece.endswith('\\x9b')))
  content, = [c for c in new.token_bytes if c == '国'.encode()[:2]]
  assert part >= 0 and find_pieces(old, [content]) == [[old.ids[byte_name(b)] for b in content]]
  assert find_pieces(wordpiece(), [content, 'ж'.encode(), b'']) == [[], [], []]


def byte_name(byte: int) -> str:
  return {b: character for character, b in byte_bpe.ALPHABET.items()}[byte]


def test_special_tokens_are_matched_by_role():
  """The start and the end of a text are [CLS] and [SEP]; GPT-2's only one is the end."""
  texts = ['the heart of the matter'] * 20
  t5 = tokenizers.train_sentencepiece(texts, 40, layout='t5', sentinels=4)
  longer = tokenizers.train_sentencepiece(texts, 40, layout='t5', sentinels=6)
  roberta = tokenizers.train_byte_bpe(texts, 270)
  assert pieces_of(wordpiece(), byte_pairs(), '<|endoftext|>') == [['[SEP]']]
  assert pieces_of(byte_pairs(), wordpiece(), '[CLS]', '[SEP]', '[MASK]') == [
      ['<|endoftext|>'], ['<|endoftext|>'], []]
  assert pieces_of(wordpiece(), roberta, '<s>', '<pad>', '</s>', '<unk>', '<mask>') == [
      ['[CLS]'], ['[PAD]'], ['[SEP]'], ['[UNK]'], ['[MASK]']]
  assert pieces_of(t5, longer, '<pad>', '</s>', '<extra_id_0>', '<extra_id_3>', '<extra_id_4>'
                   ) == [['<pad>'], ['</s>'], ['<extra_id_0>'], ['<extra_id_3>'], []]


def test_rows_are_means_and_unknown_tokens_are_random():
  found = Replacement(3, [Mixture(np.array([2]), np.ones(1, np.float32)),
                          Mixture(np.array([0, 1]), np.full(2, 0.5, np.float32)),
                          *[Mixture(np.zeros(0, int), np.zeros(0, np.float32))] * 4000], [0])
  rows = np.array([[1, 10], [2, 20], [6, 90], [1e9, 1e9]], np.float32)
  new = found.mix(rows, 4010, seed=1)
  assert new.shape == (4010, 2) and new[:2].tolist() == [[6, 90], [1.5, 15]]
  np.testing.assert_allclose(new[2:4002].mean(0), [3, 40], rtol=0.1)
  np.testing.assert_allclose(new[2:4002].std(0), rows[:3].std(0), rtol=0.1)
  assert not new[4002:].any() and found.mix(rows[:, 0], 4002, 1).shape == (4002,)
  assert found.describe() == (
      '1 of 4,002 tokens are copied, 1 start as means of others, 4,000 at random')


def test_sparsemax_is_the_nearest_point_of_the_simplex():
  """The threshold is found by bisection here: the positive parts above it sum to 1."""
  scores = np.random.default_rng(0).normal(size=(50, 30))
  got = vocabulary_replacement.sparsemax(scores)
  low, high = scores.min(1) - 1, scores.max(1)
  for _ in range(60):
    middle = (low + high) / 2
    sums = np.maximum(scores - middle[:, None], 0).sum(1)
    low, high = np.where(sums > 1, middle, low), np.where(sums > 1, high, middle)
  np.testing.assert_allclose(got, np.maximum(scores - low[:, None], 0), atol=1e-9)
  assert 1 < (got > 0).sum(1).mean() < 20
  np.testing.assert_allclose(vocabulary_replacement.sparsemax(np.array([[0.5, 0.4, -1]])),
                             [[0.55, 0.45, 0]])


def test_focus_mixes_similar_copied_tokens():
  """Cosines of token 3 with the copied tokens 0 and 1 are 1 and 0.6: weights 0.7 and 0.3. Token 2
  is copied without a vector, so it is in no mixture; 4 has no vector and stays a mean."""
  def one(*ids):
    return Mixture(np.array(ids), np.full(len(ids), 1 / len(ids), np.float32))
  before = Replacement(9, [one(7), one(5), one(6), one(1, 2), one(3, 4)], [0, 1, 2])
  vectors = np.array([[2, 0], [3, 4], [0, 0], [5, 0], [0, 0]], np.float32)
  after = vocabulary_replacement.apply_focus(before, vectors)
  assert after.mixtures[:3] == before.mixtures[:3] and after.mixtures[4] is before.mixtures[4]
  assert after.mixtures[3].ids.tolist() == [7, 5]
  np.testing.assert_allclose(after.mixtures[3].weights, [0.7, 0.3], rtol=1e-6)
  alone = dataclasses.replace(before, copied=[2])
  assert vocabulary_replacement.apply_focus(alone, vectors) is alone


def test_wechsel_mixes_the_nearest_old_tokens():
  """The loop of CPJKU/wechsel, wechsel/__init__.py, lines 265 to 293. Tokens without a vector keep
  their mixture."""
  random = np.random.default_rng(0)
  old, new, rows = (random.normal(size=size) for size in ((30, 4), (300, 4), (30, 6)))
  new[[1, 5]] = 0
  kept = Mixture(np.array([3]), np.ones(1, np.float32))
  found = vocabulary_replacement.apply_wechsel(Replacement(30, [kept] * 300, [1, 2]), old, new)
  assert found.mixtures[1] is kept and found.mixtures[5] is kept and found.copied == [1]
  expected = np.tile(rows[3], (300, 1))
  for n, vector in enumerate(new):
    if vector.any():
      cosines = old @ vector / np.linalg.norm(old, axis=1) / np.linalg.norm(vector)
      best = sorted(enumerate(cosines), key=lambda pair: -pair[1])[:10]
      weights = np.exp(np.array([cosine for _, cosine in best]) / 0.1)
      expected[n] = weights / weights.sum() @ rows[[i for i, _ in best]]
  np.testing.assert_allclose(found.mix(rows, 300, 0), expected, atol=1e-5)
  few = vocabulary_replacement.apply_wechsel(Replacement(3, [kept] * 2, []), old[:3], new[2:4])
  assert [len(mixture.ids) for mixture in few.mixtures] == [3, 3]
