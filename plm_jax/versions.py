"""Which versions are installed of what a run stands on, and which of them do not go together.

Told by what the packages say of themselves, without importing any: JAX beside a jaxlib that is not its own cannot be.
"""
from collections.abc import Iterator, Mapping, Sequence
import importlib.metadata
from importlib.metadata import Distribution
import platform
import sys

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from plm_jax.errors import Expected

NAMES = ('plm_jax', 'jax', 'jaxlib', 'libtpu', 'jax-cuda12-plugin', 'jax-cuda13-plugin', 'flax', 'optax',
         'orbax-checkpoint')
Installed = Mapping[str, Distribution]


class VersionError(Expected):
  """Packages that do not go together, or with this Python."""


def installed(path: Sequence[str] | None = None) -> Installed:
  """Finds the packages of `NAMES` that are installed, by name. path: folders to look in, as sys.path."""
  found: dict[str, Distribution] = {}
  names = {canonicalize_name(name): name for name in NAMES}
  for name, called in names.items():
    for one in importlib.metadata.distributions(name=name, path=[*(sys.path if path is None else path)]):
      found.setdefault(called, one)  # the first is the one that is imported
  return found


def said(found: Installed) -> str:
  """Writes Python and the packages with their versions, on one line."""
  return ', '.join([f'Python {platform.python_version()}', *(f'{name} {one.version}' for name, one in found.items())])


def conflicts(found: Installed, names: Sequence[str] = NAMES) -> Iterator[str]:
  """Yields, of each package of `names` that is installed, which others it does not go with, and what to do."""
  for name in names:
    if name not in found:
      continue
    one, seen = found[name], set()
    python = one.metadata['Requires-Python']
    if python and not Requirement(f'python{python}').specifier.contains(platform.python_version(), prereleases=True):
      yield (f'{name} {one.version} is for Python {python}, and this is {platform.python_version()}: make the '
             'environment with another, such as `uv venv --python 3.12`')
    for needed, extra in requirements(one):
      other = next((known for known in found if canonicalize_name(known) == canonicalize_name(needed.name)), '')
      if not other or other in seen or needed.specifier.contains(found[other].version, prereleases=True):
        continue
      seen.add(other)
      mend = f'{name}[{extra}]=={one.version}' if extra else f'{needed.name}{needed.specifier}'
      yield (f'{name} {one.version} needs {needed.name}{needed.specifier}, and {other} {found[other].version} is '
             f"installed: pip install '{mend}'")


def requirements(one: Distribution) -> Iterator[tuple[Requirement, str]]:
  """Yields what a package needs here, and what it needs beside each of its extras, with the extra's name. A package
  that is part of an extra counts wherever it is installed."""
  for text in one.requires or ():
    needed = Requirement(text)
    if not needed.marker or needed.marker.evaluate({'extra': ''}):
      yield needed, ''
      continue
    for extra in one.metadata.get_all('Provides-Extra') or ():
      # Those of developers say which versions they are tested with.
      if extra.startswith(('tpu', 'cuda')) and needed.marker.evaluate({'extra': extra}):
        yield needed, extra


def check_importable(found: Installed | None = None) -> None:
  """Raises VersionError for a jaxlib that jax will not be imported beside."""
  pair = {name: one for name, one in (installed() if found is None else found).items() if name in ('jax', 'jaxlib')}
  for conflict in conflicts(pair, ['jax']):
    raise VersionError(conflict)


def check(found: Installed) -> None:
  """Raises VersionError that names all that do not go together."""
  if every := [*conflicts(found)]:
    raise VersionError('; '.join(every))
