import dataclasses
import functools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax import conversion, recipes, validation
from plm_jax.architectures.xlnet import XLNet, XLNetConfig
from plm_jax.conversion import attributes, files
from plm_jax.errors import ConfigError
from plm_jax.layers.dense import count_parameters
from plm_jax.layers.disentangled import Disentangled
from plm_jax.layers.heads import ModelWithHeads, TiedLMHead
from plm_jax.layers.positions import Alibi, NoPosition, TransformerXL
from plm_jax.layers.rope import Rope, TwoRopes
from plm_jax.layers.stack import StackConfig
from plm_jax.layers.t5_relative_bias import Buckets
from plm_jax.models import xlnet
from plm_jax.models.rules import ConvertError

GOLDEN = pathlib.Path(__file__).parents[1] / 'golden' / 'xlnet'
ROWS, LENGTH, MEMORY = 3, 10, 4
DRAW = np.random.default_rng(0)
# All tokens of a row and its memory are different, so that their vectors identify them.
IDS = np.stack([DRAW.permutation(np.arange(5, 96, dtype=np.int32))[:MEMORY + LENGTH]
                for _ in range(ROWS)])
POSITIONS = np.array([[2, 7, 8], [0, 3, 9], [1, 2, 3]])
# Of the first two rows one text, the second with a hole in the order; two texts in the last.
RANKS = np.array([[0, 0, 3, 0, 0, 0, 0, 1, 2, 9], [4, 0, 0, 6, 0, 0, 8, 0, 0, 5],
                  [0, 1, 2, 3, 0, 0, 0, 0, 4, 0]])
SEGMENTS = np.array([[1] * 10, [1] * 10, [1] * 5 + [2] * 4 + [0]], np.int32)
BATCH = dict(tokens=IDS[:, MEMORY:], segments=SEGMENTS,
             types=(np.arange(LENGTH) > 5) + 0 * SEGMENTS, ranks=RANKS,
             positions=POSITIONS, backward=np.array([False, True, False]),
             memory_tokens=IDS[:, :MEMORY],
             memory_segments=np.array([[1] * 4, [0, 0, 1, 1], [1] * 4]))


def config(scan=True, remat: Any = 'none', **changes) -> XLNetConfig:
  block = tiny.block(**{'attention.position': TransformerXL(), 'attention.bias': (), **changes})
  return XLNetConfig(vocab=96, block=block, stack=StackConfig(2, scan=scan, remat=remat),
                     max_length=LENGTH)


@functools.cache
def params():
  return tiny.random_params(
      jax.eval_shape(lambda: XLNet(config()).init(jax.random.key(0), BATCH)['params']))


@functools.cache
def compiled(cfg, remember=False):
  return jax.jit(lambda params, batch: XLNet(cfg, remember).apply({'params': params}, batch))


def forward(batch, cfg=None, remember=False):
  return jax.device_get(compiled(cfg or config(), remember)(params(), batch))


@pytest.mark.slow
def test_the_tpu_kernel_computes_both_streams():
  """Outputs, memory and the gradients of all parameters equal the plain path."""
  model = XLNet(config(**{'attention.dropout': 0.0}), remember=True)
  def learn():
    def run(params):
      output: Any = model.apply({'params': params}, BATCH)
      return output.hidden, output.predicted, output.memory
    @jax.jit
    def differentiate(params):
      y, back = jax.vjp(run, params)
      given = jax.tree.map(lambda x: jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape), y)
      return y, back(given)[0]
    return differentiate(params())
  want = learn()
  with tiny.interpreted_tpu_attention() as calls:
    got = learn()
  assert len({arrays.k.shape for arrays in calls}) == 2  # of memory, and of memory and row
  for (name, ours), theirs in zip(tiny.flat(got[1]).items(), tiny.flat(want[1]).values(),
                                  strict=True):
    np.testing.assert_allclose(ours, theirs, atol=2e-5 * max(0.1, float(jnp.abs(theirs).max())),
                               err_msg=name)
  for ours, theirs in zip(got[0], want[0], strict=True):
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.slow
def test_memory_and_row_share_the_biases_of_all_layers():
  """With memory, positions are computed twice; memory given as hidden states is the memory computed
  here."""
  model = XLNet(config(**{'attention.position': TransformerXL(untied=False)}), remember=True)
  batch = {name: x for name, x in BATCH.items() if name != 'backward'}
  params = tiny.random_params(jax.eval_shape(lambda: model.init(jax.random.key(0),
                                                                batch)['params']))
  found = model.apply({'params': params}, batch)
  text = {'tokens': batch['memory_tokens'], 'segments': batch['memory_segments']}
  memory = model.apply({'params': params}, text).memory
  given = {name: x for name, x in batch.items() if name != 'memory_tokens'} | {'memory': memory}
  np.testing.assert_allclose(model.apply({'params': params}, given).hidden, found.hidden, atol=1e-5)


def test_parameters_of_the_released_sizes():
  """Those of transformers' XLNetModel: 116,718,336 and 360,268,800."""
  batch = {name: jnp.zeros((1, size), jnp.int32)
           for name, size in (('tokens', 8), ('segments', 8), ('positions', 2))}
  for cfg, number in ((xlnet.base(), 116_718_336), (xlnet.large(), 360_268_800)):
    model = ModelWithHeads(cfg.backbone(), {'mlm': TiedLMHead()})
    shapes = jax.eval_shape(lambda m=model: m.init(jax.random.key(0), batch)['params'])
    assert count_parameters(shapes['backbone']) == number and count_parameters(
        shapes) == number + 32_000
    assert cfg.block.head_dim == 64 and cfg.block.mlp_dim == 4 * cfg.block.width


@pytest.mark.slow
def test_who_sees_whom():
  """By gradient: the query stream of a predicted token depends on every earlier one in the order,
  and not at all on itself and on later ones; the content stream on itself too; nothing on other
  texts, on padding and through memory."""
  @jax.jit
  def jacobian(params):
    def outputs(table):
      seen: Any = XLNet(config()).apply({'params': params | {'embeddings': {'tokens': table}}},
                                        BATCH)
      return jnp.concatenate([seen.hidden.sum(-1), seen.predicted.sum(-1)], 1)
    found, pull = jax.vjp(outputs, params['embeddings']['tokens'])
    # One output after another: all of them in one batch is more than the compiler for CPUs gets
    # right.
    return jax.lax.map(lambda one: jnp.abs(pull(one)[0]).sum(-1),
                       jnp.eye(found.size).reshape(-1, *found.shape))

  found = jax.device_get(jacobian(params())).reshape(ROWS, LENGTH + 3, 96)
  of_content, of_queries = found[:, :LENGTH], found[:, LENGTH:]
  same = (SEGMENTS[:, :, None] == SEGMENTS[:, None]) & (SEGMENTS[:, None] > 0)
  for row in range(ROWS):
    seen = of_content[row][:, BATCH['tokens'][row]] > 0
    want = same[row] & (RANKS[row][None] <= RANKS[row][:, None]) | np.eye(LENGTH, dtype=bool)
    np.testing.assert_array_equal(seen, want)
    seen = of_queries[row][:, BATCH['tokens'][row]] > 0
    want = (same[row] & (RANKS[row][None] < RANKS[row][:, None]))[POSITIONS[row]]
    np.testing.assert_array_equal(seen, want)
    assert not seen[np.arange(3), POSITIONS[row]].any() and want.any()
    # Memory passes no gradient on, and rows are their own.
    assert not of_content[row][:, BATCH['memory_tokens'][row]].any()
    others = np.setdiff1d(np.arange(96), IDS[row])
    assert not of_content[row][:, others].any()


def test_same_length_is_a_band_as_wide_as_memory():
  """Two tokens of memory, a row of three: transformers' create_mask, the other way round."""
  model = XLNet(dataclasses.replace(config(), attention='uni', same_length=True))
  content, _ = model.masks({'segments': jnp.ones((1, 3), jnp.int32)}, jnp.ones((1, 2), jnp.int32))
  np.testing.assert_array_equal(content[0, 0], [[1, 1, 1, 0, 0], [0, 1, 1, 1, 0], [0, 0, 1, 1, 1]])


def test_packed_texts_do_not_affect_each_other_by_a_bit():
  before = forward(BATCH)
  tokens = BATCH['tokens'].copy()
  tokens[2, 5:9] = tokens[2, 5:9][::-1]
  after = forward(BATCH | dict(tokens=tokens))
  np.testing.assert_array_equal(before.hidden[2, :5], after.hidden[2, :5])
  np.testing.assert_array_equal(before.predicted, after.predicted)
  assert np.abs(before.hidden[2, 5:9] - after.hidden[2, 5:9]).max() > 0.1
  # The memory is of the first text; padding in it is not seen.
  memory = BATCH['memory_tokens'].copy()
  memory[2], memory[1, :2] = memory[2][::-1], 7
  after = forward(BATCH | dict(memory_tokens=memory))
  np.testing.assert_array_equal(before.hidden[2, 5:], after.hidden[2, 5:])
  np.testing.assert_array_equal(before.hidden[:2], after.hidden[:2])
  assert np.abs(before.hidden[2, :5] - after.hidden[2, :5]).max() > 0.01


@pytest.mark.slow
def test_memory_equals_the_beginning_of_a_longer_row():
  """And a separate row may be the memory of the next."""
  row = dict(tokens=IDS[:2, MEMORY:], segments=np.ones((2, LENGTH), int),
             backward=BATCH['backward'][:2])
  found = forward(row | dict(memory_tokens=IDS[:2, :MEMORY],
                             memory_segments=np.ones((2, MEMORY), int)))
  ranks = np.broadcast_to(np.arange(MEMORY + LENGTH) >= MEMORY, (2, MEMORY + LENGTH)).astype(int)
  longer = dict(tokens=IDS[:2], segments=np.ones_like(IDS[:2]), ranks=ranks,
                backward=row['backward'])
  whole = forward(longer, dataclasses.replace(config(), max_length=0))
  np.testing.assert_allclose(found.hidden, whole.hidden[:, MEMORY:], atol=1e-5)
  first = forward(row | dict(tokens=IDS[:2, :MEMORY], segments=np.ones((2, MEMORY), int)),
                  remember=True)
  assert first.memory.shape == (2, 2, MEMORY, 32)
  np.testing.assert_allclose(forward(row | dict(memory=first.memory)).hidden, found.hidden,
                             atol=1e-5)


def test_causal_attention_includes_the_memory():
  """Transformer-XL: a row after its memory is the end of a longer row."""
  cfg = dataclasses.replace(config(), attention='uni', max_length=0)
  row = dict(tokens=IDS[:2, MEMORY:], segments=np.ones((2, LENGTH), int))
  found = forward(row | dict(memory_tokens=IDS[:2, :MEMORY],
                             memory_segments=np.ones((2, MEMORY), int)), cfg)
  whole = forward(dict(tokens=IDS[:2], segments=np.ones_like(IDS[:2])), cfg)
  np.testing.assert_allclose(found.hidden, whole.hidden[:, MEMORY:], atol=1e-5)


def test_backward_rows_equal_reversed_text():
  plain = dict(tokens=IDS[:, :LENGTH], segments=np.ones((ROWS, LENGTH), int), types=BATCH['types'],
               ranks=RANKS, backward=np.zeros(ROWS, bool))
  turned = {name: x[:, ::-1] if x.ndim > 1 else ~x for name, x in plain.items()}
  forwards = forward(plain).hidden
  np.testing.assert_allclose(forward(turned).hidden[:, ::-1], forwards, atol=1e-5)
  assert np.abs(forward(turned | dict(backward=plain['backward'])).hidden[:, ::-1]
                - forwards).max() > 0.1


def test_the_content_stream_does_not_depend_on_the_predicted_positions():
  """So the same weights fine-tune with one stream; its last token is the last of the text,
  wherever padding is."""
  both, one = forward(BATCH), forward({name: x for name, x in BATCH.items() if name != 'positions'})
  np.testing.assert_allclose(both.hidden, one.hidden, atol=1e-6)
  assert one.predicted is None
  np.testing.assert_array_equal(one.pooled, one.hidden[np.arange(3), [9, 9, 8]])


@pytest.mark.slow
def test_without_an_order_predicted_positions_come_last():
  """As in mask filling: predicted tokens see all other tokens, not each other."""
  plain = {name: BATCH[name] for name in ('tokens', 'segments', 'positions')}
  ranks = np.zeros_like(RANKS)
  np.put_along_axis(ranks, POSITIONS, 1, 1)
  np.testing.assert_array_equal(forward(plain).predicted,
                                forward(plain | dict(ranks=ranks)).predicted)
  uni = dataclasses.replace(config(), attention='uni')
  order = plain | dict(ranks=np.broadcast_to(np.arange(LENGTH), RANKS.shape))
  np.testing.assert_array_equal(forward(plain, uni).predicted, forward(order).predicted)


@functools.cache
def with_gradients(**stack):
  """Loss, memory and gradients, dropout included."""
  cfg = config(**{'dropout': 0.2, 'attention.dropout': 0.2}, **stack)
  def loss(params):
    output: Any = XLNet(cfg, remember=True).apply(
        {'params': params}, BATCH, jnp.arange(ROWS), rngs={'dropout': jax.random.key(5)})
    return jnp.sin(output.predicted).sum() + jnp.sin(output.hidden
                                                     * (SEGMENTS > 0)[..., None]).sum(
                                                         ), output.memory
  return jax.device_get(jax.jit(jax.value_and_grad(loss, has_aux=True))(params()))


@pytest.mark.slow
@pytest.mark.parametrize('stack', [dict(scan=False), dict(remat='full')], ids=str)
def test_loops_and_rematerialisation_change_nothing(stack):
  want, got = with_gradients(), with_gradients(**stack)
  tiny.assert_close(got[1], want[1])
  np.testing.assert_allclose(got[0][1], want[0][1], atol=1e-5)
  np.testing.assert_allclose(got[0][0], want[0][0], rtol=1e-5)


@pytest.mark.slow
def test_flops_equal_the_compiled_products():
  cfg = XLNetConfig(vocab=2048, block=tiny.block(
      attention=dict(position=TransformerXL(), bias=()), width=256, mlp_dim=1024,
      mlp=dict(activation='relu')),
      stack=StackConfig(2, scan=False), max_length=64)
  model = ModelWithHeads(XLNet(cfg), {'mlm': TiedLMHead()})
  shape = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.int32)
  batch = dict(tokens=shape(32, 64), segments=shape(32, 64), positions=shape(32, 10),
               memory_tokens=shape(32, 48),
               memory_segments=shape(32, 48))
  shapes = jax.eval_shape(model.init, jax.random.key(0), batch)
  cost: Any = jax.jit(model.apply).lower(shapes, batch).compile().cost_analysis()
  # The memory needs nothing of the second layer of two.
  assert 1 < cost['flops'] / (32 * (cfg.forward_flops(64, 10, 48) + cfg.forward_flops(48, 0)
                                    / 2)) < 1.06


@pytest.mark.parametrize('position', [Rope(), TwoRopes(), Buckets(), Alibi(), Disentangled(),
                                      NoPosition()], ids=repr)
def test_other_position_schemes_are_refused(position):
  with pytest.raises(ConfigError,
                     match=r'block\.attention\.position: XLNet has relative positions of its own '
                                        fr'\(TransformerXL\), got {type(position).__name__}$'):
    config(**{'attention.position': position})
  assert config(**{'attention.position': TransformerXL(
      clamp=8)}).block.attention.position.clamp == 8


def test_rows_that_are_too_long():
  with pytest.raises(ValueError, match='rows of 11 tokens do not fit a model of max_length 10'):
    jax.eval_shape(lambda: XLNet(config()).init(
        jax.random.key(0), dict(tokens=jnp.zeros((1, 11), int), segments=jnp.ones((1, 11), int))))


def test_an_xlnet_checkpoint_is_preserved_to_the_bit(tmp_path):
  """Their raw kernels [width, heads, head] included; what transformers cannot hold is refused by
  name."""
  case = GOLDEN / 'two_stream_mems'
  imported = conversion.load(case)
  assert imported.config.block.attention.position == TransformerXL() and list(imported.heads) == [
      'mlm']
  conversion.save(tmp_path / 'out', imported.config, imported.params, like=imported)
  theirs, ours = (files.SafeTensorsFolder(folder) for folder in (case, tmp_path / 'out'))
  assert theirs.tensors == ours.tensors
  for name in theirs.tensors:
    np.testing.assert_array_equal(theirs.read(name), ours.read(name))
  tied = dataclasses.replace(
      imported.config, block=validation.with_paths(
          imported.config.block, {'attention.position': TransformerXL(untied=False)}))
  with pytest.raises(ConvertError, match=r'block\.attention\.position\.untied'):
    attributes.build_hf_attributes(xlnet.FAMILY, tied)
  with pytest.raises(ConvertError, match='tie_word_embeddings is False, only True is supported'):
    attributes.parse_hf_config(xlnet.FAMILY, dict(model_type='xlnet', tie_word_embeddings=False))


def test_xlnet_large_is_the_papers():
  """Yang et al. 2019, table 8."""
  recipe: Any = recipes.find_recipe('xlnet_large')('paper')
  assert [(p.steps, p.length, p.batch) for p in recipe.train.phases] == [(500_000, 512, 8192)]
  optim, model = recipe.optim, recipe.model
  assert (optim.peak, optim.warmup, optim.schedule) == (4e-4, 40_000, 'linear')
  assert (optim.eps, optim.weight_decay) == (1e-6, 0.01)
  assert (model.stack.layers, model.block.width, model.block.heads,
          model.block.mlp_dim) == (24, 1024, 16, 4096)
  assert (model.block.dropout, model.block.attention.dropout,
          recipe.objective.group) == (0.1, 0.1, 6)


def test_bi_data_reverses_the_second_half_of_the_rows():
  model, turned = XLNet(config()), XLNet(dataclasses.replace(config(), bi_data=True))
  said = attributes.build_hf_attributes(xlnet.FAMILY, turned.cfg)
  assert said['bi_data'] is True and attributes.parse_hf_config(xlnet.FAMILY, said).bi_data
  assert attributes.build_hf_attributes(xlnet.FAMILY, config())['bi_data'] is False
  tokens = jnp.asarray(np.concatenate([IDS, IDS[:1]])[:, :LENGTH])
  batch = {'tokens': tokens, 'segments': jnp.ones_like(tokens)}
  weights = {'params': tiny.random_params(jax.eval_shape(model.init, jax.random.key(0),
                                                         batch)['params'])}
  want = model.apply(weights, batch | {'backward': jnp.array([False, False, True, True])})
  np.testing.assert_array_equal(turned.apply(weights, batch).hidden, want.hidden)
  assert not np.allclose(model.apply(weights, batch).hidden[2:], want.hidden[2:])
