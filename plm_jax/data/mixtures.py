"""Data mixtures: the share of each corpus, and which corpus each row reads.

The weights of the corpora become shares of a cycle of 1024 slots, and each corpus is spread evenly
over the cycle. Row b at time t has slot (t + b) % 1024. So a row has exact shares in any 1024
steps, and a batch has them as nearly as whole rows allow; t in `pipeline` is the number of windows
of this corpus that the row has had. Shares are rounded to 1/1024, and a corpus of any weight above
0 has at least one slot.

Without weights, a corpus of n windows (or n examples of a task) is sampled at the rate
min(n, cap) ** (1 / T): in proportion to its size at temperature T = 1, up to the cap; equally at
T = inf (Raffel et al. 2020, section 3.5.2). The rate counts examples: where more of them fill a
window, fewer windows are needed. With UniMax (Chung et al. 2023) a run reads the same amount of
every corpus, each at most a given number of times.
"""
from collections.abc import Sequence
import dataclasses
import math

import numpy as np

from plm_jax.data.windows import Windows

CYCLE_SLOTS = 1024  # of a mixture


@dataclasses.dataclass(frozen=True)
class MixtureShares:
  """Shares of the corpora in a data mixture: given `weights`, or computed from the corpora's sizes.

  A corpus counts as at most `cap` windows (or examples, where it has those); 0 means no limit.
  Sizes are raised to the power 1 / `temperature`. Only the first `corpora` are read; 0 means all.
  With `unimax_epochs`, shares are those of `unimax_weights` for a run that reads `budget` windows.
  """

  weights: Sequence[float] | None = None
  cap: int = 0
  temperature: float = 1.0
  corpora: int = 0
  unimax_epochs: float = 0.0
  budget: int = 0

  def compute_weights(self, corpora: Sequence[Windows]) -> Sequence[float]:
    """Return the weight of each corpus, up to a common factor."""
    number = self.corpora or len(corpora)
    if self.unimax_epochs:
      weights = unimax_weights(list(map(len, corpora[:number])), self.budget, self.unimax_epochs)
    else:
      weights = self.full_weights(corpora)[:number]
    return [*weights, *[0.0] * (len(corpora) - number)]

  def full_weights(self, corpora: Sequence[Windows]) -> Sequence[float]:
    """Return the weight of each corpus if all are read."""
    if self.weights is not None:
      return self.weights
    weights = []
    for corpus in corpora:
      size = corpus.documents if corpus.target_tokens else len(corpus)
      rate = min(size, self.cap or size) ** (1 / self.temperature)
      weights.append(rate * len(corpus) / size)
    return weights


def unimax_weights(sizes: Sequence[int], budget: float, epochs: float) -> list[float]:
  """Distribute the windows of a run over corpora as UniMax does (Chung et al. 2023, algorithm 1).

  From the smallest corpus to the largest, each gets an equal part of what is left of the budget, or
  as much as `epochs` epochs of it have, if that is less.

  Args:
    sizes: windows of each corpus.
    budget: windows that the run reads.
    epochs: maximum number of epochs over a corpus.

  Returns:
    Windows of each corpus that the run reads. Where the corpora are too small for the budget, they
    are `epochs` times the sizes.

  >>> unimax_weights([100, 10, 1000], 300, 2)
  [140.0, 20.0, 140.0]
  """
  weights = [0.0] * len(sizes)
  order = sorted(range(len(sizes)), key=lambda corpus: sizes[corpus])
  for done, corpus in enumerate(order):
    weights[corpus] = min(budget / (len(sizes) - done), epochs * sizes[corpus])
    budget -= weights[corpus]
  return weights


@dataclasses.dataclass(frozen=True)
class MixtureSchedule:
  """Schedule of a data mixture: which corpus each row reads at each step."""

  slots: np.ndarray  # [CYCLE_SLOTS] corpus
  before: np.ndarray  # [corpora, CYCLE_SLOTS + 1] earlier slots of the corpus

  @classmethod
  def from_weights(cls, weights: Sequence[float], components: int) -> 'MixtureSchedule':
    """Divide the slots of a cycle by weight, each corpus at equal distances.

    A corpus with any weight above 0 gets at least one slot.

    Raises:
      ValueError: weights are negative, not finite, all 0, or not one per corpus.
    """
    valid = len(weights) == components and all(math.isfinite(w) and w >= 0 for w in weights)
    if not valid or not sum(weights) > 0:
      raise ValueError(f'{components} corpora need as many weights, none negative and not all 0, '
                       f'not {list(weights)}')
    if components > CYCLE_SLOTS:
      raise ValueError(f'a mixture has at most {CYCLE_SLOTS} corpora, not {components}')
    share = np.array(weights, float) / sum(weights) * CYCLE_SLOTS
    counts = np.where(share > 0, np.maximum(np.floor(share), 1), 0).astype(int)
    while counts.sum() < CYCLE_SLOTS:  # largest remainders first
      counts[np.argmax(share - counts)] += 1
    while counts.sum() > CYCLE_SLOTS:
      # Corpora below 1/1024 have a slot each, taken from the corpora with the most to spare.
      counts[np.argmin(np.where(counts > 1, share - counts, np.inf))] -= 1
    # The k-th slot of corpus c is due at (k + 1/2) / counts[c] of the cycle.
    due = np.concatenate([(np.arange(count) + 0.5) / count for count in counts])
    slots = np.repeat(np.arange(components), counts)[np.argsort(due, kind='stable')]
    before = np.cumsum(slots == np.arange(components)[:, None], 1)
    return cls(slots, np.concatenate([np.zeros((components, 1), int), before], 1))

  def share(self, component: int) -> float:
    """Return the share of the windows that are from a corpus."""
    return float(self.before[component, CYCLE_SLOTS] / CYCLE_SLOTS)

  def __call__(self, step: np.ndarray, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the corpus of step [N] and row [N], and the row's earlier windows of it [N]."""
    component = self.slots[(step + row) % CYCLE_SLOTS]
    return component, self.count(component, step + row) - self.count(component, row)

  def count(self, component: np.ndarray, slot: np.ndarray) -> np.ndarray:
    """Count the slots of a corpus before a slot; both are arrays of one shape, or broadcast."""
    cycles = slot // CYCLE_SLOTS * self.before[component, CYCLE_SLOTS]
    return cycles + self.before[component, slot % CYCLE_SLOTS]
