"""BART, mBART and Marian with untied embeddings, compared with transformers if it and torch are
installed; BART with a source encoder: its inputs, and the parameters that each of the two stages
updates."""
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax import conversion
from plm_jax.architectures.encoder_decoder import EncoderDecoderConfig
from plm_jax.inference import engine
from plm_jax.inference.decoder_steps import EncoderDecoderSteps
from plm_jax.inference.search import OutputVocab
from plm_jax.layers.stack import StackConfig
from plm_jax.loading.generation_config import GenerationConfig
from plm_jax.models import bart, transformer
from plm_jax.models.rules import ConvertError
from plm_jax.objectives.seq2seq import SequenceToSequence
from plm_jax.optim.optimizers import AdamW
from plm_jax.optim.transformations import make_optimizer
from plm_jax.training.step import Learner, TrainState, init_state, train_step

SIZES = dict(
    vocab_size=50, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
    decoder_attention_heads=2,
    encoder_ffn_dim=20, decoder_ffn_dim=20, max_position_embeddings=24, pad_token_id=1,
    bos_token_id=0, eos_token_id=2,
    decoder_start_token_id=2, forced_eos_token_id=2)


@pytest.mark.slow
@pytest.mark.parametrize(('family', 'name', 'changes'), [
    ('bart', 'BartForConditionalGeneration', {'tie_word_embeddings': False}),
    ('mbart', 'MBartForConditionalGeneration', {'tie_word_embeddings': False}),
    ('marian', 'MarianMTModel', {'share_encoder_decoder_embeddings': False}),
    ('marian', 'MarianMTModel', {'share_encoder_decoder_embeddings': False,
                                 'tie_word_embeddings': False})],
    ids=['bart', 'mbart', 'marian', 'marian_untied'])
def test_untied_embeddings_of_encoder_and_decoder(tmp_path, family, name, changes):
  """Import gives the same logits, and transformers reads the export as the same model."""
  torch, transformers = pytest.importorskip('torch'), pytest.importorskip('transformers')
  pytest.importorskip('safetensors')
  torch.manual_seed(0)
  cls = getattr(transformers, name)
  model = cls(cls.config_class(**SIZES, **changes)).eval()
  with torch.no_grad():
    for parameter in model.parameters():
      if parameter.requires_grad:  # sinusoidal positions are fixed
        parameter.add_(0.2 * torch.randn_like(parameter))
  model.save_pretrained(tmp_path / 'theirs')
  draw = np.random.default_rng(0)
  tokens, written = draw.integers(3, 50, (2, 12)), draw.integers(3, 50, (2, 8))
  def logits(model):
    with torch.no_grad():
      return model(input_ids=torch.tensor(tokens),
                   decoder_input_ids=torch.tensor(written)).logits.numpy()

  imported = conversion.load(tmp_path / 'theirs')
  batch = {'tokens': tokens, 'segments': np.ones_like(tokens), 'decoder_tokens': written,
           'decoder_segments': np.ones_like(written)}
  own = imported.model()
  with jax.default_matmul_precision('highest'):
    got = jax.jit(lambda params: own.apply({'params': params}, batch))(imported.params)
  np.testing.assert_allclose(got['lm'], logits(model), atol=2e-5)
  assert imported.config.separate_embeddings

  conversion.save(tmp_path / 'ours', imported.config, imported.params,
                  like=conversion.ExportTemplate(family))
  again, report = cls.from_pretrained(tmp_path / 'ours', output_loading_info=True)
  np.testing.assert_array_equal(logits(again.eval()), logits(model))
  assert not any(report.values())


def test_two_vocabularies_are_refused():
  said = {'vocab_size': 50, 'decoder_vocab_size': 60, 'share_encoder_decoder_embeddings': False}
  with pytest.raises(ConvertError, match=r'vocabularies of unequal size .* \[50, 60\]'):
    transformer.normalize_hf_config(said)


# The source encoder.

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
