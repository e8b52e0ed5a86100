import math
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax import conversion
from plm_jax.architectures.decoder import DecoderConfig
from plm_jax.conversion import ConvertError, attributes, files
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.layers.stack import StackConfig
from plm_jax.models import families, glm
from plm_jax.objectives.glm import BlankInfilling
from plm_jax.tokenizers.contract import Vocab

CASE = pathlib.Path(__file__).parents[1] / 'golden' / 'glm' / 'blank_infilling_2d'
VOCAB = Vocab(size=96, pad=0, unk=1, cls=2, sep=3, mask=4, sop=90, eop=91, gmask=92, smask=93)


@pytest.mark.parametrize(('size', 'millions', 'layers', 'width', 'rows'), [
    ('base', 110, 12, 768, 513), ('large', 335, 24, 1024, 513), ('glm_410m', 410, 30, 1024, 513),
    ('glm_515m', 515, 30, 1152, 513), ('glm_2b', 1920, 36, 2048, 1025),
    ('glm_10b', 9881, 48, 4096, 1025)])
def test_parameters_as_published(size, millions, layers, width, rows):
  """The table of the released models; 2B and 10B are rounded there."""
  config = getattr(glm, size)()
  shapes = families.parameter_shapes(glm.FAMILY, config, {})
  total = sum(map(math.prod, shapes.values()))
  by_hand = config.vocab * width + 2 * rows * width + layers * (
      12 * width ** 2 + 13 * width) + 2 * width
  assert total == by_hand and abs(total / 1e6 / millions - 1) < 0.01
  assert (config.stack.layers, config.block.width, config.block.head_dim) == (layers, width, 64)


@pytest.fixture(scope='module')
def model():
  config = DecoderConfig(vocab=96, block=tiny.block(norm_at='pre', norm=dict(eps=1e-5)),
                         stack=StackConfig(2),
                         max_length=48, types=48)
  objective = BlankInfilling()
  model = ModelWithHeads(config.backbone(), objective.heads(config))
  windows = tiny.windows(4, objective.text_length(48), shortest=30)
  windows['tokens'] = np.where(windows['segments'] > 0, 5 + windows['tokens'] % 80, 0)
  batch = jax.device_get(jax.jit(lambda w: objective.corrupt(jax.random.key(0), w, VOCAB))(windows))
  params = tiny.random_params(jax.eval_shape(model.init, jax.random.key(0), batch)['params'])
  return model, params, batch


@pytest.mark.slow
def test_part_a_ignores_part_b_and_part_b_attends_to_earlier_tokens(model):
  """By the gradient of every position's output with respect to every token's embedding: exactly
  zero, or not."""
  model, params, batch = model
  row = {name: jnp.asarray(x[:1]) for name, x in batch.items() if name != 'positions'}
  size, length = (batch['segments'][0] > 0).sum(), batch['tokens'].shape[1]
  # Each position has a separate embedding, so its gradient is the gradient of that position.
  table = params['backbone']['embeddings']['tokens'][row['tokens'][0]]

  @jax.jit
  def felt(table):
    def hidden(table):
      table = jnp.pad(table, ((0, 96 - length), (0, 0)))
      own = params['backbone'] | {'embeddings': params['backbone']['embeddings']
                                  | {'tokens': table}}
      output = model.backbone.apply({'params': own}, row | {'tokens': jnp.arange(length)[None]})
      return output.hidden[0].sum(-1) + (output.hidden[0] ** 2).sum(-1)
    return jnp.abs(jax.jacrev(hidden)(table)).sum(-1)

  got = np.asarray(felt(table)) > 0
  ranks = batch['ranks'][0]
  want = (ranks[None, :] <= ranks[:, None])[:size, :size]
  assert (ranks[:size] == 0).sum() > 10 and (ranks[:size] > 0).sum() > 4
  np.testing.assert_array_equal(got[:size, :size], want)
  assert not got[:size, size:].any()


@pytest.mark.slow
def test_both_positions_matter(model):
  model, params, batch = model
  run = jax.jit(lambda batch: model.apply({'params': params}, batch)['lm'])
  want, weighed = run(batch), batch['weights'] > 0
  for name in ('place', 'types'):
    other = run({**batch, name: np.where(batch['ranks'] > 0, batch[name] // 2, batch[name])})
    assert np.abs(np.asarray(other - want))[weighed].max() > 0.01


def test_a_glm_checkpoint_is_preserved_to_the_bit(tmp_path):
  """The original's names and types."""
  imported = conversion.load(CASE)
  assert imported.config.types == imported.config.max_length == 41 and list(imported.heads) == [
      'lm']
  conversion.save(tmp_path / 'out', imported.config, imported.params, like=imported)
  theirs, ours = (files.SafeTensorsFolder(folder) for folder in (CASE, tmp_path / 'out'))
  assert theirs.tensors == ours.tensors
  for name in theirs.tensors:
    np.testing.assert_array_equal(theirs.read(name), ours.read(name))
  said = files.read_json(tmp_path / 'out' / 'config.json')
  assert said['model_type'] == 'glm' and said['max_sequence_length'] == 40 and said[
      'block_position_encoding'] is True
  assert not {'rows', 'block_rows', 'inner'} & said.keys()
  assert conversion.load(tmp_path / 'out').config == imported.config


def test_one_table_of_positions():
  given = {'max_sequence_length': 40, 'block_position_encoding': False}
  config = attributes.parse_hf_config(glm.FAMILY, glm.FAMILY.normalize_hf_config(given))
  assert (config.max_length, config.types) == (40, 0)
  assert attributes.build_hf_attributes(glm.FAMILY, config)['max_sequence_length'] == 40


def test_the_configuration_of_a_file_without_one():
  tensors = files.SafeTensorsFolder(CASE).tensors | {
      'word_embeddings.weight': ((53, 128), 'F16'),
      'transformer.position_embeddings.weight': ((41, 128), 'F16')}
  assert glm.infer_hf_config(tensors) == dict(
      model_type='glm', vocab_size=53, hidden_size=128, num_layers=2, num_attention_heads=2,
      block_position_encoding=True, max_sequence_length=40)
  with pytest.raises(ConvertError,
                     match=r'no checkpoint of GLM: it has no tensor word_embeddings\.weight'):
    glm.infer_hf_config({'transformer.position_embeddings.weight': ((41, 128), 'F16')})


def test_another_model_of_the_same_name_is_refused():
  with pytest.raises(ConvertError, match='GLM of 2024'):
    glm.FAMILY.normalize_hf_config({'model_type': 'glm', 'num_hidden_layers': 40,
                                    'partial_rotary_factor': 0.5})
  with pytest.raises(ConvertError, match='relative_encoding is True'):
    attributes.parse_hf_config(
      glm.FAMILY, glm.FAMILY.normalize_hf_config({'model_type': 'glm', 'relative_encoding': True})
    )
