"""Check a run before text is prepared and before the first step: memory, disk, mesh, prompts."""
from collections.abc import Callable, Collection, Sequence
import functools
import math
import os
from typing import Any, NamedTuple

from etils import epath
import flax.linen as nn
import jax
from jax.sharding import Mesh
import numpy as np

from plm_jax import conversion, environment, progress, recipes, storage
from plm_jax.architectures.elmo import ElmoConfig
from plm_jax.checkpoints.checkpoint import CheckpointError, check_free_space
from plm_jax.config import serialization
from plm_jax.config.run import ConfigError, PretrainRun, RunConfig
from plm_jax.data import records
from plm_jax.data.records import read_meta
from plm_jax.errors import name_field, warn
from plm_jax.inference import fill_mask
from plm_jax.loading.loaded_model import find_tokenizer, read_config
from plm_jax.objectives import CARRY
from plm_jax.objectives.row_builders import NextSentence, SentenceOrder
from plm_jax.preparation.prepare import load_tokenizer
from plm_jax.preparation.prepare_config import TOKENIZER_OPTIONS
from plm_jax.recipes.scale_presets import count_flops
from plm_jax.sharding import check_batch, make_mesh
from plm_jax.sources import text_sources
from plm_jax.storage import bucket_check
from plm_jax.tokenizers import Tokenizer, load
from plm_jax.training.feed import corpus_names
from plm_jax.training.learner import make_learner, placeholder_vocab, state_shapes
from plm_jax.training.step import eval_step
from plm_jax.validation import short_repr

CPU_FLOPS = 7e10
"""FLOPs per second of a CPU core in training, by which the time of a run is estimated: with them,
GPT-2 at the laptop scale takes 40 minutes on two cores, as measured"""
CHARACTERS_PER_TOKEN = 4
"""rough number of characters per token, by which the size of records is estimated; 1 for bytes"""
FREE_TEXT_OPTIONS = {'kind', 'layout', 'tokenizer', 'workers'}
"""options of `prepare` that are accepted with finished records: the kind of tokenizer that they are
expected to have, and what never changes records"""


def bucket_uses(config: Any, is_written: bool = True) -> dict[str, bucket_check.BucketUse]:
  """Return the folders in buckets that a configuration names, and the folder of the run.

  Args:
    config: the configuration, with the attribute `folder`.
    is_written: whether the run writes to its folder.
  """
  paths = bucket_check.find_bucket_paths(serialization.to_json(config))
  uses: dict[str, bucket_check.BucketUse] = dict.fromkeys(paths, 'read')
  return {**uses, config.folder: 'run'} if is_written else uses


def load_run_tokenizer(config: RunConfig) -> Tokenizer:
  """Load the tokenizer of the run in config.folder; raise CheckpointError if there is no run."""
  folder = storage.resolve_path(config.folder)
  if not (folder / 'config.json').exists():
    raise CheckpointError(f'{folder} is not the folder of a run: there is nothing to evaluate')
  return load(folder / 'tokenizer')


def is_made_with(tokenizer: Tokenizer, folder: epath.Path) -> bool:
  """Return whether a folder holds token records of this tokenizer."""
  return (folder / 'records.json').exists() and read_meta(folder).tokenizer == tokenizer.hash


def check_tokenizer_kind(config: PretrainRun, folder: epath.Path, tokenizer: Tokenizer) -> None:
  """Raise ConfigError for records of another kind of tokenizer than the run is written for.

  A run that names its own tokenizer accepts any kind, but not records of another tokenizer.
  """
  text, kind = config.data.prepare, tokenizer.kind.replace('_', '-')
  if (named := load_tokenizer(text)) and named.pieces != tokenizer.pieces:
    raise ConfigError(f'{folder} holds records of another tokenizer than '
                      f'{name_field("data.prepare.tokenizer")}={text.tokenizer}: leave that option '
                      'out, or give the text itself')
  is_pieces = text.kind.startswith('sentencepiece')
  wanted = 'sentencepiece' if is_pieces else text.kind
  if text.tokenizer or config.warm_start or kind.startswith(wanted):
    return
  recipe = name_recipe(config)
  option = 'sentencepiece-unigram' if kind.startswith('sentencepiece') else kind
  raise ConfigError(
      f'{folder} contains records of a {kind} tokenizer, but {config.name} needs {text.kind}: '
      'make them with `python -m plm_jax prepare TEXT RECORDS '
      f'{environment.option("for", recipe)}`. To train on these records anyway, give '
      f'{name_field("data.prepare.kind")}={option} {name_field("data.prepare.layout")}=bert')


def name_recipe(config: PretrainRun) -> str:
  """Return the recipe of a run, for a command in a message."""
  return config.name if config.name in recipes.all_recipes() else 'RECIPE'


def check_exact_text(config: PretrainRun, folder: epath.Path) -> None:
  """Raise ConfigError for records without the white space of their text that the run needs."""
  if config.data.prepare.exact and not read_meta(folder).exact:
    raise ConfigError(
        f'{folder} contains records without the blank lines and the indentation of their text, and '
        f'{config.name} learns from text as it is: make them again with `python -m plm_jax prepare '
        f'TEXT RECORDS {environment.option("for", name_recipe(config))}`. To train on these '
        f'records anyway, give {name_field("data.prepare.sentences")}=split')


def check_warm_start(config: RunConfig) -> None:
  """Raise CheckpointError, before text is prepared, where a new run has nothing to start from."""
  if not config.warm_start or (storage.resolve_path(config.folder) / 'config.json').exists():
    return
  if not conversion.is_checkpoint(config.warm_start):
    read_config(config.warm_start)
  for name in ('source_vectors', 'target_vectors', 'dictionary'):
    if (path := getattr(config.tuning, name)) and not storage.resolve_path(path).exists():
      raise ConfigError(f'{name_field(f"tuning.{name}")}={path} does not exist')


def check_text_options(config: PretrainRun, given: Collection[str]) -> None:
  """Check for options of `prepare` that would change nothing in a run.

  Next to finished records, one line says that they change nothing: a script may give the same
  options for text and for records.

  Args:
    config: the run.
    given: the fields of `config.data.prepare` that the user has set.

  Raises:
    ConfigError: options of a new tokenizer next to one that exists, such as that of a warm start.
  """
  text = config.data.prepare
  unused = sorted({*given} - FREE_TEXT_OPTIONS)
  sources = config.data.path
  finished = bool(given) and all(finished_records(source) for source in sources)
  if unused and finished:
    warn(f'{join_options(unused)} would change nothing: {" and ".join(sources)} holds finished '
         'token records, and no text is prepared')
  unused = [name for name in TOKENIZER_OPTIONS if name in given]
  if finished or text.tokenizer or not config.warm_start:
    return
  if unused and find_tokenizer(config.warm_start):
    raise ConfigError(f'{join_options(unused)} would change nothing: the tokenizer is that of '
                      f'{name_field("warm_start")}={config.warm_start}, and is not trained')


def join_options(names: Sequence[str]) -> str:
  """Join the names of options of `prepare` in a sentence."""
  return ' and '.join(name_field(f'data.prepare.{name}') for name in names)


def check_sentence_pairs(config: PretrainRun, folders: Sequence[epath.Path]) -> str:
  """Return a warning if many documents are too short for a sentence-pair objective, or ''."""
  pair = getattr(config.objective, 'pair', None)
  if not isinstance(pair, NextSentence | SentenceOrder) or not pair.pair_task:
    return ''
  effect = 'sentence order prediction (SOP) gets only sentences cut in two'
  if pair.pair_task == 'nsp':
    effect = 'next sentence prediction (NSP) finds no second sentence of the same document'
  single = documents = 0
  for folder in folders:
    single_here, documents_here = read_meta(folder).count_single_sentence('train')
    single, documents = single + single_here, documents + documents_here
  if single <= records.MAX_SINGLE_SHARE * documents:
    return ''
  return (f'at least {single:,} of {documents:,} training documents have only one sentence, so '
          f'{effect}. Separate documents, not sentences, by blank lines, or give '
          f'{name_field("documents")}=files. A run with {name_field("pair")}=none, or in Python '
          'with the row builder FullSentences, does without this task')


def check_prompts(config: PretrainRun, tokenizer: Tokenizer) -> None:
  """Raise ConfigError for prompts that are too long, or that have no mask where one is needed."""
  model, heads = config.model, config.objective.heads(config.model)
  if 'mlm' not in heads and config.objective.mask_tokens(model):
    return  # blanks that are generated (GLM), which `config.run.check` has found
  for prompt in config.prompts:
    if 'mlm' in heads:
      fill_mask.encode_prompt(model, tokenizer, prompt)
    elif model.max_length:
      size, most = len(tokenizer.encode(prompt)), model.max_length // 2
      if size > most:
        raise ConfigError(f'{name_field("prompts")} {prompt[:40]!r}... has {size} tokens, and '
                          f'{most} at most leave room for an answer in the {model.max_length} of '
                          'the model')


def finished_records(source: str) -> epath.Path | None:
  """Return the folder of a corpus that consists of finished token records; None for text."""
  folder = epath.Path(source if '://' in source else os.path.expanduser(source))
  if storage.is_hub_file(source):
    folder = storage.resolve_path(source)
  return folder if (folder / 'records.json').exists() else None


def estimate_tokens(config: PretrainRun, path: str) -> int:
  """Estimate the number of tokens of a text from its size; 0 if that is unknown."""
  characters = 1 if config.data.prepare.kind == 'bytes' else CHARACTERS_PER_TOKEN
  return text_sources.estimate_characters(path) // characters


def corpus_tokens(config: PretrainRun) -> tuple[int, bool]:
  """Return the tokens of all corpora, estimated for text, and whether all are token records.

  The tokens are 0 if the size of a corpus is unknown.
  """
  found = {path: finished_records(path) for path in config.data.path}
  sizes = [read_meta(folder).tokens('train') if folder else estimate_tokens(config, path)
           for path, folder in found.items()]
  return sum(sizes) if all(sizes) else 0, all(found.values())


def check_heldout_paths(config: PretrainRun) -> None:
  """Raise ConfigError for a held-out text that would not be read, before text is prepared."""
  for source, heldout in config.data.corpora:
    if not heldout:
      continue
    if finished_records(heldout):
      raise ConfigError(f'{name_field("data.heldout_path")}={heldout} holds token records: give '
                        'the text itself')
    folder = finished_records(source)
    if folder and read_meta(folder).heldout_path != heldout:
      raise ConfigError(
          f'{folder} holds finished token records, and their held-out text is '
          f'{read_meta(folder).heldout_text}, not {heldout}: make others with '
          '`python -m plm_jax prepare TEXT RECORDS '
          f'{environment.option("heldout-path", heldout)}`, or give the text itself as '
          f'{name_field("data.path")}')


def check_heldout(config: PretrainRun, folders: Sequence[epath.Path]) -> str:
  """Return a warning if a run has no held-out text, or ''.

  Raises:
    ConfigError: the run selects checkpoints by metrics of held-out text.
  """
  if any(read_meta(folder).heldout for folder in folders):
    return ''
  if config.train.best:
    raise ConfigError(f'{name_field("train.best")}={config.train.best} is a metric of held-out '
                      f'text, and there is none: give {name_field("data.heldout_path")}=FILE')
  one_document = any(read_meta(folder).heldout_share for folder in folders)
  reason = ', as there is but one document, or copies of one' if one_document else ''
  return (f'no text is held out{reason}, so the run is not evaluated: '
          f'{name_field("data.heldout_path")}=FILE evaluates it on a text')


def describe_heldout(config: PretrainRun, folders: Sequence[epath.Path]) -> str:
  """Name the text of all corpora on which a run is evaluated, with its size."""
  names, tokens = {}, 0
  for (path, heldout), folder in zip(config.data.corpora, folders, strict=True):
    meta = read_meta(folder)
    if meta.heldout:  # records of the same text may have been made from another path
      names[heldout or meta.heldout_text] = None
    elif config.mode == 'evaluate':
      names[f'all of {path}'] = None
    else:
      continue
    tokens += meta.tokens(meta.evaluation_split)
  shown = list(names)[:3]
  if len(names) > len(shown):
    shown.append(f'and {len(names) - len(shown)} more')
  return f'{", ".join(shown)} ({tokens:,} tokens)' if names else 'none'


class MemoryNeed(NamedTuple):
  """Lower bounds of the memory of a run, in bytes."""

  state: int
  """parameters and optimizer state, which is the size of a checkpoint"""
  needed: int
  """memory"""
  available: float
  """memory that the devices have"""


def check_mesh(config: RunConfig) -> Mesh:
  """Make the mesh of a run; raise MeshError for missing devices or an indivisible batch size."""
  mesh = make_mesh(config.mesh)
  for phase in config.train.phases:
    check_batch(phase.batch, config.train.accumulate, mesh)
  return mesh


def check_memory(config: RunConfig) -> MemoryNeed:
  """Compute the memory that a run needs at least, from the shapes of its state.

  Raises:
    ConfigError: options that do not make a model, or a run that does not fit the memory here.
    MeshError: as `check_mesh`.
  """
  mesh = check_mesh(config)
  state = state_shapes(config, make_learner(config, placeholder_vocab(config)))
  held = sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(state))
  sizes = [(phase.batch, phase.length) for phase in config.train.phases]
  rows, length = max(sizes, key=math.prod)
  block = config.model if isinstance(config.model, ElmoConfig) else config.model.block
  # At least the inputs of one layer for the backward pass, and windows on the hosts.
  token_bytes = block.width * np.dtype(block.dtype).itemsize
  step = -(-rows // config.train.accumulate) * length * token_bytes
  needed, room = held + step + 16 * rows * length, device_memory(mesh)
  if needed > room:
    gib = [f'{size / 2 ** 30:,.1f} GiB' for size in (needed, held, step, room)]
    raise ConfigError(
        f'a run with these options needs at least {gib[0]} of memory: {gib[1]} for parameters and '
        f'optimizer state, and {gib[2]} for one layer of {rows:,} sequences of {length:,} tokens. '
        f'Available: {gib[3]}. Use a smaller model or batch ({name_field("train.phases")}), or '
        f'more gradient accumulation ({name_field("train.accumulate")})')
  return MemoryNeed(held, needed, room)


def check_duration(config: RunConfig) -> str:
  """Return a warning if a run would take more than an hour on the CPUs here, or ''."""
  seconds = count_flops(config, config.train.phases) / (CPU_FLOPS * (os.cpu_count() or 1))
  if jax.default_backend() != 'cpu' or seconds < 3600:
    return ''
  smaller = '' if config.scale == 'laptop' else f' {name_field("scale")}=laptop,'
  return (f'on this CPU, the {config.train.steps:,} steps take very roughly '
          f'{progress.format_time(seconds)}. Faster:{smaller} fewer steps '
          f'({name_field("train.phases.0.steps")}), or a GPU or TPU')


def check_best_metric(config: RunConfig) -> None:
  """Raise ConfigError for a `train.best` that evaluations of a pre-training run do not have.

  For fine-tuning it is checked when the development sets are known.
  """
  if not config.train.best or not isinstance(config, PretrainRun):
    return
  names = heldout_metrics(config)
  if config.train.best not in names:
    raise ConfigError(f'{name_field("train.best")} is one of the held-out metrics '
                      f'{", ".join(names)}, got {short_repr(config.train.best)}')


def heldout_metrics(config: PretrainRun) -> list[str]:
  """List the metrics of a run's evaluations, from the shapes of an evaluation step."""
  learner = make_learner(config, placeholder_vocab(config))
  params = nn.unbox(state_shapes(config, learner).params)
  windows = config.objective.shapes(2, config.train.phases[0].length)
  if learner.carry is not None:
    carry = jax.tree.map(lambda x: jax.ShapeDtypeStruct((2, *x.shape[1:]), x.dtype), learner.carry)
    windows = {**windows, CARRY: carry}
  losses, answers = jax.eval_shape(functools.partial(eval_step, learner), params, windows)
  per_corpus = [name for name in losses if name != CARRY]
  names = per_corpus + [f'{name}_baseline' for name in answers]
  if 'clm' in answers:
    names.append('bits_per_byte')
    per_corpus = per_corpus + ['bits_per_byte']
  if len(config.data.path) > 1:
    for corpus in corpus_names(config):
      names += [f'{name}/{corpus}' for name in per_corpus]
  return names


def check_disk(
    config: RunConfig, size: int, free: Callable[[str], int | None] = storage.free_bytes) -> str:
  """Check the free space for checkpoints.

  Args:
    config: the run.
    size: size of a checkpoint in bytes.
    free: returns the free bytes of the disk of a folder; None if unknown.

  Returns:
    A warning if there is no room for all checkpoints that the run keeps, '' otherwise.

  Raises:
    CheckpointError: there is no room for one checkpoint.
  """
  there = free(config.folder)
  kept = config.train.keep + bool(config.train.best)
  check_free_space(config.folder, size, there)
  if there is None or there >= (kept + 1) * size:  # one more while the next is written
    return ''
  return (f'{config.folder} has room for {there // size} checkpoints of {size / 1e6:,.1f} MB, and '
          f'the run keeps {kept} and writes the next one as well: make room, or give '
          f'{name_field("train.keep")}={max(1, there // size - 1)}')


def device_memory(mesh: Mesh) -> float:
  """Return the memory of all devices together in bytes; on CPUs, that of this machine."""
  device = mesh.local_devices[0]
  if device.platform == 'cpu':
    return os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') * jax.process_count()
  stats = device.memory_stats() or {}
  if 'bytes_limit' not in stats:
    return math.inf
  return stats['bytes_limit'] * mesh.size
