"""How decoders start and go on."""
import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.architectures.decoder import DecoderConfig, empty_cache, extend
from plm_jax.layers import cpu
from plm_jax.layers.stack import StackConfig


@dataclasses.dataclass(frozen=True)
class DecoderSteps:
  """`engine.Steps` of a decoder and its language-modelling head."""

  config: DecoderConfig
  head: nn.Module
  apart: bool = dataclasses.field(default_factory=lambda: jax.default_backend() == 'cpu')
  """each layer's parameters are arrays of their own: a loop over layers would copy its part of them for every token"""

  def load(self, params):
    """Puts the parameters on the devices, in the form that the other functions take: once, before the first of them."""
    loaded = {'backbone': {'params': params['backbone']}, 'head': {'params': params.get('heads_lm', {})}}
    if self.apart:
      rest, layers = apart_from_layers(self.config.stack, params['backbone']['stack'])
      loaded['backbone'] = {'params': {**params['backbone'], 'stack': rest}, 'split': {'stack': layers}}
    return jax.tree.map(jnp.asarray, loaded)

  def start(self, params, batch, slots):
    """Reads the prompts, padded in front -> logits [B, V] behind them, and the cache."""
    batch = {**batch, 'place': jnp.maximum(jnp.cumsum(batch['segments'] > 0, 1) - 1, 0)}
    output = self.apply(params, batch, remember=True)
    cache = extend(empty_cache(self.model, len(batch['tokens']), slots), output.keys, batch)
    return self.logits(params, output), cache

  def next(self, params, tokens, cache):
    """Reads a token of each row, one place behind the last -> logits [B, V], and the cache."""
    at = cache['length'] - 1
    batch = {'tokens': tokens[:, None], 'segments': jnp.ones_like(tokens)[:, None],
             'place': jax.lax.dynamic_slice_in_dim(cache['places'], at, 1, axis=1) + 1}
    output = self.apply(params, batch, cache=cache, remember=True)
    return self.logits(params, output), extend(cache, output.keys, batch)

  def pick(self, cache, rows):
    """Returns the cache of these rows."""
    return picked(cache, rows)

  @property
  def model(self) -> DecoderConfig:
    """The configuration as it runs: without a scan where layers are kept apart."""
    stack = dataclasses.replace(self.config.stack, scan=not self.apart)
    return dataclasses.replace(self.config, stack=stack)

  def apply(self, params, batch, **kwargs) -> Any:
    """Runs the backbone -> its Output."""
    return self.model.backbone().apply(params['backbone'], batch, **kwargs)

  def logits(self, params, output):
    """Returns logits of the last place alone [B, V]: those of a whole prompt would take L V numbers."""
    last = output.replace(hidden=output.hidden[:, -1:])
    logits: Any = self.head.apply(params['head'], last, {})
    return logits[:, 0]


def apart_from_layers(cfg: StackConfig, stack) -> tuple[dict[str, Any], dict[str, Any]]:
  """Parts the parameters of a stack -> (what is not of its layers, its layers one by one: the collection `split`)."""
  rest = {name: part for name, part in stack.items() if name != 'layers'}
  return rest, {'layers': cpu.split(cfg, stack['layers'])}


def picked(cache, rows):
  """Returns the cache of a decoder's own tokens with these rows in place of its own."""
  numbers = {name: cache[name][rows] for name in ('segments', 'ranks', 'places')}
  return cache | numbers | {name: chosen(cache[name], rows) for name in ('key', 'value')}


def chosen(kept, rows):
  """Returns these rows of keys or values [N, B, G, S, A], or of those of each layer apart."""
  return jax.tree.map(lambda x: jnp.take(x, rows, axis=x.ndim - 4), kept)
