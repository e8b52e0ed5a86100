"""Runs the cases of transformers' encoders: one table of batch names, one reading of outputs for
each class."""
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from parity.shared import Outputs, Seen, Unsupported, gradients, opened
from plm_jax import conversion
from plm_jax.architectures.encoder import position_ids

KNOWN = {'input_ids', 'attention_mask', 'token_type_ids', 'position_ids', 'labels',
         'next_sentence_label',
         'sentence_order_label', 'start_positions', 'end_positions', 'langs', 'lengths',
         'task_type_ids'}


def run(reading):
  """A runner for the class of transformers that `reading` knows: see `shared.opened`."""
  return functools.partial(forward, reading)


def forward(reading, case) -> dict[str, np.ndarray]:
  """Compute outputs and gradients by the public heads, and hidden states and attention from
  intermediate values."""
  imported, _, batch, build, read = opened(reading, case, KNOWN, make_batch)
  family, model = conversion.get_family(imported.family).specialize(imported.config), Seen(
      build(imported.config))

  @jax.jit
  def outputs(params, batch):
    return read(model(params, batch))

  with jax.default_matmul_precision('highest'):
    got = {**outputs(imported.params, batch), **jax.jit(model.inside)(imported.params, batch)}
    # The reference clears padding after every layer, where nothing attends to it.
    if getattr(imported.config, 'clear', False):
      real = (batch['segments'] > 0).reshape(-1, batch['segments'].shape[-1], 1)
      got |= {name: x * real for name, x in got.items() if name.startswith('hidden_states.')}
    last = f'hidden_states.{imported.config.stack.blocks}'
    if imported.config.block.norm_at == 'pre' and last in case.outputs:
      # The last hidden states come after the last norm.
      got[last] = jax.jit(model.intermediates)(imported.params, batch)['output'].hidden
    got |= gradients(case, family, lambda: gradient(build, read, imported, batch, case.config))
  return jax.device_get(got)


def make_batch(inputs: Outputs, config: Any = None) -> Outputs:
  """transformers' arguments under our names; rows of several choices one under another."""
  shape = inputs['input_ids'].shape
  tokens = inputs['input_ids'].reshape(-1, shape[-1])
  batch = {'tokens': tokens, 'segments': jnp.ones_like(tokens)}
  if (config or {}).get('model_type') in ('xlm', 'flaubert'):
    # The case gives the row lengths, or they follow from the padding.
    ends = inputs['lengths'].reshape(-1) if 'lengths' in inputs else (
        tokens != config['pad_token_id']).sum(-1)
    batch['segments'] = (jnp.arange(shape[-1]) < ends[:, None]).astype(jnp.int32)
    if 'token_type_ids' in inputs:
      raise Unsupported('types that are tokens')
  mask = inputs.get('attention_mask', batch['segments'])
  if mask.size == tokens.size:
    batch['segments'] = (mask.reshape(tokens.shape) > 0).astype(jnp.int32)
  else:
    # [B, Q, K], or [B, 1, Q, K]; 1 and 0, or 0 and a large negative number.
    additive = mask.dtype == jnp.float32 and mask.min() < 0
    batch['visible'] = (mask == 0 if additive else mask > 0).reshape(-1, *mask.shape[-2:])
  for ours, theirs in (('types', 'token_type_ids'), ('place', 'position_ids'),
                       ('languages', 'langs'),
                       ('tasks', 'task_type_ids')):
    if theirs in inputs:
      batch[ours] = jnp.broadcast_to(inputs[theirs], shape).reshape(tokens.shape)
  return batch


def gradient(build, read, imported, batch, config):
  """Compute d loss / d parameters. In torch the embedding of the padding token gets no gradient
  from look-ups, only from the tied head. So look-ups of padding use a copy of its embedding at
  the end of the table, and logits and gradient of the copy are removed. If padding has a position
  embedding, that gets no gradient either."""
  pad, vocab, params = config.get('pad_token_id'), imported.config.vocab, imported.params
  padding = getattr(imported.config, 'padding', -1)
  if padding >= 0 and 'place' not in batch:
    batch = {**batch, 'place': position_ids(batch['tokens'], padding)}
  model = Seen(build(dataclasses.replace(imported.config, vocab=vocab + 1)))
  if pad is not None:
    batch = {**batch, 'tokens': jnp.where(batch['tokens'] == pad, vocab, batch['tokens'])}
  tables = {('backbone', 'embeddings', 'tokens'): 0, ('heads_mlm', 'bias'): 0,
            ('heads_mlm', 'kernel'): 1}
  tables = {path: axis for path, axis in tables.items() if path[-1] in params.get(path[0], {})
            or len(path) > 2}

  def widen(params):
    for path, axis in tables.items():
      x = at(params, path)
      copy = jax.lax.stop_gradient(jnp.take(x, jnp.array([pad or 0]), axis))
      params = put(params, path, jnp.concatenate([x, copy], axis))
    return params

  @jax.jit
  def loss(params):
    outputs = model(widen(params), batch)
    if 'mlm' in outputs:
      outputs['mlm'] = outputs['mlm'][..., :vocab]
    return read(outputs)['loss']

  grads = jax.jit(jax.grad(loss))(jax.tree.map(jnp.asarray, params))
  table = ('backbone', 'embeddings', 'positions')
  return grads if padding < 0 else put(grads, table, at(grads, table).at[padding].set(0))


def at(tree, path):
  return functools.reduce(lambda node, key: node[key], path, tree)


def put(tree, path, value):
  return {**tree, path[0]: put(tree[path[0]], path[1:], value)} if path else value


def backbone(outputs, inputs, config):
  del inputs, config
  output = outputs['all']
  pooled = {} if output.pooled is None else {'pooler_output': output.pooled}
  return {'last_hidden_state': output.hidden, **pooled}


def masked_lm(outputs, inputs, config):
  logits = outputs['mlm']
  if config.get('sparse_prediction') and 'labels' in inputs:
    # ModernBERT computes no others
    logits = logits[np.nonzero(np.asarray(inputs['labels']) != -100)]
  return with_loss({'logits': logits}, inputs,
                   lambda: cross_entropy(outputs['mlm'], inputs['labels']))


def next_sentence(outputs, inputs, config):
  del config
  return with_loss({'logits': outputs['nsp']}, inputs,
                   lambda: cross_entropy(outputs['nsp'], inputs['labels']))


def pretraining(outputs, inputs, config):
  """Masked LM with next-sentence prediction or sentence-order prediction."""
  del config
  question, theirs, labels = ('nsp', 'seq_relationship_logits',
                              'next_sentence_label') if 'nsp' in outputs else (
      'sop', 'sop_logits', 'sentence_order_label')
  given = {'prediction_logits': outputs['mlm'], theirs: outputs[question]}
  if labels not in inputs:
    return given
  return with_loss(given, inputs, lambda: cross_entropy(outputs['mlm'], inputs['labels'])
                   + cross_entropy(
      outputs[question], inputs[labels]))


def replaced_tokens(outputs, inputs, config):
  """Replaced token detection, with the loss over tokens other than padding."""
  del config
  logits = outputs['rtd']
  def loss():
    real = inputs.get('attention_mask', jnp.ones_like(inputs['input_ids'])) > 0
    losses = optax.sigmoid_binary_cross_entropy(logits, inputs['labels'])
    return (losses * real).sum() / real.sum()
  return with_loss({'logits': logits}, inputs, loss)


def with_loss(outputs, inputs, loss):
  return {**outputs, 'loss': loss()} if 'labels' in inputs else outputs


def cross_entropy(logits, labels):
  """Mean over the labels that are not -100."""
  labels, keep = labels.reshape(logits.shape[:-1]), (labels != -100).reshape(logits.shape[:-1])
  losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.where(keep, labels, 0))
  return (losses * keep).sum() / keep.sum()
