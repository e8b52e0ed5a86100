"""Run the cases of transformers' decoders, with the inputs and outputs of the encoders and
additional ones."""
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from parity import encoder
from parity.fine_tuning import GivenChoices
from parity.shared import Seen, gradients, layers_of, opened
from plm_jax import conversion
from plm_jax.architectures.decoder import empty_cache, extend_cache

KNOWN = {'input_ids', 'attention_mask', 'position_ids', 'labels', 'mc_token_ids', 'mc_labels',
         'start_positions',
         'end_positions'}


def run(reading):
  """A runner for the class of transformers that `reading` knows: see `shared.opened`."""
  return functools.partial(forward, reading)


def forward(reading, case) -> dict[str, np.ndarray]:
  """Compute outputs, gradients and intermediate values; for cases with step-by-step decoding also
  with a cache."""
  imported, inputs, batch, build, read = opened(reading, case, KNOWN, make_batch)
  family, model = conversion.get_family(imported.family).specialize(imported.config), Seen(
      build(imported.config))

  @jax.jit
  def outputs(params, batch):
    seen = model.intermediates(params, batch)
    # The last of them comes after the last norm, and in the shape of the rows that were given.
    last = seen['output'].hidden.reshape(*inputs['input_ids'].shape, -1)
    return layers_of(seen) | {f'hidden_states.{imported.config.stack.blocks}': last} | read(
        model(params, batch))

  with jax.default_matmul_precision('highest'):
    got = outputs(imported.params, batch)
    got |= gradients(case, family, lambda: gradient(model, read, imported, batch))
    if 'step_logits' in case.outputs:
      case.about.only(input_key='input_ids')
      got |= step_by_step(imported, batch, case.about['prefill'])
  return jax.device_get(got)


def make_batch(inputs, config):
  """Rename transformers' arguments. There, padding attends to earlier tokens, so the attention
  mask is explicit."""
  batch = encoder.make_batch(inputs)
  rows, length = batch['tokens'].shape
  if 'attention_mask' in inputs and 'visible' not in batch:
    batch['visible'] = jnp.tril(jnp.ones((rows, length, length),
                                         bool)) & (batch['segments'][:, None] > 0)
    batch['segments'] = jnp.ones_like(batch['segments'])
  last = jnp.full((rows, 1), length - 1)
  if 'mc_token_ids' in inputs:
    batch['extract'] = inputs['mc_token_ids'].reshape(-1, 1)
  elif config.get('pad_token_id') is not None:
    batch['extract'] = jnp.max(jnp.arange(length) * (batch['tokens'] != config['pad_token_id']), 1,
                               keepdims=True)
  else:
    batch['extract'] = last
  return batch


def gradient(model, read, imported, batch):
  """d loss / d parameters."""
  def loss(params):
    return read(model(params, batch))['loss']
  return jax.jit(jax.grad(loss))(jax.tree.map(jnp.asarray, imported.params))


def step_by_step(imported, batch, prefill: int):
  """step_logits [B, L, V] and cache.N.key, cache.N.value [B, G, L, A], of `prefill` tokens at once,
  then one by one."""
  config, params = imported.config, jax.tree.map(jnp.asarray, imported.params)
  backbone, head = conversion.get_family(imported.family).backbone(config), imported.heads['lm']
  rows, length = batch['tokens'].shape
  whole = {'place': jnp.broadcast_to(jnp.arange(length), (rows, length)), **batch}

  @jax.jit
  def step(part, cache):
    output: Any = backbone.apply({'params': params['backbone']}, part, cache=cache, remember=True)
    return head.apply({'params': params.get('heads_lm', {})}, output,
                      part), extend_cache(cache, output.keys, part)

  cache, logits = empty_cache(config, rows, length), []
  for start, stop in ((0, prefill), *((n, n + 1) for n in range(prefill, length))):
    part = {name: whole[name][:, start:stop]
            for name in ('tokens', 'segments', 'place', 'types') if name in whole}
    if 'visible' in whole:
      part['visible'] = of_step(whole['visible'], start, stop)
    some, cache = step(part, cache)
    logits.append(some)
  kept = {f'cache.{n}.{name}': cache[name][n] for n in range(len(cache['key'])) for name in (
      'key', 'value')}
  return kept | {'step_logits': jnp.concatenate(logits, 1)}


def of_step(visible, start: int, stop: int):
  """Map an attention mask [B, L, L] to [B, Q, L + Q] for tokens start .. stop - 1: the L slots of
  the cache, filled up to start, then the new tokens."""
  some = visible[:, start:stop]
  before = jnp.where(jnp.arange(some.shape[2]) < start, some, False)
  return jnp.concatenate([before, some[:, :, start:stop]], 2)


def backbone(outputs, inputs, config):
  del config
  return {'last_hidden_state': outputs['all'].hidden.reshape(*inputs['input_ids'].shape, -1)}


def causal_lm(outputs, inputs, config):
  """The reference shifts labels: the label of a position is the next token."""
  del config
  logits = outputs['lm'].reshape(*inputs['input_ids'].shape, -1)
  return encoder.with_loss({'logits': logits}, inputs, lambda: encoder.cross_entropy(
      logits[..., :-1, :], inputs['labels'][..., 1:]))


def double_heads(outputs, inputs, config):
  """The next tokens, and which of several rows it is."""
  rows = {'input_ids': inputs['input_ids'],
          **({'labels': inputs['mc_labels']} if 'mc_labels' in inputs else {})}
  choice = {'choice': outputs['choice'].reshape(rows['input_ids'].shape[:-1])}
  return causal_lm(outputs, inputs, config) | {
      f'mc_{name}': x for name, x in GivenChoices()(choice, rows, config).items()}
