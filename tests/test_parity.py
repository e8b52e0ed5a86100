"""Every case of `--oracles=DIR` through plm_jax.conversion and the public heads; the table is at
the end of the output.

    pytest tests/test_parity.py --oracles=DIR

Without the option, the few cases that are shipped in tests/golden.
"""
import json
import pathlib
import shutil

import parity
from parity.shared import Said, Unsupported
import pytest

GOLDEN = pathlib.Path(__file__).parent / 'golden'
# Cases of what another quick test of the same part witnesses too, and that take seconds.
SLOW = {
    'objectives/spanbert_masking', 'objectives/albert_sop_ngram', 'objectives/bart_noise',
    'objectives/bert_create_pretraining_data', 'objectives/xlnet_permutation', 'bart/sides_differ',
    'bart/marian_sinusoids', 'bart/untied_tables', 'generation/bart_beam4_lp', 'bert/untied',
    'elmo/base',
    'albert/pretraining_mlm_sop',
    'gpt2/steps_with_holes', 'deberta/emd_original_v2', 'generation/gpt2_beam4_lp',
    'xlnet/two_stream_perm_labels',
    'trajectories/finetune_bert_answers', 'trajectories/finetune_roberta_tags',
    'xlm_roberta/masked_lm'}
# with the attribute's name; of tensors no case may be refused
REFUSED = 'cannot convert the configuration'


def pytest_generate_tests(metafunc):
  if 'case' not in metafunc.fixturenames:
    return
  folder = pathlib.Path(metafunc.config.getoption('--oracles'))
  cases = parity.find(folder)
  if not cases:
    raise pytest.UsageError(f'--oracles={folder}: no case.json in it')
  metafunc.parametrize('case', [
      pytest.param(case, id=case.name, marks=[pytest.mark.slow]
                   * (folder == GOLDEN and case.name in SLOW))
      for case in cases])


def test_parity(case, record_property):
  def unsupported(reason):
    record_property('parity', [[case.name, '-', '-', '-', f'unsupported: {reason}']])
    pytest.skip(f'unsupported: {reason}')

  if case.runner is None:
    unsupported(' '.join(filter(None, case.kind)) or 'no family')
  pytest.importorskip('safetensors', reason='needs the extra: pip install "plm_jax[convert]"')
  try:
    got = case.runner(case)
    if left := case.left():
      raise Unsupported(f'nothing reads {", ".join(left)}')
    rows = [list(row) for row in parity.compare(case, got)]
  except Exception as error:
    if isinstance(error, Unsupported) or REFUSED in str(error):
      unsupported(' '.join(str(error).split()))
    record_property('parity', [[case.name, '-', '-', '-', f'FAILED: {type(error).__name__}']])
    raise
  record_property('parity', rows)
  failed = [' '.join(row[1:]) for row in rows if row[4].startswith('FAILED')]
  assert not failed, f'{case.name}: {len(failed)} of {len(rows)} outputs differ\n  ' + '\n  '.join(
      failed)
  if lacking := [row[4] for row in rows if row[4].startswith('unsupported')]:
    pytest.skip(', '.join(lacking))


def test_unread_fields_of_a_case_are_reported(tmp_path):
  """A hyperparameter and an input that no runner reads, and one with an unsupported value."""
  folder = shutil.copytree(GOLDEN / 'optimizers' / 'lamb_apex', tmp_path / 'case')
  about = json.loads((folder / 'case.json').read_text())
  (folder / 'case.json').write_text(
      json.dumps(about | {'twice': 2, 'hparams': {'lr': 0.01, 'nesterov': True}}))
  case, = parity.find(tmp_path)
  case.runner(case)
  case.inputs['more'] = case.inputs['params/out/kernel']
  assert case.left() == ['twice', 'hparams.nesterov', 'input more']
  with pytest.raises(Unsupported, match='use_nvlamb True: known at False'):
    Said({'use_nvlamb': True}).only(use_nvlamb=False)
