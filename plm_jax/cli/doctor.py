"""Implement `python -m plm_jax doctor [RECIPE and options]`: check a run before it begins.

    python -m plm_jax doctor bert_base --scale=laptop --data.path=corpus.txt.xz
    python -m plm_jax doctor                                      # the machine alone

The output has one line per check: ok, warning or fault, and what to do; a terminal wraps it.
After a fault the other checks continue; then the exit status is 1. On a pod, every worker must run
the command, as for the run itself: each prints its own faults.

    --step             run a few training steps, and report the time to the first step and the
                       chip-hours. Only this shows how long compilation takes, and whether a
                       cached program is usable
    --topology=v2:4x4  compile the step for a TPU pod, and print a lower bound on the chip-hours
"""
from collections.abc import Callable, Mapping, Sequence
import itertools
import shutil
import sys
import textwrap
from typing import Any, Literal, NamedTuple

import jax
from jax.sharding import Mesh

from plm_jax import errors, storage, tokenizers, validation, versions
from plm_jax.checkpoints import checkpoint
from plm_jax.cli import costs, options
from plm_jax.cli import run as run_command
from plm_jax.cli.flags import name_flags, normalize, write_flags
from plm_jax.config import run as config_lib
from plm_jax.config.run import ConfigError, PretrainRun
from plm_jax.data.records import read_meta, token_dtype
from plm_jax.distributed import hosts, machine
from plm_jax.distributed.machine import Machine
from plm_jax.errors import UserError
from plm_jax.loading.loaded_model import find_tokenizer
from plm_jax.planning import timing
from plm_jax.planning.devices import present_device
from plm_jax.preparation import tokenizer_fit
from plm_jax.recipes import Recipe
from plm_jax.report.hints import MANY_EPOCHS
from plm_jax.runs import preflight, run
from plm_jax.sharding import count_batch_shards
from plm_jax.sources import text_sources
from plm_jax.storage import bucket_check, compilation_cache
from plm_jax.tokenizers import Tokenizer
from plm_jax.training import feed, train
from plm_jax.training.learner import make_learner
from plm_jax.training.warm_start import resolve_models

PATHS = validation.field_paths(PretrainRun)
Level = Literal['ok', 'warning', 'fault']


class CheckResult(NamedTuple):
  """The result of a check without a fault."""

  message: str
  warnings: tuple[str, ...] = ()
  value: Any = None
  """a value for later checks"""


class Finding(NamedTuple):
  """A line of the output."""

  level: Level
  check: str
  message: str


class Examination:
  """Runs checks one after another, and prints their findings."""

  def __init__(self):
    self.findings: list[Finding] = []
    self.place = ''  # prefix of processes other than the first, which print no ok

  def run_check(self, check: str, work: Callable[..., CheckResult], *args: Any) -> Any:
    """Run a check; return its value, or None after a fault."""
    try:
      result = work(*args)
    except (UserError, OSError) as error:
      text = error.marked if isinstance(error, UserError) else errors.describe_error(error)
      self.add('fault', check, text)
      return None
    if result.warnings:
      self.add('warning', check, '; '.join(result.warnings))
    else:
      self.add('ok', check, result.message)
    return result.value

  def skip(self, check: str, why: str) -> None:
    """Print that a check could not be made."""
    self.add('warning', check, f'not checked, because {why}')

  def add(self, level: Level, check: str, message: str) -> None:
    """Keep and print a finding."""
    message = write_flags(message, PATHS)
    self.findings.append(Finding(level, check, message))
    if not self.place or level != 'ok':
      message = ' '.join(message.split())
      head = f'{self.place}{level:9}{check:12}'
      if sys.stdout.isatty():
        columns = shutil.get_terminal_size().columns
        lines = textwrap.wrap(message, max(columns - len(head), 40), break_on_hyphens=False)
        message = f'\n{"":{len(head)}}'.join(lines)
      print(f'{head}{message}', flush=True)

  def count(self, level: Level) -> int:
    """Return the number of findings of a level."""
    return [finding.level for finding in self.findings].count(level)


class DoctorRequest(NamedTuple):
  """The run to check."""

  recipe: Recipe
  config: PretrainRun
  step: bool = False
  topology: str = ''


def format_count(count: int, noun: str) -> str:
  """Return a count and a noun, such as '1 fault' or '2 faults'."""
  return f'{count} {noun}' if count == 1 else f'{count} {noun}s'


def start(args: Sequence[str], own: Machine | None = None) -> None:
  """Check the run that the arguments name, or the machine alone; exit with status 1 on a fault."""
  with errors.exit_on_error(), name_flags(PATHS):
    found = examine(args, own or Machine())
    faults = format_count(found.count('fault'), 'fault')
    print(f'{found.place}{faults}, {format_count(found.count("warning"), "warning")}')
  if found.count('fault'):
    sys.exit(1)


def examine(args: Sequence[str], own: Machine) -> Examination:
  """Run all checks, in the order in which a run would meet them."""
  found = Examination()
  found.run_check('versions', check_versions)
  free = found.run_check('accelerator', check_accelerator, own)
  request = found.run_check('options', check_options, args) if args else None
  if request is None:
    if free:
      found.run_check('devices', check_devices, own)
    found.run_check('cache', check_cache, None, own)
    return found
  config = request.config
  for path, use in preflight.bucket_uses(config).items():
    if storage.is_remote(path):
      found.run_check('bucket', check_bucket, path, use)
  met = None
  if free or not config.hosts.distributed:
    met = found.run_check('hosts', check_hosts, config, found)
  else:  # the others would wait for its devices; this way they learn that it is missing
    found.skip('hosts', 'this process does not have its accelerator')
  if met and free and found.run_check('devices', check_devices, own):
    examine_devices(found, request, own)
  else:
    found.skip('mesh', 'the devices of the run are missing')
  examine_files(found, config, own, bool(met))
  if request.topology:
    found.run_check('cost', check_compiled_cost, request)
  return found


def examine_devices(found: Examination, request: DoctorRequest, own: Machine) -> None:
  """Check mesh, memory, disk space for checkpoints, time and cost."""
  config = request.config
  mesh = found.run_check('mesh', check_mesh, config)
  if mesh is None:
    found.skip('memory', 'there is no mesh')
    return
  state = found.run_check('memory', check_memory, config)
  if state is not None:
    found.run_check('disk', check_disk, config, state, own)
  if request.step and state is not None:
    found.run_check('first step', check_first_step, config, mesh)
  elif not request.topology:
    found.run_check('cost', check_cost, request, mesh)


def examine_files(found: Examination, config: PretrainRun, own: Machine, met: bool) -> None:
  """Check records, cache, output folder and checkpoint."""
  before = found.count('fault')
  tokenizer = found.run_check('records', check_records, config)
  found.run_check('cache', check_cache, config if found.count('fault') == before else None, own)
  if not met:
    found.skip('output', 'some hosts are missing')
  elif found.run_check('output', check_output, config):
    found.run_check('checkpoint', check_resume, config, tokenizer)


# Machine and options.


def check_versions() -> CheckResult:
  """Check that the installed packages work together."""
  found = versions.find_installed()
  versions.check(found)
  return CheckResult(versions.format_versions(found))


def check_accelerator(own: Machine) -> CheckResult:
  """Check that a TPU can be used, before JAX looks for it."""
  machine.check_tpu_usable(own)
  tpu = machine.describe_tpu(own)
  if not tpu:
    return CheckResult('no TPU in this machine (GPUs: see devices)', value=True)
  if machine.is_cpu_requested(own):
    return CheckResult('', (f'there is {tpu}, and JAX_PLATFORMS=cpu disables it',), True)
  return CheckResult(f'{tpu}, which no process holds', value=True)


def check_options(args: Sequence[str]) -> CheckResult:
  """Parse and check the options of a run; the value is a DoctorRequest."""
  args = normalize(args, {'step': 'BOOL'})
  step, rest = options.pop_option('--step', args)
  topology, rest = options.pop_option('--topology', rest)
  recipe, rest = options.take_recipe('doctor RECIPE ...', rest)
  if topology and not costs.parse_topology(topology)[1]:
    raise ConfigError(f'--topology={topology} is unknown, expected one such as v2:4x4')
  config = run_command.parse(recipe, rest)
  if config.mode != 'train':
    raise ConfigError('doctor checks a run that trains: leave out --mode')
  config_lib.check(config)
  config = run.as_pretrain_run(resolve_models(config))
  return CheckResult(f'{config.name}, {config.train.steps:,} steps, output in {config.folder}',
                     value=DoctorRequest(recipe, config, step == 'True', topology))


def check_bucket(path: str, use: bucket_check.BucketUse) -> CheckResult:
  """Check access to a folder in a bucket, and the region of the bucket."""
  bucket_check.check_reachable({path: use})
  region = bucket_check.machine_region()
  message = f'{path}: {"lists" if use == "read" else "lists, writes, deletes"}'
  if region:
    message += f', in the region of this machine, {region}'
  return CheckResult(message)


def check_hosts(config: PretrainRun, found: Examination) -> CheckResult:
  """Join the other processes of the job; HostsError names those that are missing."""
  place = hosts.join_job(config.hosts)
  if place.index:
    found.place = f'process {place.index}: '
  run.check_same_on_all_hosts(config, place)
  message = f'{place.count} processes' if config.hosts.distributed else 'one process'
  return CheckResult(message, value=True)


def check_devices(own: Machine) -> CheckResult:
  """Check the devices that JAX uses."""
  compilation_cache.use_compilation_cache()
  machine.check_platform(own, machine.start_jax())
  return CheckResult(f'{jax.device_count()} x {jax.devices()[0].device_kind}', value=True)


# Mesh, memory and cost.


def check_mesh(config: PretrainRun) -> CheckResult:
  """Check the mesh and the division of batches; the value is the mesh."""
  mesh = preflight.check_mesh(config)
  batches = sorted({phase.batch for phase in config.train.phases})
  rows = batches[0] // count_batch_shards(mesh)
  shape = ' x '.join(f'{size} {axis}' for axis, size in mesh.shape.items())
  sizes = f'{batches[0]:,}'
  if len(batches) > 1:
    sizes += f' to {batches[-1]:,}'
  message = f'{shape}; batch size {sizes}, at least {rows:,} per device'
  return CheckResult(message, value=mesh)


def check_memory(config: PretrainRun) -> CheckResult:
  """Check that a run fits the memory, by a lower bound; the value is the size of its state."""
  preflight.check_best_metric(config)
  size = preflight.check_memory(config)
  known = size.available < float('inf')
  available = f'{size.available / 2 ** 30:,.1f} GiB' if known else 'an unknown amount'
  message = f'at least {size.needed / 2 ** 30:,.2f} GiB of {available}'
  return CheckResult(message, value=size.state)


def check_disk(config: PretrainRun, state: int, own: Machine) -> CheckResult:
  """Check the disk space for checkpoints."""
  warning = preflight.check_disk(config, state, own.free_bytes)
  message = f'{config.folder} has room for checkpoints of {state / 1e6:,.1f} MB'
  return CheckResult(message, (warning,) if warning else ())


def check_first_step(config: PretrainRun, mesh: Mesh) -> CheckResult:
  """Measure the time to the first step, and the cost of the run from later steps."""
  times = {phase: timing.measure_steps(config, mesh, phase)
           for phase in timing.phases_to_measure(config.train.phases)}
  first, step = times[config.train.phases[0]]
  seconds = {phase: found.step for phase, found in times.items()}
  cost = costs.describe_measured_cost(config, seconds, mesh)
  return CheckResult(f'{first:,.1f} s with compilation, after the text is read; {step:,.3f} s per '
                     f'step; {cost}')


def check_cost(request: DoctorRequest, mesh: Mesh | None) -> CheckResult:
  """Estimate the cost of the run."""
  if request.config.scale == 'gpu':
    return CheckResult(f'{request.config.hours:g} hours: the run chooses batch and steps for its '
                       'devices when it starts, and `plan` before')
  cost = costs.describe_estimated_cost(request.config, request.recipe, mesh)
  if warning := preflight.check_duration(request.config):
    return CheckResult('', (f'{warning}. {cost}'.rstrip('. '),))
  here = ''
  if mesh:
    hours = timing.estimate_hours(request.config, present_device(mesh.devices.flatten().tolist()))
    here = (f'about {costs.format_time(3600 * hours)} on the devices here, by an assumed '
            'utilization; `plan` fits a run to a device and a time')
  known = '; '.join(filter(None, (cost, here)))
  return CheckResult(known or 'not known before a step is measured: give --step')


def check_compiled_cost(request: DoctorRequest) -> CheckResult:
  """Compute a lower bound of the cost on a TPU pod from the compiled step."""
  return CheckResult(costs.describe_compiled_cost(request.config, request.topology))


# Text, records and folders.


def check_records(config: PretrainRun) -> CheckResult:
  """Check the corpora: token records and their tokenizer, or text with at least one document.

  The value is the tokenizer if it is known.
  """
  preflight.check_heldout_paths(config)
  found = {path: preflight.finished_records(path) for path in config.data.path}
  folders = [folder for folder in found.values() if folder]
  texts = [path for path, folder in found.items() if not folder]
  for folder in folders:
    read_meta(folder)  # a RecordsError where they are damaged
  warnings = []

  # The tokenizer: that of the first records, a given one, or one that will be trained.
  first = found[config.data.path[0]]
  place = first / 'tokenizer' if first else config.data.prepare.tokenizer or config.warm_start
  load = find_tokenizer if place and place == config.warm_start else tokenizers.load
  tokenizer = load(place) if place else None
  described = f'a {config.data.prepare.kind} tokenizer that will be trained'
  if tokenizer:
    if first:
      preflight.check_tokenizer_kind(config, first, tokenizer)
      preflight.check_exact_text(config, first)
    make_learner(config, tokenizer.vocab)
    preflight.check_prompts(config, tokenizer)
    kind = tokenizer.kind.replace('_', '-')
    described = f'a {kind} tokenizer with a vocabulary of {tokenizer.vocab.size:,} tokens'
  local = [path for path in texts if not path.startswith('tfds:')]
  for path in (*local, *filter(None, config.data.heldout_path)):
    if warning := check_text(config, path, tokenizer):
      warnings.append(f'{path}: {warning}')
  if tokenizer is None or len(folders) < len(found):
    warnings += repetition_warnings(estimate_epochs(config, local), 'about ')
    message = f'{", ".join(texts)}: text that will be prepared with {described}'
    return CheckResult(message, tuple(warnings), tokenizer)

  # Finished records: the windows are known, and with them the epochs.
  for check in (preflight.check_heldout, preflight.check_sentence_pairs):
    if warning := check(config, folders):
      warnings.append(warning)
  pipelines = feed.open_phases(config, folders, tokenizer)
  epochs = feed.mean_epochs(config.train.phases, pipelines)
  for phase, pipeline in zip(config.train.phases, pipelines, strict=True):
    windows = sum(map(len, pipeline.corpora))
    if windows < phase.batch:
      warnings.append(f'there are {windows:,} windows of {phase.length} tokens, fewer than the '
                      f'{phase.batch:,} rows of one batch: give more text')
  corpora = feed.corpus_epochs(config.train.phases, pipelines)
  warnings += repetition_warnings(dict(zip(found, corpora, strict=True)))
  tokens = sum(read_meta(folder).tokens('train') for folder in folders)
  digits = 0 if epochs >= 10 else 2
  message = f'{tokens:,} tokens of {described}; {epochs:,.{digits}f} epochs'
  return CheckResult(message, tuple(warnings), tokenizer)


def check_text(config: PretrainRun, path: str, tokenizer: Tokenizer | None) -> str:
  """Check that a text has documents; return a warning if the tokenizer drops its accents, or ''."""
  text = config.data.prepare
  if next(text_sources.read_documents(path, text.read_config), None) is None:
    raise text_sources.SourceError(f'{path} holds no documents: nothing to learn from')
  rules = getattr(tokenizer, 'text', None) if tokenizer else tokenizer_fit.normalization_rules(text)
  paragraphs = []
  documents = text_sources.read_documents(path, text.read_config)
  for document in itertools.islice(documents, tokenizer_fit.MAX_PARAGRAPHS):
    paragraphs += [each[:tokenizer_fit.MAX_CHARACTERS] for each in document.paragraphs[:10]]
  return tokenizer_fit.accent_warning(text, rules, paragraphs, tokenizer is not None)


def repetition_warnings(epochs: Mapping[str, float], about: str = '') -> list[str]:
  """Return a warning for each corpus with so many epochs that more text would help more.

  Args:
    epochs: epochs over each corpus.
    about: 'about ' for estimates.
  """
  named = {'embedded': f'the built-in text (no {errors.name_field("data.path")} is given)'}
  return [f'{about}{times:,.0f} epochs over {named.get(path, path)}; more than {MANY_EPOCHS} help '
          'little: give more text, or fewer steps in --train.phases'
          for path, times in epochs.items() if times > MANY_EPOCHS]


def estimate_epochs(config: PretrainRun, paths: Sequence[str]) -> dict[str, float]:
  """Estimate the epochs over texts from their sizes, where they are clearly too many."""
  read = sum(phase.steps * phase.batch * phase.length for phase in config.train.phases)
  tokens = {path: preflight.estimate_tokens(config, path) for path in paths}
  epochs = {path: read / len(config.data.path) / size for path, size in tokens.items() if size}
  # The size of a text gives its number of tokens only to within a small factor.
  return {path: times for path, times in epochs.items() if times > 2 * MANY_EPOCHS}


def load_given_tokenizer(config: PretrainRun) -> Tokenizer | None:
  """Return the tokenizer that text will be prepared with; None: one is trained on the text."""
  place = config.data.prepare.tokenizer or config.warm_start
  if not place:
    return None
  return find_tokenizer(place) if place == config.warm_start else tokenizers.load(place)


def check_cache(config: PretrainRun | None, own: Machine) -> CheckResult:
  """Check the disk space for the cache, with the estimated size of records of new text."""
  place = storage.cache_folder()
  needed, free = 0, own.free_bytes(place) or 0
  if config:
    size = token_dtype(config.model.vocab).itemsize
    for path in config.data.path:
      if not preflight.finished_records(path):
        needed += preflight.estimate_tokens(config, path) * size
  if needed > free:
    raise storage.SpaceError(
        f'{place} has {free / 1e6:,.1f} MB free, and records of this text need about '
        f'{needed / 1e6:,.1f} MB: make room, or let PLM_JAX_CACHE name a folder on another disk')
  records = f', for records of about {needed / 1e6:,.1f} MB' if needed else ''
  return CheckResult(f'{place} has {free / 1e9:,.1f} GB free{records}')


def check_output(config: PretrainRun) -> CheckResult:
  """Check that the run's folder can be written, is seen by all hosts, and is not in use."""
  path = storage.resolve_path(config.folder)
  folders = () if storage.is_remote(path) else (path, *path.parents)
  new = [folder for folder in folders if not folder.exists()]
  try:
    hosts.check_shared_folder(config.folder)
    with hosts.locked(config.folder):
      pass
  finally:
    for folder in new:
      hosts.remove_empty_folder(folder)
  return CheckResult(f'{config.folder} can be written, and no other process uses it', value=True)


def check_resume(config: PretrainRun, tokenizer: Tokenizer | None) -> CheckResult:
  """Check that the run can resume from the newest checkpoint in its folder, and its checksums."""
  folder = storage.resolve_path(config.folder)
  if not (folder / 'checkpoints').is_dir():
    return CheckResult('none: the run starts from scratch')
  checkpoints = checkpoint.Checkpoints(folder / 'checkpoints', keep=None)
  try:
    if (step := checkpoints.latest()) is None:
      return CheckResult('none: the run starts from scratch')
    checkpoints.verify_checksums(step, jax.process_index(), jax.process_count())
    meta = checkpoints.meta(step)
    tokenizer = tokenizer or preflight.load_run_tokenizer(config)
    train.check_same_run(config, meta, tokenizer, step)
    found = map(preflight.finished_records, config.data.path)
    folders = [folder for folder in found if folder]
    if len(folders) == len(config.data.path):  # otherwise known after the text is prepared
      train.check_same_data(config, meta, feed.content_digests(config, folders), step)
  finally:
    checkpoints.close()
  return CheckResult(f'the run resumes from step {step:,}, whose checksums are correct')
