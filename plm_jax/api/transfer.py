"""Public API for fine-tuning: learn a task, then predict, tag or answer (see `api.models`).

A `model` argument is a model from `load` or `finetune`, or the folder of a run or of a checkpoint.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import os
from typing import TYPE_CHECKING, Any, overload

from plm_jax import conversion, validation
from plm_jax.api.models import Model, Path, as_list, ensure_loaded, load
from plm_jax.errors import Caller, ConfigError
from plm_jax.finetuning.predict import make_predictor, require_task
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.tasks.outputs import Tags, name_labels
from plm_jax.tasks.reranking import RerankTask

if TYPE_CHECKING:
  from plm_jax.config.run import Scale
  from plm_jax.tasks.extractive_qa import AnswerPrediction


def finetune(
    init: Path, task: str, train: str | Sequence[str] = (), dev: str | Sequence[str] = (),
    scale: Scale | None = None, **options: Any) -> LoadedModel:
  """Fine-tune a model on a task with published hyperparameters, or resume the run in its folder.

  >>> reviews = plm_jax.finetune('runs/bert_base-laptop', 'classification', 'reviews.tsv',
  ...                            scale='test', output='runs/reviews')
  24 training examples...
  >>> reviews.labels
  ('bad', 'good')

  Args:
    init: folder of a run or of a checkpoint, or ORG/NAME of the Hugging Face hub; '': a new model,
      whose size follows from the scale
    task: name of a task, such as 'sst2' (`plm_jax.tasks.registry`), or a kind of task:
      'classification', 'multilabel', 'regression', 'tagging', 'answers', 'choice', 'rerank',
      'embedding'
    train: training sets, files or tfds:NAME:SPLIT; none: those of the task
    dev: development sets
    scale: 'paper': as published; 'laptop': minutes on two cores; 'test': seconds; None: decided by
      the size of the model
    **options: fields of `plm_jax.config.run.FinetuneRun` to override; a section is a dictionary

  Returns:
    The model, with the parameters that were best on `dev`.

  Raises:
    ConfigError, SourceError: options or data that cannot be used, found before training; a row that
      is not an example is named with its file and line.
  """
  from plm_jax.config.run import FinetuneRun
  from plm_jax.recipes import finetune as recipes
  from plm_jax.runs import run as runs
  start = recipes.read_initial_model(os.fspath(init)) if init else recipes.InitialModel()
  config = recipes.recipe(task, start, scale, tuple(as_list(train)), tuple(as_list(dev)))
  given = list_given(options)
  config = recipes.follow_options(validation.with_overrides(config, options), given)
  if config.mode != 'train':
    raise ConfigError(f'a run trains with mode train, got {config.mode}: that is a command, '
                      '`python -m plm_jax finetune`')
  runs.run(config, caller=Caller(validation.field_paths(FinetuneRun).intersection(given)))
  return load(config.folder)


def list_given(options: Mapping[str, Any], section: str = '') -> list[str]:
  """List the fields of nested options, such as 'data.epochs'."""
  found = []
  for name, value in options.items():
    inner = list_given(value, f'{section}{name}.') if isinstance(value, Mapping) else []
    found += [section + name, *inner]
  return found


def predict(
    model: Model, texts: str | Sequence[Any], batch: int = 32, pack: bool = False) -> list[Any]:
  """Predict labels, values, choices, tags or answers with a fine-tuned model.

  >>> found, = plm_jax.predict('runs/reviews', 'A fine film.')
  >>> print(f'label {found.label}, probability {found.probability:.1%}')
  label ...d, probability ...%

  Args:
    model: a fine-tuned model
    texts: texts, or pairs of texts as tuples; for multiple choice (context, [choices]) or (context,
      question, [choices]); for question answering (question, context); or
      objects of `plm_jax.sources.row_readers.Example`
    batch: batch size
    pack: sequence packing: several short texts share a sequence without attending to each other

  Returns:
    For each text a `plm_jax.tasks.outputs.Label` (the class, its probability, the probabilities of
    all classes), `Labels`, `Value`, `Choice`, `Relevance` or `Tags`, or what `answer` returns.

  Raises:
    ConfigError: the model has learned no task, a text is empty, or an input has another number of
      texts.
  """
  return predict_texts(ensure_loaded(model), as_list(texts), batch, pack)


def tag(
    model: Model, texts: str | Sequence[str | Sequence[str]], batch: int = 32) -> list[Tags]:
  """Classify the words of texts (token classification), and decode entities from the tags.

  >>> found, = plm_jax.tag('runs/names', 'Angela Merkel came to Berlin.')
  >>> found.words
  ['Angela', 'Merkel', 'came', 'to', 'Berlin', '.']
  >>> [(entity.text, entity.type) for entity in found.entities]
  [('Angela Merkel', 'PER'), ('Berlin', 'LOC')]

  Args:
    model: a model that has been fine-tuned for token classification
    texts: texts, which are split into words as CoNLL's are (`plm_jax.unicode_words`), or lists of
      words
    batch: batch size

  Returns:
    For each text its words, their tags and probabilities, and its entities text[start:end]. The
    text of a list of words is the words joined by spaces.

  Raises:
    ConfigError: the model has not learned token classification, or a text is empty.
  """
  return predict_texts(load_for_task(model, 'tagging', 'tag'), as_list(texts), batch)


@overload
def answer(model: Model, question: str, context: str, batch: int = 32) -> AnswerPrediction:
  """Answer a question."""


@overload
def answer(
    model: Model, question: Sequence[str], context: str, batch: int = 32) -> list[AnswerPrediction]:
  """Answer questions."""


def answer(
    model: Model, question: str | Sequence[str], context: str, batch: int = 32
) -> AnswerPrediction | list[AnswerPrediction]:
  """Answer questions with spans of a context of any length (extractive question answering).

  >>> context = 'In the end Angela Merkel came to Berlin.'
  >>> found = plm_jax.answer('runs/answers', 'Who came?', context)
  >>> found.text, found.start, found.end
  ('Angela Merkel', 11, 24)

  Args:
    model: a model that has been fine-tuned for question answering
    question: a question, or a list of questions
    context: the text that contains the answer
    batch: batch size in windows of the context

  Returns:
    Text, place and probability of the answer, and the best candidates; the text is '' where the
    model predicts that there is no answer. A list for a list of questions.

  Raises:
    ConfigError: the model has not learned question answering, or a text is empty.
  """
  trained = load_for_task(model, 'answers', 'answer')
  if isinstance(question, str):
    return predict_texts(trained, [(question, context)], batch)[0]
  return predict_texts(trained, [(one, context) for one in question], batch)


def load_for_task(model: Model, kind: str, does: str) -> LoadedModel:
  """Load a model that has learned a kind of task.

  Args:
    model: the model, or its folder
    kind: 'tagging', 'answers', ...
    does: the verb for the error message

  Raises:
    ConfigError: the model has learned another kind of task, or none.
  """
  trained = ensure_loaded(model)
  task = require_task(trained)
  learned = task.example_kind
  is_score = learned == 'regression' and task.head == 'label'
  if kind == 'rerank' and is_score and trained.source and conversion.is_checkpoint(trained.source):
    # A reranker of another library; CrossEncoder of sentence-transformers reads it likewise.
    task = RerankTask(family=trained.family, score='sigmoid', cut='longest')
    return dataclasses.replace(trained, task=task)
  if learned != kind:
    raise ConfigError(f'{trained.source or "the model"} has learned {learned} and cannot {does}: '
                      f'it can {", ".join(trained.capabilities)}')
  return trained


def predict_texts(
    trained: LoadedModel, texts: Sequence[Any], batch: int, pack: bool = False) -> list[Any]:
  """Predict for inputs of any kind of task, with names in place of class numbers."""
  task = require_task(trained)
  if batch < 1:
    raise ConfigError(f'batch is at least 1, got {batch}')
  inputs = [task.example_format.parse_input(text, f'text {number}')
            for number, text in enumerate(texts, 1)]
  examples = [dataclasses.replace(one.example, label=None, answers=None) for one in inputs]
  predictions = make_predictor(trained, batch, pack=pack)(examples)
  return [name_labels(task, one.example, prediction, one.text, one.starts)
          for one, prediction in zip(inputs, predictions, strict=True)]
