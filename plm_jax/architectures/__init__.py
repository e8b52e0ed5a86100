"""Wirings of parts: a configuration, frozen, and the module that it makes.

Whoever wants to know what a model is like asks its configuration: `kind`, what it does with text; `cls_last` and
`padding`, how rows are laid out; `max_length`, what it can read; `added`, parts of the backbone that begin afresh where
a run starts from a model that has none; `backbone`, the module; `forward_flops`, its cost.
"""
from typing import Literal

Kind = Literal['encoder', 'decoder', 'infilling', 'encoder-decoder']
"""encoder: tokens see both sides, and hidden ones are predicted; decoder: each sees those before it, and texts go on;
infilling: a text is seen whole, and its blanks are written out behind it (GLM); encoder-decoder: a text is read, and
another is written"""
