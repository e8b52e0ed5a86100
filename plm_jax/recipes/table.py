"""The row of a family's table of sizes: what differs from one size to the next."""
from collections.abc import Callable
import dataclasses
from typing import Any

from plm_jax.config import Phase, TrainConfig
from plm_jax.sharding import MeshConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
  """A size of a family: its model, the values of its run, and a pod that it fits."""

  name: str = ''
  """of the recipe; empty: FAMILY_SIZE"""
  model: Callable[..., Any]
  """configuration of the model, from the type that it computes in"""
  parameters: int
  """as those who published the model count them, or transformers' class for pre-training: a tied output matrix once"""
  peak: float
  """largest learning rate"""
  steps: int = 0
  """updates; 0: of several phases, which the family's `recipe` makes"""
  length: int = 512
  """tokens in a row"""
  batch: int
  """rows in an update; the most where batches grow"""
  accumulate: int = 1
  """micro-steps in an update, for the pod's memory"""
  remat: str = 'none'
  """what the backward pass computes again, for the pod's memory: `stack.StackConfig.remat`"""
  pod: str
  """TPU pod whose memory the step fits, as `--topology` takes it: the paper's, or one on which a device has few rows"""
  mesh: MeshConfig = MeshConfig(fsdp=8)
  """how the model is split there: eight devices share parameters and moments, which is enough for most to be bound by
  arithmetic; 32 where the compiler says 3% less of time or more (`--search`)"""
  took: str = ''
  """hardware and time of the run that was published"""

  def backbone(self) -> Any:
    """Makes the model's configuration: bfloat16 products, and on the way back what `remat` says."""
    model = self.model('bfloat16')
    return dataclasses.replace(model, stack=dataclasses.replace(model.stack, remat=self.remat))

  def train(self) -> TrainConfig:
    """Makes the loop of a run with rows of one length and batches of one size."""
    return TrainConfig(phases=(Phase(self.steps, self.length, self.batch),), accumulate=self.accumulate)
