"""What a model that has learned a task says of examples."""
from collections.abc import Callable, Sequence
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from plm_jax import sharding
from plm_jax.errors import ConfigError
from plm_jax.inference.loading import Trained
from plm_jax.tasks.batches import Batches, Shape
from plm_jax.tasks.contract import Task
from plm_jax.tasks.examples import Example
from plm_jax.tasks.feed import answered

LONGEST = 512
"""tokens in a row, of a model that takes any number"""


def task_of(trained: Trained) -> Task:
  """Returns the task that a model has learned. Raises ConfigError for one that has learned none."""
  if trained.task is None:
    raise ConfigError(f'{trained.source or "the model"} has learned no task: `python -m plm_jax finetune` teaches it '
                      f'one; it has the heads {", ".join(trained.heads) or "none"}')
  return trained.task


def predict(
    trained: Trained, examples: Sequence[Example], batch: int = 32, length: int = 0, pack: bool = False) -> list[Any]:
  """Answers examples, in their order.

  Args:
    trained: a model that has learned a task
    examples: of the task; labels are not read
    batch: examples that go through the model together
    length: tokens in a row at most; 0: as many as in training
    pack: several short examples share a row, apart from each other

  Returns:
    What the task says of each: `tasks.sequence.Classified`, `tasks.tagging.Tagged`, `tasks.answers.AnswerPrediction`.

  Raises:
    ConfigError: the model has learned no task or has no tokenizer, an example is not of the task.
  """
  return predictor(trained, batch, length, pack)(examples)


def predictor(
    trained: Trained, batch: int = 32, length: int = 0, pack: bool = False) -> Callable[[Sequence[Example]], list[Any]]:
  """Makes a function that answers examples as `predict` does, for many calls: parameters lie on the device once."""
  task, tokenizer = task_of(trained), trained.tokenizer
  if tokenizer is None:
    raise ConfigError('the model has no tokenizer, which makes rows of texts')
  length = length or trained.length or trained.model.max_length or LONGEST
  mesh = trained.mesh or sharding.make_mesh(sharding.MeshConfig(1))
  shape = Shape(batch, length, sharding.batch_split(mesh), max(tokenizer.vocab.pad, 0), pack and task.per != 'row')
  with jax.set_mesh(mesh):
    heads = dataclasses.replace(task, auxiliary=0.0).heads(trained.model)
    params = {name: jax.tree.map(jnp.asarray, trained.params[name])
              for name in ('backbone', *(f'heads_{head}' for head in heads)) if name in trained.params}
  outputs = functools.partial(compiled(task, trained.model, shape.pack), tokenizer.vocab)
  def answer(examples: Sequence[Example]) -> list[Any]:
    if not examples:
      return []
    features = task.features(examples, tokenizer, length)
    with jax.set_mesh(mesh):
      found, _ = answered(outputs, params, Batches(features, shape), mesh, task.per)
    return task.predict(examples, features, found)
  return answer


@functools.lru_cache(maxsize=8)
def compiled(task: Task, model: Any, pack: bool):
  """Makes a function(vocab, params, windows) -> (no losses, outputs of the head), compiled for each shape once."""
  module: Any = dataclasses.replace(task, auxiliary=0.0).build(model, pack)
  @functools.partial(jax.jit, static_argnums=0)
  def outputs(vocab, params, windows):
    found: Any = module.apply({'params': params}, task.corrupt(jax.random.key(0), windows, vocab))
    return {}, task.read_off(found)
  return outputs
