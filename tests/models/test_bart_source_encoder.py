"""BART with a source encoder: its inputs, and the parameters that each of the two stages
updates."""
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax.architectures.encoder_decoder import EncoderDecoderConfig
from plm_jax.inference import engine
from plm_jax.inference.decoder_steps import EncoderDecoderSteps
from plm_jax.inference.search import OutputVocab
from plm_jax.layers.stack import StackConfig
from plm_jax.loading.generation_config import GenerationConfig
from plm_jax.models import bart
from plm_jax.objectives.seq2seq import SequenceToSequence
from plm_jax.optim.optimizers import AdamW
from plm_jax.optim.transformations import make_optimizer
from plm_jax.training.step import Learner, TrainState, init_state, train_step

PLAIN = EncoderDecoderConfig(
    40, tiny.block(), StackConfig(2), StackConfig(1), max_length=16, absolute='learned',
    first_position=2,
    embed_norm=True)
CONFIG = bart.add_source_encoder(PLAIN, layers=2)


class ByHand(SequenceToSequence):
  """Batches as they are."""

  def text_length(self, length):
    return length

  def max_predictions(self, length):
    return length

  def corrupt(self, key, windows, vocab):
    return windows


def batch(seed=0):
  draw = np.random.default_rng(seed)
  source, target = draw.integers(4, 40, (2, 4, 8)).astype(np.int32)
  real = (np.arange(8) < [[8], [5], [3], [8]]).astype(np.int32)
  target = target * real
  weights = real.astype(np.float32)
  return dict(tokens=source * real, segments=real, decoder_tokens=np.roll(target, 1, 1),
              decoder_segments=real,
              labels=target, weights=weights, content=weights)


@pytest.fixture(scope='module')
def params():
  learner = Learner(ByHand().build(CONFIG, False), ByHand(), make_optimizer(AdamW(), 10), None, 0)
  return tiny.random_params(jax.eval_shape(lambda: init_state(learner, batch()).params))


def after(params, only, steps=3):
  """-> the parameters that have other bits: names, and where there are layers which."""
  optim = AdamW(peak=1e-2, warmup=0, schedule='constant', only=only)
  learner = Learner(ByHand().build(CONFIG, False), ByHand(), make_optimizer(optim, 10), None, 0)
  zero = jnp.zeros((), jnp.int32)
  state = TrainState(zero, params, learner.optimizer.init(params), zero, zero)
  update = jax.jit(lambda state, rows: train_step(learner, state, rows)[0])
  for step in range(steps):
    state = update(state, batch(step))
  moved = set()
  for name, x in tiny.flat(state.params).items():
    changed = np.asarray(x).view(np.int32) != np.asarray(tiny.flat(params)[name]).view(np.int32)
    if '/layers/' in name:
      moved |= {f'{name}[{number}]' for number, rows in enumerate(changed) if rows.any()}
    elif changed.any():
      moved.add(name)
  return moved


def named(params):
  return {one for name, x in tiny.flat(params).items() for one in (
      [f'{name}[{n}]' for n in range(len(x))] if '/layers/' in name else [name])}


def test_the_source_encoder_has_separate_parameters(params):
  backbone = params['backbone']
  assert backbone['source']['embeddings']['tokens'].shape == backbone['tokens'].shape
  assert 'tokens' not in backbone['encoder']['embeddings'] and set(backbone) == {
      'tokens', 'source', 'encoder', 'decoder'}


@pytest.mark.slow
def test_the_encoder_reads_the_outputs_of_the_source_encoder(params):
  """And never BART's embeddings of the source tokens, which only the decoder uses."""
  table = params['backbone']['tokens']
  rows = batch()
  encode = jax.jit(lambda table, source: CONFIG.backbone().apply(
      {'params': {**params['backbone'], 'tokens': table, 'source': source}}, rows).encoded)
  source = params['backbone']['source']
  plain = encode(table, source)
  np.testing.assert_array_equal(encode(table + 1, source), plain)
  shifted = {**source, 'embeddings': {**source['embeddings'],
                                      'tokens': source['embeddings']['tokens'][::-1]}}
  assert np.abs(encode(table, shifted) - plain).max() > 0.1
  # With vectors instead of its own embeddings, BART is unchanged.
  made = jax.jit(lambda: dataclasses.replace(CONFIG, stack=CONFIG.source, source=StackConfig(0),
                                             decoder=StackConfig(0))
                 .backbone().apply({'params': {'tokens': source['embeddings']['tokens'],
                                               'encoder': {
                     **source, 'embeddings': {n: x for n, x in source['embeddings'].items() if n
                                              != 'tokens'}}}},
                                   rows).encoded)()
  ids = jnp.arange(32).reshape(4, 8)
  read = jax.jit(lambda: PLAIN.backbone().apply(
      {'params': {n: x for n, x in params['backbone'].items() if n != 'source'} | {
          'tokens': jnp.pad(made.reshape(32, -1), ((0, 8), (0, 0)))}},
          {**rows, 'tokens': ids}).encoded)()
  real = rows['segments'][..., None]
  np.testing.assert_allclose(read * real, plain * real, atol=1e-5)


@pytest.mark.slow
def test_which_parameters_the_first_stage_moves(params):
  moved = after(params, bart.SOURCE_STAGE)
  source = {name for name in named(params) if name.startswith('backbone/source/')}
  first = {f'backbone/encoder/stack/layers/block/attention/{name}/{part}[0]'
           for name in ('query', 'key', 'value') for part in ('kernel', 'bias')}
  assert moved == source | first | {f'backbone/{side}/embeddings/positions'
                                    for side in ('encoder', 'decoder')}


@pytest.mark.release
@pytest.mark.slow
def test_the_second_stage_moves_all(params):
  assert after(params, ()) == named(params)


@pytest.mark.slow
def test_generation_equals_full_passes(params):
  """The generation engine has no code for source encoders."""
  head, rows = ByHand().heads(CONFIG)['lm'], batch()
  steps = EncoderDecoderSteps(CONFIG, head)
  start = jnp.full((4, 1), 2)
  prompts = {'source': rows['tokens'], 'source_segments': rows['segments'], 'tokens': start,
             'segments': jnp.ones_like(start)}
  found = engine.generate_tokens(
    steps, steps.load_params(params), prompts, GenerationConfig(7), OutputVocab(40, (), 0)
  )['tokens'][:, 0]
  read = jnp.concatenate([start, found], 1)
  whole = jax.jit(lambda: ByHand().build(CONFIG, False).apply({'params': params}, {
      **rows, 'decoder_tokens': read, 'decoder_segments': jnp.ones_like(read)})['lm'])()
  np.testing.assert_array_equal(found, whole[:, :-1].argmax(-1))
  assert len(np.unique(found, axis=0)) > 1


def test_operations_count_the_source_encoder():
  extra = CONFIG.forward_flops(16, 8) - PLAIN.forward_flops(16, 8)
  deeper = dataclasses.replace(PLAIN, stack=StackConfig(4)).forward_flops(
      16, 8) - PLAIN.forward_flops(16, 8)
  assert extra == deeper > 0
