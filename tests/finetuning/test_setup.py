"""Setup of fine-tuning that depends on the examples: the metric that selects the best checkpoint,
and features that a frozen backbone computes once per example."""
import dataclasses

import jax
import labelled
import numpy as np
import pytest

from plm_jax import tokenizers, validation
from plm_jax.config.run import FinetuneRun, Phase, TrainConfig
from plm_jax.errors import ConfigError
from plm_jax.finetuning.feed import LabeledFeed, backbone_frozen
from plm_jax.finetuning.setup import resolve_run, selection_metric
from plm_jax.models import bert, eurobert, modernbert, t5
from plm_jax.optim.optimizers import AdamW
from plm_jax.optim.tuning import TuningConfig
from plm_jax.tasks.extractive_qa import AnswerTask
from plm_jax.tasks.labeled_data import LabeledConfig
from plm_jax.tasks.multiple_choice import ChoiceTask
from plm_jax.tasks.sentence_embedding import EmbeddingTask
from plm_jax.tasks.sequence_classification import SequenceTask
from plm_jax.tasks.token_classification import TaggingTask
from plm_jax.training.train import train


@pytest.mark.parametrize(('task', 'expected'), [
    (SequenceTask(), 'accuracy'), (SequenceTask(measures=('macro_f1', 'accuracy')), 'macro_f1'),
    (SequenceTask(regression=True, measures=('spearman', 'pearson')), 'spearman'),
    (TaggingTask(), 'f1'),
    (TaggingTask(metric='accuracy'), 'accuracy'), (AnswerTask(), 'f1'),
    (AnswerTask(unanswerable=True), 'f1'),
    (ChoiceTask(), 'accuracy'), (EmbeddingTask(), 'spearman'),
    (EmbeddingTask(measured_by='retrieval'), 'ndcg_10')])
def test_the_selection_metric_follows_the_task(task, expected):
  assert selection_metric('main', task, ['']) == expected
  assert selection_metric('main', task, []) == selection_metric('', task, ['']) == ''


def test_another_metric_is_checked_before_training(tmp_path):
  assert selection_metric('other_loss', TaggingTask(), ['', 'other']) == 'other_loss'
  assert selection_metric('HasAns_f1', AnswerTask(unanswerable=True), ['']) == 'HasAns_f1'
  for best, task in (('spearman', EmbeddingTask(measured_by='retrieval')),
                     ('loss', EmbeddingTask()),
                     ('HasAns_f1', AnswerTask()), ('other_f1', TaggingTask())):
    with pytest.raises(ConfigError, match=r'train\.best is main or one of the metrics'):
      selection_metric(best, task, [''])
  config = labelled.run(tmp_path, 'tagging', objective__metric='accuracy', train__best='f1')
  with pytest.raises(ConfigError, match="of the task, accuracy, loss, got 'f1'"):
    resolve_run(config, labelled.tokenizer())
  config = labelled.run(tmp_path, 'tagging', objective__metric='accuracy')
  assert resolve_run(config, labelled.tokenizer()).config.train.best == 'accuracy'


def test_few_examples_are_read_more_often(tmp_path):
  """28 examples in batches of 8 are 4 steps per epoch; a run is evaluated at most 20 times to reach
  the least steps."""
  for least, steps, every in ((0, 12, 4), (10, 12, 4), (50, 50, 4), (1000, 1000, 50)):
    config = labelled.run(tmp_path, data__epochs=3.0, data__least_steps=least, optim__warmup=0)
    found = resolve_run(config, labelled.tokenizer()).config
    assert (found.train.steps, found.train.eval_every,
            found.optim.warmup) == (steps, every, round(0.1 * steps))
  more = labelled.run(tmp_path, data__epochs=3.0, data__least_steps=1000, data__evaluations=2.0)
  assert resolve_run(more, labelled.tokenizer()).config.train.eval_every == 25


def test_early_stopping_needs_a_development_set(tmp_path):
  config = labelled.run(tmp_path, train__early=10, train__best='main')
  assert resolve_run(config, labelled.tokenizer()).config.train.early == 10
  alone = resolve_run(labelled.run(tmp_path, train__early=10, train__best='main', data__dev=()),
                      labelled.tokenizer())
  assert (alone.config.train.best, alone.config.train.early) == ('', 0)


def test_equal_texts_are_counted(tmp_path):
  """Texts differ only in case and white space: with other labels, or in both parts."""
  train, dev = tmp_path / 'train.tsv', tmp_path / 'dev.tsv'
  train.write_text('text\tlabel\nA good film\tpos\na  GOOD film\tneg\na good film\tpos\nbad\tneg\n')
  dev.write_text('text\tlabel\nBad\tneg\na good film\tpos\nfine\tpos\n')
  config = labelled.run(tmp_path, data__train=(str(train),), data__dev=(str(dev),))
  found = resolve_run(config, labelled.tokenizer())
  assert found.train.report.notes == [
      f'1 examples have the text of another one and a different label, such as {train}:2 and '
      f'{train}:3']
  assert found.dev[''].report.notes == [f'2 of 3 are also training examples, such as {dev}:2']


def test_tags_of_equal_sentences_are_compared(tmp_path):
  train, dev = tmp_path / 'train.conll', tmp_path / 'dev.conll'
  train.write_text('Ann B-PER\nsat O\n\nAnn O\nsat O\n\nAnn B-PER\nran O\n')
  dev.write_text('Ann B-PER\nsat O\nthere O\n')
  config = labelled.run(tmp_path, 'tagging', data__train=(str(train),), data__dev=(str(dev),))
  found = resolve_run(config, labelled.tokenizer())
  assert found.train.report.notes[-1].startswith('1 examples have the text of another one')
  assert found.dev[''].report.notes == []


TEXTS = [('the cat sat down here', 'good'), ('dogs bark at night', 'bad'),
         ('a cat is a cat', 'good'),
         ('no dogs here', 'bad'), ('it purrs', 'good')]
WORDS = 'the O\ncat B-PET\nsat O\n\ndogs B-PET\nbark O\n\na O\ncat B-PET\n'


def run(tmp_path, task, source, name, pooling='first', **data):
  tokenizer = tokenizers.train_wordpiece(iter([text for text, _ in TEXTS]), 60)
  model = validation.with_paths(bert.make_config(2, 64), {
      'vocab': tokenizer.vocab.size, 'max_length': 16, 'block.heads': 2, 'block.dropout': 0.0,
      'head.pooling': pooling,
      'block.attention.dropout': 0.0})
  config = FinetuneRun(
      name, model=model, objective=task, output=str(tmp_path / name), tuning=TuningConfig(top=0),
      data=LabeledConfig(train=(str(source),), dev=(str(source),), epochs=2, **data),
      optim=AdamW(peak=0.05, warmup=0), train=TrainConfig(phases=(Phase(1, 16, 2),)))
  ready = resolve_run(config, tokenizer)
  return train(ready.config, ready.open_feed, tokenizer)


@pytest.mark.parametrize(('family', 'path', 'pooling', 'kept'), [
    ('modernbert', 'head.pooling', 'first', True), ('modernbert', 'head.pooling', 'mean', True),
    ('eurobert', 'head.pooling', 'late', False)])
def test_features_are_kept_only_for_heads_that_read_no_others(family, path, pooling, kept):
  """A head with a prediction per token reads all of them, and heads of T5 read the outputs of the
  encoder or the decoder."""
  make = {'modernbert': modernbert.base, 'eurobert': eurobert.eurobert_210m}[family]
  model = validation.with_paths(make(), {path: pooling})
  config = FinetuneRun('try', family=family, model=model, tuning=TuningConfig(top=0))
  for task, wanted in ((SequenceTask(family=family), kept), (TaggingTask(family=family), True)):
    assert backbone_frozen(dataclasses.replace(config, objective=task)) == wanted
  encoder_decoder = dataclasses.replace(config, family='t5', model=t5.small())
  for task, wanted in ((SequenceTask(family='t5'), True), (TaggingTask(family='t5'), False)):
    assert backbone_frozen(dataclasses.replace(encoder_decoder, objective=task)) == wanted


@pytest.mark.slow
def test_a_finished_run_encodes_no_training_examples(tmp_path, monkeypatch):
  """No training example is encoded; only the development set is predicted again."""
  source = tmp_path / 'texts.tsv'
  source.write_text('text\tlabel\n' + ''.join(f'{text}\t{label}\n' for text, label in TEXTS))
  first = run(tmp_path, SequenceTask(), source, 'run')
  monkeypatch.setattr(LabeledFeed, 'on_start', None)
  assert run(tmp_path, SequenceTask(), source, 'run').heldout == first.heldout


@pytest.mark.slow
@pytest.mark.parametrize(('kind', 'pooling'),
                         [('label', 'first'), ('label', 'mean'), ('label', 'max'),
                          ('tags', 'first')])
def test_cached_features_give_the_same_training(kind, pooling, tmp_path):
  if kind == 'label':
    source, task = tmp_path / 'texts.tsv', SequenceTask()
    source.write_text('text\tlabel\n' + ''.join(f'{text}\t{label}\n' for text, label in TEXTS))
  else:
    source, task = tmp_path / 'words.conll', TaggingTask()
    source.write_text(WORDS)
  kept, asked = (run(tmp_path, task, source, f'{kind}{cache}', pooling, cache=cache)
                 for cache in (True, False))
  for ours, theirs in zip(jax.tree.leaves(kept.params), jax.tree.leaves(asked.params), strict=True):
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
  assert kept.heldout == pytest.approx(asked.heldout, abs=1e-4)
  head = kept.params[f'heads_{kind}']['dense']['kernel']
  assert np.abs(head).max() > 0.06  # it has learned: it began within 0.04
