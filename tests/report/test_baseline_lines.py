"""What a run shows next to its score, and what it proposes where a baseline is better."""
import json

import labelled
import pytest

from plm_jax import recipes
from plm_jax.cli import finetune
from plm_jax.config import serialization
from plm_jax.finetuning.setup import resolve_run
from plm_jax.recipes.finetune import InitialModel
from plm_jax.report.baselines import compare_with_baselines, drops_capitals, suggest_improvements
from plm_jax.tasks import baselines
from plm_jax.tokenizers import train_wordpiece
from plm_jax.tokenizers.wordpiece import BertNormalization
from plm_jax.training.train import TrainingResult
from plm_jax.validation import with_paths

TOKENIZER = labelled.tokenizer()


def ready_of(folder, kind='classification', **changes):
  """A run of four steps at the scale laptop, whose examples have been read."""
  config = labelled.run(folder, kind, 4, **changes)
  return resolve_run(with_paths(config, {'scale': 'laptop'}), TOKENIZER)


def result(best=2, **heldout):
  return TrainingResult(4, {}, True, 1.0, heldout, 1.0, best)


def test_a_model_that_is_better_is_shown_next_to_the_baselines(tmp_path):
  rows, notes = compare_with_baselines(ready_of(tmp_path), result(accuracy=100.0))
  assert rows == {'Baseline, the majority class': '50.00 accuracy',
                  'Baseline, TF-IDF with logistic regression': '100.00 accuracy'}
  assert notes == []


def test_a_model_that_is_behind_is_told_what_may_help(tmp_path):
  """Texts of more than 8 tokens are cut, the last evaluation was the best, and it began from scratch."""
  ready = ready_of(tmp_path, train__phases=labelled.phases(4, 8))
  rows, notes = compare_with_baselines(ready, result(best=4, accuracy=60.0))
  assert len(rows) == 2
  assert notes[0] == ('TF-IDF with logistic regression reaches 40.0 accuracy more than the model, 100.0. What may '
                      'help:')
  assert '- it was trained from scratch: begin with a pre-trained model, --init=FOLDER' in notes
  assert any('of the training examples lose an end. --train.phases.0.length=16 reads more' in note for note in notes)
  assert '- the last evaluation was the best one: train for longer, --data.epochs=2' in notes
  assert notes[-1] == '- it is small, 2 layers of width 32: a larger pre-trained model knows more'
  assert not any('last evaluation' in note for note in suggest_improvements(ready, result(best=2)))


def test_a_short_pretraining_and_a_low_rate_are_named(tmp_path):
  before = recipes.find_recipe('bert_base')('laptop')
  (tmp_path / 'before').mkdir()
  (tmp_path / 'before' / 'config.json').write_text(serialization.dump(before))
  ready = ready_of(tmp_path, start=InitialModel('', 'bert', with_paths(before.model, {'vocab': 80})), optim__peak=2e-5)
  ready = ready._replace(config=with_paths(ready.config, {'warm_start': str(tmp_path / 'before')}))
  told = [*suggest_improvements(ready, result())]
  assert told[0].startswith('its pre-training was short, 2,000 steps')
  assert 'the learning rate is low for a model of width 128: --optim.peak=5e-04' in told
  told = [*suggest_improvements(ready._replace(config=with_paths(ready.config, {'optim.peak': 5e-4})), result())]
  assert not any('rate' in reason for reason in told)


def test_two_texts_are_compared_by_vectors(tmp_path):
  """The command that is proposed reads the same files: its options are those of the highest score."""
  rows = [{'sentence1': 'a film', 'sentence2': f'the film {n}', 'score': n % 5 + 0.5} for n in range(20)]
  file = tmp_path / 'pairs.jsonl'
  file.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  ready = ready_of(tmp_path, 'regression', data__train=(str(file),), data__dev=(str(file),))
  option = '--task=embedding --loss=cosine --objective.vector-loss.full=4.5'
  assert f'a small model compares two texts better by their vectors: {option}' in [
    *suggest_improvements(ready, result())
  ]
  config, _ = finetune.parse('', [*option.split(), '--scale=test', f'--train={file}', f'--dev={file}'], '')
  assert resolve_run(config, TOKENIZER).config.train.best == 'spearman'


@pytest.mark.parametrize(('lowercase', 'expected'), [(True, True), (False, False)])
def test_a_tagger_needs_capital_letters(lowercase, expected):
  text = ['Paris is in France paris Paris paris'] * 20
  assert drops_capitals(train_wordpiece(text, 60, BertNormalization(lowercase))) is expected


def test_nothing_is_computed_where_nothing_is_asked_for(tmp_path, monkeypatch):
  monkeypatch.setattr(baselines, 'simple_baseline', lambda *args: pytest.fail('computed'))
  ready = ready_of(tmp_path, data__baseline=False)
  assert compare_with_baselines(ready, result(accuracy=0.0)) == ({}, [])
  tried = resolve_run(labelled.run(tmp_path), TOKENIZER)
  assert tried.config.scale == 'test' and compare_with_baselines(tried, result(accuracy=0.0)) == ({}, [])


def test_without_scikit_learn_the_majority_is_shown_and_the_extra_named(tmp_path, monkeypatch):
  monkeypatch.setattr(baselines, 'has_scikit_learn', lambda: False)
  rows, notes = compare_with_baselines(ready_of(tmp_path), result(accuracy=0.0))
  assert list(rows) == ['Baseline, the majority class']
  assert notes == ['pip install "plm_jax[baselines]" computes a simple baseline to hold the score against']
