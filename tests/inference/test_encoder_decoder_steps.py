"""Decoding token by token after an encoder equals one pass of both."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax import tokenizers
from plm_jax.architectures.encoder_decoder import EncoderDecoderConfig, initial_cache
from plm_jax.inference import engine, generate
from plm_jax.inference.decoder_steps import EncoderDecoderSteps
from plm_jax.inference.search import OutputVocab
from plm_jax.layers.heads import ModelWithHeads, NextTokenHead
from plm_jax.layers.stack import StackConfig
from plm_jax.layers.t5_relative_bias import Buckets
from plm_jax.loading.generation_config import GenerationConfig
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.tokenizers import Vocab
from plm_jax.tokenizers.contract import delimiters

VOCAB, LENGTH, NEW = 40, 9, 8
KINDS = {
    'buckets': dict(tied=False, block=tiny.block(
        norm_at='pre', norm=dict(kind='rms'), attention=dict(position=Buckets(8, 6), bias=()),
        mlp=dict(bias=False))),
    'learned': dict(block=tiny.block(norm_at='post'), absolute='learned', max_length=32,
                    first_position=2,
                    embed_norm=True, logit_bias=True),
}
SOURCES = jnp.array([[7, 3, 9, 11, 2, 0, 0, 0, 0], [5, 8, 8, 1, 4, 6, 9, 21, 30],
                     [17, 2, 0, 0, 0, 0, 0, 0, 0]])
BATCH = {'source': SOURCES, 'source_segments': (SOURCES > 0).astype(int),
         'tokens': jnp.full((3, 1), 39),
         'segments': jnp.ones((3, 1), int)}


TEXTS = [f'The cat number {i} sat on the mat, and the dogs of street {i * 7} barked.'
         for i in range(60)]


class Model:
  """An encoder-decoder of one kind."""

  def __init__(self, kind):
    self.config = EncoderDecoderConfig(VOCAB, stack=StackConfig(1), decoder=StackConfig(2),
                                       **KINDS[kind])
    self.head = NextTokenHead(self.config.block, VOCAB, self.config.tied,
                              bias=self.config.logit_bias)
    self.model = ModelWithHeads(self.config.backbone(), {'lm': self.head})
    zeros = dict.fromkeys(('tokens', 'segments', 'decoder_tokens', 'decoder_segments'),
                          jnp.zeros((1, 4), int))
    self.params = tiny.random_params(
        jax.eval_shape(lambda: self.model.init(jax.random.key(0), zeros)['params']), std=0.3)
    self.whole = jax.jit(lambda tokens: self.model.apply({'params': self.params}, {
        'tokens': SOURCES, 'segments': BATCH['source_segments'], 'decoder_tokens': tokens,
        'decoder_segments': jnp.ones_like(tokens)})['lm'])

  def steps(self, apart):
    return EncoderDecoderSteps(self.config, self.head, apart)


@pytest.fixture(scope='module', params=[
    pytest.param(kind, marks=[pytest.mark.slow] * (kind != 'buckets')) for kind in KINDS])
def model(request):
  return Model(request.param)


@pytest.fixture(scope='module')
def written(model):
  """Greedy output, with a full pass for every step: [B, 1 + NEW]."""
  tokens = np.zeros((3, 1 + NEW), np.int32)
  tokens[:, 0] = 39
  for place in range(NEW):
    tokens[:, place + 1] = np.asarray(model.whole(jnp.asarray(tokens)))[:, place].argmax(-1)
  return tokens


@pytest.mark.slow
@pytest.mark.parametrize('apart', [True, False], ids=['apart', 'scanned'])
def test_token_by_token(model, written, apart):
  steps = model.steps(apart)
  found = engine.generate_tokens(
    steps, steps.load_params(model.params), BATCH, GenerationConfig(NEW), OutputVocab(VOCAB, (), 0)
  )
  np.testing.assert_array_equal(found['tokens'][:, 0], written[:, 1:])


@pytest.mark.slow
def test_beam_scores_equal_a_full_pass(model):
  """Beams of one source share its memory, whichever of them continue."""
  steps, beams = model.steps(True), 3
  found = engine.generate_tokens(
    steps,
    steps.load_params(model.params),
    BATCH,
    GenerationConfig(NEW, beams=beams, number=beams),
    OutputVocab(VOCAB, (), 0),
  )
  for beam in range(beams):
    tokens = np.asarray(found['tokens'][:, beam])
    read = jnp.asarray(np.concatenate([np.full((3, 1), 39), tokens], 1))
    logprobs = np.asarray(jax.nn.log_softmax(model.whole(read)))[:, :-1]
    score = np.take_along_axis(logprobs, tokens[..., None], 2).sum((1, 2)) / NEW
    np.testing.assert_allclose(found['scores'][:, beam], score, atol=2e-5)


def test_first_and_last_tokens_can_be_forced(model):
  steps = model.steps(True)
  found = engine.generate_tokens(
    steps,
    steps.load_params(model.params),
    BATCH,
    GenerationConfig(NEW, forced_first=4, forced_last=2),
    OutputVocab(VOCAB, (), 0),
  )
  assert found['tokens'][:, 0, 0].tolist() == [4] * 3
  assert found['tokens'][:, 0, -1].tolist() == [2] * 3


@pytest.mark.slow
def test_a_source_is_read_once(model, written):
  """Decoding steps do not use the parameters of the encoder, nor those of the cross-attention
  keys and values: here they are nan."""
  backbone = model.config.backbone()
  batch = {'tokens': SOURCES, 'segments': BATCH['source_segments'],
           'decoder_tokens': jnp.asarray(written[:, :3]),
           'decoder_segments': jnp.ones((3, 3), int)}
  def start(params):
    output = backbone.apply({'params': params}, batch, remember=True)
    return initial_cache(model.config, output, batch, 1 + NEW)
  def step(params, cache):
    one = {'decoder_tokens': jnp.asarray(written[:, 3:4]),
           'decoder_segments': jnp.ones((3, 1), int),
           'decoder_place': jnp.full((3, 1), 3)}
    return backbone.apply({'params': params}, one, cache=cache).hidden
  params = model.params['backbone']
  cache = jax.jit(start)(params)
  spoiled = jax.tree_util.tree_map_with_path(lambda path, x: x * np.nan if unused(path) else x,
                                             params)
  assert any(unused(path) for path, _ in jax.tree_util.tree_leaves_with_path(params))
  stepped = jax.jit(step)
  np.testing.assert_array_equal(stepped(spoiled, cache), stepped(params, cache))


def unused(path) -> bool:
  names = [entry.key for entry in path]
  return names[0] == 'encoder' or ('cross' in names
                                   and names[names.index('cross') + 1] in ('key', 'value'))


@pytest.mark.slow
def test_padding_of_the_source_changes_nothing(model):
  """As many more columns of it as there are."""
  steps = model.steps(True)
  params, config = steps.load_params(model.params), GenerationConfig(4)
  wider = {**BATCH, **{name: jnp.pad(BATCH[name], ((0, 0), (0, LENGTH)))
                       for name in ('source', 'source_segments')}}
  short, long = (
    engine.generate_tokens(steps, params, batch, config, OutputVocab(VOCAB, (), 0))['tokens']
    for batch in (BATCH, wider)
  )
  np.testing.assert_array_equal(short, long)


@pytest.mark.slow
def test_a_bias_of_logits_is_not_trained():
  model = Model('learned')
  batch = {'tokens': SOURCES, 'segments': BATCH['source_segments'], 'decoder_tokens': SOURCES,
           'decoder_segments': BATCH['source_segments']}
  def loss(params):
    logits = model.model.apply({'params': params}, batch)['lm']
    return jnp.square(logits).mean()
  gradient = jax.jit(jax.grad(loss))(model.params)
  np.testing.assert_array_equal(gradient['heads_lm']['bias'], np.zeros(VOCAB))
  assert np.abs(gradient['backbone']['tokens']).max() > 0
  without = NextTokenHead(model.config.block, VOCAB)
  @jax.jit
  def both(params):
    output = model.config.backbone().apply({'params': params['backbone']}, batch)
    return without.apply({'params': {}}, output,
                         batch), model.head.apply({'params': params['heads_lm']}, output, batch)
  plain, biased = both(model.params)
  np.testing.assert_allclose(biased - plain,
                             np.broadcast_to(model.params['heads_lm']['bias'], plain.shape),
                             atol=1e-5)


def test_start_and_end_tokens_of_the_decoder():
  assert delimiters(Vocab(40, pad=0, eos=1, unk=2, sentinel=39)) == ((), (1,), 0)  # T5
  assert delimiters(Vocab(40, pad=0, eos=1, unk=2)) == ((), (1,), 0)  # Marian
  assert delimiters(Vocab(40, cls=0, bos=0, pad=1, sep=2, eos=2)) == ((0,), (2,), 2)  # BART
  with pytest.raises(ValueError, match='needs a token that ends a text'):
    delimiters(Vocab(40, pad=0))


@pytest.mark.slow
def test_prompts_go_to_the_encoder():
  tokenizer = tokenizers.train_sentencepiece(TEXTS, 170, layout='t5')
  config = EncoderDecoderConfig(176, tiny.block(attention=dict(position=Buckets(8, 6))),
                                StackConfig(1), StackConfig(1))
  head = NextTokenHead(config.block, config.vocab)
  shapes = jax.eval_shape(lambda: config.backbone().init(jax.random.key(0), dict.fromkeys(
      ('tokens', 'segments', 'decoder_tokens', 'decoder_segments'),
      jnp.zeros((1, 4), int)))['params'])
  params = {'backbone': tiny.random_params(shapes, std=0.3)}
  trained = LoadedModel('t5', config, {'lm': head}, params, tokenizer)
  prompts = ['The cat sat on<extra_id_0>', 'dogs']
  found = generate.generate(trained, prompts, GenerationConfig(4))

  ids = [[*tokenizer.encode('The cat sat on'), 169, 1], [*tokenizer.encode('dogs'), 1]]
  source = jnp.array([some + [0] * (16 - len(some)) for some in ids])
  batch = {'source': source, 'source_segments': (source > 0).astype(int),
           'tokens': jnp.zeros((2, 1), int),
           'segments': jnp.ones((2, 1), int)}
  steps = EncoderDecoderSteps(config, head)
  want = engine.generate_tokens(steps, steps.load_params(params), batch, GenerationConfig(4),
                                OutputVocab(170, (1,), 1))
  for row, (continuation,) in enumerate(found):
    tokens = want['tokens'][row, 0, :want['lengths'][row, 0]].tolist()
    assert list(continuation.tokens) == tokens
    assert continuation.text == tokenizer.decode(tokens)
