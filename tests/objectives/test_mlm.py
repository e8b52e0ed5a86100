import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax.architectures import Output
from plm_jax.errors import ConfigError
from plm_jax.layers.heads import MaskedLMHead, PooledClassifier
from plm_jax.objectives import corruption, synonyms
from plm_jax.objectives.masking import Distinct, Everywhere, Repeated, Smoothed, Windowed
from plm_jax.objectives.mlm import MaskedLM, classification_losses
from plm_jax.objectives.row_builders import NextSentence, Single

SINGLE = MaskedLM(pair=Single())


@functools.cache
def compiled(objective):
  return jax.jit(lambda key, w: objective.corrupt(key, w, tiny.VOCAB))


def corrupt(objective, windows, key=0):
  return jax.device_get(compiled(objective)(jax.random.key(key), windows))


def restored(batch):
  """The tokens before they were masked."""
  tokens = batch['tokens'].copy()
  row, place = np.nonzero(batch['weights'])
  tokens[row, batch['positions'][row, place]] = batch['labels'][row, place]
  return tokens


def test_literal():
  windows = dict(
      tokens=np.array([[11, 12, 13, 14, 15, 16, 17, 18], [21, 22, 23, 24, 25, 0, 0, 0], [0] * 8]),
      segments=np.array([[1] * 8, [1] * 5 + [0] * 3, [0] * 8]),
      words=np.array([[1, 2, 2, 3, 4, 5, 6, 6], [1, 2, 3, 4, 5, 0, 0, 0], [0] * 8]),
      corpus=np.zeros(3, int), index=np.arange(3), epoch=np.zeros(3, int))
  batch = corrupt(dataclasses.replace(SINGLE, mask_rate=0.3), windows)
  # 3 of 10 tokens, 2 of 7, none of padding. 11 becomes a random 68, 12 is kept, the others are
  # masked.
  assert {name: value.tolist() for name, value in batch.items()} == dict(
      tokens=[[2, 68, 12, 13, 14, 15, 4, 17, 18, 3], [2, 21, 4, 4, 24, 25, 3, 0, 0, 0],
              [2, 3, 0, 0, 0, 0, 0, 0, 0, 0]],
      segments=[[1] * 10, [1] * 7 + [0] * 3, [0] * 10], types=[[0] * 10] * 3,
      positions=[[1, 2, 6], [2, 3, 0], [0, 0, 0]], labels=[[11, 12, 16], [22, 23, 2], [2, 2, 2]],
      weights=[[1, 1, 1], [1, 1, 0], [0, 0, 0]])


@pytest.mark.parametrize(('length', 'most'), [(128, 20), (512, 77), (8, 2), (64, 10)])
def test_most_predictions_of_a_row(length, most):
  assert MaskedLM().max_predictions(length) == most


@pytest.fixture(scope='module')
def large():
  """8192 rows of 128 tokens, special ones included."""
  windows = tiny.windows(64, 126, shortest=100)
  tile = lambda x: np.tile(x, (128,) + (1,) * (x.ndim - 1))
  windows = {name: tile(x) for name, x in windows.items()} | dict(
      index=np.arange(8192, dtype=np.int32))
  return windows, corrupt(SINGLE, windows)


def test_rates(large):
  _, batch = large
  size = (batch['segments'] > 0).sum(1)
  number = batch['weights'].sum(1)
  np.testing.assert_array_equal(number, np.clip(np.round(size * 0.15), 1, 20))
  assert number.sum() > 100_000
  assert abs(number.sum() / size.sum() - 0.15) < 0.002
  real = batch['weights'] > 0
  new = np.take_along_axis(batch['tokens'], batch['positions'], 1)[real]
  labels = batch['labels'][real]
  sigma = lambda p: 4 * (p * (1 - p) / new.size) ** 0.5
  assert abs((new == tiny.VOCAB.mask).mean() - (0.8 + 0.1 / 96)) < sigma(0.8)
  assert abs((new == labels).mean() - (0.1 + 0.1 / 96)) < sigma(0.1)
  assert labels.min() >= 5


def test_only_text_is_masked_and_all_of_it_alike(large):
  windows, batch = large
  inside = windows['segments'] > 0
  np.testing.assert_array_equal(restored(batch)[:, 1:-1][inside], windows['tokens'][inside])
  hit = np.zeros(batch['tokens'].shape)
  np.add.at(hit, (np.arange(len(hit))[:, None], batch['positions']), batch['weights'])
  assert hit.max() == 1
  text = np.pad(windows['segments'], ((0, 0), (1, 1))) > 0
  assert not hit[~text].any()
  # Rows have at least 102 tokens: the first 100 of the text are in all of them.
  assert np.abs(hit[:, 1:101].mean(0) - hit[:, 1:101].mean()).max() < 5 * (0.15 / 8192) ** 0.5


def test_whole_words_are_masked_whole(large):
  windows = tiny.take(large[0], slice(300))
  objective = dataclasses.replace(
      SINGLE, masking=Distinct('word'), mask_share=1.0, random_share=0.0)
  batch = corrupt(objective, windows)
  masked = batch['tokens'][:, 1:-1] == tiny.VOCAB.mask
  for row, words in zip(masked, windows['words'], strict=True):
    share = np.bincount(words, row)[1:] / np.bincount(words)[1:]
    assert set(share) <= {0.0, 1.0}
  np.testing.assert_array_equal(masked.sum(1), batch['weights'].sum(1))
  assert (masked.sum(1) <= 20).all() and masked.sum() / (batch['segments'] > 0).sum() > 0.14
  assert not masked[windows['words'] == 0].any()


def test_n_grams_stay_within_the_budget(large):
  windows = tiny.take(large[0], slice(300))
  objective = dataclasses.replace(SINGLE, masking=Distinct('word', (6 / 11, 3 / 11, 2 / 11)))
  batch = corrupt(objective, windows)
  number = batch['weights'].sum(1)
  assert (number <= np.round((batch['segments'] > 0).sum(1) * 0.15)).all() and (number >= 1).all()


def test_masks_follow_the_example_and_not_its_place():
  windows, order = tiny.windows(8, 30), np.array([5, 2, 7, 0, 1, 6, 4, 3])
  whole = corrupt(SINGLE, windows)
  shuffled = corrupt(SINGLE, tiny.take(windows, order))
  tiny.assert_same(shuffled, tiny.take(whole, order))
  other = corrupt(SINGLE, windows, key=1)
  assert (other['positions'] != whole['positions']).any(1).sum() >= 6


def test_static_masks_repeat_and_dynamic_ones_do_not():
  windows = tiny.windows(8, 30, shortest=20)
  static = dataclasses.replace(SINGLE, duplicates=2)
  at = lambda objective, epoch: corrupt(objective,
                                        windows | dict(epoch=np.full(8, epoch, np.int32)))
  tiny.assert_same(at(static, 0), at(static, 2))
  tiny.assert_same(at(static, 1), at(static, 5))
  assert (at(static, 0)['positions'] != at(static, 1)['positions']).any()
  assert (at(SINGLE, 0)['positions'] != at(SINGLE, 2)['positions']).any()


def test_heads_and_terms():
  block = tiny.block()
  assert MaskedLM().heads(tiny.config()) == {'mlm': MaskedLMHead(block),
                                             'nsp': PooledClassifier(block, 2)}
  assert MaskedLM().terms == {'mlm': 1.0, 'nsp': 1.0}
  assert SINGLE.heads(tiny.config()) == {'mlm': MaskedLMHead(block)} and SINGLE.terms == {
      'mlm': 1.0}


def test_classification_literal():
  logits = jnp.log(jnp.array([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8], [0.2, 0.7, 0.1]]))
  losses = classification_losses('x', logits, jnp.array([0, 1, 1]), jnp.array([1.0, 1.0, 0.0]))
  assert list(losses) == ['x', 'x_accuracy']
  np.testing.assert_allclose(losses['x'], [np.log(2) + np.log(10), 2], rtol=1e-6)
  assert [float(x) for x in losses['x_accuracy']] == [1, 2]


@pytest.mark.slow
def test_rows_of_padding_weigh_nothing():
  windows = tiny.windows(4)
  for name in ('tokens', 'segments', 'sentences', 'words'):
    windows[name][1] = 0
  batch = corrupt(MaskedLM(), windows)
  assert not batch['weights'][1].any() and not batch['segments'][1].any()
  outputs = dict(mlm=jnp.zeros((*batch['labels'].shape, 96)), nsp=jnp.zeros((4, 2)))
  losses = MaskedLM().loss(outputs, batch)
  assert float(losses['nsp'][1]) == 3 and float(losses['mlm'][1]) == batch['weights'].sum()


@pytest.mark.parametrize(('changes', 'message'), [
    (dict(mask_rate=0.0), 'rate'), (dict(mask_share=0.9, random_share=0.2), 'shares'),
    (dict(masking=Windowed(), final_mask_rate=0.1), 'kind windows is of one MaskedLM.mask_rate')])
def test_values_that_cannot_be(changes, message):
  with pytest.raises(ValueError, match=message):
    MaskedLM(**changes)


@pytest.mark.parametrize('kind', [Distinct, Windowed])
def test_lengths_are_probabilities(kind):
  with pytest.raises(ConfigError, match='sum to 1'):
    kind(lengths=(0.5, 0.4))


@pytest.mark.slow
def test_statistics_of_the_released_code():
  """google-research/bert@eedf5716 create_pretraining_data.py on 150 synthetic documents, rows of 64
  tokens, 5 times.

  It found 0.586 of pairs random (text of one sentence has no other way), 55.4 tokens in a row,
  0.154 of them predicted.
  """
  draw = np.random.default_rng(0)
  objective = MaskedLM(pair=NextSentence())
  length, rows = objective.text_length(64), []
  for number in range(150):
    sentences = draw.integers(4, 24, draw.integers(3, 17))
    while len(sentences):
      fit = max(1, np.searchsorted(np.cumsum(sentences), length, 'right'))
      rows.append((number, sentences[:fit]))
      sentences = sentences[fit:]
  windows = {name: np.zeros((len(rows), length), np.int32)
             for name in ('tokens', 'segments', 'sentences', 'words')}
  for row, (_, sentences) in enumerate(rows):
    size = sentences.sum()
    windows['tokens'][row, :size] = draw.integers(5, 96, size)
    windows['segments'][row, :size] = 1
    windows['sentences'][row, :size] = np.repeat(np.arange(1, len(sentences) + 1), sentences)
    windows['words'][row, :size] = np.arange(1, size + 1)
  windows |= dict(document=np.array([number for number, _ in rows]),
                  corpus=np.zeros(len(rows), int),
                  index=np.arange(len(rows)))
  windows = {name: np.tile(x, (5,) + (1,) * (x.ndim - 1)) for name, x in windows.items()}
  batch = corrupt(objective, windows | dict(epoch=np.repeat(np.arange(5), len(rows))))
  size = (batch['segments'] > 0).sum(1)
  assert abs(batch['weights'].sum() / size.sum() - 0.1545) < 0.005
  assert abs(batch['nsp'].mean() - 0.586) < 0.04
  assert abs(size.mean() - 55.4) < 2


@pytest.mark.slow
def test_roberta_may_mask_special_tokens_and_rounds_at_random():
  """0.15 of 122 tokens are 18.3: 19 in three rows of ten, 18 in the others. fairseq masks <s> and
  </s> as others."""
  windows = {name: x if x.ndim == 1 else np.ones((4000, 120), np.int32)
             for name, x in tiny.windows(4000, 120).items()}
  batch = corrupt(dataclasses.replace(SINGLE, masking=Everywhere()), windows)
  number = batch['weights'].sum(1)
  assert set(number) == {18, 19} and abs(number.mean() - 18.3) < 0.03
  chosen = np.zeros((4000, 122))
  np.add.at(chosen, (np.arange(4000)[:, None], batch['positions']), batch['weights'])
  assert chosen.max() == 1 and np.abs(chosen.mean(0) - 0.15).max() < 5 * (0.15 / 4000) ** 0.5
  first = (batch['positions'] == 0) & (batch['weights'] > 0)
  assert (batch['labels'][first] == tiny.VOCAB.cls).all() and first.sum() > 500


def test_a_token_that_is_drawn_twice_weighs_twice():
  windows = tiny.windows(64, 126, shortest=120)
  objective = dataclasses.replace(SINGLE, masking=Repeated(), mask_share=1.0, random_share=0.0)
  batch = corrupt(objective, windows)
  assert batch['weights'].max() in (2, 3) and set(batch['weights'].sum(1)) <= {18, 19}
  # Each is there once.
  masked = (batch['tokens'] == tiny.VOCAB.mask).sum(1)
  np.testing.assert_array_equal(masked, (batch['weights'] > 0).sum(1))
  assert (masked < batch['weights'].sum(1)).sum() > 40


@pytest.mark.slow
def test_n_grams_in_successive_windows():
  """DeBERTa: 1, 2 or 3 words of 6, 12 or 18, p ~ 1/n (mlm.sh: --max_ngram 3), so that a sixth of
  the words is chosen up to where 15% of the tokens are."""
  windows = tiny.windows(300, 126, shortest=100)
  objective = dataclasses.replace(
      SINGLE, masking=Windowed('word', (6 / 11, 3 / 11, 2 / 11)), mask_share=1.0, random_share=0.0)
  masked = corrupt(objective, windows)['tokens'][:, 1:-1] == tiny.VOCAB.mask
  for row, words in zip(masked, windows['words'], strict=True):
    assert set(np.bincount(words, row)[1:] / np.bincount(words)[1:]) <= {0.0, 1.0}
  size = (windows['segments'] > 0).sum(1)
  assert (masked.sum(1) <= np.round(0.15 * (size + 2))).all() and 0.135 < masked.sum() / size.sum(
      ) < 0.15
  # The end of a row is reached before the share is, now and then, and mostly is not.
  assert masked[:, :80].mean() > 1.5 * np.mean([row[n - 10:n].mean()
                                                for row, n in zip(masked, size, strict=True)])


def test_dropout_behind_the_pooler():
  """google-research/bert, run_pretraining.py, and albert: the question reads what the pooler
  gives."""
  model = tiny.config(dropout=0.5)
  output = Output(jnp.zeros((4, 8, 32)), jnp.ones((4, 32)), jnp.zeros((96, 32)))
  def answers(**changes):
    """Of four rows that are alike, with noise."""
    head = MaskedLM(**changes).heads(model)['nsp']
    params = {'dense': {'kernel': jnp.linspace(1, 2, 64).reshape(32, 2), 'bias': jnp.zeros(2)}}
    found = head.apply({'params': params}, output, {}, jnp.arange(4),
                       rngs={'dropout': jax.random.key(0)})
    return len(np.unique(found, axis=0))
  assert answers() == 4 and answers(pooled='whole') == 1


def test_similar_words_take_the_place_of_masks(tmp_path):
  """Cui et al. 2020, section 3.2: 80% of the words have one like them, all of its tokens, or random
  ones where the list has none; 10% random ones; 10% are kept. There is no [MASK]."""
  class Letters:
    hash, vocab = 'letters', tiny.VOCAB
    def encode_batch(self, texts):
      return [[10 + ord(letter) - ord('a') if letter.isascii() else self.vocab.unk
               for letter in text]
              for text in texts]

  path = tmp_path / 'similar.txt'
  # What is not known to the tokenizer has no place there: 龘 would be like every other character
  # that it does not know.
  path.write_text('ab cd 龘d ef abc\nf zz g 龘 h\nq\n龘 a b\n龘龘 ab\n')
  found = synonyms.load_table(str(path), Letters())
  assert {word: like.T.tolist() for word, like in found.items()} == {
      (10, 11): [[12, 13], [14, 15]] * 2, (15,): [[16], [17]] * 2}
  size = 4096
  tokens = np.tile(np.array([10, 11, 15, 20, 21] * 6, np.int32), (size, 1))
  words = np.tile(np.arange(30) // 5 * 3 + np.array([1, 1, 2, 3, 3] * 6),
                  (size, 1)).astype(np.int32)
  windows = dict(tokens=tokens, segments=np.ones_like(tokens), words=words,
                 corpus=np.zeros(size, int),
                 index=np.arange(size), epoch=np.zeros(size, int))
  masking = Distinct('word', (0.4, 0.3, 0.2, 0.1), synonyms=str(path))
  objective = dataclasses.replace(SINGLE, masking=masking, mask_rate=0.3)
  windows = objective.add_token_info(windows, Letters())
  assert windows['similar'][0, :5].tolist() == [[12, 14] * 2, [13, 15] * 2, [16, 17] * 2, [-1] * 4,
                                                [-1] * 4]
  assert objective.shapes(2, 32)['similar'].shape == (2, 30, 4)
  batch = corrupt(objective, windows)
  there = batch['weights'] > 0
  got = np.take_along_axis(batch['tokens'], batch['positions'], 1)[there]
  was = batch['labels'][there]
  assert (got == tiny.VOCAB.mask).mean() < 0.01
  share = lambda known, like: np.isin(got[was == known], like).mean()
  assert abs(share(10, [12, 14]) - 0.8) < 0.02 and abs(share(15, [16, 17]) - 0.8) < 0.02
  assert abs((got == was).mean() - 0.1) < 0.02 and abs(share(20, [12, 13, 14, 15, 16, 17]) - 0.9
                                                       * 6 / 96) < 0.02
  # Two tokens of a word change together: cd or ef, never a half of both.
  rows, places = np.nonzero((batch['tokens'][:, :-1] == 12)
                            & (np.pad(tokens, ((0, 0), (1, 1)))[:, :-1] == 10))
  assert (batch['tokens'][rows, places + 1] == 13).mean() > 0.98


@pytest.mark.slow
def test_words_in_half_of_the_rows(large):
  """ERNIE's phrases: in the other half tokens alone."""
  large, _ = large
  batch = corrupt(dataclasses.replace(SINGLE, masking=Distinct('either')), large)
  whole = corrupt(dataclasses.replace(SINGLE, masking=Distinct('word')), large)
  alone = corrupt(SINGLE, large)
  def neighbours(batch):
    gaps = np.diff(batch['positions'], axis=1)[batch['weights'][:, 1:] > 0]
    return (gaps == 1).mean()
  assert abs(neighbours(batch) - (neighbours(whole) + neighbours(alone)) / 2) < 0.02
  assert neighbours(whole) > neighbours(alone) + 0.05


def test_similar_words_are_of_words(tmp_path):
  with pytest.raises(ValueError,
                     match=r'synonyms are words, so that Distinct.unit is word, got token'):
    Distinct(synonyms='list.txt')
  (tmp_path / 'list.txt').write_text('alone\n')
  with pytest.raises(ConfigError, match=r'list.txt has no line with a word and words like it'):
    synonyms.read_table(str(tmp_path / 'list.txt'), None)


def test_the_share_of_masks_falls_over_the_run():
  """From 30% to 15% in a line, a function of what is done alone; 20% where windows do not say, in
  evaluation."""
  objective = dataclasses.replace(SINGLE, mask_rate=0.3, final_mask_rate=0.15,
                                  held_out_mask_rate=0.2)
  windows = tiny.windows(8, 98)
  def count(**progress):
    return corrupt(objective, {**windows, **progress})['weights'].sum(1)
  real = (np.asarray(windows['segments']) > 0).sum(1) + 2
  for done, share in ((0.0, 0.3), (0.5, 0.225), (1.0, 0.15)):
    np.testing.assert_allclose(count(progress=np.float32(done)), np.round(real * share), atol=1)
  np.testing.assert_allclose(count(), np.round(real * 0.2), atol=1)
  assert objective.step_traits.needs_progress and not SINGLE.step_traits.needs_progress
  assert objective.max_predictions(100) == 30


def test_tokens_say_the_language_of_their_corpus(large):
  windows = dict(large[0], corpus=np.arange(8192, dtype=np.int32) % 3)
  batch = corrupt(dataclasses.replace(SINGLE, language_ids=True), windows)
  assert batch['languages'].shape == batch['tokens'].shape
  assert (batch['languages'] == windows['corpus'][:, None]).all()


@pytest.mark.slow
def test_spans_are_replaced_as_a_whole():
  """Of spans of three tokens, 80% are masked, 10% random and 10% kept; token by token, mixtures are
  the rule."""
  windows = tiny.windows(2048, 62, shortest=62)
  masking = Distinct(lengths=(0.0, 0.0, 1.0), replaced='span')
  objective = MaskedLM(pair=Single(), mask_rate=0.05, masking=masking)
  batch = corrupt(objective, windows)
  # 5% of 64 are three: each row has one span, or two where the first is cut at the end of the text.
  assert (batch['weights'].sum(1) == 3).all()
  one = (np.diff(batch['positions'][:, :3]) == 1).all(1) & (batch['positions'][:, 2] < 62)
  assert one.mean() > 0.9
  seen = np.take_along_axis(batch['tokens'], batch['positions'], 1)[one, :3]
  labels = batch['labels'][one, :3]
  masked, kept = (seen == tiny.VOCAB.mask).all(1), (seen == labels).all(1)
  assert masked.mean() == pytest.approx(0.8, abs=0.03) and kept.mean() == pytest.approx(
      0.1, abs=0.02)
  # The rest are random, in which a mask or the token itself comes by chance, once in a hundred.
  rest = seen[~masked & ~kept]
  assert (rest == tiny.VOCAB.mask).mean() < 0.05 and (rest == labels[~masked & ~kept]).mean() < 0.05
  masking = dataclasses.replace(masking, replaced='token')
  apart = corrupt(dataclasses.replace(objective, masking=masking), windows)
  seen = np.take_along_axis(apart['tokens'], apart['positions'], 1)[one, :3]
  assert (seen == tiny.VOCAB.mask).all(1).mean() == pytest.approx(0.8 ** 3, abs=0.04)
  # The same tokens are predicted either way.
  np.testing.assert_array_equal(batch['positions'], apart['positions'])
  np.testing.assert_array_equal(restored(batch), restored(apart))


def test_neighbouring_spans_are_replaced_apart():
  """With all tokens predicted, spans touch each other: of spans of two, pairs of neighbours agree,
  others need not."""
  windows = tiny.windows(1024, 40, shortest=40)
  objective = MaskedLM(
      pair=Single(), mask_rate=0.95, masking=Distinct(lengths=(0.0, 1.0), replaced='span'),
      mask_share=0.5, random_share=0.0)
  batch = corrupt(objective, windows)
  masked = np.where(batch['tokens'][:, 1:-1] == tiny.VOCAB.mask, 1, 0)
  changes = (np.diff(masked, axis=1) != 0).mean()
  # Half of the borders between spans are changes, and there is one every two tokens.
  assert 0.15 < changes < 0.35


@pytest.mark.parametrize('changes', [dict(lengths=(1.0,)), dict(synonyms='x', unit='word')])
def test_replacing_by_span_needs_spans(changes):
  with pytest.raises(ConfigError, match='replaced span is of spans of several tokens'):
    Distinct(replaced='span', **changes)


def test_rare_tokens_are_masked_more_often():
  """XLM, trainer.py, mask_out: weights of counts ** -alpha. Of two kinds of token, 16 times as
  frequent in the batch, one is a quarter as likely to be masked with a power of 0.5, and a 16th
  with 1."""
  windows = tiny.windows_with_a_rare_token(2000, 17)
  for masking, want in (Distinct(), 1 / 17), (Smoothed(0.5), 4 / 20), (Smoothed(1.0), 16 / 32):
    batch = corrupt(dataclasses.replace(SINGLE, mask_rate=0.05, masking=masking), windows)
    # One token of 19 is predicted, the rare one with weight 16 ** power against 16 of weight 1.
    assert (batch['weights'].sum(1) == 1).all()
    assert (batch['labels'][:, 0] == 30).mean() == pytest.approx(want, abs=0.03)


def test_several_tokens_are_drawn_without_replacement():
  """Of weights 1, 1, 2 the two chosen are the last and another with 5/6: 1/2 at once, or 1/2 x 2/3
  after another."""
  keys = jax.random.split(jax.random.key(0), 4000)
  weights = jnp.array([1.0, 1.0, 2.0, 5.0])
  candidate = jnp.array([True, True, True, False])
  chosen = np.asarray(
      jax.jit(jax.vmap(lambda key: corruption.choose_tokens(key, candidate, 2, weights)))(keys))
  assert (chosen.sum(1) == 2).all() and not chosen[:, 3].any()
  assert chosen[:, 2].mean() == pytest.approx(5 / 6, abs=0.02)
  none = corruption.choose_tokens(keys[0], jnp.zeros(4, bool), 2, weights)
  assert not none.any()


def test_counts_of_tokens_are_of_the_text():
  windows = {'tokens': jnp.array([[5, 6, 5, 0], [6, 5, 0, 0]]),
             'segments': jnp.array([[1, 1, 1, 0], [1, 2, 0, 0]])}
  assert corruption.count_tokens(windows, 8).tolist() == [0, 0, 0, 0, 0, 3, 2, 0]
