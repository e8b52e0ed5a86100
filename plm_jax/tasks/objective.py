"""The objective of a fine-tuning run: what the training step needs, made of a task."""
import dataclasses

import jax
import jax.numpy as jnp

from plm_jax import conversion
from plm_jax.objectives import (
  PROGRESS,
  Losses,
  Objective,
  OptimizerHints,
  Reporting,
  Requirements,
  StepTraits,
)
from plm_jax.objectives.mlm import classification_losses
from plm_jax.tasks.batches import PER_ROW_ARRAYS
from plm_jax.tasks.contract import PER_TOKEN, Task


@dataclasses.dataclass(frozen=True)
class TaskObjective(Objective):
  """Learning a task from labeled examples: nothing is corrupted.

  Adds to a task its regularizer, the auxiliary language-modeling loss, and the dropout of its head.
  """

  task: Task

  def build(self, model, packed):
    return self.task.module_class(model.backbone(packed), self.heads(model))

  def heads(self, model):
    """Return the heads of the task, and the LM head if there is an auxiliary loss."""
    task = self.task
    heads = task.heads(model)
    if task.auxiliary:
      heads['lm'] = conversion.build_head(task.family, 'lm', model, task.classes, ())
    if task.head_dropout >= 0 and hasattr(heads[task.head], 'dropout'):
      heads[task.head] = heads[task.head].clone(dropout=task.head_dropout)
    return heads

  @property
  def terms(self):
    """The task's own losses with weight 1, and the auxiliary language-modeling loss."""
    terms = dict.fromkeys(self.task.terms, 1.0)
    return terms | {'lm': self.task.auxiliary} if self.task.auxiliary else terms

  def loss(self, outputs, batch):
    """Compute the task's losses, and `lm`, next-token prediction within each text."""
    losses = self.task.loss(outputs, batch)
    if self.task.auxiliary:
      segments = batch['segments']
      next_segments = jnp.pad(segments[:, 1:], ((0, 0), (0, 1)))
      next_tokens = jnp.pad(batch['tokens'][:, 1:], ((0, 0), (0, 1)))
      weight = ((segments > 0) & (segments == next_segments)).astype(jnp.float32)
      losses |= classification_losses('lm', outputs['lm'], next_tokens, weight)
    return losses

  def losses(self, passes, batch):
    """Compute the losses of a training step, by the regularizer."""
    return self.task.regularizer(self, passes, batch)

  def heldout(self, outputs, batch) -> Losses:
    """Compute (sum, weight) of the losses on development sets: those of training, or none."""
    return self.loss(outputs, batch) if self.task.has_heldout_loss else {}

  def corrupt(self, key, windows, vocab):
    """Add the inputs of the model family's format, also to groups of rows [B, C, L]."""
    if PROGRESS in windows:
      progress = jnp.full(len(windows['tokens']), windows[PROGRESS], jnp.float32)
      windows = {**windows, PROGRESS: progress}
    if 'output' in windows:
      return windows
    add_inputs = self.task.input_format.add_model_inputs
    if windows['tokens'].ndim == 2:
      return add_inputs(windows, vocab)
    groups, size = windows['tokens'].shape[:2]
    rows = {name: x.reshape((groups * size,) + x.shape[2:])
            for name, x in windows.items() if name in PER_ROW_ARRAYS}
    grouped = {name: x.reshape((groups, size) + x.shape[1:])
               for name, x in add_inputs(rows, vocab).items()}
    return windows | grouped

  def shapes(self, rows, length, layout=None):
    """Return the shapes of a batch, with one example per row, or per group of rows."""
    group = (self.task.group_size,) if self.task.group_size > 1 else ()
    def shape(name, *axes, dtype=jnp.int32):
      own = group if name in PER_ROW_ARRAYS else ()
      return jax.ShapeDtypeStruct((rows, *own, *axes), dtype, sharding=layout)
    shapes = {name: shape(name, length) for name in ('tokens', 'segments', 'types')}
    shapes |= {'extract': shape('extract', 1), 'weight': shape('weight', 1, dtype=jnp.float32)}
    for name, axes in self.task.loss_arrays.items():
      shapes[name] = shape(name, *[length if axis == PER_TOKEN else axis for axis in axes])
    return shapes

  def module_inputs(self, model):
    """Return the shapes of a group of two rows, if examples are groups."""
    if self.task.group_size == 1:
      return dict.fromkeys(self.task.head_arrays, jax.ShapeDtypeStruct((1, 8), jnp.int32))
    names = 'tokens', 'segments', 'decoder_tokens', 'decoder_segments'
    return dict.fromkeys(names, jax.ShapeDtypeStruct((1, 2, 8), jnp.int32))

  def max_predictions(self, length):
    return 0

  @property
  def step_traits(self):
    """Gradients of the embeddings, where the regularizer perturbs them."""
    changes = self.task.changes_over_run
    return StepTraits(
        cross_row=self.task.cross_row, needs_progress=changes, changes_over_run=changes,
        perturbs_inputs=self.task.regularizer.perturbs_inputs)

  @property
  def requirements(self):
    return Requirements(
        own_vocabulary=self.task.own_vocabulary, pretrained_heads=self.task.pretrained_heads)

  @property
  def optimizer_hints(self):
    return OptimizerHints(frozen=self.task.frozen)

  @property
  def reporting(self):
    return TaskReporting(self.task)


@dataclasses.dataclass(frozen=True)
class TaskReporting(Reporting):
  """Metrics in percent, accuracies with the sign; those that are better when lower as they are."""

  task: Task

  def higher_is_better(self, figure):
    """Tell whether larger values are better; metrics of a named set have its name before theirs."""
    lower = ('loss', *self.task.lower_is_better)
    return not f'_{figure}'.endswith(tuple(f'_{name}' for name in lower))

  def format_metric(self, figure, value, digits=3):
    sign = '%' if figure.endswith('accuracy') else ''
    return f'{value:.2f}{sign}' if self.higher_is_better(figure) else f'{value:.{digits}f}'
