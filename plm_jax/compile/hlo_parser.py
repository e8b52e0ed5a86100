"""Parser of optimized HLO text: computations, their instructions, and the arrays of results."""
import dataclasses
import itertools
import math
import re

BITS = {'pred': 8, 'token': 0, 'opaque': 0}


@dataclasses.dataclass(frozen=True)
class Buffer:
  """An array in a shape."""

  dtype: str
  dims: tuple[int, ...]
  on_chip: bool  # in on-chip memory, not in HBM

  @property
  def size(self) -> int:
    """Number of elements."""
    return math.prod(self.dims)

  @property
  def bytes(self) -> int:
    """Bytes without padding; 0 for a token, and for types without a size."""
    digits = re.findall(r'\d+', self.dtype) or ['0']
    return math.ceil(self.size * BITS.get(self.dtype, int(digits[0])) / 8)


@dataclasses.dataclass(frozen=True)
class Instruction:
  """An HLO instruction."""

  name: str
  op: str
  result: tuple[Buffer, ...]  # several for a tuple
  operands: tuple[str, ...]
  attributes: str
  root: bool

  @property
  def result_bytes(self) -> int:
    """Bytes of all results."""
    return sum(buffer.bytes for buffer in self.result)

  def called_computations(self, *keys: str) -> list[str]:
    """Return the computations named in the attributes `keys`."""
    names = []
    for key in keys:
      for text in re.findall(rf'\b{key}=(\{{[^}}]*\}}|%?[\w.\-]+)', self.attributes):
        names.extend(re.findall(r'[\w.\-]+', text))
    return names

  def parse_number(self, pattern: str, default: int) -> int:
    """Return the integer in the group of `pattern` in the attributes, or the default."""
    match = re.search(pattern, self.attributes)
    return int(match[1]) if match else default


Computation = dict[str, Instruction]


def parse_hlo(text: str) -> tuple[dict[str, Computation], str]:
  """Parse HLO text -> (computations by name, the entry's name)."""
  computations: dict[str, Computation] = {}
  current, entry = {}, ''
  # The metadata of a kernel has lines of its own, in the middle of its instruction.
  text = re.sub(r'kernel_metadata=\{[^}]*\}', lambda found: ' '.join(found[0].split()), text)
  for line in text.splitlines():
    if line.endswith('{') and (head := re.match(r'(ENTRY )?%?([\w.\-]+) \(', line)):
      current = computations[head[2]] = {}
      if head[1]:
        entry = head[2]
    elif match := re.match(r'\s+(ROOT )?%?([\w.\-]+) = (.*)', line):
      shape, rest = split_shape(match[3])
      op, _, rest = rest.partition('(')
      arguments, rest = split_balanced('(' + rest)
      if op in ('parameter', 'constant'):
        # A parameter's number or a constant's value is in the place of operands.
        attributes, operands = arguments + rest, ()
      else:
        attributes, operands = rest, tuple(re.findall(r'%([\w.\-]+)', arguments))
      current[match[2]] = Instruction(
          match[2], op, parse_buffers(shape), operands, attributes, bool(match[1]))
  return computations, entry


def split_shape(text: str) -> tuple[str, str]:
  """Split 'f32[2]{0} add(...)' into 'f32[2]{0}' and 'add(...)'; also for tuples."""
  if text.startswith('('):
    shape, rest = split_balanced(text)
  else:
    shape, rest = text.split(' ', 1)
  return shape, rest.lstrip()


def split_balanced(text: str) -> tuple[str, str]:
  """Split '(a(b)c)d' into '(a(b)c)' and 'd'."""
  depth = itertools.accumulate({'(': 1, ')': -1}.get(c, 0) for c in text)
  end = next(i for i, d in enumerate(depth) if not d) + 1
  return text[:end], text[end:]


def parse_buffers(shape: str) -> tuple[Buffer, ...]:
  """Parse the arrays of a shape: 'f32[8,128]{1,0:S(1)}' is one of float32 in on-chip memory."""
  # Memory space 1 is a core's (VMEM), 3 is shared by a v4 chip's cores (CMEM: Jouppi et al. 2023).
  # Without a memory space it is HBM.
  on_chip = re.compile(r'S\([13]\)')
  found = []
  for dtype, text, layout in re.findall(r'([a-z]\w*)\[([\d,<=]*)\](\{[^}]*\})?', shape):
    dims = tuple(int(dim.lstrip('<=')) for dim in text.split(',') if dim)
    found.append(Buffer(dtype, dims, bool(on_chip.search(layout))))
  return tuple(found)


def find_root(computation: Computation) -> Instruction:
  """Return the instruction whose result is the computation's."""
  return next(x for x in computation.values() if x.root)


def resolve_copies(computation: Computation, name: str) -> Instruction:
  """Return the instruction of which `name` is a copy."""
  x = computation[name]
  while x.op in ('copy', 'bitcast', 'copy-done', 'copy-start'):
    x = computation[x.operands[0]]
  return x


def constant_value(x: Instruction) -> int:
  """Return the value of an integer constant. Raises ValueError for other instructions."""
  if x.op != 'constant':
    raise ValueError(f'{x.name} is no constant')
  return int(x.attributes[1:x.attributes.index(')')])


def is_alias(x: Instruction) -> bool:
  """Return whether the result shares the memory of the first operand."""
  in_place = 'output_to_operand_aliasing={{}: (0, {})}'
  return x.op == 'bitcast' or (x.op == 'fusion' and in_place in x.attributes)


def find_parameter(computation: Computation, number: int) -> Instruction | None:
  """Return parameter `number` of a computation; None where it has none."""
  return next((x for x in computation.values()
               if x.op == 'parameter' and x.attributes.startswith(f'({number})')), None)
