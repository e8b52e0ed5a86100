"""What each family draws: the standard deviation, and the largest deviation of 200,000 draws, in
deviations.

An uncut normal of so many draws reaches beyond 4, one cut at 2 ends there, a uniform distribution
at the root of 3.
"""
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.layers.init import TRUNCATED_STD
from plm_jax.models import (
  albert,
  bart,
  bert,
  deberta,
  electra,
  glm,
  gpt,
  gpt2,
  mosaicbert,
  palm,
  roberta,
  t5,
  transformer,
  xlm,
  xlnet,
)

LARGEST = {
    'truncated': (1.99, 2.0001), 'normal': (4, 6), 'uniform': (1.73, 1.7321),
      'rescaled': (1.99 / TRUNCATED_STD, 2.0001 / TRUNCATED_STD)}
NORMAL = 0.02, 'normal'
CUT_NORMAL = 0.02 * TRUNCATED_STD, 'truncated'
# A table, and a matrix from 768 to 3072.
FAMILIES = {
    # google-research/bert, modeling.py, create_initializer; ALBERT's and ELECTRA's are its.
    'bert': (bert.base, CUT_NORMAL, CUT_NORMAL), 'albert': (albert.base, CUT_NORMAL, CUT_NORMAL),
    'electra': (electra.base, CUT_NORMAL, CUT_NORMAL),
    # xlnet's --init=normal; fairseq's init_bert_params; DeBERTa's init_weights; openai's
    # random_normal_initializer.
    'xlnet': (xlnet.base, NORMAL, NORMAL), 'roberta': (roberta.base, NORMAL, NORMAL),
    'bart': (bart.base, NORMAL, NORMAL), 'mbart': (bart.mbart_large, NORMAL, NORMAL),
    'spanbert': (bert.spanbert_base, NORMAL, NORMAL),
    'deberta': (deberta.base, NORMAL, NORMAL), 'deberta_v3': (deberta.v3_base, NORMAL, NORMAL),
    'glm': (glm.base, NORMAL, NORMAL), 'gpt': (gpt.base, NORMAL, NORMAL),
    'gpt2': (gpt2.small, NORMAL, NORMAL),
    'gpt3': (gpt2.gpt3_small, NORMAL, NORMAL),
    # google-research/t5x, layers.py: variance_scaling(1, 'fan_in', 'truncated_normal'), tables
    # normal of 1.
    't5': (t5.base, (1.0, 'normal'), (768 ** -0.5, 'rescaled')),
    # Chowdhery et al. 2022, section 5: kernels N(0, 1 / sqrt(n_in)), embeddings N(0, 1).
    'palm': (palm.palm_8b, (1.0, 'normal'), (768 ** -0.5, 'normal')),
    # tensor2tensor, uniform_unit_scaling of 1, and symbol_modality's normal of 1 / sqrt(width).
    'transformer': (transformer.base, (512 ** -0.5, 'normal'), (1920 ** -0.5, 'uniform')),
    # facebookresearch/XLM, xlm/model/transformer.py: Embedding, and torch's Linear, uniform up to 1
    # / sqrt(n_in).
    'xlm': (xlm.xlm_xnli15, (1 / 32, 'normal'), ((3 * 768) ** -0.5, 'uniform')),
    # mosaicml/examples, bert_layers.py: transformers' BertPreTrainedModel.
    'mosaicbert': (mosaicbert.base, NORMAL, NORMAL),
}


@pytest.mark.parametrize('family', FAMILIES)
def test_each_family_begins_as_its_code_does(family):
  model, *wanted = FAMILIES[family]
  init = model().block.init
  initializers = init.table_initializer, init.matrix_initializer(768, 3072)
  for initializer, (std, draw) in zip(initializers, wanted, strict=True):
    x = np.asarray(initializer(jax.random.key(0), (400, 500), jnp.float32), np.float64)
    assert x.std() == pytest.approx(std, rel=0.01) and abs(x.mean()) < 0.01 * std
    low, high = LARGEST[draw]
    assert low <= np.abs(x).max() / (std / TRUNCATED_STD if draw == 'truncated' else std) <= high


def test_projections_into_the_residual_stream_are_smaller():
  x = gpt2.small().block.init.matrix_initializer(3072, 768,
                                                 out=True)(jax.random.key(0), (400, 500),
                                                           jnp.float32)
  assert np.std(np.asarray(x)) == pytest.approx(0.02 / 24 ** 0.5, rel=0.01)
