"""What is checked of a run before text is prepared, and before the first step."""
from collections.abc import Callable
import math
import os
from typing import NamedTuple

from etils import epath
import jax
from jax.sharding import Mesh
import numpy as np

from plm_jax import recipes, storage
from plm_jax.architectures.elmo import ElmoConfig
from plm_jax.config import ConfigError, Experiment, Run
from plm_jax.data.records import read_meta
from plm_jax.inference import fill_mask
from plm_jax.objectives.glm import BlankInfilling
from plm_jax.sharding import check_batch, make_mesh
from plm_jax.tokenizers import Tokenizer, load
from plm_jax.training.checkpoint import CheckpointError, check_room
from plm_jax.training.learner import make_learner, shapes, stand_in


def run_tokenizer(config: Run) -> Tokenizer:
  """Loads the tokenizer of the run in config.folder. Raises CheckpointError where there is no run."""
  folder = storage.path_of(config.folder)
  if not (folder / 'config.json').exists():
    raise CheckpointError(f'{folder} is not the folder of a run: there is nothing to evaluate')
  return load(folder / 'tokenizer')


def made_with(tokenizer: Tokenizer, folder: epath.Path) -> bool:
  """Tells whether a folder holds records of this tokenizer."""
  return (folder / 'records.json').exists() and read_meta(folder).tokenizer == tokenizer.hash


def check_kind(config: Experiment, folder: epath.Path, tokenizer: Tokenizer) -> None:
  """Raises ConfigError for records of another kind of tokenizer than the run is for, unless it brings one."""
  text, kind = config.data.prepare, tokenizer.kind.replace('_', '-')
  wanted = text.kind.partition('-')[0] if text.kind.startswith('sentencepiece') else text.kind
  if text.tokenizer or config.warm_start or kind.startswith(wanted):
    return
  recipe = config.name if config.name in recipes.every() else 'RECIPE'
  insist = f'--data.prepare.kind={"sentencepiece-unigram" if kind.startswith("sentencepiece") else kind}'
  raise ConfigError(
      f'{folder} holds records of a {kind} tokenizer, and {config.name} is for {text.kind}: '
      f'`python -m plm_jax prepare TEXT RECORDS --for={recipe}` makes such. To train on these all the same, give '
      f'{insist} --data.prepare.layout=bert')


def check_prompts(config: Experiment, tokenizer: Tokenizer) -> None:
  """Raises ConfigError for prompts that the finished model could not be asked."""
  model, objective = config.model, config.objective
  for prompt in config.prompts:
    if isinstance(objective, BlankInfilling):
      continue  # `config.check` has found a blank
    if objective.blanks(model):
      fill_mask.encode(model, tokenizer, prompt)
    elif model.max_length and (size := len(tokenizer.encode(prompt))) > model.max_length // 2:
      raise ConfigError(f'--prompts {prompt[:40]!r}... has {size} tokens, and {model.max_length // 2} at most leave '
                        f'room for an answer in the {model.max_length} of the model')


def finished(source: str) -> epath.Path | None:
  """Returns the folder of the finished records that a corpus is; None where it is text."""
  folder = epath.Path(source if '://' in source else os.path.expanduser(source))
  return folder if (folder / 'records.json').exists() else None


class Size(NamedTuple):
  """What a run takes at the least, in bytes."""

  state: int  # parameters and optimizer state, which a checkpoint holds
  needed: int  # of memory
  room: float  # memory that there is


def check_mesh(config: Run) -> Mesh:
  """Makes the mesh of a run. Raises MeshError for one that there is not, or that a batch cannot be dealt to."""
  mesh = make_mesh(config.mesh)
  for phase in config.train.phases:
    check_batch(phase.batch, config.train.accumulate, mesh)
  return mesh


def check_size(config: Run) -> Size:
  """Returns what a run needs. Raises ConfigError for options that make no model, and for a run that fits the memory of
  no device here; MeshError as `check_mesh`."""
  mesh = check_mesh(config)
  state = shapes(config, make_learner(config, stand_in(config)))
  held = sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(state))
  rows, length = max(((phase.batch, phase.length) for phase in config.train.phases), key=math.prod)
  block = config.model if isinstance(config.model, ElmoConfig) else config.model.block
  # Of each token what the backward pass of one layer reads, at the least; and on the hosts its windows.
  step = -(-rows // config.train.accumulate) * length * block.width * np.dtype(block.dtype).itemsize
  needed, room = held + step + 16 * rows * length, memory(mesh)
  if needed > room:
    gib = [f'{size / 2 ** 30:,.1f} GiB' for size in (needed, held, step, room)]
    raise ConfigError(
        f'a run of these options needs {gib[0]} at the least, {gib[1]} of them for parameters and optimizer state and '
        f'{gib[2]} for one layer of {rows:,} rows of {length:,} tokens, and there are {gib[3]}: make the model or '
        '--train.phases smaller, or --train.accumulate larger')
  return Size(held, needed, room)


def check_disk(config: Run, size: int, free: Callable[[str], int | None] = storage.free_bytes) -> str:
  """Raises CheckpointError where the output has no room for a checkpoint -> what is short of all that the run keeps, or
  nothing. size: of a checkpoint, in bytes. free: counts the bytes of a folder's disk."""
  there, kept = free(config.folder), config.train.keep + 1 + bool(config.train.best)  # and the one that is written
  check_room(config.folder, size, there)
  if there is None or there >= kept * size:
    return ''
  return (f'{config.folder} has room for {there // size} checkpoints of {size / 1e6:,.1f} MB, and the run keeps '
          f'{kept - 1} and writes the next beside them: make room, or give --train.keep={max(1, there // size - 1)}')


def memory(mesh: Mesh) -> float:
  """Counts the bytes of all devices together; of CPUs, those of this machine."""
  device = mesh.local_devices[0]
  if device.platform == 'cpu':
    return os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') * jax.process_count()
  stats = device.memory_stats() or {}
  return stats['bytes_limit'] * mesh.size if 'bytes_limit' in stats else math.inf
