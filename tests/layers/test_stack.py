import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax.compile.hlo import Program
from plm_jax.layers.attention import Attention, AttentionMask, mix_values, probabilities
from plm_jax.layers.block import Block, BlockConfig, CrossAttentionInput
from plm_jax.layers.dense import count_parameters
from plm_jax.layers.masks import padding_mask
from plm_jax.layers.mlp import Mlp, activation
from plm_jax.layers.norm import Norm, NormConfig
from plm_jax.layers.stack import Stack, StackConfig

SEGMENTS = jnp.array([[1] * 8, [1] * 5 + [0] * 3, [0] * 8])
X = jax.random.normal(jax.random.key(1), (3, 8, 32))
PLACE = jnp.broadcast_to(jnp.arange(8), (3, 8))
ROWS = jnp.arange(3)
EVERYTHING = AttentionMask(None)
MASK = AttentionMask(padding_mask(SEGMENTS))


def init(cfg, **stack):
  module = Stack(cfg, StackConfig(**stack))
  return tiny.random_params(
      jax.eval_shape(lambda: module.init(jax.random.key(0), X, MASK, PLACE)['params']))


def value_and_grad(cfg, params, x=X, rows=None, **stack):
  """Of a function of the text's outputs, with respect to parameters and input."""
  module = Stack(cfg, StackConfig(**stack))
  @jax.jit
  def run(params, x):
    def loss(params, x):
      y, _ = module.apply({'params': params}, x, MASK, PLACE, row_ids=rows,
                          rngs={'dropout': jax.random.key(5)})
      return (jnp.sin(y).sum(-1) * (SEGMENTS > 0)).sum(), y
    (_, y), grads = jax.value_and_grad(loss, (0, 1), has_aux=True)(params, x)
    return y, grads
  return jax.device_get(run(params, x))


def forward(cfg, params, x=X, **stack):
  module = Stack(cfg, StackConfig(**stack))
  run = jax.jit(lambda p, x: module.apply({'params': p}, x, MASK, PLACE)[0])
  return jax.device_get(run(params, x))


def agree(a, b, rel=1e-5):
  for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
    assert np.abs(x - y).max() <= rel * max(1, np.abs(y).max())


SHARED = [dict(layers=3, groups=1), dict(layers=3, groups=2, inner=2),
          dict(layers=3, groups=1, shared='attention'),
          dict(layers=3, groups=1, shared='mlp')]


@pytest.mark.slow
@pytest.mark.parametrize('stack', [dict(layers=3), *SHARED], ids=str)
def test_scan_equals_loop(stack):
  cfg = tiny.block()
  params = init(cfg, **stack)
  agree(value_and_grad(cfg, params, **stack), value_and_grad(cfg, params, **stack, scan=False))


@pytest.mark.slow
@pytest.mark.parametrize('stack', SHARED, ids=str)
def test_sharing_equals_copies_and_gradients_are_their_sums(stack):
  """Layer n is of group int(n / (layers / groups)), as in transformers' ALBERT; its inner blocks
  take turns."""
  cfg, config = tiny.block(), StackConfig(**stack)
  params = init(cfg, **stack)
  which = {True: np.array([0, 1, 0, 1, 2, 3]),
           False: np.zeros(config.blocks, int)}[config.inner == 2]
  block = params['layers']['block']
  index = {name: which if config.num_copies(name) < config.blocks else np.arange(config.blocks)
           for name in block}
  parted = {'all': 0, 'attention': 2, 'mlp': 2}[config.shared]
  assert sum(len(jax.tree.leaves(part)[0]) == config.blocks for part in block.values()) == parted
  copied = {'layers': {'block': {name: jax.tree.map(lambda x, name=name: x[index[name]], part)
                                 for name, part in block.items()}}}
  y, (grads, dx) = value_and_grad(cfg, params, **stack)
  y_all, (grads_all, dx_all) = value_and_grad(cfg, copied, layers=config.blocks)
  def summed(name, part):
    number = config.num_copies(name)
    return jax.tree.map(lambda x: np.stack([x[index[name] == n].sum(0) for n in range(number)]),
                        part)
  sums = {name: summed(name, part) for name, part in grads_all['layers']['block'].items()}
  agree((y, grads, dx), (y_all, {'layers': {'block': sums}}, dx_all))


@pytest.mark.slow
@pytest.mark.parametrize('stack', [
    dict(remat='dots'), dict(scan=False, remat='full'), dict(groups=1, remat='full')], ids=str)
def test_rematerialisation_changes_nothing_dropout_included(stack):
  cfg = tiny.block(dropout=0.3, attention=dict(dropout=0.3))
  params = init(cfg, layers=2, **stack)
  plain = value_and_grad(cfg, params, rows=ROWS, layers=2, **{**stack, 'remat': 'none'})
  agree(value_and_grad(cfg, params, rows=ROWS, layers=2, **stack), plain)


@pytest.mark.slow
def test_what_rematerialisation_computes_again_and_keeps():
  """Three layers on 2 rows of 32 tokens: 3,145,728 floating point operations of products with
  parameters forward, and 786,432 of attention's; as many twice in the backward pass, and 86,016 of
  biases' gradients."""
  parameters, attention, biases = 3 * 2 * 64 * (4 * 32 * 32 + 2 * 32
                                                * 64), 3 * 4 * 64 * 32 * 32, 86_016
  assert (parameters, attention) == (3_145_728, 786_432)
  x, place = jnp.zeros((2, 32, 32)), jnp.zeros((2, 32), jnp.int32)
  flops, kept = {}, {}
  for remat in 'none', 'dots', 'full':
    module = Stack(tiny.block(), StackConfig(layers=3, remat=remat))
    params = nn.unbox(jax.eval_shape(lambda m=module: m.init(jax.random.key(0), x, EVERYTHING,
                                                             place)['params']))
    def total(params, x, module=module):
      return module.apply({'params': params}, x, EVERYTHING, place)[0].sum()
    compiled = jax.jit(jax.grad(total, (0, 1))).lower(params, x).compile()
    flops[remat], kept[remat] = Program(compiled.as_text()).flops, compiled.memory_analysis(
        ).temp_size_in_bytes
  none = 3 * (parameters + attention) + biases
  assert flops == {'none': none, 'dots': none + attention, 'full': none + attention + parameters}
  assert kept['full'] < 300_000 < kept['dots'] < 450_000 < kept['none']


@pytest.mark.slow
@pytest.mark.parametrize('scan', [True, False])
def test_each_layer_draws_its_own_dropout(scan):
  """With weights of zero a layer passes on its dropped input: what both layers drop alike would
  stay as after one."""
  cfg = tiny.block(norm_at='pre', dropout=0.5, attention=dict(dropout=0.0))
  params = jax.tree.map(np.zeros_like, init(cfg, layers=4, groups=1, scan=scan))
  blocks = params['layers']['block']
  # every layer adds 2 to half of the entries
  blocks['mlp']['down']['bias'] = blocks['mlp']['down']['bias'] + 1
  params['norm'] = {'scale': np.ones(32), 'bias': np.zeros(32)}
  module = Stack(cfg, StackConfig(layers=4, groups=1, scan=scan))
  def run(params):
    return module.apply({'params': params}, 0 * X, EVERYTHING, PLACE, row_ids=ROWS,
                        mutable='intermediates',
                        rngs={'dropout': jax.random.key(5)})
  _, seen = jax.jit(run)(params)
  last = np.asarray(seen['intermediates']['layers']['block']['hidden'][0][-1])
  share = np.bincount((last / 2).round().astype(int).ravel(), minlength=5) / last.size
  np.testing.assert_allclose(share, np.array([1, 4, 6, 4, 1]) / 16, atol=0.05)


def test_shared_parameters_count_once():
  cfg = tiny.block()
  attention, mlp = 4 * (32 * 32 + 32) + 2 * 32, (32 * 64 + 64) + (64 * 32 + 32) + 2 * 32
  for stack, copies in ((dict(), (12, 12)), (dict(groups=1), (1, 1)), (dict(groups=3), (3, 3)),
                        (dict(groups=5, inner=2), (10, 10)), (dict(groups=1, scan=False), (1, 1)),
                        (dict(groups=1, shared='attention'), (1, 12)),
                        (dict(groups=2, shared='mlp'), (12, 2))):
    module = Stack(cfg, StackConfig(layers=12, **stack))
    shapes = jax.eval_shape(lambda m=module: m.init(jax.random.key(0), X, MASK, PLACE))
    assert count_parameters(shapes) == copies[0] * attention + copies[1] * mlp


def test_every_layer_starts_elsewhere():
  module = Stack(tiny.block(), StackConfig(layers=3, groups=1, shared='mlp'))
  block = jax.jit(lambda: nn.unbox(module.init(jax.random.key(0), X, EVERYTHING,
                                               PLACE)['params'])['layers']['block'])()
  query, up = block['attention']['query']['kernel'], block['mlp']['up']['kernel']
  assert query.shape == (3, 32, 4, 8) and up.shape == (1, 32, 64)
  assert np.abs(np.corrcoef(np.asarray(query).reshape(3, -1)) - np.eye(3)).max() < 0.1
  assert 0.85 < float(query.std() / (0.88 * 0.2)) < 1.15


@pytest.mark.parametrize('stack', [
    dict(groups=0), *(pytest.param(stack, marks=pytest.mark.slow) for stack in (
        dict(groups=1), dict(groups=1, shared='attention')))], ids=str)
def test_the_program_does_not_grow_with_depth(stack):
  """Also the program of the gradient, so nothing is unrolled: compile time is that of one
  layer."""
  cfg = tiny.block()
  def lines(layers):
    module, params = Stack(cfg, StackConfig(layers=layers,
                                            **stack)), init(cfg, layers=layers, **stack)
    def loss(params, x):
      return jnp.sin(module.apply({'params': params}, x, MASK, PLACE)[0]).sum()
    return jax.jit(jax.grad(loss)).lower(params, X).as_text().count('\n')
  assert lines(3) == lines(24)


def test_configurations_that_cannot_be():
  with pytest.raises(ValueError, match='got 5 groups of 4 layers'):
    StackConfig(layers=4, groups=5)
  with pytest.raises(ValueError, match=r'width 30 is not a multiple of .*heads 4'):
    BlockConfig(width=30, heads=4)
  with pytest.raises(ValueError, match=r'heads 4 is not a multiple of .*kv_heads 3'):
    BlockConfig(width=32, heads=4, kv_heads=3)


def numpy_norm(x, kind, eps):
  x = x - x.mean(-1, keepdims=True) if kind == 'layer' else x
  return x / np.sqrt((x ** 2).mean(-1, keepdims=True) + eps)


@pytest.mark.parametrize('kind', ['layer', 'rms'])
def test_norm_keeps_digits_far_from_zero(kind):
  x = np.random.default_rng(0).normal(size=(4, 32)).astype(np.float32) * 0.1 + 100
  y = jax.jit(lambda x: Norm(NormConfig(kind)).apply(
      {'params': {'scale': jnp.ones(32), 'bias': jnp.zeros(32)}}, x))(x)
  np.testing.assert_allclose(y, numpy_norm(x.astype(np.float64), kind, 1e-12),
                             atol=1e-3 if kind == 'layer' else 1e-6)


def test_norm_eps_is_added_to_the_variance():
  x, norm = jnp.array([[0.5, -0.5]]), Norm(NormConfig(eps=0.75))
  assert norm.apply({'params': {'scale': jnp.ones(2), 'bias': jnp.zeros(2)}},
                    x).tolist() == [[0.5, -0.5]]


def test_pre_norm_with_zero_weights_is_an_identity_before_the_final_norm():
  cfg = tiny.block(norm_at='pre')
  params = jax.tree.map(np.zeros_like, init(cfg, layers=2))
  params['norm'] = {'scale': np.full(32, 2.0), 'bias': np.full(32, 1.0)}
  y = forward(cfg, params, layers=2)
  np.testing.assert_allclose(y, 2 * numpy_norm(np.asarray(X), 'layer', 1e-12) + 1, atol=1e-5)
  assert 'norm' not in init(tiny.block(norm_at='post'), layers=2)


def test_pre_norm_block_against_numpy():
  cfg = tiny.block(
      norm_at='pre', norm=dict(kind='rms', eps=1e-5),
      mlp=dict(activation='silu', gated=True, bias=False),
      kv_heads=2, head_size=16, attention=dict(bias=()))
  params = init(cfg, layers=1)
  y = forward(cfg, params, layers=1)
  p, x = jax.tree.map(lambda x: np.asarray(x[0]),
                      params['layers']['block']), np.asarray(X, np.float64)
  h = numpy_norm(x, 'rms', 1e-5) * p['attention_norm']['scale']
  q, k, v = (np.einsum('bld,dha->blha', h, p['attention'][name]['kernel'])
             for name in ('query', 'key', 'value'))
  assert q.shape[2:] == (4, 16) and k.shape[2:] == (2, 16)
  k, v = (np.stack([t[:, :, n // 2] for n in range(4)], 2) for t in (k, v))
  logits = np.einsum('bqha,bkha->bhqk', q, k) / 4 + np.where(np.asarray(SEGMENTS) > 0, 0,
                                                             -1e30)[:, None, None]
  probs = np.exp(logits - logits.max(-1, keepdims=True))
  probs /= probs.sum(-1, keepdims=True)
  x = x + np.einsum('bhqk,bkha,had->bqd', probs, v, p['attention']['out']['kernel'])
  h = numpy_norm(x, 'rms', 1e-5) * p['mlp_norm']['scale']
  up, gate = (h @ p['mlp'][name]['kernel'] for name in ('up', 'gate'))
  x = x + (up / (1 + np.exp(-up)) * gate) @ p['mlp']['down']['kernel']
  np.testing.assert_allclose(y, numpy_norm(x, 'rms', 1e-5) * params['norm']['scale'], atol=2e-5)


def test_gated_mlp_multiplies():
  cfg = tiny.block(mlp=dict(gated=True, activation='relu', bias=False), attention=dict(bias=()))
  params = tiny.random_params(jax.eval_shape(Mlp(cfg.mlp, cfg).init, jax.random.key(0),
                                             X)['params'])
  want = (np.maximum(X @ params['up']['kernel'], 0)
          * (X @ params['gate']['kernel'])) @ params['down']['kernel']
  np.testing.assert_allclose(jax.jit(Mlp(cfg.mlp, cfg).apply)({'params': params}, X), want,
                             atol=1e-5)


def test_activations_at_one():
  values = {name: round(float(activation(name)(jnp.float32(1))), 4)
            for name in ('gelu', 'gelu_tanh', 'relu', 'silu', 'tanh')}
  assert values == {'gelu': 0.8413, 'gelu_tanh': 0.8412, 'relu': 1.0, 'silu': 0.7311,
                    'tanh': 0.7616}


@pytest.mark.slow
def test_a_row_of_padding_gives_no_nan():
  for cfg, rows in (tiny.block(), ROWS), (tiny.block(norm_at='pre'), None):
    y, grads = value_and_grad(cfg, init(cfg, layers=2), rows=rows, layers=2)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((y, grads)))
    assert not grads[1][2].any() and not grads[1][1, 5:].any()


def test_bias_is_added_to_the_scaled_logits():
  q, k, v = (jax.random.normal(jax.random.key(n), (1, 3, 1, 4)) for n in range(3))
  # A bias that only key 2 survives.
  bias = jnp.where(jnp.arange(3) == 2, 0.0, -1e6)[None, None, None]
  y = mix_values(probabilities(q, k, None, 0.5, bias), v)
  np.testing.assert_allclose(y, jnp.broadcast_to(v[:, 2:], y.shape), rtol=1e-6)


def test_probabilities_can_be_looked_at():
  cfg = tiny.block()
  params = init(cfg, layers=2)
  module = Stack(cfg, StackConfig(layers=2))
  (y, _), seen = jax.jit(lambda p: module.apply(
      {'params': p}, X, MASK, PLACE, mutable='intermediates'))(params)
  block = seen['intermediates']['layers']['block']
  probs = np.asarray(block['attention']['probs'][0])
  assert probs.shape == (2, 3, 4, 8, 8) and block['hidden'][0].shape == (2, *X.shape)
  np.testing.assert_allclose(probs.sum(-1), 1, rtol=1e-5)
  assert not probs[:, 1, :, :, 5:].any()
  agree(y, forward(cfg, params, layers=2))


@pytest.mark.parametrize('norm_at', ['pre', 'post'])
def test_cross_attention_reads_only_unmasked_memory(norm_at):
  cfg = tiny.block(cross=True, norm_at=norm_at, dropout=0.0)
  hidden = jax.random.normal(jax.random.key(2), (3, 5, 32))
  memory = CrossAttentionInput(hidden, padding_mask(jnp.array([[1, 1, 1, 0, 0]] * 3)))
  module = Stack(cfg, StackConfig(layers=2))
  params = tiny.random_params(jax.eval_shape(
      lambda: module.init(jax.random.key(0), X, MASK, PLACE, memory)))
  @jax.jit
  def run(memory):
    f = lambda m: (jnp.sin(module.apply(params, X, MASK, PLACE, m)[0])[:2] ** 2).sum()
    return jax.grad(lambda hidden: f(memory._replace(hidden=hidden)))(memory.hidden)
  grad = np.asarray(run(memory))
  assert grad[:2, :3].any(-1).all()
  assert not grad[:, 3:].any() and not grad[2].any()


@pytest.mark.parametrize('norm_at', ['pre', 'post'])
def test_separate_queries_read_keys_and_values(norm_at):
  """The case of XLNet's query stream and DeBERTa's mask decoder: equal to self attention where kv
  is x."""
  cfg = tiny.block(norm_at=norm_at)
  block, mask = Block(cfg), MASK
  params = tiny.random_params(jax.eval_shape(lambda: block.init(jax.random.key(0), X, mask)))
  @jax.jit
  def run(x, kv):
    own, other = block.apply(params, x, mask), block.apply(params, x, mask, kv=kv)
    few = lambda kv: block.apply(params, x[:, :3], mask, kv=kv)
    return own, other, few(kv), jax.grad(lambda kv: jnp.sin(few(kv)[1, 0]).sum())(kv)
  own, other, few, grad = jax.device_get(run(X, X))
  agree(own, other)
  agree(few, own[:, :3])
  assert grad[1, :5].any(-1).all() and not grad[1, 5:].any() and not grad[0].any()


@pytest.mark.slow
def test_bfloat16_stays_close_and_parameters_stay_float32():
  cfg = tiny.block(init=dict(std=0.1))
  params = init(cfg, layers=2)
  y = forward(cfg, params, layers=2)
  low, (grads, _) = value_and_grad(
      dataclasses.replace(cfg, dtype='bfloat16'), params, X.astype(jnp.bfloat16), layers=2)
  assert low.dtype == jnp.bfloat16 and {g.dtype for g in jax.tree.leaves(grads)} == {
      np.dtype('float32')}
  error = np.abs(low.astype(np.float32) - y)
  assert 0 < error.mean() < 0.01 and error.max() < 0.1


def test_a_parallel_block_is_a_sum_over_one_norm():
  """x + attention(norm(x)) + mlp(norm(x)) (Chowdhery et al. 2022, section 2), its norm without a
  bias."""
  cfg = tiny.block(
      norm_at='pre', norm=dict(kind='layer_scale'), parallel=True, mlp=dict(gated=True, bias=False),
      kv_heads=1,
      attention=dict(bias=()))
  block = Block(cfg)
  shapes = jax.eval_shape(lambda: block.init(jax.random.key(0), X, EVERYTHING)['params'])
  params = tiny.random_params(shapes)
  assert {name: tiny.flat(part).keys() for name, part in params.items()
          if name.endswith('norm')} == {
      'parallel_norm': {'scale'}}
  def written_out(params, x):
    y = cfg.make_norm('norm').apply({'params': params['parallel_norm']}, x)
    attention = Attention(cfg.attention, cfg).apply({'params': params['attention']}, y, y,
                                                    EVERYTHING)
    return x + attention + Mlp(cfg.mlp, cfg).apply({'params': params['mlp']}, y)
  found, want = jax.jit(lambda p, x: (block.apply({'params': p}, x, EVERYTHING),
                                      written_out(p, x)))(params, X)
  agree(found, want)
  with pytest.raises(ValueError, match='parallel'):
    tiny.block(parallel=True)
