"""Batches whose texts are changed anew in every epoch."""
from collections.abc import Sequence
import dataclasses

import numpy as np

from plm_jax.config import FineTuning
from plm_jax.errors import ConfigError
from plm_jax.tasks.augment import AugmentConfig, augmented, words_of
from plm_jax.tasks.batches import Batches, Placed, Shape
from plm_jax.tasks.examples import Example, Ragged
from plm_jax.tasks.labelled import Labelled
from plm_jax.tasks.sequence import SequenceTask
from plm_jax.tokenizers import Tokenizer


@dataclasses.dataclass(frozen=True, eq=False)
class Augmented(Batches):
  """Batches of texts with a class; how a text is changed is a function of (seed, epoch, number of its example)."""

  task: SequenceTask = SequenceTask()
  examples: Sequence[Example] = ()
  texts: Sequence[Sequence[np.ndarray]] = ()
  """ids of each example's texts"""
  tokenizer: Tokenizer | None = None
  config: AugmentConfig = AugmentConfig()
  pool: Ragged = Ragged.of([])
  """words to draw from"""

  def of_epoch(self, units, epoch) -> tuple[dict[str, np.ndarray], Placed]:
    """Makes the batch of units with texts that are changed for this epoch."""
    assert self.tokenizer
    starts, texts = self.tokenizer.starts_word, []
    for number in units.tolist():
      draw = np.random.default_rng((self.seed, epoch, number))
      texts.append([augmented(ids, starts[ids], draw, self.config, self.pool).tolist() for ids in self.texts[number]])
    made = self.task.made([self.examples[number] for number in units], texts, self.tokenizer.vocab, self.shape.length)
    batch, placed = Batches(made, self.shape).read(np.arange(len(units)))
    return batch, placed._replace(number=units[placed.number])


def augmenting(config: FineTuning, train: Labelled, tokenizer: Tokenizer, shape: Shape) -> Augmented:
  """Makes the batches of a run whose words are exchanged. Raises ConfigError for a task whose labels depend on where
  words are."""
  task = config.objective
  if not isinstance(task, SequenceTask):
    raise ConfigError(f'--data.augment changes the words of texts with a class or a number, and {task.reads} '
                      'depends on where they stand')
  ids = iter(tokenizer.encode_batch([text for example in train.examples for text in example.texts]))
  texts = [[np.array(next(ids), np.int64) for _ in example.texts] for example in train.examples]
  every = Ragged.of([of for some in texts for of in some], np.int64)
  pool = words_of(every, Ragged(tokenizer.starts_word[every.flat], every.offsets))
  return Augmented(train.features, shape, config.seed, config.data.by_length, task, train.examples, texts, tokenizer,
                   config.data.augment, pool)
