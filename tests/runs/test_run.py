"""From the command line to a finished run: the recipes at their smallest, resumed, interrupted and
given bad input."""
import gzip
import json
import os
import pathlib
import random
import shutil
import signal
import types

import jax
import numpy as np
import pytest
import tiny

from plm_jax import recipes
from plm_jax.checkpoints.checkpoint import CheckpointError
from plm_jax.cli import commands as cli
from plm_jax.cli import finetune, vectors
from plm_jax.cli.run import main, parse
from plm_jax.config import run as config_lib
from plm_jax.data.shards import Shards
from plm_jax.inference import fill_mask
from plm_jax.loading import loaded_model
from plm_jax.preparation.prepare import PrepareConfig, prepare
from plm_jax.runs import pretrain
from plm_jax.runs import run as run_lib
from plm_jax.runs.pretrain import prepare_corpora
from plm_jax.runs.run import run
from plm_jax.storage.lock import Lock
from plm_jax.training import feed

BERT_BASE = recipes.find_recipe('bert_base')


@pytest.fixture(scope='module')
def corpus(tmp_path_factory) -> pathlib.Path:
  """Sixty documents of a few sentences that a model could learn."""
  draw = random.Random(0)
  def sentence():
    return (f'The {draw.choice(["old", "new", "small", "great"])} '
            f'{draw.choice(["array", "matrix", "value"])} is '
            f'{draw.choice(["returned", "copied", "sorted", "stored"])} in '
            f'{draw.choice(["memory", "place", "order"])}.')
  documents = ['\n'.join(' '.join(sentence() for _ in range(4)) for _ in range(3))
               for _ in range(60)]
  path = tmp_path_factory.mktemp('text') / 'corpus.txt.gz'
  path.write_bytes(gzip.compress('\n\n'.join(documents).encode()))
  return path


@pytest.fixture(scope='module')
def command(corpus):
  """Arguments of a run of seconds on one device."""
  return [
      '--scale=test', f'--data.path={corpus}', '--data.prepare.heldout=0.2', '--mesh.data=1',
      '--train.save-every=2']


@pytest.fixture(scope='module')
def finished(command, tmp_path_factory):
  """A run that nothing disturbed: (folder, result)."""
  folder = tmp_path_factory.mktemp('runs') / 'undisturbed'
  return folder, run(parse(BERT_BASE, [*command, f'--output={folder}']))


def test_a_stopped_run_has_its_own_exit_status(monkeypatch):
  """For each command that trains: a supervisor must know that the run has not finished."""
  for function in ('cli.run.run', 'cli.vectors.train_vectors', 'runs.run.run'):
    monkeypatch.setattr(f'plm_jax.{function}',
                        lambda config, caller=None: types.SimpleNamespace(finished=False))
  for start in (lambda: main(BERT_BASE, ['--scale=test']),
                lambda: vectors.start('word2vec', ['--scale=test']),
                lambda: finetune.start('classification', ['--scale=test'])):
    with pytest.raises(SystemExit) as ended:
      start()
    assert ended.value.code == 75


def same(a, b) -> bool:
  return all(jax.tree.leaves(jax.tree.map(lambda x, y: bool(np.array_equal(x, y)), a, b)))


def test_a_run_writes_metrics_checkpoints_and_a_report(finished):
  folder, result = finished
  lines = [json.loads(line) for line in (folder / 'metrics.jsonl').read_text().splitlines()]
  assert [line['step'] for line in lines if line['split'] == 'train'] == [2, 4, 6, 8]
  assert [line['length'] for line in lines if line['split'] == 'train'] == [32, 32, 32, 64]
  heldout = [line for line in lines if line['split'] == 'heldout']
  assert [line['step'] for line in heldout] == [4, 8]
  assert 0 < heldout[-1]['mlm_baseline'] < 1 and heldout[-1]['mlm'] == result.heldout['mlm']
  assert {'6', '8'} <= {path.name for path in (folder / 'checkpoints').iterdir()}
  assert (folder / 'report.html').read_text().startswith('<!DOCTYPE html>')
  assert list((folder / 'tensorboard').iterdir())
  assert result.finished and result.step == 8


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.parametrize('how', [
    'signal', *(pytest.param(how, marks=pytest.mark.release) for how in ('crash', 'metrics'))])
def test_an_interrupted_run_ends_with_the_same_bits(how, command, finished, tmp_path, monkeypatch):
  args = [*command, f'--output={tmp_path / "run"}']
  def disturbed(*arguments):
    for step, phase, windows in batches(*arguments):
      if step == 5:
        if how == 'crash':
          raise KeyError('power cut')
        if how == 'signal':
          os.kill(os.getpid(), signal.SIGTERM)
      if how == 'metrics' and step == 3:  # their disk is full at the next line
        os.replace(tmp_path / 'run/metrics.jsonl', tmp_path / 'metrics')
        (tmp_path / 'run/metrics.jsonl').symlink_to('/dev/full')
      yield step, phase, windows
  batches = feed.stream_batches
  with monkeypatch.context() as patch:
    patch.setattr(feed, 'stream_batches', disturbed)
    if how == 'crash':
      with pytest.raises(KeyError):
        run(parse(BERT_BASE, args))
    else:
      result = run(parse(BERT_BASE, args))
      assert not result.finished and result.step == (6 if how == 'signal' else 5)
      assert not (tmp_path / 'run' / 'report.html').exists()
  if how == 'crash':
    damaged = next((tmp_path / 'run/checkpoints/4/state').rglob('_METADATA'))
    damaged.write_bytes(damaged.read_bytes()[:-1] + b'?')
    with pytest.raises(SystemExit,
                       match=r'_METADATA is damaged: .* The one before is that of step 2: '
                             r'.*resume=whole'):
      main(BERT_BASE, args)
    args.append('--train.resume=whole')
  if how == 'metrics':
    os.replace(tmp_path / 'metrics', tmp_path / 'run/metrics.jsonl')
  result = run(parse(BERT_BASE, args))
  assert result.finished and same(result.params, finished[1].params)
  lines = [json.loads(line) for line in (tmp_path / 'run/metrics.jsonl').read_text().splitlines()]
  want = [2, 6, 8] if how == 'metrics' else [2, 4, 6, 8]
  assert [line['step'] for line in lines if line['split'] == 'train'] == want


def stopped_at(step, args, monkeypatch):
  """Runs until a signal comes while the batch of a step is read."""
  batches = feed.stream_batches
  def disturbed(*arguments):
    for number, phase, windows in batches(*arguments):
      if number == step:
        os.kill(os.getpid(), signal.SIGTERM)
      yield number, phase, windows
  with monkeypatch.context() as patch:
    patch.setattr(feed, 'stream_batches', disturbed)
    result = run(parse(BERT_BASE, args))
  assert not result.finished and result.step == step + 1


def heldout_lines(folder):
  lines = [json.loads(line) for line in (folder / 'metrics.jsonl').read_text().splitlines()]
  return [line for line in lines if line['split'] == 'heldout']


@pytest.mark.slow
def test_a_resumed_run_makes_up_for_a_due_evaluation(
    command, finished, tmp_path, monkeypatch):
  args = [*command, f'--output={tmp_path / "run"}', '--train.best=mlm']
  stopped_at(3, args, monkeypatch)
  assert not (tmp_path / 'run/best').exists() or not any((tmp_path / 'run/best').glob('[0-9]*'))
  assert not heldout_lines(tmp_path / 'run')
  result = run(parse(BERT_BASE, args))
  found, want = heldout_lines(tmp_path / 'run'), heldout_lines(finished[0])
  assert [line['step'] for line in found] == [4, 8]
  for ours, theirs in zip(found, want, strict=True):
    assert ours.pop('split') == theirs.pop('split') and ours == pytest.approx(theirs, rel=1e-6)
  best = min(want, key=lambda line: line['mlm'])
  assert result.best == best['step'] and result.heldout['mlm'] == pytest.approx(best['mlm'])


@pytest.mark.slow
def test_a_run_resumes_only_with_the_same_text(finished, tmp_path, monkeypatch, caplog):
  """The tokenizer is given, so that nothing else shows that the text was edited."""
  text, tokenizer = tmp_path / 'text.txt', finished[0] / 'tokenizer'
  original = tiny.text()
  text.write_text(original)
  args = ['--scale=test', f'--data.path={text}', '--data.prepare.heldout=0.2', '--mesh.data=1',
          f'--data.prepare.tokenizer={tokenizer}', f'--output={tmp_path / "run"}',
          '--train.save-every=2']
  stopped_at(2, args, monkeypatch)
  edited = original.replace('.', ' once more .', 1)
  text.write_text(edited)
  with pytest.raises(CheckpointError,
                     match=r'(?s)is not what the checkpoint of step 3 was trained on.*choose '
                           r'another '
                     r'folder with output.*train.changed_data=accept.*text: \w{12} -> \w{12}'):
    run(parse(BERT_BASE, args))
  # Prepared again in another cache, the same text is the same data.
  text.write_text(original)
  with monkeypatch.context() as patch:
    patch.setenv('PLM_JAX_CACHE', str(tmp_path / 'cache'))
    stopped_at(4, args, monkeypatch)
  text.write_text(edited)
  accepted = [*args, '--train.changed-data=accept']
  stopped_at(5, accepted, monkeypatch)
  assert 'from step 5 on, the run continues on other data: ' in caplog.text
  assert run(parse(BERT_BASE, args)).finished  # the checkpoint is of the edited text now


@pytest.mark.parametrize('best', ['mlm_acuracy', 'bits_per_byte', 'main', 'mlm/text'])
def test_a_misspelled_best_is_refused_before_text_is_prepared(best, command, tmp_path, monkeypatch):
  monkeypatch.setattr(pretrain, 'prepare', lambda *_: 1 / 0)
  args = [*command, f'--output={tmp_path / "run"}', f'--train.best={best}']
  with pytest.raises(SystemExit,
                     match=r'--train\.best is one of the held-out metrics mlm, mlm_accuracy, nsp'):
    main(BERT_BASE, args)
  assert not (tmp_path / 'run').exists()


def test_a_run_without_enough_memory_ends_with_advice(command, tmp_path, monkeypatch):
  def allocate(*_):
    raise jax.errors.JaxRuntimeError(
        f'RESOURCE_EXHAUSTED: Out of memory allocating {2 ** 40} bytes.')
  monkeypatch.setattr(run_lib, 'train', allocate)
  with pytest.raises(SystemExit,
                     match=r'no room for a buffer of 1,024\.0 GiB\.\nTry --train\.accumulate'):
    main(BERT_BASE, [*command, f'--output={tmp_path / "run"}'])


def test_a_folder_is_one_runs(command, tmp_path):
  with Lock(tmp_path / 'run', 'a run'), pytest.raises(SystemExit) as error:
    main(BERT_BASE, [*command, f'--output={tmp_path / "run"}'])
  assert f'{tmp_path / "run"} is in use by a run (process {os.getpid()} on ' in str(error.value)
  assert not (tmp_path / 'run/config.json').exists()


def test_the_output_folder_of_a_run(monkeypatch, tmp_path):
  monkeypatch.setenv('HOME', str(tmp_path))
  assert parse(BERT_BASE, ['--output=~/x']).folder == str(tmp_path / 'x')
  assert parse(BERT_BASE, ['--scale=test']).folder == 'runs/bert_base-test'


def test_a_run_with_a_changed_configuration_or_tokenizer_is_refused(finished, tmp_path, monkeypatch,
                                                                    capsys):
  for name, old, new in (('config.json', '"eps": 1e-06', '"eps": 1e-05'),
                         ('tokenizer/vocab.txt', 'array', 'arraz')):
    copy = shutil.copytree(finished[0], tmp_path / name[:5])
    text = (copy / name).read_text()
    assert old in text
    (copy / name).write_text(text.replace(old, new, 1))
    with pytest.raises(CheckpointError, match=f'{name.partition("/")[0]} is damaged: it is not'):
      loaded_model.load_model(copy)
    monkeypatch.setattr('sys.argv', ['plm_jax', 'verify', str(copy)])
    with pytest.raises(SystemExit) as error:
      cli.main()
    assert error.value.code == 1
    assert f'{name.partition("/")[0]} is damaged: it is not' in capsys.readouterr().out
  monkeypatch.setattr('sys.argv', ['plm_jax', 'verify', str(finished[0])])
  cli.main()
  assert capsys.readouterr().out == f'{finished[0]}: everything is as it was written\n'


def test_all_checkpoints_of_a_run_are_verified(finished, tmp_path, monkeypatch, capsys):
  """The newest ones, the best, and those with names."""
  monkeypatch.setattr('sys.argv', ['plm_jax', 'verify', str(tmp_path / 'run')])
  copy = shutil.copytree(finished[0], tmp_path / 'run')
  for place in ('checkpoints', 'best', 'named_checkpoints/chck_1M', 'named_checkpoints/chck_2M'):
    if place != 'checkpoints':
      shutil.copytree(finished[0] / 'checkpoints', copy / place)
    path = copy / place / '8/_CHECKPOINT_METADATA'
    path.write_bytes(path.read_bytes()[1:])
  with pytest.raises(SystemExit) as error:
    cli.main()
  said = capsys.readouterr().out.splitlines()
  assert error.value.code == 1 and said[-1].endswith('damaged (4 lines above)') and len(said) == 5
  for place, line in zip(('checkpoints', 'best', 'chck_1M', 'chck_2M'),
                         [*said[:2], *sorted(said[2:4])], strict=True):
    assert f'{place}/8/_CHECKPOINT_METADATA cannot be read as JSON' in line


def test_windows_of_all_phases_are_counted_at_once(command, corpus, tmp_path, monkeypatch):
  names = {f'{split}-document-{length}.json' for split in ('train', 'heldout')
           for length in (45, 77)}
  # separate text: while it was prepared
  (folder,), _ = prepare_corpora(parse(BERT_BASE, command))
  assert names <= {path.name for path in folder.glob('windows/*/*.json')}
  prepare(PrepareConfig(source=str(corpus), vocab=300, heldout=0.2, workers=1),
          tmp_path / 'records')
  sentences, reads = Shards.sentences, []
  def read(self, number):
    reads.append(self.entries[number].name)
    return sentences(self, number)
  monkeypatch.setattr(Shards, 'sentences', read)
  monkeypatch.setattr(feed, 'open_phase', lambda *_: 1 / 0)
  with pytest.raises(ZeroDivisionError):
    run(parse(BERT_BASE, [*command, f'--data.path={tmp_path / "records"}',
                          f'--output={tmp_path / "run"}']))
  assert reads == ['train-00000', 'heldout-00000']
  assert {path.name for path in (tmp_path / 'records').glob('windows/*/*.json')} == names


@pytest.mark.slow
def test_finished_runs_do_nothing_more(command, finished):
  folder, result = finished
  again = run(parse(BERT_BASE, [*command, f'--output={folder}']))
  assert again.step == 8 and same(again.params, result.params)


@pytest.mark.slow
def test_a_full_disk_is_detected_before_a_checkpoint(command, tmp_path, monkeypatch):
  monkeypatch.setattr('shutil.disk_usage', lambda folder: types.SimpleNamespace(free=1000))
  with pytest.raises(SystemExit, match=r'no space left for a checkpoint .* 0\.0 MB are free'):
    main(BERT_BASE, [*command, f'--output={tmp_path / "run"}'])
  assert not [*(tmp_path / 'run').glob('checkpoints/*')]


@pytest.mark.slow
def test_warm_start_begins_with_the_other_runs_parameters(command, finished, tmp_path, monkeypatch):
  # which moves none
  monkeypatch.setattr('plm_jax.training.learner.jit_train_step', tiny.traced_step)
  args = [*command, f'--output={tmp_path / "warm"}', f'--warm-start={finished[0]}']
  assert same(run(parse(BERT_BASE, args)).params, finished[1].params)


@pytest.mark.release
@pytest.mark.slow
def test_warm_start_reports_differences_between_the_models(command, finished, tmp_path, monkeypatch,
                                                           capsys):
  monkeypatch.setattr('plm_jax.training.learner.jit_train_step', tiny.traced_step)
  args = [*command, f'--output={tmp_path / "warm"}', f'--warm-start={finished[0]}',
          '--model.block.dropout=0.3']
  run(parse(BERT_BASE, [*args, '--model.block.mlp.activation=relu']))
  assert (f'the model of this run computes otherwise than that in {finished[0]}:\n'
          '  model.block.mlp.activation: gelu -> relu\n') in capsys.readouterr().out


@pytest.mark.slow
def test_evaluate_prints_the_last_held_out_figures(command, finished, capsys):
  run(parse(BERT_BASE, [*command, f'--output={finished[0]}', '--mode=evaluate']))
  assert f'MLM loss: {finished[1].heldout["mlm"]:.4f}' in capsys.readouterr().out


@pytest.mark.parametrize('options', [
    ['--train.phases.0.weights', '0.3', '0.7'], ['--train.phases.0.corpora=1'],
    ['--train.phases.1.temperature=2'],
    ['--data.weights', '0.3', '0.7'], ['--data.temperature=2', '--data.cap=9'],
    ['--data.unimax-epochs=2']])
def test_a_run_is_evaluated_on_any_number_of_texts(options):
  config = parse(BERT_BASE, ['--scale=test', '--data.path', 'a', 'b', *options])
  config_lib.check(config)
  for texts in (('c',), ('c', 'd', 'e')):
    other = run_lib.replace_texts(config, texts)
    config_lib.check(other)
    assert other.data.path == texts and other.train.steps == config.train.steps


@pytest.mark.slow
def test_a_run_is_evaluated_only_on_its_held_out_text(corpus, tmp_path, capsys):
  valid = tmp_path / 'valid.txt'
  valid.write_text('The old array is copied in memory. The matrix is new.\n\n' * 30)
  args = ['--scale=test', f'--data.path={corpus}', f'--data.heldout-path={valid}', '--mesh.data=1',
          f'--output={tmp_path / "run"}']
  result = run(parse(BERT_BASE, args))
  valid.rename(tmp_path / 'moved.txt')
  assert run(parse(BERT_BASE,
                   [*args, f'--data.heldout-path={tmp_path / "moved.txt"}'])).step == result.step
  assert f'Held-out text:                    {valid} (' in capsys.readouterr().out
  run_lib.evaluate_folder(str(tmp_path / 'run'))
  told = capsys.readouterr().out
  assert f'text: {tmp_path / "moved.txt"} (' in told
  assert f'MLM loss: {result.heldout["mlm"]:.4f}' in told


@pytest.mark.release
@pytest.mark.slow
def test_a_run_on_all_of_its_text_has_no_held_out_metrics(corpus, tmp_path, capsys):
  args = ['--scale=test', f'--data.path={corpus}', '--data.prepare.heldout=0', '--mesh.data=1',
          f'--output={tmp_path / "run"}']
  result = run(parse(BERT_BASE, args))
  told = capsys.readouterr().out
  assert result.heldout == {} and not heldout_lines(tmp_path / 'run')
  assert 'warning: no text is held out, so the run is not evaluated' in told
  assert 'Held-out text:                    none\n' in told and 'report.html' in told
  with pytest.raises(config_lib.ConfigError, match=r'there is none: give data\.heldout_path=FILE'):
    run(parse(BERT_BASE, [*args, '--train.best=mlm']))


@pytest.mark.slow
def test_any_text_is_evaluated_with_the_tokenizer_of_the_run(finished, tmp_path, capsys,
                                                             monkeypatch):
  (tmp_path / 'other.txt').write_text('The old array is copied in memory. Quite other words.\n\n'
                                      * 40)
  monkeypatch.setattr('sys.argv', ['plm_jax', 'evaluate', str(finished[0]),
                                   str(tmp_path / 'other.txt')])
  cli.main()
  found = dict(line.split(': ') for line in capsys.readouterr().out.splitlines()
               if line.count(': ') == 1)
  assert 0 < float(found['MLM loss']) < 9 and 'NSP accuracy' in found
  assert found['MLM majority-class baseline'].endswith('%')
  foreign = PrepareConfig(source=str(tmp_path / 'other.txt'), vocab=60, heldout=0.0, workers=1)
  prepare(foreign, tmp_path / 'records')
  monkeypatch.setattr('sys.argv', ['plm_jax', 'evaluate', str(finished[0]),
                                   f'--data.path={tmp_path / "records"}'])
  with pytest.raises(SystemExit,
                     match=r'were made with another tokenizer than that of the run in .*: give the '
                           r'text'):
    cli.main()


@pytest.mark.slow
def test_fill_mask_gives_probabilities_in_order(finished):
  trained = loaded_model.load_model(finished[0])
  assert same(trained.params, finished[1].params)
  one, two = fill_mask.fill(trained, ['The [MASK] is old.', 'A [MASK] in [MASK].'], top=4)
  assert [len(one), len(two)] == [1, 2]
  probabilities = [probability for _, probability in one[0]]
  assert probabilities == sorted(probabilities, reverse=True) and 0 < sum(probabilities) < 1
  # Another length of batch changes nothing but rounding.
  alone = fill_mask.fill(trained, ['The [MASK] is old.'], top=4)[0][0]
  np.testing.assert_allclose([p for _, p in alone], probabilities, rtol=1e-4)
  with pytest.raises(config_lib.ConfigError, match='no \\[MASK\\]'):
    fill_mask.fill(trained, ['The array.'])


@pytest.mark.parametrize(('change', 'message'), [
    (['--data.pth=x'], '--data.path'),
    (['--optim.peek=1'], '--optim.peak'),
])
def test_a_misspelt_option_gets_a_suggestion(change, message, command, capsys):
  with pytest.raises(SystemExit):
    main(BERT_BASE, [*command, *change])
  assert message in capsys.readouterr().err


@pytest.mark.parametrize(('change', 'message'), [
    (['--mesh.data=512'], 'needs 512 devices, there are'),
    (['--mesh.data=1', '--train.accumulate=3'], 'a batch of 8 sequences cannot be divided evenly'),
    (['--data.assembly=packed'], 'use --data.assembly document'),
    (['--model.max-length=16'], 'do not fit the model'),
    (['--data.path=nowhere.txt'], 'nowhere.txt'),
    (['--data.weights', '1', '2'], 'one share each'),
])
def test_bad_input_is_refused_before_anything_is_written(change, message, command, tmp_path,
                                                         monkeypatch):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(SystemExit) as error:
    main(BERT_BASE, [*command, f'--output={tmp_path / "run"}', *change])
  assert message in str(error.value) and not (tmp_path / 'run').exists()


def test_text_that_cannot_be_used_is_refused(tmp_path):
  for name, content, message in [
      ('empty.txt', b'\n\n', 'no documents'), ('latin.txt', 'naïve\n'.encode('latin-1'), 'UTF-8')]:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SystemExit) as error:
      main(BERT_BASE, ['--scale=test', f'--data.path={tmp_path / name}',
                       f'--output={tmp_path / "run"}'])
    assert message in str(error.value) and name in str(error.value) and not (
        tmp_path / 'run').exists()


def test_damaged_records_and_other_configurations_are_refused(command, finished, tmp_path):
  config = parse(BERT_BASE, command)
  records = pathlib.Path(prepare_corpora(config)[0][0])
  copy = tmp_path / 'records'
  for path in [p for p in records.rglob('*') if p.is_file() and 'windows' not in p.parts]:
    target = copy / path.relative_to(records)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(path.read_bytes())
  args = [*command, f'--data.path={copy}', f'--output={tmp_path / "run"}']
  shard = copy / 'train-00000.npy'
  shard.write_bytes(shard.read_bytes()[:-100])
  with pytest.raises(SystemExit, match=r'train-00000\.npy is truncated'):
    main(BERT_BASE, args)
  assert not (tmp_path / 'run').exists()
  with pytest.raises(SystemExit, match=r'optim\.peak: 0\.001 -> 0\.5'):
    main(BERT_BASE, [*command, f'--output={finished[0]}', '--optim.peak=0.5'])


def test_bert_base_is_the_papers():
  config = parse(BERT_BASE, [])
  assert [(p.steps, p.length, p.batch)
          for p in config.train.phases] == [(900_000, 128, 256), (100_000, 512, 256)]
  optim = config.optim
  assert (optim.peak, optim.warmup, optim.b1, optim.b2,
          optim.weight_decay) == (1e-4, 10_000, 0.9, 0.999, 0.01)
  assert (config.objective.mask_rate, config.objective.mask_share,
          config.objective.random_share) == (0.15, 0.8, 0.1)
  assert config.objective.max_predictions(128) == 20 and config.objective.max_predictions(512) == 77


@pytest.mark.release
@pytest.mark.slow
def test_translations_and_monolingual_text_are_mixed(tmp_path, capsys):
  """XLM on one corpus for each of two languages and one parallel corpus: metrics of each, in
  training and by `evaluate`."""
  draw, words = random.Random(0), [('house', 'haus'), ('cat', 'katze'), ('tree', 'baum'),
                                   ('sees', 'sieht')]
  pairs = [[' '.join(side) for side in zip(*(draw.choice(words) for _ in range(draw.randint(2, 6))),
                                           strict=True)]
           for _ in range(200)]
  (tmp_path / 'pairs.tsv').write_text('en\tde\n' + ''.join(f'{en}\t{de}\n' for en, de in pairs))
  for number, name in enumerate(('en', 'de')):
    texts = ['\n'.join(pair[number] for pair in pairs[start:start + 5])
             for start in range(0, 200, 5)]
    (tmp_path / f'{name}.txt').write_text('\n\n'.join(texts))
  sources = [str(tmp_path / 'de.txt'), str(tmp_path / 'en.txt'),
             f'task:columns-en-de:{tmp_path / "pairs.tsv"}']
  run(parse(recipes.find_recipe('xlm_xnli15_tlm'), [
      '--scale=test', f'--output={tmp_path / "run"}', '--mesh.data=1',
      '--data.prepare.kind=wordpiece',
      '--data.prepare.heldout=0.2', '--objective.pair.languages', 'de', 'en', 'en-de',
      '--data.path', *sources]))
  lines = [json.loads(line)
           for line in (tmp_path / 'run' / 'metrics.jsonl').read_text().splitlines()]
  names = {f'{figure}/{name}' for figure in ('mlm', 'mlm_accuracy')
           for name in ('de', 'en', 'en-de')}
  heldout = [line for line in lines if line['split'] == 'heldout'][-1]
  assert names == {name for name in heldout if '/' in name}
  assert 'Held-out metrics by corpus' in (tmp_path / 'run' / 'report.html').read_text()
  capsys.readouterr()
  run_lib.evaluate_folder(str(tmp_path / 'run'))
  told = capsys.readouterr().out
  assert all(f'\n{name}: MLM loss {heldout[f"mlm/{name}"]:.4f}' in told
             for name in ('de', 'en', 'en-de'))
  with pytest.raises(config_lib.ConfigError, match='give one text per corpus of the run'):
    run_lib.evaluate_folder(str(tmp_path / 'run'), [sources[0]])
