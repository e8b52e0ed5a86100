"""Objectives: each turns windows of text into a learning problem, and outputs into losses.

An objective is a frozen dataclass; its fields are its hyper-parameters. What it does to text is pure JAX inside the
jitted step, keyed by example, so it is the same on one CPU and on a pod, after a restart and under any batch split.
"""
from collections.abc import Mapping
from typing import Any, Protocol

import flax.linen as nn
import jax

Arrays = dict[str, jax.Array]
Losses = dict[str, tuple[jax.Array, jax.Array]]  # name -> (sum, weight), to be divided once over the whole batch


class Objective(Protocol):
  """The contract; `plm_jax/data/windows.py` specifies the windows."""

  @property
  def terms(self) -> Mapping[str, float]:
    """The losses that training minimises, with their factors; other names that `loss` returns are only reported."""
    ...

  def window(self, length: int) -> int:
    """Tokens of raw text to cut for rows of `length` tokens."""
    ...

  def corrupt(self, key: jax.Array, windows: Arrays, vocab: Any) -> Arrays:
    """Windows -> batch, of static shapes; `vocab` is the tokenizer's `Vocab`."""
    ...

  def heads(self, model: Any) -> dict[str, nn.Module]:
    """The modules that `loss` reads, by name; `model` is the backbone's config."""
    ...

  def loss(self, outputs: Mapping[str, jax.Array], batch: Arrays) -> Losses:
    """A weight depends on the batch alone; a row with nothing to predict weighs 0."""
    ...
