from flax.linen import unbox
import jax
import jax.numpy as jnp
import pytest

from plm_jax.conversion import attributes
from plm_jax.layers.dense import count_parameters
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.models import electra


def parameters(config, heads=()):
  ids = jnp.zeros((1, 8), jnp.int32)
  modules = {name: electra.FAMILY.heads[name].make(config, 2) for name in heads}
  model = ModelWithHeads(config.backbone(), modules)
  return count_parameters(
    unbox(jax.eval_shape(lambda: model.init(jax.random.key(0),
                                            dict(tokens=ids, segments=ids))['params']))
  )


@pytest.mark.parametrize(('config', 'published', 'rtd', 'mlm'), [
    (electra.small(), 14, 13_549_057, 13_546_682), (electra.base(), 110, 109_483_009, 109_514_298),
    (electra.large(), 335, 335_142_913, 335_174_458)], ids=['small', 'base', 'large'])
def test_parameters(config, published, rtd, mlm):
  """Those of transformers' ElectraForPreTraining and ElectraForMaskedLM; published in millions."""
  assert parameters(config, ['rtd']) == rtd and parameters(config, ['mlm']) == mlm
  assert round(rtd / 1e6) == published or abs(rtd / 1e6 - published) < 0.55


@pytest.mark.parametrize(('config', 'said'), [(electra.small(), 128), (electra.base(), 768)],
                         ids=['small', 'base'])
def test_embeddings_of_the_hidden_width_are_not_projected(config, said):
  written = attributes.build_hf_attributes(electra.FAMILY, config)
  assert written['embedding_size'] == said
  assert attributes.parse_hf_config(electra.FAMILY, electra.normalize_hf_config(written)) == config
