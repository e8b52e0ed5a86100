import math

import jax
import numpy as np
import pytest

from plm_jax.architectures.encoder_decoder import sinusoids
from plm_jax.layers.dense import count_parameters
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.models import transformer


@pytest.mark.parametrize(('config', 'number'),
                         [(transformer.base(), 63_082_496), (transformer.big(), 214_245_376)])
def test_parameters_are_the_papers_in_millions(config, number):
  """Table 3 has 65 and 213."""
  row = np.ones((1, 4), np.int32)
  batch = dict(tokens=row, segments=row, decoder_tokens=row, decoder_segments=row)
  model = ModelWithHeads(config.backbone(), {})
  assert count_parameters(jax.eval_shape(model.init, jax.random.key(0), batch)['params']) == number


def test_sines_then_cosines():
  """Section 3.5: of width 4 the angles are pos and pos / 100."""
  want = [[math.sin(pos), math.sin(pos / 100), math.cos(pos), math.cos(pos / 100)]
          for pos in range(3)]
  np.testing.assert_allclose(sinusoids(3, 4), want, atol=1e-7)
