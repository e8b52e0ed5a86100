import dataclasses

from flax.linen import unbox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax import recipes, validation
from plm_jax.architectures.encoder import Encoder, position_ids
from plm_jax.config.run import ConfigError
from plm_jax.conversion import attributes
from plm_jax.layers.dense import count_parameters
from plm_jax.layers.embeddings import EmbeddingConfig
from plm_jax.layers.heads import MaskedLMHead, ModelWithHeads
from plm_jax.models import roberta
from plm_jax.models.rules import ConvertError
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.row_builders import FullSentences, Single
from plm_jax.training.learner import make_learner


def parameters(config, heads):
  batch = {name: jnp.zeros((1, size), jnp.int32)
           for name, size in (('tokens', 8), ('segments', 8), ('positions', 2))}
  return unbox(jax.eval_shape(lambda: ModelWithHeads(Encoder(config),
                                                     heads).init(jax.random.key(0),
                                                                 batch)['params']))


@pytest.mark.parametrize(('config', 'number'), [
    (roberta.base(), 124_697_433), (roberta.large(), 355_412_057)], ids=['base', 'large'])
def test_parameter_counts_of_roberta_equal_transformers(config, number):
  """RobertaForMaskedLM; published as 125M and 355M."""
  params = parameters(config, MaskedLM(pair=Single()).heads(config))
  assert count_parameters(params) == number
  assert params['backbone']['embeddings']['positions'].shape[0] == 514
  assert params['backbone']['embeddings']['types'].shape[0] == 1


def test_positions_begin_after_the_padding_index():
  tokens = jnp.array([[0, 7, 8, 2, 1, 1], [0, 7, 1, 8, 2, 1]])
  np.testing.assert_array_equal(position_ids(tokens, padding=1),
                                [[2, 3, 4, 5, 1, 1], [2, 3, 1, 4, 5, 1]])
  np.testing.assert_array_equal(position_ids(tokens, padding=0),
                                [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]])
  np.testing.assert_array_equal(position_ids(tokens), [[0, 1, 2, 3, 4, 5]] * 2)


def test_a_model_with_one_segment_type_ignores_segment_types():
  config = tiny.config(layers=1)
  config = type(config)(
      config.vocab, config.block, config.stack, config.max_length, padding=1, pooler=False,
      embeddings=EmbeddingConfig(types=1))
  tokens = jnp.arange(5, 17)[None]
  batch = dict(tokens=tokens, segments=tokens // tokens)
  params = tiny.random_params(
      jax.eval_shape(lambda: Encoder(config).init(jax.random.key(0), batch)['params']))
  run = jax.jit(lambda **batch: Encoder(config).apply({'params': params}, batch).hidden)
  plain = run(**batch)
  np.testing.assert_array_equal(plain, run(**batch, types=jnp.ones_like(tokens)))
  # The third row of the table is the first token's.
  moved = jax.tree.map(lambda x: x, params)
  moved['embeddings']['positions'] = moved['embeddings']['positions'].at[:2].set(9)
  np.testing.assert_array_equal(plain, jax.jit(Encoder(config).apply)({'params': moved},
                                                                      batch).hidden)


@pytest.mark.slow
@pytest.mark.parametrize('together', [True, False], ids=['together', 'apart'])
def test_documents_attend_to_each_other_only_if_together_is_set(together):
  """With another second document the first document's outputs stay equal to the bit, or all
  change; so does its gradient."""
  tokens = jnp.array([[11, 12, 13, 14, 21, 22, 23], [11, 12, 13, 14, 31, 32, 33]])
  windows = dict(tokens=tokens, segments=jnp.array([[1] * 4 + [2] * 3] * 2),
                 words=jnp.arange(1, 8) + 0 * tokens)
  batch = FullSentences(together).arrange(None, windows, tiny.VOCAB)
  config = tiny.config(layers=1)
  params = tiny.random_params(jax.eval_shape(
      lambda: Encoder(config, packed=True).init(jax.random.key(0), batch)['params']))

  @jax.jit
  def first(params, batch):
    hidden = Encoder(config, packed=True).apply({'params': params}, batch).hidden[:, :6]
    return hidden, jax.grad(lambda table: jnp.square(Encoder(config, packed=True).apply(
        {'params': {**params, 'embeddings': {**params['embeddings'], 'tokens': table}}},
        batch).hidden[0, :6]).sum())(
            params['embeddings']['tokens'])

  hidden, gradient = first(params, batch)
  assert (hidden[0] == hidden[1]).all() != together and (hidden[0] == hidden[1]).any() != together
  assert (gradient[21:24] == 0).all() != together and (gradient[11:15] != 0).all()


def test_a_tokenizer_with_another_padding_is_refused():
  paper = recipes.find_recipe('roberta_base')('test')
  with pytest.raises(ConfigError, match=r'model\.padding 0'):
    make_learner(paper, tiny.VOCAB)
  assert make_learner(paper, dataclasses.replace(tiny.VOCAB, pad=1)).vocab.pad == 1


def test_exported_position_tables_include_the_padding_offset():
  released = dict(vocab_size=50265, max_position_embeddings=514, type_vocab_size=1,
                  layer_norm_eps=1e-5, pad_token_id=1)
  config = attributes.parse_hf_config(roberta.FAMILY, released)
  assert (config.max_length, config.padding, config.types,
          config.block.norm.eps) == (512, 1, 1, 1e-5)
  assert released.items() <= attributes.build_hf_attributes(roberta.FAMILY, config).items()
  assert attributes.parse_hf_config(roberta.FAMILY,
                                    {**released, 'pad_token_id': 4}).max_length == 509
  with pytest.raises(ConvertError, match=r'embeddings\.width'):
    attributes.build_hf_attributes(roberta.FAMILY,
                                   type(config)(embeddings=EmbeddingConfig(width=3)))


@pytest.mark.parametrize('theirs', ['gelu', 'gelu_new', 'relu'])
def test_the_masked_lm_head_has_exact_gelu(theirs):
  """RobertaLMHead in transformers' modeling_roberta.py calls gelu, whatever hidden_act of the
  layers is."""
  config = attributes.parse_hf_config(roberta.FAMILY, dict(pad_token_id=1, hidden_act=theirs))
  assert config.block.mlp.activation == {'gelu': 'gelu', 'gelu_new': 'gelu_tanh',
                                         'relu': 'relu'}[theirs]
  head = roberta.FAMILY.heads['mlm'].make(config, 0)
  assert head == MaskedLMHead(validation.with_paths(config.block, {'mlp.activation': 'gelu'}))
