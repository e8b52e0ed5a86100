"""Runs the cases of DeBERTa's original code: the mask decoder, and replaced-token detection over
shared embeddings."""
import pathlib
import tempfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from safetensors.numpy import load_file, save_file

from parity.shared import Seen
from plm_jax import conversion
from plm_jax.conversion.source_formats import CONFIG

TOKENS, POSITIONS = (f'deberta.embeddings.{name}_embeddings' for name in ('word', 'position'))


def run(reading):
  """A runner: what `reading` makes of a case, in full precision."""
  def runner(case) -> dict[str, np.ndarray]:
    with jax.default_matmul_precision('highest'):
      return jax.device_get(reading(case))
  return runner


def mask_decoder(case):
  """Label 0 means not predicted; the predicted positions of all rows are concatenated."""
  imported = conversion.load(case.path)
  model = Seen(imported.model())
  inputs = {name: jnp.asarray(x, jnp.int32) for name, x in case.inputs.items()}
  batch = {'tokens': inputs['input_ids'], 'segments': inputs['input_mask']}
  most = max((case.inputs['labels'] > 0).sum(1))
  # As in training, the decoder is evaluated at the predicted positions only.
  order = np.argsort(case.inputs['labels'] == 0, axis=1, kind='stable')[:, :most]
  real = np.take_along_axis(case.inputs['labels'] > 0, order, 1)
  labels = inputs['labels'][inputs['labels'] > 0]
  few = {**batch, 'positions': jnp.asarray(order, jnp.int32)}

  def losses(params):
    outputs: Any = model(params, few)
    logits = outputs['mlm'][real]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels), logits

  per_token, logits = jax.jit(losses)(imported.params)
  grads = jax.jit(jax.grad(lambda params: losses(params)[0].mean()))(
      jax.tree.map(jnp.asarray, imported.params))
  inside, decoded = jax.jit(lambda params: (
      model.inside(params, batch), model.intermediates(params, few)['stack']['decoded']))(
          imported.params)
  table = imported.params['backbone']['positions']
  shape = inputs['input_ids'].shape
  return {
      'embeddings': inside['hidden_states.0'],
      **{f'encoder_layers.{k}': inside[f'hidden_states.{k + 1}'] for k in range(len(inside) // 2)},
      'z_states': jnp.broadcast_to(table[:shape[1]], (*shape, table.shape[1])),
      **{f'emd_states.{k}': x[real] for k, x in enumerate(decoded)},
      'masked_logits': logits, 'masked_labels': labels, 'loss_per_token': per_token,
      **gradients(case, grads)}


def replaced_tokens(case):
  """The discriminator's token table is the generator's, which gets no gradient, plus its own."""
  tensors = {name: x.astype(np.float32)
             for name, x in load_file(case.path / 'model.safetensors').items()}
  shared = jnp.asarray(tensors[f'generator.{TOKENS}.weight'])
  own = jnp.asarray(tensors[f'{TOKENS}._weight'])
  with tempfile.TemporaryDirectory() as folder:
    # The same discriminator on its own.
    alone = {name.replace('._weight', '.weight'): x
             for name, x in tensors.items() if not name.startswith('generator.')}
    alone = {name: x for name, x in alone.items() if not name.startswith(POSITIONS)}
    save_file(alone, pathlib.Path(folder) / 'model.safetensors')
    (pathlib.Path(folder) / CONFIG).write_text((case.path / CONFIG).read_text())
    imported = conversion.load(folder)
  model = Seen(imported.model())
  embeddings = {name: x for name, x in imported.params['backbone']['embeddings'].items() if name
                != 'tokens'}
  params = {**imported.params, 'backbone': {**imported.params['backbone'],
                                            'embeddings': embeddings}}
  inputs = {name: jnp.asarray(x, jnp.int32) for name, x in case.inputs.items()}
  real, labels = case.inputs['input_mask'] > 0, inputs['labels']
  replaced = ((labels > 0) & (labels != inputs['input_ids'])).astype(jnp.float32)[real]

  def losses(params, own):
    batch = {'tokens': inputs['input_ids'], 'segments': inputs['input_mask'],
             'tables': {'tokens': jax.lax.stop_gradient(shared) + own}}
    outputs: Any = model(params, batch)
    logits = outputs['rtd']
    return optax.sigmoid_binary_cross_entropy(logits[real], replaced), logits

  per_token, logits = jax.jit(losses)(params, own)
  grads, table = jax.jit(jax.grad(lambda *args: losses(*args)[0].mean(), (0, 1)))(
      jax.tree.map(jnp.asarray, params), own)
  # torch gives padding's row no gradient from look-ups.
  table = table.at[case.config.get('padding_idx', 0)].set(0)
  return {'logits': logits, 'mask_labels': replaced, 'loss_per_token': per_token,
          **gradients(case, grads),
          f'grad/{TOKENS}._weight': table}


def gradients(case, grads):
  given = dict(conversion.export_tensors(conversion.get_family('deberta-v2'), grads, copies=True))
  return {name: given[name.removeprefix('grad/')] for name in case.outputs
          if name.startswith('grad/') and name.removeprefix('grad/') in given}
