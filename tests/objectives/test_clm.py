import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax.architectures.decoder import DecoderConfig
from plm_jax.layers.stack import StackConfig
from plm_jax.objectives.clm import CausalLM
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.row_builders import Single
from plm_jax.tokenizers.contract import Vocab, boundary_ids

ONE = Vocab(size=50, eos=1)  # GPT-2: one token ends a text and begins the next
TWO = Vocab(size=50, pad=0, bos=2, eos=1)  # LLaMA
WINDOWS = dict(
    tokens=jnp.array([[5, 6, 7, 8, 9, 0, 0, 0], [5, 6, 7, 8, 9, 10, 11, 12], [0] * 8]),
    segments=jnp.array([[1, 1, 2, 2, 3, 0, 0, 0], [1] * 8, [0] * 8]))


def rows(objective, vocab, windows=None):
  return jax.jit(lambda w: objective.corrupt(jax.random.key(0), w, vocab))(windows or WINDOWS)


def test_every_token_is_predicted_once_and_so_is_the_end_of_each_document():
  batch = rows(CausalLM(), TWO)
  np.testing.assert_array_equal(batch['tokens'],
                                [[2, 5, 6, 2, 7, 8, 2, 0], [2, 5, 6, 7, 8, 9, 10, 11], [0] * 8])
  np.testing.assert_array_equal(batch['labels'],
                                [[5, 6, 1, 7, 8, 1, 9, 0], [5, 6, 7, 8, 9, 10, 11, 12], [0] * 8])
  np.testing.assert_array_equal(batch['segments'], [[1, 1, 1, 2, 2, 2, 3, 0], [1] * 8, [0] * 8])
  np.testing.assert_array_equal(batch['place'],
                                [[0, 1, 2, 0, 1, 2, 0, 0], [0, 1, 2, 3, 4, 5, 6, 7], [0] * 8])
  np.testing.assert_array_equal(batch['weights'], np.asarray(batch['segments']) > 0)


def test_a_row_of_documents_that_see_each_other_is_one_text():
  batch = rows(CausalLM(isolated=False), ONE)
  np.testing.assert_array_equal(batch['tokens'][0], [1, 5, 6, 1, 7, 8, 1, 0])
  np.testing.assert_array_equal(batch['segments'][0], [1] * 7 + [0])
  np.testing.assert_array_equal(batch['place'][0], [0, 1, 2, 3, 4, 5, 6, 0])


def test_a_row_may_begin_with_its_text():
  """As in nanoGPT: of eight tokens, the first is read only, and seven are predicted."""
  objective = CausalLM(starts_every_row=False)
  assert objective.text_length(7) == 8
  batch = rows(objective, TWO)
  np.testing.assert_array_equal(batch['tokens'],
                                [[5, 6, 2, 7, 8, 2, 0], [5, 6, 7, 8, 9, 10, 11], [0] * 7])
  np.testing.assert_array_equal(batch['labels'],
                                [[6, 1, 7, 8, 1, 9, 0], [6, 7, 8, 9, 10, 11, 12], [0] * 7])
  np.testing.assert_array_equal(batch['segments'], [[1, 1, 2, 2, 2, 3, 0], [1] * 7, [0] * 7])
  np.testing.assert_array_equal(batch['place'],
                                [[0, 1, 0, 1, 2, 0, 0], [0, 1, 2, 3, 4, 5, 6], [0] * 7])
  np.testing.assert_array_equal(batch['weights'], np.asarray(batch['segments']) > 0)
  one_text = rows(CausalLM(isolated=False, starts_every_row=False), TWO)
  np.testing.assert_array_equal(one_text['place'][0], [0, 1, 2, 3, 4, 5, 0])


def test_a_row_without_room_loses_its_end():
  narrow = {name: x[:, :6] for name, x in WINDOWS.items()}
  batch = rows(CausalLM(), ONE, narrow)
  np.testing.assert_array_equal(batch['labels'][0], [5, 6, 1, 7, 8, 1])
  np.testing.assert_array_equal(batch['tokens'][0], [1, 5, 6, 1, 7, 8])


@pytest.mark.slow
def test_documents_of_a_row_do_not_see_each_other():
  """Another text in one document changes neither the other's losses nor their gradients, by a
  bit."""
  objective = CausalLM()
  cfg = DecoderConfig(vocab=50, block=tiny.block(norm_at='pre', dropout=0.0), stack=StackConfig(2),
                      max_length=8)
  model = objective.build(cfg, packed=True)
  first = rows(objective, ONE)
  second = rows(objective, ONE,
                WINDOWS | {'tokens': WINDOWS['tokens'].at[0, 2:4].set(jnp.array([30, 31]))})
  params = tiny.random_params(jax.eval_shape(model.init, jax.random.key(0), first)['params'])

  @jax.jit
  def outputs(params, batch, wanted):
    def loss(params):
      logits = model.apply({'params': params}, batch)['lm']
      return (jax.nn.log_softmax(logits)[:, :, 7] * wanted).sum(), logits
    return jax.grad(loss, has_aux=True)(params)

  wanted = jnp.isin(first['segments'], jnp.array([1, 3])).at[1:].set(False)
  (grad, logits), (other_grad, other) = outputs(params, first,
                                                wanted), outputs(params, second, wanted)
  tiny.assert_same(logits[0][wanted[0]], other[0][wanted[0]])
  tiny.assert_same(grad, other_grad)
  middle = first['segments'][0] == 2
  assert np.abs(logits[0][middle] - other[0][middle]).max() > 1e-2


def test_z_loss_is_the_square_of_the_logarithm_of_the_denominator():
  logits = jnp.log(jnp.array([[[1.0, 2.0, 5.0], [1.0, 1.0, 1.0]]]))
  batch = dict(labels=jnp.array([[2, 0]]), weights=jnp.array([[1.0, 0.0]]))
  losses = CausalLM(z_loss=1e-4).loss({'lm': logits}, batch)
  np.testing.assert_allclose(losses['z'], (np.log(8) ** 2, 1), rtol=1e-6)
  np.testing.assert_allclose(losses['clm'], (np.log(8 / 5), 1), rtol=1e-6)
  assert CausalLM(z_loss=1e-4).terms == {'clm': 1.0, 'z': 1e-4}
  assert 'z' not in CausalLM().loss({'lm': logits}, batch)
  masked = MaskedLM(pair=Single(), z_loss=1e-4)
  np.testing.assert_allclose(masked.loss({'mlm': logits}, batch)['z'], (np.log(8) ** 2, 1),
                             rtol=1e-6)
  assert masked.terms == {'mlm': 1.0, 'z': 1e-4} and 'z' not in MaskedLM(pair=Single()).terms


def test_a_tokenizer_without_an_end_is_refused():
  assert boundary_ids(ONE) == (1, 1)
  assert boundary_ids(Vocab(size=9, cls=3, sep=4)) == (3, 4)
  with pytest.raises(ValueError, match='a token that ends a text'):
    boundary_ids(Vocab(size=9, pad=0))
