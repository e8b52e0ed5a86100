"""How what was trained before is trained further: which part of it, with what beside it."""
import dataclasses
from typing import Any

from plm_jax.checked import Checked, within
from plm_jax.training.adapters import AdapterConfig


@dataclasses.dataclass(frozen=True)
class TuningConfig(Checked):
  """Strategies of fine-tuning that are no matter of the optimizer."""

  limits = within(top='[-1, inf)')

  top: int = -1
  """layers that are trained beneath the head, from the top; 0: none, the backbone stays as it is; -1: everything is"""
  reinitialise: int = 0
  """layers at the top, and the pooler, that begin afresh behind a warm start (Zhang et al. 2021)"""
  adapter: AdapterConfig = AdapterConfig()
  """what is trained beside kernels, with the head, instead of them"""

  def conflict(self, option):
    """Says that adapters and top layers are two answers to one question, or that what begins afresh is not trained."""
    if self.reinitialise and (self.adapter.kind != 'none' or 0 <= self.top < self.reinitialise):
      return f'{option("reinitialise")} makes {self.reinitialise} layers begin afresh, and they are not all trained'
    if self.top >= 0 and self.adapter.kind != 'none':
      return f'{option("top")} says which layers are trained, {option("adapter.kind")} that none are: leave out one'
    return None


def shortened(model: Any, top: int) -> Any:
  """Returns the configuration of a backbone of which only the top layers are trained: its backward pass ends below.

  Layers that share parameters are left as they are: the shared ones are trained.
  """
  if top < 1:  # with none to be trained there is no backward pass
    return model
  last = 'decoder' if model.kind == 'encoder-decoder' and model.decoder.blocks else 'stack'
  stack = getattr(model, last)
  if last == 'decoder' and top > stack.blocks:
    top, last, stack = top - stack.blocks, 'stack', model.stack
  if stack.groups:
    return model
  return dataclasses.replace(model, **{last: dataclasses.replace(stack, frozen=max(0, stack.blocks - top))})
