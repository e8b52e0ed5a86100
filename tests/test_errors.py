"""Errors and signals: an error of a user ends a command with one line, a bug with its traceback,
and a signal with its own exit status, wherever its exception is raised."""
import os
import re
import signal
import sys
import traceback

import pytest

from plm_jax import errors, recipes
from plm_jax.cli import flags
from plm_jax.cli.run import main
from plm_jax.errors import ConfigError, check_interrupted, exit_on_error, parse_errors_as


def send(number):
  os.kill(os.getpid(), number)
  for _ in range(1000):  # the handler runs between two instructions
    pass


def status(work, capfd):
  with pytest.raises(SystemExit) as ended, exit_on_error():
    work()
  return ended.value.code, capfd.readouterr().err


@pytest.mark.parametrize(('number', 'code', 'line'), [
    (signal.SIGINT, 130, 'interrupted\n'), (signal.SIGTERM, 143, 'stopped by SIGTERM\n'),
    (signal.SIGHUP, 129, 'stopped by SIGHUP\n'), (signal.SIGUSR1, 138, 'stopped by SIGUSR1\n'),
    (signal.SIGUSR2, 140, 'stopped by SIGUSR2\n'), (signal.SIGXCPU, 152, 'stopped by SIGXCPU\n')])
def test_a_signal_ends_the_command(number, code, line, capfd):
  handler = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
  outer = signal.signal(number, handler)  # nohup starts the suite with SIGHUP ignored
  try:
    assert status(lambda: send(number), capfd) == (code, line)
    assert signal.getsignal(number) == handler
  finally:
    signal.signal(number, outer)
  check_interrupted()  # nothing is left of it


def test_a_signal_after_saved_work_ends_with_the_status_that_means_again(capfd):
  def work():
    errors.SAVED.append('a journal')
    send(signal.SIGTERM)
  assert status(work, capfd) == (errors.EXIT_STOPPED,
                                 'stopped by SIGTERM: the same command resumes\n')
  assert status(lambda: send(signal.SIGTERM), capfd)[0] == 143  # another command


def test_a_signal_in_code_that_drops_exceptions_ends_the_command(capfd):
  """Without the traceback of the finalizer."""
  class Finalized:
    def __del__(self):
      send(signal.SIGINT)
  def work():
    Finalized()  # Python prints what a finalizer raises, and continues
  assert status(work, capfd) == (130, 'interrupted\n')


def test_a_signal_in_code_that_converts_exceptions_ends_the_command(capfd):
  def wrapped():
    try:
      send(signal.SIGINT)
    except KeyboardInterrupt as error:
      raise RuntimeError('CpuCallback error') from error
  assert status(wrapped, capfd) == (130, 'interrupted\n')
  def replied():
    try:
      send(signal.SIGTERM)
    except KeyboardInterrupt as error:
      raise ConfigError('a worker process died') from error
  assert status(replied, capfd) == (143, 'stopped by SIGTERM\n')


def test_in_a_callback_of_jax(capfd):
  import jax
  def callback(x):
    send(signal.SIGINT)
    return x
  def work():
    call = jax.jit(lambda x: jax.pure_callback(callback, jax.ShapeDtypeStruct((), 'float32'), x))
    call(1.0).block_until_ready()
  code, said = status(work, capfd)
  assert code == 130
  assert said.splitlines()[-1] == 'interrupted'


def test_ignored_signals_stay_ignored(capfd):
  before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
  try:
    with exit_on_error():
      send(signal.SIGHUP)
  finally:
    signal.signal(signal.SIGHUP, before)
  assert capfd.readouterr().err == ''


def test_nested_commands_print_the_message_once(capfd):
  def work():
    with exit_on_error():
      send(signal.SIGINT)
  assert status(work, capfd) == (130, 'interrupted\n')


def test_errors_end_with_one_line_and_bugs_with_their_traceback(capfd):
  def refused():
    raise ConfigError('no such option')
  assert status(refused, capfd)[0] == 'error: no such option'
  with pytest.raises(ZeroDivisionError), exit_on_error():
    _ = 1 / 0
  with pytest.raises(SystemExit) as ended, exit_on_error():
    sys.exit(3)
  assert ended.value.code == 3


@pytest.mark.parametrize('line', [
    '[].get("a")', '(5)["a"]', 'int([])', 'None.shape', '{}["a"]', 'json.loads(5)',
    'json.loads("{")',
    'b"\\xff".decode()'])
def test_any_exception_of_a_parser_means_a_damaged_file(line):
  damaged = pytest.raises(ConfigError, match=r'^a\.json is damaged, or not a list: ')
  with damaged, parse_errors_as('a.json', 'a list', ConfigError):
    exec(f'import json\n{line}', {})


def test_fields_have_plain_names_without_a_command_and_options_with_one():
  error = errors.ConfigError(f'give {errors.name_field("optim.b2")}=1')
  assert str(error) == 'give optim.b2=1' and repr(error) == "ConfigError('give optim.b2=1')"
  with pytest.raises(errors.ConfigError, match=r'^give --optim\.b2=1$'), flags.name_flags():
    raise error


BERT = recipes.find_recipe('bert_base')


def bug(*arguments, **options):
  raise AttributeError('a planted bug')


@pytest.mark.parametrize(('place', 'file'), [
    ('layers.attention.probabilities', 'layers/attention.py'),
    ('objectives.mlm.scheduled_mask_rate', 'objectives/mlm.py'),
    ('optim.transformations.decay_mask', 'optim/transformations.py'),
    ('preparation.prepare.fingerprint', 'preparation/prepare.py')])
def test_a_bug_ends_with_a_traceback(place, file, tmp_path, monkeypatch):
  text = tmp_path / 'text.txt'
  text.write_text('\n\n'.join(f'Sentence {n} of a text. Another one.' for n in range(200)))
  monkeypatch.setattr(f'plm_jax.{place}', bug)
  arguments = ['--scale=test', f'--data.path={text}', '--data.prepare.heldout=0.2',
               '--mesh.data=1', f'--output={tmp_path / "run"}']
  with pytest.raises(AttributeError, match='a planted bug') as raised:
    main(BERT, arguments)
  printed = ''.join(traceback.format_exception(raised.value))
  assert re.search(rf'plm_jax/{file}", line \d+', printed)


@pytest.mark.parametrize(('setting', 'shows'), [(None, False), ('0', False), ('1', True)])
def test_user_errors_are_one_line_unless_tracebacks_are_enabled(
    setting, shows, monkeypatch, capfd):
  if setting is None:
    monkeypatch.delenv('PLM_JAX_TRACEBACK', raising=False)
  else:
    monkeypatch.setenv('PLM_JAX_TRACEBACK', setting)
  with pytest.raises(SystemExit) as ended, exit_on_error():
    raise ConfigError('no such option')
  assert ended.value.code == 'error: no such option'
  printed = capfd.readouterr().err
  assert ('test_errors.py", line' in printed) == shows
