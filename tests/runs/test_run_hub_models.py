"""A run that names models of the Hugging Face hub: each is pinned to its commit."""
import dataclasses

import pytest

from plm_jax import recipes, storage
from plm_jax.config import serialization
from plm_jax.report import model_card
from plm_jax.runs import run as runs
from plm_jax.storage import hub
from plm_jax.tasks.embedding_losses import GuidedInBatch, TeacherVectors

OLD, NEW = 'a' * 40, 'b' * 40


@pytest.fixture
def config(tmp_path, monkeypatch):
  """A run that starts from org/bert, which has a new commit on the hub."""
  monkeypatch.setattr(hub, 'resolve_commit',
                      lambda name: name.revision if len(name.revision) == 40 else NEW)
  run = recipes.find_recipe('bert_base')('test')
  return dataclasses.replace(run, warm_start='org/bert', output=str(tmp_path / 'run'))


def test_a_new_run_takes_the_newest_commit(config):
  assert runs.pin_hub_names(config).warm_start == f'org/bert@{NEW}'
  named = dataclasses.replace(config, warm_start=f'org/bert@{OLD}')
  assert runs.pin_hub_names(named).warm_start == f'org/bert@{OLD}'
  forced = dataclasses.replace(config, warm_start='hf://org/bert')
  assert runs.pin_hub_names(forced).warm_start == f'org/bert@{NEW}'


def test_a_run_that_resumes_keeps_its_commit(config):
  begun = dataclasses.replace(config, warm_start=f'org/bert@{OLD}')
  storage.write(f'{config.folder}/config.json', serialization.dump(begun))
  assert runs.pin_hub_names(config).warm_start == f'org/bert@{OLD}'
  other = dataclasses.replace(config, warm_start='org/other')
  assert runs.pin_hub_names(other).warm_start == f'org/other@{NEW}'
  branch = dataclasses.replace(config, warm_start='org/bert@v2')
  assert runs.pin_hub_names(branch).warm_start == f'org/bert@{NEW}'


def test_paths_stay(config, tmp_path):
  for path in ('', str(tmp_path), 'runs/bert_base', 'gs://bucket/run'):
    assert runs.pin_hub_names(dataclasses.replace(config, warm_start=path)).warm_start == path


def test_the_tokenizer_of_the_text_is_pinned_as_well(config):
  text = dataclasses.replace(config.data.prepare, tokenizer='gpt2')
  config = dataclasses.replace(config, warm_start='',
                               data=dataclasses.replace(config.data, prepare=text))
  assert runs.pin_hub_names(config).data.prepare.tokenizer == f'gpt2@{NEW}'


@pytest.mark.parametrize('loss', [
    TeacherVectors(teacher='org/teacher'), GuidedInBatch(guide='org/guide')])
def test_teacher_and_guide_of_sentence_vectors_are_pinned(loss, config, tmp_path):
  del config  # it sets the commits
  run = recipes.finetune.recipe('embedding', scale='test')
  run = dataclasses.replace(run, objective=dataclasses.replace(run.objective, vector_loss=loss),
                            output=str(tmp_path / 'vectors'))
  pinned = runs.pin_hub_names(run).objective.vector_loss
  assert str(pinned) == str(loss).replace("'org/teacher'", f"'org/teacher@{NEW}'").replace(
      "'org/guide'", f"'org/guide@{NEW}'")


def test_the_model_card_names_the_model(config):
  run = recipes.finetune.recipe('classification', scale='test')
  run = dataclasses.replace(run, warm_start=f'org/bert@{OLD}')
  card = model_card.render_card(run, {}, 'bert', ('predict',), 1000)
  assert 'base_model: org/bert\n' in card
