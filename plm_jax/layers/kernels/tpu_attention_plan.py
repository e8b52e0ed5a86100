"""Inputs and layout of the TPU attention kernel, shared by its caller and its programs."""
import dataclasses
from typing import Any, Literal, NamedTuple

import jax

from plm_jax.layers.kernels.relative_shift import RotateMethod
from plm_jax.layers.sliding_window import SlidingWindow, round_to_tiles

Term = Literal['keys', 'queries']
CONTENT, DISTANCE, SEGMENT, DIFFERENCE = range(4)
"""Rows of `Tables.vectors`: biases of the queries for their products with keys, distances and
segments, and the embedding of the same segment minus that of another one."""


class Tables(NamedTuple):
  """Relative logits: tables of distances, and what else their products need.

  In brackets are the shapes of `blocked_attention`.
  """

  keys: Any = None
  """Embeddings of distances for products with queries, as in `RelativeLogits` ([rows, heads *
  head_size]); with `backward` two tables, one after the other; None: there are none."""
  queries: Any = None
  """The same for products with keys."""
  vectors: Any = None
  """[4, heads, head_size] float32 ([8, heads * head_size]), see `CONTENT` to `DIFFERENCE`; None:
  queries have no biases."""
  places: Any = None
  """[batch, M] int32, positions of the last M queries among those that the table of distances is
  for ([batch, M, 128] int32, the row of the table at which a query's first key is); None: there are
  no such queries."""
  backward: Any = None
  """[batch] int32, the number of the row's table of distances; None: there is one."""


class Arrays(NamedTuple):
  """Inputs of attention.

  Shapes are those of `tpu_attention.attend`, and in brackets those of `blocked_attention`, where
  heads and head sizes are one axis and blocks divide all lengths.
  """

  q: jax.Array
  """[batch, queries, heads, head_size] ([batch, queries, heads * head_size])."""
  k: jax.Array
  """[batch, keys, key_heads, head_size] ([batch, keys, key_heads * head_size])."""
  v: jax.Array
  """Of the shape of k."""
  mask: Any
  """Bool [batch or 1, 1, 1 or queries, keys], or None (integers [batch or 1, 1 or queries, keys],
  whose second bit says that query and key are of one segment)."""
  bias: Any
  """[1, heads, queries, keys] float32, or `RelativeLogits`, or `TransformerXLLogits`, or None
  (`Tables` in place of both)."""


class DropoutIds(NamedTuple):
  """Numbers that key the dropout mask."""

  seed: jax.Array
  """[2]."""
  rows: jax.Array
  """[batch] int32."""
  heads: jax.Array
  """[heads] int32, their numbers among those of all devices."""


class KeyPart(NamedTuple):
  """Consecutive keys of a row with more keys than a program can hold."""

  first: int
  """Number of the first key."""
  row_keys: int
  """Number of keys in the row."""


class Settings(NamedTuple):
  """Options of attention, and the device that it is compiled for."""

  scale: float
  """Factor on logits."""
  rate: float
  """Dropout rate."""
  window: SlidingWindow | None
  """Sliding window; None: there is none."""
  on: str
  """Device kind."""
  interpret: bool
  """Run in Pallas' interpreter."""
  first_query: int = 0
  """Number of the first query, for dropout."""
  part: KeyPart | None = None
  """The keys are a part of the row's; None: they are all keys."""


@dataclasses.dataclass(frozen=True)
class KernelPlan:
  """Static layout of a kernel's work, the same for both passes."""

  scale: float
  """Factor on logits."""
  rate: float
  """Dropout rate."""
  size: int
  """Lanes per head; they divide the lanes of a program."""
  lanes: int
  """Lanes per program."""
  queries: int
  """Queries per block."""
  keys: int
  """Keys of a row, or of its part, without padding."""
  groups: int
  """Number of consecutive programs that share keys."""
  has_bias: bool
  """Logits have a bias."""
  terms: tuple[Term, ...]
  """Tables of distances, named as in `RelativeLogits`."""
  rotate_method: RotateMethod
  """How rows are rotated."""
  float32_operands: bool
  """Operands of products are converted to float32."""
  vmem_limit: int | None
  """Bytes of fast memory; None: the compiler's own limit."""
  window: SlidingWindow | None = None
  """Sliding window: a block of queries visits only the keys in reach, in whole tiles."""
  interpret: bool = False
  """Run in Pallas' interpreter."""
  directions: int = 1
  """Number of tables of distances, of which a row has one."""
  has_vectors: bool = False
  """Queries have biases (`Tables.vectors`)."""
  has_segments: bool = False
  """The mask says which keys are of the query's segment."""
  placed: bool = False
  """Queries are at any positions (`Tables.places`)."""
  first_query: int = 0
  """Number of the first query, for dropout."""
  part: KeyPart | None = None
  """The keys are a part of the row's. The forward pass also returns their log-sum-exp, and the
  backward pass gets the mean over all keys, which it cannot compute from a part; None: they are all
  keys."""

  @property
  def heads(self) -> int:
    """Heads per program."""
    return self.lanes // self.size

  @property
  def shared(self) -> int:
    """Number of arrays that all rows of the batch share: a bias, or tables and vectors.

    Their gradients are summed over the rows.
    """
    return self.has_bias + len(self.terms) + self.has_vectors

  @property
  def inputs(self) -> int:
    """Number of inputs before the gradient of the output."""
    return 7 + self.shared + self.placed + (self.directions > 1)

  def span(self, keys: int) -> int:
    """Return how many of a row's `keys`, with padding, a block of queries visits."""
    if self.window is None:
      return keys
    return self.queries + round_to_tiles(self.window.before) + round_to_tiles(self.window.after)
