"""Analysis of the first development set after fine-tuning: tuned fields, calibration and errors."""
from collections.abc import Container, Sequence
import json
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element

from etils import epath
import jax

from plm_jax import storage
from plm_jax.finetuning.predict import predict
from plm_jax.finetuning.setup import ResolvedRun
from plm_jax.loading import loaded_model
from plm_jax.metrics.calibration import calibration_error
from plm_jax.report import error_analysis
from plm_jax.report.baselines import describe_collapse, is_constant
from plm_jax.sources.row_readers import Example
from plm_jax.tasks.contract import CalibratedTask, Task
from plm_jax.tasks.example_formats import InputExample, Predictions
from plm_jax.tasks.outputs import name_labels, prediction_fields

ERRORS_FILE = 'errors.jsonl'
CONFUSION_FILE = 'confusion.tsv'
MAX_SHOWN_VALUES = 8
"""values of a tuned field that the summary lists"""


class DevelopmentAnalysis(NamedTuple):
  """What is shown of a development set."""

  rows: dict[str, str]
  """rows of the summary by name"""
  sections: list[Element]
  """sections of the report"""
  hints: Sequence[str] = ()


def analyze_development(ready: ResolvedRun, given: Container[str] = ()) -> DevelopmentAnalysis:
  """Choose what the task chooses on the first development set, and write its errors into the run.

  The files are decision.json, if something is chosen, errors.jsonl, the mistakes with the most
  confident first, and confusion.tsv for classes. All by the best parameters. Nothing happens
  without a development set, or where several hosts share the model.

  Args:
    ready: the run.
    given: fields that the user has set, which no hint is about.
  """
  if not ready.dev or jax.process_count() > 1:
    return DevelopmentAnalysis({}, [])
  folder = ready.config.folder
  examples = next(iter(ready.dev.values())).examples
  trained = loaded_model.load_model(folder)
  predictions = predict(trained, examples)
  task: Any = trained.task
  rows = calibration_rows(task, examples, predictions)
  hints = describe_collapse(task, examples, predictions, given)
  fields = {}
  if not is_constant(examples, predictions):
    fields = task.fit_to_development(examples, predictions)
  elif task.fits_development:
    hints.append('nothing was tuned on the development set, as there is nothing to choose from '
                 'constant outputs')
  if fields:
    loaded_model.write_decision(folder, fields)
    trained = loaded_model.load_model(folder)
    task, predictions = trained.task, predict(trained, examples)
    rows |= describe_fields(fields)
    write = ready.config.training_objective.reporting.format_metric
    for figure, value in task.scores(examples, predictions).items():
      rows[f'Development {figure.replace("_", " ")}, tuned'] = write(figure, value)
    for name, value in calibration_rows(task, examples, predictions).items():
      rows[f'{name}, tuned'] = value
  found = error_analysis.labeled_pairs(examples, predictions)
  write_errors(storage.resolve_path(folder), task, found)
  return DevelopmentAnalysis(rows, error_analysis.error_sections(task, found), hints)


def calibration_rows(
    task: Task, examples: Sequence[Example], predictions: Sequence[Any]) -> dict[str, str]:
  """Return the expected calibration error as a row of the summary, if there are probabilities."""
  bins = task.calibration_bins(examples, predictions) if isinstance(task, CalibratedTask) else []
  return {'Calibration error (ECE)': f'{calibration_error(bins):.2f}%'} if bins else {}


def describe_fields(fields: dict[str, Any]) -> dict[str, str]:
  """Return tuned fields as rows of the summary."""
  rows = {}
  for name, value in fields.items():
    values = value if isinstance(value, tuple | list) else (value,)
    if len(values) > MAX_SHOWN_VALUES:
      shown = f'{min(values):.3g} to {max(values):.3g}, in {loaded_model.DECISION_FILE}'
    else:
      shown = ', '.join(f'{one:.3g}' for one in values)
    rows[f'Tuned {name}'] = shown
  return rows


def write_errors(folder: epath.Path, task: Task, found: Predictions) -> None:
  """Write the mistakes, and the confusion matrix of classes.

  Args:
    folder: of the run.
    task: the task.
    found: labeled examples with their predictions.
  """
  if not found:
    return
  form, lines = task.example_format, []
  for example, prediction in form.rank_mistakes(task, found):
    named = name_labels(task, example, prediction)
    fields = prediction_fields(task, InputExample(example), named)
    place = {'where': example.where} if example.where else {}
    lines.append(json.dumps(fields | place, ensure_ascii=False) + '\n')
  storage.write(folder / ERRORS_FILE, ''.join(lines))
  counts = form.count_confusion(task, found)
  if counts is not None:
    rows = ['\t'.join(['true \\ predicted', *task.labels])]
    for name, row in zip(task.labels, counts.tolist(), strict=True):
      rows.append('\t'.join([name, *map(str, row)]))
    storage.write(folder / CONFUSION_FILE, '\n'.join(rows) + '\n')
