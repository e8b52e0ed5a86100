"""Installed versions of the packages that a run depends on, and their conflicts.

They are read from the packages' metadata without importing them: JAX cannot be imported next to a
jaxlib of another version.
"""
from collections.abc import Iterator, Mapping, Sequence
import importlib.metadata
from importlib.metadata import Distribution
import pathlib
import platform
import sys

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from plm_jax.errors import UserError

PACKAGES = ('plm_jax', 'jax', 'jaxlib', 'libtpu', 'jax-cuda12-plugin', 'jax-cuda13-plugin', 'flax',
            'optax', 'orbax-checkpoint')
MODULE_NAMES = {'orbax-checkpoint': 'orbax.checkpoint'}  # where it differs from the package's name
# Settings of JAX that change random numbers, or the dtype and precision of products.
JAX_SETTINGS = ('jax_enable_x64', 'jax_default_prng_impl', 'jax_threefry_partitionable',
                'jax_numpy_dtype_promotion', 'jax_default_matmul_precision', 'jax_debug_nans',
                'jax_disable_jit')
Installed = Mapping[str, Distribution]


class VersionError(UserError):
  """Packages that conflict with each other, or with this Python."""


def find_installed(path: Sequence[str] | None = None) -> Installed:
  """Find which of `PACKAGES` are installed.

  Args:
    path: folders to search; None: sys.path.

  Returns:
    {name: distribution}.
  """
  found: dict[str, Distribution] = {}
  folders = list(sys.path if path is None else path)
  names = {canonicalize_name(name): name for name in PACKAGES}
  for canonical, name in names.items():
    for distribution in importlib.metadata.distributions(name=canonical, path=folders):
      found.setdefault(name, distribution)  # the first one is imported
  return found


def describe_environment() -> dict[str, str]:
  """Return what results depend on besides options, for reproducibility.

  Returns:
    {name: value}: versions of Python and `PACKAGES`, as installed and as imported; a digest of
    plm_jax's source; JAX's numerical settings.
  """
  from plm_jax.storage.digests import start_digest
  found = {'Python': platform.python_version()}
  for name, distribution in find_installed().items():
    module = sys.modules.get(MODULE_NAMES.get(name, name))
    version = distribution.version
    imported = getattr(module, '__version__', version)
    if imported != version:
      version = f'{version}, imported as {imported}'
    found[name] = version
  digest = start_digest()
  root = pathlib.Path(__file__).parent
  for path in sorted(root.rglob('*.py')):
    digest.update(f'{path.relative_to(root)}\n'.encode() + path.read_bytes())
  found['the source of plm_jax'] = digest.hexdigest()[:12]
  config = getattr(sys.modules.get('jax'), 'config', None)
  if config:
    for name in JAX_SETTINGS:
      found[name] = str(getattr(config, name, None))
  return found


def format_versions(found: Installed) -> str:
  """Format Python and the packages with their versions as one line."""
  versions = [f'{name} {distribution.version}' for name, distribution in found.items()]
  return ', '.join([f'Python {platform.python_version()}', *versions])


def find_conflicts(found: Installed, names: Sequence[str] = PACKAGES) -> Iterator[str]:
  """Yield the conflicts of each package of `names` with other packages, and how to fix them."""
  for name in names:
    if name not in found:
      continue
    distribution, reported = found[name], set()
    version, this_python = distribution.version, platform.python_version()
    python = distribution.metadata['Requires-Python']
    if python and not Requirement(f'python{python}').specifier.contains(
        this_python, prereleases=True):
      yield (f'{name} {version} is for Python {python}, and this is {this_python}: make the '
             'environment with another, such as `uv venv -p 3.12`')
    for needed, extra in requirements(distribution):
      wanted = canonicalize_name(needed.name)
      other = next((known for known in found if canonicalize_name(known) == wanted), '')
      if not other or other in reported:
        continue
      if needed.specifier.contains(found[other].version, prereleases=True):
        continue
      reported.add(other)
      fix = f'{name}[{extra}]=={version}' if extra else f'{needed.name}{needed.specifier}'
      yield (f'{name} {version} needs {needed.name}{needed.specifier}, and {other} '
             f"{found[other].version} is installed: pip install '{fix}'")


def requirements(distribution: Distribution) -> Iterator[tuple[Requirement, str]]:
  """Yield what a package requires here, and what its extras require, with the extra's name.

  A package that is part of an extra counts wherever it is installed.
  """
  for text in distribution.requires or ():
    needed = Requirement(text)
    if not needed.marker or needed.marker.evaluate({'extra': ''}):
      yield needed, ''
      continue
    for extra in distribution.metadata.get_all('Provides-Extra') or ():
      # Extras of developers only name the versions that were tested.
      if extra.startswith(('tpu', 'cuda')) and needed.marker.evaluate({'extra': extra}):
        yield needed, extra


def check_importable(found: Installed | None = None) -> None:
  """Check that jax can be imported with the installed jaxlib.

  Raises:
    VersionError: it cannot.
  """
  found = find_installed() if found is None else found
  pair = {name: found[name] for name in ('jax', 'jaxlib') if name in found}
  for conflict in find_conflicts(pair, ['jax']):
    raise VersionError(conflict)


def check(found: Installed) -> None:
  """Check that the packages do not conflict.

  Raises:
    VersionError: it names all conflicts.
  """
  if conflicts := list(find_conflicts(found)):
    raise VersionError('; '.join(conflicts))
