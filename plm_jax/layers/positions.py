"""Position schemes that act inside attention. A scheme is a value with two hooks."""
import dataclasses


@dataclasses.dataclass(frozen=True)
class NoPosition:
  """Nothing inside attention; the base of all schemes. Absolute positions live in the embedding."""

  def context(self, scope, cfg, q_positions, k_positions):
    """Runs once a stack, in the stack's scope -> a tree that every layer gets as `context`."""
    del scope, cfg, q_positions, k_positions
    return {}

  def interact(self, scope, cfg, q, k, context, query, key):
    """q [B, Q, H, A], k [B, K, G, A] -> (q, k, bias [B|1, H, Q, K] or None); runs in every layer's scope.

    `query` and `key` are the layer's own projections, for schemes that project their tables with them.
    """
    del scope, cfg, context, query, key
    return q, k, None
