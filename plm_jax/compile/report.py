"""Compile the train step of a run for a TPU pod that is not attached, and report its cost.

The TPU compiler itself compiles the step. Memory, FLOPs, traffic and collectives are read from the
compiled program. Times are roofline lower bounds from data sheets, for a program that never ran:
they are neither measurements nor predictions.
"""
from collections.abc import Iterator, Mapping, Sequence
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
from packaging.version import Version

from plm_jax import sharding
from plm_jax.checkpoints.checkpoint import sharded_shapes
from plm_jax.compile.hlo import Program
from plm_jax.config.run import ConfigError, Phase, RunConfig
from plm_jax.errors import name_field, print_line
from plm_jax.progress import format_time
from plm_jax.training import run_metrics
from plm_jax.training.learner import make_learner, phase_learner, placeholder_vocab
from plm_jax.training.step import Learner, jit_train_step, make_sharded_init

GIB = 2 ** 30


@dataclasses.dataclass(frozen=True)
class Chip:
  """Data sheet of one JAX device: a core on TPU v2 and v3, a chip from v4 on (except for links)."""

  name: str  # in names of topologies
  hbm_gib: float  # capacity
  hbm_bandwidth: float  # bytes/s
  link_bandwidth: float  # bytes/s that a whole chip sends over all its links together
  cores: int = 1  # devices per chip, which share its links
  topologies: str = ''  # to try
  vector_rate: float = 0.0  # operations/s of the vector units; 0: unknown
  slice_bandwidth: float = 0.0  # bytes/s of a chip's share of its host's network; 0: unknown


# By device kind. HBM and its bandwidth: cloud.google.com/tpu/docs, the page of each version. Links:
# v2 4 x 496 and v3 4 x 656 Gbit/s (Jouppi et al. 2020, "A domain-specific supercomputer for
# training deep neural networks"), v4 6 x 50 GB/s (Jouppi et al. 2023, "TPU v4"), later ones half
# the bidirectional bandwidth on those pages. No data sheet has the vector units' peak: it is 128
# lanes x 8 rows x ALUs, two on v2 and v3 (Norrie et al. 2021, "The Design Process for Google's
# Training Chips") and four later (Austin et al. 2025, "How to Scale Your Model", of v5p), at the
# clock that the peak of the matrix units implies. Between slices: the data center network of those
# pages, of 256 chips (v5e 6.4, v6e 25.6 Tbit/s) or of one (v5p 50 Gbit/s).
CHIPS = {
    'TPU v2': Chip('v2', 8, 350e9, 248e9, cores=2, topologies='v2:2x2 v2:4x4 v2:16x16',
                   vector_rate=1.43e12),
    'TPU v3': Chip('v3', 16, 450e9, 328e9, cores=2, topologies='v3:2x2 v3:4x4 v3:8x8 v3:32x32',
                   vector_rate=1.92e12),
    'TPU v4': Chip('v4', 32, 1228e9, 300e9, topologies='v4:2x2x1 v4:2x2x2 v4:4x4x4 v4:4x4x8',
                   vector_rate=8.6e12),
    'TPU v5 lite': Chip('v5e', 16, 819e9, 200e9, topologies='v5e:2x2 v5e:4x4 v5e:8x8 v5e:16x16',
                        vector_rate=6.2e12, slice_bandwidth=3.125e9),
    'TPU v5': Chip('v5p', 95, 2765e9, 600e9, topologies='v5p:2x2x1 v5p:2x2x2 v5p:4x4x4',
                   vector_rate=14.3e12, slice_bandwidth=6.25e9),
    'TPU v6 lite': Chip('v6e', 32, 1640e9, 400e9, topologies='v6e:2x2 v6e:4x4 v6e:8x8 v6e:16x16',
                        slice_bandwidth=12.5e9),
}


@dataclasses.dataclass(frozen=True)
class CompileReport:
  """Cost of the compiled step of one phase on one device; bytes, FLOPs and counts are per step."""

  kind: str  # of the device
  memory: Mapping[str, int]  # bytes of HBM by purpose
  model_flops: float  # analytic, of the model as written
  flops: float  # of matrix products in the compiled program
  hbm_traffic: int  # bytes between chip and HBM
  # (kind, overlapped) -> (count, bytes, bytes sent):
  collectives: Mapping[tuple[str, bool], tuple[int, int, float]]
  unknown_loops: int  # loops of unknown length, whose bodies count once
  compile_seconds: float
  vector_operations: int = 0
  host_bytes: int = 0  # memory of a host: the rows of its devices, and buffers of the program
  cross_slice_bytes: float = 0.0  # sent by the device to other slices

  @property
  def hbm_bytes(self) -> int:
    """Bytes of HBM that the program uses on one device."""
    return sum(self.memory.values())

  @property
  def sent_bytes(self) -> float:
    """Bytes that the device sends to others."""
    return sum(sent for _, _, sent in self.collectives.values())

  @property
  def lower_bounds(self) -> dict[str, float]:
    """Roofline lower bounds: seconds per step for each kind of work at the device's peak."""
    chip = CHIPS[self.kind]
    # Cores that share links can add up their messages on the chip, which then sends one for both.
    bounds = {'compute': self.flops / run_metrics.PEAK_FLOPS[self.kind],
              'memory': self.hbm_traffic / chip.hbm_bandwidth,
              'network': self.sent_bytes / chip.link_bandwidth}
    if self.cross_slice_bytes and chip.slice_bandwidth:
      bounds['between slices'] = self.cross_slice_bytes / chip.slice_bandwidth
    return bounds

  @property
  def bound_by(self) -> str:
    """The kind of work with the largest lower bound."""
    return max(self.lower_bounds, key=lambda name: self.lower_bounds[name])

  @property
  def lower_bound(self) -> float:
    """Roofline lower bound of a step, in seconds."""
    return self.lower_bounds[self.bound_by]

  @property
  def mfu(self) -> float:
    """Upper bound of the model FLOPs utilization, at `lower_bound` (Chowdhery et al. 2022, B).

    Counts at most the FLOPs that are computed: not the gradients of frozen parameters.
    """
    flops = min(self.model_flops, self.flops)
    return flops / run_metrics.PEAK_FLOPS[self.kind] / self.lower_bound


def compile_run(config: RunConfig) -> list[CompileReport]:
  """Compile the step of every phase for config.topology, and print its cost.

  Raises:
    ConfigError: the compiler does not know the topology, or a step does not fit its memory.
  """
  devices = topology_devices(config.topology)
  kind = devices[0].device_kind
  mesh = sharding.make_mesh(config.mesh, devices)
  for phase in config.train.phases:
    sharding.check_batch(phase.batch, config.train.accumulate, mesh)
  learner = make_learner(config, placeholder_vocab(config))
  axes = ' x '.join(f'{size} {axis}' for axis, size in mesh.shape.items())
  compilers = ', '.join(f'{name} {importlib.metadata.version(name)}' for name in ('jax', 'libtpu'))
  print(f'{config.name} on {config.topology}: {len(devices)} x {kind}, mesh {axes}, compiled by '
        f'{compilers}')
  libtpu = Version(importlib.metadata.version('libtpu'))
  if kind == 'TPU v6 lite' and libtpu < Version('0.0.50'):
    print('if this ends without a word: libtpu 0.0.42 overflows its stack on some programs for '
          'v6e, 0.0.50 does not (Python 3.12 has it)', flush=True)
  reports = []
  for phase in extreme_phases(config.train.phases):
    shards = math.prod(mesh.shape[axis] for axis in sharding.AXIS_RULES['batch'])
    steps = f' in {config.train.accumulate} micro-steps' if config.train.accumulate > 1 else ''
    print(f'\n{phase.batch} rows of {phase.length} tokens, {phase.batch // shards} per device'
          f'{steps}: compiling, which takes minutes', flush=True)
    reports.append(analyze_step(config, learner, phase, mesh))
    print_line(format_report(reports[-1], phase, mesh.size))
  if len(reports) == len(config.train.phases):
    print(f'\n{describe_total(config, reports, len(devices))}')
  return reports


def describe_total(config: RunConfig, reports: Sequence[CompileReport], devices: int) -> str:
  """Describe the lower bound of all steps of a run, from a report per phase."""
  phases = zip(config.train.phases, reports, strict=True)
  seconds = sum(phase.steps * report.lower_bound for phase, report in phases)
  hours = seconds * devices / CHIPS[reports[0].kind].cores / 3600
  return (f'all {config.train.steps:,} steps: at least {format_time(seconds)}, '
          f'{hours:,.1f} chip-hours')


def extreme_phases(phases: Sequence[Phase]) -> list[Phase]:
  """Return, for each length and mask rate, the phases with the largest and the smallest batch.

  The smallest matters, too: for few rows the compiler may make another program, which can need more
  memory.
  """
  batches: dict[tuple[int, float | None], list[int]] = {}
  for phase in phases:
    batches.setdefault((phase.length, phase.mask_rate), []).append(phase.batch)
  extremes = {}
  for phase in phases:
    sizes = batches[phase.length, phase.mask_rate]
    if phase.batch in (min(sizes), max(sizes)):
      extremes[phase.length, phase.mask_rate, phase.batch] = phase
  return list(extremes.values())


def topology_devices(name: str) -> list[Any]:
  """Return the devices of a pod that is not attached: v5e:4x4, or several slices, 2xv5e:4x4.

  Raises:
    ConfigError: the compiler does not know the name.
  """
  if importlib.util.find_spec('libtpu') is None:
    raise ConfigError(f'{name_field("mode")}=compile needs the TPU compiler: pip install '
                      "'plm_jax[tpu]'")
  # No TPU of this machine is used, so none is looked for or locked: its kind and hosts do not
  # matter.
  settings = {'TPU_SKIP_MDS_QUERY': '1', 'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
              'TPU_ACCELERATOR_TYPE': 'v2-8', 'TPU_WORKER_HOSTNAMES': 'localhost'}
  for variable, setting in settings.items():
    os.environ.setdefault(variable, setting)
  with contextlib.suppress(RuntimeError):  # backends are initialized already
    jax.config.update('jax_platforms', 'cpu')
  slices, shape = parse_slices(name)
  options: dict[str, Any] = {}
  if shape.startswith('v4'):  # whose chips are one device only on request; v2 and v3 never are
    options['chip_config_name'] = 'megacore'
  try:
    topology = topologies.get_topology_desc(shape, platform='tpu', num_slices=slices, **options)
    return list(topology.devices)
  except (RuntimeError, ValueError, NotImplementedError) as error:
    known = '\n  '.join(chip.topologies for chip in CHIPS.values())
    raise ConfigError(f'{name_field("topology")} {name!r} is none that the compiler knows '
                      f'({first_line(error)}). Names that work, among others:\n  '
                      f'{known}') from error


def parse_slices(name: str) -> tuple[int, str]:
  """Parse the name of a topology into the number of slices, and the name of one.

  >>> parse_slices('2xv5e:4x4'), parse_slices('v5e:4x4')
  ((2, 'v5e:4x4'), (1, 'v5e:4x4'))
  """
  found = re.fullmatch(r'([1-9]\d*)x(v.*)', name)
  return (int(found[1]), found[2]) if found else (1, name)


def analyze_step(config: RunConfig, learner: Learner, phase: Phase, mesh) -> CompileReport:
  """Compile the step of one phase and compute its cost. Raises ConfigError if it does not fit."""
  # Compile.
  learner = phase_learner(config, learner, phase)
  windows = learner.objective.shapes(phase.batch, phase.length, sharding.batch_sharding(mesh))
  start_time = time.time()
  with jax.set_mesh(mesh):
    _, shapes, layout = make_sharded_init(learner, windows, mesh)
    placed = sharded_shapes(shapes, layout)
    lowered = jit_train_step(learner, layout).lower(placed, windows)
    with explain_out_of_memory(phase):
      compiled = lowered.compile()
  seconds = time.time() - start_time

  # Memory.
  stats: Any = compiled.memory_analysis()
  params, opt_state = device_bytes(placed.params), device_bytes(placed.opt_state)
  memory = {
      'parameters': params,
      'optimizer state': opt_state,
      'other arguments (the batch)': max(0, stats.argument_size_in_bytes - params - opt_state),
      'results that reuse no argument': stats.output_size_in_bytes - stats.alias_size_in_bytes,
      'temporaries (activations, gradients)': stats.temp_size_in_bytes,
      'program': stats.generated_code_size_in_bytes,
  }
  devices = mesh.devices.flatten().tolist()
  kind = devices[0].device_kind
  check_memory(kind, memory, phase)
  on_host = sum(device.process_index == devices[0].process_index for device in devices)
  host_bytes = on_host * (device_bytes(windows) + pinned_host_bytes(stats))

  # Work.
  program = Program(compiled.as_text() or '', mesh.size)
  collectives: dict[tuple[str, bool], tuple[int, int, float]] = {}
  for x in program.collectives:
    count, size, sent = collectives.get((x.kind, x.overlapped), (0, 0, 0.0))
    collectives[x.kind, x.overlapped] = (
        count + x.times, size + x.times * x.bytes, sent + x.times * x.sent_bytes)
  flops = phase.batch * learner.objective.step_flops(config.model, phase.length)
  slices = sharding.count_slices(devices)
  return CompileReport(
      kind=kind, memory=memory, model_flops=flops / mesh.size, flops=program.flops,
      hbm_traffic=program.hbm_bytes, collectives=collectives,
      unknown_loops=len(program.unknown_loops), compile_seconds=seconds,
      vector_operations=program.vector_operations, host_bytes=host_bytes,
      cross_slice_bytes=program.cross_slice_bytes(slices))


def pinned_host_bytes(stats: Any) -> int:
  """Return the bytes of a host's memory that a device's program uses (pinned_host)."""
  argument, output, temp, alias = (
      getattr(stats, f'host_{name}_size_in_bytes', 0)
      for name in ('argument', 'output', 'temp', 'alias'))
  return argument + output + temp - alias


def device_bytes(tree) -> int:
  """Return the bytes of a tree of shapes with shardings on one device."""
  return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
             for x in jax.tree.leaves(tree))


def check_memory(kind: str, memory: Mapping[str, int], phase: Phase) -> None:
  """Raise ConfigError if a step needs more HBM than a device has: the compiler may not notice.

  Args:
    kind: of the device.
    memory: bytes by purpose.
    phase: of the step.
  """
  chip, total = CHIPS.get(kind), sum(memory.values()) / GIB
  if chip and total > chip.hbm_gib:
    largest = max(memory, key=lambda name: memory[name])
    needed = (f'{total:.1f} of {chip.hbm_gib:g} GiB, of which {memory[largest] / GIB:.1f} are '
              f'{largest}')
    raise ConfigError(memory_error_message(phase, needed))


@contextlib.contextmanager
def explain_out_of_memory(phase: Phase) -> Iterator[None]:
  """Turn a failed allocation on a device, of the compiler or of a step, into a ConfigError."""
  try:
    yield
  except jax.errors.JaxRuntimeError as error:
    if 'RESOURCE_EXHAUSTED' not in str(error):
      raise
    raise ConfigError(out_of_memory_message(str(error), phase)) from error


def out_of_memory_message(message: str, phase: Phase) -> str:
  """Shorten the compiler's error message to what a user needs."""
  lines = [line.strip() for line in message.splitlines()]
  needed = re.search(
      r'Used [\d.]+\w+ of [\d.]+\w+ \w+|total memory required .*? exceeds available .*?\)', message)
  sizes = [line for line in lines if re.match(r'(\d+\. )?Size: ', line)]
  shapes = [line for line in lines if line.startswith('Shape: ')]
  pairs = zip(sizes[:4], shapes[:4], strict=False)
  buffers = ''.join(f'\n  {size}  {shape}' for size, shape in pairs)
  amount = first_line(message)
  allocation = re.search(r'Out of memory allocating (\d+) bytes', message)
  if needed:
    amount = needed[0]
  elif allocation:
    amount = f'no room for a buffer of {int(allocation[1]) / GIB:,.1f} GiB'
  return memory_error_message(phase, amount, buffers, core='vmem' in message)


def memory_error_message(phase: Phase, needed: str, buffers: str = '', core: bool = False) -> str:
  """Return a message that a step does not fit, with advice.

  Args:
    phase: of the step.
    needed: what it needs of what there is.
    buffers: lines about the largest buffers; '': unknown.
    core: the memory is a core's VMEM, not a device's HBM.
  """
  memory = 'device'
  advice = (f'{name_field("train.accumulate")} 2 (or more), {name_field("model.stack.remat")} dots '
            f'(or full), {name_field("mesh.fsdp")} 8 (or more; splits parameters and optimizer '
            'state), a smaller batch, or a larger pod.')
  if core:
    # Fewer rows need no less VMEM: the compiler has chosen tiles that are too large for it.
    memory = 'core (VMEM)'
    advice = (f'another {name_field("mesh.fsdp")} (half of it, say) or '
              f'{name_field("mesh.tensor")}, or chips with more of this memory (v5p).')
  largest = f' The largest buffers:{buffers}' if buffers else ''
  return (f'{phase.batch} rows of {phase.length} tokens do not fit the memory of a {memory}: '
          f'{needed}.{largest}\nTry {advice}')


def first_line(error: Any) -> str:
  """Return the first line of an error's text, at most 200 characters; else its type's name."""
  lines = str(error).strip().splitlines()
  return lines[0][:200] if lines else type(error).__name__


def format_report(report: CompileReport, phase: Phase, devices: int) -> str:
  """Format a report as a table.

  Args:
    report: of a step.
    phase: of the step.
    devices: in the mesh.
  """
  chip = CHIPS.get(report.kind)

  # Memory and work.
  lines = ['HBM per device',
           *(f'  {name:38}{size / GIB:8.3f} GiB' for name, size in report.memory.items())]
  total = report.hbm_bytes / GIB
  share = f' of {chip.hbm_gib:g} ({total / chip.hbm_gib:.0%})' if chip else ''
  lines += [
      f'  {"total":38}{total:8.3f} GiB{share}',
      'work per device and step',
      f'  {"model FLOPs (analytic)":38}{report.model_flops / 1e9:8,.0f} G',
      f'  {"compiled FLOPs":38}{report.flops / 1e9:8,.0f} G    matrix products; bodies of loops as '
      'often as they run',
      f'  {"HBM traffic":38}{report.hbm_traffic / 1e9:8.2f} GB   each kernel reads its operands, '
      'writes its results, once']
  took = ''
  if chip and chip.vector_rate:
    seconds = report.vector_operations / chip.vector_rate
    took = (f', {seconds * 1e3:.2f} ms at the peak of {chip.vector_rate / 1e12:.3g} T/s that the '
            'number of lanes gives')
  lines += [
      f'  {"vector operations":38}{report.vector_operations / 1e9:8,.0f} G    number by number'
      f'{took}: in no bound',
      f'{"host memory":40}{report.host_bytes / 2 ** 20:8,.2f} MiB  its rows of the batch, and '
      'buffers of the program']

  # Communication.
  if report.collectives:
    lines.append('collectives per step')
  for (kind, overlapped), (count, size, sent) in report.collectives.items():
    name = f'{kind}, overlapped' if overlapped else kind
    lines.append(f'  {name:38}{size / 1e6:8,.1f} MB   in {count:,}; a device sends '
                 f'{sent / 1e6:,.1f} MB')
  if report.cross_slice_bytes:
    lines.append(f'  {"between slices":38}{"":8}      a device sends '
                 f'{report.cross_slice_bytes / 1e6:,.1f} MB through its host')
  if report.unknown_loops:
    lines.append(f'  {report.unknown_loops} loops are of unknown length: their bodies are counted '
                 'once')

  # Lower bounds of the time per step.
  if chip:
    lines.append('roofline: bounds from data sheets, not measurements')
    for name, seconds in report.lower_bounds.items():
      lines.append(f'  {name:38}{seconds * 1e3:8.2f} ms')
    speed = phase.batch * phase.length / report.lower_bound
    lines.append(f'  bound by {report.bound_by}: a step of this program takes '
                 f'{report.lower_bound * 1e3:.2f} ms or longer, so at most {speed:,.0f} tokens/s '
                 f'on {devices} devices and MFU {report.mfu:.0%}')
  lines.append(f'compiled in {report.compile_seconds:.0f} s')
  return '\n'.join(lines)
