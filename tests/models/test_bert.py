import dataclasses

from flax.linen import unbox
import jax
import jax.numpy as jnp
import numpy as np
import numpy_bert
import pytest
import tiny

from plm_jax import validation
from plm_jax.architectures.encoder import Encoder, EncoderConfig
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.dense import count_parameters
from plm_jax.layers.embeddings import EmbeddingConfig
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.layers.mlp import MlpConfig
from plm_jax.layers.stack import StackConfig
from plm_jax.models import bert
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.row_builders import Single

BATCH = {name: jnp.zeros((1, size), jnp.int32)
         for name, size in (('tokens', 8), ('segments', 8), ('positions', 2))}


def parameters(config, objective=MaskedLM()):
  model = ModelWithHeads(Encoder(config), objective.heads(config))
  return unbox(jax.eval_shape(lambda: model.init(jax.random.key(0), BATCH)['params']))


@pytest.mark.parametrize(('config', 'number'), [
    (bert.base(), 110_106_428), (bert.large(), 336_226_108)], ids=['base', 'large'])
def test_parameters_of_bert_for_pre_training(config, number):
  """Those of transformers' BertForPreTraining, its tied decoder counted once; published as 110M and
  340M."""
  assert count_parameters(parameters(config)) == number


@pytest.mark.parametrize(('config', 'published'), [
    (bert.tiny(), 4.4), (bert.mini(), 11.3), (bert.small(), 29.1), (bert.medium(), 41.7),
    (bert.base(), 110.1)],
    ids=['tiny', 'mini', 'small', 'medium', 'base'])
def test_parameters_of_the_smaller_ones(config, published):
  """The sizes of Turc et al. 2019, table 1, in millions; without the pre-training heads."""
  width, layers = config.block.width, config.stack.layers
  embeddings = (30522 + 512 + 2) * width + 2 * width
  layer = 4 * (width * width + width) + 2 * 4 * width * width + 4 * width + width + 4 * width
  backbone = embeddings + layers * layer + width * width + width
  head = width * width + width + 2 * width + 30522
  assert count_parameters(parameters(config)) == backbone + head + 2 * width + 2
  assert count_parameters(parameters(config)['backbone']) == backbone
  assert count_parameters(parameters(config, MaskedLM(pair=Single()))) == backbone + head
  assert abs(backbone / 1e6 - published) < 0.8


def test_sizes_of_bert_match_the_paper():
  assert [(c.stack.layers, c.block.width, c.block.heads, c.block.mlp_dim)
          for c in (bert.base(), bert.large())] == [
      (12, 768, 12, 3072), (24, 1024, 16, 4096)]
  block = bert.base().block
  assert (block.norm_at, block.norm.eps, block.dropout,
          block.mlp.activation) == ('post', 1e-12, 0.1, 'gelu')
  assert bert.use_tanh_gelu(bert.base()).block == validation.with_paths(
      block, {'mlp.activation': 'gelu_tanh'})


def test_names_are_short_nouns():
  names = set(tiny.flat(parameters(tiny.config())))
  assert {'backbone/embeddings/tokens', 'backbone/stack/layers/block/attention/query/kernel',
          'backbone/pooler/kernel',
          'heads_mlm/dense/kernel', 'heads_nsp/dense/bias'} <= names


def test_flops_of_base_by_hand():
  """Multiplications and additions of one row of 128 tokens, 20 predicted."""
  tokens = 12 * (4 * 768 * 768 + 2 * 128 * 768 + 2 * 768 * 3072)
  head = 20 * (768 * 768 + 768 * 30522)
  assert bert.base().forward_flops(128, 20) == 2 * (128 * tokens + head + 768 * 768)
  # 6 N D for a training step (Kaplan et al. 2020) leaves out attention and counts 85M parameters of
  # the layers.
  assert abs(3 * bert.base().forward_flops(128, 0) / (6 * 85e6 * 128) - 1) < 0.04


@pytest.mark.parametrize(
    'changes', [{}, {'mlp.gated': True, 'kv_heads': 2, 'head_size': 16}], ids=['plain', 'gated'])
def test_flops_against_the_compiler(changes):
  """Its own count includes norms, softmax and activations: a few per cent more, at this width."""
  block = validation.with_paths(
      BlockConfig(width=256, heads=4, mlp_dim=1024, mlp=MlpConfig(activation='relu')), changes)
  config = EncoderConfig(vocab=4000, block=block, stack=StackConfig(2, scan=False), max_length=64,
                         embeddings=EmbeddingConfig(types=0))
  model = ModelWithHeads(Encoder(config), MaskedLM().heads(config))
  shape = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.int32)
  batch = dict(tokens=shape(4, 64), segments=shape(4, 64), positions=shape(4, 10))
  params = jax.eval_shape(model.init, jax.random.key(0), batch)
  cost = jax.jit(model.apply).lower(params, batch).compile().cost_analysis()
  assert 1 < cost['flops'] / (4 * config.forward_flops(64, 10)) < 1.06


@pytest.mark.slow
def test_hidden_states_against_numpy(learner, params, batch):
  hidden = jax.jit(lambda p, b: Encoder(tiny.config()).apply({'params': p}, b).hidden)(
      params['backbone'], batch)
  text = batch['segments'] > 0
  want = numpy_bert.hidden(jax.tree.map(lambda x: np.asarray(x, np.float64), params['backbone']),
                           batch)
  np.testing.assert_allclose(np.asarray(hidden)[text], want[text], atol=1e-5)


@pytest.mark.slow
def test_logits_at_predicted_positions_equal_logits_of_all_positions(learner, params, batch):
  run = jax.jit(lambda b: learner.model.apply({'params': params}, b))
  some = np.asarray(run(batch)['mlm'])
  every = np.asarray(run({name: value for name, value in batch.items() if name != 'positions'})[
      'mlm'])
  assert every.shape == (16, tiny.LENGTH, tiny.VOCAB.size)
  np.testing.assert_allclose(some, np.take_along_axis(every, batch['positions'][..., None], 1),
                             atol=1e-5)


def test_positions_and_types_default_to_counting_and_zero(learner, params):
  tokens = jnp.arange(5, 17)[None]
  run = jax.jit(lambda **batch: Encoder(tiny.config()).apply({'params': params['backbone']},
                                                             batch).hidden)
  plain = run(tokens=tokens, segments=tokens // tokens)
  given = run(tokens=tokens, segments=tokens // tokens, place=jnp.arange(12)[None],
              types=0 * tokens)
  np.testing.assert_array_equal(plain, given)
  moved = run(tokens=tokens, segments=tokens // tokens, place=jnp.arange(1, 13)[None],
              types=0 * tokens)
  typed = run(tokens=tokens, segments=tokens // tokens, place=jnp.arange(12)[None],
              types=tokens // tokens)
  assert np.abs(moved - plain).max() > 0.1 and np.abs(typed - plain).max() > 0.1


def test_a_factorised_embedding_is_projected():
  config = dataclasses.replace(tiny.config(groups=1), embeddings=EmbeddingConfig(width=16))
  params = tiny.flat(parameters(config))
  assert params['backbone/embeddings/tokens'].shape == (96, 16)
  assert params['backbone/embeddings/project/kernel'].shape == (16, 32)
  assert params['heads_mlm/dense/kernel'].shape == (32, 16)


def test_rows_longer_than_the_position_table():
  with pytest.raises(ValueError, match='rows of 33 tokens do not fit a model of max_length 32'):
    jax.eval_shape(lambda: Encoder(tiny.config()).init(
        jax.random.key(0), dict(tokens=jnp.zeros((1, 33), int), segments=jnp.ones((1, 33), int))))
