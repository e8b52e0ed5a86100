"""Progress is silent for short work, a line per interval in a log, and notices interrupts that a
callback dropped."""
import signal
import sys

import pytest

from plm_jax import errors, progress


@pytest.fixture
def clock(monkeypatch):
  class Clock:
    now = 100.0
  monkeypatch.setattr(progress.time, 'monotonic', lambda: Clock.now)
  return Clock


def test_short_work_is_silent_and_long_work_has_a_line_per_interval(clock, capfd):
  with progress.command_scope('predict'), progress.track('rows', 400) as done:
    for _ in range(10):
      clock.now += 1
      done.update(10)
    assert capfd.readouterr() == ('', '')
    for _ in range(30):
      clock.now += 1
      done.update(10)
  out, err = capfd.readouterr()
  assert out == ''
  assert err.splitlines() == ['predict: 150 of 400 rows (38%), 10 per second, 00:25 left',
                              'predict: 300 of 400 rows (75%), 10 per second, 00:10 left']


def test_loops_of_a_command_add_to_its_total(clock, capfd):
  with progress.command_scope('encode'), progress.track('texts') as done:
    for _ in range(3):
      with progress.progress_bar('texts', 2) as inner:
        clock.now += 10
        inner.update(2)
    assert done.done == 6
  assert capfd.readouterr().err == 'encode: 4 texts, 0.2 per second\n'


def test_library_calls_and_quiet_commands_write_no_lines(clock, capfd):
  with progress.progress_bar('texts', 9) as done:
    clock.now += 100
    done.update(3)
  with progress.command_scope('predict'), progress.track('rows', quiet=True) as done:
    clock.now += 100
    done.update(3)
  assert capfd.readouterr() == ('', '')


def test_a_dropped_interrupt_is_noticed(monkeypatch):
  monkeypatch.setattr(errors, 'SIGNALS', [])
  with progress.progress_bar('texts', 9) as done:
    done.update(1)
    errors.SIGNALS.append(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
      done.update(1)


def test_without_a_console_there_are_no_progress_bars(monkeypatch):
  """Standard error is None in a service that has closed it, and in pythonw."""
  monkeypatch.setattr(sys, 'stderr', None)
  assert not progress.is_terminal()
  with progress.progress_bar('rows', 3) as bar:
    bar.update(3)
  assert bar.done == 3
