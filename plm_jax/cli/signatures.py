"""Read the arguments of commands and the fields of configurations from source code.

A help text needs names, types, defaults and descriptions, and importing the modules that define
them takes seconds, since they import JAX. Here the source is parsed instead:

    command_arguments('plm_jax.cli.predict', 'predict_command')   # of a function
    class_options('plm_jax.config.run', 'PretrainRun')            # of a configuration
    recipe_modules()                                              # bert_base, bert_large, ...
"""
import ast
from collections.abc import Iterator
import functools
import inspect
import itertools
import pathlib
import re
from typing import NamedTuple

PACKAGE = pathlib.Path(__file__).parents[1]
UNPREFIXED = 'settings', 'reading'
"""arguments whose fields are options without a prefix, as in `options`"""
SIMPLE_TYPES = {'str': 'TEXT', 'int': 'INT', 'float': 'FLOAT', 'bool': 'BOOL'}


class Option(NamedTuple):
  """An argument or option of a command."""

  name: str
  """optim.peak for --optim.peak; the name itself for a positional argument"""
  kind: str = 'TEXT'
  """values: TEXT, INT, FLOAT, BOOL, or the choices a,b,c; with ... for a list"""
  default: str | None = None
  """default as it is typed; None: the argument is required"""
  text: str = ''
  """description"""
  positional: bool = False

  @property
  def section(self) -> str:
    """The part before the last dot; '' without one."""
    return self.name.rpartition('.')[0]


class Definition(NamedTuple):
  """A statement or expression, and the module that it is in."""

  module: str
  node: ast.AST


@functools.cache
def parse_module(module: str) -> ast.Module:
  """Parse the source of a module of this package."""
  path = PACKAGE.joinpath(*module.split('.')[1:])
  if path.is_dir():
    path = path / '__init__'
  return ast.parse(path.with_suffix('.py').read_text('utf-8'))


def module_doc(module: str) -> str:
  """Return the docstring of a module."""
  return ast.get_docstring(parse_module(module)) or ''


@functools.cache
def find_name(module: str, name: str) -> Definition | None:
  """Find what a name means in a module: an imported module, a class, a function, or a value."""
  for statement in parse_module(module).body:
    if isinstance(statement, ast.ImportFrom) and (statement.module or '').startswith('plm_jax'):
      for alias in statement.names:
        if (alias.asname or alias.name) != name:
          continue
        inner = f'{statement.module}.{alias.name}'
        if is_module(inner):
          return Definition(inner, parse_module(inner))
        return find_name(str(statement.module), alias.name)
    elif isinstance(statement, ast.ClassDef | ast.FunctionDef) and statement.name == name:
      return Definition(module, statement)
    elif isinstance(statement, ast.Assign):
      targets = [target.id for target in statement.targets if isinstance(target, ast.Name)]
      if name in targets:
        return Definition(module, statement.value)
    elif isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) == name:
      return Definition(module, statement.value) if statement.value else None
  return None


@functools.cache
def is_module(name: str) -> bool:
  """Return whether a dotted name is a module of this package."""
  path = PACKAGE.joinpath(*name.split('.')[1:])
  return path.with_suffix('.py').is_file() or (path / '__init__.py').is_file()


def resolve(module: str, node: ast.AST) -> Definition | None:
  """Find the definition of a name or of an attribute of a module; None: outside this package."""
  if isinstance(node, ast.Name):
    return find_name(module, node.id)
  if isinstance(node, ast.Attribute):
    owner = resolve(module, node.value)
    if owner and isinstance(owner.node, ast.Module):
      return find_name(owner.module, node.attr)
  return None


def command_arguments(module: str, function: str) -> list[Option]:
  """Return the arguments of a command's function, and the options of its settings."""
  found = find_name(module, function)
  assert found and isinstance(found.node, ast.FunctionDef), f'{module}.{function}'
  texts = argument_texts(found.node)
  arguments = found.node.args.args
  defaults: list[ast.expr | None] = [None] * (len(arguments) - len(found.node.args.defaults))
  defaults += found.node.args.defaults
  options: list[Option] = []
  for argument, default in zip(arguments, defaults, strict=True):
    name, kind = argument.arg, argument.annotation
    assert kind is not None
    positional = False
    if isinstance(kind, ast.Subscript) and ast.unparse(kind.value).endswith('Positional'):
      kind, positional = kind.slice, True
    if isinstance(kind, ast.Subscript) and ast.unparse(kind.value) == 'Annotated':
      assert isinstance(kind.slice, ast.Tuple)
      typed = re.search(r"name='([\w.]+)'", ast.unparse(kind.slice.elts[1]))
      name = typed[1] if typed else name
      kind = kind.slice.elts[0]
    text = texts.get(argument.arg, '')
    prefix = '' if name in UNPREFIXED else name
    options += field_options(found.module, prefix, kind, default, text, positional)
  return options


def argument_texts(function: ast.FunctionDef) -> dict[str, str]:
  """Return the descriptions of arguments in a docstring, in one line each."""
  texts, name = {}, ''
  for line in (ast.get_docstring(function) or '').partition('Args:\n')[2].splitlines():
    start = re.match(r'  (\w+): (.*)', line)
    if start:
      name = start[1]
      texts[name] = start[2]
    elif name and line.strip():
      texts[name] += f' {line.strip()}'
  return texts


def field_options(
    module: str, name: str, kind: ast.expr, default: ast.expr | None, text: str,
    positional: bool = False) -> Iterator[Option]:
  """Yield the option of a field, or those of the configuration that it holds."""
  # A section: the class of its default, or of its annotation.
  for node in (default.func if isinstance(default, ast.Call) else None, kind):
    found = resolve(module, node) if node is not None else None
    if found and isinstance(found.node, ast.ClassDef):
      fixed = {}
      if isinstance(default, ast.Call):
        names = [field.name for field in class_fields(found)]
        fixed = dict(zip(names, default.args, strict=False))
        fixed |= {word.arg: word.value for word in default.keywords if word.arg}
      yield from section_options(found, name, fixed, module)
      return
  flag = name.replace('_', '-')
  if isinstance(default, ast.Tuple) and default.elts and isinstance(default.elts[0], ast.Call):
    for number, item in enumerate(default.elts):
      yield from field_options(module, f'{flag}.{number}', item, item, text)
    return
  shown = None if default is None else format_default(module, default)
  yield Option(flag, describe_kind(module, kind), shown, text, positional)


def section_options(
    found: Definition, path: str, fixed: dict[str, ast.expr], module: str) -> Iterator[Option]:
  """Yield the options of a configuration.

  Args:
    found: its class.
    path: its name; '' for options without a prefix.
    fixed: values of fields that differ from the defaults of the class.
    module: module of these values.
  """
  for field in class_fields(found):
    name = f'{path}.{field.name}' if path else field.name
    if field.name in fixed:
      yield from field_options(module, name, field.kind, fixed[field.name], field.text)
    else:
      yield from field_options(field.module, name, field.kind, field.default, field.text)


class Field(NamedTuple):
  """A field of a configuration, in the module of its class."""

  module: str
  name: str
  kind: ast.expr
  default: ast.expr | None
  text: str


def class_fields(found: Definition) -> list[Field]:
  """Return the fields of a class and of its base classes; those of a base class come first."""
  assert isinstance(found.node, ast.ClassDef)
  fields: dict[str, Field] = {}
  for base in reversed(found.node.bases):
    inherited = resolve(found.module, base)
    if inherited and isinstance(inherited.node, ast.ClassDef):
      fields |= {field.name: field for field in class_fields(inherited)}
  for statement, following in itertools.zip_longest(found.node.body, found.node.body[1:]):
    if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
      continue
    if ast.unparse(statement.annotation).startswith('ClassVar'):
      continue
    text = ''
    if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
      text = ' '.join(inspect.cleandoc(str(following.value.value)).split())
    name = statement.target.id
    if not text and name in fields:
      text = fields[name].text
    fields[name] = Field(found.module, name, statement.annotation, statement.value, text)
  return list(fields.values())


@functools.cache
def class_options(module: str, name: str) -> list[Option]:
  """Return the options of a configuration's class, at the defaults of the class."""
  found = find_name(module, name)
  assert found and isinstance(found.node, ast.ClassDef), f'{module}.{name}'
  return list(section_options(found, '', {}, found.module))


@functools.cache
def field_texts(module: str, name: str) -> dict[str, str]:
  """Return the descriptions of the fields of a class."""
  found = find_name(module, name)
  if not found or not isinstance(found.node, ast.ClassDef):
    return {}
  return {field.name: field.text for field in class_fields(found)}


def describe_kind(module: str, kind: ast.AST) -> str:
  """Describe the values of an annotation as a help text shows them."""
  if isinstance(kind, ast.BinOp):
    parts = [describe_kind(module, part) for part in (kind.left, kind.right)]
    separator = ',' if any(',' in part for part in parts) else '|'  # choices, or types
    return separator.join(part for part in parts if part != 'None')
  if isinstance(kind, ast.Constant):
    return str(kind.value)
  if isinstance(kind, ast.Subscript):
    name = ast.unparse(kind.value)
    if name == 'Literal':
      return ','.join(literal_choices(kind.slice)) or 'NAME'
    if name == 'tuple':
      inner = kind.slice.elts[0] if isinstance(kind.slice, ast.Tuple) else kind.slice
      return f'{describe_kind(module, inner)}...'
    return 'TEXT'
  name = ast.unparse(kind)
  if name in SIMPLE_TYPES:
    return SIMPLE_TYPES[name]
  found = resolve(module, kind)
  if found and not isinstance(found.node, ast.ClassDef | ast.Module):
    return describe_kind(found.module, found.node)
  return 'TEXT'


def literal_choices(node: ast.AST) -> list[str]:
  """Return the choices of a Literal; none where they are computed."""
  items = node.elts if isinstance(node, ast.Tuple) else [node]
  return [str(item.value) for item in items if isinstance(item, ast.Constant)]


def format_default(module: str, node: ast.expr) -> str:
  """Format a default as it is typed: a number, a text, or several."""
  if isinstance(node, ast.Attribute | ast.Name):
    if isinstance(node, ast.Attribute):  # a field of a class, or a value of a module
      owner = resolve(module, node.value)
      fields = []
      if owner and isinstance(owner.node, ast.ClassDef):
        fields = class_fields(owner)
      for field in fields:
        if field.name == node.attr and field.default is not None:
          return format_default(field.module, field.default)
    found = resolve(module, node)
    if found and isinstance(found.node, ast.expr):
      return format_default(found.module, found.node)
    return ''
  try:
    value = ast.literal_eval(node)
  except ValueError:
    return str(evaluate_number(node) or '')
  if isinstance(value, tuple):
    return ' '.join(map(str, value))
  return str(value)


def evaluate_number(node: ast.AST) -> float | None:
  """Evaluate products, shifts and quotients of numbers; None: something else."""
  if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
    return node.value
  if not isinstance(node, ast.BinOp):
    return None
  left, right = evaluate_number(node.left), evaluate_number(node.right)
  if left is None or right is None:
    return None
  if isinstance(node.op, ast.LShift):
    return int(left) << int(right)
  if isinstance(node.op, ast.Mult):
    return left * right
  return left / right if isinstance(node.op, ast.Div) else None


@functools.cache
def recipe_modules() -> dict[str, str]:
  """Return the names of all recipes, each with the module of its family."""
  modules = {}
  for path in sorted((PACKAGE / 'recipes').glob('*.py')):
    module = f'plm_jax.recipes.{path.stem}'
    for table in ('SIZES', 'PUBLISHED'):
      found = find_name(module, table)
      if not found or found.module != module:
        continue
      if isinstance(found.node, ast.DictComp):  # the sizes of another family, with changes
        source = ast.unparse(found.node.generators[0].iter).removesuffix('.items()')
        found = resolve(module, ast.parse(source, mode='eval').body)
      if not found or not isinstance(found.node, ast.Dict):
        continue
      for key, value in zip(found.node.keys, found.node.values, strict=True):
        size = ast.literal_eval(key) if key else ''
        name = size if table == 'PUBLISHED' else f'{path.stem}_{size}'
        if isinstance(value, ast.Call) and table == 'SIZES':
          for word in value.keywords:
            if word.arg == 'name':
              name = ast.literal_eval(word.value)
        modules[str(name)] = module
  return modules
