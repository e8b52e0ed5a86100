"""PaLM, as lucidrains' PaLM-pytorch has it: one matrix for all that a block reads, and a gate that
comes second."""
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from parity import encoder
from parity.shared import Seen, Unsupported
from plm_jax import validation
from plm_jax.architectures.decoder import Decoder
from plm_jax.conversion.files import SafeTensorsFolder
from plm_jax.layers.heads import ModelWithHeads, NextTokenHead
from plm_jax.layers.rope import Rope, Unscaled
from plm_jax.models import palm

KNOWN = {'dim', 'depth', 'num_tokens', 'heads', 'dim_head', 'ff_mult'}


def run(case) -> dict[str, np.ndarray]:
  """Logits of the reference, not scaled, and of the paper; the loss is that of the next token."""
  said, source = case.config, SafeTensorsFolder(case.path)
  if unknown := said.keys() - KNOWN:
    raise Unsupported(f'PaLM with {sorted(unknown)}')
  config = sized(said)
  # The reference stores frequencies as a buffer, in the precision of its parameters.
  position = Rope(scaling=Given(tuple(source.read('1.fn.rotary_emb.inv_freq').tolist())))
  block = validation.with_paths(config.block, {'attention.position': position})
  config = dataclasses.replace(config, block=block)
  theirs = {name: jnp.asarray(source.read(name), jnp.float32) for name in source.tensors}
  batch = encoder.make_batch({name: jnp.asarray(x, jnp.int32) for name, x in case.inputs.items()})
  model = Seen(ModelWithHeads(Decoder(config), {'lm': NextTokenHead(config.block, config.vocab)}))

  @jax.jit
  def outputs(theirs):
    params = ours(theirs, said)
    heads: Any = model(params, batch)
    logits, given = heads['lm'], model.inside(params, batch)
    loss = encoder.cross_entropy(logits[:, :-1], batch['tokens'][:, 1:])
    return given | {'logits': logits, 'loss': loss,
                    'logits_over_sqrt_dim': logits * config.logit_factor}

  with jax.default_matmul_precision('highest'):
    got = outputs(theirs)
    grads = jax.jit(jax.grad(lambda theirs: outputs(theirs)['loss']))(theirs)
  return jax.device_get(got | {f'grad/{name}': grad for name, grad in grads.items()})


@dataclasses.dataclass(frozen=True)
class Given(Unscaled):
  """Frequencies as numbers."""

  numbers: tuple[float, ...] = ()

  def scaled_frequencies(self, theta, size):
    return np.array(self.numbers)


def sized(said):
  """Their arguments, whose defaults are 8 heads of 64 and an MLP of four times the width; the size
  is the paper's."""
  width = said['dim']
  config = palm.make_config(said['depth'], width, said.get('heads', 8))
  block = validation.with_paths(
      config.block,
      {'head_size': said.get('dim_head', 64), 'mlp_dim': said.get('ff_mult', 4) * width,
       'norm.eps': 1e-5})
  return dataclasses.replace(config, vocab=said['num_tokens'], block=block)


def ours(theirs, said):
  """Rename the reference's parameters, which have torch's layout. Its layer 0 is the embedding,
  and the layer after the last is the final norm."""
  config, layers = sized(said), range(1, said['depth'] + 1)
  heads, size, inner = config.block.heads, config.block.head_dim, config.block.mlp_dim
  def stacked(name):
    return jnp.stack([theirs[f'{n}.fn.{name}'] for n in layers])

  cuts = np.cumsum([heads * size, size, size, inner])
  query, key, value, gate, up = jnp.split(stacked('fused_attn_ff_proj.weight').swapaxes(1, 2), cuts,
                                          -1)
  def kernel(x, *shape):
    return {'kernel': x.reshape(len(layers), *shape)}
  width = said['dim']
  block = {
      'parallel_norm': {'scale': stacked('norm.gamma')},
      'attention': {
          'query': kernel(query, width, heads, size), 'key': kernel(key, width, 1, size),
          'value': kernel(value, width, 1, size),
          'out': kernel(stacked('attn_out.weight').swapaxes(1, 2), heads, size, width)},
      'mlp': {'up': kernel(up, width, inner), 'gate': kernel(gate, width, inner),
              'down': kernel(stacked('ff_out.1.weight').swapaxes(1, 2), inner, width)}}
  return {'backbone': {'embeddings': {'tokens': theirs['0.weight']}, 'stack': {
      'layers': {'block': block}, 'norm': {'scale': theirs[f'{len(layers) + 1}.gamma']}}}}
