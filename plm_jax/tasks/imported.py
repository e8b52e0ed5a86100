"""The task that another library's checkpoint has learned, as far as its head tells."""
import re

from plm_jax.conversion import Imported
from plm_jax.tasks.answers import AnswerTask
from plm_jax.tasks.choice import ChoiceTask
from plm_jax.tasks.contract import Task
from plm_jax.tasks.forms import FORMS
from plm_jax.tasks.sequence import SequenceTask
from plm_jax.tasks.tagging import TaggingTask

NUMBER = ('pearson', 'spearman')  # measures of a regression


def task_of(imported: Imported) -> Task | None:
  """Returns the task of the one head that a checkpoint has; None where it has none, or several.

  None too for several labels at once, which no task has, and for decoders, whose rows are other ones elsewhere: without
  a token that stands for them. Which classes are tags of chunks is seen from their names.
  """
  found = [name for name in ('label', 'tags', 'span', 'choice') if name in imported.heads]
  several = imported.extra.get('problem_type') == 'multi_label_classification'
  if len(found) != 1 or several or imported.family not in FORMS or imported.config.kind in ('decoder', 'infilling'):
    return None
  family, labels = imported.family, imported.labels or ('LABEL_0', 'LABEL_1')
  if found == ['label']:
    number = len(labels) == 1
    return SequenceTask(family=family, labels=() if number else labels, regression=number,
                        measures=NUMBER if number else ('accuracy',))
  if found == ['tags']:
    chunks = all(re.fullmatch('O|[BIES]-.+', label) for label in labels)
    return TaggingTask(family=family, labels=labels, measures='entities' if chunks else 'accuracy')
  if found == ['choice']:
    return ChoiceTask(family=family)
  third = (imported.config.max_length or 512) // 3
  return AnswerTask(family=family, stride=min(AnswerTask.stride, third),
                    question_length=min(AnswerTask.question_length, third))
