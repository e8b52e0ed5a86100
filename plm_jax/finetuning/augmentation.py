"""Batches of a run with data augmentation: texts change in every epoch."""
from collections.abc import Sequence
import dataclasses
import itertools

import numpy as np

from plm_jax.config.run import FinetuneRun
from plm_jax.errors import ConfigError, name_field
from plm_jax.sources.row_readers import Example
from plm_jax.tasks.batches import BatchShape, FeatureBatches, Placement
from plm_jax.tasks.features import Ragged
from plm_jax.tasks.labeled_data import LabeledDataset
from plm_jax.tasks.sequence_classification import SequenceTask, encode_examples
from plm_jax.tasks.text_augmentation import AugmentConfig, augment_text, build_word_pool
from plm_jax.tokenizers import Tokenizer


@dataclasses.dataclass(frozen=True, eq=False)
class AugmentedBatches(FeatureBatches):
  """Batches of augmented texts; each text is a function of (seed, epoch, example index)."""

  task: SequenceTask = SequenceTask()
  examples: Sequence[Example] = ()
  texts: Sequence[Sequence[np.ndarray]] = ()
  """ids of each example's texts"""
  tokenizer: Tokenizer | None = None
  config: AugmentConfig = AugmentConfig()
  pool: Ragged = Ragged.concat([])
  """words to sample from"""

  def make_epoch_batch(self, units, epoch) -> tuple[dict[str, np.ndarray], Placement]:
    """Make the batch of units with the augmented texts of an epoch."""
    assert self.tokenizer
    starts, texts = self.tokenizer.starts_word, []
    for number in units.tolist():
      rng = np.random.default_rng((self.seed, epoch, number))
      texts.append([augment_text(ids, starts[ids], rng, self.config, self.pool).tolist()
                    for ids in self.texts[number]])
    examples = [self.examples[number] for number in units]
    features = self.task.features_from_ids(
        examples, texts, self.tokenizer.vocab, self.shape.length)
    batch, placement = FeatureBatches(features, self.shape).lay_out(np.arange(len(units)))
    return batch, placement._replace(number=units[placement.number])


def make_augmented_batches(
    config: FinetuneRun, train: LabeledDataset, tokenizer: Tokenizer, shape: BatchShape
) -> AugmentedBatches:
  """Make the batches of a run with data augmentation.

  Raises ConfigError for a task whose labels depend on the positions of words.
  """
  task = config.objective
  if not isinstance(task, SequenceTask):
    raise ConfigError(f'{name_field("data.augment")} changes the words of texts with a class or a '
                      f'number, and {task.example_kind} depends on their positions')
  texts = [[np.array(ids, np.int64) for ids in some]
           for some in encode_examples(tokenizer, train.examples)]
  tokens = Ragged.concat(itertools.chain.from_iterable(texts), np.int64)
  pool = build_word_pool(tokens, Ragged(tokenizer.starts_word[tokens.flat], tokens.offsets))
  return AugmentedBatches(
      train.features, shape, config.seed, config.data.by_length, task, train.examples, texts,
      tokenizer, config.data.augment, pool)
