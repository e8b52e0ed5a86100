import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax.data import records
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.objectives import corruption
from plm_jax.objectives.masking import Distinct
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.row_builders import FullSentences, Single
from plm_jax.objectives.sbo import SpanBoundary
from plm_jax.preparation import encode
from plm_jax.sources.document_formats import Document
from plm_jax.tokenizers import train_wordpiece

OBJECTIVE = SpanBoundary(targets=4, size=6)


@functools.cache
def corrupted(objective=OBJECTIVE, rows=512, length=62):
  windows = tiny.windows(rows, length, seed=3, shortest=length // 2)
  corrupt = jax.jit(lambda key, w: objective.corrupt(key, w, tiny.VOCAB))
  return windows, jax.device_get(corrupt(jax.random.key(5), windows))


def test_lengths_are_geometric_cut_at_ten_words():
  """Joshi et al. 2020, figure 2: the mean is 3.8 words."""
  lengths = SpanBoundary().lengths
  np.testing.assert_allclose(np.array(lengths[1:]) / lengths[:-1], 0.8)
  assert len(lengths) == 10 and abs(sum(lengths) - 1) < 1e-9
  assert abs(sum((n + 1) * p for n, p in enumerate(lengths)) - 3.797) < 1e-3
  drawn = np.asarray(jax.jit(lambda k: corruption.draw_lengths(k, lengths, (20_000,)))(
      jax.random.key(0)))
  np.testing.assert_allclose(np.bincount(drawn, minlength=11)[1:] / 20_000, lengths, atol=0.01)


def test_predictions_literal():
  """[CLS] a b c d e f g h [SEP] with the spans bcd, g and h: h touches the end, so it and g have no
  boundary."""
  tokens = jnp.array([2, 11, 12, 13, 14, 15, 16, 17, 18, 3, 0])
  words = jnp.array([0, 1, 2, 2, 3, 4, 5, 6, 7, 0, 0])
  chosen = jnp.array([0, 0, 1, 1, 1, 0, 0, 1, 1, 0, 0], bool)
  found = jax.jit(lambda *row: SpanBoundary(targets=2).predict(*row, most=6))(tokens, words, chosen)
  assert {name: np.asarray(x).tolist() for name, x in found.items()} == dict(
      positions=[2, 3, 4, 7, 8, 0], labels=[12, 13, 14, 17, 18, 2], weights=[1, 1, 1, 1, 1, 0],
      left=[1, 1, 1, 6, 6, 0], right=[5, 5, 5, 9, 9, 5], offset=[0, 1, 1, 0, 1, 0],
      boundary=[1, 1, 0, 0, 0, 0])


def test_fixed_keys_give_fixed_spans():
  words = jnp.array([0, 1, 1, 2, 3, 4, 4, 4, 5, 6, 7, 8, 9, 9, 0])
  lengths = SpanBoundary().lengths
  draw = jax.jit(lambda seed, whole: corruption.draw_spanbert_spans(jax.random.key(seed), words, 5,
                                                                    lengths, 20,
                                                       whole),
                 static_argnums=1)
  spans = [''.join(map(str, np.asarray(draw(seed, True)).astype(int))) for seed in range(4)]
  assert spans == [
      '000100000011110', '000100001111000',
      '011010000000110', '000100000011110']
  assert [int(draw(seed, False).sum()) for seed in range(4)] == [5, 5, 5, 5]


def test_spans_are_of_whole_words_and_within_the_budget():
  windows, batch = corrupted()
  sizes = (windows['tokens'] > 0).sum(1)
  assert (batch['weights'].sum(1) <= np.ceil(0.15 * sizes)).all()
  assert batch['weights'].sum() / np.ceil(0.15 * sizes).sum() > 0.97  # what no word fits in is left
  words = np.pad(windows['words'], ((0, 0), (1, 1)))
  for row in range(100):
    places = batch['positions'][row][batch['weights'][row] > 0]
    hidden = np.isin(np.arange(64), places)
    for word in set(words[row][places]):
      assert hidden[words[row] == word].all()
    assert 0 not in words[row][places]


def test_labels_are_the_text_and_boundaries_are_visible():
  windows, batch = corrupted()
  text = np.pad(windows['tokens'], ((0, 0), (1, 1)))
  rows = np.arange(len(text))[:, None]
  weighed = batch['weights'] > 0
  assert (batch['labels'] == text[rows, batch['positions']])[weighed].all()
  hidden = np.zeros(text.shape, bool)
  np.put_along_axis(hidden, np.where(weighed, batch['positions'], 0), True, 1)
  bounded = batch['boundary'] > 0
  assert bounded.sum() > 0.5 * weighed.sum()
  for side, step in (('left', -1), ('right', 1)):
    assert not hidden[rows, batch[side]][bounded].any() and (text[rows, batch[side]] > 0)[
        bounded].all()
    assert hidden[rows, batch[side] - step][bounded].all()
  assert (batch['positions'] - batch['left'] - 1 == batch['offset'])[bounded].all()


@pytest.mark.slow
def test_spans_are_masked_random_or_kept_as_a_whole():
  windows, batch = corrupted(rows=2048)
  text = np.pad(windows['tokens'], ((0, 0), (1, 1)))
  rows = np.arange(len(text))[:, None]
  weighed = batch['weights'] > 0
  new = batch['tokens'][rows, batch['positions']]
  masked, kept = new == tiny.VOCAB.mask, new == text[rows, batch['positions']]
  first = weighed & (batch['positions'] - 1 == batch['left'])
  np.testing.assert_allclose([masked[first].mean(), kept[first].mean()], [0.8, 0.1], atol=0.015)
  inside = np.zeros_like(weighed)
  inside[:, 1:] = weighed[:, 1:] & (batch['left'][:, 1:] == batch['left'][:, :-1]) & weighed[:, :-1]
  # A random token may be [MASK], or the one that was there.
  assert (masked[:, 1:] == masked[:, :-1])[inside[:, 1:]].mean() > 0.99


@pytest.mark.slow
def test_both_losses_are_of_the_same_tokens_and_learn():
  config = tiny.config(layers=1)
  model = ModelWithHeads(config.backbone(), OBJECTIVE.heads(config))
  _, batch = corrupted(rows=512)
  batch = {name: x[:4, :32] if x.shape[1] == 64 else x[:4] for name, x in batch.items()}
  batch |= {name: np.minimum(batch[name], 31) for name in ('positions', 'left', 'right')}
  params = tiny.random_params(jax.eval_shape(lambda: model.init(jax.random.key(0),
                                                                batch)['params']))
  outputs = jax.jit(model.apply)({'params': params}, batch)
  losses = OBJECTIVE.loss(outputs, batch)
  assert losses['mlm'][1] == batch['weights'].sum() and losses['sbo'][1] == batch['boundary'].sum()
  assert OBJECTIVE.terms == {'mlm': 1.0, 'sbo': 1.0} and OBJECTIVE.layout.one_document
  assert params['heads_sbo']['offsets'].shape == (4, 6) and params['heads_sbo']['dense_0'][
      'kernel'].shape == (70, 32)


@pytest.mark.parametrize('change', [dict(p=0.0), dict(max_span_length=0), dict(mask_share=0.95)])
def test_what_cannot_be(change):
  with pytest.raises(ValueError):
    SpanBoundary(**change)


@pytest.mark.slow
def test_masks_follow_chinese_words():
  """A segmented source: every mask covers the characters of whole words, of which many have two or
  three."""
  lines = ['我们 喜欢 北京 的 春天 。 他们 学习 自然 语言 处理 。', '中国 文字 很 有趣 。 图书馆 里 没有 学生 。'] * 8
  tokenizer = train_wordpiece([line.replace(' ', '') for line in lines], 80)
  encoded = encode.encode_documents([Document(lines, '')], tokenizer, 'split', 'spaces')
  length = len(encoded.tokens)
  starts = encoded.tokens['flags'] & records.WORD_START > 0
  assert starts.sum() < 0.6 * length
  windows = {
      'tokens': encoded.tokens['token'][None].astype(np.int32),
      'segments': np.ones((1, length), np.int32),
      'words': np.cumsum(starts)[None].astype(np.int32), 'index': np.zeros(1, np.int32)}
  windows |= {name: windows['index'] for name in ('corpus', 'epoch')}
  words = np.pad(windows['words'][0], 1)
  for objective in (SpanBoundary(), MaskedLM(Single(), masking=Distinct('word')),
                    MaskedLM(FullSentences(), masking=Distinct('word'))):
    corrupt = jax.jit(lambda seed, w, o=objective: o.corrupt(jax.random.key(seed), w,
                                                             tokenizer.vocab))
    sizes = set()
    for seed in range(5):
      batch = jax.device_get(corrupt(seed, windows))
      places = batch['positions'][0][batch['weights'][0] > 0]
      for word in set(words[places]):
        assert set(np.flatnonzero(words == word)) <= set(places)
        sizes.add(int((words == word).sum()))
    assert {1, 2} < sizes | {3}


@pytest.mark.slow
def test_random_tokens_may_be_those_of_the_text():
  """SpanBERT's masking.py: np.random.choice of all tokens of the corpus, so by their frequency;
  here of the batch."""
  objective = SpanBoundary(targets=4, size=6, mask_share=0.0, random_share=1.0, random='text')
  windows = tiny.windows(512, 62, seed=3)
  # Long rows hold the tokens 10 and 11, short ones 20; the other pieces of the vocabulary do not
  # come at all.
  size = (windows['segments'] > 0).sum(1)
  long = (size > 40)[:, None]
  windows['tokens'] = np.where(long, 10 + np.arange(62) % 2, 20) * windows['segments']
  batch = jax.device_get(jax.jit(lambda w: objective.corrupt(jax.random.key(5), w, tiny.VOCAB))(
      windows))
  new = np.take_along_axis(batch['tokens'], batch['positions'], 1)[batch['weights'] > 0]
  want = np.bincount(windows['tokens'][windows['segments'] > 0], minlength=96) / size.sum()
  assert set(np.flatnonzero(want)) == {10, 11, 20} and len(new) > 2000
  np.testing.assert_allclose(np.bincount(new, minlength=96) / len(new), want, atol=0.04)


def test_text_to_draw_from_is_every_row_s():
  tokens = jnp.array([[7, 8, 0], [0, 0, 0], [9, 0, 0]])
  windows = dict(tokens=tokens, segments=jnp.sign(tokens))
  drawn = jax.jit(lambda k: corruption.draw_tokens(k, windows,
                                                   400))(jax.random.split(jax.random.key(0), 3))
  np.testing.assert_allclose(np.bincount(np.asarray(drawn).ravel(), minlength=10)[7:] / 1200, 1 / 3,
                             atol=0.06)
  none = {name: 0 * x for name, x in windows.items()}
  assert not jax.jit(lambda k: corruption.draw_tokens(k, none, 4))(
      jax.random.split(jax.random.key(0), 3)).any()
