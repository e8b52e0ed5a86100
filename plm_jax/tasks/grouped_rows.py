"""Tasks whose examples are groups of rows: choices of a question, related texts."""
from collections.abc import Mapping, Sequence
import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from plm_jax.layers.heads import ModelWithHeads
from plm_jax.tasks.contract import Task
from plm_jax.tasks.features import Features
from plm_jax.tasks.input_formats import InputRow, Truncation, collect_rows
from plm_jax.tokenizers.contract import Vocab

# Arrays of a batch that models read.
MODEL_INPUTS = (
    'tokens', 'segments', 'types', 'extract', 'place', 'ranks', 'decoder_tokens',
    'decoder_segments', 'decoder_place', 'noise', 'perturbation', 'scored')


class GroupedModel(ModelWithHeads):
  """A backbone and heads for groups of rows: arrays [B, C, ...] -> outputs [B, C, ...].

  Rows that do not come in groups, [B, ...], have outputs [B, ...].
  """

  def __call__(self, batch, rows=None):
    if batch['tokens'].ndim == 2:
      return super().__call__(batch, rows)
    groups, size = batch['tokens'].shape[:2]
    flat, row_ids = flatten_groups(batch, rows)
    outputs = super().__call__(flat, row_ids)
    return {name: x.reshape((groups, size) + x.shape[1:]) for name, x in outputs.items()}


def flatten_groups(batch, rows=None):
  """Flatten groups into rows -> (arrays [B, C, ...] as [B * C, ...], row ids [B * C] or None)."""
  groups, size = batch['tokens'].shape[:2]
  flat = {}
  for name, x in batch.items():
    if name in MODEL_INPUTS:
      flat[name] = x.reshape((groups * size,) + x.shape[2:])
  if rows is None:
    return flat, None
  return flat, (rows[:, None] * size + jnp.arange(size)).ravel()


@dataclasses.dataclass(frozen=True)
class GroupedTask(Task):
  """A task whose examples are groups of C rows."""

  output_unit: ClassVar = 'row'
  module_class: ClassVar = GroupedModel

  @property
  def group_size(self):
    return 4

  def make_groups(
      self, groups: Sequence[Sequence[Sequence[Sequence[int]]]], values: Mapping[str, np.ndarray],
      example: Sequence[int], vocab: Vocab, length: int, cut: Truncation) -> Features:
    """Make a row of the token ids of each text or pair of texts, as many rows for each group.

    A smaller group is padded with its first row. Its outputs are ignored: see `real`.

    Args:
      groups: texts of each row, of N groups.
      values: labels and weights of each group [N, ...].
      example: index of each group's example [N].
      vocab: of the tokenizer.
      length: maximum tokens of a row.
      cut: text that is truncated.
    """
    rows = [[self.input_format.make_row(texts, vocab, length, cut) for texts in group]
            for group in groups]
    return collect_groups(rows, values, example)


def collect_groups(
    groups: Sequence[list[InputRow]], values: Mapping[str, np.ndarray],
    example: Sequence[int]) -> Features:
  """Collect N groups of rows into features; see `GroupedTask.make_groups`."""
  counts = np.array([len(group) for group in groups], np.int32)
  size, rows = int(counts.max(initial=1)), []
  for own in groups:
    rows += own + own[:1] * (size - len(own))
  values = {name: x.repeat(size, axis=0) for name, x in {**values, 'real': counts}.items()}
  return collect_rows(rows, values, np.repeat(np.array(example, np.int32), size), size)
