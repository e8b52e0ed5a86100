"""What a run will take: seconds to its first step and a step, measured here; and hours of chips, by the best that is
known."""
from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import itertools
import math
import re
import time
from typing import NamedTuple

import jax
from jax.sharding import Mesh

from plm_jax import sharding
from plm_jax.config import Phase, Run
from plm_jax.pods.compile import CHIPS, compile_run, extremes, sliced
from plm_jax.recipes import Recipe
from plm_jax.training import metrics
from plm_jax.training.learner import make_learner, stand_in
from plm_jax.training.step import jitted_step, sharded_init

# Of the peak of its chips, what a run makes use of: between what rooflines of compiled steps allow (GPT-2 small on v5e
# 49%, BERT-large on v3 67%) and half of it.
ASSUMED = 0.4


class Measured(NamedTuple):
  """Seconds on the devices here."""

  first: float  # until the first step is done: parameters, compilation, the step
  step: float  # the median of those after it


def measure(config: Run, mesh: Mesh, phase: Phase, steps: int = 3) -> Measured:
  """Makes the state of a run and some steps of a phase, on empty rows: how much is computed does not depend on what is
  in them."""
  learner = make_learner(config, stand_in(config))
  shapes = config.objective.shapes(phase.batch, phase.length, sharding.batch_sharding(mesh))
  started = time.monotonic()
  with jax.set_mesh(mesh):
    windows = jax.jit(lambda: jax.tree.map(lambda x: jax.numpy.zeros(x.shape, x.dtype), shapes),
                      out_shardings=jax.tree.map(lambda x: x.sharding, shapes))()
    make_state, _, layout = sharded_init(learner, windows, mesh)
    state, update, ended = make_state(), jitted_step(learner, layout), []
    for _ in range(1 + steps):
      state, numbers = update(state, windows)
      jax.block_until_ready(numbers)
      ended.append(time.monotonic())
  taken = sorted(after - before for before, after in itertools.pairwise(ended))
  return Measured(ended[0] - started, taken[len(taken) // 2])


def flops(config: Run, phase: Phase) -> float:
  """Counts the floating point operations of a step of a phase, of the model as it is written."""
  return phase.batch * config.objective.step_flops(config.model, phase.length)


def seconds(config: Run, known: Mapping[Phase, float]) -> float:
  """Adds up the steps of a run. known: seconds a step of some of its phases; of others as many as by the operations of
  the one whose rows are most alike."""
  total = 0.0
  for phase in config.train.phases:
    near = nearest(phase, known)
    total += phase.steps * known[near] * flops(config, phase) / flops(config, near)
  return total


def nearest(phase: Phase, others: Iterable[Phase]) -> Phase:
  """Finds the phase whose rows are most alike: in their length first."""
  return min(others, key=lambda other: (abs(math.log(other.length / phase.length)),
                                        abs(math.log(other.batch / phase.batch))))


def on_these(config: Run, known: Mapping[Phase, float], mesh: Mesh) -> str:
  """Says what a run takes on the devices here, by seconds a step that were measured."""
  kind = mesh.devices.flat[0].device_kind
  chips, whole = count(kind, mesh.size), seconds(config, known)
  return (f'{hours(chips * whole)} on the {chips} x {kind} here, {spent(whole)} of steps as they were measured, '
          'without evaluations and checkpoints')


def compiled(config: Run, topology: str, run: Callable = compile_run) -> str:
  """Says what a run takes on a pod at the least, by its compiled step and the chips' data sheets. Raises
  ConfigError."""
  reports = run(dataclasses.replace(config, mode='compile', topology=topology))
  kind, devices = pod(topology)
  known = {phase: report.bound for phase, report in zip(extremes(config.train.phases), reports, strict=True)}
  whole = seconds(config, known)
  return (f'{hours(count(kind, devices) * whole)} on {topology} at the least, {spent(whole)}: bounds of the compiled '
          'step from data sheets, not measurements')


def estimated(config: Run, recipe: Recipe, mesh: Mesh | None) -> str:
  """Says what a run takes by its operations and what is assumed of its chips: those here, or, of the paper's run, those
  of the recipe's table. '' where neither is known."""
  kind, devices, where = '', 0, ''
  if mesh is not None and metrics.peak_flops(mesh.devices.flat[0]):
    kind, devices, where = mesh.devices.flat[0].device_kind, mesh.size, 'the devices here'
  elif config.scale == 'paper':
    (kind, devices), where = pod(recipe.row.pod), recipe.row.pod
  if not kind:
    return ''
  total = sum(phase.steps * flops(config, phase) for phase in config.train.phases)
  whole = total / (peak(kind) * devices * ASSUMED)
  took = f'; the published run took {recipe.row.took}' if recipe.row.took and config.scale == 'paper' else ''
  return (f'{hours(count(kind, devices) * whole)} on {where}, {spent(whole)}: {total:.2g} FLOPs at {ASSUMED:.0%} of '
          f'the peak of {count(kind, devices)} x {kind}, which is an assumption{took}')


def peak(kind: str) -> float:
  """Returns the peak of a kind of device, which `metrics` knows."""
  return next(metrics.PEAK_FLOPS[name] for name in sorted(metrics.PEAK_FLOPS, key=len, reverse=True)
              if kind.startswith(name))


def pod(topology: str) -> tuple[str, int]:
  """Reads the name of a topology, v2:4x4 or 2xv5e:4x4 -> (kind of its devices, how many)."""
  slices, one = sliced(topology)
  name, _, shape = one.partition(':')
  for kind, chip in CHIPS.items():
    if chip.name == name and re.fullmatch(r'\d+(x\d+)*', shape):
      return kind, slices * math.prod(map(int, shape.split('x'))) * chip.cores
  return '', 0


def count(kind: str, devices: int) -> int:
  """Counts chips: a device is half of one on TPU v2 and v3."""
  return -(-devices // CHIPS[kind].cores) if kind in CHIPS else devices


def hours(chip_seconds: float) -> str:
  """Writes seconds of chips as hours of chips."""
  return f'{chip_seconds / 3600:,.{0 if chip_seconds > 36_000 else 2}f} chip-hours'


def spent(whole: float) -> str:
  """Writes a time in its unit."""
  for unit, size in (('days', 86_400), ('hours', 3600), ('minutes', 60)):
    if whole >= 2 * size:
      return f'{whole / size:,.1f} {unit}'
  return f'{whole:,.1f} s'


def measured_phases(phases: Sequence[Phase]) -> list[Phase]:
  """Chooses the phases to measure: the first, with which a run begins, and of every length one."""
  return [*{phase.length: phase for phase in reversed(phases)}.values()][::-1]
