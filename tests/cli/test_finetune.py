"""The fine-tuning command: several seeds, strategies, every backbone, unusable input, and messages
before a run starts."""
import dataclasses
import json
import pathlib

import backbones
import jax
import labelled
import numpy as np
import pytest
import tiny

from plm_jax import conversion, tokenizers
from plm_jax.cli import finetune
from plm_jax.cli.flags import write_flags
from plm_jax.config.run import FinetuneRun, Phase, TrainConfig, check_lengths
from plm_jax.errors import ConfigError
from plm_jax.finetuning.setup import resolve_run
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.loading import loaded_model
from plm_jax.models import bert, neobert
from plm_jax.optim.adapters import AdapterConfig
from plm_jax.recipes.finetune import InitialModel
from plm_jax.runs.finetune import describe_settings, describe_truncation, print_examples_read
from plm_jax.runs.run import run
from plm_jax.tasks.extractive_qa import AnswerTask
from plm_jax.tasks.input_formats import collect_rows
from plm_jax.tasks.regularizers import FreeLB, RDrop
from plm_jax.validation import with_paths


@pytest.fixture(scope='module')
def home(tmp_path_factory) -> pathlib.Path:
  return tmp_path_factory.mktemp('labelled')


def written(folder: pathlib.Path, family: str, tokenizer) -> InitialModel:
  """Write a small checkpoint of a family with random parameters."""
  model = backbones.small(family, tokenizer.vocab.size, 64)
  batch = dict.fromkeys(('tokens', 'segments'), jax.ShapeDtypeStruct((1, 8), np.int32))
  shapes = jax.eval_shape(ModelWithHeads(model.backbone(), {}).init, jax.random.key(0),
                          batch)['params']
  conversion.save(folder, model, tiny.random_params(shapes), tokenizer, like=family)
  return InitialModel(str(folder), *loaded_model.read_model_config(folder))


@pytest.fixture(scope='module')
def encoder(home) -> InitialModel:
  return written(home / 'bert', 'bert', labelled.tokenizer())


def test_a_collapsed_run_is_named(capsys):
  """More than five points below the median, and three times the spread of those above it."""
  assert finetune.find_collapsed({0: 66.0, 1: 67.0, 2: 52.7}) == [2]
  assert finetune.find_collapsed({0: 90.0, 1: 91.0, 2: 86.0}) == []
  assert finetune.find_collapsed({0: 60.0, 1: 70.0, 2: 52.0}) == []
  finetune.print_summary('accuracy', {0: 66.0, 1: 67.0, 2: 52.7})
  assert capsys.readouterr().out.splitlines() == [
      'accuracy of 3 seeds: mean 61.90, standard deviation 7.98, best 67.00, median 66.00',
      'collapsed: seeds 2, without which the mean is 66.50']
  finetune.print_summary('error', {0: 66.0, 1: 67.0, 2: 52.7}, higher=False)
  assert capsys.readouterr().out == (
      'error of 3 seeds: mean 61.90, standard deviation 7.98, best 52.70, median 66.00\n')


@pytest.mark.slow
def test_several_seeds_are_summed_up(tmp_path, encoder, capsys, monkeypatch):
  """Each seed starts with a new head."""
  monkeypatch.setattr('plm_jax.training.learner.jit_train_step', tiny.traced_step)
  files = [labelled.write(tmp_path, 'classification', part, 8) for part in ('train', 'dev')]
  finetune.start(args=['--task=classification', f'--init={encoder.folder}', f'--train={files[0]}',
                       f'--dev={files[1]}',
                       '--scale=test', '--seeds=2', f'--output={tmp_path / "run"}',
                       '--mesh.data=1'])
  said = capsys.readouterr().out
  assert 'accuracy of 2 seeds: mean ' in said
  params = [
    loaded_model.load_model(tmp_path / f'run/seed-{seed}').params['heads_label']['dense']['kernel']
    for seed in (0, 1)
  ]
  assert not np.array_equal(*params)


def bad(tmp_path, name: str, text: str, kind: str = 'classification', dev: str = '',
        *more: str) -> str:
  """Return the command's error message about a file."""
  (tmp_path / name).write_text(text)
  args = [f'--task={kind}', f'--train={tmp_path / name}', '--scale=test',
          f'--output={tmp_path / "run"}', *more]
  with pytest.raises(SystemExit) as error:
    finetune.start(args=[*args, *([f'--dev={dev}'] if dev else [])])
  assert not (tmp_path / 'run' / 'config.json').exists()
  said = str(error.value)
  assert '\n' not in said.strip()
  return said


GOOD = 'text\tlabel\nthe film is good\tgood\na book was bad\tbad\n'


def test_rows_that_cannot_be_used_are_named(tmp_path):
  """By file and line."""
  said = bad(tmp_path, 'a.tsv', 'text\tstars\nfine\t1\n')
  assert f"{tmp_path / 'a.tsv'} has no labels to learn from: no row has one in 'label'" in said
  (tmp_path / 'dev.tsv').write_text('text\tlabel\nfine film\tugly\n')
  said = bad(tmp_path, 'b.tsv', GOOD, 'classification', str(tmp_path / 'dev.tsv'))
  assert f'{tmp_path / "dev.tsv"}:2' in said and "'ugly'" in said
  (tmp_path / 'dev.tsv').write_text('text\nfine film\n')
  assert str(tmp_path / 'dev.tsv') in bad(tmp_path, 'c.tsv', GOOD, 'classification',
                                          str(tmp_path / 'dev.tsv'))
  said = bad(tmp_path, 'd.tsv', GOOD + '\tgood\n')
  assert f'{tmp_path / "d.tsv"}:4' in said
  row = {'question': 'who', 'context': 'the film of ana',
         'answers': [{'text': 'bo', 'answer_start': 4}]}
  said = bad(tmp_path, 'e.jsonl', json.dumps(row) + '\n', 'answers')
  assert f'{tmp_path / "e.jsonl"}:1' in said and "'bo'" in said
  said = bad(tmp_path, 'f.jsonl', json.dumps({'words': ['ana', 'is'], 'tags': ['B-PER']}) + '\n',
             'tagging')
  assert f'{tmp_path / "f.jsonl"}:1' in said


def test_words_without_pieces_are_counted_and_named(tmp_path, capsys):
  """They become unknown tokens, and the command reports them before the first step."""
  path = tmp_path / 'a.conll'
  path.write_text('ana B-PER\n\u200d O\nis O\n\n' * 7)
  ready = resolve_run(labelled.run(tmp_path, 'tagging', data__train=(str(path),), data__dev=()),
                      labelled.tokenizer())
  print_examples_read(ready)
  said = capsys.readouterr().out
  assert len(ready.train.features.skipped) == 7 and 'and 2 more such' in said
  assert f'{path}:1: the tokenizer has no tokens for the word ' in said
  assert 'read as an unknown token' in said


STRATEGIES = {
    'top': {'tuning__top': 1}, 'frozen': {'tuning__top': 0},
    'layer_decay': {'optim__layer_decay': 0.5},
    'unfreeze': {'optim__unfreeze': 1}, 'reinitialize': {'tuning__reinitialize': 1},
    **{kind: {'tuning__adapter': AdapterConfig(kind, 2)} for kind in ('lora', 'dora')},
    'freelb': {'objective__regularizer': FreeLB(2)}}


@pytest.mark.slow
@pytest.mark.parametrize('name', [
    pytest.param(name, marks=[pytest.mark.release] * (name not in ('frozen', 'lora')))
    for name in STRATEGIES])
def test_strategies(name, home, encoder, tmp_path):
  """Two steps of each, and what of the backbone they leave as it was."""
  result = run(labelled.run(home, steps=2, start=encoder, output=str(tmp_path / 'run'),
                            **STRATEGIES[name]))
  trained = loaded_model.load_model(tmp_path / 'run')
  old, new = (tiny.flat(jax.device_get(params['backbone'])) for params in (
      conversion.load(encoder.folder).params, trained.params))
  assert result.finished and old.keys() <= new.keys()
  moved = {key for key in old if not np.array_equal(old[key], new[key])}
  layers = {key for key in old if '/block/' in key}
  lower = {key for key in layers if not np.array_equal(old[key][0], new[key][0])}
  upper = {key for key in layers if not np.array_equal(old[key][1], new[key][1])}
  if name == 'frozen':
    assert not {key for key in moved if 'pooler' not in key}
  elif name in ('lora', 'dora'):
    assert {key for key in moved if 'pooler' not in key} == {
        key for key in layers if key.endswith(('query/kernel', 'value/kernel'))}
  elif name == 'top':
    assert not lower and upper and not {key for key in moved if 'embeddings' in key}
  elif name == 'unfreeze':
    assert not lower
  else:
    assert lower and upper


@pytest.mark.release
@pytest.mark.slow
def test_auxiliary_language_modelling(home, tmp_path):
  tokenizer = tokenizers.train_byte_bpe(['the film of ana is good, a book was bad'] * 9, 300,
                                        layout='gpt2')
  begin = written(tmp_path / 'gpt2', 'gpt2', tokenizer)
  result = run(labelled.run(
      home, steps=2, start=begin, output=str(tmp_path / 'run'), objective__auxiliary=0.5,
      data__tokenizer=begin.folder, train__phases=labelled.phases(2, 48)))
  lines = [json.loads(line)
           for line in (tmp_path / 'run' / 'metrics.jsonl').read_text().splitlines()]
  first = next(line for line in lines if line['split'] == 'train')
  assert first['loss'] == pytest.approx(first['label'] + 0.5 * first['lm'],
                                        rel=1e-5) and first['lm'] > 1
  assert result.finished


def test_missing_heads_of_a_backbone_are_refused_by_name(home, encoder, tmp_path):
  with pytest.raises(conversion.ConvertError,
                     match="models of type bert have no head 'lm', they have "):
    run(labelled.run(home, start=encoder, output=str(tmp_path / 'run'), objective__auxiliary=0.5))


def test_options_of_the_command_line():
  args = ['--scale=test', '--regularizer=rdrop', '--objective.regularizer.alpha=2',
          '--data.epochs=1']
  config, seeds = finetune.parse('classification', args, '')
  assert (config.objective.regularizer, seeds, config.data.epochs) == (RDrop(2.0), 1, 1.0)
  with pytest.raises(ConfigError, match='--init is missing'):
    finetune.parse('classification', [], '')
  with pytest.raises(ConfigError, match='--regularizer is one of none, rdrop, fgm, freelb, sift'):
    finetune.parse('classification', ['--scale=test', '--regularizer=dropout'], '')


def test_two_models_to_start_from_are_refused(encoder):
  args = [f'--init={encoder.folder}', '--train=train.tsv']
  with pytest.raises(ConfigError,
                     match=f'--init={encoder.folder} and --warm-start=other are two models to '
                           f'start from'):
    finetune.parse('classification', [*args, '--warm-start=other'], '')
  config, _ = finetune.parse('classification', [*args, f'--warm-start={encoder.folder}'], '')
  assert config.warm_start == str(encoder.folder)
  scratch, _ = finetune.parse('classification', [*args, '--warm-start='], '')
  assert not scratch.warm_start and scratch.data.tokenizer == str(
      encoder.folder) and scratch.model == config.model


def test_help_of_a_task_needs_no_model(capsys):
  with pytest.raises(SystemExit, match='0'):
    finetune.parse('', ['--task=tagging', '--help'], 'About')
  said = capsys.readouterr().out
  assert '--data.epochs' in said and 'Defaults are those of --scale=laptop' in said


def test_choices_are_not_packed_and_seeds_need_a_metric():
  config, _ = finetune.parse('choice', ['--scale=test', '--data.pack=True'], '')
  with pytest.raises(ConfigError, match=r'data\.pack puts several examples in a row'):
    finetune.run_seeds(config, 1)
  config, _ = finetune.parse('classification', ['--scale=test', '--train=a.tsv'], '')
  with pytest.raises(ConfigError, match='--seeds sums up a figure of a development set'):
    finetune.run_seeds(config, 2)


LEARNED = bert.base()
ROTARY = neobert.base()


@pytest.mark.parametrize(('model', 'start', 'length', 'remedy'), [
    (LEARNED, 'runs/a', 128, '--train.phases.0.length=256 reads more'),
    (LEARNED, 'runs/a', 512,
     'It has position embeddings for 512 tokens: one that is pre-trained with '
                             '--model.max-length=1024 reads more'),
    (LEARNED, '', 512, '--model.max-length=1024 --train.phases.0.length=1024 reads more'),
    (with_paths(ROTARY, {'max_length': 512}), 'runs/a', 512,
     '--model.max-length=1024 --train.phases.0.length=1024 reads more')])
def test_truncated_texts_are_reported_with_a_valid_option(model, start, length, remedy):
  """The suggested options are valid; impossible ones are not suggested."""
  config = FinetuneRun('x', model=model, warm_start=start,
                       train=TrainConfig(phases=(Phase(1, length, 8),)))
  features = dataclasses.replace(collect_rows([], {}, np.zeros(0, np.int32)), clipped=7, lost=5)
  told = describe_truncation(config, features)
  assert write_flags(told) == (
      f'7 examples do not fit {length} tokens and lose their end, 100.0% of all tokens. {remedy}; '
      '--objective.windows=mean reads all, in windows')
  longer = with_paths(config, {'train.phases': (Phase(1, 2 * length, 8),)})
  if '--model.max-length' in remedy and '--train' in remedy:
    longer = with_paths(longer, {'model.max_length': 2 * length})
  if 'pre-trained' in remedy:
    with pytest.raises(ConfigError, match=r'sequences of 1024 tokens .* one that is pre-trained'):
      check_lengths(longer)
  else:
    check_lengths(longer)


def test_questions_have_a_separate_maximum_length():
  config = FinetuneRun('x', objective=AnswerTask(question_length=64),
                       train=TrainConfig(phases=(Phase(1, 384, 8),)))
  told = describe_truncation(config, dataclasses.replace(
      collect_rows([], {}, np.zeros(0, np.int32)), clipped=2))
  assert write_flags(told) == (
      '2 questions lose what is behind 64 tokens. --objective.question-length=128 reads more')


@pytest.mark.parametrize(('model', 'scale', 'peak', 'expected'), [
    (bert.tiny(), 'laptop', 5e-4,
     '300 steps: for 2 layers of width 128; --scale=paper takes the published settings of '
                                  'larger models'),
    (bert.tiny(), 'paper', 3e-5,
     '300 steps, as published for larger models; 2 layers of width 128 may need '
                                 '--optim.peak=5e-04'),
    (bert.base(), 'paper', 2e-5, '300 steps, for 12 layers of width 768')])
def test_a_run_describes_its_settings(model, scale, peak, expected):
  config = FinetuneRun('x', model=model, warm_start='runs/a', scale=scale)
  config = with_paths(config, {'optim.peak': peak, 'train.phases': (Phase(300, 64, 8),)})
  assert write_flags(describe_settings(
      config)) == f'learning rate {peak:g}, batch size 8, {expected}'
