"""Runs the cases of transformers' XLNet: the readings of the encoders, with its own inputs and two
streams."""
import functools

import jax
import jax.numpy as jnp
import numpy as np

from parity.shared import Seen, Unsupported, opened
from plm_jax import conversion
from plm_jax.architectures.xlnet import XLNet
from plm_jax.layers.masks import attention_mask
from plm_jax.objectives import corruption
from plm_jax.objectives.plm import PermutationLM, factorization_ranks

KNOWN = {'input_ids', 'attention_mask', 'input_mask', 'token_type_ids', 'perm_mask',
         'target_mapping', 'labels',
         'start_positions', 'end_positions'}


def run(reading):
  """A runner for the class of transformers that `reading` knows: see `shared.opened`."""
  return functools.partial(forward, reading)


def forward(reading, case) -> dict[str, np.ndarray]:
  imported, _, batch, build, read = opened(
      reading, case, KNOWN | {name for name in case.inputs if name.startswith('mems.')}, make_batch)
  model = Seen(build(imported.config).clone(backbone=XLNet(imported.config, remember=True)))

  @jax.jit
  def outputs(params, batch):
    seen = model.intermediates(params, batch)
    memory, given = seen['output'].memory, inside(seen, params['backbone']['mask'], batch)
    if case.about['forward_kwargs'].get('use_mems', case.config.get('use_mems_eval', True)):
      given |= {f'mems.{k}': x.swapaxes(0, 1)
                for k, x in enumerate(remembered(batch, memory, case.config))}
    return given | read(model(params, batch))

  @jax.jit
  @jax.grad
  def gradient(params):
    return read(model(params, batch))['loss']

  with jax.default_matmul_precision('highest'):
    got = outputs(imported.params, batch)
    wanted = {name.removeprefix('grad/') for name in case.outputs if name.startswith('grad/')}
    if wanted:
      given = dict(conversion.export_tensors(conversion.get_family('xlnet'),
                                             gradient(imported.params), copies=True))
      got |= {f'grad/{name}': given[full] for name in wanted
              for full in (name, f'transformer.{name}') if full in given}
  return jax.device_get(got)


def make_batch(inputs, config):
  """Rename transformers' arguments. There, padding attends to the text, so the attention mask is
  explicit."""
  tokens = inputs['input_ids'].reshape(-1, inputs['input_ids'].shape[-1])
  rows, length = tokens.shape
  batch = {'tokens': tokens, 'segments': jnp.ones_like(tokens)}
  if 'token_type_ids' in inputs:
    batch['types'] = inputs['token_type_ids'].reshape(tokens.shape)
  if config.get('bi_data'):
    batch['backward'] = jnp.arange(rows) >= rows // 2
  memory = [inputs[f'mems.{k}'].swapaxes(0, 1)
            for k in range(config['n_layer']) if f'mems.{k}' in inputs]
  if memory:
    batch['memory'] = jnp.stack(memory)
  before = memory[0].shape[1] if memory else 0
  visible = jnp.ones((rows, length, before + length), bool)
  if config.get('attn_type') == 'uni':
    visible = jnp.tril(visible, before)
    visible = jnp.triu(visible) if config.get('same_length') else visible
  if 'attention_mask' in inputs:
    batch['segments'] = (inputs['attention_mask'].reshape(tokens.shape) > 0).astype(jnp.int32)
  elif 'input_mask' in inputs:
    batch['segments'] = (inputs['input_mask'].reshape(tokens.shape) == 0).astype(jnp.int32)
  real = batch['segments'][:, None] > 0
  if 'perm_mask' in inputs:
    real &= inputs['perm_mask'] == 0
  if {'attention_mask', 'input_mask', 'perm_mask', 'target_mapping'} & set(inputs):
    real = jnp.broadcast_to(real, (rows, length, length))
    batch['visible'] = visible & jnp.pad(real, ((0, 0), (0, 0), (before, 0)), constant_values=True)
  if 'target_mapping' in inputs:
    mapping = np.asarray(inputs['target_mapping'])
    if not (np.isin(mapping, (0, 1)).all() and (mapping.sum(2) == 1).all()
            and (mapping.sum(1) <= 1).all()):
      raise Unsupported('a target_mapping other than one place of its own for each prediction')
    batch['positions'] = jnp.asarray(mapping.argmax(2), jnp.int32)
  return batch


def inside(seen, mask, batch):
  """Return hidden_states.k, alternating content and query stream, and attentions.k of a single
  stream."""
  layers, length = seen['layers']['block'], batch['tokens'].shape[1]
  hidden = [*layers['hidden'][0]]
  if 'positions' not in batch:
    states = [seen['embedded'][0], *hidden]
    given = {f'attentions.{k}': x for k, x in enumerate(layers['attention']['probs'][0])}
  else:
    queries = jnp.broadcast_to(mask, (*batch['positions'].shape, mask.shape[-1]))
    streams = [(seen['embedded'][0], queries), *((x[:, :length], x[:, length:]) for x in hidden)]
    states, given = [x for pair in streams for x in pair], {}
  return given | {f'hidden_states.{k}': x for k, x in enumerate(states)}


def remembered(batch, given, config):
  """Append each layer's input to its memory: the new memory, [B, K, D] per layer."""
  new = given[:, :, :config.get('reuse_len') or None]
  new = jnp.concatenate([batch['memory'], new], 2) if 'memory' in batch else new
  return new[:, :, -(config.get('mem_len') or 0):]


def backbone(outputs, inputs, config):
  del inputs, config
  output = outputs['all']
  return {'last_hidden_state': output.hidden if output.predicted is None else output.predicted}


def permutation(case) -> dict[str, np.ndarray]:
  """The case provides orders and predicted positions; spans are sampled again, 85 of 512 tokens
  per row."""
  got = {}
  for name in [name for name in case.inputs if name.startswith('order.')]:
    number = name.partition('.')[2]
    tokens, order, targets = (
        jnp.asarray(case.inputs[f'{key}.{number}'], jnp.int32)
        for key in ('inputs', 'order', 'targets'))
    if (targets[:-1] != tokens[1:]).any() or len(order) != case.inputs['perm_size']:
      raise Unsupported(
          'targets that are not the next tokens, or an order of another length than perm_size')
    special = (tokens == 3) | (tokens == 4)
    chosen = (case.inputs[f'is_masked.{number}'] > 0) & ~special
    at, whole = jnp.arange(len(tokens)), jnp.ones((1, len(tokens)), jnp.int32)
    ranks = factorization_ranks(chosen | special, order, at)[None]
    content, query = (attention_mask(whole, whole, ranks, ranks, strict=strict)[0, 0]
                      for strict in (False, True))
    positions, weights = corruption.select_positions(chosen, case.about['num_predict'])
    got |= {f'perm_mask.{number}': ~jnp.where(chosen[:, None], query, content),
            f'new_targets.{number}': tokens,
            f'target_mask.{number}': chosen,
            f'target_mapping.{number}': (at == positions[:, None]) * weights[:, None]}
  return {name: np.asarray(x, case.outputs[name].dtype)
          for name, x in got.items()} | sampled(rows=2000, length=512)


def sampled(rows, length, wanted=85):
  """As the reference counted them: every fourth id continues a word."""
  @jax.jit
  @jax.vmap
  def draw(key):
    keys = jax.random.split(key, 3)
    starts = jax.random.randint(keys[0], (length,), 0, 1000) % 4 != 0
    spans = PermutationLM().choose_spans(keys[1], starts, 0, length, wanted, wanted)
    return spans | corruption.choose_tokens(keys[2], ~spans, wanted - spans.sum())

  chosen = np.pad(jax.device_get(draw(jax.random.split(jax.random.key(0), rows))), ((0, 0), (1, 1)))
  edges = np.diff(chosen.astype(int))
  sizes = np.nonzero(edges < 0)[1] - np.nonzero(edges > 0)[1]
  return {'sample_mask/num_masked': np.unique(chosen.sum(1)),
          'sample_mask/run_length_frequency_1to12': np.bincount(sizes, minlength=13)[1:13]
          / len(sizes)}
