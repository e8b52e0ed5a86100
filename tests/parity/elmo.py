"""Runs the cases of AllenNLP's Elmo: layers, mixtures of them, state from one call to the next, and
gradients."""
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.architectures.elmo import Elmo, add_sentence_marks
from plm_jax.layers.char_cnn import CharacterCNN
from plm_jax.layers.recurrent_heads import ScalarMix
from plm_jax.models import elmo


def run(case) -> dict[str, np.ndarray]:
  config = elmo.parse_options(case.config)
  # model.safetensors has AllenNLP's version of it
  with np.load(case.path / 'bilm_hdf5_layout.npz') as file:
    params = elmo.import_arrays(config, {name: file[name].astype(np.float32)
                                         for name in file.files})
  mixes = [{'weights': np.float32(weights), 'gamma': np.float32(gamma)}
           for weights, gamma in zip(case.config['scalar_mix'], case.config['gamma'], strict=True)]
  mix = ScalarMix(norm=case.config.get('do_layer_norm', False))

  @jax.jit
  def forward(params, mixes, batch):
    output: Any = Elmo(config).apply({'params': params}, batch)
    # Marks of the sentence's begin and end are mixed with the rest, and left out then.
    real = batch['characters'].any(-1)
    mixed: Any = [mix.apply({'params': one}, output.layers, output.mask) for one in mixes]
    return output, [x[:, 1:-1] * real[..., None] for x in mixed], real

  with jax.default_matmul_precision('highest'):
    batch = {'characters': jnp.asarray(case.inputs['char_ids'], jnp.int32)}
    output, mixed, mask = forward(params, mixes, batch)
    got = {f'layer.{number}': layer for number, layer in enumerate(output.layers)}
    got |= {f'elmo_representations.{number}': x for number, x in enumerate(mixed)}
    got |= {'token_embedding': vectors(config, params, batch), 'mask': mask,
            'mask_with_bos_eos': output.mask}
    if case.about['second_call']:
      batch = {'characters': jnp.asarray(case.inputs['char_ids_2'], jnp.int32),
               'state': output.state}
      got |= {f'second_call.{number}': x
              for number, x in enumerate(forward(params, mixes, batch)[1])}
    weights = jnp.asarray(case.inputs['loss_weights'])
    if any(name.startswith('grad/') for name in case.outputs):
      loss = lambda params, mixes: (forward(params, mixes, batch)[1][0] * weights).sum()
      grads, (of_mix, _) = jax.grad(loss, (0, 1))(params, mixes)
      got |= {'grad/scalar_mix_0': np.append(of_mix['weights'], of_mix['gamma']),
              'grad/forward_layer_1.state_projection.weight': grads['layer_1']['project'][0].T,
              'grad/char_conv_1.weight': jnp.transpose(grads['characters']['kernel_1'], (2, 1, 0))}
  return {name: np.asarray(x, case.outputs[name].dtype) for name, x in jax.device_get(got).items()}


def vectors(config, params, batch):
  """Vectors of words; padding too has one there."""
  words = CharacterCNN(config.characters, config.width)
  return words.apply({'params': params['characters']}, add_sentence_marks(batch['characters']))
