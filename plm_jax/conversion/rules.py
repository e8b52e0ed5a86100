"""Rename rules: one mechanism for all families, read in both directions. The rules are data, and lie beside the models.

A rule names a parameter of ours, tensors of theirs, and the layout between them. `{n}` in their name counts layers:
ours has them all in one array with a leading axis [N].
"""
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
import dataclasses
from typing import Any, Protocol

import flax.linen as nn
import ml_dtypes
import numpy as np

from plm_jax.conversion.layouts import Count, Packed, Same
from plm_jax.conversion.slices import Index, Shape
from plm_jax.errors import Expected

DTYPES = {'F32': np.dtype(np.float32), 'F16': np.dtype(np.float16), 'BF16': np.dtype(ml_dtypes.bfloat16)}
SHOWN = 30  # problems that are named


class ConvertError(Expected):
  """A checkpoint of another library that is not understood in full, or a model of ours that it cannot hold."""


@dataclasses.dataclass(frozen=True)
class Rule:
  """One parameter of ours, 'backbone/pooler/kernel', and where they have it."""

  ours: str
  theirs: str
  layout: Any = Same()
  copy: bool = False  # what another rule gives already: need not be there, has to agree where it is, is not written
  number: Callable[[int], str] = str  # what stands in their name for {n}
  first: int = 0  # the layer that ours begins with
  where: Callable[[Any], bool] = lambda config: True  # whether a model of our configuration has it

  def names(self, shape: Shape) -> list[str]:
    """Returns their tensors' names, one a layer where ours are stacked."""
    if not self.stacked:
      return [self.theirs]
    return [self.theirs.format(n=self.number(self.first + n)) for n in range(shape[0])]

  @property
  def stacked(self) -> bool:
    """Whether our parameter has an axis of layers, each a tensor of theirs."""
    return '{n}' in self.theirs


@dataclasses.dataclass(frozen=True)
class Head:
  """A head that they know too. make(the backbone's config, number of classes, **sizes) -> the module."""

  make: Callable[..., nn.Module]
  rules: tuple[Rule, ...]
  sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)  # attributes of theirs that are the head's own
  dropout: str = ''  # the attribute of theirs that is its dropout, where there is one and it is not null
  words: bool = False  # its classes are words of the vocabulary, whose ids `make` takes
  parts: tuple[str, ...] = ()  # fields of the backbone's config that have to be true: what it reads is made there


@dataclasses.dataclass(frozen=True)
class Attribute:
  """A field of their configuration that is one of ours."""

  theirs: str
  ours: str  # 'block.width'
  default: Any  # of theirs, where their file leaves it out
  values: tuple[tuple[Any, Any], ...] = ()  # (theirs, ours); of several alike the first is written; none: unchanged
  besides: str = ''  # a number of our configuration that theirs includes and ours does not


@dataclasses.dataclass(frozen=True, eq=False)
class Family:
  """All that the converter has to know of a family: data beside the model."""

  name: str  # their model_type
  backbone: Callable[[Any], nn.Module]  # from our config
  config: Any  # ours, with the defaults of what they have no attribute for
  attributes: tuple[Attribute, ...]
  fixed: Mapping[str, Any]  # attributes that we know at this value only
  ignored: frozenset[str]  # attributes that change nothing we compute
  rules: tuple[Rule, ...]
  parts: Mapping[str, str]  # field of our config that is true where this tensor is there
  heads: Mapping[str, Head]
  classes: Mapping[str, tuple[str, ...]]  # their class -> its heads; the first with the same heads is written
  prefix: str  # of the backbone's tensors, which their class without heads leaves out
  within: Mapping[str, str] = dataclasses.field(default_factory=dict)  # their class -> another prefix that it has
  encoding: frozenset[str] = frozenset()  # heads whose class of theirs holds an encoder-decoder's encoder alone
  aliases: tuple[tuple[str, str], ...] = ()  # regular expressions of old names, and their replacements
  read: str = 'transformers loads it with from_pretrained({folder!r})'  # how an export is used
  pickled: bool = False  # whether released only as torch's pickles, which are then read, as data
  beside: frozenset[str] = frozenset()  # heads that files may hold though no class of theirs has them
  ids: tuple[str, ...] = ('pad', 'bos', 'eos')  # special tokens whose ids a configuration says
  says: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # attributes that a new export says besides
  # Of the contents of config.json: older spellings -> today's, and the inverse, to their own spelling.
  to_current: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda hf_config: hf_config
  from_current: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda hf_config: hf_config
  marks: frozenset[str] = frozenset()  # attributes that tell its configurations where their model_type does not
  skipped: tuple[str, ...] = ()  # regular expressions of what is no parameter: an optimizer's state
  # Our config and the tensors of a file -> our config, where their attributes do not tell.
  infer_from_tensors: Callable[[Any, Container[str]], Any] = lambda config, names: config
  number: Callable[[Any, int], str] = lambda config, n: str(n)  # our config, layer -> what {n} is in their names
  reads: Callable[[Any], Mapping[str, Shape]] = lambda config: {}  # of a batch, besides ids: shapes of a row's

  def of(self, config: Any) -> 'Family':
    """Returns the family with the rules that a model with this configuration has, and the names of its layers."""
    def numbered(rules):
      return tuple(dataclasses.replace(rule, number=lambda n: self.number(config, n))
                   for rule in rules if rule.where(config))
    heads = {name: dataclasses.replace(head, rules=numbered(head.rules)) for name, head in self.heads.items()}
    return dataclasses.replace(self, rules=numbered(self.rules), heads=heads)

  @property
  def free(self) -> frozenset[str]:
    """Of `of(config)`: heads that have no parameters, and so are there wherever they are wanted (tied logits)."""
    return frozenset(name for name, head in self.heads.items() if all(rule.copy for rule in head.rules))


class Source(Protocol):
  """Tensors of a file, read one at a time."""

  @property
  def tensors(self) -> Mapping[str, tuple[Shape, str]]:
    """name -> (shape, safetensors' name of the type)."""
    ...

  def read(self, name: str, index: Index | None = None) -> np.ndarray:
    """Reads tensor[index], all of it without one."""
    ...


def match(
    rules: Iterable[Rule], shapes: Mapping[str, Shape], source: Source, known: Container[str] = ()
) -> dict[str, tuple[Rule, list[Rule]]]:
  """Finds, of parameters of `shapes` ('a/b/c' -> shape), where `source` has each, and copies that have to agree with
  it.

  Raises ConvertError that names every tensor that is missing, unknown (`known` ones are left alone), or of another
  shape or type.
  """
  rules = promoted([rule for rule in rules if rule.ours in shapes], source.tensors)
  names = {name for rule in rules for name in rule.names(shapes[rule.ours])}
  # Once each: parameters that are packed in one tensor have the same problem with it.
  wrong = list(dict.fromkeys(
      problem for rule in rules for problem in problems(rule, shapes[rule.ours], source)))
  wrong += [f'no rule for our parameter {path} {list(shapes[path])}'
            for path in shapes if path not in {rule.ours for rule in rules if not rule.copy}]
  wrong += [f'unknown tensor {name} {list(shape)}'
            for name, (shape, _) in source.tensors.items() if name not in names and name not in known]
  refuse(wrong)
  def counts(rule):
    return np.array_equal(source.read(rule.theirs), rule.layout.theirs(np.broadcast_to(0, shapes[rule.ours])))
  refuse([f'{rule.theirs} differs from what it has to equal, 0, 1, 2, ...' for rule in rules
          if isinstance(rule.layout, Count) and rule.theirs in source.tensors and not counts(rule)])
  copies = [rule for rule in rules if rule.copy and not isinstance(rule.layout, Count)]
  return {rule.ours: (rule, [copy for copy in copies if copy.ours == rule.ours]) for rule in rules if not rule.copy}


def promoted(rules: list[Rule], names: Container[str]) -> list[Rule]:
  """Returns rules in which a copy of a tensor takes its place where `names` lacks it: some write a tied matrix once,
  under the other name."""
  def twin(rule):
    return next((other for other in rules if other.copy and other.theirs in names and
                 (other.ours, other.layout) == (rule.ours, rule.layout)), None)
  missing = [rule for rule in rules if not (rule.copy or rule.stacked or rule.theirs in names)]
  swapped = {rule: other for rule in missing if (other := twin(rule))}
  return [dataclasses.replace(rule, copy=rule in swapped or (rule.copy and rule not in swapped.values()))
          for rule in rules]


def write(rules: Iterable[Rule], params: Mapping[str, Any], copies: bool = False) -> Iterator[tuple[str, np.ndarray]]:
  """Yields (their name, array as it lies in `params`) of every tensor; `copies` too, if asked for.

  Raises ConvertError for parameters that no rule names.
  """
  rules = [rule for rule in rules if rule.ours in params]
  refuse([f'no counterpart for the parameter {path} {list(np.shape(x))}'
          for path, x in params.items() if path not in {rule.ours for rule in rules}])
  packed: dict[str, list[np.ndarray]] = {}
  for rule in rules:
    if copies or not rule.copy:
      x = np.asarray(params[rule.ours])
      for layer, name in zip(x if rule.stacked else [x], rule.names(x.shape), strict=True):
        together = packed.setdefault(name, []) if isinstance(rule.layout, Packed) else []
        together.append(layer)
        if len(together) == getattr(rule.layout, 'parts', 1):
          yield name, rule.layout.theirs(*together)


def refuse(problems: list[str], about: str = 'cannot convert') -> None:
  """Raises ConvertError for what is wrong, one line each, and no more than a screen of them."""
  if problems:
    more = [f'and {len(problems) - SHOWN:,} more'] * (len(problems) > SHOWN)
    raise ConvertError(f'{about}:\n  ' + '\n  '.join([*(problem[:500] for problem in problems[:SHOWN]), *more]))


def problems(rule: Rule, shape: Shape, source: Source) -> Iterator[str]:
  """Yields what is wrong with the tensors of a parameter of `shape`: missing, of another shape or type."""
  expected = rule.layout.shape(shape[1:] if rule.stacked else shape)
  for name in rule.names(shape):
    if name not in source.tensors:
      if not rule.copy:
        yield f'missing tensor {name} {list(expected)}'
      continue
    found, dtype = source.tensors[name]
    if tuple(found) != expected:
      yield f'tensor {name} is {list(found)}, the configuration makes it {list(expected)}'
    elif dtype not in DTYPES and not isinstance(rule.layout, Count):
      yield f'tensor {name} is of type {dtype}, expected one of {", ".join(DTYPES)}'
