"""From a folder of text to a table of results: every step runs once, also after interruptions, and
wrong options are refused."""
import contextlib
import json
import pathlib
import shutil

import pytest
import tiny

from experiments.babylm import entry
from experiments.babylm.__main__ import main
from plm_jax.cli.main import answer
from plm_jax.errors import UsageError

FIXTURES = pathlib.Path(__file__).parents[1] / 'fixtures'
SMALL = ['--scale=test', '--mesh.data=1', '--data.prepare.heldout=0.1', '--train.phases.0.steps=2']


@pytest.fixture
def track(tmp_path, monkeypatch) -> pathlib.Path:
  """A track's folder, pairs and tables; runs are traced, not computed."""
  monkeypatch.setattr('plm_jax.training.learner.jit_train_step', tiny.traced_step)
  monkeypatch.chdir(tmp_path)
  documents = tiny.text().split('\n\n')
  (tmp_path / 'track/dev').mkdir(parents=True)
  (tmp_path / 'track/books.train').write_text('\n\n'.join([*documents, documents[0]]))
  (tmp_path / 'track/dev/books.dev').write_text('\n\n'.join(documents[:40]))
  shutil.copy(FIXTURES / 'blimp.jsonl', tmp_path / 'pairs.jsonl')
  lines = [line for line in tiny.text().splitlines() if line][:48]
  (tmp_path / 'glue/RTE').mkdir(parents=True)
  for file, part in (('cola_train.tsv', lines[:32]), ('cola_dev.tsv', lines[32:])):
    (tmp_path / 'glue' / file).write_text('\n'.join(['sentence\tlabel', *(
        f'{line}\t{number % 2}' for number, line in enumerate(part))]) + '\n')
  for file in ('train.tsv', 'dev.tsv'):
    (tmp_path / 'glue/RTE' / file).write_text('\n'.join(['sentence1\tsentence2\tlabel', *(
        f'{line}\t{line}\t{("entailment", "not_entailment")[number % 2]}'
        for number, line in enumerate(lines[:16]))]))
  (tmp_path / 'eval/supplement_filtered').mkdir(parents=True)
  pairs = [json.dumps({'sentence_good': line[:20], 'sentence_bad': line[20::-1]})
           for line in lines[:2]]
  (tmp_path / 'eval/supplement_filtered/turn_taking.jsonl').write_text('\n'.join(pairs))
  return tmp_path


def typed(*args: str) -> None:
  main(['run', *args])


@pytest.mark.release
@pytest.mark.slow
def test_every_step_runs_once_and_results_are_in_a_table(track, monkeypatch, capsys):
  asked = ['--data=track', '--output=out', *SMALL]
  typed(*asked)
  first = json.loads((track / 'out/babylm.json').read_text())['done']
  assert {*first} == {'text', 'model', 'dev'} and first['text']['duplicates'] >= 1
  assert first['model']['steps'] == 4 and {'mntp', 'clm'} <= {*first['dev']['heldout']}
  assert first['dev']['asked'].endswith('books.dev')
  assert 'words' in capsys.readouterr().out

  # With additional work, finished work is not repeated.
  monkeypatch.setattr(entry.corpus, 'clean', None)
  more = [*asked, '--pairs=pairs.jsonl', '--limit=2', '--glue=glue', '--tasks=cola',
          '--zero-shot=eval']
  typed(*more)
  out = capsys.readouterr().out
  assert 'text: done before' in out and 'model: done before' in out
  done = json.loads((track / 'out/babylm.json').read_text())['done']
  assert {*done} == {'text', 'model', 'dev', 'pairs pll', 'pairs causal',
                     'zero-shot final mntp: supplement_filtered',
                     'zero-shot final causal: supplement_filtered', 'task cola'}
  zero_shot = done['zero-shot final causal: supplement_filtered']
  assert zero_shot['items'] == 2 and zero_shot['parts'] == {'turn_taking': zero_shot['score']}
  home = track / 'out/results/model/main/zero_shot/causal/blimp/supplement_filtered'
  predicted = json.loads((home / 'predictions.json').read_text())['turn_taking']['predictions']
  scored = [json.loads(line) for line in (home / 'scores.jsonl').read_text().splitlines()]
  for prediction, one in zip(predicted, scored, strict=True):
    good, bad = one['logprobs']
    assert prediction['pred'] == one['texts'][int(bad > good)]
  judged = [json.loads(line)
            for line in (track / 'out/pairs-causal.jsonl').read_text().splitlines()]
  assert done['pairs causal']['pairs'] == len(judged)
  assert done['pairs causal']['accuracy'] == pytest.approx(sum(one['right'] for one in judged)
                                                           / len(judged))
  assert done['task cola']['measure'] == 'matthews'
  row = f'task cola: matthews {done["task cola"]["heldout"]["matthews"]:.2f}'
  assert row in [' '.join(line.split()) for line in out.splitlines()]
  page = (track / 'out/babylm.html').read_text()
  assert 'minimal pairs causal' in page and 'task cola: matthews' in page

  # And a table that is not of this folder's tables, or a model that another run has made, by
  # itself.
  typed('--model=out/model', '--output=other', '--glue=glue', '--scale=test')
  again = json.loads((track / 'other/babylm.json').read_text())['done']
  assert {*again} == {'task cola', 'task rte'} and 'mean of tasks' in capsys.readouterr().out
  with pytest.raises(SystemExit,
                     match="out was begun with recipe 'gpt_bert_strict_small', not 'bert_base'"):
    typed(*asked, '--recipe=bert_base')


def test_steps_are_repeated_if_their_files_or_the_model_change(track, monkeypatch, capsys):
  (track / 'run').mkdir()
  (track / 'run/weights').write_text('1')
  monkeypatch.setattr(entry.loaded_model, 'load_model', lambda folder: None)
  monkeypatch.setattr(entry, 'scoring_ways', lambda trained: ['pll'])
  monkeypatch.setattr(entry, 'judge_pairs', lambda *_: {
      'accuracy': 0.5, 'interval': [0.4, 0.6], 'pairs': 8, 'phenomena': {}})
  def parts():
    typed('--model=run', '--output=out', '--pairs=*.jsonl')
    return capsys.readouterr().out.splitlines()[0]
  assert parts() == 'pairs pll: *.jsonl all' and parts() == 'pairs pll: done before'
  for path in (track / 'pairs.jsonl', track / 'more.jsonl', track / 'run/weights'):
    path.write_text('{}')
    assert parts() == 'pairs pll: *.jsonl all (its files have changed)' and parts(
        ) == 'pairs pll: done before'


@pytest.mark.slow
def test_an_interrupted_training_is_gone_on_with(track, monkeypatch):
  """What stopped in the middle is not counted as done."""
  asked, runs = ['--data=track', '--output=out', *SMALL], []
  real = entry.run.run
  def interrupted(config, caller):
    runs.append(config.folder)
    return None if len(runs) == 1 else real(config, caller=caller)
  monkeypatch.setattr(entry.run, 'run', interrupted)
  with pytest.raises(SystemExit) as ended:
    typed(*asked)
  assert ended.value.code == 75
  assert {*json.loads((track / 'out/babylm.json').read_text())['done']} == {'text'}
  typed(*asked)
  assert {*json.loads((track / 'out/babylm.json').read_text())['done']} == {'text', 'model', 'dev'}
  assert runs == ['out/model'] * 2


@pytest.mark.parametrize(('args', 'message'), [
    (['--data=track'], '--output is missing'),
    (['--output=out'], 'give --data, the text of a track, or --model'),
    (['--data=track', '--model=run', '--output=out'],
     'give --data, the text of a track, or --model'),
    (['--data=track', '--output=out', '--limit=-3'], '--limit is a number of pairs, got'),
    (['--data=track', '--output=out', '--tasks=cola'],
     '--tasks are those of a folder of tables: give --glue'),
    (['--data=track', '--output=out', '--glue=nowhere', *SMALL],
     '--glue is a folder of tables, and there is none'),
    (['--data=track', '--output=out', '--glue=glue', '--tasks=mnli', *SMALL],
     r'there are no tables of mnli: glue has tables of rte, cola; of a task they are called '
     r'TASK_train\.tsv'),
    (['--data=track', '--output=out', '--glue=track', *SMALL], 'track has tables of no task'),
    (['--data=track', '--output=out', '--recipe=gpt_bart', *SMALL], 'there is no recipe'),
    (['--data=track', '--output=out', '--pairs=none.jsonl', *SMALL], "no files match 'none.jsonl'"),
    (['--data=track', '--output=out', '--mode=prepare', *SMALL],
     '--mode and --data.path are options of `train`: `run` trains'),
    (['--data=track', '--output=out', '--zero-shot=track', *SMALL],
     'track has none of the folders blimp_filtered'),
    (['--data=track', '--output=out', '--fast=eval', *SMALL],
     '--fast evaluates the checkpoints that a run with --track'),
    (['--data=track', '--output=out', '--track.name=multilingual', *SMALL],
     '--track.name=multilingual needs --track.languages, one per corpus, of eng, nld, zho; other '
     'tracks take none'),
    (['--model=run', '--output=out', '--train.keep=2'],
     '--model is evaluated as it is: leave out --train.keep=2')])
def test_impossible_entries_are_refused_before_any_work(track, monkeypatch, args, message):
  monkeypatch.setattr(entry.corpus, 'clean', None)
  with pytest.raises(SystemExit, match=message):
    typed(*args)


def test_the_table_has_phenomena_for_both_scores():
  def pairs(value):
    return {'accuracy': value, 'interval': [0.25, 0.75], 'pairs': 8,
            'phenomena': {'binding': value}}

  rows = entry.result_rows(
    entry.BabylmPlan('out', model='run'), None,
    {'pairs pll': pairs(0.5), 'pairs causal': pairs(0.625)}
  )
  assert rows == {
      'model': 'run', 'minimal pairs pll': '50.0%  (25.0% to 75.0% of 8)',
      '  pll: binding': '50.0%',
      'minimal pairs causal': '62.5%  (25.0% to 75.0% of 8)', '  causal: binding': '62.5%'}


def test_help_names_all_options(capsys):
  typed('--help')
  said = capsys.readouterr().out
  assert all(f'--{name} ' in said for name in entry.OPTION_NAMES)
  main([])
  said = capsys.readouterr().out
  for name in ('train', 'export', 'push'):
    assert f'    {name} ' in said
    with contextlib.suppress(SystemExit):
      main([name, '--help'])
    assert name in capsys.readouterr().out


@pytest.mark.parametrize(('args', 'message'), [
    (['evaluate'], 'there is no command evaluate: it is run, train, export or push'),
    (['train', 'gpt2_small', '--track.name=nice'],
     '--track.name is none, strict-small, strict or multilingual'),
    (['train', 'gpt2_small', '--track.name=multilingual', '--track.languages', 'eng', 'nld',
      '--scale=test',
      '--data.path', 'a.txt'], '--track.languages gives 2 languages for 1 corpora of --data.path'),
    (['export', 'track', 'out'],
     'track has no named checkpoints: a run with --track.name keeps them')])
def test_wrong_commands(track, capsys, args, message):
  with pytest.raises(SystemExit) as ended:
    main(args)
  assert message in f'{ended.value.code} {capsys.readouterr().err}'


def test_the_former_command_names_the_new_one():
  with pytest.raises(UsageError, match=r'`python -m experiments\.babylm`'):
    answer(['babylm', '--data=track'])
