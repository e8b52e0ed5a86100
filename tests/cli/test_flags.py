"""Messages name options that the running command has."""
import contextlib
import io
import logging
import re

import pytest
import tyro

from plm_jax import errors, validation
from plm_jax.cli import catalog, commands, finetune
from plm_jax.cli.flags import name_flags, write_flags
from plm_jax.config.run import FinetuneRun, PretrainRun
from plm_jax.errors import add_advice, name_field
from plm_jax.sources.lines import ReadStats, SourceError, report_problem

READING = 'on_error', 'text_field', 'documents', 'encoding', 'columns.first', 'column'
# they read their arguments themselves
OWN = 'train', 'doctor', 'plan', 'show', 'inspect', 'finetune', 'vectors'


def offered(paths):
  """Returns the options of reading text that a command with these fields has."""
  return [*filter(None, (write_flags(add_advice(name_field(name)), paths) for name in READING))]


def helped(parse):
  """Returns the options that a help text names."""
  said = io.StringIO()
  with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
    parse()
  return set(re.findall(r'--[a-z][\w.-]*', said.getvalue()))


SIMPLE = [name for name in catalog.COMMANDS if name not in (*OWN, 'completion')]
SIMPLE += [f'vectors {name}' for name in catalog.VECTORS]


@pytest.mark.parametrize('name', SIMPLE)
def test_a_command_takes_what_its_messages_name(name):
  run = commands.find_function(name)
  shown = helped(lambda: tyro.cli(run, args=['--help'], config=(tyro.conf.FlagConversionOff,)))
  named = offered(run.paths)
  assert {*named} <= shown
  if name in ('prepare', 'clean'):
    assert '--on-error' in named and '--encoding' in named
  if name in ('encode', 'search', 'tag', 'probe', 'losses', 'perplexity', 'neighbors', 'attention'):
    assert not any(said.startswith('--on-error') for said in named)


@pytest.mark.parametrize(('kind', 'named'), [
    (PretrainRun, ['--data.prepare.on-error', '--data.prepare.text-field',
                   '--data.prepare.documents',
                  '--data.prepare.encoding']),
    (FinetuneRun, ['--data.on-error', '--data.encoding', '--data.columns.first'])])
def test_a_run_takes_what_its_messages_name(kind, named):
  assert offered(validation.field_paths(kind)) == named


def refused(start):
  """Return the message of a command that ends with an error."""
  with pytest.raises(SystemExit) as ended:
    start()
  return str(ended.value)


def test_messages_of_whole_commands(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 't.tsv').write_text('sentence\tlabel\nthe cat\ta\nthe dog\tb\nx\n')
  args = ['--task=classification', '--train=t.tsv', '--dev=t.tsv', '--scale=test', '--output=o']
  said = refused(lambda: finetune.start(args=args))
  assert said.startswith('error: t.tsv:4: ') and said.endswith(
      'leave such lines out with --data.on-error=skip.')
  (tmp_path / 't.jsonl').write_text('{"text": 5}\n')
  monkeypatch.setattr('sys.argv', ['plm_jax', 'prepare', 't.jsonl', 'records'])
  said = refused(commands.main)
  assert said == (
      "error: t.jsonl:1: the field 'text' is a number, not a text. Fix it, or leave such lines out "
      "with "
                  '--on-error=skip.')
  assert not (tmp_path / 'records').exists()


def test_functions_of_python_name_fields():
  with pytest.raises(SourceError,
                     match=r'^x\. Fix it, or leave such lines out with on_error=skip\.$'):
    report_problem('x', 'refuse', ReadStats())
  with pytest.raises(SourceError, match=r'^x$'), name_flags(()):
    report_problem('x', 'refuse', ReadStats())


def test_the_inner_command_names_its_options():
  inner = name_flags(validation.field_paths(FinetuneRun))
  with pytest.raises(SourceError,
                     match=r'with --data\.on-error=skip\.$'), name_flags({'on_error'}), inner:
    report_problem('x', 'refuse', ReadStats())


def test_data_of_a_user_is_no_field():
  message = 'optim.peak, 50% of --x'
  assert write_flags(f'{name_field("dev")}: {message}', ()) == f'--dev: {message}'


def test_warnings_and_lines_are_for_people(capsys):
  log = logging.getLogger('plm_jax')
  before = [*log.handlers], log.propagate
  try:
    log.handlers.clear()
    errors.show_warnings()
    errors.show_warnings()
    logging.getLogger('plm_jax.preparation.finalize').warning('%d lines were left out', 2)
    assert capsys.readouterr().err == 'warning: 2 lines were left out\n'
    text = f'50% of it: {name_field("train.keep")}=2'
    with name_flags():
      errors.warn(text)
      errors.print_line(text)
    assert capsys.readouterr() == ('50% of it: --train.keep=2\n',
                                   'warning: 50% of it: --train.keep=2\n')
    errors.warn(text)
    errors.print_line(text)
    assert capsys.readouterr() == ('50% of it: train.keep=2\n',
                                   'warning: 50% of it: train.keep=2\n')
  finally:
    log.handlers[:], log.propagate = before
