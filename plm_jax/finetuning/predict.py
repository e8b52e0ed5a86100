"""Predict examples with a fine-tuned model."""
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
from typing import Any

import jax
from jax.experimental import multihost_utils
import numpy as np

from plm_jax import environment, progress, sharding, truncation
from plm_jax.data.bucketing import next_power_of_two
from plm_jax.errors import ConfigError, check_finite
from plm_jax.loading.loaded_model import TASK_HEADS, LoadedModel
from plm_jax.sources.row_readers import Example
from plm_jax.tasks.batches import BatchShape, FeatureBatches, delay_items, gather_outputs
from plm_jax.tasks.contract import DEFAULT_ROW_LENGTH, OutputUnit, Task
from plm_jax.tasks.objective import TaskObjective
from plm_jax.training import run_metrics
from plm_jax.truncation import Truncation


def require_task(trained: LoadedModel) -> Task:
  """Return the task of a fine-tuned model. Raises ConfigError for a model without one."""
  name = trained.source or 'the model'
  heads = [head for head in TASK_HEADS if head in trained.heads]
  if trained.task is None and heads:
    raise ConfigError(
        f'{name} has a head ({", ".join(heads)}) of another library, with which plm_jax does not '
        'predict: that of a decoder, one of several heads, or regression with several outputs per '
        f'text. `python -m plm_jax finetune {environment.option("init")}` trains a new head on the '
        'same model')
  if trained.task is None:
    raise ConfigError(
        f'{name} was not fine-tuned on a task: `python -m plm_jax finetune` does that; its heads '
        f'are {", ".join(trained.heads) or "none"}')
  return trained.task


def predict(
    trained: LoadedModel, examples: Sequence[Example], batch: int = 32, length: int = 0,
    pack: bool = False) -> list[Any]:
  """Predict examples, in their order.

  Args:
    trained: a fine-tuned model.
    examples: of its task; labels are not read.
    batch: batch size.
    length: maximum tokens per row; 0: as in training.
    pack: pack several short examples into a row, separated by the attention mask.

  Returns:
    The task's predictions, such as `tasks.sequence_classification.ClassPrediction` or
    `tasks.outputs.Value`.

  Raises:
    ConfigError: the model has no task or no tokenizer, or an example does not fit the task.
  """
  return make_predictor(trained, batch, length, pack)(examples)


def make_predictor(
    trained: LoadedModel, batch: int = 32, length: int = 0, pack: bool = False
) -> Callable[[Sequence[Example]], list[Any]]:
  """Make a function that predicts as `predict` does; parameters are copied to the device once."""
  task, tokenizer = require_task(trained), trained.tokenizer
  if tokenizer is None:
    raise ConfigError('the model has no tokenizer, which is needed to encode texts')
  length = length or trained.length or trained.model.max_length or DEFAULT_ROW_LENGTH
  mesh = trained.mesh or sharding.make_mesh(sharding.MeshConfig(1))
  pack = pack and task.output_unit != 'row'
  pad = max(tokenizer.vocab.pad, 0)
  shape = BatchShape(batch, length, sharding.count_batch_shards(mesh), pad, pack)
  parts = ['backbone'] + [f'heads_{head}' for head in task.heads(trained.model)]
  params = trained.device_params(*parts)
  outputs = functools.partial(
      compute_head_outputs, task, trained.model, shape.pack, tokenizer.vocab)
  def predict_examples(examples: Sequence[Example]) -> list[Any]:
    if not examples:
      return []
    features = task.features(examples, tokenizer, length)
    truncation.report(Truncation(
        len(examples), features.clipped, len(features.tokens.flat) + features.lost, features.lost))
    # A call with few examples has few rows, not `batch` of them.
    rows = min(batch, next_power_of_two(len(features) // features.group))
    batches = FeatureBatches(features, dataclasses.replace(shape, batch=rows))
    with jax.set_mesh(mesh), progress.progress_bar(task.row_unit, batches.units) as done:
      found, _ = compute_outputs(outputs, params, batches, mesh, task.output_unit, done.update)
    return task.predict(examples, features, found)
  return predict_examples


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def compute_head_outputs(
    task: Task, model: Any, pack: bool, vocab: Any, params: Any, windows: Any) -> tuple[dict, Any]:
  """Compute the outputs of the task's head for a batch -> (no losses, outputs)."""
  objective = TaskObjective(dataclasses.replace(task, auxiliary=0.0))
  module: Any = objective.build(model, pack)
  batch = objective.corrupt(jax.random.key(0), windows, vocab)
  found: Any = module.apply({'params': params}, batch)
  return {}, task.prediction_inputs(found)


def compute_outputs(
    outputs: Callable[[Any, Any], Any], params: Any, batches: FeatureBatches, mesh,
    unit: OutputUnit, advance: Callable[[int], None] = lambda units: None
) -> tuple[list[np.ndarray], dict[str, float]]:
  """Run a model on all features -> (outputs of each feature in order, mean losses).

  Args:
    outputs: (params, windows) -> (losses, outputs).
    params: parameters of the model.
    batches: features.
    mesh: of devices.
    unit: unit of the outputs, see `Task.output_unit`.
    advance: called with the number of finished units, for a progress bar.

  Raises:
    NotFiniteError: an output is not finite.
  """
  found: list[Any] = [None] * len(batches.features)
  sizes, losses = batches.features.tokens.lengths, []
  computed = ((outputs(params, put_on_mesh(windows, mesh)), placement)
              for windows, placement in batches.iterate_sorted())
  for (pairs, values), placement in delay_items(computed):
    losses.append(jax.device_get(pairs))
    if jax.process_count() > 1:
      values = multihost_utils.process_allgather(values, tiled=True)
    else:
      values = jax.device_get(values)
    numbers = placement.number
    own = gather_outputs(np.asarray(values), placement, sizes[numbers], unit)
    for number, value in zip(numbers, own, strict=True):
      found[number] = check_finite(value)
    advance(len(numbers) // batches.features.group)
  return found, run_metrics.combine_metrics(losses)


def put_on_mesh(windows: Mapping[str, np.ndarray], mesh) -> Any:
  """Put a batch that every host has as a whole on the devices of the mesh."""
  rows = len(windows['tokens'])
  own = sharding.host_rows(rows, mesh)
  return sharding.shard_batch(jax.tree.map(lambda x: x[own], dict(windows)), rows, mesh)
