"""What depends on the examples of a run: the metric that selects its best checkpoint."""
import labelled
import pytest

from plm_jax.errors import ConfigError
from plm_jax.finetuning.setup import resolve_run, selection_metric
from plm_jax.tasks.extractive_qa import AnswerTask
from plm_jax.tasks.multiple_choice import ChoiceTask
from plm_jax.tasks.sentence_embedding import EmbeddingTask
from plm_jax.tasks.sequence_classification import SequenceTask
from plm_jax.tasks.token_classification import TaggingTask


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
