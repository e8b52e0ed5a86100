"""Adaptation of decoders: an encoder-decoder whose sides start from one decoder each.

Zhang et al. 2025, "Encoder-Decoder Gemma" (T5Gemma), section 3.1. The encoder has the weights of a
decoder and attends to both sides. The decoder has those of the same decoder, and its
cross-attention those of its self-attention. Of another decoder than the encoder's in width, the
cross-attention is new: its keys and values are projections of another size.
"""
from collections.abc import Mapping
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from plm_jax import validation
from plm_jax.architectures.decoder import DecoderConfig
from plm_jax.architectures.encoder_decoder import EncoderDecoderConfig
from plm_jax.errors import ConfigError, name_field
from plm_jax.validation import differences

SIZES = ('width', 'heads', 'kv_heads', 'head_size', 'mlp_dim')
"""fields of a block in which the sides may differ"""
PLAIN = {'types': 0, 'rotated': (), 'depth_scale': False, 'lm_head.hidden': False,
         'lm_head.output_bias': False, 'block.parallel': False, 'stack.first_norm': True}
"""fields of a decoder that encoder-decoders have at these values only"""
CROSS = ('cross', 'cross_norm', 'cross_out_norm')
"""parts of a decoder's block that only an encoder-decoder has"""


def adapt_config(encoder: Any, decoder: Any) -> EncoderDecoderConfig:
  """Make the configuration of the encoder-decoder whose sides have the blocks of two decoders.

  Each side has embeddings of its own; a tied output has those of the decoder.

  Args:
    encoder: configuration of the decoder from which the encoder starts.
    decoder: that of the other one, or the same.

  Raises:
    ConfigError: one is no decoder, or has parts that encoder-decoders lack, or they differ in more
      than their sizes.
  """
  for one in (encoder, decoder):
    if not isinstance(one, DecoderConfig):
      raise ConfigError(f'{name_field("tuning.decoder")} makes an encoder-decoder of decoders, got '
                        f'a model of {type(one).__name__}')
    for path, value in PLAIN.items():
      found = functools.reduce(getattr, path.split('.'), one)
      if found != value:
        raise ConfigError(f'this decoder cannot become a side of an encoder-decoder: {path} is '
                          f'{found!r} there, expected {value!r}')
  own, other = encoder.block, decoder.block
  factor = encoder.embed_factor
  if factor != 1:
    factor *= (other.width / own.width) ** 0.5
  same = dataclasses.replace(
      encoder, block=dataclasses.replace(own, **{name: getattr(other, name) for name in SIZES}),
      stack=decoder.stack, embed_factor=decoder.embed_factor, max_length=decoder.max_length)
  wrong = differences(same, decoder)
  if abs(factor - decoder.embed_factor) > 1e-3:
    wrong.append(f'embed_factor: {encoder.embed_factor} -> {decoder.embed_factor}')
  if encoder.absolute != 'none' and encoder.max_length != decoder.max_length:
    wrong.append(f'max_length: {encoder.max_length} -> {decoder.max_length}')
  if wrong:
    raise ConfigError('both sides of an encoder-decoder agree in all but their sizes, which these '
                      f'decoders do not: {"; ".join(wrong)}')
  sizes = {}
  if any(getattr(own, name) != getattr(other, name) for name in SIZES):
    sizes = {f'decoder_{name}': getattr(other, name) for name in SIZES}
    sizes |= {'decoder_kv_heads': other.key_heads, 'decoder_head_size': other.head_dim}
  lengths = [one.max_length for one in (encoder, decoder) if one.max_length]
  return EncoderDecoderConfig(
      encoder.vocab, own, encoder.stack, decoder.stack, max_length=min(lengths, default=0),
      absolute=encoder.absolute, embed_norm=encoder.embed_norm, embed_factor=encoder.embed_factor,
      tied=encoder.tied, separate_embeddings=True, logit_factor=decoder.logit_factor,
      logit_cap=encoder.logit_cap, windows=encoder.windows, head=encoder.head, **sizes)


def adapt_model(model: Any, encoder: Any, decoder: Any) -> EncoderDecoderConfig:
  """Return `adapt_config` with the compute dtype, dropout and compilation of a run's model.

  Raises ConfigError, also where the run's model is no encoder-decoder.
  """
  if not isinstance(model, EncoderDecoderConfig):
    raise ConfigError(f'{name_field("tuning.decoder")} is for a run of an encoder-decoder, such as '
                      f't5gemma_2b_2b, got {type(model).__name__}')
  adapted = adapt_config(encoder, decoder)
  kept: dict[str, Any] = {}
  for path in ('block.dtype', 'block.dropout', 'block.attention.dropout', 'block.mlp.dropout',
               'last_dropout', 'stack.scan', 'stack.remat', 'decoder.scan', 'decoder.remat'):
    kept[path] = functools.reduce(getattr, path.split('.'), model)
  return validation.with_paths(adapted, kept)


def adapt_params(encoder: Mapping[str, Any], decoder: Mapping[str, Any]) -> dict[str, Any]:
  """Arrange the parameters of two decoders as those of an encoder-decoder.

  Args:
    encoder: parameters from which the encoder starts, 'backbone' and heads.
    decoder: those from which the decoder starts, or the same.

  Returns:
    'backbone' and the heads of the decoder. Cross-attention is missing where the widths differ. No
    array is in it twice.
  """
  first, second = encoder['backbone'], jax.tree.map(copy_array, decoder['backbone'])
  def side(backbone):
    tables = {name: x for name, x in backbone['embeddings'].items() if name != 'tokens'}
    return {'stack': backbone['stack'], **({'embeddings': tables} if tables else {})}
  adapted = {'tokens': first['embeddings']['tokens'], 'encoder': side(first),
             'decoder': side(second)}
  tables = adapted['decoder'].setdefault('embeddings', {})
  tables['tokens'] = second['embeddings']['tokens']
  block = second['stack']['layers']['block']
  if first['embeddings']['tokens'].shape[-1] == tables['tokens'].shape[-1]:
    crossing = {name.replace('attention', 'cross'): jax.tree.map(copy_array, part)
                for name, part in block.items() if name.startswith('attention')}
    layers = {**second['stack']['layers'], 'block': {**block, **crossing}}
    adapted['decoder']['stack'] = {**second['stack'], 'layers': layers}
  heads = {name: part for name, part in decoder.items() if name != 'backbone'}
  return {'backbone': adapted, **heads}


def copy_array(x):
  """Copy an array on the devices; others are copied where they are placed there."""
  return jnp.copy(x) if isinstance(x, jax.Array) else x
