"""What tasks share whose examples are several rows each: choices of a question, texts that belong together."""
import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from plm_jax.layers.heads import WithHeads
from plm_jax.tasks.batches import GROUPED
from plm_jax.tasks.contract import Task

TOGETHER = ('tokens', 'segments', 'types', 'extract', 'place', 'ranks', 'decoder_tokens', 'decoder_segments',
            'decoder_place', 'noise', 'perturbation')


class Grouped(WithHeads):
  """A backbone and heads for rows in groups: arrays of a batch [B, C, ...], outputs [B, C, ...]."""

  def __call__(self, batch, rows=None):
    groups, size = batch['tokens'].shape[:2]
    outputs = super().__call__(*flattened(batch, rows))
    return {name: x.reshape(groups, size, *x.shape[1:]) for name, x in outputs.items()}


def flattened(batch, rows=None):
  """Puts the rows of groups one under another: arrays [B, C, ...] -> [B * C, ...], and the numbers of the rows."""
  groups, size = batch['tokens'].shape[:2]
  flat = {name: x.reshape(groups * size, *x.shape[2:]) for name, x in batch.items() if name in TOGETHER}
  return flat, None if rows is None else (rows[:, None] * size + jnp.arange(size)).ravel()


@dataclasses.dataclass(frozen=True)
class GroupedTask(Task):
  """A task whose examples are groups of rows."""

  per: ClassVar = 'row'

  @property
  def typical(self) -> int:
    """C, rows of an example, in a batch without its content."""
    return 4

  def shapes(self, rows, length, layout=None):
    """Returns a batch without its content, of `typical` rows an example."""
    own = super().shapes(rows, length, layout)
    def shape(x, *size):
      return jax.ShapeDtypeStruct(size, x.dtype, sharding=layout)
    return {name: shape(x, rows, self.typical, *x.shape[1:]) if name in GROUPED else x for name, x in own.items()}

  def corrupt(self, key, windows, vocab):
    """Returns the rows with what the family's form adds to them, row by row."""
    del key
    groups, size = windows['tokens'].shape[:2]
    rows = {name: windows[name].reshape(groups * size, *windows[name].shape[2:])
            for name in GROUPED if name in windows}
    rows = self.form.arrange(rows, vocab)
    return windows | {name: x.reshape(groups, size, *x.shape[1:]) for name, x in rows.items()}
