import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax.objectives import text_buffer
from plm_jax.objectives.denoising import (
    DenoisingAutoencoder,
    DocumentRotation,
    SentencePermutation,
    TextInfilling,
    TokenDeletion,
    TokenInsertion,
    TokenMasking,
    WordMasking,
)
from plm_jax.objectives.text_buffer import TextBuffer
from plm_jax.tokenizers import Vocab

VOCAB = tiny.VOCAB
TOKENS = [11, 12, 13, 21, 22, 31, 32, 33, 34, 41, 0, 0]
SENTENCES = [1, 1, 1, 2, 2, 3, 3, 3, 3, 4, 0, 0]
WORDS = [1, 2, 2, 3, 4, 5, 6, 6, 6, 7, 0, 0]
ALL = (SentencePermutation(0.5), TokenMasking(0.1, 0.5), TextInfilling(random=0.3),
       TokenDeletion(0.1),
       TokenInsertion(0.1, 0.5), DocumentRotation(0.5))


def text():
  return TextBuffer(jnp.array(TOKENS), jnp.array(SENTENCES), jnp.array(WORDS), jnp.int32(10))


@pytest.fixture(scope='module')
def applied():
  """What each noise makes of the text with a fixed key, all compiled together."""
  noises = dict(masking=TokenMasking(0.3), deletion=TokenDeletion(0.25), infilling=TextInfilling(),
                insertion=TokenInsertion(0.1), permutation=SentencePermutation(),
                rotation=DocumentRotation())
  after = jax.device_get(jax.jit(lambda key: {
      name: some.apply(key, text(), VOCAB) for name, some in noises.items()})(jax.random.key(1)))
  return {name: some.tokens[:some.size].tolist() for name, some in after.items()}


@pytest.mark.slow
def test_fixed_keys_give_fixed_noise(applied):
  assert applied == dict(
      masking=[11, 4, 13, 4, 4, 31, 32, 33, 34, 41], deletion=[12, 13, 22, 31, 32, 33, 41],
      infilling=[11, 12, 13, 21, 22, 31, 4, 4, 41],
      insertion=[11, 12, 13, 4, 4, 21, 22, 31, 32, 33, 34, 41],
      permutation=[41, 31, 32, 33, 34, 11, 12, 13, 21, 22],
      rotation=[33, 34, 41, 11, 12, 13, 21, 22, 31, 32])


@functools.cache
def corrupted(objective, rows=64, length=32):
  windows = tiny.windows(rows, objective.text_length(length), seed=2)
  for name in ('tokens', 'segments', 'sentences'):
    windows[name][0] = 0  # a row without text
  return windows, jax.device_get(jax.jit(lambda k, w: objective.corrupt(k, w, VOCAB))(
      jax.random.key(3),
                                                                            windows))


@pytest.mark.slow
@pytest.mark.parametrize('noises', [DenoisingAutoencoder().noises, ALL], ids=['released', 'all'])
def test_the_decoder_writes_the_text(noises):
  objective = DenoisingAutoencoder(noises)
  windows, batch = corrupted(objective)
  assert batch['tokens'].shape == (64, objective.max_noised_length(objective.text_length(32)) + 2)
  assert batch['labels'].shape == (64, objective.max_predictions(32))
  for row, segments in enumerate(windows['segments']):
    size = segments.sum()
    want = [VOCAB.cls, *windows['tokens'][row][:size], VOCAB.sep] if size else []
    count = len(want)
    assert batch['labels'][row].tolist() == want + [0] * (len(batch['labels'][row]) - count)
    assert batch['weights'][row].sum() == batch['decoder_segments'][row].sum() == count
    assert batch['labels'][row][batch['content'][row] > 0].tolist() == want[1:-1]
    assert batch['decoder_tokens'][row][:count].tolist() == [VOCAB.sep, *want[:-1]][:count]
    seen = batch['tokens'][row][batch['segments'][row] > 0].tolist()
    assert (seen[:1], seen[-1:]) == (([VOCAB.cls], [VOCAB.sep]) if size else ([], []))


def test_sentences_are_whole_and_what_infilling_leaves_is_theirs():
  windows, batch = corrupted(DenoisingAutoencoder((SentencePermutation(),)))
  for row, segments in enumerate(windows['segments']):
    size = segments.sum()
    got = batch['tokens'][row][1:size + 1].tolist()
    for number in range(1, windows['sentences'][row].max() + 1):
      sentence = windows['tokens'][row][windows['sentences'][row] == number].tolist()
      assert any(got[at:at + len(sentence)] == sentence for at in range(size))
    assert sorted(got) == sorted(windows['tokens'][row][:size])
  moved = [batch['tokens'][row][1:s.sum() + 1].tolist() != windows['tokens'][row][:s.sum()].tolist()
           for row, s in enumerate(windows['segments']) if windows['sentences'][row].max() > 2]
  assert np.mean(moved) > 0.6


def test_permuted_and_rotated():
  first = jnp.array(SENTENCES) != jnp.roll(jnp.array(SENTENCES), 1)
  ordering = jnp.array([2, 0, 3, 1, *range(4, 12)])
  after = jax.jit(text_buffer.permute_sentences)(text(), first & (jnp.arange(12) < 10), ordering)
  assert after.tokens.tolist() == [31, 32, 33, 34, 11, 12, 13, 41, 21, 22, 0, 0]
  assert after.sentences.tolist() == [3, 3, 3, 3, 1, 1, 1, 4, 2, 2, 0, 0]
  assert jax.jit(text_buffer.rotate_text)(text(), 3).tokens.tolist() == [21, 22, 31, 32, 33, 34, 41,
                                                                         11, 12, 13, 0, 0]


def test_lengths_are_poisson_with_empty_spans():
  lengths = np.array(TextInfilling().lengths)
  assert len(lengths) == 18 and abs(lengths.sum() - 1) < 1e-6
  assert abs(lengths[0] - np.exp(-3)) < 1e-9 and abs(lengths @ np.arange(18) - 3) < 1e-5


def test_rows_have_room_for_what_is_inserted():
  assert DenoisingAutoencoder().text_length(512) == 510
  objective = DenoisingAutoencoder((TokenInsertion(0.2),))
  size = objective.text_length(512)
  assert size + np.ceil(0.2 * (size + 2)) + 2 <= 512 < size + 1 + np.ceil(0.2 * (size + 3)) + 2


def test_languages_of_corpora():
  """A text and the name of its corpus's language, or of the tokenizer's."""
  vocab = Vocab(140, bos=0, pad=1, eos=2, mask=99, source=101, target=102, language=100)
  tokens = np.array([[11, 12, 13, 21, 22], [31, 32, 33, 0, 0], [0] * 5], np.int32)
  windows = dict(tokens=tokens, segments=(tokens > 0).astype(np.int32), sentences=tokens // 10,
                 words=tokens,
                 **dict.fromkeys(('document', 'index', 'epoch'), np.arange(3)),
                 corpus=np.array([1, 0, 1]))
  for names, (first, second) in ((('cs_CZ', 'en_XX'), (103, 101)), ((), (101, 101))):
    objective = DenoisingAutoencoder((TokenMasking(0.0),), languages=names)
    batch = jax.device_get(jax.jit(lambda w, of=objective: of.corrupt(jax.random.key(0), w, vocab))(
        windows))
    assert batch['tokens'].tolist() == [
        [11, 12, 13, 21, 22, 2, first], [31, 32, 33, 2, second, 1, 1], [1] * 7]
    assert batch['labels'].tolist() == [[11, 12, 13, 21, 22, 2, first],
                                        [31, 32, 33, 2, second, 0, 0], [0] * 7]
    assert batch['decoder_tokens'].tolist() == [
        [first, 11, 12, 13, 21, 22, 2], [second, 31, 32, 33, 2, 1, 1], [1] * 7]
  with pytest.raises(ValueError, match='xx_XX is no language of mBART, which has ar_AR, cs_CZ'):
    DenoisingAutoencoder(languages=('en_XX', 'xx_XX'))


@pytest.mark.slow
def test_infilling_counts_words_and_leaves_none_in_part():
  """What is done to 40 words of three tokens is what is done to 40 tokens, word by word: fairseq's
  add_whole_word_mask goes from the start of a word to that of another. 0.35 of 40 are 14 in spans
  of 3.5: the numbers of mBART, section 2.2. Only masks of empty spans go somewhere else."""
  at = np.arange(120)
  words = np.repeat(np.arange(1, 41), 3)
  @jax.jit
  @jax.vmap
  def draw(key):
    def after(unit, tokens, words, size):
      text = TextBuffer(jnp.array(tokens), jnp.zeros(120, int), jnp.array(words), jnp.int32(size))
      return TextInfilling(0.35, 3.5, unit=unit).apply(key, text, VOCAB)
    few = np.where(at < 40, 1000 + at, 0)
    return after('word', 1000 + at, words, 120), after('token', few, few, 40)
  by_words, by_tokens = jax.device_get(draw(jax.random.split(jax.random.key(0), 200)))
  compared, gone = 0, []
  for n in range(200):
    few, many = (some.tokens[n][:some.size[n]].tolist() for some in (by_tokens, by_words))
    want = [x for token in few
            for x in ([token] if token < 1000 else range(3 * token - 2000, 3 * token - 1997))]
    gone.append(40 - sum(token >= 1000 for token in few))
    assert sum(token >= 1000 for token in many) == 3 * (40 - gone[-1])
    kept = [token for token in many if token != VOCAB.mask]
    assert kept == [token for token in want if token != VOCAB.mask]
    compared += many == want
  assert max(gone) == 14 and np.mean(gone) > 11 and compared > 150


def test_of_whole_words_as_many_are_chosen_as_of_tokens():
  begins, count = jax.jit(lambda text: text_buffer.unit_starts(text, True))(text())
  assert count == 7 and begins.tolist() == [0, 1, 3, 4, 5, 6, 9, 10, 10, 10, 10, 10, 10]
  begins, count = jax.jit(lambda text: text_buffer.unit_starts(text, False))(text())
  assert count == 10 and begins.tolist() == [*range(10), 10, 10, 10]


def test_an_end_behind_each_sentence():
  """Liu et al. 2020, section 2.2: sentences are separated by </s>, and the language ends the
  row."""
  after = jax.jit(lambda text: text_buffer.append_separators(text, 2, 15))(text())
  assert after.size == 14
  assert after.tokens.tolist() == [11, 12, 13, 2, 21, 22, 2, 31, 32, 33, 34, 2, 41, 2, 0]
  assert after.sentences.tolist()[:14] == [1, 1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3, 4, 4]
  assert after.words.tolist()[:14] == [2, 4, 4, 5, 6, 8, 9, 10, 12, 12, 12, 13, 14, 15]
  cut = jax.jit(lambda text: text_buffer.append_separators(text, 2, 9))(text())
  assert cut.size == 9 and cut.tokens.tolist() == [11, 12, 13, 2, 21, 22, 2, 31, 2]

  vocab = Vocab(140, bos=0, pad=1, eos=2, mask=99, source=101, target=102, language=100)
  tokens = np.array([[11, 12, 13, 21, 22], [31, 32, 33, 0, 0], [0] * 5], np.int32)
  sentences = np.array([[1, 1, 1, 2, 2], [1, 1, 1, 0, 0], [0] * 5], np.int32)
  windows = dict(tokens=tokens, segments=(tokens > 0).astype(np.int32), sentences=sentences,
                 words=tokens,
                 **dict.fromkeys(('document', 'index', 'epoch'), np.arange(3)),
                 corpus=np.array([1, 0, 1]))
  objective = DenoisingAutoencoder((SentencePermutation(),), languages=('cs_CZ', 'en_XX'),
                                   reserve=2)
  assert objective.text_length(9) == 5 and objective.max_predictions(9) == 9
  batch = jax.device_get(jax.jit(lambda w: objective.corrupt(jax.random.key(0), w, vocab))(windows))
  assert batch['labels'].tolist() == [[11, 12, 13, 2, 21, 22, 2, 103, 0],
                                      [31, 32, 33, 2, 101, 0, 0, 0, 0], [0] * 9]
  assert batch['decoder_tokens'].tolist() == [
      [103, 11, 12, 13, 2, 21, 22, 2, 1], [101, 31, 32, 33, 2, 1, 1, 1, 1], [1] * 9]
  assert batch['content'].tolist() == [[1, 1, 1, 0, 1, 1, 0, 0, 0], [1, 1, 1, 0, 0, 0, 0, 0, 0],
                                       [0] * 9]
  # Sentences keep the </s> behind them when they change places.
  assert batch['tokens'][0].tolist() in ([11, 12, 13, 2, 21, 22, 2, 103, 1],
                                         [21, 22, 2, 11, 12, 13, 2, 103, 1])
  assert batch['tokens'][1:].tolist() == [[31, 32, 33, 2, 101, 1, 1, 1, 1], [1] * 9]


def test_words_of_chinese_become_one_mask_each():
  """fastnlp/CPT, bart_dataset.py: of 20 Chinese words ceil(0.3 x 20) = 6 are one mask, of ceil(0.03
  x 20) = 1 the first character alone is a mask; the other words, here every fifth, stay."""
  words = np.repeat(np.arange(1, 26), 2)
  other = words % 5 == 0
  tokens = np.arange(100, 150)
  text = TextBuffer(
    jnp.array(tokens), jnp.ones(50, int), jnp.array(words), jnp.int32(50),
    jnp.array(1 - other.astype(int))
  )
  found = jax.device_get(
      jax.jit(jax.vmap(lambda key: WordMasking(random=0.0).apply(key, text, VOCAB)))(
      jax.random.split(jax.random.key(0), 400)))
  chosen = np.zeros(26, int)
  for row, size in zip(found.tokens, found.size, strict=True):
    row = row[:size].tolist()
    # 50 tokens, of which six words of two have lost one each.
    assert size == 44 and row.count(VOCAB.mask) == 7
    left = {number: [token for token in tokens[words == number] if token in row]
            for number in range(1, 26)}
    assert all(left[number] == tokens[words == number].tolist() for number in range(5, 26, 5))
    gone = [number for number, some in left.items() if not some]
    cut = [number for number, some in left.items() if len(some) == 1]
    assert len(gone) == 6 and len(cut) == 1
    # Of a word whose first character alone is masked the second stays, behind the mask.
    second = tokens[words == cut[0]][1]
    assert left[cut[0]] == [second] and row[row.index(second) - 1] == VOCAB.mask
    # The rest is in its order.
    rest = [token for token in row if token != VOCAB.mask]
    assert rest == sorted(rest)
    chosen[gone + cut] += 1
  # All 20 alike: 7 of 20 in 400 texts are 140.
  assert chosen[[n for n in range(1, 26) if n % 5]].min() > 100 and chosen[5::5].sum() == 0


def test_masks_of_words_may_be_random_tokens():
  text = TextBuffer(jnp.arange(100, 150), jnp.ones(50, int), jnp.arange(1, 51), jnp.int32(50),
                    jnp.ones(50, int))
  found = jax.device_get(
      jax.jit(jax.vmap(lambda key: WordMasking(characters=0.0, random=0.25).apply(
      key, text, VOCAB)))(jax.random.split(jax.random.key(0), 400)))
  masks = (found.tokens == VOCAB.mask).sum()
  assert (found.size == 50).all() and masks / (400 * 15) == pytest.approx(0.75, abs=0.03)


@pytest.mark.slow
def test_bart_of_chinese_reads_and_writes_the_ends_of_sentences():
  """[CLS] a [SEP] b [SEP] on both sides, begun by [SEP]; ends of sentences are never masked."""
  objective = DenoisingAutoencoder((SentencePermutation(), WordMasking(random=0.0)), reserve=4)
  windows = dict(tokens=np.array([TOKENS]), segments=np.array([[1] * 10 + [0, 0]]),
                 sentences=np.array([SENTENCES]),
                 words=np.array([WORDS]), chinese=np.ones((1, 12), int), document=np.zeros(1, int),
                 corpus=np.zeros(1, int), index=np.zeros(1, int), epoch=np.zeros(1, int))
  batch = jax.device_get(objective.corrupt(jax.random.key(0), windows, VOCAB))
  cls, sep = VOCAB.cls, VOCAB.sep
  assert batch['labels'][0, :15].tolist() == [cls, 11, 12, 13, sep, 21, 22, sep, 31, 32, 33, 34,
                                              sep, 41, sep]
  assert batch['decoder_tokens'][0, :4].tolist() == [sep, cls, 11, 12]
  seen = batch['tokens'][0][batch['segments'][0] > 0].tolist()
  assert seen[0] == cls and seen[-1] == sep and seen.count(sep) == 4
  # Of seven words three are masked, and the first token of one more.
  assert seen.count(VOCAB.mask) == 4


def test_which_tokens_are_chinese():
  class Tokenizer:
    hash = 'a tokenizer of this test'
    pieces = ('[PAD]', '\u4e2d', '\uff0c', 'a', '##\u4e2d', '\u3402', '', '\U00020001', '\u4e2da')
  objective = DenoisingAutoencoder((WordMasking(),))
  windows = objective.add_token_info({'tokens': np.arange(9)[None]}, Tokenizer())
  assert windows['chinese'].tolist() == [[0, 1, 0, 0, 0, 1, 0, 1, 0]]
  assert 'chinese' not in DenoisingAutoencoder().add_token_info({'tokens': np.arange(9)[None]},
                                                                Tokenizer())
  assert objective.shapes(2, 64)['chinese'] == objective.shapes(2, 64)['words']
