"""The release: all version numbers agree, and no part is missing. `.ci/wheel` builds it."""
import configparser
import pathlib
import re

from packaging.requirements import Requirement

import plm_jax

ROOT = pathlib.Path(__file__).parents[1]


def setup() -> configparser.ConfigParser:
  found = configparser.ConfigParser()
  found.read(ROOT / 'setup.cfg')
  return found


def test_the_version_is_the_same_everywhere():
  assert setup()['metadata']['version'] == 'attr: plm_jax.__version__'
  version = plm_jax.__version__
  cited = re.findall(r'^version: (\S+)$', (ROOT / 'CITATION.cff').read_text(), re.M)
  changed = re.findall(r'^## (\d[^,\s]*)', (ROOT / 'CHANGELOG.md').read_text(), re.M)
  assert cited == [version] and changed[0] == version


def test_dependencies_have_upper_bounds():
  """A later major version may remove functions that are used here. `packaging` has a new major
  version every year and keeps its API."""
  needed = [Requirement(line)
            for line in setup()['options']['install_requires'].strip().splitlines()]
  unbounded = [one.name for one in needed if '<' not in {bound.operator for bound in one.specifier}]
  assert unbounded == ['packaging']
  orbax, = [one for one in needed if one.name == 'orbax-checkpoint']
  assert '0.12.8' in orbax.specifier and '1.0.0' not in orbax.specifier


def test_only_folders_of_code_are_installed():
  """A folder without __init__.py is not found by setuptools, and is missing from a wheel alone."""
  assert setup()['options.packages.find']['include'].split() == ['plm_jax*']
  folders = {path.parent for path in (ROOT / 'plm_jax').rglob('*.py')}
  assert [str(folder) for folder in folders if not (folder / '__init__.py').exists()] == []
  others = [path for path in (ROOT / 'plm_jax').rglob('*') if path.is_file()
            and path.suffix not in ('.py', '.pyc')]
  named = setup()['options.package_data']  # files that are read at run time
  assert sorted(str(path.relative_to(ROOT)) for path in others) == [
      'plm_jax/cli/help.json', 'plm_jax/report/inputs.css', 'plm_jax/report/pages.css']
  assert dict(named) == {'plm_jax.cli': 'help.json', 'plm_jax.report': '*.css'}


def test_python_versions_agree_in_metadata_and_documentation():
  metadata, options = setup()['metadata'], setup()['options']
  named = re.findall(r':: (3\.\d+)$', metadata['classifiers'], re.M)
  first, last = named[0], int(named[-1].removeprefix('3.'))
  assert options['python_requires'] == f'>={first}, <3.{last + 1}'
  assert f'Python {named[0]} to {named[-1]}.' in (ROOT / 'CONTRIBUTING.md').read_text()
