"""Which settings fine-tuning chooses by the size of the model that it is given."""
from typing import Any

import pytest

from plm_jax import recipes
from plm_jax.models import albert, bert, deberta, electra, roberta
from plm_jax.recipes import finetune
from plm_jax.recipes.finetune import InitialModel, choose_scale, recipe
from plm_jax.validation import with_paths

FILES: dict[str, Any] = {'train': ('a.tsv',), 'dev': ('b.tsv',)}


def small(name='bert_base', scale: Any = 'laptop', folder='runs/bert_base-laptop'):
  run = recipes.find_recipe(name)(scale)
  return InitialModel(folder, run.family, run.model)


@pytest.mark.parametrize(
  ('model', 'scale'),
  [
    (bert.base(), 'paper'),
    (bert.tiny(), 'laptop'),
    (bert.mini(), 'laptop'),
    (bert.small(), 'paper'),
    (electra.small(), 'paper'),
    (None, 'paper'),
    (recipes.find_recipe('bert_base')('test').model, 'test'),
    (recipes.find_recipe('gpt2_small')('laptop').model, 'laptop'),
    (recipes.find_recipe('t5_small')('laptop').model, 'laptop'),
  ],
)
def test_the_scale_follows_the_size_of_the_model(model, scale):
  assert choose_scale(model) == scale


def test_the_few_layers_of_a_small_model_are_unrolled():
  assert bert.mini().stack.scan
  assert not recipe('sst2', InitialModel('x', 'bert', bert.mini()), **FILES).model.stack.scan
  assert recipe('sst2', InitialModel('x', 'bert', bert.base()), **FILES).model.stack.scan


@pytest.mark.parametrize('task', ['classification', 'sst2', 'tagging', 'stsb', 'answers',
                                  'embedding'])
def test_a_small_model_gets_its_own_learning_rate(task):
  """Of any family: ALBERT's published numbers of steps are for a model of width 768."""
  for start in (small(), small('albert_base'), small('roberta_base')):
    run = recipe(task, start, **FILES)
    phase = run.train.phases[0]
    assert run.optim.peak == pytest.approx(5e-4, rel=0.01)
    assert (run.scale, phase.batch, phase.length) == ('laptop', 16, 128)
    assert run.data.epochs >= 4 and run.data.least_steps == 1000 and run.optim.warmup == 0
    assert run.data.warmup > 0
    assert run.folder == f'runs/finetune_{task}-bert_base-laptop'
  published = recipe(task, small(), 'paper', **FILES)
  assert published.optim.peak == recipe(task, InitialModel('x', 'bert', bert.base()),
                                        **FILES).optim.peak <= 5e-5
  assert (published.scale, published.data.least_steps) == ('paper', 0)


def test_rates_fall_with_the_width():
  peaks = [
    recipe('sst2', InitialModel('x', 'bert', model), **FILES).optim.peak
    for model in (
      recipes.find_recipe('bert_base')('test').model,
      bert.tiny(),
      bert.mini(),
      bert.small(),
      bert.base(),
      bert.large(),
    )
  ]
  assert peaks == pytest.approx([1e-3, 5e-4, 1.4e-4, 4.1e-5, 2e-5, 2e-5], rel=0.02)


def test_sizes_that_were_published_keep_their_settings():
  assert recipe('rte', InitialModel('x', 'electra', electra.small()), **FILES).optim.peak == 1e-4
  assert recipe('mnli', InitialModel('x', 'deberta-v2', deberta.v3_xsmall()),
                **FILES).optim.peak == 4.5e-5
  albert_base = recipe('rte', InitialModel('x', 'albert', albert.base()), **FILES)
  assert (albert_base.optim.peak, albert_base.train.phases[0].steps,
          albert_base.optim.warmup) == (3e-5, 800, 200)
  xlarge = recipe('mrpc', InitialModel('x', 'deberta', deberta.xlarge()), **FILES)
  assert (xlarge.optim.peak, xlarge.objective.head_dropout) == (7e-6, 0.3)
  assert (
    recipe('conll2003', InitialModel('x', 'deberta-v2', deberta.v3_base()),
           **FILES).objective.head_dropout == 0.0
  )


@pytest.mark.parametrize(('model', 'family', 'batch', 'peak'), [
    (bert.base(), 'bert', 64, 3e-5), (bert.large(), 'bert', 64, 1e-5),
    (roberta.base(), 'roberta', 512, 1e-5),
    (roberta.large(), 'roberta', 512, 3e-5), (small().model, 'bert', 64, 3e-5)])
def test_neither_family_nor_size_changes_a_task_of_sentence_vectors(model, family, batch, peak):
  run = recipe('simcse', InitialModel('x', family, model), train=('wiki.txt',))
  assert (run.train.phases[0].batch, run.optim.peak,
          run.train.phases[0].length) == (batch, peak, 32)
  assert (run.optim.b2, run.optim.clip, run.optim.schedule,
          run.data.warmup) == (0.999, 1.0, 'linear', 0.0)
  assert (run.data.epochs, run.data.least_steps, run.scale) == (1.0, 0, 'paper')


def test_a_start_from_another_task_is_named():
  """Of DeBERTa's first and second version, not of the third, and not where it was followed."""
  model = deberta.base()
  assert finetune.intermediate_task_hint('rte', InitialModel('x/deberta-base', 'deberta',
                                                             model)) == (
      'published results on rte begin with a model that was fine-tuned on mnli: give its folder to '
      '--init')
  assert not finetune.intermediate_task_hint('rte', InitialModel('x/deberta-base-mnli', 'deberta',
                                                                 model))
  assert not finetune.intermediate_task_hint('sst2', InitialModel('x/deberta-base', 'deberta',
                                                                  model))
  assert not finetune.intermediate_task_hint('rte', InitialModel('x', 'deberta-v2',
                                                                 deberta.v3_large()))
  assert finetune.intermediate_task_hint('rte', InitialModel('x', 'deberta-v2',
                                                             deberta.v2_xlarge()))


def test_a_fresh_small_model_learns_as_before():
  run = finetune.recipe('classification', scale='laptop')
  assert (run.optim.peak, run.data.epochs, run.data.least_steps) == (1e-3, 4.0, 0)
  assert with_paths(run, {'name': 'x'}).folder == 'runs/x-laptop'


@pytest.mark.parametrize('task', ['classification', 'multilabel', 'regression', 'tagging',
                                  'answers', 'choice', 'rerank',
                                  'embedding'])
@pytest.mark.parametrize(('family', 'model'), [
    ('bert', bert.base()), ('roberta', roberta.base()), ('electra', electra.base()),
    ('albert', albert.base()),
    ('bert', bert.mini())])
def test_own_data_is_learned_in_enough_updates(task, family, model):
  """Mosbach et al. 2021 and Zhang et al. 2021: of every kind, with early stopping, warmup and bias
  correction."""
  run = recipe(task, InitialModel('x', family, model), **FILES)
  assert (run.data.least_steps, run.data.warmup, run.optim.warmup) == (1000, 0.1, 0)
  assert run.optim.bias_correction and run.train.early == 10 and run.data.epochs >= 2
  published = recipe(task, InitialModel('x', family, model), 'paper', **FILES)
  assert (published.data.least_steps, published.train.early) == (0, 0)


def test_named_tasks_keep_their_published_settings():
  run = recipe('sst2', InitialModel('x', 'bert', bert.base()), **FILES)
  assert (run.data.epochs, run.data.least_steps, run.train.early,
          run.optim.bias_correction) == (3.0, 0, 0, False)


def test_options_that_are_given_win():
  """Epochs are trained as given; only a rate that is not given follows from a frozen backbone."""
  run = recipe('classification', InitialModel('x', 'bert', bert.base()), **FILES)
  given = finetune.follow_options(with_paths(run, {'data.epochs': 2.0}), {'data.epochs'})
  assert (given.data.least_steps, given.train.early, given.optim.peak) == (0, 0, run.optim.peak)
  both = finetune.follow_options(run, {'data.epochs', 'data.least_steps', 'train.early'})
  assert (both.data.least_steps, both.train.early) == (1000, 10)
  frozen = with_paths(run, {'tuning.top': 0})
  assert finetune.follow_options(frozen, {'tuning.top'}).optim.peak == 3e-3
  assert finetune.follow_options(frozen, {'tuning.top', 'optim.peak'}).optim.peak == run.optim.peak


@pytest.mark.parametrize(('task', 'pooling'), [
    ('classification', 'mean'), ('multilabel', 'mean'), ('regression', 'mean'), ('choice', 'mean'),
    ('rerank', 'mean'),
    ('sst2', 'mean'), ('tagging', 'first'), ('answers', 'first')])
def test_pooling_follows_the_initial_model(task, pooling):
  start = InitialModel('x', 'bert', bert.base(), 'mean')
  assert recipe(task, start, **FILES).model.head.pooling == pooling
  assert recipe(task, start._replace(pooling=''), **FILES).model.head.pooling == 'first'


def test_sentence_vectors_keep_the_pooling_of_the_initial_model():
  start = InitialModel('x', 'bert', bert.base(), 'first')
  assert recipe('embedding', start, **FILES).objective.vector.pooling == ('first',)
  assert recipe('sbert_sts', start, **FILES).objective.vector.pooling == ('mean',)
