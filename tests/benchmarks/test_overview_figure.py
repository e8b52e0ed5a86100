"""The first picture of README and site is drawn from the stored results."""
import pytest

from benchmarks import overview_figure


@pytest.mark.parametrize('path', overview_figure.PICTURES, ids=['English', 'Chinese'])
def test_the_picture_shows_the_results(path):
  assert path.read_text(encoding='utf-8') == overview_figure.draw(overview_figure.PICTURES[path]), (
      'python -m benchmarks.overview_figure draws it')


def test_a_task_that_gains_little_is_shown_too():
  gains = [after - before for before, after in overview_figure.read_scores()]
  assert max(gains) > 25 and min(gains) < 1
