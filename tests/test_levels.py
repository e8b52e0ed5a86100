"""The packages of plm_jax: each imports only lower levels, and none is larger than WORKSPACE.md
allows."""
import ast
import collections
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[1]
LEVELS = (
    ('errors', 'environment', 'streams', 'unicode_words'),
    ('validation', 'progress', 'truncation', 'storage'),
    ('sharding', 'distributed', 'versions'),
    ('layers', 'metrics', 'checkpoints'),
    ('tokenizers', 'optim', 'architectures', 'sources', 'data'),
    ('models', 'preparation'),
    ('objectives',),
    ('conversion',),
    ('tasks',),
    ('config',),
    ('loading',),
    ('training',),
    ('inference', 'word_vectors'),
    ('corpora', 'evaluation', 'finetuning', 'compile', 'recipes'),
    ('report', 'planning'),
    ('runs',),
    ('api',),
    ('cli',),
    ('__main__',),
)


def package_imports():
  """Collect the packages of plm_jax that each package imports, also in functions: {package:
  {imported: place}}."""
  files = sorted((ROOT / 'plm_jax').rglob('*.py'))
  names = {path.relative_to(ROOT).parts[1].removesuffix('.py') for path in files}
  found = collections.defaultdict(dict)
  for path in files:
    package = path.relative_to(ROOT).parts[1].removesuffix('.py')
    for node in ast.walk(ast.parse(path.read_text())):
      modules = []
      if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
      elif isinstance(node, ast.ImportFrom):
        modules = [f'{node.module}.{alias.name}' for alias in node.names]
      for module in modules:
        parts = module.split('.')
        if parts[0] == 'plm_jax' and len(parts) > 1 and parts[1] in names - {package}:
          found[package][parts[1]] = f'{path.relative_to(ROOT)}:{node.lineno}'
  found.pop('__init__', None)  # the public API imports the packages lazily
  return found


def test_each_package_imports_lower_levels_only():
  level = {name: number for number, names in enumerate(LEVELS) for name in names}
  imports = package_imports()
  unknown = set(imports) - set(level)
  assert not unknown, f'packages without a level: {sorted(unknown)}'
  wrong = [f'{place}: {package} imports {other}' for package, others in imports.items()
           for other, place in others.items() if level[other] >= level[package]]
  assert not wrong


def test_the_architecture_page_has_the_levels():
  """WORKSPACE.md has one row per package, in the order of LEVELS."""
  text = (ROOT / 'WORKSPACE.md').read_text()
  rows = re.findall(r'^\| (\d+) \| `(\w+)` \| [\d,]+ \|', text, re.MULTILINE)
  assert rows == [(str(level), name) for level, names in enumerate(LEVELS) for name in names]


def test_no_package_is_larger_than_its_budget():
  """WORKSPACE.md has a budget of syntax-tree nodes for each package."""
  text = (ROOT / 'WORKSPACE.md').read_text()
  budgets = dict(re.findall(r'^\| \d+ \| `(\w+)` \| ([\d,]+) \|', text, re.MULTILINE))
  sizes = collections.Counter()
  for path in (ROOT / 'plm_jax').rglob('*.py'):
    package = path.relative_to(ROOT).parts[1].removesuffix('.py')
    sizes[package] += sum(1 for _ in ast.walk(ast.parse(path.read_text())))
  sizes.pop('__init__')  # names of the public API
  above = {name: size for name, size in sizes.items() if size > int(budgets[name].replace(',', ''))}
  assert not above, (f'more nodes than the limits in WORKSPACE.md: {above}. Raise the limit to the '
                     'new size, and name in the commit message what needs it')

