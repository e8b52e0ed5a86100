"""Build the first batches of a run without training, for `inspect`."""
from collections.abc import Sequence
import dataclasses
from typing import Any, NamedTuple

import jax
import numpy as np

from plm_jax import storage
from plm_jax.checkpoints.restore import find_run_checkpoints, restore_params
from plm_jax.config import run as config_lib
from plm_jax.config.run import ConfigError, FinetuneRun, PretrainRun, RunConfig
from plm_jax.errors import name_field
from plm_jax.finetuning.setup import resolve_run
from plm_jax.objectives import batch_view
from plm_jax.objectives.batch_view import BatchReader, BatchRow
from plm_jax.runs import preflight
from plm_jax.runs import run as runs
from plm_jax.runs.finetune import load_or_train_tokenizer
from plm_jax.runs.pretrain import prepare_corpora
from plm_jax.sharding import MeshConfig, make_mesh
from plm_jax.storage import bucket_check, compilation_cache
from plm_jax.tokenizers import Tokenizer
from plm_jax.training.feed import TextFeed
from plm_jax.training.learner import make_learner, phase_learner
from plm_jax.training.step import Learner, corrupt_windows, make_sharded_init
from plm_jax.training.train import phase_at
from plm_jax.training.warm_start import resolve_models


class Inspection(NamedTuple):
  """The first sequences of a batch, as a model reads them."""

  config: RunConfig
  rows: Sequence[BatchRow]
  notes: Sequence[str]


def inspect_run(config: RunConfig, rows: int, step: int) -> Inspection:
  """Build the first sequences of the batch of a step, as the run would, on one device."""
  config_lib.check(config)
  bucket_check.check_reachable(preflight.bucket_uses(config, is_written=False))
  compilation_cache.use_compilation_cache()
  config = resolve_models(dataclasses.replace(config, mesh=MeshConfig(1)))
  if isinstance(config, FinetuneRun):
    return inspect_finetuning(config, rows, step)
  return inspect_pretraining(runs.as_pretrain_run(config), rows, step)


def inspect_pretraining(config: PretrainRun, rows: int, step: int) -> Inspection:
  """Build sequences of a pre-training run."""
  folders, tokenizer = prepare_corpora(config)
  check_step(step, config.train.steps)
  learner = make_learner(config, tokenizer.vocab)
  learner = phase_learner(config, learner, phase_at(config, step + 1))
  feed = TextFeed(config, folders, tokenizer, make_mesh(config.mesh))
  windows = feed.read_batch(step)
  size = len(windows['tokens'])
  notes = [f'{config.name}: the first {min(rows, size)} of {size:,} rows of step {step:,}']
  batch = first_rows(make_batch(learner, windows, step), rows)
  filled = None
  if 'draw' in batch:
    filled, note = fill_with_generator(config, learner, batch)
    notes.append(note)
  elif learner.carry is not None and step:
    notes.append('rows begin as in the first batch: the state from the batch before is not known')
  elif config.objective.step_traits.keeps_statistics and step:
    notes.append('masks are those of a new run: the statistics of adaptive masking are not read')
  reader = BatchReader(tokenizer, config.model, config.objective, config.data.several_texts)
  return Inspection(config, reader.rows(first_rows(windows, rows), batch, filled), notes)


def inspect_finetuning(config: FinetuneRun, rows: int, step: int) -> Inspection:
  """Build sequences of a fine-tuning run, each with the texts of its examples."""
  tokenizer: Tokenizer = load_or_train_tokenizer(config)
  ready = resolve_run(config, tokenizer)
  config = ready.config
  check_step(step, config.train.steps)
  feed = ready.open_feed(make_mesh(config.mesh))
  windows, placed = feed.batches.batch(step)
  batch = make_batch(make_learner(config, tokenizer.vocab), windows, step)
  size = len(batch['tokens'])
  reader = BatchReader(
      tokenizer, config.model, config.training_objective, config.data.several_texts,
      config.objective.labels)
  shown = reader.rows(first_rows(windows, rows), first_rows(batch, rows))
  features = feed.batches.features
  for number, row in enumerate(shown):
    in_row = placed.row // features.group == number
    numbers = np.unique(features.example[placed.number[in_row]])
    examples = [ready.train.examples[n] for n in numbers]
    where = ', '.join(example.where for example in examples)
    facts = {}
    if examples:
      facts['text'] = ' / '.join(' | '.join(filter(None, one.texts)) for one in examples)
    shown[number] = row._replace(title=f'{row.title}: {where}', facts={**facts, **row.facts})
  note = (f'{config.name}: the first {min(rows, size)} of {size:,} rows of step {step:,} of '
          f'{config.train.steps:,}')
  return Inspection(config, shown, [*ready.train.report.lines(), note])


def check_step(step: int, steps: int) -> None:
  """Raise ConfigError for a step that the run does not have."""
  if step >= steps:
    raise ConfigError(f'{name_field("step")} is {step:,}, and the run has the steps 0 to '
                      f'{steps - 1:,}')


def make_batch(learner: Learner, windows: dict[str, Any], step: int) -> dict[str, Any]:
  """Make a batch from windows as a training step does: mask or corrupt them, and add labels."""
  make = jax.jit(lambda given: corrupt_windows(learner, given, step))
  return jax.device_get(batch_view.flat_arrays(make(windows)))


def first_rows(arrays: dict[str, Any], rows: int) -> dict[str, Any]:
  """Return the first rows of arrays [batch, ...]."""
  return {name: x[:rows] for name, x in arrays.items()}


def fill_with_generator(
    config: PretrainRun, learner: Learner, batch: dict[str, Any]) -> tuple[tuple[Any, Any], str]:
  """Fill masks with the generator of replaced-token detection (ELECTRA).

  Returns:
    The input of the discriminator and which of its tokens were replaced, both [batch, length]; and
    a note on which generator it was.
  """
  mesh = make_mesh(config.mesh)
  with jax.set_mesh(mesh):
    windows = config.objective.shapes(1, config.train.phases[0].length)
    make, shapes, layout = make_sharded_init(learner, windows, mesh)
    folder = storage.resolve_path(config.folder) / 'checkpoints'
    if folder.exists() and any(folder.iterdir()):
      params = restore_params(
          find_run_checkpoints(config.folder), shapes.params, layout.params)
      note = f'masks are filled by the generator of the newest checkpoint in {config.folder}'
    else:
      params = make().params
      note = 'masks are filled by a generator that has learned nothing yet'
    apply = jax.jit(lambda params, batch: learner.model.apply({'params': params}, batch))
    outputs: Any = apply(params, batch)
  return jax.device_get((outputs['filled'], outputs['replaced'])), note
