import dataclasses
import json

from flax.linen import unbox
from flax.traverse_util import flatten_dict
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax import conversion, validation
from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.conversion import attributes
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.dense import count_parameters
from plm_jax.layers.embeddings import EmbeddingConfig
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.layers.mlp import MlpConfig
from plm_jax.layers.stack import StackConfig
from plm_jax.models import albert, distilbert
from plm_jax.models.rules import ConvertError
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.row_builders import SentenceOrder, Single

ORDER = MaskedLM(pair=SentenceOrder())


def parameters(config, heads=()):
  batch = {name: jnp.zeros((1, size), jnp.int32)
           for name, size in (('tokens', 8), ('segments', 8), ('positions', 2))}
  model = ModelWithHeads(config.backbone(), dict(heads))
  return unbox(jax.eval_shape(lambda: model.init(jax.random.key(0), batch)['params']))


@pytest.mark.parametrize(('config', 'number'), [
    (albert.base(), 11_813_810), (albert.large(), 17_847_474), (albert.xlarge(), 59_021_490),
    (albert.xxlarge(), 223_158_450)], ids=['base', 'large', 'xlarge', 'xxlarge'])
def test_parameter_counts_of_albert_equal_transformers(config, number):
  """AlbertForPreTraining; published as 12M, 18M, 60M and 235M (Lan et al. 2020, table 1)."""
  assert count_parameters(parameters(config, ORDER.heads(config))) == number


@pytest.mark.parametrize(('embed', 'shared', 'published'), [
    (128, 'all', 12), (128, 'attention', 64), (128, 'mlp', 38), (128, 'none', 89),
    (768, 'all', 31), (768, 'attention', 83), (768, 'mlp', 57), (768, 'none', 108)])
def test_parameters_under_every_sharing(embed, shared, published):
  """Lan et al. 2020, table 4, in millions, cut and rounded there; its embeddings of 768 are not
  projected."""
  config = albert.base()
  stack = StackConfig(12) if shared == 'none' else dataclasses.replace(config.stack, shared=shared)
  config = dataclasses.replace(config, stack=stack,
                               embeddings=EmbeddingConfig(width=embed if embed == 128 else 0))
  assert abs(count_parameters(parameters(config)) / 1e6 - published) < 1.1


def test_versions_differ_in_dropout():
  first, second = albert.base(), albert.make_v2(albert.base())
  assert (first.block.dropout, second.block.dropout,
          second.block.attention.dropout) == (0.1, 0.0, 0.0)
  assert dataclasses.replace(second, block=first.block) == first
  assert albert.xxlarge() == albert.make_v2(albert.xxlarge())


@pytest.mark.parametrize(('config', 'number'), [(distilbert.base(), 66_985_530)])
def test_parameters_of_distilbert(config, number):
  """DistilBertForMaskedLM; published as 66M (Sanh et al. 2019, table 3), which leaves out the
  head."""
  params = parameters(config, MaskedLM(pair=Single()).heads(config))
  assert count_parameters(params) == number and count_parameters(params['backbone']) == 66_362_880


SMALL = dict(
    albert=albert.FAMILY.config.__class__(
        vocab=40, max_length=12, block=BlockConfig(
            width=12, heads=3, mlp_dim=20, mlp=MlpConfig(activation='gelu_tanh')),
        stack=StackConfig(layers=3, groups=2, inner=2), embeddings=EmbeddingConfig(width=8)),
    distilbert=dataclasses.replace(
        distilbert.FAMILY.config, vocab=40, max_length=12,
        block=BlockConfig(width=12, heads=3, mlp_dim=20),
        stack=StackConfig(layers=3)))
CLASSES = [(family, heads) for family in (albert.FAMILY, distilbert.FAMILY)
           for heads in family.classes.values()]


@pytest.mark.parametrize(('family', 'heads'), CLASSES,
                         ids=lambda x: x.name if hasattr(x, 'name') else '-'.join(x))
def test_there_and_back(tmp_path, family, heads):
  pooled = family.name == 'albert' and (any(name in heads for name in ('sop', 'label', 'choice'))
                                        or not heads)
  config = dataclasses.replace(SMALL[family.name], pooler=pooled)
  shapes = parameters(config, {name: family.heads[name].make(config, 3) for name in heads})
  draw = np.random.default_rng(0)
  params = jax.tree.map(lambda x: draw.normal(size=x.shape).astype(np.float32), shapes)
  conversion.save(tmp_path / 'out', config, params, like=family.name)
  said = json.loads((tmp_path / 'out' / 'config.json').read_text())
  assert family.classes[said['architectures'][0]] == heads and said['model_type'] == family.name
  imported = conversion.load(tmp_path / 'out')
  assert imported.config == config and tuple(imported.heads) == heads
  got, want = (flatten_dict(tree, sep='/') for tree in (imported.params, params))
  assert got.keys() == want.keys()
  for name, x in want.items():
    np.testing.assert_array_equal(got[name], x, err_msg=name)


def test_released_configurations():
  """albert-base-v1 and -v2, distilbert-base-uncased; their other attributes do not matter or have
  known values."""
  common = dict(
      attention_probs_dropout_prob=0, down_scale_factor=1, embedding_size=128, gap_size=0,
      hidden_dropout_prob=0,
      hidden_size=768, initializer_range=0.02, inner_group_num=1, intermediate_size=3072,
      layer_norm_eps=1e-12,
      max_position_embeddings=512, net_structure_type=0, num_attention_heads=12,
      num_hidden_groups=1,
      num_hidden_layers=12, num_memory_blocks=0, type_vocab_size=2, vocab_size=30000)
  second = attributes.parse_hf_config(albert.FAMILY, {**common, 'hidden_act': 'gelu_new'})
  assert second == albert.make_v2(albert.base())
  first = attributes.parse_hf_config(
    albert.FAMILY, {**common, 'hidden_act': 'gelu', 'attention_probs_dropout_prob': 0.1,
                    'hidden_dropout_prob': 0.1}
  )
  assert first == dataclasses.replace(albert.base(), block=validation.with_paths(
      albert.base().block, {'mlp.activation': 'gelu'}))
  assert attributes.parse_hf_config(distilbert.FAMILY, dict(
      activation='gelu', attention_dropout=0.1, dim=768, dropout=0.1, hidden_dim=3072,
      initializer_range=0.02,
      max_position_embeddings=512, n_heads=12, n_layers=6, qa_dropout=0.1, seq_classif_dropout=0.2,
      sinusoidal_pos_embds=False, tie_weights_=True, vocab_size=30522)) == distilbert.base()


def test_supported_and_unsupported_parameter_sharing():
  alone = dataclasses.replace(albert.base(), stack=StackConfig(12))
  assert attributes.build_hf_attributes(albert.FAMILY, alone)['num_hidden_groups'] == 12
  attention = dataclasses.replace(albert.base(), stack=StackConfig(12, 1, shared='attention'))
  with pytest.raises(ConvertError, match=r'stack\.shared: attention has no counterpart'):
    attributes.build_hf_attributes(albert.FAMILY, attention)
  with pytest.raises(ConvertError, match=r'stack\.groups: 1 has no counterpart'):
    attributes.build_hf_attributes(distilbert.FAMILY,
                                   dataclasses.replace(distilbert.base(), stack=StackConfig(6, 1)))


def test_parameters_of_several_groups_may_be_numpy_arrays():
  """As `conversion.load` gives them, outside jit."""
  model = EncoderConfig(vocab=40, block=tiny.block(), stack=StackConfig(layers=4, groups=2),
                        max_length=16)
  batch = {name: jnp.ones((1, 8), jnp.int32) for name in ('tokens', 'segments')}
  params = tiny.random_params(jax.eval_shape(model.backbone().init, jax.random.key(0),
                                             batch)['params'])
  given = jax.tree.map(np.asarray, params)
  moved = jax.tree.map(jnp.asarray, params)
  got, want = (model.backbone().apply({'params': some}, batch).hidden for some in (given, moved))
  np.testing.assert_array_equal(got, want)
