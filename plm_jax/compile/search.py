"""Search for the best mesh by compiling: `--mode=compile --topology=T --search`.

Reasonable layouts of a run on the pod are compiled (`list_candidates`). First come meshes for data
parallelism and FSDP, on which more or fewer devices share a copy of the parameters. If none of them
fits, tensor parallelism is tried, then activation checkpointing or more gradient accumulation.

The more devices share a copy, the less memory and traffic it needs, and the more data is sent. So
the search begins with the run's own number, or with a few devices, and continues to more as long as
that helps, otherwise to fewer (`climb`). It ends where compute alone bounds every step, because no
other mesh computes less. A run with gradient accumulation or activation checkpointing is then tried
with less of them, and one that is bound by memory with more gradient accumulation: from v4 on, the
activations of few rows stay in on-chip memory (`refine`).

The best layout has the lowest bound of steps over the whole run; of those within one percent, it is
the simplest.
"""
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from plm_jax import sharding, validation
from plm_jax.compile import report as compiling
from plm_jax.compile.report import CHIPS, GIB, CompileReport
from plm_jax.config.run import ConfigError, Phase, RunConfig
from plm_jax.errors import name_field, print_line
from plm_jax.sharding import MeshConfig, MeshError
from plm_jax.training.learner import make_learner, placeholder_vocab

BOUND_TOLERANCE = 0.01
"""Share by which a bound must be lower to count as better."""
FIRST_FSDP = 8
"""Devices that share a copy of the parameters where the search begins, if in the run none share."""
WITHOUT_CHIP_MEMORY = 'TPU v2', 'TPU v3'
"""Devices without large on-chip memory (CMEM on v4, VMEM from v5e on), where the compiler places
arrays of a program if they fit."""
MISSES = 2
"""Doublings of gradient accumulation without a gain after which no more is tried: whether a layer's
activations fit on the chip is a threshold."""
LESS_REMAT = {'full': 'dots', 'dots': 'none'}


class MeshTrial(NamedTuple):
  """A layout of the run, compiled."""

  config: RunConfig
  reports: Sequence[CompileReport]
  """Of the phases of `compile.report.extreme_phases`; empty where it does not fit."""
  problem: str = ''
  """Why it does not fit."""


AnalyzeStep = Callable[[RunConfig, Phase, Any], CompileReport]


def search_mesh(config: RunConfig, analyze: AnalyzeStep | None = None) -> RunConfig:
  """Compile reasonable layouts, print a table and the best one -> the run with the best layout.

  Args:
    config: the run.
    analyze: computes the cost of a step; None: `compile_step`.

  Raises:
    ConfigError: the compiler does not know the topology, or no layout fits.
  """
  devices = compiling.topology_devices(config.topology)
  kind = devices[0].device_kind
  phases = compiling.extreme_phases(config.train.phases)
  steps = ', '.join(f'{phase.batch} x {phase.length}' for phase in phases)
  print(f'{config.name} on {config.topology}: {len(devices)} x {kind}; steps of {steps}, one line '
        f'each\n\n{format_line(TABLE_HEADER)}', flush=True)

  def run_trial(candidate: RunConfig) -> MeshTrial:
    trial = try_candidate(candidate, phases, devices, analyze or compile_step)
    print_line('\n'.join(map(format_line, trial_rows(trial))))
    return trial

  trials: list[MeshTrial] = []
  first = config.mesh.fsdp if config.mesh.fsdp > 1 else FIRST_FSDP
  for candidates in list_candidates(config, len(devices), sharding.count_slices(devices)):
    for ordered in candidates:
      trials += climb(ordered, first, run_trial)
    if any(not trial.problem for trial in trials):
      break
  best = choose_best(trials)
  if best is None:
    raise ConfigError(f'nothing fits {config.topology}: {trials[-1].problem}')
  best = refine(best, trials, run_trial, devices)
  print_line('\n' + describe_best(best, trials, config))
  return best.config


def climb(ordered: Sequence[RunConfig], first: int, run_trial: Callable[[RunConfig], MeshTrial]
          ) -> list[MeshTrial]:
  """Try some of the runs, in whose meshes more and more devices share a copy (hill climbing).

  Begins with the run nearest below `first` devices. Continues to more while that is better or
  nothing fits yet; otherwise to fewer while that is as good.

  Returns:
    The trials, in the order of `ordered`.
  """
  begin = max((number for number, run in enumerate(ordered) if run.mesh.fsdp <= first), default=0)
  trials = [run_trial(ordered[begin])]
  reports = trials[0].reports
  if reports and all(report.bound_by == 'compute' for report in reports):
    return trials
  for run in ordered[begin + 1:]:
    trials.append(run_trial(run))
    before, now = trials[-2:]
    if not before.problem and (now.problem or not is_better(now, before)):
      break
  if trials[0].problem or choose_best(trials) is not trials[0]:
    return trials
  for run in reversed(ordered[:begin]):
    trials.insert(0, run_trial(run))
    limit = mean_bound(trials[1]) * (1 + BOUND_TOLERANCE)
    if trials[0].problem or mean_bound(trials[0]) > limit:
      break
  return trials


def refine(best: MeshTrial, trials: list[MeshTrial], run_trial: Callable[[RunConfig], MeshTrial],
           devices: Sequence[Any]) -> MeshTrial:
  """Try the best layout with less or more gradient accumulation, and with less checkpointing.

  Halves the accumulation, and again, as long as the step fits and is better. Doubles it while
  memory bounds a step of the best layout, on chips with on-chip memory. Adds to `trials`.

  Returns:
    The best trial.
  """
  def try_changes(changes: dict[str, Any]) -> MeshTrial | None:
    """Return the trial of the best layout with changes if it is new and better."""
    config = validation.with_paths(best.config, changes)
    if any(trial.config == config for trial in trials):
      return None
    trial = run_trial(config)
    trials.append(trial)
    return None if trial.problem or not is_better(trial, best) else trial

  while best.config.train.accumulate % 2 == 0:
    trial = try_changes({'train.accumulate': best.config.train.accumulate // 2})
    if trial is None:
      break
    best = trial
  while (policy := remat_policy(best.config)) in LESS_REMAT:
    trial = try_changes({'model.stack.remat': LESS_REMAT[policy]})
    if trial is None:
      break
    best = trial
  has_chip_memory = devices[0].device_kind not in WITHOUT_CHIP_MEMORY
  accumulate, misses = best.config.train.accumulate, 0
  while has_chip_memory and misses < MISSES and any(
      report.bound_by == 'memory' for report in best.reports):
    accumulate *= 2
    more = {'train.accumulate': accumulate}
    if not divides_evenly(validation.with_paths(best.config, more), len(devices)):
      break
    if trial := try_changes(more):
      best, misses = trial, 0
    else:
      misses += 1
  return best


def list_candidates(config: RunConfig, devices: int, slices: int = 1
                    ) -> Iterator[list[list[RunConfig]]]:
  """Yield rounds of layouts; each round is tried if nothing before fits.

  Each list of a round is ordered by the number of devices that share a copy of the model, which is
  always within one slice.

  Args:
    config: the run.
    devices: number of devices.
    slices: number of slices.
  """
  powers = [1 << n for n in range(devices.bit_length()) if devices % (1 << n) == 0]

  def list_meshes(tensor: int) -> list[MeshConfig]:
    return [MeshConfig(devices // fsdp // tensor, fsdp, tensor)
            for fsdp in powers if devices % (fsdp * tensor * slices) == 0]

  def make_runs(meshes: Sequence[MeshConfig], accumulate: int, policy: str) -> list[RunConfig]:
    changes: dict[str, Any] = {'train.accumulate': accumulate}
    if policy:
      changes['model.stack.remat'] = policy
    runs = [validation.with_paths(config, {'mesh': mesh, **changes}) for mesh in meshes]
    return [run for run in runs if divides_evenly(run, devices)]

  accumulate, policy = config.train.accumulate, remat_policy(config)
  block = getattr(config.model, 'block', None)
  heads = block.heads if block else 1
  tensors = [size for size in (2, 4, 8) if devices % size == 0 and heads % size == 0]
  # Rounds of (meshes, accumulation, checkpointing policy).
  rounds = [([list_meshes(1)], accumulate, policy),
            ([list_meshes(size) for size in tensors], accumulate, policy)]
  widest = [list_meshes(size)[-2:] for size in [1] + tensors]
  policies = ('none', 'dots', 'full') if policy else ('',)
  rounds += [(widest, steps, other) for steps in (1, 2, 4, 8) for other in policies
             if steps >= accumulate and (steps, other) != (accumulate, policy)]
  for mesh_lists, steps, other in rounds:
    runs = [ordered for meshes in mesh_lists if (ordered := make_runs(meshes, steps, other))]
    if runs:
      yield runs


def remat_policy(config: RunConfig) -> str:
  """Return the activation-checkpointing policy of a run; '' where it has none (ELMo)."""
  stack = getattr(config.model, 'stack', None)
  return stack.remat if stack else ''


def divides_evenly(config: RunConfig, devices: int) -> bool:
  """Return whether every device gets the same number of rows of each batch, at least one."""
  mesh = config.mesh
  if devices != mesh.data * mesh.fsdp * mesh.tensor:
    return False
  divisor = mesh.data * mesh.fsdp * config.train.accumulate
  return all(phase.batch % divisor == 0 for phase in config.train.phases)


def try_candidate(config: RunConfig, phases: Sequence[Phase], devices: Sequence[Any],
                  analyze: AnalyzeStep) -> MeshTrial:
  """Compile the steps of a candidate."""
  mesh = sharding.make_mesh(config.mesh, devices)
  try:
    reports = [analyze(config, phase, mesh) for phase in phases]
  except (ConfigError, MeshError) as error:
    return MeshTrial(config, (), compiling.first_line(error))
  chip = CHIPS[devices[0].device_kind]
  for report in reports:
    if report.hbm_bytes > chip.hbm_gib * GIB:
      return MeshTrial(config, (), f'{report.hbm_bytes / GIB:.1f} GiB of {chip.hbm_gib:g}')
  return MeshTrial(config, reports)


def compile_step(config: RunConfig, phase: Phase, mesh) -> CompileReport:
  """Compile the step of one phase."""
  learner = make_learner(config, placeholder_vocab(config))
  return compiling.analyze_step(config, learner, phase, mesh)


def mean_bound(trial: MeshTrial) -> float:
  """Return the lower bound of a step, averaged over the steps of all phases, in seconds."""
  phases = trial.config.train.phases
  bounds: dict[int, dict[int, float]] = {}  # by length and batch
  for phase, report in zip(compiling.extreme_phases(phases), trial.reports, strict=True):
    bounds.setdefault(phase.length, {})[phase.batch] = report.lower_bound
  total = 0.0
  for phase in phases:
    by_batch = bounds[phase.length]
    # A batch between two that were compiled: by its size.
    between = max(by_batch.values()) * phase.batch / max(by_batch)
    total += phase.steps * by_batch.get(phase.batch, between)
  return total / sum(phase.steps for phase in phases)


def is_better(trial: MeshTrial, other: MeshTrial) -> bool:
  """Return whether a trial's bound is lower by more than the tolerance."""
  return mean_bound(trial) <= mean_bound(other) * (1 - BOUND_TOLERANCE)


def choose_best(trials: Sequence[MeshTrial]) -> MeshTrial | None:
  """Return the first trial within the tolerance of the lowest bound; None where nothing fits."""
  fitting = [trial for trial in trials if not trial.problem]
  if not fitting:
    return None
  least = min(mean_bound(trial) for trial in fitting)
  return next(trial for trial in fitting if mean_bound(trial) <= least * (1 + BOUND_TOLERANCE))


TABLE_HEADER = ('data x fsdp x tensor', 'micro-steps', 'remat', 'GiB', 'traffic GB', 'compute ms',
                'memory ms', 'network ms', 'bound by', 'MFU')


def format_line(cells: Sequence[str]) -> str:
  """Format a row of the table."""
  first, *rest = cells
  widths = (12, 6, 6, 11, 11, 10, 11, 9, 5)
  padded = [f'{cell:>{width}}' for cell, width in zip(rest, widths, strict=False)]
  return f'{first:22}' + ' '.join(padded).rstrip()


def trial_rows(trial: MeshTrial) -> list[tuple[str, ...]]:
  """Return the rows of the table for one trial: one per phase, or why it does not fit."""
  mesh = trial.config.mesh
  name = f'{mesh.data} x {mesh.fsdp} x {mesh.tensor}'
  layout = name, str(trial.config.train.accumulate), remat_policy(trial.config)
  if trial.problem:
    return [(*layout, f'does not fit: {trial.problem}')]
  rows = []
  for report in trial.reports:
    bounds = (f'{report.lower_bounds[kind] * 1e3:.2f}' for kind in ('compute', 'memory', 'network'))
    rows.append((*layout, f'{report.hbm_bytes / GIB:.2f}', f'{report.hbm_traffic / 1e9:.2f}',
                 *bounds, report.bound_by, f'{report.mfu:.0%}'))
    layout = '', '', ''
  return rows


def describe_best(best: MeshTrial, trials: Sequence[MeshTrial], config: RunConfig) -> str:
  """Return a text about the best layout: why, and the options that select it.

  Args:
    best: of the trials.
    trials: all that were tried.
    config: the run, whose own layout needs no options.
  """
  mesh = best.config.mesh
  own = sharding.fit_mesh(config.mesh, mesh.data * mesh.fsdp * mesh.tensor)
  options = []
  if (mesh.fsdp, mesh.tensor) != (own.fsdp, own.tensor):
    axes = [axis for axis in ('fsdp', 'tensor') if getattr(mesh, axis) > 1] or ['fsdp']
    options = [f'{name_field(f"mesh.{axis}")}={getattr(mesh, axis)}' for axis in axes]
  if best.config.train.accumulate != config.train.accumulate:
    options.append(f'{name_field("train.accumulate")}={best.config.train.accumulate}')
  if remat_policy(best.config) != remat_policy(config):
    options.append(f'{name_field("model.stack.remat")}={remat_policy(best.config)}')
  own_choice = 'No option is needed: the run takes this mesh by itself'
  advice = f'Give {" ".join(options)}' if options else own_choice

  least = mean_bound(best)
  others = [mean_bound(trial) for trial in trials if not trial.problem and trial is not best]
  comparison = ''
  if others:
    comparison = (f'; the others take {min(others) / least:.2f} to {max(others) / least:.2f} times '
                  'as long')
  slowest = ' and '.join(sorted({report.bound_by for report in best.reports}))
  return (f'best: {mesh.data} x {mesh.fsdp} x {mesh.tensor}, bound by {slowest}: a step takes '
          f'{least * 1e3:.2f} ms or longer, on average over the run{comparison}. {advice}. Bounds '
          'from data sheets, not measurements')
