"""What objectives of pre-training for retrieval share: layers that read an encoder's vector."""
import dataclasses
from typing import Any

from plm_jax.layers.stack import StackConfig
from plm_jax.objectives import Objective, ParameterLifecycle, Requirements


class SentenceBottleneck(Objective):
  """Base class of objectives in which layers predict a text from its sentence vector.

  Training alone has these layers; the encoder and its masked-LM head are what is exported.
  """

  @property
  def requirements(self) -> Requirements:
    return dataclasses.replace(super().requirements, architectures=('EncoderConfig',))

  @property
  def lifecycle(self) -> ParameterLifecycle:
    return EncoderExport()


@dataclasses.dataclass(frozen=True)
class EncoderExport(ParameterLifecycle):
  """Exports the encoder, without the layers that predict from its vector."""

  names: tuple[str, ...] = ('backbone', 'heads_mlm')
  """Parameters that are exported."""

  def exported(self, params):
    return {name: params[name] for name in self.names}


def decoder_flops(model: Any, layers: int, length: int, predicted: int) -> int:
  """Count the matrix-product FLOPs of a training step for layers after an encoder, per sequence.

  Args:
    model: configuration of the encoder. These layers are like its own, without sliding windows.
    layers: number of layers.
    length: tokens of a sequence.
    predicted: positions with vocabulary logits.
  """
  plain = dataclasses.replace(model, stack=StackConfig(layers), windows=(), pooler=False)
  return 3 * plain.forward_flops(length, predicted)
