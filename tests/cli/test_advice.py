"""Messages name options that the running command has."""
import contextlib
import io
import logging
import re

import pytest
import tyro

from plm_jax import errors, validation
from plm_jax.cli import catalog, commands, finetune, vectors
from plm_jax.config.run import FinetuneRun, PretrainRun
from plm_jax.data.lines import ReadStats, SourceError, report_problem
from plm_jax.errors import format_option

READING = 'on-error=skip', 'text-field=NAME', 'documents=lines', 'encoding=cp1251', 'columns.first=x', 'column=x'
OWN = 'train', 'doctor', 'show', 'inspect', 'finetune', 'vectors'  # they read their arguments themselves


def helped(parse):
  """Returns the options that a help text names."""
  said = io.StringIO()
  with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
    parse()
  return set(re.findall(r'--[a-z][\w.-]*', said.getvalue()))


SIMPLE = [(commands.find_function, name) for name in catalog.COMMANDS if name not in (*OWN, 'completion')]
SIMPLE += [(vectors.COMMANDS.get, name) for name in vectors.COMMANDS]


@pytest.mark.parametrize(('find', 'name'), SIMPLE, ids=[name for _, name in SIMPLE])
def test_a_command_takes_what_its_messages_name(find, name):
  run = find(name)
  shown = helped(lambda: tyro.cli(run, args=['--help'], config=(tyro.conf.FlagConversionOff,)))
  with errors.option_scope(run.paths):
    named = [said for said in map(format_option, READING) if said]
  assert {said.partition('=')[0] for said in named} <= shown
  if name in ('prepare', 'clean'):
    assert '--on-error=skip' in named and '--encoding=cp1251' in named
  if name in ('encode', 'search', 'tag', 'probe', 'losses', 'perplexity', 'neighbors', 'attention'):
    assert not any(said.startswith('--on-error') for said in named)


@pytest.mark.parametrize(('kind', 'named'), [
    (PretrainRun, ['--data.prepare.on-error=skip', '--data.prepare.text-field=NAME', '--data.prepare.documents=lines',
                  '--data.prepare.encoding=cp1251']),
    (FinetuneRun, ['--data.on-error=skip', '--data.encoding=cp1251', '--data.columns.first=x'])])
def test_a_run_takes_what_its_messages_name(kind, named):
  with errors.option_scope(validation.field_paths(kind)):
    assert [said for said in map(format_option, READING) if said] == named


def refused(start):
  """Returns what a command says when it ends with an error."""
  with pytest.raises(SystemExit) as ended:
    start()
  return str(ended.value)


def test_messages_of_whole_commands(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 't.tsv').write_text('sentence\tlabel\nthe cat\ta\nthe dog\tb\nx\n')
  args = ['--task=classification', '--train=t.tsv', '--dev=t.tsv', '--scale=test', '--output=o']
  said = refused(lambda: finetune.start(args=args))
  assert said.startswith('error: t.tsv:4: ') and said.endswith('leave such lines out with --data.on-error=skip.')
  (tmp_path / 't.jsonl').write_text('{"text": 5}\n')
  monkeypatch.setattr('sys.argv', ['plm_jax', 'prepare', 't.jsonl', 'records'])
  said = refused(commands.main)
  assert said == ("error: t.jsonl:1: the field 'text' is a number, not a text. Fix it, or leave such lines out with "
                  '--on-error=skip.')
  assert not (tmp_path / 'records').exists()


def test_functions_of_python_name_their_arguments():
  with pytest.raises(SourceError, match=r"^x\. Fix it, or leave such lines out with on_error='skip'\.$"):
    report_problem('x', 'refuse', ReadStats())
  with errors.option_scope(validation.field_paths(FinetuneRun), python=True):
    assert (
      format_option('columns.first=a') == "data={'columns': {'first': 'a'}}" and format_option('text-field=a') == ''
    )
  with errors.option_scope(('on_error',)), errors.option_scope(validation.field_paths(FinetuneRun), python=True):
    assert format_option('on-error=skip') == '--on-error=skip'  # a command that calls a function
  with errors.option_scope(()), pytest.raises(SourceError, match=r'^x$'):
    report_problem('x', 'refuse', ReadStats())


def test_warnings_are_lines_for_people(capsys):
  log = logging.getLogger('plm_jax')
  before = [*log.handlers], log.propagate
  try:
    log.handlers.clear()
    errors.show_warnings()
    errors.show_warnings()
    logging.getLogger('plm_jax.data.finalize').warning('%d lines were left out', 2)
    assert capsys.readouterr().err == 'warning: 2 lines were left out\n'
  finally:
    log.handlers[:], log.propagate = before
