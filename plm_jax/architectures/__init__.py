"""Wirings of parts: a configuration, frozen, and the module that it makes.

Whoever wants to know what a model is like asks its configuration: `kind`, what it does with text; `cls_last` and
`padding`, how rows are laid out; `max_length`, what it can read; `added`, parts of the backbone that begin afresh where
a run starts from a model that has none; `backbone`, the module; `resized`, the same wiring in another size;
`forward_flops`, its cost.
"""
import dataclasses
from typing import Any, Literal, TypeVar

Kind = Literal['encoder', 'decoder', 'infilling', 'encoder-decoder', 'recurrent']
"""encoder: tokens see both sides, and hidden ones are predicted; decoder: each sees those before it, and texts go on;
infilling: a text is seen whole, and its blanks are written out behind it (GLM); encoder-decoder: a text is read, and
another is written; recurrent: words are read one after another, from both sides (ELMo)"""
Config = TypeVar('Config')


def resized(config: Config, block: Any, layers: int, vocab: int, max_length: int, **own: Any) -> Config:
  """Replaces what all wirings have: layers, each a `block`, ids, and the longest row of those that have one; and what a
  wiring has of its `own`."""
  model: Any = config
  stack = dataclasses.replace(model.stack, layers=layers, remat='none')
  return dataclasses.replace(
      model, block=block, stack=stack, vocab=vocab, max_length=max_length if model.max_length else 0, **own)
