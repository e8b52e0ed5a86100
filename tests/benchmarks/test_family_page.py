"""The tables of model families are generated from the registry of the code."""
import pytest

from benchmarks import family_page
from plm_jax.models.families import FAMILIES


@pytest.mark.parametrize('path', family_page.COLUMNS, ids=['English', 'Chinese'])
def test_the_tables_are_up_to_date(path):
  assert path.read_text() == family_page.write_tables(path), (
      'python -m benchmarks.family_page writes the tables')


def test_every_family_is_on_the_page_once():
  assert sorted(name for kind in family_page.KINDS for name in kind) == sorted(FAMILIES)
  assert set(family_page.EXAMPLES) <= set(FAMILIES)
