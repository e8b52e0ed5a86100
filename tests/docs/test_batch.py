"""The page on one batch through BERT: its code prints the output on the page, in both languages."""
import contextlib
import io
import re

import pytest
from typed import ROOT

PAGE = 'explanation/batch.md'
BLOCK = re.compile(r'^```python\n(.*?)^```\n(?:```text\n(.*?)^```\n)?', re.M | re.S)


def blocks(folder: str) -> list[tuple[str, str]]:
  """Returns the code and the printed lines of each block of the page."""
  return BLOCK.findall((ROOT / folder / PAGE).read_text(encoding='utf-8'))


def test_both_languages_have_the_same_code_and_output():
  assert len(blocks('docs')) > 5
  assert blocks('docs/zh') == blocks('docs')


@pytest.mark.slow
def test_code_prints_the_numbers_of_the_page(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  names: dict = {}
  for code, expected in blocks('docs'):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
      exec(compile(code, PAGE, 'exec'), names)
    if expected:
      assert [line.rstrip() for line in printed.getvalue().splitlines()] == expected.splitlines()
