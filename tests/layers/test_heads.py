"""Classification heads: what represents a text, in rows of one text and in packed rows."""
import backbones
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.architectures import Output
from plm_jax.layers.heads import pool_texts
from plm_jax.models.families import build_head
from plm_jax.models.rules import ConvertError
from plm_jax.validation import with_paths

STATES = jnp.array([[[1.0], [5.0], [3.0], [7.0], [9.0], [100.0]]])
OUTPUT = Output(STATES)


@pytest.mark.parametrize(('how', 'whole', 'packed'), [
    ('first', [1.0], [[1.0], [3.0]]), ('last', [9.0], [[5.0], [9.0]]),
    ('max', [9.0], [[5.0], [9.0]]),
    ('mean', [5.0], [[3.0], [19 / 3]]),
    ('mean_sqrt', [25 / 5 ** 0.5], [[6 / 2 ** 0.5], [19 / 3 ** 0.5]]),
    ('weighted_mean', [(1 + 10 + 9 + 28 + 45) / 15], [[11 / 3], [(3 + 14 + 27) / 6]])])
def test_each_text_of_a_row_is_pooled_by_itself(how, whole, packed):
  """The last position is padding; the packed row has texts of two and of three tokens."""
  one = pool_texts(OUTPUT, {'segments': jnp.array([[1, 1, 1, 1, 1, 0]])}, how)
  np.testing.assert_allclose(one, [whole], rtol=1e-6)
  batch = {'segments': jnp.array([[1, 1, 2, 2, 2, 0]]), 'extract': jnp.array([[0, 4]])}
  np.testing.assert_allclose(pool_texts(OUTPUT, batch, how), [packed], rtol=1e-6)


def test_the_encoder_of_an_encoder_decoder_is_pooled():
  output = Output(STATES, encoded=STATES + 1)
  assert pool_texts(output, {'segments': jnp.ones((1, 6), int)}, 'first').tolist() == [[2.0]]


@pytest.mark.parametrize('name', [
    'bert', 'roberta', 'mpnet', 'albert', 'electra', 'deberta', 'xlnet', 'gpt2', 'llama', 't5',
    'bart', 'modernbert'])
def test_every_family_classifies_by_the_pooling_of_the_model(name):
  """Logits change with every token where a text is the mean of its tokens, and with the chosen one
  otherwise."""
  model = with_paths(backbones.small(name, 40, 16), {'head.pooling': 'mean'})
  if hasattr(model, 'pooler'):
    model = with_paths(model, {'pooler': True})
  head = build_head(backbones.family(name), 'label', model, 3)
  batch = {'segments': jnp.ones((1, 4), int)}
  def logits(states):
    output = Output(states, jnp.zeros((1, 32)))
    params = head.init(jax.random.key(0), output, batch)
    return np.asarray(head.apply(params, output, batch))
  states = jax.random.normal(jax.random.key(1), (1, 4, 32))
  before = logits(states)
  assert before.shape == (1, 3)
  for place in range(4):
    assert not np.allclose(before, logits(states.at[0, place].add(jnp.arange(32.0))), atol=1e-6)


def test_a_head_per_text_does_not_pool_logits():
  model = with_paths(backbones.small('bert', 40, 16), {'head.pooling': 'late', 'pooler': True})
  with pytest.raises(ConvertError, match='models of type bert have a head per text'):
    build_head('bert', 'label', model, 2)
