"""Downstream tasks as transformers' classes compute them: the tasks of plm_jax, of rows that are
made already.

Module and loss are the task's own (`TaskObjective.build`, `Task.loss`), in one pass for cases with
outputs of a head, and step by step in `trajectory`.
"""
import dataclasses

import jax.numpy as jnp

from parity.shared import Given, Unsupported
from plm_jax.layers.heads import select_token
from plm_jax.tasks.contract import Task
from plm_jax.tasks.extractive_qa import AnswerTask
from plm_jax.tasks.multilabel import MultiLabelTask
from plm_jax.tasks.multiple_choice import ChoiceTask
from plm_jax.tasks.objective import TaskObjective
from plm_jax.tasks.sequence_classification import SequenceTask
from plm_jax.tasks.token_classification import TaggingTask

LABELS = {'labels', 'start_positions'}
ROWS = {'input_ids', 'attention_mask', 'token_type_ids', 'position_ids', 'decoder_input_ids',
        'decoder_attention_mask',
        'langs', 'lengths', 'task_type_ids'}


class GivenRows(Given, TaskObjective):
  """The objective of a task whose rows are arranged already."""


class GivenTask(Given, Task):
  """A task in which every row is one example or one choice of an example."""

  known = ROWS | {'labels'}

  @classmethod
  def of(cls, imported, inputs):
    """The task that a checkpoint has learned."""
    del inputs
    names = imported.labels or tuple(map(str, range(imported.extra.get('num_labels') or 2)))
    return cls(family=imported.family, labels=names, head_dropout=0.0)

  def module(self, imported):
    return self.objective.build(imported.config, False)

  @property
  def objective(self):
    return GivenRows(self)

  def batch(self, inputs, config, make_batch):
    """Build the rows of the architecture, the position that represents each row, and the labels
    of the loss."""
    rows = self.arranged(make_batch({name: x for name, x in inputs.items() if name in ROWS},
                                    config), inputs)
    return rows | (self.labelled(inputs) if LABELS & {*inputs} else {})

  def arranged(self, rows, inputs):
    """Return rows with the position that represents each: for XLNet the last token that is not
    padding, otherwise the first."""
    del inputs
    if 'extract' in rows:
      return rows
    places = jnp.broadcast_to(jnp.arange(rows['tokens'].shape[1]), rows['tokens'].shape)[..., None]
    stand = select_token(places, {}, rows['segments'] if self.input_format.question_last else None)
    return rows | {'extract': stand}

  def labelled(self, inputs):
    """Return the inputs of the loss other than the head's output."""
    label = inputs['labels'].reshape(-1, 1)
    return {'label': label, 'weight': jnp.ones(label.shape, jnp.float32)}

  def __call__(self, outputs, inputs, config):
    """Logits, and the loss where there are labels, under transformers' names."""
    del config
    given = self.called(outputs[self.head])
    if not LABELS & {*inputs}:
      return given
    total, weight = self.loss(outputs, self.labelled(inputs))[self.head]
    return given | {'loss': total / weight}

  def called(self, logits):
    return {'logits': logits}


@dataclasses.dataclass(frozen=True)
class GivenClasses(GivenTask, SequenceTask):
  """Classification or regression of rows; the dtype of the labels decides."""

  @classmethod
  def of(cls, imported, inputs):
    task, kind = super().of(imported, inputs), imported.extra.get('problem_type')
    kind = kind or ('regression' if len(task.labels) == 1 else 'single_label_classification')
    numbers = len(task.labels) > 1 and 'labels' in inputs and inputs['labels'].dtype.kind == 'f'
    if kind == 'regression' and numbers:
      raise Unsupported('several numbers a row: no task has them')
    if kind == 'multi_label_classification' or numbers:
      return GivenLabels.of(imported, inputs)
    return dataclasses.replace(task, regression=kind == 'regression')

  def called(self, logits):
    return {'logits': logits[:, 0]}


@dataclasses.dataclass(frozen=True)
class GivenLabels(GivenTask, MultiLabelTask):
  """Several classes of a row."""

  def labelled(self, inputs):
    label = inputs['labels'].astype(jnp.float32)[:, None]
    return {'label': label, 'weight': jnp.ones(label.shape[:2], jnp.float32)}

  def called(self, logits):
    return {'logits': logits[:, 0]}


@dataclasses.dataclass(frozen=True)
class GivenTags(GivenTask, TaggingTask):
  """A class of each token."""

  def labelled(self, inputs):
    labels = inputs['labels']
    return {'tags': jnp.maximum(labels, 0), 'marks': (labels != -100).astype(jnp.float32)}


@dataclasses.dataclass(frozen=True)
class GivenChoices(GivenTask, ChoiceTask):
  """One of several rows."""

  def arranged(self, rows, inputs):
    """Rows in groups."""
    if 'visible' in rows:
      raise Unsupported('choices with masks of pairs of tokens')
    shape = inputs['input_ids'].shape[:2]
    return {name: x.reshape(*shape, *x.shape[1:])
            for name, x in super().arranged(rows, inputs).items()}

  def labelled(self, inputs):
    groups, size = inputs['input_ids'].shape[:2]
    return super().labelled(inputs) | {'tokens': inputs['input_ids'],
                                       'real': jnp.full((groups, 1), size)}

  def called(self, logits):
    return {'logits': logits.reshape(logits.shape[:2])}


@dataclasses.dataclass(frozen=True)
class GivenSpans(GivenTask, AnswerTask):
  """Start and end of an answer; answers after the end of the row are ignored."""

  known = ROWS | {'start_positions', 'end_positions'}

  def labelled(self, inputs):
    places = {name: inputs[f'{name}_positions'].reshape(-1, 1) for name in ('start', 'end')}
    return places | {'weight': jnp.ones(places['start'].shape, jnp.float32)}

  def called(self, logits):
    return {'start_logits': logits[..., 0], 'end_logits': logits[..., 1]}


KINDS = {
    'ForSequenceClassification': GivenClasses, 'ForTokenClassification': GivenTags,
    'ForMultipleChoice': GivenChoices,
    'ForQuestionAnswering': GivenSpans, 'ForQuestionAnsweringSimple': GivenSpans}
