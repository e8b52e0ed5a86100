"""The door to what was fine-tuned: a model learns a task, and is asked. The rest of the front door is `plm_jax.api`.

A `model` is what `load` or `finetune` gave, or the folder of a run or of a checkpoint.
"""
from collections.abc import Sequence
import dataclasses
import os
from typing import Any, overload

from plm_jax import checked
from plm_jax.api import Model, Path, load, opened
from plm_jax.cli import run as runs
from plm_jax.config import ConfigError, Scale
from plm_jax.inference.loading import Trained, described
from plm_jax.recipes import finetune as recipes
from plm_jax.tasks.answers import AnswerPrediction
from plm_jax.tasks.asked import Asked, asked
from plm_jax.tasks.predict import predictor, task_of
from plm_jax.tasks.results import Tags, named


def finetune(init: Path, task: str, train: str | Sequence[str] = (), dev: str | Sequence[str] = (),
             scale: Scale = 'paper', **options: Any) -> Trained:
  """Teaches a model a task, with the settings that its authors published; or goes on with the run in its folder.

  >>> reviews = plm_jax.finetune('runs/bert_base-laptop', 'classification', 'reviews.tsv', scale='test',
  ...                            output='runs/reviews')
  24 training examples...
  >>> reviews.labels
  ('bad', 'good')

  Args:
    init: folder of a run or of a checkpoint; '': a new model, as small as the scale is
    task: a task by name, such as 'sst2' (`plm_jax.tasks.table`), or its kind: 'classification', 'regression',
      'tagging', 'answers', 'choice'
    train: sources that are learned from, files or tfds:NAME:SPLIT; none: the task's own
    dev: sources that it is measured on
    scale: as published, for minutes on two cores, or for seconds
    **options: fields of `plm_jax.config.FineTuning` that are to be otherwise; of a section, a dictionary

  Returns:
    The model, with the parameters that were best on `dev`.

  Raises:
    ConfigError, SourceError: what cannot be learned, before anything is; a row that is no example, with file and line.
  """
  start = recipes.Start(os.fspath(init), *described(init)) if init else recipes.Start()
  sources = [(some,) if isinstance(some, str) else tuple(some) for some in (train, dev)]
  config = checked.changed(recipes.recipe(task, start, scale, *sources), options)
  if config.mode != 'train':
    raise ConfigError(f'a run trains with mode train, got {config.mode}: that is a command, `python -m plm_jax '
                      'finetune`')
  runs.run(config)
  return load(config.folder)


def predict(model: Model, texts: str | Sequence[Any], batch: int = 32, pack: bool = False) -> list[Any]:
  """Says what a model has learned to say of texts.

  >>> found, = plm_jax.predict('runs/reviews', 'A fine film.')
  >>> found.label in ('bad', 'good'), 0.5 <= found.probability <= 1.0
  (True, True)

  Args:
    model: one that has learned a task
    texts: a text each, or a pair of texts as a tuple; of a choice (context, [choices]) or (context, question,
      [choices]); of answers (question, context); or `plm_jax.tasks.examples.Example`s
    batch: texts that go through the model together
    pack: several short texts share a row, apart from each other

  Returns:
    For each `plm_jax.tasks.results.Label` (its name, its probability, those of all), `Value`, `Choice` or `Tags`, or
    what `answer` gives.

  Raises:
    ConfigError: the model has learned no task, a text that is empty, or texts of another number.
  """
  return replies(opened(model), [texts] if isinstance(texts, str) else texts, batch, pack)


def tag(model: Model, texts: str | Sequence[str | Sequence[str]], batch: int = 32) -> list[Tags]:
  """Tags the words of texts, and finds the entities that the tags stand for.

  >>> found, = plm_jax.tag('runs/names', 'Angela Merkel came to Berlin.')
  >>> found.words
  ['Angela', 'Merkel', 'came', 'to', 'Berlin', '.']
  >>> [(entity.text, entity.type) for entity in found.entities]
  [('Angela Merkel', 'PER'), ('Berlin', 'LOC')]

  Args:
    model: one that has learned to tag
    texts: texts, which are divided into words as CoNLL's are (`plm_jax.tasks.words`), or lists of words
    batch: texts that go through the model together

  Returns:
    For each its words, their tags and probabilities, and its entities: text[start:end], of a list of words joined by
    spaces.

  Raises:
    ConfigError: the model has not learned to tag, a text that is empty.
  """
  return replies(able(model, 'tagging', 'tag'), [texts] if isinstance(texts, str) else texts, batch)


@overload
def answer(model: Model, question: str, context: str, batch: int = 32) -> AnswerPrediction:
  """Answers a question."""


@overload
def answer(model: Model, question: Sequence[str], context: str, batch: int = 32) -> list[AnswerPrediction]:
  """Answers questions."""


def answer(model: Model, question: str | Sequence[str], context: str, batch: int = 32,
           ) -> AnswerPrediction | list[AnswerPrediction]:
  """Answers a question, or several, by a part of a context of any length.

  >>> found = plm_jax.answer('runs/answers', 'Who came?', 'In the end Angela Merkel came to Berlin.')
  >>> found.text, found.start, found.end
  ('Angela Merkel', 11, 24)

  Args:
    model: one that has learned to answer
    question: a question, or a list of them
    context: what the answer is looked for in
    batch: windows of the context that go through the model together

  Returns:
    Text, place and probability, and the best candidates; where the model says that there is no answer, the text is ''.
    For a list, a list.

  Raises:
    ConfigError: the model has not learned to answer, a text that is empty.
  """
  questions = [question] if isinstance(question, str) else question
  found = replies(able(model, 'answers', 'answer'), [(one, context) for one in questions], batch)
  return found[0] if isinstance(question, str) else found


def able(model: Model, kind: str, does: str) -> Trained:
  """Loads a model that has learned a kind of task. Raises ConfigError for another."""
  trained = opened(model)
  if task_of(trained).reads != kind:
    raise ConfigError(f'{trained.source or "the model"} has learned {task_of(trained).reads} and cannot {does}: it '
                      f'can {", ".join(trained.can)}')
  return trained


def replies(trained: Trained, texts: Sequence[Any], batch: int, pack: bool = False) -> list[Any]:
  """Asks a model texts -> what it says, by names."""
  task = task_of(trained)
  if batch < 1:
    raise ConfigError(f'batch is at least 1, got {batch}')
  every: list[Asked] = [asked(task.reads, text, f'text {number}') for number, text in enumerate(texts, 1)]
  examples = [dataclasses.replace(one.example, label=None, answers=None) for one in every]
  found = predictor(trained, batch, pack=pack)(examples)
  return [named(task, one.example, said, one.text, one.starts) for one, said in zip(every, found, strict=True)]
