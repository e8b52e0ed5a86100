import dataclasses

import pytest

from plm_jax.errors import ConfigError
from plm_jax.optim.optimizers import AdamW
from plm_jax.recipes import finetune
from plm_jax.recipes.hyperparameters import FAMILY_HYPERPARAMETERS, published_hyperparameters
from plm_jax.tasks.registry import TASKS
from plm_jax.validation import with_paths


@pytest.mark.parametrize(('task', 'family', 'size', 'values'), [
    ('sst2', 'bert', '', {'peak': 2e-5, 'epochs': 3.0, 'batch': 32, 'length': 128, 'warmup': 0.1,
                          'clip': 1.0}),
    ('mrpc', 'distilbert', '', {'epochs': 5.0}),
    ('squad', 'bert', '', {'peak': 3e-5, 'epochs': 2.0, 'batch': 12, 'length': 384, 'stride': 128}),
    ('squad', 'bert', 'large', {'batch': 24}),
    ('conll2003', 'bert', '', {'peak': 5e-5, 'epochs': 3.0, 'batch': 32}),
    ('swag', 'bert', '', {'peak': 2e-5, 'batch': 16}),
    ('c3', 'bert', '', {'epochs': 8.0, 'length': 512}),
    ('rte', 'roberta', 'large', {'peak': 2e-5, 'batch': 16, 'epochs': 10.0, 'b2': 0.98,
                                 'weight_decay': 0.1,
                                 'clip': 0.0, 'exempt': ()}),
    ('squad_v2', 'roberta', 'large', {'peak': 1.5e-5, 'batch': 48, 'epochs': 2.0,
                                      'weight_decay': 0.01}),
    ('mnli', 'albert', 'xxlarge', {'peak': 3e-5, 'steps': 10000, 'warmup': 1000, 'batch': 128}),
    ('qqp', 'electra', 'small', {'peak': 1e-4, 'layer_decay': 0.8, 'epochs': 3.0}),
    ('rte', 'electra', 'large', {'peak': 5e-5, 'layer_decay': 0.9, 'epochs': 10.0}),
    ('squad', 'electra', 'base', {'epochs': 2.0, 'length': 512, 'batch': 32}),
    ('mnli', 'deberta', 'base', {'peak': 3e-5, 'batch': 64, 'warmup': 1000, 'length': 256}),
    ('mnli', 'deberta-v2', 'base', {'peak': 1.5e-5}),
    ('mnli', 'deberta-v2', 'v3-large', {'peak': 7e-6, 'epochs': 2.0}),
    ('rte', 'deberta-v2', '', {'peak': 1.5e-5, 'epochs': 6.0, 'start': None, 'length': 320,
                               'head_dropout': 0.2}),
    ('stsb', 'deberta-v2', 'v3-large',
     {'peak': 7e-6, 'epochs': 4.0, 'start': None, 'head_dropout': 0.1}),
    ('mrpc', 'deberta-v2', 'v2-xlarge',
     {'peak': 3.5e-6, 'epochs': 6.0, 'start': 'mnli', 'head_dropout': 0.2}),
    ('rte', 'deberta', 'large', {'peak': 1e-5, 'warmup': 50, 'start': 'mnli', 'head_dropout': 0.2}),
    ('rte', 'deberta', 'xlarge', {'peak': 5e-6, 'batch': 48, 'start': 'mnli'}),
    ('conll2003', 'deberta', 'base', {'head_dropout': 0.0}),
    ('mnli', 'deberta', 'large', {'head_dropout': 0.2}),
    ('conll2003', 'deberta-v2', 'v3-large',
     {'peak': 9e-6, 'epochs': 10.0, 'warmup': 10, 'head_dropout': 0.0}),
    ('stsb', 'xlnet', 'large', {'peak': 5e-5, 'steps': 1200, 'weight_decay': 0.0}),
    ('squad_v2', 'xlnet', 'large', {'peak': 3e-5, 'steps': 8000, 'batch': 48, 'layer_decay': 0.75}),
    ('squad', 'spanbert', '', {'peak': 2e-5, 'epochs': 4.0, 'batch': 32, 'length': 512}),
    ('rte', 'bart', 'large', {'peak': 1e-5, 'steps': 1018, 'warmup': 61}),
    ('cola', 'gpt2', '', {'peak': 6.25e-5}),
    ('rte', 'gptbert', '', {'peak': 1e-4, 'epochs': 10.0, 'batch': 16, 'floor': 0.1, 'warmup': 0.06,
                            'length': 512,
                            'clip': 0.0, 'exempt': ()}),
    ('mnli', 'gptbert', '', {'peak': 1e-4, 'epochs': 3.0, 'batch': 32, 'length': 512, 'clip': 0.0}),
    ('cola', 'glm', '', {'peak': 2e-5})])
def test_published_settings(task, family, size, values):
  found = published_hyperparameters(task, family, size)
  assert {name: found.get(name) for name in values} == values


TRAINER = {'b1': 0.9, 'b2': 0.999, 'eps': 1e-8, 'clip': 1.0, 'bias_correction': True,
           'schedule': 'linear',
           'layer_decay': 1.0, 'exempt': ('bias', 'scale')}


@pytest.mark.parametrize(('family', 'size', 'unsupervised', 'supervised'), [
    ('bert', 'base', (64, 3e-5), (512, 5e-5)), ('bert', 'large', (64, 1e-5), (512, 1e-5)),
    ('roberta', 'base', (512, 1e-5), (512, 5e-5)), ('roberta', 'large', (512, 3e-5), (512, 1e-5))])
def test_no_family_changes_the_settings_of_sentence_vectors(family, size, unsupervised, supervised):
  """README of SimCSE, and the example scripts of sentence-transformers."""
  for task, (batch, peak), epochs in (('simcse', unsupervised, 1.0),
                                      ('simcse_nli', supervised, 3.0)):
    found = published_hyperparameters(task, family, size)
    assert (found['batch'], found['peak'], found['epochs'],
            found['length']) == (batch, peak, epochs, 32)
    assert (found['warmup'], found['weight_decay']) == (0.0, 0.0)
    assert {name: found[name] for name in TRAINER} == TRAINER
    steps = {'simcse': 1_000_000, 'simcse_nli': 275_601}[task] / batch
    assert steps / found['evaluations'] == pytest.approx(125, rel=0.08)
  for task, epochs in (('sbert_nli', 1.0), ('sbert_sts', 4.0)):
    found = published_hyperparameters(task, family, size)
    assert (found['batch'], found['peak'], found['epochs'],
            found['warmup']) == (16, 2e-5, epochs, 0.1)
    assert found['weight_decay'] == 0.01 and {name: found[name] for name in TRAINER} == TRAINER


def test_late_interaction():
  """Khattab and Zaharia 2020, section 4.1; README of stanford-futuredata/ColBERT for the second."""
  for task, peak, warmup, schedule in (
      ('colbert', 3e-6, 0.0, 'constant'), ('colbertv2', 1e-5, 20_000, 'linear')):
    found = published_hyperparameters(task, 'roberta', 'large')
    assert (found['peak'], found['warmup'], found['schedule']) == (peak, warmup, schedule)
    assert (found['batch'], found['length'], found['weight_decay'], found['clip']) == (
        32, 180, 0.0, 2.0)


def test_other_families_have_them_too():
  for family in ('electra', 'deberta-v2', 'xlnet', 'gpt2', 'mpnet'):
    assert published_hyperparameters('simcse', family,
                                     'base') == published_hyperparameters('simcse', 'bert', 'base')
    assert published_hyperparameters('sbert_sts', family, 'large') == published_hyperparameters(
        'sbert_sts', 'bert', 'base')
    assert published_hyperparameters('embedded_embedding',
                                     family) == published_hyperparameters('embedded_embedding')
  assert published_hyperparameters('simcse', 'xlm-roberta', 'v3-large')['peak'] == 3e-5


def test_settings_are_whole_and_those_of_the_optimizer_fit_it():
  fields = {field.name for field in dataclasses.fields(AdamW)} - {'warmup'}
  for family in (*FAMILY_HYPERPARAMETERS, 'bert', 'llama'):
    for size in ('', 'small', 'large'):
      for task in TASKS:
        found = published_hyperparameters(task, family, size)
        assert ('epochs' in found) != ('steps' in found)
        assert found['length'] % 8 == 0 or task in ('colbert', 'colbertv2')  # 180
        assert found['batch'] % 8 == 0 or found['batch'] == 12
        assert isinstance(found['warmup'], float) == (found['warmup'] < 1)
        assert ('stride' in found) == (TASKS[task].kind == 'answers')
        with_paths(AdamW(), {name: x for name, x in found.items() if name in fields})  # checks them


@pytest.mark.parametrize(('asked', 'kind'), [
    ('ner', 'tagging'), ('question-answering', 'answers'),
    ('text_classification', 'classification')])
def test_names_of_other_libraries_lead_to_the_kind_of_task(asked, kind):
  with pytest.raises(ConfigError, match=f'there is no task .*{asked}.*: did you mean {kind}'):
    finetune.find_task(asked)
