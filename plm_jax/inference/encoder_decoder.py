"""How encoder-decoders start and go on."""
import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.architectures.encoder_decoder import EncoderDecoderConfig, extend, initial_cache
from plm_jax.inference.decoder import apart_from_layers, chosen, picked


@dataclasses.dataclass(frozen=True)
class EncoderDecoderSteps:
  """`engine.Steps` of an encoder-decoder and its language-modelling head.

  The row that goes on is the decoder's, and begins with its start token; `source` and `source_segments` [B, L] of a
  batch (0 padding) are the encoder's. These are read once, and so are keys and values that the decoder makes of them.
  """

  config: EncoderDecoderConfig
  head: nn.Module
  apart: bool = dataclasses.field(default_factory=lambda: jax.default_backend() == 'cpu')
  """each of the decoder's layers has arrays of its own: a loop over layers would copy its part of them for every
  token"""

  def load(self, params):
    """Puts the parameters on the devices, in the form that the other functions take: once, before the first of them."""
    backbone = params['backbone']
    loaded = {'backbone': {'params': backbone}, 'head': {'params': params.get('heads_lm', {})}}
    if self.apart:
      side = backbone['decoder']
      rest, layers = apart_from_layers(self.config.decoder, side['stack'])
      loaded['backbone'] = {
          'params': {**backbone, 'decoder': {**side, 'stack': rest}}, 'split': {'decoder': {'stack': layers}}}
    return jax.tree.map(jnp.asarray, loaded)

  def start(self, params, batch, slots):
    """Reads the sources and the decoder's first tokens -> logits [B, V] behind them, and the cache with the memory."""
    batch = {'tokens': batch['source'], 'segments': batch['source_segments'], 'decoder_tokens': batch['tokens'],
             'decoder_segments': batch['segments'],
             'decoder_place': jnp.maximum(jnp.cumsum(batch['segments'] > 0, 1) - 1, 0)}
    output = self.apply(params, batch, remember=True)
    return self.logits(params, output), initial_cache(self.model, output, batch, slots)

  def next(self, params, tokens, cache):
    """Reads a token of each of the decoder's rows -> logits [B, V], and the cache."""
    at = cache['length'] - 1
    batch = {'decoder_tokens': tokens[:, None], 'decoder_segments': jnp.ones_like(tokens)[:, None],
             'decoder_place': jax.lax.dynamic_slice_in_dim(cache['places'], at, 1, axis=1) + 1}
    output = self.apply(params, batch, cache=cache, remember=True)
    return self.logits(params, output), extend(cache, output.keys, batch)

  def pick(self, cache, rows):
    """Returns the cache of these rows. Rows that change places have one source, so the memory stays where it is."""
    moved = picked(cache, rows)
    # Rows of one source have the same memory, which is most of the cache: among themselves they need not carry it.
    if len(rows) != len(cache['memory_segments']):
      moved |= {'memory': chosen(cache['memory'], rows), 'memory_segments': cache['memory_segments'][rows]}
    return moved

  @property
  def model(self) -> EncoderDecoderConfig:
    """The configuration as it runs: without a scan of the decoder where its layers are kept apart."""
    return dataclasses.replace(
        self.config, decoder=dataclasses.replace(self.config.decoder, scan=not self.apart))

  def apply(self, params, batch, **kwargs) -> Any:
    """Runs the backbone -> its Output."""
    return self.model.backbone().apply(params['backbone'], batch, **kwargs)

  def logits(self, params, output):
    """Returns logits of the last place alone [B, V]."""
    logits: Any = self.head.apply(params['head'], output.replace(hidden=output.hidden[:, -1:]), {})
    return logits[:, 0]
