"""Run the cases of GLM's own code: one or two positions per token, and generation with memory."""
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from parity.shared import Seen, gradients, inputs_of
from plm_jax import conversion
from plm_jax.architectures.decoder import empty_cache, extend_cache
from plm_jax.objectives import corruption, glm
from plm_jax.objectives.glm import BlankInfilling
from plm_jax.objectives.mlm import classification_losses
from plm_jax.tokenizers.contract import Vocab

KNOWN = {'input_ids', 'position_ids', 'attention_mask', 'target', 'loss_mask'}


def run(case) -> dict[str, np.ndarray]:
  """Logits, hidden states before the last norm, the loss and its gradient."""
  imported, model, inputs = load(case)
  batch = make_batch(inputs, inputs['attention_mask'])
  family = conversion.get_family('glm').specialize(imported.config)

  def loss(params):
    weights = inputs['loss_mask'].reshape(batch['tokens'].shape).astype(jnp.float32)
    total, weight = classification_losses('blank', model(params, batch)['lm'], inputs['target'],
                                          weights)['blank']
    return total / weight

  params = jax.tree.map(jnp.asarray, imported.params)
  with jax.default_matmul_precision('highest'):
    outputs: Any = jax.jit(model)(params, batch)
    got = {'logits': outputs['lm'], **jax.jit(model.inside)(params, batch)}
    if 'target' in inputs:
      got['loss'], grads = jax.jit(jax.value_and_grad(loss))(params)
      got |= gradients(case, family, lambda: grads)
  return jax.device_get(got)


def with_memory(case) -> dict[str, np.ndarray]:
  """The row in one go; and its context, then one token after another. `mems` are what each layer
  was given."""
  imported, model, inputs = load(case)
  context, (rows, length) = case.about['context_len'], inputs['input_ids'].shape
  batch = make_batch(inputs, jnp.full(rows, context))
  params = jax.tree.map(jnp.asarray, imported.params)
  backbone, head = conversion.get_family('glm').backbone(imported.config), imported.heads['lm']

  @jax.jit
  def step(params, part, cache):
    output, state = backbone.apply(
        {'params': params['backbone']}, part, cache=cache, remember=True, mutable=['intermediates'])
    seen = state['intermediates']
    hidden = [seen['embedded'][0], *seen['stack']['layers']['block']['hidden'][-1]]
    return head.apply({}, output, part), hidden, extend_cache(cache, output.keys, part)

  cache, logits, hidden = empty_cache(imported.config, rows, length), [], []
  with jax.default_matmul_precision('highest'):
    full = jax.jit(model)(params, batch)['lm']
    for first, last in [(0, context), *((n, n + 1) for n in range(context, length))]:
      some, states, cache = step(params, {name: x[:, first:last] for name, x in batch.items()},
                                 cache)
      logits.append(some)
      hidden.append(states)
  return jax.device_get({'logits_full': full, 'logits_steps': jnp.concatenate(logits, 1), **{
      f'mems.{k}': jnp.concatenate(some, 1) for k, some in enumerate(zip(*hidden, strict=True))}})


def load(case):
  imported = conversion.load(case.path)
  inputs = inputs_of(case, KNOWN)
  return imported, Seen(imported.model()), inputs


def make_batch(inputs, mask):
  """Rename the arguments. mask: the length of part A [B], or an attention mask [B, 1, L, L].
  Padding comes after all other tokens, so nothing attends to it."""
  tokens, places = inputs['input_ids'], inputs['position_ids']
  batch = {'tokens': tokens, 'segments': jnp.ones_like(tokens)}
  batch |= {'place': places[:, 0], 'types': places[:, 1]} if places.ndim == 3 else {'place': places}
  if mask.ndim > 2:
    return batch | {'visible': mask.reshape(-1, *mask.shape[-2:]) > 0}
  at = jnp.arange(tokens.shape[1])
  return batch | {'ranks': jnp.where(at < mask.reshape(-1, 1), 0, at)}


def blank_infilling(case) -> dict[str, np.ndarray]:
  """Texts and spans are given by the case itself; statistics are over texts of 128 tokens, two of
  them special."""
  case.about['hparams'].asked |= {'seed'}  # of draws, which are given or counted
  objective = BlankInfilling(mask_rate=case.about['hparams']['bert_ratio'])
  lengths = np.array(objective.lengths)
  got = {'block_length_weights_1to39': lengths / lengths[0] * 3 * np.exp(-3),
         'mean_block_length': lengths @ np.arange(1, 40)}
  vocab = Vocab(53, pad=0, eos=1, cls=2, mask=3, sop=4, eop=5, gmask=6, smask=7)
  for name in [name for name in case.outputs if name.startswith('text.')]:
    number = name.partition('.')[2]
    text, spans = case.outputs[name], case.outputs[f'span_order.{number}']
    got |= {given: np.ma.masked_all_like(case.outputs[given])
            for given in (name, f'span_order.{number}')}
    got |= {f'{key}.{number}': x for key, x in given_spans(text, spans, vocab).items()}
  return got | statistics(objective, rows=4000, length=128)


def given_spans(text, spans, vocab):
  """The row of the reference, which has all of part A as its own targets and is as long as it has
  to be."""
  length = len(text) + 2 * len(spans)
  tokens = jnp.asarray(text, jnp.int32)
  row = jax.device_get(jax.jit(lambda tokens, starts, sizes: glm.infill(
      tokens, jnp.ones_like(tokens), glm.BlankSpans(starts, sizes, vocab.mask), length, length,
      vocab))(
          tokens, jnp.asarray(spans[:, 0], jnp.int32),
          jnp.asarray(spans[:, 1] - spans[:, 0], jnp.int32)))
  keep = row['weights'] > 0
  targets, mask = row['tokens'].copy(), np.zeros(length, np.int64)
  targets[row['positions'][keep]], mask[row['positions'][keep]] = row['labels'][keep], 1
  return {'tokens': row['tokens'], 'targets': targets, 'loss_mask': mask,
          'position_ids': np.stack([row['place'], row['types']]),
          'sep': np.array((row['ranks'] == 0).sum())}


def statistics(objective, rows, length):
  """As the reference counted them: the share of all tokens, special ones too."""
  number = int(objective.mask_rate * length)

  @jax.jit
  @jax.vmap
  def draw(key):
    span_key, length_key = jax.random.split(key)
    lengths = corruption.draw_lengths(length_key, objective.lengths, (objective.max_spans(length),))
    return glm.draw_short_spans(span_key, jnp.ones(length - 2, jnp.int32), number, lengths)[1]

  sizes = jax.device_get(draw(jax.random.split(jax.random.key(0), rows)))
  shares = sizes.sum(1) / length
  counts = np.bincount(sizes[sizes > 0], minlength=16)[1:16]
  # The greatest of them depends on how many rows there are.
  return {'masked_ratio_mean': shares.mean(), 'blocks_per_128': (sizes > 0).sum(1).mean(),
          'masked_ratio_min_max': np.ma.array([shares.min(), 0], mask=[False, True]),
          'block_length_freq_1to15': counts / counts.sum()}
