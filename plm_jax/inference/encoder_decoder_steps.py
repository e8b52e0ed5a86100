"""Prefill and decode steps of encoder-decoders, with a KV cache."""
import dataclasses

import jax.numpy as jnp

from plm_jax.architectures.encoder_decoder import EncoderDecoderConfig, extend_cache, initial_cache
from plm_jax.inference.decoder_steps import DecoderSteps, gather_rows, split_layer_params


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

  extend_cache = staticmethod(extend_cache)

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
