"""Plans of six recipes on five devices, and runs with scale gpu that are fitted here."""
import functools
import itertools

import numpy as np
import pytest

from plm_jax import recipes
from plm_jax.cli import plan
from plm_jax.cli import run as runs
from plm_jax.config import run as config_lib
from plm_jax.config.run import ConfigError
from plm_jax.data import records
from plm_jax.planning import choices, fit
from plm_jax.planning.devices import find_device
from plm_jax.planning.timing import estimate_hours

RECIPES = (
    'bert_base', 'roberta_base', 'gpt2_small', 't5_v1_1_small', 'electra_small', 'modernbert_base')
DEVICES = 'rtx4090', 'a100-80gb', '8xh100', 't4', 'v5e-8'
HOURS, TOKENS = 24.0, 1_000_000_000


@functools.cache
def choices_of(name: str, device: str):
  recipe = recipes.find_recipe(name)
  return choices.list_choices(
      recipe, lambda other: runs.parse(other, []), find_device(device), HOURS, TOKENS, True)


def plan_cases():
  """Every recipe on every device: the first is quick, one of each recipe slow, and the others for
  releases."""
  for number, (name, device) in enumerate(itertools.product(RECIPES, DEVICES)):
    marks = [pytest.mark.slow] if number else []
    if number % (len(DEVICES) + 1) and (name, device) != ('modernbert_base', 't4'):
      marks.append(pytest.mark.release)
    yield pytest.param(name, device, marks=marks)


@pytest.mark.parametrize(('name', 'device'), [*plan_cases()])
def test_a_plan_fits_memory_time_and_text_and_its_command_gives_it(name, device):
  found, best = choices_of(name, device)
  target, chosen = find_device(device), found[best]
  assert 2 <= len(found) <= 3
  for choice in found:
    config = choice.config
    config_lib.check(config)
    assert fit.step_bytes(config, target) <= target.memory
    assert choice.hours == pytest.approx(estimate_hours(config, target))
    assert choice.hours <= HOURS
    assert choice.epochs == config.text_tokens / TOKENS <= fit.most_epochs(config) * 1.01
    assert config.model.block.dtype == ('float32' if device == 't4' else 'bfloat16')
    assert choice.hours > 0.9 * HOURS / 2 or choice.epochs > 0.95 * fit.most_epochs(config)
  published = chosen.recipe('paper')
  assert [phase.length for phase in chosen.config.train.phases] == [
      phase.length for phase in published.train.phases]
  assert runs.parse(chosen.recipe, plan.list_options(chosen, [])) == chosen.config


def test_ratios_of_the_published_run_are_kept():
  config = runs.parse(recipes.find_recipe('bert_base'), [])
  fitted = fit.fit_steps(config, 0.01, 0.5)
  assert [phase.steps for phase in fitted.train.phases] == [9000, 1000]
  assert fitted.optim.warmup == 100
  assert fitted.train.eval_every == fitted.train.save_every == 500
  assert fit.fit_steps(config, 0.01, 36.0).train.save_every == 50  # half an hour
  assert fit.fit_steps(config, 0.01, 0.5, ['optim.warmup']).optim.warmup == 10_000


def test_a_schedule_in_tokens_is_scaled_in_tokens():
  config = runs.parse(recipes.find_recipe('gpt3_small'), [])
  assert config.optim.clock == 'tokens'
  before = sum(steps * tokens for steps, tokens in config.train.steps_and_tokens)
  fitted = fit.fit_steps(config, 0.1, 1.0)
  after = sum(steps * tokens for steps, tokens in fitted.train.steps_and_tokens)
  assert fitted.optim.warmup / after == pytest.approx(config.optim.warmup / before, rel=1e-3)


def test_records_decide_the_vocabulary_of_a_plan(tmp_path):
  tokens = np.zeros(5000, records.token_dtype(8192))
  tokens['flags'] = records.WORD_START
  shards = [(records.write_shard(tmp_path, f'{part}-00000', tokens,
                                 np.zeros(1, records.SENTENCE_DTYPE)),)
            for part in ('train', 'heldout')]
  records.write_meta(tmp_path, records.RecordsMeta(8192, 'hash', *shards, 'test'))
  lines = plan.describe_plan(
      recipes.find_recipe('bert_tiny'), [f'--data.path={tmp_path}'], 'rtx4090', '')
  assert sum('--model.vocab=8192' in line for line in lines) == 2  # both commands
  assert any('  8,192  ' in line for line in lines) and not any('30,522' in line for line in lines)


def test_a_small_batch_has_a_smaller_learning_rate():
  config = runs.parse(recipes.find_recipe('bert_base'), [])
  quarter = fit.scale_batch(config, 0.25, True)
  assert {phase.batch for phase in quarter.train.phases} == {64}
  assert quarter.optim.peak == config.optim.peak / 2
  assert fit.scale_batch(config, 0.25, False).optim.peak == config.optim.peak


@pytest.mark.parametrize(('name', 'factor'), [
    ('bert_tiny', 6.0), ('bert_small', 1.5), ('bert_base', 1.0), ('bert_large', 1.0),
    ('electra_small', 1.0), ('t5_small', 1.0), ('elmo_small', 1.0)])
def test_a_peak_that_was_chosen_for_a_wider_model_grows(name, factor):
  """ELECTRA's small size has a peak of its own; T5's Adafactor is relative to the parameters."""
  config = runs.parse(recipes.find_recipe(name), [])
  assert fit.width_factor(config) == factor


def test_a_model_that_the_user_made_narrow_has_a_higher_peak():
  config = runs.parse(recipes.find_recipe('bert_base'), ['--model.block.width=384'])
  assert fit.width_factor(config) == 2.0


def test_epochs_of_decoders_and_of_encoders():
  bert, gpt = (recipes.find_recipe(name)('paper') for name in ('bert_base', 'gpt2_small'))
  assert fit.most_epochs(bert) > fit.most_epochs(gpt) == 16
  assert fit.limit_epochs(gpt, 1.0, gpt.text_tokens // 160) == pytest.approx(0.1)
  assert fit.limit_epochs(gpt, 0.05, gpt.text_tokens) == 0.05
  assert fit.limit_epochs(gpt, 7.0, 0) == 7.0


def test_fields_that_the_user_has_set_stay():
  recipe = recipes.find_recipe('bert_tiny')
  config = runs.parse(recipe, [
      '--scale=gpu', '--hours=1', '--optim.warmup=7', '--model.vocab=999', '--train.keep=2'])
  kept = fit.given_fields(config)
  assert set(kept) == {'optim.warmup', 'model.vocab'}
  fitted = fit.plan_run(config, find_device('t4'), 1.0, 10_000_000, True, kept)
  assert (fitted.optim.warmup, fitted.model.vocab, fitted.train.keep) == (7, 999, 2)
  assert fitted.train.phases != config.train.phases


@pytest.mark.parametrize(('tokens', 'vocab'), [(10**6, 4096), (10**7, 8192), (10**9, 30_522)])
def test_small_texts_have_small_vocabularies(tokens, vocab):
  config = runs.parse(recipes.find_recipe('bert_tiny'), [])
  fitted = fit.fit_layout(config, find_device('t4'), 1.0, tokens, True)
  assert fitted.model.vocab == vocab
  assert fit.fit_layout(config, find_device('t4'), 1.0, tokens).model.vocab == 30_522


def test_a_model_that_does_not_fit_is_an_error():
  with pytest.raises(ConfigError, match='does not fit'):
    choices.list_choices(recipes.find_recipe('llama_65b'), lambda recipe: recipe('paper'),
                         find_device('t4'), 1.0, 0, False)


@pytest.mark.parametrize(('name', 'count', 'kind'), [
    ('8xh100', 8, 'NVIDIA H100'), ('v5e-8', 8, 'TPU v5 lite'), ('T4', 1, 'Tesla T4')])
def test_names_of_devices(name, count, kind):
  device = find_device(name)
  assert (device.count, device.kind) == (count, kind)
  assert bool(device.note) == (name == 'T4')


@pytest.mark.parametrize('name', ['h1000', '0xh100', ''])
def test_an_unknown_device_is_an_error(name):
  with pytest.raises(ConfigError, match='rtx4090'):
    find_device(name)


def test_the_law_prefers_larger_models_for_more_text():
  def gain(tokens):
    return 1 - choices.scaling_law(1e9, tokens, tokens) / choices.scaling_law(1e8, tokens, tokens)
  assert gain(1e7) < choices.TOLERANCE - 1 < gain(1e9) < gain(1e11)
  repeated, new = (choices.scaling_law(1e8, 4e9, text) for text in (1e9, 4e9))
  assert new < repeated < choices.scaling_law(1e8, 1e9, 1e9)


def test_scale_gpu_needs_hours():
  config = runs.parse(recipes.find_recipe('bert_tiny'), ['--scale=gpu'])
  with pytest.raises(ConfigError, match='hours'):
    config_lib.check(config)
  with pytest.raises(ConfigError, match='hours'):
    runs.parse(recipes.find_recipe('bert_tiny'), ['--hours=3'])


def test_the_command_prints_a_plan(capsys):
  plan.start(['bert_tiny', '--tokens=1000000', '--hours=2', '--device=t4'])
  printed = capsys.readouterr().out
  assert '*' in printed and 'recommended' in printed and 'no bfloat16' in printed
  assert 'train bert_' in printed and '--scale=gpu --hours=2' in printed
  assert '--data.path=TEXT' in printed
