"""Prefill and decode steps of decoders and of encoder-decoders, with a KV cache."""
import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.architectures import encoder_decoder
from plm_jax.architectures.decoder import DecoderConfig, empty_cache, extend_cache
from plm_jax.architectures.encoder_decoder import EncoderDecoderConfig, initial_cache
from plm_jax.layers.kernels import cpu
from plm_jax.layers.stack import StackConfig


@dataclasses.dataclass(frozen=True)
class DecoderSteps:
  """The steps (`engine.Steps`) of a decoder with its language modeling head."""

  config: DecoderConfig
  head: nn.Module
  split_layers: bool = dataclasses.field(default_factory=lambda: jax.default_backend() == 'cpu')
  """keep the parameters of each layer in separate arrays; a loop over stacked layers would copy a
  slice of them for every token"""

  def load_params(self, params):
    """Put the parameters on the devices, once, in the form that the other methods take."""
    backbone = (self.split_params(params['backbone']) if self.split_layers
                else {'params': params['backbone']})
    loaded = {'backbone': backbone, 'head': {'params': params.get('heads_lm', {})}}
    return jax.tree.map(jnp.asarray, loaded)

  def split_params(self, params):
    """Split the layers of a backbone -> variables of its collections `params` and `split`."""
    rest, layers = split_layer_params(self.config.stack, params['stack'])
    return {'params': {**params, 'stack': rest}, 'split': {'stack': layers}}

  def prefill(self, params, batch, slots):
    """Prefill: read the prompts, padded in front -> (logits [rows, vocab], cache)."""
    batch = {**batch, 'place': jnp.maximum(jnp.cumsum(batch['segments'] > 0, 1) - 1, 0)}
    output = self.apply(params, batch, remember=True)
    cache = extend_cache(empty_cache(self.model, len(batch['tokens']), slots), output.keys, batch)
    return self.logits(params, output), cache

  def decode_step(self, params, tokens, cache):
    """Decode one step: read one token per row -> (logits [rows, vocab], cache)."""
    batch = self.next_inputs(tokens[:, None], cache)
    output = self.apply(params, batch, cache=cache, remember=True)
    return self.logits(params, output), self.extend_cache(cache, output.keys, batch)

  def next_inputs(self, tokens, cache) -> dict[str, jax.Array]:
    """Return the inputs of one more token per row, `tokens` [rows, 1]."""
    return {'tokens': tokens, 'segments': jnp.ones_like(tokens),
            'place': get_last(cache, 'place') + 1}

  extend_cache = staticmethod(extend_cache)

  def reorder_cache(self, cache, rows):
    """Return the KV cache of `rows`."""
    per_token = {name: cache[name][rows] for name in ('segments', 'ranks', 'place')}
    keys_and_values = {name: gather_rows(cache[name], rows) for name in ('key', 'value')}
    return cache | per_token | keys_and_values

  @property
  def model(self) -> DecoderConfig:
    """The configuration as it runs: without a scan over layers that are kept apart."""
    stack = dataclasses.replace(self.config.stack, scan=not self.split_layers)
    return dataclasses.replace(self.config, stack=stack)

  def apply(self, params, batch, **kwargs) -> Any:
    """Run the backbone and return its Output."""
    return self.model.backbone().apply(params['backbone'], batch, **kwargs)

  def logits(self, params, output):
    """Compute the logits [rows, vocab] of the last position only: those of all take much memory."""
    last = output.replace(hidden=output.hidden[:, -1:])
    logits: Any = self.head.apply(params['head'], last, {})
    return logits[:, 0]


@dataclasses.dataclass(frozen=True)
class EncoderDecoderSteps(DecoderSteps):
  """The steps (`engine.Steps`) of an encoder-decoder with its language modeling head.

  The generated sequences are the decoder's and begin with its start token. `source` and
  `source_segments` [rows, length] of a batch (0: padding) are the encoder's input. They are encoded
  once, and so are the keys and values of cross attention.
  """

  config: EncoderDecoderConfig  # pyright: ignore[reportIncompatibleVariableOverride]

  def split_params(self, params):
    rest, layers = split_layer_params(self.config.decoder, params['decoder']['stack'])
    return {'params': {**params, 'decoder': {**params['decoder'], 'stack': rest}},
            'split': {'decoder': {'stack': layers}}}

  def prefill(self, params, batch, slots):
    """Prefill: encode the sources and read the decoder's first tokens.

    Returns:
      The logits [rows, vocab] of the next token, and the cache with the encoder's keys and values.
    """
    place = jnp.maximum(jnp.cumsum(batch['segments'] > 0, 1) - 1, 0)
    batch = {'tokens': batch['source'], 'segments': batch['source_segments'],
             'decoder_tokens': batch['tokens'], 'decoder_segments': batch['segments'],
             'decoder_place': place}
    output = self.apply(params, batch, remember=True)
    return self.logits(params, output), initial_cache(self.model, output, batch, slots)

  def next_inputs(self, tokens, cache):
    return {f'decoder_{name}': x for name, x in super().next_inputs(tokens, cache).items()}

  extend_cache = staticmethod(encoder_decoder.extend_cache)

  def reorder_cache(self, cache, rows):
    moved = super().reorder_cache(cache, rows)
    # Rows that change places have the same source, so the encoder's part, most of the cache, stays.
    if len(rows) != len(cache['memory_segments']):
      moved |= {'memory': gather_rows(cache['memory'], rows),
                'memory_segments': cache['memory_segments'][rows]}
    return moved

  @property
  def model(self) -> EncoderDecoderConfig:
    decoder = dataclasses.replace(self.config.decoder, scan=not self.split_layers)
    return dataclasses.replace(self.config, decoder=decoder)


def get_last(cache, name: str):
  """Return the values [rows, 1] of the last token in a cache."""
  return jax.lax.dynamic_slice_in_dim(cache[name], cache['length'] - 1, 1, axis=1)


def split_layer_params(cfg: StackConfig, stack) -> tuple[dict[str, Any], dict[str, Any]]:
  """Split the parameters of a stack -> (parameters outside its layers, layers one by one).

  The layers have the form of the Flax collection `split`.
  """
  rest = dict(stack)
  layers = rest.pop('layers')
  return rest, {'layers': cpu.split_layers(cfg, layers)}


def gather_rows(kept, rows):
  """Gather `rows` of keys or values [layers, batch, heads, slots, head size], also per layer."""
  return jax.tree.map(lambda x: jnp.take(x, rows, axis=x.ndim - 4), kept)
