"""Every command and Python block of the README, in English and Chinese, runs as written, at
--scale=test.

A run has two steps of it, which are traced and leave parameters as they began:
tests/recipes/test_recipes.py trains the same recipes. Those of docs/reference/recipes are the
recipes' own, which tests/recipes/test_recipes_catalog.py parses.
"""
import re

import pytest
import tiny
from typed import ELSEWHERE, ROOT, World, shown

PAGES = ROOT / 'README.md', ROOT / 'README.zh.md'
SETUP = re.compile(r'^    (python3 -m venv .* && .*)$', re.M)


def python_blocks(text: str) -> list[str]:
  """Returns the Python blocks of a page."""
  return re.findall(r'^```python\n(.*?)^```', text, re.M | re.S)


def test_pages_show_the_same():
  """Both languages have the same commands (the Chinese page has one more) and the same Python."""
  english, chinese = (page.read_text(encoding='utf-8') for page in PAGES)
  assert len(shown(english)) >= 7
  assert set(shown(english)) <= set(shown(chinese))
  assert python_blocks(english) == python_blocks(chinese)
  assert len(python_blocks(english)) == 1
  assert SETUP.findall(english) == SETUP.findall(chinese)


def test_readme_is_short_and_has_its_files():
  for page in PAGES:
    text = page.read_text(encoding='utf-8')
    assert len(text.splitlines()) <= 150
    lost = [link for link in re.findall(r'\]\((?!https?:)([^)#]+)\)', text)
            if not (ROOT / link).exists()]
    assert not lost


def test_commands_that_set_up():
  """One command runs the main job, one runs the tests; each is one line, which .ci/run finds."""
  job, tests = SETUP.findall(PAGES[0].read_text(encoding='utf-8'))
  assert job.endswith('-m experiments.bert_base --scale=laptop')
  assert '-m pytest' in tests


@pytest.mark.slow
def test_every_command_runs(tmp_path, monkeypatch):
  monkeypatch.setattr('plm_jax.training.learner.jit_train_step', tiny.traced_step)
  monkeypatch.chdir(tmp_path)
  world, failed = World(), []
  for line in dict.fromkeys(line for page in PAGES
                            for line in shown(page.read_text(encoding='utf-8'))):
    if any(word in line for word in ELSEWHERE):
      continue
    try:
      world.type(line, monkeypatch)
    except (Exception, SystemExit) as error:
      failed.append(f'{line}\n    {type(error).__name__}: {error}')
  assert not failed, '\n'.join(failed)
  block, = python_blocks(PAGES[0].read_text(encoding='utf-8'))
  exec(compile(block.replace("'laptop'", "'test'"), 'README.md', 'exec'), {})
