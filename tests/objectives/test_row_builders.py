import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax.objectives import corruption
from plm_jax.objectives.row_builders import (
    Consecutive,
    FullSentences,
    NextSentence,
    SentenceOrder,
    Single,
    draw_other_document,
)

BIG = tiny.Vocab(size=100_000, pad=0, unk=1, cls=2, sep=3, mask=4)


def numbered(rows, length, seed=0, shortest=1):
  """Windows in which token 1000 * (row + 1) + place stands at its place, so that every token tells
  where it is from."""
  windows = tiny.windows(rows, length, seed, shortest)
  place = 1000 * (np.arange(rows)[:, None] + 1) + np.arange(length)
  return windows | dict(tokens=np.where(windows['segments'] > 0, place, 0).astype(np.int32))


@functools.cache
def compiled(pair):
  return jax.jit(lambda key, w: pair.arrange(corruption.example_keys(key, w), w, BIG))


def arrange(pair, windows, key=0):
  return jax.device_get(compiled(pair)(jax.random.key(key), windows))


def lists(batch):
  return {name: np.asarray(value).tolist() for name, value in batch.items()}


def test_single_literal():
  windows = dict(tokens=np.array([[7, 8, 9], [7, 8, 0], [0, 0, 0]]),
                 segments=np.array([[1, 2, 2], [1, 1, 0], [0, 0, 0]]),
                 words=np.array([[1, 2, 2], [1, 2, 0], [0, 0, 0]]))
  assert lists(Single().arrange(None, jax.tree.map(jnp.asarray, windows), BIG)) == dict(
      tokens=[[2, 7, 8, 9, 3], [2, 7, 8, 3, 0], [2, 3, 0, 0, 0]],
      segments=[[1, 1, 2, 2, 2], [1, 1, 1, 1, 0], [0, 0, 0, 0, 0]],
      types=[[0] * 5] * 3,
      words=[[0, 1, 2, 2, 0], [0, 1, 2, 0, 0], [0] * 5])
  assert Single().text_length(128) == 126


def test_full_sentences_literal():
  """Three documents, two with room to spare, one that fills the row, nothing; ids 7 .. 9 are
  text."""
  windows = jax.tree.map(jnp.asarray, dict(
      tokens=np.array([[7, 8, 9, 7, 0], [7, 8, 9, 0, 0], [7, 8, 9, 7, 0], [0] * 5]),
      segments=np.array([[1, 2, 2, 3, 0], [1, 1, 2, 0, 0], [1, 1, 1, 1, 0], [0] * 5]),
      words=np.array([[1, 2, 2, 3, 0], [1, 2, 3, 0, 0], [1, 2, 3, 4, 0], [0] * 5])))
  apart = FullSentences(together=False)
  rows = lists(apart.arrange(None, windows, BIG))
  # The first has a separator more than there is room for: its last token is lost.
  assert rows == dict(
      tokens=[[2, 7, 3, 8, 9, 3, 3], [2, 7, 8, 3, 9, 3, 0], [2, 7, 8, 9, 7, 3, 0],
              [2, 3, 0, 0, 0, 0, 0]],
      segments=[[1, 1, 1, 2, 2, 2, 2], [1, 1, 1, 1, 2, 2, 0], [1] * 6 + [0], [0] * 7],
      types=[[0] * 7] * 4,
      words=[[0, 1, 0, 2, 2, 0, 0], [0, 1, 2, 0, 3, 0, 0], [0, 1, 2, 3, 4, 0, 0], [0] * 7])
  together = lists(FullSentences().arrange(None, windows, BIG))
  assert together.pop('segments') == [[1] * 7, [1] * 6 + [0], [1] * 6 + [0], [0] * 7]
  assert together == {name: rows[name] for name in ('tokens', 'types', 'words')}
  assert apart.text_length(7) == 5 and FullSentences().text_length(512) == 510


def test_sentence_pairs_are_of_single_sentences_with_two_separators():
  windows, rows = numbered(64, 40, seed=4, shortest=12), {}
  pair = NextSentence(unit='sentence', separators=2, slack=10)
  assert pair.text_length(34) == 40
  batch = arrange(pair, windows)
  sentence = {int(token): (row, int(number)) for row in range(64)
              for token, number in zip(windows['tokens'][row], windows['sentences'][row],
                                       strict=True) if token}
  for row in range(64):
    tokens, types = batch['tokens'][row], batch['types'][row]
    size = (batch['segments'][row] > 0).sum()
    assert tokens[0] == BIG.cls and tokens[size - 1] == BIG.sep and (tokens[size:] == BIG.pad).all()
    seps = np.flatnonzero(tokens[:size] == BIG.sep)
    assert len(seps) == 3 and seps[1] == seps[0] + 1 and types[seps[1]] == 0 and types[
        seps[1] + 1] == 1
    a, b = tokens[1:seps[0]], tokens[seps[1] + 1:size - 1]
    (own,), (other,) = {sentence[int(t)] for t in a}, {sentence[int(t)] for t in b}
    assert own[0] == row
    if batch['nsp'][row]:
      assert other[0] != row
    else:
      assert other == (row, own[1] + 1)
    rows[bool(batch['nsp'][row])] = rows.get(bool(batch['nsp'][row]), 0) + 1
  assert min(rows.values()) > 16


def test_next_sentence_literal():
  windows = dict(
      tokens=np.array([[11, 12, 13, 14, 15, 16, 17, 0], [21, 22, 23, 24, 25, 26, 27, 28]]),
      segments=np.array([[1] * 7 + [0], [1] * 8]),
      sentences=np.array([[1, 1, 2, 2, 2, 3, 3, 0], [1, 1, 1, 1, 2, 2, 3, 3]]),
      words=np.array([[1, 1, 2, 3, 4, 5, 5, 0], [1, 2, 3, 4, 5, 6, 7, 8]]),
      document=np.array([0, 1]),
      corpus=np.array([0, 0]), index=np.array([0, 1]), epoch=np.array([0, 0]))
  # The first row is cut behind its second sentence. The second gets sentence 2 of the first for B;
  # its A is a token too long and loses the last one.
  assert lists(arrange(NextSentence(short=0.0, slack=0), windows, key=7)) == dict(
      nsp=[0, 1],
      tokens=[[2, 11, 12, 13, 14, 15, 3, 16, 17, 3, 0], [2, 21, 22, 23, 24, 25, 3, 13, 14, 15, 3]],
      segments=[[1] * 10 + [0], [1] * 11],
      types=[[0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0], [0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1]],
      words=[[0, 1, 1, 2, 3, 4, 0, 21, 21, 0, 0], [0, 1, 2, 3, 4, 5, 0, 18, 19, 20, 0]])


def pieces(row):
  """A row of numbered tokens -> (tokens of A, tokens of B); checks where the special tokens
  stand."""
  tokens = row['tokens'].tolist()
  assert tokens[0] == BIG.cls
  first, last = [n for n, token in enumerate(tokens) if token == BIG.sep]
  size = int(row['segments'].sum())
  assert last == size - 1
  assert row['segments'].tolist() == [1] * size + [0] * (len(tokens) - size)
  assert row['types'].tolist() == [0] * (first + 1) + [1] * (last - first) + [0] * (
      len(tokens) - size)
  assert not any(tokens[size:]) and not row['words'][[0, first]].any() and not row['words'][
      last:].any()
  return tokens[1:first], tokens[first + 1:last]


def is_run(tokens):
  return tokens == list(range(tokens[0], tokens[0] + len(tokens)))


@pytest.mark.slow
@pytest.mark.parametrize('slack', [0, 8])
def test_rows_are_what_the_released_code_would_make_of_the_same_cuts(slack):
  pair, budget = NextSentence(slack=slack, short=0.3), 21
  truncated, whole, b_from_start = 0, 0, 0
  for key in range(3):
    windows = numbered(200, budget + slack, seed=key)
    for number, values in enumerate(zip(*arrange(pair, windows, key).values(), strict=True)):
      row = dict(zip(('nsp', 'segments', 'tokens', 'types', 'words'), values, strict=True))
      a, b = pieces(row)
      assert a and len(a) + len(b) <= budget
      assert is_run(a) and a[0] // 1000 == number + 1
      own = windows['sentences'][number]
      size = (own > 0).sum()
      # The sentence ends that A, and B if it follows, may have; and where A may begin.
      ends = set((np.flatnonzero(np.diff(own, append=0)) + 1).tolist())
      starts = {0, max(size - budget, 0)} | {end for end in ends if end < size - budget}
      if not b:
        assert size == 1 and not row['nsp']
        continue
      source = b[0] // 1000 - 1
      assert is_run(b) and (source != number) == bool(row['nsp'])
      theirs = windows['sentences'][source]
      their_ends = set((np.flatnonzero(np.diff(theirs, append=0)) + 1).tolist())
      a_start, a_end, b_start, b_end = (x % 1000 for x in (a[0], a[-1] + 1, b[0], b[-1] + 1))
      if len(a) + len(b) < budget:
        # Nothing was lost: both are whole sentences, A from one of the first on.
        whole += 1
        assert a_start in starts and b_end in their_ends
        assert a_end in ends or own.max() == 1
        assert b_start in their_ends | {0} if row['nsp'] else b_start == a_end
      else:
        truncated += 1
        # Only the longer half loses tokens, until both are alike: what is shorter than half is
        # whole.
        if len(a) < (budget + 1) // 2:
          assert a_start in starts
          assert a_end in ends or own.max() == 1
        if len(b) < budget // 2:
          assert b_end in their_ends and (b_start in their_ends | {0} or not row['nsp'])
      b_from_start += bool(row['nsp']) and b_start == 0
  assert truncated > 40 and whole > 40 and b_from_start > 20


@pytest.mark.slow
@pytest.mark.parametrize('pair', [NextSentence(slack=12, short=0.0, random=0.0),
                                  SentenceOrder(slack=12, short=0.0)])
def test_every_token_of_a_window_is_met_in_some_epoch(pair):
  """Rows hold 20 of 32 tokens; the last sentences are as likely to be among them as the first."""
  windows = numbered(1, 20 + 12, shortest=32)
  rows = [arrange(pair, windows, key) for key in range(60)]
  met = collections.Counter(token for row in rows
                            for token in row['tokens'][0].tolist() if token >= 1000)
  assert sorted(met) == list(range(1000, 1032))
  assert all((row['words'] > 0).sum() == 20 for row in rows)


def test_halves_lose_tokens_at_both_ends():
  pair = NextSentence(slack=12, short=0.0)
  windows = numbered(200, 20 + 12, shortest=32)
  lost_front = collections.Counter()
  for values in zip(*arrange(pair, windows).values(), strict=True):
    a, _ = pieces(dict(zip(('nsp', 'segments', 'tokens', 'types', 'words'), values, strict=True)))
    lost_front[a[0] % 1000 > 0] += 1
  assert min(lost_front.values()) > 20


@pytest.mark.slow
def test_half_of_the_pairs_are_random_and_single_sentences_always():
  windows = numbered(4000, 24, shortest=24)
  several = windows | dict(sentences=np.broadcast_to(np.arange(1, 25) // 4 + 1, (4000, 24)))
  one = windows | dict(sentences=windows['segments'])
  half, never = NextSentence(slack=3, short=0.0), NextSentence(slack=3, short=0.0, random=0.0)
  assert abs(arrange(half, several)['nsp'].mean() - 0.5) < 4 * 0.5 / 4000 ** 0.5
  assert not arrange(never, several)['nsp'].any()
  assert arrange(never, one)['nsp'].all()


@pytest.mark.slow
def test_short_rows():
  windows = numbered(3000, 40, shortest=40)
  # Sentences of one token: a row ends exactly at its target.
  windows |= dict(sentences=np.broadcast_to(np.arange(1, 41), (3000, 40)))
  size = lambda short: arrange(NextSentence(short=short, slack=8, random=0.0),
                               windows)['segments'].sum(1) - 3
  assert (size(0.0) == 32).all()
  tenth = size(0.1)
  # Of the drawn targets 2 .. 32 one is the full length.
  assert abs((tenth < 32).mean() - 0.1 * 30 / 31) < 0.02
  always = size(1.0)
  assert always.min() == 2 and always.max() == 32
  np.testing.assert_allclose(np.bincount(always, minlength=33)[2:] / 3000, 1 / 31, atol=0.016)


def test_windows_are_filled_and_cut():
  assert NextSentence().text_length(128) == 128 - 3 + 16
  windows = numbered(50, NextSentence().text_length(64), shortest=64)
  batch = arrange(NextSentence(short=0.0), windows)
  assert batch['tokens'].shape == (50, 64) and (batch['segments'].sum(1)
                                                == 64)[batch['nsp'] == 0].all()


@pytest.mark.slow
def test_one_document_alone_makes_no_random_pairs():
  windows = numbered(8, 20) | dict(document=np.zeros(8, np.int32))
  batch = arrange(NextSentence(slack=2), windows)
  assert not batch['nsp'].any()
  for values in zip(*batch.values(), strict=True):
    a, b = pieces(dict(zip(batch, values, strict=True)))
    assert a and all(token // 1000 == a[0] // 1000 for token in a + b)


@pytest.mark.slow
def test_rows_of_padding_neither_weigh_nor_lend():
  windows = numbered(12, 20)
  for name in ('tokens', 'segments', 'sentences', 'words'):
    windows[name][::2] = 0
  for key in range(5):
    batch = arrange(NextSentence(slack=2), windows, key)
    assert not batch['segments'][::2].any() and not batch['words'][::2].any()
    for number in range(1, 12, 2):
      a, b = pieces({name: value[number] for name, value in batch.items()})
      assert a and (not b or b[0] // 1000 % 2 == 0)


def test_other_document_is_another_and_any_of_them():
  documents, full = jnp.array([0, 0, 1, 2, 2, 3]), jnp.array([True, True, True, True, True, False])
  keys = lambda n: jax.random.split(jax.random.key(n), 6)
  other, found = jax.device_get(
    jax.jit(jax.vmap(lambda n: draw_other_document(keys(n), documents, full)))(jnp.arange(500))
  )
  for row in range(6):
    seen = set(other[:, row][found[:, row]].tolist())
    assert seen == {n for n in range(5) if documents[n] != documents[row]}
  assert found[:, :5].mean() > 0.9
  _, found = draw_other_document(keys(0)[:1], documents[:1], full[:1])
  assert not found.any()


@pytest.mark.slow
def test_words_of_a_foreign_half_are_other_words():
  windows = numbered(50, 24, shortest=24)
  batch = arrange(NextSentence(slack=2, random=1.0), windows)
  for number in range(50):
    words, types = batch['words'][number], batch['types'][number]
    a, b = set(words[types == 0].tolist()) - {0}, set(words[types == 1].tolist()) - {0}
    assert a and b and not a & b and max(a) < min(b)


def test_sentence_order_literal():
  windows = dict(
      tokens=np.array([[11, 12, 13, 14, 15, 16, 17, 0], [21, 22, 23, 24, 25, 26, 27, 28]]),
      segments=np.array([[1] * 7 + [0], [1] * 8]),
      sentences=np.array([[1, 1, 2, 2, 2, 3, 3, 0], [1] * 8]),
      words=np.array([[1, 1, 2, 3, 4, 5, 5, 0], [1, 2, 3, 4, 5, 6, 7, 8]]),
      corpus=np.array([0, 0]), index=np.array([0, 1]), epoch=np.array([0, 0]))
  # The second has one sentence, which is halved.
  common = dict(segments=[[1] * 10 + [0], [1] * 11])
  assert lists(arrange(SentenceOrder(swapped=0.0, short=0.0, slack=0), windows,
                       key=7)) == common | dict(
      sop=[0, 0],
      tokens=[[2, 11, 12, 3, 13, 14, 15, 16, 17, 3, 0], [2, 21, 22, 23, 24, 3, 25, 26, 27, 28, 3]],
      types=[[0] * 4 + [1] * 6 + [0], [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1]],
      words=[[0, 1, 1, 0, 10, 11, 12, 13, 13, 0, 0], [0, 1, 2, 3, 4, 0, 13, 14, 15, 16, 0]])
  assert lists(arrange(SentenceOrder(swapped=1.0, short=0.0, slack=0), windows,
                       key=7)) == common | dict(
      sop=[1, 1],
      tokens=[[2, 13, 14, 15, 16, 17, 3, 11, 12, 3, 0], [2, 25, 26, 27, 28, 3, 21, 22, 23, 24, 3]],
      types=[[0] * 7 + [1] * 3 + [0], [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1]],
      words=[[0, 2, 3, 4, 5, 5, 0, 9, 9, 0, 0], [0, 5, 6, 7, 8, 0, 9, 10, 11, 12, 0]])


def test_sentence_order_is_of_neighbours_and_even():
  pair = SentenceOrder(slack=6)
  windows = numbered(2000, 30, shortest=4)
  batch = arrange(pair, windows)
  assert abs(batch['sop'].mean() - 0.5) < 4 * 0.5 / 2000 ** 0.5
  joined = 0
  for number in range(300):
    row = {name: value[number] for name, value in batch.items()}
    a, b = pieces(row)
    earlier, later = (b, a) if row['sop'] else (a, b)
    assert a and b and is_run(a) and is_run(b) and earlier[-1] < later[0] and earlier[
        0] // 1000 == number + 1
    if len(a) + len(b) < 24:
      joined += 1
      assert later[0] == earlier[-1] + 1
  assert joined > 50


@pytest.mark.slow
def test_sentence_order_of_padding_weighs_nothing():
  windows = numbered(4, 20)
  for name in ('tokens', 'segments', 'sentences', 'words'):
    windows[name][1] = 0
  batch = arrange(SentenceOrder(slack=2), windows)
  assert not batch['segments'][1].any() and not batch['words'][1].any() and batch['segments'][
      0].any()


def test_electra_cuts_at_half_of_the_length():
  """build_pretraining_dataset.py: sentences join the first text while it stays below half of what
  fits, 12 of 24 here, the one that reaches it every second time; every tenth row is one text, and
  so is a row of a single sentence."""
  rows = 3000
  windows = tiny.windows(rows, 24) | dict(tokens=np.tile(np.arange(5, 29),
                                                         (rows, 1)).astype(np.int32))
  windows |= dict(segments=np.ones((rows, 24), np.int32), words=windows['tokens'] - 4)
  windows['sentences'] = np.tile(np.repeat(np.arange(1, 7), 4), (rows, 1)).astype(np.int32)
  windows['sentences'][-2] = 1
  for name in ('tokens', 'segments', 'words', 'sentences'):
    windows[name][-1] = 0
  pair = Consecutive(short=0.0, slack=0, cut='half', whole=0.1)
  batch = arrange(pair, windows)
  text = np.arange(5, 29).tolist()
  first = []
  for row, segments, types in zip(*(batch[name][:-1] for name in ('tokens', 'segments', 'types')),
                                  strict=True):
    first.append((segments - types).sum() - 2)
    a, b = text[:first[-1]], text[first[-1]:]
    want = [2, *a, 3, *b, *[3] * bool(b)]
    assert row.tolist() == want + [0] * (27 - len(want)) and segments.sum() == len(want)
    assert types.tolist() == [0] * (len(a) + 2) + [1] * (len(want) - len(a)
                                                         - 2) + [0] * (27 - len(want))
  shares = np.bincount(first, minlength=25) / (rows - 1)
  assert set(np.flatnonzero(shares)) == {8, 12, 24} and first[-1] == 24
  np.testing.assert_allclose(shares[[8, 12, 24]], [0.45, 0.45, 0.1], atol=0.035)
  assert not batch['segments'][-1].any() and 'sop' not in batch


def test_some_single_rows_are_cut_to_any_length():
  """ltgoslo/ltg-bert, babylm/train/dataset.py: a tenth of the rows have 1 to L - 3 tokens of text,
  the others L - 2."""
  rows, room = 4000, 30
  windows = tiny.windows(rows, room, shortest=room)
  keys = jax.random.split(jax.random.key(0), rows)
  found = jax.device_get(jax.jit(lambda keys, w: Single(short=0.1).arrange(keys, w, tiny.VOCAB))(
      keys, windows))
  sizes = (found['words'] > 0).sum(1)
  short = sizes[sizes < room]
  assert len(short) / rows == pytest.approx(0.1, abs=0.015)
  assert (short.min(), short.max()) == (1, room - 1) and short.mean() == pytest.approx(
      room / 2, abs=1.5)
  for row in np.flatnonzero(sizes < room)[:20]:
    size = sizes[row]
    assert found['tokens'][row, 0] == tiny.VOCAB.cls and found['tokens'][
        row, size + 1] == tiny.VOCAB.sep
    np.testing.assert_array_equal(found['tokens'][row, 1:size + 1], windows['tokens'][row, :size])
    assert (found['segments'][row] > 0).sum() == size + 2 and not found['words'][
        row, size + 1:].any()
  whole = jax.device_get(Single().arrange(keys[:4], {k: v[:4] for k, v in windows.items()},
                                          tiny.VOCAB))
  assert ((whole['words'] > 0).sum(1) == room).all()
