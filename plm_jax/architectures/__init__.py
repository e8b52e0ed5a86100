"""Architectures: encoder, decoder, encoder-decoder, XLNet, DeBERTa and ELMo, composed of layers.

Imports no models, no training and no configuration of runs. Each file has a frozen configuration
and the module that it makes. A configuration describes its model:

    kind            what the model does with text
    cls_last        the last token of a row represents it, not the first
    padding         id of padding, where positions depend on it
    max_length      tokens of the longest row
    new_parts       parts of the backbone that are initialized where a run starts from a model
                    without them
    backbone()      the module
    resize()        the same architecture in another size
    forward_flops() cost of a row
"""
import dataclasses
from typing import Any, Literal, TypeVar

import flax.struct
import jax
import jax.numpy as jnp

from plm_jax.errors import ConfigError
from plm_jax.layers.lstm import LSTMState
from plm_jax.layers.stack import LayerStates

Kind = Literal['encoder', 'decoder', 'infilling', 'encoder-decoder', 'recurrent']
"""encoder: tokens attend to both sides, and masked tokens are predicted. decoder: tokens attend to
preceding ones, and texts are continued. infilling: a text is read completely, and its blanks are
generated after it (GLM). encoder-decoder: a text is read, and another one generated. recurrent:
words are read one after another, in both directions (ELMo)."""
Config = TypeVar('Config')


class Output(flax.struct.PyTreeNode):
  """Output of a backbone, which heads read; what an architecture does not have is None.

  The last four are ELMo's. For its streams (training), `hidden` is [batch, 2, length, projection].
  """

  hidden: jax.Array
  """[batch, length, hidden], of an encoder-decoder the decoder's, of XLNet the content stream's."""
  pooled: jax.Array | None = None
  """[batch, hidden], the token that represents a row; or [batch, texts, hidden], the tokens that
  batch['extract'] names. Encoders apply their pooler to it."""
  embedding: jax.Array | None = None
  """[vocab, E], the token table, for tied embeddings."""
  predicted: jax.Array | None = None
  """[batch, predicted, hidden], what masked-LM heads read in place of `hidden`: DeBERTa's mask
  decoder, XLNet's query stream."""
  decoded: jax.Array | None = None
  """[batch, length, hidden], embeddings of batch['decoded'] (RetroMAE)."""
  encoded: jax.Array | None = None
  """[batch, length, hidden], the encoder's output of an encoder-decoder."""
  keys: Any = None
  """Keys and values for a KV cache: `key` and `value` [layers, batch, length, key_heads,
  head_size]; of an encoder-decoder also `memory`, the same of the encoder's output."""
  inside: LayerStates | None = None
  """States of all layers, for layer distillation."""
  memory: jax.Array | None = None
  """[layers, batch, length, hidden], inputs of all layers, for XLNet's memory."""
  layers: jax.Array | None = None
  """[layers + 1, batch, length, 2 * projection], ELMo's layers, word vectors (twice) first."""
  mask: jax.Array | None = None
  """[batch, length] bool, True for words of ELMo's sentences."""
  state: LSTMState | None = None
  """State of ELMo's LSTMs after the last word."""

  @property
  def words(self):
    """ELMo's layers per word, without sentence marks: [batch, length, layers + 1, 2 *
    projection]."""
    return jnp.moveaxis(self.layers[:, :, 1:-1], 0, 2)  # pyright: ignore[reportOptionalSubscript]


def resize_config(
    config: Config, block: Any, layers: int, vocab: int, max_length: int, **own: Any) -> Config:
  """Resize an architecture's configuration.

  Args:
    config: the configuration.
    block: configuration of a block.
    layers: number of layers.
    vocab: vocabulary size.
    max_length: tokens of the longest row, where the architecture limits it.
    own: other fields of the architecture.
  """
  model: Any = config
  stack = dataclasses.replace(model.stack, layers=layers, remat='none')
  return dataclasses.replace(
      model, block=block, stack=stack, vocab=vocab,
      max_length=max_length if model.max_length else 0, **own)


def check_length(tokens, max_length: int) -> None:
  """Check that rows [batch, length, ...] fit the model; max_length 0: any length.

  Raises:
    ConfigError: they do not.
  """
  if max_length and tokens.shape[1] > max_length:
    raise ConfigError(
        f'rows of {tokens.shape[1]} tokens do not fit a model of max_length {max_length}')


def mlp_flops(block: Any) -> int:
  """Count the multiply-adds of a block's MLP per token."""
  return block.width * block.mlp_dim * (3 if block.mlp.gated else 2)
