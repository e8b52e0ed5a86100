"""Comparison of modern changes: differences between arms, run lengths, and stored results."""
import functools
import json
import pathlib

import numpy as np
import pytest

from benchmarks import comparison, equal_time, kept, modern
from benchmarks.equal_time import Plan, Setting
from plm_jax import recipes, validation
from plm_jax.config import run as config_lib
from plm_jax.layers.dense import count_parameters
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.row_builders import Single
from plm_jax.optim.optimizers import make_schedule
from plm_jax.training.learner import make_learner, placeholder_vocab, state_shapes

ROOT = pathlib.Path(__file__).parents[2]
SETTING = Setting('text.txt', 'out')
NORM = {'model.block.mlp_dim: 1024 -> 688', 'model.block.mlp.gated: False -> True',
        'model.block.norm_at: post -> pre',
        'model.embeddings.norm: False -> True', 'model.stack.first_norm: True -> False'}
PACKED = {
    'model.embeddings.absolute: learned -> none', 'model.embeddings.types: 2 -> 0',
    'model.pooler: True -> False',
    'model.block.attention.position: NoPosition() -> Rope(theta=10000.0, share=1.0, '
    'scaling=Unscaled())',
    "objective.pair: NextSentence(random=0.5, short=0.1, slack=16, unit='segment', separators=1) "
    "-> Single(short=0.0)",
    'data.assembly: document -> packed'}
MASKS = {'objective.mask_rate: 0.15 -> 0.3', 'objective.held_out_mask_rate: None -> 0.15'}
WSD = {'optim.schedule: bert -> wsd'}
DROPOUT = {'model.block.dropout: 0.1 -> 0.0', 'model.block.attention.dropout: 0.1 -> 0.0',
           'model.block.attention.out_dropout: 0.0 -> 0.1'}
ROPE = {change for change in PACKED
        if change.startswith(('model.embeddings.absolute', 'model.block'))}


def test_bert_has_published_settings_except_size_and_run_length():
  found = validation.differences(
      recipes.find_recipe('bert_base')(), modern.config(SETTING, 'bert'),
      {'mesh', 'name', 'train', 'data.path'})
  assert {*found} == {
      'model.vocab: 30522 -> 8192', 'model.block.width: 768 -> 256', 'model.block.heads: 12 -> 4',
      'model.block.mlp_dim: 3072 -> 1024', 'model.block.dtype: bfloat16 -> float32',
      'model.block.init.std: 0.02 -> 0.0566', 'model.stack.layers: 12 -> 4',
      'model.stack.scan: True -> False',
      'model.max_length: 512 -> 128', 'data.prepare.sample: 50000000 -> 10000000',
      'data.prepare.heldout: 0.01 -> 0.02',
      'optim.b2: 0.999 -> 0.98'}


@pytest.mark.parametrize(('arm', 'changes'), {
    'bert': set(), 'norm': NORM, 'packed': PACKED, 'masks': MASKS, 'wsd': WSD,
    'all': NORM | PACKED | MASKS | WSD,
    'dropout': DROPOUT, 'rope': ROPE}.items())
def test_a_modern_arm_changes_only_its_own_settings(arm, changes):
  run = equal_time.planned(modern.config(SETTING, arm), Plan(1000, 1e-3, 0, 'out'))
  config_lib.check(run)
  found = validation.differences(modern.config(SETTING, 'bert'), modern.config(SETTING, arm),
                                 {'name'})
  assert {*found} == changes and run.name == arm


@functools.cache
def parameters(arm):
  config = modern.config(SETTING, arm)
  return count_parameters(
      state_shapes(config, make_learner(config, placeholder_vocab(config))).params)


@pytest.mark.parametrize('arm', [*modern.arms(SETTING)])
def test_arms_are_of_one_size(arm):
  # 8192 x 256 pieces, 128 places, 2 types; 4 layers of 4 x 256 x 256 and 2 x 256 x 1024; pooler;
  # heads.
  assert parameters('bert') == 2_097_152 + 32_768 + 512 + 512 + 4 * 789_760 + 65_792 + 74_496 + 514
  assert abs(parameters(arm) / parameters('bert') - 1) < 0.02


def test_all_arms_exist_and_the_first_and_last_have_three_seeds():
  arms = modern.arms(SETTING)
  assert [name for name, arm in arms.items() if arm.usual] == ['bert', 'norm', 'packed', 'masks',
                                                               'wsd', 'all']
  ends = 'bert', 'all', 'bert_muon', 'all_muon'
  assert {name: arm.seeds for name, arm in arms.items() if len(arm.seeds)
          > 1} == dict.fromkeys(ends, (0, 1, 2))
  assert {name: arm.rate_of for name, arm in arms.items()} == {
      'bert': 'bert', 'norm': 'all', 'packed': 'bert', 'masks': 'bert', 'wsd': 'bert', 'all': 'all',
      'dropout': 'bert',
      'rope': 'bert', 'bert_muon': 'bert_muon', 'all_muon': 'all_muon'}


@pytest.mark.parametrize(('arm', 'rates'), [
    ('bert', [0.0, 0.5, 0.9, 0.5, 0.1]), ('wsd', [0.0, 0.5, 1.0, 1.0, 1 - 0.5 ** 0.5])])
def test_schedules_are_over_the_steps_of_the_pace(arm, rates):
  """Of 2,000 steps: the beginning, half of the warmup of 100, step 200, half of the run, half of
  the last fifth."""
  run = equal_time.planned(modern.config(SETTING, arm), Plan(2000, 1.0, 0, 'out'))
  assert run.train.steps == 2000 and run.optim.warmup == 100
  np.testing.assert_allclose(make_schedule(run.optim, 2000)(np.array([0, 50, 200, 1000, 1800])),
                             rates, atol=1e-6)


@pytest.mark.parametrize(('steps', 'warmup'), [(5000, 250), (450, 60), (100, 50), (6, 3)])
def test_short_runs_warm_up_long_enough(steps, warmup):
  assert equal_time.planned(modern.config(SETTING, 'bert'),
                            Plan(steps, 1e-3, 0, 'out')).optim.warmup == warmup


def test_steps_of_a_pace():
  paces = (30, 0.4), (30, 0.39), (3, 0.4), (0.001, 10)
  assert [equal_time.steps_in(*given) for given in paces] == [4500, 4615, 450, 1]


@pytest.mark.parametrize(('losses', 'peak'), [
    ({5e-4: 6.0, 1e-3: 5.5, 2e-3: 5.4}, 2e-3), ({5e-4: 6.0, 1e-3: 5.415, 2e-3: 5.4}, 1e-3),
    ({5e-4: 5.4, 1e-3: 5.5, 2e-3: 7.0}, 5e-4)])
def test_the_smallest_learning_rate_within_the_tolerance_is_chosen(losses, peak):
  assert comparison.chosen(losses) == peak


@pytest.mark.parametrize('arm', [*modern.arms(SETTING)])
def test_arms_are_evaluated_on_the_same_rows_and_masks(arm, monkeypatch):
  asked = []
  monkeypatch.setattr(equal_time, 'with_feed', lambda config, ask: asked.append(config))
  run = equal_time.planned(modern.config(SETTING, arm), Plan(1000, 1e-3, 2, 'out'))
  equal_time.judged(run, None, {})
  config, = asked
  assert config.objective == MaskedLM(pair=Single()) and config.objective.mask_rate == 0.15
  assert (config.seed, config.data.assembly,
          config.train.eval_batches) == (0, 'document', 1_000_000)
  assert config.model == run.model


def test_results_of_a_separate_process_are_stored(tmp_path, monkeypatch):
  monkeypatch.chdir(ROOT)
  file = tmp_path / 'runs' / 'kept.json'
  assert kept.run('benchmarks.kept:shown', [1.0, 2.0], file) == '1.50 ± 0.71'
  assert kept.run('benchmarks.kept:shown', [3.0],
                  file) == '1.50 ± 0.71' and [*tmp_path.rglob('*.part')] == []
  with pytest.raises(SystemExit, match='75'):
    kept.run('benchmarks.kept:interrupted', 'a run', tmp_path / 'not.json')
  with pytest.raises(SystemExit, match='json:loads ended with status 1, given "no"'):
    kept.run('json:loads', 'no', tmp_path / 'not.json')
  assert not (tmp_path / 'not.json').exists()


@pytest.mark.parametrize(('typed', 'message'), [
    ('--only finetune', '--data is missing'),
    ('--only table --arms bart',
     'arms are bert, norm, packed, masks, wsd, all, dropout, rope, bert_muon, all_muon, got bart')])
def test_options_are_checked(typed, message, capsys):
  with pytest.raises(SystemExit):
    comparison.parsed(modern.BENCH, ['--text=a', '--output=b', *typed.split()])
  assert message in capsys.readouterr().err


def test_a_folder_is_of_one_setting(tmp_path):
  comparison.same(Setting('text.txt', str(tmp_path / 'out')))
  comparison.same(Setting('elsewhere/text.txt', str(tmp_path / 'out')))
  with pytest.raises(SystemExit,
                     match=r"out holds runs of .*'layers': 4.*, and this is .*'layers': 2.*: give "
                           r"another"):
    comparison.same(Setting('text.txt', str(tmp_path / 'out'), layers=2))


def told(tmp_path, *typed):
  return comparison.Table(modern.BENCH, *comparison.parsed(modern.BENCH, [
      '--text=a', f'--output={tmp_path}', '--data=d', *typed]))


def found(loss, **more):
  judged = {'15% masks': {'mlm': loss, 'mlm_accuracy': 0.25, 'mlm_baseline': 0.05}}
  return json.dumps({'parameters': 5_000_000, 'filled': 0.9, 'own': {'mlm': loss + 0.1},
                     'judged': judged, **more})


def test_the_table_shows_the_stored_results(tmp_path):
  """Rates by the sweeps of both ends, steps by the pace: three minutes of 16 x 128 tokens in half a
  second."""
  for folder in ('sweep', 'runs', 'tasks'):
    (tmp_path / folder).mkdir()
  seconds = dict.fromkeys(modern.arms(SETTING), 0.5)
  (tmp_path / 'pace.json').write_text(json.dumps({'seconds': seconds | {'all': 0.6}}))
  for peak, loss in ((0.0005, 6.0), (0.001, 5.0), (0.002, 5.5)):
    (tmp_path / 'sweep' / f'bert-36-{peak}-0.json').write_text(found(loss))
  for seed, loss in ((0, 4.0), (1, 5.0)):
    (tmp_path / 'runs' / f'bert-360-0.001-{seed}.json').write_text(found(loss))
    (tmp_path / 'tasks' / f'cola-pre-trained-bert-360-0.001-{seed}-0.0005.json').write_text(
        json.dumps({'scores': [1.0 + seed, 2.0 + seed]}))
  (tmp_path / 'tasks' / 'cola-from-scratch-bert-360-0.001-0-0.0005.json').write_text(
      json.dumps({'scores': [0.5]}))
  table = told(tmp_path, '--minutes=3', '--arms', 'bert', 'wsd', 'all')
  table.only_read = True
  _, _, *rows = table.text().splitlines()
  assert rows == [
      '| BERT | 5,000,000 | 0.001 | 4,096 | 360 | 0.66 | 0.07 | 4.500 ± 0.707 | 25.00 ± 0.00 | '
      '4.600 ± 0.707 | '
      '2.00 ± 0.82 | - |', f'| + WSD |{" - |" * 11}', f'| all |{" - |" * 11}',
      f'| from scratch |{" - |" * 9} 0.50 | - |']


def test_stages_skip_finished_work(tmp_path, monkeypatch):
  """The sweep of the ends alone, each rate for a tenth of the steps; then the runs, with the rate
  that was found."""
  done = []
  def run(function, given, file):
    name = given['arm'], *given['plan'][:3]
    done.append(name)
    return json.loads(found(5.0 + (name[0] == 'bert') * name[2]))
  monkeypatch.setattr(kept, 'run', run)
  table = told(tmp_path, '--steps=400', '--peaks', '1e-3', '0.1', '--arms', 'bert', 'norm', 'wsd',
               '--seeds', '4')
  table.do('pace')
  table.do('sweep')
  assert done == [('bert', 40, 0.001, 0), ('bert', 40, 0.1, 0)]
  done.clear()
  table.do('pretrain')
  whole = [one for one in done if one[1] == 400]
  assert whole == [('bert', 400, 0.001, 4), ('norm', 400, 0.001, 4), ('wsd', 400, 0.001, 4)]


def test_an_untimed_arm_needs_its_number_of_steps(tmp_path):
  (tmp_path / 'pace.json').write_text(json.dumps({'seconds': {'bert': 0.5, 'all': 0.6}}))
  with pytest.raises(SystemExit,
                     match=r'pace\.json has no pace of rope, only of bert, all: give --steps'):
    told(tmp_path, '--only', 'pretrain', '--arms', 'rope').steps('rope')
  assert told(tmp_path, '--arms', 'rope', '--steps', '7').steps('rope') == 7
