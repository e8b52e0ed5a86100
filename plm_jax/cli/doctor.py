"""python -m plm_jax doctor [RECIPE and options of a run]: what will be, and what is wrong, before a run begins.

    python -m plm_jax doctor bert_base --scale=laptop --data.path=corpus.txt.xz
    python -m plm_jax doctor                                      # the machine alone

A line a check: ok, warning or fault, and what to do. After a fault the other checks go on; then the exit status is 1.
On a pod every worker has to run it, as the run itself: each tells what is wrong with it.

    --step             make some steps: seconds to the first, and hours of chips by what was measured. Nothing else
                       tells how long a program compiles, nor whether one that was cached is the run's
    --topology=v2:4x4  compile the step for a TPU pod, and tell its hours of chips at the least
"""
from collections.abc import Callable, Sequence
import sys
from typing import Any, Literal, NamedTuple

import jax
from jax.sharding import Mesh

from plm_jax import config as config_lib
from plm_jax import config_file, errors, recipes, storage, tokenizers, versions
from plm_jax.cli import costs, options, preflight
from plm_jax.cli import run as runs
from plm_jax.config import ConfigError, Experiment
from plm_jax.data import sources
from plm_jax.data.records import FORMAT, read_meta, token_dtype
from plm_jax.errors import Expected
from plm_jax.inference.loading import tokenizer_of
from plm_jax.pods import hosts, machine
from plm_jax.pods.machine import Machine
from plm_jax.recipes import Recipe
from plm_jax.sharding import batch_split
from plm_jax.storage import reachable
from plm_jax.tokenizers import Tokenizer
from plm_jax.training import checkpoint, feed, train
from plm_jax.training.learner import make_learner
from plm_jax.training.warm_start import with_teacher

CHARACTERS = 4  # of text in a token, about, by which the size of records is foreseen; of bytes one
Level = Literal['ok', 'warning', 'fault']


class Told(NamedTuple):
  """What a check says that found no fault."""

  said: str
  warnings: tuple[str, ...] = ()
  value: Any = None  # for checks behind it


class Finding(NamedTuple):
  """A line of the doctor's."""

  level: Level
  check: str
  said: str


class Examination:
  """Makes checks one after another, and prints what each says."""

  def __init__(self):
    self.findings: list[Finding] = []
    self.place = ''  # of a process that is not the first of a job, which tells only what is not ok

  def look(self, check: str, work: Callable[..., Told], *args: Any) -> Any:
    """Makes a check -> its value; None where it finds a fault."""
    try:
      told = work(*args)
    except Expected as error:
      self.tell(Finding('fault', check, str(error)))
      return None
    except OSError as error:
      self.tell(Finding('fault', check, errors.outside(error)))
      return None
    self.tell(Finding('warning' if told.warnings else 'ok', check, '; '.join(told.warnings) or told.said))
    return told.value

  def skip(self, check: str, why: str) -> None:
    """Says that a check could not be made."""
    self.tell(Finding('warning', check, f'not looked at, {why}'))

  def tell(self, finding: Finding) -> None:
    """Keeps and prints a finding."""
    self.findings.append(finding)
    if not self.place or finding.level != 'ok':
      said = ' '.join(finding.said.split())
      print(f'{self.place}{finding.level:9}{finding.check:12}{said}', flush=True)

  @property
  def faults(self) -> int:
    """Counts the checks that found one."""
    return sum(finding.level == 'fault' for finding in self.findings)


class Asked(NamedTuple):
  """What the doctor is asked about."""

  recipe: Recipe
  config: Experiment
  step: bool = False
  topology: str = ''


def start(args: Sequence[str], own: Machine | None = None) -> None:
  """Examines the run that the arguments name, or the machine alone; exits with 1 where there is a fault."""
  if {'-h', '--help'} & {*args}:
    print(__doc__)
    return
  with errors.shown(), errors.options_under('--data.prepare.'):
    found = examine(args, own or Machine())
    warnings = sum(finding.level == 'warning' for finding in found.findings)
    print(f'{found.place}{found.faults} faults, {warnings} warnings')
  if found.faults:
    sys.exit(1)


def examine(args: Sequence[str], own: Machine) -> Examination:
  """Makes all checks, in the order in which a run would meet them."""
  found = Examination()
  found.look('versions', checked_versions)
  free = found.look('accelerator', accelerator, own)
  asked = None
  if args:
    asked = found.look('options', parsed, args)
  if asked is None:
    if free:
      found.look('devices', devices, own)
    found.look('cache', cache, None, own)
    return found
  config = asked.config
  for path, use in buckets(config).items():
    found.look('bucket', bucket, path, use)
  met = None
  if free or not config.hosts.distributed:
    met = found.look('hosts', meet, config, found)
  else:  # the others would wait for its devices; so they hear that it did not come
    found.skip('hosts', 'as this one has not its accelerator')
  if met and free and found.look('devices', devices, own):
    examine_devices(found, asked, own)
  else:
    found.skip('mesh', 'as there are not the devices of the run')
  examine_files(found, config, own, bool(met))
  if asked.topology:
    found.look('cost', lambda: Told(costs.compiled(config, asked.topology)))
  return found


def examine_devices(found: Examination, asked: Asked, own: Machine) -> None:
  """Checks what is computed: mesh, memory, disk for it, time and cost."""
  config, mesh = asked.config, found.look('mesh', mesh_of, asked.config)
  if mesh is None:
    found.skip('memory', 'as there is no mesh')
    return
  state = found.look('memory', memory, config)
  if state is not None:
    found.look('disk', disk, config, state, own)
  if asked.step and state is not None:
    found.look('first step', first_step, config, mesh)
  elif not asked.topology:
    found.look('cost', cost, asked, mesh)


def examine_files(found: Examination, config: Experiment, own: Machine, met: bool) -> None:
  """Checks what is read and written."""
  before, tokenizer = found.faults, found.look('records', records, config)
  found.look('cache', cache, config if found.faults == before else None, own)
  if not met:
    found.skip('output', 'as not all hosts are there')
  elif found.look('output', output, config):
    found.look('checkpoint', resumed, config, tokenizer)


def checked_versions() -> Told:
  """Checks that what is installed goes together."""
  found = versions.installed()
  versions.check(found)
  return Told(versions.said(found))


def accelerator(own: Machine) -> Told:
  """Checks, before JAX looks for it, that a TPU can be had."""
  machine.check_usable(own)
  there = machine.tpu(own)
  if there and machine.on_purpose(own):
    return Told('', (f'there is {there}, and JAX_PLATFORMS=cpu says not to use it',), True)
  return Told(f'{there}, which no process holds' if there else 'no TPU in this machine', value=True)


def parsed(args: Sequence[str]) -> Told:
  """Reads the options of a run. Raises ConfigError."""
  args = options.normalise_booleans(args, {'step'})
  step, rest = options.taken('--step', args)
  topology, rest = options.taken('--topology', rest)
  if not rest or rest[0].startswith('-'):
    raise ConfigError('which recipe? `python -m plm_jax doctor RECIPE ...`; `python -m plm_jax train` lists them')
  if topology and not costs.pod(topology)[1]:
    raise ConfigError(f'--topology={topology} is none that the doctor knows, such as v2:4x4')
  size, rest = options.taken('--size', rest)
  recipe = recipes.find(rest[0], size)
  config = runs.parse(recipe, rest[1:])
  if config.mode != 'train':
    raise ConfigError('the doctor is asked about a run that trains: leave out --mode')
  config_lib.check(config)
  config = runs.of_text(with_teacher(config))
  return Told(f'{config.name}, {config.train.steps:,} steps, output in {config.folder}',
              value=Asked(recipe, config, step == 'True', topology))


def buckets(config: Experiment) -> dict[str, reachable.Use]:
  """Returns the folders in buckets that a run uses, and how."""
  uses: dict[str, reachable.Use] = dict.fromkeys(reachable.paths_in(config_file.to_json(config)), 'read')
  if storage.remote(config.folder):
    uses[config.folder] = 'run'
  return uses


def bucket(path: str, use: reachable.Use) -> Told:
  """Checks a folder in a bucket: what will be asked of it, and its region."""
  reachable.check_reachable({path: use})
  region = reachable.machine_region()
  return Told(f'{path}: {"lists" if use == "read" else "lists, writes, deletes"}'
              + (f', in the region of this machine, {region}' if region else ''))


def meet(config: Experiment, found: Examination) -> Told:
  """Meets the other processes of the job. Raises HostsError that names who did not come."""
  place = hosts.join(config.hosts)
  if place.index:
    found.place = f'process {place.index}: '
  return Told(f'{place.count} processes' if config.hosts.distributed else 'one process', value=True)


def devices(own: Machine) -> Told:
  """Checks what JAX computes on."""
  runs.use_cache()
  machine.check_platform(own, machine.platform())
  return Told(f'{jax.device_count()} x {jax.devices()[0].device_kind}', value=True)


def mesh_of(config: Experiment) -> Told:
  """Checks that devices and batches can be dealt out."""
  mesh = preflight.check_mesh(config)
  batches = sorted({phase.batch for phase in config.train.phases})
  rows = batches[0] // batch_split(mesh)
  said = ' x '.join(f'{size} {axis}' for axis, size in mesh.shape.items())
  return Told(f'{said}; batches of {batches[0]:,}' + (f' to {batches[-1]:,}' if batches[1:] else '')
              + f' rows, {rows:,} a device at the least', value=mesh)


def memory(config: Experiment) -> Told:
  """Checks that a run fits the memory there is, by what it takes at the least."""
  size = preflight.check_size(config)
  room = f'{size.room / 2 ** 30:,.1f} GiB' if size.room < float('inf') else 'an unknown amount'
  return Told(f'{size.needed / 2 ** 30:,.2f} GiB at the least, of {room}', value=size.state)


def disk(config: Experiment, state: int, own: Machine) -> Told:
  """Checks the room for checkpoints."""
  short = preflight.check_disk(config, state, own.free)
  return Told(f'{config.folder} has room for checkpoints of {state / 1e6:,.1f} MB', (short,) if short else ())


def records(config: Experiment) -> Told:
  """Checks the corpora: records and what reads them; of text that some is there. Its value: the tokenizer, where it is
  known."""
  found = {path: preflight.finished(path) for path in config.data.path}
  warnings = [f'{folder} is of format 1, without checksums: prepare it again' for folder in found.values()
              if folder and read_meta(folder).format < FORMAT]
  first = found[config.data.path[0]]
  tokenizer = tokenizers.load(first / 'tokenizer') if first else given_tokenizer(config)
  if tokenizer:
    if first:
      preflight.check_kind(config, first, tokenizer)
    make_learner(config, tokenizer.vocab)
    preflight.check_prompts(config, tokenizer)
  pieces = f'a {tokenizer.kind.replace("_", "-")} tokenizer of {tokenizer.vocab.size:,} pieces' if tokenizer else (
      f'a {config.data.prepare.kind} tokenizer to be trained')
  texts = [path for path, folder in found.items() if not folder and not path.startswith('tfds:')]
  for path in texts:
    if next(sources.documents(path, config.data.prepare.reading), None) is None:
      raise sources.SourceError(f'{path} holds no documents: nothing to learn from')
  folders = [folder for folder in found.values() if folder]
  if tokenizer is None or len(folders) < len(found):
    return Told(f'{", ".join(path for path in found if not found[path])}: text, to be prepared, with {pieces}',
                tuple(warnings), tokenizer)
  pipelines = feed.open_phases(config, folders, tokenizer)
  epochs = feed.epochs(config.train.phases, pipelines)
  for phase, pipeline in zip(config.train.phases, pipelines, strict=True):
    if (windows := sum(map(len, pipeline.corpora))) < phase.batch:
      warnings.append(f'there are {windows:,} windows of {phase.length} tokens, fewer than the {phase.batch:,} rows of '
                      'one batch: give more text')
  tokens = sum(read_meta(folder).tokens('train') for folder in folders)
  return Told(f'{tokens:,} tokens by {pieces}, which the run reads {epochs:,.{0 if epochs >= 10 else 2}f} times',
              tuple(warnings), tokenizer)


def given_tokenizer(config: Experiment) -> Tokenizer | None:
  """Returns the tokenizer that text will be prepared with; None: one is trained on it."""
  place = config.data.prepare.tokenizer or config.warm_start
  if place:
    return tokenizer_of(place) if place == config.warm_start else tokenizers.load(place)
  return None


def cache(config: Experiment | None, own: Machine) -> Told:
  """Checks the room for what is cached: records of text that is not prepared, as foreseen by its size. Raises
  SpaceError."""
  place = storage.cache_folder()
  needed, room = 0, own.free(place) or 0
  for path in config.data.path if config else ():
    if config and not preflight.finished(path):
      each = 1 if config.data.prepare.kind == 'bytes' else CHARACTERS
      needed += sources.characters(path) // each * token_dtype(config.model.vocab).itemsize
  if needed > room:
    raise storage.SpaceError(
        f'{place} has {room / 1e6:,.1f} MB free, and records of this text need about {needed / 1e6:,.1f} MB: make '
        'room, or let PLM_JAX_CACHE name a folder on another disk')
  return Told(f'{place} has {room / 1e9:,.1f} GB free' + (f', for records of about {needed / 1e6:,.1f} MB'
                                                           if needed else ''))


def output(config: Experiment) -> Told:
  """Checks that the run's folder can be written, is seen by all hosts, and is nobody else's."""
  path = storage.path_of(config.folder)
  new = [] if storage.remote(path) else [folder for folder in (path, *path.parents) if not folder.exists()]
  try:
    hosts.check_shared(config.folder)
    with hosts.owned(config.folder):
      pass
  finally:
    for folder in new:
      hosts.remove_empty(folder)
  return Told(f'{config.folder} can be written, and no other process has it', value=True)


def resumed(config: Experiment, tokenizer: Tokenizer | None) -> Told:
  """Checks that the run can go on from the newest checkpoint in its folder, which has to be whole."""
  folder = storage.path_of(config.folder)
  if not (folder / 'checkpoints').is_dir():
    return Told('none: the run begins')
  checkpoints = checkpoint.Checkpoints(folder / 'checkpoints', keep=None)
  try:
    if (step := checkpoints.latest()) is None:
      return Told('none: the run begins')
    summed = checkpoints.compare(step, jax.process_index(), jax.process_count())
    train.same_run(config, checkpoints.meta(step), tokenizer or preflight.run_tokenizer(config), step)
  finally:
    checkpoints.close()
  return Told(f'the run goes on from step {step:,}, whose files are as they were written' if summed else
              f'the run goes on from step {step:,}, which has no checksums')


def first_step(config: Experiment, mesh: Mesh) -> Told:
  """Measures the time to the first step, and what the run takes by the steps after it."""
  measured = {phase: costs.measure(config, mesh, phase) for phase in costs.measured_phases(config.train.phases)}
  first, step = measured[config.train.phases[0]]
  return Told(f'{first:,.1f} s with its compilation, behind the text; a step {step:,.3f} s; '
              + costs.on_these(config, {phase: found.step for phase, found in measured.items()}, mesh))


def cost(asked: Asked, mesh: Mesh) -> Told:
  """Foresees what the run takes."""
  said = costs.estimated(asked.config, asked.recipe, mesh)
  return Told(said or 'not known before a step is made: give --step')
