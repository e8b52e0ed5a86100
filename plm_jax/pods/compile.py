"""What a run would ask of a pod that is not there: its step, compiled by the TPU compiler itself, and taken apart.

Memory, FLOPs, traffic and collectives are read from the compiled program. Times are bounds from data sheets, of a
program that has never run: no measurement, and no prediction either.
"""
from collections.abc import Mapping, Sequence
import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import math
import os
import re
import time
from typing import Any

import jax
from jax.experimental import topologies

from plm_jax import sharding
from plm_jax.config import ConfigError, Phase, Run
from plm_jax.pods.hlo import Program
from plm_jax.training import metrics
from plm_jax.training.learner import make_learner, stand_in
from plm_jax.training.step import Learner, jitted_step, sharded_init


@dataclasses.dataclass(frozen=True)
class Chip:
  """One JAX device (a core on v2 and v3, a chip from v4 on), except for `links`."""

  name: str  # in names of topologies
  hbm: float  # capacity, GiB
  bandwidth: float  # of HBM, bytes/s
  links: float  # bytes/s that a whole chip sends over all its links together
  cores: int = 1  # devices on a chip, which share its links
  shapes: str = ''  # topologies to try
  vectors: float = 0.0  # operations of the vector units a second; 0: not known
  between: float = 0.0  # bytes/s that a chip's share of its host's network sends to other slices; 0: not known


# By device kind. HBM and its bandwidth: cloud.google.com/tpu/docs, the page of each version. Links: v2 4 x 496 and
# v3 4 x 656 Gbit/s (Jouppi et al. 2020, "A domain-specific supercomputer for training deep neural networks"), v4
# 6 x 50 GB/s (Jouppi et al. 2023, "TPU v4"), later ones half the bidirectional bandwidth on those pages. No data sheet
# has the vector units' peak: it is 128 lanes x 8 rows x ALUs, two on v2 and v3 (Norrie et al. 2021, "The Design Process
# for Google's Training Chips") and four later (Austin et al. 2025, "How to Scale Your Model", of v5p), at the clock
# that the peak of the matrix units implies. Between slices: the data center network of those pages, of 256 chips (v5e
# 6.4, v6e 25.6 Tbit/s) or of one (v5p 50 Gbit/s).
CHIPS = {
    'TPU v2': Chip('v2', 8, 350e9, 248e9, cores=2, shapes='v2:2x2 v2:4x4 v2:16x16', vectors=1.43e12),
    'TPU v3': Chip('v3', 16, 450e9, 328e9, cores=2, shapes='v3:2x2 v3:4x4 v3:8x8 v3:32x32', vectors=1.92e12),
    'TPU v4': Chip('v4', 32, 1228e9, 300e9, shapes='v4:2x2x1 v4:2x2x2 v4:4x4x4 v4:4x4x8', vectors=8.6e12),
    'TPU v5 lite': Chip('v5e', 16, 819e9, 200e9, shapes='v5e:2x2 v5e:4x4 v5e:8x8 v5e:16x16', vectors=6.2e12,
                        between=3.125e9),
    'TPU v5': Chip('v5p', 95, 2765e9, 600e9, shapes='v5p:2x2x1 v5p:2x2x2 v5p:4x4x4', vectors=14.3e12,
                   between=6.25e9),
    'TPU v6 lite': Chip('v6e', 32, 1640e9, 400e9, shapes='v6e:2x2 v6e:4x4 v6e:8x8 v6e:16x16', between=12.5e9),
}


@dataclasses.dataclass(frozen=True)
class Report:
  """What the compiled step of one phase asks of one device; bytes, FLOPs and counts are a step's."""

  kind: str  # of the device
  memory: Mapping[str, int]  # by kind
  model_flops: float  # analytic, of the model as written
  flops: float  # of matrix products in the compiled program
  traffic: int  # between chip and HBM
  collectives: Mapping[tuple[str, bool], tuple[int, int, float]]  # kind, overlapped -> count, bytes, bytes sent
  uncounted: int  # loops of unknown length, whose bodies count once
  seconds: float  # to compile
  vectors: int = 0  # operations of vector units
  host: int = 0  # bytes of memory of a host: the rows of its devices, and what the program keeps there
  between: float = 0.0  # bytes that the device sends to other slices

  @property
  def total(self) -> int:
    """Bytes of HBM that the program takes on one device."""
    return sum(self.memory.values())

  @property
  def sent(self) -> float:
    """Bytes that the device sends to others."""
    return sum(sent for _, _, sent in self.collectives.values())

  @property
  def bounds(self) -> dict[str, float]:
    """Seconds a step, at least, by what the device would have to do at its peak."""
    chip = CHIPS[self.kind]
    # Cores that share links can add up their messages on the chip, so that it sends one for both.
    known = {'compute': self.flops / metrics.PEAK_FLOPS[self.kind], 'memory': self.traffic / chip.bandwidth,
             'network': self.sent / chip.links}
    return {**known, 'between slices': self.between / chip.between} if self.between and chip.between else known

  @property
  def bound_by(self) -> str:
    """What takes longest."""
    return max(self.bounds, key=lambda name: self.bounds[name])

  @property
  def bound(self) -> float:
    """Seconds that a step takes at least."""
    return self.bounds[self.bound_by]

  @property
  def mfu(self) -> float:
    """Model FLOPs utilisation of a step that takes no longer: share of the device's peak (Chowdhery et al. 2022, B).

    No more than what is computed counts: gradients of parameters that are not trained are not.
    """
    return min(self.model_flops, self.flops) / metrics.PEAK_FLOPS[self.kind] / self.bound


def compile_run(config: Run) -> list[Report]:
  """Compiles the step of every phase for config.topology and prints what it needs.

  Raises ConfigError for a topology that the compiler does not know and for a step that does not fit its memory.
  """
  devices = topology(config.topology)
  kind = devices[0].device_kind
  mesh = sharding.make_mesh(config.mesh, devices)
  for phase in config.train.phases:
    sharding.check_batch(phase.batch, config.train.accumulate, mesh)
  learner = make_learner(config, stand_in(config))
  print(f'{config.name} on {config.topology}: {len(devices)} x {kind}, mesh '
        f'{" x ".join(f"{size} {axis}" for axis, size in mesh.shape.items())}, compiled by '
        f'{", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax", "libtpu"))}')
  if kind == 'TPU v6 lite' and importlib.metadata.version('libtpu') < '0.0.5':
    print('if this ends without a word: libtpu 0.0.42 overflows its stack on some programs for v6e, 0.0.50 does not '
          '(Python 3.12 has it)', flush=True)
  reports = []
  for phase in extremes(config.train.phases):
    rows = phase.batch // math.prod(mesh.shape[axis] for axis in sharding.TABLE['batch'])
    print(f'\n{phase.batch} rows of {phase.length} tokens, {rows} a device'
          + (f' in {config.train.accumulate} micro-steps' if config.train.accumulate > 1 else ''), flush=True)
    reports.append(analyse(config, learner, phase, mesh))
    print(table(reports[-1], phase, mesh.size), flush=True)
  return reports


def extremes(phases: Sequence[Phase]) -> list[Phase]:
  """Finds, of each length, the phases with the largest and the smallest batch, in order; equal ones once.

  From few rows the compiler may make another program, which can need more.
  """
  batches: dict[int, list[int]] = {}
  for phase in phases:
    batches.setdefault(phase.length, []).append(phase.batch)
  return list({(phase.length, phase.batch): phase for phase in phases
               if phase.batch in (min(batches[phase.length]), max(batches[phase.length]))}.values())


def topology(name: str) -> list[Any]:
  """Returns the devices of a pod that is not there: v5e:4x4, or several slices of one, 2xv5e:4x4.

  Raises ConfigError for a name that the compiler does not know.
  """
  if importlib.util.find_spec('libtpu') is None:
    raise ConfigError("--mode=compile needs the TPU compiler: pip install 'plm_jax[tpu]'")
  # Nothing of a TPU in this machine is asked for, so none is looked for or locked: its kind and hosts do not matter.
  for variable, setting in {'TPU_SKIP_MDS_QUERY': '1', 'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
                            'TPU_ACCELERATOR_TYPE': 'v2-8', 'TPU_WORKER_HOSTNAMES': 'localhost'}.items():
    os.environ.setdefault(variable, setting)
  with contextlib.suppress(RuntimeError):  # backends are up already
    jax.config.update('jax_platforms', 'cpu')
  # A v4 chip is one device only when asked for; v2 and v3 never are.
  slices, shape = sliced(name)
  options: dict[str, Any] = {'chip_config_name': 'megacore'} if shape.startswith('v4') else {}
  try:
    return list(topologies.get_topology_desc(shape, platform='tpu', num_slices=slices, **options).devices)
  except (RuntimeError, ValueError, NotImplementedError) as error:
    known = '\n  '.join(chip.shapes for chip in CHIPS.values())
    raise ConfigError(f'--topology {name!r} is none that the compiler knows ({first_line(error)}). Names that work, '
                      f'among others:\n  {known}') from error


def sliced(name: str) -> tuple[int, str]:
  """Parts the name of a topology into how many slices there are, and the name of one.

  >>> sliced('2xv5e:4x4'), sliced('v5e:4x4')
  ((2, 'v5e:4x4'), (1, 'v5e:4x4'))
  """
  found = re.fullmatch(r'([1-9]\d*)x(v.*)', name)
  return (int(found[1]), found[2]) if found else (1, name)


def analyse(config: Run, learner: Learner, phase: Phase, mesh) -> Report:
  """Compiles the step of one phase. Raises ConfigError where it does not fit."""
  windows = config.objective.shapes(phase.batch, phase.length, sharding.batch_sharding(mesh))
  started = time.time()
  with jax.set_mesh(mesh):
    _, shapes, layout = sharded_init(learner, windows, mesh)
    placed = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, layout)
    lowered = jitted_step(learner, layout).lower(placed, windows)
    try:
      compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
      if 'RESOURCE_EXHAUSTED' not in str(error):
        raise
      raise ConfigError(out_of_memory(str(error), phase)) from error
  seconds = time.time() - started

  stats: Any = compiled.memory_analysis()
  params, opt_state = (device_bytes(tree) for tree in (placed.params, placed.opt_state))
  memory = {
      'parameters': params,
      'optimizer state': opt_state,
      'other arguments (the batch)': max(0, stats.argument_size_in_bytes - params - opt_state),
      'results that reuse no argument': stats.output_size_in_bytes - stats.alias_size_in_bytes,
      'temporaries (activations, gradients)': stats.temp_size_in_bytes,
      'program': stats.generated_code_size_in_bytes,
  }
  check_fits(mesh.devices.flat[0].device_kind, memory, phase)
  program = Program(compiled.as_text() or '', mesh.size)
  collectives: dict[tuple[str, bool], tuple[int, int, float]] = {}
  for x in program.collectives:
    count, size, sent = collectives.get((x.kind, x.overlapped), (0, 0, 0.0))
    collectives[x.kind, x.overlapped] = count + x.times, size + x.times * x.bytes, sent + x.times * x.sent
  flops = phase.batch * config.objective.step_flops(config.model, phase.length)
  devices = mesh.devices.flatten().tolist()
  beside = sum(device.process_index == devices[0].process_index for device in devices)
  return Report(mesh.devices.flat[0].device_kind, memory, flops / mesh.size, program.flops, program.bytes,
                collectives, len(program.endless), seconds, program.vectors,
                beside * (device_bytes(windows) + pinned(stats)), program.between(sharding.slices(devices)))


def pinned(stats: Any) -> int:
  """Counts the bytes of a host's memory that a device's program takes (memory kind pinned_host)."""
  return sum(getattr(stats, f'host_{name}_size_in_bytes', 0) for name in ('argument', 'output', 'temp')) - getattr(
      stats, 'host_alias_size_in_bytes', 0)


def device_bytes(tree) -> int:
  """Counts the bytes that a tree of shapes with shardings takes on one device."""
  return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def check_fits(kind: str, memory: Mapping[str, int], phase: Phase) -> None:
  """Raises ConfigError where what a step takes is more than a device has: the compiler does not always say so."""
  chip, total = CHIPS.get(kind), sum(memory.values()) / 2 ** 30
  if chip and total > chip.hbm:
    largest = max(memory, key=lambda name: memory[name])
    raise ConfigError(refusal(phase, f'{total:.1f} of {chip.hbm:g} GiB, of which {memory[largest] / 2 ** 30:.1f} are '
                                     f'{largest}'))


def out_of_memory(message: str, phase: Phase) -> str:
  """Cuts the compiler's complaint to what a user can use."""
  lines = [line.strip() for line in message.splitlines()]
  needed = re.search(r'Used [\d.]+\w+ of [\d.]+\w+ \w+|total memory required .*? exceeds available .*?\)', message)
  largest = [line for line in lines if re.match(r'(\d+\. )?Size: ', line)][:4]
  shapes = [line for line in lines if line.startswith('Shape: ')][:4]
  buffers = ''.join(f'\n  {size}  {shape}' for size, shape in zip(largest, shapes, strict=False))
  return refusal(phase, needed[0] if needed else first_line(message), buffers, core='vmem' in message)


def refusal(phase: Phase, needed: str, buffers: str = '', core: bool = False) -> str:
  """Says that a step does not fit, what it needs of what there is, and what to try; core: the memory of a core, not of
  a device."""
  # Of a core's scratch memory fewer rows take no less: the compiler has chosen tiles that are too large for it.
  advice = (
      'another --mesh.fsdp (half of it, say) or --mesh.tensor, or chips with more of this memory (v5p).' if core else
      '--train.accumulate 2 (or more), --model.stack.remat dots (or full), --mesh.fsdp 8 (or more; splits parameters '
      'and optimizer state), a smaller batch, or a larger pod.')
  return (f'{phase.batch} rows of {phase.length} tokens do not fit the memory of a '
          f'{"core (VMEM)" if core else "device"}: {needed}.'
          + (f' The largest buffers:{buffers}' if buffers else '') + f'\nTry {advice}')


def first_line(error: Any) -> str:
  """Returns the first line of an error's text, 200 characters at most; its type's name where it has none."""
  return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__


def table(report: Report, phase: Phase, devices: int) -> str:
  """Lays a report out for people."""
  chip = CHIPS.get(report.kind)
  lines = ['HBM a device']
  lines += [f'  {name:38}{size / 2 ** 30:8.3f} GiB' for name, size in report.memory.items()]
  share = f' of {chip.hbm:g} ({report.total / 2 ** 30 / chip.hbm:.0%})' if chip else ''
  lines += [f'  {"total":38}{report.total / 2 ** 30:8.3f} GiB{share}', 'work a device and step']
  lines += [
      f'  {"model FLOPs (analytic)":38}{report.model_flops / 1e9:8,.0f} G',
      f'  {"compiled FLOPs":38}{report.flops / 1e9:8,.0f} G    matrix products; bodies of loops as often as they run',
      f'  {"HBM traffic":38}{report.traffic / 1e9:8.2f} GB   each kernel reads its operands, writes its results, once']
  took = f', {report.vectors / chip.vectors * 1e3:.2f} ms at the peak of {chip.vectors / 1e12:.3g} T/s that the ' \
         'number of lanes gives' if chip and chip.vectors else ''
  lines += [f'  {"vector operations":38}{report.vectors / 1e9:8,.0f} G    number by number{took}: in no bound']
  lines += [f'{"memory of a host":40}{report.host / 2 ** 20:8,.2f} MiB  its rows of the batch, what a program keeps']
  lines += ['collectives a step'] if report.collectives else []
  lines += [
      f'  {kind + (", overlapped" if overlapped else ""):38}{size / 1e6:8,.1f} MB   in {count:,}; a device sends '
      f'{sent / 1e6:,.1f} MB' for (kind, overlapped), (count, size, sent) in report.collectives.items()]
  if report.between:
    lines += [f'  {"between slices":38}{"":8}      a device sends {report.between / 1e6:,.1f} MB through its host']
  if report.uncounted:
    lines += [f'  {report.uncounted} loops are of unknown length: what is in them is counted once']
  if chip:
    lines += ['roofline: bounds from data sheets, not measurements']
    lines += [f'  {name:38}{seconds * 1e3:8.2f} ms' for name, seconds in report.bounds.items()]
    lines += [f'  bound by {report.bound_by}: a step of this program takes {report.bound * 1e3:.2f} ms or longer, so '
              f'at most {phase.batch * phase.length / report.bound:,.0f} tokens/s on {devices} devices and MFU '
              f'{report.mfu:.0%}']
  return '\n'.join([*lines, f'compiled in {report.seconds:.0f} s'])
