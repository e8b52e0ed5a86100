"""Shows what a run will give its model: rows of text as they are cut, corrupted and asked, before anything is trained.

    python -m plm_jax inspect RECIPE [options of a run]
    python -m plm_jax inspect finetune --task=NAME [options of finetune]

Options of its own:
    --rows=N          rows to show, 2 unless it is said
    --step=N          whose batch is looked at, 0 unless it is said: such as the step at which a loss was not finite
    --page=FILE.html  a page besides, with a picture of who sees whom

Text, order, seed and corruption are those of the run that the same options make: its tokenizer is trained and its
records are prepared where there are none, and nothing is written to its folder. A generator that fills masks is that of
the newest checkpoint in the run's folder, or a fresh one.
"""
from collections.abc import Sequence
import dataclasses
import shutil
import sys
from typing import Any, NamedTuple

import jax
import numpy as np

from plm_jax import checked, config_file, errors, storage
from plm_jax import config as config_lib
from plm_jax.cli import drawing, finetune, lanes, options
from plm_jax.cli import run as runs
from plm_jax.cli.fine_tuned import tokenizer_for
from plm_jax.cli.lanes import Reader, Row
from plm_jax.config import ConfigError, Experiment, FineTuning, Run
from plm_jax.recipes import find
from plm_jax.recipes.finetune import __doc__ as about_finetune
from plm_jax.sharding import MeshConfig, make_mesh
from plm_jax.storage import reachable
from plm_jax.tasks.setup import settled
from plm_jax.tokenizers import Tokenizer
from plm_jax.training.checkpoint import of_run, restore_params
from plm_jax.training.feed import TextFeed
from plm_jax.training.learner import make_learner
from plm_jax.training.step import Learner, corrupted, sharded_init
from plm_jax.training.warm_start import with_teacher

OWN = {'rows': ('2', 1), 'step': ('0', 0)}  # options with their defaults, and the least that they take


class Inspected(NamedTuple):
  """What was looked at."""

  config: Run
  rows: Sequence[Row]
  notes: Sequence[str]


def start(args: Sequence[str]) -> None:
  """Shows what the arguments name; exits with 1 and a message on bad input."""
  if not args or (args[0] in ('-h', '--help')):
    print(__doc__)
    return
  with errors.shown(), errors.options_under('--data.prepare.'):
    numbers, rest = {}, list(args)
    for name, (default, least) in OWN.items():
      given, rest = options.taken(f'--{name}', rest)
      numbers[name] = whole(name, given or default, least)
    page, rest = options.taken('--page', rest)
    reachable.check_reachable({page: 'write'})
    found = inspected(parse(rest), **numbers)
    for line in found.notes:
      print(line)
    width = shutil.get_terminal_size((100, 24)).columns
    for line in drawing.lines(found.rows, width, sys.stdout.isatty()):
      print(line)
    if page:
      storage.write(page, drawing.page(f'{found.config.name}, step {numbers["step"]:,}', found.notes, found.rows))
      print(f'\npage: {page}')


def whole(name: str, given: str, least: int) -> int:
  """Reads a whole number. Raises ConfigError."""
  if not given.isdecimal() or not least <= int(given) < 1 << 31:
    raise ConfigError(f'--{name} is a whole number, {least} or more, got {checked.shortened(given)}')
  return int(given)


def parse(args: Sequence[str]) -> Run:
  """Returns the run that the arguments name. Raises ConfigError."""
  name, *rest = args
  if name == 'finetune' or name.startswith('-'):
    return finetune.parse('', rest if name == 'finetune' else args, about_finetune or '')[0]
  size, rest = options.taken('--size', rest)
  return runs.parse(find(name, size), rest)


def inspected(config: Run, rows: int, step: int) -> Inspected:
  """Makes the first rows of the batch of a step as the run would, on one device."""
  config_lib.check(config)
  reachable.check_reachable(dict.fromkeys(reachable.paths_in(config_file.to_json(config)), 'read'))
  runs.use_cache()
  config = with_teacher(dataclasses.replace(config, mesh=MeshConfig(1)))
  if isinstance(config, FineTuning):
    return labelled(config, rows, step)
  return text(runs.of_text(config), rows, step)


def text(config: Experiment, rows: int, step: int) -> Inspected:
  """Looks at a run that learns from text."""
  folders, tokenizer = runs.corpora(config)
  check_step(step, config.train.steps)
  learner = make_learner(config, tokenizer.vocab)
  feed = TextFeed(config, folders, tokenizer, make_mesh(config.mesh))
  windows = feed.windows(step)
  batch = made(learner, windows, step)
  size = len(windows['tokens'])
  notes = [f'{config.name}: the first {min(rows, size)} of {size:,} rows of step {step:,}']
  filled = None
  windows, batch = (first(some, rows) for some in (windows, batch))
  if 'draw' in batch:
    filled, said = generated(config, learner, batch)
    notes.append(said)
  elif learner.carry is not None and step:
    notes.append('rows begin as those of a first batch: what the batch before hands over is not known')
  reader = Reader(tokenizer, config.model, config.objective, config.data.packed)
  return Inspected(config, reader.rows(windows, batch, filled), notes)


def labelled(config: FineTuning, rows: int, step: int) -> Inspected:
  """Looks at a run that learns a task."""
  tokenizer: Tokenizer = tokenizer_for(config)
  ready = settled(config, tokenizer)
  config = ready.config
  check_step(step, config.train.steps)
  feed = ready.open_feed(make_mesh(config.mesh))
  windows, placed = feed.batches.batch(step)
  batch = made(make_learner(config, tokenizer.vocab), windows, step)
  size = len(batch['tokens'])
  reader = Reader(tokenizer, config.model, config.objective, config.data.packed)
  shown = reader.rows(*(first(some, rows) for some in (windows, batch)))
  features = feed.batches.features
  for number, row in enumerate(shown):
    own = np.unique(features.example[placed.number[placed.row // features.group == number]])
    texts = [' | '.join(filter(None, (ready.train.examples[n].texts))) for n in own]
    where = ', '.join(ready.train.examples[n].where for n in own)
    shown[number] = row._replace(title=f'{row.title}: {where}', facts={
        **({'text': ' / '.join(texts)} if texts else {}), **row.facts})
  return Inspected(config, shown, [
      f'{config.name}: the first {min(rows, size)} of {size:,} rows of step {step:,} of {config.train.steps:,}'])


def check_step(step: int, steps: int) -> None:
  """Raises ConfigError for a step that the run does not have."""
  if step >= steps:
    raise ConfigError(f'--step is {step:,}, and the run has the steps 0 to {steps - 1:,}')


def made(learner: Learner, windows: dict[str, Any], step: int) -> dict[str, Any]:
  """Makes the batch of windows, as a training step does."""
  make = jax.jit(lambda given: corrupted(learner, given, step))
  return jax.device_get(lanes.flat(make(windows)))


def first(arrays: dict[str, Any], rows: int) -> dict[str, Any]:
  """Takes the first rows of arrays [B, ...]."""
  return {name: x[:rows] for name, x in arrays.items()}


def generated(config: Experiment, learner: Learner, batch: dict[str, Any]) -> tuple[tuple[Any, Any], str]:
  """Has the generator fill the masks -> (tokens that the discriminator reads, which were replaced), and who filled."""
  mesh = make_mesh(config.mesh)
  with jax.set_mesh(mesh):
    make, shapes, layout = sharded_init(learner, config.objective.shapes(1, config.train.phases[0].length), mesh)
    folder = storage.path_of(config.folder) / 'checkpoints'
    if folder.exists() and any(folder.iterdir()):
      params = restore_params(of_run(config.folder), shapes.params, layout.params)
      said = f'masks are filled by the generator of the newest checkpoint in {config.folder}'
    else:
      params, said = make().params, 'masks are filled by a generator that has learned nothing yet'
    outputs: Any = jax.jit(lambda params, batch: learner.model.apply({'params': params}, batch))(params, batch)
  return jax.device_get((outputs['filled'], outputs['replaced'])), said
