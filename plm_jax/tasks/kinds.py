"""The kinds of downstream tasks, registered by name; and the task of a released checkpoint.

A new kind needs an import and a line in `KINDS`. These places may know it by name, where it differs
from other kinds:

    tasks/baselines          MAJORITY_BASELINES and SIMPLE_BASELINES: without, there are none
    sources/builtin_tasks    MAKERS: built-in examples
    report/error_analysis    CARDS: drawing of a mistake that is no single label
    report/baselines         suggest_improvements: suggestions for one kind
    recipes/hyperparameters  KIND_SETTINGS and the functions of families: published settings
    recipes/finetune         shrink_run: fields that depend on the size of the model
    recipes/sentence_vectors published losses of sentence embeddings
"""
from collections.abc import Mapping
import functools
import operator
from typing import TYPE_CHECKING, NamedTuple

from plm_jax.conversion import ImportedCheckpoint
from plm_jax.metrics.tag_schemes import is_scheme
from plm_jax.tasks import example_formats
from plm_jax.tasks.choice_format import CHOICE
from plm_jax.tasks.contract import Task
from plm_jax.tasks.elmo import RecurrentSequence, RecurrentTagging, RecurrentTask
from plm_jax.tasks.example_formats import ExampleFormat
from plm_jax.tasks.extractive_qa import AnswerTask
from plm_jax.tasks.input_formats import INPUT_FORMATS
from plm_jax.tasks.late_interaction import LateInteractionTask
from plm_jax.tasks.multilabel import MULTILABEL, MultiLabelTask, thresholds_of
from plm_jax.tasks.multiple_choice import ChoiceTask
from plm_jax.tasks.ranking_format import RERANK
from plm_jax.tasks.reranking import RerankTask, get_activation
from plm_jax.tasks.sentence_embedding import EmbeddingTask
from plm_jax.tasks.sequence_classification import SequenceTask
from plm_jax.tasks.tagging_format import TAGGING
from plm_jax.tasks.token_classification import TaggingTask


class TaskKind(NamedTuple):
  """A kind of task."""

  format: ExampleFormat
  """format of its examples"""
  task: type[Task]
  """class of the tasks; a published name of the kind is at the start of its docstring, before a
  colon"""
  recurrent: type[RecurrentTask] | None = None
  """class of the tasks on an ELMo; None: an ELMo does not learn this kind"""


KINDS: Mapping[str, TaskKind] = {kind.format.name: kind for kind in (
    TaskKind(example_formats.CLASSIFICATION, SequenceTask, RecurrentSequence),
    TaskKind(example_formats.REGRESSION, SequenceTask, RecurrentSequence),
    TaskKind(MULTILABEL, MultiLabelTask),
    TaskKind(TAGGING, TaggingTask, RecurrentTagging),
    TaskKind(example_formats.ANSWERS, AnswerTask),
    TaskKind(CHOICE, ChoiceTask),
    TaskKind(RERANK, RerankTask),
    TaskKind(example_formats.EMBEDDING, EmbeddingTask))}
if TYPE_CHECKING:
  Tasks = Task
else:
  Tasks = functools.reduce(operator.or_, (
      task for kind in KINDS.values() for task in (kind.task, kind.recurrent) if task),
      LateInteractionTask)
"""classes of tasks that a run may have: those of the kinds, and the other form of embeddings"""
HEADS = tuple(dict.fromkeys(kind.task.head for kind in KINDS.values()))
"""names of the heads of downstream tasks"""


def get_format(kind: str) -> ExampleFormat:
  """Return the example format of a kind of task."""
  return KINDS[kind].format


def describe_kinds() -> str:
  """List the kinds of task with their published names, for help texts."""
  described = []
  for name, kind in KINDS.items():
    title, colon, _ = (kind.task.__doc__ or '').partition('\n')[0].partition(':')
    described.append(f'{name} ({title[:1].lower()}{title[1:]})' if colon else name)
  return ', '.join(described)


def infer_task(imported: ImportedCheckpoint) -> Task | None:
  """Infer the task that another library's checkpoint was fine-tuned on, from its head.

  None if it has no head or several, for regression with several outputs, and for decoders, which
  other libraries give rows without a summary token. Class names tell whether tags are chunks.
  """
  heads = [name for name in ('label', 'tags', 'span', 'choice') if name in imported.heads]
  if len(heads) != 1:
    return None
  if imported.family not in INPUT_FORMATS or imported.config.kind in ('decoder', 'infilling'):
    return None
  family, labels = imported.family, imported.labels or ('LABEL_0', 'LABEL_1')
  temperature = float(imported.extra.get('calibration_temperature', 1.0))
  if heads == ['label']:
    activation = get_activation(imported.extra)
    kind = imported.extra.get('problem_type')
    if kind == 'multi_label_classification' or (activation == 'Sigmoid' and len(labels) > 1):
      return MultiLabelTask(
          family=family, labels=labels, temperature=temperature,
          thresholds=thresholds_of(labels, imported.extra.get('thresholds')))
    if len(labels) == 1 and activation:
      score = 'none' if activation == 'Identity' else 'sigmoid'
      return RerankTask(family=family, score=score, cut='longest')
    if kind == 'regression' and len(labels) > 1:
      return None
    if len(labels) == 1:
      measures = example_formats.REGRESSION.measures
      return SequenceTask(family=family, regression=True, measures=measures)
    return SequenceTask(family=family, labels=labels, temperature=temperature)
  if heads == ['tags']:
    chunks = is_scheme(labels) and any('-' in label for label in labels)
    return TaggingTask(
        family=family, labels=labels, metric='entities' if chunks else 'accuracy',
        temperature=temperature)
  if heads == ['choice']:
    return ChoiceTask(family=family)
  return AnswerTask(family=family).limit_length(imported.config.max_length or 512)
