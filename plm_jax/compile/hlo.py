"""Analysis of a compiled program's optimized HLO text: FLOPs, memory traffic and collectives.

XLA's own cost analysis counts the body of a loop once; here every instruction counts as often as it
runs.
"""
from collections.abc import Iterator
import dataclasses
import functools
import itertools
import math
import re

from plm_jax.compile import hlo_parser
from plm_jax.compile.hlo_parser import Computation, Instruction

COLLECTIVES = (
    'all-reduce', 'all-gather', 'reduce-scatter', 'all-to-all', 'ragged-all-to-all',
    'collective-permute', 'collective-broadcast')
# Instructions that move no data, or whose movement is counted for another instruction.
FREE_OPS = frozenset({
    'parameter', 'constant', 'get-tuple-element', 'tuple', 'bitcast', 'while', 'conditional',
    'call', 'after-all', 'partition-id', 'replica-id', 'iota', 'add-dependency', 'opt-barrier',
    'domain'})
FREE_CALLS = ('AllocateBuffer', 'ConcatBitcast', 'AssumeGatherIndicesInBound',
              'GatherScatterIndicesBitpacked')
KERNEL_FLOPS = r'"cost_estimate":\{"flops":"(\d+)"'
MEGASCALE_RUNTIME = '"xla_megascale_runtime"'  # of transfers from one slice to another
KERNEL_VECTORS = r'vector_operations\W+(\d+)'
# What a vector unit does number by number; an exponential counts as much as a sum.
VECTOR_OPS = frozenset({
    'add', 'subtract', 'multiply', 'divide', 'negate', 'abs', 'sign', 'maximum', 'minimum', 'clamp',
    'power', 'remainder', 'exponential', 'exponential-minus-one', 'log', 'log-plus-one', 'logistic',
    'tanh', 'erf', 'sine', 'cosine', 'sqrt', 'rsqrt', 'cbrt', 'compare', 'select', 'and', 'or',
    'xor', 'not', 'shift-left', 'shift-right-logical', 'shift-right-arithmetic', 'convert', 'floor',
    'ceil', 'round-nearest-even', 'is-finite'})


@dataclasses.dataclass(frozen=True)
class ExecutedInstruction:
  """An instruction with its computation and the number of times that it runs."""

  instruction: Instruction
  computation: str
  times: int
  fused: bool  # part of a larger kernel: operands and results need not pass through memory


@dataclasses.dataclass(frozen=True)
class Collective:
  """Data exchanged between devices: `bytes` of the whole message on one of `group` devices."""

  kind: str
  bytes: int
  group: int
  times: int
  overlapped: bool  # asynchronous, so that other work may run meanwhile

  @property
  def sent_bytes(self) -> float:
    """Lower bound of bytes sent per device: a ring's (Thakur et al. 2005, section 4)."""
    share = (self.group - 1) / self.group
    return self.bytes * {'all-reduce': 2 * share, 'collective-permute': 1.0}.get(self.kind, share)


class Program:
  """A compiled program: `Program(compiled.as_text())`.

  Args:
    text: optimized HLO.
    devices: number of devices in a collective without stated groups.
  """

  def __init__(self, text: str, devices: int = 1):
    self.devices = devices
    self.computations, self.entry = hlo_parser.parse_hlo(text)
    # Computations that are one kernel: in others, updates in place stay in place, also of values
    # that a loop carries.
    self.kernels = {
        name for computation in self.computations.values() for x in computation.values()
        if x.op == 'fusion' for name in x.called_computations('calls')}
    self.unknown_loops: set[str] = set()  # of unknown length: counted once
    self.steps = list(self.walk(self.entry, 1, False))

  def walk(self, name: str, times: int, fused: bool) -> Iterator[ExecutedInstruction]:
    """Yield every instruction that a call of computation `name` runs; all branches of
    conditionals.

    Args:
      name: of the computation.
      times: how often it is called.
      fused: it is part of a kernel.
    """
    for x in self.computations[name].values():
      yield ExecutedInstruction(x, name, times, fused)
      if x.op == 'while':
        body = x.called_computations('body')[0]
        yield from self.walk(body, times * self.trip_count(x), fused)
      elif x.op in ('fusion', 'call', 'conditional', 'async-start'):
        for called in x.called_computations('calls', 'to_apply', 'branch_computations',
                                            'true_computation', 'false_computation'):
          yield from self.walk(called, times, fused or x.op == 'fusion')

  def trip_count(self, loop: Instruction) -> int:
    """Return how often a loop's body runs.

    As annotated by the compiler, or computed from its counter's start, step and bound.
    """
    if known := loop.parse_number(r'"known_trip_count":\{"n":"(\d+)"', 0):
      return known
    condition = self.computations[loop.called_computations('condition')[0]]
    body = self.computations[loop.called_computations('body')[0]]
    test, last = hlo_parser.find_root(condition), hlo_parser.find_root(body)
    try:
      counter, bound = (hlo_parser.resolve_copies(condition, name) for name in test.operands)
      index = counter.parse_number(r'index=(\d+)', -1)
      home = next(part for part in self.computations.values() if part.get(loop.name) is loop)
      initial = hlo_parser.resolve_copies(home, loop.operands[0])
      start = hlo_parser.constant_value(hlo_parser.resolve_copies(home, initial.operands[index]))
      step = loop_increment(body, last.operands[index], index)
      if test.op == 'compare' and 'direction=LT' in test.attributes and last.op == 'tuple':
        return max(0, -((start - hlo_parser.constant_value(bound)) // step))
    except (ValueError, IndexError, ZeroDivisionError, KeyError):
      pass
    self.unknown_loops.add(loop.name)
    return 1

  @functools.cached_property
  def flops(self) -> int:
    """FLOPs of matrix products, convolutions and kernels; a multiply-add counts as two."""
    total = self.kernel_flops
    for step in self.steps:
      if step.instruction.op in ('dot', 'convolution'):
        total += step.times * self.product_flops(step)
    return total

  @functools.cached_property
  def kernel_flops(self) -> int:
    """FLOPs that Pallas kernels declare, which are visible only in their cost estimates."""
    return sum(step.times * step.instruction.parse_number(KERNEL_FLOPS, 0)
               for step in self.steps if step.instruction.op == 'custom-call')

  @functools.cached_property
  def vector_operations(self) -> int:
    """Elementwise operations outside of matrix products, and those that kernels declare.

    A sum over an axis counts as one operation per number that it reads.
    """
    total = 0
    for step in self.steps:
      x = step.instruction
      if x.op in VECTOR_OPS:
        total += step.times * sum(buffer.size for buffer in x.result)
      elif x.op == 'reduce':
        read = self.computations[step.computation][x.operands[0]].result
        total += step.times * sum(buffer.size for buffer in read)
      elif x.op == 'custom-call':
        total += step.times * x.parse_number(KERNEL_VECTORS, 0)
    return total

  @functools.cached_property
  def hbm_bytes(self) -> int:
    """HBM traffic, if every kernel reads its operands and writes its results once.

    For an operand that a kernel only slices, the slices count. For a result that it updates in
    place, the update counts.
    """
    return sum(step.times * self.traffic_bytes(step) for step in self.steps if not step.fused)

  def cross_slice_bytes(self, slices: int) -> float:
    """Return a lower bound of bytes that a device sends to other slices, through its host.

    In a ring, as in `Collective.sent_bytes`: all-reduced data is sent twice.
    """
    total = 0.0
    for step in self.steps:
      x = step.instruction
      if x.op == 'send' and MEGASCALE_RUNTIME in x.attributes:
        twice = 2 if '_xla_megascale_transfer_type="ALL_REDUCE"' in x.attributes else 1
        total += step.times * twice * (slices - 1) / slices * x.result[0].bytes
    return total

  @functools.cached_property
  def collectives(self) -> list[Collective]:
    """Collectives, with the bytes of the whole array that a group of devices exchanges.

    The array is counted after it is gathered, or before it is reduced.
    """
    found, channels = [], set()
    for step in self.steps:
      x = step.instruction
      kind = x.op.removesuffix('-start')
      channel = x.parse_number(r'channel_id=(\d+)', 0)
      # One collective fused with several parts of other work is in the text once for each.
      if kind not in COLLECTIVES or (step.fused and channel in channels):
        continue
      channels.add(channel)
      group = group_size(x.attributes, self.devices)
      operand_bytes = self.operand_bytes(step)
      size = 0
      if kind == 'all-gather':
        size = operand_bytes * group
      elif kind == 'collective-permute':
        size = operand_bytes
      if not size:
        # An all-reduce may convert its operand to a narrower type.
        size = x.result_bytes
        if kind == 'reduce-scatter':
          size *= group
      if kind == 'all-reduce' and 'all-reduce-scatter' in step.computation:
        kind = 'reduce-scatter'
      overlapped = x.op.endswith('-start') or step.computation.startswith('async')
      found.append(Collective(kind, size, group, step.times, overlapped))
    return found

  def operand_bytes(self, step: ExecutedInstruction) -> int:
    """Return the bytes of an instruction's operands."""
    names = self.computations[step.computation]
    return sum(names[name].result_bytes for name in step.instruction.operands)

  def product_flops(self, step: ExecutedInstruction) -> int:
    """Return the FLOPs of a dot or convolution; a multiply-add counts as two."""
    x, names = step.instruction, self.computations[step.computation]
    left, right = (names[name].result[0].dims for name in x.operands[:2])
    out = x.result[0].dims
    if x.op == 'convolution':
      return convolution_flops(x, left, right, out)
    contracted = re.search(r'lhs_contracting_dims=\{([\d,]*)\}', x.attributes)
    if not contracted:
      return 0
    axes = [int(axis) for axis in contracted[1].split(',') if axis]
    return 2 * math.prod(out) * math.prod(left[axis] for axis in axes)

  def traffic_bytes(self, step: ExecutedInstruction) -> int:
    """Return the bytes of HBM traffic of one instruction."""
    x, names = step.instruction, self.computations[step.computation]
    if x.op in FREE_OPS or x.op.endswith(('-done', '-update')):
      return 0
    if x.op == 'custom-call' and any(f'"{name}"' in x.attributes for name in FREE_CALLS):
      return 0
    in_hbm = [name for name in x.operands if name in names and (
        not all(buffer.on_chip for buffer in names[name].result))]
    if x.op in ('copy-start', 'slice-start'):
      # The result has source and target (and a semaphore).
      target = x.result[0 if x.op == 'copy-start' else 1]
      return target.bytes * (len(in_hbm) + (not target.on_chip))
    if x.op in ('send', 'recv'):  # of a host: the result is the array, its id there, and a token
      return 0 if x.result[0].on_chip else x.result[0].bytes
    if x.op in ('collective-permute-start', 'all-gather-start') and len(x.result) > 1:
      read = self.operand_bytes(step) if in_hbm else 0
      return read if x.result[1].on_chip else read + x.result[1].bytes
    called = x.called_computations('calls') if x.op == 'fusion' else []
    if called:
      body = self.computations[called[0]]
      read = sum(self.bytes_read(called[0], hlo_parser.find_parameter(body, number))
                 for number, name in enumerate(x.operands) if name in in_hbm)
    else:
      read = sum(self.bytes_read_by(step.computation, x, name) for name in in_hbm)
    sizes = zip(self.bytes_written(step.computation, x), x.result, strict=True)
    return read + sum(size for size, buffer in sizes if not buffer.on_chip)

  def bytes_read(self, computation: str, x: Instruction | None) -> int:
    """Return the bytes that a kernel reads of a parameter, or of an alias of one."""
    if x is None:
      return 0
    read = sum(self.bytes_read_by(computation, user, x.name)
               for user in self.computations[computation].values() if x.name in user.operands)
    return min(read, x.result_bytes)

  def bytes_read_by(self, computation: str, user: Instruction, name: str) -> int:
    """Return the bytes that one user of the instruction `name` reads of its result."""
    size = self.computations[computation][name].result_bytes
    if hlo_parser.is_alias(user):
      return self.bytes_read(computation, user)
    if user.op == 'fusion' and (called := user.called_computations('calls')):
      body = self.computations[called[0]]
      return sum(self.bytes_read(called[0], hlo_parser.find_parameter(body, number))
                 for number, operand in enumerate(user.operands) if operand == name)
    if user.operands[0] == name:
      if user.op in ('dynamic-slice', 'slice', 'gather'):
        return min(size, user.result[0].bytes)
      if user.op in ('dynamic-update-slice', 'scatter'):
        return 0
    return size

  def bytes_written(self, computation: str, x: Instruction) -> list[int]:
    """Return the bytes that a kernel writes for each of its results."""
    names = self.computations[computation]
    if x.op == 'tuple':
      return [size for name in x.operands for size in self.bytes_written(computation, names[name])]
    if hlo_parser.is_alias(x):
      return self.bytes_written(computation, names[x.operands[0]])
    if x.op == 'fusion' and (called := x.called_computations('calls')):
      return self.bytes_written(called[0], hlo_parser.find_root(self.computations[called[0]]))
    if x.op in ('dynamic-update-slice', 'scatter'):
      origin = names[x.operands[0]]
      while hlo_parser.is_alias(origin):
        origin = names[origin.operands[0]]
      if origin.op == 'parameter' or computation not in self.kernels:
        update = x.operands[1] if x.op == 'dynamic-update-slice' else x.operands[-1]
        return [names[update].result[0].bytes]
    return [0] if x.op == 'parameter' else [buffer.bytes for buffer in x.result]


def loop_increment(body: Computation, name: str, index: int) -> int:
  """Return what a loop's body adds to element `index` of its carried values. Raises ValueError."""
  x = hlo_parser.resolve_copies(body, name)
  is_element = x.op == 'get-tuple-element' and x.parse_number(r'index=(\d+)', -1) == index
  if is_element and body[x.operands[0]].op == 'parameter':
    return 0
  if x.op != 'add':
    raise ValueError(f'{name} is no sum')
  parts = [hlo_parser.resolve_copies(body, operand) for operand in x.operands]
  parts.sort(key=lambda part: part.op == 'constant')
  return loop_increment(body, parts[0].name, index) + hlo_parser.constant_value(parts[1])


def group_size(attributes: str, devices: int) -> int:
  """Return the devices per group of a collective, from any of the three notations of groups."""
  mesh = r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\([^{]*\))? \{([^}]*)\}"
  if match := re.search(mesh, attributes):
    sizes = dict(re.findall(r"'([^']+)'=(\d+)", match[1]))
    # Part of an axis is written 'axis':(pre)size.
    axes = re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", match[2])
    return math.prod(int(part or sizes[axis]) for axis, part in axes)
  if match := re.search(r'replica_groups=\[\d+,(\d+)\]<=', attributes):
    return int(match[1])
  if match := re.search(r'replica_groups=\{\{([\d,]+)\}', attributes):
    return match[1].count(',') + 1
  return devices


def convolution_flops(x: Instruction, left, right, out) -> int:
  """Return the FLOPs of a convolution, without products with padding or dilation zeros.

  The TPU compiler writes batched matrix products as such convolutions.

  Args:
    x: the instruction.
    left, right, out: dimensions of both operands and of the result.
  """
  labels = re.search(r'dim_labels=(\w+)_(\w+)->(\w+)', x.attributes)
  assert labels, x.attributes
  window = (re.search(r'window=\{([^}]*)\}', x.attributes) or ['', ''])[1]
  fields = dict(re.findall(r'(\w+)=(\S+)', window))
  spatial = sorted(c for c in labels[1] if c.isdigit())

  def read_field(name: str, default: int) -> list[int]:
    if name not in fields:
      return [default] * len(spatial)
    return [int(number) for number in fields[name].split('x')]

  padding = [0] * len(spatial)  # before each axis
  if 'pad' in fields:
    padding = [int(pair.split('_')[0]) for pair in fields['pad'].split('x')]
  sizes, strides = read_field('size', 1), read_field('stride', 1)
  bases, dilations = read_field('lhs_dilate', 1), read_field('rhs_dilate', 1)
  pairs = 1
  for axis, size, stride, pad, base, dilation in zip(
      spatial, sizes, strides, padding, bases, dilations, strict=True):
    length, places = left[labels[1].index(axis)], out[labels[3].index(axis)]
    count = 0
    for place, offset in itertools.product(range(places), range(size)):
      position = place * stride + offset * dilation - pad
      count += 0 <= position <= (length - 1) * base and position % base == 0
    pairs *= count
  batch = left[labels[1].index('b')] // x.parse_number(r'batch_group_count=(\d+)', 1)
  return 2 * pairs * batch * right[labels[2].index('i')] * right[labels[2].index('o')]
