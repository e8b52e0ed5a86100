"""What a fine-tuning run learns from, and what it is held against: labelled examples."""
from collections.abc import Callable, Mapping
import dataclasses
from typing import Any

import jax
from jax.experimental import multihost_utils
import numpy as np

from plm_jax import sharding
from plm_jax.config import FineTuning, Phase
from plm_jax.tasks.augmenting import augmenting
from plm_jax.tasks.batches import Batches, Placed, Shape, gathered
from plm_jax.tasks.contract import Task
from plm_jax.tasks.examples import Features
from plm_jax.tasks.labelled import Labelled
from plm_jax.tokenizers import Tokenizer
from plm_jax.training import metrics
from plm_jax.training.feed import Feed
from plm_jax.training.step import Learner


class LabelledFeed(Feed):
  """Batches of training examples; development sets, each measured by the task's metrics."""

  def __init__(self, config: FineTuning, train: Labelled, dev: Mapping[str, Labelled], tokenizer: Tokenizer, mesh):
    """dev: name -> set; the figures of the first have no name before them, those of others have NAME_."""
    self.config, self.dev, self.mesh, self.pad = config, dev, mesh, max(tokenizer.vocab.pad, 0)
    self.phase = config.train.phases[0]
    data, shape = config.data, self.shape(config.train.accumulate, config.data.pack)
    if data.augment.share:
      self.batches: Batches = augmenting(config, train, tokenizer, shape)
    else:
      self.batches = Batches(train.features, shape, config.seed, data.by_length)

  def shape(self, accumulate: int, pack: bool) -> Shape:
    """Says how rows are laid out."""
    split = sharding.batch_split(self.mesh)
    return Shape(self.phase.batch, self.phase.length, split * accumulate, self.pad, pack)

  def first(self):
    """Makes the first batch."""
    return self.batches.batch(0)[0]

  def stream(self, start, mesh):
    """Yields batches, whose rows and lengths are those that each needs."""
    for step in range(start, self.phase.steps):
      windows = self.batches.batch(step)[0]
      yield step, shaped(self.phase, windows), on_devices(windows, mesh)

  def evaluator(self, learner, mesh):
    """Makes the function that answers the development sets and measures the answers."""
    outputs = forward(learner)
    def evaluate(params, phase) -> dict[str, float]:
      del phase
      figures: dict[str, float] = {}
      shape = self.shape(1, self.config.data.pack)
      task: Any = self.config.objective
      for name, some in self.dev.items():
        found, losses = answered(task, outputs, params, some.features, shape, mesh)
        values = task.scores(some.examples, task.predict(some.examples, some.features, found)) | {
            'loss': losses[task.head]}
        figures |= {f'{name}_{figure}' if name else figure: value for figure, value in values.items()}
      return figures
    return evaluate

  def contents(self, step):
    """Names the examples of the batch."""
    placed = self.batches.batch(step)[1]
    examples = np.unique(self.batches.features.example[placed.number])
    return f'the training examples {np.array2string(examples, max_line_width=100, threshold=32)}'

  @property
  def epochs(self):
    """Divides the batches of the run by those of an epoch."""
    return self.phase.steps / self.batches.steps


def forward(learner: Learner) -> Callable[[Any, Any], Any]:
  """Makes a compiled function(params, windows) -> (losses, outputs of the task's head), without dropout."""
  objective: Any = learner.objective
  def outputs(params, windows):
    batch = objective.corrupt(learner.key(3), windows, learner.vocab)
    found: Any = learner.model.apply({'params': params}, batch)
    return objective.loss(found, batch), found[objective.head]
  return jax.jit(outputs)


def answered(
    task: Task, outputs: Callable[[Any, Any], Any], params: Any, features: Features, shape: Shape, mesh,
) -> tuple[list[np.ndarray], dict[str, float]]:
  """Asks a model all features -> (what the head gave for each, in their order; mean losses)."""
  found: list[Any] = [None] * len(features)
  sizes, losses = features.tokens.lengths, []
  pending: list[tuple[Any, Placed]] = []
  def fetch():
    (pairs, values), placed = pending.pop(0)
    losses.append(jax.device_get(pairs))
    whole = multihost_utils.process_allgather(values, tiled=True) if jax.process_count() > 1 else jax.device_get(values)
    for number, value in zip(placed.number, gathered(np.asarray(whole), placed, sizes[placed.number], task.per),
                             strict=True):
      found[number] = value
  for windows, placed in Batches(features, shape).once():
    pending.append((outputs(params, on_devices(windows, mesh)), placed))
    if len(pending) > 1:  # one is computed while another is read
      fetch()
  while pending:
    fetch()
  return found, metrics.combine(losses)


def on_devices(windows: Mapping[str, np.ndarray], mesh) -> Any:
  """Puts a batch that every host has whole on the mesh."""
  rows = len(windows['tokens'])
  own = sharding.host_rows(rows, mesh)
  return sharding.to_devices({name: x[own] for name, x in windows.items()}, rows, mesh)


def shaped(phase: Phase, windows: Mapping[str, np.ndarray]) -> Phase:
  """Returns the phase with the rows and the length of a batch."""
  *rows, length = windows['tokens'].shape
  return dataclasses.replace(phase, batch=int(np.prod(rows)), length=length)
