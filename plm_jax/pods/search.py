"""The mesh that the compiler would choose: `--mode=compile --topology=T --search`.

Ways to lay a run out on the pod that make sense for its model are compiled (`candidates`): first meshes of rows, on
which more or fewer devices share a copy of the parameters; where none of them fits, heads and widths are split too,
then activations are computed again or the batch goes through in more micro-steps. The more devices share a copy, the
less memory and traffic it costs and the more is sent: so a search begins with as many as the run has, or with a few,
goes on to more as long as that helps, else to fewer (`climbed`), and ends where arithmetic alone binds every step: no
other mesh computes less. A run that has micro-steps, or computes activations again, is then tried with fewer, and with
less of that (`eased`). The best is the one whose steps have the lowest bound over the whole run; of equals, within a
hundredth, the simplest.
"""
from collections.abc import Callable, Iterator, Sequence
import itertools
from typing import Any, NamedTuple

from plm_jax import checked, sharding
from plm_jax.config import ConfigError, Phase, Run
from plm_jax.pods import compile as compiling
from plm_jax.pods.compile import CHIPS, Report
from plm_jax.sharding import MeshConfig, MeshError
from plm_jax.training.learner import make_learner, stand_in

ALIKE = 0.01
"""share by which a bound has to be lower to be another"""
FIRST = 8
"""devices that share a copy of the parameters where the search begins if in the run each has its own"""
LESS = {'full': 'dots', 'dots': 'none'}  # that is computed again


class Tried(NamedTuple):
  """A way to lay the run out, compiled."""

  config: Run
  reports: Sequence[Report]
  """of the phases of `compile.extremes`; empty where it does not fit"""
  refused: str = ''
  """why it does not fit"""


Analyse = Callable[[Run, Phase, Any], Report]


def search_run(config: Run, analyse: Analyse | None = None) -> Run:
  """Compiles what makes sense, prints a table and the best -> the run, laid out so.

  Raises ConfigError for a topology that the compiler does not know, and where nothing fits.
  """
  devices = compiling.topology(config.topology)
  kind = devices[0].device_kind
  phases = compiling.extremes(config.train.phases)
  print(f'{config.name} on {config.topology}: {len(devices)} x {kind}; steps of '
        f'{", ".join(f"{phase.batch} x {phase.length}" for phase in phases)}, a line each\n\n{line(HEAD)}', flush=True)
  def shown(candidate: Run) -> Tried:
    one = tried(candidate, phases, devices, analyse or compiled)
    print('\n'.join(map(line, rows(one))), flush=True)
    return one
  found: list[Tried] = []
  first = config.mesh.fsdp if config.mesh.fsdp > 1 else FIRST
  for some in candidates(config, len(devices), sharding.slices(devices)):
    found += [one for ordered in some for one in climbed(ordered, first, shown)]
    if any(not one.refused for one in found):
      break
  best = chosen(found)
  if best is None:
    raise ConfigError(f'nothing fits {config.topology}: {found[-1].refused}')
  best = eased(best, found, shown)
  print('\n' + reason(best, found, config))
  return best.config


def climbed(ordered: Sequence[Run], first: int, shown: Callable[[Run], Tried]) -> list[Tried]:
  """Tries some of the runs, in whose meshes more and more devices share a copy -> what was tried, in that order.

  Begins with the run that is nearest below `first` devices; goes on to more while that is better or nothing fits yet,
  or else to fewer while that is as good.
  """
  begin = max([0, *(at for at, run in enumerate(ordered) if run.mesh.fsdp <= first)])
  found = [shown(ordered[begin])]
  if found[0].reports and all(report.bound_by == 'compute' for report in found[0].reports):
    return found
  for run in ordered[begin + 1:]:
    found.append(shown(run))
    before, now = found[-2:]
    if not before.refused and (now.refused or seconds(now) > seconds(before) * (1 - ALIKE)):
      break
  if found[0].refused or chosen(found) is not found[0]:
    return found
  for run in reversed(ordered[:begin]):
    found.insert(0, shown(run))
    if found[0].refused or seconds(found[0]) > seconds(found[1]) * (1 + ALIKE):
      break
  return found


def eased(best: Tried, found: list[Tried], shown: Callable[[Run], Tried]) -> Tried:
  """Tries the best with half of its micro-steps, and half again, then with less computed again, as long as that fits
  and is better, and adds to what was `found` -> the best."""
  def better(changes: dict[str, Any]) -> Tried | None:
    config = checked.replaced(best.config, changes)
    if any(one.config == config for one in found):
      return None
    found.append(shown(config))
    return None if found[-1].refused or seconds(found[-1]) > seconds(best) * (1 - ALIKE) else found[-1]
  while (steps := best.config.train.accumulate) % 2 == 0 and (one := better({'train.accumulate': steps // 2})):
    best = one
  while (how := recomputed(best.config)) in LESS and (one := better({'model.stack.remat': LESS[how]})):
    best = one
  return best


def candidates(config: Run, devices: int, slices: int = 1) -> Iterator[list[list[Run]]]:
  """Lists ways to lay a run out on so many devices, in rounds: each for where nothing of those before fits. Of a round
  each list is in the order of how many devices share a copy of the model, which is in one slice."""
  powers = [1 << n for n in range(devices.bit_length()) if devices % (1 << n) == 0]
  def meshes(tensor: int) -> list[MeshConfig]:
    return [MeshConfig(devices // fsdp // tensor, fsdp, tensor) for fsdp in powers
            if devices % (fsdp * tensor * slices) == 0]
  def laid(meshes: Sequence[MeshConfig], accumulate: int, remat: str) -> list[Run]:
    made = [checked.replaced(config, {'mesh': mesh, 'train.accumulate': accumulate,
                                      **({'model.stack.remat': remat} if remat else {})}) for mesh in meshes]
    return [run for run in made if dealt(run, devices)]
  accumulate, remat = config.train.accumulate, recomputed(config)
  heads = block.heads if (block := getattr(config.model, 'block', None)) else 1
  split = [size for size in (2, 4, 8) if devices % size == 0 and heads % size == 0]
  rounds = [([meshes(1)], accumulate, remat), ([meshes(size) for size in split], accumulate, remat)]
  widest = [meshes(size)[-2:] for size in (1, *split)]
  ways = itertools.product((1, 2, 4, 8), ('none', 'dots', 'full') if remat else ('',))
  rounds += [(widest, steps, how) for steps, how in ways
             if steps >= accumulate and (steps, how) != (accumulate, remat)]
  for some, steps, how in rounds:
    if runs := [ordered for each in some if (ordered := laid(each, steps, how))]:
      yield runs


def recomputed(config: Run) -> str:
  """Returns what the layers of a run compute again in the backward pass, '' where it has no choice (ELMo)."""
  stack = getattr(config.model, 'stack', None)
  return stack.remat if stack else ''


def dealt(config: Run, devices: int) -> bool:
  """Tells whether every device gets as many rows of each batch, and at least one."""
  mesh = config.mesh
  return devices == mesh.data * mesh.fsdp * mesh.tensor and all(
      phase.batch % (mesh.data * mesh.fsdp * config.train.accumulate) == 0 for phase in config.train.phases)


def tried(config: Run, phases: Sequence[Phase], devices: Sequence[Any], analyse: Analyse) -> Tried:
  """Compiles the steps of a candidate."""
  mesh = sharding.make_mesh(config.mesh, devices)
  try:
    reports = [analyse(config, phase, mesh) for phase in phases]
  except (ConfigError, MeshError) as error:
    return Tried(config, (), compiling.first_line(error))
  chip = CHIPS[devices[0].device_kind]
  if over := next((report for report in reports if report.total > chip.hbm * 2 ** 30), None):
    return Tried(config, (), f'{over.total / 2 ** 30:.1f} GiB of {chip.hbm:g}')
  return Tried(config, reports)


def compiled(config: Run, phase: Phase, mesh) -> Report:
  """Compiles the step of one phase."""
  return compiling.analyse(config, make_learner(config, stand_in(config)), phase, mesh)


def seconds(one: Tried) -> float:
  """Returns the bound of a step of each phase's, on average over the run's steps."""
  phases = one.config.train.phases
  ends = compiling.extremes(phases)
  bounds = {(phase.length, phase.batch): report.bound
            for phase, report in zip(ends, one.reports, strict=True)}
  def bound(phase: Phase) -> float:  # of a batch between two that were compiled, by its size
    of_length = {batch: seconds for (length, batch), seconds in bounds.items() if length == phase.length}
    return of_length.get(phase.batch) or max(of_length.values()) * phase.batch / max(of_length)
  return sum(phase.steps * bound(phase) for phase in phases) / sum(phase.steps for phase in phases)


def chosen(found: Sequence[Tried]) -> Tried | None:
  """Finds the first of what fits that no other is better than by more than `ALIKE`; None where nothing fits."""
  fitting = [one for one in found if not one.refused]
  if not fitting:
    return None
  least = min(seconds(one) for one in fitting)
  return next(one for one in fitting if seconds(one) <= least * (1 + ALIKE))


HEAD = ('data x fsdp x tensor', 'micro-steps', 'remat', 'GiB', 'traffic GB', 'compute ms', 'memory ms', 'network ms',
        'bound by', 'MFU')


def line(cells: Sequence[str]) -> str:
  """Lays out a row of the table."""
  first, *rest = cells
  widths = (12, 6, 6, 11, 11, 10, 11, 9, 5)
  return f'{first:22}' + ' '.join(f'{cell:>{width}}' for cell, width in zip(rest, widths, strict=False)).rstrip()


def rows(one: Tried) -> list[tuple[str, ...]]:
  """Returns the rows of the table of one candidate: a row each phase, or one that says why it does not fit."""
  mesh = one.config.mesh
  first = f'{mesh.data} x {mesh.fsdp} x {mesh.tensor}', str(one.config.train.accumulate), recomputed(one.config)
  if one.refused:
    return [(*first, f'does not fit: {one.refused}')]
  found = []
  for report in one.reports:
    found.append((*(('', '', '') if found else first), f'{report.total / 2 ** 30:.2f}', f'{report.traffic / 1e9:.2f}',
                  *(f'{report.bounds[name] * 1e3:.2f}' for name in ('compute', 'memory', 'network')), report.bound_by,
                  f'{report.mfu:.0%}'))
  return found


def reason(best: Tried, found: Sequence[Tried], config: Run) -> str:
  """Says which is best, why, and how it is typed: what the run does not have by itself."""
  mesh, devices = best.config.mesh, best.config.mesh.data * best.config.mesh.fsdp * best.config.mesh.tensor
  own = sharding.adapted(config.mesh, devices)
  options = []
  if (mesh.fsdp, mesh.tensor) != (own.fsdp, own.tensor):
    split = [f'--mesh.{name}={value}' for name, value in (('fsdp', mesh.fsdp), ('tensor', mesh.tensor)) if value > 1]
    options += split or ['--mesh.fsdp=1']
  if best.config.train.accumulate != config.train.accumulate:
    options.append(f'--train.accumulate={best.config.train.accumulate}')
  if recomputed(best.config) != recomputed(config):
    options.append(f'--model.stack.remat={recomputed(best.config)}')
  least = seconds(best)
  others = [seconds(one) for one in found if not one.refused and one is not best]
  beside = f'; the others take {min(others) / least:.2f} to {max(others) / least:.2f} times as long' if others else ''
  slowest = sorted({report.bound_by for report in best.reports})
  return (f'best: {mesh.data} x {mesh.fsdp} x {mesh.tensor}, bound by {" and ".join(slowest)}: a step takes '
          f'{least * 1e3:.2f} ms or longer, on average over the run{beside}. '
          + (f'Give {" ".join(options)}' if options else 'No option is needed: the run takes this mesh by itself')
          + '. Bounds from data sheets, not measurements')
