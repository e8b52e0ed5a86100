"""MPNet's objective: which tokens are predicted, the attention mask, and two-stream attention in
numpy float64."""
import dataclasses

from flax.linen import unbox
import jax
import jax.numpy as jnp
import numpy as np
from numpy_bert import gelu, log_softmax, norm
import pytest
import tiny

from plm_jax import validation
from plm_jax.architectures.encoder import Encoder
from plm_jax.errors import ConfigError
from plm_jax.layers.disentangled import Disentangled
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.layers.positions import Alibi, NoPosition, TransformerXL
from plm_jax.layers.rope import Rope
from plm_jax.layers.t5_relative_bias import Buckets
from plm_jax.models import mpnet
from plm_jax.objectives.masked_permuted import (
  MaskedPermutedLM,
  choose_last_words,
  draw_order,
  visible_tokens,
)
from plm_jax.objectives.row_builders import FullSentences, Single
from plm_jax.tokenizers.contract import Vocab

VOCAB = Vocab(64, pad=1, unk=3, cls=0, sep=2, mask=63)
# Of microsoft/MPNet, masked_permutation_net.py: 4 + 3 tokens in the order of the permutation, then
# 3 masks. 1: hidden.
CONTENT = np.array([[int(c) for c in row] for row in (
    '0000111000', '0000111000', '0000111000', '0000111000', '0000011100', '0000001110',
    '0000000111', '0000111000',
    '0000111000', '0000111000')])
QUERY = np.array([[int(c) for c in row] for row in ('0000111000', '0000011100', '0000001110')])
ORDER = np.array([0, 2, 0, 0, 3, 1, 0])  # of a text of 7 tokens: which are predicted, and when


def small(**changes):
  return validation.with_paths(mpnet.base(), {
      'vocab': 64, 'max_length': 40, 'stack.layers': 2, 'block.width': 32, 'block.heads': 4,
      'block.mlp_dim': 48,
      'block.dropout': 0.0, 'block.attention.dropout': 0.0, **changes})


def windows(rows, text, *, size=None, index=0):
  at = np.arange(text)
  real = (at < (text if size is None else size)).astype(np.int32)
  tokens = np.random.default_rng(index).integers(4, 63, (rows, text)).astype(np.int32)
  zeros = np.zeros(rows, np.int32)
  return {
      'tokens': np.where(real, tokens, 1), 'segments': np.tile(real, (rows, 1)),
      'sentences': np.tile(real, (rows, 1)),
      'words': np.tile((1 + at // 3) * real, (rows, 1)), 'document': zeros, 'corpus': zeros,
      'index': index + np.arange(rows, dtype=np.int32), 'epoch': zeros}


def corrupt(objective, given, seed=0):
  run = jax.jit(lambda key, given: objective.corrupt(key, given, VOCAB))
  return jax.tree.map(np.asarray, run(jax.random.key(seed), given))


def permutation(order):
  """Returns the places of a text in the released order: what is not predicted, then what is."""
  return np.argsort(np.where(order > 0, order, 0), kind='stable')


def test_attention_is_that_of_the_released_code():
  text, most = len(ORDER), 3
  visible = np.asarray(visible_tokens(jnp.array(ORDER), jnp.ones(text + 2 * most, jnp.int32)))
  content = np.concatenate([permutation(ORDER), text + np.arange(most)])
  np.testing.assert_array_equal(visible[content][:, content], CONTENT == 0)
  queries = text + most + np.arange(most)
  np.testing.assert_array_equal(visible[queries][:, content], QUERY == 0)
  assert not visible[:, queries].any()


def test_padding_and_other_documents_are_not_seen():
  segments = jnp.array([1, 1, 2, 2, 2, 2, 0, 1, 2, 0, 1, 2, 0])
  visible = np.asarray(visible_tokens(jnp.array(ORDER), segments))
  same = np.equal.outer(segments, segments) & (np.asarray(segments) > 0)
  alone = np.asarray(visible_tokens(jnp.array(ORDER), jnp.ones(13, jnp.int32)))
  np.testing.assert_array_equal(visible, alone & same)


def run_streams(params, config, tokens, order, masked):
  """Computes two streams in float64 as the released code does: content and queries, each with its
  mask -> logits."""
  places = permutation(order)
  most = len(masked)
  table, block = params['backbone']['embeddings'], params['backbone']['stack']['layers']['block']
  at = np.concatenate([places, places[-most:]])
  def embed(ids, at):
    return norm(table['tokens'][ids] + table['positions'][at + 2], table['norm'], 1e-5)
  content = embed(np.concatenate([tokens[places], masked]), at)
  query = embed(masked, places[-most:])
  bucket = np.asarray(Buckets().bucket(jnp.asarray(at[None] - at[:, None])))
  bias = np.moveaxis(params['backbone']['stack']['buckets'][bucket], -1, 0)
  for n in range(config.stack.layers):
    layer = jax.tree.map(lambda x, n=n: x[n], block)
    attention, mlp = layer['attention'], layer['mlp']
    def project(name, x, attention=attention):
      return np.einsum('ld,dha->hla', x,
                       attention[name]['kernel']) + attention[name]['bias'][:, None]
    key, value = project('key', content), project('value', content)
    def advance(x, hidden, bias, key=key, value=value, attention=attention, mlp=mlp, layer=layer,
                project=project):
      logits = project('query', x) @ key.swapaxes(1, 2) / np.sqrt(key.shape[-1]) + bias
      mixed = np.exp(log_softmax(np.where(hidden, -np.inf, logits))) @ value
      y = np.einsum('hla,had->ld', mixed, attention['out']['kernel']) + attention['out']['bias']
      x = norm(x + y, layer['attention_norm'], 1e-5)
      y = gelu(x @ mlp['up']['kernel'] + mlp['up']['bias']) @ mlp['down']['kernel'] + mlp['down'][
          'bias']
      return norm(x + y, layer['mlp_norm'], 1e-5)
    content, query = advance(content, CONTENT, bias), advance(query, QUERY, bias[:, -most:])
  head = params['heads_mlm']
  y = norm(gelu(query @ head['dense']['kernel'] + head['dense']['bias']), head['norm'], 1e-5)
  return y @ table['tokens'].T + head['bias']


def make_model(config):
  objective = MaskedPermutedLM()
  model = ModelWithHeads(Encoder(config), objective.heads(config))
  batch = {name: jnp.zeros((1, 8), jnp.int32) for name in ('tokens', 'segments', 'positions')}
  params = unbox(jax.eval_shape(lambda: model.init(jax.random.key(0), batch)['params']))
  return model, tiny.random_params(params)


def test_one_pass_is_the_two_streams_of_the_released_code():
  config = small()
  model, params = make_model(config)
  draw = np.random.default_rng(3)
  tokens, masked = draw.integers(4, 63, 7), np.array([63, 63, 20])
  places = permutation(ORDER)[-3:]
  row = {
      'tokens': np.concatenate([tokens, masked, masked]), 'segments': np.ones(13, np.int32),
      'position_of': np.concatenate([np.arange(7), places, places]), 'positions': np.arange(10, 13),
      'visible': np.asarray(visible_tokens(jnp.array(ORDER), jnp.ones(13, jnp.int32)))}
  batch = {name: jnp.asarray(x)[None] for name, x in row.items()}
  with jax.default_matmul_precision('highest'):
    got = jax.jit(model.apply)({'params': params}, batch)['mlm'][0]
  exact = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
  np.testing.assert_allclose(got, run_streams(exact, config, tokens, ORDER, masked), atol=2e-5)


def test_no_prediction_depends_on_its_token_or_on_later_ones():
  config = small()
  model, params = make_model(config)
  objective = MaskedPermutedLM(pair=Single(), mask_share=1.0, random_share=0.0)
  batch = corrupt(objective, windows(1, 30))
  run = jax.jit(lambda batch: model.apply({'params': params}, batch)['mlm'][0])
  plain, places = run(batch), batch['position_of'][0, 32:]
  number = int(batch['weights'].sum())
  assert number == 5  # of 32 tokens
  for later in range(number):
    tokens = batch['tokens'].copy()
    tokens[0, places[later]] = 4 + tokens[0, places[later]] % 50
    moved = np.abs(run({**batch, 'tokens': tokens}) - plain).max(-1)
    assert (moved[:later + 1] == 0).all() and (moved[later + 1:number] > 1e-4).all()


def test_rows_hold_text_masks_and_queries():
  objective = MaskedPermutedLM(pair=Single())
  given = windows(512, 38, size=30)
  batch = corrupt(objective, given)
  most = objective.max_predictions(40)
  assert (most, batch['tokens'].shape, batch['visible'].shape) == (6, (512, 52), (512, 52, 52))
  text, masks, queries = np.split(batch['tokens'], [40, 46], axis=1)
  np.testing.assert_array_equal(masks, queries)
  np.testing.assert_array_equal(text[:, 1:31], given['tokens'][:, :30])
  # 15% of 32
  np.testing.assert_array_equal(batch['weights'], np.tile([1, 1, 1, 1, 1, 0], (512, 1)))
  np.testing.assert_array_equal(batch['position_of'][:, :40], np.tile(np.arange(40), (512, 1)))
  np.testing.assert_array_equal(batch['position_of'][:, 40:46], batch['position_of'][:, 46:])
  places = batch['position_of'][:, 40:45]
  np.testing.assert_array_equal(batch['labels'][:, :5], np.take_along_axis(text, places, 1))
  assert places.max() == 31  # [SEP], which is predicted too; padding is not
  assert all(len({*row}) == 5 for row in places)
  np.testing.assert_array_equal(batch['segments'][:, 45], 0)
  np.testing.assert_array_equal(batch['positions'], np.tile(np.arange(46, 52), (512, 1)))
  # 80% of 2,560 masks, 10% random tokens and 10% the token itself: four standard deviations.
  masked, labels = masks[:, :5], batch['labels'][:, :5]
  assert (masked == VOCAB.mask).mean() == pytest.approx(0.8 + 0.1 / 64, abs=0.032)
  assert (masked == labels).mean() == pytest.approx(0.1 + 0.1 / 64, abs=0.024)
  # The order of prediction is not that of the text.
  assert (np.diff(places) > 0).mean() == pytest.approx(0.5, abs=0.06)


def test_tokens_are_the_end_of_words_in_random_order():
  words = jnp.array([0, 1, 1, 1, 2, 2, 3, 3, 3, 3, 4, 0, 0])
  real = jnp.arange(13) < 12
  choose = jax.jit(jax.vmap(lambda key: choose_last_words(key, real, words, 0.34, 6)))
  chosen = np.asarray(choose(jax.random.split(jax.random.key(0), 4000)))
  assert (chosen.sum(1) == 4).all() and not chosen[:, 12].any()
  np.testing.assert_allclose(chosen[:, :12].mean(0).mean(), 4 / 12)
  # Of each word all tokens, none, or its end; of one word at most only a part.
  parts = 0
  for word in (1, 2, 3):
    tokens = chosen[:, np.asarray(words) == word]
    assert (np.diff(tokens.astype(int), axis=1) >= 0).all()
    parts = parts + (tokens.any(1) & ~tokens.all(1))
  assert parts.max() == 1
  # Words of one token are chosen equally often, special tokens among them.
  shares = chosen[:, [0, 10, 11]].mean(0)
  np.testing.assert_allclose(shares, shares.mean(), atol=0.04)


def test_single_tokens():
  chosen = choose_last_words(jax.random.key(1), jnp.ones(200, bool), jnp.zeros(200, jnp.int32),
                             0.15, 30)
  assert chosen.sum() == 30
  places, weights = draw_order(jax.random.key(2), chosen, 40)
  assert sorted(places[:30].tolist()) == np.flatnonzero(chosen).tolist()
  np.testing.assert_array_equal(weights, np.arange(40) < 30)


@pytest.mark.parametrize(('unit', 'parts'), [('token', 0.9), ('word', 0.1)])
def test_unit(unit, parts):
  """Of words of three tokens: how many of those with predicted tokens are predicted in part."""
  objective = MaskedPermutedLM(unit=unit, pair=Single(), mask_rate=0.3)
  batch = corrupt(objective, windows(200, 60))
  chosen = np.zeros((200, 62), int)
  np.put_along_axis(chosen, batch['position_of'][:, 62:62 + 19], 1, 1)
  number = chosen[:, 1:61].reshape(200, 20, 3).sum(-1)
  share = (number[number > 0] < 3).mean()
  assert share > parts if unit == 'token' else 0 < share < parts


def test_an_empty_row_has_no_weight():
  batch = corrupt(MaskedPermutedLM(), windows(2, 36, size=0))
  assert not batch['weights'].any() and not batch['visible'].any()


def test_sizes():
  objective = MaskedPermutedLM()
  model = mpnet.base()
  assert objective.max_predictions(512) == 77
  assert objective.text_length(512) == FullSentences().text_length(512)
  assert objective.step_flops(model, 512) == 3 * model.forward_flops(666, 77)


@pytest.mark.parametrize('changes', [{'causal': True}, {'windows': (0, 4)}, {'head.shifted': True}])
def test_models_of_another_attention_are_refused(changes):
  with pytest.raises(ConfigError, match='attend to the whole sequence'):
    MaskedPermutedLM().build(small(**changes), packed=False)


@pytest.mark.parametrize('scheme', [Alibi(), Disentangled(), TransformerXL()])
def test_positions_by_the_order_of_the_row_are_refused(scheme):
  with pytest.raises(ConfigError,
                     match=f'{type(scheme).__name__} positions follow the order of the row'):
    MaskedPermutedLM().build(small(**{'block.attention.position': scheme}), packed=False)


@pytest.mark.parametrize('changes', [
    {}, {'block.attention.position': Buckets(shared=False)},
    {'block.attention.position': NoPosition()},
    {'block.attention.position': Rope(), 'embeddings.absolute': 'none'}])
def test_positions_are_those_of_the_tokens(changes):
  """Places in the row say nothing: more room for predictions changes no prediction. Three texts,
  one padded."""
  config = small(**changes)
  model, params = make_model(config)
  pair = FullSentences(together=False)
  given = windows(3, 34)
  given['segments'][:, 20:] = 2
  given['segments'][2, 30:], given['words'][2, 30:], given['tokens'][2, 30:] = 0, 0, 1
  rows = jax.vmap(lambda key, row: MaskedPermutedLM().build_row(key, row, 12, VOCAB))
  arranged = pair.arrange(None, given, VOCAB)
  batch = jax.jit(rows)(jax.random.split(jax.random.key(0), 3), arranged)
  used, length = int(batch['weights'].sum(1).max()), arranged['tokens'].shape[1]
  assert 4 <= used < 8
  # The same rows with room for 8 predictions in place of 12.
  keep = np.concatenate([np.arange(length), length + np.arange(8), length + 12 + np.arange(8)])
  short = {name: batch[name][:, keep] for name in ('tokens', 'segments', 'types', 'position_of')}
  short |= {'visible': batch['visible'][:, keep][:, :, keep],
            'positions': batch['positions'][:, :8] - 4}
  run = jax.jit(lambda batch: model.apply({'params': params}, batch)['mlm'])
  with jax.default_matmul_precision('highest'):
    whole, part = run(batch)[:, :8], run(short)
  real = batch['weights'][:, :8] > 0
  np.testing.assert_allclose(np.where(real[..., None], whole - part, 0), 0, atol=2e-5)


def test_shares_are_checked():
  with pytest.raises(ConfigError, match='together 1 at most'):
    validation.check(dataclasses.replace(MaskedPermutedLM(), mask_share=0.8, random_share=0.3))
