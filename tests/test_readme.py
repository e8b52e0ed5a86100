"""Every command that README shows runs as it is typed there, at --scale=test.

A run has two steps of it, which are traced and leave parameters as they began: tests/recipes/test_recipes.py trains the
same recipes. Those of docs/recipes.md are the recipes' own, which tests/recipes/test_catalogue.py parses.
"""
import pytest
import tiny
from typed import ELSEWHERE, ROOT, World, shown

from plm_jax.training import train

COMMANDS = shown((ROOT / 'README.md').read_text())


def test_commands_are_found():
  assert len(COMMANDS) > 20
  assert all(any(word in line for line in COMMANDS) for word in ELSEWHERE)


@pytest.mark.slow
def test_every_command_runs(tmp_path, monkeypatch):
  monkeypatch.setattr(train, 'jitted_step', tiny.traced_step)
  monkeypatch.chdir(tmp_path)
  world, failed = World(), []
  for line in COMMANDS:
    if any(word in line for word in ELSEWHERE):
      continue
    try:
      world.type(line, monkeypatch)
    except (Exception, SystemExit) as error:
      failed.append(f'{line}\n    {type(error).__name__}: {error}')
  assert not failed, '\n'.join(failed)
