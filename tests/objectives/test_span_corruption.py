import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax.objectives import span_corruption
from plm_jax.objectives.span_corruption import (
    UL2_DENOISERS,
    Deshuffling,
    MixtureOfDenoisers,
    PrefixLM,
    SpanCorruption,
    TokenCorruption,
)
from plm_jax.tokenizers.contract import Vocab

VOCAB = Vocab(size=200, pad=0, unk=2, eos=1, sentinel=199)
SENTINELS = range(100, 200)
MIXED = (SpanCorruption(0.5, 2.0, task_token=1), PrefixLM(0.25, 'unique', task_token=2))


@functools.cache
def corrupted(objective, rows=64, length=32):
  """Windows of ids 5 to 95."""
  windows = tiny.windows(rows, objective.text_length(length), seed=4)
  for name in ('tokens', 'segments', 'sentences'):
    windows[name][0] = 0  # a row without text
  return windows, jax.device_get(jax.jit(lambda k, w: objective.corrupt(k, w, VOCAB))(
      jax.random.key(5),
                                                                            windows))


def whole(inputs, targets):
  """Each sentinel of the inputs, replaced by what stands behind it in the target."""
  parts, current = {}, []
  for token in targets:
    if token in SENTINELS:
      current = parts.setdefault(token, [])
    else:
      current.append(token)
  return [x for token in inputs for x in (parts[token] if token in SENTINELS else [token])]


def test_the_papers_example():
  """Raffel et al. 2020, figure 2: Thank you [for inviting] me to your party [last] week."""
  text = jnp.array([11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 0])
  left_out = jnp.isin(text, jnp.array([13, 14, 19]))
  sides = jax.device_get(jax.jit(span_corruption.mark_spans,
                                 static_argnums=4)(text, left_out, 10, 199, 'unique'))
  inputs, targets = (tokens[:size].tolist() for tokens, size in sides)
  assert inputs == [11, 12, 199, 15, 16, 17, 18, 198, 20]
  assert targets == [199, 13, 14, 198, 19, 197]


def test_rows_are_full():
  """The released figures: 568 tokens are 512 and 114 with their marks and ends."""
  figures = [(some.text_length(512), some.target_length(512)) for some in (
      SpanCorruption(), SpanCorruption(0.5), TokenCorruption(), PrefixLM(), Deshuffling())]
  assert figures == [(568, 114), (766, 512), (511, 156), (512, 512), (511, 512)]
  objective = MixtureOfDenoisers()
  assert (objective.text_length(512), objective.max_predictions(512),
          objective.row_length(568)) == (568, 114, 512)
  mixture = MixtureOfDenoisers(UL2_DENOISERS)
  assert mixture.row_length(mixture.text_length(512)) == 512


@pytest.mark.parametrize('some', [(SpanCorruption(),), (TokenCorruption(0.3),), MIXED],
                         ids=['spans', 'tokens', 'both'])
def test_inputs_and_targets_are_the_text(some):
  """Whatever the text: without the sentinels nothing is lost, and labels are what is read one place
  later."""
  objective = MixtureOfDenoisers(some)
  windows, batch = corrupted(objective)
  for row, segments in enumerate(windows['segments']):
    text = windows['tokens'][row][:segments.sum()].tolist()
    inputs = batch['tokens'][row][batch['segments'][row] > 0].tolist()
    real = batch['weights'][row] > 0
    labels = batch['labels'][row][real].tolist()
    if not text:
      assert not inputs and not labels
      continue
    assert batch['decoder_tokens'][row][real].tolist() == [VOCAB.pad, *labels[:-1]]
    assert (batch['decoder_segments'][row] == real).all()
    assert inputs.pop() == labels.pop() == VOCAB.eos
    if some == MIXED:
      mode = inputs.pop(0) - SENTINELS[0]
      assert mode in (0, 1)
      size = MIXED[mode].text_length(32)
    marks = [token for token in inputs if token in SENTINELS]
    assert marks == list(range(199, 199 - len(marks), -1))
    found = whole(inputs, labels)
    if len(text) > objective.text_length(32) or (some == MIXED and len(text) > size):
      assert any(found == text[at:at + len(found)]
                 for at in range(len(text))) and len(found) == size
    else:
      assert found == text
  full = windows['segments'].all(1)
  if some != MIXED and full.any():
    assert (batch['segments'][full].sum(1) >= 30).all()


ANY = (
    *(SpanCorruption(rate, mean) for rate, mean in (
        (0.01, 3.0), (0.15, 3.0), (0.15, 64.0), (0.5, 1.0), (0.5, 2.5), (0.85, 8.0), (0.99, 1.0))),
    *map(TokenCorruption, (0.01, 0.15, 0.5, 0.99)), PrefixLM(0.25, 'unique'),
    PrefixLM(0.5, 'unique'))


@pytest.mark.slow
def test_any_rate_mean_and_length_give_the_text_back():
  """Texts of 0 to 48 tokens in rows of 48, five of each: where the sentinels stand, the target has
  what is missing."""
  sizes = jnp.tile(jnp.arange(49), 5)
  tokens = jax.random.randint(jax.random.key(1), (len(sizes), 48), 3,
                              95) * (jnp.arange(48) < sizes[:, None])
  keys = jax.random.split(jax.random.key(2), len(sizes))
  @jax.jit
  def split(keys, tokens, sizes):
    return [jax.vmap(lambda *row, some=some: some.split(*row, VOCAB.sentinel))(keys, tokens, sizes)
            for some in ANY]
  for some, (inputs, targets) in zip(ANY, jax.device_get(split(keys, tokens, sizes)), strict=True):
    for row, size in enumerate(np.asarray(sizes)):
      text = np.asarray(tokens)[row][:size].tolist()
      seen, said = (side[0][row][:side[1][row]].tolist() for side in (inputs, targets))
      assert whole(seen, said) == text, (some, size)
      left_out = [token for token in said if token not in SENTINELS]
      marks = [token for token in seen if token in SENTINELS]
      assert len(left_out) + len(seen) - len(marks) == size
      if isinstance(some, SpanCorruption) and size > 1:
        assert (len(left_out), len(marks)) == tuple(int(x) for x in some.counts(size, np))


def test_fixed_keys_give_fixed_rows():
  _, batch = corrupted(MixtureOfDenoisers())
  row = int(batch['segments'].sum(1).argmax())
  assert batch['tokens'][row].tolist() == [
      30, 93, 90, 18, 199, 36, 36, 61, 69, 84, 79, 20, 9, 29, 23, 26, 38, 38, 92, 11, 74, 5, 62, 18,
      92, 89, 41, 61, 77,
      10, 198, 1]
  assert batch['labels'][row].tolist() == [199, 36, 40, 198, 27, 19, 28, 1]


def test_deshuffling_keeps_all_tokens():
  windows, batch = corrupted(MixtureOfDenoisers((Deshuffling(),)))
  for row, segments in enumerate(windows['segments']):
    size = segments.sum()
    text = windows['tokens'][row][:size].tolist()
    assert sorted(batch['tokens'][row][:size]) == sorted(text)
    assert batch['labels'][row][:size].tolist() == text


def test_smoothing_and_the_softmax_denominator():
  logits = jnp.log(jnp.array([[[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]]])) + 2
  batch = {'labels': jnp.array([[0, 1]]), 'weights': jnp.array([[1.0, 0.0]]),
           'content': jnp.array([[1.0, 0.0]])}
  objective = MixtureOfDenoisers(smoothing=0.1, z_loss=1e-4)
  assert objective.terms == {'seq2seq': 0.9, 'even': 0.1, 'z': 1e-4}
  losses = {name: float(total)
            for name, (total, _) in objective.loss({'lm': logits}, batch).items()}
  even = -(np.log(0.5) + 2 * np.log(0.25)) / 3
  assert losses == pytest.approx({'seq2seq': np.log(2), 'seq2seq_accuracy': 1, 'even': even,
                                  'z': 4}, rel=1e-5)
  assert MixtureOfDenoisers().terms == {'seq2seq': 1.0}


@pytest.mark.parametrize('some', [
    (SpanCorruption(),), (TokenCorruption(),), (PrefixLM(),), (Deshuffling(),), UL2_DENOISERS,
    (SpanCorruption(0.5),),
    (SpanCorruption(0.7, 1.0), TokenCorruption())],
    ids=['t5', 'tokens', 'prefix', 'deshuffling', 'ul2', 'half', 'most'])
def test_the_length_of_rows_is_known_from_their_windows(some):
  """Also at lengths whose rows are filled by no more text than those a token shorter: of UL2 99 and
  229."""
  objective = MixtureOfDenoisers(some)
  lengths = [*range(16, 44), *range(96, 101), 228, 229, 489, 1009, 2048]
  assert [objective.row_length(objective.text_length(length)) for length in lengths] == lengths


def test_rows_are_of_the_length_that_was_asked_for():
  for length in (8, 11, 99):
    objective = MixtureOfDenoisers((SpanCorruption(0.5), SpanCorruption(0.5, 8.0)))
    windows = {name: np.ones((1, objective.text_length(length)), np.int32)
               for name in ('tokens', 'segments')}
    windows |= {name: np.zeros(1, np.int32) for name in ('corpus', 'index', 'epoch')}
    corrupt = functools.partial(objective.corrupt, jax.random.key(0), vocab=VOCAB)
    shapes = jax.eval_shape(corrupt, windows)
    assert shapes['tokens'].shape == (1, length) and shapes['labels'].shape == (
        1, objective.max_predictions(length))


def test_sentinels_are_enough():
  windows = jax.tree.map(jnp.asarray, tiny.windows(1, MixtureOfDenoisers().text_length(64)))
  with pytest.raises(ValueError, match='rows of 64 tokens need 4 sentinels, and there are 3'):
    MixtureOfDenoisers(sentinels=3).corrupt(jax.random.key(0), windows, VOCAB)
  with pytest.raises(ValueError,
                     match='the tokenizer has 100 sentinels, and the objective expects 101'):
    MixtureOfDenoisers(sentinels=101).corrupt(jax.random.key(0), windows, VOCAB)


@pytest.mark.slow
def test_rows_of_the_paper_s_length():
  """UL2's 512 tokens: half of a text in spans of three is 127 sentinels, and one more, and three
  modes."""
  objective = MixtureOfDenoisers(UL2_DENOISERS, sentinels=160)
  vocab = dataclasses.replace(VOCAB, size=2000, sentinel=1999, sentinels=160)
  tokens = np.random.default_rng(0).integers(5, 1800, (16, objective.text_length(512)), np.int32)
  ones, number = np.ones_like(tokens), np.arange(16)
  windows = dict(tokens=tokens, segments=ones, sentences=ones, document=number, index=number,
                 corpus=0 * number,
                 epoch=0 * number)
  batch = jax.device_get(jax.jit(lambda w: objective.corrupt(jax.random.key(7), w, vocab))(windows))
  modes = batch['tokens'][:, 0] - 1839
  assert set(modes) == {1, 2, 3} and (batch['segments'].sum(1) <= 512).all()
  used = [1999 - row[row > 1842].min() + 1 for row in batch['tokens']]
  assert max(used) == 127 and batch['tokens'].shape == (16, 512)


def test_a_fixed_prefix_is_half_of_the_text_without_sentinels():
  """T5Gemma: a decoder's vocabulary, whose start token the decoder begins with."""
  objective = MixtureOfDenoisers((PrefixLM(fixed=True),))
  vocab = Vocab(size=60, pad=0, eos=1, bos=2)
  assert objective.special_tokens == ('eos',)
  assert (objective.text_length(9), objective.max_predictions(9)) == (16, 9)
  lengths = [objective.row_length(objective.text_length(length)) for length in (8, 9, 64)]
  assert lengths == [8, 9, 64]
  windows = {'tokens': jnp.arange(16)[None].repeat(2, 0) + 10,
             'segments': jnp.array([[1] * 16, [1] * 5 + [0] * 11]),
             'index': jnp.arange(2), 'epoch': jnp.zeros(2, int), 'corpus': jnp.zeros(2, int)}
  batch = jax.device_get(objective.corrupt(jax.random.key(0), windows, vocab))
  assert batch['tokens'].tolist() == [[*range(10, 18), 1], [10, 11, 12, 1] + [0] * 5]
  assert batch['labels'].tolist() == [[*range(18, 26), 1], [13, 14, 1] + [0] * 6]
  assert batch['decoder_tokens'][0].tolist() == [2, *range(18, 26)]
  assert batch['weights'].sum(1).tolist() == [9, 3]


def test_fixed_targets_fill_the_decoder_whatever_their_share():
  for share in (0.5, 0.25, 0.1):
    denoiser = PrefixLM(share, 'unique', 1, fixed=True)
    for length in (8, 33, 128):
      size = denoiser.text_length(length)
      kept = size - int(denoiser.longest(size, np))
      assert kept + 3 <= length < kept + 5, 'sentinel, task token and end token are in the row'
