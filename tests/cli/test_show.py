"""`show`: a recipe's options, layers, parameters, schedule and mesh, without parameters in
memory."""
import dataclasses

import jax
import pytest

from plm_jax import recipes
from plm_jax.cli import commands, show
from plm_jax.config.run import Phase, PretrainRun
from plm_jax.models import gpt2


def test_counts_come_before_options_and_options_before_layers(monkeypatch, capsys):
  monkeypatch.setattr('sys.argv', ['plm_jax', 'show', 'bert_base', '--depth=2', '--all',
                                   '--optim.peak=3e-4'])
  commands.main()
  out = capsys.readouterr().out
  parts = ['bert_base, scale paper', 'Parameters\n', 'Schedule\n', 'Mesh\n',
           'Options that differ from the defaults', 'Options at their defaults', 'Layers: ']
  places = [out.index(part) for part in parts]
  assert places == sorted(places)
  differ, same = out[places[4]:places[5]].split(), out[places[5]:places[6]].split()
  assert differ[differ.index('--optim.peak') + 1:][:3] == ['0.0003', '(default', '0.0001)']
  assert '--optim.warmup' in same and '--optim.peak' not in same
  assert 'published                 110,106,428' in out
  assert 'in training               110,106,428' in out
  assert 'backbone/embeddings' in out and 'float32[30522,768]' in out
  assert 'phase 1: 100,000 steps, batch size 256, sequence length 512: 13,107,200,000 tokens' in out
  assert 'learning rate at step      10,000: 0.000297' in out
  assert 'fsdp    4: ' in out and 'TPU pod v2:4x4' in out


def test_the_largest_recipe_takes_no_memory(monkeypatch, capsys):
  largest = max(recipes.all_recipes().values(), key=lambda recipe: recipe.row.parameters)
  monkeypatch.setattr('sys.argv', ['plm_jax', 'show', largest.name])
  before = sum(array.nbytes for array in jax.live_arrays())
  commands.main()
  assert f'published{largest.row.parameters:>28,}' in capsys.readouterr().out
  assert largest.row.parameters > 500e9
  assert sum(array.nbytes for array in jax.live_arrays()) - before < 1e6


def test_defaults_and_layers_are_printed_only_on_request(capsys):
  show.start(['bert_base', '--scale=test'])
  out = capsys.readouterr().out
  assert 'Options at their defaults' not in out and 'Layers: ' not in out
  assert '--all also prints' in out


def test_a_run_that_is_not_fitted_yet_is_shown_as_published(capsys):
  show.start(['bert_tiny', '--scale=gpu', '--hours=3'])
  out = capsys.readouterr().out
  assert 'as published: a run chooses batch, steps and learning rate for its devices and 3 h' in out
  assert '900,000 steps' in out


def test_options_of_sections_of_another_class():
  run = PretrainRun('a', model=gpt2.small())
  run = dataclasses.replace(run, train=dataclasses.replace(run.train,
                                                           phases=(Phase(900_000, 128, 256),
                                                                   Phase(1, 2, 3),
                                                                              Phase(4, 8, 16))))
  found = {option: (value, default)
           for option, value, default in show.compare_options(run, PretrainRun('a'))}
  assert found['--model'] == ('DecoderConfig', 'EncoderConfig')
  assert found['--model.vocab'][0] == 50257
  assert found['--train.phases.0.steps'] == (900_000, 900_000) and found[
      '--train.phases.1.length'] == (2, 512)
  assert found['--train.phases.2'] == ('Phase', show.MISSING)
  assert found['--train.phases.2.batch'] == (16, show.MISSING)
  assert found['--data.prepare.heldout'] == (0.01, 0.01)


@pytest.mark.parametrize(('args', 'message'), [
    (['bert_base', '--depth=0'], '--depth is a whole number, 1 or more, got'),
    (['--depth=2'], 'which recipe?'),
    (['word2vec'], 'word2vec trains word vectors, which have no layers'),
    (['bert_bse'], "there is no recipe 'bert_bse': did you mean bert_base"),
    (['bert_base', '--optim.warmup=2000000'],
     '--optim.warmup is 2,000,000 steps, and the run has 1,000,000')])
def test_bad_input_is_one_line(args, message):
  with pytest.raises(SystemExit) as error:
    show.start(args)
  assert str(error.value).startswith(f'error: {message}')


@pytest.mark.parametrize(
    'name', ['bart_translation', 'bart_translation_source', 'transformer_base'])
def test_recipes_of_texts_with_targets_are_shown(name, capsys):
  """BART's tokenizer has a start token, that of T5 and the Transformer has none."""
  show.start([name, '--scale=test'])
  assert 'parameters' in capsys.readouterr().out
