"""Decoders with bidirectional attention: values of transformers' classes, who attends to whom, and
windows on both sides."""
from flax.linen import unbox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_decoders
import tiny

from plm_jax import validation
from plm_jax.models import gemma3, gpt2, gpt_neox, llama, modernbert, palm, qwen3, smollm3
from plm_jax.models.rules import ConvertError

# Family, model, changes.
CASES = {
    'llama': (llama.llama_7b, {}), 'qwen3': (qwen3.qwen3_0_6b, {'windows': (3, 0)}),
    'smollm3': (smollm3.smollm3_3b, {'rotated': (True, False, True)}),
    'gemma3_text': (gemma3.gemma3_270m, {'windows': (3, 3, 0)}),
    'gpt_neox': (gpt_neox.pythia_160m, {}), 'gpt2': (gpt2.small, {}),
    'modernbert-decoder': (
        lambda: modernbert.make_decoder_config(3, 32, 4, 44), {'windows': (0, 3, 3)})}


def make(name: str):
  """Return a small model with bidirectional attention."""
  model, changes = CASES[name]
  return small_decoders.shrink(model(), **{'causal': False, **changes})


@pytest.mark.parametrize('name', [
    name if name == 'llama' else pytest.param(name, marks=pytest.mark.slow) for name in CASES])
def test_hidden_states_of_transformers(tmp_path, name):
  """`is_causal` (Gemma: `use_bidirectional_attention`) in a config.json, to 1e-5."""
  how = 'sdpa' if name == 'modernbert-decoder' else 'eager'  # eager fails there
  small_decoders.assert_transformers_agrees(tmp_path, name, make(name), how)


@pytest.mark.parametrize('name', ['llama', 'gemma3_text', 'modernbert-decoder'])
def test_configurations_in_files_are_read_as_the_same(name):
  config = make(name)
  written = small_decoders.write(name, config)
  found = small_decoders.parse(name, written)
  assert (found.causal, found.windows) == (False, config.windows)
  if name == 'gemma3_text':
    assert (written['use_bidirectional_attention'], written['sliding_window']) == (True, 6)
  else:
    assert written['is_causal'] is False
    assert 'is_causal' not in small_decoders.write(name, CASES[name][0]())


def test_a_family_without_the_attribute_is_not_exported():
  config = small_decoders.shrink(palm.palm_8b(), causal=False)
  with pytest.raises(ConvertError, match=r'causal: .* has no counterpart there'):
    small_decoders.write('cohere', config)


def gradients(config, ranks=None):
  """Return [query, key] bool: whether a hidden state depends on a token, in 16 tokens."""
  tokens = jnp.arange(16)[None] % 50 + 3
  batch = {'tokens': tokens, 'segments': jnp.array([[1] * 12 + [2] * 4])}
  if ranks is not None:
    batch['ranks'] = jnp.broadcast_to(ranks, tokens.shape)
  model = config.backbone()
  params = tiny.random_params(unbox(jax.eval_shape(model.init, jax.random.key(0), batch)['params']))
  def total(noise, at):
    return (model.apply({'params': params}, batch | {'noise': noise}).hidden[0, at] ** 3).sum()
  found = jax.jit(jax.vmap(jax.grad(total), (None, 0)))(
      jnp.zeros((1, 16, config.block.width)), jnp.arange(16))
  return np.abs(np.asarray(found)[:, 0]).max(-1) > 0


@pytest.mark.parametrize('name', ['llama', 'gpt2'])
def test_tokens_see_both_sides_of_their_document(name):
  same = np.repeat([1, 2], [12, 4])
  whole = same[:, None] == same
  np.testing.assert_array_equal(gradients(make(name)), whole)
  causal = validation.with_paths(make(name), {'causal': True})
  np.testing.assert_array_equal(gradients(causal), whole & np.tri(16, dtype=bool))


@pytest.mark.parametrize('ranks', [None, 0])
def test_windows_reach_to_both_sides(ranks):
  """One layer with two tokens on each side, whether the windows are of places or of distances."""
  config = validation.with_paths(make('llama'), {'windows': (2,), 'stack.layers': 1})
  place, same = np.arange(16), np.repeat([1, 2], [12, 4])
  near = np.abs(place[:, None] - place) <= 2
  np.testing.assert_array_equal(gradients(config, ranks), near & (same[:, None] == same))


def test_flops_count_the_pairs_of_both_sides():
  causal = validation.with_paths(make('llama'), {'causal': True, 'windows': (5,)})
  both = validation.with_paths(causal, {'causal': False, 'windows': (2,)})
  assert causal.forward_flops(64, 9) == both.forward_flops(64, 9)
