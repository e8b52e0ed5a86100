"""BERT (Devlin et al. 2019, arXiv:1810.04805), and the smaller ones of Turc et al. 2019 (arXiv:1908.08962).

Parameters as published: base 110M, large 340M (section 3).
"""
import dataclasses

from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.stack import StackConfig


def sized(layers: int, width: int, **block) -> EncoderConfig:
  """Heads of 64 and an MLP of four times the width, as in every released size (24 of them, 2/128 to 24/1024)."""
  return EncoderConfig(
      block=BlockConfig(width=width, heads=width // 64, mlp_dim=4 * width, **block), stack=StackConfig(layers=layers))


def base() -> EncoderConfig:
  return sized(12, 768)


def large() -> EncoderConfig:
  return sized(24, 1024)


def tiny() -> EncoderConfig:
  return sized(2, 128)


def mini() -> EncoderConfig:
  return sized(4, 256)


def small() -> EncoderConfig:
  return sized(4, 512)


def medium() -> EncoderConfig:
  return sized(8, 512)


def tensorflow(config: EncoderConfig) -> EncoderConfig:
  """The same model as the released TensorFlow code computes it: its `gelu` is the tanh approximation."""
  return dataclasses.replace(config, block=dataclasses.replace(config.block, activation='gelu_tanh'))
