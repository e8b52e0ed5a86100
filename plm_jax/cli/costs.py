"""Estimate the cost of a run: measured step times, and chip hours measured, compiled or assumed."""
from collections.abc import Callable, Mapping
import dataclasses
import math
import re

from jax.sharding import Mesh

from plm_jax.compile.report import CHIPS, compile_run, extreme_phases, parse_slices
from plm_jax.config.run import Phase, RunConfig
from plm_jax.planning.timing import run_seconds
from plm_jax.progress import format_time
from plm_jax.recipes import Recipe
from plm_jax.recipes.scale_presets import count_flops
from plm_jax.training import run_metrics

ASSUMED_UTILIZATION = 0.4
"""model FLOP utilization that estimates assume.

It is between what rooflines of compiled steps allow (GPT-2 small on v5e 49%, BERT-large on v3 67%)
and half of that.
"""


def describe_measured_cost(config: RunConfig, known: Mapping[Phase, float], mesh: Mesh) -> str:
  """Return the cost of a run on the devices here, from measured seconds per step."""
  kind = mesh.devices.flat[0].device_kind
  chips, whole = count_chips(kind, mesh.size), run_seconds(config, known)
  return (f'{format_chip_hours(chips * whole)} on the {chips} x {kind} here, {format_time(whole)} '
          'of measured steps, without evaluations and checkpoints')


def describe_compiled_cost(config: RunConfig, topology: str, run: Callable = compile_run) -> str:
  """Return a lower bound of the cost on a TPU pod, from the compiled step and chip data sheets.

  Raises:
    ConfigError: the step does not compile for the topology.
  """
  reports = run(dataclasses.replace(config, mode='compile', topology=topology))
  kind, devices = parse_topology(topology)
  phases = extreme_phases(config.train.phases)
  bounds = {phase: report.lower_bound for phase, report in zip(phases, reports, strict=True)}
  whole = run_seconds(config, bounds)
  hours = format_chip_hours(count_chips(kind, devices) * whole)
  return (f'at least {hours} on {topology}, {format_time(whole)}: a lower bound from the compiled '
          'step and data sheets, not a measurement')


def describe_estimated_cost(config: RunConfig, recipe: Recipe, mesh: Mesh | None) -> str:
  """Return the cost of a run from its FLOPs and an assumed utilization; '' for unknown chips.

  The chips are those here or, at the scale paper, those of the recipe's TPU pod.
  """
  kind, devices, where = '', 0, ''
  if mesh is not None and run_metrics.peak_flops(mesh.devices.flat[0]):
    kind, devices, where = mesh.devices.flat[0].device_kind, mesh.size, 'the devices here'
  elif config.scale == 'paper':
    where = recipe.row.pod
    kind, devices = parse_topology(where)
  if not kind:
    return ''
  total = count_flops(config, config.train.phases)
  names = sorted(run_metrics.PEAK_FLOPS, key=len, reverse=True)
  peak = next(run_metrics.PEAK_FLOPS[name] for name in names if kind.startswith(name))
  whole = total / (peak * devices * ASSUMED_UTILIZATION)
  chips, published = count_chips(kind, devices), ''
  if recipe.row.published_hardware and config.scale == 'paper':
    published = f'; the published run took {recipe.row.published_hardware}'
  return (f'{format_chip_hours(chips * whole)} on {where}, {format_time(whole)}: {total:.2g} FLOPs '
          f'at an assumed {ASSUMED_UTILIZATION:.0%} of the peak of {chips} x {kind}'
          f'{published}')


def parse_topology(topology: str) -> tuple[str, int]:
  """Parse a topology such as v2:4x4 or 2xv5e:4x4.

  Returns:
    The kind of its devices and their number; '' and 0 for an unknown topology.
  """
  slices, one = parse_slices(topology)
  name, _, shape = one.partition(':')
  for kind, chip in CHIPS.items():
    if chip.name == name and re.fullmatch(r'\d+(x\d+)*', shape):
      return kind, slices * math.prod(map(int, shape.split('x'))) * chip.cores
  return '', 0


def count_chips(kind: str, devices: int) -> int:
  """Return the number of chips; on TPU v2 and v3 a chip has two devices."""
  return -(-devices // CHIPS[kind].cores) if kind in CHIPS else devices


def format_chip_hours(chip_seconds: float) -> str:
  """Format chip seconds as chip hours."""
  digits = 0 if chip_seconds > 36_000 else 2
  return f'{chip_seconds / 3600:,.{digits}f} chip-hours'
