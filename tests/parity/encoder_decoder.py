"""Runs the cases of transformers' encoder-decoders: what goes into the two sides, and what both let
see."""
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from parity import decoder, encoder
from parity.shared import Seen, gradients, opened
from plm_jax import conversion
from plm_jax.architectures.encoder_decoder import extend_cache, initial_cache

KNOWN = {'input_ids', 'attention_mask', 'decoder_input_ids', 'decoder_attention_mask', 'labels',
         'start_positions',
         'end_positions'}
PADDING_HAS_NO_GRADIENT = ('bart', 'mbart')  # from look-ups, in torch


def run(reading):
  """A runner for the class of transformers that `reading` knows: see `shared.opened`."""
  return functools.partial(forward, reading)


def forward(reading, case) -> dict[str, np.ndarray]:
  """Compute outputs, gradients and intermediate values of encoder and decoder; for cases with
  step-by-step decoding also with a cache."""
  imported, _, batch, build, read = opened(
      reading, case, KNOWN, functools.partial(make_batch, generates=reading is seq2seq))
  family, model = conversion.get_family(imported.family).specialize(imported.config), Seen(
      build(imported.config))

  @jax.jit
  def outputs(params, batch):
    return inside(model.intermediates(params, batch), imported.config) | read(model(params, batch))

  with jax.default_matmul_precision('highest'):
    got = outputs(imported.params, batch)
    got |= gradients(case, family, lambda: gradient(build, read, imported, batch, case.config))
    if 'step_logits' in case.outputs:
      case.about.only(input_key='decoder_input_ids')
      got |= step_by_step(imported, batch, case.about['prefill'])
  return jax.device_get(got)


def make_batch(inputs, config, generates: bool = False):
  """Rename transformers' arguments. There, padding of the decoder attends to earlier tokens, so
  the attention mask is explicit. generates: the decoder reads the labels; otherwise its own
  input, or the encoder's if it has none."""
  batch = encoder.make_batch({name: x for name, x in inputs.items() if name
                              in ('input_ids', 'attention_mask')})
  tokens = inputs.get('decoder_input_ids')
  if tokens is None:
    tokens = shifted(inputs['labels'] if generates and 'labels' in inputs else inputs['input_ids'],
                     config)
  rows, length = tokens.shape
  seen = inputs.get('decoder_attention_mask', jnp.ones_like(tokens)) > 0
  eos = jnp.isin(inputs['input_ids'], jnp.array(config.get('eos_token_id', -1)))
  extract = jnp.max(jnp.arange(eos.shape[1]) * eos, 1, keepdims=True)
  return batch | {
      'decoder_tokens': tokens, 'decoder_segments': jnp.ones_like(tokens), 'extract': extract,
      'decoder_visible': jnp.tril(jnp.ones((rows, length, length), bool)) & seen[:, None]}


def shifted(labels, config):
  """Return the decoder input for `labels`: shifted right, with the start token first, for mBART
  the language token."""
  pad = config['pad_token_id']
  labels = jnp.where(labels == -100, pad, labels)
  if config['model_type'] == 'mbart':
    first = jnp.take_along_axis(labels, (labels != pad).sum(1, keepdims=True) - 1, 1)
  else:
    first = jnp.full_like(labels[:, :1], config['decoder_start_token_id'])
  return jnp.concatenate([first, labels[:, :-1]], 1)


def inside(sides, config):
  """hidden_states.k and attentions.k of each side, in the order of transformers: the embeddings
  first, and the last after the last norm."""
  output = sides['output']
  if not config.decoder.layers:
    return of_side(sides['encoder'], output.encoded, '')
  return {'encoder_last_hidden_state': output.encoded,
          **of_side(sides['encoder'], output.encoded, 'encoder_'),
          **of_side(sides['decoder'], output.hidden, 'decoder_')}


def of_side(seen, last, prefix):
  layers = seen['stack']['layers']['block']
  hidden = [seen['embedded'][0], *layers['hidden'][-1][:-1], last]
  probs = {f'{prefix}attentions': layers['attention']['probs'][0]}
  if 'cross' in layers:
    probs['cross_attentions'] = layers['cross']['probs'][0]
  return {**{f'{prefix}hidden_states.{k}': x for k, x in enumerate(hidden)},
          **{f'{name}.{k}': x for name, every in probs.items() for k, x in enumerate(every)}}


def gradient(build, read, imported, batch, config):
  """Compute d loss / d parameters. For BART look-ups of padding use a copy of its embedding at
  the end of the table, and the gradient of the copy is removed, because torch gives padding no
  gradient."""
  vocab, params, pad = imported.config.vocab, jax.tree.map(jnp.asarray,
                                                           imported.params), config['pad_token_id']
  widen, module = lambda params: params, build(imported.config)
  if imported.family in PADDING_HAS_NO_GRADIENT:
    module = build(dataclasses.replace(imported.config, vocab=vocab + 1))
    module = module.clone(heads={
        name: head.clone(vocab=vocab + 1) if name == 'lm' else head
        for name, head in module.heads.items()})
    batch = {**batch, **{name: jnp.where(batch[name] == pad, vocab, batch[name])
                         for name in ('tokens', 'decoder_tokens')}}
    paths = [path for path in (('backbone', 'tokens'), ('heads_lm', 'bias')) if path[0] in params]
    def widen(params):
      for path in paths:
        x = encoder.at(params, path)
        params = encoder.put(params, path,
                             jnp.concatenate([x, jax.lax.stop_gradient(x[pad])[None]]))
      return params
  model = Seen(module)

  def loss(params):
    outputs: Any = model(widen(params), batch)
    if 'lm' in outputs:
      outputs['lm'] = outputs['lm'][..., :vocab]
    return read(outputs)['loss']
  return jax.jit(jax.grad(loss))(params)


def step_by_step(imported, batch, prefill: int):
  """step_logits [B, T, V] and cache.N.key, cache.N.value [B, G, T, A], of `prefill` tokens of the
  decoder at once, then one by one; the encoder is read once."""
  config, params = imported.config, jax.tree.map(jnp.asarray, imported.params)
  backbone, head = conversion.get_family(imported.family).backbone(config), imported.heads['lm']
  rows, length = batch['decoder_tokens'].shape
  place = jnp.broadcast_to(jnp.arange(length), (rows, length))

  def part(start, stop):
    return {'decoder_tokens': batch['decoder_tokens'][:, start:stop],
            'decoder_place': place[:, start:stop],
            'decoder_segments': batch['decoder_segments'][:, start:stop],
            'decoder_visible': decoder.of_step(batch['decoder_visible'], start, stop)}

  @jax.jit
  def step(part, cache):
    output: Any = backbone.apply({'params': params['backbone']}, part, cache=cache, remember=True)
    logits = head.apply({'params': params.get('heads_lm', {})}, output, part)
    return logits, initial_cache(config, output, part, length) if cache is None else extend_cache(
      cache, output.keys, part
    )

  source = {name: batch[name] for name in ('tokens', 'segments', 'visible') if name in batch}
  first = part(0, prefill)
  # There is no cache yet.
  logits, cache = step(source | first
                       | {'decoder_visible': first['decoder_visible'][:, :, length:]}, None)
  every = [logits]
  for n in range(prefill, length):
    logits, cache = step(part(n, n + 1), cache)
    every.append(logits)
  kept = {f'cache.{n}.{name}': cache[name][n] for n in range(len(cache['key']))
          for name in ('key', 'value')}
  return kept | {'step_logits': jnp.concatenate(every, 1)}


def backbone(outputs, inputs, config):
  del inputs, config
  return {'last_hidden_state': outputs['all'].hidden}


def seq2seq(outputs, inputs, config):
  """Labels are the outputs of the decoder."""
  del config
  return encoder.with_loss(
      {'logits': outputs['lm']}, inputs,
      lambda: encoder.cross_entropy(outputs['lm'], inputs['labels']))
