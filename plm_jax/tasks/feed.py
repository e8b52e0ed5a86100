"""What a fine-tuning run learns from, and what it is held against: labelled examples."""
from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any

import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
import numpy as np

from plm_jax import conversion, sharding
from plm_jax.architectures.encoder import Output
from plm_jax.config import FineTuning, Phase
from plm_jax.tasks.augmenting import augmenting
from plm_jax.tasks.batches import Batches, Placed, Shape, gathered
from plm_jax.tasks.contract import Per
from plm_jax.tasks.given import with_vectors
from plm_jax.tasks.labelled import Labelled
from plm_jax.tasks.regularize import Plain
from plm_jax.tokenizers import Tokenizer
from plm_jax.training import metrics
from plm_jax.training.feed import Feed
from plm_jax.training.step import Learner


class LabelledFeed(Feed):
  """Batches of training examples; development sets, each measured by the task's metrics."""

  def __init__(self, config: FineTuning, train: Labelled, dev: Mapping[str, Labelled], tokenizer: Tokenizer, mesh):
    """dev: name -> set; the figures of the first have no name before them, those of others have NAME_."""
    self.config, self.dev, self.tokenizer, self.mesh = config, dev, tokenizer, mesh
    self.phase = config.train.phases[0]
    data, shape = config.data, self.shape(config.train.accumulate, config.data.pack)
    if data.augment.share:
      self.batches: Batches = augmenting(config, train, tokenizer, shape)
    else:
      self.batches = Batches(train.features, shape, config.seed, data.by_length)

  def shape(self, accumulate: int, pack: bool) -> Shape:
    """Says how rows are laid out."""
    split = sharding.batch_split(self.mesh)
    return Shape(self.phase.batch, self.phase.length, split * accumulate, max(self.tokenizer.vocab.pad, 0), pack)

  def first(self):
    """Makes the first batch."""
    return self.batches.batch(0)[0]

  def begin(self, learner, params, mesh):
    """Computes what a backbone that stays as it is says of the training examples."""
    self.batches = self.known(self.batches, learner, params)

  def fresh(self, params):
    """Returns fresh parameters with the word vectors that the task is to begin with."""
    return with_vectors(self.config.objective, self.tokenizer, params)

  def known(self, batches: Batches, learner: Learner, params: Any) -> Batches:
    """Returns batches with what the backbone says of them, where that never changes."""
    return said(batches, self.config, learner, params, self.mesh) if stays(self.config) else batches

  def stream(self, start, mesh):
    """Yields batches, whose rows and lengths are those that each needs."""
    for step in range(start, self.phase.steps):
      windows = self.batches.batch(step)[0]
      yield step, shaped(self.phase, windows), on_devices(windows, mesh)

  def evaluator(self, learner, mesh):
    """Makes the function that answers the development sets and measures the answers."""
    outputs, asked = forward(learner), {}
    def evaluate(params, phase) -> dict[str, float]:
      del phase
      figures: dict[str, float] = {}
      task: Any = self.config.objective
      for name, some in self.dev.items():
        if name not in asked:
          asked[name] = self.known(Batches(some.features, self.shape(1, self.config.data.pack)), learner, params)
        found, losses = answered(outputs, params, asked[name], mesh, task.per)
        values = task.scores(some.examples, task.predict(some.examples, some.features, found))
        values |= {'loss': losses[task.head]} if task.head in losses else {}
        figures |= {f'{name}_{figure}' if name else figure: value for figure, value in values.items()}
      return figures
    return evaluate

  def windows(self, step):
    """Lays out the examples of the batch."""
    return self.batches.batch(step)[0]

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
    return objective.heldout(found, batch), objective.read_off(found)
  return jax.jit(outputs)


def answered(outputs: Callable[[Any, Any], Any], params: Any, batches: Batches, mesh, per: Per
             ) -> tuple[list[np.ndarray], dict[str, float]]:
  """Asks a model all features -> (what `outputs` gave for each, in their order; mean losses)."""
  found: list[Any] = [None] * len(batches.features)
  sizes, losses = batches.features.tokens.lengths, []
  pending: list[tuple[Any, Placed]] = []
  def fetch():
    (pairs, values), placed = pending.pop(0)
    losses.append(jax.device_get(pairs))
    whole = multihost_utils.process_allgather(values, tiled=True) if jax.process_count() > 1 else jax.device_get(values)
    for number, value in zip(placed.number, gathered(np.asarray(whole), placed, sizes[placed.number], per),
                             strict=True):
      found[number] = value
  for windows, placed in batches.once():
    pending.append((outputs(params, on_devices(windows, mesh)), placed))
    if len(pending) > 1:  # one is computed while another is read
      fetch()
  while pending:
    fetch()
  return found, metrics.combine(losses)


def stays(config: FineTuning) -> bool:
  """Tells whether what the backbone says of an example is the same throughout the run, and all that the loss asks."""
  task, tuning, data = config.objective, config.tuning, config.data
  return (data.cache and tuning.top == 0 and tuning.adapter.kind == 'none' and not config.optim.only
          and not task.auxiliary and isinstance(task.regularizer, Plain) and not data.augment.share
          and not data.pack and task.per != 'row' and not conversion.asks_words(config.family, task.head))


@dataclasses.dataclass(frozen=True, eq=False)
class Said(Batches):
  """Batches with what the backbone says of them, so that it need not be asked again."""

  vectors: Sequence[np.ndarray] = ()
  """of each feature: of slots [2, D], hidden state and what is pooled of the token that stands for it; of tokens
  [tokens, ...], what the task keeps of each"""
  task: Any = None

  def read(self, units):
    """Lays out units [n] as a batch with `output`; of slots there is nothing else but their values."""
    batch, placed = super().read(units)
    if self.task.keeps == 'slot':
      size = self.vectors[0].shape[-1]
      rows = batch['weight'].shape[0]
      given = np.zeros((rows, 2, 1, size), np.float32)
      given[placed.row, :, 0] = np.stack([self.vectors[number] for number in placed.number])
      kept = {name: x for name, x in batch.items() if name not in ('segments', 'types')}
      kept |= {'tokens': np.zeros((rows, 1), np.int32), 'extract': np.zeros_like(batch['extract'])}
      return kept | {'output': Output(given[:, 0], given[:, 1], None)}, placed  # pyright: ignore[reportArgumentType]
    kept = np.zeros((*batch['tokens'].shape, *self.vectors[0].shape[1:]), np.float32)
    for row, number in zip(placed.row, placed.number, strict=True):
      kept[row, :len(self.vectors[number])] = self.vectors[number]
    return batch | {'output': self.task.recalled(kept)}, placed


def said(batches: Batches, config: FineTuning, learner: Learner, params: Any, mesh) -> Said:
  """Asks the backbone all features once."""
  task = config.objective
  @jax.jit
  def outputs(params, windows):
    batch = task.corrupt(learner.key(3), windows, learner.vocab)
    output: Any = config.model.backbone(config.data.packed).apply({'params': params}, batch)
    if task.keeps == 'token':
      return {}, task.kept(output)
    stand = jnp.take_along_axis(output.hidden, batch['extract'][..., None], 1)
    return {}, jnp.stack([stand, stand if output.pooled is None else output.pooled], 2)
  vectors, _ = answered(outputs, params['backbone'], Batches(batches.features, batches.shape), mesh, task.keeps)
  return Said(batches.features, batches.shape, batches.seed, batches.by_length, vectors, task)


def on_devices(windows: Mapping[str, np.ndarray], mesh) -> Any:
  """Puts a batch that every host has whole on the mesh."""
  rows = len(windows['tokens'])
  own = sharding.host_rows(rows, mesh)
  return sharding.to_devices(jax.tree.map(lambda x: x[own], dict(windows)), rows, mesh)


def shaped(phase: Phase, windows: Mapping[str, np.ndarray]) -> Phase:
  """Returns the phase with the rows and the length of a batch."""
  *rows, length = windows['tokens'].shape
  return dataclasses.replace(phase, batch=int(np.prod(rows)), length=length)
