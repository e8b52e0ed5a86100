"""Runs the cases of SpanBERT's original code: masked language modelling and the span boundary
objective."""
import jax
import jax.numpy as jnp
import numpy as np
import optax

from parity.shared import Seen, inputs_of
from plm_jax import conversion


def run(case) -> dict[str, np.ndarray]:
  """Every pair of boundaries, padding too, predicts all places that the head knows."""
  imported = conversion.load(case.path)
  inputs = inputs_of(case, {'src_tokens', 'segment_labels', 'pairs', 'lm_target', 'pair_targets'})
  pad = case.config['pad_token_id']
  rows, pairs, targets = inputs['pair_targets'].shape
  def flat(x):
    return jnp.broadcast_to(x, (rows, pairs, targets)).reshape(rows, -1)
  batch = dict(
      tokens=inputs['src_tokens'], segments=(inputs['src_tokens'] != pad).astype(jnp.int32),
      types=inputs['segment_labels'], left=flat(inputs['pairs'][..., :1]),
      right=flat(inputs['pairs'][..., 1:]),
      offset=flat(jnp.arange(targets)))
  family, model = conversion.get_family('spanbert'), Seen(imported.model())

  def outputs(params, batch):
    got = model(params, batch)
    given = dict(mlm_logits=got['mlm'], sbo_logits=got['sbo'].reshape(rows * pairs, targets, -1))
    for name, logits, labels in (('lm', got['mlm'], inputs['lm_target']),
                                 ('pair', given['sbo_logits'],
                                  inputs['pair_targets'].reshape(-1, targets))):
      losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
      given[f'{name}_loss_sum'] = jnp.where(labels != pad, losses, 0).sum()
    given['ntokens'] = (inputs['lm_target'] != pad).sum()
    given['npairs_plus_1'] = (inputs['pair_targets'] != pad).sum() + 1
    given['loss'] = given['lm_loss_sum'] / given['ntokens'] + (
        case.config['pair_loss_weight'] * given['pair_loss_sum'] / given['npairs_plus_1'])
    return given

  with jax.default_matmul_precision('highest'):
    got = jax.jit(outputs)(imported.params, batch)
    seen = jax.jit(model.inside)(imported.params, batch)
    grads = jax.jit(jax.grad(lambda params: outputs(params, batch)['loss']))(
        jax.tree.map(jnp.asarray, imported.params))
  got |= {f'encoder_layers.{k}': seen[f'hidden_states.{k + 1}']
          for k in range(imported.config.stack.layers)}
  got |= {f'grad/{name}': x for name, x in conversion.export_tensors(family, grads, copies=True)}
  return jax.device_get(got)
