import dataclasses
import functools

from flax.linen import unbox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax import validation
from plm_jax.architectures.deberta import DebertaConfig
from plm_jax.conversion import attributes
from plm_jax.layers.attention import AttentionMask
from plm_jax.layers.block import Block
from plm_jax.layers.dense import count_parameters
from plm_jax.layers.disentangled import Disentangled
from plm_jax.layers.heads import MaskedLMHead, ModelWithHeads, ReplacedTokenHead
from plm_jax.layers.init import NORMAL_INIT
from plm_jax.layers.masks import padding_mask
from plm_jax.layers.stack import StackConfig
from plm_jax.models import deberta
from plm_jax.models.rules import ConvertError

LENGTH = 16
POSITIONS = jnp.array([[3, 7, 8], [0, 2, 9]])
SEGMENTS = np.array([[1] * 9 + [2] * 7, [1] * 4 + [2] * 8 + [0] * 4], np.int32)


def config(layers=2, scan=True, remat='none', conv=0, absolute=True, dropout=0.0, **position):
  position = Disentangled(**{'span': 6, **position})
  block = tiny.block(attention=dict(position=position, dropout=dropout), norm=dict(eps=1e-7),
                     dropout=dropout)
  return DebertaConfig(
      vocab=tiny.VOCAB.size, block=block, stack=StackConfig(layers, scan=scan, remat=remat),
      max_length=LENGTH,
      conv=conv, absolute=absolute)


def with_heads(cfg, packed=False):
  return ModelWithHeads(cfg.backbone(packed),
                        {'mlm': MaskedLMHead(cfg.block), 'rtd': ReplacedTokenHead(cfg.block)})


@functools.cache
def params(cfg):
  shapes = jax.eval_shape(lambda: with_heads(cfg).init(jax.random.key(0), batch())['params'])
  return tiny.random_params(shapes)


def batch(**changes):
  tokens = np.random.default_rng(0).integers(5, 90, (2, LENGTH)).astype(np.int32)
  return {'tokens': jnp.asarray(tokens), 'segments': jnp.asarray(SEGMENTS), 'positions': POSITIONS,
          **changes}


@functools.cache
def seen_by(cfg):
  """-> size of d output / d embedding of each token: [2, M, 2, L] for predicted positions, [2, L,
  2, L] for tokens."""
  some = params(cfg)
  table = some['backbone']['embeddings']['tokens']
  model = with_heads(cfg, packed=True)
  rows = jnp.arange(2 * LENGTH).reshape(2, LENGTH) + len(table)
  own = table[batch()['tokens']].reshape(2 * LENGTH, -1)
  number = POSITIONS.size + rows.size

  @jax.jit
  def influence():
    def outputs(own):
      # Every token has a separate row at the end of the table.
      tables = {'tokens': jnp.concatenate([table, own])}
      found = model.apply({'params': without_tokens(some)}, batch(tokens=rows, tables=tables))
      return jnp.concatenate([found['mlm'][..., :len(table)].sum(-1).ravel(), found['rtd'].ravel()])
    grad = jax.grad(lambda own, weights: weights @ outputs(own))
    return jnp.abs(jax.lax.map(lambda weights: grad(own, weights), jnp.eye(number))).max(-1)

  found = np.asarray(influence()).reshape(number, 2, LENGTH)
  return found[:POSITIONS.size].reshape(2, -1, 2,
                                        LENGTH), found[POSITIONS.size:].reshape(
                                            2, LENGTH, 2, LENGTH)


def without_tokens(params):
  embeddings = {name: x for name, x in params['backbone']['embeddings'].items() if name != 'tokens'}
  head = {**params['heads_mlm'],
          'bias': jnp.concatenate([params['heads_mlm']['bias'], jnp.zeros(2 * LENGTH)])}
  return {**params, 'heads_mlm': head, 'backbone': {**params['backbone'], 'embeddings': embeddings}}


@pytest.mark.slow
@pytest.mark.parametrize('conv', [0, 3], ids=['plain', 'conv'])
def test_packed_documents_of_deberta_do_not_attend_to_each_other(conv):
  """Not by attention, not by the convolution, not in the mask decoder; and inside a document all
  see all."""
  of_masks, of_tokens = seen_by(config(conv=conv, buckets=4, shared=True, norm=True))
  for row in range(2):
    theirs = np.zeros((2, LENGTH), bool)
    for place in range(LENGTH):
      theirs[:] = False
      theirs[row] = (SEGMENTS[row] == SEGMENTS[row, place]) & (SEGMENTS[row, place] > 0)
      if SEGMENTS[row, place]:
        np.testing.assert_array_equal(of_tokens[row, place] > 0, theirs)
    for number, place in enumerate(POSITIONS[row]):
      theirs[:] = False
      theirs[row] = SEGMENTS[row] == SEGMENTS[row, place]
      np.testing.assert_array_equal(of_masks[row, number] > 0, theirs)


def test_another_document_changes_not_a_bit():
  cfg = config(conv=3, buckets=4, shared=True)
  some = params(cfg)
  run = jax.jit(lambda b: with_heads(cfg, packed=True).apply({'params': some}, b))
  moved = jnp.where(jnp.asarray(SEGMENTS) == 2, 5 + (batch()['tokens'] + 31) % 80,
                    batch()['tokens'])
  plain, other = run(batch()), run(batch(tokens=moved))
  first = SEGMENTS == 1
  np.testing.assert_array_equal(np.asarray(plain['rtd'])[first], np.asarray(other['rtd'])[first])
  masks = np.take_along_axis(first, np.asarray(POSITIONS), 1)
  np.testing.assert_array_equal(np.asarray(plain['mlm'])[masks], np.asarray(other['mlm'])[masks])
  assert np.abs(np.asarray(plain['rtd']) - np.asarray(other['rtd']))[SEGMENTS == 2].min() > 0


@pytest.mark.slow
def test_masked_tokens_are_predicted_by_the_mask_decoder():
  """The decoder predicts them from the layer before and from absolute positions, which no other
  layer uses."""
  cfg = config(layers=2)
  backbone = params(cfg)['backbone']
  block = backbone['stack']['layers']['block']
  positions = backbone['positions']

  def states(backbone, positions):
    return cfg.backbone().apply({'params': {**backbone, 'positions': positions}}, batch())
  seen, asked = jax.jit(lambda positions: (
      jax.grad(lambda p: states(backbone, p).hidden.sum())(positions),
      jax.grad(lambda p: states(backbone, p).predicted.sum())(positions)))(positions)
  assert not np.abs(seen).any()  # absolute positions come in at the end alone
  at = sorted({*np.asarray(POSITIONS).ravel()})
  np.testing.assert_array_equal(np.flatnonzero(np.abs(asked).max(-1)), at)

  @jax.jit
  def by_hand(backbone):
    """The decoder from its parts: the first layer, then the second layer twice with queries at
    the positions."""
    first = dataclasses.replace(cfg, stack=StackConfig(1))
    alone = jax.tree.map(lambda x: x[:1], block)
    before = first.backbone().apply(
        {'params': {**backbone, 'stack': {**backbone['stack'], 'layers': {'block': alone}}}},
        batch()).hidden
    last, mask = jax.tree.map(lambda x: x[1], block), padding_mask(batch()['segments'])
    seen = AttentionMask(mask, {'relative': backbone['stack']['relative']})
    query = before + positions[:LENGTH]
    for _ in range(2):
      query = Block(cfg.block).apply({'params': last}, query, seen, kv=before)
    return jnp.take_along_axis(query, POSITIONS[..., None],
                               1), states(backbone, positions).predicted
  np.testing.assert_allclose(*by_hand(backbone), atol=5e-6)


@pytest.mark.slow
@pytest.mark.parametrize('remat', ['full', pytest.param('none', marks=pytest.mark.release)])
def test_scan_is_the_loop(remat):
  scanned, unrolled = config(layers=3, conv=3, remat=remat), config(layers=3, conv=3, scan=False)
  some = params(scanned)
  def run(cfg):
    def loss(params):
      outputs = with_heads(cfg).apply({'params': params}, batch())
      return jnp.square(outputs['mlm']).mean() + jnp.square(outputs['rtd']).mean()
    return jax.jit(jax.value_and_grad(loss))(some)
  (one, one_grads), (other, other_grads) = run(scanned), run(unrolled)
  np.testing.assert_allclose(one, other, rtol=1e-6)
  tiny.assert_close(one_grads, other_grads, 1e-4)


def test_each_term_can_be_left_out():
  names = {terms: set(tiny.flat(params(config(terms=terms))))
           for terms in ((), ('c2p',), ('p2c',), ('c2p', 'p2c'))}
  common = 'backbone/stack/layers/block/attention/relative_'
  key, query = {f'{common}key/{x}' for x in ('kernel', 'bias')}, {f'{common}query/{x}'
                                                                  for x in ('kernel', 'bias')}
  table = {'backbone/stack/relative'}
  assert names['c2p',] - names[()] == key | table and names['p2c',] - names[()] == query | table
  assert names['c2p', 'p2c'] - names[()] == key | query | table


@pytest.mark.slow
def test_dropout_of_an_example_does_not_depend_on_its_row():
  cfg = config(dropout=0.3)
  some = params(cfg)
  run = jax.jit(lambda b, rows: with_heads(cfg).apply(
      {'params': some}, b, rows, rngs={'dropout': jax.random.key(1)})['mlm'])
  plain = run(batch(), jnp.array([0, 1]))
  swapped = run(tiny.take(batch(), np.array([1, 0])), jnp.array([1, 0]))
  np.testing.assert_allclose(np.asarray(swapped)[::-1], plain, atol=1e-5)
  assert np.abs(np.asarray(run(batch(), None)) - plain).max() > 0.1


def test_rows_longer_than_the_position_table():
  long = {'tokens': jnp.zeros((1, 17), int), 'segments': jnp.ones((1, 17), int)}
  with pytest.raises(ValueError, match='rows of 17 tokens do not fit a model of max_length 16'):
    jax.eval_shape(lambda: config().backbone().init(jax.random.key(0), long))
  jax.eval_shape(lambda: config(absolute=False).backbone().init(jax.random.key(0), long))
  with pytest.raises(ValueError, match='needs the table'):
    DebertaConfig(absolute=False, biased_input=True)


SIZES = {
    'v1 base': (deberta.base(), 138_601_728), 'v1 large': (deberta.large(), 405_163_008),
    'v1 xlarge': (deberta.xlarge(), 757_804_032), 'v2 xlarge': (deberta.v2_xlarge(), 884_593_152),
    'v2 xxlarge': (deberta.v2_xxlarge(), 1_564_549_632),
    'v3 xsmall': (deberta.v3_xsmall(), 70_682_112),
    'v3 small': (deberta.v3_small(), 141_304_320),
    'v3 base': (deberta.v3_base(), 183_831_552),
    'v3 large': (deberta.v3_large(), 434_012_160)}
PUBLISHED = {'v1 base': 100, 'v1 large': 350, 'v1 xlarge': 700, 'v2 xlarge': 710,
             'v2 xxlarge': 1320, 'v3 xsmall': 22,
             'v3 small': 44, 'v3 base': 86, 'v3 large': 304}


@pytest.mark.parametrize('name', SIZES)
def test_parameters(name):
  """As in transformers, which has no absolute positions; without embeddings, as published in
  millions."""
  cfg, number = SIZES[name]
  ids = jnp.zeros((1, 8), jnp.int32)
  shapes = unbox(jax.eval_shape(
      lambda: cfg.backbone().init(jax.random.key(0), dict(tokens=ids, segments=ids))['params']))
  absolute = cfg.max_length * cfg.block.width if cfg.absolute else 0
  assert count_parameters(shapes) - absolute == number
  assert abs((number - cfg.vocab * cfg.block.width) / 1e6 / PUBLISHED[name] - 1) < 0.04


@pytest.mark.slow
def test_flops_against_the_compiler():
  """Its own count includes norms, softmax, activations and the projection of distances.

  A head reads the last layer, which the compiler leaves out where nobody does. The decoder's keys
  and values are that layer's, which it finds out as well.
  """
  block = validation.with_paths(
      tiny.block(), {'width': 256, 'heads': 4, 'mlp_dim': 1024, 'mlp.activation': 'relu',
                     'attention.position': Disentangled(span=64, shared=True)})
  cfg = DebertaConfig(vocab=4000, block=block, stack=StackConfig(2, scan=False), max_length=64,
                      conv=3)
  model = with_heads(cfg)
  shape = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.int32)
  some = dict(tokens=shape(8, 64), segments=shape(8, 64), positions=shape(8, 10))
  shapes = jax.eval_shape(model.init, jax.random.key(0), some)
  cost = jax.jit(model.apply).lower(shapes, some).compile().cost_analysis()
  head = 2 * 64 * 256 * 256
  assert 0.97 < cost['flops'] / (8 * (cfg.forward_flops(64, 10) + head)) < 1.03


@pytest.mark.parametrize('said', [
    {'pos_att_type': 'c2p|p2c'}, {'pos_att_type': ['p2c', 'c2p']}, {'pos_att_type': ' P2C | c2p '},
    {'pos_att_type': 'c2p|p2c', 'legacy': False, 'tie_word_embeddings': False}])
def test_many_spellings_are_one(said):
  released = {'relative_attention': True, 'max_relative_positions': -1,
              'position_biased_input': False, **said}
  def read(family, said):
    # Checkpoints do not store the initialization.
    return validation.with_paths(attributes.parse_hf_config(family, said),
                                 {'block.init': NORMAL_INIT})
  cfg = read(deberta.FAMILY, deberta.normalize_hf_config(released))
  assert cfg == dataclasses.replace(deberta.base(), biased_input=False)
  v2 = read(deberta.V2, deberta.normalize_v2_config({
      **released, 'position_buckets': 256, 'norm_rel_ebd': 'layer_norm', 'share_att_key': True,
      'conv_kernel_size': 3,
      'conv_act': 'gelu', 'attention_head_size': 64, 'pooler_hidden_size': 1536,
      'hidden_size': 1536,
      'num_attention_heads': 24}))
  assert v2 == deberta.v2_xlarge()


def test_unsupported_attributes_of_deberta_are_refused():
  for said, name in (({'talking_head': True}, 'talking_head'),
                     ({'pos_att_type': 'c2p|p2p'}, 'pos_att_type'),
                     ({'tie_word_embeddings': False}, 'tie_word'),
                     ({'embedding_size': 64}, 'embedding_size'),
                     ({'pos_att_type': 'c2p', 'relative_attention': False}, 'relative_attention')):
    with pytest.raises(ConvertError, match=name):
      attributes.parse_hf_config(deberta.FAMILY,
                                 deberta.normalize_hf_config({'relative_attention': True, **said}))


@pytest.mark.slow
def test_padding_is_a_zero_vector_without_a_gradient():
  """Its embedding may be zero, as in released checkpoints: the norm would multiply a gradient
  there by 1 / sqrt(1e-7). A softmax over whole rows, such as that of answer spans, would give it
  one."""
  model = config().backbone()
  batch = {'tokens': jnp.where(SEGMENTS == 0, 0, 5 + jnp.arange(LENGTH)), 'segments': SEGMENTS}
  params = unbox(model.init(jax.random.key(0), batch)['params'])
  params['embeddings']['tokens'] = params['embeddings']['tokens'].at[0].set(0)

  def loss(params):
    output, seen = model.apply({'params': params}, batch, mutable=['intermediates'])
    return jax.nn.logsumexp(output.hidden[..., 0], 1).sum(), seen['intermediates']['embedded'][0]

  (_, embedded), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
  np.testing.assert_array_equal(embedded[SEGMENTS == 0], 0)
  np.testing.assert_array_equal(grads['embeddings']['tokens'][0], 0)
  assert np.abs(grads['embeddings']['tokens'][5]).max() > 0


@pytest.mark.slow
def test_with_the_kernel_for_a_tpu():
  """In interpret mode: layers and the mask decoder, with queries at a subset of positions, on
  packed rows; outputs and gradients."""
  cfg = config()
  def both():
    def outputs(some):
      found = with_heads(cfg, packed=True).apply({'params': some}, batch())
      return found['mlm'], jnp.where(SEGMENTS[..., None] > 0, found['rtd'].reshape(2, LENGTH, -1),
                                     0)
    def learned(some):
      found, back = jax.vjp(outputs, some)
      return found, back(jax.tree.map(jnp.cos, found))
    return jax.jit(learned)(params(cfg))
  want = both()
  with tiny.interpreted_tpu_attention() as calls:
    got = both()
  assert [arrays.bias.places is not None for arrays in calls] == [False, True, True]
  for (path, ours), theirs in zip(jax.tree.leaves_with_path(got), jax.tree.leaves(want),
                                  strict=True):
    atol = 2e-5 * max(1.0, float(jnp.abs(theirs).max()))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=atol, err_msg=jax.tree_util.keystr(path))
