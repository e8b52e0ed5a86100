"""The embedded corpus: English prose that every machine with this project has, the documentation in installed packages.

Docstrings are read from source files; nothing is imported. What is left of them without code, tables, headings and
mark-up reads as prose, and a paragraph that occurs in many places is kept once. The result is a text file in the format
of `sources`, made once in half a minute and kept in the cache folder ($PLM_JAX_CACHE, else ~/.cache/plm_jax).
"""
import ast
from collections.abc import Iterable, Iterator
import hashlib
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
from plm_jax.data import workers as workers_lib
from plm_jax.storage.lock import Lock

PACKAGES = {  # import name: distributions that may provide it
    'jax': ('jax',), 'jaxlib': ('jaxlib',), 'flax': ('flax',), 'optax': ('optax',), 'orbax': ('orbax-checkpoint',),
    'numpy': ('numpy',), 'scipy': ('scipy',), 'tensorflow': ('tensorflow-cpu', 'tensorflow'), 'keras': ('keras',),
    'tensorflow_datasets': ('tensorflow-datasets',), 'etils': ('etils',),
}
PROMPTS = (  # what a model of this text should know
    'The number [MASK] rows in the matrix.', 'Returns the [MASK] of the array.',
    'This method is used [MASK] compute the gradient.')
RULES = 1  # version of the cleaning below; part of the name of the cached file


def corpus_path() -> Path:
  """Returns the corpus of this machine as a text file, made now if the cache lacks it."""
  found = versions()
  key = hashlib.sha256(repr((RULES, found)).encode()).hexdigest()[:12]
  path = storage.cache_folder() / f'embedded-{key}.txt'
  if path.exists():
    return path
  with Lock(path.parent, 'the making of the embedded corpus', wait=True):
    if not path.exists():
      storage.remove_drafts(path.parent)
      with storage.drafted(path) as f:
        for document in extract(source_files()):
          f.write(('\n'.join(document) + '\n\n').encode(errors='replace'))
  return path


def extract(files: Iterable[tuple[str, Path]], workers: int | None = None) -> Iterator[list[str]]:
  """Yields documents, each a list of paragraphs, of the named Python files; no paragraph comes twice.

  A class with some text to it is a document, the rest of its module another.
  """
  seen = set()
  for documents in map_files([path for _, path in sorted(files)], workers or os.cpu_count() or 1):
    for document in documents:
      fresh = [paragraph for paragraph in dict.fromkeys(document) if paragraph not in seen]
      seen.update(fresh)
      if fresh:
        yield fresh


def map_files(paths: list[Path], workers: int) -> Iterator[list[list[str]]]:
  """Yields the documents of each file, in order, by `workers` processes where there are 200 files or more."""
  if workers == 1 or len(paths) < 200:
    yield from map(module_documents, paths)
    return
  with workers_lib.pool(workers) as pool:
    yield from pool.map(module_documents, paths, chunksize=32)


def module_documents(path: Path) -> list[list[str]]:
  """Reads the documents of a source file; none when it cannot be read or does not parse, as the templates and examples
  of some packages."""
  try:
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')  # invalid escapes in other people's strings
      tree = ast.parse(path.read_bytes())
  except (SyntaxError, ValueError, RecursionError, MemoryError):  # MemoryError: too deep for the parser
    return []
  except (FileNotFoundError, PermissionError):
    return []
  module, classes = [], []
  for node in tree.body:
    text = [paragraph for string in strings(node) for paragraph in clean(string)]
    (classes.append if isinstance(node, ast.ClassDef) and len(text) >= 4 else module.extend)(text)
  return [document for document in (module, *classes) if document]


def strings(node: ast.AST) -> list[str]:
  """Docstrings, and texts such as those that NumPy and SciPy attach to compiled functions, in the order of the file."""
  found = []
  for child in ast.walk(node):
    if isinstance(child, ast.Expr):
      child, least = child.value, 0
    else:
      least = 200
    if isinstance(child, ast.Constant) and isinstance(child.value, str) and len(child.value) >= least:
      found.append((child.lineno, child.value))
  return [text for _, text in sorted(found)]


def clean(text: str) -> list[str]:
  """Returns a docstring's paragraphs of prose, each one line without mark-up."""
  return [p for p in map(plain, paragraphs(inspect.cleandoc(text).expandtabs().split('\n'))) if is_prose(p)]


def paragraphs(lines: list[str]) -> Iterator[str]:
  """Joins wrapped lines; leaves out code, directives, headings, and the names and types of parameters."""
  current: list[str] = []
  start = 0  # indent of the first line of `current`
  code = None  # indent of the line that opened a block of code; the block is what is indented deeper
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
    doctest = bool(text) and (doctest or text.startswith(('>>>', 'In [', '... ')))  # a doctest runs to a blank line
    skip = fence or doctest or code is not None or text.startswith(('```', '~~~', '|', '+-', '@'))
    if skip or not text or HEADING.fullmatch(text):
      if HEADING.fullmatch(text):
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
    names_something = deeper and (is_name or NUMPY_ENTRY.fullmatch(text))
    if names_something and (not current or indent <= start):
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


def plain(text: str) -> str:
  """Takes inline mark-up, bullets and the name before a description out of a paragraph."""
  text = BULLET.sub('', text)
  text, named = ENTRY.subn('', text)
  for pattern, replacement in INLINE:
    text = pattern.sub(replacement, text)
  text = re.sub(':+$', ':', ' '.join(text.split()))
  if named and re.match('[a-z]+[ ,]', text):
    text = text[0].upper() + text[1:]
  return text


def is_prose(text: str) -> bool:
  """Tells whether a text has at least six words, nearly all of them plain English, and begins and ends as a sentence
  does."""
  words = text.split()
  if len(words) < 6 or not BEGINNING.match(text) or not ENDING.search(text) or NOT_PROSE.search(text):
    return False
  return sum(map(bool, map(WORD.fullmatch, words))) >= 0.75 * len(words)


HEADING = re.compile(r'([=\-~^*#"\'+_`])\1{2,}|[=\- ]{6,}')
ADMONITION = re.compile(  # directives whose body is prose
    r'\.\. *(note|warning|tip|important|caution|hint|attention|danger|deprecated|version(added|changed))::', re.I)
NUMPY_ENTRY = re.compile(r'[\w*`\'",. ]+ : .*')
ENTRY = re.compile(r'\A[*`]*(:\w+ [\w.* ]+|[\w./-]+( ?,? [*`\w]+)?)[*`]*( \([^)]*\))?[*`]*: +(?=\S)')
BULLET = re.compile(r'\A([-*+•] +|\(?\d{1,2}[.)] +|\([a-z]\) +|#\. +)')
INLINE = [(re.compile(pattern), replacement) for pattern, replacement in (
    (r'!?\[([^\]]+)\]\([^)\s]+\)', r'\1'),  # [text](address)
    (r':[\w:+-]+:`[!~]?([^`<]*?) *(?:<[^`]*>)?`', r'\1'),  # :role:`text <target>`
    (r'`([^`<]+?) *<[^`]*>`_*', r'\1'),  # `text <address>`_
    (r'``?`?([^`]+)``?`?_*', r'\1'),
    (r'\*\*([^*]+)\*\*', r'\1'),
    (r'(?<![\w*])\*([^*\s][^*]*)\*(?!\w)', r'\1'),
    (r'(\[[\w#*+-]{1,12}\])_', r'\1'),  # [1]_
    (r'<?(?:https?|ftp)://[^\s>)]+[^\s>).,]>?', ''),
    (r'\( *\)', ''),
)]
BEGINNING = re.compile(r'["(]?([A-Z]|\w+[._]\w)')  # a capital, or a name in code
ENDING = re.compile(r'(?<!\be\.g)(?<!\bi\.e)(?<!\.\.)[.!?:\w)"]$')
NOT_PROSE = re.compile(r'>>>|\.\.\. |[\\|$@{}#]|:=|\w\(\w*\)\.|---|::| = |\b(TODO|Copyright|Licen[sc]e)\b|</')
WORD = re.compile(r'["\'‘“(\[]*[A-Za-zÀ-ž]+(?:[-/\'’][A-Za-zÀ-ž]+)*["\'’”)\]]*[.,;:!?]*["\'’”)]*')
SKIP = frozenset(('test', 'tests', 'testing', 'site-packages', 'dist-packages', 'idlelib', 'lib2to3', '__pycache__'))


def source_files() -> Iterator[tuple[str, Path]]:
  """Yields (name that is the same on every machine, path) of the Python files of the packages and the standard
  library."""
  folders = {'python': Path(sysconfig.get_path('stdlib'))}
  for package in PACKAGES:
    spec = importlib.util.find_spec(package)
    for place in (spec.submodule_search_locations or []) if spec else []:
      folders[package] = Path(place)
  for package, folder in folders.items():
    for place, children, names in os.walk(folder):
      children[:] = [child for child in children if child not in SKIP]
      for name in names:
        if name.endswith('.py') and not name.endswith('_test.py') and not name.startswith('test_'):
          path = Path(place) / name
          yield f'{package}/{path.relative_to(folder).as_posix()}', path


def versions() -> list[tuple[str, str]]:
  """Lists (package, version) of those that are installed, and of Python."""
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
