"""Decoding token by token equals one pass over the text: every kind of position, window and cache,
ragged batches."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax.architectures.decoder import DecoderConfig, empty_cache
from plm_jax.inference import engine
from plm_jax.inference.decoder_steps import DecoderSteps
from plm_jax.inference.search import OutputVocab
from plm_jax.layers.heads import ModelWithHeads, NextTokenHead
from plm_jax.layers.rope import Rope
from plm_jax.layers.stack import StackConfig
from plm_jax.loading.generation_config import GenerationConfig

VOCAB, LENGTH = 40, 14
KINDS = {
    'learned': dict(block=tiny.block(norm_at='pre'), depth_scale=True),
    'post': dict(block=tiny.block(norm_at='post')),
    'rope_grouped': dict(block=tiny.block(
        norm_at='pre', kv_heads=2, attention=dict(position=Rope(), bias=()), norm=dict(kind='rms'),
        mlp=dict(bias=False)),
                         absolute='none', tied=False),
    'one_key_head': dict(block=tiny.block(norm_at='pre', kv_heads=1,
                                          attention=dict(position=Rope()), parallel=True),
                         absolute='none'),
    'windows': dict(block=tiny.block(norm_at='pre'), windows=(0, 3)),
}
PROMPTS = [[7, 3, 9, 11, 2], [5], [8, 8, 1]]


class Model:
  """A decoder of one kind, two layers, three where they take turns."""

  def __init__(self, kind, apart=True):
    self.config = DecoderConfig(VOCAB, stack=StackConfig(3 if kind == 'windows' else 2),
                                max_length=32, **KINDS[kind])
    self.head = NextTokenHead(self.config.block, VOCAB, self.config.tied)
    self.steps = DecoderSteps(self.config, self.head, apart)
    zeros = {name: jnp.zeros((1, LENGTH), jnp.int32) for name in ('tokens', 'segments')}
    both = ModelWithHeads(self.config.backbone(), {'lm': self.head})
    shapes = jax.eval_shape(lambda: both.init(jax.random.key(0), zeros)['params'])
    self.params = tiny.random_params(shapes, std=0.3)
    self.loaded = self.steps.load_params(self.params)
    self.whole = jax.jit(self.full)

  def full(self, params, tokens):
    """tokens [B, L] without padding -> logits [B, L, V]."""
    batch = {'tokens': tokens, 'segments': jnp.ones_like(tokens)}
    output = self.config.backbone().apply({'params': params['backbone']}, batch)
    return self.head.apply({'params': params.get('heads_lm', {})}, output, batch)

  def behind(self, text):
    """Return the logits of the next token after each token of a text, by one program for all
    lengths; later tokens are not visible."""
    padded = jnp.array([text + [0] * (LENGTH - len(text))])
    return np.asarray(self.whole(self.params, padded))[0, :len(text)]


QUICK = ('learned', 'rope_grouped')


@pytest.fixture(scope='module', params=[
    pytest.param(kind, marks=[pytest.mark.slow] * (kind not in QUICK)) for kind in KINDS])
def model(request):
  return Model(request.param)


def ragged(prompts, length):
  tokens = [[0] * (length - len(prompt)) + prompt for prompt in prompts]
  segments = [[0] * (length - len(prompt)) + [1] * len(prompt) for prompt in prompts]
  return {'tokens': jnp.array(tokens), 'segments': jnp.array(segments)}


@pytest.mark.slow
@pytest.mark.parametrize('apart', [True, False])
def test_every_decoding_step_equals_the_full_pass(model, apart):
  steps = DecoderSteps(model.config, model.head, apart)
  params = steps.load_params(model.params)
  start, follow = jax.jit(steps.prefill, static_argnames='slots'), jax.jit(steps.decode_step)
  texts = [[*prompt, *np.random.default_rng(len(prompt)).integers(0, VOCAB, 6).tolist()]
           for prompt in PROMPTS]
  wanted = [model.behind(text) for text in texts]
  logits, cache = start(params, ragged(PROMPTS, 8), slots=14)
  for step in range(7):
    for row, prompt in enumerate(PROMPTS):
      np.testing.assert_allclose(logits[row], wanted[row][len(prompt) - 1 + step], atol=2e-5)
    if step < 6:
      logits, cache = follow(params, jnp.array([text[len(prompt) + step] for text, prompt in zip(
          texts, PROMPTS, strict=True)]), cache)


def test_greedy_decoding_equals_full_passes(model):
  found = engine.generate_tokens(
    model.steps, model.loaded, ragged(PROMPTS, 8), GenerationConfig(6), OutputVocab(VOCAB, (), 0)
  )
  for prompt, (added,) in zip(PROMPTS, np.asarray(found['tokens']).tolist(), strict=True):
    text = list(prompt)
    for _ in range(6):
      text.append(int(model.behind(text)[-1].argmax()))
    assert text == prompt + added


def test_beam_scores_equal_scores_of_the_full_text(model):
  config = GenerationConfig(6, beams=3, number=3, length_penalty=0.7, no_repeat_ngram=2)
  found = jax.device_get(
    engine.generate_tokens(model.steps, model.loaded, ragged(PROMPTS, 8), config,
                           OutputVocab(VOCAB, (4,), 0))
  )
  for row, prompt in enumerate(PROMPTS):
    for added, length, score in zip(*(found[name][row] for name in ('tokens', 'lengths', 'scores')),
                                    strict=True):
      text = [*prompt, *added[:length].tolist()]
      logprobs = np.asarray(jax.nn.log_softmax(jnp.asarray(model.behind(text)), -1))
      own = sum(logprobs[len(prompt) + k - 1, text[len(prompt) + k]] for k in range(length))
      assert score == pytest.approx(own / length ** 0.7, abs=2e-5)


def test_a_future_token_has_no_gradient_at_all(model):
  text = np.random.default_rng(3).permutation(VOCAB)[:8]
  batch = {'tokens': jnp.array(text[None], jnp.int32), 'segments': jnp.ones((1, 8), jnp.int32)}
  params = model.params['backbone']

  @jax.jit
  @jax.jacrev
  def influence(table):
    """Of each token's vector on something of each position."""
    own = {**params, 'embeddings': {**params['embeddings'], 'tokens': table}}
    hidden = model.config.backbone().apply({'params': own}, batch).hidden[0]
    return (hidden * jnp.cos(jnp.arange(hidden.shape[-1]))).sum(-1)

  found = np.abs(influence(params['embeddings']['tokens'])).max(-1)[:, text]  # [position, token]
  assert not np.triu(found, 1).any()
  assert found[np.tril_indices(8)].all()


def test_slots_are_all_that_the_cache_takes(model):
  block, stack = model.config.block, model.config.stack
  numbers = 2 * stack.blocks * 3 * 20 * block.key_heads * block.head_dim
  cache = empty_cache(model.steps.model, 3, 20)
  assert sum(x.nbytes for x in jax.tree.leaves((cache['key'], cache['value']))) == 4 * numbers
  assert sum(x.nbytes for x in jax.tree.leaves(cache)) == 4 * (numbers + 3 * 3 * 20 + 1)
