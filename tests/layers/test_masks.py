import jax
import jax.numpy as jnp
import numpy as np
import tiny

from plm_jax.architectures.encoder import Encoder
from plm_jax.layers.attention import AttentionMask
from plm_jax.layers.masks import attention_mask, padding_mask
from plm_jax.layers.stack import Stack, StackConfig


def literal(mask):
  return [''.join('.x'[int(seen)] for seen in row) for row in np.asarray(mask)]


def test_packed_segments_attend_to_themselves_and_never_to_padding():
  segments = jnp.array([[1, 1, 2, 2, 0]])
  assert literal(jax.jit(attention_mask)(segments, segments)[0, 0]) == ['xx...', 'xx...', '..xx.',
                                                                        '..xx.', '.....']


def test_causal_is_rank_equal_to_position():
  segments, ranks = jnp.array([[1, 1, 1, 2, 2, 0]]), jnp.arange(6)[None]
  assert literal(attention_mask(segments, segments, ranks, ranks)[0, 0]) == [
      'x.....', 'xx....', 'xxx...', '...x..', '...xx.', '......']


def test_prefix_is_rank_zero():
  segments, ranks = jnp.ones((1, 5), int), jnp.array([[0, 0, 0, 1, 2]])
  mask = attention_mask(segments, segments, ranks, ranks)
  assert literal(mask[0, 0]) == ['xxx..', 'xxx..', 'xxx..', 'xxxx.', 'xxxxx']


def test_strict_ranks_follow_a_factorization_order():
  # Order 2, 0, 3, 1; the content stream sees itself, the query stream does not.
  segments, ranks = jnp.ones((1, 4), int), jnp.array([[1, 3, 0, 2]])
  assert literal(attention_mask(segments, segments, ranks,
                                ranks)[0, 0]) == ['x.x.', 'xxxx', '..x.', 'x.xx']
  mask = attention_mask(segments, segments, ranks, ranks, strict=True)
  assert literal(mask[0, 0]) == ['..x.', 'x.xx', '....', 'x.x.']


def test_queries_may_differ_from_keys():
  mask = attention_mask(jnp.array([[2, 1]]), jnp.array([[1, 2, 0]]), jnp.array([[0, 5]]),
                        jnp.array([[4, 1, 0]]))
  assert mask.shape == (1, 1, 2, 3)
  assert literal(mask[0, 0]) == ['...', 'x..']


def test_not_padding():
  assert literal(padding_mask(jnp.array([[1, 1, 0], [0, 0, 0]]))[:, 0, 0]) == ['xx.', '...']


def saliency(visible):
  """visible [1, 1, L, L] -> bool [L, L]: whether output q has a gradient with respect to input k,
  through two layers."""
  size, mask = visible.shape[-1], AttentionMask(visible)
  cfg = tiny.block()
  stack = Stack(cfg, StackConfig(layers=2))
  place = jnp.arange(size)[None]
  x = jax.random.normal(jax.random.key(1), (1, size, cfg.width))
  params = tiny.random_params(jax.eval_shape(stack.init, jax.random.key(0), x, mask, place))
  @jax.jit
  def sizes(x):
    f = lambda x: stack.apply(params, x, mask, place)[0][0]
    return jnp.abs(jax.jacrev(f)(x)).sum((1, 2, 4))
  return np.asarray(sizes(x)) > 0


def test_causality_by_gradient():
  segments, ranks = jnp.ones((1, 6), int), jnp.arange(6)[None]
  np.testing.assert_array_equal(saliency(attention_mask(segments, segments, ranks, ranks)),
                                np.tri(6, dtype=bool))


def test_packing_by_gradient():
  segments = np.array([[1, 1, 1, 2, 2, 2]])
  np.testing.assert_array_equal(saliency(attention_mask(segments, segments)),
                                np.equal(segments.T, segments))


def encode(segments, packed):
  """-> function(table of token vectors [L, D]) of the hidden states of one row, its own vector to
  every position."""
  segments = jnp.array([segments])
  size = segments.shape[1]
  model = Encoder(tiny.config(), packed=packed)
  batch = dict(tokens=jnp.arange(size)[None], segments=segments)
  params = tiny.random_params(jax.eval_shape(model.init, jax.random.key(0), batch)['params'])
  @jax.jit
  def run(table):
    tables = {**params['embeddings'], 'tokens': params['embeddings']['tokens'].at[:size].set(table)}
    return model.apply({'params': {**params, 'embeddings': tables}}, batch).hidden[0]
  return run, params['embeddings']['tokens'][:size]


def test_packed_documents_do_not_attend_to_each_other():
  segments = np.array([1] * 5 + [2] * 6 + [0] * 3)
  run, table = encode(segments, packed=True)
  before = run(table)
  after = run(table.at[5:].add(3.0))
  np.testing.assert_array_equal(before[:5], after[:5])
  assert (np.asarray(before[5:]) != after[5:]).any(-1).all()
  grad = jax.jit(jax.grad(lambda table: (run(table)[:5] ** 3).sum()))(table)
  assert not np.asarray(grad[5:]).any()
  assert np.asarray(grad[:5]).any(-1).all()


def test_padding_is_not_seen_and_text_is():
  run, table = encode(np.array([1] * 7 + [0] * 4), packed=False)
  np.testing.assert_array_equal(run(table)[:7], run(table.at[7:].add(3.0))[:7])
  grad = jax.jit(jax.grad(lambda table: (run(table)[:7] ** 3).sum()))(table)
  assert not np.asarray(grad[7:]).any()
  assert np.asarray(grad[:7]).any(-1).all()
