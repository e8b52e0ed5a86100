"""Texts that are augmented differently in every epoch."""
import types

import numpy as np
import pytest

from plm_jax.config.run import ConfigError, FinetuneRun, Phase, TrainConfig, check
from plm_jax.finetuning.augmentation import make_augmented_batches
from plm_jax.sources.row_readers import Example
from plm_jax.tasks.batches import BatchShape
from plm_jax.tasks.labeled_data import LabeledConfig, LabeledDataset
from plm_jax.tasks.sequence_classification import SequenceTask
from plm_jax.tasks.sources import ReadReport
from plm_jax.tasks.text_augmentation import AugmentConfig
from plm_jax.tasks.token_classification import TaggingTask


class Letters:
  """Words of one letter: a is 10, b 11, ..."""

  vocab = types.SimpleNamespace(cls=1, sep=2, pad=0, size=40)
  starts_word = np.ones(40, bool)

  def encode_batch(self, texts):
    return [[10 + ord(letter) - ord('a') for letter in text.split()] for text in texts]


def batches(config: AugmentConfig, task=SequenceTask(labels=('x', 'y'))):
  examples = [Example(('a b c d e f',), 0), Example(('g h i j',), 1), Example(('k l', 'm n'), 1)]
  tokenizer = Letters()
  made = SequenceTask().features(examples, tokenizer, 16)
  run = FinetuneRun('try', objective=task, data=LabeledConfig(augment=config), seed=3,
                   train=TrainConfig(phases=(Phase(1, 16, 3),)))
  return make_augmented_batches(run, LabeledDataset(examples, made, ReadReport()), tokenizer,
                                BatchShape(3, 16))


def rows(batch):
  return [row[row > 2].tolist() for row in batch['tokens']]


def test_augmentation_depends_on_seed_epoch_and_index():
  some = batches(AugmentConfig(share=1.0, substitute=0.0, insert=0.0, swap=0.5, delete=0.0))
  first, again, other = (some.make_epoch_batch(np.array([1, 0]), epoch)[0] for epoch in (0, 0, 1))
  assert rows(first) == rows(again) != rows(other)
  assert [sorted(row) for row in rows(first)] == [[16, 17, 18, 19], [10, 11, 12, 13, 14, 15], []]
  alone = some.make_epoch_batch(np.array([0]), 0)[0]
  assert rows(alone)[0] == rows(first)[1]  # whatever else is in the batch
  np.testing.assert_array_equal(first['label'][:, 0], [1, 0, 0])


def test_both_texts_keep_their_places():
  some = batches(AugmentConfig(share=1.0, substitute=1.0, insert=0.0, swap=0.0, delete=0.0))
  batch, placed = some.make_epoch_batch(np.array([2]), 0)
  tokens = batch['tokens'][0]
  assert [tokens[0], tokens[3], tokens[6]] == [1, 2, 2]
  assert placed.number.tolist() == [2]
  assert set(tokens[[1, 2, 4, 5]]) <= set(range(10, 24))


def test_texts_with_word_labels_are_not_augmented():
  with pytest.raises(ConfigError, match='tagging depends on their positions'):
    batches(AugmentConfig(share=1.0), TaggingTask(labels=('O', 'B-X')))


def test_texts_in_windows_are_not_augmented():
  run = FinetuneRun('try', objective=SequenceTask(windows='max'), data=LabeledConfig(
      train=('a.tsv',), augment=AugmentConfig(share=0.5)),
      train=TrainConfig(phases=(Phase(1, 16, 3),)))
  with pytest.raises(ConfigError,
                     match=r'augment.share changes .* objective.windows=max makes of them'):
    check(run)
