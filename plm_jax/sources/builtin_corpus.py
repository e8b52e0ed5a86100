"""The built-in English corpus ('embedded'): documentation in the packages installed with plm_jax.

Docstrings are read from source files; nothing is imported. Code, tables, headings and markup are
removed, the rest reads as prose, and a paragraph that occurs in many places is kept once. The
result is a text file in the format of `text_sources`, made once and stored in the cache folder
($PLM_JAX_CACHE, else ~/.cache/plm_jax).
"""
import ast
from collections.abc import Iterable, Iterator
import importlib.metadata
import importlib.util
import inspect
import os
from pathlib import Path
import platform
import re
import sysconfig
import warnings

from plm_jax import storage
from plm_jax.distributed import worker_pool
from plm_jax.storage.digests import compute_digest
from plm_jax.storage.lock import Lock

PACKAGES = {  # import name: distributions that may provide it
    'jax': ('jax',), 'jaxlib': ('jaxlib',), 'flax': ('flax',), 'optax': ('optax',),
    'orbax': ('orbax-checkpoint',), 'numpy': ('numpy',), 'scipy': ('scipy',),
    'tensorflow': ('tensorflow-cpu', 'tensorflow'), 'keras': ('keras',),
    'tensorflow_datasets': ('tensorflow-datasets',), 'etils': ('etils',),
}
PROMPTS = (  # that a model of this text can complete
    'The number [MASK] rows in the matrix.', 'Returns the [MASK] of the array.',
    'This method is used [MASK] compute the gradient.')
CLEANING_VERSION = 1  # of the rules below; part of the name of the cached file
MIN_WORDS = 6  # of a paragraph
LONG_STRING = 200  # characters of a string that is read even if it is no docstring


def corpus_path() -> Path:
  """Return the path of this machine's corpus as a text file; make it if the cache lacks it."""
  found = package_versions()
  key = compute_digest(repr((CLEANING_VERSION, found)))[:12]
  path = storage.cache_folder() / f'embedded-{key}.txt'
  if path.exists():
    return path
  with Lock(path.parent, 'the preparation of the built-in corpus', wait=True):
    if not path.exists():
      storage.remove_drafts(path.parent)
      with storage.atomic_writer(path) as f:
        for document in extract_documents(list_source_files()):
          f.write(('\n'.join(document) + '\n\n').encode(errors='replace'))
  return path


def extract_documents(files: Iterable[tuple[str, Path]], workers: int | None = None
                      ) -> Iterator[list[str]]:
  """Yield documents, each a list of paragraphs, of Python files; no paragraph occurs twice.

  A class with several paragraphs is a document, the rest of its module another.

  Args:
    files: (name that is the same on every machine, path).
    workers: number of processes; None: one per core.
  """
  seen = set()
  paths = [path for _, path in sorted(files)]
  for documents in read_modules(paths, workers or os.cpu_count() or 1):
    for document in documents:
      new = [paragraph for paragraph in dict.fromkeys(document) if paragraph not in seen]
      seen.update(new)
      if new:
        yield new


def read_modules(paths: list[Path], workers: int) -> Iterator[list[list[str]]]:
  """Yield the documents of each file, in order; use `workers` processes for 200 files or more."""
  if workers == 1 or len(paths) < 200:
    yield from map(read_module, paths)
    return
  with worker_pool.open_pool(workers) as pool:
    yield from pool.map(read_module, paths, chunksize=32)


def read_module(path: Path) -> list[list[str]]:
  """Read the documents of a source file; [] if it cannot be read or parsed, such as a template."""
  try:
    # Syntax trees have no cycles, and looking for them took a quarter of the parsing.
    with worker_pool.without_garbage_collection():
      return collect_documents(parse_quietly(path.read_bytes()))
  except (SyntaxError, ValueError, RecursionError, MemoryError,  # MemoryError: nested too deeply
          FileNotFoundError, PermissionError):
    return []


def parse_quietly(content: bytes) -> ast.Module:
  """Parse a source file without warnings of invalid escapes in other people's strings."""
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    return ast.parse(content)


def collect_documents(tree: ast.Module) -> list[list[str]]:
  """Return the documents of a module, each a list of paragraphs."""
  cleaned: dict[str, list[str]] = {}
  module, classes = [], []
  for node in tree.body:
    text = []
    for string in find_strings(node):
      if string not in cleaned:
        cleaned[string] = clean_docstring(string)
      text += cleaned[string]
    if isinstance(node, ast.ClassDef) and len(text) >= 4:
      classes.append(text)
    else:
      module += text
  return [document for document in (module, *classes) if document]


def find_strings(node: ast.AST) -> list[str]:
  """Return docstrings, and long strings such as NumPy attaches to compiled functions, in order.

  A long docstring is both, and is returned twice.
  """
  found = []
  pending = [node]
  while pending:
    child = pending.pop()
    text, least = child, LONG_STRING
    if isinstance(child, ast.Expr):
      text, least = child.value, 0
    if isinstance(text, ast.Constant) and isinstance(text.value, str) and len(text.value) >= least:
      found.append((text.lineno, text.value))
    pending += [part for part in ast.iter_child_nodes(child) if not is_short(part)]
  return [text for _, text in sorted(found)]


def is_short(node: ast.AST) -> bool:
  """Return whether a part of a syntax tree is an expression too short to contain a long string."""
  if isinstance(node, ast.expr_context):
    return True
  if not isinstance(node, ast.expr) or node.lineno != node.end_lineno:
    return False
  return (node.end_col_offset or 0) - node.col_offset < LONG_STRING


def clean_docstring(text: str) -> list[str]:
  """Return a docstring's paragraphs of prose, each one line without markup."""
  if len(text.split()) < MIN_WORDS:
    return []
  lines = inspect.cleandoc(text).expandtabs().split('\n')
  cleaned = []
  for paragraph in join_paragraphs(lines):
    if len(paragraph.split()) >= MIN_WORDS:  # words are removed with the markup, none are added
      stripped = strip_markup(paragraph)
      if is_prose(stripped):
        cleaned.append(stripped)
  return cleaned


def join_paragraphs(lines: list[str]) -> Iterator[str]:
  """Join wrapped lines; drop code, directives, headings, and names and types of parameters."""
  current: list[str] = []
  start = 0  # indent of the first line of `current`
  code = None  # indent of the line that opened a block of code; the block is indented deeper
  fence = doctest = False
  for number, line in enumerate(lines):
    text = line.strip()
    indent = len(line) - len(line.lstrip())
    following = lines[number + 1] if number + 1 < len(lines) else ''
    deeper = len(following) - len(following.lstrip()) > indent and following.strip()
    if text.startswith(('```', '~~~')):
      fence = not fence
    if code is not None and text and indent <= code:
      code = None
    # A doctest ends at a blank line.
    doctest = bool(text) and (doctest or text.startswith(('>>>', 'In [', '... ')))
    skip = fence or doctest or code is not None or text.startswith(('```', '~~~', '|', '+-', '@'))
    heading = HEADING.fullmatch(text)
    if skip or not text or heading:
      if heading:
        current = []  # the line above was the heading
      yield ' '.join(current)
      current = []
      continue
    if text.startswith('.. '):
      yield ' '.join(current)
      current = []
      if not ADMONITION.match(text):
        code = indent
      continue
    is_name = len(text.split()) <= 3 and text[-1] not in '.,;' and not ENTRY.match(text)
    names_parameter = deeper and (is_name or NUMPY_ENTRY.fullmatch(text))
    if names_parameter and (not current or indent <= start):
      yield ' '.join(current)
      current = []
      continue
    if not current or indent < start or BULLET.match(text) or ENTRY.match(text):
      yield ' '.join(current)
      current, start = [], indent
    current.append(text)
    if text.endswith('::') and not following.strip():
      code = indent
  yield ' '.join(current)


def strip_markup(text: str) -> str:
  """Remove inline markup, bullets and the name before a description from a paragraph."""
  text = BULLET.sub('', text)
  text, named = ENTRY.subn('', text)
  for mark, pattern, replacement in INLINE:
    if mark in text:
      text = pattern.sub(replacement, text)
  text = re.sub(':+$', ':', ' '.join(text.split()))
  is_sentence = named and re.match('[a-z]+[ ,]', text)
  return text[0].upper() + text[1:] if is_sentence else text


def is_prose(text: str) -> bool:
  """Return whether a text is a sentence of six words or more, at least 75% of them plain words."""
  words = len(text.split())
  if words < MIN_WORDS or not BEGINNING.match(text) or not ENDING.search(text):
    return False
  if any(mark in text for mark in CODE_MARKS) or any(p.search(text) for p in NOT_PROSE):
    return False
  return len(PLAIN_WORD.findall(text)) >= 0.75 * words


HEADING = re.compile(r'([=\-~^*#"\'+_`])\1{2,}|[=\- ]{6,}')
ADMONITION = re.compile(  # directives whose body is prose
    r'\.\. *(note|warning|tip|important|caution|hint|attention|danger|deprecated|'
    r'version(added|changed))::', re.I)
NUMPY_ENTRY = re.compile(r'[\w*`\'",. ]+ : .*')
ENTRY = re.compile(
    r'\A[*`]*(:\w+ [\w.* ]+|[\w./-]+( ?,? [*`\w]+)?)[*`]*( \([^)]*\))?[*`]*: +(?=\S)')
BULLET = re.compile(r'\A([-*+•] +|\(?\d{1,2}[.)] +|\([a-z]\) +|#\. +)')
INLINE = [(mark, re.compile(pattern), replacement) for mark, pattern, replacement in (
    # (part of every match, pattern, replacement)
    ('](', r'!?\[([^\]]+)\]\([^)\s]+\)', r'\1'),  # [text](address)
    (':`', r':[\w:+-]+:`[!~]?([^`<]*?) *(?:<[^`]*>)?`', r'\1'),  # :role:`text <target>`
    ('>`', r'`([^`<]+?) *<[^`]*>`_*', r'\1'),  # `text <address>`_
    ('`', r'``?`?([^`]+)``?`?_*', r'\1'),
    ('**', r'\*\*([^*]+)\*\*', r'\1'),
    ('*', r'(?<![\w*])\*([^*\s][^*]*)\*(?!\w)', r'\1'),
    (']_', r'(\[[\w#*+-]{1,12}\])_', r'\1'),  # [1]_
    ('://', r'<?(?:https?|ftp)://[^\s>)]+[^\s>).,]>?', ''),
    ('(', r'\( *\)', ''),
)]
BEGINNING = re.compile(r'["(]?([A-Z]|\w+[._]\w)')  # a capital, or a name in code
ENDING = re.compile(r'(?<!\be\.g)(?<!\bi\.e)(?<!\.\.)[.!?:\w)"]$')
CODE_MARKS = ('>>>', '... ', ':=', '---', '::', ' = ', '</')
NOT_PROSE = (  # each begins with characters that are quick to search for
    re.compile(r'[\\|$@{}#]'), re.compile(r'(?<=\w)\(\w*\)\.'),
    re.compile(r'\bTODO\b'), re.compile(r'\bCopyright\b'), re.compile(r'\bLicen[sc]e\b'))
PLAIN_WORD = re.compile(
    r'(?<!\S)["\'‘“(\[]*[A-Za-zÀ-ž]+(?:[-/\'’][A-Za-zÀ-ž]+)*["\'’”)\]]*[.,;:!?]*["\'’”)]*(?!\S)')
SKIPPED_FOLDERS = frozenset((
    'test', 'tests', 'testing', 'site-packages', 'dist-packages', 'idlelib', 'lib2to3',
    '__pycache__'))


def list_source_files() -> Iterator[tuple[str, Path]]:
  """Yield (name that is the same on every machine, path) of Python files to read.

  They belong to the packages and the standard library.
  """
  folders = {'python': Path(sysconfig.get_path('stdlib'))}
  for package in PACKAGES:
    spec = importlib.util.find_spec(package)
    if spec and spec.submodule_search_locations:
      for place in spec.submodule_search_locations:
        folders[package] = Path(place)
  for package, folder in folders.items():
    for place, children, names in os.walk(folder):
      children[:] = [child for child in children if child not in SKIPPED_FOLDERS]
      for name in names:
        if name.endswith('.py') and not name.endswith('_test.py') and not name.startswith('test_'):
          path = Path(place) / name
          yield f'{package}/{path.relative_to(folder).as_posix()}', path


def package_versions() -> list[tuple[str, str]]:
  """List (package, version) of the installed packages, and of Python."""
  found = [('python', platform.python_version())]
  for package, distributions in PACKAGES.items():
    for distribution in distributions:
      try:
        found.append((package, importlib.metadata.version(distribution)))
        break
      except importlib.metadata.PackageNotFoundError:
        continue
  return found


if __name__ == '__main__':
  print(corpus_path())
