"""GPT-BERT fills masks, generates text and compares likelihoods with one set of parameters."""
from typing import Any

from flax.linen import unbox
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plm_jax
from plm_jax import validation
from plm_jax.errors import ConfigError
from plm_jax.evaluation import token_losses
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.loading.generation_config import GenerationConfig
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.models import gpt_bert
from plm_jax.objectives.mntp import MaskedNextToken
from plm_jax.tokenizers.byte_bpe import train_byte_bpe
from plm_jax.tokenizers.contract import boundary_ids

TEXTS = ['An array of numbers', 'né à 北京', 'An']


@pytest.fixture(scope='module')
def trained() -> LoadedModel:
  tokenizer = train_byte_bpe(['An array of numbers, né à 北京.', 'Another array of arrays.'] * 4, 280)
  config = validation.with_paths(gpt_bert.base(), {
      'block.width': 24, 'block.heads': 3, 'block.mlp_dim': 16, 'stack.layers': 2,
      'vocab': tokenizer.vocab.size + 7,
      'max_length': 64, 'block.init.std': 0.3})
  heads = MaskedNextToken().heads(config)
  zeros = {name: jnp.zeros((1, 4), jnp.int32) for name in ('tokens', 'segments')}
  params: Any = unbox(jax.jit(ModelWithHeads(config.backbone(),
                                             heads).init)(jax.random.key(0), zeros)['params'])
  return LoadedModel('gptbert', config, heads, jax.device_get(params), tokenizer)


@pytest.fixture(scope='module')
def read(trained):
  """Return the log-probabilities [N, V] of rows of ids after the start token, one row at a time,
  without padding."""
  model, start = ModelWithHeads(trained.model.backbone(),
                                trained.heads), boundary_ids(trained.tokenizer.vocab)[0]
  params = jax.tree.map(jnp.asarray, trained.params)
  call: Any = jax.jit(lambda batch: model.apply({'params': params}, batch))
  def one(ids, causal):
    row = jnp.array([[start, *ids]])
    more = {'ranks': jnp.arange(row.shape[1])[None]} if causal else {}
    return np.asarray(jax.nn.log_softmax(call({'tokens': row, 'segments': jnp.ones_like(row),
                                               **more})['mlm'][0]))
  return one


@pytest.mark.slow  # a shape for every length of a row
def test_greedy_decoding_takes_the_most_likely_token(trained, read):
  """Prompts of different lengths, padded on the left, give the same as alone."""
  ends = {boundary_ids(trained.tokenizer.vocab)[1]}
  found = plm_jax.generate(trained, TEXTS, max_new=5)
  for text, (row,) in zip(TEXTS, found, strict=True):
    ids = trained.tokenizer.encode(text)
    for token in row.tokens:
      likeliest = read(ids, causal=True)[-1][:trained.tokenizer.vocab.size]
      allowed = [i for i in np.argsort(-likeliest) if likeliest[i] >= likeliest[token]]
      assert token == allowed[0], (text, row.tokens)
      ids.append(token)
    assert len(row.tokens) == 5 or row.tokens[-1] in ends
  assert len({row.tokens for row, in found}) > 1


@pytest.mark.slow
def test_beams_and_samples_continue_their_own_rows(trained, read):
  (best,), = plm_jax.generate(trained, TEXTS[0], max_new=3, beams=3)
  ids = trained.tokenizer.encode(TEXTS[0])
  scores = read([*ids, *best.tokens], causal=True)[len(ids):-1]
  assert sum(scores[place, token] for place, token in enumerate(best.tokens)) <= 0
  drawn = plm_jax.generate(trained, TEXTS, GenerationConfig(4, temperature=1.0, number=2))
  assert [len(rows) for rows in drawn] == [2, 2, 2]


def test_masks_are_predicted_at_the_previous_position(trained, read):
  (first, second), = plm_jax.fill_mask(trained, 'An [MASK] of [MASK].', top=300)
  tokenizer = trained.tokenizer
  ids = tokenizer.encode('An [MASK] of [MASK].'.replace('[MASK]',
                                                        tokenizer.pieces[tokenizer.vocab.mask]),
                                                        True)
  places = [place for place, token in enumerate(ids) if token == tokenizer.vocab.mask]
  # after the start token, so that an index is that of the previous token
  logits = read(ids, causal=False)
  for place, candidates in zip(places, (first, second), strict=True):
    piece, probability = candidates[0]
    best = int(logits[place][:tokenizer.vocab.size].argmax())
    share = np.exp(logits[place][:tokenizer.vocab.size])
    assert piece == tokenizer.pieces[best].lstrip('▁')
    assert probability == pytest.approx(share[best] / share.sum(), rel=1e-4)
  assert first != second


@pytest.mark.slow
def test_texts_are_scored_in_either_way(trained, read):
  ids = trained.tokenizer.encode(TEXTS[0])
  causal = sum(row[token] for row, token in zip(read(ids, causal=True), ids, strict=False))
  assert plm_jax.likelihood(trained, TEXTS[0], how='causal')[0] == pytest.approx(causal, rel=1e-4)
  masked = 0.0
  for place, token in enumerate(ids):
    hidden = [*ids[:place], trained.tokenizer.vocab.mask, *ids[place + 1:]]
    masked += read(hidden, causal=False)[place][token]
  assert plm_jax.likelihood(trained, TEXTS[0])[0] == pytest.approx(masked, rel=1e-4)
  tokens = token_losses.compute_losses(trained, TEXTS[:1])
  assert tokens.nats.sum() == pytest.approx(-masked, rel=1e-4) and tokens.places.tolist() == [
      *range(1, len(ids) + 1)]


@pytest.mark.release
@pytest.mark.slow
def test_layers_are_seen_and_frozen_one_by_one(trained):
  heads, _ = plm_jax.attention(trained, 'An array of numbers .')
  assert len(heads) == 2 * 3
  vectors = plm_jax.encode(trained, TEXTS)
  assert vectors.shape == (3, 24) and np.isfinite(vectors).all()
  batch = {'tokens': jnp.arange(8)[None] + 5, 'segments': jnp.ones((1, 8), jnp.int32)}
  def states(params, **stack):
    config = validation.with_paths(trained.model,
                                   {f'stack.{name}': value for name, value in stack.items()})
    return config.backbone().apply({'params': params}, batch, within=True)
  def total(params, **stack):
    return (states(params, **stack).hidden ** 3).sum()
  params = jax.tree.map(jnp.asarray, trained.params['backbone'])
  plain, below, again = (jax.grad(total)(params, **stack)
                         for stack in ({}, {'frozen': 1}, {'remat': 'full'}))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-3 * abs(a).max()), plain,
               again)
  for whole, part in zip(*(jax.tree.leaves(tree['stack']['layers']['block'])
                           for tree in (plain, below)), strict=True):
    assert not part[0].any() and (part[1].any() or not whole[1].any())
  assert not below['embeddings']['tokens'].any() and below['stack']['layers']['sum_2'].any()
  assert states(params).inside.hidden.shape == (2, 1, 8, 24)


def test_capabilities_of_gpt_bert(trained):
  assert {'fill_mask', 'generate', 'stream', 'score', 'perplexity', 'likelihood',
          'minimal_pairs'} <= {
    *trained.capabilities
  }
  assert plm_jax.minimal_pairs(trained, [('An array', 'array An')],
                               how='causal')[0].pair.good == 'An array'
  alone = LoadedModel('bert', validation.with_paths(trained.model, {'head.shifted': False}),
                      trained.heads,
                      trained.params, trained.tokenizer)
  assert not alone.lm_head_name and 'generate' not in alone.capabilities
  with pytest.raises(ConfigError, match='a bert only fills masks'):
    plm_jax.likelihood(alone, 'An array', how='causal')
