"""Names of recipes, how they are found, and the descriptions of their families."""
import dataclasses
import importlib
import json
import math
import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

from plm_jax import recipes
from plm_jax.cli import catalog, options
from plm_jax.cli import commands as cli
from plm_jax.cli.run import parse, start
from plm_jax.config import run as config_lib
from plm_jax.config import serialization
from plm_jax.config.run import ConfigError
from plm_jax.conversion import attributes
from plm_jax.models import families
from plm_jax.models.rules import ConvertError
from plm_jax.preparation import prepare as preparation
from plm_jax.runs import preflight
from plm_jax.sharding import MeshConfig
from plm_jax.tasks.registry import TASKS

ROOT = pathlib.Path(__file__).parents[2]


def test_names():
  names = [*recipes.all_recipes()]
  assert len(names) == 186 and {
      'bert_base', 'gpt3_13b', 't5_v1_1_xxl', 't5_small_tasks', 'bart_translation',
      'bart_translation_source',
      'roberta_doc_sentences', 'deberta_v2_xxlarge', 'glm_410m', 'gpt2_chinese',
      'ul2_20b'} <= {*names}
  assert all(recipe.name == name == recipe().name for name, recipe in recipes.all_recipes().items())


@pytest.mark.parametrize(('asked', 'found'), [
    (('gpt3_13b',), 'gpt3_13b'), (('gpt3', '13b'), 'gpt3_13b'), (('ul2',), 'ul2_20b'),
    (('t5_tasks', 'small'), 't5_small_tasks'), (('bart_translation',), 'bart_translation'),
    (('bart_translation', 'source'), 'bart_translation_source'),
    (('bart_translation', 'whole'), 'bart_translation')])
def test_a_recipe_is_found_by_its_name_or_by_family_and_size(asked, found):
  assert recipes.find_recipe(*asked).name == found


@pytest.mark.parametrize(('asked', 'message'), [
    (('robertabase',),
     "there is no recipe 'robertabase': did you mean roberta_base or bert_base or neobert_base? "
                       '`python -m plm_jax train` lists them'),
    (('experiments.gpt3-13b',),
     "there is no recipe 'experiments.gpt3-13b': did you mean gpt3_13b or gpt3_175b or "
                                'gpt3_6b7? `python -m plm_jax train` lists them'),
    (('zzz',), "there is no recipe 'zzz': `python -m plm_jax train` lists them"),
    (('gpt3',), 'gpt3 comes in 8 sizes: --size is small, medium, large, xl, 2b7, 6b7, 13b, 175b'),
    (('llama', '7'), "llama comes in 4 sizes: --size is 7b, 13b, 33b, 65b, got '7'"),
    (('bert_base', 'base'), 'bert_base is of one size: leave out --size')])
def test_an_unknown_recipe_is_a_one_line_error(asked, message):
  with pytest.raises(ConfigError) as wrong:
    recipes.find_recipe(*asked)
  assert str(wrong.value) == message


@pytest.mark.parametrize('name', recipes.all_recipes())
@pytest.mark.parametrize('scale', ['paper', 'laptop', 'test'])
def test_every_recipe_is_consistent_and_survives_its_config_file(name, scale):
  config = recipes.find_recipe(name)(scale)
  config_lib.check(config)
  assert config.name == name and config.scale == scale
  assert serialization.from_json(json.loads(serialization.dump(config))) == config


@pytest.mark.parametrize('name', recipes.all_recipes())
def test_batches_divide_evenly_over_the_devices_of_a_pod(name):
  """A TPU v2 or v3 chip is two devices; rows of a micro-step are dealt to all that do not share
  heads."""
  recipe = recipes.find_recipe(name)
  generation, _, sides = recipe.row.pod.partition(':')
  devices = math.prod(map(int, sides.split('x'))) * (2 if generation in ('v2', 'v3') else 1)
  config = recipe()
  mesh, parts = config.mesh, devices // config.mesh.tensor * config.train.accumulate
  assert devices % (mesh.fsdp * mesh.tensor) == 0
  assert [phase.batch % parts for phase in config.train.phases] == [0] * len(config.train.phases)


@pytest.mark.parametrize('name', recipes.all_recipes())
def test_the_table_matches_the_run(name):
  recipe = recipes.find_recipe(name)
  row, config = recipe.row, recipe()
  assert config.optim.peak == row.peak and config.train.accumulate == row.accumulate
  assert max(phase.batch for phase in config.train.phases) == row.batch
  if row.steps:
    assert config.train.steps == row.steps and config.train.phases[-1].length == row.length


def documented(family):
  """The commands in the description of a family, as lists of arguments after `python -m
  plm_jax`."""
  lines = (recipes.FAMILIES[family].description or '').replace('\\\n', ' ').splitlines()
  return [shlex.split(line, comments=True)[3:]
          for line in lines if line.strip().startswith('python -m plm_jax ')]


def test_the_mesh_of_a_recipe_applies_unless_another_is_given():
  large = recipes.find_recipe('bert_large')
  assert large.row.mesh == MeshConfig(fsdp=8) and large().mesh == MeshConfig(fsdp=8, adapts=True)
  assert parse(large, []).mesh == large().mesh and parse(
      large, ['--mesh.tensor=2']).mesh == MeshConfig(tensor=2)
  assert parse(large, ['--mesh.fsdp=16']).mesh == MeshConfig(fsdp=16)
  assert parse(large, ['--mesh.fsdp=8', '--mesh.tensor=2']).mesh == MeshConfig(fsdp=8, tensor=2)
  assert large('laptop').mesh == MeshConfig() and recipes.find_recipe('bert_base')(
      ).mesh == MeshConfig(
    fsdp=4, adapts=True
  )


@pytest.mark.slow
@pytest.mark.parametrize('family', [
    pytest.param(family, marks=[pytest.mark.release] * (number % 6 > 0))
    for number, family in enumerate(recipes.FAMILIES)])
def test_commands_in_the_description_of_a_family_are_parsed(family, monkeypatch):
  asked = []
  monkeypatch.setattr(preparation, 'prepare', lambda config, *_: asked.append(config))
  monkeypatch.setattr(cli.bucket_check, 'check_reachable', lambda uses: None)
  monkeypatch.setattr(preflight, 'check_sentence_pairs', lambda run, folders: '')
  without_start = dataclasses.replace(recipes.FAMILIES[family], start=None)
  monkeypatch.setitem(recipes.FAMILIES, family, without_start)  # the folders are not there
  commands = documented(family)
  for command, *args in commands:
    if command == 'train':
      assert recipes.find_recipe(args[0]).family == family
      parse(recipes.find_recipe(args[0]), args[1:])
    elif command == 'prepare':
      monkeypatch.setattr('sys.argv', ['plm_jax', command, *args])
      cli.main()
    else:
      assert command in catalog.COMMANDS
  assert {'--scale=test'} & {arg for command in commands for arg in command} or family == 't5_tasks'
  assert len(asked) == sum(command[0] == 'prepare' for command in commands)


def test_help_begins_with_the_usage_and_the_description_of_the_family(capsys):
  with pytest.raises(SystemExit):
    start('bert_base', ['--help'])
  said = capsys.readouterr().out
  assert said.startswith('usage: python -m plm_jax train bert_base ')
  assert 'python -m plm_jax train bert_base --scale=laptop ' in said
  assert '\n    large           bert_large                       336,226,108  24 x 1,024 ' in said
  start('gpt3', ['--help'])
  said = capsys.readouterr().out
  assert said.startswith('GPT-3 (Brown et al. 2020') and 'usage' not in said
  assert '175b            gpt3_175b                    174,604,259,328  96 x 12,288 ' in said


@pytest.mark.parametrize(('module', 'name', 'program'), [
    ('experiments.bert_base', 'bert_base', 'python -m experiments.bert_base'),
    ('experiments.gpt3', 'gpt3_13b', 'python -m experiments.gpt3 --size=13b'),
    ('experiments.__main__', 'bert_base', 'python -m plm_jax train bert_base'),
    ('plm_jax.__main__', 'bert_base', 'python -m plm_jax train bert_base')])
def test_messages_name_the_command(module, name, program, monkeypatch):
  monkeypatch.setattr(sys.modules['__main__'], '__spec__',
                      importlib.machinery.ModuleSpec(module, None))
  assert options.program_name(recipes.find_recipe(name)) == program


def test_train_is_a_command(monkeypatch, capsys):
  asked = []
  monkeypatch.setattr('plm_jax.cli.run.run', lambda config, caller: asked.append(config))
  for args in ['gpt3', '--size', '13b', '--scale=test'], ['gpt3_13b', '--scale=test']:
    monkeypatch.setattr('sys.argv', ['plm_jax', 'train', *args])
    cli.main()
  assert asked == [recipes.find_recipe('gpt3_13b')('test')] * 2
  monkeypatch.setattr('sys.argv', ['plm_jax', 'train'])
  cli.main()
  listed = capsys.readouterr().out
  assert all(f' {name}' in listed for name in recipes.all_recipes())
  monkeypatch.setattr('sys.argv', ['plm_jax', 'train', 'gpt3'])
  with pytest.raises(SystemExit, match='error: gpt3 comes in 8 sizes'):
    cli.main()


def test_scripts_of_recipes_have_no_other_code():
  """One script for each recipe of the README, without other code."""
  doors = {path.stem: path.read_text() for path in (ROOT / 'experiments').glob('[a-z]*.py')}
  assert {'bert_base', 'gpt2_small', 't5_small_tasks', 'transformer_base'} <= {*doors}
  assert 'fastapi' in doors.pop('serve')  # an example of a service
  tasks = {name: doors.pop(name) for name in [*doors] if 'cli.finetune' in doors[name]}
  assert {*tasks} == {'finetune', 'finetune_glue', 'finetune_squad', 'finetune_ner',
                      'finetune_choice', 'sbert_nli',
                      'sbert_sts', 'simcse'}
  for name, text in tasks.items():
    assert f'-m experiments.{name} --init=FOLDER' in text
    default = re.search(r"\n  start\((?:'(\w+)', about=__doc__ or '')?\)\n$", text)
    assert default and (name == 'finetune') == (default[1]
                                                is None) and (default[1] or 'sst2') in TASKS
  for name, text in doors.items():
    assert text.endswith(f"\n\n  start('{name}')\n")
    # Worker processes import the file: they would wait for the imports of training.
    before, _, after = text.partition("\nif __name__ == '__main__':\n")
    assert 'import' not in before and after.startswith('  from plm_jax.cli.run import start')
    assert name in recipes.all_recipes()


@pytest.mark.slow
@pytest.mark.parametrize(('module', 'said'), [
    ('experiments.gpt3', 'error: gpt3 comes in 8 sizes'),
    ('experiments.bert_bse', "error: there is no recipe 'bert_bse': did you mean bert_base or "),
    ('experiments', 'recipes:\n  BERT, as published')])
def test_packages_print_their_commands(module, said):
  environment = {**os.environ, 'PYTHONPATH': str(ROOT), 'JAX_PLATFORMS': 'cpu'}
  done = subprocess.run([sys.executable, '-m', module], capture_output=True, text=True, cwd=ROOT,
                        env=environment,
                        check=False, timeout=120)
  assert (done.stdout + done.stderr).startswith(said)
  assert done.returncode == (module != 'experiments')


def test_laptop_runs_are_exported_where_those_of_the_paper_are():
  """GLM's laptop scale has tables of two sizes, which no released model has."""
  def is_exported(config):
    try:
      attributes.build_hf_attributes(families.get_family(config.family), config.model)
    except ConvertError:
      return False
    return True
  for name, recipe in recipes.all_recipes().items():
    if recipe().family not in ('elmo', 'glm'):
      assert is_exported(recipe('laptop')) == is_exported(recipe()), name
