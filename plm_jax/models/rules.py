"""Conversion rules: how a model's parameters and configuration map to another library's checkpoint.

The rules are data next to the models: each `plm_jax.models` module has a `Family`. One mechanism
reads the rules in both directions, import and export. In all names here, "ours" is plm_jax and
"theirs" is the other library, usually transformers.
"""
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
import dataclasses
from typing import Any, Protocol

import flax.linen as nn
import ml_dtypes
import numpy as np

from plm_jax.errors import UserError
from plm_jax.models.layouts import CountBuffer, Index, Linear, Packed, Same, Shape

DTYPES = {
    'F32': np.dtype(np.float32), 'F16': np.dtype(np.float16), 'BF16': np.dtype(ml_dtypes.bfloat16)}
"""safetensors' name of a type -> numpy's type; the types of parameters"""
MAX_PROBLEMS_SHOWN = 30


class ConvertError(UserError):
  """A checkpoint that is not understood in full, or a model that the other library cannot hold."""


@dataclasses.dataclass(frozen=True)
class Rule:
  """One parameter of ours and the tensor in their file that holds it.

  `{n}` in `theirs` stands for a layer. Our parameter then has a leading axis [layers], and their
  file has one tensor per layer.
  """

  ours: str
  """path in our parameter tree, such as 'backbone/pooler/kernel'"""
  theirs: str
  """name of their tensor, such as 'bert.pooler.dense.weight'"""
  layout: Any = Same()
  """the `TensorLayout` between the two"""
  copy: bool = False
  """whether another rule gives the parameter: a tied weight.

  Such a tensor may be missing, must agree where it exists, and is not written.
  """
  unused: bool = False
  """only for a copy: their model has the tensor but does not read it. Its values are not compared,
  and exports always have it"""
  layer_label: Callable[[int], str] = str
  """layer -> the text that replaces {n}"""
  first_layer: int = 0
  """number of the layer that our axis of layers begins with"""
  applies_to: Callable[[Any], bool] = lambda config: True
  """our configuration -> whether such a model has the parameter"""

  def names(self, shape: Shape) -> list[str]:
    """Return the names of their tensors for a parameter of `shape`, one per layer if stacked."""
    if not self.is_stacked:
      return [self.theirs]
    layers = range(self.first_layer, self.first_layer + shape[0])
    return [self.theirs.format(n=self.layer_label(n)) for n in layers]

  @property
  def is_stacked(self) -> bool:
    """Whether our parameter has an axis of layers, each of which is a tensor of theirs."""
    return '{n}' in self.theirs


@dataclasses.dataclass(frozen=True)
class HeadSpec:
  """A head that the other library has too, with the rules of its parameters."""

  make: Callable[..., nn.Module]
  """make(configuration of the backbone, number of classes, **sizes) -> the module"""
  rules: tuple[Rule, ...]
  sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
  """attributes of their configuration that `make` takes, with their defaults"""
  dropout: str = ''
  """attribute of their configuration that is the head's dropout rate; '': none"""
  verbalizer: bool = False
  """whether classes are words of the vocabulary, whose ids `make` takes as `words`"""
  required_parts: tuple[str, ...] = ()
  """fields of the backbone's configuration that have to be true, such as 'pooler'"""


@dataclasses.dataclass(frozen=True)
class Attribute:
  """An attribute of their config.json and the field of our configuration that it sets."""

  theirs: str
  ours: str
  """dotted path of our field, such as 'block.width'"""
  default: Any
  """their default, for a config.json without the attribute"""
  values: tuple[tuple[Any, Any], ...] = ()
  """(their value, our value) pairs; an export writes the first that fits; (): values are equal"""
  offset_field: str = ''
  """field of ours whose number is included in theirs and not in ours"""


@dataclasses.dataclass(frozen=True, eq=False)
class Family:
  """All that conversion knows of a model family."""

  name: str
  """their model_type"""
  backbone: Callable[[Any], nn.Module]
  """our configuration -> the module"""
  config: Any
  """our configuration with the defaults of fields for which they have no attribute"""
  attributes: tuple[Attribute, ...]
  fixed: Mapping[str, Any]
  """attributes of theirs that are supported at this value only"""
  ignored: frozenset[str]
  """attributes of theirs that change nothing we compute"""
  rules: tuple[Rule, ...]
  """rules of the backbone's parameters"""
  part_tensors: Mapping[str, str]
  """field of our configuration -> the tensor whose presence makes it true"""
  heads: Mapping[str, HeadSpec]
  classes: Mapping[str, tuple[str, ...]]
  """their class -> its heads; an export uses the first class with the same heads"""
  prefix: str
  """prefix of the backbone's tensors, which their class without heads leaves out"""
  class_prefixes: Mapping[str, str] = dataclasses.field(default_factory=dict)
  """their class -> the prefix that it has instead of `prefix`"""
  encoder_only_heads: frozenset[str] = frozenset()
  """heads whose class of theirs holds only the encoder of an encoder-decoder"""
  aliases: tuple[tuple[str, str], ...] = ()
  """(regular expression of old names of tensors, replacement) pairs"""
  authors_prefixes: tuple[str, ...] = ()
  """beginnings of names in files of the authors' own code, which transformers does not read: an
  export of such an import has the names of transformers"""
  usage: str = 'transformers loads it with from_pretrained({folder!r})'
  """how an export is loaded, for people"""
  extra_heads: frozenset[str] = frozenset()
  """heads that files may hold though no class of theirs has them"""
  token_roles: tuple[str, ...] = ('pad', 'bos', 'eos')
  """special tokens whose ids their configuration states"""
  nested_configs: tuple[str, ...] = ()
  """configurations inside theirs that state ids of special tokens, too (T5Gemma's two sides)"""
  export_defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  """further attributes of a new export's config.json"""
  normalize_hf_config: Callable[[Mapping[str, Any]], Mapping[str, Any]] = (
      lambda hf_config: hf_config)
  """contents of a config.json in any of its spellings -> the form that `attributes` describe"""
  denormalize_hf_config: Callable[[Mapping[str, Any]], Mapping[str, Any]] = (
      lambda hf_config: hf_config)
  """the inverse: the form that `attributes` describe -> contents of a config.json"""
  marker_attributes: frozenset[str] = frozenset()
  """attributes that identify the family where model_type does not"""
  skip_patterns: tuple[str, ...] = ()
  """regular expressions of tensors that are no parameters, such as an optimizer's state"""
  infer_from_tensors: Callable[[Any, Container[str]], Any] = lambda config, names: config
  """our configuration, names of tensors -> our configuration with what only the tensors tell"""
  layer_label: Callable[[Any, int], str] = lambda config, n: str(n)
  """our configuration, layer -> the text that replaces {n} in their names"""
  input_shapes: Callable[[Any], Mapping[str, Shape]] = lambda config: {}
  """our configuration -> shapes of batch fields that are not [batch, length]"""

  def specialize(self, config: Any) -> 'Family':
    """Return the family with only the rules that apply to a model with this configuration."""
    def select(rules):
      chosen = [rule for rule in rules if rule.applies_to(config)]
      label = lambda n: self.layer_label(config, n)
      return tuple(dataclasses.replace(rule, layer_label=label) for rule in chosen)

    heads = {name: dataclasses.replace(head, rules=select(head.rules))
             for name, head in self.heads.items()}
    return dataclasses.replace(self, rules=select(self.rules), heads=heads)

  @property
  def parameterless_heads(self) -> frozenset[str]:
    """Heads without parameters of their own (tied logits); call it on `specialize(config)`."""
    free = [name for name, head in self.heads.items() if all(rule.copy for rule in head.rules)]
    return frozenset(free)


class Source(Protocol):
  """Tensors of a file, read one at a time."""

  @property
  def tensors(self) -> Mapping[str, tuple[Shape, str]]:
    """name -> (shape, safetensors' name of the type)."""
    ...

  def read(self, name: str, index: Index | None = None) -> np.ndarray:
    """Read tensor[index], or the whole tensor without an index."""
    ...


def join_rules(*rules: Rule | Iterable[Rule]) -> tuple[Rule, ...]:
  """Join rules and groups of rules to one flat tuple, in order."""
  joined: list[Rule] = []
  for rule in rules:
    if isinstance(rule, Rule):
      joined.append(rule)
    else:
      joined.extend(rule)
  return tuple(joined)


def dense_rules(ours: str, theirs: str, inputs: int = 1) -> tuple[Rule, Rule]:
  """Make the rules of a torch Linear: kernel and bias.

  Args:
    ours: path of our module.
    theirs: name of their module.
    inputs: number of leading axes of our kernel that are one axis in theirs.
  """
  kernel = Rule(f'{ours}/kernel', f'{theirs}.weight', Linear(inputs))
  return kernel, Rule(f'{ours}/bias', f'{theirs}.bias', Same(flat=True))


def norm_rules(ours: str, theirs: str) -> tuple[Rule, Rule]:
  """Make the rules of a LayerNorm: scale and bias."""
  return Rule(f'{ours}/scale', f'{theirs}.weight'), Rule(f'{ours}/bias', f'{theirs}.bias')


def block_rules(ours: str, theirs: str, names: Mapping[str, str]) -> tuple[Rule, ...]:
  """Make the rules of a layer's products and norms, each with a bias.

  Args:
    ours: our path of the layers.
    theirs: prefix of their names, before a dot.
    names: part of our layer, such as 'attention/query' or 'mlp_norm' -> their name of it.
  """
  rules: list[Rule] = []
  for part, name in names.items():
    if part.endswith('norm'):
      rules += norm_rules(f'{ours}/{part}', f'{theirs}.{name}')
    else:
      inputs = 2 if part == 'attention/out' else 1
      rules += dense_rules(f'{ours}/{part}', f'{theirs}.{name}', inputs=inputs)
  return tuple(rules)


def packed_rules(
    ours: str, theirs: str, parts: tuple[str, ...], layout: Linear = Linear(), bias: bool = True,
    by_head: bool = False, rope_parts: tuple[int, ...] = (),
) -> tuple[Rule, ...]:
  """Make the rules of several dense layers that are one layer in their file: fused QKV or GLU.

  Args:
    ours: path of our module that holds the layers.
    theirs: name of their layer.
    parts: names of our layers, in the order in which they lie in their tensor.
    layout: layout of one of the kernels on its own.
    bias: whether there are rules for biases.
    by_head: whether the parts alternate within each head; see `Packed`.
    rope_parts: parts whose rotary pairs are interleaved in their file.
  """
  rules = []
  for number, part in enumerate(parts):
    kernel = Packed(number, len(parts), by_head, layout, rope_parts)
    rules.append(Rule(f'{ours}/{part}/kernel', f'{theirs}.weight', kernel))
    if bias:
      flat = Packed(number, len(parts), by_head, Same(flat=True))
      rules.append(Rule(f'{ours}/{part}/bias', f'{theirs}.bias', flat))
  return tuple(rules)


def rename_tensors(rules: Iterable[Rule], old: str, new: str) -> tuple[Rule, ...]:
  """Return the rules with `old` replaced by `new` once in the names of their tensors."""
  return tuple(
      dataclasses.replace(rule, theirs=rule.theirs.replace(old, new, 1)) for rule in rules)


def replace_defaults(
    attributes: Iterable[Attribute], defaults: Mapping[str, Any],
) -> tuple[Attribute, ...]:
  """Return the attributes with other defaults, given by their name."""
  return tuple(
      dataclasses.replace(attribute, default=defaults.get(attribute.theirs, attribute.default))
      for attribute in attributes)


def replace_values(
    attributes: Iterable[Attribute], name: str, values: tuple[tuple[Any, Any], ...],
) -> tuple[Attribute, ...]:
  """Return the attributes with other (their value, our value) pairs for the one called `name`."""
  def replace(attribute):
    return dataclasses.replace(attribute, values=values) if attribute.theirs == name else attribute
  return tuple(map(replace, attributes))


def match_tensors(
    rules: Iterable[Rule], shapes: Mapping[str, Shape], source: Source, known: Container[str] = (),
) -> dict[str, tuple[Rule, list[Rule]]]:
  """Find the tensor of every parameter in a file, and check names, shapes and types.

  Args:
    rules: of the model.
    shapes: path of a parameter of ours -> its shape.
    source: the file.
    known: names of tensors without a rule that may be in the file.

  Returns:
    Path of a parameter -> (its rule, rules of copies that have to agree with it).

  Raises:
    ConvertError: with every tensor that is missing, unknown, or of another shape or type.
  """
  rules = promote_copies([rule for rule in rules if rule.ours in shapes], source.tensors)
  covered = {rule.ours for rule in rules if not rule.copy}
  names: set[str] = set()
  wrong: list[str] = []
  for rule in rules:
    names.update(rule.names(shapes[rule.ours]))
    wrong += find_problems(rule, shapes[rule.ours], source)
  wrong = list(dict.fromkeys(wrong))  # parameters that are packed in one tensor share its problems
  for path, shape in shapes.items():
    if path not in covered:
      wrong.append(f'no rule for our parameter {path} {list(shape)}')
  for name, (shape, _) in source.tensors.items():
    if name not in names and name not in known:
      wrong.append(f'unknown tensor {name} {list(shape)}')
  raise_problems(wrong)

  # Buffers that count positions have to count.
  for rule in rules:
    if isinstance(rule.layout, CountBuffer) and rule.theirs in source.tensors:
      expected = rule.layout.export_array(np.broadcast_to(0, shapes[rule.ours]))
      if not np.array_equal(source.read(rule.theirs), expected):
        wrong.append(f'{rule.theirs} differs from what it has to equal, 0, 1, 2, ...')
  raise_problems(wrong)

  matched: dict[str, tuple[Rule, list[Rule]]] = {
      rule.ours: (rule, []) for rule in rules if not rule.copy}
  for rule in rules:
    if rule.copy and not rule.unused and not isinstance(rule.layout, CountBuffer):
      matched[rule.ours][1].append(rule)
  return matched


def promote_copies(rules: list[Rule], names: Container[str]) -> list[Rule]:
  """Let a copy of a tied weight take the place of a tensor that the file lacks.

  Some libraries write a tied weight once, under its other name. In the rules that are returned, a
  missing tensor becomes the copy, and the copy that `names` holds becomes the parameter.
  """
  promoted: dict[Rule, Rule] = {}
  for rule in rules:
    if rule.copy or rule.is_stacked or rule.theirs in names:
      continue
    for other in rules:
      same = (other.ours, other.layout) == (rule.ours, rule.layout)
      if other.copy and other.theirs in names and same:
        promoted[rule] = other
        break
  result = []
  for rule in rules:
    copy = rule in promoted or (rule.copy and rule not in promoted.values())
    result.append(dataclasses.replace(rule, copy=copy))
  return result


def export_arrays(
    rules: Iterable[Rule], params: Mapping[str, Any], copies: bool = False,
) -> Iterator[tuple[str, np.ndarray]]:
  """Yield (their name, array in their layout) for every tensor.

  Args:
    rules: of the model.
    params: path of a parameter -> array.
    copies: whether copies of tied weights are included.

  Raises:
    ConvertError: for parameters that no rule names.
  """
  rules = [rule for rule in rules if rule.ours in params]
  covered = {rule.ours for rule in rules}
  raise_problems([
      f'no counterpart for the parameter {path} {list(np.shape(x))}'
      for path, x in params.items() if path not in covered])
  packed: dict[str, list[np.ndarray]] = {}
  for rule in rules:
    if rule.copy and not (copies or rule.unused):
      continue
    x = np.asarray(params[rule.ours])
    layers = x if rule.is_stacked else [x]
    for layer, name in zip(layers, rule.names(x.shape), strict=True):
      if not isinstance(rule.layout, Packed):
        yield name, rule.layout.export_array(layer)
        continue
      parts = packed.setdefault(name, [])
      parts.append(layer)
      if len(parts) == rule.layout.parts:
        yield name, rule.layout.export_array(*parts)


def raise_problems(problems: list[str], about: str = 'cannot convert') -> None:
  """Raise ConvertError if there are problems: one line each, at most `MAX_PROBLEMS_SHOWN`."""
  if not problems:
    return
  lines = [about + ':']
  lines += [problem[:500] for problem in problems[:MAX_PROBLEMS_SHOWN]]
  if len(problems) > MAX_PROBLEMS_SHOWN:
    lines.append(f'and {len(problems) - MAX_PROBLEMS_SHOWN:,} more')
  raise ConvertError('\n  '.join(lines))


def find_problems(rule: Rule, shape: Shape, source: Source) -> Iterator[str]:
  """Yield problems of a parameter's tensors: missing, of another shape or of another type."""
  expected = rule.layout.export_shape(shape[1:] if rule.is_stacked else shape)
  for name in rule.names(shape):
    if name not in source.tensors:
      if not rule.copy:
        yield f'missing tensor {name} {list(expected)}'
      continue
    found, dtype = source.tensors[name]
    if tuple(found) != expected:
      yield f'tensor {name} is {list(found)}, the configuration makes it {list(expected)}'
    elif dtype not in DTYPES and not isinstance(rule.layout, CountBuffer):
      yield f'tensor {name} is of type {dtype}, expected one of {", ".join(DTYPES)}'
