import dataclasses
import json

import pytest

from plm_jax import recipes
from plm_jax.config.resume import differences, resume_obstacles
from plm_jax.config.run import (
  ConfigError,
  DataConfig,
  Phase,
  PretrainRun,
  TrainConfig,
  check,
)
from plm_jax.config.serialization import FORMAT, dump, from_json, to_json, to_plain
from plm_jax.layers.block import BlockConfig
from plm_jax.models import bert, t5
from plm_jax.objectives.denoising import DenoisingAutoencoder
from plm_jax.objectives.distillation import Distillation
from plm_jax.objectives.glm import BlankInfilling
from plm_jax.objectives.masking import Distinct
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.row_builders import NextSentence, Single
from plm_jax.optim.optimizers import AdamW
from plm_jax.preparation.prepare_config import PrepareConfig
from plm_jax.recipes.recipe_size import batch_size_ramp

TINY = PretrainRun('tiny', optim=AdamW(warmup=2),
                   train=TrainConfig(phases=(Phase(6, 32, 8), Phase(2, 64, 8))))


def changed(config, path, value):
  """The same configuration with another value of the field 'a.b.c'."""
  head, _, rest = path.partition('.')
  return dataclasses.replace(config, **{head: changed(getattr(config, head), rest, value) if rest
                                        else value})


@pytest.mark.parametrize('config', [
    TINY, changed(TINY, 'objective',
                  MaskedLM(pair=Single(), masking=Distinct('word', (0.5, 0.3, 0.2)))),
    changed(TINY, 'data.path', ('a', 'gs://b/ü')), recipes.find_recipe('bert_base')('paper'),
    recipes.find_recipe('bert_base')('laptop'), recipes.find_recipe('bert_large')('test')],
    ids=['default', 'single', 'paths', 'paper', 'laptop', 'test'])
def test_round_trip(config):
  again = from_json(json.loads(dump(config)))
  assert again == config and type(again.objective.pair) is type(config.objective.pair)
  assert differences(again, config) == []


def test_json_literal():
  assert to_json(Phase(6, 32, 8)) == {
      'format': FORMAT, 'is': 'plm_jax.config.run:Phase', 'steps': 6, 'length': 32, 'batch': 8,
      'mask_rate': None, 'weights': [], 'temperature': None, 'corpora': 0}
  assert to_plain(MaskedLM(pair=Single()))['pair'] == {
      'is': 'plm_jax.objectives.row_builders:Single', 'short': 0.0}


@pytest.mark.parametrize(
  ('value', 'message'),
  [
    ({'is': 'os:system', 'command': 'true'},
     'names the class os:system, which is not one of plm_jax'),
    ({'is': 'plm_jax.nowhere:Phase'}, 'this version of plm_jax has no plm_jax.nowhere:Phase'),
    ({'is': 'plm_jax.config.run:Stage', 'steps': 3},
     'this version of plm_jax has no plm_jax.config.run:Stage'),
    (
      {'is': 'plm_jax.config.run:Phase', 'steps': 3, 'length': 8, 'batch': 8, 'lenght': 9},
      r"has no field \['lenght'\]",
    ),
    ({'is': 'plm_jax.config.run:check', 'config': 3}, 'is not a configuration'),
    ({'is': 'plm_jax.config.run:Phase', 'steps': 3}, 'length'),
    ({'steps': 3}, 'without a class'),
    ({'model_type': 'bert'}, 'belongs to a transformers checkpoint'),
  ],
)
def test_unknown_fields_are_refused(value, message):
  with pytest.raises(ConfigError, match=message):
    from_json({'format': FORMAT} | value if 'is' in value else value)


@pytest.mark.parametrize(('path', 'value', 'line'), [
    ('seed', 1, 'seed: 0 -> 1'),
    ('model.block.dropout', 0.2, 'model.block.dropout: 0.1 -> 0.2'),
    ('objective.pair', Single(),
     "objective.pair: NextSentence(random=0.5, short=0.1, slack=16, unit='segment', separators=1) "
     "-> "
     'Single(short=0.0)'),
    ('objective.pair', NextSentence(random=0.4), 'objective.pair.random: 0.5 -> 0.4'),
    ('data.block', 32, 'data.block: 64 -> 32')])
def test_differences_name_the_field(path, value, line):
  assert differences(TINY, changed(TINY, path, value)) == [line]


@pytest.mark.parametrize(('path', 'value'), [
    ('mode', 'evaluate'), ('output', 'elsewhere'), ('train.log_every', 7), ('train.accumulate', 2),
    ('mesh.fsdp', 4),
    ('hosts.count', 2), ('model.stack.remat', 'full'), ('train.max_nonfinite_steps', 3),
    ('prompts', ('a',)), ('warm_start', 'x'),
    ('data.path', ('a', 'b')), ('data.heldout_path', ('a',)), ('data.prepare.tokenizer', 'x')])
def test_where_a_run_continues_is_free(path, value):
  assert differences(TINY, changed(TINY, path, value)) == []


@pytest.mark.parametrize(('path', 'value'), [
    ('model.stack.scan', False), ('model.decoder.remat', 'full'), ('model.decoder.scan', False),
    ('model.source.remat', 'dots'), ('objective.model.stack.remat', 'full'),
    ('objective.model.stack.scan', False)])
def test_compilation_settings_of_layers_are_no_difference(path, value):
  config = changed(changed(TINY, 'model', t5.small()), 'objective', Distillation(model=bert.base()))
  assert differences(config, changed(config, path, value)) == []
  assert len(differences(config, changed(config, path.rpartition('.')[0] + '.layers', 3))) == 1


LONG = Phase(6, 32, 8), Phase(9, 64, 8)


@pytest.mark.parametrize(('schedule', 'phases', 'done', 'goes'), [
    ('constant', LONG, 8, True), ('inverse_sqrt', LONG, 7, True), ('t5', LONG, 8, True),
    ('constant', (Phase(6, 32, 8), Phase(1, 64, 8)), 7, True),  # shorter, and done
    ('constant', (Phase(6, 32, 8), Phase(1, 64, 8)), 8, False),  # steps are not taken back
    ('constant', (*TINY.train.phases, Phase(5, 128, 4)), 8, True),  # one more phase
    ('constant', (Phase(7, 32, 8), Phase(2, 64, 8)), 7, False),  # step 7 had longer rows
    ('constant', (Phase(7, 32, 8), Phase(2, 64, 8)), 6, True),
    ('constant', (Phase(6, 32, 16),), 3, False),
    ('linear', LONG, 2, True), ('linear', LONG, 4, False), ('cosine', LONG, 8, False),
    ('bert', LONG, 3, False)])
def test_the_length_of_a_run_may_change_if_finished_steps_stay_the_same(schedule, phases, done,
                                                                        goes):
  old = changed(TINY, 'optim.schedule', schedule)
  found = resume_obstacles(old, changed(old, 'train.phases', phases), done)
  assert found == [] if goes else found[0].startswith(
      'train.phases: (Phase(steps=6, length=32, batch=8), ')
  if not goes:
    what = 'this would change their learning rates'
    if schedule not in ('linear', 'cosine', 'bert'):
      what = 'these phases would change their batches'
    assert found[1] == f'{done} steps are done, and {what}'


def test_unimax_shares_depend_on_the_tokens_of_the_run():
  old = changed(changed(TINY, 'optim.schedule', 'constant'), 'data.unimax_epochs', 2.0)
  for last in (Phase(9, 64, 8), Phase(2, 64, 16), Phase(2, 32, 8)):
    found = resume_obstacles(old, changed(old, 'train.phases', (TINY.train.phases[0], last)), 2)
    assert found[-1] == ('2 steps are done, and another number of tokens would change the shares '
                         'of the corpora')
  assert resume_obstacles(old, changed(old, 'train.keep', 1), 2) == []


@pytest.mark.parametrize(('path', 'value'),
                         [('data.weights', (1.0,)), ('data.cap', 10), ('data.temperature', 2.0)])
def test_unimax_and_other_shares_exclude_each_other(path, value):
  config = changed(TINY, 'data.unimax_epochs', 1.0)
  check(config)
  with pytest.raises(ConfigError,
                     match=r'data\.unimax_epochs determines the shares: give data\.temperature=1'):
    check(changed(config, path, value))
  phase = dataclasses.replace(TINY.train.phases[0], temperature=2.0)
  with pytest.raises(ConfigError, match=r'leave out train\.phases\.0\.weights, train'):
    check(changed(config, 'train.phases', (phase,)))


def test_the_rest_of_a_run_may_use_another_learning_rate():
  old = changed(TINY, 'optim.schedule', 'constant')
  assert resume_obstacles(old, changed(changed(old, 'optim.schedule', 'linear'), 'optim.warmup', 2),
                          3) == []
  assert len(resume_obstacles(old, changed(old, 'optim.peak', 2e-4), 3)) == 2
  assert resume_obstacles(old, changed(old, 'optim.b1', 0.8), 3) == ['optim.b1: 0.9 -> 0.8']
  assert resume_obstacles(old, changed(old, 'train.keep', 1), 3) == []


@pytest.mark.parametrize(('path', 'value', 'message'), [
    ('train.phases', (), r'train\.phases: a run needs at least one'),
    ('model.max_length', 63, 'sequences of 64 tokens do not fit the model: model.max_length is 63'),
    ('train.phases', (Phase(1, 7, 8),), 'sequences of 7 tokens leave no room for text'),
    ('data.assembly', 'packed', 'data.assembly packed joins documents'),
    ('objective', DenoisingAutoencoder(languages=('de_DE', 'ro_RO')),
     r"'ro_RO'\) for 1 corpora: one each"),
    ('data.path', ('a.txt', 'task:sst2:a.tsv'),
     r'data.path=task:sst2:a.tsv is a task .* or another recipe'),
    ('data.weights', (1.0, 2.0), r'data.weights gives \(1.0, 2.0\) for 1 corpora'),
    ('data.weights', (0.0,), 'not all 0'),
    ('data.heldout_path', ('a.txt', 'b.txt'),
     'data.heldout_path gives 2 texts for 1 corpora: one each, or an empty'),
    ('data.heldout_path', ('task:sst2:a.tsv',),
     'data.heldout_path is a text of the same kind as embedded, got task')])
def test_impossible_settings_are_refused_before_anything_is_written(path, value, message):
  check(TINY)
  with pytest.raises(ConfigError, match=message):
    check(changed(TINY, path, value))


def test_an_empty_held_out_path_means_a_share_of_the_documents():
  both = changed(changed(TINY, 'data.path', ('a', 'b')), 'data.prepare.heldout', 0.2)
  check(changed(both, 'data.heldout_path', ('valid.txt', '')))
  with pytest.raises(ConfigError,
                     match=r'names the held-out text, so no share .* leave out heldout'):
    check(changed(both, 'data.heldout_path', ('valid.txt', 'other.txt')))


def test_packed_rows_without_a_question():
  check(changed(changed(TINY, 'objective.pair', Single()), 'data.assembly', 'packed'))


def test_the_folder_of_a_run():
  assert TINY.folder == 'runs/tiny'
  assert changed(TINY, 'scale', 'laptop').folder == 'runs/tiny-laptop'
  assert changed(TINY, 'output', 'gs://x').folder == 'gs://x'


def test_the_recipes_are_the_paper_s():
  base, large = recipes.find_recipe('bert_base')('paper'), recipes.find_recipe('bert_large')(
      'paper')
  assert base.train.phases == (Phase(900_000, 128, 256),
                               Phase(100_000, 512, 256)) == large.train.phases
  optim = base.optim
  assert (optim.peak, optim.warmup, optim.weight_decay, optim.b1, optim.b2, optim.clip) == (
      1e-4, 10_000, 0.01, 0.9, 0.999, 1.0)
  assert base.model.block == BlockConfig(
      dtype='bfloat16') and base.model.vocab == 30522 == PrepareConfig().vocab
  assert (large.model.stack.layers, large.model.block.width) == (24, 1024)


def test_a_ramp_grows_linearly_with_the_tokens_seen():
  phases = batch_size_ramp(tokens=100_000, length=10, batch=100, first=10, over=40_000, pieces=3)
  # The middles of three parts are 25, 55 and 85 rows; halves are rounded to even.
  assert [(phase.batch, phase.steps) for phase in phases] == [(20, 67), (60, 22), (80, 17),
                                                              (100, 59)]
  assert sum(phase.batch * phase.steps for phase in phases) * 10 == pytest.approx(100_000, rel=0.01)


def test_a_warmup_that_never_ends_is_refused():
  with pytest.raises(ConfigError,
                     match=r'optim\.warmup is 9 steps, and the run has 8: its learning rate would'):
    check(changed(TINY, 'optim.warmup', 9))
  check(changed(changed(TINY, 'optim.warmup', 9), 'optim.schedule', 't5'))
  check(changed(changed(TINY, 'optim.warmup', 9), 'mode', 'evaluate'))


@pytest.mark.parametrize(('objective', 'prompt', 'blank'), [
    (MaskedLM(), 'a word', '[MASK]'), (BlankInfilling(), 'a word', '[MASK] or [sMASK] or [gMASK]')])
def test_prompts_have_blanks(objective, prompt, blank):
  config = dataclasses.replace(TINY, objective=objective, data=DataConfig())
  with pytest.raises(ConfigError) as wrong:
    check(dataclasses.replace(config, prompts=(prompt,)))
  assert str(wrong.value) == (
      f"there is no {blank} in prompts 'a word': put one in place of the word to predict")
  check(dataclasses.replace(config, prompts=('a [MASK] word', 'an <mask>')))
