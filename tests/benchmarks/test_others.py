"""Benchmarks that nothing else calls go on working when what they call changes."""
import pytest
import tiny

from benchmarks import claims, masks


@pytest.mark.slow
def test_a_claim(tmp_path):
  """Parameters that one run has trained are judged by the objective of another."""
  text = tmp_path / 'text.txt'
  text.write_text(tiny.text())
  bench = claims.Bench(tmp_path / 'runs', str(text), 4)
  found = claims.spans(bench, 0)
  assert [*found] == ['spans and their boundaries', 'tokens', 'spans'] and all(0 <= x <= 1 for x in found.values())


@pytest.mark.slow
def test_masks_of_bart():
  assert all(abs(here - paper) < 0.05 + 0.05 * paper for here, paper in masks.bart(masks.CHUNK).values())
