"""A bug of this code ends a command with its traceback, and an error of a user with one line."""
import re
import traceback

import pytest

from plm_jax import recipes
from plm_jax.cli.run import main
from plm_jax.errors import ConfigError, exit_on_error

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
  assert ('test_errors_tracebacks.py", line' in printed) == shows
