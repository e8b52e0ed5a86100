"""A family of recipes and its sizes: the rows of a table."""
from collections.abc import Callable, Mapping
import dataclasses
from typing import Any

from plm_jax import validation
from plm_jax.config.run import Phase, PretrainRun, TrainConfig
from plm_jax.optim.optimizers import AdamW
from plm_jax.sharding import MeshConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecipeSize:
  """A size of a family: its model, the hyperparameters of its run, and a TPU pod that fits it."""

  name: str = ''
  """name of the recipe; empty: FAMILY_SIZE"""
  model: Callable[..., Any]
  """makes the model configuration, given the compute dtype"""
  parameters: int
  """parameter count of the publication, or of transformers' class for pre-training; tied embeddings
  count once"""
  peak: float
  """peak learning rate"""
  steps: int = 0
  """number of updates; 0: the run has several phases, which the family's `recipe` makes"""
  length: int
  """sequence length in tokens; of several phases, that of the last"""
  batch: int
  """batch size; of growing batches, the largest"""
  accumulate: int = 1
  """gradient accumulation steps that the pod's memory needs"""
  remat: str = 'none'
  """activation checkpointing that the pod's memory needs, see `StackConfig.remat`"""
  pod: str
  """TPU pod that fits the step, as for `--topology`: the paper's, or one with few sequences per
  device"""
  mesh: MeshConfig = MeshConfig(fsdp=8)
  """mesh on that pod: eight devices share parameters and optimizer state, which makes most sizes
  compute-bound; 32 where the compiler predicts at least 3% less time (`--search`)"""
  published_hardware: str = ''
  """hardware and time of the published run"""
  laptop_vocab: int = 0
  """vocabulary size at the laptop scale; 0: that of all models. Chinese has 8,000: 6,500 characters
  cover 99.95% of the text"""

  def make_model(
      self, dropout: float, attention_dropout: float, mlp_dropout: float = 0.0,
  ) -> Any:
    """Make the model configuration in bfloat16, with these dropout rates and the remat of the size.

    Args:
      dropout: dropout of embeddings and of the output of each sublayer.
      attention_dropout: dropout of attention probabilities.
      mlp_dropout: dropout inside the feed-forward network.
    """
    model = self.model('bfloat16')
    stack = dataclasses.replace(model.stack, remat=self.remat)
    return validation.with_paths(model, {
        'stack': stack, 'block.dropout': dropout, 'block.attention.dropout': attention_dropout,
        'block.mlp.dropout': mlp_dropout})

  def make_train_config(self) -> TrainConfig:
    """Make the training options of a run with one sequence length and batch size."""
    phase = Phase(self.steps, self.length, self.batch)
    return TrainConfig(phases=(phase,), accumulate=self.accumulate)


@dataclasses.dataclass(frozen=True)
class RecipeFamily:
  """A family of recipes: published runs that differ in size."""

  name: str
  description: str | None
  """commands, settings and their sources; the first line is a title"""
  sizes: Mapping[str, RecipeSize]
  make_run: Callable[[Any], PretrainRun]
  """builds the published run of a size"""
  start: Callable[[PretrainRun, str], PretrainRun] | None = None
  """changes a run to the model in the folder that it starts from; None: the model of the size
  remains"""


def take_model(
    run: PretrainRun, family: str, model: Any, changes: Mapping[str, Any]) -> PretrainRun:
  """Return a run with another model, whose dtype and activation checkpointing are the run's.

  Args:
    run: the run.
    family: name of the model's family.
    model: configuration of the model.
    changes: values of its fields, by path.
  """
  kept = {path: validation.get_field(run.model, path) for path in ('block.dtype', 'stack.remat')}
  return dataclasses.replace(
      run, family=family, model=validation.with_paths(model, {**kept, **changes}))


def make_fairseq_adam(peak: float, warmup: int) -> AdamW:
  """Make the optimizer of RoBERTa (Liu et al. 2019, table 9), BART and mBART.

  fairseq's Adam corrects the bias of its means, and decays all parameters. Gradients are not
  clipped.
  """
  return AdamW(
      peak=peak, warmup=warmup, schedule='linear', b2=0.98, bias_correction=True,
      weight_decay=0.01, clip=0.0, exempt=())


def batch_size_ramp(
    tokens: int, length: int, batch: int, first: int, over: int, pieces: int = 16
) -> tuple[Phase, ...]:
  """Return phases with a linear batch-size warmup (Brown et al. 2020, section 2.3).

  Args:
    tokens: tokens of all phases together.
    length: sequence length.
    batch: batch size after the warmup.
    first: batch size at the start; every batch size is a multiple of it.
    over: tokens over which the batch grows.
    pieces: number of pieces that the warmup is cut into.
  """
  sizes = []
  for piece in range(pieces):
    middle = first + (batch - first) * (piece + 0.5) / pieces
    sizes.append(max(1, round(middle / first)) * first)
  steps = {size: round(sizes.count(size) * over / pieces / (size * length))
           for size in sorted(set(sizes))}
  rest = tokens - sum(size * number * length for size, number in steps.items())
  steps[batch] = steps.get(batch, 0) + rest // (batch * length)
  return tuple(Phase(number, length, size) for size, number in steps.items())
