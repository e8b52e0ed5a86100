"""Masked and causal rows of one batch."""
import dataclasses
import types
from typing import Any

import backbones
from flax.linen import unbox
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import recipes, validation
from plm_jax.errors import ConfigError
from plm_jax.models import gpt_bert
from plm_jax.objectives import PROGRESS
from plm_jax.objectives.clm import CausalLM
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.mntp import MaskedNextToken
from plm_jax.objectives.row_builders import Single
from plm_jax.optim.optimizers import OptimConfig, make_schedule
from plm_jax.tokenizers.contract import Vocab

VOCAB = Vocab(40, 0, unk=1, cls=2, sep=3, mask=4)
ROWS, TEXT = 48, 32


def windows(rows=ROWS, text=TEXT):
  """Two documents in each row, and padding at its end."""
  draw = np.random.default_rng(0)
  segments = np.repeat([1, 2, 0], [11, text - 19, 8])[None].repeat(rows, 0).astype(np.int32)
  tokens = np.where(segments > 0, draw.integers(5, 40, (rows, text)), 0).astype(np.int32)
  return {'tokens': tokens, 'segments': segments,
          'words': np.arange(1, text + 1)[None].repeat(rows, 0),
          'corpus': np.zeros(rows, np.int32), 'index': np.arange(rows, dtype=np.int32),
          'epoch': np.zeros(rows, np.int32)}


def corrupt(objective, found, key=0):
  return jax.tree.map(np.asarray,
                      jax.jit(lambda w: objective.corrupt(jax.random.key(key), w, VOCAB))(found))


def test_rows_are_masked_or_causal_and_labels_stand_one_place_before():
  objective, found = MaskedNextToken(causal=0.25, mask_share=1, random_share=0), windows()
  batch = corrupt(objective, found | {PROGRESS: np.float32(0)})
  causal = batch['causal'].astype(bool)
  assert 5 <= causal.sum() <= 20 and batch['tokens'].shape == (ROWS, TEXT)
  # Both documents begin with [CLS], and all tokens of both are labels.
  assert (batch['tokens'][:, [0, 12]] == VOCAB.cls).all()
  np.testing.assert_array_equal(batch['labels'][:, :11], found['tokens'][:, :11])
  np.testing.assert_array_equal(batch['labels'][:, 12:12 + TEXT - 19],
                                found['tokens'][:, 11:TEXT - 8])
  assert (batch['ranks'][causal] == np.arange(TEXT)).all() and not batch['ranks'][~causal].any()
  # A causal row is as it was, and everything in it is predicted: 24 tokens, and the end of the
  # first document.
  assert VOCAB.mask not in batch['tokens'][causal] and (batch['weights'][causal].sum(1) == TEXT - 8
                                                        + 1).all()
  # In a masked one what is hidden is predicted where the token before it stands: a share of 0.3 of
  # 23, for the last token is not read.
  hidden = batch['tokens'][~causal] == VOCAB.mask
  assert (hidden.sum(1) == 7).all() and not hidden[:, 0].any()
  np.testing.assert_array_equal(batch['weights'][~causal][:, :-1], hidden[:, 1:])
  shown = np.roll(batch['tokens'][~causal], -1, 1)
  text = (batch['segments'][~causal] > 0) & (np.roll(batch['place'][~causal], -1, 1) > 0)
  keep = text[:, :-1] & ~hidden[:, 1:]
  np.testing.assert_array_equal(shown[:, :-1][keep], batch['labels'][~causal][:, :-1][keep])


@pytest.mark.slow
def test_shares_of_hidden_tokens_fall_and_spans_are_short():
  found = {name: x[:8] for name, x in windows().items()}
  def hidden(objective, more):
    return (corrupt(objective, found | more)['weights'].sum(1)).tolist()
  masked = MaskedNextToken(causal=0)
  # 0.15 of 23 is 3.45
  assert hidden(masked, {PROGRESS: np.float32(1)}) == [3] * 8 == hidden(masked, {})
  assert hidden(dataclasses.replace(masked, held_out_mask_rate=0.5), {}) == [12] * 8
  assert masked.step_traits.needs_progress
  assert not dataclasses.replace(masked, final_mask_rate=None).step_traits.needs_progress
  only = MaskedNextToken(causal=0, lengths=(0, 0, 1), final_mask_rate=0.25, mask_share=1,
                         random_share=0)
  tokens = corrupt(only, found)['tokens'] == VOCAB.mask
  assert (tokens.sum(1) == 6).all() and (tokens[:, :-1] & tokens[:, 1:]).sum() >= 8 * 3


@pytest.mark.slow
def test_what_is_drawn_is_of_the_seed_the_example_and_the_epoch():
  objective, found = MaskedNextToken(causal=0.5), windows()
  whole = corrupt(objective, found)
  order = np.random.default_rng(1).permutation(ROWS)[:16]
  some = corrupt(objective, {name: x[order] for name, x in found.items()})
  for name, x in some.items():
    np.testing.assert_array_equal(x, whole[name][order], err_msg=name)
  for other in corrupt(objective, found, key=1), corrupt(objective,
                                                         found | {'epoch': found['epoch'] + 1}):
    assert (other['causal'] != whole['causal']).any() and (other['tokens'] != whole['tokens']).any()


def tiny() -> Any:
  return validation.with_paths(gpt_bert.base(), {
      'block.width': 24, 'block.heads': 3, 'block.mlp_dim': 16, 'stack.layers': 2, 'vocab': 40,
      'max_length': 32,
      'block.init.std': 0.3})


@pytest.mark.slow
def test_causal_rows_see_nothing_to_the_right_and_masked_rows_do():
  """By the gradient of every prediction by every token, in a row of two documents: of either
  kind."""
  objective = MaskedNextToken(causal=0.5, z_loss=1e-4)
  batch = {name: x[:4] for name, x in corrupt(objective, windows(8, 26)).items()}
  assert 0 < batch['causal'].sum() < 4
  model = objective.build(tiny(), packed=True)
  # Only where sums read all states can a leak of any layer show.
  params: Any = unbox(jax.jit(model.init)(jax.random.key(0), batch)['params'])
  sums = params['backbone']['stack']['layers']
  sums |= {name: x + 0.3 for name, x in sums.items() if name.startswith('sum_')}
  def total(noise, at):
    logits: Any = model.apply({'params': params}, batch | {'noise': noise})
    return (logits['mlm'][:, at] ** 3).sum()
  size = batch['tokens'].shape[1]
  gradients = jax.jit(jax.vmap(jax.grad(total), (None, 0)))(jnp.zeros((4, size, 24)),
                                                            jnp.arange(size))
  moved = np.asarray(abs(gradients).max(-1) > 0).swapaxes(0, 1)  # [row, prediction, token]
  own = (batch['segments'][:, :, None] == batch['segments'][:, None]) & (batch['segments'] > 0)[
      :, None]
  left = np.tril(np.ones((size, size), bool))
  real = batch['segments'] > 0
  for row, causal in enumerate(batch['causal']):
    want = own[row] & left if causal else own[row]
    np.testing.assert_array_equal(moved[row][real[row]], want[real[row]])


def test_losses_are_means_of_their_kind_of_row():
  objective, labels = MaskedNextToken(causal=0.25, z_loss=0.1), jnp.zeros((4, 6), jnp.int32)
  batch = {'labels': labels, 'causal': jnp.array([0, 0, 0, 1]),
           'weights': jnp.ones((4, 6)).at[:3, 2:].set(0)}
  logits = jnp.zeros((4, 6, 8)).at[3, :, 0].set(1.0)
  losses = objective.loss({'mlm': logits}, batch)
  assert {name: float(losses[name][1]) for name in ('mntp', 'clm', 'mntp_z', 'clm_z')} == {
      'mntp': 6, 'clm': 6, 'mntp_z': 6, 'clm_z': 6}
  total, weight = losses['clm']
  assert float(total / weight) == pytest.approx(np.log(7 + np.e)
                                                - 1) and float(losses['clm_accuracy'][0]) == 6
  assert objective.terms == {'mntp': 0.75, 'clm': 0.25, 'mntp_z': pytest.approx(0.075),
                             'clm_z': pytest.approx(0.025)}
  assert MaskedNextToken(causal=0).terms == {'mntp': 1.0}
  assert {*MaskedNextToken(causal=1).loss({'mlm': logits}, batch)} == {'clm', 'clm_accuracy'}


def test_model_and_objective_go_together():
  with pytest.raises(ValueError, match=r'give model\.head\.shifted=False'):
    MaskedLM(pair=Single()).build(tiny(), packed=True)
  with pytest.raises(ValueError,
                     match=r'give model\.head\.shifted=True, as the recipe gpt_bert_strict_small '
                           r'does'):
    MaskedNextToken().build(validation.with_paths(tiny(), {'head.shifted': False}), packed=True)
  with pytest.raises((ConfigError, ValueError), match='lengths are probabilities and sum to 1'):
    validation.check(MaskedNextToken(lengths=(0.5, 0.1)))
  with pytest.raises((ConfigError, ValueError), match=r'together 1 at most, got 0\.95 and 0\.1'):
    validation.check(MaskedNextToken(mask_share=0.95))
  with pytest.raises((ConfigError, ValueError), match='summed is of layers of two sublayers'):
    validation.check(validation.with_paths(tiny(), {'windows': (0, 8)}))


@pytest.fixture
def decoder() -> Any:
  return validation.with_paths(
      backbones.small('llama', 40, 32), {'causal': False, 'block.init.std': 0.3})


def test_targets_of_a_decoder_are_predicted_from_the_tokens_before_them(decoder):
  """LLM2Vec: `_` takes the place of [MASK]. One sequence by hand: [BOS] 8 9 _ 11 [BOS] _ 13."""
  objective = MaskedNextToken(
      causal=0, mask_rate=0.2, final_mask_rate=None, lengths=(1,), mask_share=1, random_share=0,
      mask_token='_')
  tokenizer = types.SimpleNamespace(pieces=[*'abcdefg', '_'])
  zero = np.zeros(1, np.int32)
  text = {'index': zero, 'epoch': zero, 'corpus': zero,
          'tokens': np.array([[8, 9, 10, 11, 12, 13, 0, 0]], np.int32),
          'segments': np.array([[1, 1, 1, 1, 2, 2, 0, 0]], np.int32)}
  found = dict(objective.add_token_info(text, tokenizer))
  assert found['mask'].tolist() == [7]
  assert objective.shapes(1, 8)['mask'].shape == (1,)
  vocab = Vocab(40, 0, unk=1, bos=2, eos=3)
  batch = jax.jit(lambda w: objective.corrupt(jax.random.key(3), w, vocab))(found)
  tokens, labels = np.asarray(batch['tokens'])[0], np.asarray(batch['labels'])[0]
  assert labels.tolist() == [8, 9, 10, 11, 3, 12, 13, 0]
  masked = tokens == 7
  assert masked.sum() == 1  # a fifth of 8, 9, 10, 11 and 12, which are read
  assert tokens[~masked].tolist() == [x for x, hidden in zip(
      [2, 8, 9, 10, 11, 2, 12, 0], masked, strict=True) if not hidden]
  # The weight is at the position before, whose label is the masked token.
  at, = np.flatnonzero(masked)
  assert np.flatnonzero(batch['weights'][0]).tolist() == [at - 1]
  assert labels[at - 1] == [2, 8, 9, 10, 11, 2, 12][at]
  # The loss is the cross-entropy of that label at that position.
  model = objective.build(decoder, packed=True)
  params = unbox(jax.jit(model.init)(jax.random.key(0), batch)['params'])
  outputs: Any = model.apply({'params': params}, batch)
  total, weight = objective.loss(outputs, batch)['mntp']
  logits = np.asarray(outputs['lm'], np.float64)[0, at - 1]
  expected = np.log(np.exp(logits).sum()) - logits[labels[at - 1]]
  assert (float(total), float(weight)) == (pytest.approx(expected, rel=1e-5), 1)


def test_decoders_are_bidirectional_with_one_objective_and_causal_with_the_other(decoder):
  causal = validation.with_paths(decoder, {'causal': True})
  with pytest.raises(ConfigError, match=r'give model\.causal=False'):
    MaskedNextToken().build(causal, packed=True)
  explain = CausalLM().requirements.incompatibility
  assert explain((), causal) is None
  with pytest.raises(ConfigError, match=r'model\.causal is False, and the next token would be'):
    raise ConfigError(explain((), decoder))
  unknown = types.SimpleNamespace(pieces=['a'])
  with pytest.raises(ConfigError, match="mask_token is '_', which is no token"):
    MaskedNextToken(mask_token='_').add_token_info(windows(1), unknown)


def test_the_run_is_the_released_one():
  """train_10m.py: rows of 128, 256 and 512, batches that grow from a quarter; utils.py: the
  rate."""
  config = recipes.find_recipe('gpt_bert_strict_small')()
  phases = config.train.phases
  assert sum(phase.steps for phase in phases) == 7812 and len(phases) == 10
  assert [phase.length for phase in phases] == [128] * 7 + [256] * 2 + [512]
  assert (phases[0].batch, phases[6].batch, phases[7].batch,
          phases[9].batch) == (9216, 24_576, 13_312, 8192)
  assert config.objective.terms == pytest.approx(
      {'mntp': 15 / 16, 'clm': 1 / 16, 'mntp_z': 15e-4 / 16, 'clm_z': 1e-4 / 16})
  rate = make_schedule(config.optim, 7812)
  assert [float(rate(step)) for step in (0, 62, 124, 7812 - 124, 7812 - 62)] == pytest.approx(
      [0, 0.00705, 0.0141, 0.00141, 0.000705], rel=0.02)
  assert (config.optim.ema, config.optim.exempt) == (0.999, OptimConfig.exempt)
