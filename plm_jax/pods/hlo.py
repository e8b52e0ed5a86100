"""What a compiled program does, read from its optimized HLO text.

XLA's own cost analysis counts the body of a loop once; here every instruction counts as often as it runs.
"""
from collections.abc import Iterator
import dataclasses
import functools
import itertools
import math
import re

COLLECTIVES = (
    'all-reduce', 'all-gather', 'reduce-scatter', 'all-to-all', 'ragged-all-to-all', 'collective-permute',
    'collective-broadcast')
# Instructions that move nothing, or whose movement another one stands for.
FREE = frozenset({
    'parameter', 'constant', 'get-tuple-element', 'tuple', 'bitcast', 'while', 'conditional', 'call', 'after-all',
    'partition-id', 'replica-id', 'iota', 'add-dependency', 'opt-barrier', 'domain'})
FREE_CALLS = ('AllocateBuffer', 'ConcatBitcast', 'AssumeGatherIndicesInBound', 'GatherScatterIndicesBitpacked')
KERNEL_FLOPS = r'"cost_estimate":\{"flops":"(\d+)"'
ACROSS = '"xla_megascale_runtime"'  # what takes an array from one slice to another
KERNEL_VECTORS = r'vector_operations\W+(\d+)'
# What a vector unit does number by number; an exponential counts as much as a sum.
VECTOR = frozenset({
    'add', 'subtract', 'multiply', 'divide', 'negate', 'abs', 'sign', 'maximum', 'minimum', 'clamp', 'power',
    'remainder', 'exponential', 'exponential-minus-one', 'log', 'log-plus-one', 'logistic', 'tanh', 'erf', 'sine',
    'cosine', 'sqrt', 'rsqrt', 'cbrt', 'compare', 'select', 'and', 'or', 'xor', 'not', 'shift-left',
    'shift-right-logical', 'shift-right-arithmetic', 'convert', 'floor', 'ceil', 'round-nearest-even', 'is-finite'})
BITS = {'pred': 8, 'token': 0, 'opaque': 0}


@dataclasses.dataclass(frozen=True)
class Buffer:
  """An array of a shape."""

  dtype: str
  dims: tuple[int, ...]
  near: bool  # kept in on-chip memory, not in HBM

  @property
  def bytes(self) -> int:
    """Bytes without padding; 0 of a token, and of what has no size."""
    bits = BITS.get(self.dtype) if self.dtype in BITS else int((re.findall(r'\d+', self.dtype) or ['0'])[0])
    return math.ceil(math.prod(self.dims) * (bits or 0) / 8)


@dataclasses.dataclass(frozen=True)
class Instruction:
  name: str
  op: str
  result: tuple[Buffer, ...]  # several for a tuple
  operands: tuple[str, ...]
  attributes: str
  root: bool

  def called(self, *keys: str) -> list[str]:
    """Computations named under the attributes `keys`."""
    found = [m for key in keys for m in re.findall(rf'\b{key}=(\{{[^}}]*\}}|%?[\w.\-]+)', self.attributes)]
    return [name for text in found for name in re.findall(r'[\w.\-]+', text)]

  def number(self, pattern: str, default: int) -> int:
    """Returns the integer that the group of `pattern` finds among the attributes, or the default."""
    match = re.search(pattern, self.attributes)
    return int(match[1]) if match else default


Computation = dict[str, Instruction]


@dataclasses.dataclass(frozen=True)
class Step:
  """An instruction where it runs."""

  instruction: Instruction
  computation: str
  times: int
  fused: bool  # a part of a larger kernel: its operands and results need not pass through memory


@dataclasses.dataclass(frozen=True)
class Collective:
  """Data that devices exchange: `bytes` of the whole message on one device, among `group` devices."""

  kind: str
  bytes: int
  group: int
  times: int
  overlapped: bool  # started and awaited apart, so that other work may run meanwhile

  @property
  def sent(self) -> float:
    """The fewest bytes that a device must send: a ring's (Thakur et al. 2005, section 4)."""
    share = (self.group - 1) / self.group
    return self.bytes * {'all-reduce': 2 * share, 'collective-permute': 1.0}.get(self.kind, share)


class Program:
  """A compiled program: `Program(compiled.as_text())`. `devices` is what a collective of no stated group spans."""

  def __init__(self, text: str, devices: int = 1):
    self.devices = devices
    self.computations, self.entry = parse(text)
    # Computations that are one kernel: elsewhere an update in place stays one, also of what a loop hands on.
    self.kernels = {name for part in self.computations.values() for x in part.values() if x.op == 'fusion'
                    for name in x.called('calls')}
    self.endless: set[str] = set()  # loops whose length could not be found: counted once
    self.steps = list(self.walk(self.entry, 1, False))

  def walk(self, name: str, times: int, fused: bool) -> Iterator[Step]:
    """Yields every instruction that a call of computation `name` runs; of a conditional, all branches."""
    for x in self.computations[name].values():
      yield Step(x, name, times, fused)
      if x.op == 'while':
        yield from self.walk(x.called('body')[0], times * self.trips(x), fused)
      elif x.op in ('fusion', 'call', 'conditional', 'async-start'):
        for called in x.called('calls', 'to_apply', 'branch_computations', 'true_computation', 'false_computation'):
          yield from self.walk(called, times, fused or x.op == 'fusion')

  def trips(self, loop: Instruction) -> int:
    """Counts how often a loop's body runs: as the compiler says, or from its counter's start, step and bound."""
    if known := loop.number(r'"known_trip_count":\{"n":"(\d+)"', 0):
      return known
    condition, body = (self.computations[loop.called(key)[0]] for key in ('condition', 'body'))
    test, last = (next(x for x in part.values() if x.root) for part in (condition, body))
    try:
      counter, bound = (source(condition, name) for name in test.operands)
      index = counter.number(r'index=(\d+)', -1)
      home = next(part for part in self.computations.values() if part.get(loop.name) is loop)
      start = value(source(home, source(home, loop.operands[0]).operands[index]))
      step = increment(body, last.operands[index], index)
      if test.op == 'compare' and 'direction=LT' in test.attributes and last.op == 'tuple':
        return max(0, -((start - value(bound)) // step))
    except (ValueError, IndexError, ZeroDivisionError, KeyError):
      pass
    self.endless.add(loop.name)
    return 1

  @functools.cached_property
  def flops(self) -> int:
    """Of matrix products and convolutions, and what kernels say of theirs; a multiplication and an addition count one
    each."""
    products = (step for step in self.steps if step.instruction.op in ('dot', 'convolution'))
    return self.in_kernels + sum(step.times * self.product_flops(step) for step in products)

  @functools.cached_property
  def in_kernels(self) -> int:
    """FLOPs that kernels (Pallas) say they do, which stand nowhere else in the text."""
    return sum(step.times * step.instruction.number(KERNEL_FLOPS, 0) for step in self.steps
               if step.instruction.op == 'custom-call')

  @functools.cached_property
  def vectors(self) -> int:
    """Operations on single numbers outside of matrix products, and what kernels say of theirs; sums over an axis take
    one for each number that they read."""
    total = 0
    for step in self.steps:
      x = step.instruction
      if x.op in VECTOR:
        total += step.times * sum(math.prod(b.dims) for b in x.result)
      elif x.op == 'reduce':
        read = self.computations[step.computation][x.operands[0]].result
        total += step.times * sum(math.prod(b.dims) for b in read)
      elif x.op == 'custom-call':
        total += step.times * x.number(KERNEL_VECTORS, 0)
    return total

  @functools.cached_property
  def bytes(self) -> int:
    """Between the chip and its HBM, if every kernel reads its operands and writes its results once.

    Of an operand that a kernel only slices the slices count, of a result that it updates in place the update.
    """
    return sum(step.times * self.moved(step) for step in self.steps if not step.fused)

  def between(self, slices: int) -> float:
    """Counts the fewest bytes that a device has to send to other slices of a job, through its host: in a ring (as
    `Collective.sent`) what is added up goes around twice."""
    total = 0.0
    for step in self.steps:
      x = step.instruction
      if x.op == 'send' and ACROSS in x.attributes:
        twice = 2 if '_xla_megascale_transfer_type="ALL_REDUCE"' in x.attributes else 1
        total += step.times * twice * (slices - 1) / slices * x.result[0].bytes
    return total

  @functools.cached_property
  def collectives(self) -> list[Collective]:
    """Collectives, with the bytes of the whole array that a group of devices exchanges: gathered, or before it is
    reduced."""
    found, pieces = [], set()
    for step in self.steps:
      x = step.instruction
      kind = x.op.removesuffix('-start')
      channel = x.number(r'channel_id=(\d+)', 0)
      # Fused with several pieces of other work, one collective stands in the text once for each of them.
      if kind not in COLLECTIVES or (step.fused and channel in pieces):
        continue
      pieces.add(channel)
      group = group_size(x.attributes, self.devices)
      inside = self.operand_bytes(step)
      size = {'all-gather': inside * group, 'collective-permute': inside}.get(kind, 0)
      if not size:
        # An all-reduce may narrow its operand on the way.
        size = sum(b.bytes for b in x.result) * (group if kind == 'reduce-scatter' else 1)
      if kind == 'all-reduce' and 'all-reduce-scatter' in step.computation:
        kind = 'reduce-scatter'
      overlapped = x.op.endswith('-start') or step.computation.startswith('async')
      found.append(Collective(kind, size, group, step.times, overlapped))
    return found

  def operand_bytes(self, step: Step) -> int:
    """Counts the bytes of an instruction's operands."""
    names = self.computations[step.computation]
    return sum(b.bytes for name in step.instruction.operands for b in names[name].result)

  def product_flops(self, step: Step) -> int:
    """Counts the FLOPs of a dot or convolution, two a multiplication with its addition."""
    x, names = step.instruction, self.computations[step.computation]
    left, right = (names[name].result[0].dims for name in x.operands[:2])
    out = x.result[0].dims
    if x.op == 'dot':
      contracted = re.search(r'lhs_contracting_dims=\{([\d,]*)\}', x.attributes)
      return 2 * math.prod(out) * math.prod(left[int(d)] for d in contracted[1].split(',') if d) if contracted else 0
    return convolution_flops(x, left, right, out)

  def moved(self, step: Step) -> int:
    """Counts the bytes of HBM traffic of one instruction."""
    x, names = step.instruction, self.computations[step.computation]
    if x.op in FREE or x.op.endswith(('-done', '-update')):
      return 0
    if x.op == 'custom-call' and any(f'"{name}"' in x.attributes for name in FREE_CALLS):
      return 0
    far = [name for name in x.operands if name in names and not all(b.near for b in names[name].result)]
    if x.op in ('copy-start', 'slice-start'):
      # The result holds source and target (and a semaphore).
      target = x.result[0 if x.op == 'copy-start' else 1]
      return target.bytes * (len(far) + (not target.near))
    if x.op in ('send', 'recv'):  # of a host: the result is the array, what it is known by there, and a token
      return x.result[0].bytes * (not x.result[0].near)
    if x.op in ('collective-permute-start', 'all-gather-start') and len(x.result) > 1:
      return self.operand_bytes(step) * bool(far) + x.result[1].bytes * (not x.result[1].near)
    if x.op == 'fusion' and (called := x.called('calls')):
      body = self.computations[called[0]]
      read = sum(self.read(called[0], parameter(body, n)) for n, name in enumerate(x.operands) if name in far)
    else:
      read = sum(self.read_by(step.computation, x, name) for name in far)
    written = self.written(step.computation, x)
    return read + sum(size for size, b in zip(written, x.result, strict=True) if not b.near)

  def read(self, computation: str, x: Instruction | None) -> int:
    """Counts the bytes of a parameter, or of an alias of one, that a kernel reads."""
    if x is None:
      return 0
    users = [y for y in self.computations[computation].values() if x.name in y.operands]
    return min(sum(self.read_by(computation, y, x.name) for y in users), sum(b.bytes for b in x.result))

  def read_by(self, computation: str, user: Instruction, name: str) -> int:
    """Counts the bytes of `name` that one of its users reads."""
    size = sum(b.bytes for b in self.computations[computation][name].result)
    if aliases(user):
      return self.read(computation, user)
    if user.op == 'fusion' and (called := user.called('calls')):
      body = self.computations[called[0]]
      return sum(self.read(called[0], parameter(body, n)) for n, operand in enumerate(user.operands) if operand == name)
    if user.operands[0] == name:
      if user.op in ('dynamic-slice', 'slice', 'gather'):
        return min(size, user.result[0].bytes)
      if user.op in ('dynamic-update-slice', 'scatter'):
        return 0
    return size

  def written(self, computation: str, x: Instruction) -> list[int]:
    """Returns the bytes that a kernel writes of each of its results."""
    names = self.computations[computation]
    if x.op == 'tuple':
      return [size for name in x.operands for size in self.written(computation, names[name])]
    if aliases(x):
      return self.written(computation, names[x.operands[0]])
    if x.op == 'fusion' and (called := x.called('calls')):
      return self.written(called[0], next(y for y in self.computations[called[0]].values() if y.root))
    if x.op in ('dynamic-update-slice', 'scatter'):
      origin = names[x.operands[0]]
      while aliases(origin):
        origin = names[origin.operands[0]]
      if origin.op == 'parameter' or computation not in self.kernels:
        return [names[x.operands[1 if x.op == 'dynamic-update-slice' else -1]].result[0].bytes]
    return [0] if x.op == 'parameter' else [b.bytes for b in x.result]


def source(computation: Computation, name: str) -> Instruction:
  """Finds what `name` is a copy of."""
  x = computation[name]
  return source(computation, x.operands[0]) if x.op in ('copy', 'bitcast', 'copy-done', 'copy-start') else x


def value(x: Instruction) -> int:
  """Reads an integer constant."""
  if x.op != 'constant':
    raise ValueError(f'{x.name} is no constant')
  return int(x.attributes[1:x.attributes.index(')')])


def increment(body: Computation, name: str, index: int) -> int:
  """Returns what a loop's body adds to element `index` of what it carries."""
  x = source(body, name)
  if x.op == 'get-tuple-element' and x.number(r'index=(\d+)', -1) == index and body[x.operands[0]].op == 'parameter':
    return 0
  if x.op != 'add':
    raise ValueError(f'{name} is no sum')
  parts = sorted((source(body, operand) for operand in x.operands), key=lambda y: y.op == 'constant')
  return increment(body, parts[0].name, index) + value(parts[1])


def aliases(x: Instruction) -> bool:
  """Tells whether the result is the first operand, seen otherwise."""
  return x.op == 'bitcast' or (x.op == 'fusion' and 'output_to_operand_aliasing={{}: (0, {})}' in x.attributes)


def parameter(computation: Computation, number: int) -> Instruction | None:
  """Finds parameter `number` of a computation; None where it has none."""
  return next((x for x in computation.values() if x.op == 'parameter' and x.attributes.startswith(f'({number})')), None)


def parse(text: str) -> tuple[dict[str, Computation], str]:
  """Parses HLO text -> (computations by name, the entry's name)."""
  computations: dict[str, Computation] = {}
  current, entry = {}, ''
  # What a kernel says of itself stands on lines of its own, in the middle of its instruction.
  text = re.sub(r'kernel_metadata=\{[^}]*\}', lambda found: ' '.join(found[0].split()), text)
  for line in text.splitlines():
    if line.endswith('{') and (head := re.match(r'(ENTRY )?%?([\w.\-]+) \(', line)):
      current = computations[head[2]] = {}
      entry = head[2] if head[1] else entry
    elif match := re.match(r'\s+(ROOT )?%?([\w.\-]+) = (.*)', line):
      shape, rest = split_shape(match[3])
      op, _, rest = rest.partition('(')
      inside, rest = balanced('(' + rest)
      # A parameter's number and a constant's value stand where others have operands.
      attributes = inside + rest if op in ('parameter', 'constant') else rest
      operands = () if op in ('parameter', 'constant') else tuple(re.findall(r'%([\w.\-]+)', inside))
      current[match[2]] = Instruction(match[2], op, buffers(shape), operands, attributes, bool(match[1]))
  return computations, entry


def split_shape(text: str) -> tuple[str, str]:
  """Splits 'f32[2]{0} add(...)' into 'f32[2]{0}' and 'add(...)'; also for tuples."""
  shape, rest = balanced(text) if text.startswith('(') else text.split(' ', 1)
  return shape, rest.lstrip()


def balanced(text: str) -> tuple[str, str]:
  """Splits '(a(b)c)d' into '(a(b)c)' and 'd'."""
  depth = itertools.accumulate({'(': 1, ')': -1}.get(c, 0) for c in text)
  end = next(i for i, d in enumerate(depth) if not d) + 1
  return text[:end], text[end:]


def buffers(shape: str) -> tuple[Buffer, ...]:
  """Parses the arrays of a shape, of a tuple all of them: 'f32[8,128]{1,0:S(1)}' is one of float32 on the chip."""
  # Memory space 1 is a core's (VMEM), 3 is shared by a v4 chip's cores (CMEM: Jouppi et al. 2023); none written is HBM.
  near = re.compile(r'S\([13]\)').search
  return tuple(Buffer(dtype, tuple(int(d.lstrip('<=')) for d in dims.split(',') if d), bool(near(at)))
               for dtype, dims, at in re.findall(r'([a-z]\w*)\[([\d,<=]*)\](\{[^}]*\})?', shape))


def group_size(attributes: str, devices: int) -> int:
  """Devices in one group of a collective, from any of the three ways to write groups."""
  if match := re.search(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\([^{]*\))? \{([^}]*)\}", attributes):
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
  """Products with padding or with the zeros of a dilated operand are not counted: the TPU compiler writes batched
  matrix products as such convolutions."""
  labels = re.search(r'dim_labels=(\w+)_(\w+)->(\w+)', x.attributes)
  assert labels, x.attributes
  window = (re.search(r'window=\{([^}]*)\}', x.attributes) or ['', ''])[1]
  fields = dict(re.findall(r'(\w+)=(\S+)', window))
  spatial = [c for c in labels[1] if c.isdigit()]
  def each(name, default):
    return [int(v) for v in fields[name].split('x')] if name in fields else [default] * len(spatial)
  padding = [[int(v) for v in pair.split('_')] for pair in fields['pad'].split('x')] if 'pad' in fields else [
      [0, 0]] * len(spatial)
  pairs = 1
  for axis, size, stride, pad, base, dilation in zip(
      sorted(spatial), each('size', 1), each('stride', 1), padding, each('lhs_dilate', 1), each('rhs_dilate', 1),
      strict=True):
    length, places = left[labels[1].index(axis)], out[labels[3].index(axis)]
    at = (o * stride + w * dilation - pad[0] for o in range(places) for w in range(size))
    pairs *= sum(0 <= i <= (length - 1) * base and i % base == 0 for i in at)
  batch = left[labels[1].index('b')] // x.number(r'batch_group_count=(\d+)', 1)
  return 2 * pairs * batch * right[labels[2].index('i')] * right[labels[2].index('o')]
